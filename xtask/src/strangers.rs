//! Weights that packages ship, read by reshard and by the libraries that wrote them.
//!
//! `tests/strangers/table.json` lists the packages and their files. None of the files is in the repository, and no code of the
//! packages runs.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::shell::{Program, programs, root, say, target_dir};
use crate::venv::{TENSORFLOW, TORCH_215, uv};

#[derive(Debug)]
pub(crate) struct Options {
    /// Leave the packages where they are.
    pub(crate) keep: bool,
    /// Remove each Python after its last use.
    pub(crate) frugal: bool,
}

/// Reads files of TensorFlow; all others are read in the environment of torch.
const OF_TENSORFLOW: &str = "tensor_bundle";

/// One row of the table: a file, or the prefix of several.
struct Checkpoint {
    /// What reshard opens.
    path: PathBuf,
    row: Value,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let tests = root().join("tests/strangers");
    let table: Value = serde_json::from_slice(&fs::read(tests.join("table.json"))?)?;
    let place = target_dir().join("strangers");
    if place.exists() {
        fs::remove_dir_all(&place).with_context(|| format!("cannot remove {}", place.display()))?;
    }
    let python = TORCH_215.python()?;
    install(list(&table, "packages"), &place, &python)?;

    let packages = list(&table, "packages").iter();
    let rows = packages.flat_map(|package| list(package, "checkpoints"));
    let checkpoints: Vec<Checkpoint> = rows
        .map(|row| Checkpoint {
            path: place.join(text(row, "open")),
            row: row.clone(),
        })
        .collect();
    let native = native(&checkpoints, &place, &python, options.frugal)?;

    let reshard = programs(&["reshard"])?.join("reshard");
    let mut failed = Vec::new();
    for checkpoint in &checkpoints {
        let (name, begin) = (text(&checkpoint.row, "open"), Instant::now());
        let outcome = checkpoint.check(&reshard, &place, &native);
        let seconds = begin.elapsed().as_secs_f64();
        match outcome {
            Ok(what) => say(format!("ok      {name}: {what} ({seconds:.1} s)")),
            Err(error) => {
                say(format!("FAILED  {name} ({seconds:.1} s)\n{error:#}"));
                failed.push(name);
            }
        }
    }
    if !options.keep {
        fs::remove_dir_all(&place).with_context(|| format!("cannot remove {}", place.display()))?;
    }
    let passed = checkpoints.len() - failed.len();
    say(format!("{passed} passed, {} failed", failed.len()));
    ensure!(failed.is_empty(), "strangers failed");
    ensure!(passed > 0, "nothing ran");
    Ok(())
}

/// Unpacks the packages. Without `--no-build`, installing a package may run its code.
fn install(packages: &[Value], place: &Path, python: &Path) -> Result<()> {
    let named = packages
        .iter()
        .map(|package| format!("{}=={}", text(package, "name"), text(package, "version")));
    uv()?
        .args(["pip", "install", "--quiet", "--no-deps", "--no-build"])
        .args(["--target".as_ref(), place, "--python".as_ref(), python])
        .args(named)
        .run()
}

/// The digests that the libraries compute: path, then key.
fn native(
    checkpoints: &[Checkpoint],
    place: &Path,
    torch: &Path,
    frugal: bool,
) -> Result<BTreeMap<String, Value>> {
    let script = root().join("tests/strangers/native.py");
    let mut found = BTreeMap::new();
    for of_tensorflow in [false, true] {
        let jobs: Vec<Value> = checkpoints
            .iter()
            .filter_map(|checkpoint| {
                let reader = checkpoint.row.get("reader")?.as_str()?;
                let job = json!({ "path": checkpoint.path, "reader": reader });
                ((reader == OF_TENSORFLOW) == of_tensorflow).then_some(job)
            })
            .collect();
        let file = place.join("jobs.json");
        fs::write(&file, Value::from(jobs).to_string())?;
        let python = match of_tensorflow {
            true => TENSORFLOW.python()?,
            false => torch.to_path_buf(),
        };
        let said = Program::new(python).args([&script, &file]).read()?;
        found.extend(serde_json::from_str::<BTreeMap<String, Value>>(&said)?);
        if frugal {
            match of_tensorflow {
                true => TENSORFLOW.remove()?,
                false => TORCH_215.remove()?,
            }
        }
    }
    Ok(found)
}

impl Checkpoint {
    /// Compares what reshard says with the table and with the library. Returns what was compared, in words.
    fn check(
        &self,
        reshard: &Path,
        place: &Path,
        native: &BTreeMap<String, Value>,
    ) -> Result<String> {
        let files = self.row.get("sha256").and_then(Value::as_object);
        for (file, want) in files.context("a row lacks sha256")? {
            let found = sha256(&place.join(file))?;
            let want = want.as_str().unwrap_or_default();
            ensure!(found == want, "{file} has SHA-256 {found}, not {want}");
        }
        let run = |command: &str| {
            let program = Program::new(reshard).args([command]).args([&self.path]);
            match text(&self.row, "reader").as_str() {
                "torch_module" | "torch_script" => program.args(["--open-modules"]),
                _ => program,
            }
        };

        if let Some(words) = self.row.get("refused").and_then(Value::as_str) {
            return match run("inspect").read() {
                Err(error) if error.to_string().contains(words) => Ok(format!("refused, {words}")),
                Err(error) => Err(error.context(format!("the refusal does not say `{words}`"))),
                Ok(_) => bail!("it opens, and should be refused: {words}"),
            };
        }

        let inspected: Value = serde_json::from_str(&run("inspect").args(["--json"]).read()?)?;
        for (what, found) in [
            ("format", inspected.get("backend")),
            ("tensors", inspected.pointer("/totals/tensors")),
        ] {
            let want = self.row.get(what);
            ensure!(found == want, "{what}: {found:?} is not {want:?}");
        }
        run("verify").read()?;
        let digest: Value = serde_json::from_str(&run("digest").args(["--json"]).read()?)?;
        let path = self.path.to_string_lossy();
        let (ours, theirs) = (map(digest.get("tensors")), map(native.get(&*path)));
        let differs = ours.keys().chain(theirs.keys());
        let mut differs = differs.filter(|key| ours.get(*key) != theirs.get(*key));
        if let Some(key) = differs.next() {
            let (ours, theirs) = (ours.get(key), theirs.get(key));
            bail!("{key}: reshard has {ours:?}, the library {theirs:?}");
        }
        Ok(format!("tensors equal to the library's: {}", ours.len()))
    }
}

fn map(value: Option<&Value>) -> serde_json::Map<String, Value> {
    value
        .and_then(Value::as_object)
        .cloned()
        .unwrap_or_default()
}

fn list<'v>(value: &'v Value, name: &str) -> &'v [Value] {
    let list = value.get(name).and_then(Value::as_array);
    list.map_or(&[], Vec::as_slice)
}

fn text(value: &Value, name: &str) -> String {
    let text = value.get(name).and_then(Value::as_str);
    text.unwrap_or_default().to_owned()
}

fn sha256(path: &Path) -> Result<String> {
    let bytes = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(Sha256::digest(bytes)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect())
}

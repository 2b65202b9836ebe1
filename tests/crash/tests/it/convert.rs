//! `SIGKILL` at every named step of a conversion, and at random moments: into each linked format and each kind of place, nothing appears or
//! all does; what is replaced stays whole or is replaced by all.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use reshard::{
    BackendVersion, Dialect, OpenOptions, Registry, Tensor, blocking::Checkpoint, strategy::Make,
};
use reshard_crash::{Form, is_committed, save, scattered, steps};
use reshard_storage::failpoint;
use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

/// What is written, and where.
struct Target {
    format: BackendVersion,
    /// The last part of the destination, by which formats tell a file from a folder.
    name: &'static str,
    /// `NAME=JSON`.
    setting: Option<&'static str>,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Folder,
    /// With one file, which is its own record.
    FolderWithoutRecord,
    File,
    Prefix,
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} as a {:?}", self.format, self.kind)
    }
}

/// Each linked format that can save and load, in each kind of place that it has.
fn targets() -> Vec<Target> {
    let registry = Registry::linked().unwrap();
    let saves = registry.iter().filter_map(|r| match r.make {
        Make::SaveSharded(_) => Some(BackendVersion::new(r.backend, r.version)),
        _ => None,
    });
    let formats = saves.filter(|f| registry.load_sharded(f).is_ok());
    let kinds = |format: BackendVersion| {
        let kinds: &[_] = match &*format.backend {
            "safetensors" => &[
                ("dst", None, Kind::Folder),
                ("dst.safetensors", None, Kind::File),
            ],
            "torch_save" => &[
                ("dst", Some("max_shard_size=100000"), Kind::Folder),
                ("dst", None, Kind::FolderWithoutRecord),
                ("dst.pt", None, Kind::File),
            ],
            "tensor_bundle" => &[
                ("dst", None, Kind::Prefix),
                ("dst", Some("in_folder=\"model\""), Kind::Folder),
            ],
            _ => &[("dst", None, Kind::Folder)],
        };
        kinds.iter().map(move |&(name, setting, kind)| Target {
            format: format.clone(),
            name,
            setting,
            kind,
        })
    };
    let all: Vec<Target> = formats.flat_map(kinds).collect();
    let of_kind = |kind| all.iter().filter(|t| t.kind == kind).count();
    let kinds = [
        Kind::Folder,
        Kind::FolderWithoutRecord,
        Kind::File,
        Kind::Prefix,
    ];
    assert_eq!(
        kinds.map(of_kind),
        [6, 1, 2, 1],
        "a format has come or gone"
    );
    all
}

fn converter(
    src: &Path,
    dst: &Path,
    target: &Target,
    overwrite: bool,
    crash_at: Option<&str>,
) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_reshard-saver"));
    command
        .arg(dst)
        .arg("convert")
        .arg(src)
        .arg(target.format.to_string())
        .arg(if overwrite { "overwrite" } else { "new" })
        .args(target.setting);
    if let Some(at) = crash_at {
        command.env(failpoint::VARIABLE, at);
    }
    command.stderr(Stdio::null()).spawn().unwrap()
}

/// Whether it succeeded.
fn ended(mut child: Child) -> bool {
    child.wait().unwrap().success()
}

type Tensors = BTreeMap<String, Vec<u8>>;

fn tensors(checkpoint: &Checkpoint) -> Tensors {
    let read = |t: reshard::blocking::TensorHandle| {
        let tensor: Tensor = t.read(..).unwrap();
        (t.key().to_owned(), tensor.to_bytes().to_vec())
    };
    checkpoint.tensors().map(read).collect()
}

/// A checkpoint to be converted, and its tensors.
fn source(home: &Path, step: u64) -> (PathBuf, Tensors) {
    let src = home.join(format!("src-{step}"));
    save(&src, step, false, Form::TorchDist(Dialect::Dcp)).unwrap();
    let all = tensors(&Checkpoint::open(src.display().to_string()).unwrap());
    (src, all)
}

/// What lies there: `None` if nothing does.
fn look(dst: &Path, target: &Target) -> Option<Tensors> {
    let url = dst.display().to_string();
    let options = OpenOptions::new().format(target.format.clone());
    match Checkpoint::open_with(options, &url) {
        Ok(checkpoint) => Some(tensors(&checkpoint)),
        Err(e) => {
            assert!(
                !dst.exists(),
                "{target}: something lies there that can't be opened: {e}"
            );
            None
        }
    }
}

fn prune(dst: &Path) {
    let url = dst.display().to_string();
    let done = reshard::blocking::run(reshard_manager::prune(&url).older_than(Duration::ZERO));
    if let Err(e) = done {
        assert!(!dst.exists(), "{e}");
    }
}

/// Prunes; then nothing hidden is left.
fn pruned(dst: &Path) {
    prune(dst);
    for entry in std::fs::read_dir(dst.parent().unwrap()).unwrap() {
        let name = entry.unwrap().file_name();
        let hidden = name.as_encoded_bytes().starts_with(b".");
        assert!(
            !hidden,
            "{} is left beside {}",
            name.display(),
            dst.display()
        );
    }
}

/// A folder of its own for each conversion.
fn destination(home: &Path, name: impl fmt::Display, target: &Target) -> PathBuf {
    let folder = home.join(name.to_string());
    std::fs::create_dir(&folder).unwrap();
    folder.join(target.name)
}

/// Returns `true` if a conversion into such a place meets the step, whether or not it replaces another checkpoint.
fn is_met(at: &str, kind: Kind, replaces: bool) -> bool {
    match at {
        "commit.record" | "commit.synced" => matches!(kind, Kind::Folder | Kind::Prefix),
        "commit.ready" => kind == Kind::Prefix || replaces && kind != Kind::File,
        "commit.exchanged" => replaces,
        "commit.carried" | "commit.removing" | "commit.old_removed" => {
            replaces && kind != Kind::File
        }
        _ => true,
    }
}

#[test]
fn a_conversion_killed_at_any_named_step_leaves_nothing_or_all() {
    let home = reshard_crash::scratch().unwrap();
    let (src, all) = source(home.path(), 1);
    for (n, target) in targets().iter().enumerate() {
        for at in steps(n) {
            let dst = destination(home.path(), format_args!("{n}-{at}"), target);
            let done = ended(converter(&src, &dst, target, false, Some(at)));
            assert_eq!(!done, is_met(at, target.kind, false), "{target} at {at}");
            let found = look(&dst, target);
            let whole = done || is_committed(at);
            assert_eq!(found.is_some(), whole, "{target} killed at {at}");
            assert!(
                found.is_none_or(|found| found == all),
                "{target} killed at {at}"
            );
            // The next one goes through, whatever lies around. Only files with a common prefix that were linked beside others have to be
            // taken away first.
            if look(&dst, target).is_none() {
                let again = || ended(converter(&src, &dst, target, false, None));
                if !again() {
                    assert_eq!(target.kind, Kind::Prefix);
                    assert_eq!(look(&dst, target), None, "{target} after {at}");
                    prune(&dst);
                    assert!(again(), "{target} after {at}");
                }
                let found = look(&dst, target);
                assert_eq!(found.as_ref(), Some(&all), "{target} after {at}");
            }
            pruned(&dst);
        }
    }
}

#[test]
fn a_conversion_over_another_killed_at_any_named_step_leaves_the_old_or_the_new() {
    let home = reshard_crash::scratch().unwrap();
    let [(first, old), (second, new)] = [1, 2].map(|step| source(home.path(), step));
    for (n, target) in targets().iter().enumerate() {
        for at in steps(n) {
            let dst = destination(home.path(), format_args!("{n}-{at}"), target);
            assert!(
                ended(converter(&first, &dst, target, false, None)),
                "{target}"
            );
            let done = ended(converter(&second, &dst, target, true, Some(at)));
            if target.kind == Kind::Prefix {
                // Refused before anything is written.
                assert!(!done && look(&dst, target).as_ref() == Some(&old));
                pruned(&dst);
                continue;
            }
            assert_eq!(!done, is_met(at, target.kind, true), "{target} at {at}");
            let found = look(&dst, target).unwrap();
            let want = if done || is_committed(at) { &new } else { &old };
            assert!(found == *want, "{target} killed at {at}");
            pruned(&dst);
            assert!(
                look(&dst, target) == Some(found),
                "{target} killed at {at}, pruned"
            );
            assert!(
                ended(converter(&second, &dst, target, true, None)),
                "{target} after {at}"
            );
            assert!(
                look(&dst, target).as_ref() == Some(&new),
                "{target} after {at}"
            );
            pruned(&dst);
        }
    }
}

#[test]
#[ignore = "kills at random moments; cargo xtask nightly runs it"]
fn a_conversion_killed_at_random_moments_leaves_nothing_the_old_or_all() {
    const MOMENTS: u64 = 24;
    let home = reshard_crash::scratch().unwrap();
    let [(first, old), (second, new)] = [1, 2].map(|step| source(home.path(), step));
    for (n, target) in targets().iter().enumerate() {
        let warm = destination(home.path(), format_args!("warm-{n}"), target);
        let start = Instant::now();
        assert!(ended(converter(&second, &warm, target, false, None)));
        let longest = start.elapsed();
        for i in 0..MOMENTS {
            let dst = destination(home.path(), format_args!("random-{n}-{i}"), target);
            let replaces = i % 2 == 1 && target.kind != Kind::Prefix;
            if replaces {
                assert!(ended(converter(&first, &dst, target, false, None)));
            }
            let mut child = converter(&second, &dst, target, replaces, None);
            std::thread::sleep(longest.mul_f64(scattered(i) * 1.1));
            drop(child.kill());
            child.wait().unwrap();
            let before = replaces.then_some(&old);
            let found = look(&dst, target);
            assert!(
                found.as_ref() == before || found.as_ref() == Some(&new),
                "{target} at moment {i}"
            );
            pruned(&dst);
            assert!(
                look(&dst, target) == found,
                "{target} at moment {i}, pruned"
            );
        }
    }
}

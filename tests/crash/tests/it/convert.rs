//! `SIGKILL` at every named step of a conversion, and at random moments: into each linked format and each kind of place, nothing appears or
//! all does; what is replaced stays whole or is replaced by all.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use reshard::{
    BackendVersion, Dialect, OpenOptions, Registry, Tensor, blocking::Checkpoint, strategy::Make,
};
use reshard_crash::{Form, save, scattered, steps};
use reshard_model::testkit::is_thorough;
use reshard_storage::failpoint;
use std::{
    collections::{BTreeMap, BTreeSet},
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
    let done = reshard::blocking::run(reshard::prune(&url).older_than(Duration::ZERO));
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

/// How many named steps a conversion meets in such a place, a new one and one that replaces another.
fn steps_of(kind: Kind) -> [u32; 2] {
    match kind {
        Kind::Folder => [9, 14],
        Kind::FolderWithoutRecord => [7, 12],
        Kind::File => [7, 8],
        Kind::Prefix => [10, 0],
    }
}

#[test]
fn a_conversion_killed_at_any_named_step_leaves_nothing_or_all() {
    let home = reshard_crash::scratch().unwrap();
    let (src, all) = source(home.path(), 1);
    let mut met = BTreeSet::new();
    for (n, target) in targets().iter().enumerate() {
        let (mut killed, mut whole) = (0, 0);
        for at in steps(n) {
            let dst = destination(home.path(), format_args!("{n}-{at}"), target);
            let done = ended(converter(&src, &dst, target, false, Some(at)));
            if !done {
                met.insert(at);
                killed += 1;
            }
            let found = look(&dst, target);
            whole += u32::from(found.is_some() && !done);
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
        assert!(whole < killed, "{target}: {whole} of {killed} whole");
        if is_thorough() {
            assert!(whole > 0, "{target}");
            assert_eq!(killed, steps_of(target.kind)[0], "{target}");
        }
    }
    // Some places meet those, too, that others only meet when they replace something.
    let mut always = failpoint::STEPS.iter();
    assert!(
        always.all(|step| failpoint::REPLACING.contains(step) || met.contains(step)),
        "{met:?}"
    );
}

#[test]
fn a_conversion_over_another_killed_at_any_named_step_leaves_the_old_or_the_new() {
    let home = reshard_crash::scratch().unwrap();
    let [(first, old), (second, new)] = [1, 2].map(|step| source(home.path(), step));
    let mut met = BTreeSet::new();
    for (n, target) in targets().iter().enumerate() {
        let (mut killed, mut replaced) = (0, 0);
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
            if !done {
                met.insert(at);
                killed += 1;
            }
            let found = look(&dst, target).unwrap();
            assert!(found == old || found == new, "{target} killed at {at}");
            replaced += u32::from(found == new && !done);
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
        assert!(
            replaced < killed || killed == 0,
            "{target}: {replaced} of {killed} replaced"
        );
        if is_thorough() {
            assert_eq!(killed, steps_of(target.kind)[1], "{target}");
            assert_eq!(replaced > 0, target.kind != Kind::Prefix, "{target}");
        }
    }
    assert_eq!(met, failpoint::STEPS.iter().copied().collect());
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

//! Records that somebody has written, or damaged, to have files of others removed: overwriting and pruning take away what is
//! surely a checkpoint's, and nothing else.

#![cfg(unix)]
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use reshard::{Dialect, ErrorKind, SaveReport, ShardedTensor, StateDict, Tensor, blocking};
use sha2::{Digest, Sha256};
use std::{
    fs,
    os::unix::fs::{MetadataExt, symlink},
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};
use tempfile::TempDir;

const DATA: &str = "__0_0.distcp";
const PRECIOUS: &[u8] = b"years of work";

fn url(dir: &Path) -> String {
    dir.display().to_string()
}

fn save_as(dir: &Path, dialect: Dialect) -> SaveReport {
    let mut state = StateDict::new();
    state.insert(
        "w",
        ShardedTensor::full("w", Tensor::from_vec(&[3], vec![1f32, 2.0, 3.0]).unwrap()),
    );
    blocking::run(
        reshard::save(&state, url(dir))
            .overwrite(true)
            .dialect(dialect),
    )
    .unwrap()
}

fn save(dir: &Path) -> SaveReport {
    save_as(dir, Dialect::Dcp)
}

fn place() -> (TempDir, PathBuf) {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("step");
    save(&dir);
    (home, dir)
}

/// Makes `.metadata` say that its items lie in another file.
fn name_in_metadata(dir: &Path, name: &str) {
    let text = |name: &str| [&[0x8c, name.len() as u8], name.as_bytes()].concat();
    let (file, old) = (dir.join(".metadata"), text(DATA));
    let mut bytes = fs::read(&file).unwrap();
    let at = bytes.windows(old.len()).position(|w| w == old).unwrap();
    bytes.splice(at..at + old.len(), text(name));
    fs::write(file, bytes).unwrap();
}

/// Writes a `reshard.json` that calls a file the commit record, with its right digest.
fn name_in_sidecar(dir: &Path, name: &str) {
    let digest = fs::read(dir.join(name))
        .map(Sha256::digest)
        .unwrap_or_default();
    let hex: String = digest.iter().map(|b| format!("{b:02x}")).collect();
    let json = format!(
        r#"{{"schema": 1, "writer": "reshard 0.1.0", "commit": {{"file": "{name}", "sha256": "{hex}"}}}}"#
    );
    fs::write(dir.join("reshard.json"), json).unwrap();
}

fn put(file: &Path) {
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(file, PRECIOUS).unwrap();
}

fn is_whole(dir: &Path) {
    let report = blocking::Checkpoint::open(url(dir))
        .unwrap()
        .verify(true, reshard::storage::Progress::none());
    assert!(report.unwrap().damage.is_empty());
}

/// Names that no program gives to the files of a checkpoint, though a record may.
const NAMES: [&str; 7] = [
    "precious.txt",
    "sub/prec.txt",
    ".hid/pre.txt",
    "../preci.txt",
    "__0_0.DISTCP",
    "__a_0.distcp",
    "s/_0_0.distc",
];

#[test]
fn overwriting_leaves_a_file_that_only_metadata_name() {
    for name in NAMES {
        let (home, dir) = place();
        let bytes = fs::read(dir.join(DATA)).unwrap();
        name_in_metadata(&dir, name);
        let file = dir.join(name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        // The items really lie there: the checkpoint is whole.
        fs::rename(dir.join(DATA), &file).unwrap();
        let report = save(&dir);
        assert_eq!(fs::read(&file).unwrap(), bytes, "{name}");
        is_whole(&dir);
        // It is told, if the record could be read at all.
        let told: Vec<_> = report.stays.iter().map(|n| n.as_str()).collect();
        assert_eq!(
            told,
            if name.starts_with("..") {
                vec![]
            } else {
                vec![name]
            }
        );
        let beside = fs::read_dir(home.path()).unwrap().count();
        assert_eq!(
            beside,
            if name.starts_with("..") { 2 } else { 1 },
            "{name}: nothing is left aside"
        );
    }
}

/// Megatron Core may put any text before the name of a data file; PyTorch puts none.
#[test]
fn a_data_file_with_a_separation_hint_is_the_checkpoints_own_in_megatrons_dialect_alone() {
    for (dialect, is_own) in [(Dialect::Dcp, false), (Dialect::Megatron, true)] {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path().join("step");
        save_as(&dir, dialect);
        let hinted = "optimizer__0_0.distcp";
        name_in_metadata(&dir, hinted);
        fs::rename(dir.join(DATA), dir.join(hinted)).unwrap();
        is_whole(&dir);
        // Of another hint, which the metadata do not have.
        put(&dir.join("backup__0_0.distcp"));
        save_as(&dir, dialect);
        assert_eq!(dir.join(hinted).exists(), !is_own, "{dialect}");
        assert_eq!(
            fs::read(dir.join("backup__0_0.distcp")).unwrap(),
            PRECIOUS,
            "{dialect}"
        );
    }
}

#[test]
fn overwriting_leaves_a_file_that_only_a_sidecar_names() {
    for damaged in [false, true] {
        for name in NAMES {
            let (_home, dir) = place();
            put(&dir.join(name));
            name_in_sidecar(&dir, name);
            if damaged {
                fs::write(dir.join(".metadata"), "no pickle").unwrap();
            }
            save(&dir);
            assert_eq!(
                fs::read(dir.join(name)).unwrap(),
                PRECIOUS,
                "{name}, damaged: {damaged}"
            );
            is_whole(&dir);
        }
    }
}

#[test]
fn overwriting_leaves_files_of_other_programs_that_have_megatrons_names() {
    let (_home, dir) = place();
    put(&dir.join("integrity.json"));
    save(&dir);
    assert_eq!(fs::read(dir.join("integrity.json")).unwrap(), PRECIOUS);
    // A metadata.json that is whole and says nothing of Megatron's.
    fs::write(dir.join("metadata.json"), r#"{"lr": 0.1}"#).unwrap();
    save(&dir);
    assert_eq!(
        fs::read(dir.join("metadata.json")).unwrap(),
        br#"{"lr": 0.1}"#
    );
    is_whole(&dir);
    // Nor do they go when a `.metadata` of PyTorch's dialect names them.
    for (name, kept) in [
        ("metadata.json", &br#"{"lr": 0.1}"#[..]),
        ("integrity.json", PRECIOUS),
    ] {
        for damaged in [false, true] {
            name_in_metadata(&dir, name);
            if damaged {
                fs::write(dir.join(".metadata"), "no pickle").unwrap();
            }
            save(&dir);
            assert_eq!(
                fs::read(dir.join(name)).unwrap(),
                kept,
                "{name}, damaged: {damaged}"
            );
            is_whole(&dir);
        }
    }
    // Megatron's own go with its checkpoint.
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("step");
    save_as(&dir, Dialect::Megatron);
    assert!(dir.join("common.pt").exists());
    save(&dir);
    assert!(!dir.join("common.pt").exists() && !dir.join("metadata.json").exists());
    is_whole(&dir);
}

#[test]
fn what_may_be_of_an_unfinished_save_of_megatron_or_of_others_is_not_replaced() {
    for (name, bytes) in [
        ("common.pt", PRECIOUS),
        ("metadata.json", b"{\"a\": 1}\n{\"a\": 2}\n"),
    ] {
        let (_home, dir) = place();
        fs::write(dir.join(name), bytes).unwrap();
        let before = fs::read(dir.join(".metadata")).unwrap();
        let e =
            blocking::run(reshard::save(&StateDict::new(), url(&dir)).overwrite(true)).unwrap_err();
        assert!(
            e.kind() == ErrorKind::Unsupported && e.to_string().contains(&format!("its {name} ")),
            "{e}"
        );
        assert_eq!(fs::read(dir.join(name)).unwrap(), bytes);
        assert_eq!(fs::read(dir.join(".metadata")).unwrap(), before);
        fs::remove_file(dir.join(name)).unwrap();
        save(&dir);
        is_whole(&dir);
    }
    // What Megatron's save began to write tells whose they are.
    for torn in ["", "{\"sharded_backend\": \"torch_d"] {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path().join("step");
        save_as(&dir, Dialect::Megatron);
        fs::write(dir.join("metadata.json"), torn).unwrap();
        save(&dir);
        assert!(!dir.join("common.pt").exists() && !dir.join("metadata.json").exists());
        is_whole(&dir);
    }
}

#[test]
fn overwriting_removes_links_and_not_what_they_lead_to() {
    let (home, dir) = place();
    let outside = home.path().join("cache");
    for (link, to) in [
        ("__7_0.distcp", "blob"),
        ("__8_0.distcp", "__8_0.distcp"),
        (".metadata.tmp", "meta"),
    ] {
        put(&outside.join(to));
        symlink(outside.join(to), dir.join(link)).unwrap();
    }
    // Items may lie behind a link, too.
    fs::rename(dir.join(DATA), outside.join(DATA)).unwrap();
    symlink(Path::new("../cache").join(DATA), dir.join(DATA)).unwrap();
    let bytes = fs::read(outside.join(DATA)).unwrap();
    is_whole(&dir);
    save(&dir);
    is_whole(&dir);
    for link in ["__7_0.distcp", "__8_0.distcp", ".metadata.tmp"] {
        assert!(fs::symlink_metadata(dir.join(link)).is_err(), "{link}");
    }
    assert!(!fs::symlink_metadata(dir.join(DATA)).unwrap().is_symlink());
    assert_eq!(fs::read(outside.join(DATA)).unwrap(), bytes);
    for file in ["blob", "__8_0.distcp", "meta"] {
        assert_eq!(fs::read(outside.join(file)).unwrap(), PRECIOUS);
    }
}

/// Everything below a directory changed long ago.
fn age(dir: &Path) {
    for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
        if entry.file_type().unwrap().is_dir() {
            age(&entry.path());
        } else {
            let file = fs::File::options().write(true).open(entry.path()).unwrap();
            file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
        }
    }
}

fn prune(dir: &Path) -> reshard_manager::PruneReport {
    blocking::run(reshard_manager::prune(url(dir)).older_than(Duration::ZERO)).unwrap()
}

/// Renames a directory as a save does with what it has replaced, of which the name tells the number.
fn aside(dir: &Path, attempt: &str) -> PathBuf {
    let number = fs::metadata(dir).unwrap().ino();
    let aside = dir.with_file_name(format!(".step.{attempt}.1-{number:x}.old"));
    fs::rename(dir, &aside).unwrap();
    aside
}

#[test]
fn pruning_gives_back_what_only_a_record_of_a_replaced_version_names() {
    for name in NAMES.into_iter().filter(|n| !n.starts_with("..")) {
        for sidecar in [false, true] {
            let (home, dir) = place();
            let old = home.path().join("old");
            save(&old);
            let old = aside(&old, "4-1a2b3c4d5e6f7085-6");
            put(&old.join(name));
            match sidecar {
                true => {
                    name_in_sidecar(&old, name);
                    fs::write(old.join(".metadata"), "no pickle").unwrap();
                }
                false => name_in_metadata(&old, name),
            }
            age(&old);
            let report = prune(&dir);
            assert_eq!(report.removed.len(), 1, "{report:?}");
            assert!(!old.exists());
            assert_eq!(
                fs::read(dir.join(name)).unwrap(),
                PRECIOUS,
                "{name}, sidecar: {sidecar}"
            );
            is_whole(&dir);
            // And it stays there, whatever is called next.
            prune(&dir);
            save(&dir);
            assert_eq!(
                fs::read(dir.join(name)).unwrap(),
                PRECIOUS,
                "{name}, sidecar: {sidecar}"
            );
        }
    }
}

#[test]
fn pruning_touches_only_directories_that_saves_name_so() {
    let (home, dir) = place();
    for other in [
        ".step.backup.old",
        ".step.download.tmp",
        ".step.1-1a2b3c4d5e6f7081.tmp",
        ".step.a-b-c.tmp",
        ".step.x-y-z.old",
        ".step.4-1a2b3c4d5e6f7085-6.old",
        ".step.4-1a2b3c4d5e6f7085-6.1-2.old",
    ] {
        put(&home.path().join(other).join("__0_0.distcp"));
        age(&home.path().join(other));
    }
    put(&home.path().join("other/__0_0.distcp"));
    age(&home.path().join("other"));
    aside(&home.path().join("other"), "backup");
    let report = prune(&dir);
    assert!(
        report.removed.is_empty() && report.kept.is_empty(),
        "{report:?}"
    );
    assert_eq!(fs::read_dir(home.path()).unwrap().count(), 9);
}

#[test]
fn a_sidecar_that_names_terabytes_of_nothing_is_ignored_at_once() {
    for name in ["huge", "__3.metadata"] {
        let (_home, dir) = place();
        fs::File::create(dir.join(name))
            .unwrap()
            .set_len(8 << 40)
            .unwrap();
        let json = r#"{"schema": 1, "writer": "x", "commit": {"file": "NAME", "sha256": "00"}}"#;
        fs::write(dir.join("reshard.json"), json.replace("NAME", name)).unwrap();
        // Were it read, none of these would end today.
        let checkpoint = blocking::Checkpoint::open(url(&dir)).unwrap();
        let (sidecar, note) = checkpoint.sidecar();
        assert!(sidecar.is_none() && note.unwrap().contains("is ignored"));
        checkpoint.roles().unwrap();
        prune(&dir);
        save(&dir);
        is_whole(&dir);
    }
}

//! Overwriting takes the files of the old checkpoint away, and nothing else.

use reshard::{ErrorKind, StateDict, blocking};
use std::path::Path;

fn save(dir: &Path) -> Result<(), reshard::Error> {
    let mut state = StateDict::new();
    state.insert("step", 1);
    blocking::run(reshard::save(&state, dir.display().to_string()).overwrite(true)).map(drop)
}

#[test]
fn a_folder_of_checkpoints_is_not_replaced() {
    let home = tempfile::tempdir().unwrap();
    save(&home.path().join("step-1")).unwrap();
    save(&home.path().join("step-2")).unwrap();
    let e = save(home.path()).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unsupported, "{e}");
    assert!(e.to_string().contains("is not a checkpoint"), "{e}");
    // Not even when something in it looks like one.
    std::fs::write(home.path().join("metadata.json"), "{}").unwrap();
    let e = save(home.path()).unwrap_err();
    assert!(e.to_string().contains("is not a checkpoint"), "{e}");
    std::fs::write(
        home.path().join("metadata.json"),
        r#"{"sharded_backend": "torch_dist"}"#,
    )
    .unwrap();
    let e = save(home.path()).unwrap_err();
    assert!(e.to_string().contains("other checkpoints lie in it"), "{e}");
    for step in ["step-1", "step-2"] {
        assert!(blocking::Checkpoint::open(home.path().join(step).display().to_string()).is_ok());
    }
}

#[test]
fn a_folder_of_folders_is_not_replaced() {
    let home = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(home.path().join("a/b")).unwrap();
    save(&home.path().join("a/step-1")).unwrap();
    for place in [home.path(), &home.path().join("a")] {
        let e = save(place).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Unsupported, "{e}");
        assert!(e.to_string().contains("is not a checkpoint"), "{e}");
    }
    assert!(blocking::Checkpoint::open(home.path().join("a/step-1").display().to_string()).is_ok());
}

#[test]
fn a_folder_of_other_files_is_not_replaced() {
    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join("thesis.tex"), "years of work").unwrap();
    assert_eq!(
        save(home.path()).unwrap_err().kind(),
        ErrorKind::Unsupported
    );
    assert!(home.path().join("thesis.tex").exists());
}

#[test]
fn what_an_unfinished_save_left_is_replaced() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("step-1");
    std::fs::create_dir(&dir).unwrap();
    std::fs::write(dir.join("__0_0.distcp"), "half").unwrap();
    save(&dir).unwrap();
    assert!(blocking::Checkpoint::open(dir.display().to_string()).is_ok());
}

#[test]
fn what_is_not_of_the_checkpoint_stays() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("step-1");
    save(&dir).unwrap();
    // Of an older save with more ranks, and of Megatron Core.
    for file in [
        "__9_0.distcp",
        "__3.metadata",
        ".metadata.tmp",
        "integrity.json",
    ] {
        std::fs::write(dir.join(file), "old").unwrap();
    }
    std::fs::create_dir(dir.join("logs")).unwrap();
    // Any text may be a separation hint, and this checkpoint has none.
    for file in [
        "README.md",
        "train_state.pt",
        "logs/today",
        "backup__0_0.distcp",
        "__00_0.distcp",
    ] {
        std::fs::write(dir.join(file), file).unwrap();
    }
    save(&dir).unwrap();
    let url = dir.display().to_string();
    let names: Vec<String> = blocking::Checkpoint::open(&url)
        .unwrap()
        .files()
        .unwrap()
        .into_iter()
        .map(|f| f.name.to_string())
        .collect();
    assert_eq!(
        names,
        [
            ".metadata",
            "README.md",
            "__00_0.distcp",
            "backup__0_0.distcp",
            "common.pt",
            "logs/today",
            "metadata.json",
            "reshard.json",
            "train_state.pt"
        ]
    );
    assert_eq!(
        std::fs::read(dir.join("logs/today")).unwrap(),
        b"logs/today"
    );
    assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 1);
}

#[test]
fn of_a_damaged_checkpoint_too_only_its_own_files_go() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("step-1");
    save(&dir).unwrap();
    std::fs::write(dir.join(".metadata"), "no pickle").unwrap();
    std::fs::write(dir.join("README.md"), "read me").unwrap();
    save(&dir).unwrap();
    assert!(blocking::Checkpoint::open(dir.display().to_string()).is_ok());
    assert_eq!(std::fs::read(dir.join("README.md")).unwrap(), b"read me");
    assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 1);
}

#[test]
fn a_checkpoint_of_a_format_that_is_not_linked_is_not_replaced() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("step-1");
    std::fs::create_dir_all(dir.join("weight")).unwrap();
    std::fs::write(
        dir.join("metadata.json"),
        r#"{"sharded_backend": "unheard_of"}"#,
    )
    .unwrap();
    std::fs::write(dir.join("weight/0.0"), "a chunk").unwrap();
    let e = save(&dir).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unsupported, "{e}");
    assert!(e.to_string().contains("unheard_of"), "{e}");
    assert_eq!(std::fs::read(dir.join("weight/0.0")).unwrap(), b"a chunk");
}

#[cfg(unix)]
#[test]
fn the_new_directory_keeps_the_permissions_of_the_old_one() {
    use std::os::unix::fs::PermissionsExt;
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("step-1");
    save(&dir).unwrap();
    std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o750)).unwrap();
    save(&dir).unwrap();
    assert_eq!(
        std::fs::metadata(&dir).unwrap().permissions().mode() & 0o7777,
        0o750
    );
}

use crate::{run, states};
use std::{fs, os::unix::fs::symlink, path::Path};

/// A folder as Megatron leaves it.
fn training() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for step in [5, 10, 990] {
        fs::rename(
            states::megatron().url,
            dir.path().join(format!("iter_{step:07}")),
        )
        .unwrap();
    }
    fs::create_dir(dir.path().join("tensorboard")).unwrap();
    dir
}

fn says(path: &Path, parts: &[&str]) {
    say(&["inspect", "ls", "digest", "verify", "prune"], path, parts);
}

/// That these commands say why a place is no checkpoint.
fn say(commands: &[&str], path: &Path, parts: &[&str]) {
    for command in commands {
        let ran = run(&[command, path.to_str().unwrap()]);
        assert_eq!(
            (ran.code, ran.out.as_str()),
            (3, ""),
            "{command} {}: {}",
            path.display(),
            ran.err
        );
        for part in parts.iter().chain(&["hint: "]) {
            assert!(
                ran.err.contains(part),
                "{command}: {part:?} is not in {}",
                ran.err
            );
        }
    }
}

#[test]
fn a_file_of_a_checkpoint_leads_to_its_directory() {
    let saved = states::megatron();
    let hint = format!("such as {}", saved.url);
    says(
        &saved.path(".metadata"),
        &["is the metadata of a checkpoint", &hint],
    );
    says(
        &saved.path("__1_0.distcp"),
        &["is a data file of a checkpoint", &hint],
    );
    // This one is a file of `torch.save`, which is a format of its own.
    let common = saved.path("common.pt");
    let ran = run(&["ls", common.to_str().unwrap()]);
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
    assert!(ran.out.contains("args"), "{}", ran.out);
    let beside = |name: &str, bytes: &[u8]| {
        fs::write(saved.beside(name), bytes).unwrap();
        saved.beside(name)
    };
    says(
        Path::new(&beside("x", b"")),
        &["is a file, and its name is not one"],
    );
    says(Path::new("/dev/null"), &["is a device"]);
}

/// A copy in Zarr is recognised by files in its folders, and so would the folder above it be.
#[test]
fn a_folder_with_checkpoints_of_several_formats_is_none() {
    let dir = training();
    let path = dir.path().to_str().unwrap();
    let saved = states::dcp();
    for format in ["zarr3", "zarr"] {
        let copy = dir.path().join(format!("copy-{format}"));
        let to = copy.to_str().unwrap();
        for args in [
            &["convert", &saved.url, to, "--to", format, "--drop-objects"][..],
            &["verify", to],
        ] {
            let ran = run(args);
            assert_eq!(ran.code, 0, "{}", ran.err);
        }
        say(
            &["inspect", "digest", "verify", "stats"],
            dir.path(),
            &["holds some: iter_0000990"],
        );
        let listed = run(&["ls", path]).ok();
        assert!(listed.contains("iter_0000990"), "{listed}");
        // Whoever means it says so.
        let format = format!("{format}/1");
        let keys = run(&["ls", path, "--format", &format]);
        assert!(keys.code == 0 && keys.out.contains("copy-"), "{}", keys.err);
    }
}

#[test]
fn a_folder_of_checkpoints_names_them_the_latest_first() {
    let dir = training();
    // `ls` lists them, and `prune` works on all of them.
    let says_all_but_ls = |path: &Path, parts: &[&str]| {
        say(&["inspect", "digest", "verify"], path, parts);
        let pruned = run(&["prune", path.to_str().unwrap()]).ok();
        assert!(pruned.starts_with("clean"), "{pruned}");
    };
    says_all_but_ls(
        dir.path(),
        &[
            "but holds some: iter_0000990, iter_0000010, iter_0000005",
            "/iter_0000990",
        ],
    );
    fs::write(dir.path().join("latest_checkpointed_iteration.txt"), "10\n").unwrap();
    says_all_but_ls(
        dir.path(),
        &[
            "iter_0000010 (the latest), iter_0000990, iter_0000005",
            "/iter_0000010",
        ],
    );
    for odd in ["release", "", "-1", "99999999999999999999999", "../../etc"] {
        fs::write(dir.path().join("latest_checkpointed_iteration.txt"), odd).unwrap();
        says_all_but_ls(dir.path(), &["but holds some: iter_0000990,"]);
    }
    let above = tempfile::tempdir().unwrap();
    fs::rename(dir.path(), above.path().join("run")).unwrap();
    fs::create_dir(dir.path()).unwrap();
    says(above.path(), &["run/iter_0000990"]);
    says(
        &above.path().join("run/iter_0000011"),
        &["nothing lies at", "beside it lie iter_0000990"],
    );
}

#[test]
fn what_is_not_there_is_told() {
    let dir = tempfile::tempdir().unwrap();
    says(&dir.path().join("nothing"), &["nothing lies at"]);
    symlink("nothing", dir.path().join("link")).unwrap();
    says(&dir.path().join("link"), &["is a link to nothing"]);
    symlink("circle", dir.path().join("circle")).unwrap();
    says(&dir.path().join("circle"), &["is a link to circle"]);
    says(dir.path(), &["it is empty"]);
    let saved = states::dcp();
    says(&saved.path(".metadata/x"), &["nothing lies at"]);
    fs::remove_file(saved.path(".metadata")).unwrap();
    says(Path::new(&saved.url), &["never finished"]);
}

#[test]
fn what_other_programs_left_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let bundles = dir.path().join("tf");
    fs::create_dir(&bundles).unwrap();
    for name in [
        "a.index",
        "a.data-00000-of-00001",
        "b.index",
        "b.data-00000-of-00001",
    ] {
        fs::write(bundles.join(name), "").unwrap();
    }
    says(&bundles, &["2 TensorFlow checkpoints"]);
    says(
        &bundles.join("a.index"),
        &["the index of a TensorFlow checkpoint", "name its prefix"],
    );
}

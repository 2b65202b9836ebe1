//! One rule for links in a checkpoint, the same in all commands: what leads to a file is that file, wherever it lies; what leads
//! to a directory is not followed; what is removed is the link.

use crate::{run, states};
use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

const DATA: &str = "__0_0.distcp";

/// A checkpoint whose data lie elsewhere, as in the cache of a model hub.
fn linked() -> (states::Saved, PathBuf) {
    let saved = states::dcp();
    let cache = PathBuf::from(saved.beside("cache"));
    fs::create_dir(&cache).unwrap();
    fs::rename(saved.path(DATA), cache.join("blob")).unwrap();
    symlink("../cache/blob", saved.path(DATA)).unwrap();
    (saved, cache.join("blob"))
}

#[test]
fn every_command_follows_a_link_to_a_file() {
    let plain = states::dcp();
    let (saved, blob) = linked();
    let bytes = fs::read(&blob).unwrap();
    let digest = run(&["digest", &plain.url]).ok();
    assert_eq!(run(&["digest", &saved.url]).ok(), digest);
    assert_eq!(run(&["verify", &saved.url]).code, 0);
    assert_eq!(run(&["verify", &saved.url, "--quick"]).code, 0);
    let text = run(&["inspect", &saved.url]).ok();
    assert!(
        text.contains("link to ../cache/blob")
            && text.contains("1 file; the linked files are read"),
        "{text}"
    );
    let j = run(&["inspect", &saved.url, "--json"]).json();
    assert_eq!(
        j["links"].to_string(),
        r#"[{"name":"__0_0.distcp","target":"../cache/blob","followed":true}]"#
    );
    assert_eq!(
        run(&["inspect", &plain.url, "--json"]).json()["links"].to_string(),
        "[]"
    );
    let copy = saved.beside("copy");
    run(&["convert", &saved.url, &copy]).ok();
    assert_eq!(run(&["digest", &copy]).ok(), digest);
    assert!(
        fs::read_dir(&copy)
            .unwrap()
            .all(|e| !e.unwrap().file_type().unwrap().is_symlink())
    );
    // Nothing of what the links lead to is taken away.
    run(&["prune", &saved.url, "--older-than", "0s"]).ok();
    assert!(saved.path(DATA).is_symlink());
    run(&["convert", &copy, &saved.url, "--overwrite"]).ok();
    assert!(!saved.path(DATA).is_symlink());
    assert_eq!(fs::read(&blob).unwrap(), bytes);
    assert_eq!(run(&["digest", &saved.url]).ok(), digest);
}

#[test]
fn a_checkpoint_may_be_all_links_to_files() {
    for saved in [states::dcp(), states::megatron()] {
        let digest = run(&["digest", &saved.url]).ok();
        let inspected = run(&["inspect", &saved.url, "--json"]).json()["common"].clone();
        let cache = PathBuf::from(saved.beside("cache"));
        fs::create_dir(&cache).unwrap();
        for file in fs::read_dir(&saved.url)
            .unwrap()
            .map(|e| e.unwrap().file_name())
        {
            let at = Path::new(&saved.url).join(&file);
            fs::rename(&at, cache.join(&file)).unwrap();
            symlink(cache.join(&file), at).unwrap();
        }
        assert!(run(&["verify", &saved.url]).ok().starts_with("sound"));
        assert_eq!(run(&["digest", &saved.url]).ok(), digest);
        assert_eq!(
            run(&["inspect", &saved.url, "--json"]).json()["common"],
            inspected
        );
    }
}

/// A checkpoint whose data lie in a directory `sub` in it.
fn nested() -> states::Saved {
    let saved = states::dcp();
    let (file, new) = (saved.path(".metadata"), b"sub/prec.txt");
    let mut bytes = fs::read(&file).unwrap();
    while let Some(at) = bytes.windows(DATA.len()).position(|w| w == DATA.as_bytes()) {
        bytes[at..at + new.len()].copy_from_slice(new);
    }
    fs::write(file, bytes).unwrap();
    fs::create_dir(saved.path("sub")).unwrap();
    fs::rename(saved.path(DATA), saved.path("sub/prec.txt")).unwrap();
    saved
}

#[test]
fn no_command_follows_a_link_to_a_directory() {
    let saved = nested();
    let digest = run(&["digest", &saved.url]).ok();
    assert_eq!(run(&["verify", &saved.url]).code, 0);
    let elsewhere = saved.beside("elsewhere");
    fs::rename(saved.path("sub"), &elsewhere).unwrap();
    symlink("../elsewhere", saved.path("sub")).unwrap();

    for args in [
        &["verify", &*saved.url][..],
        &["verify", &saved.url, "--quick"],
        &["digest", &saved.url],
    ] {
        let ran = run(args);
        assert_eq!(ran.code, 1, "{args:?}: {} {}", ran.out, ran.err);
        assert!((ran.out + &ran.err).contains("sub/prec.txt"), "{args:?}");
    }
    let text = run(&["inspect", &saved.url]).damaged();
    assert!(text.contains("sub is a link to ../elsewhere"), "{text}");
    let j = run(&["inspect", &saved.url, "--json"]).damaged();
    let j: serde_json::Value = serde_json::from_str(&j).unwrap();
    assert_eq!(
        j["links"].to_string(),
        r#"[{"name":"sub","target":"../elsewhere","followed":false}]"#
    );
    let copy = saved.beside("copy");
    assert_eq!(run(&["convert", &saved.url, &copy]).code, 1);
    assert!(!Path::new(&copy).exists());
    assert_eq!(run(&["prune", &saved.url, "--older-than", "0s"]).code, 1);

    // Overwriting moves the link, and nothing behind it.
    let source = states::dcp();
    assert_eq!(
        run(&["convert", &source.url, &saved.url, "--overwrite"]).code,
        0
    );
    assert!(saved.path("sub").is_symlink() && Path::new(&elsewhere).join("prec.txt").exists());
    assert_eq!(run(&["digest", &saved.url]).ok(), digest);
}

//! `inspect --pickles`, and what `verify` says of pickles.

use crate::run;
use serde_json::Value as Json;
use std::{fs, io::Write as _, path::Path};

fn fixture(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    folder.join(name).display().to_string()
}

/// Verdict and name of each global.
fn globals(url: &str) -> Vec<(String, String)> {
    let found = run(&["inspect", url, "--pickles", "--json"]).json();
    let all = found["globals"].as_array().unwrap().iter();
    let text = |v: &Json| v.as_str().unwrap().to_owned();
    let mut all: Vec<_> = all
        .map(|g| (text(&g["verdict"]), text(&g["global"])))
        .collect();
    all.sort();
    all.dedup();
    all
}

fn has(url: &str, verdict: &str, name: &str) -> bool {
    globals(url).contains(&(verdict.to_owned(), name.to_owned()))
}

const EVIL: &[u8] = b"\x80\x02cos\nsystem\nX\x02\0\0\0ls\x85R.";

#[test]
fn a_file_that_runs_code_is_unsafe() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    // Pickles of every kind of file: alone, behind another one, in a torch file, and in an archive without torch's names.
    fs::write(path("alone.pt"), EVIL).unwrap();
    fs::write(path("second.pkl"), [b"\x80\x02K\x01.", EVIL].concat()).unwrap();
    let old = fs::read(fixture("python2_legacy.pt")).unwrap();
    // The facts about the machine are the third pickle of such a file.
    let at = old.windows(4).position(|w| w == b"\x80\x02}q").unwrap();
    fs::write(path("old.pt"), [&old[..at], EVIL, &old[at..]].concat()).unwrap();
    for (name, folder) in [("other.bin", ""), ("nested.bin", "a/b/")] {
        let mut zip = zip::ZipWriter::new(fs::File::create(path(name)).unwrap());
        let options = zip::write::SimpleFileOptions::default();
        zip.start_file(format!("{folder}weights.txt"), options)
            .unwrap();
        zip.write_all(EVIL).unwrap();
        zip.finish().unwrap();
    }
    for name in [
        "alone.pt",
        "second.pkl",
        "old.pt",
        "other.bin",
        "nested.bin",
    ] {
        let url = path(name);
        assert!(
            has(&url, "runs code", "os.system"),
            "{name}: {:?}",
            globals(&url)
        );
        let said = run(&["verify", &url]);
        assert_eq!(said.code, 1, "{name}: {}{}", said.out, said.err);
        assert!(said.out.contains("os.system"), "{name}: {}", said.out);
        let said = run(&["verify", &url, "--json"]).out;
        let said: Json = serde_json::from_str(&said).unwrap();
        assert_eq!(said["status"], "unsafe", "{name}: {said}");
        assert_eq!(said["unsafe"][0]["verdict"], "runs code", "{name}: {said}");
        // The list has no opinion.
        assert_eq!(run(&["inspect", &url, "--pickles"]).code, 0, "{name}");
    }
    // A file beside the others of a folder.
    let said = run(&["verify", &dir.path().display().to_string()]);
    assert!(
        said.code == 1 && said.out.contains("alone.pt"),
        "{}{}",
        said.out,
        said.err
    );
}

#[test]
fn unknown_globals_are_a_note_and_strict_fails() {
    let url = fixture("module.pt");
    assert!(has(&url, "unknown", "stranger.Net"));
    assert!(has(&url, "allowed", "torch._utils._rebuild_tensor_v2"));
    let said = run(&["verify", &url]);
    assert!(
        said.code == 0 && said.err.contains("stranger.Net"),
        "{}{}",
        said.out,
        said.err
    );
    assert_eq!(run(&["verify", &url, "--strict"]).code, 1);
    let plain = fixture("optimizer.pt");
    assert!(
        globals(&plain)
            .iter()
            .all(|(verdict, _)| verdict == "allowed"),
        "{:?}",
        globals(&plain)
    );
    assert_eq!(run(&["verify", &plain, "--strict"]).code, 0);
}

/// What PyTorch and Megatron Core write for themselves is in the table: `.metadata`, and objects.
#[test]
fn globals_of_checkpoints_are_found_in_metadata_and_objects() {
    let fixtures = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures");
    let url = format!("{fixtures}/dcp/v2.14.0/basic/ckpt");
    let name = "torch.distributed.checkpoint.metadata.Metadata";
    assert!(has(&url, "allowed", name), "{:?}", globals(&url));
    let said = run(&["verify", &url, "--strict"]);
    assert_eq!(said.code, 0, "{}{}", said.out, said.err);
    let url = format!("{fixtures}/dcp/objects/ckpt");
    let found = run(&["inspect", &url, "--pickles", "--json"]).json();
    let of_object = |g: &&Json| g["pickle"].as_str().is_some_and(|p| p.contains("object "));
    assert!(
        found["globals"]
            .as_array()
            .unwrap()
            .iter()
            .any(|g| of_object(&g)),
        "{found}"
    );
}

#[test]
fn a_file_without_a_pickle_is_not_shown_as_a_clean_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("text.pt").display().to_string();
    fs::write(&path, "no pickle").unwrap();
    let ran = run(&["inspect", &path, "--pickles"]);
    assert_eq!(
        (ran.code, ran.err.contains("no whole pickle was found")),
        (0, true),
        "{}",
        ran.err
    );
    let found = run(&[
        "inspect",
        &fixture("python2_legacy.pt"),
        "--pickles",
        "--json",
    ])
    .json();
    assert_eq!(found["pickles"], 5);
}

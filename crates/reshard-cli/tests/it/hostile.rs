//! What lies in a checkpoint's directory is anybody's.

use crate::{run, states};
use std::{
    fs,
    os::unix::fs::symlink,
    path::Path,
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};

const COMMANDS: [&[&str]; 7] = [
    &["inspect"],
    &["inspect", "--json"],
    &["ls"],
    &["digest"],
    &["verify"],
    &["verify", "--quick"],
    &["prune", "--dry-run"],
];

/// Runs a command in a process of its own, which must end soon and with one of our exit codes.
fn ends(args: &[&str], url: &str) -> Output {
    let program = || Command::new(env!("CARGO_BIN_EXE_reshard"));
    let mut child = program()
        .arg(args[0])
        .arg(url)
        .args(&args[1..])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let start = Instant::now();
    while child.try_wait().unwrap().is_none() {
        assert!(start.elapsed() < Duration::from_secs(600), "{args:?} hangs");
        std::thread::sleep(Duration::from_millis(2));
    }
    let out = child.wait_with_output().unwrap();
    let err = String::from_utf8_lossy(&out.stderr);
    assert!(
        (0..=3).contains(&out.status.code().unwrap()),
        "{args:?}: {} {err}",
        out.status
    );
    assert!(
        !err.contains("panicked") && !err.contains("report this"),
        "{args:?}: {err}"
    );
    out
}

fn pipe(at: &Path) {
    assert!(Command::new("mkfifo").arg(at).status().unwrap().success());
}

#[test]
fn pipes_devices_loops_and_directories_in_place_of_files_hang_nobody() {
    let make = |kind: &str, at: &Path| match kind {
        "pipe" => pipe(at),
        "device" => symlink("/dev/zero", at).unwrap(),
        "loop" => symlink(at, at).unwrap(),
        "directory" => fs::create_dir(at).unwrap(),
        _ => symlink("nothing", at).unwrap(),
    };
    for file in [
        ".metadata",
        "metadata.json",
        "common.pt",
        "__0_0.distcp",
        "reshard.json",
    ] {
        for kind in ["pipe", "device", "loop", "directory", "dangling link"] {
            let saved = states::megatron();
            fs::remove_file(saved.path(file)).unwrap();
            make(kind, &saved.path(file));
            for args in COMMANDS {
                let out = ends(args, &saved.url);
                if args[0] == "verify" {
                    assert!(!out.status.success(), "{kind} as {file}: {args:?}");
                }
            }
        }
    }
}

#[test]
fn files_that_say_they_are_longer_than_all_memory_take_none() {
    for file in ["metadata.json", "reshard.json"] {
        let saved = states::megatron();
        fs::File::create(saved.path(file))
            .unwrap()
            .set_len(1 << 40)
            .unwrap();
        for args in COMMANDS {
            ends(args, &saved.url);
        }
    }
}

#[test]
fn a_note_that_names_any_file_reads_no_other() {
    let saved = states::dcp();
    let outside = saved.beside("outside");
    fs::write(&outside, "outside").unwrap();
    for file in ["../outside", &outside, "/dev/zero", "", "nothing"] {
        let note = serde_json::json!({ "schema": 1, "writer": "x", "commit": { "file": file, "sha256": "00" } });
        fs::write(saved.path("reshard.json"), note.to_string()).unwrap();
        for args in COMMANDS {
            assert!(ends(args, &saved.url).status.success(), "{file}: {args:?}");
        }
    }
}

#[test]
fn names_of_files_can_not_steer_the_terminal() {
    let saved = states::dcp();
    for name in ["a\u{1b}[2Jb", "a\nb", "a\u{202e}b"] {
        fs::write(saved.path(name), "").unwrap();
    }
    for args in [&["inspect"][..], &["prune"]] {
        let text = String::from_utf8(ends(args, &saved.url).stdout).unwrap();
        assert!(!text.contains(['\u{1b}', '\u{202e}']), "{text}");
        assert!(
            text.contains("a\\u{1b}[2Jb") && text.contains("a\\nb") && text.contains("a\\u{202e}b"),
            "{text}"
        );
    }
}

/// Runs the program in a shell, where it is `$0` and the file is `$1`.
fn in_shell(script: &str, file: &Path) -> Output {
    let mut shell = Command::new("sh");
    shell.args(["-c", script, env!("CARGO_BIN_EXE_reshard")]);
    // Each arena of glibc takes 64 MiB of what `ulimit -v` allows, and threads that meet in one make another.
    shell.env("MALLOC_ARENA_MAX", "1");
    shell.arg(file).output().unwrap()
}

#[test]
fn a_file_that_grows_beyond_what_the_user_may_write_is_an_error_and_leaves_nothing() {
    let home = tempfile::tempdir().unwrap();
    let to = home.path().join("new");
    let limited = r#"ulimit -f 64; exec "$0" demo --dir "$1" --size 1MiB"#;
    let out = in_shell(limited, &to);
    let err = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(2), "{} {err}", out.status);
    assert!(err.contains("File too large"), "{err}");
    assert_eq!(fs::read_dir(home.path()).unwrap().count(), 0, "{err}");
}

#[test]
fn a_process_without_memory_ends_with_its_limit() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("many.safetensors");
    let entry = |n| format!(r#""{n:06}":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}"#);
    // Their parsed form takes more than the limit, and the header less than a quarter of it.
    let entries: Vec<String> = (0..600_000).map(entry).collect();
    let header = format!("{{{}}}", entries.join(","));
    let length = (header.len() as u64).to_le_bytes();
    fs::write(&file, [&length[..], header.as_bytes()].concat()).unwrap();
    let limited = r#"ulimit -v 200000; exec "$0" ls "$1" --json --max-memory 8GB"#;
    let out = in_shell(limited, &file);
    let err = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(2), "{} {err}", out.status);
    let limit = "this process may use 204800000 bytes of memory (ulimit -v)";
    assert!(
        err.contains("there is no memory for") && err.contains(limit),
        "{err}"
    );
    assert!(!err.contains("damaged"), "{err}");
    let told: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(told["error"]["kind"], "unavailable", "{told}");
}

/// The system starts no thread with a stack of that size.
#[test]
fn a_process_that_can_start_no_thread_says_so_or_works_without() {
    let home = tempfile::tempdir().unwrap();
    let path = |name: &str| home.path().join(name).display().to_string();
    let file = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/fixtures/python_objects.pt"
    );
    let (copy, ranks, demo) = (path("copy.pt"), path("ranks"), path("demo"));
    for args in [
        &["convert", file, &copy][..],
        &["convert", file, &ranks, "--ranks", "2"],
        &["verify", file],
        &["digest", file],
        &["stats", file],
        &["diff", file, file],
        &["demo", "--dir", &demo, "--size", "1MiB"],
    ] {
        let mut reshard = Command::new(env!("CARGO_BIN_EXE_reshard"));
        reshard
            .args(args)
            .env("RUST_MIN_STACK", (1u64 << 60).to_string());
        let out = reshard.output().unwrap();
        let err = String::from_utf8_lossy(&out.stderr);
        match out.status.code() {
            Some(0) => {}
            Some(2) => assert!(err.contains("thread"), "{args:?}: {err}"),
            _ => panic!("{args:?}: {} {err}", out.status),
        }
    }
    run(&["verify", &copy]).ok();
    assert!(!home.path().join("ranks").exists() && !home.path().join("demo").exists());
}

#[test]
fn what_can_not_be_told_from_files_of_others_is_not_replaced() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("many.safetensors");
    let shape = ["0"; 64].join(",");
    let entry = |n| format!(r#""{n}":{{"dtype":"F32","shape":[{shape}],"data_offsets":[0,0]}}"#);
    let entries: Vec<String> = (0..3000).map(entry).collect();
    let header = format!("{{{}}}", entries.join(","));
    let length = (header.len() as u64).to_le_bytes();
    fs::write(&file, [&length[..], header.as_bytes()].concat()).unwrap();
    let convert = r#"exec "$0" convert "$1" "$1-copy" --to zarr --overwrite"#;
    assert!(in_shell(convert, &file).status.success());
    // The record of the copy takes more than its share of this, so its files are not known.
    let out = in_shell(&format!("ulimit -v 160000; {convert}"), &file);
    let err = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(2), "{} {err}", out.status);
    assert!(
        err.contains("which of its files are those of the checkpoint can't be found out"),
        "{err}"
    );
    assert_eq!(fs::read_dir(home.path()).unwrap().count(), 2, "{err}");
}

#[test]
fn what_exceeds_the_memory_of_the_process_is_not_read() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("bare.pt");
    fs::write(&file, b"\x80\x02").unwrap();
    // A hole takes no room on the disk.
    let hole = fs::OpenOptions::new().write(true).open(&file).unwrap();
    hole.set_len(2 << 30).unwrap();
    let limited = r#"ulimit -v 1500000; exec "$0" verify "$1""#;
    let out = in_shell(limited, &file);
    let err = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(2), "{} {err}", out.status);
    let told = "has 2147483648 bytes; this process may use 1536000000 bytes of memory (ulimit -v)";
    assert!(err.contains(told), "{err}");
}

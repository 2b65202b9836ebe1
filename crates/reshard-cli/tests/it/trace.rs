//! `--trace FILE`.

use crate::{run, states};
use serde_json::{Value as Json, json};

/// The events of a trace by process and rank, in the order of time, without times and paths.
fn masked(file: &str, paths: &[(&str, &str)]) -> Vec<Json> {
    let mut text = std::fs::read_to_string(file).unwrap();
    for (path, name) in paths {
        text = text.replace(path, name);
    }
    let trace: Json = serde_json::from_str(&text).unwrap();
    assert_eq!(trace["displayTimeUnit"], "ms");
    let mut events = trace["traceEvents"].as_array().unwrap().clone();
    events.sort_by_key(|e| ["pid", "tid", "ts"].map(|key| e[key].as_u64().unwrap_or(0)));
    for event in &mut events {
        let event = event.as_object_mut().unwrap();
        for time in ["ts", "dur"] {
            if let Some(time) = event.get_mut(time) {
                assert!(time.is_u64());
                *time = json!("masked");
            }
        }
    }
    events
}

#[test]
fn a_conversion_for_two_ranks_is_traced() {
    let saved = states::megatron();
    let (to, file) = (saved.beside("to"), saved.beside("trace.json"));
    let args = ["convert", &saved.url, &to, "--ranks", "2", "--trace", &file];
    assert_eq!(run(&args).code, 0);
    let size = |name: &str| std::fs::metadata(format!("{to}/{name}")).unwrap().len();
    let process = |pid: u64, name: &str| json!({"name": "process_name", "ph": "M", "pid": pid, "args": {"name": name}});
    let phase = |name: &str, cat: &str, (pid, url): (u64, &str), rank: u64, read: [u64; 3]| {
        let [items, bytes, files] = read;
        json!({
            "name": name, "cat": cat, "ph": "X", "ts": "masked", "dur": "masked", "pid": pid, "tid": rank,
            "args": {"checkpoint": url, "rank": rank, "items": items, "bytes": bytes, "files": files},
        })
    };
    // Common state and what the format notes are counted as bytes of rank 0, but not as its items.
    let uneven = |mut event: Json| {
        let of_ranks = [size("__0_0.distcp"), size("__1_0.distcp")];
        let most = *of_ranks.iter().max().unwrap() as f64;
        event["args"]["imbalance"] = json!(most * 2. / of_ranks.iter().sum::<u64>() as f64);
        event
    };
    let (src, dst) = ((1, "SRC"), (2, "DST"));
    let first = size("__0_0.distcp") + size("common.pt");
    // Two random states and common state are read before, as they are stored. Elements are checked while they are read.
    let of_objects = run(&["inspect", &saved.url, "--json"]).json()["objects"].clone();
    let of_objects = of_objects.as_array().unwrap().iter();
    let objects: u64 = of_objects.map(|o| o["bytes"].as_u64().unwrap()).sum();
    let common = std::fs::metadata(saved.path("common.pt")).unwrap().len();
    let want = [
        process(1, "convert SRC"),
        phase("check", "convert", src, 0, [6, 0, 0]),
        phase("read", "convert", src, 0, [3, objects + common, 3]),
        process(2, "save DST"),
        phase("plan", "save", dst, 0, [0, 0, 0]),
        phase("write", "save", dst, 0, [3, first, 2]),
        uneven(phase("commit", "save", dst, 0, [0, 0, 0])),
        phase("plan", "save", dst, 1, [0, 0, 0]),
        phase("write", "save", dst, 1, [4, size("__1_0.distcp"), 1]),
        uneven(phase("commit", "save", dst, 1, [0, 0, 0])),
    ];
    assert_eq!(masked(&file, &[(&to, "DST"), (&saved.url, "SRC")]), want);
}

#[test]
fn what_fails_is_traced_with_the_reason() {
    let saved = states::megatron();
    let file = saved.beside("trace.json");
    let chunk = run(&["inspect", &saved.url, "--json"]).json()["tensors"][0]["chunks"][0].clone();
    let data = saved.path(chunk["file"].as_str().unwrap());
    let mut bytes = std::fs::read(&data).unwrap();
    let inside = bytes
        .windows(4)
        .position(|w| w == 2f32.to_le_bytes())
        .unwrap();
    bytes[inside] ^= 1;
    std::fs::write(&data, bytes).unwrap();
    let to = saved.beside("to");
    assert_eq!(run(&["convert", &saved.url, &to, "--trace", &file]).code, 1);
    let events = masked(&file, &[]);
    assert_eq!((events.len(), &events[1]["name"]), (2, &json!("check")));
    let error = events[1]["args"]["error"].as_str().unwrap();
    assert!(error.contains("CRC-32"), "{error}");
}

#[test]
fn ranks_that_are_threads_are_traced_when_they_save_and_load() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let (url, file) = (path("demo"), path("trace.json"));
    let args = [
        "demo", "--ranks", "2", "--to", "3", "--size", "1MB", "--dir", &url, "--trace", &file,
    ];
    assert_eq!(run(&args).code, 0);
    let events = masked(&file, &[]);
    let phases = |cat: &str, rank: u64| -> Vec<String> {
        let of = events
            .iter()
            .filter(|e| e["cat"] == cat && e["tid"] == rank);
        of.map(|e| e["name"].as_str().unwrap().to_owned()).collect()
    };
    for rank in 0..2 {
        assert_eq!(phases("save", rank), ["plan", "write", "commit"]);
    }
    for rank in 0..3 {
        assert_eq!(phases("load", rank), ["plan", "read", "finish"]);
    }
    let read = events.iter().find(|e| e["name"] == "read").unwrap();
    assert!(read["args"]["bytes"].as_u64().unwrap() > 0);
}

/// What a save of two ranks leaves in a trace, to the byte but for times and the place.
#[test]
fn the_trace_of_a_save_on_two_ranks_is_the_golden_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let (url, file) = (path("demo"), path("trace.json"));
    let args = [
        "demo", "--ranks", "2", "--size", "1MB", "--dir", &url, "--trace", &file,
    ];
    assert_eq!(run(&args).code, 0);
    let mut events = masked(&file, &[(&url, "DEMO")]);
    let is_save = |e: &Json| e["cat"] == "save" || e["args"]["name"] == "save DEMO";
    events.retain(is_save);
    let golden: Json = serde_json::from_str(include_str!("save_on_two_ranks.json")).unwrap();
    assert_eq!(Json::Array(events), golden);
}

#[test]
fn a_trace_that_can_not_be_written_is_told_before_anything_is_done() {
    let saved = states::dcp();
    let (to, file) = (saved.beside("to"), saved.beside("nowhere/trace.json"));
    let ran = run(&["convert", &saved.url, &to, "--trace", &file]);
    assert!(ran.code == 2 && ran.err.contains("--trace"), "{}", ran.err);
    assert!(!std::path::Path::new(&to).exists());
}

#[test]
fn a_trace_is_never_written_over_a_file() {
    let saved = states::dcp();
    let to = saved.beside("to");
    let metadata = saved.path(".metadata");
    let before = std::fs::read(&metadata).unwrap();
    for flags in [&[][..], &["--dry-run"]] {
        let args = [
            "convert",
            &saved.url,
            &to,
            "--trace",
            metadata.to_str().unwrap(),
        ];
        let ran = run(&[&args[..], flags].concat());
        assert!(ran.code == 2 && ran.err.contains("--trace"), "{}", ran.err);
        assert_eq!(std::fs::read(&metadata).unwrap(), before);
        assert!(!std::path::Path::new(&to).exists());
    }
    run(&["convert", &saved.url, &to, "--trace", "/dev/null"]).ok();
}

#[test]
fn a_trace_that_fails_at_the_end_does_not_hide_that_the_copy_is_there() {
    let saved = states::dcp();
    let to = saved.beside("to");
    let ran = run(&["convert", &saved.url, &to, "--trace", "/dev/full"]);
    assert!(
        ran.code == 2
            && ran
                .err
                .contains("the command is done, but /dev/full, its trace,"),
        "{}",
        ran.err
    );
    run(&["verify", &to]).ok();
}

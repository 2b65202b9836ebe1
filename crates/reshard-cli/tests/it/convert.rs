use crate::{
    handmade::Item,
    limits::{made, sound},
    run,
    states::{self, Saved},
};
use reshard::{Value, ValueTree, blocking::Checkpoint, model::Tree};
use serde_json::json;
use std::sync::{Mutex, PoisonError};

/// A conversion as thousands of ranks holds four directories open for each of them, and the tests share one limit of open files.
static THOUSANDS_OF_RANKS: Mutex<()> = Mutex::new(());

pub(crate) fn digest(url: &str) -> String {
    let ran = run(&["digest", url, "--json"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    ran.out
}

/// Bytes of all objects, as they are stored.
pub(crate) fn objects(url: &str) -> Vec<(String, Vec<u8>)> {
    let c = Checkpoint::open(url).unwrap();
    let bytes = |key: &str| match c.object_payload(key).unwrap() {
        reshard::model::Payload::Encoded { bytes, .. } => bytes.to_vec(),
        other => panic!("{other:?}"),
    };
    c.objects().map(|k| (k.to_string(), bytes(k))).collect()
}

pub(crate) fn converted(saved: &Saved, name: &str, more: &[&str]) -> String {
    let to = saved.beside(name);
    let text = run(&[&["convert", &saved.url, &to][..], more].concat()).ok();
    assert!(text.starts_with("converted  "), "{text}");
    to
}

#[test]
fn content_is_kept_from_any_number_of_ranks_to_any_other() {
    for saved in [states::megatron(), states::dcp()] {
        let (tensors, objects_then) = (digest(&saved.url), objects(&saved.url));
        let common = Checkpoint::open(&saved.url).unwrap().common().unwrap();
        for (ranks, files, flavour) in [
            ("1", "1", "universal"),
            ("3", "1", "2.4"),
            ("4", "2", "2.15"),
            ("9", "1", "2.3"),
        ] {
            let to = converted(
                &saved,
                ranks,
                &[
                    "--ranks",
                    ranks,
                    "--files-per-rank",
                    files,
                    "--flavour",
                    flavour,
                ],
            );
            assert_eq!(digest(&to), tensors);
            assert_eq!(objects(&to), objects_then);
            let c = Checkpoint::open(&to).unwrap();
            assert_eq!(c.common().unwrap(), common);
            assert_eq!(c.dialect(), Checkpoint::open(&saved.url).unwrap().dialect());
            assert_eq!(run(&["verify", &to]).code, 0);
        }
        let back = run(&[
            "convert",
            &saved.beside("9"),
            &saved.beside("back"),
            "--ranks",
            "2",
        ]);
        assert_eq!((back.code, digest(&saved.beside("back"))), (0, tensors));
    }
}

#[test]
fn nesting_and_empty_dicts_are_kept() {
    let saved = states::dcp();
    let state = |url: &str| Checkpoint::open(url).unwrap().state().unwrap();
    let sorted = |plain: ValueTree| match plain {
        Tree::Dict(mut d) => {
            d.sort_keys();
            Tree::Dict(d)
        }
        other => other,
    };
    let then = state(&saved.url);
    assert!(then.get("optim").unwrap().get("state").is_some());
    assert_eq!(
        sorted(state(&converted(&saved, "to", &["--ranks", "3"]))),
        sorted(then)
    );
}

#[test]
fn the_balance_of_ranks_is_told_if_there_are_several() {
    let saved = states::megatron();
    for (ranks, is_told) in [("1", false), ("2", true)] {
        let to = saved.beside(ranks);
        let text = run(&["convert", &saved.url, &to, "--ranks", ranks]).ok();
        assert!(text.contains("written as  "), "{text}");
        assert_eq!(text.contains("balance"), is_told, "{text}");
    }
}

#[test]
fn rows_are_spread_evenly_and_what_cannot_be_cut_is_stored_once() {
    let saved = states::megatron();
    let to = converted(&saved, "to", &["--ranks", "3"]);
    let j = run(&["inspect", &to, "--json"]).json();
    let rows = |i: usize| {
        let chunks = j["tensors"][i]["chunks"].as_array().unwrap();
        chunks
            .iter()
            .map(|c| c["lengths"].clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(rows(0), [json!([2, 4]), json!([2, 4]), json!([1, 4])]);
    assert_eq!(
        (rows(1), rows(2), rows(3)),
        (vec![], vec![json!([1]); 3], vec![json!([])])
    );
    let names: Vec<&str> = j["files"]
        .as_array()
        .unwrap()
        .iter()
        .map(|f| f["name"].as_str().unwrap())
        .collect();
    let want = [
        ".metadata",
        "__0_0.distcp",
        "__1_0.distcp",
        "__2_0.distcp",
        "common.pt",
        "metadata.json",
        "reshard.json",
    ];
    assert_eq!(names, want);
}

#[test]
fn a_glob_carries_a_part_over_and_must_match_something() {
    let saved = states::dcp();
    let to = converted(&saved, "to", &["--key", "model.*"]);
    assert_eq!(run(&["ls", &to]).ok(), "model.bias\nmodel.weight\n");
    let state = Checkpoint::open(&to).unwrap().state().unwrap();
    assert!(state.get("model").unwrap().get("weight").is_some() && state.get("optim").is_none());
    let ran = run(&["convert", &saved.url, &saved.beside("no"), "--key", "x"]);
    assert!(
        ran.code == 2 && ran.err.contains("reshard ls"),
        "{}",
        ran.err
    );
}

#[test]
fn what_lies_there_is_replaced_only_when_asked() {
    let saved = states::dcp();
    let to = converted(&saved, "to", &[]);
    let ran = run(&["convert", &saved.url, &to, "--ranks", "2"]);
    assert!(
        ran.code == 2 && ran.err.contains("--overwrite"),
        "{}",
        ran.err
    );
    let again = run(&[
        "convert",
        &saved.url,
        &to,
        "--ranks",
        "2",
        "--overwrite",
        "--json",
    ])
    .json();
    assert_eq!(
        (
            &again["schema"],
            &again["ranks"],
            &again["tensors"],
            &again["objects"]
        ),
        (&json!(1), &json!(2), &json!(2), &json!(2))
    );
    let facts = run(&["inspect", &to, "--json"]).json();
    assert_eq!(
        (
            &facts["leftovers"],
            facts["files"].as_array().unwrap().len()
        ),
        (&json!([]), 4)
    );
}

#[test]
fn what_is_of_others_stays_when_a_checkpoint_is_replaced() {
    let saved = states::dcp();
    let to = converted(&saved, "to", &["--ranks", "5"]);
    let path = std::path::Path::new(&to);
    std::fs::create_dir(path.join("logs")).unwrap();
    for file in ["README.md", "logs/today"] {
        std::fs::write(path.join(file), file).unwrap();
    }
    assert_eq!(run(&["convert", &saved.url, &to, "--overwrite"]).code, 0);
    let j = run(&["inspect", &to, "--json"]).json();
    assert_eq!(
        (&j["foreign"], &j["leftovers"]),
        (&json!(["README.md", "logs/today"]), &json!([]))
    );
}

#[test]
fn the_source_and_what_it_lies_in_are_never_written_over() {
    let saved = states::dcp();
    let before = digest(&saved.url);
    let home = std::path::Path::new(&saved.url).parent().unwrap();
    std::fs::write(
        home.join("metadata.json"),
        r#"{"sharded_backend": "torch_dist"}"#,
    )
    .unwrap();
    std::os::unix::fs::symlink(&saved.url, home.join("link")).unwrap();
    std::os::unix::fs::symlink(home, home.join("up")).unwrap();
    let dot = format!("{}/.", saved.url);
    let file = format!("file://{}", saved.url);
    let (above, link, up) = (
        home.display().to_string(),
        saved.beside("link"),
        saved.beside("up"),
    );
    for (src, dst, what) in [
        (&saved.url, &saved.url, "source itself"),
        (&saved.url, &dot, "source itself"),
        (&saved.url, &link, "source itself"),
        (&link, &saved.url, "source itself"),
        (&saved.url, &file, "source itself"),
        (&saved.url, &above, "in which the source lies"),
        (&saved.url, &up, "in which the source lies"),
        (&saved.url, &"/".to_owned(), "in which the source lies"),
    ] {
        for more in [&["--overwrite"][..], &[]] {
            let ran = run(&[&["convert", src, dst][..], more].concat());
            assert!(
                ran.code == 2 && ran.err.contains(what),
                "{dst}: {} {}",
                ran.code,
                ran.err
            );
        }
    }
    assert_eq!(digest(&saved.url), before);
}

#[test]
fn damage_is_not_carried_over() {
    let saved = states::megatron();
    let j = run(&["inspect", &saved.url, "--json"]).json();
    let chunk = &j["tensors"][0]["chunks"][0];
    let file = saved.path(chunk["file"].as_str().unwrap());
    let mut bytes = std::fs::read(&file).unwrap();
    let at = chunk["offset"].as_u64().unwrap() as usize;
    let data = 1f32
        .to_le_bytes()
        .into_iter()
        .chain(2f32.to_le_bytes())
        .collect::<Vec<u8>>();
    let inside = bytes[at..].windows(8).position(|w| w == data).unwrap();
    bytes[at + inside] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    let ran = run(&["convert", &saved.url, &saved.beside("to")]);
    assert!(
        ran.code == 1 && ran.err.contains("layer.weight") && ran.err.contains("CRC-32"),
        "{}",
        ran.err
    );
    assert!(!std::path::Path::new(&saved.beside("to")).exists());
    let to = converted(&saved, "rest", &["--key", "s*", "--key", "norm"]);
    assert_eq!(run(&["ls", &to]).ok(), "norm\nscale\n");
    assert_eq!(
        Checkpoint::open(&to)
            .unwrap()
            .common()
            .unwrap()
            .get("iteration")
            .and_then(|v| v.leaf())
            .and_then(Value::as_int),
        Some(1000)
    );
}

#[test]
fn files_are_as_a_policy_says_and_inspect_tells_which() {
    let saved = states::megatron();
    let limit = r#"{"type":"max_shard_size","max_shard_size":"1 kB"}"#;
    let ways: [&[&str]; 2] = [&["--max-shard-size", "1000"], &["--policy", limit]];
    let mut told = Vec::new();
    for (name, way) in ["flag", "json"].into_iter().zip(ways) {
        let to = converted(&saved, name, &[&["--ranks", "2"], way].concat());
        assert_eq!(
            (digest(&to), run(&["verify", &to]).code),
            (digest(&saved.url), 0)
        );
        let j = run(&["inspect", &to, "--json"]).json();
        let chunks = j["tensors"]
            .as_array()
            .unwrap()
            .iter()
            .flat_map(|t| t["chunks"].as_array().unwrap());
        // No file has room for two elements and their archives.
        let lengths: Vec<u64> = chunks
            .map(|c| c["lengths"].as_array().unwrap())
            .map(|l| l.iter().map(|n| n.as_u64().unwrap()).product())
            .collect();
        assert!(lengths.iter().all(|n| *n <= 1), "{lengths:?}");
        let files = j["files"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|f| f["name"].as_str().unwrap().ends_with(".distcp"));
        assert!(files.count() > 3);
        let policy = j["sidecar"]["policy"].as_str().unwrap().to_owned();
        assert!(run(&["inspect", &to]).ok().contains(&policy));
        told.push(policy);
    }
    assert_eq!(told[0], told[1]);
    let j = run(&[
        "convert",
        &saved.url,
        &saved.beside("told"),
        "--max-shard-size",
        "1MB",
        "--json",
    ])
    .json();
    assert_eq!(
        (&j["policy"]["shards"], &j["policy"]["split_tensors"]),
        (&json!(1), &json!(0))
    );
}

#[test]
fn everything_goes_into_one_file_when_gathered() {
    let saved = states::megatron();
    let all = r#"{"type":"all_in_one","gather":true}"#;
    let to = converted(&saved, "one", &["--ranks", "3", "--policy", all]);
    assert_eq!(
        (digest(&to), run(&["verify", &to]).code),
        (digest(&saved.url), 0)
    );
    assert_eq!(objects(&to), objects(&saved.url));
    let j = run(&["inspect", &to, "--json"]).json();
    let names = j["files"]
        .as_array()
        .unwrap()
        .iter()
        .map(|f| f["name"].as_str().unwrap());
    assert_eq!(
        names.filter(|n| n.ends_with(".distcp")).collect::<Vec<_>>(),
        ["__0_0.distcp"]
    );
}

#[test]
fn a_policy_that_cannot_be_read_says_how_to_write_it() {
    let saved = states::dcp();
    for (policy, says) in [
        ("x", "max_shard_size"),
        (
            r#"{"type":"max_shard_size","max_shard_size":"500M"}"#,
            "MiB",
        ),
        (
            r#"{"type":"max_shard_size","max_shard_size":1,"more":2}"#,
            "more",
        ),
        (r#"{"type":"nobodys"}"#, "nobodys"),
    ] {
        let ran = run(&[
            "convert",
            &saved.url,
            &saved.beside("to"),
            "--policy",
            policy,
        ]);
        assert!(
            ran.code == 2 && ran.err.contains(says),
            "{policy}: {}",
            ran.err
        );
    }
    let ran = run(&[
        "convert",
        &saved.url,
        &saved.beside("to"),
        "--max-shard-size",
        "0",
    ]);
    assert!(
        ran.code == 2 && !std::path::Path::new(&saved.beside("to")).exists(),
        "{}",
        ran.err
    );
}

#[test]
fn empty_dicts_in_lists_are_kept() {
    let tensor = Value::Tensor(reshard::Tensor::from_vec(&[2], vec![1f32, 2.]).unwrap());
    let dict = |entries: Vec<(Value, Value)>| Value::Dict(entries);
    let layers = Value::List(vec![
        dict(vec![("w".into(), tensor.clone())]),
        dict(vec![]),
        dict(vec![("w".into(), tensor), ("empty".into(), dict(vec![]))]),
        Value::List(vec![]),
    ]);
    let mut state = reshard::StateDict::new();
    state.insert("layers", layers);
    let saved = states::save(&[state], reshard::Dialect::Dcp);
    let state = |url: &str| Checkpoint::open(url).unwrap().state().unwrap();
    let then = state(&saved.url);
    assert_eq!(
        then.get("layers").and_then(|l| l.at(&[1.into()])),
        Some(&ValueTree::new())
    );
    let to = converted(&saved, "to", &["--ranks", "3"]);
    assert_eq!(state(&to), then);
    let part = state(&converted(&saved, "part", &["--key", "layers.2.*"]));
    assert!(part.get("layers").is_some());
}

#[test]
fn more_files_than_a_directory_should_hold_are_refused_before_anything_is_read() {
    let saved = states::dcp();
    let to = saved.beside("to");
    let convert = |more: &[&str]| run(&[&["convert", &saved.url, &to][..], more].concat());
    let nowhere = |ranks, files| {
        run(&[
            "convert",
            "nowhere",
            &to,
            "--ranks",
            ranks,
            "--files-per-rank",
            files,
        ])
    };
    let ran = nowhere("4096", "65536");
    assert!(
        ran.code == 2 && ran.err.contains("268,435,456 files") && ran.err.contains("16,384"),
        "{}",
        ran.err
    );
    assert!(
        ran.err
            .contains("hint: give fewer --ranks or --files-per-rank"),
        "{}",
        ran.err
    );
    assert!(nowhere("4096", "16").err.contains("65,536 files"));
    assert!(nowhere("3", "5462").err.contains("16,386 files"));
    for (ranks, files) in [("4096", "4"), ("1", "16384"), ("16", "1024")] {
        assert_eq!(
            nowhere(ranks, files).code,
            3,
            "so many files may be, but nowhere is no checkpoint"
        );
    }
    assert_eq!(
        convert(&["--ranks", "2", "--files-per-rank", "65536"]).code,
        2
    );
    assert!(!std::path::Path::new(&to).exists());
    assert_eq!(convert(&["--ranks", "2", "--files-per-rank", "16"]).code, 0);
}

#[test]
fn more_pieces_than_fit_into_memory_are_refused_and_an_option_raises_the_limit() {
    let _alone = THOUSANDS_OF_RANKS
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    let made = made(&[
        sound("a", 8, false),
        sound("b", 2, false),
        sound("c", 1, false),
    ]);
    let to = made.beside("to");
    let convert =
        |more: &[&str]| run(&[&["convert", &made.url, &to, "--overwrite"][..], more].concat());
    // A tensor has no more pieces than rows, and what is not cut does not count: 4 + 2.
    let ran = convert(&["--ranks", "4", "--max-pieces", "5"]);
    assert!(
        ran.code == 2 && ran.err.contains("4 ranks would cut"),
        "{}",
        ran.err
    );
    assert!(
        ran.err.contains("6 pieces") && ran.err.contains("at most 5"),
        "{}",
        ran.err
    );
    assert!(
        ran.err
            .contains("hint: give fewer --ranks, or raise the limit with --max-pieces N"),
        "{}",
        ran.err
    );
    assert!(!std::path::Path::new(&to).exists());
    for more in [
        &["--ranks", "4", "--max-pieces", "6"][..],
        &["--max-pieces", "0"],
        &["--ranks", "4096"],
    ] {
        let ran = convert(more);
        assert_eq!(ran.code, 0, "{more:?}: {}", ran.err);
    }
}

#[test]
fn the_program_raises_the_limit_of_open_files() {
    let saved = states::dcp();
    let to = saved.beside("to");
    let ended = std::process::Command::new("sh")
        .args(["-c", "ulimit -Sn 64; exec \"$@\"", "sh"])
        .arg(env!("CARGO_BIN_EXE_reshard"))
        .args(["convert", &saved.url, &to, "--ranks", "100"])
        .output()
        .unwrap();
    let err = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{err}");
}

#[test]
fn tensors_of_many_rows_and_many_ranks_make_too_many_pieces() {
    let _alone = THOUSANDS_OF_RANKS
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    let items: Vec<Item> = (0..49)
        .map(|i| sound(&format!("t{i}"), 4096, false))
        .collect();
    let made = made(&items);
    let convert = |to: &str, keys: &str| {
        run(&[
            "convert",
            &made.url,
            &made.beside(to),
            "--ranks",
            "4096",
            "--key",
            keys,
            "--no-verify",
        ])
    };
    let ran = convert("all", "*");
    assert!(
        ran.code == 2 && ran.err.contains("200,704 pieces") && ran.err.contains("200,000"),
        "{}",
        ran.err
    );
    let ran = convert("some", "*9");
    assert_eq!(
        ran.code, 0,
        "keys that are not chosen don't count: {}",
        ran.err
    );
}

#[test]
fn a_policy_of_too_many_slices_names_the_option_that_allows_them() {
    let made = made(&[sound("w", 300, false)]);
    let policy = r#"{"type":"max_shard_size","max_shard_size":"100"}"#;
    let convert = |max: &str| {
        let to = made.beside(max);
        run(&[
            "convert",
            &made.url,
            &to,
            "--policy",
            policy,
            "--max-slices",
            max,
        ])
    };
    let ran = convert("3");
    assert!(
        ran.code == 2 && ran.err.contains("more than 3 slices"),
        "{}",
        ran.err
    );
    assert!(ran.err.contains("--max-slices"), "{}", ran.err);
    // No file has room for two elements and their archives.
    assert_eq!(convert("300").code, 0);
}

#[test]
fn a_policy_of_too_many_files_is_refused_whatever_it_is_called() {
    let made = made(&[sound("w", 300, false)]);
    let to = made.beside("to");
    let convert = |more: &[&str]| run(&[&["convert", &made.url, &to][..], more].concat());
    let refused = |more: &[&str], told: &[&str]| {
        let ran = convert(more);
        assert_eq!(ran.code, 2, "{}", ran.err);
        for part in told {
            assert!(ran.err.contains(part), "{part}: {}", ran.err);
        }
        assert!(!std::path::Path::new(&to).exists());
    };
    for (files, ranks, product) in [
        (65_536, "4096", "268,435,456 files"),
        (20_000, "4", "80,000 files"),
        (16, "2048", "32,768 files"),
        (u32::MAX, "1", "4,294,967,295 files"),
    ] {
        let policy = format!(r#"{{"type":"by_files","files":{files}}}"#);
        let told = [
            product,
            "16,384",
            "hint: give fewer --ranks, or fewer files in --policy",
        ];
        refused(&["--policy", &policy, "--ranks", ranks], &told);
    }
    let by_size = r#"{"type":"max_shard_size","max_shard_size":"100"}"#;
    // No file has room for two elements and their archives.
    let told = ["300 files, and at most 299", "--max-files"];
    refused(&["--policy", by_size, "--max-files", "299"], &told);
    let told = [
        "12 files",
        "at most 11",
        "raise the limit with --max-files N",
    ];
    refused(&["--max-shard-size", "100B", "--max-files", "11"], &told);
    convert(&["--policy", by_size, "--max-files", "300"]).ok();
}

#[test]
fn a_link_to_a_file_stays_and_what_it_points_to_is_replaced() {
    let saved = states::dcp_with(&["w"]);
    for ending in ["pt", "safetensors"] {
        let (file, link) = (
            format!("file.{ending}"),
            saved.beside(&format!("link.{ending}")),
        );
        let args = |to| vec!["convert", &saved.url, to, "--drop-objects", "--overwrite"];
        let at = saved.beside(&file);
        assert_eq!(run(&args(&at)).code, 0);
        std::os::unix::fs::symlink(&file, &link).unwrap();
        assert_eq!(run(&[&args(&link)[..], &["--dry-run"]].concat()).code, 0);
        assert_eq!(run(&args(&link)).code, 0);
        assert_eq!(
            std::fs::read_link(&link).unwrap(),
            std::path::Path::new(&file)
        );
        assert_eq!(run(&["diff", &saved.url, &link]).code, 0);
    }
}

#[test]
fn what_files_of_the_source_are_links_to_is_not_replaced() {
    let saved = states::dcp();
    let copy = |name: &str| {
        let to = std::path::PathBuf::from(saved.beside(name));
        std::fs::create_dir(&to).unwrap();
        for entry in std::fs::read_dir(&saved.url).unwrap().map(Result::unwrap) {
            std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
        to
    };
    let (dst, away) = (copy("dst"), copy("away"));
    let link = |to: &std::path::Path, at: std::path::PathBuf| {
        std::fs::remove_file(&at).unwrap();
        std::os::unix::fs::symlink(to, at).unwrap();
    };
    let direct = copy("direct");
    link("../dst/__0_0.distcp".as_ref(), direct.join("__0_0.distcp"));
    // By another link in the destination, which would be replaced too.
    let over = copy("over");
    link(&away.join("__0_0.distcp"), dst.join("__0_0.distcp"));
    link(&dst.join("__0_0.distcp"), over.join("__0_0.distcp"));
    for src in [&direct, &over].map(|p| p.to_str().unwrap()) {
        let before = digest(src);
        let ran = run(&[
            "convert",
            src,
            dst.to_str().unwrap(),
            "--overwrite",
            "--ranks",
            "2",
        ]);
        assert!(
            ran.code == 2 && ran.err.contains("holds the file to which __0_0.distcp in"),
            "{} {}",
            ran.code,
            ran.err
        );
        assert!(ran.err.contains("is a link"), "{}", ran.err);
        assert_eq!(digest(src), before);
    }
    // Links to elsewhere hinder nobody.
    let ran = run(&["convert", dst.to_str().unwrap(), &saved.beside("new")]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert_eq!(
        run(&[
            "convert",
            direct.to_str().unwrap(),
            over.to_str().unwrap(),
            "--overwrite"
        ])
        .code,
        0
    );
}

#[test]
fn files_of_a_byte_each_are_refused_where_they_are_too_many() {
    let mut state = reshard::StateDict::new();
    let data = reshard::Tensor::from_vec(&[70_000], vec![1u8; 70_000]).unwrap();
    state.insert("w", reshard::ShardedTensor::replicated("w", data, 0));
    let saved = states::save(&[state], reshard::Dialect::Dcp);
    let ran = run(&[
        "convert",
        &saved.url,
        &saved.beside("to"),
        "--max-shard-size",
        "1",
    ]);
    assert!(
        ran.code == 2 && ran.err.contains("larger --max-shard-size"),
        "{}",
        ran.err
    );
}

#[test]
fn a_key_of_more_dots_than_a_stack_is_deep_is_carried_over() {
    let key = "x.".repeat(100_000);
    let mut state = reshard::StateDict::new();
    let data = reshard::Tensor::from_vec(&[2], vec![1u8, 2]).unwrap();
    state.insert(&*key, reshard::ShardedTensor::replicated(&key, data, 0));
    let saved = states::save(&[state], reshard::Dialect::Dcp);
    let to = converted(&saved, "to", &["--ranks", "2"]);
    assert_eq!(digest(&to), digest(&saved.url));
}

#[test]
fn a_destination_that_is_nearly_called_like_a_file_is_refused() {
    let saved = states::dcp();
    for (name, meant) in [
        ("x.safetensor", "x.safetensors"),
        ("x.safetensrs", "x.safetensors"),
        ("x.Safetensors", "x.safetensors"),
        ("x.PT", "x.pt"),
    ] {
        let to = saved.beside(name);
        let ran = run(&["convert", &saved.url, &to]);
        assert_eq!(ran.code, 2, "{name}: {}", ran.out);
        let wanted = format!("did you mean {}?", saved.beside(meant));
        assert!(ran.err.contains(&wanted), "{}", ran.err);
        assert!(ran.err.contains("--to torch_dist"), "{}", ran.err);
        assert!(!std::path::Path::new(&to).exists(), "{name}");
    }
    for (name, hint) in [
        ("x.zarr", "--to zarr3 writes"),
        ("x.gguf", "does not write that format"),
    ] {
        let to = saved.beside(name);
        let ran = run(&["convert", &saved.url, &to]);
        assert_eq!(ran.code, 2, "{name}: {}", ran.out);
        assert!(ran.err.contains(hint), "{}", ran.err);
        assert!(!std::path::Path::new(&to).exists(), "{name}");
    }
    // Who says it means it; other endings are parts of names.
    let to = saved.beside("a.safetensor");
    assert_eq!(
        run(&["convert", &saved.url, &to, "--to", "torch_dist"]).code,
        0
    );
    for name in ["step-1.2", "run.v2", "model.final"] {
        let ran = run(&["convert", &saved.url, &saved.beside(name)]);
        assert_eq!(ran.code, 0, "{name}: {}", ran.err);
    }
}

#[test]
fn a_format_that_is_nearly_called_like_another_leads_to_it() {
    let saved = states::dcp();
    let to = |format: &str| run(&["convert", &saved.url, &saved.beside("to"), "--to", format]).err;
    let err = to("safetensor");
    assert!(err.contains("did you mean safetensors?"), "{err}");
    assert!(to("torch-dist").contains("did you mean torch_dist?"));
    assert!(!to("nothing").contains("did you mean"));
    // Another version is no slip of the pen.
    assert!(!to("torch_dist/7").contains("did you mean"));
}

#[test]
fn a_name_of_a_file_is_not_given_to_a_folder() {
    let saved = states::dcp_with(&["w"]);
    for (name, to) in [
        ("a.safetensors", "torch_save"),
        ("a.pt", "safetensors"),
        ("b.pt", "torch_dist"),
    ] {
        let at = saved.beside(name);
        let ran = run(&["convert", &saved.url, &at, "--to", to, "--drop-objects"]);
        assert!(
            ran.code == 2 && ran.err.contains("not written as a single file"),
            "{}",
            ran.err
        );
        assert!(!std::path::Path::new(&at).exists());
    }
}

#[test]
fn a_resumed_file_is_written_anew() {
    let saved = states::dcp_with(&["w"]);
    let out = run(&["convert", &saved.url, &saved.beside("a.pt"), "--resume"]).out;
    assert!(out.contains("a single file is written anew"), "{out}");
}

#[test]
fn copies_of_ranks_that_are_not_read_are_noted() {
    let fixture = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/fixtures/dcp/rank_local_w2/ckpt"
    );
    for command in ["verify", "digest", "ls"] {
        let ran = run(&[command, fixture]);
        let said = ran.out + &ran.err;
        assert!(said.contains("several ranks have"), "{command}: {said}");
    }
    let home = tempfile::tempdir().unwrap();
    let copy = home.path().join("copy").display().to_string();
    let lost = run(&["convert", fixture, &copy, "--lossless"]);
    assert!(
        lost.code == 2 && lost.err.contains("of other ranks: left out"),
        "{}",
        lost.err
    );
    let said = run(&["convert", fixture, &copy]).out;
    assert!(
        said.contains("a rank-local checkpoint is read as its lowest rank saved it"),
        "{said}"
    );
}

#[test]
fn a_destination_inside_of_the_source_is_refused() {
    let saved = states::dcp_with(&["w"]);
    let link = saved.beside("link");
    std::os::unix::fs::symlink(&saved.url, &link).unwrap();
    let dangling = saved.beside("dangling");
    std::os::unix::fs::symlink(saved.path("new"), &dangling).unwrap();
    let before = run(&["inspect", &saved.url]).ok();
    for to in [
        format!("{}/copy", saved.url),
        format!("{}/a/b/copy", saved.url),
        format!("{}/model.safetensors", saved.url),
        format!("file://{}/copy", saved.url),
        format!("{link}/copy"),
        format!("{link}/../ckpt/copy"),
        dangling,
    ] {
        for more in [&[][..], &["--overwrite"], &["--dry-run"]] {
            let ran = run(&[&["convert", &saved.url, &to], more].concat());
            assert_eq!(ran.code, 2, "{to}: {}", ran.out);
            assert!(ran.err.contains("inside of the source"), "{}", ran.err);
        }
    }
    assert_eq!(run(&["inspect", &saved.url]).ok(), before);
    let beside = format!("{}-2", saved.url);
    assert_eq!(run(&["convert", &saved.url, &beside]).code, 0);
}

#[test]
fn short_names_of_formats_choose_them() {
    let saved = states::dcp_with(&["w"]);
    for (name, file) in [
        ("hf", "model.safetensors"),
        ("pt", "pytorch_model.bin"),
        ("dcp", ".metadata"),
    ] {
        let to = saved.beside(name);
        let ran = run(&["convert", &saved.url, &to, "--to", name, "--drop-objects"]);
        assert_eq!(ran.code, 0, "{name}: {}", ran.err);
        assert!(std::path::Path::new(&to).join(file).is_file(), "{name}");
    }
}

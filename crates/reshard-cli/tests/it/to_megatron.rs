//! `convert --inverse --dialect megatron`: what Megatron Core and Megatron-LM's training need beside the tensors. That they load it,
//! `cargo xtask interop` tests.

use crate::{mapping, run, states::Saved};
use serde_json::{Value as Json, json};
use std::{collections::BTreeMap, fs, path::Path};

const TRACKER: &str = "latest_checkpointed_iteration.txt";

/// A Llama of one layer in a folder of safetensors, with a `config.json` if there is one.
fn hf(config: Option<Json>) -> (Saved, String) {
    let saved = mapping::saved(true);
    let hf = saved.beside("hf");
    let ran = run(&[
        "convert",
        &saved.url,
        &hf,
        "--map",
        "hf-llama",
        "--to",
        "safetensors",
        "--drop-objects",
    ]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    if let Some(config) = config {
        fs::write(Path::new(&hf).join("config.json"), config.to_string()).unwrap();
    }
    (saved, hf)
}

fn config() -> Json {
    json!({
        "num_hidden_layers": 1, "hidden_size": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 7,
        "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "max_position_embeddings": 64,
    })
}

/// Parameters that a `config.json` would tell.
const KNOWN: [&str; 5] = [
    "layers=1",
    "hidden=4",
    "heads=4",
    "query_groups=2",
    "vocab=7",
];

const BACK: [&str; 7] = [
    "--map",
    "hf-llama",
    "--inverse",
    "--dialect",
    "megatron",
    "--set",
    "padded_vocab=8",
];

/// Converts with `--json`, which succeeds. Returns the report and the notes.
fn converted(src: &str, dst: &str, more: &[&str]) -> (Json, String) {
    let ran = run(&[&["convert", src, dst, "--json"], &BACK[..], more].concat());
    assert_eq!(ran.code, 0, "{}", ran.err);
    (serde_json::from_str(&ran.out).unwrap(), ran.err)
}

/// The names of the ledger's entries with this outcome, each with the reason if it has one.
fn with_outcome<'r>(report: &'r Json, outcome: &str) -> BTreeMap<&'r str, &'r str> {
    let entries = report["ledger"].as_array().unwrap().iter();
    let entries = entries.filter(|e| e["outcome"] == outcome);
    let text = |value: &'r Json| value.as_str().unwrap_or("");
    entries
        .map(|e| (text(&e["name"]), text(&e["why"])))
        .collect()
}

/// A value of the checkpoint, as `show --json` prints it.
fn shown(dst: &str, name: &str) -> Json {
    let ran = run(&["show", dst, name, "--json"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    serde_json::from_str::<Json>(&ran.out).unwrap()["value"].clone()
}

#[test]
fn the_copy_has_states_of_layers_and_the_arguments_of_the_training() {
    let (saved, hf) = hf(Some(config()));
    let dst = saved.beside("run/release");
    let (report, _) = converted(&hf, &dst, &[]);
    let added = with_outcome(&report, "added");
    assert!(with_outcome(&report, "not_added").is_empty(), "{report}");
    let objects = [
        "decoder.final_layernorm._extra_state/shard_0_1",
        "decoder.layers.mlp.linear_fc1._extra_state/shard_0_1",
        "decoder.layers.mlp.linear_fc2._extra_state/shard_0_1",
        "decoder.layers.self_attention.core_attention._extra_state/shard_0_1",
        "decoder.layers.self_attention.linear_proj._extra_state/shard_0_1",
        "decoder.layers.self_attention.linear_qkv._extra_state/shard_0_1",
    ];
    for object in objects {
        assert!(added.contains_key(object), "{object}: {added:?}");
        assert_eq!(shown(&dst, object), json!([null]), "{object}");
    }
    let common = [
        "checkpoint_version",
        "iteration",
        "args.num_layers",
        "args.rotary_base",
    ];
    assert!(
        common.iter().all(|name| added.contains_key(name)),
        "{added:?}"
    );
    let args = shown(&dst, "args");
    assert_eq!(args["$opaque"]["class"], "argparse.Namespace");
    let args = &args["$opaque"]["state"];
    for (name, value) in [
        ("num_layers", json!(1)),
        ("hidden_size", json!(4)),
        ("num_attention_heads", json!(4)),
        ("num_query_groups", json!(2)),
        ("ffn_hidden_size", json!(3)),
        ("padded_vocab_size", json!(8)),
        ("swiglu", json!(true)),
        ("normalization", json!("RMSNorm")),
        ("norm_epsilon", json!(1e-5)),
        ("untie_embeddings_and_output_weights", json!(true)),
        ("no_save_optim", json!(true)),
    ] {
        assert_eq!(args[name], value, "{name}");
    }
    assert_eq!(shown(&dst, "iteration"), json!(0));
    assert_eq!(run(&["verify", &dst]).code, 0);
    let ran = run(&["diff", &saved.url, &dst, "--key", "decoder.*"]);
    assert!(
        ran.code == 1 && ran.out.contains("_extra_state"),
        "{}",
        ran.out
    );

    // Going forward drops the states, and needs no values of its own.
    let again = saved.beside("again");
    let ran = run(&[
        "convert",
        &dst,
        &again,
        "--map",
        "hf-llama",
        "--to",
        "safetensors",
        "--drop-objects",
    ]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert_eq!(run(&["diff", &hf, &again]).code, 0);
    // Fewer states for layers without Transformer Engine.
    let local = saved.beside("local");
    let (report, _) = converted(&hf, &local, &["--set", "local_layers=1"]);
    let objects = with_outcome(&report, "added").into_keys();
    assert_eq!(
        objects.filter(|name| name.contains("_extra_state")).count(),
        4
    );
}

#[test]
fn arguments_that_nothing_tells_are_left_out_and_named() {
    let (saved, hf) = hf(None);
    let dst = saved.beside("release");
    let set: Vec<&str> = KNOWN.iter().flat_map(|s| ["--set", s]).collect();
    let (report, _) = converted(&hf, &dst, &set);
    let missing = with_outcome(&report, "not_added");
    let names: Vec<&str> = missing.keys().copied().collect();
    let want = [
        "args.max_position_embeddings",
        "args.norm_epsilon",
        "args.normalization",
        "args.rotary_base",
        "args.swiglu",
    ];
    assert_eq!(names, want);
    assert_eq!(missing["args.swiglu"], "config.json has no `hidden_act`");
    let args = shown(&dst, "args");
    assert!(args["$opaque"]["state"].get("swiglu").is_none(), "{args}");
    // They are no losses of the source.
    let again = [&["--lossless", "--overwrite"], &set[..]].concat();
    converted(&hf, &dst, &again);
}

#[test]
fn only_megatrons_dialect_has_additions() {
    let (saved, hf) = hf(Some(config()));
    let dst = saved.beside("dcp");
    let args = [
        "convert",
        &hf,
        &dst,
        "--map",
        "hf-llama",
        "--inverse",
        "--set",
        "padded_vocab=8",
        "--json",
    ];
    let ran = run(&args);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let report: Json = serde_json::from_str(&ran.out).unwrap();
    assert!(
        with_outcome(&report, "added").is_empty() && report["objects"] == 0,
        "{report}"
    );
    // Chosen keys choose among what is added, too, and nothing but additions is no copy.
    let dst = saved.beside("chosen");
    let (report, _) = converted(&hf, &dst, &["--key", "decoder.layers.mlp.*"]);
    let added = with_outcome(&report, "added").into_keys();
    let objects: Vec<&str> = added.filter(|name| name.contains("_extra_state")).collect();
    assert!(
        objects.len() == 2 && objects.iter().all(|key| key.contains(".mlp.")),
        "{objects:?}"
    );
    let none = saved.beside("none");
    let nothing = [&["convert", &hf, &none], &BACK[..], &["--key", "other.*"]].concat();
    assert_eq!(run(&nothing).code, 2);
}

#[test]
fn common_state_of_the_source_is_not_replaced() {
    let saved = mapping::saved(true);
    let (hf, dst) = (saved.beside("hf"), saved.beside("back"));
    let ran = run(&["convert", &saved.url, &hf, "--map", "hf-llama"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let (report, _) = converted(&hf, &dst, &[]);
    let kept = with_outcome(&report, "not_added");
    assert_eq!(
        kept["args.num_layers"],
        "the source has common state of its own"
    );
    assert_eq!(shown(&dst, "args"), shown(&saved.url, "args"));
    assert!(
        with_outcome(&report, "added")
            .keys()
            .all(|name| name.contains("_extra_state"))
    );

    // In a folder of safetensors, the values are objects beside the tensors.
    let (saved, hf) = self::hf(None);
    let (first, kept) = (saved.beside("first"), saved.beside("kept"));
    let dst = saved.beside("again");
    let set: Vec<&str> = KNOWN.iter().flat_map(|s| ["--set", s]).collect();
    converted(&hf, &first, &set);
    let args = ["convert", &first, &kept, "--map", "hf-llama"];
    let ran = run(&[&args[..], &["--to", "safetensors", "--keep-objects"]].concat());
    assert_eq!(ran.code, 0, "{}", ran.err);
    fs::write(Path::new(&kept).join("config.json"), config().to_string()).unwrap();
    let (report, _) = converted(&kept, &dst, &[]);
    let old = with_outcome(&report, "not_added");
    let why = "the source has a value of this name";
    for name in ["iteration", "args.num_layers", "args.swiglu"] {
        assert_eq!(old[name], why, "{name}");
    }
    assert_eq!(shown(&dst, "args"), shown(&first, "args"));
}

#[test]
fn the_tracker_file_names_the_first_checkpoint_of_a_run() {
    let (saved, hf) = hf(Some(config()));
    let tracker = |run: &str| Path::new(&saved.beside(run)).join(TRACKER);
    for (name, text) in [
        ("release", "release"),
        ("iter_0000000", "0"),
        ("iter_0001000", "1000"),
    ] {
        let run = format!("of-{name}");
        let dst = saved.beside(&format!("{run}/{name}"));
        let (report, _) = converted(&hf, &dst, &["--dry-run"]);
        let path = tracker(&run);
        assert_eq!(report["tracker"], json!(path.display().to_string()));
        assert!(!path.exists());
        // With a slash at the end, it is the same folder.
        let (report, _) = converted(&hf, &format!("{dst}/"), &[]);
        assert_eq!(report["tracker"], json!(path.display().to_string()));
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
        converted(&hf, &dst, &["--overwrite"]);
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
    }

    // Another checkpoint of a run with a tracker does not become the one that the training continues from.
    let (report, notes) = converted(&hf, &saved.beside("of-release/iter_0000002"), &[]);
    assert!(report.get("tracker").is_none(), "{report}");
    let told = "says \"release\", so Megatron-LM does not start from";
    assert!(
        notes.contains(told) && notes.contains("replace the text by 2"),
        "{notes}"
    );
    assert_eq!(
        fs::read_to_string(tracker("of-release")).unwrap(),
        "release"
    );
    // No name that Megatron-LM looks for.
    for name in ["step-0", "iter_7", "iter_00000001"] {
        let (report, notes) = converted(&hf, &saved.beside(&format!("other/{name}")), &[]);
        assert!(
            report.get("tracker").is_none() && notes.contains("RUN/release"),
            "{notes}"
        );
        assert!(!tracker("other").exists());
    }
    // Something else has the name of the tracker.
    fs::create_dir_all(tracker("odd")).unwrap();
    let dst = saved.beside("odd/release");
    let ran = run(&[&["convert", &hf, &dst], &BACK[..]].concat());
    assert!(
        ran.code == 2
            && ran.err.contains("is complete, but")
            && ran.err.contains("whose text is release"),
        "{} {}",
        ran.code,
        ran.err
    );
    assert_eq!(run(&["verify", &dst]).code, 0);
}

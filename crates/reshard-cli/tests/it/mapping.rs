//! `--map` of `reshard convert` and `reshard diff`.

use crate::{
    run, run_raw,
    states::{self, Saved},
};
use reshard::{Dialect, ShardedTensor, StateDict, Tensor, Value};
use reshard_model::testkit::one_in;

/// A layer of Megatron's: four heads of one row, in two groups.
pub(crate) fn saved(args: bool) -> Saved {
    saved_with(args, &[])
}

/// The same with more tensors.
fn saved_with(args: bool, more: &[(&str, &[u64])]) -> Saved {
    let mut state = StateDict::new();
    let mut next = 0u8;
    let model = [
        (
            "decoder.layers.self_attention.linear_qkv.weight",
            &[1, 8, 4][..],
        ),
        (
            "decoder.layers.self_attention.linear_qkv.layer_norm_weight",
            &[1, 4],
        ),
        (
            "decoder.layers.self_attention.linear_proj.weight",
            &[1, 4, 4],
        ),
        ("decoder.layers.mlp.linear_fc1.weight", &[1, 6, 4]),
        ("decoder.layers.mlp.linear_fc1.layer_norm_weight", &[1, 4]),
        ("decoder.layers.mlp.linear_fc2.weight", &[1, 4, 3]),
        ("decoder.final_layernorm.weight", &[4]),
        ("embedding.word_embeddings.weight", &[8, 4]),
        ("output_layer.weight", &[8, 4]),
    ];
    for (key, shape) in model.iter().chain(more) {
        let count: u64 = shape.iter().product();
        let numbers = (0..count).map(|_| {
            next = next.wrapping_add(1);
            f32::from(next)
        });
        let tensor = Tensor::from_vec(shape, numbers.collect()).unwrap();
        state.insert(*key, ShardedTensor::full(key, tensor));
    }
    if args {
        let of = |name: &str, n: i64| (Value::from(name), Value::Int(n));
        let args = vec![
            of("num_layers", 1),
            of("hidden_size", 4),
            of("num_attention_heads", 4),
            of("num_query_groups", 2),
            of("vocab_size", 7),
            of("padded_vocab_size", 8),
        ];
        state.insert("args", Value::Dict(args));
    }
    states::save(&[state], Dialect::Megatron)
}

#[test]
fn a_model_of_megatron_becomes_one_of_transformers_and_again_the_same() {
    let saved = saved(true);
    let (hf, back) = (saved.beside("hf"), saved.beside("back"));
    let ran = run(&["convert", &saved.url, &hf, "--map", "hf-llama"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let listed = run(&["inspect", &hf]).out;
    assert!(
        listed.contains("model.layers.0.self_attn.k_proj.weight"),
        "{listed}"
    );
    assert!(listed.contains("[7, 4]"), "{listed}");
    assert_eq!(run(&["diff", &saved.url, &hf, "--map", "hf-llama"]).code, 0);

    let ran = run(&["convert", &hf, &back, "--map", "hf-llama", "--inverse"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    // Only the padding is lost.
    let ran = run(&["diff", &saved.url, &back, "--key", "decoder.*weight"]);
    assert_eq!(ran.code, 0, "{}", ran.out);
    assert_eq!(run(&["diff", &saved.url, &back]).code, 1);
}

/// Megatron Core loads no checkpoint without them.
#[test]
fn the_inverse_of_a_map_can_write_the_files_that_megatron_core_needs() {
    let saved = saved(true);
    let (hf, back) = (saved.beside("hf"), saved.beside("back"));
    let to = ["--to", "safetensors", "--drop-objects"];
    let args = ["convert", &saved.url, &hf, "--map", "hf-llama"];
    assert_eq!(run(&[&args[..], &to].concat()).code, 0);
    let args = ["convert", &hf, &back, "--map", "hf-llama", "--inverse"];
    let args = [&args[..], &["--dialect", "megatron"]].concat();
    let set = [
        "layers=1",
        "hidden=4",
        "heads=4",
        "query_groups=2",
        "padded_vocab=8",
        "vocab=7",
    ];
    let set = set.iter().flat_map(|s| ["--set", s]);
    let ran = run(&args.into_iter().chain(set).collect::<Vec<_>>());
    assert_eq!(ran.code, 0, "{}", ran.err);
    for file in ["metadata.json", "common.pt"] {
        assert!(std::path::Path::new(&back).join(file).is_file(), "{file}");
    }
    let listed = run(&["inspect", &back]).out;
    assert!(listed.contains("decoder.layers.mlp.linear_fc1"), "{listed}");
}

#[test]
fn a_dialect_for_which_a_format_has_no_place_is_refused() {
    let (saved, to) = (saved(true), ["--to", "safetensors", "--drop-objects"]);
    let dst = saved.beside("dst");
    let args = ["convert", &saved.url, &dst, "--dialect", "megatron"];
    let ran = run(&[&args[..], &to].concat());
    assert_eq!(ran.code, 2, "{}", ran.err);
    assert!(
        ran.err.contains("as Megatron Core writes checkpoints")
            && ran.err.contains("leave --dialect out"),
        "{}",
        ran.err
    );
}

#[test]
fn parameters_that_are_nowhere_are_asked_for() {
    let saved = saved(false);
    let hf = saved.beside("hf");
    let ran = run(&[
        "convert", &saved.url, &hf, "--map", "hf-llama", "--set", "layers=1",
    ]);
    assert_eq!(ran.code, 2, "{}", ran.err);
    assert!(
        ran.err.contains("parameter `heads`") && ran.err.contains("--set NAME=N"),
        "{}",
        ran.err
    );
    let set = [
        "layers=1",
        "hidden=4",
        "heads=4",
        "query_groups=2",
        "padded_vocab=8",
    ];
    let mut args = vec!["convert", &*saved.url, &*hf, "--map", "hf-llama"];
    set.iter().for_each(|s| args.extend(["--set", s]));
    let ran = run(&args);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let note = "does not tell these parameters of the map, which are its defaults: ";
    assert!(
        ran.err.contains(note) && ran.err.contains("vocab=8; --set"),
        "{}",
        ran.err
    );
}

#[test]
fn a_mapping_file_is_read_and_its_faults_are_told() {
    let saved = saved(true);
    let file = saved.beside("map.toml");
    std::fs::write(
        &file,
        "[[rule]]\nkeep = 'decoder.final{rest*}'\n[[rule]]\nadd_prefix = 'model.'\n",
    )
    .unwrap();
    let dst = saved.beside("dst");
    let ran = run(&["convert", &saved.url, &dst, "--map", &file]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(
        run(&["ls", &dst])
            .out
            .contains("model.decoder.final_layernorm.weight")
    );

    let ran = run(&[
        "convert",
        &saved.url,
        &saved.beside("x"),
        "--map",
        &file,
        "--inverse",
    ]);
    assert!(
        ran.err.contains("rule 1 (keep)") && ran.code != 0,
        "{}",
        ran.err
    );
    std::fs::write(&file, "[[rule]]\nkeeep = 'a'\n").unwrap();
    let ran = run(&["convert", &saved.url, &saved.beside("x"), "--map", &file]);
    assert!(
        ran.err.contains("rule 1: it has `keeep`") && ran.code != 0,
        "{}",
        ran.err
    );
    let ran = run(&[
        "convert",
        &saved.url,
        &saved.beside("x"),
        "--map",
        "hf-lama",
    ]);
    assert!(ran.err.contains("hf-llama") && ran.code != 0, "{}", ran.err);
}

#[test]
fn a_mapping_file_that_is_no_toml_is_shown_with_its_line() {
    let saved = saved(true);
    let file = saved.beside("map.toml");
    std::fs::write(&file, "# text\ngarbage = \u{1b}[2J\n").unwrap();
    let args = ["convert", &saved.url, &saved.beside("x"), "--map", &file];
    let ran = run_raw(&args);
    let plain = anstream::adapter::strip_str(&ran.err).to_string();
    let first = format!("error: {file}: the map can't be read: TOML parse error at line 2");
    assert!(ran.code == 2 && plain.starts_with(&first), "{plain}");
    let lines: Vec<&str> = plain.lines().collect();
    assert!(
        lines.contains(&"  2 | garbage = \\u{1b}[2J") && !plain.contains("\\n"),
        "{plain}"
    );
    // What is quoted is no line of the program.
    let own = lines.iter().filter(|l| !l.starts_with("  ")).count();
    assert!(
        own == 2 && lines.last().unwrap().starts_with("hint: "),
        "{plain}"
    );
    assert!(!ran.err.contains("\u{1b}[2J"), "{:?}", ran.err);

    // Other mistakes name the file, too, and are one line.
    std::fs::write(&file, "[[rule]]\n\"ke\\nep\" = 'a'\n").unwrap();
    let ran = run(&args);
    let first = format!("error: {file}: rule 1: ");
    assert!(
        ran.err.starts_with(&first) && ran.err.lines().count() == 2,
        "{}",
        ran.err
    );
    let ran = run(&[&args[..4], &["hf-llama", "--set", "heads=0"]].concat());
    assert!(ran.err.contains("\nerror: hf-llama: "), "{}", ran.err);
    let ran = run(&["diff", &saved.url, &saved.url, "--map", &file]);
    assert!(ran.err.starts_with(&first), "{}", ran.err);
}

#[test]
fn a_vocabulary_that_nobody_names_is_asked_for() {
    let saved = saved(false);
    let to = saved.beside("hf");
    let args = ["convert", &saved.url, &to, "--map", "hf-llama"];
    let set = ["layers=1", "hidden=4", "heads=4", "query_groups=2"];
    let set: Vec<&str> = set.iter().flat_map(|s| ["--set", s]).collect();
    let args = [&args[..], &set].concat();
    let ran = run(&args);
    assert!(
        ran.err.contains("neither `padded_vocab` (")
            && ran.err.contains("nor `vocab` (")
            && ran.err.contains("is known; give one of them"),
        "{}",
        ran.err
    );
    for one in ["vocab=8", "padded_vocab=8"] {
        let ran = run(&[&args[..], &["--set", one, "--overwrite"]].concat());
        assert_eq!(ran.code, 0, "{one}: {}", ran.err);
    }
}

/// Tensors of which `hf-llama` knows nothing, under the names of either side.
const UNKNOWN: [(&str, &[u64]); 4] = [
    ("mtp.layers.0.eh_proj.weight", &[4, 8]),
    ("value_head.weight", &[1, 4]),
    ("decoder.layers.mlp.linear_fc3.bias", &[1, 6]),
    ("model.layers.0.mlp.extra", &[2]),
];

#[test]
fn tensors_that_a_shipped_map_does_not_know_are_refused_by_name() {
    let (keys, to) = (UNKNOWN.map(|(key, _)| key), "hf-llama");
    let more = [&UNKNOWN[..], &[("optimizer.state.exp_avg.w", &[4])]].concat();
    let saved = saved_with(true, &more);
    let dst = saved.beside("dst");
    let args = ["convert", &saved.url, &dst, "--map", to];
    let ran = run(&args);
    assert_eq!(ran.code, 2, "{}", ran.err);
    let named = |text: &str| keys.iter().all(|key| text.contains(key));
    assert!(
        named(&ran.err) && ran.err.contains("--unmapped keep|drop"),
        "{}",
        ran.err
    );
    assert!(!ran.err.contains("optimizer.state"), "{}", ran.err);
    assert!(!std::path::Path::new(&dst).exists());
    // `diff` compares by the same map.
    let ran = run(&["diff", &saved.url, &saved.url, "--map", to]);
    assert!(ran.code == 2 && named(&ran.err), "{}", ran.err);

    // They stay as they are stored, although rules that prepare match one of them.
    let ran = run(&[&args[..], &["--unmapped", "keep"]].concat());
    assert!(ran.code == 0 && named(&ran.err), "{}", ran.err);
    let listed = run(&["ls", &dst]).out;
    assert!(
        named(&listed) && listed.contains("model.norm.weight"),
        "{listed}"
    );
    assert!(!listed.contains("optimizer"), "{listed}");
    let ran = run(&[&args[..], &["--unmapped", "drop", "--overwrite"]].concat());
    assert!(
        ran.code == 0 && named(&ran.err) && ran.err.contains("left out"),
        "{}",
        ran.err
    );
    let listed = run(&["ls", &dst]).out;
    assert!(!keys.iter().any(|key| listed.contains(key)), "{listed}");
    assert!(listed.contains("model.norm.weight"), "{listed}");
}

#[test]
fn a_mapping_file_keeps_what_it_does_not_know_and_says_so() {
    let saved = saved_with(true, &UNKNOWN);
    let (file, dst) = (saved.beside("map.toml"), saved.beside("dst"));
    let rules = "[[rule]]\nrename = 'decoder.final_layernorm.{p}'\nto = 'norm.{p}'\n";
    std::fs::write(&file, rules).unwrap();
    let args = ["convert", &saved.url, &dst, "--map", &file];
    let ran = run(&args);
    assert!(
        ran.code == 0 && ran.err.contains("keep their names") && ran.err.contains(UNKNOWN[0].0),
        "{}",
        ran.err
    );
    assert!(run(&["ls", &dst]).out.contains(UNKNOWN[0].0));
    std::fs::write(&file, format!("unmapped = 'refuse'\n{rules}")).unwrap();
    let ran = run(&[&args[..], &["--overwrite"]].concat());
    assert!(
        ran.code == 2 && ran.err.contains(UNKNOWN[0].0),
        "{}",
        ran.err
    );

    // A rule that would leave nothing.
    std::fs::write(&file, "[[rule]]\nkeep = 'model.norm{rest*}'\n").unwrap();
    for set in ["keep = 'nothing{rest*}'", "drop = '{any*}'"] {
        std::fs::write(&file, format!("[[rule]]\n{set}\n")).unwrap();
        let ran = run(&[&args[..], &["--overwrite"]].concat());
        assert_eq!(ran.code, 2, "{set}: {}", ran.err);
    }
    assert!(run(&["ls", &dst]).out.contains("norm.weight"));
}

#[test]
fn the_ledger_names_the_rule_that_leaves_out_a_tensor() {
    let saved = saved_with(true, &UNKNOWN);
    let (file, dst) = (saved.beside("map.toml"), saved.beside("dst"));
    let key = UNKNOWN[0].0;
    let norm = "decoder.final_layernorm.weight";
    let outcome = |rules: &str, of: &str, more: &[&str]| {
        std::fs::write(&file, rules).unwrap();
        let args = ["convert", &saved.url, &dst, "--map", &file, "--overwrite"];
        let ran = run(&[&args[..], &["--json"], more].concat());
        assert_eq!(ran.code, 0, "{}", ran.err);
        let report: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
        let mut entries = report["ledger"].as_array().unwrap().iter();
        let entry = entries.find(|entry| entry["name"] == of);
        let entry = entry.unwrap_or_else(|| panic!("{of} is not in the ledger"));
        assert_eq!(entry["outcome"], "left_out", "{entry}");
        entry["why"].as_str().unwrap().to_owned()
    };
    let first = "[[rule]]\nrename = 'decoder.final_layernorm.{p}'\nto = 'norm.{p}'\n";
    let drop = format!("{first}[[rule]]\ndrop = '{key}'\n");
    assert_eq!(
        outcome(&drop, key, &[]),
        "rule 2 of the map (drop) leaves it out"
    );
    let keep = "[[rule]]\nkeep = 'decoder.final_layernorm.{p}'\n";
    assert_eq!(
        outcome(keep, key, &[]),
        "rule 1 of the map (keep) leaves it out"
    );
    let unmapped = format!("unmapped = 'drop'\n{first}");
    let why = outcome(&unmapped, key, &[]);
    assert_eq!(
        why,
        "no rule of the map knows it, and unmapped tensors are dropped"
    );
    let more = ["--key", key];
    let why = outcome(first, norm, &more);
    assert_eq!(why, "none of its keys in the copy is chosen");
}

/// The parameters are not looked for before.
#[test]
fn a_map_that_does_not_fit_is_refused_before_its_parameters_are_asked_for() {
    let megatron = saved(true);
    let (hf, dst) = (megatron.beside("hf"), megatron.beside("dst"));
    let to = ["--to", "safetensors", "--drop-objects"];
    let args = ["convert", &megatron.url, &hf, "--map", "hf-llama"];
    assert_eq!(run(&[&args[..], &to].concat()).code, 0);
    let other = states::dcp();
    let inverse = "the other side of this map: use `--inverse`?";
    for (src, more, told) in [
        (&*hf, None, inverse),
        (&*megatron.url, Some("--inverse"), "leave out `--inverse`?"),
        (&*other.url, None, "none of the keys"),
        (&*other.url, Some("--inverse"), "none of the keys"),
    ] {
        for map in ["hf-llama", "hf-gpt-neox"] {
            let args = ["convert", src, &dst, "--map", map];
            let ran = run(&[&args[..], more.as_slice()].concat());
            assert_eq!(ran.code, 2, "{map} {src}: {}", ran.err);
            // Keys of a Llama are none of GPT-NeoX.
            let fits = map == "hf-llama" || src == megatron.url;
            assert!(!fits || ran.err.contains(told), "{map} {src}: {}", ran.err);
            assert!(!ran.err.contains("parameter"), "{map} {src}: {}", ran.err);
        }
    }
    assert!(!std::path::Path::new(&dst).exists());

    // Nothing says how Megatron pads the vocabulary.
    let mut args = vec!["convert", &hf, &dst, "--map", "hf-llama", "--inverse"];
    for set in [
        "layers=1",
        "hidden=4",
        "heads=4",
        "query_groups=2",
        "vocab=7",
    ] {
        args.extend(["--set", set]);
    }
    let ran = run(&args);
    assert!(
        ran.code == 2 && ran.err.contains("parameter `padded_vocab`"),
        "{}",
        ran.err
    );
}

/// Runs `tests/interop/python/models.py`.
fn python(python: &str, args: &[&str]) {
    let script = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/interop/python/models.py"
    );
    let out = std::process::Command::new(python)
        .args(["-W", "ignore", script])
        .args(args)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{args:?}: {text}");
}

/// Runs a conversion by a map, which succeeds.
fn mapped(from: &str, to: &str, map: &str, more: &[&str]) {
    let ran = run(&[&["convert", from, to, "--map", map], more].concat());
    assert_eq!(ran.code, 0, "{}", ran.err);
}

#[test]
#[ignore = "needs a Python with torch, transformers and megatron-core, which RESHARD_MODELS_PYTHON names"]
fn needs_python_megatron_and_transformers_compute_the_same_with_mapped_weights() {
    let with = std::env::var("RESHARD_MODELS_PYTHON").unwrap();
    let models = ["hf-mixtral", "hf-llama", "hf-gpt-neox"];
    for name in models.into_iter().step_by(one_in(models.len())) {
        let dir = tempfile::tempdir().unwrap();
        let path = |what: &str| dir.path().join(what).display().to_string();
        let logits = |what: &str| format!("{}.logits.npy", path(what));
        let load = |what: &str, from: &str, of: &str| {
            python(&with, &[what, name, from, "--logits", &logits(of)]);
        };
        let mut back = vec!["--inverse", "--dialect", "megatron"];
        back.extend(["--set", "padded_vocab=64", "--set", "local_layers=1"]);

        // Parameters come from `args` in common state. Several files with an index are what transformers loads of larger models.
        python(&with, &["megatron-save", name, &path("megatron")]);
        let files = ["--to", "safetensors", "--max-shard-size", "20kB"];
        let to_hf = [&files[..], &["--drop-objects"]].concat();
        mapped(&path("megatron"), &path("to-hf"), name, &to_hf);
        let written = std::fs::read_dir(path("to-hf")).unwrap();
        let names = written.map(|f| f.unwrap().file_name().into_string().unwrap());
        let (indexes, weights): (Vec<String>, Vec<String>) = names
            .filter(|name| name.starts_with("model"))
            .partition(|name| name == "model.safetensors.index.json");
        assert!(indexes.len() == 1 && weights.len() > 2, "{weights:?}");
        load("hf-load", &path("to-hf"), "megatron");

        // Back from that folder. Parameters come from `config.json`, which transformers has put there.
        mapped(&path("to-hf"), &path("again/release"), name, &back);
        load("megatron-load", &path("again"), "megatron");

        // And from a checkpoint of transformers' state dict by DCP.
        python(&with, &["hf-save", name, &path("hf")]);
        mapped(&path("hf"), &path("to-megatron/iter_0000000"), name, &back);
        load("megatron-load", &path("to-megatron"), "hf");
    }
}

#[test]
fn the_losses_of_casts_in_a_map_are_counted() {
    let mut state = StateDict::new();
    let floats = Tensor::from_vec(&[3], vec![1e30f32, 1.0, 1e-30]).unwrap();
    let ints = Tensor::from_vec(&[3], vec![300i64, -129, 5]).unwrap();
    state.insert("floats", ShardedTensor::full("floats", floats));
    state.insert("ints", ShardedTensor::full("ints", ints));
    let saved = states::save(&[state], Dialect::TensorsOnly);
    let map = saved.beside("map.toml");
    let rule = |key: &str, to: &str| format!("[[rule]]\ncast = \"{key}\"\nto = \"{to}\"\n");
    std::fs::write(&map, rule("floats", "float16") + &rule("ints", "int8")).unwrap();
    let args = [
        "convert",
        &saved.url,
        &saved.beside("to"),
        "--map",
        &map,
        "--json",
    ];
    let ran = run(&args);
    assert!(
        ran.code == 0 && ran.err.contains("ints: of 3 elements 2 were too large"),
        "{}",
        ran.err
    );
    let j: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    let counts = |i: usize| {
        ["key", "overflowed", "underflowed", "inexact"].map(|name| j["casts"][i][name].to_string())
    };
    assert_eq!(counts(0), ["\"floats\"", "1", "1", "2"], "{j}");
    assert_eq!(counts(1), ["\"ints\"", "2", "0", "2"], "{j}");
}

#[test]
fn a_parameter_that_contradicts_the_checkpoint_is_noted() {
    let saved = saved(true);
    let args = [
        "convert",
        &saved.url,
        &saved.beside("to"),
        "--map",
        "hf-llama",
        "--drop-objects",
    ];
    let set = |value| run(&[&args[..], &["--set", value, "--overwrite"]].concat()).err;
    let note = "--set vocab=6 is used, and the checkpoint says 7";
    assert!(set("vocab=6").contains(note));
    // Each has one value.
    let twice = run(&[&args[..], &["--set", "vocab=6", "--set", "vocab=7"]].concat());
    let what = "--set gives vocab twice: 6 and 7";
    assert!(twice.code == 2 && twice.err.contains(what), "{}", twice.err);
    assert!(!set("vocab=7").contains("the checkpoint says"));
}

#[test]
fn patterns_are_about_the_keys_that_a_map_makes() {
    let saved = saved(true);
    let to = saved.beside("to");
    let ran = run(&[
        "convert", &saved.url, &to, "--map", "hf-llama", "--key", "decoder*",
    ]);
    let what = "no key that the map makes of";
    assert!(ran.code == 2 && ran.err.contains(what), "{}", ran.err);
}

#[test]
fn all_parameters_that_are_missing_are_named() {
    let saved = saved(false);
    let ran = run(&[
        "convert",
        &saved.url,
        &saved.beside("to"),
        "--map",
        "hf-llama",
    ]);
    let what = "the map also needs `hidden`";
    assert!(ran.code == 2 && ran.err.contains(what), "{}", ran.err);
}

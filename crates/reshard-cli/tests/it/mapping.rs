//! `--map` of `reshard convert` and `reshard diff`.

use crate::{
    run,
    states::{self, Saved},
};
use reshard::{Dialect, ShardedTensor, StateDict, Tensor, Value};

/// A layer of Megatron's: four heads of one row, in two groups.
fn saved(args: bool) -> Saved {
    let mut state = StateDict::new();
    let mut next = 0u8;
    for (key, shape) in [
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
    ] {
        let count: u64 = shape.iter().product();
        let numbers = (0..count).map(|_| {
            next = next.wrapping_add(1);
            f32::from(next)
        });
        let tensor = Tensor::from_vec(shape, numbers.collect()).unwrap();
        state.insert(key, ShardedTensor::full(key, tensor));
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
    let ran = run(&["diff", &saved.url, &back, "--key", "decoder.*"]);
    assert_eq!(ran.code, 0, "{}", ran.out);
    assert_eq!(run(&["diff", &saved.url, &back]).code, 1);
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

#[test]
#[ignore = "needs a Python with torch, transformers and megatron-core, which RESHARD_MODELS_PYTHON names"]
fn needs_python_megatron_and_transformers_compute_the_same_with_mapped_weights() {
    let with = std::env::var("RESHARD_MODELS_PYTHON").unwrap();
    for name in ["hf-llama", "hf-gpt-neox", "hf-mixtral"] {
        let dir = tempfile::tempdir().unwrap();
        let path = |what: &str| dir.path().join(what).display().to_string();
        let logits = |what: &str| format!("{}.logits.npy", path(what));

        // Parameters come from `args` in common state.
        python(&with, &["megatron-save", name, &path("megatron")]);
        let ran = run(&["convert", &path("megatron"), &path("to-hf"), "--map", name]);
        assert_eq!(ran.code, 0, "{}", ran.err);
        let args = [
            "hf-load",
            name,
            &path("to-hf"),
            "--logits",
            &logits("megatron"),
        ];
        python(&with, &args);

        // And here from `config.json`.
        python(&with, &["hf-save", name, &path("hf")]);
        let mut args = vec!["convert".to_owned(), path("hf"), path("to-megatron")];
        args.extend(["--map", name, "--inverse", "--set", "padded_vocab=64"].map(String::from));
        if name == "hf-mixtral" {
            args.extend(["--set", "local_layers=1"].map(String::from));
        }
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let ran = run(&args);
        assert_eq!(ran.code, 0, "{}", ran.err);
        let args = [
            "megatron-load",
            name,
            &path("to-megatron"),
            "--logits",
            &logits("hf"),
        ];
        python(&with, &args);
    }
}

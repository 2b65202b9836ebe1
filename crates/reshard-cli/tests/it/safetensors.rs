//! safetensors, by the commands of the program.

use crate::{run, states::Saved};
use reshard::{DType, Dialect, StateDict, Tensor, Value, blocking, safetensors::SafetensorsConfig};

/// A folder with a quantised tensor, and another one.
fn saved() -> (tempfile::TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    let url = dir.path().join("model").display().to_string();
    let mut state = StateDict::new();
    state.insert(
        "e_blocks",
        Tensor::from_vec(&[2, 1, 4], vec![0x21u8; 8]).unwrap(),
    );
    state.insert(
        "e_scales",
        Tensor::from_vec(&[2, 1], vec![127u8; 2]).unwrap(),
    );
    state.insert("norm", Tensor::from_vec(&[3], vec![1f32, 2., 3.]).unwrap());
    let save = reshard::save(&state, &url)
        .dialect(Dialect::TensorsOnly)
        .strategy(SafetensorsConfig::default());
    blocking::run(save).unwrap();
    (dir, url)
}

#[test]
fn a_folder_and_its_file_are_listed_and_verified() {
    let (_dir, url) = saved();
    let file = format!("{url}/model.safetensors");
    for place in [&url, &file] {
        let ran = run(&["ls", place]).ok();
        assert!(ran.contains("e_blocks") && ran.contains("norm"), "{ran}");
        assert_eq!(run(&["verify", place]).code, 0);
    }
    let digest = |place: &str| run(&["digest", place]).ok();
    assert_eq!(digest(&url), digest(&file));
}

#[test]
fn quantised_tensors_are_read_as_numbers_if_asked_to() {
    let (_dir, url) = saved();
    let listed = run(&["inspect", &url, "--dequantize"]).ok();
    assert!(
        listed.contains("float32") && !listed.contains("e_scales"),
        "{listed}"
    );
    assert!(!listed.contains("uint8"), "{listed}");
    let listed = run(&["inspect", &url, "--dequantize=bfloat16"]).ok();
    assert!(listed.contains("bfloat16"), "{listed}");
    assert_eq!(
        run(&["ls", &url, "--dequantize=float16"]).code,
        2,
        "numbers would become infinite"
    );
}

#[test]
fn what_is_dequantised_is_compared_with_a_checkpoint_of_another_format() {
    let (dir, url) = saved();
    let beside = |name: &str| dir.path().join(name).display().to_string();
    let (dense, as_stored) = (beside("dense"), beside("as-stored"));
    let ran = run(&[
        "convert",
        &url,
        &dense,
        "--to",
        "torch_dist",
        "--dequantize",
    ]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let exact = beside("exact");
    let ran = run(&["convert", &url, &exact, "--dequantize", "--lossless"]);
    assert!(
        ran.code != 0 && ran.err.contains("dequantised"),
        "{}",
        ran.err
    );
    for [a, b] in [[&url, &dense], [&dense, &url]] {
        let ran = run(&["diff", a, b, "--dequantize"]);
        assert_eq!(ran.code, 0, "{} {}", ran.out, ran.err);
        assert_eq!(run(&["diff", a, b]).code, 1, "other keys and types");
    }
    let ran = run(&["convert", &url, &as_stored, "--to", "torch_dist"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert_eq!(run(&["diff", &url, &as_stored, "--dequantize"]).code, 1);
    let ran = run(&["diff", &dense, &as_stored, "--dequantize"]);
    assert_eq!(ran.code, 2);
    assert!(
        ran.err.contains("neither") && ran.err.contains("leave out --dequantize"),
        "{}",
        ran.err
    );
}

/// A folder with a weight of this type under its key, a scale if it has one, and a `config.json`.
fn weight(key: &str, dtype: DType, scale: Option<&str>, config: &str) -> Saved {
    let saved = Saved::made(|url| {
        let mut state = StateDict::new();
        let bytes = vec![0x38; 24 * dtype.size() as usize];
        state.insert(key, Tensor::new(dtype, &[4, 6], bytes).unwrap());
        if let Some(scale) = scale {
            state.insert(scale, Tensor::from_vec(&[4, 1], vec![2f32; 4]).unwrap());
        }
        let save = reshard::save(&state, url)
            .dialect(Dialect::TensorsOnly)
            .strategy(SafetensorsConfig::default());
        blocking::run(save).unwrap();
    });
    std::fs::write(saved.path("config.json"), config).unwrap();
    saved
}

#[test]
fn quantised_weights_are_neither_cast_nor_left_as_they_are() {
    let fp8 = r#"{"quantization_config": {"quant_method": "fp8"}}"#;
    let float8 = DType::Float8E4M3Fn;
    for (key, dtype, scale, config, is_cast, found) in [
        (
            "m.weight",
            float8,
            Some("m.weight_scale"),
            "{}",
            true,
            "m.weight_scale",
        ),
        (
            "m.weight",
            float8,
            Some("m.weight_scale_inv"),
            "{}",
            true,
            "m.weight_scale_inv",
        ),
        ("m.weight", float8, None, fp8, true, "quantization_config"),
        ("m.weight", DType::Int8, Some("m.SCB"), fp8, false, "m.SCB"),
        (
            "m.qweight",
            DType::Int32,
            Some("m.scales"),
            fp8,
            false,
            "m.scales",
        ),
    ] {
        let saved = weight(key, dtype, scale, config);
        let (dst, stored) = (saved.beside("dst"), saved.beside("stored"));
        let args = ["convert", &saved.url, &dst, "--to", "safetensors"];
        if is_cast {
            let ran = run(&[&args[..], &["--dtype", "bf16"]].concat());
            assert_eq!(ran.code, 2, "{key} {found}: {}", ran.err);
            assert!(
                ran.err.contains(found) && ran.err.contains("--dequantize"),
                "{}",
                ran.err
            );
        }
        // Blocks of 128 rows and columns have one scale, and this has four.
        let ran = run(&[&args[..], &["--dequantize"]].concat());
        assert_eq!(ran.code, 2, "{key} {found}: {}", ran.err);
        assert!(
            ran.err.contains(scale.unwrap_or(found)) || ran.err.contains("scales"),
            "{}",
            ran.err
        );
        assert!(!std::path::Path::new(&dst).exists());
        let ran = run(&["diff", &saved.url, &saved.url, "--dequantize"]);
        assert_eq!(ran.code, 2, "{key} {found}: {} {}", ran.out, ran.err);

        // A copy has the keys, in whatever format.
        let ran = run(&["convert", &saved.url, &stored, "--to", "torch_dist"]);
        assert_eq!(ran.code, 0, "{}", ran.err);
        if scale.is_some() && is_cast {
            let ran = run(&["convert", &stored, &dst, "--dtype", "bf16"]);
            assert!(ran.code == 2 && ran.err.contains(found), "{}", ran.err);
        }
    }
    // Without a scale and a configuration, float8 is a type like any other.
    let saved = weight("m.weight", float8, None, "{}");
    let args = [
        "convert",
        &saved.url,
        &saved.beside("dst"),
        "--dtype",
        "bf16",
    ];
    let ran = run(&args);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let ran = run(&["inspect", &saved.url, "--dequantize"]);
    assert!(
        ran.code == 2 && ran.err.contains("no effect"),
        "{}",
        ran.err
    );
}

#[test]
fn a_map_does_not_cast_a_quantised_weight() {
    let saved = weight(
        "m.weight",
        DType::Float8E4M3Fn,
        Some("m.weight_scale"),
        "{}",
    );
    let (map, dst) = (saved.beside("map.toml"), saved.beside("dst"));
    for (which, code) in [("m.weight", 2), ("m.weight_scale", 0)] {
        let rule = format!("[[rule]]\ncast = '{which}'\nto = 'bfloat16'\n");
        std::fs::write(&map, rule).unwrap();
        let ran = run(&["convert", &saved.url, &dst, "--map", &map]);
        assert_eq!(ran.code, code, "{which}: {}", ran.err);
        assert_eq!(
            ran.err.contains("its scale is in m.weight_scale"),
            code == 2
        );
        assert_eq!(std::path::Path::new(&dst).exists(), code == 0);
    }
}

#[test]
fn objects_are_kept_beside_the_tensors_if_asked_to() {
    for source in [crate::states::dcp(), crate::states::megatron()] {
        let (there, back) = (source.beside("there"), source.beside("back"));
        let to = ["convert", &source.url, &there, "--to", "safetensors"];
        let ran = run(&to);
        assert_eq!(ran.code, 2, "{}", ran.err);
        assert!(ran.err.contains("--keep-objects"), "{}", ran.err);
        let ran = run(&[&to[..], &["--keep-objects", "--ranks", "2"]].concat());
        assert_eq!((ran.code, &*ran.err), (0, ""));
        assert!(
            std::path::Path::new(&there)
                .join("reshard-safetensors.objects")
                .is_file()
        );
        run(&["verify", &there]).ok();
        let listed = run(&["ls", &there]).ok();
        run(&["convert", &there, &back, "--to", "torch_dist"]).ok();
        assert_eq!(run(&["ls", &back]).ok(), listed);
        let digest = |url: &str| run(&["digest", url]).ok();
        assert_eq!(digest(&there), digest(&back));
        run(&["diff", &there, &back]).ok();
    }
    // A format that has a place for objects keeps them anyway, and one file has none.
    let source = crate::states::dcp();
    let ran = run(&[
        "convert",
        &source.url,
        &source.beside("dist"),
        "--keep-objects",
    ]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let file = source.beside("model.safetensors");
    let ran = run(&["convert", &source.url, &file, "--keep-objects"]);
    assert_eq!(ran.code, 2, "{}", ran.err);
    let both = [
        "convert",
        &source.url,
        &file,
        "--keep-objects",
        "--drop-objects",
    ];
    assert_eq!(run(&both).code, 0);
    let ran = run(&[
        "convert",
        &source.url,
        &source.beside("z"),
        "--to",
        "zarr3",
        "--keep-objects",
    ]);
    assert!(
        ran.code == 2 && ran.err.contains("keep_objects"),
        "{}",
        ran.err
    );
}

#[test]
fn files_of_torch_save_by_a_policy_drop_what_they_have_no_place_for() {
    let source = crate::states::dcp();
    let to = source.beside("bin");
    let convert = [
        "convert",
        &source.url,
        &to,
        "--to",
        "torch_save",
        "--max-shard-size",
        "1kB",
    ];
    let ran = run(&convert);
    assert_eq!(ran.code, 2);
    assert!(
        ran.err.contains("no place for") && ran.err.contains("optim.lr"),
        "{}",
        ran.err
    );
    let ran = run(&[&convert[..], &["--drop-objects"]].concat());
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(ran.err.contains("optim.lr was left out"), "{}", ran.err);
    assert!(
        std::path::Path::new(&to)
            .join("pytorch_model.bin.index.json")
            .is_file()
    );
    run(&["verify", &to]).ok();
    let listed = run(&["ls", &to]).ok();
    assert!(
        listed.contains("model.weight") && !listed.contains("optim.lr"),
        "{listed}"
    );
}

#[test]
fn what_has_no_place_is_told_with_what_would_help() {
    let source = crate::states::dcp();
    let of_type = |dtype: DType| {
        let mut state = StateDict::new();
        let bytes = vec![0u8; 2 * dtype.size() as usize];
        state.insert("w", Value::Tensor(Tensor::new(dtype, &[2], bytes).unwrap()));
        crate::states::save(&[state], Dialect::Dcp)
    };
    let hint = |source: &Saved, name: &str, more: &[&str]| {
        let to = source.beside(name);
        let ran = run(&[&["convert", &source.url, &to][..], more].concat());
        assert!(
            ran.code == 2 && ran.err.contains("has no place for"),
            "{}",
            ran.err
        );
        ran.err.lines().last().unwrap().to_owned()
    };
    let keeps = "--keep-objects keeps";
    let told = hint(&source, "to", &["--to", "safetensors"]);
    assert!(
        told.contains(keeps) && told.contains("--drop-objects"),
        "{told}"
    );
    for told in [
        // It is asked for already, and a file has no place beside it.
        hint(&source, "to.safetensors", &["--keep-objects"]),
        // It keeps no tensors.
        hint(&of_type(DType::Complex128), "to", &["--to", "safetensors"]),
        // Others don't have it.
        hint(&of_type(DType::Float4E2M1FnX2), "to", &["--to", "zarr3"]),
        hint(&source, "to", &["--to", "zarr"]),
    ] {
        assert!(
            !told.contains(keeps) && told.contains("--drop-objects"),
            "{told}"
        );
        assert!(told.contains("torch_dist has a place for all"), "{told}");
    }
}

#[test]
fn a_damaged_description_does_not_permit_a_cast() {
    let saved = weight("m.weight", DType::Float8E4M3Fn, None, "{");
    let dst = saved.beside("dst");
    let args = [
        "convert",
        &saved.url,
        &dst,
        "--to",
        "safetensors",
        "--dtype",
        "bf16",
    ];
    let ran = run(&args);
    assert!(
        ran.code == 2 && ran.err.contains("config.json is no JSON"),
        "{}",
        ran.err
    );
}

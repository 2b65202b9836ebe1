//! Dry runs of conversions: their reports, and the checks that they make.

use crate::{run, states};
use reshard::{DType, Dialect, StateDict, Tensor};
use serde_json::{Value, json};
use std::path::Path;

/// The fields that a conversion and its dry run have to agree on.
const PLANNED: [&str; 8] = [
    "src", "dst", "ranks", "tensors", "objects", "files", "pieces", "bytes",
];

fn planned(report: &Value) -> Vec<&Value> {
    PLANNED.iter().map(|field| &report[field]).collect()
}

#[test]
fn a_dry_run_reports_what_the_conversion_then_writes() {
    let saved = states::dcp();
    for options in [
        &["--to", "torch_dist", "--ranks", "3"][..],
        &[
            "--to",
            "torch_dist",
            "--ranks",
            "2",
            "--max-shard-size",
            "2kB",
        ],
        &["--to", "safetensors", "--drop-objects"],
        &["--to", "tensor_bundle", "--ranks", "2"],
        &["--to", "torch_save"],
        &["--to", "zarr3", "--keep-objects"],
    ] {
        let to = saved.beside("to");
        let args = [&["convert", &saved.url, &to, "--json"], options].concat();
        let dry = run(&[&args[..], &["--dry-run"]].concat());
        assert!(!Path::new(&to).exists(), "{options:?}");
        let real = run(&args);
        assert_eq!(dry.code, real.code, "{options:?}: {}{}", dry.err, real.err);
        if real.code != 0 {
            assert_eq!(dry.err, real.err);
            continue;
        }
        let [dry, real] = [&dry, &real].map(|ran| serde_json::from_str(&ran.out).unwrap());
        assert_eq!(planned(&dry), planned(&real), "{options:?}");
        assert_eq!(dry["dropped"], real["dropped"], "{options:?}");
        assert_eq!(
            (&dry["dry_run"], &real["dry_run"]),
            (&json!(true), &Value::Null)
        );
        assert_eq!(dry["unmade_checks"], json!(["the checksums of tensors"]));
        let path = Path::new(&to);
        let removed = match path.is_dir() {
            true => std::fs::remove_dir_all(path),
            false => std::fs::remove_file(path),
        };
        drop(removed);
    }
}

#[test]
fn a_dry_run_makes_the_checks_that_need_no_data_and_lists_the_others() {
    let saved = states::dcp();
    let to = saved.beside("to");
    let convert = |more: &[&str]| run(&[&["convert", &saved.url, &to, "--dry-run"], more].concat());

    // Refused by the destination, as without --dry-run.
    run(&["convert", &saved.url, &to]).ok();
    let refused = convert(&[]);
    let real = run(&["convert", &saved.url, &to]);
    assert_eq!((refused.code, refused.err), (real.code, real.err));
    assert_ne!(real.code, 0);

    let text = convert(&["--overwrite", "--dtype", "bf16"]).ok();
    assert!(
        text.contains("would convert to")
            && text.contains("would write")
            && text.contains("1 rank"),
        "{text}"
    );
    for check in [
        "the checksums of tensors",
        "the range and precision that casts lose",
        "whether the file system can exchange",
    ] {
        assert!(text.contains(check), "{check}: {text}");
    }
    let unverified = convert(&["--overwrite", "--no-verify"]).ok();
    assert!(!unverified.contains("checksums"), "{unverified}");
}

#[test]
fn a_key_that_is_too_long_for_a_file_name_fails_in_a_dry_run_too() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let mut state = StateDict::new();
    let tensor = Tensor::from_vec(&[3], vec![1f32; 3]).unwrap();
    state.insert("k".repeat(300).as_str(), tensor);
    let src = path("src.pt");
    let save = reshard::save(&state, &src).dialect(Dialect::Dcp);
    reshard::blocking::run(save).unwrap();
    for format in ["zarr", "zarr3"] {
        let dst = path(format);
        let convert = ["convert", &src, &dst, "--to", format];
        let dry = run(&[&convert[..], &["--dry-run"]].concat());
        assert!(
            dry.code == 2 && dry.err.contains("300 bytes"),
            "{}",
            dry.err
        );
        assert_eq!(run(&convert).code, 2, "{format}");
    }
}

/// What a conversion refuses before it reads elements, its dry run refuses in the same words.
#[test]
fn a_dry_run_refuses_what_the_conversion_refuses() {
    let lossy = states::dcp();
    let cut = states::dcp();
    let file = cut.path("__0_0.distcp");
    let bytes = std::fs::read(&file).unwrap();
    std::fs::write(&file, &bytes[..bytes.len() / 2]).unwrap();
    let mut state = StateDict::new();
    let elements = Tensor::new(DType::Float8E4M3Fn, &[4], vec![0x38; 4]).unwrap();
    state.insert("m.weight", elements);
    let scale = Tensor::from_vec(&[1], vec![2f32]).unwrap();
    state.insert("m.weight_scale", scale);
    let quantised = states::save(&[state], Dialect::Dcp);
    let drops = ["--to", "safetensors", "--drop-objects", "--lossless"];
    for (saved, options, code, told) in [
        (&lossy, &drops[..], 2, "optim.lr"),
        (&cut, &[], 1, "__0_0.distcp"),
        (&quantised, &["--dtype", "bf16"], 2, "m.weight_scale"),
    ] {
        let to = saved.beside("to");
        let args = [&["convert", &saved.url, &to], options].concat();
        let dry = run(&[&args[..], &["--dry-run"]].concat());
        let real = run(&args);
        assert_eq!((dry.code, &dry.err), (real.code, &real.err));
        assert_eq!(real.code, code, "{}", real.err);
        assert!(real.err.contains(told), "{told}: {}", real.err);
    }
}

#[test]
fn a_dry_run_names_what_would_be_left_out() {
    let saved = states::dcp();
    let to = saved.beside("to");
    let args = [
        "convert",
        &saved.url,
        &to,
        "--to",
        "safetensors",
        "--drop-objects",
    ];
    let dry = run(&[&args[..], &["--dry-run"]].concat());
    let (left_out, why) = ("optim.lr would be left out", "has no place for objects");
    assert!(dry.code == 0 && dry.err.contains(left_out), "{}", dry.err);
    assert!(dry.out.contains(why), "{}", dry.out);
    let real = run(&args);
    assert_eq!(real.err, dry.err.replace(" would be ", " was "));
}

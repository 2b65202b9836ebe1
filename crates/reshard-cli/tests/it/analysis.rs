//! `reshard diff` and `reshard stats`.

use crate::{
    run,
    states::{self, Saved},
};
use reshard::{ShardedTensor, StateDict, Tensor, Value};
use serde_json::json;

fn saved(tensors: &[(&str, Tensor)], more: &[(&str, Value)]) -> Saved {
    let mut state = StateDict::new();
    for (key, tensor) in tensors {
        state.insert(*key, ShardedTensor::full(key, tensor.clone()));
    }
    for (key, value) in more {
        state.insert(*key, value.clone());
    }
    states::save(&[state], reshard::Dialect::Megatron)
}

fn floats(shape: &[u64], of: &[f32]) -> Tensor {
    Tensor::from_vec(shape, of.to_vec()).unwrap()
}

#[test]
fn equal_checkpoints_are_equal_in_any_formats_and_cuts() {
    for saved in [states::megatron(), states::dcp()] {
        let to = saved.beside("to");
        assert_eq!(run(&["convert", &saved.url, &to, "--ranks", "3"]).code, 0);
        let ran = run(&["diff", &saved.url, &to]);
        assert!(ran.out.starts_with("equal  "), "{} {}", ran.out, ran.err);
        assert_eq!((ran.code, ran.err.as_str()), (0, ""));
        let j = run(&["diff", &saved.url, &to, "--json"]).json();
        assert_eq!((&j["schema"], &j["equal"]), (&json!(1), &json!(true)));
    }
    let saved = states::megatron();
    let to = saved.beside("zarr");
    assert_eq!(run(&["convert", &saved.url, &to, "--to", "zarr"]).code, 0);
    assert_eq!(run(&["diff", &saved.url, &to]).code, 0);
    // Its newest version is not the first one.
    let to = saved.beside("bundle");
    let ran = run(&[
        "convert",
        &saved.url,
        &to,
        "--to",
        "tensor_bundle",
        "--drop-objects",
        "--json",
    ]);
    let j: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(
        (ran.code, &j["format"]),
        (0, &json!("tensor_bundle/2")),
        "{}",
        ran.err
    );
    let nobodys = run(&[
        "convert",
        &saved.url,
        &saved.beside("no"),
        "--to",
        "nobodys",
    ]);
    assert!(
        nobodys.code == 2 && nobodys.err.contains("reshard plugins"),
        "{}",
        nobodys.err
    );
}

#[test]
fn the_last_line_says_what_was_compared() {
    let saved = states::dcp();
    let to = saved.beside("to");
    run(&["convert", &saved.url, &to]).ok();
    assert_eq!(
        run(&["diff", &saved.url, &to]).ok(),
        "equal  2 tensors, 2 objects compared\n"
    );
    let j = run(&["diff", &saved.url, &to, "--json"]).json();
    let want = json!({ "tensors": 2, "objects": 2, "common": 0, "metadata": 0 });
    assert_eq!(j["compared"], want);

    let one = || [("w", floats(&[1], &[1.0]))];
    let a = saved_with(&one(), 7);
    let b = saved_with(&one(), 8);
    assert_eq!(
        run(&["diff", &a.url, &a.url]).ok(),
        "equal  1 tensor, common state compared\n"
    );
    let ran = run(&["diff", &a.url, &b.url]);
    let last = "\ndifferent  0 of 1 tensor, 1 path of common state differ\n";
    assert!(ran.code == 1 && ran.out.ends_with(last), "{}", ran.out);
    let ran = run(&["diff", &a.url, &b.url, "--json"]);
    let j: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    let want = json!({ "tensors": 1, "objects": 0, "common": 2, "metadata": 0 });
    assert_eq!((ran.code, &j["compared"]), (1, &want));
    // What was not chosen was not compared.
    let ran = run(&["diff", &a.url, &b.url, "--key", "w"]);
    assert_eq!(ran.ok(), "equal  1 tensor compared\n");

    let others = states::dcp_with(&["b"]);
    let ran = run(&["diff", &saved.url, &others.url]);
    let last = "\ndifferent  0 of 2 tensors, 1 of 2 objects differ\n";
    assert!(ran.code == 1 && ran.out.ends_with(last), "{}", ran.out);
}

fn saved_with(tensors: &[(&str, Tensor)], step: i64) -> Saved {
    saved(tensors, &[("step", step.into()), ("same", Value::from(1))])
}

#[test]
fn what_differs_is_told_with_its_size_and_its_first_place() {
    let more = [("step", Value::from(7))];
    let a = saved(
        &[
            ("same", floats(&[2], &[1.0, f32::NAN])),
            ("w", floats(&[2, 2], &[1.0, 2.0, 3.0, 4.0])),
            ("shape", floats(&[2], &[1.0, 2.0])),
            ("gone", floats(&[1], &[1.0])),
        ],
        &more,
    );
    let b = saved(
        &[
            ("same", floats(&[2], &[1.0, f32::NAN])),
            ("w", floats(&[2, 2], &[1.0, 2.0, 3.0, 4.5])),
            ("shape", floats(&[2, 1], &[1.0, 2.0])),
            ("new", floats(&[1], &[1.0])),
        ],
        &[("step", Value::from(8))],
    );
    let ran = run(&["diff", &a.url, &b.url, "--json"]);
    assert_eq!((ran.code, ran.err.as_str()), (1, ""));
    let j: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(
        (
            &j["equal"],
            &j["only_first"],
            &j["only_second"],
            &j["common"]
        ),
        (
            &json!(false),
            &json!(["gone"]),
            &json!(["new"]),
            &json!(["step"])
        )
    );
    let of = |key: &str| {
        let all = j["tensors"].as_array().unwrap();
        all.iter().find(|t| t["key"] == key).unwrap().clone()
    };
    assert_eq!(of("same")["equal"], json!(true));
    assert_eq!(
        (&of("shape")["equal"], &of("shape")["diff"]),
        (&json!(false), &json!(null))
    );
    let w = &of("w")["diff"];
    assert_eq!(
        (&w["numbers"], &w["differ"], &w["max_abs"], &w["first"]),
        (&json!(4), &json!(1), &json!(0.5), &json!([1, 1]))
    );
    let relative = w["relative_norm"].as_f64().unwrap();
    assert!((relative - 0.5 / 30f64.sqrt()).abs() < 1e-12, "{relative}");
    let cosine = w["cosine"].as_f64().unwrap();
    let want = (14.0 + 18.0) / (30f64.sqrt() * (14.0 + 20.25f64).sqrt());
    assert!((cosine - want).abs() < 1e-12, "{cosine}");

    let text = run(&["diff", &a.url, &b.url]).out;
    for part in [
        "only in",
        "gone",
        "new",
        "step",
        "[1, 1]",
        "[2] | [2, 1]",
        "different  2 of 3 tensors, 1 path of common state differ; 1 key only in the first; 1 key only in the second",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("same"), "{text}");
    // A tolerance that is large enough, of what is chosen.
    for (more, code) in [
        (&["--tolerance", "0.5"][..], 0),
        (&["--tolerance", "0.4"], 1),
        (&["--relative", "0.12"], 0),
        (&["--relative", "0.11"], 1),
    ] {
        let args = [
            &["diff", &a.url, &b.url, "--key", "w", "--key", "same"][..],
            more,
        ]
        .concat();
        assert_eq!(run(&args).code, code, "{more:?}");
    }
    for wrong in ["-1", "nan", "inf", "x"] {
        assert_eq!(
            run(&["diff", &a.url, &b.url, &format!("--tolerance={wrong}")]).code,
            2,
            "{wrong}"
        );
    }
}

#[test]
fn another_element_type_is_a_difference_unless_it_does_not_matter() {
    let a = saved(&[("w", floats(&[3], &[1.0, 0.5, 3.0]))], &[]);
    let to = a.beside("bf16");
    let j = run(&["convert", &a.url, &to, "--dtype", "bf16", "--json"]).json();
    assert_eq!(
        j["casts"],
        json!([{"key": "w", "from": "float32", "to": "bfloat16", "elements": 3, "overflowed": 0, "underflowed": 0, "inexact": 0}])
    );
    assert_eq!(run(&["diff", &a.url, &to]).code, 1);
    assert_eq!(run(&["diff", &a.url, &to, "--any-dtype"]).code, 0);
}

#[test]
fn what_can_not_be_compared_is_no_difference() {
    let a = saved(&[("w", floats(&[1], &[1.0]))], &[]);
    let ran = run(&["diff", &a.url, &a.beside("nothing")]);
    assert_eq!(ran.code, 3, "{}", ran.err);
    let b = saved(&[("w", floats(&[1], &[1.0]))], &[]);
    std::fs::write(b.path(".metadata"), "damaged").unwrap();
    let ran = run(&["diff", &a.url, &b.url]);
    assert!(ran.code == 2 && ran.err.contains("error"), "{}", ran.err);
}

#[test]
fn numbers_of_each_tensor_are_shown_and_suspicious_ones_flagged() {
    let tiny = f32::from_bits(1);
    let a = saved(
        &[
            ("bad", floats(&[4], &[f32::NAN, f32::INFINITY, -2.0, 1.0])),
            ("dead", floats(&[3, 2], &[1.0, 2.0, 0.0, 0.0, 3.0, -4.0])),
            ("empty", floats(&[0, 3], &[])),
            ("fine", floats(&[2, 2], &[3.0, -4.0, 0.0, 1.0])),
            ("small", floats(&[2], &[tiny, 1.0])),
            ("zero", floats(&[2, 2], &[0.0, -0.0, 0.0, 0.0])),
            ("ints", Tensor::from_vec(&[3], vec![-1i64, 0, 7]).unwrap()),
        ],
        &[],
    );
    let ran = run(&["stats", &a.url, "--json"]);
    assert_eq!(ran.code, 0);
    let j: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    let of = |key: &str| {
        let all = j["tensors"].as_array().unwrap();
        all.iter().find(|t| t["key"] == key).unwrap()["stats"].clone()
    };
    assert_eq!(
        of("bad"),
        json!({"numbers": 4, "min": -2.0, "max": 1.0, "mean": -0.5, "norm": 5f64.sqrt(), "zeros": 0, "nan": 1, "inf": 1, "denormal": 0,
               "dead_rows": 0, "flags": ["nan", "inf"]})
    );
    assert_eq!(
        (&of("dead")["dead_rows"], &of("dead")["flags"]),
        (&json!(1), &json!(["dead_rows"]))
    );
    assert_eq!(
        (&of("empty")["min"], &of("empty")["flags"]),
        (&json!(null), &json!([]))
    );
    assert_eq!(
        (
            &of("fine")["norm"],
            &of("fine")["zeros"],
            &of("fine")["flags"]
        ),
        (&json!(26f64.sqrt()), &json!(1), &json!([]))
    );
    assert_eq!(
        (&of("small")["denormal"], &of("small")["flags"]),
        (&json!(1), &json!(["denormal"]))
    );
    assert_eq!(
        (&of("zero")["zeros"], &of("zero")["flags"]),
        (&json!(4), &json!(["all_zero"]))
    );
    assert_eq!(
        (&of("ints")["min"], &of("ints")["mean"]),
        (&json!(-1.0), &json!(2.0))
    );

    let ran = run(&["stats", &a.url]);
    assert!(
        ran.out.contains("dead_rows (1)") && ran.out.contains("fine"),
        "{}",
        ran.out
    );
    assert!(ran.err.contains("4 tensors suspicious"), "{}", ran.err);
    let ran = run(&["stats", &a.url, "--suspicious", "--key", "*e*"]);
    assert!(
        ran.out.contains("dead") && !ran.out.contains("fine") && !ran.out.contains("bad"),
        "{}",
        ran.out
    );
}

#[test]
fn tensors_of_many_blocks_are_looked_at_as_a_whole() {
    // More than one block, cut within a row, and with a row that is dead in all of its blocks.
    let (rows, columns) = (3u64, (3 << 20) + 5);
    let mut numbers = vec![1f32; (rows * columns) as usize];
    numbers[columns as usize..2 * columns as usize].fill(0.0);
    let a = saved(&[("w", floats(&[rows, columns], &numbers))], &[]);
    *numbers.last_mut().unwrap() = 2.0;
    let b = saved(&[("w", floats(&[rows, columns], &numbers))], &[]);
    let j = run(&["stats", &a.url, "--json"]).out;
    let j: serde_json::Value = serde_json::from_str(&j).unwrap();
    let stats = &j["tensors"][0]["stats"];
    assert_eq!(
        (&stats["numbers"], &stats["zeros"], &stats["dead_rows"]),
        (&json!(rows * columns), &json!(columns), &json!(1))
    );
    assert_eq!(stats["norm"], json!(((2 * columns) as f64).sqrt()));
    let j = run(&["diff", &a.url, &b.url, "--json"]).out;
    let j: serde_json::Value = serde_json::from_str(&j).unwrap();
    let diff = &j["tensors"][0]["diff"];
    assert_eq!(
        (&diff["differ"], &diff["first"], &diff["max_abs"]),
        (&json!(1), &json!([2, columns - 1]), &json!(1.0))
    );
}

#[test]
fn a_changed_byte_is_an_error_and_a_difference_only_if_nothing_is_verified() {
    // A chunk that is read as a whole, so that its checksum could be checked.
    let saved = saved(&[("w", floats(&[4], &[1., 2., 3., 4.]))], &[]);
    let to = saved.beside("copy");
    std::fs::create_dir(&to).unwrap();
    for entry in std::fs::read_dir(&saved.url).unwrap() {
        let entry = entry.unwrap();
        let copy = std::path::Path::new(&to).join(entry.file_name());
        std::fs::copy(entry.path(), copy).unwrap();
    }
    let file = std::path::Path::new(&to).join("__0_0.distcp");
    let mut bytes = std::fs::read(&file).unwrap();
    let three = 3f32.to_le_bytes();
    let at = bytes.windows(4).position(|four| four == three).unwrap();
    bytes[at + 3] ^= 0x80;
    std::fs::write(&file, bytes).unwrap();
    assert_eq!(run(&["verify", &to]).code, 1);

    let ran = run(&["diff", &saved.url, &to]);
    assert!(ran.code == 2 && ran.err.contains("CRC-32"), "{}", ran.err);
    let ran = run(&["stats", &to]);
    assert!(
        ran.code == 1 && ran.err.contains("left out: w, which is damaged ("),
        "{}",
        ran.err
    );

    let ran = run(&["diff", &saved.url, &to, "--json", "--no-verify"]);
    assert_eq!(ran.code, 1, "{}", ran.err);
    let j: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    let diff = &j["tensors"][0]["diff"];
    assert_eq!((&diff["differ"], &diff["first"]), (&json!(1), &json!([2])));
    let ran = run(&["stats", &to, "--json", "--no-verify"]);
    let j: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(
        (ran.code, &j["tensors"][0]["stats"]["min"]),
        (0, &json!(-3.0)),
        "{j}"
    );
}

/// A file that is cut short: the first block of the last tensor is there, and its others are not.
#[test]
fn a_tensor_that_is_damaged_is_left_out_of_the_statistics_and_told() {
    let many = vec![1f32; 3 << 20];
    let tensors = [
        ("a", floats(&[2], &[1., 2.])),
        ("m", floats(&[1], &[5.])),
        ("z", floats(&[3 << 20], &many)),
    ];
    let saved = saved(&tensors, &[]);
    let file = std::path::Path::new(&saved.url).join("__0_0.distcp");
    let file = std::fs::File::options().write(true).open(file).unwrap();
    file.set_len(file.metadata().unwrap().len() - (5 << 20))
        .unwrap();

    let ran = run(&["stats", &saved.url, "--json"]);
    let j: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    let keys: Vec<_> = j["tensors"]
        .as_array()
        .unwrap()
        .iter()
        .map(|t| &t["key"])
        .collect();
    assert_eq!((ran.code, keys), (1, vec![&json!("a"), &json!("m")]), "{j}");
    let told = format!("; `reshard verify {}` lists all damage", saved.url);
    assert!(
        ran.err.contains("left out: z, which is damaged (") && ran.err.contains(&told),
        "{}",
        ran.err
    );
    let ran = run(&["stats", &saved.url, "--key", "m"]);
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
}

#[test]
fn keys_that_match_nothing_are_an_error() {
    let saved = saved(&[("weight", floats(&[1], &[1.]))], &[("lr", 1.into())]);
    for args in [
        vec!["digest", &saved.url],
        vec!["stats", &saved.url],
        vec!["diff", &saved.url, &saved.url],
    ] {
        for json in [false, true] {
            let mut args = [&args[..], &["--key", "weght"]].concat();
            args.extend(json.then_some("--json"));
            let ran = run(&args);
            assert_eq!(ran.code, 2, "{args:?}: {} {}", ran.out, ran.err);
            assert!(
                ran.err
                    .contains("no key matches weght; did you mean weight")
                    && ran.err.contains("hint: `reshard ls "),
                "{args:?}: {}",
                ran.err
            );
        }
        // One of several is enough; the other one is told.
        let ran = run(&[&args[..], &["--key", "weight", "--key", "no"]].concat());
        assert_eq!(ran.code, 0, "{args:?}: {}", ran.err);
        assert!(ran.err.contains("note: no key matches no"), "{}", ran.err);
    }
}

#[test]
fn a_number_that_is_not_finite_is_no_small_difference() {
    let a = saved(&[("w", floats(&[2], &[1.0, 2.0]))], &[]);
    let b = saved(&[("w", floats(&[2], &[f32::NAN, 2.0]))], &[]);
    let ran = run(&["diff", &a.url, &b.url]);
    assert!(
        ran.code == 1 && ran.out.contains("not finite"),
        "{}",
        ran.out
    );
    let j = run(&["diff", &a.url, &b.url, "--json"]).out;
    let j: serde_json::Value = serde_json::from_str(&j).unwrap();
    let diff = &j["tensors"][0]["diff"];
    assert_eq!(
        (&diff["differ"], &diff["not_finite"]),
        (&json!(1), &json!(1))
    );
}

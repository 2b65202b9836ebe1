use crate::{run, states};
use serde_json::json;
use sha2::{Digest, Sha256};

fn sha(bytes: &[u8]) -> String {
    Sha256::digest(bytes)
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect()
}

#[test]
fn digests_are_of_whole_tensors_however_they_are_split() {
    let saved = states::megatron();
    let weight: Vec<u8> = (0..20).flat_map(|i| (i as f32).to_le_bytes()).collect();
    let norm: Vec<u8> = (1..4i64).flat_map(i64::to_le_bytes).collect();
    let want = json!({ "schema": 1, "tensors": {
        "layer.weight": { "dtype": "float32", "shape": [5, 4], "sha256": sha(&weight) },
        "none": { "dtype": "uint8", "shape": [0, 4], "sha256": sha(&[]) },
        "norm": { "dtype": "int64", "shape": [3], "sha256": sha(&norm) },
        "scale": { "dtype": "float64", "shape": [], "sha256": sha(&0.5f64.to_le_bytes()) },
    } });
    let got = run(&["digest", &saved.url, "--json"]).ok();
    // As text, so that the order of members counts.
    assert_eq!(got.trim(), want.to_string());
    let text = run(&["digest", &saved.url, "--key", "norm"]).ok();
    assert_eq!(text, format!("{}  norm\n", sha(&norm)));
}

#[test]
fn damaged_tensors_have_no_digest_and_the_others_have() {
    let saved = states::megatron();
    let j = run(&["inspect", &saved.url, "--json", "--key", "norm"]).json();
    let chunk = &j["tensors"][0]["chunks"][0];
    let (file, at) = (
        saved.path(chunk["file"].as_str().unwrap()),
        chunk["offset"].as_u64().unwrap() as usize,
    );
    let mut bytes = std::fs::read(&file).unwrap();
    let len = chunk["length"].as_u64().unwrap() as usize;
    // The elements 1, 2, 3 are found by their bytes.
    let data = 1i64
        .to_le_bytes()
        .into_iter()
        .chain(2i64.to_le_bytes())
        .collect::<Vec<u8>>();
    let inside = bytes[at..at + len]
        .windows(16)
        .position(|w| w == data)
        .unwrap();
    bytes[at + inside] ^= 4;
    std::fs::write(&file, bytes).unwrap();
    let ran = run(&["digest", &saved.url, "--json"]);
    let j: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!((ran.code, j["tensors"].as_object().unwrap().len()), (1, 3));
    assert!(
        j["tensors"].get("norm").is_none()
            && j["errors"]["norm"].as_str().unwrap().contains("CRC-32"),
        "{j}"
    );
    assert!(
        ran.err.contains("norm") && ran.err.contains("reshard verify"),
        "{}",
        ran.err
    );
    assert_eq!(run(&["digest", &saved.url, "--key", "scale"]).code, 0);
}

#[test]
fn a_pattern_that_matches_only_objects_is_told_so() {
    let saved = states::dcp();
    for (command, lack) in [("digest", "digest"), ("stats", "statistics")] {
        let ran = run(&[command, &saved.url, "--key", "names"]);
        let want = format!(
            "error: names matches only objects, which have no {lack}\nhint: `reshard show {} KEY` prints an object\n",
            saved.url
        );
        assert_eq!((ran.code, ran.err), (2, want), "{command}");
        let both = ["--key", "names", "--key", "nothing"];
        let ran = run(&[&[command, &saved.url][..], &both].concat());
        assert!(
            ran.code == 2
                && ran.err.contains("names matches only objects")
                && ran.err.contains("no key matches nothing"),
            "{}",
            ran.err
        );
        // A note, if there is something else.
        let both = ["--key", "names", "--key", "model.*", "--key", "nothing"];
        let ran = run(&[&[command, &saved.url][..], &both].concat());
        let want = format!("note: names matches only objects, which have no {lack}\n");
        assert!(ran.code == 0 && ran.err.starts_with(&want), "{}", ran.err);
        assert!(ran.err.contains("no key matches nothing"), "{}", ran.err);
        assert!(!ran.err.contains("no key matches names"), "{}", ran.err);
        let ran = run(&[command, &saved.url, "--key", "nothing"]);
        assert!(
            ran.code == 2 && ran.err.contains("no key matches nothing"),
            "{}",
            ran.err
        );
        // A tensor among them is all that is asked for.
        run(&[command, &saved.url, "--key", "*"]).ok();
    }
}

#[test]
fn a_tensor_that_is_digested_in_blocks_is_checked_as_a_whole_before() {
    let mut state = reshard::StateDict::new();
    for (key, n) in [("large", 3 << 20), ("small", 3)] {
        let data = reshard::Tensor::from_vec(&[n], vec![1.5f32; n as usize]).unwrap();
        state.insert(key, reshard::ShardedTensor::replicated(key, data, 0));
    }
    let saved = states::save(&[state], reshard::Dialect::Dcp);
    let elements = |n| 1.5f32.to_le_bytes().repeat(n);
    let small = json!({ "dtype": "float32", "shape": [3], "sha256": sha(&elements(3)) });
    let large =
        json!({ "dtype": "float32", "shape": [3 << 20], "sha256": sha(&elements(3 << 20)) });
    let j = run(&["digest", &saved.url, "--json"]).json();
    assert_eq!(
        j,
        json!({ "schema": 1, "tensors": { "large": large, "small": small } })
    );

    let file = saved.path("__0_0.distcp");
    let mut bytes = std::fs::read(&file).unwrap();
    bytes[6 << 20] ^= 4;
    std::fs::write(&file, bytes).unwrap();
    let ran = run(&["digest", &saved.url, "--json"]);
    let j: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(
        (ran.code, &j["tensors"]),
        (1, &json!({ "small": small })),
        "{j}"
    );
    let errors = j["errors"].as_object().unwrap();
    assert!(
        errors.len() == 1 && errors["large"].as_str().unwrap().contains("CRC-32"),
        "{j}"
    );
    let ran = run(&["digest", &saved.url]);
    assert_eq!(
        (ran.code, ran.out),
        (1, format!("{}  small\n", sha(&elements(3))))
    );
    assert_eq!(
        run(&["digest", &saved.url, "--no-verify"]).code,
        0,
        "nobody looks"
    );
    for (args, code) in [
        (&["stats", &saved.url][..], 1),
        (&["diff", &saved.url, &saved.url], 2),
    ] {
        let ran = run(args);
        assert!(
            ran.code == code && ran.err.contains("large"),
            "{args:?}: {}",
            ran.err
        );
    }
}

/// Two tensors, one of which lies in a file, or has a description, that is lost. Nobody takes the other one for all of them.
#[test]
fn a_key_that_opening_finds_damaged_is_left_out_by_no_command_without_a_word() {
    for (format, lost) in [
        ("zarr", "b/.zarray"),
        ("zarr3", "b/zarr.json"),
        ("safetensors", "model-00002-of-00002.safetensors"),
    ] {
        let mut state = reshard::StateDict::new();
        for key in ["a", "b"] {
            let tensor = reshard::Tensor::from_vec(&[4], vec![1f32; 4]).unwrap();
            state.insert_piece(reshard::ShardedTensor::full(key, tensor));
        }
        let saved = states::save(&[state], reshard::Dialect::Dcp);
        let dir = saved.beside(format);
        let to = ["convert", &saved.url, &dir, "--to", format];
        let shards: &[&str] = match format {
            "safetensors" => &["--max-shard-size", "300B"],
            _ => &[],
        };
        run(&[&to[..], shards].concat()).ok();
        std::fs::remove_file(format!("{dir}/{lost}")).unwrap();

        let digest = run(&["digest", &dir, "--json"]);
        let j: serde_json::Value = serde_json::from_str(&digest.out).unwrap();
        assert_eq!(digest.code, 1, "{format}");
        assert!(
            j["errors"]["b"].is_string() && j["tensors"]["a"].is_object(),
            "{j}"
        );
        for (args, code) in [
            (&["stats", &dir][..], 1),
            (&["ls", &dir], 1),
            (&["show", &dir, "b"], 1),
            (&["diff", &dir, &dir], 2),
            (&["convert", &dir, &saved.beside("out"), "--no-verify"], 1),
        ] {
            let ran = run(args);
            assert_eq!(ran.code, code, "{format} {args:?} {} {}", ran.out, ran.err);
            let told = [" b ", " b, ", " b: "].iter().any(|b| ran.err.contains(b));
            assert!(told, "{format} {args:?} {}", ran.err);
        }
        run(&["stats", &dir, "--key", "a"]).ok();
        run(&[
            "convert",
            &dir,
            &saved.beside("a"),
            "--no-verify",
            "--key",
            "a",
        ])
        .unverified();
    }
}

#[test]
fn what_only_has_objects_has_a_note_and_is_equal_to_nothing() {
    let mut state = reshard::StateDict::new();
    state.insert("step", 7i64);
    let saved = states::save(&[state], reshard::Dialect::Dcp);
    let ran = run(&["digest", &saved.url]);
    assert!(
        ran.code == 0 && ran.err.contains("has no tensors"),
        "{}{}",
        ran.out,
        ran.err
    );
    let empty = saved.beside("empty.safetensors");
    std::fs::write(&empty, b"\x02\0\0\0\0\0\0\0{}").unwrap();
    for args in [["diff", &saved.url, &empty], ["diff", &empty, &saved.url]] {
        let ran = run(&args);
        assert!(
            ran.code == 2 && ran.err.contains("nothing was compared"),
            "{}{}",
            ran.out,
            ran.err
        );
    }
}

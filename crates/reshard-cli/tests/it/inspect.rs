use crate::{run, states};
use reshard::{DType, ShardedTensor, StateDict, Tensor, blocking};
use serde_json::{Value, json};

/// Names of an object's members, in order.
fn names(v: &Value) -> Vec<&str> {
    v.as_object().unwrap().keys().map(String::as_str).collect()
}

#[test]
fn the_json_has_the_promised_form() {
    let saved = states::megatron();
    let j = run(&["inspect", &saved.url, "--json"]).json();
    let first = [
        "schema", "backend", "version", "dialect", "tensors", "objects", "common", "files",
    ];
    assert_eq!(names(&j)[..8], first);
    assert_eq!(
        (&j["schema"], &j["backend"], &j["version"], &j["dialect"]),
        (
            &json!(1),
            &json!("torch_dist"),
            &json!(1),
            &json!("megatron")
        )
    );
    let keys: Vec<&Value> = j["tensors"]
        .as_array()
        .unwrap()
        .iter()
        .map(|t| &t["key"])
        .collect();
    assert_eq!(keys, ["layer.weight", "none", "norm", "scale"]);
    let t = &j["tensors"][0];
    assert_eq!(names(t), ["key", "dtype", "shape", "bytes", "chunks"]);
    assert_eq!(
        (&t["dtype"], &t["shape"], &t["bytes"]),
        (&json!("float32"), &json!([5, 4]), &json!(80))
    );
    let chunk = &t["chunks"][1];
    assert_eq!(
        names(chunk),
        ["offsets", "lengths", "file", "offset", "length"]
    );
    assert_eq!(
        (&chunk["offsets"], &chunk["lengths"]),
        (&json!([3, 0]), &json!([2, 4]))
    );
    // The stored item lies where it is said to: an archive begins with PK and ends with the end of its directory.
    let file = std::fs::read(saved.path(chunk["file"].as_str().unwrap())).unwrap();
    let (at, len) = (
        chunk["offset"].as_u64().unwrap() as usize,
        chunk["length"].as_u64().unwrap() as usize,
    );
    assert_eq!(
        (&file[at..at + 4], &file[at + len - 22..at + len - 18]),
        (&b"PK\x03\x04"[..], &b"PK\x05\x06"[..])
    );
    assert_eq!(j["objects"][0]["key"], "rng_state/shard_0_2");
    assert!(j["objects"][0]["bytes"].as_u64().unwrap() > 0);
    assert_eq!(names(&j["files"][0])[..2], ["name", "bytes"]);
    assert_eq!(j["common"]["iteration"], 1000);
    let odd = json!({ "$tuple": [{ "$float": "nan" }, { "$bytes": "AQI=" }, { "$set": ["a"] }] });
    assert_eq!(j["common"]["odd"], odd);
    let state = json!({ "tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 1 });
    assert_eq!(
        j["common"]["args"],
        json!({ "$opaque": { "class": "argparse.Namespace", "state": state } })
    );
    assert_eq!(
        (
            &j["iteration"],
            &j["parallel"]["tensor_model_parallel_size"]
        ),
        (&json!(1000), &json!(2))
    );
    assert_eq!((&j["problems"], &j["leftovers"]), (&json!([]), &json!([])));
}

#[test]
fn people_see_who_wrote_it_what_is_in_it_and_that_it_is_complete() {
    let saved = states::megatron();
    let text = run(&["inspect", &saved.url]).ok();
    for part in [
        "torch_dist/1, dialect megatron",
        "reshard",
        "PyTorch 2.1 or later",
        "iteration   1,000",
        "parallel    tensor 2, pipeline 1",
        "coverage    complete",
        "layer.weight  float32  [5, 4]",
        "rng_state/shard_1_2",
        "argparse.Namespace  2 fields",
        "common.pt",
    ] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
    let short = run(&["inspect", &saved.url, "--summary"]).ok();
    assert!(
        short.contains("coverage") && !short.contains("rng_state"),
        "{short}"
    );
}

#[test]
fn a_glob_chooses_tensors_and_objects() {
    let saved = states::megatron();
    let j = run(&["inspect", &saved.url, "--json", "--key", "n*"]).json();
    let keys: Vec<&Value> = j["tensors"]
        .as_array()
        .unwrap()
        .iter()
        .map(|t| &t["key"])
        .collect();
    assert_eq!(keys, ["none", "norm"]);
    assert_eq!(j["objects"], json!([]));
    assert_eq!(
        run(&["ls", &saved.url, "--key", "rng*", "--key", "sc?le"]).ok(),
        "rng_state/shard_0_2\nrng_state/shard_1_2\nscale\n"
    );
    assert_eq!(
        run(&["ls", &saved.url, "--key", "sc*", "--json"]).json(),
        json!({ "schema": 1, "keys": ["scale"] })
    );
    let none = run(&["inspect", &saved.url, "--key", "nothing"]);
    assert!(
        none.code == 2 && none.out.is_empty() && none.err.contains("reshard ls"),
        "{}",
        none.err
    );
}

#[test]
fn files_that_no_item_owns_are_leftovers_or_of_others() {
    let saved = states::dcp();
    std::fs::write(saved.path("__9_0.distcp"), b"stale").unwrap();
    std::fs::write(saved.path("notes.txt"), b"mine").unwrap();
    std::fs::create_dir(saved.beside(".ckpt.1-1a2b3c4d5e6f7082-3.tmp")).unwrap();
    let j = run(&["inspect", &saved.url, "--json"]).json();
    assert_eq!(
        (&j["leftovers"], &j["foreign"], &j["dialect"]),
        (
            &json!([
                "__9_0.distcp",
                saved.beside(".ckpt.1-1a2b3c4d5e6f7082-3.tmp")
            ]),
            &json!(["notes.txt"]),
            &json!("dcp")
        )
    );
    let text = run(&["inspect", &saved.url]).ok();
    for part in [
        "leftover    __9_0.distcp",
        "reshard prune",
        "foreign     notes.txt",
    ] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn a_checkpoint_with_lost_common_state_can_still_be_inspected() {
    let saved = states::megatron();
    std::fs::remove_file(saved.path("common.pt")).unwrap();
    let j: Value =
        serde_json::from_str(&run(&["inspect", &saved.url, "--json"]).damaged()).unwrap();
    assert_eq!(
        (&j["common"], j["tensors"].as_array().unwrap().len()),
        (&Value::Null, 4)
    );
    assert!(
        j["notes"][0]
            .as_str()
            .unwrap()
            .contains("common state can't be read"),
        "{}",
        j["notes"]
    );
}

#[test]
fn what_is_no_checkpoint_says_so_and_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    for command in ["inspect", "ls", "digest", "verify"] {
        let ran = run(&[command, dir.path().to_str().unwrap()]);
        assert_eq!(ran.code, 3, "{command}");
        assert!(
            ran.err.contains("not a checkpoint") && ran.err.contains("hint: "),
            "{}",
            ran.err
        );
    }
}

#[test]
fn the_owners_of_values_are_shown_where_the_checkpoint_has_a_graph_of_objects() {
    let fixture = |name: &str| {
        let all = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../tests/fixtures/tf/checkpoints");
        all.join(name).display().to_string()
    };
    let url = fixture("slot_variables/ckpt");
    let expected = fixture("slot_variables/expected.json");
    let expected: Value = serde_json::from_slice(&std::fs::read(expected).unwrap()).unwrap();
    let j = run(&["inspect", &url, "--json"]).json();
    let rows = j["tensors"].as_array().unwrap();
    let owner = |key: &str| {
        let row = rows.iter().find(|row| row["key"] == key).unwrap();
        row["owner"].as_str().map(str::to_owned)
    };
    let mut owned = 0;
    for tensor in expected["tensors"].as_array().unwrap() {
        let key = tensor["name"].as_str().unwrap();
        let Some(path) = key.strip_suffix("/.ATTRIBUTES/VARIABLE_VALUE") else {
            continue;
        };
        if tensor["dtype"] != "string" {
            assert_eq!(owner(key).as_deref(), Some(path));
            owned += 1;
        }
    }
    assert!(owned > 3, "{owned}");
    let text = run(&["inspect", &url]).ok();
    assert!(text.contains("OWNER"), "{text}");
    // Without a graph nothing is shown.
    let url = fixture("raw_every_dtype/ckpt");
    assert!(!run(&["inspect", &url]).out.contains("OWNER"));
    assert!(!run(&["inspect", &states::dcp().url]).ok().contains("OWNER"));
}

#[test]
fn sums_are_by_type_kind_and_module_and_tied_elements_count_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a");
    let mut state = StateDict::new();
    let mut put = |key: &str, rows: usize, dtype: DType| {
        let data = Tensor::from_vec(&[rows as u64, 4], vec![1f32; rows * 4]).unwrap();
        state.insert_piece(ShardedTensor::full(key, data.cast(dtype).unwrap()));
    };
    for layer in 0..3 {
        put(&format!("model.layers.{layer}.mlp.up"), 8, DType::BFloat16);
        put(&format!("model.layers.{layer}.norm"), 1, DType::Float32);
        let moment = format!("optimizer.state.exp_avg.layers.{layer}.mlp.up");
        put(&moment, 8, DType::Float32);
    }
    put("steps", 1, DType::Int64);
    blocking::save(&state, &path).unwrap();

    let sums = run(&["inspect", path.to_str().unwrap(), "--json", "--summary"]).json();
    let sums = &sums["sums"];
    let sum = |tensors: u64, elements: u64, bytes: u64| json!({ "tensors": tensors, "elements": elements, "bytes": bytes });
    assert_eq!(sums["parameters"], 108);
    assert_eq!(
        sums["by_dtype"],
        json!({ "bfloat16": sum(3, 96, 192), "float32": sum(6, 108, 432), "int64": sum(1, 4, 32) })
    );
    assert_eq!(
        sums["by_kind"],
        json!({ "model": sum(7, 112, 272), "optimizer": sum(3, 96, 384) })
    );
    assert_eq!(
        sums["by_module"],
        json!({
            "": sum(1, 4, 32),
            "model.layers.*": sum(3, 12, 48),
            "model.layers.*.mlp": sum(3, 96, 192),
            "optimizer.state.exp_avg.layers.*.mlp": sum(3, 96, 384),
        })
    );
    let text = run(&["inspect", path.to_str().unwrap(), "--summary"]).ok();
    for line in [
        "parameters  108",
        "type        bfloat16: 3 tensors, 96 elements, 192 B",
        "model.layers.*.mlp                          3        96  192 B",
        "(top level)",
    ] {
        assert!(text.contains(line), "{line:?} is not in {text}");
    }

    // Tied weights of a file of torch.save.
    let tied = dir.path().join("tied.pt");
    let weight = Tensor::from_vec(&[2, 3], vec![1f32; 6]).unwrap();
    let file = reshard::Value::Dict(vec![
        ("embed.weight".into(), weight.clone().into()),
        ("head.weight".into(), weight.into()),
    ]);
    std::fs::write(&tied, reshard_torch_format::save(&file).unwrap()).unwrap();
    let j = run(&["inspect", tied.to_str().unwrap(), "--json"]).json();
    assert_eq!(j["sums"]["parameters"], 6);
    assert_eq!(j["sums"]["by_dtype"]["float32"], sum(2, 12, 48));
}

/// A key may have as many dots as a pickle has room for.
#[test]
fn sums_of_a_very_deep_key_take_no_stack() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("deep.safetensors");
    let key = "a.".repeat(30_000) + "w";
    let header = format!(r#"{{"{key}":{{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}}}"#);
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header.as_bytes());
    file.push(7);
    std::fs::write(&path, file).unwrap();
    let j = run(&["inspect", path.to_str().unwrap(), "--json", "--summary"]).json();
    let modules = j["sums"]["by_module"].as_object().unwrap();
    assert_eq!(modules.keys().next().unwrap(), "a.a.a.a.a.a.a.a");
}

//! The distributed optimizer of Megatron Core, as `inspect` shows it and `convert` rewrites it.

use crate::{run, states};
use reshard::{Dialect, ShardedObject, ShardedTensor, StateDict, Tensor, Value};
use serde_json::json;

/// Where it lies. `None` if the fixtures are of another folder, which lacks it.
fn fixture(name: &str) -> Option<String> {
    let folder = reshard_model::testkit::fixture(&format!("megatron/{name}"))?;
    Some(folder.join("ckpt").display().to_string())
}

const BUCKETS: &str = "mc016_dp_reshardable_w2";
const BY_PARAM: &str = "mc012_dist_opt_model_space_w4";

#[test]
fn the_form_of_the_optimizer_is_named() {
    let all = [BUCKETS, BY_PARAM, "mc012_optimizer_w4"].map(fixture);
    let [Some(buckets), Some(by_param), Some(other)] = all else {
        return;
    };
    let url = buckets;
    let text = run(&["inspect", &url, "--summary"]).ok();
    assert!(
        text.contains("optimizer   dp_reshardable, 1 data-parallel group\n"),
        "{text}"
    );
    let row = |missing| json!([{"sharding_type": "dp_reshardable", "prefix": "", "dp_groups": 1, "missing_dp_groups": missing}]);
    assert_eq!(
        run(&["inspect", &url, "--json"]).json()["optimizers"],
        row(json!([]))
    );

    let url = by_param;
    let text = run(&["inspect", &url, "--summary"]).ok();
    assert!(
        text.contains("optimizer   fully_sharded_model_space\n"),
        "{text}"
    );
    // This optimizer is not distributed.
    let inspected = run(&["inspect", &other, "--json"]).json();
    assert_eq!(inspected["optimizers"], json!([]));
}

/// A checkpoint whose optimizer has this form, in data-parallel groups 0 and 2 of two tensor-parallel ranks times three stages.
fn of_form(form: &str) -> states::Saved {
    let mut state = StateDict::new();
    let bucket = |group: u64, name: &str| {
        format!(
            "optimizer.distributed.dp_group_idx_{group}.gbuf_idx_0.dtype_(torch.bfloat16, torch.float32).bucket_idx_0.{name}"
        )
    };
    let mut tensor = |key: &str| {
        let data = Tensor::from_vec(&[2], vec![1f32, 2.]).unwrap();
        state.insert(key, ShardedTensor::full(key, data));
    };
    match form {
        "fully_sharded_bucket_space" | "dp_reshardable" => {
            for (group, name) in [(0, "param"), (0, "exp_avg"), (2, "param"), (2, "exp_avg")] {
                tensor(&bucket(group, name));
            }
        }
        "dp_zero_gather_scatter" => {
            for group in [0, 2] {
                let key = format!("optimizer.distributed.dp_group_idx_{group}.param_state");
                let cell = ShardedObject::new(&key, Value::Int(1), &[1], &[0], 0).unwrap();
                state.insert(key, cell);
            }
        }
        _ => tensor("optimizer.state.exp_avg.w"),
    }
    let mut optimizer = StateDict::new();
    optimizer.insert("param_state_sharding_type", form);
    state.insert_tree("optimizer", optimizer);
    let parallel = [
        ("tensor_model_parallel_size", 2),
        ("pipeline_model_parallel_size", 3),
    ];
    let parallel = parallel.map(|(name, size)| (name.into(), Value::Int(size)));
    state.insert("args", Value::Dict(parallel.into()));
    states::save(&[state], Dialect::Megatron)
}

#[test]
fn every_form_is_named_with_the_groups_that_are_missing() {
    let forms = [
        ("dp_zero_gather_scatter", true),
        ("fully_sharded_bucket_space", true),
        ("fully_sharded_model_space", false),
        ("dp_reshardable", true),
        ("fully_reshardable", false),
        ("fsdp_dtensor", false),
    ];
    for (form, by_group) in forms {
        let saved = of_form(form);
        let text = run(&["inspect", &saved.url, "--summary"]).ok();
        let (groups, missing, said) = match by_group {
            true => (
                2,
                json!([[1, 2], [3, 6]]),
                ", 2 data-parallel groups (missing: 1, 3..6)",
            ),
            false => (0, json!([]), ""),
        };
        let line = format!("optimizer   {form}{said}\n");
        assert!(text.contains(&line), "{form}: {text}");
        let row = json!([{"sharding_type": form, "prefix": "", "dp_groups": groups, "missing_dp_groups": missing}]);
        let inspected = run(&["inspect", &saved.url, "--json"]).json();
        assert_eq!(inspected["optimizers"], row, "{form}");
    }
}

/// It is a tensor of its own shape. The stored one is there, too.
#[test]
fn a_flattened_tensor_is_shown_with_its_own_shape() {
    let Some(url) = fixture(BY_PARAM) else {
        return;
    };
    let inspected = run(&["inspect", &url, "--json"]).json();
    let mut seen = 0;
    for t in inspected["tensors"].as_array().unwrap() {
        let key = t["key"].as_str().unwrap();
        let state = key.starts_with("optimizer.");
        assert_eq!(t["shape"], json!([2, 8, 4]), "{t}");
        let cells = match state {
            true => json!([2, 2, 1, 16]),
            false => json!(null),
        };
        assert_eq!(t["flattened_shape"], cells, "{t}");
        seen += usize::from(state);
    }
    assert_eq!(seen, 3);
    let text = run(&["inspect", &url]).ok();
    let row = |line: &&str| line.contains("optimizer.state.exp_avg.decoder.weight");
    let row = text.lines().find(row).unwrap();
    assert!(row.contains("[2, 8, 4]") && !row.contains("16]"), "{row}");
}

#[test]
fn an_optimizer_by_parameter_is_rewritten_without_more_options() {
    let Some(from) = fixture(BY_PARAM) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().join("to").display().to_string();
    let ran = run(&[
        "convert",
        &from,
        &to,
        "--ranks",
        "2",
        "--optimizer",
        "canonical",
    ]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let keys = run(&["ls", &to]).ok();
    assert_eq!(
        keys,
        "decoder.weight\noptimizer.state.exp_avg.decoder.weight\noptimizer.state.exp_avg_sq.decoder.weight\noptimizer.state.param.decoder.weight\n"
    );
    let text = run(&["inspect", &to, "--summary"]).ok();
    assert!(text.contains("optimizer   fully_reshardable\n"), "{text}");
    assert_eq!(run(&["verify", &to]).code, 0);
}

#[test]
fn an_optimizer_by_bucket_is_rewritten_with_a_layout() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let (to, file) = (path("to"), path("layout.json"));
    let Some(from) = fixture(BUCKETS) else {
        return;
    };
    let piece = |key: &str, n: u64| json!([{"key": key, "shape": [n], "global_shape": [n], "global_offset": [0]}]);
    let param = |start: u64, key: &str, n: u64| json!({"dp_group": 0, "gbuf": 0, "bucket": 0, "start": start, "pieces": piece(key, n)});
    let layout = json!({"params": [param(0, "a", 3), param(3, "b", 6), param(10, "c", 3)]});
    std::fs::write(&file, layout.to_string()).unwrap();
    let ran = run(&[
        "convert",
        &from,
        &to,
        "--optimizer",
        "canonical",
        "--optimizer-layout",
        &file,
    ]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert_eq!(run(&["ls", &to]).ok().lines().count(), 9);
    assert!(
        run(&["ls", &to])
            .ok()
            .contains("optimizer.state.exp_avg_sq.b\n")
    );
}

#[test]
fn what_can_not_be_rewritten_says_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let to = path("to");
    let refused = |from: &str, more: &[&str]| {
        let args = [&["convert", from, &to, "--optimizer", "canonical"], more].concat();
        let ran = run(&args);
        assert_eq!(ran.code, 2, "{}", ran.err);
        ran.err
    };
    let all = [BUCKETS, BY_PARAM, "mc012_optimizer_w4"].map(fixture);
    let [Some(buckets), Some(by_param), Some(other)] = all else {
        return;
    };
    let said = refused(&buckets, &[]);
    assert!(
        said.contains("dp_reshardable") && said.contains("--optimizer-layout FILE"),
        "{said}"
    );
    let said = refused(&other, &[]);
    assert!(said.contains("leave out --optimizer"), "{said}");
    let said = refused(&by_param, &["--key", "optim*"]);
    assert!(said.contains("leave out --key, or --optimizer"), "{said}");

    let file = path("layout.json");
    let said = refused(&buckets, &["--optimizer-layout", &file]);
    assert!(said.contains("can't be read"), "{said}");
    std::fs::write(&file, "{\"params\":[{\"start\":0}]}").unwrap();
    let said = refused(&buckets, &["--optimizer-layout", &file]);
    assert!(
        said.contains("is not a layout of buckets: missing field"),
        "{said}"
    );
    std::fs::write(&file, "{\"params\":[]}").unwrap();
    let said = refused(&buckets, &["--optimizer-layout", &file]);
    assert!(said.contains("the layout does not have it"), "{said}");
    let alone = run(&["convert", &buckets, &to, "--optimizer-layout", &file]);
    assert_eq!(alone.code, 2);
    assert!(!std::path::Path::new(&to).exists());
}

//! The distributed optimizer of Megatron Core, as `inspect` shows it and `convert` rewrites it.

use crate::run;
use serde_json::json;

fn fixture(name: &str) -> String {
    format!(
        "{}/../../tests/fixtures/megatron/{name}/ckpt",
        env!("CARGO_MANIFEST_DIR")
    )
}

const BUCKETS: &str = "mc016_dp_reshardable_w2";
const BY_PARAM: &str = "mc012_dist_opt_model_space_w4";

#[test]
fn the_form_of_the_optimizer_is_named() {
    let url = fixture(BUCKETS);
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

    let url = fixture(BY_PARAM);
    let text = run(&["inspect", &url, "--summary"]).ok();
    assert!(
        text.contains("optimizer   fully_sharded_model_space\n"),
        "{text}"
    );
    // This optimizer is not distributed.
    let url = fixture("mc012_optimizer_w4");
    let inspected = run(&["inspect", &url, "--json"]).json();
    assert_eq!(inspected["optimizers"], json!([]));
}

#[test]
fn an_optimizer_by_parameter_is_rewritten_without_more_options() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (
        fixture(BY_PARAM),
        dir.path().join("to").display().to_string(),
    );
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
    let (from, to, file) = (fixture(BUCKETS), path("to"), path("layout.json"));
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
    let buckets = fixture(BUCKETS);
    let said = refused(&buckets, &[]);
    assert!(
        said.contains("dp_reshardable") && said.contains("--optimizer-layout FILE"),
        "{said}"
    );
    let said = refused(&fixture("mc012_optimizer_w4"), &[]);
    assert!(said.contains("leave out --optimizer"), "{said}");
    let said = refused(&fixture(BY_PARAM), &["--key", "optim*"]);
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

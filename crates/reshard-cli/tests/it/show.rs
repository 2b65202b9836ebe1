use crate::{run, states};
use reshard::{DType, Dialect, ShardedTensor, StateDict, Tensor, Value};
use serde_json::json;

fn state(key: &str, tensor: Tensor) -> states::Saved {
    let mut state = StateDict::new();
    state.insert_piece(ShardedTensor::full(key, tensor));
    state.insert("lr", 0.125);
    state.insert("betas", Value::Tuple(vec![0.5.into(), 0.75.into()]));
    states::save(&[state], Dialect::Dcp)
}

#[test]
fn a_tensor_is_printed_and_so_are_its_regions() {
    let saved = states::megatron();
    let shown = |more: &[&str]| {
        let args = [&["show", &saved.url, "layer.weight"], more].concat();
        run(&args).ok()
    };
    let whole = "\
layer.weight float32 [5, 4]
[[ 0  1  2  3]
 [ 4  5  6  7]
 [ 8  9 10 11]
 [12 13 14 15]
 [16 17 18 19]]
";
    assert_eq!(shown(&[]), whole);
    assert_eq!(shown(&["--region", ":,:"]), whole);
    let part = "layer.weight float32 [5, 4], elements [2:4, 1:2]\n[[ 9]\n [13]]\n";
    assert_eq!(shown(&["--region", "2:4,1"]), part);
    assert_eq!(
        shown(&["--region", "4"]),
        "layer.weight float32 [5, 4], elements [4:5, 0:4]\n[[16 17 18 19]]\n"
    );
    assert_eq!(
        run(&["show", &saved.url, "scale"]).ok(),
        "scale float64 []\n0.5\n"
    );
    assert_eq!(
        run(&["show", &saved.url, "none"]).ok(),
        "none uint8 [0, 4]\n[]\n"
    );
}

#[test]
fn of_a_large_tensor_only_the_ends_are_read() {
    let elements: Vec<f32> = (0..4_000_000).map(|i| i as f32 * 0.5).collect();
    let tensor = Tensor::from_vec(&[2000, 2000], elements).unwrap();
    let saved = state("w", tensor.cast(DType::BFloat16).unwrap());
    let shown = run(&["show", &saved.url, "w"]).ok();
    let lines: Vec<&str> = shown.lines().collect();
    assert_eq!(lines[0], "w bfloat16 [2000, 2000]");
    assert_eq!(lines.len(), 8);
    assert_eq!(lines[4], " ...");
    let first: Vec<&str> = lines[1].split_whitespace().collect();
    assert_eq!(first[1..4], ["0", "0.5", "1"]);
}

#[test]
fn json_has_all_elements_of_the_region() {
    let saved = states::megatron();
    let region = ["--region", "1:3,:2", "--json"];
    let args = [&["show", &saved.url, "layer.weight"], &region[..]].concat();
    let want = json!({
        "schema": 1, "key": "layer.weight", "dtype": "float32", "shape": [5, 4],
        "offsets": [1, 0], "lengths": [2, 2], "values": [4.0, 5.0, 8.0, 9.0],
    });
    assert_eq!(run(&args).json(), want);
    // More than one block.
    let tensor = Tensor::from_vec(&[300_000], (0..300_000i64).collect()).unwrap();
    let saved = state("w", tensor);
    let values = run(&["show", &saved.url, "w", "--json"]).json()["values"].clone();
    let want: Vec<i64> = (0..300_000).collect();
    assert_eq!(values, json!(want));
}

#[test]
fn objects_and_common_state_are_printed_as_json() {
    let saved = state("w", Tensor::from_vec(&[1], vec![1u8]).unwrap());
    assert_eq!(run(&["show", &saved.url, "lr"]).ok(), "0.125\n");
    let betas = run(&["show", &saved.url, "betas", "--json"]).json();
    assert_eq!(
        betas,
        json!({"schema": 1, "key": "betas", "value": {"$tuple": [0.5, 0.75]}})
    );
    let saved = states::megatron();
    let common = run(&["inspect", &saved.url, "--json"]).json()["common"].clone();
    let (name, value) = common.as_object().unwrap().iter().next().unwrap();
    let shown = run(&["show", &saved.url, name, "--json"]).json();
    assert_eq!(&shown["value"], value);
}

#[test]
fn what_is_not_there_is_told_with_what_is() {
    let saved = states::megatron();
    let ran = run(&["show", &saved.url, "layer.wieght"]);
    assert_eq!(ran.code, 2);
    assert!(
        ran.err.contains("no key \"layer.wieght\"")
            && ran.err.contains("did you mean layer.weight?"),
        "{}",
        ran.err
    );
    for (region, why) in [
        ("6:7", "6:7 does not lie in axis 0"),
        ("3:2", "3:2 does not lie in axis 0"),
        ("0,0,0", "has 3 ranges"),
        ("a", "is not a region"),
        ("0:1:2", "is not a region"),
        ("18446744073709551615", "is not a region"),
    ] {
        let ran = run(&["show", &saved.url, "layer.weight", "--region", region]);
        assert_eq!(ran.code, 2, "{region}");
        assert!(ran.err.contains(why), "{region}: {}", ran.err);
    }
    let ran = run(&["show", &saved.url, "rng_state/shard_0_2", "--region", "0"]);
    assert!(ran.err.contains("is no tensor"), "{}", ran.err);
}

/// Checksums are of whole chunks.
#[test]
fn a_changed_byte_beside_the_region_is_found() {
    let mut elements = vec![1.5f32; 100_000];
    elements[99_999] = 4.5;
    let saved = state("w", Tensor::from_vec(&[100_000], elements).unwrap());
    let file = saved.path("__0_0.distcp");
    let mut bytes = std::fs::read(&file).unwrap();
    let last = 4.5f32.to_le_bytes();
    let at = bytes.windows(4).position(|w| w == last).unwrap();
    bytes[at] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    let ran = run(&["show", &saved.url, "w", "--region", "0:1"]);
    assert!(
        ran.code == 1 && ran.err.contains("w"),
        "{}{}",
        ran.out,
        ran.err
    );
}

/// Megatron's `args` are a Namespace, and torch.save keeps whatever object it gets.
#[test]
fn a_part_of_an_object_is_shown_by_its_attribute() {
    let saved = states::megatron();
    let show = |of: &str, key: &str| run(&["show", of, key]);
    let key = "args.tensor_model_parallel_size";
    assert_eq!(show(&saved.url, key).ok(), "2\n");
    assert_eq!(show(&saved.url, "odd.1").code, 0);
    let absent = show(&saved.url, "args.lr");
    assert_eq!(absent.code, 2);
    assert!(
        absent.err.contains("has no key \"args.lr\""),
        "{}",
        absent.err
    );

    let lr = show(
        &state("w", Tensor::from_vec(&[1], vec![1f32]).unwrap()).url,
        "betas.1",
    );
    assert_eq!(lr.ok(), "0.75\n");
}

//! A checkpoint under other names: its tensors, their regions, its objects, and where parameters come from.
#![cfg(feature = "map")]
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use reshard::{
    Checkpoint, DType, Data, ErrorKind, OpenOptions, Region, ShardedObject, ShardedTensor,
    StateDict, Stores, Tensor, Value,
    blocking::{self, run},
    map::{Map, MapFile},
    model::{Construct, Opaque},
    storage::CountingStore,
};
use std::{collections::BTreeMap, path::Path, sync::Arc};

fn numbered(shape: &[u64], from: u32) -> Tensor {
    let count: u64 = shape.iter().product();
    let numbers = (0..count).map(|n| from as f32 + n as f32);
    Tensor::from_vec(shape, numbers.collect()).unwrap()
}

fn full(state: &mut StateDict, key: &str, shape: &[u64], from: u32) {
    state.insert(key, ShardedTensor::full(key, numbered(shape, from)));
}

fn map(rules: &str) -> Map {
    MapFile::parse(rules)
        .unwrap()
        .bind(&BTreeMap::new())
        .unwrap()
}

fn numbers(tensor: &Tensor) -> Vec<f32> {
    tensor.to_vec::<f32>().unwrap()
}

fn saved(dir: &Path) -> Checkpoint {
    let mut state = StateDict::new();
    full(&mut state, "layers.0.qkv", &[8, 3], 0);
    full(&mut state, "layers.1.qkv", &[8, 3], 100);
    let object = ShardedObject::new("rng", 7, &[1], &[0], 0);
    state.insert("rng", object.unwrap());
    let url = dir.join("ckpt").display().to_string();
    blocking::save(&state, &url).unwrap();
    run(Checkpoint::open(&url)).unwrap()
}

const RULES: &str = "
    [[rule]]
    deinterleave = 'layers.{i#}.qkv'
    groups = 2
    sizes = [2, 1, 1]
    [[rule]]
    split = 'layers.{i#}.qkv'
    to = ['h.{i}.q', 'h.{i}.k', 'h.{i}.v']
    sizes = [4, 2, 2]
    [[rule]]
    stack = 'h.{i#}.k'
    to = 'h.k'
    index = 'i'
    [[rule]]
    rename = 'rng/{cell*}'
    to = 'random/{cell}'
";

#[test]
fn a_mapped_checkpoint_has_the_other_keys_shapes_and_elements() {
    let dir = tempfile::tempdir().unwrap();
    let checkpoint = saved(dir.path());
    let mapped = checkpoint.mapped(&map(RULES)).unwrap();
    let keys: Vec<String> = mapped.tensors().map(|t| t.key().to_owned()).collect();
    assert_eq!(keys, ["h.0.q", "h.0.v", "h.1.q", "h.1.v", "h.k"]);

    let k = mapped.tensor("h.k").unwrap();
    assert_eq!(
        (&k.shape()[..], k.dtype(), k.nbytes()),
        (&[2, 2, 3][..], DType::Float32, 48)
    );
    let all = run(k.read(..)).unwrap();
    assert_eq!(
        numbers(&all),
        [
            6., 7., 8., 18., 19., 20., 106., 107., 108., 118., 119., 120.
        ]
    );
    let part = run(k.read(Region::new([0, 1, 1], [2, 1, 2]))).unwrap();
    assert_eq!(numbers(&part), [19., 20., 119., 120.]);

    let whole = run(mapped.load_plain_tensors()).unwrap();
    assert_eq!(numbers(&whole["h.0.v"]), [9., 10., 11., 21., 22., 23.]);
    assert!(mapped.load_tensors_metadata().unwrap().get("h.k").is_some());
}

#[test]
fn objects_have_their_mapped_keys() {
    let dir = tempfile::tempdir().unwrap();
    let checkpoint = saved(dir.path());
    let mapped = checkpoint.mapped(&map(RULES)).unwrap();
    let keys: Vec<&str> = mapped.objects().collect();
    assert_eq!(keys, ["random/shard_0_1"]);
    assert_eq!(
        run(mapped.object(keys[0])).unwrap(),
        run(checkpoint.object("rng/shard_0_1")).unwrap()
    );
    assert_eq!(
        run(mapped.object("rng/shard_0_1")).unwrap_err().kind(),
        ErrorKind::NotFound
    );
    assert_eq!(
        mapped.tensor("layers.0.qkv").unwrap_err().kind(),
        ErrorKind::NotFound
    );
}

#[test]
fn a_mapped_tensor_is_saved_in_blocks_without_being_loaded() {
    let dir = tempfile::tempdir().unwrap();
    let checkpoint = saved(dir.path());
    let mapped = checkpoint.mapped(&map(RULES)).unwrap();
    let mut state = StateDict::new();
    for t in mapped.tensors() {
        let leaf =
            ShardedTensor::region_of(t.key(), t.dtype(), t.shape(), Region::whole(t.shape()));
        state.insert(t.key(), leaf.with_data(Data::Lazy(t.source(..).unwrap())));
    }
    let url = dir.path().join("other").display().to_string();
    blocking::save(&state, &url).unwrap();
    let other = blocking::load_plain_tensors(&url).unwrap();
    assert_eq!(other, run(mapped.load_plain_tensors()).unwrap());
}

#[test]
fn a_region_reads_the_bytes_of_its_rows_alone() {
    let dir = tempfile::tempdir().unwrap();
    let url = dir.path().join("ckpt").display().to_string();
    let mut state = StateDict::new();
    full(&mut state, "w", &[64, 16 << 10], 0);
    blocking::save(&state, &url).unwrap();
    let counting = Arc::new(CountingStore::new(
        Stores::linked().unwrap().open(&url).unwrap(),
    ));
    let counts = Arc::clone(&counting);
    let checkpoint = run(OpenOptions::new().store(counting).open(&url)).unwrap();
    // Rows 0, 8, 16, … are the first part.
    let rules = "[[rule]]\ndeinterleave = 'w'\ngroups = 8\nsizes = [1, 7]";
    let mapped = checkpoint.mapped(&map(rules)).unwrap();
    drop(counts.take());
    let got = run(mapped.tensor("w").unwrap().read(Region::rows(2..4))).unwrap();
    assert_eq!(numbers(&got)[..2], [16. * 16384., 16. * 16384. + 1.]);
    // The rows, and what says where they are; all of it would be 4 MiB.
    let read = counts.take().read();
    assert!((2 * (64 << 10)..3 * (64 << 10)).contains(&read), "{read}");
}

#[test]
fn a_cast_is_that_of_a_load() {
    let dir = tempfile::tempdir().unwrap();
    let checkpoint = saved(dir.path());
    let mapped = checkpoint
        .mapped(&map("[[rule]]\ncast = 'layers.{i}.qkv'\nto = 'bfloat16'"))
        .unwrap();
    let got = run(mapped
        .tensor("layers.1.qkv")
        .unwrap()
        .read(Region::new([7, 1], [1, 1])))
    .unwrap();
    assert_eq!(
        (got.dtype(), &got.to_bytes()[..]),
        (DType::BFloat16, &0x42f4u16.to_le_bytes()[..])
    );
}

#[test]
fn parameters_come_from_the_call_then_from_args_then_from_config_json() {
    let dir = tempfile::tempdir().unwrap();
    let url = dir.path().join("ckpt").display().to_string();
    let args = Opaque {
        module: "argparse".into(),
        name: "Namespace".into(),
        construct: Construct::NewObj(Vec::new()),
        state: Some(Value::Dict(vec![
            ("num_layers".into(), Value::Int(3)),
            ("num_attention_heads".into(), Value::Int(4)),
            ("kv_channels".into(), Value::None),
            ("group_query_attention".into(), Value::Bool(false)),
        ])),
        items: Vec::new(),
        pairs: Vec::new(),
    };
    let mut state = StateDict::new();
    full(&mut state, "w", &[1], 0);
    state.insert("args", Value::Opaque(Box::new(args)));
    blocking::save(&state, &url).unwrap();
    let config =
        r#"{"num_hidden_layers": 9, "hidden_size": 32, "vocab_size": null, "head_dim": "x"}"#;
    std::fs::write(dir.path().join("ckpt/config.json"), config).unwrap();

    let checkpoint = run(Checkpoint::open(&url)).unwrap();
    let file = MapFile::named("hf-llama").unwrap();
    let given = BTreeMap::from([("heads".to_owned(), 8)]);
    let values = run(checkpoint.map_parameters(&file, &given)).unwrap();
    let want = [("grouped", 0), ("heads", 8), ("hidden", 32), ("layers", 3)];
    assert_eq!(values, want.map(|(name, n)| (name.to_owned(), n)).into());

    std::fs::write(dir.path().join("ckpt/config.json"), "{").unwrap();
    let error = run(checkpoint.map_parameters(&file, &given)).unwrap_err();
    assert!(error.to_string().contains("config.json"), "{error}");
    assert_eq!(error.kind(), ErrorKind::Corrupt);
}

#[test]
fn what_is_not_understood_is_left_out_by_no_load() {
    let dir = tempfile::tempdir().unwrap();
    let url = dir.path().join("ckpt").display().to_string();
    let mut state = StateDict::new();
    full(&mut state, "a", &[2], 0);
    let b = Tensor::from_vec(&[2], vec![3i64, 4]).unwrap();
    state.insert("b", ShardedTensor::full("b", b));
    blocking::save(&state, &url).unwrap();
    let file = Path::new(&url).join(".metadata");
    let mut bytes = std::fs::read(&file).unwrap();
    let at = bytes.windows(5).position(|w| w == b"int64").unwrap();
    bytes[at + 4] = b'6';
    std::fs::write(file, bytes).unwrap();
    std::fs::remove_file(Path::new(&url).join("reshard.json")).unwrap();
    let checkpoint = run(Checkpoint::open(&url)).unwrap();
    let rename = map("[[rule]]\nrename = 'a'\nto = 'c'");
    let mapped = checkpoint.mapped(&rename).unwrap();
    let loads = [
        run(mapped.load_plain_tensors()).map(drop),
        mapped.load_tensors_metadata().map(drop),
    ];
    for load in loads {
        assert_eq!(load.unwrap_err().kind(), ErrorKind::Unsupported);
    }
}

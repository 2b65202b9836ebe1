//! Conversions by a map.

use futures::executor::block_on;
use reshard::{
    Checkpoint, Dialect, ErrorKind, ShardedObject, ShardedTensor, StateDict, Tensor, Value,
    blocking,
    map::{Map, MapFile},
};
use reshard_convert::{ConvertError, Tolerance, convert, diff, diff_mapped};
use std::{collections::BTreeMap, path::Path};

fn map(rules: &str) -> Map {
    let file = MapFile::parse(rules).unwrap();
    file.bind(&BTreeMap::new()).unwrap()
}

/// Two layers with interleaved halves, an object, and common state.
fn saved(dir: &Path, dialect: Dialect) -> Checkpoint {
    let mut state = StateDict::new();
    for layer in 0..2u8 {
        let numbers = (0..24)
            .map(|n| f32::from(layer) * 100.0 + n as f32)
            .collect();
        let key = format!("layers.{layer}.fc1");
        let tensor = Tensor::from_vec(&[8, 3], numbers).unwrap();
        state.insert(key.as_str(), ShardedTensor::full(&key, tensor));
    }
    let object = ShardedObject::new("rng", 7, &[1], &[0], 0).unwrap();
    state.insert("rng", object);
    if dialect == Dialect::Megatron {
        state.insert("step", Value::Int(3));
    }
    let url = dir.join("src").display().to_string();
    blocking::run(reshard::save(&state, &url).dialect(dialect)).unwrap();
    block_on(Checkpoint::open(&url)).unwrap()
}

const RULES: &str = "
    [[rule]]
    deinterleave = 'layers.{i#}.fc1'
    groups = 4
    sizes = [1, 1]
    [[rule]]
    split = 'layers.{i#}.fc1'
    to = ['h.{i}.gate', 'h.{i}.up']
    [[rule]]
    stack = 'h.{i#}.{half}'
    to = 'h.{half}'
    index = 'i'
    [[rule]]
    rename = 'rng/{cell*}'
    to = 'random/{cell}'
";

#[test]
fn a_mapped_conversion_has_what_the_mapped_checkpoint_has() {
    for dialect in [Dialect::Megatron, Dialect::Dcp] {
        for ranks in [1, 3] {
            let dir = tempfile::tempdir().unwrap();
            let source = saved(dir.path(), dialect);
            let dst = dir.path().join("dst").display().to_string();
            let report =
                blocking::run(convert(&source, &dst).map(map(RULES)).ranks(ranks)).unwrap();
            assert_eq!((report.tensors, report.objects), (2, 1));

            let made = block_on(Checkpoint::open(&dst)).unwrap();
            let mapped = source.mapped(&map(RULES)).unwrap();
            let got = block_on(made.load_plain_tensors()).unwrap();
            assert_eq!(got, block_on(mapped.load_plain_tensors()).unwrap());
            let gate = got["h.gate"].to_vec::<f32>().unwrap();
            assert_eq!(got["h.gate"].shape()[..], [2, 4, 3]);
            assert_eq!(gate[..6], [0., 1., 2., 6., 7., 8.]);
            assert!(block_on(made.object("random/shard_0_1")).is_ok());
            let step = block_on(made.common()).unwrap();
            assert_eq!(step.get("step").is_some(), dialect == Dialect::Megatron);

            let found = diff_mapped(
                &mapped,
                &made,
                |_| true,
                Tolerance::default(),
                Default::default(),
                |_| {},
            );
            assert!(block_on(found).unwrap().is_equal());
        }
    }
}

#[test]
fn a_conversion_there_and_back_is_equal_in_any_cut() {
    let dir = tempfile::tempdir().unwrap();
    let source = saved(dir.path(), Dialect::Megatron);
    let [there, back] = ["there", "back"].map(|name| dir.path().join(name).display().to_string());
    blocking::run(convert(&source, &there).map(map(RULES)).ranks(2)).unwrap();
    let there = block_on(Checkpoint::open(&there)).unwrap();
    let inverse = map(RULES).inverse().unwrap();
    blocking::run(convert(&there, &back).map(inverse).ranks(3)).unwrap();
    let back = block_on(Checkpoint::open(&back)).unwrap();
    let found = diff(
        &source,
        &back,
        |_| true,
        Tolerance::default(),
        Default::default(),
        |_| {},
    );
    assert!(block_on(found).unwrap().is_equal());
}

#[test]
fn keys_are_chosen_by_their_new_names_and_only_what_they_need_is_checked() {
    let dir = tempfile::tempdir().unwrap();
    let source = saved(dir.path(), Dialect::Dcp);
    let dst = dir.path().join("dst").display().to_string();
    let rename = map("[[rule]]\nrename = 'layers.{i#}.fc1'\nto = 'w{i}'");
    // Layer 1 is damaged.
    let chunk = &source.tensor("layers.1.fc1").unwrap().chunks()[0];
    let part = &chunk.parts[0];
    let file = dir.path().join("src").join(part.file.to_string());
    let mut bytes = std::fs::read(&file).unwrap();
    let element = 115f32.to_le_bytes();
    let at = bytes.windows(4).position(|four| four == element).unwrap();
    bytes[at] ^= 1;
    std::fs::write(&file, bytes).unwrap();

    let all = blocking::run(convert(&source, &dst).map(rename.clone())).unwrap_err();
    assert_eq!(all.kind(), ErrorKind::Corrupt, "{all}");
    assert!(!Path::new(&dst).exists());
    let report = blocking::run(convert(&source, &dst).map(rename).keys(|key| key == "w0")).unwrap();
    assert_eq!((report.tensors, report.objects), (1, 0));
}

#[test]
fn a_rule_that_does_not_fit_writes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let source = saved(dir.path(), Dialect::Megatron);
    let dst = dir.path().join("dst");
    let url = dst.display().to_string();
    let wrong = map("[[rule]]\ntranspose = 'layers.{i#}.fc1'\naxes = [0, 2, 1]");
    let error = blocking::run(convert(&source, &url).map(wrong)).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("rule 1 (transpose): layers.0.fc1 of shape [8, 3]"),
        "{error}"
    );
    assert_eq!(error.kind(), ErrorKind::Invalid);
    let both = convert(&source, &url)
        .map(map(RULES))
        .canonical_optimizer(true);
    assert!(matches!(
        blocking::run(both),
        Err(ConvertError::MapOfOptimizer)
    ));
    assert!(!dst.exists());
}

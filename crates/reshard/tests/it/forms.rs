//! Archives that are alike are described once a save.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use reshard::{
    DType, ShardedTensor, StateDict, Tensor, blocking,
    model::Layout,
    torch_dist::{Strides, TorchDistConfig},
};
use std::sync::Arc;

/// A tensor of these bytes, with these strides.
fn tensor(dtype: DType, shape: [u64; 2], strides: [u64; 2], first: u8) -> Tensor {
    let layout = Layout::new(dtype.size(), 0, shape.into(), strides.into()).unwrap();
    let bytes: Vec<u8> = (0..layout.bytes() as u8).map(|i| first + i).collect();
    Tensor::with_layout(dtype, layout, Arc::new(bytes)).unwrap()
}

#[test]
fn tensors_of_one_shape_keep_their_own_type_strides_and_elements() {
    let all = [
        ("a", tensor(DType::Int16, [2, 3], [3, 1], 1)),
        ("b", tensor(DType::Int16, [2, 3], [1, 2], 50)),
        ("c", tensor(DType::BFloat16, [2, 3], [3, 1], 100)),
        ("d", tensor(DType::Int16, [3, 2], [2, 1], 150)),
        ("e", tensor(DType::Int16, [2, 3], [3, 1], 200)),
        ("f", tensor(DType::Int16, [2, 3], [1, 2], 220)),
    ];
    let mut state = StateDict::new();
    for (key, tensor) in &all {
        state.insert(*key, ShardedTensor::full(key, tensor.clone()));
    }
    let dir = tempfile::tempdir().unwrap();
    let url = dir.path().join("ckpt").display().to_string();
    let config = TorchDistConfig::new().with_strides(Strides::Keep);
    blocking::run(reshard::save(&state, &url).strategy(config)).unwrap();
    let template = |key: &str, t: &Tensor| ShardedTensor::template(key, t.dtype(), t.shape());
    let mut wanted = StateDict::new();
    for (key, tensor) in &all {
        wanted.insert(*key, template(key, tensor));
    }
    let loaded = blocking::run(reshard::load(wanted, &url)).unwrap();
    for (key, tensor) in &all {
        let got = loaded
            .get(key)
            .and_then(|t| t.leaf())
            .and_then(|v| v.as_tensor())
            .unwrap();
        assert_eq!(
            (got.dtype(), got.shape()),
            (tensor.dtype(), tensor.shape()),
            "{key}"
        );
        assert_eq!(got.to_bytes(), tensor.to_bytes(), "{key}");
    }
}

//! Quantised tensors, read as the numbers that they stand for.

use super::{files, place, save, store};
use futures::executor::block_on;
use reshard_model::{DType, ErrorKind, Region, ShardedTensor, Tensor};
use reshard_safetensors::{SafetensorsConfig, SafetensorsLoadConfig};
use reshard_storage::Store;
use reshard_strategy::{LoadFormat, OpenCx, StorageReader, testkit::numbered};
use std::sync::Arc;

/// 1.0 in float8_e4m3fn.
const ONE: u8 = 0x38;

fn leaf(key: &str, tensor: Tensor) -> ShardedTensor {
    ShardedTensor::full(key, tensor)
}

/// Ones of 3 rows and 5 columns, with so many scales, which count from 1.
fn weight(rows: u64, columns: u64) -> Vec<ShardedTensor> {
    let ones = Tensor::new(DType::Float8E4M3Fn, &[3, 5], vec![ONE; 15]).unwrap();
    let scales = (1..=rows * columns).map(|n| n as f32).collect();
    let scales = Tensor::from_vec(&[rows, columns], scales).unwrap();
    vec![
        leaf("x.weight", ones),
        leaf("x.weight_scale_inv", scales),
        leaf("y", Tensor::from_vec(&[2], vec![5f32, 6.]).unwrap()),
    ]
}

/// A folder with these tensors and a `config.json`.
fn folder(leaves: Vec<ShardedTensor>, config: Option<&str>) -> Arc<dyn Store> {
    let saved = store();
    save(&saved, &SafetensorsConfig::default(), vec![leaves]);
    let mut all = files(&saved);
    if let Some(config) = config {
        all.insert("config.json".into(), config.into());
    }
    place(&all)
}

fn as_numbers() -> SafetensorsLoadConfig {
    SafetensorsLoadConfig::default().with_dequantize(DType::Float32)
}

fn read(place: &Arc<dyn Store>, key: &str, shape: &[u64], region: Region) -> Vec<f32> {
    let wanted = ShardedTensor::region_of(key, DType::Float32, shape, region);
    let loaded = numbered::load(&as_numbers(), place, vec![vec![wanted]]);
    loaded[0][0].to_vec().unwrap()
}

fn open(place: &Arc<dyn Store>) -> Arc<dyn StorageReader> {
    let cx = OpenCx::new(Arc::clone(place));
    block_on(as_numbers().open(&cx)).unwrap()
}

#[test]
fn blocks_have_the_size_that_the_config_of_the_model_says() {
    let config = r#"{"quantization_config": {"quant_method": "fp8", "weight_block_size": [2, 2]}}"#;
    let place = folder(weight(2, 3), Some(config));
    let all = [
        [1., 1., 2., 2., 3.],
        [1., 1., 2., 2., 3.],
        [4., 4., 5., 5., 6.],
    ];
    let whole = read(&place, "x.weight", &[3, 5], Region::whole(&[3, 5]));
    assert_eq!(whole, all.concat());
    // Rows and columns that begin within a block.
    let part = read(&place, "x.weight", &[3, 5], Region::new([1, 1], [2, 3]));
    assert_eq!(part, [1., 2., 2., 4., 5., 5.]);
}

#[test]
fn blocks_have_the_usual_size_if_no_config_says_another_one() {
    for config in [
        None,
        Some("{}"),
        Some("{"),
        Some(r#"{"quantization_config": {}}"#),
        Some(r#"{"quantization_config": {"weight_block_size": [0, 2]}}"#),
    ] {
        let place = folder(weight(1, 1), config);
        let whole = read(&place, "x.weight", &[3, 5], Region::whole(&[3, 5]));
        assert_eq!(whole, [1.; 15], "{config:?}");
    }
}

#[test]
fn a_tensor_whose_scales_do_not_fit_is_refused_by_its_key_and_the_others_are_read() {
    let groups = |scales: u64| {
        let bytes = |shape: &[u64]| {
            let count = shape.iter().product::<u64>() as usize;
            Tensor::from_vec(shape, vec![127u8; count]).unwrap()
        };
        let mut leaves = vec![leaf("x_blocks", bytes(&[2, 1, 4]))];
        leaves.push(leaf("x_scales", bytes(&[scales, 1])));
        leaves.push(leaf("y", Tensor::from_vec(&[2], vec![5f32, 6.]).unwrap()));
        leaves
    };
    for (leaves, config, key, why) in [
        (
            weight(2, 3),
            None,
            "x.weight",
            "its scales float32 [2, 3] do not fit its shape [3, 5] in blocks of 128 x 128",
        ),
        (
            weight(1, 1),
            Some(r#"{"quantization_config": {"weight_block_size": [2, 2]}}"#),
            "x.weight",
            "its scales float32 [1, 1] do not fit its shape [3, 5] in blocks of 2 x 2",
        ),
        (
            groups(3),
            None,
            "x_blocks",
            "its scales [3, 1] do not fit its groups [2, 1, 4]",
        ),
    ] {
        let place = folder(leaves, config);
        let reader = open(&place);
        assert!(reader.metadata().tensor(key).is_none());
        let error = reader.permits(key).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains(why), "{error}");
        assert!(reader.why_not(key).unwrap().contains(why));
        assert_eq!(read(&place, "y", &[2], Region::whole(&[2])), [5., 6.]);
    }
}

#[test]
fn what_dequantize_does_not_change_is_refused() {
    let bytes = |dtype: DType, shape: &[u64]| {
        let count = shape.iter().product::<u64>() * dtype.size();
        Tensor::new(dtype, shape, vec![1; count as usize]).unwrap()
    };
    let float8 = || leaf("x.weight", bytes(DType::Float8E4M3Fn, &[4, 6]));
    let y = || leaf("y", Tensor::from_vec(&[2], vec![5f32, 6.]).unwrap());
    let config = r#"{"quantization_config": {"quant_method": "fp8"}}"#;
    for (config, leaves, found) in [
        (None, vec![y()], "no tensor has a scale"),
        (None, vec![y(), float8()], "no tensor has a scale"),
        (Some(config), vec![y(), float8()], "config.json says fp8"),
    ] {
        let place = folder(leaves, config);
        let open = |config: SafetensorsLoadConfig| {
            let cx = OpenCx::new(Arc::clone(&place));
            block_on(config.open(&cx))
        };
        let e = open(as_numbers()).unwrap_err();
        assert!(
            e.kind() == ErrorKind::Unsupported && e.to_string().contains(found),
            "{e}"
        );
        assert!(open(as_numbers().with_allow_unquantized(true)).is_ok());
    }

    // Scales of another kind: the tensor is refused by its key, and the others are read.
    for (key, dtype, scale) in [
        ("x.weight", DType::Float8E4M3Fn, "x.weight_scale"),
        ("x.weight", DType::Int8, "x.weight_scale"),
        ("x.weight", DType::UInt8, "x.weight_scale"),
        ("x.weight", DType::Int8, "x.SCB"),
        ("x.weight_packed", DType::Int32, "x.weight_scale"),
        ("x.qweight", DType::Int32, "x.scales"),
    ] {
        let scales = leaf(scale, bytes(DType::BFloat16, &[4, 1]));
        let place = folder(vec![leaf(key, bytes(dtype, &[4, 6])), scales, y()], None);
        let reader = open(&place);
        assert!(reader.metadata().tensor(key).is_none(), "{key} {scale}");
        let e = reader.permits(key).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Unsupported);
        assert!(e.to_string().contains(scale), "{e}");
        assert_eq!(read(&place, "y", &[2], Region::whole(&[2])), [5., 6.]);
    }
}

//! What is refused before anything is written.

use super::{files, store, try_save, whole};
use reshard_model::{DType, ErrorKind, ShardedTensor, Tensor};
use reshard_safetensors::SafetensorsConfig;
use reshard_strategy::SaveFormat;

fn refused(leaves: Vec<ShardedTensor>) -> (ErrorKind, String) {
    let place = store();
    let config = SafetensorsConfig::default();
    let e = try_save(&place, &config, vec![leaves])
        .remove(0)
        .unwrap_err();
    assert!(files(&place).is_empty(), "nothing is written");
    (e.kind(), e.to_string())
}

#[test]
fn types_without_a_name_are_refused_by_name() {
    for dtype in [DType::Complex32, DType::BComplex32, DType::Complex128] {
        let leaf = ShardedTensor::full("odd", Tensor::zeros("odd", dtype, &[2]).unwrap());
        let (kind, said) = refused(vec![leaf]);
        assert_eq!(kind, ErrorKind::Unsupported, "{said}");
        assert!(
            said.contains("odd") && said.contains(dtype.name()) && said.contains("types_as_bytes"),
            "{said}"
        );
    }
}

#[test]
fn the_key_of_the_headers_metadata_is_refused() {
    let (kind, said) = refused(vec![whole("__metadata__", &[2])]);
    assert_eq!(kind, ErrorKind::Unsupported, "{said}");
    assert!(said.contains("__metadata__"), "{said}");
}

#[test]
fn flattened_ranges_are_refused() {
    let leaf = ShardedTensor {
        flattened_range: Some(0..4),
        ..whole("flat", &[2, 2])
    };
    let data = Tensor::from_vec(&[4], vec![1i32; 4]).unwrap();
    let (kind, said) = refused(vec![leaf.with_data(data)]);
    assert_eq!(kind, ErrorKind::Unsupported, "{said}");
    assert!(
        said.contains("flat") && said.contains("flattened ranges"),
        "{said}"
    );
}

#[test]
fn a_name_of_a_model_that_leaves_the_folder_is_refused() {
    for name in ["", "../m", "a/b", ".hidden"] {
        assert!(
            SafetensorsConfig::default()
                .with_name(name)
                .check()
                .is_err(),
            "{name}"
        );
    }
    assert!(
        SafetensorsConfig::default()
            .with_name("adapter_model")
            .check()
            .is_ok()
    );
}

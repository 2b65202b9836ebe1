//! What is refused before anything is written.

use super::{chunks::UNKNOWN, files, piece, store, try_save};
use reshard_model::{ErrorKind, Region, ShardedTensor, Tensor};

fn refused(leaves: Vec<ShardedTensor>) -> (ErrorKind, String) {
    let place = store();
    let e = try_save(&place, vec![leaves]).remove(0).unwrap_err();
    assert!(files(&place).is_empty(), "nothing is written");
    (e.kind(), e.to_string())
}

#[test]
fn types_without_a_name_in_zarr_are_refused_by_name() {
    for dtype in UNKNOWN {
        let leaf = ShardedTensor::full("odd", Tensor::zeros("odd", dtype, &[2]).unwrap());
        let (kind, said) = refused(vec![leaf]);
        assert_eq!(kind, ErrorKind::Unsupported, "{said}");
        assert!(
            said.contains("odd") && said.contains(dtype.name()),
            "{said}"
        );
    }
}

#[test]
fn keys_that_are_no_names_of_folders_are_refused() {
    for key in [
        "../w",
        "/w",
        "a//b",
        "a/../b",
        "",
        "a\\b",
        "reshard-zarr.json",
        "reshard-zarr.json/w",
    ] {
        let (_, said) = refused(vec![piece(key, &[2], Region::whole(&[2]))]);
        assert!(
            said.contains("folder") || said.contains("name of a file"),
            "{key}: {said}"
        );
    }
}

#[test]
fn an_array_in_the_way_of_a_chunk_is_named() {
    for inner in ["w/0", "w/3.1/deep", "w/.zarray"] {
        let leaves = ["w", inner].map(|key| piece(key, &[2], Region::whole(&[2])));
        let (kind, said) = refused(leaves.into());
        assert_eq!(kind, ErrorKind::Invalid, "{said}");
        assert!(
            said.contains(inner) && said.contains("of the array w"),
            "{said}"
        );
    }
    let place = store();
    let leaves = ["w", "w/x", "w/0x", "wide/0"].map(|key| piece(key, &[2], Region::whole(&[2])));
    try_save(&place, vec![leaves.into()]).remove(0).unwrap();
}

#[test]
fn a_grid_of_too_many_files_is_refused() {
    let leaf = ShardedTensor {
        axis_fragmentations: Some([1 << 25].into()),
        allow_shape_mismatch: true,
        ..ShardedTensor::full(
            "w",
            Tensor::zeros("w", reshard_model::DType::UInt8, &[1 << 25]).unwrap(),
        )
    };
    let (kind, said) = refused(vec![leaf]);
    assert_eq!(kind, ErrorKind::Invalid, "{said}");
    assert!(
        said.contains("w: it would be stored in chunks of"),
        "{said}"
    );
}

//! Which chunks there are, and who writes them.

use super::{as_others_read, files, load, numbers, piece, save, store, try_save, wanted};
use reshard_model::{DType, Region, ShardedTensor, Tensor};

fn rows(shape: &[u64], from: u64, to: u64) -> Region {
    let mut region = Region::whole(shape);
    (region.offsets[0], region.lengths[0]) = (from, to - from);
    region
}

/// Megatron Core's #1053: the leaf at the origin declares the grid, its pieces end within chunks, and two ranks wrote one chunk.
#[test]
fn no_update_is_lost_where_pieces_of_two_ranks_lie_in_one_chunk() {
    let shape = [10, 3];
    let leaf = |from, to| ShardedTensor {
        axis_fragmentations: Some([3, 1].into()),
        allow_shape_mismatch: true,
        ..piece("w", &shape, rows(&shape, from, to))
    };
    let place = store();
    save(
        &place,
        vec![vec![leaf(0, 4)], vec![leaf(4, 8)], vec![leaf(8, 10)]],
    );
    let files = files(&place);
    let (said, chunks, elements) = as_others_read(&files, "w");
    assert_eq!((said, chunks), (shape.to_vec(), vec![3, 3]));
    assert_eq!(elements, numbers(&shape, &Region::whole(&shape)));
    // What lies beyond the shape is zero.
    assert_eq!(files["w/3.0"][12..], [0; 24]);
    let whole = load(
        &place,
        vec![vec![wanted("w", &shape, Region::whole(&shape))]],
    );
    assert_eq!(whole[0][0].to_vec::<i32>().unwrap(), elements);
}

/// Ranks write about as much where they share chunks.
#[test]
fn chunks_that_ranks_share_are_spread_over_them() {
    let shape = [64, 8];
    let half = |rank: u64, chunk: u64| Region::new([chunk * 16, rank * 4], [16, 4]);
    let leaves = |rank| {
        (0..4)
            .map(|chunk| ShardedTensor {
                axis_fragmentations: Some([4, 1].into()),
                allow_shape_mismatch: true,
                ..piece("w", &shape, half(rank, chunk))
            })
            .collect()
    };
    let place = store();
    let saved = try_save(&place, vec![leaves(0), leaves(1)]);
    let ranks = saved.into_iter().next().unwrap().unwrap().ranks;
    assert_eq!(ranks.iter().map(|r| r.files).collect::<Vec<_>>(), [2, 2]);
    assert_eq!(
        ranks.iter().map(|r| r.bytes).collect::<Vec<_>>(),
        [1024, 1024]
    );
    let (_, chunks, elements) = as_others_read(&files(&place), "w");
    assert_eq!(
        (chunks, elements),
        (vec![16, 8], numbers(&shape, &Region::whole(&shape)))
    );
}

/// Megatron Core: "Array … not found" if the rank with the first element writes nothing.
#[test]
fn an_array_is_described_whichever_rank_has_its_first_element() {
    let shape = [4, 2];
    let place = store();
    let replica = piece("w", &shape, rows(&shape, 0, 2)).with_replica_id(1);
    let last = vec![
        piece("w", &shape, rows(&shape, 2, 4)),
        piece("w", &shape, rows(&shape, 0, 2)),
    ];
    save(&place, vec![vec![replica], last]);
    assert_eq!(
        as_others_read(&files(&place), "w").2,
        numbers(&shape, &Region::whole(&shape))
    );
}

#[test]
fn a_scalar_has_one_chunk_and_an_empty_tensor_has_none() {
    let place = store();
    let empty = ShardedTensor::full("none", Tensor::from_vec::<i32>(&[0, 3], vec![]).unwrap());
    save(
        &place,
        vec![vec![piece("one", &[], Region::default()), empty]],
    );
    let files = files(&place);
    assert_eq!(files["one/0"], [0; 4]);
    assert_eq!(as_others_read(&files, "none").1, [1, 3]);
    let names: Vec<&str> = files.keys().map(String::as_str).collect();
    assert_eq!(
        names,
        ["none/.zarray", "one/.zarray", "one/0", "reshard-zarr.json"]
    );
    let templates = vec![wanted("none", &[0, 3], Region::whole(&[0, 3]))];
    assert_eq!(load(&place, vec![templates])[0][0].nbytes(), 0);
}

#[test]
fn prepended_axes_are_axes_of_the_array() {
    let shape = [3, 2, 2];
    let layer = |n: u64| {
        let region = Region::new([n, 0, 0], [1, 2, 2]);
        let data = Tensor::from_vec(&[2, 2], numbers(&shape, &region)).unwrap();
        ShardedTensor::from_rank_offsets_prepended("layers", data, &[(0, n, 3)], 1).unwrap()
    };
    let place = store();
    save(&place, vec![vec![layer(0), layer(2)], vec![layer(1)]]);
    let (said, chunks, elements) = as_others_read(&files(&place), "layers");
    assert_eq!((said, chunks), (shape.to_vec(), vec![1, 2, 2]));
    assert_eq!(elements, numbers(&shape, &Region::whole(&shape)));
}

/// Blocks of a chunk are put together from rows of both pieces, through several blocks of memory.
#[test]
fn large_chunks_of_several_pieces_are_put_together_in_blocks() {
    let shape = [700, 700];
    let (left, right) = (
        Region::new([0, 0], [700, 400]),
        Region::new([0, 400], [700, 300]),
    );
    let place = store();
    let leaf = |region| ShardedTensor {
        axis_fragmentations: Some([1, 1].into()),
        allow_shape_mismatch: true,
        ..piece("w", &shape, region)
    };
    save(&place, vec![vec![leaf(left)], vec![leaf(right)]]);
    let (_, chunks, elements) = as_others_read(&files(&place), "w");
    assert_eq!(chunks, [700, 700]);
    assert_eq!(elements, numbers(&shape, &Region::whole(&shape)));
}

#[test]
fn names_of_types_are_numpys_or_tensorstores() {
    let place = store();
    let all: Vec<ShardedTensor> = DType::ALL
        .iter()
        .filter(|d| !UNKNOWN.contains(d))
        .map(|d| ShardedTensor::full(d.name(), Tensor::zeros("t", *d, &[2]).unwrap()))
        .collect();
    let count = all.len();
    save(&place, vec![all]);
    let reader = super::open(&place, reshard_model::Dialect::Dcp);
    assert_eq!(reader.metadata().tensor_count(), count);
    assert!(
        reader
            .metadata()
            .tensors()
            .all(|t| t.key() == t.dtype().name())
    );
}

/// Zarr v2 has no name for these.
pub(super) const UNKNOWN: [DType; 4] = [
    DType::Complex32,
    DType::BComplex32,
    DType::Float8E8M0Fnu,
    DType::Float4E2M1FnX2,
];

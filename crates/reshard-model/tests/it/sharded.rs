//! Sharded tensors and objects: what is refused, and laws.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use proptest::prelude::*;
use reshard_model::{
    AxisSlice, BoxError, DType, Data, Dims, ErrorKind, Leaf, LocalNonpersistent, Payload, Region,
    ShardedObject, ShardedTensor, StateDict, Tensor, TensorSource, Value, add_prefix_for_sharding,
    first_fault, replace_prefix_for_sharding,
};
use std::{ops::Range, sync::Arc};

fn ints(shape: &[u64]) -> Tensor {
    let n = Dims::from(shape).volume().unwrap();
    Tensor::from_vec(shape, (0..n as i32).collect()).unwrap()
}

/// Rows 2..4 of a (6, 3) tensor cut into 3.
fn good() -> ShardedTensor {
    ShardedTensor::from_rank_offsets("w", ints(&[2, 3]), &[(0, 1, 3)]).unwrap()
}

fn error(change: impl FnOnce(&mut ShardedTensor)) -> String {
    let mut t = good();
    change(&mut t);
    let e = t.validate().unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Invalid);
    e.to_string()
}

#[test]
fn each_contradiction_is_named_with_key_field_and_both_values() {
    assert_eq!(
        error(|t| t.dtype = DType::Int64),
        "w: data dtype int32 should match dtype int64"
    );
    assert_eq!(
        error(|t| t.local_shape = [3, 3].into()),
        "w: data shape [2, 3] should match local_shape [3, 3]"
    );
    assert_eq!(
        error(|t| t.flattened_range = Some(0..6)),
        "w: data should have one axis for a flattened_range, it has shape [2, 3]"
    );
    let flat = |range, n| {
        error(move |t| {
            t.flattened_range = Some(range);
            t.data = ints(&[n]).into();
        })
    };
    assert_eq!(
        flat(2..6, 3),
        "w: data shape [3] doesn't match flattened_range 2..6"
    );
    assert!(
        flat(2..7, 5)
            .contains("flattened_range 2..7 does not lie in the 6 elements of local_shape [2, 3]")
    );
    assert!(flat(Range { start: 3, end: 2 }, 0).contains("flattened_range 3..2 does not lie in"));
    assert!(
        error(|t| t.global_offset = [2].into())
            .contains("(global_offset [2], global_shape [6, 3])")
    );
    assert!(error(|t| t.prepend_axis_num = 1).contains("prepend_axis_num 1, global_shape [6, 3]"));
    assert!(
        error(|t| t.prepend_axis_num = usize::MAX)
            .contains("should be equal to global shape dimensions")
    );
    assert_eq!(
        error(|t| t.global_offset = [1, 0].into()),
        "w: global offset (1) must be divisible by local shape (2)"
    );
    assert!(
        error(|t| t.axis_fragmentations = Some([3].into()))
            .contains("axis_fragmentations [3] should have")
    );
    assert!(error(|t| t.axis_fragmentations = Some([2, 1].into())).contains("axis 0: 2 fragments"));
    assert!(error(|t| t.axis_fragmentations = Some([0, 1].into())).contains("axis 0: 0 fragments"));
    assert!(
        error(|t| t.axis_fragmentations = Some([u64::MAX, 1].into()))
            .contains("don't make up global extent 6")
    );
    assert!(
        error(|t| t.global_offset = [6, 0].into())
            .contains("chunk [6:8, 0:3] lies outside of global_shape [6, 3]")
    );
}

#[test]
fn sizes_that_can_not_be_counted_are_refused() {
    let t = |local: &[u64], global: &[u64], offset: &[u64]| {
        ShardedTensor::new(
            "w",
            Data::None,
            DType::Float64,
            local,
            global,
            offset,
            None,
            0,
            0,
            false,
            None,
        )
    };
    assert!(
        t(&[1 << 40, 1 << 40], &[1 << 40, 1 << 40], &[0, 0])
            .unwrap_err()
            .to_string()
            .contains("too large")
    );
    assert!(
        t(&[1, 1], &[1 << 40, 1 << 40], &[0, 0])
            .unwrap_err()
            .to_string()
            .contains("global_shape")
    );
    assert!(
        t(&[2], &[u64::MAX], &[u64::MAX - 1])
            .unwrap_err()
            .to_string()
            .contains("lies outside")
    );
    assert!(ShardedTensor::declare("w", DType::Int8, &[1 << 40], &[(0, 0, 1 << 40)], 0).is_err());
}

#[test]
fn a_shape_mismatch_that_is_allowed_also_allows_an_uneven_grid() {
    let mut t = good().with_shape_mismatch_allowed();
    t.axis_fragmentations = Some([4, 1].into());
    t.validate().unwrap();
    assert_eq!(t.max_allowed_chunks().unwrap(), [1, 3].into());
    t.allow_shape_mismatch = false;
    assert!(
        t.max_allowed_chunks()
            .unwrap_err()
            .to_string()
            .contains("axis shape (6) not divisible by")
    );
}

#[test]
fn irregular_grids_have_no_grid_coordinates_and_any_place() {
    let t = ShardedTensor::region_of("w", DType::Int8, &[7, 2], Region::new([3, 0], [2, 2]));
    t.validate().unwrap();
    assert!(t.axis_fragmentations.is_none());
    assert!(
        t.local_chunk_offset_in_global().is_err()
            && t.max_allowed_chunks().is_err()
            && t.narrow(0, 0, 1).is_err()
    );
    let outside = ShardedTensor::region_of("w", DType::Int8, &[7, 2], Region::new([6, 0], [2, 2]));
    assert!(outside.validate().is_err());
}

#[test]
fn nothing_is_divided_by_an_empty_extent() {
    for shape in [[0, 3], [3, 0], [0, 0]] {
        let t =
            ShardedTensor::from_rank_offsets("w", ints(&shape), &[(0, 1, 2), (1, 2, 3)]).unwrap();
        assert_eq!(t.local_chunk_offset_in_global().unwrap().len(), 2);
        assert_eq!(t.max_allowed_chunks().unwrap().len(), 2);
        assert_eq!(t.narrow(0, 0, 0).unwrap()[0].local_shape[0], 0);
        let flat =
            ShardedTensor::from_rank_offsets_flat("w", ints(&[0]), &shape, &[(0, 1, 2)], 1, 0..0)
                .unwrap();
        assert_eq!(
            flat.local_coordinates().unwrap(),
            [vec![], vec![]] as [Vec<u64>; 2]
        );
    }
}

#[test]
fn a_tensor_without_axes_is_a_tensor() {
    let t = ShardedTensor::from_rank_offsets("step", ints(&[]), &[]).unwrap();
    assert_eq!(
        (t.global_slice(), t.local_chunk_offset_in_global().unwrap()),
        (vec![], [].into())
    );
    assert!(t.narrow(0, 0, 0).is_err());
}

#[test]
fn rank_offsets_that_do_not_fit_are_refused() {
    let e = |o| {
        ShardedTensor::from_rank_offsets("w", ints(&[2]), &[o])
            .unwrap_err()
            .to_string()
    };
    assert_eq!(
        e((1, 0, 1)),
        "w: invalid rank offset (1, 0, 1): the tensor has 1 axes"
    );
    assert_eq!(
        e((0, 2, 2)),
        "w: invalid rank offset (0, 2, 2): the rank must be less than the fragments"
    );
    assert!(
        ShardedTensor::from_rank_offsets("w", Data::None, &[])
            .unwrap_err()
            .to_string()
            .contains("declare")
    );
    let flat =
        |n, range| ShardedTensor::from_rank_offsets_flat("w", ints(n), &[2, 3], &[], 0, range);
    assert!(
        flat(&[2, 1], 0..2)
            .unwrap_err()
            .to_string()
            .contains("should have one axis, it has shape [2, 1]")
    );
    assert!(
        flat(&[2], 0..3)
            .unwrap_err()
            .to_string()
            .contains("flattened range 0..3 does not fit data of 2")
    );
    assert!(
        flat(&[2], 5..7)
            .unwrap_err()
            .to_string()
            .contains("flattened_range 5..7 does not lie in")
    );
}

#[test]
fn prepended_axes_are_indices_of_the_global_slice() {
    let t =
        ShardedTensor::from_rank_offsets_prepended("w", ints(&[5, 2]), &[(0, 3, 4), (1, 1, 2)], 1)
            .unwrap();
    assert_eq!(
        t.global_slice(),
        [
            AxisSlice::Index(3),
            AxisSlice::Range(5..10),
            AxisSlice::Range(0..2)
        ]
    );
    assert_eq!(t.region(), Region::new([3, 5, 0], [1, 5, 2]));
    assert_eq!(t.local_chunk_offset_in_global().unwrap(), [3, 1, 0].into());
    // a prepended axis has local extent 1, so its global extent is the number of fragments
    let mut wrong = t.clone();
    wrong.global_shape[0] = 8;
    assert!(wrong.validate().is_err());
}

#[test]
fn data_is_allocated_as_zeros_where_there_is_none() {
    let mut t = good().without_data();
    t.init_data().unwrap();
    assert_eq!(t.data.host().unwrap().to_vec::<i32>().unwrap(), [0; 6]);
    let mut full = good();
    full.init_data().unwrap();
    assert_eq!(full.data.host().unwrap(), &ints(&[2, 3]));
    let flat =
        ShardedTensor::from_rank_offsets_flat("w", ints(&[2]), &[2, 3], &[], 0, 1..3).unwrap();
    let mut flat = flat.without_data();
    flat.init_data().unwrap();
    assert_eq!(flat.data.host().unwrap().shape(), &[2].into());
    flat.validate().unwrap();
}

/// Counts elements from 0, row-major, in a shape of width 4.
struct Counting;

impl TensorSource for Counting {
    fn dtype(&self) -> DType {
        DType::UInt8
    }

    fn shape(&self) -> Dims {
        [4, 4].into()
    }

    fn read(&self, region: &Region, out: &mut [u8]) -> Result<(), BoxError> {
        let mut at = 0;
        for row in region.offsets[0]..region.end(0) {
            for column in region.offsets[1]..region.end(1) {
                out[at] = (row * 4 + column) as u8;
                at += 1;
            }
        }
        Ok(())
    }
}

#[test]
fn a_part_of_a_lazy_source_reads_its_own_elements() {
    let t = ShardedTensor::declare("w", DType::UInt8, &[4, 4], &[(0, 0, 2)], 0).unwrap();
    let t = t.with_data(Data::Lazy(Arc::new(Counting)));
    let part = t
        .narrow(0, 1, 2)
        .unwrap()
        .remove(0)
        .narrow(1, 2, 2)
        .unwrap()
        .remove(0);
    let Data::Lazy(source) = &part.data else {
        panic!()
    };
    let mut out = [0; 2];
    source.read(&Region::new([1, 0], [1, 2]), &mut out).unwrap();
    assert_eq!(out, [10, 11]);
    assert_eq!(format!("{:?}", part.data), "Lazy");
}

proptest! {
    #![proptest_config(reshard_model::testkit::law(256))]
    /// Narrowing on every rank gives a tensor again: the parts cover the smaller global tensor once.
    #[test]
    fn narrowed_chunks_cover_the_narrowed_tensor_once(
        local in prop::collection::vec(1u64..4, 1..4), parts in prop::collection::vec(1u64..4, 3),
        dim: prop::sample::Index, a: prop::sample::Index, b: prop::sample::Index, prepend in 0usize..2,
    ) {
        let dim = dim.index(local.len());
        let (a, b) = (a.index(local[dim] as usize + 1) as u64, b.index(local[dim] as usize + 1) as u64);
        let (start, length) = (a.min(b), a.max(b) - a.min(b));
        let grid: Vec<u64> = std::iter::repeat_n(2, prepend).chain(parts.into_iter().take(local.len())).collect();
        let mut regions = Vec::new();
        let mut shape = Dims::default();
        for i in 0..grid.iter().product::<u64>() {
            let mut rest = i;
            let offsets: Vec<_> = grid.iter().enumerate().map(|(axis, &n)| {
                let at = rest % n;
                rest /= n;
                (axis, at, n)
            }).collect();
            let t = ShardedTensor::declare("w", DType::Int8, &local, &offsets, prepend).unwrap();
            let narrowed = t.narrow(dim, start, length).unwrap().remove(0);
            narrowed.validate().unwrap();
            regions.push(narrowed.region());
            shape = narrowed.global_shape;
        }
        let range = |i: usize, a: usize| regions[i].offsets[a]..regions[i].end(a);
        prop_assert_eq!(first_fault(&Region::whole(&shape), regions.len(), range), None);
    }

    /// Flattening and narrowing commute: what is left of a range are the elements of the narrowed whole that were in it.
    #[test]
    fn a_narrowed_range_has_the_elements_of_the_narrowed_whole(
        rows in 1u64..6, width in 1u64..4, cut in prop::array::uniform4(any::<prop::sample::Index>()),
    ) {
        let pick = |i: &prop::sample::Index, n: u64| i.index(n as usize + 1) as u64;
        let (a, b) = (pick(&cut[0], rows * width), pick(&cut[1], rows * width));
        let (c, d) = (pick(&cut[2], rows), pick(&cut[3], rows));
        let (range, start, length) = (a.min(b)..a.max(b), c.min(d), c.max(d) - c.min(d));
        let elements: Vec<i32> = (range.start as i32..range.end as i32).collect();
        let data = Tensor::from_vec(&[elements.len() as u64], elements).unwrap();
        let flat =
            ShardedTensor::from_rank_offsets_flat("w", data, &[rows, width], &[(0, 1, 2)], 0, range.clone()).unwrap();
        let kept = start * width..(start + length) * width;
        let want: Vec<i32> = range.filter(|i| kept.contains(i)).map(|i| i as i32).collect();
        let narrowed = flat.narrow(0, start, length).unwrap();
        let got: Vec<i32> = narrowed.iter().flat_map(|t| t.data.host().unwrap().to_vec::<i32>().unwrap()).collect();
        prop_assert_eq!(&got, &want);
        if let Some(t) = narrowed.first().filter(|_| !want.is_empty()) {
            prop_assert_eq!(t.flattened_range.as_ref().unwrap().start, want[0] as u64 - kept.start);
        }
    }

    /// Coordinates are those of the elements: counting them gives the range again.
    #[test]
    fn coordinates_count_the_range(shape in prop::collection::vec(1u64..4, 1..4), a: prop::sample::Index, b: prop::sample::Index) {
        let n = Dims::from(&*shape).volume().unwrap();
        let (a, b) = (a.index(n as usize + 1) as u64, b.index(n as usize + 1) as u64);
        let range = a.min(b)..a.max(b);
        let data = ints(&[range.end - range.start]);
        let t = ShardedTensor::from_rank_offsets_flat("w", data, &shape, &[], 0, range.clone()).unwrap();
        let coordinates = t.local_coordinates().unwrap();
        for (i, flat) in range.enumerate() {
            let at = coordinates.iter().zip(&shape).fold(0, |at, (c, n)| at * n + c[i]);
            prop_assert_eq!(at, flat);
        }
    }

    #[test]
    fn cells_have_names_that_are_read_back(
        shape in prop::collection::vec(1u64..5, 1..4), seed in prop::collection::vec(any::<prop::sample::Index>(), 3),
        key in "[a-z_.]{1,8}",
    ) {
        let offset: Vec<u64> = shape.iter().zip(&seed).map(|(n, i)| i.index(*n as usize) as u64).collect();
        let o = ShardedObject::new(&key, 1, &shape, &offset, 0).unwrap();
        let back = ShardedObject::empty_from_unique_key(&o.unique_key()).unwrap();
        prop_assert_eq!((&*back.key, &*back.global_shape, &*back.global_offset), (&*key, &*shape, &*offset));
        prop_assert_eq!(back.data, Payload::None);
    }

    #[test]
    fn no_name_of_an_object_panics(name in ".{0,24}") {
        for name in [format!("k/shard_{name}"), name] {
            if let Ok(o) = ShardedObject::empty_from_unique_key(&name) {
                o.validate().unwrap();
            }
        }
    }
}

#[test]
fn object_cells_outside_of_their_array_are_refused() {
    let e = |shape: &[u64], offset: &[u64]| {
        ShardedObject::new("rng", 1, shape, offset, 0)
            .unwrap_err()
            .to_string()
    };
    assert_eq!(
        e(&[2], &[2]),
        "rng: cell [2] lies outside an array of shape [2]"
    );
    assert!(
        e(&[2], &[0, 0]).starts_with(
            "rng: global offset dimensions should be equal to global shape dimensions"
        )
    );
    assert_eq!(
        e(&[], &[]),
        "rng: an array of objects needs an axis; use shape [1] and offset [0]"
    );
    let item = ShardedObject::item("lr", Payload::Value(Value::from(0.1)));
    assert_eq!((item.is_item(), item.unique_key()), (true, "lr".to_owned()));
}

#[test]
fn old_names_without_the_last_extent_are_read() {
    let o = ShardedObject::empty_from_unique_key("rng/shard_0.3_1").unwrap();
    assert_eq!(
        (o.global_shape, o.global_offset),
        ([1, 4].into(), [0, 3].into())
    );
    for bad in [
        "rng",
        "a/b/shard_0_1",
        "rng/shard_0_1_2",
        "rng/shard_x_1",
        "rng/cell_0_1",
        "rng/shard_1_1",
        "rng/shard_-1_1",
    ] {
        let e = ShardedObject::empty_from_unique_key(bad)
            .unwrap_err()
            .to_string();
        assert!(
            e.starts_with(bad) && e.contains("not the name of an object"),
            "{e}"
        );
    }
}

#[test]
fn prefixes_are_added_and_replaced_all_or_none() {
    let mut state = StateDict::new();
    state.insert("t", good());
    state.insert("o", ShardedObject::new("rng", 1, &[1], &[0], 0).unwrap());
    state.insert("v", 1);
    state.insert("l", LocalNonpersistent::new(()));
    let keys = |s: &StateDict| -> Vec<String> {
        let key = |l: &&Leaf| match l {
            Leaf::Tensor(t) => Some(t.key.to_string()),
            Leaf::Object(o) => Some(o.key.to_string()),
            _ => None,
        };
        s.nested_values().iter().filter_map(key).collect()
    };
    add_prefix_for_sharding(&mut state, "m.");
    assert_eq!(keys(&state), ["m.w", "m.rng"]);
    replace_prefix_for_sharding(&mut state, "m.", "n.").unwrap();
    assert_eq!(keys(&state), ["n.w", "n.rng"]);
    let e = replace_prefix_for_sharding(&mut state, "n.r", "x").unwrap_err();
    assert_eq!(
        e.to_string(),
        r#"n.w: expected a key that begins with prefix "n.r""#
    );
    assert_eq!(keys(&state), ["n.w", "n.rng"]);
}

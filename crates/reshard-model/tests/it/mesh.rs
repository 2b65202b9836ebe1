//! Meshes and placements: what PyTorch made of them, and laws.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use proptest::prelude::*;
use reshard_model::{
    DType, Data, DeviceMesh, Dims, Placement, Region, ShardedTensor, Tensor, first_fault,
};
use std::collections::BTreeSet;

/// Chunks of checkpoints that PyTorch 2.15 wrote (ranks with equal chunks share one):
/// checkpoint and key | mesh | its ranks, if not 0.. | placements, `T0/2` for strided | global shape | offsets+lengths.
const TORCH: &str = "
dt_1d_w2 even | 2 |  | S0 | 4,3 | 0,0+2,3 2,0+2,3
dt_1d_w2 uneven | 2 |  | S0 | 5,3 | 0,0+3,3 3,0+2,3
dt_1d_w2 col | 2 |  | S1 | 3,5 | 0,0+3,3 0,3+3,2
dt_1d_w2 bf16 | 2 |  | S0 | 6 | 0+3 3+3
dt_1d_w2 one_row | 2 |  | S0 | 1,4 | 0,0+1,4 1,0+0,4
dt_1d_w2 repl | 2 |  | R | 2,2 | 0,0+2,2
dt_1d_w2 plain | 2 |  | R | 3,3 | 0,0+3,3
dt_1d_w2 scalar | 2 |  | R |  | +
dt_1d_w2 empty | 2 |  | R | 0,3 | 0,0+0,3
dt_1d_w3 p7 | 3 |  | S0 | 7,2 | 0,0+3,2 3,0+3,2 6,0+1,2
dt_1d_w3 p2 | 3 |  | S0 | 2,2 | 0,0+1,2 1,0+1,2 2,0+0,2
dt_1d_w3 p1 | 3 |  | S0 | 1 | 0+1 1+0
dt_1d_w3 c11 | 3 |  | S1 | 2,11 | 0,0+2,4 0,4+2,4 0,8+2,3
dt_1d_w3 d3 | 3 |  | S2 | 2,3,5 | 0,0,0+2,3,2 0,0,2+2,3,2 0,0,4+2,3,1
dt_1d_w3 i8 | 3 |  | S0 | 10 | 0+4 4+4 8+2
dt_1d_w3 bool | 3 |  | S0 | 7 | 0+3 3+3 6+1
dt_1d_w4 even | 4 |  | S0 | 8,3 | 0,0+2,3 2,0+2,3 4,0+2,3 6,0+2,3
dt_1d_w4 uneven | 4 |  | S0 | 5,3 | 0,0+2,3 2,0+2,3 4,0+1,3 5,0+0,3
dt_1d_w4 col | 4 |  | S1 | 3,6 | 0,0+3,2 0,2+3,2 0,4+3,2 0,6+3,0
dt_1d_w4 c64 | 4 |  | S0 | 6 | 0+2 2+2 4+2 6+0
dt_1d_w4 tiny | 4 |  | S0 | 2 | 0+1 1+1 2+0
dt_1d_w4 repl | 4 |  | R | 2,5 | 0,0+2,5
dt_adam_w2 model.l1.weight | 2 |  | S0 | 5,3 | 0,0+3,3 3,0+2,3
dt_adam_w2 model.l1.bias | 2 |  | S0 | 5 | 0+3 3+2
dt_adam_w2 model.l2.weight | 2 |  | S0 | 2,5 | 0,0+1,5 1,0+1,5
dt_adam_w2 optim.state.l1.weight.step | 2 |  | R |  | +
fsdp2_adam_w4 model.buf | 4 |  | R | 3 | 0+3
fsdp2_adam_w4 model.0.weight | 4 |  | S0 | 5,3 | 0,0+2,3 2,0+2,3 4,0+1,3 5,0+0,3
fsdp2_adam_w4 model.0.bias | 4 |  | S0 | 5 | 0+2 2+2 4+1 5+0
fsdp2_adam_w4 model.2.weight | 4 |  | S0 | 2,5 | 0,0+1,5 1,0+1,5 2,0+0,5
fsdp2_adam_w4 model.2.bias | 4 |  | S0 | 2 | 0+1 1+1 2+0
fsdp2_adam_w4 optim.state.0.weight.step | 4 |  | R |  | +
hsdp_w4 model.buf | 2,2 |  | R R | 3 | 0+3
hsdp_w4 model.0.bias | 2,2 |  | R S0 | 5 | 0+3 3+2
hsdp_w4 model.2.bias | 2,2 |  | R S0 | 2 | 0+1 1+1
hsdp_w4 optim.state.0.weight.exp_avg | 2,2 |  | R S0 | 5,3 | 0,0+3,3 3,0+2,3
hsdp_w4 optim.state.2.weight.exp_avg_sq | 2,2 |  | R S0 | 2,5 | 0,0+1,5 1,0+1,5
hsdp_w4 optim.state.0.weight.step | 2,2 |  | R R |  | +
pipeline_w4 stage0.w | 1 | 0 | R | 2,2 | 0,0+2,2
pipeline_w4 stage1.w | 1 | 1 | R | 2,2 | 0,0+2,2
pipeline_w4 stage2.w | 1 | 2 | R | 2,2 | 0,0+2,2
pipeline_w4 stage3.w | 1 | 3 | R | 2,2 | 0,0+2,2
pipeline_w4 common | 4 | 0,1,2,3 | R | 3 | 0+3
pipeline_w4 sub | 2 | 1,2 | S0 | 5,2 | 0,0+3,2 3,0+2,2
sharded_tensor_w4 rows | 4 |  | S0 | 8,3 | 0,0+2,3 2,0+2,3 4,0+2,3 6,0+2,3
sharded_tensor_w4 grid | 2,2 | 0,1,2,3 | S0 S1 | 4,6 | 0,0+2,3 0,3+2,3 2,0+2,3 2,3+2,3
sharded_tensor_w4 two_per_rank | 4 |  | T0/2 | 16 | 0+2 2+2 4+2 6+2 8+2 10+2 12+2 14+2";

fn dims(s: &str) -> Dims {
    s.split(',')
        .filter(|s| !s.trim().is_empty())
        .map(|n| n.trim().parse::<u64>().unwrap())
        .collect()
}

fn mesh(shape: &[u64], ranks: Option<Vec<u32>>) -> DeviceMesh {
    let axes: Vec<(&str, u64)> = ["a", "b", "c"]
        .into_iter()
        .zip(shape.iter().copied())
        .collect();
    match ranks {
        None => DeviceMesh::of(&axes).unwrap(),
        Some(ranks) => DeviceMesh::new(&axes, ranks).unwrap(),
    }
}

fn placement(s: &str) -> Placement {
    if s == "R" {
        return Placement::Replicate;
    }
    match s[1..].split_once('/') {
        None => Placement::Shard(s[1..].parse().unwrap()),
        Some((dim, factor)) => Placement::StridedShard {
            dim: dim.parse().unwrap(),
            split_factor: factor.parse().unwrap(),
        },
    }
}

#[test]
fn chunks_are_those_that_torch_wrote() {
    let mut rows = 0;
    for line in TORCH.lines().filter(|l| !l.is_empty()) {
        let [_, shape, ranks, placements, global, chunks] =
            line.split('|').collect::<Vec<_>>().try_into().unwrap();
        let ranks = dims(ranks).iter().map(|&r| r as u32).collect::<Vec<_>>();
        let mesh = mesh(&dims(shape), (!ranks.is_empty()).then_some(ranks));
        let placements: Vec<Placement> = placements.split_whitespace().map(placement).collect();
        let global = dims(global);
        let theirs: BTreeSet<Region> = chunks
            .split_whitespace()
            .map(|c| c.split_once('+').unwrap())
            .map(|(o, l)| Region::new(dims(o), dims(l)))
            .collect();
        let ours: BTreeSet<Region> = (0..8)
            .filter_map(|rank| mesh.pieces("k", &placements, &global, rank).unwrap())
            .flatten()
            .collect();
        assert_eq!(ours, theirs, "{line}");
        rows += 1;
    }
    assert_eq!(rows, 47);
}

#[test]
fn uneven_row_chunks_of_a_legacy_sharded_tensor_are_an_irregular_grid() {
    let mut rows = Vec::new();
    for (offset, length) in [(0, 1), (1, 2), (3, 3), (6, 4)] {
        let piece = ShardedTensor::region_of(
            "uneven",
            DType::Float32,
            &[10, 2],
            Region::new([offset, 0], [length, 2]),
        );
        let piece = piece.validated().unwrap();
        assert!(piece.axis_fragmentations.is_none());
        rows.push(piece.region());
    }
    let range = |i: usize, a: usize| rows[i].offsets[a]..rows[i].end(a);
    assert_eq!(
        first_fault(&Region::whole(&[10, 2]), rows.len(), range),
        None
    );
}

/// Index lists per axis that torch 2.15's `_split_tensor` gives to each rank, and its first offsets.
#[test]
fn strided_and_nested_cuts_select_the_elements_that_torch_selects() {
    let cases: serde_json::Value =
        serde_json::from_str(include_str!("../data/placements_torch_2.15.json")).unwrap();
    let ints = |v: &serde_json::Value| -> Vec<u64> {
        v.as_array()
            .unwrap()
            .iter()
            .map(|n| n.as_u64().unwrap())
            .collect()
    };
    let cases = cases.as_array().unwrap();
    assert_eq!(cases.len(), 60);
    for case in cases {
        let placements: Vec<Placement> = case[1]
            .as_array()
            .unwrap()
            .iter()
            .map(|p| match ints(p)[..] {
                [] => Placement::Replicate,
                [dim] => Placement::Shard(dim as usize),
                [dim, split_factor] => Placement::StridedShard {
                    dim: dim as usize,
                    split_factor,
                },
                _ => panic!("{p}"),
            })
            .collect();
        let (mesh, shape) = (mesh(&ints(&case[0]), None), ints(&case[2]));
        for (rank, theirs) in case[3].as_array().unwrap().iter().enumerate() {
            let pieces = mesh
                .pieces("k", &placements, &shape, rank as u32)
                .unwrap()
                .unwrap();
            assert_eq!(*pieces[0].offsets, ints(&theirs[0]), "{case} rank {rank}");
            for axis in 0..shape.len() {
                let mut ranges = Vec::new();
                for p in &pieces {
                    let range = p.offsets[axis]..p.end(axis);
                    if !ranges.contains(&range) {
                        ranges.push(range);
                    }
                }
                let ours: Vec<u64> = ranges.into_iter().flatten().collect();
                assert_eq!(
                    ours,
                    ints(&theirs[1][axis]),
                    "{case} rank {rank} axis {axis}"
                );
            }
        }
    }
}

#[test]
fn fsdp_over_tensor_parallel_gives_ranks_in_another_order_than_offsets() {
    let mesh = mesh(&[2, 2], None);
    let placements = [
        Placement::StridedShard {
            dim: 0,
            split_factor: 2,
        },
        Placement::Shard(0),
    ];
    let offset = |rank| {
        mesh.pieces("w", &placements, &[6, 4], rank)
            .unwrap()
            .unwrap()[0]
            .offsets[0]
    };
    assert_eq!([0, 1, 2, 3].map(offset), [0, 3, 2, 5]);
}

#[test]
fn a_rank_outside_of_the_mesh_holds_nothing() {
    let mesh = mesh(&[2], Some(vec![5, 1]));
    let data = Tensor::from_vec(&[2], vec![1u8, 2]).unwrap();
    assert_eq!(
        mesh.pieces("k", &[Placement::Shard(0)], &[4], 0).unwrap(),
        None
    );
    assert!(
        ShardedTensor::from_mesh("k", data.clone(), &mesh, &[Placement::Shard(0)], &[4], 0)
            .unwrap()
            .is_empty()
    );
    let first =
        ShardedTensor::from_mesh("k", data, &mesh, &[Placement::Shard(0)], &[4], 5).unwrap();
    assert_eq!(first[0].global_offset, [0].into());
    assert_eq!(mesh.coordinate(1), Some([1].into()));
}

#[test]
fn what_can_not_be_placed_is_refused_with_the_reason() {
    let m = mesh(&[2], None);
    let error = |p: &[Placement]| m.pieces("w", p, &[4], 0).unwrap_err().to_string();
    assert!(error(&[Placement::Partial]).starts_with("w: a partial placement"));
    assert!(error(&[Placement::Shard(1)]).contains("cuts axis 1 of a tensor of shape [4]"));
    assert!(error(&[]).contains("0 placements for a mesh of shape [2]"));
    assert!(
        error(&[Placement::StridedShard {
            dim: 0,
            split_factor: 0
        }])
        .contains("split factor 0")
    );
    let error = |axes: &[(&str, u64)], ranks| DeviceMesh::new(axes, ranks).unwrap_err().to_string();
    assert!(error(&[("a", 2)], vec![1, 1]).contains("rank 1 occurs twice"));
    assert!(error(&[("a", 2)], vec![1]).contains("1 ranks were given"));
    assert!(error(&[("a", 1), ("a", 1)], vec![0]).contains("axis \"a\" occurs twice"));
    assert!(DeviceMesh::of(&[("a", u64::MAX), ("b", 2)]).is_err());
    let data = Tensor::from_vec(&[3], vec![0u8; 3]).unwrap();
    let e = ShardedTensor::from_mesh("w", data, &m, &[Placement::Shard(0)], &[4], 1).unwrap_err();
    assert!(e.to_string().contains("rank 1 holds shape [2]"), "{e}");
    assert!(
        ShardedTensor::from_mesh("w", Data::None, &m, &[Placement::Shard(0)], &[4], 1).is_err()
    );
}

fn any_placement(ndim: usize) -> impl Strategy<Value = Placement> {
    prop_oneof![
        Just(Placement::Replicate),
        (0..ndim).prop_map(Placement::Shard),
        (0..ndim, 1u64..4)
            .prop_map(|(dim, split_factor)| Placement::StridedShard { dim, split_factor }),
    ]
}

proptest! {
    #![proptest_config(reshard_model::testkit::law(256))]
    /// Every copy is the whole tensor: no element is held twice by it, and none is missing. What a rank's local tensor has at a
    /// place is the element that its piece names.
    #[test]
    fn the_pieces_of_each_replica_cover_the_tensor_once(
        shape in prop::collection::vec(0u64..8, 1..4),
        mesh_shape in prop::collection::vec(1u64..4, 1..4),
        seed in prop::collection::vec(any::<prop::sample::Index>(), 3),
        placements in prop::collection::vec(any_placement(3), 3),
    ) {
        let placements: Vec<Placement> = placements.into_iter().zip(&seed).take(mesh_shape.len()).map(|(p, i)| match p {
            Placement::Shard(_) => Placement::Shard(i.index(shape.len())),
            Placement::StridedShard { split_factor, .. } => Placement::StridedShard { dim: i.index(shape.len()), split_factor },
            other => other,
        }).collect();
        let mesh = mesh(&mesh_shape, None);
        let mut copies: std::collections::BTreeMap<Vec<u32>, Vec<Region>> = Default::default();
        let mut regular = BTreeSet::new();
        for &rank in mesh.ranks() {
            let copy = mesh.replica_id(&placements, rank).unwrap();
            let declared = ShardedTensor::declare_mesh("k", DType::UInt8, &mesh, &placements, &shape, rank).unwrap();
            prop_assert!(!declared.is_empty());
            for piece in declared {
                regular.insert(piece.axis_fragmentations.clone());
                prop_assert_eq!(&piece.replica_id, &copy);
                copies.entry(copy.0.to_vec()).or_default().push(piece.region());
            }
        }
        prop_assert_eq!(regular.len(), 1, "all ranks say the same about the grid");
        for (copy, pieces) in &copies {
            let range = |i: usize, a: usize| pieces[i].offsets[a]..pieces[i].end(a);
            prop_assert_eq!(first_fault(&Region::whole(&shape), pieces.len(), range), None, "copy {:?}", copy);
        }
        prop_assert!(copies.keys().any(|c| c.iter().all(|n| *n == 0)), "one copy is the main one");
    }

    /// Local data is cut into views that belong to the pieces: numbers of global elements stay what they are.
    #[test]
    fn views_of_local_data_hold_the_elements_that_their_piece_names(
        extent in 1u64..20, width in 1u64..3, parts in 1u64..4, split_factor in 1u64..4, rank in 0u32..4,
    ) {
        let mesh = mesh(&[parts], None);
        let placements = [Placement::StridedShard { dim: 0, split_factor }];
        let Some(pieces) = mesh.pieces("k", &placements, &[extent, width], rank).unwrap() else { return Ok(()) };
        let local: Vec<u64> = pieces.iter().flat_map(|p| (p.offsets[0] * width)..(p.end(0) * width)).collect();
        let rows = local.len() as u64 / width;
        let data = Tensor::from_vec(&[rows, width], local).unwrap();
        let tensors = ShardedTensor::from_mesh("k", data.clone(), &mesh, &placements, &[extent, width], rank).unwrap();
        prop_assert_eq!(tensors.len(), pieces.len());
        for (t, p) in tensors.iter().zip(&pieces) {
            let view = t.data.host().unwrap();
            prop_assert!(view.same_buffer(&data));
            prop_assert_eq!(&t.region(), p);
            let want: Vec<u64> = (p.offsets[0] * width..p.end(0) * width).collect();
            prop_assert_eq!(view.to_vec::<u64>().unwrap(), want);
        }
    }
}

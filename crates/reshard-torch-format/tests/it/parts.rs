//! DTensors and ShardedTensors, as torch 2.6 and 2.15 pickle them, and `metadata.pkl` of `torch_checkpointing`.

use bytes::Bytes;
use proptest::{prelude::*, sample::Index};
use reshard_model::{Placement, Region};
use reshard_torch_format::{Error, Leaf, Limits, Outline, PartRef, SpreadTable, TensorRef};
use std::{collections::BTreeMap, fs, path::PathBuf};

fn data(name: &str) -> Vec<u8> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/parts");
    fs::read(folder.join(name)).unwrap()
}

fn leaves(pickle: &[u8]) -> Result<BTreeMap<String, Leaf>, Error> {
    let pickle = Bytes::copy_from_slice(pickle);
    let limits = Limits::default();
    let outline = Outline::parse(&pickle, 10_000, &limits)?;
    let leaves = outline.contents(Default::default())?.leaves;
    Ok(leaves
        .into_iter()
        .map(|f| (f.path.to_string(), f.leaf))
        .collect())
}

fn part<'l>(leaves: &'l BTreeMap<String, Leaf>, key: &str) -> &'l PartRef {
    match &leaves[key] {
        Leaf::Part(part) => part,
        other => panic!("{key} is {other:?}"),
    }
}

/// A text in the place of another one of the same length.
fn swapped(pickle: &[u8], from: &str, to: &str) -> Vec<u8> {
    assert_eq!(from.len(), to.len());
    let at = pickle
        .windows(from.len())
        .position(|w| w == from.as_bytes());
    let mut out = pickle.to_vec();
    let at = at.unwrap();
    out[at..at + from.len()].copy_from_slice(to.as_bytes());
    out
}

#[test]
fn a_dtensor_tells_the_part_of_its_rank() {
    for (name, key, shape, region, layout) in [
        (
            "dtensor-2.15.pkl",
            "embed.weight",
            &[10, 8][..],
            Region::new([3, 0], [2, 8]),
            "[Shard(0), Shard(0)]",
        ),
        (
            "dtensor-2.15.pkl",
            "uneven",
            &[7, 5],
            Region::new([0, 3], [4, 2]),
            "[Shard(0), Shard(1)]",
        ),
        (
            "dtensor-2.6.pkl",
            "b",
            &[7, 5],
            Region::new([0, 3], [7, 2]),
            "[Shard(1)]",
        ),
        (
            "dtensor-2.6.pkl",
            "weight",
            &[8, 6],
            Region::new([4, 0], [2, 6]),
            "[_StridedShard(0, split_factor=2), Shard(0)]",
        ),
    ] {
        let leaves = leaves(&data(name)).unwrap();
        let part = part(&leaves, key);
        assert_eq!(
            (&part.shape[..], part.rank),
            (shape, Some(1)),
            "{name}: {key}"
        );
        let regions: Vec<&Region> = part.pieces.iter().map(|(region, _)| region).collect();
        assert_eq!(regions, [&region], "{name}: {key}");
        assert!(
            part.layout.starts_with(layout),
            "{name}: {key}: {}",
            part.layout
        );
    }
    let leaves = leaves(&data("dtensor-2.6.pkl")).unwrap();
    // A part of a mesh has only some of the ranks.
    assert_eq!(
        (&*part(&leaves, "b").ranks, &*part(&leaves, "a").ranks),
        (&[0, 1][..], &[0, 1, 2, 3][..])
    );
}

#[test]
fn a_sharded_tensor_tells_its_shards() {
    let leaves = leaves(&data("sharded.pkl")).unwrap();
    let part = part(&leaves, "w0");
    assert_eq!(
        (&part.shape[..], part.rank, &*part.ranks),
        (&[7, 5][..], Some(1), &[0, 1, 2][..])
    );
    assert_eq!(part.pieces[0].0, Region::new([3, 0], [3, 5]));
}

#[test]
fn what_is_not_understood_is_refused_by_its_name() {
    let pickle = data("dtensor-2.15.pkl");
    for (from, to, says) in [
        (
            "Replicate",
            "PartialXY",
            "placement PartialXY, of which each rank holds a summand",
        ),
        ("Replicate", "Elsewhere", "the placement Elsewhere"),
        (
            "_flatten_rank_map",
            "_flatten_rank_mop",
            "does not list its ranks",
        ),
        (
            "_local_tensor",
            "_lokal_tensor",
            "no attribute _local_tensor",
        ),
    ] {
        let leaves = leaves(&swapped(&pickle, from, to)).unwrap();
        let refused = leaves.values().filter_map(|leaf| match leaf {
            Leaf::Tensor(Err(e)) => Some(e.to_string()),
            _ => None,
        });
        let refused: Vec<String> = refused.collect();
        assert!(
            refused.iter().any(|e| e.contains(says)),
            "{to}: {refused:?}"
        );
    }
}

#[test]
fn metadata_of_both_versions_has_the_same_placements() {
    let tables = ["metadata-1.0.pkl", "metadata-2.0.pkl"].map(|name| {
        let table = SpreadTable::parse(&data(name), &Limits::default()).unwrap();
        assert_eq!(table.world_size, 4);
        let paths = table.tensors.into_iter().map(|t| {
            let path = match &t.item {
                Some(item) => format!("[\"{item}\",{}", &t.path[1..]),
                None => t.path.to_string(),
            };
            let spread = &t.groups[0].spread;
            assert_eq!(&*t.groups[0].ranks, [0, 1, 2, 3]);
            (path, format!("{spread} of {}", spread.shape))
        });
        paths.collect::<BTreeMap<String, String>>()
    });
    assert_eq!(tables[0], tables[1]);
    let uneven = "[Shard(0), Shard(1)] on a mesh of [2, 2] of [7, 5]";
    assert_eq!(tables[0]["[\"model\",\"uneven\"]"], uneven);

    let table = SpreadTable::parse(&data("metadata-2.0.pkl"), &Limits::default()).unwrap();
    let uneven = table
        .tensors
        .iter()
        .find(|t| t.path.contains("uneven"))
        .unwrap();
    let group = &uneven.groups[0];
    assert_eq!(
        group.spread.placements,
        [Placement::Shard(0), Placement::Shard(1)]
    );
    let local = TensorRef::contiguous(group.dtype, &[3, 2]).unwrap();
    let part = group.part_of_rank(&local, 3).unwrap();
    assert_eq!(part.pieces[0].0, Region::new([4, 3], [3, 2]));
    for (rank, shape) in [(2, [3, 2]), (7, [3, 2])] {
        let local = TensorRef::contiguous(group.dtype, &shape).unwrap();
        assert!(group.part_of_rank(&local, rank).is_err(), "rank {rank}");
    }
    let newer = swapped(&data("metadata-2.0.pkl"), "2.0", "3.0");
    let e = SpreadTable::parse(&newer, &Limits::default()).unwrap_err();
    assert!(e.to_string().contains("the version is \"3.0\""), "{e}");
}

const FILES: [&str; 5] = [
    "dtensor-2.15.pkl",
    "dtensor-2.6.pkl",
    "sharded.pkl",
    "metadata-1.0.pkl",
    "metadata-2.0.pkl",
];

proptest! {
    /// Whatever bytes are changed, there is a description or an error, and every piece lies in its tensor and its storage.
    #[test]
    fn nothing_panics(
        file in prop::sample::select(&FILES[..]),
        changes in prop::collection::vec((any::<Index>(), any::<u8>()), 1..6),
    ) {
        let mut bytes = data(file);
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        drop(SpreadTable::parse(&bytes, &Limits::default()));
        if let Ok(leaves) = leaves(&bytes) {
            for leaf in leaves.into_values() {
                let Leaf::Part(part) = leaf else { continue };
                for (region, tensor) in &part.pieces {
                    prop_assert!(region.fits(&part.shape));
                    prop_assert_eq!(&region.lengths, &tensor.shape);
                    prop_assert!(tensor.layout().is_ok());
                }
            }
        }
    }
}

/// Then FSDP2 over tensor parallelism said `Shard` for an axis that it cuts in another order.
#[test]
fn an_axis_that_torch_before_2_5_cuts_twice_is_refused() {
    let replaced = |pickle: &[u8], from: &str, to: &str| -> Vec<u8> {
        let text = pickle.iter().map(|b| char::from(*b)).collect::<String>();
        let text = text.replace(from, to);
        text.chars().map(|c| c as u8).collect()
    };
    let plain = replaced(&data("dtensor-2.6.pkl"), "\n_StridedShard\n", "\nShard\n");
    assert!(matches!(leaves(&plain).unwrap()["weight"], Leaf::Part(_)));
    let old = replaced(
        &plain,
        "torch.distributed.tensor.",
        "torch.distributed._tensor.",
    );
    let leaves = leaves(&old).unwrap();
    let Leaf::Tensor(Err(e)) = &leaves["weight"] else {
        panic!("{:?}", leaves["weight"])
    };
    assert!(e.to_string().contains("torch before 2.5"), "{e}");
    // One cut leaves no doubt.
    assert!(matches!(leaves["b"], Leaf::Part(_)));
}

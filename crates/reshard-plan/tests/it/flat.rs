//! Tensors that are stored flattened, and metadata that only say so.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use crate::cuts::*;
use reshard_model::testkit::{fixture_text, ours};
use reshard_model::{DType, Dims, ErrorKind, Region, ShardedTensor};
use reshard_plan::*;

/// A tensor of shape [4, 6] in 2 x 3 cells, as `stored` says; its chunks are those.
fn metadata(original: &[u64], stored: &[u64], chunks: &[Region]) -> Metadata {
    let mut b = Metadata::builder();
    let w = b
        .add_tensor("w", DType::Float32, stored, Default::default())
        .unwrap();
    b.set_original_shape(w, Dims::from(original));
    for c in chunks {
        b.add_chunk(w, c).unwrap();
    }
    b.finish(None).unwrap()
}

fn wants(region: Region) -> reshard_model::FlatStateDict {
    flat([leaf("w", &[4, 6], region)])
}

/// Where each item lies in its chunk's tensor, and in the leaf.
fn places(plan: &LoadPlan) -> Vec<String> {
    let place = |i: &ReadItem| {
        let view = i.flat.as_ref().unwrap();
        let (at, to) = (&i.stored_region, &i.dest_region);
        format!(
            "{} {at} of {} from {} to {to}",
            i.piece, view.shape, view.start
        )
    };
    plan.items.iter().map(place).collect()
}

#[test]
fn a_region_takes_from_each_cell_what_each_range_has_of_it() {
    let cut = |cell: [u64; 2], from: u64, n: u64| Region::new([cell[0], cell[1], from], [1, 1, n]);
    let mut chunks = Vec::new();
    for row in 0..2 {
        for column in 0..3 {
            chunks.extend([cut([row, column], 0, 3), cut([row, column], 3, 1)]);
        }
    }
    let stored = metadata(&[4, 6], &[2, 3, 4], &chunks);
    assert!(stored.problems().is_empty());
    let plan = load(
        DefaultLoadPlanner::DEFAULT,
        &wants(Region::new([1, 1], [1, 2])),
        &stored,
    );
    let found = places(&plan.unwrap());
    let expected = [
        "w[0, 0, 3] [1:2, 1:2] of [2, 2] from 3 to [0:1, 0:1]",
        "w[0, 1, 0] [1:2, 0:1] of [2, 2] from 0 to [0:1, 1:2]",
    ];
    assert_eq!(found, expected);
}

/// Megatron Core's own calls (`megatron/vectors_012.json`): which stored cells a cell of another grid meets.
#[test]
fn a_cell_meets_the_cells_of_another_grid_that_megatron_finds() {
    let Some(file) = fixture_text("megatron/vectors_012.json") else {
        return;
    };
    let file: serde_json::Value = serde_json::from_str(&file).unwrap();
    let all = file["vectors"].as_array().unwrap().iter();
    let all: Vec<_> = all.filter(|v| v["fn"] == "reformulate").collect();
    assert!(all.len() == 80 || !ours(), "{} vectors", all.len());
    for v in all {
        let dims = |name: &str| numbers(&v["in"][name]);
        let (shape, cells) = (dims("global_shape"), dims("ckpt_fragmentation"));
        let (fragments, at) = (dims("app_fragmentation"), dims("app_chunk"));
        let divided = |by: &Dims| -> Dims { shape.iter().zip(by).map(|(n, f)| n / f).collect() };
        let (cell, local) = (divided(&cells), divided(&fragments));
        let elements = cell.volume().unwrap();

        // Each stored cell is one chunk.
        let mut stored = cells.clone();
        stored.push(elements);
        let chunk = |b: Region| {
            let (mut offsets, mut lengths) = (b.offsets, b.lengths);
            offsets.push(0);
            lengths.push(elements);
            Region::new(offsets, lengths)
        };
        let one = |i| Region::whole(&cells).boxes(i..i + 1).next().unwrap();
        let chunks: Vec<Region> = (0..cells.volume().unwrap())
            .map(|i| chunk(one(i)))
            .collect();
        let stored = metadata(&shape, &stored, &chunks);

        let offsets: Vec<_> = (0..shape.len()).map(|a| (a, at[a], fragments[a])).collect();
        let leaf = ShardedTensor::declare("w", DType::Float32, &local, &offsets, 0).unwrap();
        let leaf = ShardedTensor {
            flattened_range: Some(0..local.volume().unwrap()),
            ..leaf
        };
        let template = flat([leaf]);
        let plan = load(DefaultLoadPlanner::DEFAULT, &template, &stored).unwrap();
        let met = plan.items.iter().map(|item| {
            let offset = item.piece.offset.clone().unwrap();
            let start = offset.iter().zip(&cell).map(|(c, n)| c * n);
            start.collect::<Dims>()
        });
        let met: std::collections::BTreeSet<Dims> = met.collect();
        let theirs = v["out"].as_array().unwrap().iter().map(numbers).collect();
        assert_eq!(met, theirs, "{v}");
    }
}

fn numbers(v: &serde_json::Value) -> Dims {
    let all = v.as_array().unwrap().iter();
    all.map(|n| n.as_u64().unwrap()).collect()
}

#[test]
fn whole_cells_in_one_chunk_are_read_as_a_stack() {
    // As a program stores it that knows nothing of cells.
    let all = [Region::whole(&[2, 3, 4])];
    let stored = metadata(&[4, 6], &[2, 3, 4], &all);
    let plan = load(
        DefaultLoadPlanner::DEFAULT,
        &wants(Region::new([3, 3], [1, 1])),
        &stored,
    );
    let found = places(&plan.unwrap());
    assert_eq!(
        found,
        ["w[0, 0, 0] [9:10, 1:2] of [12, 2] from 0 to [0:1, 0:1]"]
    );

    let parts = [
        Region::new([0, 0, 0], [2, 3, 2]),
        Region::new([0, 0, 2], [2, 3, 2]),
    ];
    let stored = metadata(&[4, 6], &[2, 3, 4], &parts);
    let e = load(
        DefaultLoadPlanner::DEFAULT,
        &wants(Region::whole(&[4, 6])),
        &stored,
    );
    let e = e.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unsupported);
    assert!(e.to_string().contains("parts of several cells"), "{e}");
}

#[test]
fn a_stored_shape_that_does_not_fit_is_damage() {
    for (original, stored, why) in [
        (&[4, 6][..], &[2, 3][..], "one axis more"),
        (&[4, 6], &[], "one axis more"),
        (
            &[4, 6],
            &[3, 3, 4],
            "axis 0 of 4 can't be cut into 3 fragments",
        ),
        (
            &[4, 6],
            &[0, 3, 4],
            "axis 0 of 4 can't be cut into 0 fragments",
        ),
        (&[4, 6], &[2, 3, 5], "does not have 5 elements"),
        (&[u64::MAX, 2], &[1, 1, 4], "does not have 4 elements"),
    ] {
        let metadata = metadata(original, stored, &[Region::whole(stored)]);
        let problems = metadata.problems();
        assert!(problems[0].to_string().contains(why), "{problems:?}");
        let one =
            ShardedTensor::region_of("w", DType::Float32, original, Region::new([0, 0], [1, 1]));
        let mut template = reshard_model::FlatStateDict::new();
        template.insert(
            reshard_model::Path(vec!["w".into()]),
            reshard_model::Sharded::Tensor(one),
        );
        let e = load(DefaultLoadPlanner::DEFAULT, &template, &metadata).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Corrupt, "{e}");
        assert!(e.to_string().contains(why), "{e}");
    }
}

#[test]
fn hostile_numbers_of_cells_end_at_once() {
    let (many, n) = (1u64 << 40, 1u64 << 40);
    let all = [Region::whole(&[many, 1])];
    let stored = metadata(&[n], &[many, 1], &all);
    let mut template = reshard_model::FlatStateDict::new();
    let whole = ShardedTensor::template("w", DType::Float32, &[n]);
    template.insert(
        reshard_model::Path(vec!["w".into()]),
        reshard_model::Sharded::Tensor(whole),
    );
    let e = load(DefaultLoadPlanner::DEFAULT, &template, &stored).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unsupported);
    assert!(e.to_string().contains("of its cells"), "{e}");
}

/// A template of whole tensors.
fn whole(tensors: &[(&str, &[u64])]) -> reshard_model::FlatStateDict {
    let mut template = reshard_model::FlatStateDict::new();
    for (key, shape) in tensors {
        let tensor = ShardedTensor::template(key, DType::Float32, shape);
        template.insert(
            reshard_model::Path(vec![(*key).into()]),
            reshard_model::Sharded::Tensor(tensor),
        );
    }
    template
}

#[test]
fn a_read_meets_so_many_cells_of_all_chunks_together() {
    // Three chunks, each of which alone has few enough cells.
    let cells = 1u64 << 15;
    let chunks: Vec<Region> = (0..3)
        .map(|n| Region::new([n * cells, 0], [cells, 16]))
        .collect();
    let n = 3 * cells * 16;
    let stored = metadata(&[n], &[n / 16, 16], &chunks);
    let e = load(DefaultLoadPlanner::DEFAULT, &whole(&[("w", &[n])]), &stored).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unsupported);
    assert!(
        e.to_string()
            .contains("a read may meet 65536; read smaller regions"),
        "{e}"
    );
    let two = ShardedTensor::region_of(
        "w",
        DType::Float32,
        &[n],
        Region::new([0], [2 * cells * 16]),
    );
    let plan = load(DefaultLoadPlanner::DEFAULT, &flat([two]), &stored).unwrap();
    assert_eq!(plan.items.len(), 1 << 16);

    // Tiny cells cost more than their elements are worth.
    let all = [Region::whole(&[2000, 15])];
    let stored = metadata(&[30_000], &[2000, 15], &all);
    let e = load(
        DefaultLoadPlanner::DEFAULT,
        &whole(&[("w", &[30_000])]),
        &stored,
    )
    .unwrap_err();
    assert!(e.to_string().contains("a read may meet 1024;"), "{e}");
}

#[test]
fn the_boxes_of_a_plan_are_bounded_however_many_tensors_have_them() {
    // Each read meets few enough cells. All tensors together would take gigabytes.
    let n = 1u64 << 16;
    let shape = [16 * n];
    let mut b = Metadata::builder();
    let keys: Vec<String> = (0..100).map(|i| format!("w{i}")).collect();
    for key in &keys {
        let w = b
            .add_tensor(key, DType::Float32, &[n, 16], Default::default())
            .unwrap();
        b.set_original_shape(w, Dims::from(&shape[..]));
        b.add_chunk(w, &Region::whole(&[n, 16])).unwrap();
    }
    let stored = b.finish(None).unwrap();
    let tensors: Vec<(&str, &[u64])> = keys.iter().map(|k| (&**k, &shape[..])).collect();
    let e = load(DefaultLoadPlanner::DEFAULT, &whole(&tensors), &stored).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unsupported);
    assert!(e.to_string().contains("numbers; read fewer tensors"), "{e}");
    assert!(load(DefaultLoadPlanner::DEFAULT, &whole(&tensors[..3]), &stored).is_ok());
}

#[test]
fn ranges_of_cells_of_many_axes_are_bounded_too() {
    // A range of a cell of 60 axes is more than a hundred boxes of 60 axes.
    let (axes, chunks) = (60, 10_000u64);
    let mut shape = vec![2u64; axes];
    shape[0] = 2 * chunks;
    let mut stored = vec![1u64; axes];
    stored[0] = chunks;
    stored.push(1 << axes);
    let mut all = Vec::new();
    for n in 0..chunks {
        let (mut offsets, mut lengths) = (vec![0u64; axes + 1], vec![1u64; axes + 1]);
        (offsets[0], offsets[axes], lengths[axes]) = (n, 1, (1 << axes) - 2);
        all.push(Region::new(offsets, lengths));
    }
    let stored = metadata(&shape, &stored, &all);
    let e = load(
        DefaultLoadPlanner::DEFAULT,
        &whole(&[("w", &shape)]),
        &stored,
    )
    .unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unsupported);
    assert!(e.to_string().contains("numbers; read fewer tensors"), "{e}");
}

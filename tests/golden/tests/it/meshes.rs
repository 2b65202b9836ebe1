//! What PyTorch's ranks held of DTensors is what a mesh and placements say here.

use reshard::{
    Region,
    model::{DeviceMesh, Dims, Placement},
};
use reshard_golden::{Chunk, Expected, fixtures};
use std::collections::{BTreeMap, BTreeSet};

const ROWS: Placement = Placement::Shard(0);

/// The mesh and the placements of a tensor of a fixture; `None` for those that were no DTensors.
fn declared(fixture: &str, key: &str, chunks: &[Chunk]) -> Option<(DeviceMesh, Vec<Placement>)> {
    let ranks: u64 = fixture.chars().last()?.to_digit(10)?.into();
    let line = |axis| Some((DeviceMesh::of(&[("dp", ranks)]).unwrap(), vec![axis]));
    // What isn't cut was there on every rank, or on one.
    let whole = chunks.len() == 1;
    match (fixture, key) {
        ("pipeline_w4", "sub") => Some((
            DeviceMesh::new(&[("dp", 2)], vec![1, 2]).unwrap(),
            vec![ROWS],
        )),
        ("pipeline_w4", stage) if stage.starts_with("stage") => {
            let rank = stage[5..6].parse().unwrap();
            Some((
                DeviceMesh::new(&[("pp", 1)], vec![rank]).unwrap(),
                vec![Placement::Replicate],
            ))
        }
        ("sharded_tensor_w4", "uneven") => None,
        ("sharded_tensor_w4", "grid") => {
            let mesh = DeviceMesh::of(&[("rows", 2), ("columns", 2)]).unwrap();
            Some((mesh, vec![ROWS, Placement::Shard(1)]))
        }
        ("sharded_tensor_w4", "two_per_rank") => line(Placement::StridedShard {
            dim: 0,
            split_factor: 2,
        }),
        ("hsdp_w4", _) if !whole => {
            let mesh = DeviceMesh::of(&[("replicate", 2), ("shard", 2)]).unwrap();
            Some((mesh, vec![Placement::Replicate, ROWS]))
        }
        _ if whole => line(Placement::Replicate),
        (_, "col" | "c11") => line(Placement::Shard(1)),
        (_, "d3") => line(Placement::Shard(2)),
        _ => line(ROWS),
    }
}

/// Each box by its first element, as DCP tells pieces apart, with the ranks that hold it.
fn held(
    mesh: &DeviceMesh,
    placements: &[Placement],
    shape: &Dims,
) -> BTreeMap<Dims, (Dims, BTreeSet<u32>)> {
    let mut out: BTreeMap<Dims, (Dims, BTreeSet<u32>)> = BTreeMap::new();
    for &rank in mesh.ranks() {
        for Region { offsets, lengths } in
            mesh.pieces("", placements, shape, rank).unwrap().unwrap()
        {
            out.entry(offsets)
                .or_insert((lengths, BTreeSet::new()))
                .1
                .insert(rank);
        }
    }
    out
}

fn check(name: &str, expected: &Expected) -> (usize, Vec<String>) {
    let (mut count, mut wrong) = (0, Vec::new());
    for (key, tensor) in &expected.tensors {
        let Some(chunks) = &tensor.chunks else {
            continue;
        };
        let Some((mesh, placements)) = declared(name, key, chunks) else {
            continue;
        };
        count += 1;
        let mut pieces = held(&mesh, &placements, &tensor.shape);
        for chunk in chunks {
            let rank = chunk
                .place
                .as_ref()
                .and_then(|p| p.file[2..].split('_').next()?.parse::<u32>().ok());
            match pieces.remove(&chunk.offsets) {
                Some((lengths, ranks))
                    if lengths == chunk.sizes && rank.is_some_and(|r| ranks.contains(&r)) => {}
                other => wrong.push(format!(
                    "{name}: {key}: rank {rank:?} wrote {chunk:?}, declared {other:?}"
                )),
            }
        }
        wrong.extend(
            pieces
                .iter()
                .map(|p| format!("{name}: {key}: nobody wrote {p:?}")),
        );
    }
    (count, wrong)
}

#[test]
fn meshes_and_placements_give_the_chunks_that_pytorch_wrote() {
    const NAMES: [&str; 8] = [
        "dt_1d_w2",
        "dt_1d_w3",
        "dt_1d_w4",
        "dt_adam_w2",
        "fsdp2_adam_w4",
        "hsdp_w4",
        "pipeline_w4",
        "sharded_tensor_w4",
    ];
    let (mut count, mut wrong) = (0, Vec::new());
    for f in fixtures() {
        let name = f.name.rsplit('/').next().unwrap();
        if NAMES.contains(&name) {
            let (n, differences) = check(name, &f.expected);
            count += n;
            wrong.extend(differences);
        }
    }
    println!("{count} tensors declared");
    assert!(count > 50, "{count} tensors are too few to prove anything");
    assert!(
        wrong.is_empty(),
        "{} differences:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

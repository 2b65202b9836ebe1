//! Rows beside the strategies of Megatron Core 0.12.

use crate::{
    peer::{OURS, Peer, RUNS},
    row::{Row, Target},
};
use std::path::Path;

const MEGATRON: &str = "Megatron Core 0.12";
const COPY: &str = "copy of the files";

/// TensorStore reads by default; the other reader is that of the zarr package.
const LOADS: [&str; 3] = ["plain", "ops=1", "pure"];
const SAVES: [&str; 2] = ["plain", "ops=1"];
const RELOADS: [&str; 2] = ["plain", "ops=1"];

fn theirs(args: &[&str]) -> Peer {
    Peer::megatron(MEGATRON, "mcore_bench.py", args)
}

/// Saves and loads of zarr, and flattened tensors that are loaded on another grid.
pub(crate) fn rows(gb: &str, place: &str, base: &Path) -> Vec<Row> {
    let at = |name: &str| base.join(name).display().to_string();
    let (zarr, their_zarr) = (&*at("ours-zarr"), &*at("theirs-zarr"));
    let (flat, their_flat) = (&*at("ours-flat"), &*at("theirs-flat"));
    let save = || {
        let all = ["save", "llama", gb, zarr, RUNS, "--format", "zarr"];
        Peer::reshard(OURS, &all)
    };
    let save_theirs = || theirs(&["save", "zarr", gb, their_zarr, RUNS]);
    let save_flat = || {
        let cut = "flattened-columns";
        Peer::reshard(OURS, &["save", "llama", gb, flat, "1", "--cut", cut])
    };
    let five = || vec![Target::Ratio(MEGATRON, 5.0)];
    let reload = ["load", "llama", gb, flat, RUNS, "--cut", "flattened-range"];
    vec![
        Row::new(
            format!("save {gb} GB as zarr, {place}"),
            vec![save(), save_theirs().best_of(&SAVES)],
            five(),
        ),
        Row::new(
            format!("load zarr, same split, {place}"),
            vec![
                Peer::reshard(OURS, &["load", "llama", gb, zarr, RUNS]),
                theirs(&["load", "zarr", gb, their_zarr, RUNS]).best_of(&LOADS),
            ],
            five(),
        )
        .needs(zarr, save())
        .needs(their_zarr, save_theirs())
        .removes(zarr),
        Row::new(
            format!("load flattened columns as ranges of whole tensors, {place}"),
            vec![
                Peer::reshard(OURS, &reload),
                theirs(&["reload", "torch_dist", gb, their_flat, RUNS])
                    .best_of(&RELOADS)
                    .costs(25.0, 8.0),
            ],
            five(),
        )
        .needs(flat, save_flat())
        .removes(flat),
    ]
}

/// A large checkpoint of flattened tensors that is rewritten as plain chunks.
pub(crate) fn unflatten(place: &str, base: &Path) -> Row {
    const GB: &str = "4.3";
    let at = |name: &str| base.join(name).display().to_string();
    let (flat, plain) = (&*at("large-flat"), &*at("large-plain"));
    let make = ["save", "llama", GB, flat, "1", "--cut", "flattened-columns"];
    Row::new(
        format!("rewrite {GB} GB of flattened tensors as plain chunks, {place}"),
        vec![
            Peer::reshard(OURS, &["unflatten", flat, plain, RUNS])
                .checks("CRC-32 of all, before and again")
                .costs(1.0, 6.0),
            Peer::reshard(COPY, &["copy-files", flat, plain, RUNS])
                .checks("nothing")
                .costs(1.0, 4.0),
        ],
        vec![Target::Ratio(COPY, 0.6), Target::Memory(128 << 20)],
    )
    .needs(flat, Peer::reshard(OURS, &make))
    .turns(1)
    .removes(flat)
}

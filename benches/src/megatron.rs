//! Rows beside the strategies of Megatron Core 0.12, and beside zarr-python.

use crate::{
    formats::{bare_read, bare_write},
    peer::{NOTHING, OURS, Peer, RUNS, VERIFIED, WRITES},
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

/// Saves and loads of zarr.
pub(crate) fn zarr(gb: &str, place: &str, base: &Path) -> Vec<Row> {
    let at = |name: &str| base.join(name).display().to_string();
    let (zarr, their_zarr, bare) = (&*at("ours-zarr"), &*at("theirs-zarr"), &*at("bare-zarr"));
    let save = || {
        let all = ["save", "llama", gb, zarr, RUNS, "--format", "zarr"];
        Peer::reshard(OURS, &all).checks(WRITES)
    };
    let save_theirs = || theirs(&["save", "zarr", gb, their_zarr, RUNS]);
    let load = |more: &[&str]| {
        let all = [&["load", "llama", gb, zarr, RUNS], more].concat();
        Peer::reshard(OURS, &all)
    };
    let load_theirs = || {
        let load = theirs(&["load", "zarr", gb, their_zarr, RUNS]);
        load.best_of(&LOADS).checks(NOTHING)
    };
    let five = || vec![Target::Ratio(MEGATRON, 5.0)];
    vec![
        Row::new(
            format!("save {gb} GB as zarr, {place}"),
            vec![
                save(),
                save_theirs().best_of(&SAVES).checks(NOTHING),
                bare_write(zarr, bare),
            ],
            five(),
        )
        .needs(zarr, save()),
        Row::new(
            format!("load zarr, same split, {place}"),
            vec![
                load(&[]).checks(VERIFIED),
                load_theirs(),
                bare_read(&[zarr]),
            ],
            five(),
        )
        .needs(zarr, save())
        .needs(their_zarr, save_theirs()),
        Row::new(
            format!("load zarr, same split, unverified, {place}"),
            vec![
                load(&["--no-verify"]).checks(NOTHING),
                load_theirs(),
                bare_read(&[zarr]),
            ],
            five(),
        )
        .needs(zarr, save())
        .needs(their_zarr, save_theirs())
        .removes(zarr),
    ]
}

/// Flattened tensors that are loaded on another grid.
pub(crate) fn flattened(gb: &str, place: &str, base: &Path) -> Row {
    let at = |name: &str| base.join(name).display().to_string();
    let (flat, their_flat) = (&*at("ours-flat"), &*at("theirs-flat"));
    let save_flat = || {
        let cut = "flattened-columns";
        Peer::reshard(OURS, &["save", "llama", gb, flat, "1", "--cut", cut])
    };
    let reload = ["load", "llama", gb, flat, RUNS, "--cut", "flattened-range"];
    Row::new(
        format!("load flattened columns as ranges of whole tensors, {place}"),
        vec![
            Peer::reshard(OURS, &reload).checks("CRC-32 of what is read whole"),
            theirs(&["reload", "torch_dist", gb, their_flat, RUNS])
                .best_of(&RELOADS)
                .checks(NOTHING)
                .costs(25.0, 8.0),
        ],
        vec![Target::Ratio(MEGATRON, 5.0)],
    )
    .needs(flat, save_flat())
    .removes(flat)
}

/// Zarr v3 beside zarr-python.
pub(crate) fn zarr3(gb: &str, place: &str, base: &Path) -> Vec<Row> {
    const ZARR: &str = "zarr-python 3.1";
    const SCRIPT: &str = "zarr_bench.py";
    const SAVES: [&str; 4] = ["plain", "sharded", "workers=1", "sharded,workers=1"];
    const LOADS: [&str; 4] = ["plain", "out", "workers=1", "out,workers=1"];
    let at = |name: &str| base.join(name).display().to_string();
    let (ours, theirs, bare) = (&*at("ours-zarr3"), &*at("theirs-zarr3"), &*at("bare-zarr3"));
    let save = || {
        let all = ["save", "llama", gb, ours, RUNS, "--format", "zarr3"];
        Peer::reshard(OURS, &all).checks(WRITES)
    };
    let load = |more: &[&str]| {
        let all = [&["load", "llama", gb, ours, RUNS], more].concat();
        Peer::reshard(OURS, &all)
    };
    let save_theirs = || Peer::zarr(ZARR, SCRIPT, &["save", gb, theirs, RUNS]);
    let load_theirs = || {
        let load = Peer::zarr(ZARR, SCRIPT, &["load", gb, theirs, RUNS]);
        load.best_of(&LOADS).checks(NOTHING)
    };
    let five = || vec![Target::Ratio(ZARR, 5.0)];
    vec![
        Row::new(
            format!("save {gb} GB as zarr3, {place}"),
            vec![
                save(),
                save_theirs().best_of(&SAVES).checks(NOTHING),
                bare_write(ours, bare),
            ],
            five(),
        )
        .needs(ours, save()),
        Row::new(
            format!("load zarr3, same split, {place}"),
            vec![
                load(&[]).checks(VERIFIED),
                load_theirs(),
                bare_read(&[ours]),
            ],
            five(),
        )
        .needs(ours, save())
        .needs(theirs, save_theirs()),
        Row::new(
            format!("load zarr3, same split, unverified, {place}"),
            vec![
                load(&["--no-verify"]).checks(NOTHING),
                load_theirs(),
                bare_read(&[ours]),
            ],
            five(),
        )
        .needs(ours, save())
        .needs(theirs, save_theirs())
        .removes(ours),
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
    .turns(3)
    .removes(flat)
}

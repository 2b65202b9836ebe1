//! Rows beside the programs of other formats: torch and safetensors, TensorFlow; and rows of `diff` and `stats`.

use crate::{
    peer::{NOTHING, OURS, Peer, RUNS, VERIFIED},
    row::{Row, Target},
    state::{LARGEST, LARGEST_BYTES},
};
use std::path::Path;

/// Threads of plain reads and writes.
const PREAD: &str = "bare copy, 2 threads";
const COLD: &str = "O_DIRECT read, 2 threads";
const COPY: &str = "copy of the files";

/// Several files, as large models have them.
const SAFETENSORS: &str = r#"{ "format": "safetensors", "max_shard_size": "1GB" }"#;
const BUNDLE: &str = r#"{ "format": "tensor_bundle", "in_folder": "ckpt" }"#;

/// Plain reads of all files of folders, by two threads into touched memory.
pub(crate) fn bare_read(dirs: &[&str]) -> Peer {
    let all = [&["read-files", RUNS], dirs].concat();
    Peer::reshard(PREAD, &all).checks(NOTHING)
}

/// Plain writes of files as long as those of a folder, by two threads.
pub(crate) fn bare_write(like: &str, dst: &str) -> Peer {
    Peer::reshard(PREAD, &["write-files", like, dst, RUNS])
}

/// A checkpoint of torch_dist as a folder of safetensors.
pub(crate) fn conversion(gb: &str, place: &str, base: &Path) -> Row {
    const TORCH: &str = "dcp_to_torch_save, torch.load, save_file";
    const SETTINGS: [&str; 4] = ["plain", "mmap", "mmap,no-crc", "mmap,no-crc,ops=1"];
    let at = |name: &str| base.join(name).display().to_string();
    let (src, dst) = (&*at("large"), &*at("large-converted"));
    let ours = ["convert", src, dst, RUNS, "--format", "safetensors"];
    let theirs = ["convert", src, dst, RUNS];
    Row::new(
        format!("convert {gb} GB of torch_dist to safetensors, {place}"),
        vec![
            Peer::reshard(OURS, &ours)
                .checks("CRC-32 of all, writes CRC-32")
                .costs(3.0, 3.0),
            Peer::torch(TORCH, "safetensors_bench.py", &theirs)
                .best_of(&SETTINGS)
                .checks(NOTHING)
                .costs(10.0, 12.0),
            Peer::reshard(COPY, &["copy-files", src, dst, RUNS])
                .checks(NOTHING)
                .costs(1.0, 4.0),
        ],
        vec![Target::Ratio(TORCH, 4.0), Target::Memory(128 << 20)],
    )
    .needs(src, Peer::reshard(OURS, &["save", "llama", gb, src, "1"]))
    .removes(src)
}

/// Loads from a folder of safetensors: one tensor into the caller's buffer, and all of them onto two ranks.
pub(crate) fn safetensors(gb: &str, place: &str, base: &Path) -> Vec<Row> {
    const SAFE_OPEN: &str = "safe_open";
    const HF: &str = "DCP, HuggingFaceStorageReader";
    const OPENS: [&str; 5] = ["plain", "slice", "numpy", "pread", "ops=1"];
    const LOADS: [&str; 4] = ["plain", "ops=1", "threads=2", "threads=2,ops=1"];
    let at = |name: &str| base.join(name).display().to_string();
    let dir = &*at("safetensors");
    let save = || {
        let all = ["save", "llama", gb, dir, "1", "--format", SAFETENSORS];
        Peer::reshard(OURS, &all)
    };
    let load = |state, more: &[&str]| {
        let all = [&["load", state, gb, dir, RUNS], more].concat();
        Peer::reshard(OURS, &all).costs(2.0, 1.5)
    };
    let one = |name: &str, more: &[&str], checks| {
        let one = [&["--cut", "whole", "--world", "1"], more].concat();
        let theirs = ["load", dir, LARGEST, RUNS];
        let bytes = LARGEST_BYTES.to_string();
        Row::new(
            format!("load one tensor of a folder of {gb} GB of safetensors{name}, {place}"),
            vec![
                load("largest", &one).checks(checks).costs(0.5, 0.02),
                Peer::torch(SAFE_OPEN, "safetensors_bench.py", &theirs)
                    .best_of(&OPENS)
                    .checks(NOTHING)
                    .costs(4.0, 0.02),
                Peer::reshard(PREAD, &["read-files", RUNS, dir, "--first", &bytes])
                    .checks(NOTHING)
                    .costs(0.5, 0.02),
            ],
            vec![Target::Ratio(SAFE_OPEN, 1.0)],
        )
        .needs(dir, save())
    };
    vec![
        one("", &[], VERIFIED),
        one(", unverified", &["--no-verify"], NOTHING),
        Row::new(
            format!("load {gb} GB of safetensors, each tensor onto 2 ranks, {place}"),
            vec![
                load("llama", &[]).checks("nothing: no rank reads all of a tensor"),
                Peer::dcp(HF, "load", "llama", gb, dir, &["--hf"])
                    .best_of(&LOADS)
                    .checks(NOTHING)
                    .costs(6.0, 3.0),
                bare_read(&[dir]).costs(3.0, 1.0),
            ],
            vec![Target::Ratio(HF, 3.0)],
        )
        .needs(dir, save())
        .removes(dir),
    ]
}

/// Saves and loads of TensorFlow's checkpoints.
pub(crate) fn bundles(gb: &str, place: &str, base: &Path) -> Vec<Row> {
    const TENSORFLOW: &str = "TensorFlow 2.21";
    const SCRIPT: &str = "bundle_bench.py";
    const SAVES: [&str; 3] = ["plain", "shards", "rows"];
    const LOADS: [&str; 5] = ["plain", "shards", "kept", "shards,kept", "rows"];
    let at = |name: &str| base.join(name).display().to_string();
    let (ours, theirs, bare) = (
        &*at("ours-bundle"),
        &*at("theirs-bundle"),
        &*at("bare-bundle"),
    );
    let save = || {
        let all = ["save", "llama", gb, ours, RUNS, "--format", BUNDLE];
        Peer::reshard(OURS, &all).checks("writes CRC-32C")
    };
    let save_theirs = || {
        Peer::tensorflow(TENSORFLOW, SCRIPT, &["save", gb, theirs, RUNS]).checks("writes CRC-32C")
    };
    let load_theirs = Peer::tensorflow(TENSORFLOW, SCRIPT, &["load", gb, theirs, RUNS]);
    let twice = || vec![Target::Ratio(TENSORFLOW, 2.0)];
    vec![
        Row::new(
            format!("save {gb} GB as a TensorFlow checkpoint, {place}"),
            vec![
                save(),
                save_theirs().best_of(&SAVES),
                bare_write(ours, bare),
            ],
            twice(),
        )
        .needs(ours, save()),
        Row::new(
            format!("load a TensorFlow checkpoint of {gb} GB, same split, {place}"),
            vec![
                Peer::reshard(OURS, &["load", "llama", gb, ours, RUNS]).checks("CRC-32C of all"),
                load_theirs.best_of(&LOADS).checks("CRC-32C of all"),
                bare_read(&[ours]),
            ],
            twice(),
        )
        .needs(ours, save())
        .needs(theirs, save_theirs())
        .removes(ours),
    ]
}

/// `diff` and `stats` of checkpoints that are on the disk alone, beside reading their files past the page cache.
pub(crate) fn analyses(gb: &str, place: &str, base: &Path) -> Vec<Row> {
    let at = |name: &str| base.join(name).display().to_string();
    let (first, second) = (&*at("first"), &*at("second"));
    let save = |dir| Peer::reshard(OURS, &["save", "llama", gb, dir, "1", "--synced"]);
    let read = |dirs: &[&str]| {
        let all = [&["read-files", RUNS, "--direct"], dirs].concat();
        Peer::reshard(COLD, &all).checks(NOTHING).costs(1.0, 4.0)
    };
    let half = || vec![Target::Ratio(COLD, 0.5)];
    vec![
        Row::new(
            format!("stats of {gb} GB that the page cache doesn't have, {place}"),
            vec![
                Peer::reshard(OURS, &["stats", first, RUNS])
                    .checks(NOTHING)
                    .costs(1.0, 4.0),
                read(&[first]),
            ],
            half(),
        )
        .needs(first, save(first)),
        Row::new(
            format!("diff of twice {gb} GB that the page cache doesn't have, {place}"),
            vec![
                Peer::reshard(OURS, &["diff", first, second, RUNS])
                    .checks(NOTHING)
                    .costs(1.0, 8.0),
                read(&[first, second]),
            ],
            half(),
        )
        .needs(first, save(first))
        .needs(second, save(second))
        .removes(second),
    ]
}

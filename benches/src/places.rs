//! Rows of places in buckets: servers on this machine that speak the protocol of S3, each behind a proxy whose answers are late.

use crate::{
    peer::{NOTHING, OURS, Peer, RUNS, VERIFIED, WRITES},
    proxy,
    row::{Row, Target},
    served::Served,
};
use anyhow::Result;
use std::sync::Arc;

/// The servers.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Servers {
    /// URL of s3s-fs, which has a bucket `reshard`; without it, its rows are left out.
    #[arg(long)]
    s3s: Option<String>,
    /// URL of moto, likewise.
    #[arg(long)]
    moto: Option<String>,
}

/// Where both save.
const OURS_AT: &str = "s3://reshard/ours";
const THEIRS_AT: &str = "s3://reshard/theirs";

/// What the proxy itself passes on, which must be more than any row needs.
pub(crate) fn speeds() -> Result<String> {
    let speed = |connections| proxy::speed(connections).map(|bytes| bytes / 1e9);
    let (one, many) = (speed(1)?, speed(32)?);
    Ok(format!(
        "the proxy of the rows of buckets passes {one:.1} GB/s through one connection, and {many:.1} GB/s through 32"
    ))
}

/// The rows of each server.
pub(crate) fn rows(gb: &str, servers: &Servers) -> Result<Vec<Row>> {
    let mut all = Vec::new();
    let s3s = servers.s3s.as_deref().map(|url| ("s3s-fs", url));
    let moto = servers.moto.as_deref().map(|url| ("moto", url));
    for (name, url) in s3s.into_iter().chain(moto) {
        let served = Arc::new(Served::new(url)?);
        all.extend(rows_of(gb, name, &served));
    }
    Ok(all)
}

/// DCP's settings, of which the fastest is measured in each row.
const SAVES: [&str; 3] = [
    "cached,block=16",
    "cached,block=16,threads=4",
    "cached,block=16,threads=4,no-crc",
];
const LOADS: [&str; 3] = ["block=16", "block=64", "block=16,cache=background"];
const PARTS: [&str; 3] = ["block=5", "block=16", "block=32"];

/// 8,192 tensors of 64 KiB.
const SMALL_GB: &str = "0.536870912";
const OURS_SMALL_AT: &str = "s3://reshard/ours-small";
const THEIRS_SMALL_AT: &str = "s3://reshard/theirs-small";

fn rows_of(gb: &str, name: &str, served: &Arc<Served>) -> [Row; 5] {
    let ours = |args: &[&str]| Peer::reshard(OURS, args).at(served).costs(2.0, 4.0);
    let dcp = |mode, state, more: &[&str]| {
        let (gb, at) = match state {
            "small" => (SMALL_GB, THEIRS_SMALL_AT),
            _ => (gb, THEIRS_AT),
        };
        let peer = Peer::dcp("DCP, s3fs", mode, state, gb, at, more);
        peer.at(served).costs(8.0, 15.0)
    };
    let save = || ours(&["save", "llama", gb, OURS_AT, RUNS]).checks(WRITES);
    let save_theirs = || dcp("save", "llama", &[]);
    let small = |mode| ours(&[mode, "small", SMALL_GB, OURS_SMALL_AT, RUNS]);
    let place = format!("{name} whose answers come 20 ms later");
    // moto has no target: it is a program of one thread.
    let row = |title: String, peers, ratio| {
        let row = match name {
            "moto" => Row::new(title, peers, vec![]).turns(1),
            _ => Row::new(title, peers, vec![Target::Ratio("DCP, s3fs", ratio)]),
        };
        row.served(served)
    };
    let served_row =
        |title, peers, targets| Row::new(title, peers, targets).served(served).turns(1);
    let eighth = ["--parts", "8", "--world", "1", "--no-verify"];
    let eighth = [&["load", "llama", gb, OURS_AT, RUNS], &eighth[..]].concat();
    let one = ["--cut", "whole", "--parts", "1", "--world", "1"];
    let one = [&["load", "largest", gb, OURS_AT, RUNS], &one[..]].concat();
    [
        row(
            format!("save {gb} GB to a bucket, {place}"),
            vec![save(), save_theirs().best_of(&SAVES).checks("as it says")],
            3.0,
        )
        .makes(OURS_AT)
        .makes(THEIRS_AT),
        row(
            format!("load {gb} GB from a bucket, {place}"),
            vec![
                ours(&["load", "llama", gb, OURS_AT, RUNS]).checks(VERIFIED),
                dcp("load", "llama", &[]).best_of(&LOADS).checks(NOTHING),
            ],
            3.0,
        )
        .needs(OURS_AT, save())
        .needs(THEIRS_AT, save_theirs()),
        row(
            format!("load one tensor of 45 MB of {gb} GB in a bucket, {place}"),
            vec![
                ours(&one).checks(VERIFIED).costs(1.0, 0.2),
                dcp("load", "largest", &["--world", "1"])
                    .best_of(&PARTS)
                    .checks(NOTHING)
                    .costs(8.0, 1.0),
            ],
            10.0,
        )
        .needs(OURS_AT, save())
        .needs(THEIRS_AT, save_theirs()),
        served_row(
            format!("load an eighth of the rows of {gb} GB in a bucket, {place}"),
            vec![ours(&eighth).checks(NOTHING).costs(1.0, 1.0)],
            vec![],
        )
        .amplification(1.05)
        .needs(OURS_AT, save()),
        served_row(
            format!("load 8,192 tensors of 64 KiB from a bucket, {place}"),
            vec![
                small("load").checks(VERIFIED),
                dcp("load", "small", &[]).best_of(&LOADS).checks(NOTHING),
            ],
            vec![Target::Requests(200)],
        )
        .needs(OURS_SMALL_AT, small("save"))
        .needs(THEIRS_SMALL_AT, dcp("save", "small", &[])),
    ]
}

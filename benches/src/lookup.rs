//! Lookups in an embedding table of many rows, and their gradients.

use crate::measure::{Measured, cpu};
use anyhow::{Context, Result, ensure};
use reshard::{DType, Tensor, policy::partition::PartitionSpec};
use reshard_embedding::{
    LookupOptions, ShardedVariable, embedding_lookup, embedding_lookup_into, lookup_gradients,
};
use std::time::Instant;

const ROWS: u64 = 10_000_000;
const WIDTH: u64 = 64;
const PARTS: u64 = 8;
const IDS: u64 = 1_000_000;

/// Ids all over the table; the Python script makes the same.
fn ids() -> Vec<i64> {
    let mixed = |i: u64| {
        let once = i.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (once ^ (once >> 32)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 20
    };
    (0..IDS).map(|i| (mixed(i) % ROWS) as i64).collect()
}

/// Every element of a row is the row's number. It lies in reshard's own memory, as after a load.
fn table() -> Result<ShardedVariable> {
    let spec = PartitionSpec::partitions([PARTS, 1]);
    let zeros = |_: &[u64], _: &[u64], shape: &[u64]| Tensor::zeros("table", DType::Float32, shape);
    let mut table = ShardedVariable::create("table", &[ROWS, WIDTH], DType::Float32, &spec, 1, zeros)?;
    let all: Vec<i64> = (0..ROWS as i64).collect();
    for rows in all.chunks(100_000) {
        let elements = rows.iter().flat_map(|&row| [row as f32; WIDTH as usize]).collect();
        table.scatter_update(rows, &Tensor::from_vec(&[rows.len() as u64, WIDTH], elements)?)?;
    }
    Ok(table)
}

/// What is measured.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum Do {
    /// Rows into new memory.
    Lookup,
    /// Rows into the memory of the last ones.
    Into,
    /// What a gradient of rows is for each part.
    Gradients,
}

/// A million rows of ten million in eight parts, by two threads.
pub(crate) fn lookup(what: Do, iterations: usize) -> Result<Measured> {
    let (table, ids) = (table()?, ids());
    let options = LookupOptions::new().threads(2);
    let mut rows = embedding_lookup(&table, &ids, &options)?;
    check(&rows, &ids)?;
    let mut out = Measured { bytes: IDS * WIDTH * 4, ..Measured::default() };
    // The first run warms up.
    for turn in 0..=iterations {
        let (start, before) = (Instant::now(), cpu());
        let (mut new, mut gradients) = (None, None);
        match what {
            Do::Lookup => new = Some(embedding_lookup(&table, &ids, &options)?),
            Do::Into => embedding_lookup_into(&table, &ids, &options, &mut rows)?,
            Do::Gradients => gradients = Some(lookup_gradients(&table, &ids, &rows, &options)?),
        }
        if turn > 0 {
            out.seconds.push(start.elapsed().as_secs_f64());
            out.cpu.push(cpu() - before);
        }
        check(new.as_ref().unwrap_or(&rows), &ids)?;
        let counted = gradients.map_or(ids.len(), |parts| parts.iter().map(|p| p.indices.len()).sum());
        ensure!(counted == ids.len(), "gradients are lost");
    }
    Ok(out)
}

fn check(rows: &Tensor, ids: &[i64]) -> Result<()> {
    let elements = rows.to_vec::<f32>().context("float32 is looked up")?;
    let right =
        elements.chunks(WIDTH as usize).zip(ids).all(|(row, &id)| row.iter().all(|&x| x == id as f32));
    ensure!(right && elements.len() as u64 == IDS * WIDTH, "wrong rows");
    Ok(())
}

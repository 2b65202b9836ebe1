//! Lookups in an embedding table of many rows, and their gradients.

use crate::{
    measured::{Measured, cpu},
    state::written,
};
use anyhow::{Result, ensure};
use bytes::Bytes;
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
    let mut table =
        ShardedVariable::create("table", &[ROWS, WIDTH], DType::Float32, &spec, 1, zeros)?;
    let all: Vec<i64> = (0..ROWS as i64).collect();
    for rows in all.chunks(100_000) {
        let elements = rows
            .iter()
            .flat_map(|&row| [row as f32; WIDTH as usize])
            .collect();
        table.scatter_update(
            rows,
            &Tensor::from_vec(&[rows.len() as u64, WIDTH], elements)?,
        )?;
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
    /// As a plain loop does it, into new memory.
    Loop,
    /// As a plain loop does it, into memory that is there.
    LoopInto,
    /// What a gradient of rows is for each part.
    Gradients,
}

/// A million rows of ten million in eight parts, by two threads.
pub(crate) fn lookup(what: Do, iterations: usize) -> Result<Measured> {
    let (table, ids) = (table()?, ids());
    let options = LookupOptions::new().threads(2);
    let mut rows = embedding_lookup(&table, &ids, &options)?;
    check(&rows, &ids)?;
    let parts: Vec<Bytes> = table
        .parts()
        .iter()
        .map(|p| p.data().map_or_else(Bytes::new, Tensor::to_bytes))
        .collect();
    let mut kept = Some(zeros()?);
    let mut out = Measured {
        bytes: IDS * WIDTH * 4,
        ..Measured::default()
    };
    // The first run warms up.
    for turn in 0..=iterations {
        let (start, before) = (Instant::now(), cpu());
        let (mut new, mut gradients, mut copied) = (None, None, None);
        match what {
            Do::Lookup => new = Some(embedding_lookup(&table, &ids, &options)?),
            Do::Into => embedding_lookup_into(&table, &ids, &options, &mut rows)?,
            Do::Loop => copied = Some(copy(&parts, &ids, zeros()?)?),
            Do::LoopInto => {
                copied = kept
                    .take()
                    .map(|rows| copy(&parts, &ids, rows))
                    .transpose()?
            }
            Do::Gradients => gradients = Some(lookup_gradients(&table, &ids, &rows, &options)?),
        }
        if turn > 0 {
            out.seconds.push(start.elapsed().as_secs_f64());
            out.cpu.push(cpu() - before);
        }
        if let Some(copied) = copied {
            check(&copied, &ids)?;
            kept = Some(copied);
        }
        check(new.as_ref().unwrap_or(&rows), &ids)?;
        let counted = gradients.map_or(ids.len(), |parts| {
            parts.iter().map(|p| p.indices.len()).sum()
        });
        ensure!(counted == ids.len(), "gradients are lost");
    }
    Ok(out)
}

/// The bytes of a row.
const ROW: usize = WIDTH as usize * 4;

/// Memory for all rows, as the lookup takes it.
fn zeros() -> Result<Tensor> {
    Ok(Tensor::zeros("rows", DType::Float32, &[IDS, WIDTH])?)
}

/// What a lookup can't do without: for each id a division, and a copy of a row whose size the compiler knows. The same memory, and
/// as many threads; no table of parts of any sizes, no errors, nothing that is fetched ahead.
fn copy(parts: &[Bytes], ids: &[i64], rows: Tensor) -> Result<Tensor> {
    const EACH: usize = (ROWS / PARTS) as usize;
    let parts: Vec<&[[u8; ROW]]> = parts.iter().map(|p| p.as_chunks().0).collect();
    let half = ids.len() / 2;
    let work = |ids: &[i64], to: &mut [[u8; ROW]]| {
        for (id, to) in ids.iter().zip(to) {
            *to = parts[*id as usize / EACH][*id as usize % EACH];
        }
    };
    written(rows, |memory| {
        let (first, second) = memory.as_chunks_mut().0.split_at_mut(half);
        std::thread::scope(|scope| {
            scope.spawn(|| work(&ids[half..], second));
            work(&ids[..half], first);
        });
    })
}

fn check(rows: &Tensor, ids: &[i64]) -> Result<()> {
    // In place: a copy would leave other free memory to the next run than the peers' checks do.
    let bytes = rows.to_bytes();
    let right = bytes
        .as_chunks::<ROW>()
        .0
        .iter()
        .zip(ids)
        .all(|(row, &id)| {
            let mut elements = row.as_chunks().0.iter();
            elements.all(|&x| f32::from_le_bytes(x) == id as f32)
        });
    ensure!(right && bytes.len() as u64 == IDS * WIDTH * 4, "wrong rows");
    Ok(())
}

//! Gathering through ranged reads alone: what a store does that has nothing better.

use super::{
    plan::{Prepared, join},
    split::{Split, name_whole, split as cut_large},
};
use crate::{Name, Progress, RecordRead, Result, StorageError, Store, Traffic};
use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use std::ops::Range;

/// Reads ranges through [`Store::read`], those that are near each other in one read.
pub(crate) async fn read_ranges<S: Store + ?Sized>(
    store: &S,
    reads: Vec<(Name, Range<u64>)>,
) -> Result<(Vec<Bytes>, Traffic)> {
    let hints = store.hints();
    let joined = join(&reads, hints.coalesce_gap, hints.part_size)?;
    let mut out = vec![Bytes::new(); reads.len()];
    let mut stats = Traffic::default();
    let mut answers = stream::iter(joined)
        .map(|j| async move {
            store
                .read(&j.name, j.range.clone())
                .await
                .map(|bytes| (j, bytes))
        })
        .buffered(hints.concurrency.max(1));
    while let Some((j, bytes)) = answers.try_next().await? {
        split(&reads, &j.members, &j.range, &bytes, &mut out)?;
        stats = [stats, j.stats(&reads)].into_iter().sum();
    }
    Ok((out, stats))
}

/// Gives each range its share of what was read together.
pub(crate) fn split(
    reads: &[(Name, Range<u64>)],
    members: &[usize],
    range: &Range<u64>,
    bytes: &Bytes,
    out: &mut [Bytes],
) -> Result<()> {
    for &i in members {
        let (name, r) = &reads[i];
        let (from, to) = (
            (r.start - range.start) as usize,
            (r.end - range.start) as usize,
        );
        if to > bytes.len() {
            return Err(StorageError::Short {
                path: name.to_string(),
                range: r.clone(),
                size: range.start + bytes.len() as u64,
            });
        }
        out[i] = bytes.slice(from..to);
    }
    Ok(())
}

/// Gathers through [`Store::read`], several records at once, each in blocks of a part's size.
pub(crate) async fn read_into<S: Store + ?Sized>(
    store: &S,
    reads: Vec<RecordRead>,
    progress: Progress,
) -> Result<Traffic> {
    let hints = store.hints();
    let lanes = hints.concurrency.max(1);
    let total: u64 = reads
        .iter()
        .map(RecordRead::weight)
        .fold(0, u64::saturating_add);
    // A large record is read through several lanes too, when there are few others.
    let Split { reads, cut } = cut_large(reads, hints.part_size.max(total / (2 * lanes as u64)))?;
    let mut all = reads
        .into_iter()
        .map(Prepared::new)
        .collect::<Result<Vec<_>>>()?;
    all.sort_by(|a, b| (&a.name, a.record.start).cmp(&(&b.name, b.record.start)));
    let progress = &progress;
    let work = all
        .into_iter()
        .map(|p| one(store, p, hints.coalesce_gap, hints.part_size, progress));
    let stats: Result<Vec<Traffic>> = stream::iter(work)
        .buffer_unordered(lanes)
        .try_collect()
        .await;
    Ok(stats.map_err(|e| name_whole(e, &cut))?.into_iter().sum())
}

async fn one<S: Store + ?Sized>(
    store: &S,
    mut p: Prepared,
    gap: u64,
    part: u64,
    progress: &Progress,
) -> Result<Traffic> {
    let mut stats = Traffic {
        needed: p.needed,
        ..Traffic::default()
    };
    while let Some(block) = p.next_block(gap, part) {
        let at = p.record.start;
        let range = at + block.start..at + block.end;
        let bytes = store.read(&p.name, range.clone()).await?;
        if bytes.len() as u64 != block.end - block.start {
            let size = range.start + bytes.len() as u64;
            return Err(StorageError::Short {
                path: p.name.to_string(),
                range,
                size,
            });
        }
        p.feed(block.start, &bytes);
        stats.bytes += bytes.len() as u64;
        stats.requests += 1;
    }
    p.finish()?;
    progress.add(stats.needed);
    Ok(stats)
}

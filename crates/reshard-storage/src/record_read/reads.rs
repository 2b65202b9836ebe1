//! Gathering through ranged reads alone: what a store does that has nothing better.

use super::{
    plan::{Prepared, join},
    split::{Split, name_whole, split as cut_large},
};
use crate::{Hints, Name, Progress, RecordRead, Result, StorageError, Store, Traffic};
use async_trait::async_trait;
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
        stats += j.stats(&reads);
    }
    Ok((out, stats))
}

/// What it takes to read ranges with these preferences: how many bytes, and how many requests.
///
/// ```
/// use reshard_storage::{Hints, Name, joined_reads};
///
/// let file = Name::new("a")?;
/// let reads = vec![(file.clone(), 0..100), (file.clone(), 200..300), (file, 1 << 20..(1 << 20) + 1)];
/// let taken = joined_reads(reads, &Hints::default());
/// assert_eq!((taken.requests, taken.bytes, taken.beside), (2, 201, 100));
/// # Ok::<(), reshard_storage::StorageError>(())
/// ```
pub fn joined_reads(reads: Vec<(Name, Range<u64>)>, hints: &Hints) -> Traffic {
    // A range that ends before it starts is refused when it is read.
    let joined = join(&reads, hints.coalesce_gap, hints.part_size).unwrap_or_default();
    joined.iter().map(|j| j.stats(&reads)).sum()
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

/// What takes pieces of what is read.
pub type TakePiece<'a> = dyn FnMut(&[u8]) + Send + 'a;

/// Reads ranges in pieces, for [`read_pieces_into`].
///
/// ```
/// use reshard_storage::{Hints, Name, Progress, ReadPieces, Result, TakePiece, read_pieces_into};
/// use std::ops::Range;
///
/// /// Files of zeros, which come byte by byte.
/// struct Zeros;
///
/// #[async_trait::async_trait]
/// impl ReadPieces for Zeros {
///     async fn read_pieces(&self, _: &Name, range: Range<u64>, take: &mut TakePiece<'_>) -> Result<()> {
///         range.for_each(|_| take(&[0]));
///         Ok(())
///     }
/// }
///
/// # futures::executor::block_on(async {
/// let moved = read_pieces_into(&Zeros, &Hints::default(), Vec::new(), Progress::none()).await?;
/// assert_eq!(moved.bytes, 0);
/// # Ok::<_, reshard_storage::StorageError>(()) }).unwrap();
/// ```
#[async_trait]
pub trait ReadPieces: Send + Sync {
    /// Reads exactly these bytes, and passes on each piece of them when it comes, in order.
    ///
    /// # Errors
    /// As [`Store::read`]. Some pieces may have been passed on.
    async fn read_pieces(
        &self,
        name: &Name,
        range: Range<u64>,
        take: &mut TakePiece<'_>,
    ) -> Result<()>;
}

/// What [`Store::read`] gives, as one piece.
struct Whole<'s, S: ?Sized>(&'s S);

#[async_trait]
impl<S: Store + ?Sized> ReadPieces for Whole<'_, S> {
    async fn read_pieces(
        &self,
        name: &Name,
        range: Range<u64>,
        take: &mut TakePiece<'_>,
    ) -> Result<()> {
        take(&self.0.read(name, range).await?);
        Ok(())
    }
}

/// Gathers through [`Store::read`].
pub(crate) async fn read_into<S: Store + ?Sized>(
    store: &S,
    reads: Vec<RecordRead>,
    progress: Progress,
) -> Result<Traffic> {
    read_pieces_into(&Whole(store), &store.hints(), reads, progress).await
}

/// [`Store::read_into`] for a store whose bytes come in pieces, as those of a network do. Each piece is copied into the regions when it comes, so that no
/// block is put together in memory before. Several records are read at once, each in blocks of a part's size, one after the other.
///
/// # Errors
/// As [`Store::read_into`].
pub async fn read_pieces_into<P: ReadPieces + ?Sized>(
    from: &P,
    hints: &Hints,
    reads: Vec<RecordRead>,
    progress: Progress,
) -> Result<Traffic> {
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
        .map(|p| one(from, p, hints.coalesce_gap, hints.part_size, progress));
    let stats: Result<Vec<Traffic>> = stream::iter(work)
        .buffer_unordered(lanes)
        .try_collect()
        .await;
    Ok(stats.map_err(|e| name_whole(e, &cut))?.into_iter().sum())
}

async fn one<P: ReadPieces + ?Sized>(
    from: &P,
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
        let (name, mut to) = (p.name.clone(), block.start);
        // Elements that share bytes need all of them at once.
        let mut together = p.single.then(Vec::new);
        let mut take = |piece: &[u8]| {
            match &mut together {
                Some(bytes) => bytes.extend_from_slice(piece),
                None => p.feed(to, piece),
            }
            to += piece.len() as u64;
        };
        from.read_pieces(&name, range.clone(), &mut take).await?;
        if let Some(bytes) = together {
            p.feed(block.start, &bytes);
        }
        if to != block.end {
            return Err(StorageError::Short {
                path: name.to_string(),
                range,
                size: at + to,
            });
        }
        stats.bytes += block.end - block.start;
        stats.requests += 1;
    }
    p.finish()?;
    progress.add(stats.needed);
    Ok(stats)
}

//! Lookups over a group of ranks, each of which holds some parts of a table and looks up any rows of it.

use super::{LookupOptions, Places, clip_of, elements_of, gradients::gradients};
use crate::{EmbeddingError, Ids, IndexedSlices, Result, Table, memory::written, table::TableView};
use bytes::{Buf as _, Bytes};
use reshard_comm::{Cause, Comm};
use reshard_model::{DType, Tensor};
use serde::{Deserialize, Serialize};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

/// As [`embedding_lookup`](crate::embedding_lookup), over a group: each rank looks up any rows, also of parts that only other ranks
/// hold. Ranks may look up different ids, or none.
///
/// A rank sends ids to the holders of their parts and gets the rows back. A part that this rank holds is read here. If several other
/// ranks hold a part, as with a [`Mirrored`](crate::Mirrored) table, one of them is asked.
///
/// ```
/// use futures::{executor::block_on, future::join_all};
/// use reshard_comm::{Comm, LocalGroup, ProcessGroup};
/// use reshard_embedding::{LookupOptions, ShardedVariable, Tasks, embedding_lookup_over};
/// use reshard_model::{DType, Tensor};
/// use reshard_policy::partition::PartitionSpec;
///
/// let two = PartitionSpec::partitions([2, 1]);
/// let groups = LocalGroup::new(2);
/// let found = block_on(join_all(groups.iter().map(|group| async {
///     // Rank 0 has the rows 0 and 1, rank 1 has 2 and 3.
///     let tasks = Tasks::only(2, group.rank().0);
///     let table = ShardedVariable::create("emb", &[4, 1], DType::Int64, &two, tasks, |_, offset, shape| {
///         Tensor::from_vec(shape, (0..shape[0]).map(|row| (offset[0] + row) as i64).collect())
///     })?;
///     embedding_lookup_over(Comm::new(group), &table, &[3, 0, 1], &LookupOptions::new()).await
/// })));
/// for rows in found {
///     assert_eq!(rows?.to_vec::<i64>().unwrap(), [3, 0, 1]);
/// }
/// # Ok::<(), reshard_embedding::EmbeddingError>(())
/// ```
///
/// # Collective
/// All ranks of the group call it, with the same table: name, shape, element type and parts.
///
/// # Errors
/// - Those of [`embedding_lookup`](crate::embedding_lookup), but not for a part that another rank holds.
/// - [`NotHeld`](EmbeddingError::NotHeld) if no rank holds a part.
/// - The ranks have different tables, or another rank failed.
pub async fn embedding_lookup_over<'a>(
    comm: Comm<'_>,
    table: &(impl Table + ?Sized),
    ids: impl Into<Ids<'a>>,
    options: &LookupOptions<'_>,
) -> Result<Tensor> {
    let ids = ids.into();
    let wanted = table.view().and_then(|view| {
        let clip = clip_of(&view, options)?;
        Ok((places(&view, &ids, options)?, clip, view))
    });
    let view = wanted.as_ref().map(|(.., view)| view);
    let holders = Holders::gather(comm, view).await;
    let (places, clip, view) = wanted?;
    let holders = holders?;

    // Each rank asks one holder of each part for the rows that it wants of it.
    let asked = holders.ask(comm, &view, &ids, &places);
    let ids_of = |positions: &Vec<usize>| vec![encoded(positions.iter().map(|&at| places[at]))];
    let requests = asked
        .as_ref()
        .map(|asked| asked.iter().map(ids_of).collect());
    let requests = comm.all_to_all("lookup ids", requests.map_err(cause)).await;
    let (asked, requests) = (asked?, requests?);

    let elements = elements_of(&view);
    let rows = requests
        .iter()
        .map(|ids| Ok(vec![rows(&view, &elements, ids)?]));
    let rows = rows.collect::<Result<Vec<_>>>();
    let answers = rows.as_ref().map(Vec::clone).map_err(cause);
    let answers = comm.all_to_all("lookup rows", answers).await;
    rows?;
    let answers = answers?;

    let width = view.row_bytes();
    let list = view.shape_of_rows(&[ids.values().len() as u64]);
    let found = written(view.name(), view.dtype(), &list, |out| {
        for (positions, rows) in asked.iter().zip(&answers) {
            if rows.len() != positions.len() * width {
                let what = format!("{} bytes came for {} rows", rows.len(), positions.len());
                return Err(EmbeddingError::invalid(view.name(), what));
            }
            if width > 0 {
                for (&at, row) in positions.iter().zip(rows.chunks_exact(width)) {
                    out[at * width..][..width].copy_from_slice(row);
                }
            }
        }
        if let Some((clip, bound)) = clip.filter(|_| width > 0) {
            out.chunks_exact_mut(width).for_each(|row| clip(row, bound));
        }
        Ok(())
    })?;
    Ok(found.view(&view.shape_of_rows(ids.shape()))?)
}

/// As [`lookup_gradients`](crate::lookup_gradients), for an [`embedding_lookup_over`] a group: the gradients go to the ranks that hold
/// the parts. For each part that this rank holds, the result has the rows of all ranks, in the order of ranks; for all other
/// parts it is empty. Every rank with a copy of a [`Mirrored`](crate::Mirrored) table gets all rows, so the copies stay equal.
///
/// # Collective
/// All ranks of the group call it, with the same table.
///
/// # Errors
/// Those of [`lookup_gradients`](crate::lookup_gradients) and [`embedding_lookup_over`].
pub async fn lookup_gradients_over<'a>(
    comm: Comm<'_>,
    table: &(impl Table + ?Sized),
    ids: impl Into<Ids<'a>>,
    upstream: &Tensor,
    options: &LookupOptions<'_>,
) -> Result<Vec<IndexedSlices>> {
    let ids = ids.into();
    let mine = table.view().and_then(|view| {
        let places = places(&view, &ids, options)?;
        Ok((gradients(&view, &ids, upstream, options)?, places, view))
    });
    let view = mine.as_ref().map(|(.., view)| view);
    let holders = Holders::gather(comm, view).await;
    let (slices, places, view) = mine?;
    let holders = holders?;

    let messages = holders.send(comm, &view, &ids, &places, &slices);
    let sent = messages.as_ref().map(Vec::clone).map_err(cause);
    let got = comm.all_to_all("lookup gradients", sent).await;
    messages?;
    let got = got?;

    let mut of_parts: Vec<(Vec<i64>, Vec<Bytes>)> = vec![Default::default(); view.parts.len()];
    for message in &got {
        received(&view, message, &mut of_parts)?;
    }
    let parts = of_parts.into_iter().enumerate();
    let slices = parts.map(|(part, (indices, values))| {
        let shape = view.shape_of_rows(&[indices.len() as u64]);
        let values = written(view.name(), view.dtype(), &shape, |out| {
            let mut at = 0;
            for block in &values {
                out[at..][..block.len()].copy_from_slice(block);
                at += block.len();
            }
            Ok(())
        })?;
        Ok(IndexedSlices {
            indices,
            values,
            dense_shape: view.shape_of(part),
        })
    });
    slices.collect()
}

fn cause(e: &EmbeddingError) -> Cause {
    Cause::from_error(e.kind(), e)
}

/// A row: the number of its part, and its number there.
type Place = (usize, u64);

fn places(table: &TableView<'_>, ids: &Ids<'_>, options: &LookupOptions<'_>) -> Result<Vec<Place>> {
    let places = Places::new(table, options)?;
    let ids = ids.values().iter().enumerate();
    ids.map(|(at, &id)| {
        let place = places.locate(id);
        place.ok_or_else(|| places.refuse(table, id, at))
    })
    .collect()
}

/// What a rank tells of its table.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Facts {
    name: String,
    dtype: DType,
    shape: Vec<u64>,
    parts: u64,
    /// A digest of the number of rows of each part.
    rows: u64,
    /// The parts that the rank holds.
    held: Vec<u32>,
}

impl Facts {
    fn of(table: &TableView<'_>) -> Self {
        let parts = table.parts.len();
        let mut hasher = DefaultHasher::new();
        (0..parts).for_each(|part| table.rows.len(part).hash(&mut hasher));
        let held = (0..).zip(&table.parts);
        let held = held.filter_map(|(part, data)| data.is_some().then_some(part));
        Self {
            name: table.name().into(),
            dtype: table.dtype(),
            shape: table.shape().to_vec(),
            parts: parts as u64,
            rows: hasher.finish(),
            held: held.collect(),
        }
    }

    /// What must be the same on all ranks.
    fn common(&self) -> (&str, DType, &[u64], u64, u64) {
        (&self.name, self.dtype, &self.shape, self.parts, self.rows)
    }

    fn text(&self) -> String {
        let (name, dtype, shape, parts, _) = self.common();
        format!("{name} of shape {shape:?} of {dtype} in {parts} parts")
    }
}

/// The ranks that hold each part.
struct Holders(Vec<Vec<u32>>);

impl Holders {
    /// Compares the tables of all ranks. A rank that has failed passes its error.
    async fn gather(
        comm: Comm<'_>,
        table: Result<&TableView<'_>, &EmbeddingError>,
    ) -> Result<Self> {
        let all = comm
            .all_gather("lookup", table.map(Facts::of).map_err(cause))
            .await?;
        let Some(first) = all.first() else {
            return Ok(Self(Vec::new()));
        };
        let mut holders = vec![Vec::new(); first.parts as usize];
        for (rank, facts) in (0..).zip(&all) {
            if facts.common() != first.common() {
                let what = format!(
                    "all ranks must look up the same table with the same parts, but rank 0 has {}, and rank {rank} has {}",
                    first.text(),
                    facts.text(),
                );
                return Err(EmbeddingError::invalid(&first.name, what));
            }
            for &part in &facts.held {
                if let Some(holders) = holders.get_mut(part as usize) {
                    holders.push(rank);
                }
            }
        }
        Ok(Self(holders))
    }

    fn of(&self, table: &TableView<'_>, part: usize, id: i64, comm: Comm<'_>) -> Result<&[u32]> {
        match self.0.get(part) {
            Some(holders) if !holders.is_empty() => Ok(holders),
            _ => Err(EmbeddingError::NotHeld {
                name: table.name().into(),
                part,
                id,
                ranks: comm.size(),
            }),
        }
    }

    /// The positions of the ids that each rank is asked for.
    fn ask(
        &self,
        comm: Comm<'_>,
        table: &TableView<'_>,
        ids: &Ids<'_>,
        places: &[Place],
    ) -> Result<Vec<Vec<usize>>> {
        let me = comm.rank().0;
        let mut asked = vec![Vec::new(); comm.size() as usize];
        for (at, (&id, &(part, _))) in ids.values().iter().zip(places).enumerate() {
            let holders = self.of(table, part, id, comm)?;
            // The ranks ask different ones, so that none has to answer all.
            let other = holders[(me as usize + part) % holders.len()];
            let rank = if holders.contains(&me) { me } else { other };
            asked[rank as usize].push(at);
        }
        Ok(asked)
    }

    /// The gradients that each rank gets: of each part all of its holders.
    fn send(
        &self,
        comm: Comm<'_>,
        table: &TableView<'_>,
        ids: &Ids<'_>,
        places: &[Place],
        slices: &[IndexedSlices],
    ) -> Result<Vec<Vec<Bytes>>> {
        let mut messages = vec![Vec::new(); comm.size() as usize];
        // Each id is of a part that somebody holds.
        for (&id, &(part, _)) in ids.values().iter().zip(places) {
            self.of(table, part, id, comm)?;
        }
        let slices = slices.iter().enumerate();
        for (part, slice) in slices.filter(|(_, slice)| !slice.indices.is_empty()) {
            let rows = slice.indices.iter().map(|&row| (part, row as u64));
            let blocks = [
                Bytes::from((slice.indices.len() as u64).to_le_bytes().to_vec()),
                encoded(rows),
                slice.values.to_bytes(),
            ];
            for &rank in self.0.get(part).into_iter().flatten() {
                messages[rank as usize].extend(blocks.iter().cloned());
            }
        }
        Ok(messages)
    }
}

/// Bytes of an encoded place: two numbers.
const PLACE: usize = 2 * size_of::<u64>();

fn encoded(places: impl Iterator<Item = Place>) -> Bytes {
    let numbers = places.flat_map(|(part, row)| [part as u64, row]);
    numbers.flat_map(u64::to_le_bytes).collect()
}

/// The places in a message, each of a row that this rank holds.
fn decoded<'m>(
    table: &'m TableView<'_>,
    message: &'m [u8],
) -> impl Iterator<Item = Result<Place>> + 'm {
    message.chunks(PLACE).map(|mut place| {
        let (Ok(part), Ok(row)) = (place.try_get_u64_le(), place.try_get_u64_le()) else {
            return Err(broken(table, place.len()));
        };
        let part = usize::try_from(part).unwrap_or(usize::MAX);
        match table.parts.get(part) {
            Some(Some(_)) if row < table.rows.len(part) => Ok((part, row)),
            Some(None) => Err(table.no_data(part)),
            _ => Err(broken(table, message.len())),
        }
    })
}

/// Another rank does not keep to the protocol.
fn broken(table: &TableView<'_>, bytes: usize) -> EmbeddingError {
    let what = format!("another rank sent {bytes} bytes that are no rows of this table");
    EmbeddingError::invalid(table.name(), what)
}

/// The rows for which another rank asks.
fn rows(table: &TableView<'_>, elements: &[Bytes], request: &[u8]) -> Result<Bytes> {
    let width = table.row_bytes();
    let mut out = Vec::with_capacity(request.len() / PLACE * width);
    for place in decoded(table, request) {
        let (part, row) = place?;
        let from = row as usize * width;
        let row = elements.get(part).and_then(|e| e.get(from..from + width));
        out.extend_from_slice(row.ok_or_else(|| table.no_data(part))?);
    }
    Ok(out.into())
}

/// Takes the gradients of another rank apart.
fn received(
    table: &TableView<'_>,
    message: &Bytes,
    of_parts: &mut [(Vec<i64>, Vec<Bytes>)],
) -> Result<()> {
    let mut rest = message.clone();
    while !rest.is_empty() {
        let rows = rest.try_get_u64_le();
        let rows = rows.map_err(|_| broken(table, rest.len()))?;
        let mut cut = |width: usize| {
            let bytes = usize::try_from(rows)
                .ok()
                .and_then(|rows| rows.checked_mul(width));
            match bytes {
                Some(bytes) if bytes <= rest.len() => Ok(rest.split_to(bytes)),
                _ => Err(broken(table, rest.len())),
            }
        };
        let (places, values) = (cut(PLACE)?, cut(table.row_bytes())?);
        // All rows of a block are of one part.
        let mut last = None;
        for place in decoded(table, &places) {
            let (part, row) = place?;
            of_parts[part].0.push(row as i64);
            last = Some(part);
        }
        if let Some(part) = last {
            of_parts[part].1.push(values);
        }
    }
    Ok(())
}

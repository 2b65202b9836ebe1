use crate::{
    EmbeddingError, Ids, Permutation, Result, Table,
    memory::{filled, refilled},
    rows::Rows,
    table::TableView,
};
use bytes::Bytes;
use reshard_model::{Caches, Tensor, copy_rows};
use serde::{Deserialize, Serialize};
use std::ops::Range;

mod gradients;
mod group;
mod norm;
mod sparse;

pub use gradients::{Gradient, IndexedSlices, lookup_gradients};
pub use group::{embedding_lookup_over, lookup_gradients_over};
pub use sparse::{Combiner, SparseIds, embedding_lookup_sparse, safe_embedding_lookup_sparse};

/// Which row of which part an id means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Strategy {
    /// Ids number the rows of all parts one after the other, wherever the parts begin.
    #[default]
    Div,
    /// The default of TensorFlow 1: with `n` parts, id `i` is row `i / n` of part `i % n`. If the table is now in other parts, use
    /// [`Permutation::of_mod`] instead.
    Mod,
}

/// How rows are looked up.
#[derive(Clone, Copy, Debug, Default, derive_setters::Setters)]
#[setters(strip_option)]
pub struct LookupOptions<'a> {
    /// Sets what ids mean.
    strategy: Strategy,
    /// Scales rows with a larger L2 norm to this norm. The table does not change.
    ///
    /// With `c = max(max_norm, 0)` a row `x` becomes `x * c / max(norm(x), c)`. As in TensorFlow, the multiplication comes first,
    /// so rounding may change rows whose norm is small enough.
    max_norm: Option<f64>,
    /// Says that the rows of the table are in this order.
    #[setters(rename = "through")]
    permutation: Option<&'a Permutation>,
    /// Sets the maximal number of threads.
    threads: Option<usize>,
}

impl<'a> LookupOptions<'a> {
    /// The defaults: no clipping, no permutation, as many threads as there are processors.
    pub fn new() -> Self {
        Self::default()
    }
}

/// Looks up the rows with these ids. The result has the shape of the ids, followed by the axes of a row.
///
/// ```
/// use reshard_embedding::{Ids, LookupOptions, ShardedVariable, embedding_lookup};
/// use reshard_model::Tensor;
/// let part = |rows: &[f32]| Tensor::from_vec(&[rows.len() as u64, 1], rows.to_vec());
/// let table = ShardedVariable::from_parts("emb", [part(&[0., 1., 2., 3.])?, part(&[4., 5.])?])?;
/// let ids = Ids::shaped(vec![4, 0, 5, 4], &[2, 2])?;
/// let rows = embedding_lookup(&table, ids, &LookupOptions::new().max_norm(2.0))?;
/// assert_eq!(*rows.shape(), [2, 2, 1].into());
/// assert_eq!(rows.to_vec::<f32>().unwrap(), [2., 0., 2., 2.]);
/// assert!(embedding_lookup(&table, &[6], &LookupOptions::new()).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// - An id without a row, or a needed part that has no data here.
/// - A permutation with another number of rows.
/// - A `max_norm` that is infinite or not a number, or elements that are not float16, bfloat16, float32 or float64.
/// - No memory.
pub fn embedding_lookup<'a>(
    table: &(impl Table + ?Sized),
    ids: impl Into<Ids<'a>>,
    options: &LookupOptions<'_>,
) -> Result<Tensor> {
    let (table, ids) = (&table.view()?, ids.into());
    let elements = elements_of(table);
    let reader = Reader::new(table, &elements, options)?;
    let list = table.shape_of_rows(&[ids.values().len() as u64]);
    let rows = filled(
        table.name(),
        table.dtype(),
        &list,
        options.threads,
        |run, to| reader.read(&ids, run, to),
    )?;
    Ok(rows.view(&table.shape_of_rows(ids.shape()))?)
}

/// As [`embedding_lookup`], into an existing tensor, such as the result of an earlier lookup. So it needs no new memory.
///
/// ```
/// use reshard_embedding::{LookupOptions, ShardedVariable, embedding_lookup, embedding_lookup_into};
/// use reshard_model::Tensor;
/// let table = ShardedVariable::from_parts("emb", [Tensor::from_vec(&[3, 1], vec![0f32, 1., 2.])?])?;
/// let mut rows = embedding_lookup(&table, &[0, 1], &LookupOptions::new())?;
/// embedding_lookup_into(&table, &[2, 0], &LookupOptions::new(), &mut rows)?;
/// assert_eq!(rows.to_vec::<f32>().unwrap(), [2., 0.]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// Those of [`embedding_lookup`]. Also, `out` has another shape or element type, has gaps, or shares its memory. After an error its
/// contents are undefined.
pub fn embedding_lookup_into<'a>(
    table: &(impl Table + ?Sized),
    ids: impl Into<Ids<'a>>,
    options: &LookupOptions<'_>,
    out: &mut Tensor,
) -> Result<()> {
    let (table, ids) = (&table.view()?, ids.into());
    table.check_value(
        "a lookup of these ids",
        out,
        &table.shape_of_rows(ids.shape()),
    )?;
    if !out.layout().is_contiguous() {
        return Err(EmbeddingError::invalid(
            table.name(),
            "rows can't be put into a view with gaps",
        ));
    }
    let elements = elements_of(table);
    let reader = Reader::new(table, &elements, options)?.into_kept(ids.values().len());
    let rows = ids.values().len() as u64;
    refilled(table.name(), out, rows, options.threads, |run, to| {
        reader.read(&ids, run, to)
    })
}

/// From ids to places in parts.
#[derive(Clone, Copy)]
enum Places<'a> {
    Div(&'a Rows),
    Mod(&'a Rows),
    Through(&'a Rows, &'a Permutation),
}

impl<'a> Places<'a> {
    fn new(table: &TableView<'a>, options: &LookupOptions<'a>) -> Result<Self> {
        let fail = |what: String| Err(EmbeddingError::invalid(table.name(), what));
        let rows = table.rows;
        match (options.strategy, options.permutation) {
            (Strategy::Div, None) => Ok(Self::Div(rows)),
            (Strategy::Mod, None) => Ok(Self::Mod(rows)),
            (Strategy::Mod, Some(_)) => {
                fail("\"mod\" has its own order of rows; use a permutation with \"div\"".into())
            }
            (Strategy::Div, Some(p)) if p.len() as u64 != rows.total() => fail(format!(
                "the permutation has {} rows, but the table has {}",
                p.len(),
                rows.total()
            )),
            (Strategy::Div, Some(p)) => Ok(Self::Through(rows, p)),
        }
    }

    #[inline]
    fn locate(self, id: i64) -> Option<(usize, u64)> {
        let id = u64::try_from(id).ok()?;
        match self {
            Self::Div(rows) => rows.locate(id),
            Self::Mod(rows) => {
                let parts = rows.parts() as u64;
                let (part, row) = ((id % parts) as usize, id / parts);
                (row < rows.len(part)).then_some((part, row))
            }
            Self::Through(rows, permutation) => rows.locate(permutation.row_of(id)?),
        }
    }

    /// Why an id has no place.
    fn refuse(self, table: &TableView<'_>, id: i64, at: usize) -> EmbeddingError {
        let (Self::Mod(rows), Ok(row)) = (self, u64::try_from(id)) else {
            return table.out_of_range(id, at);
        };
        let parts = rows.parts() as u64;
        let (part, row) = ((row % parts) as usize, row / parts);
        let why = format!(
            "in \"mod\" order it is row {row} of part {part}, which has {}",
            rows.len(part)
        );
        EmbeddingError::IdOutOfRange {
            name: table.name().into(),
            id,
            at,
            why,
        }
    }
}

/// Clips the norm of a row.
type Clip = fn(&mut [u8], f64);

/// How the options clip rows.
fn clip_of(table: &TableView<'_>, options: &LookupOptions<'_>) -> Result<Option<(Clip, f64)>> {
    let Some(bound) = options.max_norm else {
        return Ok(None);
    };
    let clip = norm::clip(table.dtype()).ok_or_else(|| table.unsupported("max_norm"))?;
    norm::check(bound, table)?;
    Ok(Some((clip, bound)))
}

/// The elements of each part; none of those that do not lie here.
fn elements_of(table: &TableView<'_>) -> Vec<Bytes> {
    let bytes = |data: &Option<&Tensor>| data.map_or_else(Bytes::new, Tensor::to_bytes);
    table.parts.iter().map(bytes).collect()
}

/// A result of so many bytes is larger than what most processors have as caches for a few of their cores.
const LARGE: usize = 32 << 20;

/// A table that is read.
struct Reader<'a> {
    table: &'a TableView<'a>,
    places: Places<'a>,
    parts: Vec<&'a [u8]>,
    width: usize,
    clip: Option<(Clip, f64)>,
    /// What is best for the memory of the result.
    caches: Caches,
}

impl<'a> Reader<'a> {
    /// Of a table with these [elements](elements_of).
    fn new(
        table: &'a TableView<'a>,
        parts: &'a [Bytes],
        options: &LookupOptions<'a>,
    ) -> Result<Self> {
        let parts = parts.iter().map(|part| &part[..]).collect();
        let clip = clip_of(table, options)?;
        Ok(Self {
            table,
            places: Places::new(table, options)?,
            parts,
            width: table.row_bytes(),
            clip,
            caches: Caches::Through,
        })
    }

    /// For so many rows into memory that is there. New memory lies in the caches, since it has just been filled with zeros; and
    /// rows that are clipped are read again.
    fn into_kept(self, rows: usize) -> Self {
        let large = rows.saturating_mul(self.width) >= LARGE;
        let caches = match self.clip {
            None if large => Caches::Past,
            _ => Caches::Through,
        };
        Self { caches, ..self }
    }

    /// The row of an id. `at` is its position, for the message.
    fn row(&self, id: i64, at: usize) -> Result<&'a [u8]> {
        let row = self
            .places
            .locate(id)
            .and_then(|place| stored(&self.parts, place, self.width));
        row.ok_or_else(|| self.refuse(id, at))
    }

    /// Why an id has no row here. `at` is its position.
    fn refuse(&self, id: i64, at: usize) -> EmbeddingError {
        match self.places.locate(id) {
            Some((part, _)) => match self.table.parts.get(part) {
                Some(None) => self.table.no_data(part),
                _ => self.table.out_of_range(id, at),
            },
            None => self.places.refuse(self.table, id, at),
        }
    }

    /// Puts the rows of a run of ids one behind the other.
    fn read(&self, ids: &Ids<'_>, run: Range<u64>, to: &mut [u8]) -> Result<()> {
        let Self {
            places,
            parts,
            width,
            caches,
            ..
        } = self;
        let first = run.start as usize;
        let ids = &ids.values()[first..run.end as usize];
        if *width == 0 {
            return ids
                .iter()
                .enumerate()
                .try_for_each(|(i, &id)| self.row(id, first + i).map(drop));
        }
        let copied = match (places, *width) {
            (Places::Div(rows), 64) => copy_known::<64>(rows, parts, ids, to, *caches),
            (Places::Div(rows), 128) => copy_known::<128>(rows, parts, ids, to, *caches),
            (Places::Div(rows), 256) => copy_known::<256>(rows, parts, ids, to, *caches),
            (Places::Div(rows), 512) => copy_known::<512>(rows, parts, ids, to, *caches),
            (Places::Div(rows), 1024) => copy_known::<1024>(rows, parts, ids, to, *caches),
            (Places::Div(rows), width) => copy(parts, ids, width, to, |id| {
                rows.locate(u64::try_from(id).ok()?)
            }),
            (places, width) => copy(parts, ids, width, to, |id| places.locate(id)),
        };
        if let Some(&id) = ids.get(copied) {
            return Err(self.refuse(id, first + copied));
        }
        if let Some((clip, bound)) = self.clip {
            to.chunks_exact_mut(*width).for_each(|row| clip(row, bound));
        }
        Ok(())
    }
}

/// The row at a place, if it lies here.
#[inline]
fn stored<'a>(parts: &[&'a [u8]], (part, row): (usize, u64), width: usize) -> Option<&'a [u8]> {
    let from = row as usize * width;
    parts.get(part)?.get(from..from + width)
}

/// As [`copy`], of rows of a usual length that the compiler knows: the processor has less to do for each row.
#[inline(never)]
fn copy_known<const WIDTH: usize>(
    rows: &Rows,
    parts: &[&[u8]],
    ids: &[i64],
    to: &mut [u8],
    caches: Caches,
) -> usize {
    let of_parts: Vec<(u64, &[[u8; WIDTH]])> = parts
        .iter()
        .enumerate()
        .map(|(part, bytes)| (rows.start(part), bytes.as_chunks().0))
        .collect();
    let row = |id: i64| {
        let row = u64::try_from(id).ok()?;
        let hinted = rows.hint(row).and_then(|part| {
            let (start, rows) = of_parts.get(part)?;
            rows.get(usize::try_from(row.checked_sub(*start)?).ok()?)
        });
        // Another part may have it.
        hinted.or_else(|| stored(parts, rows.locate(row)?, WIDTH)?.as_array())
    };
    copy_rows(to.as_chunks_mut().0, caches, |i| row(*ids.get(i)?))
}

/// Copies rows until an id has none here; gives how many were copied.
///
/// It does nothing else. Its time is that of waiting for memory, and the less the processor has to do for a row, the more rows
/// it waits for at a time.
#[inline(never)]
fn copy(
    parts: &[&[u8]],
    ids: &[i64],
    width: usize,
    to: &mut [u8],
    locate: impl Fn(i64) -> Option<(usize, u64)>,
) -> usize {
    for (i, (&id, to)) in ids.iter().zip(to.chunks_exact_mut(width)).enumerate() {
        match locate(id).and_then(|place| stored(parts, place, width)) {
            Some(row) => to.copy_from_slice(row),
            None => return i,
        }
    }
    ids.len()
}

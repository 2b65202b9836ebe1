use super::{LookupOptions, Reader, elements_of};
use crate::{
    EmbeddingError, Result, Table,
    memory::filled,
    number::{Float, Real, elements, with_float},
};
use bytemuck::{allocation::try_zeroed_vec, bytes_of};
use reshard_model::{DType, Tensor};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// How the rows of one line are combined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Combiner {
    /// The sum of `w * x`.
    Sum,
    /// The sum, divided by the sum of the weights.
    #[default]
    Mean,
    /// The sum, divided by the root of the sum of the squared weights.
    Sqrtn,
}

/// Lines of ids. Each line has any number of ids, and each id may have a weight.
///
/// ```
/// use reshard_embedding::SparseIds;
/// let by_line = SparseIds::ragged(&[&[7, 1], &[], &[1]]);
/// let by_place = SparseIds::new(3, [0, 0, 2], [7, 1, 1])?; // 3 lines; the line of each id, ascending
/// assert_eq!(by_line, by_place);
/// # Ok::<(), reshard_embedding::EmbeddingError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct SparseIds {
    lines: u64,
    line_of: Vec<u64>,
    ids: Vec<i64>,
    weights: Option<Vec<f32>>,
}

impl SparseIds {
    /// Makes lines from ids and the line of each id, in ascending order. For a sparse tensor, the lines are the first column of its
    /// indices.
    ///
    /// # Errors
    /// The numbers of ids and lines differ, the lines are not ascending, or a line does not exist.
    pub fn new(lines: u64, line_of: impl Into<Vec<u64>>, ids: impl Into<Vec<i64>>) -> Result<Self> {
        let (line_of, ids) = (line_of.into(), ids.into());
        let fail = |what: String| Err(EmbeddingError::invalid("sparse ids", what));
        if line_of.len() != ids.len() {
            return fail(format!(
                "{} ids were given, but {} lines for them",
                ids.len(),
                line_of.len()
            ));
        }
        if let Some(i) = line_of.windows(2).position(|w| w[0] > w[1]) {
            let (a, b) = (line_of[i], line_of[i + 1]);
            return fail(format!(
                "line {b} comes after line {a}; sort the ids by their lines"
            ));
        }
        if let Some(last) = line_of.last().filter(|&&line| line >= lines) {
            return fail(format!(
                "an id is in line {last}, but there are {lines} lines, counted from 0"
            ));
        }
        Ok(Self {
            lines,
            line_of,
            ids,
            weights: None,
        })
    }

    /// Makes lines from a list of ids per line.
    pub fn ragged(lines: &[&[i64]]) -> Self {
        let line_of = (0..)
            .zip(lines)
            .flat_map(|(i, ids)| std::iter::repeat_n(i, ids.len()))
            .collect();
        Self {
            lines: lines.len() as u64,
            line_of,
            ids: lines.concat(),
            weights: None,
        }
    }

    /// Sets a weight for each id.
    ///
    /// # Errors
    /// The numbers of weights and ids differ.
    pub fn with_weights(self, weights: impl Into<Vec<f32>>) -> Result<Self> {
        let weights = weights.into();
        if weights.len() != self.ids.len() {
            let what = format!(
                "{} weights were given for {} ids",
                weights.len(),
                self.ids.len()
            );
            return Err(EmbeddingError::invalid("sparse ids", what));
        }
        Ok(Self {
            weights: Some(weights),
            ..self
        })
    }
}

/// Looks up the rows of each line of ids and combines them into one row. A line without ids gives zeros.
///
/// Rows are added in the order of the ids, in float32 for float16, bfloat16 and float32, and in float64 otherwise. If the weights of
/// a line sum to 0, it gives zeros. `max_norm` clips the rows before they are combined.
///
/// ```
/// use reshard_embedding::{Combiner, LookupOptions, ShardedVariable, SparseIds, embedding_lookup_sparse};
/// use reshard_model::Tensor;
/// let table = ShardedVariable::from_parts("emb", [
///     Tensor::from_vec(&[2, 1], vec![1f32, 2.])?,
///     Tensor::from_vec(&[1, 1], vec![5f32])?,
/// ])?;
/// let ids = SparseIds::ragged(&[&[0, 2], &[1]]).with_weights([1., 3., 1.])?;
/// let rows = embedding_lookup_sparse(&table, &ids, Combiner::Mean, &LookupOptions::new())?;
/// assert_eq!(rows.to_vec::<f32>().unwrap(), [4., 2.]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// Those of [`embedding_lookup`](crate::embedding_lookup), and tables whose elements are not float16, bfloat16, float32 or float64.
pub fn embedding_lookup_sparse(
    table: &(impl Table + ?Sized),
    ids: &SparseIds,
    combiner: Combiner,
    options: &LookupOptions<'_>,
) -> Result<Tensor> {
    let rules = Rules {
        combiner,
        safe: false,
        default_id: None,
    };
    lookup(table, ids, options, rules)
}

/// As [`embedding_lookup_sparse`], for unchecked ids. It skips negative ids and, unless the combiner is [`Sum`](Combiner::Sum), ids
/// whose weights are not positive. A line with nothing left gives the row of `default_id`, or zeros.
///
/// # Errors
/// Those of [`embedding_lookup_sparse`]. `default_id` is looked up only if a line needs it.
pub fn safe_embedding_lookup_sparse(
    table: &(impl Table + ?Sized),
    ids: &SparseIds,
    combiner: Combiner,
    default_id: Option<i64>,
    options: &LookupOptions<'_>,
) -> Result<Tensor> {
    let rules = Rules {
        combiner,
        safe: true,
        default_id,
    };
    lookup(table, ids, options, rules)
}

#[derive(Clone, Copy)]
struct Rules {
    combiner: Combiner,
    safe: bool,
    default_id: Option<i64>,
}

impl Rules {
    fn takes(&self, id: i64, weight: Option<f32>) -> bool {
        let heavy = weight.is_none_or(|w| w > 0.0) || self.combiner == Combiner::Sum;
        !self.safe || id >= 0 && heavy
    }
}

fn lookup(
    table: &(impl Table + ?Sized),
    ids: &SparseIds,
    options: &LookupOptions<'_>,
    rules: Rules,
) -> Result<Tensor> {
    let table = &table.view()?;
    let elements = elements_of(table);
    let reader = Reader::new(table, &elements, options)?;
    let combine = with_float!(table.dtype(), T => combine::<T> as Combine);
    let combine = combine.ok_or_else(|| table.unsupported("a combination of rows"))?;
    let shape = table.shape_of_rows(&[ids.lines]);
    filled(
        table.name(),
        table.dtype(),
        &shape,
        options.threads,
        |run, to| combine(&reader, ids, rules, run, to),
    )
}

type Combine = fn(&Reader<'_>, &SparseIds, Rules, Range<u64>, &mut [u8]) -> Result<()>;

/// Combines the rows of a run of lines.
fn combine<T: Float>(
    reader: &Reader<'_>,
    ids: &SparseIds,
    rules: Rules,
    lines: Range<u64>,
    out: &mut [u8],
) -> Result<()> {
    let mut at = ids.line_of.partition_point(|&line| line < lines.start);
    if reader.width == 0 {
        // There is nothing to combine, but ids are checked.
        let end = ids.line_of.partition_point(|&line| line < lines.end);
        let taken = (at..end).filter(|&i| rules.takes(ids.ids[i], ids.weight(i)));
        return taken
            .into_iter()
            .try_for_each(|i| reader.row(ids.ids[i], i).map(drop));
    }
    let mut line = Line::<T>::new(reader)?;
    for (number, out) in lines.zip(out.chunks_exact_mut(reader.width)) {
        line.clear();
        while ids.line_of.get(at) == Some(&number) {
            let (id, weight) = (ids.ids[at], ids.weight(at));
            if rules.takes(id, weight) {
                line.add(id, at, weight)?;
            }
            at += 1;
        }
        if line.count == 0
            && let Some(id) = rules.default_id
        {
            line.add(id, at, None)?;
        }
        line.write(rules.combiner, out);
    }
    Ok(())
}

impl SparseIds {
    fn weight(&self, at: usize) -> Option<f32> {
        self.weights.as_ref().map(|w| w[at])
    }
}

/// The rows of a line, added up.
struct Line<'a, T: Float> {
    reader: &'a Reader<'a>,
    sums: Vec<T::Wide>,
    count: u32,
    weights: T::Wide,
    squares: T::Wide,
    clipped: Vec<u8>,
}

impl<'a, T: Float> Line<'a, T> {
    fn new(reader: &'a Reader<'a>) -> Result<Self> {
        let (zero, n) = (T::Wide::ZERO, reader.width / size_of::<T>());
        let too_large = || {
            EmbeddingError::invalid(
                reader.table.name(),
                format!("no memory for sums of {n} elements"),
            )
        };
        let sums = try_zeroed_vec(n).map_err(|()| too_large())?;
        Ok(Self {
            reader,
            sums,
            count: 0,
            weights: zero,
            squares: zero,
            clipped: Vec::new(),
        })
    }

    fn clear(&mut self) {
        self.sums.fill(T::Wide::ZERO);
        (self.count, self.weights, self.squares) = (0, T::Wide::ZERO, T::Wide::ZERO);
    }

    fn add(&mut self, id: i64, at: usize, weight: Option<f32>) -> Result<()> {
        let mut row = self.reader.row(id, at)?;
        if let Some((clip, bound)) = self.reader.clip {
            self.clipped.clear();
            self.clipped.extend_from_slice(row);
            clip(&mut self.clipped, bound);
            row = &self.clipped;
        }
        let rows = self.sums.iter_mut().zip(elements::<T>(row));
        let weight = weight.map_or(T::Wide::ONE, |w| T::Wide::of(w.into()));
        if weight == T::Wide::ONE {
            rows.for_each(|(sum, x)| *sum = *sum + x.widen());
        } else {
            rows.for_each(|(sum, x)| *sum = *sum + x.widen() * weight);
        }
        self.count += 1;
        self.weights = self.weights + weight;
        self.squares = self.squares + weight * weight;
        Ok(())
    }

    fn write(&self, combiner: Combiner, out: &mut [u8]) {
        let divisor = match combiner {
            Combiner::Sum => T::Wide::ONE,
            Combiner::Mean => self.weights,
            Combiner::Sqrtn => self.squares.sqrt(),
        };
        for (to, &sum) in out.chunks_exact_mut(size_of::<T>()).zip(&self.sums) {
            let v = if divisor == T::Wide::ZERO {
                T::Wide::ZERO
            } else {
                sum / divisor
            };
            to.copy_from_slice(bytes_of(&T::narrow(v)));
        }
    }
}

use crate::{
    EmbeddingError, Ids, LookupOptions, Result, ShardedVariable, lookup::embedding_lookup,
    rows::Rows,
};
use reshard_model::{DType, ReplicaId, ShardedTensor, Tensor};
use std::{cmp::Reverse, collections::BinaryHeap};

mod load;

/// The order of the rows of a table: id `i` is row `row_of_id[i]`.
///
/// Rows are put into another order so that every part gets its share of the lookups ([`balanced`](Self::balanced)), and were put
/// into one by programs that looked up by "mod" ([`of_mod`](Self::of_mod)).
///
/// ```
/// use reshard_embedding::{LookupOptions, Permutation, ShardedVariable, embedding_lookup};
/// use reshard_model::Tensor;
/// // ids 0 and 1 are looked up most, and lie in the same part
/// let table = ShardedVariable::from_parts("emb", [
///     Tensor::from_vec(&[2, 1], vec![0f32, 1.])?,
///     Tensor::from_vec(&[2, 1], vec![2f32, 3.])?,
/// ])?;
/// let frequencies = [90, 60, 20, 10];
/// let order = Permutation::balanced(&frequencies, &table.part_rows())?;
/// let balanced = order.apply(&table)?;
/// let [before, after] = [&Permutation::identity(4)?, &order].map(|p| p.loads(&frequencies, &table.part_rows()));
/// assert_eq!((before?.parts, after?.parts), (vec![150, 30], vec![100, 80]));
/// // lookups through the order are what they were
/// let rows = embedding_lookup(&balanced, &[0, 1], &LookupOptions::new().through(&order))?;
/// assert_eq!(rows.to_vec::<f32>().unwrap(), [0., 1.]);
/// assert_eq!(order.undo(&balanced)?.to_tensor()?, table.to_tensor()?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Permutation {
    row_of_id: Vec<i64>,
}

/// How many lookups go to each part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loads {
    /// Sum of the frequencies of the ids in each part.
    pub parts: Vec<u128>,
}

impl Loads {
    /// The largest load.
    pub fn max(&self) -> u128 {
        self.parts.iter().copied().max().unwrap_or(0)
    }

    /// The mean of the loads.
    pub fn mean(&self) -> f64 {
        let sum: f64 = self.parts.iter().map(|&l| l as f64).sum();
        sum / self.parts.len().max(1) as f64
    }

    /// The largest load divided by the mean. 1 means balanced. Without any load it is 1.
    pub fn max_over_mean(&self) -> f64 {
        let mean = self.mean();
        if mean > 0.0 {
            self.max() as f64 / mean
        } else {
            1.0
        }
    }
}

const NAME: &str = "permutation";

fn fail<T>(what: String) -> Result<T> {
    Err(EmbeddingError::invalid(NAME, what))
}

/// Memory for a number that somebody gave.
fn list<T>(n: u64) -> Result<Vec<T>> {
    let mut out = Vec::new();
    let reserved = usize::try_from(n)
        .ok()
        .and_then(|n| out.try_reserve_exact(n).ok());
    match reserved {
        Some(()) => Ok(out),
        None => fail(format!("no memory for the order of {n} rows")),
    }
}

impl Permutation {
    /// The row of each id.
    ///
    /// # Errors
    /// A row is out of range or occurs twice.
    pub fn new(row_of_id: Vec<i64>) -> Result<Self> {
        let mut seen: Vec<bool> = list(row_of_id.len() as u64)?;
        seen.resize(row_of_id.len(), false);
        for (id, &row) in row_of_id.iter().enumerate() {
            match usize::try_from(row).ok().and_then(|row| seen.get_mut(row)) {
                None => {
                    return fail(format!(
                        "id {id} has row {row}, but there are {} rows",
                        row_of_id.len()
                    ));
                }
                Some(true) => {
                    return fail(format!(
                        "row {row} is given to two ids, the second time to id {id}"
                    ));
                }
                Some(free) => *free = true,
            }
        }
        Ok(Self { row_of_id })
    }

    /// The order in which every id is its own row.
    ///
    /// # Errors
    /// When there is no memory for so many.
    pub fn identity(rows: u64) -> Result<Self> {
        let mut row_of_id = list(rows)?;
        row_of_id.extend(0..rows as i64);
        Ok(Self { row_of_id })
    }

    /// The order of a table that was trained in `parts` parts with "mod" lookups and stored as one tensor, part after part. A
    /// checkpoint does not say this, so you have to know it.
    ///
    /// # Errors
    /// When there is no part, or no memory for so many rows.
    ///
    /// ```
    /// use reshard_embedding::Permutation;
    /// // ids 0, 3 and 6 were in the first part, 1 and 4 in the second
    /// assert_eq!(Permutation::of_mod(7, 3)?.rows(), [0, 3, 5, 1, 4, 6, 2]);
    /// # Ok::<(), reshard_embedding::EmbeddingError>(())
    /// ```
    pub fn of_mod(rows: u64, parts: u64) -> Result<Self> {
        if parts == 0 {
            return fail("a table must have at least one part".into());
        }
        let (even, longer) = (rows / parts, rows % parts);
        let row = |id: u64| {
            let (part, at) = (id % parts, id / parts);
            (part * even + part.min(longer) + at) as i64
        };
        let mut row_of_id = list(rows)?;
        row_of_id.extend((0..rows).map(row));
        Ok(Self { row_of_id })
    }

    /// An order in which parts of these capacities get about equal loads. It takes the ids from the most to the least frequent, and
    /// gives each to the part that has room and the least load. Within a part the ids are in ascending order. `frequencies` has one
    /// number per id; missing numbers at the end count as 0.
    ///
    /// Ties go to the lower id and the lower part, so the result is deterministic.
    ///
    /// # Errors
    /// When there are more frequencies than rows, or no memory for so many.
    pub fn balanced(frequencies: &[u64], capacities: &[u64]) -> Result<Self> {
        let rows = checked_rows(frequencies, capacities)?;
        let mut order: Vec<u64> = list(rows)?;
        order.extend(0..rows);
        let frequency = |id: u64| frequencies.get(id as usize).copied().unwrap_or(0);
        order.sort_unstable_by_key(|&id| (Reverse(frequency(id)), id));

        let mut room = capacities.to_vec();
        let open = (0..capacities.len()).filter(|&part| capacities[part] > 0);
        let mut least: BinaryHeap<Reverse<(u128, usize)>> =
            open.map(|part| Reverse((0, part))).collect();
        let mut part_of_id: Vec<u32> = list(rows)?;
        part_of_id.resize(rows as usize, 0);
        for id in order {
            // The capacities add up to the ids, so that there is a part with room.
            let Some(Reverse((load, part))) = least.pop() else {
                break;
            };
            part_of_id[id as usize] = part as u32;
            room[part] -= 1;
            if room[part] > 0 {
                least.push(Reverse((load + u128::from(frequency(id)), part)));
            }
        }

        let parts = Rows::new(capacities.iter().copied());
        let mut next: Vec<u64> = (0..parts.parts()).map(|part| parts.start(part)).collect();
        let mut row_of_id = list(rows)?;
        row_of_id.extend(part_of_id.into_iter().map(|part| {
            let row = &mut next[part as usize];
            *row += 1;
            (*row - 1) as i64
        }));
        Ok(Self { row_of_id })
    }

    /// Number of rows, which is the number of ids.
    pub fn len(&self) -> usize {
        self.row_of_id.len()
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.row_of_id.is_empty()
    }

    /// The row of each id.
    pub fn rows(&self) -> &[i64] {
        &self.row_of_id
    }

    /// The row of an id; `None` if there is no such id.
    #[inline]
    pub fn row_of(&self, id: u64) -> Option<u64> {
        self.row_of_id
            .get(usize::try_from(id).ok()?)
            .map(|&row| row as u64)
    }

    /// The rows of ids, for a scatter.
    ///
    /// # Errors
    /// When an id has no row.
    ///
    /// ```
    /// use reshard_embedding::Permutation;
    /// let order = Permutation::new(vec![2, 0, 1])?;
    /// assert_eq!(order.rows_of(&[0, 2])?.values(), [2, 1]);
    /// assert!(order.rows_of(&[3]).is_err());
    /// # Ok::<(), reshard_embedding::EmbeddingError>(())
    /// ```
    pub fn rows_of<'a>(&self, ids: impl Into<Ids<'a>>) -> Result<Ids<'static>> {
        let ids = ids.into();
        let row = |(at, &id): (usize, &i64)| {
            let row = usize::try_from(id)
                .ok()
                .and_then(|id| self.row_of_id.get(id));
            row.copied().ok_or_else(|| {
                let why = format!("the order has {} rows", self.len());
                EmbeddingError::IdOutOfRange {
                    name: NAME.into(),
                    id,
                    at,
                    why,
                }
            })
        };
        let rows = ids
            .values()
            .iter()
            .enumerate()
            .map(row)
            .collect::<Result<Vec<_>>>()?;
        Ids::shaped(rows, ids.shape())
    }

    /// Whether every id is its own row.
    pub fn is_identity(&self) -> bool {
        (0..).zip(&self.row_of_id).all(|(id, &row)| id == row)
    }

    /// The id of each row, as a permutation.
    pub fn inverse(&self) -> Self {
        let mut id_of_row = vec![0; self.row_of_id.len()];
        for (id, &row) in (0..).zip(&self.row_of_id) {
            id_of_row[row as usize] = id;
        }
        Self {
            row_of_id: id_of_row,
        }
    }

    /// The loads of parts with these capacities if the rows are in this order.
    ///
    /// # Errors
    /// The sum of the capacities is not the number of rows, or there are more frequencies than rows.
    pub fn loads(&self, frequencies: &[u64], capacities: &[u64]) -> Result<Loads> {
        let rows = checked_rows(frequencies, capacities)?;
        if rows != self.len() as u64 {
            return fail(format!(
                "the parts have {rows} rows, but the order has {}",
                self.len()
            ));
        }
        let parts = Rows::new(capacities.iter().copied());
        let mut loads = vec![0; capacities.len()];
        for (&row, &frequency) in self.row_of_id.iter().zip(frequencies) {
            if let Some((part, _)) = parts.locate(row as u64) {
                loads[part] += u128::from(frequency);
            }
        }
        Ok(Loads { parts: loads })
    }

    /// Puts the rows of `table`, which are in the order of ids, into this order. Parts and tasks stay.
    ///
    /// # Errors
    /// The table has another number of rows, or a part of it has no data here.
    pub fn apply(&self, table: &ShardedVariable) -> Result<ShardedVariable> {
        self.inverse().gather(table)
    }

    /// Puts the rows of `table`, which are in this order, back into the order of ids. Parts and tasks stay.
    ///
    /// # Errors
    /// As [`apply`](Self::apply).
    pub fn undo(&self, table: &ShardedVariable) -> Result<ShardedVariable> {
        self.gather(table)
    }

    fn check_rows(&self, table: &ShardedVariable) -> Result<()> {
        let rows = table.rows.total();
        if self.len() as u64 == rows {
            return Ok(());
        }
        let what = format!(
            "the order has {} rows, but the table has {rows}",
            self.len()
        );
        Err(EmbeddingError::invalid(table.name(), what))
    }

    /// A table whose row `i` is row `self[i]` of this one.
    fn gather(&self, table: &ShardedVariable) -> Result<ShardedVariable> {
        self.check_rows(table)?;
        let rows = &table.rows;
        let mut out = table.like(table.name(), table.dtype())?;
        for part in 0..rows.parts() {
            let (start, len) = (rows.start(part) as usize, rows.len(part) as usize);
            let data = embedding_lookup(
                table,
                &self.row_of_id[start..start + len],
                &LookupOptions::new(),
            )?;
            out.variable_mut().put(part, data)?;
        }
        Ok(out)
    }
}

/// Beside its table in a checkpoint.
impl Permutation {
    /// The key under which the order of a table's rows is saved. If a checkpoint lacks this key, the rows are in the order of ids.
    pub fn key(table: &str) -> String {
        format!("{table}/REBALANCE/row_of_id")
    }

    /// The tensor to save with the table of this name: the row of each id, as int64. `None` for the order of ids, which is not stored.
    /// Every task may save it, with its number as `replica`. It is written once.
    ///
    /// # Errors
    /// No memory.
    pub fn sharded_tensor(&self, table: &str, replica: u32) -> Result<Option<ShardedTensor>> {
        if self.is_identity() {
            return Ok(None);
        }
        let rows = Tensor::from_vec(&[self.len() as u64], self.row_of_id.clone())?;
        Ok(Some(ShardedTensor::replicated(
            &Self::key(table),
            rows,
            ReplicaId::from(replica),
        )))
    }

    /// The template of the order for a table of this name and so many rows. Use it if the checkpoint has the key.
    pub fn template(table: &str, rows: u64) -> ShardedTensor {
        ShardedTensor::template(&Self::key(table), DType::Int64, &[rows])
    }

    /// Makes the order from the loaded tensor.
    ///
    /// # Errors
    /// The tensor is not int64 with one axis; the errors of [`new`](Self::new).
    pub fn from_tensor(row_of_id: &Tensor) -> Result<Self> {
        match row_of_id
            .to_vec::<i64>()
            .ok()
            .filter(|_| row_of_id.shape().len() == 1)
        {
            Some(rows) => Self::new(rows),
            None => fail(format!(
                "it must be int64 with one axis, not {} of shape {}",
                row_of_id.dtype(),
                row_of_id.shape()
            )),
        }
    }
}

/// How many rows there are for these frequencies.
fn checked_rows(frequencies: &[u64], capacities: &[u64]) -> Result<u64> {
    let rows = capacities
        .iter()
        .try_fold(0u64, |sum, &n| sum.checked_add(n));
    let rows =
        rows.filter(|&rows| i64::try_from(rows).is_ok() && u32::try_from(capacities.len()).is_ok());
    match rows {
        None => fail("the parts have too many rows together".into()),
        Some(rows) if frequencies.len() as u64 > rows => fail(format!(
            "there are {} frequencies, but only {rows} rows",
            frequencies.len()
        )),
        Some(rows) => Ok(rows),
    }
}

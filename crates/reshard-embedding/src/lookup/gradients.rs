use super::{LookupOptions, Places};
use crate::{
    EmbeddingError, Ids, Result, Table,
    memory::{filled, written},
    number::{Op, kernel},
    table::TableView,
};
use reshard_model::{Dims, Tensor};

/// Some rows of a tensor: row `i` of `values` belongs to row `indices[i]`. If a row occurs several times, its values are summed.
#[derive(Clone, Debug, PartialEq)]
pub struct IndexedSlices {
    /// Rows of the tensor.
    pub indices: Vec<i64>,
    /// Their values.
    pub values: Tensor,
    /// Shape of the tensor.
    pub dense_shape: Dims,
}

impl IndexedSlices {
    /// Makes the whole tensor if it has fewer than `bytes` bytes. An all-reduce of a small tensor takes less time than an all-gather of rows: the heuristic
    /// that TensorFlow's RFC on embeddings asks for.
    ///
    /// ```
    /// use reshard_embedding::{Gradient, IndexedSlices};
    /// use reshard_model::Tensor;
    /// let rows = IndexedSlices {
    ///     indices: vec![2, 2],
    ///     values: Tensor::from_vec(&[2, 1], vec![1f32, 2.])?,
    ///     dense_shape: [3, 1].into(),
    /// };
    /// let Gradient::Dense(whole) = rows.clone().dense_below(13)? else { unreachable!() };
    /// assert_eq!(whole.to_vec::<f32>().unwrap(), [0., 0., 3.]);
    /// assert_eq!(rows.clone().dense_below(12)?, Gradient::Sparse(rows));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`to_dense`](Self::to_dense).
    pub fn dense_below(self, bytes: u64) -> Result<Gradient> {
        let size = self.values.dtype().size();
        let dense = self.dense_shape.volume().and_then(|n| n.checked_mul(size));
        match dense.is_some_and(|dense| dense < bytes) {
            true => self.to_dense().map(Gradient::Dense),
            false => Ok(Gradient::Sparse(self)),
        }
    }

    /// Makes the whole tensor. Rows that occur several times are summed in order; missing rows are 0.
    ///
    /// # Errors
    /// The number of values is not that of the indices, an index has no row, the element type has no addition, or there is no memory.
    pub fn to_dense(&self) -> Result<Tensor> {
        const NAME: &str = "indexed slices";
        let fail = |what: String| Err(EmbeddingError::invalid(NAME, what));
        let Some((&rows, row)) = self.dense_shape.split_first() else {
            return fail("a dense shape without axes has no rows".into());
        };
        let wanted: Dims = std::iter::once(self.indices.len() as u64)
            .chain(row.iter().copied())
            .collect();
        if *self.values.shape() != wanted {
            let (n, shape) = (self.indices.len(), self.values.shape());
            return fail(format!(
                "values of shape {shape} for {n} indices into shape {}",
                self.dense_shape
            ));
        }

        // Every index is checked before the loop below uses it as a position in memory.
        if let Some((at, &id)) = self
            .indices
            .iter()
            .enumerate()
            .find(|(_, i)| !u64::try_from(**i).is_ok_and(|i| i < rows))
        {
            let why = format!("there are {rows} rows");
            return Err(EmbeddingError::IdOutOfRange {
                name: NAME.into(),
                id,
                at,
                why,
            });
        }
        let dtype = self.values.dtype();
        let unsupported = || EmbeddingError::Unsupported {
            name: NAME.into(),
            op: Op::Add.name(),
            dtype,
        };

        let add = kernel(Op::Add, dtype).ok_or_else(unsupported)?;
        let bytes = self.values.to_bytes();

        // Without indices there are no values either, so the width does not matter then.
        let width = bytes.len() / self.indices.len().max(1);
        written(NAME, dtype, &self.dense_shape, |out| {
            if width > 0 {
                for (&i, from) in self.indices.iter().zip(bytes.chunks_exact(width)) {
                    add(&mut out[i as usize * width..][..width], from);
                }
            }
            Ok(())
        })
    }
}

/// A gradient in the form that is cheaper to exchange; made by [`IndexedSlices::dense_below`].
#[derive(Clone, Debug, PartialEq)]
pub enum Gradient {
    /// The whole tensor, for an all-reduce.
    Dense(Tensor),
    /// Some rows, for an all-gather.
    Sparse(IndexedSlices),
}

/// The gradient of a lookup, for each part of the table. It has one row for each looked-up id of this part, in the order of the ids,
/// with the row of `upstream` for this id. If no row of a part was looked up, its gradient is empty.
///
/// ```
/// use reshard_embedding::{LookupOptions, ShardedVariable, lookup_gradients};
/// use reshard_model::Tensor;
/// let part = |rows: u64| Tensor::from_vec(&[rows, 1], vec![0f32; rows as usize]);
/// let table = ShardedVariable::from_parts("emb", [part(2)?, part(1)?])?;
/// let upstream = Tensor::from_vec(&[3, 1], vec![1f32, 2., 4.])?;
/// let parts = lookup_gradients(&table, &[1, 2, 1], &upstream, &LookupOptions::new())?;
/// assert_eq!((parts[0].indices.as_slice(), parts[1].indices.as_slice()), ([1, 1].as_slice(), [0].as_slice()));
/// assert_eq!(parts[0].to_dense()?.to_vec::<f32>().unwrap(), [0., 5.]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// An id without a row, an `upstream` whose shape or element type is not that of the looked-up rows, or options with `max_norm`,
/// because gradients through clipping are not implemented.
pub fn lookup_gradients<'a>(
    table: &(impl Table + ?Sized),
    ids: impl Into<Ids<'a>>,
    upstream: &Tensor,
    options: &LookupOptions<'_>,
) -> Result<Vec<IndexedSlices>> {
    gradients(&table.view()?, &ids.into(), upstream, options)
}

pub(super) fn gradients(
    table: &TableView<'_>,
    ids: &Ids<'_>,
    upstream: &Tensor,
    options: &LookupOptions<'_>,
) -> Result<Vec<IndexedSlices>> {
    table.check_value(
        "a gradient for these ids",
        upstream,
        &table.shape_of_rows(ids.shape()),
    )?;
    if options.max_norm.is_some() {
        return Err(EmbeddingError::invalid(
            table.name(),
            "no gradient is computed through max_norm",
        ));
    }

    // Ids are grouped by part first, with the place of each in `upstream`, so that threads can copy the rows of a part.
    let places = Places::new(table, options)?;
    let mut indices: Vec<Vec<i64>> = vec![Vec::new(); table.parts.len()];
    let mut positions: Vec<Vec<usize>> = vec![Vec::new(); table.parts.len()];
    for (at, &id) in ids.values().iter().enumerate() {
        let (part, row) = places
            .locate(id)
            .ok_or_else(|| places.refuse(table, id, at))?;
        indices[part].push(row as i64);
        positions[part].push(at);
    }
    let (bytes, width) = (upstream.to_bytes(), table.row_bytes());
    let parts = indices.into_iter().zip(positions).enumerate();
    let slices = parts.map(|(part, (indices, positions))| {
        let shape = table.shape_of_rows(&[indices.len() as u64]);
        let values = filled(
            table.name(),
            table.dtype(),
            &shape,
            options.threads,
            |run, to| {
                // Rows without elements have no bytes, and `chunks_exact` panics for a width of 0.
                if width > 0 {
                    let positions = &positions[run.start as usize..run.end as usize];
                    for (&at, to) in positions.iter().zip(to.chunks_exact_mut(width)) {
                        to.copy_from_slice(&bytes[at * width..][..width]);
                    }
                }
                Ok(())
            },
        )?;
        Ok(IndexedSlices {
            indices,
            values,
            dense_shape: table.shape_of(part),
        })
    });
    slices.collect()
}

use crate::{
    Cut, EmbeddingError, Ids, LookupOptions, Result, Tasks, Variable,
    lookup::embedding_lookup,
    number::{Op, first_zero},
    rows::Rows,
    table::{TableView, View},
};
use reshard_model::{DType, Dims, Region, ShardedTensor, StateDict, Step, Tensor, ValueTree};
use reshard_policy::partition::Grid;

/// A variable in parts along its first axis, such as an embedding table on several tasks.
///
/// Parts may have any size, even 0. Their positions are stored, never computed from their number. In a checkpoint the variable is one
/// tensor, which you can load into any other parts, or as a whole.
///
/// ```
/// use reshard_embedding::{Cut, ShardedVariable};
/// use reshard_model::{DType, Tensor};
/// use reshard_policy::partition::FixedShardsPartitioner;
/// // 13 rows in 3 parts on 2 tasks; the initializer makes each part separately
/// let three = FixedShardsPartitioner::new(3);
/// let mut table = ShardedVariable::create("emb", &[13, 1], DType::Float32, Cut::Partitioner(&three), 2, |_, offset, shape| {
///     Tensor::from_vec(shape, (0..shape[0]).map(|row| (offset[0] + row) as f32).collect())
/// })?;
/// assert_eq!(table.parts().iter().map(|p| p.task()).collect::<Vec<_>>(), [0, 1, 0]);
/// table.scatter_add(&[12, 0, 12], &Tensor::from_vec(&[3, 1], vec![1f32, 2., 3.])?)?;
/// let rows = table.sparse_read(&[12, 0])?;
/// assert_eq!(rows.to_vec::<f32>().unwrap(), [16., 2.]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct ShardedVariable {
    pub(crate) variable: Variable,
    pub(crate) rows: Rows,
}

impl ShardedVariable {
    /// Makes a variable of existing parts, in order, all on task 0. Their memory becomes the variable's.
    ///
    /// # Errors
    /// There is no part, a part has no axis, element types or axes after the first differ, or a part is a view with gaps.
    pub fn from_parts(name: &str, parts: impl IntoIterator<Item = Tensor>) -> Result<Self> {
        let parts: Vec<Tensor> = parts.into_iter().collect();
        let fail = |what: String| Err(EmbeddingError::invalid(name, what));
        let Some(first) = parts.first() else {
            return fail("a variable has at least one part".into());
        };
        let (dtype, of_first) = (first.dtype(), first.shape().clone());
        let Some((_, inner)) = of_first.split_first() else {
            return fail(
                "a part without axes can't be put together with others; give it shape [1]".into(),
            );
        };

        // The first axis starts at 0 and grows with each part, so it is also the offset of the next part.
        let mut shape = of_first.clone();
        shape[0] = 0;
        let mut placed = Vec::with_capacity(parts.len());
        for (i, part) in parts.into_iter().enumerate() {
            if part.dtype() != dtype || part.shape().get(1..) != Some(inner) {
                return fail(format!(
                    "part {i} has shape {} of {}, part 0 has {of_first} of {dtype}; only the first axis may differ",
                    part.shape(),
                    part.dtype(),
                ));
            }
            let mut region = Region::whole(part.shape());
            region.offsets[0] = shape[0];
            let Some(rows) = shape[0].checked_add(part.shape()[0]) else {
                return fail("the parts are too large together".into());
            };
            shape[0] = rows;
            placed.push((region, part));
        }
        Ok(Self::of(Variable::of_parts(name, dtype, &shape, placed)?))
    }

    /// The parts of a grid, on the tasks that come.
    pub(crate) fn on(
        name: &str,
        dtype: DType,
        grid: &Grid,
        tasks: impl IntoIterator<Item = u32>,
    ) -> Result<Self> {
        if grid.shape().is_empty() {
            let what =
                "a variable without axes has no rows to shard; a PartitionedVariable holds it";
            return Err(EmbeddingError::invalid(name, what));
        }
        if let Some(axis) = (1..grid.shape().len()).find(|&axis| grid.splits()[axis].len() > 1) {
            let what = format!(
                "cut into {} parts along axis {axis}; a ShardedVariable is cut along axis 0 only, a PartitionedVariable along any",
                grid.splits()[axis].len()
            );
            return Err(EmbeddingError::invalid(name, what));
        }
        let parts = grid.regions().zip(tasks);
        Ok(Self::of(Variable::declare(
            name,
            dtype,
            grid.shape(),
            parts,
        )?))
    }

    fn of(variable: Variable) -> Self {
        let rows = Rows::new(variable.parts().iter().map(|p| p.region.lengths[0]));
        Self { variable, rows }
    }

    /// Makes a variable with the same parts on the same tasks, without data, under another name. Use it for a slot of an optimizer.
    ///
    /// # Errors
    /// The element type makes it too large.
    pub fn like(&self, name: &str, dtype: DType) -> Result<Self> {
        let parts = self.parts().iter().map(|p| (p.region.clone(), p.task));
        Ok(Self::of(Variable::declare(
            name,
            dtype,
            self.shape(),
            parts,
        )?))
    }

    /// Rows of each part.
    pub fn part_rows(&self) -> Vec<u64> {
        self.parts().iter().map(|p| p.region.lengths[0]).collect()
    }

    /// Shape of a row: the axes after the first.
    pub fn row_shape(&self) -> &[u64] {
        &self.shape()[1..]
    }

    /// Reads the rows with these ids, in the order of the ids. Ids must have one axis; [`embedding_lookup`] takes any shape.
    ///
    /// # Errors
    /// An id out of range, ids that do not have one axis, or a part that has no data here.
    pub fn sparse_read<'a>(&self, ids: impl Into<Ids<'a>>) -> Result<Tensor> {
        let ids = ids.into();
        self.check_list(&ids)?;
        embedding_lookup(self, ids, &LookupOptions::new())
    }

    fn check_list(&self, ids: &Ids<'_>) -> Result<()> {
        if ids.shape().len() == 1 {
            return Ok(());
        }
        let what = format!(
            "ids must have one axis here, but shape {} was given",
            Dims::from(ids.shape())
        );
        Err(EmbeddingError::invalid(self.name(), what))
    }

    /// Changes row `ids[i]` with row `i` of `values`, one after the other. Nothing changes when there is an error.
    fn scatter(&mut self, op: Op, ids: &Ids<'_>, values: &Tensor) -> Result<()> {
        self.check_list(ids)?;
        let table = self.view()?;
        let shape = table.shape_of_rows(ids.shape());
        self.check_value("a scatter with these ids", values, &shape)?;
        let kernel = self.kernel(op)?;
        let bytes = values.to_bytes();
        if op == Op::Div
            && let Some(i) = first_zero(self.dtype(), &bytes)
        {
            let what = format!("division by zero: value {i} (row-major) is 0");
            return Err(EmbeddingError::invalid(self.name(), what));
        }
        let mut places = Vec::with_capacity(ids.values().len());
        for (at, &id) in ids.values().iter().enumerate() {
            let place = u64::try_from(id).ok().and_then(|row| self.rows.locate(row));
            let (part, row) = place.ok_or_else(|| table.out_of_range(id, at))?;
            self.data(part)?;
            places.push((part, row as usize));
        }
        let width = table.row_bytes();
        self.variable.edit(|parts| {
            if width > 0 {
                for ((part, row), from) in places.into_iter().zip(bytes.chunks_exact(width)) {
                    kernel(&mut parts[part][row * width..][..width], from);
                }
            }
        })
    }
}

/// Methods that change some rows. `values` has one row for each of `ids`. If an id occurs several times, its rows are applied one
/// after the other. If there is an error, nothing changes. Errors are: ids out of range, values of another shape or element type, an
/// element type without this arithmetic, a part that has no data here, and memory that is shared or can't be written.
impl ShardedVariable {
    /// Adds values to rows. Integers wrap around; 16-bit floats are computed in float32.
    ///
    /// # Errors
    /// As above.
    pub fn scatter_add<'a>(&mut self, ids: impl Into<Ids<'a>>, values: &Tensor) -> Result<()> {
        self.scatter(Op::Add, &ids.into(), values)
    }

    /// Subtracts values from rows.
    ///
    /// # Errors
    /// As above.
    pub fn scatter_sub<'a>(&mut self, ids: impl Into<Ids<'a>>, values: &Tensor) -> Result<()> {
        self.scatter(Op::Sub, &ids.into(), values)
    }

    /// Multiplies rows by values.
    ///
    /// # Errors
    /// As above.
    pub fn scatter_mul<'a>(&mut self, ids: impl Into<Ids<'a>>, values: &Tensor) -> Result<()> {
        self.scatter(Op::Mul, &ids.into(), values)
    }

    /// Divides rows by values. A quotient of integers is truncated towards zero.
    ///
    /// # Errors
    /// As above, and an integer value of 0.
    pub fn scatter_div<'a>(&mut self, ids: impl Into<Ids<'a>>, values: &Tensor) -> Result<()> {
        self.scatter(Op::Div, &ids.into(), values)
    }

    /// Sets each element to the maximum of row and value. If one of them is NaN, the row's element stays.
    ///
    /// # Errors
    /// As above.
    pub fn scatter_max<'a>(&mut self, ids: impl Into<Ids<'a>>, values: &Tensor) -> Result<()> {
        self.scatter(Op::Max, &ids.into(), values)
    }

    /// Sets each element to the minimum of row and value. If one of them is NaN, the row's element stays.
    ///
    /// # Errors
    /// As above.
    pub fn scatter_min<'a>(&mut self, ids: impl Into<Ids<'a>>, values: &Tensor) -> Result<()> {
        self.scatter(Op::Min, &ids.into(), values)
    }

    /// Replaces rows by values. It works for any element type.
    ///
    /// # Errors
    /// As above.
    pub fn scatter_update<'a>(&mut self, ids: impl Into<Ids<'a>>, values: &Tensor) -> Result<()> {
        self.scatter(Op::Update, &ids.into(), values)
    }
}

impl View for ShardedVariable {
    fn view(&self) -> Result<TableView<'_>> {
        let parts = self.parts().iter().map(|p| p.data()).collect();
        Ok(TableView {
            variable: self,
            rows: &self.rows,
            parts,
        })
    }
}

hold_variable!(ShardedVariable);
make_by_cut!(ShardedVariable);

use crate::{
    Cut, EmbeddingError, Mirrored, PartitionedVariable, Result, ShardedVariable, Tasks, Variable,
    memory::assembled,
    table::{TableView, View},
};
use reshard_model::{DType, Dims, Region, ShardedTensor, StateDict, Step, Tensor, ValueTree};
use reshard_policy::{
    PolicyError,
    partition::{Grid, PartitionSpec, Partitioner},
};
use serde::{Deserialize, Serialize};
use std::{cmp::Reverse, collections::BinaryHeap, fmt, ops::Deref};

/// Which task gets a part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Placement {
    /// The tasks take turns, over all variables of a scope.
    #[default]
    RoundRobin,
    /// The task with the fewest bytes; of several, the lowest.
    ByBytes,
}

/// Whether a variable is cut into parts, or every task has a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Choice {
    /// It is cut into parts by the scope's partitioner.
    Shard,
    /// Every task has a copy.
    Mirror,
}

/// A variable that a scope made.
#[derive(Debug)]
pub enum AnyVariable {
    /// In parts along the first axis, or in one.
    Sharded(ShardedVariable),
    /// In parts along other axes, or without axes.
    Partitioned(PartitionedVariable),
    /// A copy on every task.
    Mirrored(Mirrored),
}

/// What all of them have.
impl Deref for AnyVariable {
    type Target = Variable;
    fn deref(&self) -> &Variable {
        match self {
            Self::Sharded(v) => v,
            Self::Partitioned(v) => v,
            Self::Mirrored(v) => v,
        }
    }
}

impl AnyVariable {
    fn variable_mut(&mut self) -> &mut Variable {
        match self {
            Self::Sharded(v) => v.variable_mut(),
            Self::Partitioned(v) => v.variable_mut(),
            Self::Mirrored(v) => v.variable_mut(),
        }
    }
}

impl View for AnyVariable {
    fn view(&self) -> Result<TableView<'_>> {
        match self {
            Self::Sharded(v) => v.view(),
            Self::Mirrored(v) => v.view(),
            Self::Partitioned(v) => Err(EmbeddingError::invalid(
                v.name(),
                "its parts are not whole rows, which a lookup needs; cut it along the first axis, or mirror it",
            )),
        }
    }
}

forward_changes!(AnyVariable);

type Chooser = dyn Fn(&str, &[u64], DType) -> Choice + Send + Sync;
type Partitions = dyn Fn(u32, &[u64], DType) -> Result<Dims, PolicyError> + Send + Sync;

/// Makes variables, and decides for each into how many parts and on which tasks.
///
/// ```
/// use reshard_embedding::{AnyVariable, Choice, VariableScope};
/// use reshard_model::{DType, Tensor};
/// use reshard_policy::partition::FixedShardsPartitioner;
/// // tables get one part on each of 3 tasks; variables below 1 kB are copied to every task
/// let mut scope = VariableScope::new(3)
///     .with_partitioner(FixedShardsPartitioner::per_task())
///     .with_chooser(|_, shape, _| if shape.iter().product::<u64>() < 250 { Choice::Mirror } else { Choice::Shard });
/// let zeros = |_: &[u64], _: &[u64], shape: &[u64]| Tensor::zeros("", DType::Float32, shape);
/// let table = scope.variable("emb", &[1000, 8], DType::Float32, None, zeros)?;
/// let bias = scope.variable("bias", &[8], DType::Float32, None, zeros)?;
/// assert!(matches!(&table, AnyVariable::Sharded(t) if t.part_rows() == [334, 333, 333]));
/// assert!(matches!(&bias, AnyVariable::Mirrored(b) if b.parts().len() == 3));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct VariableScope {
    partitions: Option<Box<Partitions>>,
    tasks: Tasks,
    placement: Placement,
    chooser: Option<Box<Chooser>>,
    /// The task that comes next in turn.
    next: u32,
    /// Bytes of each task.
    bytes: Vec<u64>,
}

impl fmt::Debug for VariableScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VariableScope")
            .field("tasks", &self.tasks)
            .field("placement", &self.placement)
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

impl VariableScope {
    /// Makes a scope over tasks. Without a partitioner its variables have one part.
    pub fn new(tasks: impl Into<Tasks>) -> Self {
        Self {
            partitions: None,
            tasks: tasks.into(),
            placement: Placement::default(),
            chooser: None,
            next: 0,
            bytes: Vec::new(),
        }
    }

    /// Sets the partitioner.
    pub fn with_partitioner(self, partitioner: impl Partitioner) -> Self {
        self.with_boxed_partitioner(Box::new(partitioner))
    }

    /// Sets a partitioner from configuration.
    pub fn with_boxed_partitioner(self, partitioner: Box<dyn Partitioner>) -> Self {
        self.with_partitions(move |tasks, shape, dtype| {
            partitioner.partitions(tasks, shape, dtype.into())
        })
    }

    /// Sets a partitioner that is a function: of (number of tasks, shape, element type), it returns the number of parts per axis.
    ///
    /// ```
    /// use reshard_embedding::{AnyVariable, VariableScope};
    /// use reshard_model::{DType, Dims, Tensor};
    /// let mut scope = VariableScope::new(4)
    ///     .with_partitions(|tasks, shape, _| Ok(Dims::from([tasks.min(2).into(), shape[1] / 4])));
    /// let zeros = |_: &[u64], _: &[u64], shape: &[u64]| Tensor::zeros("", DType::Float32, shape);
    /// let table = scope.variable("emb", &[10, 8], DType::Float32, None, zeros)?;
    /// assert!(matches!(&table, AnyVariable::Partitioned(t) if t.parts().len() == 4));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn with_partitions(
        mut self,
        partitions: impl Fn(u32, &[u64], DType) -> Result<Dims, PolicyError> + Send + Sync + 'static,
    ) -> Self {
        self.partitions = Some(Box::new(partitions));
        self
    }

    /// Sets how parts are placed.
    pub fn with_placement(mut self, placement: Placement) -> Self {
        self.placement = placement;
        self
    }

    /// Sets a function of (name, shape, element type) that decides whether a variable is cut or mirrored. It is not called for a
    /// variable with its own spec.
    pub fn with_chooser(
        mut self,
        chooser: impl Fn(&str, &[u64], DType) -> Choice + Send + Sync + 'static,
    ) -> Self {
        self.chooser = Some(Box::new(chooser));
        self
    }

    /// The bytes that each task has got, including copies.
    pub fn bytes(&self) -> &[u64] {
        &self.bytes
    }

    /// Makes a variable. A `spec` overrides chooser and partitioner. `initializer` makes each part from (full shape, offset, part
    /// shape). For a mirrored variable it makes the whole.
    ///
    /// # Errors
    /// There is no task, the cut does not fit the shape, the initializer fails, or its result does not have the shape and element type
    /// of the part. Then nothing was placed.
    pub fn variable(
        &mut self,
        name: &str,
        shape: &[u64],
        dtype: DType,
        spec: Option<&PartitionSpec>,
        mut initializer: impl FnMut(&[u64], &[u64], &[u64]) -> reshard_model::Result<Tensor>,
    ) -> Result<AnyVariable> {
        let tasks = self.tasks.check(name)?;
        self.bytes.resize(tasks.count() as usize, 0);
        let choice = match (spec, &self.chooser) {
            (None, Some(chooser)) => chooser(name, shape, dtype),
            _ => Choice::Shard,
        };
        if choice == Choice::Mirror {
            let zeros = Dims::zeros(shape.len());
            let made = Mirrored::create(name, shape, dtype, tasks, |full| {
                initializer(full, &zeros, full)
            })?;
            let elements = Dims::from(shape).volume().unwrap_or(0);
            let each = elements.saturating_mul(dtype.size());
            self.bytes
                .iter_mut()
                .for_each(|b| *b = b.saturating_add(each));
            return Ok(AnyVariable::Mirrored(made));
        }
        let grid = match (spec, &self.partitions) {
            (Some(spec), _) => Cut::Spec(spec).grid(tasks, shape, dtype)?,
            // A scalar is never cut.
            (None, Some(partitions)) if !shape.is_empty() => {
                Grid::even(shape, &partitions(tasks.count(), shape, dtype)?)?
            }
            _ => Cut::Whole.grid(tasks, shape, dtype)?,
        };
        let (placed, next, bytes) = self.place(&grid, dtype);
        let along_rows =
            !shape.is_empty() && grid.splits()[1..].iter().all(|split| split.len() == 1);
        let made = if along_rows {
            let mut v = ShardedVariable::on(name, dtype, &grid, placed)?;
            v.variable_mut().initialize(tasks, initializer)?;
            AnyVariable::Sharded(v)
        } else {
            let mut v = PartitionedVariable::on(name, dtype, &grid, placed)?;
            v.variable_mut().initialize(tasks, initializer)?;
            AnyVariable::Partitioned(v)
        };
        (self.next, self.bytes) = (next, bytes);
        Ok(made)
    }

    /// The task of each part, and what the scope remembers when they are placed.
    fn place(&self, grid: &Grid, dtype: DType) -> (Vec<u32>, u32, Vec<u64>) {
        let (mut next, mut bytes) = (self.next, self.bytes.clone());
        let mut lightest: BinaryHeap<Reverse<(u64, u32)>> =
            bytes.iter().copied().zip(0..).map(Reverse).collect();
        let place = |region: Region| {
            let more = region.volume().unwrap_or(0).saturating_mul(dtype.size());
            let task = match (self.placement, lightest.peek_mut()) {
                (Placement::ByBytes, Some(mut least)) => {
                    least.0.0 = least.0.0.saturating_add(more);
                    least.0.1
                }
                _ => next,
            };
            next = (next + 1) % self.tasks.count();
            let of = &mut bytes[task as usize];
            *of = of.saturating_add(more);
            task
        };
        let placed = grid.regions().map(place).collect();
        (placed, next, bytes)
    }
}

/// Makes an initializer that cuts a tensor. Each part is a box of the tensor, in its own memory.
///
/// # Errors
/// The initializer fails if the variable has another shape.
pub fn slices_of(
    whole: &Tensor,
) -> impl FnMut(&[u64], &[u64], &[u64]) -> reshard_model::Result<Tensor> + use<'_> {
    move |full, offset, shape| {
        if **whole.shape() != *full {
            let what = format!(
                "a tensor of shape {} for one of {}",
                whole.shape(),
                Dims::from(full)
            );
            return Err(reshard_model::ModelError::invalid("initializer", what));
        }
        let part = whole.narrow(&Region::new(Dims::from(offset), Dims::from(shape)));
        let to = Region::whole(shape);
        assembled("initializer", whole.dtype(), part.shape(), &[(&to, &part)]).map_err(
            |e| match e {
                EmbeddingError::Model(e) => e,
                e => reshard_model::ModelError::invalid("initializer", e.to_string()),
            },
        )
    }
}

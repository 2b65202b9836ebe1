use crate::{
    EmbeddingError, Result,
    memory::{assembled, contiguous, each_run, edit},
    number::{Kernel, Op, kernel},
};
use reshard_model::{DType, Dims, Layout, Region, Segments, Tensor};
use reshard_policy::partition::{Grid, MAX_PARTS, PartitionSpec, Partitioner};

mod save;
mod slice;

pub(crate) use save::insert;
pub use slice::Index;

/// The tasks that hold a variable's parts, and which of these tasks are in this process.
///
/// A number means so many tasks whose parts all lie in this process, as with TensorFlow's coordinator or in tests. There are at most
/// [`MAX_PARTS`](reshard_policy::partition::MAX_PARTS) tasks, as many as a variable may have parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tasks {
    count: u32,
    here: Option<u32>,
}

impl Tasks {
    /// So many tasks, one of which is this process. Only the parts of this task get data here.
    pub fn only(count: u32, here: u32) -> Self {
        Self {
            count,
            here: Some(here),
        }
    }

    /// How many.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Whether a task's parts lie in this process.
    pub fn is_here(&self, task: u32) -> bool {
        self.here.is_none_or(|here| here == task)
    }

    pub(crate) fn check(self, name: &str) -> Result<Self> {
        let what = match self {
            Self { count: 0, .. } => "there must be at least one task to hold it".into(),
            Self { count, .. } if u64::from(count) > MAX_PARTS => {
                format!("{count} tasks are more than {MAX_PARTS}")
            }
            Self {
                count,
                here: Some(here),
            } if here >= count => {
                format!("task {here} does not exist: there are {count} tasks, counted from 0")
            }
            ok => return Ok(ok),
        };
        Err(EmbeddingError::invalid(name, what))
    }
}

impl From<u32> for Tasks {
    fn from(count: u32) -> Self {
        Self { count, here: None }
    }
}

/// How a variable is cut: by a spec, or by a partitioner.
#[derive(Clone, Copy, Debug)]
pub enum Cut<'a> {
    /// Parts per axis, or their lengths.
    Spec(&'a PartitionSpec),
    /// As this partitioner decides for the shape.
    Partitioner(&'a dyn Partitioner),
    /// Into one part.
    Whole,
}

impl<'a> From<&'a PartitionSpec> for Cut<'a> {
    fn from(spec: &'a PartitionSpec) -> Self {
        Self::Spec(spec)
    }
}

impl<'a> From<&'a dyn Partitioner> for Cut<'a> {
    fn from(partitioner: &'a dyn Partitioner) -> Self {
        Self::Partitioner(partitioner)
    }
}

impl Cut<'_> {
    pub(crate) fn grid(&self, tasks: Tasks, shape: &[u64], dtype: DType) -> Result<Grid> {
        Ok(match self {
            Self::Spec(spec) => spec.grid_with_empty(shape)?,
            Self::Partitioner(p) => {
                Grid::even(shape, &p.partitions(tasks.count, shape, dtype.into())?)?
            }
            Self::Whole => PartitionSpec::whole(shape.len()).grid(shape)?,
        })
    }
}

/// A part of a variable: its box, its task, and its elements if they lie in this process.
#[derive(Debug)]
pub struct Part {
    pub(crate) task: u32,
    pub(crate) region: Region,
    pub(crate) data: Option<Tensor>,
}

impl Part {
    /// The task that holds it.
    pub fn task(&self) -> u32 {
        self.task
    }

    /// Its box of the variable.
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// Its elements. While somebody else holds a handle on them, they can be read, but not changed.
    pub fn data(&self) -> Option<&Tensor> {
        self.data.as_ref()
    }
}

/// Where a variable is best kept; see [`Variable::placement_hint`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PlacementHint {
    /// A copy on each device: lookups are local, and gradients can be reduced as whole tensors.
    Device,
    /// In host memory, from which rows are sent to the devices.
    Host,
}

/// What all kinds of variables have: a name, a shape, an element type, and parts on tasks.
///
/// [`ShardedVariable`](crate::ShardedVariable), [`PartitionedVariable`](crate::PartitionedVariable) and
/// [`Mirrored`](crate::Mirrored) deref to it.
#[derive(Debug)]
pub struct Variable {
    name: String,
    dtype: DType,
    shape: Dims,
    parts: Vec<Part>,
    /// Every part is the whole.
    pub(crate) mirrored: bool,
}

impl Variable {
    /// Parts without data, one a region and task.
    pub(crate) fn declare(
        name: &str,
        dtype: DType,
        shape: &[u64],
        parts: impl IntoIterator<Item = (Region, u32)>,
    ) -> Result<Self> {
        // Also of an empty one the other axes must fit, so that no arithmetic on places overflows.
        let at_least_one: Dims = shape.iter().map(|&n| n.max(1)).collect();
        contiguous(name, dtype.size(), &at_least_one)?;
        let parts = parts
            .into_iter()
            .map(|(region, task)| Part {
                task,
                region,
                data: None,
            })
            .collect();
        Ok(Self {
            name: name.into(),
            dtype,
            shape: shape.into(),
            parts,
            mirrored: false,
        })
    }

    /// Existing parts, all on task 0.
    pub(crate) fn of_parts(
        name: &str,
        dtype: DType,
        shape: &[u64],
        parts: Vec<(Region, Tensor)>,
    ) -> Result<Self> {
        let regions = parts.iter().map(|(region, _)| (region.clone(), 0));
        let mut out = Self::declare(name, dtype, shape, regions)?;
        // `put` checks the element type, and that a part has no gaps.
        for (i, (_, part)) in parts.into_iter().enumerate() {
            out.put(i, part)?;
        }
        Ok(out)
    }

    /// Gives every part that lies here what `initializer` makes of (full shape, offset, part shape).
    pub(crate) fn initialize(
        &mut self,
        tasks: Tasks,
        mut initializer: impl FnMut(&[u64], &[u64], &[u64]) -> reshard_model::Result<Tensor>,
    ) -> Result<()> {
        for i in 0..self.parts.len() {
            if tasks.is_here(self.parts[i].task) {
                let Region { offsets, lengths } = &self.parts[i].region;
                let data = initializer(&self.shape, offsets, lengths)?;
                self.put(i, data)?;
            }
        }
        Ok(())
    }

    /// Gives a part its data.
    pub(crate) fn put(&mut self, part: usize, data: Tensor) -> Result<()> {
        self.check_part(part, &data)?;
        self.parts[part].data = Some(data);
        Ok(())
    }

    /// Whether a part can have this data.
    pub(crate) fn check_part(&self, part: usize, data: &Tensor) -> Result<()> {
        let Part { task, region, .. } = &self.parts[part];
        if data.dtype() != self.dtype || *data.shape() != region.lengths {
            let what = format!(
                "part {part} {region} on task {task} has shape {} of {}, but was given {} of {}",
                region.lengths,
                self.dtype,
                data.shape(),
                data.dtype()
            );
            return Err(EmbeddingError::invalid(&self.name, what));
        }
        if !data.layout().is_contiguous() {
            let what = format!(
                "part {part} {region} is a view with gaps; parts are row-major, so copy it"
            );
            return Err(EmbeddingError::invalid(&self.name, what));
        }
        Ok(())
    }

    /// Its name, which is its key in a checkpoint.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Where it is best kept: a variable of at least `bytes` bytes in host memory, a smaller one on each device. It is the heuristic that
    /// TensorFlow's RFC on embeddings asks for; nothing here acts on it.
    ///
    /// ```
    /// use reshard_embedding::{PlacementHint, ShardedVariable};
    /// use reshard_model::Tensor;
    /// let table = ShardedVariable::from_parts("emb", [Tensor::from_vec(&[4, 2], vec![0f32; 8])?])?;
    /// assert_eq!(table.placement_hint(33), PlacementHint::Device);
    /// assert_eq!(table.placement_hint(32), PlacementHint::Host);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn placement_hint(&self, bytes: u64) -> PlacementHint {
        let size = self
            .shape
            .volume()
            .and_then(|n| n.checked_mul(self.dtype.size()));
        match size.is_none_or(|size| size >= bytes) {
            true => PlacementHint::Host,
            false => PlacementHint::Device,
        }
    }

    /// Shape of the whole.
    pub fn shape(&self) -> &Dims {
        &self.shape
    }

    /// Its parts, in order. Each part of a mirrored variable is the whole.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// The data of a part.
    pub(crate) fn data(&self, part: usize) -> Result<&Tensor> {
        let data = self.parts[part].data.as_ref();
        data.ok_or_else(|| self.no_data(part))
    }

    /// The error for a part that has no data here.
    pub(crate) fn no_data(&self, part: usize) -> EmbeddingError {
        EmbeddingError::NoData {
            name: self.name.clone(),
            part,
            task: self.parts.get(part).map_or(0, |p| p.task),
        }
    }

    /// Parts that make up the whole, each with its data: of a mirrored variable the first copy that lies here.
    pub(crate) fn cover(&self) -> Result<Vec<(&Region, &Tensor)>> {
        if self.mirrored {
            let copy = self
                .parts
                .iter()
                .find_map(|p| Some((&p.region, p.data.as_ref()?)));
            let none = || EmbeddingError::invalid(&self.name, "this process has no copy of it");
            return Ok(vec![copy.ok_or_else(none)?]);
        }
        (0..self.parts.len())
            .map(|i| Ok((&self.parts[i].region, self.data(i)?)))
            .collect()
    }

    /// Joins the parts into one tensor in new memory.
    ///
    /// # Errors
    /// A part has no data here, or there is no memory.
    pub fn to_tensor(&self) -> Result<Tensor> {
        assembled(&self.name, self.dtype, &self.shape, &self.cover()?)
    }

    /// Lends the memory of all parts to `f`, in their order; of those that do not lie here an empty piece.
    pub(crate) fn edit<R>(&mut self, f: impl FnOnce(&mut [&mut [u8]]) -> R) -> Result<R> {
        edit(
            &self.name,
            self.parts.iter_mut().map(|p| &mut p.data).collect(),
            f,
        )
    }

    /// Changes every element with that of `value` at the same place, or none when there is an error.
    pub(crate) fn update(&mut self, op: Op, value: &Tensor) -> Result<()> {
        self.check_value("the variable", value, &self.shape)?;
        let kernel = self.kernel(op)?;
        let (item, bytes) = (self.dtype.size(), value.to_bytes());
        let whole = contiguous(&self.name, item, &self.shape)?;
        let boxes = self.parts.iter().map(|p| {
            Ok((
                whole.narrow(&p.region),
                contiguous(&self.name, item, &p.region.lengths)?,
            ))
        });
        let boxes = boxes.collect::<Result<Vec<(Layout, Layout)>>>()?;
        self.edit(|parts| {
            for (part, (from, to)) in parts
                .iter_mut()
                .zip(&boxes)
                .filter(|(part, _)| !part.is_empty())
            {
                each_run(Segments::row_major(from, to), &bytes, part, kernel);
            }
        })
    }

    pub(crate) fn kernel(&self, op: Op) -> Result<Kernel> {
        kernel(op, self.dtype).ok_or_else(|| self.unsupported(op.name()))
    }

    pub(crate) fn unsupported(&self, op: &'static str) -> EmbeddingError {
        EmbeddingError::Unsupported {
            name: self.name.clone(),
            op,
            dtype: self.dtype,
        }
    }

    pub(crate) fn check_value(&self, what: &str, value: &Tensor, shape: &Dims) -> Result<()> {
        if value.dtype() == self.dtype && value.shape() == shape {
            return Ok(());
        }
        let what = format!(
            "{what} takes values of shape {shape} of {}, but {} of {} were given",
            self.dtype,
            value.shape(),
            value.dtype()
        );
        Err(EmbeddingError::invalid(&self.name, what))
    }
}

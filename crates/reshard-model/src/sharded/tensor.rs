//! Constructors, checks and derived values of [`ShardedTensor`].

use super::{Data, ReplicaId, ShardedTensor};
use crate::{DType, DeviceTensor, Dims, ModelError, Region, Result, Tensor};

/// Offset and length of the chunk that torch.chunk's rule gives to part `index` of `parts`: chunks of `ceil(extent / parts)`
/// elements, the last ones shorter or empty. An empty chunk starts at the end.
pub fn local_chunk(extent: u64, parts: u64, index: u64) -> (u64, u64) {
    let step = extent.div_ceil(parts.max(1));
    let offset = step.saturating_mul(index).min(extent);
    (offset, step.min(extent - offset))
}

impl From<Tensor> for Data {
    fn from(t: Tensor) -> Self {
        Self::Host(t)
    }
}

impl From<DeviceTensor> for Data {
    fn from(t: DeviceTensor) -> Self {
        Self::Device(t)
    }
}

impl Data {
    /// The tensor, if it is in host memory.
    pub fn host(&self) -> Option<&Tensor> {
        if let Self::Host(t) = self { Some(t) } else { None }
    }

    /// Type and shape of the elements, where they are known without reading.
    pub fn spec(&self) -> Option<(DType, &Dims)> {
        match self {
            Self::Host(t) => Some((t.dtype(), t.shape())),
            Self::Device(t) => Some((t.dtype(), t.shape())),
            Self::None | Self::Lazy(_) => None,
        }
    }
}

impl ShardedTensor {
    /// The chunk that local data is of a regular grid. Each offset is `(axis, rank, fragments)`: along this axis of the
    /// global tensor, the data is part `rank` of `fragments` equal ones. Axes that are not named are whole.
    ///
    /// # Errors
    /// [`ModelError::Invalid`] when an offset does not fit.
    pub fn from_rank_offsets(key: &str, data: Tensor, offsets: &[(usize, u64, u64)]) -> Result<Self> {
        let (dtype, shape) = (data.dtype(), data.shape().clone());
        let mut out = Self::declare(key, dtype, &shape, offsets, 0)?;
        out.data = Data::Host(data);
        Ok(out)
    }

    /// As [`from_rank_offsets`](Self::from_rank_offsets), without data, with `prepend_axis_num` leading axes: `axis` counts
    /// the axes of the global tensor, prepended ones first.
    ///
    /// # Errors
    /// [`ModelError::Invalid`] when an offset does not fit.
    pub fn declare(
        key: &str,
        dtype: DType,
        local_shape: &[u64],
        offsets: &[(usize, u64, u64)],
        prepend_axis_num: usize,
    ) -> Result<Self> {
        let mut local = Dims::splat(1, prepend_axis_num);
        local_shape.iter().for_each(|&n| local.push(n));
        let (mut shape, mut offset) = (local.clone(), Dims::zeros(local.len()));
        let mut fragmentations = Dims::splat(1, local.len());
        for &(axis, at, of) in offsets {
            let fail = |what: String| Err(ModelError::invalid(key, what));
            if axis >= local.len() {
                return fail(format!(
                    "invalid rank offset ({axis}, {at}, {of}): the tensor has {} axes",
                    local.len()
                ));
            }
            if at >= of {
                return fail(format!(
                    "invalid rank offset ({axis}, {at}, {of}): the rank must be less than the fragments"
                ));
            }
            let Some(extent) = of.checked_mul(local[axis]) else {
                return fail(format!(
                    "invalid rank offset ({axis}, {at}, {of}): the global shape is too large"
                ));
            };
            shape[axis] = extent;
            offset[axis] = at * local[axis];
            fragmentations[axis] = of;
        }
        Ok(Self {
            key: key.into(),
            data: Data::None,
            dtype,
            local_shape: local_shape.into(),
            global_shape: shape,
            global_offset: offset,
            axis_fragmentations: Some(fragmentations),
            replica_id: ReplicaId::default(),
            prepend_axis_num,
            allow_shape_mismatch: false,
            flattened_range: None,
        })
    }

    /// A whole tensor, held by this rank alone.
    pub fn full(key: &str, data: Tensor) -> Self {
        let (dtype, shape) = (data.dtype(), data.shape().clone());
        Self { data: Data::Host(data), ..Self::template(key, dtype, &shape) }
    }

    /// A whole tensor that every rank holds a copy of.
    pub fn replicated(key: &str, data: Tensor, replica_id: impl Into<ReplicaId>) -> Self {
        Self { replica_id: replica_id.into(), ..Self::full(key, data) }
    }

    /// A whole tensor without data: what to load, when the load shall allocate.
    pub fn template(key: &str, dtype: DType, shape: &[u64]) -> Self {
        Self::region_of(key, dtype, shape, Region::whole(shape))
    }

    /// Any box of a global tensor, without data: a piece of an irregular grid.
    pub fn region_of(key: &str, dtype: DType, global_shape: &[u64], region: Region) -> Self {
        let whole = region == Region::whole(global_shape);
        Self {
            key: key.into(),
            data: Data::None,
            dtype,
            local_shape: region.lengths,
            global_shape: global_shape.into(),
            global_offset: region.offsets,
            axis_fragmentations: whole.then(|| Dims::splat(1, global_shape.len())),
            replica_id: ReplicaId::default(),
            prepend_axis_num: 0,
            allow_shape_mismatch: false,
            flattened_range: None,
        }
    }

    /// The same piece with data.
    pub fn with_data(mut self, data: impl Into<Data>) -> Self {
        self.data = data.into();
        self
    }

    /// The same piece as copy `replica_id`.
    pub fn with_replica_id(mut self, replica_id: impl Into<ReplicaId>) -> Self {
        self.replica_id = replica_id.into();
        self
    }

    /// What Megatron Core checks, in its order, and a little more.
    ///
    /// # Errors
    /// [`ModelError::Invalid`].
    pub fn validate(&self) -> Result<()> {
        Ok(())
    }

    /// The box of the global tensor that it holds, prepended axes (of extent 1) included.
    pub fn region(&self) -> Region {
        let mut lengths = Dims::splat(1, self.prepend_axis_num);
        self.local_shape.iter().for_each(|&n| lengths.push(n));
        Region { offsets: self.global_offset.clone(), lengths }
    }

    /// Whether the chunks of the tensor form a regular grid.
    pub fn has_regular_grid(&self) -> bool {
        self.axis_fragmentations.is_some()
    }
}

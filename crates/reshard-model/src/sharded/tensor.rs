//! Constructors and checks of [`ShardedTensor`].

use super::{Data, ReplicaId, ShardedTensor};
use crate::{DType, Dims, ModelError, Region, Result, Tensor};
use std::ops::Range;

mod coordinates;
mod narrow;

pub use coordinates::{AxisCoordinates, AxisSlice};

/// Offset and length of part `index` of `parts`, by torch.chunk's rule: each chunk has `ceil(extent / parts)` elements, and the
/// last ones are shorter or empty. An empty chunk starts at the end.
pub fn local_chunk(extent: u64, parts: u64, index: u64) -> (u64, u64) {
    let step = extent.div_ceil(parts.max(1));
    let offset = step.saturating_mul(index).min(extent);
    (offset, step.min(extent - offset))
}

impl ShardedTensor {
    /// Takes all eleven fields, in Megatron Core's order, and checks them with [`validate`](Self::validate). The other
    /// constructors need fewer arguments. A struct literal with [`validated`](Self::validated) does the same.
    ///
    /// # Errors
    /// [`ModelError::Invalid`] when the fields contradict each other.
    #[expect(
        clippy::too_many_arguments,
        reason = "the eleven fields of Megatron Core's constructor"
    )]
    pub fn new(
        key: &str,
        data: impl Into<Data>,
        dtype: DType,
        local_shape: &[u64],
        global_shape: &[u64],
        global_offset: &[u64],
        axis_fragmentations: Option<&[u64]>,
        replica_id: impl Into<ReplicaId>,
        prepend_axis_num: usize,
        allow_shape_mismatch: bool,
        flattened_range: Option<Range<u64>>,
    ) -> Result<Self> {
        let region = Region::new(global_offset, local_shape);
        let out = Self {
            data: data.into(),
            axis_fragmentations: axis_fragmentations.map(Dims::from),
            replica_id: replica_id.into(),
            prepend_axis_num,
            allow_shape_mismatch,
            flattened_range,
            ..Self::region_of(key, dtype, global_shape, region)
        };
        out.validated()
    }

    /// Declares local data as a chunk of a regular grid. Each offset is `(axis, rank, fragments)`: along this axis of the
    /// global tensor, the data is part `rank` of `fragments` equal parts. An axis without an offset is not cut.
    ///
    /// # Errors
    /// [`ModelError::Invalid`] when an offset does not fit, or type and shape of the data are not known.
    pub fn from_rank_offsets(
        key: &str,
        data: impl Into<Data>,
        offsets: &[(usize, u64, u64)],
    ) -> Result<Self> {
        Self::from_rank_offsets_prepended(key, data, offsets, 0)
    }

    /// As [`from_rank_offsets`](Self::from_rank_offsets), with leading axes that the data lacks, such as an axis of layers.
    /// `axis` counts the axes of the global tensor, with the prepended ones first.
    ///
    /// # Errors
    /// As [`from_rank_offsets`](Self::from_rank_offsets).
    ///
    /// ```
    /// use reshard_model::{ShardedTensor, Tensor};
    /// # fn main() -> Result<(), reshard_model::ModelError> {
    /// // layer 2 of 4, rows 5..10 of 10
    /// let local = Tensor::from_vec(&[5, 3], vec![0f32; 15])?;
    /// let t = ShardedTensor::from_rank_offsets_prepended("layers.w", local, &[(0, 2, 4), (1, 1, 2)], 1)?;
    /// assert_eq!(t.global_shape, [4, 10, 3].into());
    /// assert_eq!(t.global_offset, [2, 5, 0].into());
    /// # Ok(())
    /// # }
    /// ```
    pub fn from_rank_offsets_prepended(
        key: &str,
        data: impl Into<Data>,
        offsets: &[(usize, u64, u64)],
        prepend_axis_num: usize,
    ) -> Result<Self> {
        let data = data.into();
        let (dtype, shape) = data.known_spec(key)?;
        let out = Self::declare(key, dtype, &shape, offsets, prepend_axis_num)?;
        Self { data, ..out }.validated()
    }

    /// As [`from_rank_offsets_prepended`](Self::from_rank_offsets_prepended), for data that is a range of a flattened chunk of
    /// shape `local_shape`.
    ///
    /// # Errors
    /// [`ModelError::Invalid`] if the data does not have exactly one axis, or not as many elements as the range; otherwise
    /// those of [`from_rank_offsets`](Self::from_rank_offsets).
    pub fn from_rank_offsets_flat(
        key: &str,
        data: impl Into<Data>,
        local_shape: &[u64],
        offsets: &[(usize, u64, u64)],
        prepend_axis_num: usize,
        flattened_range: Range<u64>,
    ) -> Result<Self> {
        let data = data.into();
        let (dtype, shape) = data.known_spec(key)?;
        if shape.len() != 1 {
            let what =
                format!("data of a flattened tensor should have one axis, it has shape {shape}");
            return Err(ModelError::invalid(key, what));
        }
        let Range { start, end } = flattened_range;
        if end.checked_sub(start) != Some(shape[0]) {
            let what = format!(
                "flattened range {start}..{end} does not fit data of {} elements",
                shape[0]
            );
            return Err(ModelError::invalid(key, what));
        }
        let out = Self::declare(key, dtype, local_shape, offsets, prepend_axis_num)?;
        Self {
            data,
            flattened_range: Some(flattened_range),
            ..out
        }
        .validated()
    }

    /// As [`from_rank_offsets`](Self::from_rank_offsets), without data, and with `prepend_axis_num` leading axes. `axis` counts
    /// the axes of the global tensor, with the prepended ones first.
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
        // Prepended axes have extent 1 locally. An axis without an offset is not cut, so its global extent is the local
        // one.
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

            // Once this product fits, `at * local[axis]` fits too, because `at` is less than `of`.
            let Some(extent) = of.checked_mul(local[axis]) else {
                return fail(format!(
                    "invalid rank offset ({axis}, {at}, {of}): the global shape is too large"
                ));
            };
            shape[axis] = extent;
            offset[axis] = at * local[axis];
            fragmentations[axis] = of;
        }
        let out = Self {
            local_shape: local_shape.into(),
            axis_fragmentations: Some(fragmentations),
            prepend_axis_num,
            ..Self::region_of(key, dtype, &shape, Region::new(offset, local))
        };
        out.validated()
    }

    /// A whole tensor, held by this rank alone.
    pub fn full(key: &str, data: Tensor) -> Self {
        let (dtype, shape) = (data.dtype(), data.shape().clone());
        Self {
            data: Data::Host(data),
            ..Self::template(key, dtype, &shape)
        }
    }

    /// A whole tensor of which every rank holds a copy.
    pub fn replicated(key: &str, data: Tensor, replica_id: impl Into<ReplicaId>) -> Self {
        Self {
            replica_id: replica_id.into(),
            ..Self::full(key, data)
        }
    }

    /// A whole tensor without data. Use it in a template if the load should allocate the memory.
    pub fn template(key: &str, dtype: DType, shape: &[u64]) -> Self {
        Self::region_of(key, dtype, shape, Region::whole(shape))
    }

    /// Any box of a global tensor, without data. [`validate`](Self::validate) checks that the box lies in the tensor; every
    /// save and load calls it.
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
            optional: false,
            flattened_range: None,
            tag: None,
        }
    }

    /// The same piece with data.
    pub fn with_data(mut self, data: impl Into<Data>) -> Self {
        self.data = data.into();
        self
    }

    /// The same piece with a tag for sharding policies, such as the name of its model.
    pub fn with_tag(mut self, tag: &str) -> Self {
        self.tag = Some(tag.into());
        self
    }

    /// The same piece as replica `replica_id`.
    pub fn with_replica_id(mut self, replica_id: impl Into<ReplicaId>) -> Self {
        self.replica_id = replica_id.into();
        self
    }

    /// The same piece, but it may load from a tensor with another global shape. Missing elements become zero.
    pub fn with_shape_mismatch_allowed(mut self) -> Self {
        self.allow_shape_mismatch = true;
        self
    }

    /// The same piece, but a load goes on if it is not stored. It then keeps its contents, and the report names its key: adapters and new
    /// heads, in a template that is strict otherwise.
    pub fn optional(mut self) -> Self {
        self.optional = true;
        self
    }

    /// The same piece without data.
    pub fn without_data(&self) -> Self {
        Self {
            data: Data::None,
            ..self.clone()
        }
    }

    /// Allocates zeros if there is no data: for the local shape, or for the flattened range.
    ///
    /// # Errors
    /// [`ModelError::Invalid`] when there is no memory.
    pub fn init_data(&mut self) -> Result<()> {
        if matches!(self.data, Data::None) {
            let shape = self.data_shape();
            self.data = Data::Host(Tensor::zeros(&self.key, self.dtype, &shape)?);
        }
        Ok(())
    }

    /// The shape of the data: the local shape, or one axis for a flattened range.
    pub fn data_shape(&self) -> Dims {
        match &self.flattened_range {
            None => self.local_shape.clone(),
            Some(r) => [r.end.saturating_sub(r.start)].into(),
        }
    }

    /// Local extents per global axis: prepended axes have 1.
    pub(crate) fn local_extents(&self) -> Dims {
        let mut out = Dims::splat(1, self.prepend_axis_num);
        self.local_shape.iter().for_each(|&n| out.push(n));
        out
    }

    /// The box of the global tensor that it holds, prepended axes (of extent 1) included.
    pub fn region(&self) -> Region {
        Region::new(self.global_offset.clone(), self.local_extents())
    }

    /// Returns itself if [`validate`](Self::validate) finds no problem.
    ///
    /// # Errors
    /// As [`validate`](Self::validate).
    pub fn validated(self) -> Result<Self> {
        self.validate()?;
        Ok(self)
    }

    /// Checks that the fields agree with each other. First it checks what Megatron Core checks, in the same order. Then it
    /// checks that the chunk lies in the global tensor, that the fragments of a regular grid make up the global shape (unless
    /// [`allow_shape_mismatch`](Self::allow_shape_mismatch)), and that nothing is too large to count. An axis of local extent
    /// 0 fits every grid.
    ///
    /// # Errors
    /// [`ModelError::Invalid`] with the key, the field, and both values.
    pub fn validate(&self) -> Result<()> {
        let fail = |what: String| Err(ModelError::invalid(&self.key, what));
        let Self {
            local_shape,
            global_shape,
            global_offset,
            prepend_axis_num,
            ..
        } = self;

        // The order is Megatron Core's, so both report the same mistake first.
        self.validate_data()?;
        if global_shape.len() != global_offset.len() {
            return fail(format!(
                "global offset dimensions should be equal to global shape dimensions \
                 (global_offset {global_offset}, global_shape {global_shape})"
            ));
        }
        if local_shape.len().checked_add(*prepend_axis_num) != Some(global_shape.len()) {
            return fail(format!(
                "local shape together with prepend_axis_num dimensions should be equal to global shape dimensions \
                 (local_shape {local_shape}, prepend_axis_num {prepend_axis_num}, global_shape {global_shape})"
            ));
        }
        self.validate_grid()?;

        // Later arithmetic on offsets and bytes relies on these two checks.
        if !self.region().fits(global_shape) {
            let region = self.region();
            return fail(format!(
                "the local chunk {region} lies outside of global_shape {global_shape}"
            ));
        }
        if global_shape
            .volume()
            .and_then(|n| n.checked_mul(self.dtype.size()))
            .is_none()
        {
            return fail(format!("global_shape {global_shape} is too large"));
        }
        Ok(())
    }

    /// The data has the type and the shape that the fields say.
    fn validate_data(&self) -> Result<()> {
        let fail = |what: String| Err(ModelError::invalid(&self.key, what));
        let local_shape = &self.local_shape;
        let Some(elements) = local_shape.volume() else {
            return fail(format!("local_shape {local_shape} is too large"));
        };

        // Data of a flattened range has one axis, so its shape is compared with the range below.
        if let Some((dtype, shape)) = self.data.spec() {
            if dtype != self.dtype {
                return fail(format!(
                    "data dtype {dtype} should match dtype {}",
                    self.dtype
                ));
            }
            if self.flattened_range.is_none() && shape != *local_shape {
                return fail(format!(
                    "data shape {shape} should match local_shape {local_shape}"
                ));
            }
            if self.flattened_range.is_some() && shape.len() != 1 {
                return fail(format!(
                    "data should have one axis for a flattened_range, it has shape {shape}"
                ));
            }
        }

        // `elements` bounds the range, so ranges that pass always lie in the chunk.
        if let Some(Range { start, end }) = &self.flattened_range {
            if start > end || *end > elements {
                let what = format!(
                    "flattened_range {start}..{end} does not lie in the {elements} elements of local_shape {local_shape}"
                );
                return fail(what);
            }

            // The data has exactly one axis here, as checked above.
            if let Some((_, shape)) = self
                .data
                .spec()
                .filter(|(_, shape)| shape[0] != end - start)
            {
                return fail(format!(
                    "data shape {shape} doesn't match flattened_range {start}..{end}"
                ));
            }
        }
        Ok(())
    }

    /// The fragments of a regular grid make up the global shape.
    fn validate_grid(&self) -> Result<()> {
        let fail = |what: String| Err(ModelError::invalid(&self.key, what));
        let Self {
            global_shape,
            global_offset,
            ..
        } = self;
        let local = self.local_extents();
        if let Some(fragmentations) = &self.axis_fragmentations {
            // An empty extent fits every grid, so it divides every offset here.
            for (&offset, &extent) in global_offset.iter().zip(&local) {
                if offset.checked_rem(extent).unwrap_or(0) != 0 {
                    return fail(format!(
                        "global offset ({offset}) must be divisible by local shape ({extent})"
                    ));
                }
            }
            if fragmentations.len() != global_shape.len() {
                return fail(format!(
                    "axis_fragmentations {fragmentations} should have as many axes as global_shape {global_shape}"
                ));
            }

            // A piece that may load from another global shape can have a grid that does not fit its own.
            for axis in 0..local.len() {
                let (of, extent, whole) = (fragmentations[axis], local[axis], global_shape[axis]);
                if of == 0
                    || extent != 0
                        && !self.allow_shape_mismatch
                        && of.checked_mul(extent) != Some(whole)
                {
                    return fail(format!(
                        "axis {axis}: {of} fragments (axis_fragmentations) of local extent {extent} don't make up \
                         global extent {whole}"
                    ));
                }
            }
        }
        Ok(())
    }
}

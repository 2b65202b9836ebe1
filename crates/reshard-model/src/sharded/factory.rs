//! Leaves that become several leaves on save, and one value again after a load.

use super::{Data, ReplicaId, Sharded, ShardedTensor};
use crate::{DeviceTensor, ModelError, Region, Result, Tensor, Tree, Value, ValueTree};
use std::{fmt, ops::Range, sync::Arc};

/// Builds the sharded leaves of a factory.
pub type BuildFn = dyn Fn(&ShardedTensorFactory) -> Result<Tree<Sharded>> + Send + Sync;

/// Makes one value of what was loaded for a factory. It also gets the factory, whose data may be missing, because a load takes
/// all handles on a buffer. Parts that were views of one buffer are still views of it, so [`Tensor::concat`] copies nothing.
pub type MergeFn = dyn Fn(&ShardedTensorFactory, ValueTree) -> Result<Value> + Send + Sync;

/// A leaf that becomes a subtree of sharded leaves for a save or load, and one value again after a load.
///
/// The functions use the other fields. So you can use the same factory for an optimizer's state: replace key, data and range.
#[derive(Clone)]
pub struct ShardedTensorFactory {
    /// The key that `build` gives to its leaves, or the prefix of their keys.
    pub key: Box<str>,
    /// The data that `build` cuts.
    pub data: Data,
    /// Which replica this is.
    pub replica_id: ReplicaId,
    /// The data is this range of the flattened local chunk.
    pub flattened_range: Option<Range<u64>>,
    /// Cuts the data into leaves.
    pub build: Arc<BuildFn>,
    /// Joins the loaded parts.
    pub merge: Arc<MergeFn>,
}

impl fmt::Debug for ShardedTensorFactory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShardedTensorFactory")
            .field("key", &self.key)
            .finish_non_exhaustive()
    }
}

/// How the two halves of a gated linear unit's weight are named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Swiglu {
    /// Both halves have the key of the whole, in a grid with twice as many fragments. This is Megatron's old form.
    OneKey,
    /// The halves are two tensors, `{key}_w` and `{key}_v`.
    TwoKeys,
}

impl ShardedTensorFactory {
    /// Makes a factory of two functions.
    pub fn new(
        key: &str,
        data: impl Into<Data>,
        build: impl Fn(&Self) -> Result<Tree<Sharded>> + Send + Sync + 'static,
        merge: impl Fn(&Self, ValueTree) -> Result<Value> + Send + Sync + 'static,
    ) -> Self {
        Self {
            key: key.into(),
            data: data.into(),
            replica_id: ReplicaId::default(),
            flattened_range: None,
            build: Arc::new(build),
            merge: Arc::new(merge),
        }
    }

    /// A factory for the weight of a gated linear unit. The local rows are `[w | v]`, but the global tensor has all of `w`
    /// before all of `v`. It uses key, data, grid, replica id and range of `whole`. A range is cut where `v` begins; a half
    /// that the range does not reach is left out.
    ///
    /// # Errors
    /// [`ModelError::Invalid`] when `whole` contradicts itself, has no axis, no regular grid, or an odd number of local rows.
    ///
    /// ```
    /// use reshard_model::{Sharded, ShardedTensor, ShardedTensorFactory, Swiglu, Tensor};
    /// # fn main() -> Result<(), reshard_model::ModelError> {
    /// let local = Tensor::from_vec(&[4, 2], vec![0f32; 8])?; // part 1 of 2 of a tensor of shape (8, 2)
    /// let whole = ShardedTensor::from_rank_offsets("fc1", local, &[(0, 1, 2)])?;
    /// let built = ShardedTensorFactory::swiglu(whole, Swiglu::OneKey)?.build()?;
    /// let offsets: Vec<_> = built.nested_values().into_iter().map(|s| match s {
    ///     Sharded::Tensor(t) => t.global_offset[0],
    ///     Sharded::Object(_) => unreachable!(),
    /// }).collect();
    /// assert_eq!(offsets, [2, 6]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn swiglu(whole: ShardedTensor, form: Swiglu) -> Result<Self> {
        whole.validate()?;
        let rows = whole.local_shape.first().copied();
        if whole.axis_fragmentations.is_none() || rows.is_none_or(|n| n % 2 != 0) {
            let what = format!(
                "local shape {} can't be cut into [w | v]; that needs a regular grid and an even number of rows",
                whole.local_shape
            );
            return Err(ModelError::invalid(&whole.key, what));
        }
        let shape = whole.without_data();
        let local = whole.local_shape;
        Ok(Self {
            key: whole.key,
            data: whole.data,
            replica_id: whole.replica_id,
            flattened_range: whole.flattened_range,
            build: Arc::new(move |f| halves(&shape, form, f)),
            merge: Arc::new(move |f, parts| {
                let elements = f
                    .flattened_range
                    .as_ref()
                    .map(|r| r.end - r.start)
                    .or_else(|| local.volume());
                concat(&f.key, parts, elements)
            }),
        })
    }

    /// Builds the sharded leaves.
    ///
    /// # Errors
    /// Any error of the function.
    pub fn build(&self) -> Result<Tree<Sharded>> {
        (self.build)(self)
    }

    /// The same factory without data.
    pub fn without_data(&self) -> Self {
        Self {
            data: Data::None,
            ..self.clone()
        }
    }
}

/// The two halves of `f`'s data, or the one that its range reaches, in the grid of `whole`.
fn halves(whole: &ShardedTensor, form: Swiglu, f: &ShardedTensorFactory) -> Result<Tree<Sharded>> {
    // The factory's fields may have changed since it was made, so the whole is put together and checked again.
    let whole = ShardedTensor {
        key: f.key.clone(),
        dtype: f.data.spec().map_or(whole.dtype, |(dtype, _)| dtype),
        data: f.data.clone(),
        replica_id: f.replica_id.clone(),
        flattened_range: f.flattened_range.clone(),
        ..whole.clone()
    };
    whole.validate()?;
    let axis = whole.prepend_axis_num;

    // Only the first local axis is halved, so sizes are counted in its rows.
    let rows = whole.local_shape[0] / 2;
    let row = whole.local_shape[1..].iter().product::<u64>();
    let fragments = whole.axis_fragmentations.as_ref().map_or(1, |f| f[axis]);
    let at = whole.global_offset[axis]
        .checked_div(whole.local_shape[0])
        .unwrap_or(0);
    let mut parts = Vec::with_capacity(2);
    for (half, suffix) in [(0, "_w"), (1, "_v")] {
        let mut part = whole.clone();

        // Under one key, all `w` parts come first and all `v` parts after them. Under two keys each half keeps the
        // grid.
        let (at, of) = match form {
            Swiglu::OneKey => (
                fragments.checked_mul(half).and_then(|n| n.checked_add(at)),
                fragments.checked_mul(2),
            ),
            Swiglu::TwoKeys => (Some(at), Some(fragments)),
        };
        let place = at
            .zip(of)
            .and_then(|(at, of)| Some((of, of.checked_mul(rows)?, at.checked_mul(rows)?)));
        let Some((of, extent, offset)) = place else {
            return Err(ModelError::invalid(
                &whole.key,
                format!("{fragments} fragments are too many"),
            ));
        };
        if form == Swiglu::TwoKeys {
            part.key = format!("{}{suffix}", part.key).into();
        }
        part.local_shape[0] = rows;
        part.global_shape[axis] = extent;
        part.global_offset[axis] = offset;
        if let Some(f) = &mut part.axis_fragmentations {
            f[axis] = of;
        }

        // The shape is right now. The data still has to be cut to the half.
        match &whole.flattened_range {
            None => {
                let mut region = Region::whole(&whole.local_shape);
                (region.offsets[0], region.lengths[0]) = (half * rows, rows);
                part.data = whole.data.narrow(&region);
            }
            Some(range) => {
                let (lo, hi) = (half * rows * row, (half + 1) * rows * row);
                let cut = range.start.max(lo)..range.end.min(hi);
                // An empty range has one empty part, so that something comes back.
                if cut.is_empty()
                    && !(range.is_empty() && (lo..=hi).contains(&range.start) && parts.is_empty())
                {
                    continue;
                }
                part.keep_flat(&whole.data, range, lo..hi);
            }
        }
        part.validate()?;
        parts.push(Tree::Leaf(Sharded::Tensor(part)));
    }
    Ok(Tree::List(parts))
}

/// Loaded parts as one tensor of so many elements.
fn concat(key: &str, parts: ValueTree, elements: Option<u64>) -> Result<Value> {
    let (mut host, mut device, mut others) = (Vec::new(), Vec::new(), 0);
    for value in parts.into_nested_values() {
        match value {
            Value::Tensor(t) => host.push(t),
            Value::Device(t) => device.push(t),
            _ => others += 1,
        }
    }
    let merged = match (host.is_empty(), device.is_empty(), others) {
        (false, true, 0) => Value::Tensor(Tensor::concat(key, &host)?),
        (true, false, 0) => Value::Device(DeviceTensor::concat(key, &device)?),
        _ => {
            return Err(ModelError::invalid(
                key,
                "the parts to put together must all be tensors in host memory, or all in device memory",
            ));
        }
    };
    let have = match &merged {
        Value::Tensor(t) => t.shape().volume(),
        Value::Device(t) => t.shape().volume(),
        _ => None,
    };
    if have != elements {
        let what = format!(
            "the parts that were loaded have {} elements, but {} are needed",
            have.unwrap_or(0),
            elements.unwrap_or(0)
        );
        return Err(ModelError::invalid(key, what));
    }
    Ok(merged)
}

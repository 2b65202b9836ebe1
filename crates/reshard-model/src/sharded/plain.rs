//! Plain state dicts of modules, declared as parts of global tensors.

use super::{Data, Leaf, ShardedTensor, StateDict};
use crate::{ModelError, Path, Result, Step, Value, ValueTree};
use std::collections::BTreeSet;

/// Where a rank stands in a job with tensor, data and layer parallelism. The default is a job of one rank.
///
/// The numbers become offsets and replica ids as in Megatron Core: `replica_id` is `[0, tensor-parallel rank, data-parallel
/// rank]`, and the tensor-parallel rank counts only for tensors that are not cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardPlace {
    tensor_parallel: (u32, u32),
    data_parallel: u32,
    prepended: Vec<(u64, u64)>,
}

impl Default for ShardPlace {
    fn default() -> Self {
        Self {
            tensor_parallel: (0, 1),
            data_parallel: 0,
            prepended: Vec::new(),
        }
    }
}

impl ShardPlace {
    /// A job of one rank.
    pub fn new() -> Self {
        Self::default()
    }

    /// With this tensor-parallel rank, of so many.
    pub fn tensor_parallel(mut self, rank: u32, size: u32) -> Self {
        self.tensor_parallel = (rank, size);
        self
    }

    /// With this data-parallel rank. Each has a copy of everything, so their number does not matter.
    pub fn data_parallel(mut self, rank: u32) -> Self {
        self.data_parallel = rank;
        self
    }

    /// With one more leading axis, behind those that are there: the local tensors are entry `index` of `extent`. So the layers of a
    /// model are stacked into one tensor.
    pub fn prepended(mut self, index: u64, extent: u64) -> Self {
        self.prepended.push((index, extent));
        self
    }

    /// The piece that a local tensor is, cut along `axis` of its own axes, or a copy.
    fn piece(&self, key: &str, data: Data, axis: Option<usize>) -> Result<ShardedTensor> {
        let leading = self.prepended.len();
        let mut offsets: Vec<(usize, u64, u64)> = (0..)
            .zip(&self.prepended)
            .map(|(axis, (index, extent))| (axis, *index, *extent))
            .collect();
        let (rank, size) = self.tensor_parallel;
        let copy = match axis {
            Some(axis) => {
                offsets.push((leading.saturating_add(axis), rank.into(), size.into()));
                0
            }
            None => rank,
        };
        let piece = ShardedTensor::from_rank_offsets_prepended(key, data, &offsets, leading)?;
        Ok(piece.with_replica_id([0, copy, self.data_parallel]))
    }
}

impl StateDict {
    /// Declares all tensors of a plain state dict as parts of global tensors, as Megatron Core's
    /// `make_sharded_tensors_for_checkpoint` does. The key of a tensor is `prefix` and its dotted name. `cut` names the tensors
    /// that tensor-parallel ranks have cut, with the axis of the local tensor along which they did. All ranks have copies of the
    /// other tensors. Values that are no tensors stay as they are.
    ///
    /// # Errors
    /// [`ModelError::Invalid`] if `cut` names a tensor that is not there, or if the place does not fit a tensor.
    ///
    /// ```
    /// use reshard_model::{ShardPlace, StateDict, Tensor, Value, ValueTree};
    /// # fn main() -> Result<(), reshard_model::ModelError> {
    /// let mut plain = ValueTree::new();
    /// plain.insert("weight", Value::Tensor(Tensor::from_vec(&[2, 3], vec![0f32; 6])?));
    /// plain.insert("bias", Value::Tensor(Tensor::from_vec(&[3], vec![0f32; 3])?));
    /// let place = ShardPlace::new().tensor_parallel(1, 4);
    /// let state = StateDict::from_plain(plain, "fc1.", &place, &[("weight", 0)])?;
    /// let shapes: Vec<String> = state.nested_values().into_iter().map(|leaf| match leaf {
    ///     reshard_model::Leaf::Tensor(t) => format!("{} {} {}", t.key, t.global_shape, t.replica_id.is_main()),
    ///     _ => unreachable!(),
    /// }).collect();
    /// assert_eq!(shapes, ["fc1.weight [8, 3] true", "fc1.bias [3] false"]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn from_plain(
        plain: ValueTree,
        prefix: &str,
        place: &ShardPlace,
        cut: &[(&str, usize)],
    ) -> Result<Self> {
        let mut unused: BTreeSet<&str> = cut.iter().map(|(name, _)| *name).collect();
        let mut declare = |path: &[Step], value: Value| {
            let data = match value {
                Value::Tensor(t) => Data::Host(t),
                Value::Device(t) => Data::Device(t),
                other => return Ok::<_, ModelError>(Some(Self::Leaf(Leaf::Value(other)))),
            };
            let name = Path::from(path).to_string();
            let axis = cut.iter().find(|(cut, _)| *cut == name);
            unused.remove(&*name);
            let piece = place.piece(&format!("{prefix}{name}"), data, axis.map(|(_, a)| *a))?;
            Ok(Some(piece.into()))
        };
        let state = plain.try_map(&mut declare)?.unwrap_or_default();
        match unused.first() {
            None => Ok(state),
            // A typo here would save different tensors as copies of one.
            Some(name) => Err(ModelError::invalid(
                &format!("{prefix}{name}"),
                "it should be cut, but the state dict has no tensor of this name",
            )),
        }
    }
}

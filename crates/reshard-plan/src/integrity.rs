//! What ranks declare of their leaves, so that the coordinator can look at all of them together.

use reshard_model::{DType, Dims, FlatStateDict, ReplicaId, Sharded};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// What one rank declares of all its leaves, in their order: replicas too, which are in no plan. It lies in columns, so that it is
/// short when ranks send it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Declared {
    keys: Vec<Box<str>>,
    dtypes: Vec<Option<DType>>,
    global_shapes: Vec<Dims>,
    global_offsets: Vec<Dims>,
    local_shapes: Vec<Dims>,
    axis_fragmentations: Vec<Option<Dims>>,
    flattened_ranges: Vec<Option<Range<u64>>>,
    replica_ids: Vec<ReplicaId>,
}

/// What a rank declares of one leaf. The fields are those of [`ShardedTensor`](reshard_model::ShardedTensor) and
/// [`ShardedObject`](reshard_model::ShardedObject).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Declaration<'a> {
    /// The key of the global tensor, or of the array of objects.
    pub key: &'a str,
    /// The element type of a tensor; `None` for an object.
    pub dtype: Option<DType>,
    /// The shape of the whole.
    pub global_shape: &'a Dims,
    /// Where the leaf begins in it.
    pub global_offset: &'a Dims,
    /// The shape of the leaf; no axes for an object.
    pub local_shape: &'a Dims,
    /// The number of chunks per axis, if they are a regular grid.
    pub axis_fragmentations: Option<&'a Dims>,
    /// The range of the flattened chunk that the leaf is, if it is one.
    pub flattened_range: Option<&'a Range<u64>>,
    /// Which replica it is.
    pub replica_id: &'a ReplicaId,
}

impl Declared {
    /// The leaves of a rank.
    pub fn of(state: &FlatStateDict) -> Self {
        let mut out = Self::default();
        for leaf in state.values() {
            match leaf {
                Sharded::Tensor(t) => {
                    out.keys.push(t.key.clone());
                    out.dtypes.push(Some(t.dtype));
                    out.global_shapes.push(t.global_shape.clone());
                    out.global_offsets.push(t.global_offset.clone());
                    out.local_shapes.push(t.local_shape.clone());
                    out.axis_fragmentations.push(t.axis_fragmentations.clone());
                    out.flattened_ranges.push(t.flattened_range.clone());
                    out.replica_ids.push(t.replica_id.clone());
                }
                Sharded::Object(o) => {
                    out.keys.push(o.key.clone());
                    out.dtypes.push(None);
                    out.global_shapes.push(o.global_shape.clone());
                    out.global_offsets.push(o.global_offset.clone());
                    out.local_shapes.push(Dims::default());
                    out.axis_fragmentations.push(None);
                    out.flattened_ranges.push(None);
                    out.replica_ids.push(o.replica_id.clone());
                }
            }
        }
        out
    }

    /// Number of leaves.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether the rank has no leaf.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// The leaves, in the order of the rank's flat state.
    pub fn iter(&self) -> impl Iterator<Item = Declaration<'_>> {
        let names = self.keys.iter().zip(&self.dtypes);
        let shapes = self.global_shapes.iter().zip(&self.global_offsets);
        let local = self.local_shapes.iter().zip(&self.axis_fragmentations);
        let rest = self.flattened_ranges.iter().zip(&self.replica_ids);
        names.zip(shapes).zip(local).zip(rest).map(
            |(
                (((key, dtype), (global_shape, global_offset)), (local_shape, fragmentations)),
                (flattened_range, replica_id),
            )| Declaration {
                key,
                dtype: *dtype,
                global_shape,
                global_offset,
                local_shape,
                axis_fragmentations: fragmentations.as_ref(),
                flattened_range: flattened_range.as_ref(),
                replica_id,
            },
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use reshard_model::{Path, ShardedObject, ShardedTensor, Value};

    #[test]
    fn all_leaves_are_declared_and_come_back() {
        let mut replica = ShardedTensor::template("w", DType::Float16, &[4, 2]).with_replica_id(3);
        replica.flattened_range = Some(2..5);
        let cell = ShardedObject::new("rng", Value::Int(1), &[2, 3], &[1, 2], 0).unwrap();
        let state: FlatStateDict = [
            (Path(vec!["a".into()]), Sharded::Tensor(replica.clone())),
            (Path(vec!["b".into()]), Sharded::Object(cell)),
        ]
        .into();
        let bytes = postcard::to_allocvec(&Declared::of(&state)).unwrap();
        let declared: Declared = postcard::from_bytes(&bytes).unwrap();
        assert_eq!((declared.len(), declared.is_empty()), (2, false));
        let all: Vec<_> = declared.iter().collect();
        assert_eq!(
            (all[0].key, all[0].dtype, all[0].flattened_range),
            ("w", Some(DType::Float16), Some(&(2..5)))
        );
        assert_eq!(all[0].global_shape, &Dims::from([4, 2]));
        assert_eq!(all[0].local_shape, &replica.local_shape);
        assert_eq!(
            all[0].axis_fragmentations,
            replica.axis_fragmentations.as_ref()
        );
        assert!(!all[0].replica_id.is_main() && all[1].replica_id.is_main());
        assert_eq!(
            (all[1].key, all[1].dtype, all[1].global_offset),
            ("rng", None, &Dims::from([1, 2]))
        );
    }

    /// So many leaves are a few dozen bytes each.
    #[test]
    fn a_declaration_is_short() {
        let state: FlatStateDict = (0..1000u64)
            .map(|i| {
                let key = format!("layers.{i}.attention.weight");
                let leaf = ShardedTensor::template(&key, DType::BFloat16, &[4096, 4096]);
                (Path(vec![key.into()]), Sharded::Tensor(leaf))
            })
            .collect();
        let bytes = postcard::to_allocvec(&Declared::of(&state)).unwrap();
        assert!(bytes.len() < 60_000, "{}", bytes.len());
    }
}

//! What ranks declare of their leaves, so that the coordinator can look at all of them together.

mod access;

pub use access::validate_sharding_integrity;

use reshard_model::{DType, Dims, FlatStateDict, ReplicaId, Sharded};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// What one rank declares of all its leaves, in the order of its flat state: replicas too, which are in no plan.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Declared {
    /// The leaves.
    pub leaves: Vec<Declaration>,
}

/// What a rank declares of one leaf. The fields are those of [`ShardedTensor`](reshard_model::ShardedTensor) and
/// [`ShardedObject`](reshard_model::ShardedObject).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Declaration {
    /// The key of the global tensor, or of the array of objects.
    pub key: Box<str>,
    /// The element type of a tensor; `None` for an object.
    pub dtype: Option<DType>,
    /// The shape of the whole.
    pub global_shape: Dims,
    /// Where the leaf begins in it.
    pub global_offset: Dims,
    /// The shape of the leaf; no axes for an object.
    pub local_shape: Dims,
    /// The number of chunks per axis, if they are a regular grid.
    pub axis_fragmentations: Option<Dims>,
    /// The range of the flattened chunk that the leaf is, if it is one.
    pub flattened_range: Option<Range<u64>>,
    /// Which replica it is.
    pub replica_id: ReplicaId,
}

impl Declared {
    /// The leaves of a rank.
    pub fn of(state: &FlatStateDict) -> Self {
        Self {
            leaves: state.values().map(Declaration::of).collect(),
        }
    }
}

impl Declaration {
    /// A leaf.
    pub fn of(leaf: &Sharded) -> Self {
        match leaf {
            Sharded::Tensor(t) => Self {
                key: t.key.clone(),
                dtype: Some(t.dtype),
                global_shape: t.global_shape.clone(),
                global_offset: t.global_offset.clone(),
                local_shape: t.local_shape.clone(),
                axis_fragmentations: t.axis_fragmentations.clone(),
                flattened_range: t.flattened_range.clone(),
                replica_id: t.replica_id.clone(),
            },
            Sharded::Object(o) => Self {
                key: o.key.clone(),
                global_shape: o.global_shape.clone(),
                global_offset: o.global_offset.clone(),
                replica_id: o.replica_id.clone(),
                ..Self::default()
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use reshard_model::{Path, ShardedObject, ShardedTensor, Tensor, Value};

    #[test]
    fn all_leaves_are_declared_and_come_back() {
        let piece = ShardedTensor::from_rank_offsets(
            "w",
            Tensor::zeros("w", DType::Float16, &[4, 2]).unwrap(),
            &[(1, 1, 3)],
        )
        .unwrap()
        .with_replica_id(3);
        let cell = ShardedObject::new("rng", Value::Int(1), &[2, 3], &[1, 2], 0).unwrap();
        let state: FlatStateDict = [
            (Path(vec!["a".into()]), Sharded::Tensor(piece)),
            (Path(vec!["b".into()]), Sharded::Object(cell)),
        ]
        .into();
        let bytes = postcard::to_allocvec(&Declared::of(&state)).unwrap();
        let declared: Declared = postcard::from_bytes(&bytes).unwrap();
        let tensor = Declaration {
            key: "w".into(),
            dtype: Some(DType::Float16),
            global_shape: [4, 6].into(),
            global_offset: [0, 2].into(),
            local_shape: [4, 2].into(),
            axis_fragmentations: Some([1, 3].into()),
            flattened_range: None,
            replica_id: 3.into(),
        };
        let object = Declaration {
            key: "rng".into(),
            dtype: None,
            global_shape: [2, 3].into(),
            global_offset: [1, 2].into(),
            local_shape: Dims::default(),
            axis_fragmentations: None,
            replica_id: 0.into(),
            ..tensor.clone()
        };
        assert_eq!(declared.leaves, [tensor.clone(), object]);
        let mut flattened = ShardedTensor::template("w", DType::Float16, &[4, 2]);
        flattened.flattened_range = Some(2..5);
        let flattened = Declaration::of(&Sharded::Tensor(flattened));
        assert_eq!(flattened.flattened_range, Some(2..5));
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

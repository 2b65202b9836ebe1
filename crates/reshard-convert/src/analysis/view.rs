//! One of two checkpoints that are compared: its items, stored or mapped.

use super::blocks::read;
use crate::source::value;
use reshard::{
    Checkpoint, DType, Dialect, MappedCheckpoint, MappedTensorHandle, Region, Tensor, TensorHandle,
    Value,
    model::Dims,
    storage::{PlaceKind, wait},
};
use std::collections::BTreeSet;

/// A checkpoint as it is stored, or as a map shows it.
#[derive(Clone, Copy)]
pub(super) enum View<'a> {
    Stored(&'a Checkpoint),
    Mapped(&'a MappedCheckpoint),
}

impl View<'_> {
    pub(super) fn stored(&self) -> &Checkpoint {
        match self {
            Self::Stored(c) => c,
            Self::Mapped(m) => m.checkpoint(),
        }
    }

    /// Without the object that has common state, whose values are compared one by one.
    pub(super) fn keys(&self) -> BTreeSet<String> {
        match self {
            Self::Stored(c) => {
                let keys = c.metadata().entries().map(|e| e.key().to_owned());
                keys.filter(|key| !c.is_common(key)).collect()
            }
            Self::Mapped(m) => {
                let tensors = m.mapping().tensors().map(|(key, _)| key);
                tensors.chain(m.objects()).map(String::from).collect()
            }
        }
    }

    pub(super) fn tensors(&self) -> Vec<Side> {
        match self {
            Self::Stored(c) => c.tensors().map(Side::Stored).collect(),
            Self::Mapped(m) => m.tensors().map(Side::Mapped).collect(),
        }
    }

    /// Whether the form of this checkpoint has a place for an item of another one.
    pub(super) fn represents(&self, other: View<'_>, key: &str) -> bool {
        match other.dtype(key) {
            Some(dtype) => self.stored().capabilities().holds(dtype),
            None => self.holds_objects(),
        }
    }

    /// Whether the form of this checkpoint has a place for objects.
    pub(super) fn holds_objects(&self) -> bool {
        let stored = self.stored();
        match stored.dialect() {
            // What the format does not store, the common strategy stores.
            Dialect::Megatron => true,
            _ => stored.capabilities().has_objects(PlaceKind::Folder, false),
        }
    }

    /// The element type of a tensor.
    pub(super) fn dtype(&self, key: &str) -> Option<DType> {
        match self {
            Self::Stored(c) => c.metadata().tensor(key).map(|t| t.dtype()),
            Self::Mapped(m) => m.tensor(key).ok().map(|t| t.dtype()),
        }
    }

    pub(super) fn is_object(&self, key: &str) -> bool {
        match self {
            Self::Stored(c) => c.metadata().object(key).is_some(),
            Self::Mapped(m) => m.mapping().object(key).is_some(),
        }
    }

    /// Whether the item of this key, a tensor or an object, has this value.
    pub(super) async fn has_value(&self, key: &str, value: &Value) -> reshard::Result<bool> {
        if self.is_object(key) {
            return Ok(self.object(key).await? == *value);
        }
        let Value::Tensor(tensor) = value else {
            return Ok(false);
        };
        let stored = match self {
            Self::Stored(c) => c.tensor(key)?.read(..).await?,
            Self::Mapped(m) => m.tensor(key)?.read(..).await?,
        };
        Ok(stored == *tensor)
    }

    pub(super) async fn object(&self, key: &str) -> reshard::Result<Value> {
        match self {
            Self::Stored(c) => value(c, key).await,
            Self::Mapped(m) => match m.mapping().object(key) {
                Some(stored) => value(m.checkpoint(), stored).await,
                None => m.object(key).await,
            },
        }
    }
}

/// A tensor of a [`View`].
#[derive(Debug)]
pub(super) enum Side {
    Stored(TensorHandle),
    Mapped(MappedTensorHandle),
}

impl Side {
    pub(super) fn key(&self) -> &str {
        match self {
            Self::Stored(t) => t.key(),
            Self::Mapped(t) => t.key(),
        }
    }

    pub(super) fn dtype(&self) -> DType {
        match self {
            Self::Stored(t) => t.dtype(),
            Self::Mapped(t) => t.dtype(),
        }
    }

    pub(super) fn shape(&self) -> &Dims {
        match self {
            Self::Stored(t) => t.shape(),
            Self::Mapped(t) => t.shape(),
        }
    }

    pub(super) fn read(&self, region: &Region) -> reshard::Result<Tensor> {
        match self {
            Self::Stored(t) => read(t, region),
            Self::Mapped(t) => wait(t.read(region.clone())),
        }
    }
}

//! Megatron Core's entry points: what a checkpoint holds, as a template that loads it.

use super::handle::{ACT, Checkpoint};
use crate::{Result, error::Context, opened::OpenOptions, place};
use reshard_megatron::MetadataJson;
use reshard_model::{
    Data, FlatStateDict, Path, Payload, Sharded, ShardedObject, ShardedTensor, StateDict, Tensor,
    Value, ValueTree,
};
use reshard_plan::{Cast, Entry, Metadata};
use reshard_strategy::StrategyError;
use std::{collections::BTreeMap, sync::Arc};

/// The key of common state under which `Save::content_metadata` keeps its value.
const CONTENT_METADATA: &str = "content_metadata";

impl Checkpoint {
    /// A leaf without data for each tensor, under its key: it covers the whole tensor. A tensor that is stored flattened has its original
    /// shape. Load the result as it is, or cut it first.
    ///
    /// # Errors
    /// A part of the metadata is not understood.
    pub fn load_tensors_metadata(&self) -> Result<StateDict> {
        self.is_understood().during(ACT, &self.url)?;
        let mut out = StateDict::new();
        for t in self.metadata().tensors() {
            let leaf = ShardedTensor::template(t.key(), t.dtype(), &t.global_shape());
            out.insert(t.key(), leaf);
        }
        Ok(out)
    }

    /// As [`load_tensors_metadata`](Self::load_tensors_metadata), and a leaf without data for each object, under its unique key. The object in which
    /// common state is stored is not among them.
    ///
    /// # Errors
    /// A part of the metadata is not understood.
    pub fn load_sharded_metadata(&self) -> Result<StateDict> {
        let mut out = self.load_tensors_metadata()?;
        for entry in self.metadata().entries() {
            if let Entry::Object(_, key) = entry
                && !self.is_common(key)
            {
                out.insert(key, cell(key));
            }
        }
        Ok(out)
    }

    /// Loads every tensor as a whole, by key.
    ///
    /// # Errors
    /// Damage, an item whose description is not understood, or no memory.
    pub async fn load_plain_tensors(&self) -> Result<BTreeMap<String, Tensor>> {
        self.is_understood().during(ACT, &self.url)?;
        let mut template = FlatStateDict::new();
        for t in self.metadata().tensors() {
            let leaf = ShardedTensor::template(t.key(), t.dtype(), &t.global_shape());
            template.insert(Path(vec![t.key().into()]), Sharded::Tensor(leaf));
        }
        let state = self.fill(template, Cast::Never).await?;
        let tensor = |leaf| match leaf {
            Sharded::Tensor(ShardedTensor {
                key,
                data: Data::Host(t),
                ..
            }) => Some((key.to_string(), t)),
            _ => None,
        };
        Ok(state.into_values().filter_map(tensor).collect())
    }

    /// Loads every tensor as a whole, by key, on top of the common state, as Megatron Core's `load_plain_tensors` does.
    ///
    /// # Errors
    /// As [`load_plain_tensors`](Self::load_plain_tensors) and [`common`](Self::common); a tensor has the key of a leaf of common state.
    pub async fn load_plain_tensors_and_common(&self) -> Result<ValueTree> {
        let mut out = self.common().await?;
        for (key, tensor) in self.load_plain_tensors().await? {
            if out.get(&key).is_some() {
                let what =
                    format!("{key} is a tensor, and a leaf of common state; load one of them");
                return Err(StrategyError::Invalid(what)).during(ACT, &self.url);
            }
            out.insert(key.as_str(), tensor);
        }
        Ok(out)
    }

    /// Megatron Core's description of what the checkpoint holds. `None` if it has none; an empty dict is something.
    ///
    /// # Errors
    /// As [`common`](Self::common).
    pub async fn load_content_metadata(&self) -> Result<Option<Value>> {
        let content = self.common().await?.remove(CONTENT_METADATA);
        Ok(content.map(Value::from))
    }

    /// Whether it is a checkpoint of Megatron Core: one with a `metadata.json` with its fields.
    ///
    /// # Errors
    /// The `metadata.json` is damaged since it was opened; what the store says.
    pub async fn is_distributed_checkpoint(&self) -> Result<bool> {
        let json = MetadataJson::of(self.store()).await;
        json.map(|json| json.is_some()).during(ACT, &self.url)
    }

    /// Whether the object of this key holds the common state.
    pub fn is_common(&self, key: &str) -> bool {
        self.opened.common.is_some() && key == reshard_megatron::COMMON_STATE_CELL
    }
}

/// An object without data: a cell of an array, if its key is the name of one.
fn cell(key: &str) -> ShardedObject {
    let cell = ShardedObject::empty_from_unique_key(key).ok();
    cell.filter(|cell| cell.unique_key() == key)
        .unwrap_or_else(|| ShardedObject::item(key, Payload::None))
}

/// [`Checkpoint::load_tensors_metadata`] of the checkpoint at a path or URL.
///
/// ```
/// # use reshard::{ShardedTensor, StateDict, Tensor};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let url = dir.path().join("ckpt").display().to_string();
/// # let mut state = StateDict::new();
/// # state.insert("w", ShardedTensor::full("w", Tensor::from_vec(&[2], vec![1f32, 2.])?));
/// # reshard::blocking::save(&state, &url)?;
/// let all = reshard::blocking::load(reshard::blocking::load_tensors_metadata(&url)?, &url)?;
/// assert_eq!(all.get("w").unwrap().leaf().unwrap().as_tensor().unwrap().to_vec::<f32>().unwrap(), [1., 2.]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`Checkpoint::open`] and [`Checkpoint::load_tensors_metadata`].
pub async fn load_tensors_metadata(place: impl AsRef<std::path::Path>) -> Result<StateDict> {
    Checkpoint::open(place).await?.load_tensors_metadata()
}

/// [`Checkpoint::load_sharded_metadata`] of the checkpoint at a path or URL.
///
/// # Errors
/// As [`Checkpoint::open`] and [`Checkpoint::load_sharded_metadata`].
pub async fn load_sharded_metadata(place: impl AsRef<std::path::Path>) -> Result<StateDict> {
    Checkpoint::open(place).await?.load_sharded_metadata()
}

/// Loads every tensor as a whole, by key. It loads no objects and no common state.
///
/// # Errors
/// As [`Checkpoint::open`]; damage, an item whose description is not understood, or no memory.
pub async fn load_plain_tensors(
    place: impl AsRef<std::path::Path>,
) -> Result<BTreeMap<String, Tensor>> {
    Checkpoint::open(place).await?.load_plain_tensors().await
}

/// [`Checkpoint::load_plain_tensors_and_common`] of the checkpoint at a path or URL.
///
/// # Errors
/// As [`Checkpoint::open`] and [`Checkpoint::load_plain_tensors_and_common`].
pub async fn load_plain_tensors_and_common(
    place: impl AsRef<std::path::Path>,
) -> Result<ValueTree> {
    let checkpoint = Checkpoint::open(place).await?;
    checkpoint.load_plain_tensors_and_common().await
}

/// [`Checkpoint::load_content_metadata`] of the checkpoint at a path or URL.
///
/// # Errors
/// As [`Checkpoint::open`] and [`Checkpoint::common`].
pub async fn load_content_metadata(place: impl AsRef<std::path::Path>) -> Result<Option<Value>> {
    Checkpoint::open(place).await?.load_content_metadata().await
}

/// Whether there is a checkpoint of Megatron Core: a `metadata.json` with its fields. PyTorch's checkpoints have none; [`Checkpoint::open`]
/// opens these too. It does not look whether the checkpoint is sound.
///
/// # Errors
/// The `metadata.json` is no JSON, or lacks some of the fields; what the store says.
pub async fn is_distributed_checkpoint(place: impl AsRef<std::path::Path>) -> Result<bool> {
    let url = place::place_text(place);
    let store = OpenOptions::default().store_at(&url);
    let json = match store {
        Ok(store) => MetadataJson::of(&store).await,
        Err(e) => Err(e),
    };
    json.map(|json| json.is_some()).during(ACT, &url)
}

/// Reads the common state of a checkpoint.
///
/// # Errors
/// As [`Checkpoint::open`] and [`Checkpoint::common`].
pub async fn load_common(place: impl AsRef<std::path::Path>) -> Result<ValueTree> {
    Checkpoint::open(place).await?.common().await
}

/// Reads the metadata of a checkpoint: what it holds.
///
/// # Errors
/// As [`Checkpoint::open`].
pub async fn load_metadata(place: impl AsRef<std::path::Path>) -> Result<Arc<Metadata>> {
    Ok(Arc::clone(Checkpoint::open(place).await?.metadata()))
}

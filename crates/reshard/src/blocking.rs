//! Blocking versions of this crate's functions, for programs without an executor.
//!
//! If several ranks run in one process, each must call these from its own thread.

mod background;

pub use background::{AsyncCallsQueue, AsyncSaver, SaveHandle, start};

use crate::{LoadError, Result, SaveReport};
use reshard_model::{Element, Payload, Select, StateDict, Tensor, Value, ValueTree};
use reshard_plan::Metadata;
use reshard_storage::{Entry, Leftover, Link, Name, Progress, wait as block_on};
use reshard_strategy::{CheckedItems, FileRole, VerifyReport};
use std::{collections::BTreeMap, future::IntoFuture, ops::Deref, path::Path, sync::Arc};

/// Waits for a save or load with options: `run(reshard::save(&state, url).overwrite(true))`.
pub fn run<F: IntoFuture>(operation: F) -> F::Output {
    block_on(operation.into_future())
}

/// [`crate::save`] with its defaults.
///
/// # Errors
/// As [`crate::save`].
pub fn save(state: &StateDict, place: impl AsRef<Path>) -> Result<SaveReport> {
    run(crate::save(state, place))
}

/// [`crate::load`] with its defaults.
///
/// # Errors
/// As [`crate::load`].
pub fn load(template: StateDict, place: impl AsRef<Path>) -> Result<ValueTree, LoadError> {
    run(crate::load(template, place))
}

/// [`crate::load_common`].
///
/// # Errors
/// As [`crate::load_common`].
pub fn load_common(place: impl AsRef<Path>) -> Result<ValueTree> {
    block_on(crate::load_common(place))
}

/// [`crate::load_metadata`].
///
/// # Errors
/// As [`crate::load_metadata`].
pub fn load_metadata(place: impl AsRef<Path>) -> Result<Arc<Metadata>> {
    block_on(crate::load_metadata(place))
}

/// [`crate::load_plain_tensors`].
///
/// # Errors
/// As [`crate::load_plain_tensors`].
pub fn load_plain_tensors(place: impl AsRef<Path>) -> Result<BTreeMap<String, Tensor>> {
    block_on(crate::load_plain_tensors(place))
}

/// [`crate::load_plain_tensors_and_common`].
///
/// # Errors
/// As there.
pub fn load_plain_tensors_and_common(place: impl AsRef<Path>) -> Result<ValueTree> {
    block_on(crate::load_plain_tensors_and_common(place))
}

/// [`crate::load_tensors_metadata`].
///
/// # Errors
/// As there.
pub fn load_tensors_metadata(place: impl AsRef<Path>) -> Result<StateDict> {
    block_on(crate::load_tensors_metadata(place))
}

/// [`crate::load_sharded_metadata`].
///
/// # Errors
/// As there.
pub fn load_sharded_metadata(place: impl AsRef<Path>) -> Result<StateDict> {
    block_on(crate::load_sharded_metadata(place))
}

/// [`crate::load_content_metadata`].
///
/// # Errors
/// As there.
pub fn load_content_metadata(place: impl AsRef<Path>) -> Result<Option<Value>> {
    block_on(crate::load_content_metadata(place))
}

/// [`crate::is_distributed_checkpoint`].
///
/// # Errors
/// As there.
pub fn is_distributed_checkpoint(place: impl AsRef<Path>) -> Result<bool> {
    block_on(crate::is_distributed_checkpoint(place))
}

/// [`crate::Checkpoint`]. It derefs to that type for methods that need no waiting.
#[derive(Clone, Debug)]
pub struct Checkpoint(crate::Checkpoint);

impl Deref for Checkpoint {
    type Target = crate::Checkpoint;
    fn deref(&self) -> &crate::Checkpoint {
        &self.0
    }
}

impl From<crate::Checkpoint> for Checkpoint {
    fn from(c: crate::Checkpoint) -> Self {
        Self(c)
    }
}

impl Checkpoint {
    /// [`crate::Checkpoint::open`].
    ///
    /// # Errors
    /// As there.
    pub fn open(place: impl AsRef<Path>) -> Result<Self> {
        block_on(crate::Checkpoint::open(place)).map(Self)
    }

    /// [`crate::OpenOptions::open`].
    ///
    /// # Errors
    /// As there.
    pub fn open_with(options: crate::OpenOptions, place: impl AsRef<Path>) -> Result<Self> {
        block_on(options.open(place)).map(Self)
    }

    /// [`crate::Checkpoint::tensor`].
    ///
    /// # Errors
    /// As there.
    pub fn tensor(&self, key: &str) -> Result<TensorHandle> {
        self.0.tensor(key).map(TensorHandle)
    }

    /// [`crate::Checkpoint::tensors`].
    pub fn tensors(&self) -> impl Iterator<Item = TensorHandle> + '_ {
        self.0.tensors().map(TensorHandle)
    }

    /// [`crate::Checkpoint::object`].
    ///
    /// # Errors
    /// As there.
    pub fn object(&self, key: &str) -> Result<Value> {
        block_on(self.0.object(key))
    }

    /// [`crate::Checkpoint::object_payload`].
    ///
    /// # Errors
    /// As there.
    pub fn object_payload(&self, key: &str) -> Result<Payload> {
        block_on(self.0.object_payload(key))
    }

    /// [`crate::Checkpoint::common`].
    ///
    /// # Errors
    /// As there.
    pub fn common(&self) -> Result<ValueTree> {
        block_on(self.0.common())
    }

    /// [`crate::Checkpoint::stored_common`].
    ///
    /// # Errors
    /// As there.
    pub fn stored_common(&self) -> Result<Option<crate::StoredCommon>> {
        block_on(self.0.stored_common())
    }

    /// [`crate::Checkpoint::state`].
    ///
    /// # Errors
    /// As there.
    pub fn state(&self) -> Result<ValueTree> {
        block_on(self.0.state())
    }

    /// [`crate::Checkpoint::load_plain_tensors`].
    ///
    /// # Errors
    /// As there.
    pub fn load_plain_tensors(&self) -> Result<BTreeMap<String, Tensor>> {
        block_on(self.0.load_plain_tensors())
    }

    /// [`crate::Checkpoint::load_plain_tensors_and_common`].
    ///
    /// # Errors
    /// As there.
    pub fn load_plain_tensors_and_common(&self) -> Result<ValueTree> {
        block_on(self.0.load_plain_tensors_and_common())
    }

    /// [`crate::Checkpoint::load_content_metadata`].
    ///
    /// # Errors
    /// As there.
    pub fn load_content_metadata(&self) -> Result<Option<Value>> {
        block_on(self.0.load_content_metadata())
    }

    /// [`crate::Checkpoint::is_distributed_checkpoint`].
    ///
    /// # Errors
    /// As there.
    pub fn is_distributed_checkpoint(&self) -> Result<bool> {
        block_on(self.0.is_distributed_checkpoint())
    }

    /// [`crate::Checkpoint::beside_integrity`].
    ///
    /// # Errors
    /// As there.
    pub fn beside_integrity(&self) -> Result<Vec<Name>> {
        block_on(self.0.beside_integrity())
    }

    /// [`crate::Checkpoint::files`].
    ///
    /// # Errors
    /// As there.
    pub fn files(&self) -> Result<Vec<Entry>> {
        block_on(self.0.files())
    }

    /// [`crate::Checkpoint::roles`].
    ///
    /// # Errors
    /// As there.
    pub fn roles(&self) -> Result<Vec<(Entry, FileRole)>> {
        block_on(self.0.roles())
    }

    /// [`crate::Checkpoint::links`].
    ///
    /// # Errors
    /// As there.
    pub fn links(&self) -> Result<Vec<Link>> {
        block_on(self.0.links())
    }

    /// [`crate::Checkpoint::leftovers`].
    ///
    /// # Errors
    /// As there.
    pub fn leftovers(&self) -> Result<Vec<Leftover>> {
        block_on(self.0.leftovers())
    }

    /// [`crate::Checkpoint::sidecar`].
    pub fn sidecar(&self) -> (Option<crate::Sidecar>, Option<String>) {
        block_on(self.0.sidecar())
    }

    /// [`crate::Checkpoint::verify`].
    ///
    /// # Errors
    /// As there.
    pub fn verify(&self, full: bool, progress: Progress) -> Result<VerifyReport> {
        block_on(self.0.verify(full, progress))
    }

    /// [`crate::Checkpoint::sample`].
    pub fn sample(&self, share: f64, seed: u64) -> crate::Sample {
        self.0.sample(share, seed)
    }

    /// [`crate::Checkpoint::verify_items`].
    ///
    /// # Errors
    /// As there.
    pub fn verify_items(&self, items: &CheckedItems, progress: Progress) -> Result<VerifyReport> {
        block_on(self.0.verify_items(items, progress))
    }
}

/// [`crate::TensorHandle`]. It derefs to that type for methods that need no waiting.
#[derive(Clone, Debug)]
pub struct TensorHandle(crate::TensorHandle);

impl Deref for TensorHandle {
    type Target = crate::TensorHandle;
    fn deref(&self) -> &crate::TensorHandle {
        &self.0
    }
}

impl TensorHandle {
    /// [`crate::TensorHandle::read`].
    ///
    /// # Errors
    /// As there.
    pub fn read(&self, what: impl Select) -> Result<Tensor> {
        block_on(self.0.read(what))
    }

    /// [`crate::TensorHandle::read_as`].
    ///
    /// # Errors
    /// As there.
    pub fn read_as<T: Element>(&self, what: impl Select) -> Result<Vec<T>> {
        block_on(self.0.read_as(what))
    }
}

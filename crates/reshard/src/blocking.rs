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

/// Functions that wait for those of the same name, with the same arguments and errors.
macro_rules! functions {
    ($($name:ident($($arg:ident: $type:ty),*) -> $out:ty;)*) => {$(
        #[doc = concat!("[`crate::", stringify!($name), "`].\n\n# Errors\nAs there.")]
        pub fn $name($($arg: $type),*) -> Result<$out> {
            block_on(crate::$name($($arg),*))
        }
    )*};
}

functions! {
    load_common(place: impl AsRef<Path>) -> ValueTree;
    load_metadata(place: impl AsRef<Path>) -> Arc<Metadata>;
    load_plain_tensors(place: impl AsRef<Path>) -> BTreeMap<String, Tensor>;
    load_plain_tensors_and_common(place: impl AsRef<Path>) -> ValueTree;
    load_tensors_metadata(place: impl AsRef<Path>) -> StateDict;
    load_sharded_metadata(place: impl AsRef<Path>) -> StateDict;
    load_content_metadata(place: impl AsRef<Path>) -> Option<Value>;
    is_distributed_checkpoint(place: impl AsRef<Path>) -> bool;
}

/// The same for methods of [`crate::Checkpoint`].
macro_rules! methods {
    ($($name:ident($($arg:ident: $type:ty),*) -> $out:ty;)*) => {$(
        #[doc = concat!("[`crate::Checkpoint::", stringify!($name), "`].\n\n# Errors\nAs there.")]
        pub fn $name(&self, $($arg: $type),*) -> Result<$out> {
            block_on(self.0.$name($($arg),*))
        }
    )*};
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

    methods! {
        object(key: &str) -> Value;
        object_payload(key: &str) -> Payload;
        common() -> ValueTree;
        stored_common() -> Option<crate::StoredCommon>;
        state() -> ValueTree;
        load_plain_tensors() -> BTreeMap<String, Tensor>;
        load_plain_tensors_and_common() -> ValueTree;
        load_content_metadata() -> Option<Value>;
        is_distributed_checkpoint() -> bool;
        beside_integrity() -> Vec<Name>;
        files() -> Vec<Entry>;
        roles() -> Vec<(Entry, FileRole)>;
        links() -> Vec<Link>;
        leftovers() -> Vec<Leftover>;
        verify(full: bool, progress: Progress) -> VerifyReport;
        verify_items(items: &CheckedItems, progress: Progress) -> VerifyReport;
    }

    /// [`crate::Checkpoint::sidecar`].
    pub fn sidecar(&self) -> (Option<crate::Sidecar>, Option<String>) {
        block_on(self.0.sidecar())
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

    /// [`crate::TensorHandle::read_into`].
    ///
    /// # Errors
    /// As there.
    pub fn read_into<T: Element>(&self, what: impl Select, out: &mut [T]) -> Result<()> {
        block_on(self.0.read_into(what, out))
    }
}

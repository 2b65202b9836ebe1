//! The table of a checkpoint, as the reading rank sends it to the others.

use reshard_comm::Cause;
use reshard_model::ErrorKind;
use reshard_plan::Metadata;
use reshard_strategy::{StorageReader, cause};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Everything on which the plans of ranks depend. The numbers of its chunks are those of the open checkpoint.
#[derive(Serialize, Deserialize)]
pub(super) struct Description {
    pub(super) metadata: Arc<Metadata>,
    pub(super) not_understood: Vec<String>,
    pub(super) reads_columns_together: bool,
}

impl Description {
    /// The description of an open checkpoint. Fails if `keys` has one that is stored but can't be read.
    pub(super) fn of<'k>(
        from: &dyn StorageReader,
        keys: impl IntoIterator<Item = &'k String>,
    ) -> Result<Self, Cause> {
        let metadata = from.metadata();
        for key in keys {
            from.permits(key).map_err(|e| cause(&e))?;
            let why = match metadata.tensor(key) {
                Some(_) => None,
                None => from.why_not(key),
            };
            if let Some(what) = why {
                let what = format!("{what} is not supported by {}", from.key());
                return Err(Cause::new(ErrorKind::Unsupported, what));
            }
        }
        Ok(Self {
            metadata: Arc::clone(metadata),
            not_understood: from.not_understood(),
            reads_columns_together: from.reads_columns_together(),
        })
    }
}

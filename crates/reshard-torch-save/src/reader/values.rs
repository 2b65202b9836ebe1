//! Objects that were decoded.

use reshard_model::Value;
use reshard_torch_format::ObjectAt;
use std::collections::BTreeMap;

/// Objects without tensors, by file: all of a file are decoded at once, because each time its pickle is parsed again.
#[derive(Debug)]
pub(super) struct Values(pub(super) Vec<Option<BTreeMap<ObjectAt, Value>>>);

impl Values {
    pub(super) fn new(files: usize) -> Self {
        Self(vec![None; files])
    }
}

//! Objects that become leaves of common state.

use crate::{ConvertError, Result, optimizer::Canonical};
use reshard::{
    Checkpoint, CommonForm, ShardedObject, StoredCommon, Value,
    model::{Path, Step, unflatten},
    plan::PlannerData,
};

/// Megatron Core takes every object for a cell of an array, and fails if its key has another form. It has all other values in common state.
pub(crate) fn is_name_of_cell(key: &str) -> bool {
    ShardedObject::empty_from_unique_key(key).is_ok()
}

/// What becomes common state, by path.
#[derive(Debug, Default)]
pub(crate) struct Leaves(Vec<(Path, Value)>);

impl Leaves {
    /// Adds the object of a key of the source at the path that the source gives it, or under its new key if there is none.
    pub(crate) fn add(
        &mut self,
        checkpoint: &Checkpoint,
        canonical: &Canonical,
        (key, to): (&str, &str),
        value: Value,
    ) {
        let data = checkpoint.metadata().planner_data();
        // A map has keys and no nesting.
        let path = data.filter(|_| !canonical.is_mapped);
        let path = path.and_then(|data| PlannerData::path(data, key)).cloned();
        let path = path.unwrap_or_else(|| Path(vec![to.into()]));
        self.0.push((path, value));
    }

    /// Adds a value at the top of common state. Returns whether there was none of this name.
    pub(crate) fn add_new(&mut self, name: &str, value: Value) -> bool {
        let name = Step::from(name);
        let is_new = self.0.iter().all(|(path, _)| path.0.first() != Some(&name));
        if is_new {
            self.0.push((Path(vec![name]), value));
        }
        is_new
    }

    /// Adds a dict in which nothing was.
    pub(crate) fn add_empty(&mut self, path: Path) {
        self.0.push((path, Value::Dict(Vec::new())));
    }

    /// The number of them.
    pub(crate) fn len(&self) -> u64 {
        self.0.len() as u64
    }

    /// Common state that has them; `None` if there are none. Fails if the paths contradict each other.
    pub(crate) fn into_common(self, form: CommonForm, src: &str) -> Result<Option<StoredCommon>> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let common = unflatten(self.0).map_err(|e| ConvertError::IntoCommon {
            src: src.into(),
            what: e.to_string(),
        })?;
        Ok(Some(StoredCommon::new(form, common.into())))
    }
}

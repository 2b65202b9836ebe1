//! From a template to read items.

use crate::{DefaultLoadPlanner, LoadPlan, Metadata, Result};
use reshard_model::Flat;

pub(crate) fn plan(_: &DefaultLoadPlanner, _: &Flat, _: &Metadata) -> Result<LoadPlan> {
    Ok(LoadPlan::default())
}

pub(crate) fn agree_on_unexpected(_: &mut [LoadPlan]) {}

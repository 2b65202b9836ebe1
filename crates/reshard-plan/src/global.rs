//! From the plans of all ranks to one.

use crate::{Dedup, Metadata, Proposals, Result, SavePlan};

pub(crate) fn plan(plans: Vec<SavePlan>, _: Proposals, _: Dedup) -> Result<(Vec<SavePlan>, Metadata)> {
    Ok((plans, Metadata::default()))
}

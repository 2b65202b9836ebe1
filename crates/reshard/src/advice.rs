//! What may have been forgotten, for errors whose cause is seldom where they show.

use reshard_model::ErrorKind;
use reshard_plan::{Fault, PlanError, Problem};
use reshard_strategy::StrategyError;

/// Of a failed save on so many ranks.
pub(crate) fn of_save(ranks: u32, overwrite: bool, e: &StrategyError) -> Option<&'static str> {
    match e {
        StrategyError::Plan(PlanError::Save(found)) if ranks == 1 => found
            .0
            .iter()
            .any(lacks_a_part)
            .then_some("only one rank saves: if other ranks of the job hold the rest, give each rank its `.group(…)`"),
        e if e.kind() == ErrorKind::Exists && !overwrite => Some(match ranks {
            1 => "`.overwrite(true)` replaces it; if another rank of this job has just saved it, give each rank its `.group(…)`",
            _ => "`.overwrite(true)` replaces it",
        }),
        _ => None,
    }
}

/// Whether other ranks may hold what is missing.
fn lacks_a_part(problem: &Problem) -> bool {
    matches!(
        problem.fault,
        Fault::Hole { .. }
            | Fault::Unclaimed { .. }
            | Fault::RangeHole { .. }
            | Fault::NoCell { .. }
    )
}

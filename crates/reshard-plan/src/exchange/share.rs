//! Makes exchanges for plans in which several ranks read the same data.

use super::{Receive, Serve, Wanted};
use crate::{LoadPlan, Metadata, PlanError, ReadItem, Result};
use foldhash::fast::RandomState;
use indexmap::IndexMap;

/// Something that ranks of one group want to read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Demand {
    /// Their group.
    pub group: u32,
    /// What they want.
    pub what: Wanted,
    /// Ranks that want it, in order.
    pub ranks: Vec<u32>,
}

/// An item, with its position in its plan.
type Item = (usize, ReadItem);

/// What each rank wants of one thing.
type Wants = Vec<(u32, Vec<Item>)>;

/// If several ranks of a group want to read the same data, lets one rank read them for all. Call it in
/// [`create_global_plan`](crate::LoadPlanner::create_global_plan), on the plans that the base's has made: it looks for what no rank asks for.
///
/// `group` returns the group of each rank. A rank without a group reads for itself. `choose` gets all demands, in the order of the plans
/// and their items, and returns a reader for each. The reader may be any rank, even one that does not want the data itself. Equal input
/// must give equal readers.
///
/// Two ranks want the same data only if they want the same box of a chunk. If boxes only overlap, cut the items before, so that each part is
/// an item.
///
/// ```
/// use reshard_plan::{LoadPlan, Metadata, Result, share_reads};
///
/// /// All ranks are one group, and the lowest rank that wants the data reads them.
/// fn lowest(plans: Vec<LoadPlan>, metadata: &Metadata) -> Result<Vec<LoadPlan>> {
///     share_reads(plans, metadata, |_| Some(0), |all| all.iter().map(|demand| demand.ranks[0]).collect())
/// }
/// # assert_eq!(lowest(vec![LoadPlan::default()], &Metadata::default()).unwrap().len(), 1);
/// ```
///
/// # Errors
/// [`PlanError::Invalid`] if an item wants something that is not stored, or `choose` does not return exactly one rank per demand.
pub fn share_reads(
    mut plans: Vec<LoadPlan>,
    metadata: &Metadata,
    group: impl Fn(u32) -> Option<u32>,
    choose: impl FnOnce(&[Demand]) -> Vec<u32>,
) -> Result<Vec<LoadPlan>> {
    // Plans are walked by rank, so the ranks of each demand are in order, and a rank's items for it are neighbours.
    let mut all: IndexMap<(u32, Wanted), Wants, RandomState> = IndexMap::default();
    for (rank, plan) in (0u32..).zip(&mut plans) {
        let Some(group) = group(rank) else { continue };
        for item in std::mem::take(&mut plan.items).into_iter().enumerate() {
            let wants = all.entry((group, item.1.wanted(metadata)?)).or_default();
            match wants.last_mut() {
                Some((last, items)) if *last == rank => items.push(item),
                _ => wants.push((rank, vec![item])),
            }
        }
    }

    let demand = |((group, what), wants): (&(u32, Wanted), &Wants)| Demand {
        group: *group,
        what: what.clone(),
        ranks: wants.iter().map(|(rank, _)| *rank).collect(),
    };
    let demands: Vec<Demand> = all.iter().map(demand).collect();
    let readers = choose(&demands);
    if readers.len() != demands.len() {
        let what = format!(
            "{} ranks were chosen for {} reads; choose one rank for each read",
            readers.len(),
            demands.len()
        );
        return Err(PlanError::invalid("an exchange", what));
    }
    drop(demands);

    // The reader keeps its own items, with their positions. Every other rank gets them from the reader.
    let ranks = plans.len();
    let mut kept: Vec<Vec<Item>> = vec![Vec::new(); ranks];
    for (((_, what), wants), reader) in all.into_iter().zip(readers) {
        let mut to = Vec::new();
        for (rank, items) in wants {
            if rank == reader {
                kept[rank as usize].extend(items);
            } else {
                to.push(rank);
                let items = items.into_iter().map(|(_, item)| item).collect();
                plans[rank as usize]
                    .exchange
                    .receives
                    .push(Receive::new(reader, items));
            }
        }

        // A demand of the reader alone needs no exchange.
        if to.is_empty() {
            continue;
        }
        let Some(plan) = plans.get_mut(reader as usize) else {
            let key = what.key(metadata).unwrap_or_default();
            return Err(PlanError::invalid(
                key,
                format!("rank {reader} was chosen to read it, but there are only {ranks} ranks"),
            ));
        };
        plan.exchange.serves.push(Serve::new(what, to));
    }

    // The reader's items go back to the order that they had in its plan.
    for (plan, mut items) in plans.iter_mut().zip(kept) {
        items.sort_unstable_by_key(|(position, _)| *position);
        plan.items.extend(items.into_iter().map(|(_, item)| item));
    }
    Ok(plans)
}

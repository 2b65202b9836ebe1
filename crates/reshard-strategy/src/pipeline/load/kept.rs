//! What each rank reads: decided by the coordinator, or known from the last load.

use super::permitted::{keys_of, permitted};
use crate::{
    LoadCx, Result, StorageReader, StrategyError,
    agree::agree,
    declared::Digest,
    kept::DecidedLoad,
    pipeline::{
        exchange::Share,
        known::{known_or_decided, of_all},
        structure::Structure,
    },
};
use reshard_model::FlatStateDict;
use reshard_plan::{LoadContext, LoadPlan, exchange_groups};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::sync::Arc;

/// A local plan, and the digest of all on which it depends, if the rank keeps plans.
#[derive(Serialize, Deserialize)]
struct Offer(LoadPlan, Option<Digest>);

/// A rank's share, and the digest of the structures of all ranks, if all ranks keep the plan.
#[derive(Serialize, Deserialize)]
struct Decided(Share<LoadPlan>, Option<Digest>);

/// The plan of this rank. `local` makes its local plan after its set-up, unless that has failed.
///
/// # Collective
/// Every rank calls it.
pub(super) async fn known_or_planned(
    set_up: Result<()>,
    local: impl Fn(&FlatStateDict) -> Result<LoadPlan> + Sync,
    template: &FlatStateDict,
    from: &dyn StorageReader,
    (cx, context): (&LoadCx<'_>, &LoadContext<'_>),
) -> Result<Arc<DecidedLoad>> {
    let kept = cx.kept_plan.as_deref();
    let structure = match (&set_up, kept) {
        (Ok(()), Some(_)) => structure(template, from, cx),
        _ => None,
    };
    let mut known = None;
    let mine = set_up.and_then(|()| {
        known = kept
            .zip(structure.as_ref())
            .and_then(|(kept, structure)| kept.known(structure))
            .filter(|(_, decided)| decided.metadata == *from.metadata());
        let Some((of_all, decided)) = &known else {
            return Ok(None);
        };
        // What is wrong with a checkpoint is not a part of its structure.
        permitted(&decided.plan, &decided.keys, template, from)?;
        Ok(Some(*of_all))
    });
    let mut keys = Vec::new();
    let offer = || {
        let plan = local(template)?;
        keys = keys_of(&plan);
        Ok(Offer(
            plan,
            structure.as_ref().map(|s| Sha256::digest(s).into()),
        ))
    };
    let decided = known_or_decided(&cx.comm, mine, offer, |offers| {
        let of_all = of_all(offers.iter().map(|Offer(_, structure)| *structure));
        let plans = offers.into_iter().map(|Offer(plan, _)| plan).collect();
        let plans = cx.planner.create_global_plan(plans, context)?;
        let shares = Share::all(
            from.prepare_global_plan(plans)?,
            |plan| plan.exchange.is_empty(),
            |plans| exchange_groups(plans, from.metadata()),
        )?;
        Ok(shares.into_iter().map(|s| Decided(s, of_all)).collect())
    });
    let Some(Decided(share, of_all)) = decided.await? else {
        let lost = || StrategyError::Internal("a rank has lost its part of a plan".into());
        let (_, decided) = known.ok_or_else(lost)?;
        if let Some(kept) = kept {
            kept.used();
        }
        return Ok(decided);
    };
    let exchange = share.exchange;
    let plan = finish(share, cx).await?;
    let decided = Arc::new(DecidedLoad {
        plan,
        exchange,
        keys,
        metadata: Arc::clone(from.metadata()),
    });
    if let (Some(kept), Some(structure), Some(of_all)) = (kept, structure, of_all) {
        kept.keep(structure, of_all, &decided);
    }
    Ok(decided)
}

/// All on which the plan of this rank depends, but what is stored. `None` if that is not known.
fn structure(
    template: &FlatStateDict,
    from: &dyn StorageReader,
    cx: &LoadCx<'_>,
) -> Option<Vec<u8>> {
    let (format, planner) = (from.plan_settings()?, cx.planner.plan_settings()?);
    let mut out = Structure::of(template);
    let names = [from.name(), cx.planner.name()];
    for text in names.into_iter().chain([&*format, &*planner]) {
        out.text(text);
    }
    out.text(&format!("{} {:?}", from.key(), cx.elsewhere));
    for key in from.not_understood() {
        out.text(&key);
    }
    out.ranks(&cx.comm);
    Some(out.done())
}

/// Calls `finish_plan`, which may change anything except the exchange.
async fn finish(share: Share<LoadPlan>, cx: &LoadCx<'_>) -> Result<LoadPlan> {
    let Share { plan, exchange } = share;
    let agreed = exchange.map(|_| plan.exchange.clone()).unwrap_or_default();
    let finished = cx
        .planner
        .finish_plan(plan)
        .map_err(StrategyError::from)
        .and_then(|plan| {
            if plan.exchange == agreed {
                return Ok(plan);
            }
            let what =
                "a planner's finish_plan must not change an exchange, because other ranks rely on it";
            Err(StrategyError::Invalid(what.into()))
        });
    agree(&cx.comm, "plan", finished).await
}

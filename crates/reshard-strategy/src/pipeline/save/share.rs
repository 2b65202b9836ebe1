//! What each rank is to write: decided by the coordinator, or known from the last save.

use super::{
    local::Local,
    plans::{Global, global_plan},
};
use crate::{
    Result, SaveCx, StorageWriter, StrategyError,
    agree::{agree, decide},
    declared::{Digest, Heard, KeptDeclarations},
    kept::Decided,
    pipeline::{
        exchange::Share,
        known::{known_or_decided, of_all},
        placement::Offer,
    },
};
use reshard_plan::{Declared, Metadata, SavePlan};
use reshard_policy::{PolicyMetrics, ShardingPolicy};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The outcome on one rank.
pub(super) enum Shared {
    /// All ranks have kept it.
    Known(Arc<Decided>),
    New {
        share: Box<Share<SavePlan>>,
        /// Empty where nobody needs it.
        metadata: Arc<Metadata>,
        policy: Option<PolicyMetrics>,
        /// The structure of this rank and the digest of those of all ranks, if the plan may be kept.
        keep: Option<(Vec<u8>, Digest)>,
    },
}

/// The coordinator's answer.
#[derive(Serialize, Deserialize)]
enum Answer {
    /// It does not know what a rank has declared in another save: such ranks declare it again.
    Declare,
    Share {
        share: Box<Share<SavePlan>>,
        /// The digest of the structures of all ranks, if all ranks keep the plan.
        of_all: Option<Digest>,
        /// Whether the coordinator keeps declarations.
        keeps: bool,
    },
}

/// Decides what each rank writes. In a rank-local save each rank does this from its own offer; the ranks only agree that all of them
/// succeeded.
pub(super) async fn share(local: Result<Local<'_>>, cx: &SaveCx<'_>) -> Result<Shared> {
    let asks = local
        .as_ref()
        .ok()
        .map(|local| (local.writer, local.policy));
    let of = Of {
        asks,
        cx,
        global: None,
    };
    if cx.options.rank_local {
        return agree(&cx.comm, "plan", local.and_then(|local| of.alone(local))).await;
    }
    of.together(local).await
}

/// What the global plan is made with, and what of it only the coordinator needs.
struct Of<'a> {
    /// The format and the policy. `None` on a rank that has failed, which decides nothing.
    asks: Option<(&'a dyn StorageWriter, Option<&'a dyn ShardingPolicy>)>,
    cx: &'a SaveCx<'a>,
    global: Option<(Metadata, Option<PolicyMetrics>)>,
}

impl<'a> Of<'a> {
    fn alone(&self, mut local: Local<'_>) -> Result<Shared> {
        if let Some((_, decided)) = local.known {
            return Ok(Shared::Known(decided));
        }
        let (mut offer, _) = local.offer(None)?;
        let (told, structure) = (std::mem::take(&mut offer.told), offer.structure);
        let validates = self.cx.validates();
        Heard::of(validates, vec![told], None)?.validate(validates, &*self.cx.planner, None)?;
        let Global {
            mut shares,
            metadata,
            policy,
        } = self.global_plan(vec![offer])?;
        let none = || StrategyError::Internal("a rank-local save has no plan".into());
        Ok(Shared::New {
            share: Box::new(shares.pop().ok_or_else(none)?),
            metadata: Arc::new(metadata),
            policy,
            keep: local.structure.zip(structure),
        })
    }

    async fn together(mut self, local: Result<Local<'_>>) -> Result<Shared> {
        let (comm, kept) = (&self.cx.comm, self.declarations());
        // A rank that fails still takes the step.
        let (mut rank, failed) = match local {
            Ok(local) => (Some(local), None),
            Err(e) => (None, Some(e)),
        };
        let known = rank.as_mut().and_then(|rank| rank.known.take());
        let mine = failed.map_or_else(|| Ok(known.as_ref().map(|(of_all, _)| *of_all)), Err);
        let lost = || StrategyError::Internal("a rank has lost its part of a plan".into());
        let (mut digest, mut whole, mut waiting) = (None, true, None);
        let offer = || {
            let (offer, declared) = rank.as_mut().ok_or_else(lost)?.offer(kept)?;
            (digest, whole) = (declared, !offer.told.is_same());
            Ok(offer)
        };
        let answer = known_or_decided(comm, mine, offer, |mut offers: Vec<Offer>| {
            let told = offers.iter_mut().map(|o| std::mem::take(&mut o.told));
            let heard = Heard::of(self.cx.validates(), told.collect(), self.declarations())?;
            if !heard.is_whole() {
                let each = offers.iter().map(|_| Answer::Declare).collect();
                waiting = Some((offers, heard));
                return Ok(each);
            }
            self.decide(offers, heard)
        });
        let (mut answer, rank) = match answer.await? {
            None => return Ok(Shared::Known(known.ok_or_else(lost)?.1)),
            Some(answer) => (answer, rank.ok_or_else(lost)?),
        };
        if matches!(answer, Answer::Declare) {
            let again = (!whole).then(|| rank.declared());
            let declared = decide(comm, "plan", Ok(again), |again: Vec<Option<Declared>>| {
                let (offers, heard) = waiting.take().ok_or_else(lost)?;
                self.decide(offers, heard.and(again))
            });
            answer = declared.await?;
        }
        let Answer::Share {
            share,
            of_all,
            keeps,
        } = answer
        else {
            return Err(lost());
        };
        if let Some(kept) = kept {
            kept.arrived(digest.filter(|_| keeps));
        }
        let (metadata, policy) = self.global.unwrap_or_default();
        Ok(Shared::New {
            share,
            metadata: Arc::new(metadata),
            policy,
            keep: rank.structure.zip(of_all),
        })
    }

    fn global_plan(&self, offers: Vec<Offer>) -> Result<Global> {
        let lost = || StrategyError::Internal("a rank without a plan decides for all".into());
        let (writer, policy) = self.asks.ok_or_else(lost)?;
        global_plan(writer, offers, policy, self.cx)
    }

    fn declarations(&self) -> Option<&'a KeptDeclarations> {
        self.cx.kept_plan.as_deref().map(|kept| &kept.declarations)
    }

    fn decide(&mut self, offers: Vec<Offer>, heard: Heard) -> Result<Vec<Answer>> {
        let of_all = of_all(offers.iter().map(|offer| offer.structure));
        let keeps = self.declarations().is_some();
        heard.validate(self.cx.validates(), &*self.cx.planner, self.declarations())?;
        let Global {
            shares,
            metadata,
            policy,
        } = self.global_plan(offers)?;
        self.global = Some((metadata, policy));
        let answer = |share| Answer::Share {
            share: Box::new(share),
            of_all,
            keeps,
        };
        Ok(shares.into_iter().map(answer).collect())
    }
}

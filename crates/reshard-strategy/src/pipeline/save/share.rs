//! What each rank is to write: decided by the coordinator, or known from the last save.

use super::{Global, Planned, local::Local};
use crate::{
    KeptPlan, Result, SaveCx, StorageWriter, StrategyError,
    agree::{self, agree},
    declared::{Digest, Heard},
    kept::Decided,
    pipeline::{exchange::Share, placement::Offer},
};
use reshard_plan::{Declared, Metadata, SavePlan};
use reshard_policy::{PolicyMetrics, ShardingPolicy};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::sync::Arc;

/// The outcome on one rank.
pub(super) enum Shared {
    /// All ranks have kept it.
    Known(Arc<Decided>),
    New {
        share: Share<SavePlan>,
        /// Empty where nobody needs it.
        metadata: Metadata,
        policy: Option<PolicyMetrics>,
        /// The structure of this rank and the digest of those of all ranks, if the plan may be kept.
        keep: Option<(Vec<u8>, Digest)>,
    },
}

/// What a rank tells first.
#[derive(Serialize, Deserialize)]
enum Part {
    /// It has kept the plan of these structures of all ranks.
    Known(Digest),
    Offer(Offer),
}

/// What a rank tells if it is asked again, because somebody lacks what it referred to.
#[derive(Serialize, Deserialize)]
struct Again {
    offer: Option<Offer>,
    declared: Option<Declared>,
}

#[derive(Serialize, Deserialize)]
enum Answer {
    /// All ranks have kept the plan.
    Known,
    Again,
    Share {
        share: Share<SavePlan>,
        /// The digest of the structures of all ranks, if all ranks keep the plan.
        of_all: Option<Digest>,
        /// Whether the coordinator keeps declarations.
        keeps: bool,
    },
}

/// Offers of ranks that wait until the others have told theirs.
struct Waiting {
    offers: Vec<Option<Offer>>,
    /// Once all ranks have told of their declarations.
    heard: Option<Heard>,
}

/// Decides what each rank writes. In a rank-local save each rank does this from its own offer; the ranks only agree that all of them
/// succeeded.
pub(super) async fn share<W: StorageWriter>(
    local: Result<Local<'_, W>>,
    policy: Option<&dyn ShardingPolicy>,
    format: &Planned<W>,
    cx: &SaveCx<'_>,
) -> Result<Shared> {
    let kept = cx.kept_plan.as_deref();
    let of = Of {
        format,
        policy,
        cx,
        global: None,
    };
    if cx.rank_local {
        return agree(&cx.comm, "plan", local.and_then(|local| of.alone(local))).await;
    }
    of.together(local, kept).await
}

/// What the global plan is made with, and what of it only the coordinator needs.
struct Of<'a, W> {
    format: &'a Planned<W>,
    policy: Option<&'a dyn ShardingPolicy>,
    cx: &'a SaveCx<'a>,
    global: Option<(Metadata, Option<PolicyMetrics>)>,
}

impl<W: StorageWriter> Of<'_, W> {
    fn alone(&self, mut local: Local<'_, W>) -> Result<Shared> {
        if let Some((_, decided)) = local.known() {
            return Ok(Shared::Known(decided));
        }
        let (mut offer, _) = local.offer(None, false)?;
        let (told, structure) = (std::mem::take(&mut offer.told), offer.structure);
        Heard::of(&*self.cx.planner, vec![told], None)?.validate(&*self.cx.planner, None)?;
        let Global {
            mut shares,
            metadata,
            policy,
        } = self.format.global_plan(vec![offer], self.policy, self.cx)?;
        let none = || StrategyError::Internal("a rank-local save has no plan".into());
        Ok(Shared::New {
            share: shares.pop().ok_or_else(none)?,
            metadata,
            policy,
            keep: local.structure.zip(structure),
        })
    }

    async fn together(
        mut self,
        local: Result<Local<'_, W>>,
        kept: Option<&KeptPlan>,
    ) -> Result<Shared> {
        let comm = &self.cx.comm;
        // What this rank tells, or its error: a rank that fails still takes the step.
        let (mut known, mut digest, mut whole) = (None, None, true);
        let mut rank = None;
        let part = local.and_then(|mut local| {
            known = local.known();
            if let Some((of_all, _)) = &known {
                let of_all = *of_all;
                rank = Some(local);
                return Ok(Part::Known(of_all));
            }
            let (offer, declared) = local.offer(kept, false)?;
            (digest, whole) = (declared, !offer.told.is_same());
            rank = Some(local);
            Ok(Part::Offer(offer))
        });
        let mut waiting = None;
        let first = agree::decide(comm, "plan", part, |parts: Vec<Part>| {
            self.answer(parts, &mut waiting)
        });
        let mut answer = first.await?;
        let lost = || StrategyError::Internal("a rank has lost its part of a plan".into());
        let mut rank = rank.ok_or_else(lost)?;

        if matches!(answer, Answer::Again) {
            let again = match &known {
                Some(_) => rank.offer(kept, true).map(|(offer, declared)| {
                    digest = declared;
                    Again {
                        offer: Some(offer),
                        declared: None,
                    }
                }),
                None => Ok(Again {
                    offer: None,
                    declared: (!whole).then(|| Declared::of(rank.state)),
                }),
            };
            let second = agree::decide(comm, "plan", again, |again: Vec<Again>| {
                self.complete(waiting.take().ok_or_else(lost)?, again)
            });
            answer = second.await?;
        }
        match answer {
            Answer::Known => Ok(Shared::Known(known.ok_or_else(lost)?.1)),
            Answer::Again => Err(lost()),
            Answer::Share {
                share,
                of_all,
                keeps,
            } => {
                if let Some(kept) = kept {
                    kept.declarations.arrived(digest.filter(|_| keeps));
                }
                let (metadata, policy) = self.global.unwrap_or_default();
                Ok(Shared::New {
                    share,
                    metadata,
                    policy,
                    keep: rank.structure.zip(of_all),
                })
            }
        }
    }

    /// The coordinator's answer to what ranks have told first.
    fn answer(&mut self, parts: Vec<Part>, waiting: &mut Option<Waiting>) -> Result<Vec<Answer>> {
        let ranks = parts.len();
        let each = |answer: fn() -> Answer| Ok((0..ranks).map(|_| answer()).collect());
        // A rank that has kept the plan of another save must not take its part of that one.
        let mut known = parts.iter().map(|part| match part {
            Part::Known(of_all) => Some(of_all),
            Part::Offer(_) => None,
        });
        if let Some(Some(first)) = known.next()
            && known.all(|other| other == Some(first))
        {
            return each(|| Answer::Known);
        }
        let mut offers: Vec<Option<Offer>> = parts
            .into_iter()
            .map(|part| match part {
                Part::Known(_) => None,
                Part::Offer(offer) => Some(offer),
            })
            .collect();
        if offers.iter().any(Option::is_none) {
            *waiting = Some(Waiting {
                offers,
                heard: None,
            });
            return each(|| Answer::Again);
        }
        let heard = self.hear(&mut offers)?;
        if !heard.is_whole() {
            *waiting = Some(Waiting {
                offers,
                heard: Some(heard),
            });
            return each(|| Answer::Again);
        }
        self.decide(offers, heard)
    }

    /// The coordinator's answer to what ranks have told again.
    fn complete(&mut self, waiting: Waiting, again: Vec<Again>) -> Result<Vec<Answer>> {
        let Waiting { mut offers, heard } = waiting;
        let mut declared = Vec::with_capacity(again.len());
        for (offer, again) in offers.iter_mut().zip(again) {
            if offer.is_none() {
                *offer = again.offer;
            }
            declared.push(again.declared);
        }
        let heard = match heard {
            Some(heard) => heard,
            None => self.hear(&mut offers)?,
        };
        self.decide(offers, heard.and(declared))
    }

    fn hear(&self, offers: &mut [Option<Offer>]) -> Result<Heard> {
        let told = offers.iter_mut().flatten();
        let told = told.map(|offer| std::mem::take(&mut offer.told)).collect();
        Heard::of(&*self.cx.planner, told, self.declarations())
    }

    fn declarations(&self) -> Option<&crate::declared::KeptDeclarations> {
        self.cx.kept_plan.as_deref().map(|kept| &kept.declarations)
    }

    fn decide(&mut self, offers: Vec<Option<Offer>>, heard: Heard) -> Result<Vec<Answer>> {
        let offers: Option<Vec<Offer>> = offers.into_iter().collect();
        let lost = || StrategyError::Internal("a plan has lost its offers".into());
        let offers = offers.ok_or_else(lost)?;
        let of_all = of_all(&offers);
        let keeps = self.declarations().is_some();
        heard.validate(&*self.cx.planner, self.declarations())?;
        let Global {
            shares,
            metadata,
            policy,
        } = self.format.global_plan(offers, self.policy, self.cx)?;
        self.global = Some((metadata, policy));
        let answer = |share| Answer::Share {
            share,
            of_all,
            keeps,
        };
        Ok(shares.into_iter().map(answer).collect())
    }
}

/// The digest of the structures of all ranks, if all ranks keep plans.
fn of_all(offers: &[Offer]) -> Option<Digest> {
    let mut hash = Sha256::new();
    for offer in offers {
        hash.update(offer.structure?);
    }
    Some(hash.finalize().into())
}

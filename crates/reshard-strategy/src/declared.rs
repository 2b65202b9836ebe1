//! How declarations of all leaves reach the coordinator of a save.

use crate::{Result, StrategyError};
use reshard_model::{FlatStateDict, Path, ReplicaId};
use reshard_plan::{Declaration, Declared, SavePlanner};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// SHA-256 of a declaration.
pub(crate) type Digest = [u8; 32];

/// What a rank declares that its state does not show, because a strategy around the format has changed the state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Declares {
    /// The replicas that leaves were before a strategy chose who writes them, by path.
    pub replicas: BTreeMap<Path, ReplicaId>,
    /// Leaves that another strategy stores. They share keys with no other leaf of any rank.
    pub elsewhere: Vec<Declaration>,
}

impl Declares {
    /// What a rank declares that has this state.
    pub(crate) fn of(&self, state: &FlatStateDict) -> Declared {
        let mut declared = Declared::of(state);
        if !self.replicas.is_empty() {
            for (path, leaf) in state.keys().zip(&mut declared.leaves) {
                if let Some(was) = self.replicas.get(path) {
                    leaf.replica_id = was.clone();
                }
            }
        }
        declared.leaves.extend(self.elsewhere.iter().cloned());
        declared
    }
}

/// What ranks declared in the last save, so that a rank sends 32 bytes instead of what it has declared before.
#[derive(Debug, Default)]
pub(crate) struct KeptDeclarations(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    /// What this rank has told, if the coordinator keeps it.
    told: Option<Digest>,
    /// What the coordinator has heard, by rank.
    heard: Vec<(Digest, Arc<Declared>)>,
}

impl KeptDeclarations {
    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The plan is made: the coordinator knows what this rank declares, or keeps nothing.
    pub(crate) fn arrived(&self, digest: Option<Digest>) {
        self.lock().told = digest;
    }
}

/// What a rank tells with its offer.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) enum Told {
    /// Its planner looks at no declarations.
    #[default]
    Nothing,
    All(Declared),
    /// What it told in the save before.
    Same(Digest),
}

impl Told {
    /// What this rank tells of its leaves, and the digest of that if it is kept.
    pub(crate) fn of(
        validates: bool,
        declared: impl FnOnce() -> Declared,
        kept: Option<&KeptDeclarations>,
    ) -> Result<(Self, Option<Digest>)> {
        if !validates {
            return Ok((Self::Nothing, None));
        }
        let declared = declared();
        let digest = kept.map(|_| declaration_digest(&declared)).transpose()?;
        let same = digest.filter(|digest| kept.is_some_and(|k| k.lock().told == Some(*digest)));
        Ok((same.map_or(Self::All(declared), Self::Same), digest))
    }

    /// Whether the coordinator has to know what was told before.
    pub(crate) fn is_same(&self) -> bool {
        matches!(self, Self::Same(_))
    }
}

/// What the coordinator has heard of all ranks: what each declares, or nothing if it tells that it is what it told before, and nobody
/// knows that here.
pub(crate) struct Heard(Vec<Option<(Option<Digest>, Arc<Declared>)>>);

impl Heard {
    /// From what the ranks have told. It is empty if the planner looks at no declarations.
    pub(crate) fn of(
        validates: bool,
        told: Vec<Told>,
        kept: Option<&KeptDeclarations>,
    ) -> Result<Self> {
        let other = |told: &Told| matches!(told, Told::Nothing) == validates;
        if let Some(rank) = told.iter().position(other) {
            return Err(StrategyError::Invalid(format!(
                "of the coordinator's planner and that of rank {rank} only one validates declarations; give all ranks the same planner, and the same `validate_access_integrity`"
            )));
        }
        if !validates {
            return Ok(Self(Vec::new()));
        }
        let kept = kept.map(KeptDeclarations::lock);
        let known = |rank: usize, digest: Digest| {
            let (of, declared) = kept.as_ref()?.heard.get(rank)?;
            (*of == digest).then(|| (Some(digest), Arc::clone(declared)))
        };
        let heard = told.into_iter().enumerate().map(|(rank, told)| match told {
            Told::All(declared) => Some((None, Arc::new(declared))),
            Told::Same(digest) => known(rank, digest),
            Told::Nothing => None,
        });
        Ok(Self(heard.collect()))
    }

    /// Whether nothing has to be told again.
    pub(crate) fn is_whole(&self) -> bool {
        self.0.iter().all(Option::is_some)
    }

    /// With what ranks have told again.
    pub(crate) fn and(mut self, again: Vec<Option<Declared>>) -> Self {
        for (heard, again) in self.0.iter_mut().zip(again) {
            if heard.is_none() {
                *heard = again.map(|declared| (None, Arc::new(declared)));
            }
        }
        self
    }

    /// Lets the planner look at the declarations of all ranks, and keeps them.
    pub(crate) fn validate(
        self,
        validates: bool,
        planner: &dyn SavePlanner,
        kept: Option<&KeptDeclarations>,
    ) -> Result<()> {
        if !validates {
            return Ok(());
        }
        let whole: Option<Vec<_>> = self.0.into_iter().collect();
        let lost = || StrategyError::Internal("a rank's declarations did not arrive".into());
        let (digests, all): (Vec<_>, Vec<_>) = whole.ok_or_else(lost)?.into_iter().unzip();
        planner.validate(&all)?;
        if let Some(kept) = kept {
            let with_digest = |(digest, declared): (Option<Digest>, Arc<Declared>)| match digest {
                Some(digest) => Ok((digest, declared)),
                None => Ok((declaration_digest(&declared)?, declared)),
            };
            let heard = digests.into_iter().zip(all).map(with_digest);
            kept.lock().heard = heard.collect::<Result<Vec<_>>>()?;
        }
        Ok(())
    }
}

/// SHA-256 of what a rank declares.
///
/// # Errors
/// Only those of ours.
pub fn declaration_digest(declared: &Declared) -> Result<[u8; 32]> {
    let bytes = postcard::to_allocvec(declared)
        .map_err(|e| StrategyError::Internal(format!("a declaration can't be encoded: {e}")))?;
    Ok(Sha256::digest(bytes).into())
}

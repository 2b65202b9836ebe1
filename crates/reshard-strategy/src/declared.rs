//! How declarations of all leaves reach the coordinator of a save.

use crate::{Result, StrategyError};
use reshard_model::FlatStateDict;
use reshard_plan::{Declared, SavePlanner};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// SHA-256 of a declaration.
type Digest = [u8; 32];

/// What ranks declared in the last save. Saves of one structure share it, so that a rank sends 32 bytes instead of what it has declared
/// before.
///
/// Each rank has one of its own, and takes it for one save after the other. If ranks lose theirs, the next save sends everything again.
#[derive(Debug, Default)]
pub struct KeptDeclarations(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    /// What this rank has told.
    told: Option<Digest>,
    /// What the coordinator has heard, by rank.
    heard: Vec<(Digest, Arc<Declared>)>,
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
        planner: &dyn SavePlanner,
        state: &FlatStateDict,
        kept: Option<&KeptDeclarations>,
    ) -> Result<(Self, Option<Digest>)> {
        if !planner.validates() {
            return Ok((Self::Nothing, None));
        }
        let declared = Declared::of(state);
        let digest = kept.map(|_| declaration_digest(&declared)).transpose()?;
        let same = digest.filter(|digest| kept.is_some_and(|k| k.lock().told == Some(*digest)));
        Ok((same.map_or(Self::All(declared), Self::Same), digest))
    }
}

impl KeptDeclarations {
    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The plan is made: the coordinator has heard what this rank declares.
    pub(crate) fn arrived(&self, digest: Digest) {
        self.lock().told = Some(digest);
    }
}

/// What the ranks declare, if the planner wants to know. `None` if one tells that it is what it told before, and nobody knows that here.
pub(crate) fn heard(
    planner: &dyn SavePlanner,
    told: Vec<Told>,
    kept: Option<&KeptDeclarations>,
) -> Result<Option<Vec<Arc<Declared>>>> {
    if !planner.validates() {
        return Ok(Some(Vec::new()));
    }
    let kept = kept.map(KeptDeclarations::lock);
    let mut all = Vec::with_capacity(told.len());
    for (rank, told) in told.into_iter().enumerate() {
        let known = |digest: &Digest| {
            let (of, declared) = kept.as_ref()?.heard.get(rank)?;
            (of == digest).then(|| Arc::clone(declared))
        };
        match told {
            Told::All(declared) => all.push(Arc::new(declared)),
            Told::Same(digest) => match known(&digest) {
                Some(declared) => all.push(declared),
                None => return Ok(None),
            },
            Told::Nothing => {
                return Err(StrategyError::Invalid(format!(
                    "the coordinator's planner validates declarations, but that of rank {rank} sends none; give all ranks the same planner"
                )));
            }
        }
    }
    Ok(Some(all))
}

/// Lets the planner look at the declarations of all ranks, and keeps them.
pub(crate) fn validate(
    planner: &dyn SavePlanner,
    all: Vec<Arc<Declared>>,
    kept: Option<&KeptDeclarations>,
) -> Result<()> {
    if !planner.validates() {
        return Ok(());
    }
    planner.validate(&all)?;
    if let Some(kept) = kept {
        let heard = all
            .into_iter()
            .map(|declared| Ok((declaration_digest(&declared)?, declared)));
        let heard = heard.collect::<Result<Vec<_>>>()?;
        kept.lock().heard = heard;
    }
    Ok(())
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

//! What becomes of older checkpoints when a new one is there.

use crate::settings::{Settings, Verify};
use reshard::{
    storage::{Progress, Removal},
    strategy::{VerifyReport, with_sources},
};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeSet,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// What the coordinator tells all ranks.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Outcome {
    pub(crate) removed: Vec<u64>,
    pub(crate) warnings: Vec<String>,
    /// What is wrong with the new checkpoint.
    pub(crate) damage: Option<String>,
}

impl Outcome {
    /// Older checkpoints stay.
    fn warn(&mut self, what: String) {
        tracing::warn!("{what}");
        self.warnings.push(what);
    }
}

/// The steps in whose checkpoints damage was found.
#[derive(Debug, Default)]
pub(crate) struct Damaged(Mutex<BTreeSet<u64>>);

impl Damaged {
    fn lock(&self) -> MutexGuard<'_, BTreeSet<u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Verifies the checkpoint of a new step as asked, and removes older ones. Whatever fails, the new one stays, and what is not
/// certainly to be removed.
pub(crate) async fn retain(settings: &Settings, new: u64, damaged: &Damaged) -> Outcome {
    let mut out = Outcome::default();
    let verified = verify(settings, new).await;
    match verified {
        Ok(report) if !report.damage.is_empty() => {
            damaged.lock().insert(new);
            out.damage = Some(told(&report));
            return out;
        }
        Ok(report) if !is_sound(&report) => {
            let url = settings.url(new);
            let found = told(&report);
            out.warn(format!(
                "older checkpoints stay, because {url} could not be verified as a whole: {found}"
            ));
            return out;
        }
        Ok(_) => {}
        Err(e) => {
            let e = text(&e);
            out.warn(format!(
                "older checkpoints stay, because the new one could not be verified: {e}"
            ));
            return out;
        }
    }
    // It may be saved again over a damaged one.
    damaged.lock().remove(&new);
    finish_saves(settings, &mut out).await;
    if settings.keep.newest.is_some() {
        match settings.removal() {
            Ok(removal) => {
                finish(settings, new, &mut out).await;
                remove(settings, (new, removal), damaged, &mut out).await;
            }
            Err(e) => out.warn(format!("older checkpoints stay: {e}")),
        }
    }
    out
}

/// Verifies the checkpoint of a step as asked.
async fn verify(settings: &Settings, new: u64) -> Result<VerifyReport, reshard::Error> {
    let full = match settings.verify {
        Verify::No => return Ok(VerifyReport::default()),
        Verify::Quick => false,
        Verify::Full => true,
    };
    let checkpoint = settings.open().open(settings.url(new)).await?;
    checkpoint.verify(full, Progress::default()).await
}

/// Whether everything could be checked, and nothing is wrong.
fn is_sound(report: &VerifyReport) -> bool {
    report.lists().iter().all(|(_, found, _)| found.is_empty())
}

/// What was found first, and how much it is.
fn told(report: &VerifyReport) -> String {
    let text = report.to_string();
    let mut lines = text.lines();
    let first = lines.next().unwrap_or_default();
    match lines.next_back() {
        Some(sum) => format!("{first} ({sum})"),
        None => first.into(),
    }
}

/// Finishes removals that were killed.
async fn finish(settings: &Settings, new: u64, out: &mut Outcome) {
    let unfinished = match settings.steps().unfinished_removals().await {
        Ok(unfinished) => unfinished,
        Err(e) => {
            let e = text(&e);
            return out.warn(format!(
                "what killed removals have left could not be looked for: {e}"
            ));
        }
    };
    for step in unfinished.into_iter().filter(|step| *step != new) {
        if let Err(e) = settings.remove(step).only_unfinished(true).await {
            let e = text(&e);
            out.warn(format!(
                "what a killed removal has left of step {step} stays: {e}"
            ));
        }
    }
}

/// Removes what killed saves have left, if it is old enough. A place that has somebody else's checkpoint is left to them.
async fn finish_saves(settings: &Settings, out: &mut Outcome) {
    let mut warn = |e: &reshard::Error| {
        let e = text(e);
        out.warn(format!("what killed saves have left stays: {e}"));
    };
    let left = match settings.steps().unfinished_saves().await {
        Ok(left) if left.is_empty() => return,
        Ok(left) => left,
        Err(e) => return warn(&e),
    };
    let (complete, removal) = match (settings.steps().await, settings.removal()) {
        (Ok(complete), Ok(removal)) => (complete, removal),
        (Err(e), _) => return warn(&e),
        // The save has opened the same place.
        (_, Err(_)) => return,
    };
    for number in left {
        let others = match complete.iter().find(|step| step.number == number) {
            Some(step) => !settings.own(step, removal).await,
            None => false,
        };
        if others {
            continue;
        }
        match settings.prune(number).await {
            // A place that holds something else than what saves leave.
            Err(e) if e.is_no_checkpoint() => {}
            Err(e) => warn(e.error()),
            Ok(_) => {}
        }
    }
}

/// Removes the checkpoints that are not to be kept.
async fn remove(
    settings: &Settings,
    (new, removal): (u64, Removal),
    damaged: &Damaged,
    out: &mut Outcome,
) {
    let steps = match settings.steps().await {
        Ok(steps) => steps,
        Err(e) => {
            let e = text(&e);
            return out.warn(format!(
                "older checkpoints stay, because they could not be listed: {e}"
            ));
        }
    };
    // Whatever the settings say, nothing goes before the new one is found as a program that resumes finds it.
    if !steps.iter().any(|step| step.number == new) {
        let url = settings.url(new);
        return out.warn(format!(
            "older checkpoints stay, because {url} is not found among the complete ones"
        ));
    }
    let mut own = Vec::new();
    for step in &steps {
        // Those that stay for good may be very many.
        let is_asked = step.number < new && !settings.keep.stays_for_good(step.number);
        if is_asked && settings.own(step, removal).await {
            own.push(step.number);
        }
    }
    let to_remove = settings.keep.to_remove(own, new, &damaged.lock());
    for step in to_remove {
        match settings.remove(step).await {
            Ok(_) => {
                damaged.lock().remove(&step);
                out.removed.push(step);
            }
            Err(e) => {
                let e = text(&e);
                out.warn(format!("the checkpoint of step {step} stays: {e}"));
            }
        }
    }
}

/// What an error says, with its sources.
fn text(e: &reshard::Error) -> String {
    with_sources(e.to_string(), e)
}

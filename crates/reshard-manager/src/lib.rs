//! Upkeep of checkpoints: a [`Saver`] names the checkpoints of a run after their steps, saves them, and removes old ones; [`steps()`] and
//! [`latest`] find them; [`prune()`] cleans up after killed saves; [`remove_checkpoint()`] and [`remove_sharded_tensors()`] remove a
//! checkpoint, or keys of one.
//!
//! ```
//! use reshard::{DType, ShardedTensor, StateDict, Tensor};
//! use reshard_manager::{Saver, Verify};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! let saver = Saver::new(dir.path().join("run")).every(100).keep(2).verify(Verify::Quick).blocking();
//!
//! // Where the last run has stopped, or from the beginning.
//! let (mut step, mut weight) = (0, vec![0f32; 4]);
//! if let Some(last) = saver.latest()? {
//!     let mut template = StateDict::new();
//!     template.insert_piece(ShardedTensor::template("weight", DType::Float32, &[4]));
//!     let state = reshard::blocking::load(template, &last)?;
//!     (step, weight) = (last.number, state.tensor("weight")?.to_vec()?);
//! }
//! while step < 500 {
//!     step += 1;
//!     weight.iter_mut().for_each(|w| *w += 1.); // training
//!     if saver.is_due(step) {
//!         let mut state = StateDict::new();
//!         let tensor = Tensor::from_vec(&[4], weight.clone())?;
//!         state.insert_piece(ShardedTensor::full("weight", tensor));
//!         let saved = saver.save(step, &state, |save| save)?;
//!         saved.warnings.iter().for_each(|warning| eprintln!("{warning}"));
//!     }
//! }
//! let steps = reshard_manager::blocking::steps(dir.path().join("run"))?;
//! assert_eq!(steps.iter().map(|step| step.number).collect::<Vec<_>>(), [400, 500]);
//! # Ok(())
//! # }
//! ```
//!
//! In a job of several ranks each of them has a `Saver` with the same settings, and gives its group to the save:
//! `saver.save(step, &state, |save| save.group(&group)).await`. The coordinator verifies and removes. All ranks learn what was done.
//!
//! - A save appears in one step, as with [`reshard::save`]. Older checkpoints are removed only after that, and after the new one was verified, if
//!   that was [asked for](Saver::verify). If the process is killed at any moment, the newest complete checkpoint is there.
//! - Only checkpoints that this saver wrote are removed: their names are of its [pattern](Saver::pattern), and their `reshard.json` has its note
//!   with the [owner](Saver::owner) and the step. Files of other programs in their folders stay.
//! - A removal that fails is a warning in the report ([`Saved::warnings`]). The save has succeeded all the same, and the next one tries again.

pub mod blocking;

mod error;
mod keep;
#[cfg(doctest)]
mod page;
mod prune;
mod removal;
mod remove;
mod remove_checkpoint;
mod report;
mod saver;
mod settings;
mod step_pattern;
mod steps;
mod versions;

pub use error::{Error, Result};
pub use prune::{Kept, Prune, PruneError, PruneReport, Remains, RemainsKind, prune};
pub use remove::{RemoveShardedTensors, Removed, remove_sharded_tensors};
pub use remove_checkpoint::{RemoveCheckpoint, RemovedCheckpoint, remove_checkpoint};
pub use report::Saved;
pub use saver::Saver;
pub use settings::Verify;
pub use step_pattern::StepPattern;
pub use steps::{Step, Steps, latest, steps};

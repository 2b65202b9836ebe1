//! Rewrites a checkpoint in any format, as any number of ranks would have saved it. Compares checkpoints, and shows what is in them.
//!
//! ```
//! use reshard::{ShardedTensor, StateDict, Tensor, blocking};
//! use reshard_convert::convert;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! # let path = |name: &str| dir.path().join(name).display().to_string();
//! # let (src, dst) = (path("step-1000"), path("step-1000-by-4"));
//! let mut state = StateDict::new();
//! let weight = Tensor::from_vec(&[8, 2], vec![0f32; 16])?;
//! state.insert("model.weight", ShardedTensor::full("model.weight", weight));
//! state.insert("optim.lr", ShardedTensor::full("optim.lr", Tensor::from_vec(&[1], vec![0.1f32])?));
//! blocking::save(&state, &src)?;
//!
//! let source = blocking::Checkpoint::open(&src)?;
//! let conversion = convert(&source, &dst)
//!     .ranks(4)
//!     .keys(|key| key.starts_with("model."));
//! let report = blocking::run(conversion)?; // or `conversion.await?`
//! assert_eq!((report.tensors, report.saved.totals.ranks), (1, 4));
//!
//! // Two rows for each of the four ranks.
//! let weight = blocking::Checkpoint::open(&dst)?.tensor("model.weight")?;
//! assert_eq!(weight.chunks().len(), 4);
//! # Ok(())
//! # }
//! ```
//!
//! - The source is checked: every checksum must be right, everything must be understood, and every chunk must have a location. Otherwise
//!   damaged data would get new, correct checksums. Elements are checked while they are read if the format allows that, and else before
//!   anything is written.
//! - The format to write is that of the destination's name, or any other. What it has no place for is refused by name, or left out if that is
//!   asked for.
//! - A conversion never writes over the source, or over a directory that contains it.
//! - The first axis of each tensor is cut into as many parts as there are ranks. Objects and common state are carried
//!   over byte for byte, if both formats encode them alike. Dialect, nesting and empty dicts are kept, if the format has them.
//! - Tensors are read in blocks while they are written, so they need little memory whatever their size. Objects and
//!   common state are held in memory.
//! - The destination appears in one step at the end.
//!
//! [`Convert::prepare`] makes all the checks and says what would be written. The [`Conversion`] that it returns does
//! the work. Its [`Ledger`] lists every item of the source as kept, changed or left out, with the reason.

mod analysis;
mod annotations;
#[cfg(doctest)]
mod book;
mod cast;
mod checked;
mod checks;
mod chunks;
mod convert;
mod destination;
mod error;
mod fit;
mod keys;
mod leaves;
mod ledger;
mod mapped;
mod nested;
mod optimizer;
mod phase;
mod quantized;
mod report;
mod resume;
mod rewrite;
mod snapshot;
mod source;
mod stored;
mod sums;
mod target;
mod tensor;
mod torchao;
mod versions;

pub use analysis::{
    ANALYSIS_BLOCK, CheckpointDiff, DamagedTensor, Diff, Flag, Stats, TensorDiff, TensorStats,
    Tolerance, diff, diff_mapped, stats,
};
pub use cast::CastReport;
pub use convert::{Conversion, Convert, MAX_PIECES, MAX_RANKS, convert};
pub use destination::{MAX_FILES, MAX_FILES_OF_RANKS, check_files};
pub use error::{Asked, ConvertError, Finding, NotHeld, Over, Result};
pub use ledger::{Change, ItemKind, Ledger, LedgerEntry, Outcome};
pub use optimizer::stored_optimizers;
pub use report::ConvertReport;
pub use resume::Resumed;
pub use snapshot::Snapshot;

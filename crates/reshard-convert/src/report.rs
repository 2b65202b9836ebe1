//! The report of a conversion.

use crate::{CastReport, Ledger, NotHeld, Resumed};
use reshard::{BackendVersion, SaveReport, model::some};
use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

/// Report of a conversion.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ConvertReport {
    /// The format that was written.
    pub format: BackendVersion,
    /// What was left out, because the format has no place for it.
    pub dropped: Vec<NotHeld>,
    /// Items that can't be read and were left out, by [`Convert::skip_unread`](crate::Convert::skip_unread), with the reason for each.
    pub unread: BTreeMap<String, Arc<str>>,
    /// What became of each item of the source.
    pub ledger: Ledger,
    /// The tensors that were cast, and what that has lost.
    pub casts: Vec<CastReport>,
    /// The checks that a dry run has not made; empty after a real conversion.
    pub unmade_checks: Vec<&'static str>,
    /// The number of tensors that were carried over.
    pub tensors: u64,
    /// The number of objects that were carried over.
    pub objects: u64,
    /// How long it took, from [`Convert::prepare`](crate::Convert::prepare) on: with the checks of the source.
    pub took: Duration,
    /// How long [`Convert::prepare`](crate::Convert::prepare) took of it: the checks before anything was written. What is checked while it is read is not counted here.
    pub checking: Duration,
    /// What an interrupted conversion had finished.
    pub resumed: Resumed,
    /// The report of the save: files, bytes, the balance between ranks, and files that stay at the destination.
    pub saved: SaveReport,
}

/// One line: `converted 12 tensors and 3 objects to safetensors version 1 in 0.750 s`, and what was left out or lost.
impl fmt::Display for ConvertReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.took.as_secs_f64();
        write!(
            f,
            "converted {} and {} to {} in {seconds:.3} s",
            some(self.tensors, "tensor"),
            some(self.objects, "object"),
            self.format
        )?;
        let left_out = self.dropped.len() + self.unread.len();
        if left_out > 0 {
            write!(f, "; left out: {left_out}")?;
        }
        let lossy = self.casts.iter().filter(|cast| cast.inexact > 0).count();
        match lossy {
            0 => Ok(()),
            _ => write!(
                f,
                "; lost precision or range: {}",
                some(lossy as u64, "tensor")
            ),
        }
    }
}

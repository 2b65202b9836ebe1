//! Events about phases of a conversion before its save.

use reshard::{PhaseEvent, storage::Traffic};
use std::time::SystemTime;

/// A phase of a conversion before its save.
pub(crate) struct Started<'u> {
    phase: &'static str,
    url: &'u str,
    start: SystemTime,
}

impl<'u> Started<'u> {
    pub(crate) fn now(phase: &'static str, url: &'u str) -> Self {
        let start = SystemTime::now();
        Self { phase, url, start }
    }

    /// Tells that it has ended, and what it has read, or why it failed.
    pub(crate) fn done<E: ToString>(self, outcome: &Result<Traffic, E>) {
        let (read, error) = match outcome {
            Ok(read) => (*read, None),
            Err(e) => (Traffic::default(), Some(e.to_string())),
        };
        PhaseEvent {
            act: "convert",
            phase: self.phase,
            rank: 0,
            checkpoint: self.url,
            start: self.start,
            end: SystemTime::now(),
            items: read.items,
            bytes: read.bytes,
            files: read.files,
            imbalance: None,
            error: error.as_deref(),
        }
        .emit();
    }
}

use reshard::SaveReport;
use std::fmt;

/// What a save of a run did.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Saved {
    /// The step.
    pub step: u64,
    /// The path or URL of the new checkpoint.
    pub url: String,
    /// What the save did.
    pub report: SaveReport,
    /// The steps whose checkpoints were removed, the oldest first. On every rank.
    pub removed: Vec<u64>,
    /// Why older checkpoints were not removed, if some were to be: a line for each reason. A warning of `tracing` says it, too, on the coordinator. On every
    /// rank. The next save tries again.
    pub warnings: Vec<String>,
}

/// One line: that of the [`SaveReport`], and then `; removed step 100, 200`.
impl fmt::Display for Saved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "step {}: {}", self.step, self.report)?;
        if !self.removed.is_empty() {
            let removed: Vec<_> = self.removed.iter().map(u64::to_string).collect();
            write!(f, "; removed step {}", removed.join(", "))?;
        }
        match self.warnings.len() {
            0 => Ok(()),
            1 => f.write_str("; 1 warning"),
            n => write!(f, "; {n} warnings"),
        }
    }
}

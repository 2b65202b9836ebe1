//! What a measurement gives, and what the system says of this process.

use anyhow::Result;
use serde::{Deserialize, Serialize};
use std::time::Instant;

/// What a measurement gives; DCP's scripts print the same.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Measured {
    pub(crate) seconds: Vec<f64>,
    /// CPU seconds of each run, all ranks together. Where others use the machine too, they say more.
    pub(crate) cpu: Vec<f64>,
    pub(crate) bytes: u64,
    /// Peak memory beyond what the state itself takes.
    pub(crate) grown: u64,
    pub(crate) peak: u64,
    pub(crate) needed: u64,
    pub(crate) read: u64,
    pub(crate) headers: u64,
}

/// Peak resident memory of this process in bytes.
pub(crate) fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status
        .lines()
        .find_map(|l| l.strip_prefix("VmHWM:"))
        .unwrap_or("0");
    line.split_whitespace()
        .next()
        .and_then(|n| n.parse::<u64>().ok())
        .unwrap_or(0)
        * 1024
}

/// CPU seconds of this process.
pub(crate) fn cpu() -> f64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    t.tv_sec as f64 + t.tv_nsec as f64 * 1e-9
}

/// Runs `work`, which says how many bytes it has done, so often. One run before these warms up. `before` is off the clock.
pub(crate) fn timed(
    iterations: usize,
    mut before: impl FnMut() -> Result<()>,
    mut work: impl FnMut() -> Result<u64>,
) -> Result<Measured> {
    let mut measured = Measured::default();
    for run in 0..=iterations {
        before()?;
        let (start, used) = (Instant::now(), cpu());
        measured.bytes = work()?;
        if run > 0 {
            measured.seconds.push(start.elapsed().as_secs_f64());
            measured.cpu.push(cpu() - used);
        }
    }
    Ok(measured)
}

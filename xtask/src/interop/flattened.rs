//! Flattened tensors that are rewritten as plain chunks: today's programs load them, whoever saved them, in whatever format.

use std::path::Path;

use super::drivers::Driver;
use super::guests::{FLAT, MCORE_ZARR};
use super::{RESHARD_RANKS, Run};

impl Run {
    /// Rewritten for a Megatron Core that knows neither flattened ranges nor zarr.
    pub(super) fn unflattened(&mut self, who: &str, python: &Path) {
        for (n, (spec, converted)) in self.rewritten().into_iter().enumerate() {
            for ranks in self.chosen([1, 2], n) {
                let what = format!("{who} loads {converted} on {ranks} rank(s)");
                let load = Driver::new(python, "mcore_load.py");
                let load = load.args(["--unflattened", "--ranks", &ranks.to_string()]);
                self.check(&what, load, spec, &converted);
            }
        }
    }

    /// The same for PyTorch, by their keys.
    pub(super) fn unflattened_whole(&mut self, python: &Path) {
        for (spec, converted) in self.rewritten() {
            let what = format!("torch-2.15 loads {converted}");
            let load = Driver::new(python, "dcp_whole.py").args(["--ranks", "2"]);
            self.check(&what, load, spec, &converted);
        }
    }

    /// What reshard saved, and what the Megatron Core saved that writes such tensors, each with its spec. The guest that knows them came first, so
    /// its checkpoints are there, unless this machine has no Python for it.
    fn rewritten(&mut self) -> Vec<(&'static str, String)> {
        let savers = [
            format!("reshard-{}", RESHARD_RANKS[1]),
            "mcore-0.12".to_owned(),
        ];
        let mut converted = Vec::new();
        for spec in [FLAT, MCORE_ZARR] {
            for saver in &savers {
                let source = format!("{spec}-by-{saver}");
                if self.place.join(&source).exists() {
                    converted.push((spec, self.convert(&source)));
                }
            }
        }
        converted
    }
}

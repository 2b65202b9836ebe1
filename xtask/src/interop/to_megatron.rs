//! Megatron Core loads models of transformers that the inverse of a map has converted, in the way of Megatron-LM's training.

use std::path::Path;

use super::Run;
use crate::shell::{Program, root};

/// The models, by the names of their maps.
const MODELS: [&str; 3] = ["hf-llama", "hf-mixtral", "hf-gpt-neox"];

/// A folder for each kind of layers, with the options of the conversion and of the load: with Transformer Engine and without.
const LAYERS: [(&str, &str, &[&str]); 2] = [
    ("te", "local_layers=0", &["--te"]),
    ("local", "local_layers=1", &[]),
];

/// Parallel sizes of the loads.
const PARALLEL: [&[&str]; 3] = [
    &[],
    &["--tensor", "2"],
    &["--tensor", "2", "--pipeline", "2"],
];

impl Run {
    /// transformers saves models, and reshard converts each for both kinds of layers.
    pub(super) fn for_megatron(&mut self, python: &Path) {
        for name in MODELS {
            let hf = self.place.join(format!("published-{name}"));
            let publish = models(python, "hf-publish", name, &hf);
            self.timed(&format!("transformers saves {name}"), publish);
            for (layers, set, _) in LAYERS {
                let to = self.run_of(name, layers).join("release");
                let convert = Program::new(&self.command)
                    .args(["convert".as_ref(), hf.as_os_str(), to.as_os_str()])
                    .args(["--map", name, "--inverse", "--dialect", "megatron"])
                    .args(["--set", "padded_vocab=64", "--set", set]);
                let what = format!("reshard converts {name} for {layers} layers of Megatron Core");
                self.timed(&what, convert);
            }
        }
    }

    /// Each model is loaded strictly and without edits, and computes the logits of transformers.
    pub(super) fn in_megatron(&mut self, who: &str, python: &Path) {
        for name in MODELS {
            let logits = self.place.join(format!("published-{name}.logits.npy"));
            for (layers, _, options) in LAYERS {
                let run = self.run_of(name, layers);
                for parallel in PARALLEL {
                    let load = models(python, "megatron-load", name, &run)
                        .args(["--logits".as_ref(), logits.as_os_str()])
                        .args(options)
                        .args(parallel);
                    let how = parallel.join(" ");
                    let what =
                        format!("{who} computes the same with {name} for {layers} layers {how}");
                    self.timed(what.trim_end(), load);
                }
            }
        }
    }

    /// The folder of a training run that begins with a converted model.
    fn run_of(&self, name: &str, layers: &str) -> std::path::PathBuf {
        self.place.join(format!("{name}-{layers}-layers"))
    }
}

/// A call of `tests/interop/python/models.py`.
fn models(python: &Path, what: &str, name: &str, dir: &Path) -> Program {
    Program::new(python)
        .args(["-W", "ignore"])
        .args([root().join("tests/interop/python/models.py")])
        .args([what, name])
        .args([dir])
}

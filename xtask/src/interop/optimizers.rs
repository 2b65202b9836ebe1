//! Optimizers of live Megatron Cores: what they save is read and rewritten, and they load it.

use std::path::Path;

use super::Run;
use super::drivers::Driver;
use crate::shell::{Program, root};

/// The driver with a distributed optimizer.
const OPTIMIZER: &str = "mcore_optimizer.py";
/// The driver with Megatron-FSDP.
const FSDP: &str = "mcore_fsdp.py";

impl Run {
    /// The distributed optimizer of a live Megatron Core, saved in some of its forms. What they are rewritten as is loaded by
    /// [`canonical`](Self::canonical).
    pub(super) fn optimizers(&mut self, who: &str, forms: &[&str], python: &Path) {
        let page = root().join("docs/optimizer.md");
        for form in forms {
            let dir = self.place.join(format!("{form}-by-{who}"));
            let live = || {
                Driver::new(python, OPTIMIZER).args([
                    "--ranks",
                    "4",
                    "--tensor-parallel",
                    "2",
                    "--form",
                    form,
                ])
            };
            let save = live().args(["--page"]).args([&page]);
            // Its other format refuses several ranges of one cell.
            let in_zarr = *form == "fully_sharded_bucket_space";
            let zarr: &[&str] = if in_zarr { &["--backend", "zarr"] } else { &[] };
            let save = save.args(zarr);
            let save = save.args(["--dir".as_ref(), dir.as_os_str()]);
            self.timed(&format!("{who} saves an optimizer as {form}"), save);
            if in_zarr {
                let ours = self.place.join(format!("{form}-by-{who}-in-zarr"));
                let convert = ["convert", "--ranks", "3", "--to", "zarr"];
                let convert = Program::new(&self.command)
                    .args(convert)
                    .args([&dir, &ours]);
                self.timed(&format!("reshard writes {form} by {who} as zarr"), convert);
                let load = live().args(["--load", "--dir"]).args([&ours]);
                let what = format!("an optimizer of {who} loads {form} that reshard wrote as zarr");
                self.timed(&what, load);
            }
            let layout = self.place.join(format!("{form}-by-{who}.layout.json"));
            let to = self.place.join(format!("{form}-by-{who}-canonical"));
            let convert = ["convert", "--optimizer", "canonical", "--optimizer-layout"];
            let convert = Program::new(&self.command).args(convert);
            let convert = convert.args([&layout, &dir, &to]);
            self.timed(&format!("reshard rewrites {form} by {who}"), convert);
            self.canonical.push(to);
        }
    }

    /// Loads what [`optimizers`](Self::optimizers) were rewritten as, on other ranks.
    pub(super) fn canonical(&mut self, who: &str, python: &Path) {
        for dir in self.canonical.clone() {
            let load = Driver::new(python, OPTIMIZER).args(["--ranks", "3", "--dir"]);
            let name = dir.file_name().unwrap_or_default().display().to_string();
            let what = format!("an optimizer of {who} loads {name} on 3 ranks");
            self.timed(&what, load.args([dir]));
        }
    }

    /// A live Megatron-FSDP loads what reshard has written of its own save; the canonical keys have the numbers of the optimizer.
    pub(super) fn fsdp(&mut self, python: &Path) {
        let names = ["fsdp-by-mcore-0.16", "fsdp-by-reshard", "fsdp-canonical"];
        let [theirs, ours, canonical] = names.map(|name| self.place.join(name));
        let driver = |flags: &[&str], ranks: &str| {
            let driver = Driver::new(python, FSDP).args(["--ranks", ranks]);
            driver.args(flags).args(["--dir"])
        };
        let save = driver(&["--save"], "2").args([&theirs]);
        self.timed("Megatron-FSDP saves fsdp_dtensor on 2 ranks", save);
        let convert = |flags: &[&str], to: &Path| {
            let convert = Program::new(&self.command).args(["convert"]).args(flags);
            convert.args([&*theirs, to])
        };
        let as_it_is = convert(&["--ranks", "3"], &ours);
        let rewritten = convert(&["--optimizer", "canonical"], &canonical);
        self.timed("reshard writes fsdp_dtensor on 3 ranks", as_it_is);
        self.timed("reshard rewrites fsdp_dtensor", rewritten);
        let load = driver(&[], "3").args([&ours]);
        self.timed("Megatron-FSDP loads it on 3 ranks", load);
        let load = driver(&["--canonical"], "1").args([&canonical]);
        self.timed("PyTorch reads its optimizer by canonical keys", load);
    }
}

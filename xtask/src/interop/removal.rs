//! What is left after a removal: other programs load it, of what they saved, and of what reshard saved.

use std::path::Path;

use super::drivers::Driver;
use super::guests::{Case, FLAT, MCORE_ZARR};
use super::{RESHARD_RANKS, Run};
use crate::shell::Program;

/// What is removed from checkpoints of a spec: the keys with this prefix.
const REMOVED: &[(&str, &str)] = &[
    ("dcp", "dtypes."),
    ("megatron", "dtypes."),
    (FLAT, "optimizer.state.exp_avg"),
    (MCORE_ZARR, "dtypes."),
];

impl Run {
    pub(super) fn removed(&mut self, program: &Path, case: &Case, python: &Path) {
        let Case { who, spec, .. } = *case;
        let Some((_, prefix)) = REMOVED.iter().find(|(of, _)| *of == spec) else {
            return;
        };
        let ours = format!("{spec}-by-reshard-{}", RESHARD_RANKS[1]);
        for source in [ours, format!("{spec}-by-{who}")] {
            self.removed_from(&source, case, prefix, python);
        }
        if spec == "megatron" {
            self.removed_by_files(program, case, prefix, python);
        }
    }

    fn removed_from(&mut self, source: &str, case: &Case, prefix: &str, python: &Path) -> String {
        let Case { who, spec, .. } = *case;
        let (load, ranks) = match spec {
            "dcp" => ("dcp_load.py", 3),
            _ => ("mcore_load.py", 2),
        };
        let dir = format!("{source}-removed-for-{who}");
        let [from, to] = [source, &dir].map(|dir| self.place.join(dir));
        let copy = Program::new("cp").args(["-r".as_ref(), from.as_os_str(), to.as_os_str()]);
        self.timed(&format!("{source} is copied"), copy);
        let remove = Program::new(&self.command).args(["remove".as_ref(), to.as_os_str()]);
        let what = format!("reshard removes {prefix} from {dir}");
        self.timed(&what, remove.args([prefix]));
        let load = Driver::new(python, load).args(["--ranks", &ranks.to_string()]);
        let what = format!("{who} loads {dir} on {ranks} ranks");
        self.check(&what, load.args(["--without", prefix]), spec, &dir);
        dir
    }

    /// With the prefix as `separation_hint`, its items lie in files of their own, which go as wholes.
    fn removed_by_files(&mut self, program: &Path, case: &Case, prefix: &str, python: &Path) {
        let Case { who, spec, .. } = *case;
        let [ours, theirs] = [("reshard", who), (who, who)]
            .map(|(by, who)| format!("{spec}-separated-by-{by}-for-{who}"));
        let format = format!(r#"{{"format":"torch_dist","separation_hint":"{prefix}"}}"#);
        let write = ["write", "--ranks", "2", "--format", &format];
        let write = Program::new(program).args(write);
        self.check(&format!("reshard saves {ours}"), write, spec, &ours);
        let save = Driver::new(python, "mcore_save.py").args(["--separation-hint", prefix]);
        let what = format!("{who} saves {theirs} with separation_hint");
        self.check(&what, save, spec, &theirs);
        for source in [ours, theirs] {
            let left = self.removed_from(&source, case, prefix, python);
            let (before, after) = (self.files(&source, prefix), self.files(&left, prefix));
            if before == 0 || after > 0 {
                let files = format!("{before} files of {prefix} in {source}, {after} in {left}");
                self.failed.push(files);
            }
        }
    }

    /// How many files of a checkpoint have names with this prefix.
    fn files(&self, dir: &str, prefix: &str) -> usize {
        let entries = std::fs::read_dir(self.place.join(dir))
            .into_iter()
            .flatten();
        let names = entries.flatten().map(|entry| entry.file_name());
        names
            .filter(|name| name.to_string_lossy().starts_with(prefix))
            .count()
    }
}

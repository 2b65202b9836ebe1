//! The real PyTorch and Megatron load what reshard wrote, and reshard loads what they wrote, bit for bit.
//!
//! What is saved and loaded stands in `tests/interop/specs`; `tests/interop/README.md` says how to read it. The drivers in
//! `tests/interop/python` and the program `reshard-interop` make the same state from it, each on its own.

mod drivers;
mod flattened;
mod guests;
mod optimizers;
mod removal;
mod to_megatron;

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, Result, bail};

use drivers::{Driver, Drivers, Job};
use guests::{Case, FLAT, GUESTS, Guest, MCORE_ZARR};

use crate::shell::{Program, ignored, programs, root, say, target_dir};
use crate::venv::{
    MCORE_012, OTHER_TORCHES, SCANNERS, TENSORFLOW, TORCH_21, TORCH_24, TORCH_113, TORCH_215, Venv,
    ZARR,
};

#[derive(Debug)]
pub(crate) struct Options {
    /// Leave the checkpoints where they are.
    pub(crate) keep: bool,
    /// Only the drivers among themselves: tells whether a failure is theirs.
    pub(crate) only_drivers: bool,
    /// Only `torch.load`, of every version of torch since 1.13. Each is removed when it has served.
    pub(crate) every_torch: bool,
    /// Remove each Python after its last use: one at a time needs a third of the disk.
    pub(crate) frugal: bool,
    /// Only the newest torch with its Megatron Core, and one old torch.
    pub(crate) short: bool,
}

const SPECS: &[&str] = &[
    "dcp",
    "dcp-2.4",
    "dcp-new",
    "surrogates",
    "megatron",
    "megatron-new",
    FLAT,
    MCORE_ZARR,
];

/// Ways to save that change nothing in the format: who writes what, and when it is finished.
const WAYS: &[(&str, &[&str])] = &[
    ("fully-parallel", &["--fully-parallel"]),
    ("async-saver", &["--background", "saver"]),
    (
        "async-queue",
        &["--background", "queue", "--fully-parallel"],
    ),
];

/// Settings by which ranks read for each other.
const SHARED: &[&str] = &[
    r#"{"format":"torch_dist","layers":[{"type":"fully_parallel","exchange":"broadcast"}]}"#,
    r#"{"format":"torch_dist","layers":[{"type":"fully_parallel","exchange":"gather_rounds"}]}"#,
    r#"{"format":"torch_dist","layers":[{"type":"two_stage"}]}"#,
];

/// Ranks that reshard saves on and loads on; all specs can be cut so.
const RESHARD_RANKS: &[u32] = &[1, 4];

const SAVERS: u32 = 2;

pub(crate) fn run(options: &Options) -> Result<()> {
    let mut run = Run::start(options)?;
    if options.every_torch {
        let known = [&TORCH_113, &TORCH_21, &TORCH_24, &MCORE_012, &TORCH_215];
        for venv in OTHER_TORCHES.iter().chain(known) {
            run.torch_save(venv, &venv.python()?)?;
            venv.remove()?;
        }
        return run.finish(options.keep);
    }
    if !options.only_drivers {
        for spec in SPECS {
            for ranks in RESHARD_RANKS {
                run.reshard("write", spec, *ranks, &format!("{spec}-by-reshard-{ranks}"));
            }
            let [few, many] = [RESHARD_RANKS[0], RESHARD_RANKS[RESHARD_RANKS.len() - 1]];
            run.reshard("check", spec, few, &format!("{spec}-by-reshard-{many}"));
        }
    }
    if !options.only_drivers {
        let python = TORCH_215.python()?;
        run.torch_save(&TORCH_215, &python)?;
        run.safetensors(&python)?;
        run.torchao(&python);
        run.maps(&python)?;
    }
    let guests = GUESTS.iter();
    for guest in guests.filter(|guest| !options.short || guest.short) {
        run.guest(guest)?;
        run.drivers.end();
        if options.frugal {
            guest.venv.remove()?;
        }
    }
    if !options.only_drivers && !options.short {
        // Its DCP is too old; its `torch.load` is the first with `weights_only`.
        run.torch_save(&TORCH_113, &TORCH_113.python()?)?;
        if options.frugal {
            TORCH_113.remove()?;
        }
        run.zarr(&ZARR.python()?)?;
        if options.frugal {
            ZARR.remove()?;
            SCANNERS.remove()?;
        }
        run.tensorflow(&TENSORFLOW.python()?)?;
        if options.frugal {
            TENSORFLOW.remove()?;
        }
    }
    run.finish(options.keep)
}

struct Run {
    /// Where the checkpoints of this run lie.
    place: PathBuf,
    /// The Rust side, if it takes part.
    reshard: Option<PathBuf>,
    /// The command `reshard`, which lies beside it.
    command: PathBuf,
    drivers: Drivers,
    /// Optimizers that were rewritten, for the newest Megatron Core to load.
    canonical: Vec<PathBuf>,
    /// Whether it is the short run that each change gets.
    short: bool,
    passed: u32,
    failed: Vec<String>,
}

impl Run {
    fn start(options: &Options) -> Result<Self> {
        let place = target_dir().join("interop");
        if place.exists() {
            std::fs::remove_dir_all(&place)
                .with_context(|| format!("cannot remove {}", place.display()))?;
        }
        std::fs::create_dir_all(&place)
            .with_context(|| format!("cannot make {}", place.display()))?;
        let programs = match options.only_drivers {
            true => None,
            false => Some(programs(&["reshard", "reshard-interop"])?),
        };
        Ok(Self {
            place,
            reshard: programs
                .as_ref()
                .map(|programs| programs.join("reshard-interop")),
            command: programs.unwrap_or_default().join("reshard"),
            drivers: Drivers::default(),
            canonical: Vec::new(),
            short: options.short,
            passed: 0,
            failed: Vec::new(),
        })
    }

    fn guest(&mut self, guest: &Guest) -> Result<()> {
        if let Some(why) = guest.venv.lacks()? {
            let what = format!("{} is left out: it {why}", guest.venv.name());
            say(&what);
            self.failed.push(what);
            return Ok(());
        }
        let python = guest.venv.python()?;
        for case in guest.cases {
            self.case(case, &python);
        }
        let Some(program) = self.reshard.clone() else {
            return Ok(());
        };
        if !guest.newest {
            self.torch_save(guest.venv, &python)?;
        }
        for (flavour, ranks) in guest.flavours {
            self.flavour(&program, guest.venv, &python, flavour, *ranks);
        }
        if guest.policies {
            self.policies(&program, guest.venv, &python);
        }
        for case in guest.cases {
            if ["dcp", "megatron"].contains(&case.spec) {
                self.ways(&program, case, &python);
            }
            self.removed(&program, case, &python);
        }
        let (who, forms) = guest.optimizers;
        self.optimizers(who, forms, &python);
        if guest.canonical {
            self.canonical(who, &python);
            self.unflattened(who, &python);
        }
        if guest.newest && !self.short {
            self.for_megatron(&python);
        }
        if (guest.newest || guest.newest_megatron) && !self.short {
            self.in_megatron(who, &python);
        }
        if guest.newest_megatron {
            self.common_in_object(who, &program, &python);
            self.integrity(who, &program, &python);
        }
        if guest.newest {
            self.unflattened_whole(&python);
            self.fsdp(&python);
            self.tcp_store(&python)?;
            self.beside_torchrun(&program, &python);
            self.rank_local(&program, &python);
            self.not_flattened(&program, &python);
            self.planners(&program, &python);
        }
        if guest.newest && !self.short {
            self.pickles(&python)?;
        }
        if guest.rank_files {
            self.rank_files(guest.venv.name(), &python);
        }
        self.modules(guest.venv.name(), &python);
        Ok(())
    }

    fn case(&mut self, case: &Case, python: &Path) {
        let Case {
            who,
            spec,
            converts,
        } = *case;
        // The drivers, and on how many ranks they load; Megatron's grids need an even split, and two cells two ranks.
        let flattened = [FLAT, MCORE_ZARR].contains(&spec);
        let (family, loads) = if flattened {
            ("mcore", [2, 4])
        } else if spec.starts_with("megatron") {
            ("mcore", [1, 2])
        } else {
            ("dcp", [1, 3])
        };
        let theirs = format!("{spec}-by-{who}");
        let save = format!("{family}_save.py");
        let program = Driver::new(python, &save).args(["--ranks", &SAVERS.to_string()]);
        let backend: &[&str] = if spec == MCORE_ZARR {
            &["--backend", "zarr"]
        } else {
            &[]
        };
        self.check(
            &format!("{who} saves {theirs}"),
            program.args(backend),
            spec,
            &theirs,
        );
        let mut sources = vec![theirs.clone()];
        if self.reshard.is_some() {
            for ranks in RESHARD_RANKS {
                self.reshard("check", spec, *ranks, &theirs);
            }
            sources = RESHARD_RANKS
                .iter()
                .map(|ranks| format!("{spec}-by-reshard-{ranks}"))
                .collect();
            let converted = self.convert(&theirs);
            let what = format!("{who} loads {converted} on {} ranks", loads[1]);
            let load = Driver::new(python, &format!("{family}_load.py"));
            let unflattened: &[&str] = if flattened { &["--unflattened"] } else { &[] };
            let load = load.args(["--ranks", &loads[1].to_string()]);
            self.check(&what, load.args(unflattened), spec, &converted);
        }
        for (n, source) in sources.iter().enumerate() {
            for ranks in self.chosen(loads, n) {
                let what = format!("{who} loads {source} on {ranks} rank(s)");
                self.driver(
                    python,
                    &format!("{family}_load.py"),
                    spec,
                    source,
                    Some(ranks),
                    &what,
                );
            }
            if converts && (n == 0 || !self.short) {
                let what = format!("{who} converts {source} to one file");
                self.driver(python, "dcp_to_torch.py", spec, source, None, &what);
            }
        }
    }

    /// On how many ranks the `n`th checkpoint is loaded. In the short run neighbours take turns: what one rank saved, several load.
    fn chosen(&self, ranks: [u32; 2], n: usize) -> Vec<u32> {
        match self.short {
            true => vec![ranks[(n + 1) % 2]],
            false => ranks.into(),
        }
    }

    /// The flavours of newer PyTorch, which are not written by default.
    fn flavour(&mut self, program: &Path, venv: &Venv, python: &Path, flavour: &str, ranks: u32) {
        let dir = format!("dcp-flavour-{flavour}");
        if !self.place.join(&dir).exists() {
            let write = ["write", "--ranks", "2", "--flavour", flavour];
            self.check(
                &format!("reshard saves {dir}"),
                Program::new(program).args(write),
                "dcp",
                &dir,
            );
            self.reshard("check", "dcp", 3, &dir);
        }
        let what = format!("{} loads {dir} on {ranks} rank(s)", venv.name());
        self.driver(python, "dcp_load.py", "dcp", &dir, Some(ranks), &what);
    }

    /// Metadata of each rank's own.
    fn rank_local(&mut self, program: &Path, python: &Path) {
        let dir = "dcp-rank-local";
        let write = ["write", "--ranks", "2", "--rank-local"];
        self.check(
            &format!("reshard saves {dir}"),
            Program::new(program).args(write),
            "dcp",
            dir,
        );
        self.reshard("check", "dcp", 3, dir);
        let load = Driver::new(python, "dcp_load.py").args(["--ranks", "2", "--cut", "write"]);
        self.check(&format!("torch-2.15 loads {dir}"), load, "dcp", dir);
    }

    /// Dicts that are kept whole.
    fn not_flattened(&mut self, program: &Path, python: &Path) {
        let (ours, theirs) = ("nested-by-reshard", "nested-by-torch-2.15");
        let write = ["write", "--ranks", "2", "--no-flatten"];
        let write = Program::new(program).args(write);
        self.check(&format!("reshard saves {ours}"), write, "nested", ours);
        let save = Driver::new(python, "dcp_save.py").args(["--ranks", "2", "--no-flatten"]);
        let what = format!("torch-2.15 saves {theirs}");
        self.check(&what, save, "nested", theirs);
        for dir in [ours, theirs] {
            self.reshard("check", "nested", 3, dir);
            let load = Driver::new(python, "dcp_load.py").args(["--ranks", "3", "--no-flatten"]);
            self.check(&format!("torch-2.15 loads {dir}"), load, "nested", dir);
        }
    }

    /// Common state as newer versions of Megatron Core store it: without `common.pt`.
    fn common_in_object(&mut self, who: &str, program: &Path, python: &Path) {
        let dir = "megatron-common-in-object";
        let write = ["write", "--ranks", "4", "--common", "object"];
        let write = Program::new(program).args(write);
        self.check(&format!("reshard saves {dir}"), write, "megatron", dir);
        self.reshard("check", "megatron", 1, dir);
        for ranks in self.chosen([1, 2], 0) {
            let what = format!("{who} loads {dir} on {ranks} rank(s)");
            self.driver(python, "mcore_load.py", "megatron", dir, Some(ranks), &what);
        }
    }

    /// Each side checks the `integrity.json` of the other.
    fn integrity(&mut self, who: &str, program: &Path, python: &Path) {
        let dir = "megatron-with-integrity";
        let write = ["write", "--ranks", "4", "--integrity"];
        let write = Program::new(program).args(write);
        self.check(&format!("reshard saves {dir}"), write, "megatron", dir);
        let load = Driver::new(python, "mcore_load.py").args(["--ranks", "2", "--integrity"]);
        let what = format!("{who} checks integrity.json of {dir}");
        self.check(&what, load, "megatron", dir);

        let dir = format!("{dir}-by-{who}");
        let save = Driver::new(python, "mcore_save.py").args(["--integrity"]);
        self.check(&format!("{who} saves {dir}"), save, "megatron", &dir);
        let check = Program::new(program).args(["check", "--integrity"]);
        let what = format!("reshard checks integrity.json of {dir}");
        self.check(&what, check, "megatron", &dir);
    }

    /// What ranks saved for each other, and what was saved in the background. Then what the other program saved, read by ranks for each other.
    fn ways(&mut self, program: &Path, case: &Case, python: &Path) {
        let Case { who, spec, .. } = *case;
        let (load, ranks) = match spec {
            "megatron" => ("mcore_load.py", 2),
            _ => ("dcp_load.py", 3),
        };
        for (way, flags) in WAYS {
            let dir = format!("{spec}-{way}");
            if !self.place.join(&dir).exists() {
                let write = Program::new(program).args(["write", "--ranks", "4"]);
                let write = write.args(flags.iter().copied());
                self.check(&format!("reshard saves {dir}"), write, spec, &dir);
                self.reshard("check", spec, 1, &dir);
            }
            let what = format!("{who} loads {dir} on {ranks} ranks");
            self.driver(python, load, spec, &dir, Some(ranks), &what);
        }
        let theirs = format!("{spec}-by-{who}");
        for settings in SHARED {
            let check = ["check", "--ranks", "4", "--settings", settings];
            let what = format!("reshard loads {theirs} on 4 ranks with {settings}");
            self.check(&what, Program::new(program).args(check), spec, &theirs);
        }
    }

    /// Tensors cut and spread over files as a sharding policy says: chunks like others.
    fn policies(&mut self, program: &Path, venv: &Venv, python: &Path) {
        for (n, bytes) in ["8192", "2500"].into_iter().enumerate() {
            let dir = format!("dcp-shards-of-{bytes}");
            if !self.place.join(&dir).exists() {
                let write = ["write", "--ranks", "2", "--max-shard-size", bytes];
                self.check(
                    &format!("reshard saves {dir}"),
                    Program::new(program).args(write),
                    "dcp",
                    &dir,
                );
                self.reshard("check", "dcp", 3, &dir);
            }
            for ranks in self.chosen([1, 3], n) {
                let what = format!("{} loads {dir} on {ranks} rank(s)", venv.name());
                self.driver(python, "dcp_load.py", "dcp", &dir, Some(ranks), &what);
            }
        }
    }

    /// megatron-core and transformers compute the same with weights that a map has carried from one to the other.
    fn maps(&mut self, python: &Path) -> Result<()> {
        let test = self.with_python(
            "reshard-cli",
            "mapping::needs_python",
            "RESHARD_MODELS_PYTHON",
            python,
        )?;
        let what = "megatron-core and transformers compute the same with mapped weights";
        self.timed(what, test);
        Ok(())
    }

    /// zarr-python and TensorStore read what reshard wrote in both versions of Zarr, and reshard what they write, with every codec.
    fn zarr(&mut self, python: &Path) -> Result<()> {
        let test = self.with_python("reshard-zarr", "interop::", "RESHARD_ZARR_PYTHON", python)?;
        self.timed("zarr-python and TensorStore read what reshard saves", test);
        let what = "reshard reads what zarr-python and TensorStore save";
        let script = "crates/reshard-zarr/tests/fixtures/make.py";
        self.script(what, python, script, "zarr");
        Ok(())
    }

    /// safetensors and PyTorch read what reshard wrote, and reshard what they wrote.
    fn safetensors(&mut self, python: &Path) -> Result<()> {
        let test = self.with_python(
            "reshard-safetensors",
            "interop::",
            "RESHARD_SAFETENSORS_PYTHON",
            python,
        )?;
        self.timed(
            "safetensors, PyTorch and reshard read what the others save",
            test,
        );
        Ok(())
    }

    /// Runs a program that makes files in a folder of this name, and compares what reshard does with them.
    fn script(&mut self, what: &str, python: &Path, script: &str, name: &str) {
        let (script, out) = (root().join(script), self.place.join(name));
        let program = Program::new(python).args([script, out]);
        let program = program.args(["--reshard".as_ref(), self.command.as_os_str()]);
        self.timed(what, program);
    }

    /// Each rank calls `torch.save`, and reshard reads the folder as one checkpoint.
    fn rank_files(&mut self, who: &str, python: &Path) {
        let what = format!("reshard reads files of ranks by {who}");
        let script = "tests/fixtures/make/rank_files.py";
        self.script(&what, python, script, &format!("rank-files-by-{who}"));
    }

    /// Torch saves modules, and loads what `reshard convert` made of them.
    fn modules(&mut self, who: &str, python: &Path) {
        let what = format!("{who} loads what reshard converts of its modules");
        let script = "tests/interop/python/modules.py";
        self.script(&what, python, script, &format!("modules-by-{who}"));
    }

    /// Verdicts of other scanners on files that torch wrote, and on the globals that they call dangerous.
    fn pickles(&mut self, python: &Path) -> Result<()> {
        let script = root().join("tests/interop/python/pickles.py");
        let out = self.place.join("pickles");
        let make =
            Program::new(python).args([script.as_os_str(), "make".as_ref(), out.as_os_str()]);
        self.timed("torch-2.15 saves pickles for scanners", make);
        let compare = [script.as_os_str(), "compare".as_ref(), out.as_os_str()];
        let compare = Program::new(SCANNERS.python()?).args(compare);
        let compare = compare.args(["--reshard".as_ref(), self.command.as_os_str()]);
        let what = "picklescan, modelscan, fickling and reshard judge pickles alike";
        self.timed(what, compare);
        Ok(())
    }

    /// torchao opens the quantised tensors that reshard carried over from its files.
    fn torchao(&mut self, python: &Path) {
        let script = root().join("tests/fixtures/make/quantised.py");
        let make = Program::new(python).args([
            script.as_os_str(),
            self.place.join("torchao").as_os_str(),
            "--reshard".as_ref(),
            self.command.as_os_str(),
        ]);
        self.timed("torchao opens what reshard carries over", make);
    }

    /// TensorFlow reads what reshard wrote, and reshard what TensorFlow wrote.
    fn tensorflow(&mut self, python: &Path) -> Result<()> {
        let test = self.with_python(
            "reshard-golden",
            "tf_interop::",
            "RESHARD_TENSORFLOW_PYTHON",
            python,
        )?;
        self.timed("TensorFlow and reshard read what the other saves", test);
        Ok(())
    }

    /// `torch.load(weights_only=True)` loads what reshard wrote, and reshard reads what torch wrote of it, in both layouts. Only the newest has
    /// all element types.
    fn torch_save(&mut self, venv: &Venv, python: &Path) -> Result<()> {
        let test = self.with_python(
            "reshard-torch-save",
            "interop::",
            "RESHARD_TORCH_PYTHON",
            python,
        )?;
        let test = match venv.name() == TORCH_215.name() {
            true => test,
            false => test.env("RESHARD_TORCH_OLD", venv.name()),
        };
        let what = format!(
            "torch.load of {} loads what reshard saves as a file",
            venv.name()
        );
        self.timed(&what, test);
        let test = self.with_python(
            "reshard-cli",
            "torch_save::needs_python",
            "RESHARD_TORCH_PYTHON",
            python,
        )?;
        let what = format!(
            "torch.load of {} loads the file that `reshard convert` wrote",
            venv.name()
        );
        self.timed(&what, test);
        Ok(())
    }

    /// Ranks that meet at PyTorch's TCPStore, and PyTorch as a client of ours.
    fn tcp_store(&mut self, python: &Path) -> Result<()> {
        let test = self.with_python("reshard-comm-tcp", "torch::", "RESHARD_PYTHON", python)?;
        self.timed("torch-2.15 and reshard share a TCPStore", test);
        Ok(())
    }

    /// A job that torchrun starts: beside each of its workers a rank of reshard, which meets the others at the store of the job.
    fn beside_torchrun(&mut self, program: &Path, python: &Path) {
        let what = "workers of torchrun load what ranks beside them save, and the other way round";
        let torchrun = beside_torchrun(program, python, &self.place.join("beside-torchrun"));
        self.timed(what, torchrun);
    }

    /// The planners of PyTorch's page: what reshard saves with one is loaded by PyTorch, and the other way round.
    fn planners(&mut self, program: &Path, python: &Path) {
        for (planner, spec) in [
            ("rename", "planners"),
            ("fp16", "planners"),
            ("extra", "planners"),
            ("ddp", "ddp"),
        ] {
            let dir = format!("planner-{planner}");
            let write = ["write", "--ranks", "2", "--planner", planner];
            self.check(
                &format!("reshard saves {dir}"),
                Program::new(program).args(write),
                spec,
                &dir,
            );
            let load =
                Driver::new(python, "dcp_load.py").args(["--ranks", "3", "--planner", planner]);
            self.check(&format!("torch-2.15 loads {dir}"), load, spec, &dir);
        }
        for (planner, renames) in [
            ("rename", &["--planner", "rename"][..]),
            ("materialize", &[]),
        ] {
            let dir = format!("for-planner-{planner}");
            let save = Driver::new(python, "dcp_save.py")
                .args(["--ranks", "2"])
                .args(renames.iter().copied());
            self.check(&format!("torch-2.15 saves {dir}"), save, "planners", &dir);
            let check = ["check", "--ranks", "3", "--planner", planner];
            self.check(
                &format!("reshard loads {dir}"),
                Program::new(program).args(check),
                "planners",
                &dir,
            );
        }
    }

    /// What another program saved, as three ranks of reshard would have.
    fn convert(&mut self, source: &str) -> String {
        let converted = format!("{source}-converted");
        if self.place.join(&converted).exists() {
            return converted;
        }
        let program = Program::new(&self.command)
            .args(["convert", "--ranks", "3", "--unflatten"])
            .args([self.place.join(source), self.place.join(&converted)]);
        self.timed(&format!("reshard converts {source}"), program);
        converted
    }

    fn driver(
        &mut self,
        python: &Path,
        driver: &str,
        spec: &str,
        dir: &str,
        ranks: Option<u32>,
        what: &str,
    ) {
        let program = Driver::new(python, driver).args(
            ranks
                .iter()
                .flat_map(|ranks| ["--ranks".to_owned(), ranks.to_string()]),
        );
        self.check(what, program, spec, dir);
    }

    fn reshard(&mut self, command: &str, spec: &str, ranks: u32, dir: &str) {
        let Some(program) = &self.reshard else { return };
        let program = Program::new(program).args([command, "--ranks", &ranks.to_string()]);
        let format: &[&str] = if (command, spec) == ("write", MCORE_ZARR) {
            &["--format", r#"{ "format": "zarr" }"#]
        } else {
            &[]
        };
        let program = program.args(format);
        let verb = if command == "write" { "saves" } else { "loads" };
        self.check(
            &format!("reshard {verb} {dir} on {ranks} rank(s)"),
            program,
            spec,
            dir,
        );
    }

    /// Runs one of the programs that know specs.
    fn check(&mut self, what: &str, job: impl Into<Job>, spec: &str, dir: &str) {
        let spec = root()
            .join("tests/interop/specs")
            .join(format!("{spec}.json"));
        let dir = self.place.join(dir);
        let arguments = [
            "--spec".as_ref(),
            spec.as_os_str(),
            "--dir".as_ref(),
            dir.as_os_str(),
        ];
        self.timed(what, job.into().args(arguments));
    }

    /// Runs one program; what it says is shown if it fails.
    fn timed(&mut self, what: &str, job: impl Into<Job>) {
        let begin = Instant::now();
        let outcome = match job.into() {
            Job::Program(program) => program.read().map(drop),
            Job::Driver(driver) => self.drivers.run(driver, &self.place.join("output")),
        };
        let seconds = begin.elapsed().as_secs_f64();
        match outcome {
            Ok(()) => {
                self.passed += 1;
                say(format!("ok      {what} ({seconds:.1} s)"));
            }
            Err(error) => {
                self.failed.push(what.to_owned());
                say(format!("FAILED  {what} ({seconds:.1} s)\n{error:#}"));
            }
        }
    }

    /// Returns the tests of a package that need a Python, whose path they read from a variable. `test` is a part of their names.
    fn with_python(
        &self,
        package: &str,
        test: &str,
        variable: &str,
        python: &Path,
    ) -> Result<Program> {
        let filter = format!("package({package}) & test({test})");
        let tests = ignored(&filter)?.env(variable, python.as_os_str());
        Ok(match self.short {
            true => tests,
            false => tests.env("RESHARD_THOROUGH", "1"),
        })
    }

    fn finish(self, keep: bool) -> Result<()> {
        for what in &self.failed {
            say(format!("FAILED  {what}"));
        }
        if keep || !self.failed.is_empty() {
            say(format!("the checkpoints are in {}", self.place.display()));
        } else {
            std::fs::remove_dir_all(&self.place)
                .with_context(|| format!("cannot remove {}", self.place.display()))?;
        }
        say(format!(
            "{} passed, {} failed",
            self.passed,
            self.failed.len()
        ));
        if !self.failed.is_empty() {
            bail!("interop failed");
        }
        if self.passed == 0 {
            bail!("nothing ran");
        }
        Ok(())
    }
}

/// Two workers of torchrun, each with a rank of reshard beside it, in processes. What they save lies in `dir`.
pub(crate) fn beside_torchrun(reshard: &Path, python: &Path, dir: &Path) -> Program {
    let tests = root().join("tests/interop");
    let torchrun = [
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
    ];
    Program::new(python)
        .args(torchrun)
        .args([tests.join("python/beside.py")])
        .args(["--reshard".as_ref(), reshard.as_os_str()])
        .args(["--spec".as_ref(), tests.join("specs/dcp.json").as_os_str()])
        .args(["--dir".as_ref(), dir.as_os_str()])
}

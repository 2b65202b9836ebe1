//! The real PyTorch and Megatron load what reshard wrote, and reshard loads what they wrote, bit for bit.
//!
//! What is saved and loaded stands in `tests/interop/specs`; `tests/interop/README.md` says how to read it. The drivers in
//! `tests/interop/python` and the program `reshard-interop` make the same state from it, each on its own.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, Result, bail};

use crate::shell::{Program, cargo, root, say, target_dir};
use crate::venv::{MCORE_012, TORCH_21, TORCH_215, Venv};

#[derive(Debug)]
pub(crate) struct Options {
    /// Leave the checkpoints where they are.
    pub(crate) keep: bool,
    /// Only the drivers among themselves: tells whether a failure is theirs.
    pub(crate) only_drivers: bool,
}

/// What one program is asked to do with one spec.
struct Case {
    /// The program's name, as people and folders call it.
    who: &'static str,
    venv: &'static Venv,
    spec: &'static str,
    /// Whether PyTorch's own converter has to manage as well.
    converts: bool,
}

const CASES: &[Case] = &[
    Case { who: "torch-2.15", venv: &TORCH_215, spec: "dcp", converts: true },
    Case { who: "torch-2.1", venv: &TORCH_21, spec: "dcp", converts: false },
    Case { who: "torch-2.15", venv: &TORCH_215, spec: "dcp-new", converts: true },
    Case { who: "mcore-0.16", venv: &TORCH_215, spec: "megatron", converts: false },
    Case { who: "mcore-0.12", venv: &MCORE_012, spec: "megatron", converts: false },
];

/// Ranks that reshard saves on and loads on; all specs can be cut so.
const RESHARD_RANKS: &[u32] = &[1, 4];

const SAVERS: u32 = 2;

pub(crate) fn run(options: &Options) -> Result<()> {
    let mut run = Run::start(options.only_drivers)?;
    if !options.only_drivers {
        for spec in ["dcp", "dcp-new", "megatron"] {
            for ranks in RESHARD_RANKS {
                run.reshard("write", spec, *ranks, &format!("{spec}-by-reshard-{ranks}"));
            }
            let [few, many] = [RESHARD_RANKS[0], RESHARD_RANKS[RESHARD_RANKS.len() - 1]];
            run.reshard("check", spec, few, &format!("{spec}-by-reshard-{many}"));
        }
    }
    for case in CASES {
        run.case(case)?;
    }
    if !options.only_drivers {
        run.knobs()?;
        run.policies()?;
        run.planners()?;
    }
    run.finish(options.keep)
}

struct Run {
    /// Where the checkpoints of this run lie.
    place: PathBuf,
    /// The Rust side, if it takes part.
    reshard: Option<PathBuf>,
    passed: u32,
    failed: Vec<String>,
}

impl Run {
    fn start(only_drivers: bool) -> Result<Self> {
        let place = target_dir().join("interop");
        if place.exists() {
            std::fs::remove_dir_all(&place).with_context(|| format!("cannot remove {}", place.display()))?;
        }
        std::fs::create_dir_all(&place).with_context(|| format!("cannot make {}", place.display()))?;
        let mut reshard = None;
        if !only_drivers {
            cargo(&["build", "--locked", "--package", "reshard-interop"]).run()?;
            reshard = Some(target_dir().join("debug").join("reshard-interop"));
        }
        Ok(Self { place, reshard, passed: 0, failed: Vec::new() })
    }

    fn case(&mut self, case: &Case) -> Result<()> {
        let Case { who, venv, spec, converts } = *case;
        // The drivers, and on how many ranks they load; Megatron's grids need an even split.
        let (family, loads) = if spec == "megatron" { ("mcore", [1, 2]) } else { ("dcp", [1, 3]) };
        let python = venv.python()?;
        let theirs = format!("{spec}-by-{who}");
        let save = format!("{family}_save.py");
        self.driver(&python, &save, spec, &theirs, Some(SAVERS), &format!("{who} saves {theirs}"));
        let mut sources = vec![theirs.clone()];
        if self.reshard.is_some() {
            for ranks in RESHARD_RANKS {
                self.reshard("check", spec, *ranks, &theirs);
            }
            sources = RESHARD_RANKS.iter().map(|ranks| format!("{spec}-by-reshard-{ranks}")).collect();
        }
        for source in &sources {
            for ranks in loads {
                let what = format!("{who} loads {source} on {ranks} rank(s)");
                self.driver(&python, &format!("{family}_load.py"), spec, source, Some(ranks), &what);
            }
            if converts {
                let what = format!("{who} converts {source} to one file");
                self.driver(&python, "dcp_to_torch.py", spec, source, None, &what);
            }
        }
        Ok(())
    }

    /// What isn't written by default: the flavours of newer PyTorch, and metadata of each rank's own.
    fn knobs(&mut self) -> Result<()> {
        let python = TORCH_215.python()?;
        let script = root().join("tests/interop/python/dcp_load.py");
        let ways: &[(&str, &[&str], &[&str])] = &[
            ("flavour-2.3", &["--flavour", "2.3"], &["--ranks", "1"]),
            ("flavour-2.4", &["--flavour", "2.4"], &["--ranks", "1"]),
            ("flavour-2.15", &["--flavour", "2.15"], &["--ranks", "3"]),
            ("rank-local", &["--rank-local"], &["--ranks", "2", "--cut", "write"]),
        ];
        for (name, write, load) in ways {
            let dir = format!("dcp-{name}");
            let Some(program) = &self.reshard else { return Ok(()) };
            let program = Program::new(program).args(["write", "--ranks", "2"]).args(write.iter().copied());
            self.check(&format!("reshard saves {dir}"), program, "dcp", &dir);
            self.reshard("check", "dcp", 3, &dir);
            let program = Program::new(&python).env("PYTHONDONTWRITEBYTECODE", "1").args([&script]);
            let program = program.args(load.iter().copied());
            self.check(&format!("torch-2.15 loads {dir}"), program, "dcp", &dir);
        }
        Ok(())
    }

    /// Tensors cut and spread over files as a sharding policy says: chunks like others.
    fn policies(&mut self) -> Result<()> {
        let Some(program) = self.reshard.clone() else { return Ok(()) };
        let python = TORCH_215.python()?;
        for bytes in ["4096", "300"] {
            let dir = format!("dcp-shards-of-{bytes}");
            let write = ["write", "--ranks", "2", "--max-shard-size", bytes];
            self.check(&format!("reshard saves {dir}"), Program::new(&program).args(write), "dcp", &dir);
            self.reshard("check", "dcp", 3, &dir);
            for ranks in [1, 3] {
                let what = format!("torch-2.15 loads {dir} on {ranks} rank(s)");
                self.driver(&python, "dcp_load.py", "dcp", &dir, Some(ranks), &what);
            }
        }
        Ok(())
    }

    /// The planners of PyTorch's page: what reshard saves with one is loaded by PyTorch, and the other way round.
    fn planners(&mut self) -> Result<()> {
        let Some(program) = self.reshard.clone() else { return Ok(()) };
        let python = TORCH_215.python()?;
        let torch = |driver: &str| {
            let script = root().join("tests/interop/python").join(driver);
            Program::new(&python).env("PYTHONDONTWRITEBYTECODE", "1").args([script])
        };
        for (planner, spec) in
            [("rename", "planners"), ("fp16", "planners"), ("extra", "planners"), ("ddp", "ddp")]
        {
            let dir = format!("planner-{planner}");
            let write = ["write", "--ranks", "2", "--planner", planner];
            self.check(&format!("reshard saves {dir}"), Program::new(&program).args(write), spec, &dir);
            let load = torch("dcp_load.py").args(["--ranks", "3", "--planner", planner]);
            self.check(&format!("torch-2.15 loads {dir}"), load, spec, &dir);
        }
        for (planner, renames) in [("rename", &["--planner", "rename"][..]), ("materialize", &[])] {
            let dir = format!("for-planner-{planner}");
            let save = torch("dcp_save.py").args(["--ranks", "2"]).args(renames.iter().copied());
            self.check(&format!("torch-2.15 saves {dir}"), save, "planners", &dir);
            let check = ["check", "--ranks", "3", "--planner", planner];
            self.check(&format!("reshard loads {dir}"), Program::new(&program).args(check), "planners", &dir);
        }
        Ok(())
    }

    fn driver(&mut self, python: &Path, driver: &str, spec: &str, dir: &str, ranks: Option<u32>, what: &str) {
        let script = root().join("tests/interop/python").join(driver);
        let program = Program::new(python).env("PYTHONDONTWRITEBYTECODE", "1").args([script]);
        let program = program.args(ranks.iter().flat_map(|ranks| ["--ranks".to_owned(), ranks.to_string()]));
        self.check(what, program, spec, dir);
    }

    fn reshard(&mut self, command: &str, spec: &str, ranks: u32, dir: &str) {
        let Some(program) = &self.reshard else { return };
        let program = Program::new(program).args([command, "--ranks", &ranks.to_string()]);
        let verb = if command == "write" { "saves" } else { "loads" };
        self.check(&format!("reshard {verb} {dir} on {ranks} rank(s)"), program, spec, dir);
    }

    /// Runs one program; what it says is shown if it fails.
    fn check(&mut self, what: &str, program: Program, spec: &str, dir: &str) {
        let spec = root().join("tests/interop/specs").join(format!("{spec}.json"));
        let dir = self.place.join(dir);
        let begin = Instant::now();
        let outcome =
            program.args(["--spec".as_ref(), spec.as_os_str(), "--dir".as_ref(), dir.as_os_str()]).read();
        let seconds = begin.elapsed().as_secs_f64();
        match outcome {
            Ok(_) => {
                self.passed += 1;
                say(format!("ok      {what} ({seconds:.1} s)"));
            }
            Err(error) => {
                self.failed.push(what.to_owned());
                say(format!("FAILED  {what} ({seconds:.1} s)\n{error:#}"));
            }
        }
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
        say(format!("{} passed, {} failed", self.passed, self.failed.len()));
        if !self.failed.is_empty() {
            bail!("interop failed");
        }
        Ok(())
    }
}

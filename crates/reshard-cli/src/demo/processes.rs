//! `reshard demo --processes`: each rank is a process of this program. They meet at a store that the first process serves.

use super::{
    Demo, Phases,
    acts::{self, Loaded, Saved, timed},
    each,
    model::Cut,
};
use crate::{
    args::Act,
    error::{CliError, FAILED, OK, Result, worse},
    io::Io,
    json, units, waiting,
};
use indicatif::ProgressBar;
use reshard::Rank;
use reshard_comm_tcp::{StoreServer, TcpError, TcpGroup};
use serde::{Deserialize, Serialize};
use std::{
    io::{self, BufRead, BufReader},
    net::{Ipv4Addr, SocketAddr},
    process::{Child, Command, Output, Stdio},
    thread,
    time::Duration,
};

/// What a process prints when it is done, as one line of JSON.
#[derive(Debug, Serialize, Deserialize)]
struct Told {
    /// Making the state, or the memory to load into.
    build: Duration,
    /// Meeting all other ranks.
    meet: Duration,
    saved: Option<Saved>,
    loaded: Option<Loaded>,
    /// Comparing what was loaded.
    check: Duration,
    checked: u64,
    /// The most memory that the process had, in bytes; 0 if the system doesn't tell.
    peak: u64,
}

impl Demo<'_> {
    /// Starts the ranks. Returns how many bytes they have compared.
    pub(super) fn in_processes(&self, io: &mut Io<'_>, phases: &mut Phases) -> Result<u64> {
        let store = StoreServer::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
        let store = store.map_err(|source| CliError::Io {
            what: "a store at which the ranks meet can't be served",
            source,
        })?;
        let port = store.address().port();

        let (n, m) = (self.savers, self.loaders);
        let told = self.start(Act::Save, n, port, io)?;
        phases.build(self.model.bytes(), slowest(&told, |rank| rank.build), n);
        phases.meet(&told);
        let saved: Vec<Saved> = told.iter().filter_map(|rank| rank.saved.clone()).collect();
        phases.save(&saved);
        phases.memory(&told);
        self.verify(io, phases)?;

        let told = self.start(Act::Load, m, port, io)?;
        let bytes = self.model.bytes_on(m);
        phases.prepare(bytes, slowest(&told, |rank| rank.build), m);
        phases.meet(&told);
        let loaded: Vec<Loaded> = told.iter().filter_map(|rank| rank.loaded.clone()).collect();
        phases.load(bytes, &loaded);
        let checked = told.iter().map(|rank| rank.checked).sum();
        phases.check(checked, slowest(&told, |rank| rank.check));
        phases.memory(&told);
        Ok(checked)
    }

    /// Starts a process for each rank, and waits for all of them.
    fn start(&self, act: Act, ranks: u32, port: u16, io: &Io<'_>) -> Result<Vec<Told>> {
        let cannot = |source| CliError::Io {
            what: "a process for a rank can't be started",
            source,
        };
        let program = std::env::current_exe().map_err(cannot)?;
        let start = |rank: u32| {
            let mut command = Command::new(&program);
            let numbers = [
                ("--ranks", u64::from(self.savers)),
                ("--to", self.loaders.into()),
                ("--size", self.size),
            ];
            command.args([
                "demo",
                "--processes",
                "--act",
                act.name(),
                "--dir",
                &self.url,
            ]);
            command.args(
                numbers
                    .iter()
                    .flat_map(|(name, n)| [(*name).to_owned(), n.to_string()]),
            );
            // A rank is not to take this process for one of another job.
            let foreign = std::env::vars_os().map(|(name, _)| name);
            for name in foreign.filter(|name| name.as_encoded_bytes().starts_with(b"TORCHELASTIC_"))
            {
                command.env_remove(name);
            }
            command
                .env("RANK", rank.to_string())
                .env("WORLD_SIZE", ranks.to_string())
                .env("MASTER_ADDR", Ipv4Addr::LOCALHOST.to_string())
                .env("MASTER_PORT", port.to_string())
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped());
            command.spawn()
        };
        // If one can't be started, this process ends, and with it the store: then the others end, too.
        let children = (0..ranks)
            .map(start)
            .collect::<io::Result<Vec<_>>>()
            .map_err(cannot)?;
        let bar = io.count(act.name(), ranks.into());
        let ended = each(children, |child| {
            let output = output_of(child, &bar).map_err(cannot)?;
            bar.inc(1);
            Ok(output)
        });
        bar.finish_and_clear();
        told(act, &ended?)
    }

    /// What a process does that is one of the ranks.
    pub(super) fn rank(&self, act: Act, io: &mut Io<'_>) -> Result<u8> {
        let no_group = |e: TcpError| {
            let hint = "the other ranks may have failed first; `reshard demo --processes` shows all of them";
            CliError::told(crate::error::chain(&e), hint)
        };
        let settings = TcpGroup::builder_from_env().map_err(no_group)?;
        let (n, m) = (self.savers, self.loaders);
        let number = settings.number().unwrap_or(0);
        let bar = ProgressBar::hidden();
        let (state, build) = timed(|| match act {
            Act::Save => self.model.state(Cut::SAVED, number, n, &bar),
            Act::Load => self.model.template(Cut::LOADED, number, m, &bar),
        });
        let state = state?;
        let (group, meet) = timed(|| settings.connect());
        let group = group.map_err(no_group)?;

        let (mut saved, mut loaded, mut check, mut checked) = (None, None, Duration::ZERO, 0);
        match act {
            Act::Save => {
                let save = || acts::save(self.program, &group, &state, &self.url, &bar);
                saved = Some(waiting::told(&bar, save)?);
            }
            Act::Load => {
                let load = || acts::load(self.program, &group, state, &self.url, &bar);
                let (tree, told) = waiting::told(&bar, load)?;
                loaded = Some(told);
                let (compared, time) =
                    timed(|| self.model.check(Cut::LOADED, number, m, n, &tree, &bar));
                (checked, check) = (compared?, time);
            }
        }
        // From here on no other rank needs this one.
        drop(group);
        let told = Told {
            build,
            meet,
            saved,
            loaded,
            check,
            checked,
            peak: peak(),
        };
        json::write(io.out, &serde_json::to_value(told)?)?;
        Ok(OK)
    }
}

/// What a process prints. Its notes are shown at once, above the bar, and the rest when it has ended.
fn output_of(mut child: Child, bar: &ProgressBar) -> io::Result<Output> {
    let said = child.stderr.take();
    thread::scope(|scope| {
        let listener = thread::Builder::new().spawn_scoped(scope, || {
            let mut rest = Vec::new();
            for line in said
                .map(BufReader::new)
                .into_iter()
                .flat_map(BufRead::lines)
            {
                match line.as_deref().map(|line| line.strip_prefix(waiting::NOTE)) {
                    Ok(Some(note)) => waiting::show(bar, note),
                    Ok(None) => rest.extend(line.iter().flat_map(|l| l.bytes().chain([b'\n']))),
                    Err(_) => break,
                }
            }
            rest
        });
        let listener = match listener {
            Ok(listener) => listener,
            Err(e) => {
                child.kill()?;
                child.wait()?;
                return Err(e);
            }
        };
        let output = child.wait_with_output()?;
        let stderr = listener.join().unwrap_or_default();
        Ok(Output { stderr, ..output })
    })
}

impl Phases {
    fn meet(&mut self, told: &[Told]) {
        let what = format!("{}, joined by TCP", units::processes(told.len() as u64));
        self.done("meet", 0, slowest(told, |rank| rank.meet), what);
    }

    fn memory(&mut self, told: &[Told]) {
        let peaks = || told.iter().map(|rank| rank.peak);
        let (all, largest) = (peaks().sum(), peaks().max().unwrap_or(0));
        if all > 0 {
            let what = format!("at most; {} in the largest process", units::bytes(largest));
            let row = [
                "memory".into(),
                units::bytes(all),
                String::new(),
                String::new(),
                what,
            ];
            self.0.push(row);
        }
    }
}

fn slowest(told: &[Told], of: impl Fn(&Told) -> Duration) -> Duration {
    told.iter().map(of).max().unwrap_or_default()
}

/// What the processes have told, if all are done.
fn told(act: Act, ended: &[Output]) -> Result<Vec<Told>> {
    let (mut told, mut failed, mut code) = (Vec::new(), Vec::<(String, Vec<Rank>)>::new(), OK);
    for (rank, output) in (0..).zip(ended) {
        match serde_json::from_slice(&output.stdout) {
            Ok(one) if output.status.success() => told.push(one),
            _ => {
                let why = why(output);
                // Often all ranks say the same.
                match failed.iter_mut().find(|(other, _)| *other == why) {
                    Some((_, ranks)) => ranks.push(Rank(rank)),
                    None => failed.push((why, vec![Rank(rank)])),
                }
                let own = output
                    .status
                    .code()
                    .and_then(|code| u8::try_from(code).ok());
                code = worse(code, own.filter(|own| *own < 4).unwrap_or(FAILED));
            }
        }
    }
    if failed.is_empty() {
        return Ok(told);
    }
    let failed: Vec<String> = failed
        .iter()
        .map(|(why, ranks)| format!("{}: {why}", Rank::list(ranks)))
        .collect();
    Err(CliError::Told {
        what: format!("the processes could not {}: {}", act.name(), failed.join("; ")),
        hint: "each rank says why it failed; `reshard demo` without --processes has its ranks in one process"
            .to_owned(),
        code,
    })
}

/// What a process says on stderr: its error, or that of the system.
fn why(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr);
    let said = said.lines().filter(|line| !line.starts_with("hint: "));
    let said: Vec<&str> = said
        .map(|line| line.trim_start_matches("error: "))
        .collect();
    match (output.status.code(), said.join(" ").trim()) {
        (Some(_), "") => format!("it said nothing ({})", output.status),
        (Some(_), said) => said.to_owned(),
        (None, said) => format!("its process was ended ({}) {said}", output.status)
            .trim()
            .to_owned(),
    }
}

/// The most memory that this process had.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.map_or(0, |kib| kib << 10)
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::{os::unix::process::ExitStatusExt as _, process::ExitStatus};

    fn ended(status: i32, stderr: &str) -> Output {
        Output {
            status: ExitStatus::from_raw(status),
            stdout: Vec::new(),
            stderr: stderr.into(),
        }
    }

    #[test]
    fn processes_that_fail_are_told_with_what_they_said() {
        let full = "error: the disk is full\nhint: make room\n";
        let ends = [ended(2 << 8, full), ended(9, ""), ended(2 << 8, full)];
        let error = told(Act::Save, &ends).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the processes could not save: ranks 0, 2: the disk is full; \
             rank 1: its process was ended (signal: 9 (SIGKILL))"
        );
        assert_eq!(error.exit_code(), FAILED);
        // Damage comes before all else.
        let damaged = told(Act::Load, &[ended(2 << 8, full), ended(1 << 8, "error: x")]);
        assert_eq!(damaged.unwrap_err().exit_code(), crate::error::DAMAGED);
    }
}

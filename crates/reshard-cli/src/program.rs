//! From arguments to an exit code.

use crate::{
    args::{Cli, Command},
    convert, demo, digest,
    error::{CliError, FAILED, OK, Result},
    glob::Keys,
    inspect, json, list, plugins, prune,
    table::{BAD, BOLD, shown},
    verify, whereabouts,
};
use clap::Parser;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use reshard::{ErrorKind, OpenOptions, Registry, Stores, blocking::Checkpoint, storage::LocalStore};
use serde_json::json;
use std::{
    ffi::OsString,
    fmt,
    io::{self, Write},
    path::PathBuf,
    process::ExitCode,
};

/// Where a run writes to.
pub struct Io<'a> {
    /// Results.
    pub out: &'a mut dyn Write,
    /// Notes and errors.
    pub err: &'a mut dyn Write,
    /// Whether to draw progress bars on the terminal's stderr, if there is one.
    pub bars: bool,
}

impl fmt::Debug for Io<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Io").field("bars", &self.bars).finish_non_exhaustive()
    }
}

impl Io<'_> {
    /// Something the user should know that is no result.
    pub(crate) fn note(&mut self, text: impl fmt::Display) {
        let text = text.to_string();
        // Who can't be told can't be told that either.
        writeln!(self.err, "{BOLD}note:{BOLD:#} {}", shown(&text)).unwrap_or(());
    }

    /// What went wrong, and what to do.
    pub(crate) fn error(&mut self, e: &CliError) {
        let (text, hint) = (e.text(), e.hint());
        writeln!(self.err, "{BAD}error:{BAD:#} {text}\n{BOLD}hint:{BOLD:#} {}", shown(hint)).unwrap_or(());
    }

    /// The same for programs, on stdout; a closed pipe is no news any more.
    fn error_json(&mut self, kind: &str, url: Option<&str>, message: &str, hint: &str) {
        let error = json!({ "kind": kind, "url": url, "message": message, "hint": hint });
        drop(json::write(self.out, &json!({ "schema": 1, "error": error })));
        self.out.flush().unwrap_or(());
    }

    /// Tells which patterns match none of the keys that are stored, and what may have been meant.
    pub(crate) fn note_idle<'k>(&mut self, keys: Keys<'_>, dir: &str, stored: impl Iterator<Item = &'k str>) {
        if keys.all() {
            return;
        }
        let stored: Vec<&str> = stored.collect();
        for idle in keys.idle(stored.iter().copied()) {
            self.note(format!("{idle}; `reshard ls {dir}` lists the keys"));
        }
    }

    /// A bar of bytes.
    pub(crate) fn bar(&self, label: &'static str, total: u64) -> ProgressBar {
        let target = if self.bars { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let style = ProgressStyle::with_template(
            "{prefix:<10} {wide_bar:.cyan/blue} {decimal_bytes:>10} of {decimal_total_bytes:<10} {decimal_bytes_per_sec:>12} {eta:>4}",
        )
        .map_or_else(|_| ProgressStyle::default_bar(), |s| s.progress_chars("━╸─"));
        ProgressBar::with_draw_target(Some(total), target).with_style(style).with_prefix(label)
    }
}

/// The program: the commands, over strategies and stores.
#[derive(Clone, Debug)]
pub struct Program {
    pub(crate) registry: Registry,
    pub(crate) stores: Stores,
}

impl Program {
    /// With these strategies and stores.
    pub fn new(registry: Registry, stores: Stores) -> Self {
        Self { registry, stores }
    }

    /// Runs a command line, the program's name first. Returns the exit code: 0 done, 1 damaged, 2 could not be done, 3 not a
    /// checkpoint.
    pub fn run<A: Into<OsString> + Clone>(&self, args: impl IntoIterator<Item = A>, io: &mut Io<'_>) -> u8 {
        let args: Vec<OsString> = args.into_iter().map(Into::into).collect();
        let asked_for_json = args.iter().any(|a| a == "--json");
        let cli = match Cli::try_parse_from(args) {
            Ok(cli) => cli,
            Err(e) => {
                if asked_for_json && e.use_stderr() {
                    let message = e.render().to_string();
                    let message = message.trim_start_matches("error: ").trim_end();
                    io.error_json("invalid", None, message, "`reshard help` says what it can be asked");
                }
                let text = e.render().ansi().to_string();
                let to = if e.use_stderr() { &mut *io.err } else { &mut *io.out };
                // A closed pipe keeps nobody from having asked for help.
                write!(to, "{text}").and_then(|()| to.flush()).unwrap_or(());
                return u8::try_from(e.exit_code()).unwrap_or(FAILED);
            }
        };
        let done = self.command(&cli.command, io).and_then(|code| {
            io.out.flush()?;
            Ok(code)
        });
        match done {
            Ok(code) => code,
            Err(e) if e.is_closed_pipe() => OK,
            Err(e) => {
                // What was found before the failure comes before its message.
                io.out.flush().unwrap_or(());
                if asked_for_json {
                    io.error_json(e.word(), cli.command.place(), &e.message(), e.hint());
                }
                io.error(&e);
                e.exit_code()
            }
        }
    }

    fn command(&self, command: &Command, io: &mut Io<'_>) -> Result<u8> {
        match command {
            Command::Inspect(a) => inspect::run(self, a, io),
            Command::Ls(a) => list::run(self, a, io),
            Command::Digest(a) => digest::run(self, a, io),
            Command::Verify(a) => verify::run(self, a, io),
            Command::Convert(a) => convert::run(self, a, io),
            Command::Prune(a) => prune::run(self, a, io),
            Command::Plugins(a) => plugins::run(self, a, io),
            Command::Demo(a) => demo::run(self, a, io),
        }
    }

    pub(crate) fn open(&self, url: &str, options: OpenOptions) -> Result<Checkpoint> {
        let options = options.registry(self.registry.clone()).stores(self.stores.clone());
        Checkpoint::open_with(options, url).map_err(|e| match e.kind() {
            ErrorKind::Corrupt => {
                let hint = "restore that file from a copy, or save again; nothing can be read without it";
                CliError::damaged(CliError::from(e).text(), hint)
            }
            _ => self.explained(url, e),
        })
    }

    /// An error of what is no checkpoint, with what lies there instead.
    pub(crate) fn explained(&self, url: &str, e: reshard::Error) -> CliError {
        let path = || local_path(self, url);
        match e.kind() {
            ErrorKind::NotFound => path().and_then(|p| whereabouts::explain(url, &p)),
            // A file can't be opened as a directory.
            ErrorKind::Unavailable => {
                path().filter(|p| !p.is_dir()).and_then(|p| whereabouts::explain(url, &p))
            }
            _ => None,
        }
        .unwrap_or_else(|| e.into())
    }

    /// Runs with the process's own arguments and streams.
    pub fn main(&self) -> ExitCode {
        let mut out = io::BufWriter::with_capacity(1 << 16, anstream::AutoStream::auto(io::stdout().lock()));
        let mut err = anstream::AutoStream::auto(io::stderr());
        let code = self.run(std::env::args_os(), &mut Io { out: &mut out, err: &mut err, bars: true });
        ExitCode::from(code)
    }
}

/// Where a URL lies on this machine's file systems, if it does.
pub(crate) fn local_path(program: &Program, url: &str) -> Option<PathBuf> {
    let url = program.stores.open(url).ok()?.url();
    let store = url.starts_with("file://").then(|| LocalStore::open(&url).ok())??;
    Some(store.path().to_path_buf())
}

/// Runs the program with these strategies, and with the stores that are linked.
pub fn main_with(registry: Registry) -> ExitCode {
    match Stores::linked() {
        Ok(stores) => main_with_stores(registry, stores),
        Err(e) => fail(reshard::strategy::StrategyError::from(e).into()),
    }
}

/// Runs the program with these strategies and stores.
pub fn main_with_stores(registry: Registry, stores: Stores) -> ExitCode {
    Program::new(registry, stores).main()
}

/// Runs the program with the strategies and stores that are linked.
pub fn main_linked() -> ExitCode {
    match Registry::linked() {
        Ok(registry) => main_with(registry),
        Err(e) => fail(e.into()),
    }
}

fn fail(e: CliError) -> ExitCode {
    writeln!(anstream::AutoStream::auto(io::stderr()), "{BAD}error:{BAD:#} {}", e.text()).unwrap_or(());
    ExitCode::from(FAILED)
}

//! From arguments to an exit code.

use crate::{
    args::{Cli, Command},
    convert, demo, diff, digest,
    error::{CliError, FAILED, OK, Result},
    inspect,
    io::Io,
    list, manual, memory, plugins,
    program::Program,
    prune, remove, show, stats, steps,
    table::BAD,
    trace::traced,
    usage, verify,
};
use clap::{Parser, error::ErrorKind};
use reshard::{Registry, Stores, storage::without_secrets};
use std::{
    ffi::OsString,
    io::{self, Write},
    process::ExitCode,
    sync::Arc,
};

impl Program {
    /// Runs a command line, the program's name first. Returns the exit code: 0 done, 1 damaged, 2 could not be done, 3 not a
    /// checkpoint.
    pub fn run<A: Into<OsString> + Clone>(
        &self,
        args: impl IntoIterator<Item = A>,
        io: &mut Io<'_>,
    ) -> u8 {
        let args: Vec<OsString> = args.into_iter().map(Into::into).collect();
        let asked_for_json = args.iter().any(|a| a == "--json");
        if asked_for_json {
            memory::report_as_json();
        }
        let given = args.clone();
        let cli = match Cli::try_parse_from(args) {
            Ok(cli) => cli,
            Err(e) if e.kind() == ErrorKind::InvalidUtf8 => {
                let e = not_utf8(&given);
                if asked_for_json {
                    io.error_json("invalid", None, &e.message(), e.hint());
                }
                io.error(&e);
                return FAILED;
            }
            Err(e) => {
                let (is_error, code) = (e.use_stderr(), e.exit_code());
                // It quotes arguments.
                let text = usage::text(e);
                let text = without_secrets(&text);
                if asked_for_json && is_error {
                    let message = anstream::adapter::strip_str(&text).to_string();
                    let message = message.trim_start_matches("error: ").trim_end();
                    io.error_json(
                        "invalid",
                        None,
                        message,
                        "`reshard help` lists the commands; `reshard help COMMAND` lists its options",
                    );
                }
                let to = if is_error { &mut *io.err } else { &mut *io.out };
                let code = u8::try_from(code).unwrap_or(FAILED);
                return match write!(to, "{text}").and_then(|()| to.flush()) {
                    // A closed pipe keeps nobody from having asked for help.
                    Err(e) if e.kind() != io::ErrorKind::BrokenPipe => FAILED,
                    _ => code,
                };
            }
        };
        let (place, reading) = cli.command.source();
        let program = match reading {
            // A check is of the place, and not of what a disk here remembers of it.
            Some(reading) => self.reading(reading, !matches!(cli.command, Command::Verify(_))),
            None => Ok(self.clone()),
        };
        let done = program
            .and_then(|program| program.command(&cli.command, io))
            .and_then(|code| {
                io.out.flush()?;
                Ok(code)
            });
        match done {
            Ok(code) => code,
            Err(e) if e.is_closed_pipe() => OK,
            Err(e) => {
                let e = e.with_reporter(&self.registry);
                // What was found before the failure comes before its message.
                io.out.flush().unwrap_or(());
                if asked_for_json {
                    io.error_json(e.word(), place, &e.message(), e.hint());
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
            Command::Latest(a) => steps::latest(self, a, io),
            Command::Show(a) => show::run(self, a, io),
            Command::Digest(a) => digest::run(self, a, io),
            Command::Verify(a) => verify::run(self, a, io),
            Command::Convert(a) => traced(a.trace.as_deref(), || convert::run(self, a, io)),
            Command::Diff(a) => diff::run(self, a, io),
            Command::Stats(a) => stats::run(self, a, io),
            Command::Prune(a) => prune::run(self, a, io),
            Command::Remove(a) => remove::run(self, a, io),
            Command::Plugins(a) => plugins::run(self, a, io),
            Command::Demo(a) => traced(a.trace.as_deref(), || demo::run(self, a, io)),
            Command::Completions(a) => manual::completions(a.shell, io),
            Command::Man(a) => manual::pages(a.dir.as_deref(), io),
        }
    }

    /// Runs a command line with the process's own streams and limits, and returns the exit code.
    fn run_here(&self, args: impl IntoIterator<Item = OsString>) -> u8 {
        memory::enforce();
        report_full_files();
        raise_open_files();
        let styles = anstream::AutoStream::choice(&io::stdout());
        // What strips the styles writes a line in pieces.
        let stdout: Box<dyn Write> =
            Box::new(io::BufWriter::with_capacity(1 << 16, io::stdout().lock()));
        let mut out =
            io::BufWriter::with_capacity(1 << 16, anstream::AutoStream::new(stdout, styles));
        let mut err = anstream::AutoStream::auto(io::stderr());
        let mut io = Io {
            out: &mut out,
            err: &mut err,
            bars: true,
        };
        self.run(args, &mut io)
    }

    /// Runs with the process's own arguments and streams.
    pub fn main(&self) -> ExitCode {
        ExitCode::from(self.run_here(std::env::args_os()))
    }
}

/// The error for arguments that are not UTF-8 and no places.
fn not_utf8(args: &[OsString]) -> CliError {
    let odd = args.iter().filter(|arg| arg.to_str().is_none());
    let odd: Vec<String> = odd.map(|arg| format!("{arg:?}")).collect();
    let hint = "only places and names of files may have other bytes; keys and patterns can't";
    CliError::told(format!("{} is not UTF-8", odd.join(", ")), hint)
}

/// Runs the program with these strategies, and with the stores that are linked.
pub fn main_with(registry: Registry) -> ExitCode {
    let stores = Stores::linked().map_err(reshard::strategy::StrategyError::from);
    match stores {
        Ok(stores) => main_with_stores(registry, stores),
        Err(e) => ExitCode::from(fail(&e.into())),
    }
}

/// Runs the program with these strategies and stores.
pub fn main_with_stores(registry: Registry, stores: Stores) -> ExitCode {
    Program::new(registry, stores).main()
}

/// Runs the program with the strategies and stores that are linked.
pub fn main_linked() -> ExitCode {
    ExitCode::from(run_linked(std::env::args_os()))
}

/// The same with these arguments, the program's name first, for a program that another one starts within its own process. Returns the exit code.
pub fn run_linked(args: impl IntoIterator<Item = OsString>) -> u8 {
    match Program::linked() {
        Ok(program) => program.run_here(args),
        Err(e) => fail(&e.into()),
    }
}

/// A file that grows beyond `ulimit -f` is an error of the call that writes it, which says so and tidies up. By default the
/// system ends the process without a word.
fn report_full_files() {
    // What the flag says is of no interest.
    let caught = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::default());
    // Without it the program does what it does.
    caught.map(drop).unwrap_or(());
}

/// Each rank of a conversion holds a few directories and files open, and most systems begin with a limit of 1,024, which a program may raise.
fn raise_open_files() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // Without it the program does what it does.
    setrlimit(Resource::Nofile, limit).unwrap_or(());
}

fn fail(e: &CliError) -> u8 {
    writeln!(
        anstream::AutoStream::auto(io::stderr()),
        "{BAD}error:{BAD:#} {}",
        e.text()
    )
    .unwrap_or(());
    FAILED
}

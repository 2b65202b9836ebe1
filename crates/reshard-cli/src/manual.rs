//! Completions of shells, and manual pages.

use crate::{
    args::Cli,
    error::{CliError, OK, Result},
    io::Io,
    usage::JOINER,
};
use clap::{Command, CommandFactory as _};
use clap_complete::Shell;
use clap_mangen::Man;
use std::path::Path;

const NAME: &str = "reshard";

/// Prints the completions of a shell.
pub(crate) fn completions(shell: Shell, io: &mut Io<'_>) -> Result<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), NAME, &mut script);
    io.out.write_all(&without_joiners(&script))?;
    Ok(OK)
}

/// Prints the page of the program, or writes it and one for each command into a directory.
pub(crate) fn pages(dir: Option<&Path>, io: &mut Io<'_>) -> Result<u8> {
    let mut program = Cli::command().disable_help_subcommand(true);
    program.build();
    let Some(dir) = dir else {
        io.out.write_all(&page(program)?)?;
        return Ok(OK);
    };
    let commands: Vec<Command> = program.get_subcommands().cloned().collect();
    for command in [program].into_iter().chain(commands) {
        let name = command.get_display_name().unwrap_or(NAME).to_owned();
        let file = dir.join(format!("{name}.1"));
        std::fs::write(&file, page(command)?).map_err(|e| {
            let what = format!("{} can't be written: {e}", file.display());
            CliError::told(what, "name a directory that exists")
        })?;
    }
    Ok(OK)
}

fn page(command: Command) -> Result<Vec<u8>> {
    let mut page = Vec::new();
    Man::new(command).render(&mut page)?;
    Ok(without_joiners(&page))
}

fn without_joiners(text: &[u8]) -> Vec<u8> {
    String::from_utf8_lossy(text)
        .replace(JOINER, "")
        .into_bytes()
}

//! `reshard-bench`: measures reshard beside PyTorch's DCP and beside plain reads and writes, in one run, and prints a table.

mod analysis;
mod bucket;
mod files;
mod formats;
mod huge;
mod limited;
mod lookup;
mod measure;
mod measured;
mod megatron;
mod peer;
mod places;
mod plan;
mod policy;
mod proxy;
mod ranks;
mod replan;
mod rewrite;
mod row;
mod served;
mod stall;
mod state;
mod table;

use anyhow::Result;
use clap::Parser;

#[derive(Debug, Parser)]
#[command(about = "Side by side with PyTorch's distributed checkpoint")]
enum Command {
    /// One measurement, as a line of JSON.
    #[command(subcommand)]
    Measure(measure::What),
    /// All of them, as a table.
    Table(table::Args),
}

#[expect(clippy::print_stdout, reason = "a program whose output is its result")]
fn main() -> Result<()> {
    match Command::parse() {
        Command::Measure(what) => println!("{}", serde_json::to_string(&measure::run(&what)?)?),
        Command::Table(args) => table::run(&args)?,
    }
    Ok(())
}

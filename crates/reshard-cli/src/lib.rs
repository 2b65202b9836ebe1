//! The `reshard` program, as a library.
//!
//! To build a program with your own strategies or stores, call one function. The program has all commands of `reshard`:
//!
//! ```no_run
//! // use my_strategies as _;
//! #[global_allocator]
//! static ALLOCATOR: reshard_cli::Allocator = reshard_cli::Allocator;
//!
//! fn main() -> std::process::ExitCode {
//!     match reshard::Registry::linked() {
//!         Ok(registry) => reshard_cli::main_with(registry),
//!         Err(_) => std::process::ExitCode::from(2),
//!     }
//! }
//! ```
//!
//! `docs/cli.md` describes the commands, the JSON that they print, and the exit codes. Results go to stdout. Progress, notes
//! and errors go to stderr.

mod args;
mod convert;
mod cost;
mod demo;
mod diff;
mod digest;
mod error;
mod findings;
mod glob;
mod inspect;
mod interrupt;
mod io;
mod json;
mod list;
mod manual;
mod mapping;
mod memory;
mod not_covered;
mod pickles;
mod plugins;
mod program;
mod prune;
mod region;
mod remove;
mod run;
mod show;
mod stats;
mod steps;
mod table;
mod trace;
mod tracker;
mod units;
mod usage;
mod verify;

pub use io::Io;
pub use memory::Allocator;
pub use program::Program;
pub use run::{main_linked, main_with, main_with_stores, run_linked};

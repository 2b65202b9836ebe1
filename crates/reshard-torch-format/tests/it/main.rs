//! What crosses the modules of the crate: files of real programs, hostile input, laws.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests"
)]

mod archives;
mod budget;
mod containers;
mod fixtures;
mod forms;
mod hostile;
mod machine;
mod modules;
mod objects;
mod parts;
mod python;
mod rebuild;
mod samples;
mod scan;
mod unpack;
mod values;

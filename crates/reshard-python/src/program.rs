//! The program, within the process of Python.

use crate::{error::Raise as _, wait::on_thread};
use pyo3::prelude::*;
use reshard_cli::{Io, Program};
use std::ffi::OsString;

/// Runs the program with these arguments, its name first, and with the streams of the process. Returns the exit code. Nothing else should run in the process.
#[pyfunction]
pub(crate) fn main(py: Python<'_>, args: Vec<OsString>) -> u8 {
    py.detach(|| reshard_cli::run_linked(args))
}

/// What a command has printed.
type Printed = (u8, Vec<u8>, Vec<u8>);

/// Runs a command of the program that only reads. Returns its exit code, what it printed, and its notes.
#[pyfunction]
pub(crate) fn command(py: Python<'_>, args: Vec<OsString>) -> PyResult<Printed> {
    let program = Program::linked().raised(py)?;
    on_thread(py, move || {
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let mut io = Io {
            out: &mut out,
            err: &mut err,
            bars: false,
        };
        let name = OsString::from("reshard");
        let code = program.run([name].into_iter().chain(args), &mut io);
        (code, out, err)
    })
}

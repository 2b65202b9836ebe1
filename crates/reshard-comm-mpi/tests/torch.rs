//! PyTorch loads what ranks of an MPI job saved. Needs `RESHARD_PYTHON`: a Python with torch.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

#[expect(dead_code, reason = "other tests use the rest")]
mod common;

use common::mpirun;
use std::{ffi::OsString, path::PathBuf, process::Command};

const LOADS: &str = "
import sys, torch
import torch.distributed.checkpoint as dcp
state = {'m': torch.zeros(8, 12)}
dcp.load(state, checkpoint_id=sys.argv[1], no_dist=True)
assert torch.equal(state['m'], torch.arange(96, dtype=torch.float32).reshape(8, 12)), state
print('well')
";

/// The example, which cargo builds with the tests.
fn example() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let debug = test.parent().unwrap().parent().unwrap();
    debug.join("examples").join("checkpoint")
}

fn run(ranks: u32, command: &str, url: &str) -> String {
    let output = mpirun(ranks, example())
        .args([command, url])
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn what_4_ranks_saved_is_loaded_by_2() {
    let dir = tempfile::tempdir().unwrap();
    let url = dir.path().join("checkpoint").display().to_string();
    assert_eq!(run(4, "save", &url).matches("saved its rows").count(), 4);
    assert_eq!(
        run(2, "load", &url).matches("loaded its columns").count(),
        2
    );
}

#[test]
#[ignore = "needs RESHARD_PYTHON; cargo xtask processes --mpi runs it"]
fn needs_python_stock_dcp_loads_what_4_ranks_saved() {
    let dir = tempfile::tempdir().unwrap();
    let url = dir.path().join("checkpoint").display().to_string();
    run(4, "save", &url);
    let python: OsString = std::env::var_os("RESHARD_PYTHON").unwrap();
    let output = Command::new(python)
        .args(["-c", LOADS, &url])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        said.contains("well"),
        "{said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

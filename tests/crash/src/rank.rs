//! `reshard-rank ACT DIR STEP` is one rank of a job that is joined by TCP, to be killed. It prints `joined`, and then
//! `done` with the number of its collectives, or `failed` with the error.

use anyhow::{Context, Result};
use reshard_comm::testkit::{Fault, FaultGroup};
use reshard_comm_tcp::TcpGroup;
use reshard_crash::{ACTS, DIES_AT_CALL, FAN_OUT};
use std::{path::PathBuf, process::ExitCode, sync::Arc};

#[expect(clippy::print_stdout, reason = "a test reads it")]
fn main() -> Result<ExitCode> {
    let mut args = std::env::args().skip(1);
    let name = args.next().context("ACT is missing")?;
    let dir = PathBuf::from(args.next().context("DIR is missing")?);
    let step = args.next().context("STEP is missing")?.parse()?;
    let act = ACTS
        .iter()
        .find(|act| act.name == name)
        .context("there is no such act")?;
    let fan_out = std::env::var(FAN_OUT)
        .context("the fan-out is missing")?
        .parse()?;
    let group = Arc::new(TcpGroup::builder_from_env()?.fan_out(fan_out).connect()?);
    println!("joined");
    let group = match std::env::var(DIES_AT_CALL) {
        Ok(call) => FaultGroup::new(group, call.parse()?, Fault::Death),
        Err(_) => FaultGroup::counting(group),
    };
    match (act.run)(&group, &dir, step) {
        Ok(()) => println!("done {}", group.calls()),
        Err(e) => {
            println!("failed {e:#}");
            return Ok(ExitCode::FAILURE);
        }
    }
    Ok(ExitCode::SUCCESS)
}

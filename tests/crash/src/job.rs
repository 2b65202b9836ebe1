//! Ranks in processes of their own.

use crate::RANKS;
use anyhow::{Result, bail};
use reshard_comm::testkit;
use reshard_comm_tcp::StoreServer;
use std::{path::Path, process::Command, time::Duration};

/// The environment variable with the number of the collective at which a rank dies.
pub const DIES_AT_CALL: &str = "RESHARD_DIES_AT_CALL";

/// The environment variable with the `fan_out` of the group.
pub const FAN_OUT: &str = "RESHARD_FAN_OUT";

/// Four ranks must have ended by then, also on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

/// Processes that run `reshard-rank`, and the store at which they meet.
#[derive(Debug)]
pub struct Job {
    ranks: testkit::Job,
    limit: Duration,
    _store: StoreServer,
}

impl Job {
    /// Starts four ranks. `program` is the path of `reshard-rank`. Rank `victim` gets this variable
    /// in its environment. `fan_out` is that of their group: 1 makes a chain of them.
    ///
    /// # Errors
    /// The system starts no process, or gives no port.
    pub fn start(
        program: &Path,
        act: &str,
        dir: &Path,
        step: u64,
        victim: Option<(u32, &str, &str)>,
        fan_out: u32,
    ) -> Result<Self> {
        Self::start_many(RANKS, program, act, dir, step, victim, fan_out)
    }

    fn start_many(
        count: u32,
        program: &Path,
        act: &str,
        dir: &Path,
        step: u64,
        victim: Option<(u32, &str, &str)>,
        fan_out: u32,
    ) -> Result<Self> {
        let store = StoreServer::bind("127.0.0.1:0".parse()?)?;
        let ranks = testkit::Job::start(0..count, |rank| {
            let mut command = Command::new(program);
            command.arg(act).arg(dir).arg(step.to_string());
            command
                .env(FAN_OUT, fan_out.to_string())
                .env("RANK", rank.to_string())
                .env("WORLD_SIZE", count.to_string())
                .env("MASTER_ADDR", "127.0.0.1")
                .env("MASTER_PORT", store.address().port().to_string());
            if let Some((victim, name, value)) = victim
                && victim == rank
            {
                command.env(name, value);
            }
            command
        })?;
        Ok(Self {
            ranks,
            limit: LIMIT * count.div_ceil(RANKS),
            _store: store,
        })
    }

    /// Waits until all have a group.
    pub fn until_joined(&mut self) {
        self.ranks.until_all_say("joined", self.limit);
    }

    /// Kills a rank, as by `SIGKILL`, if it runs.
    pub fn kill(&mut self, rank: u32) {
        // It may have ended.
        drop(self.ranks.process(rank).kill());
    }

    /// Waits for all.
    pub fn wait(self) -> Vec<testkit::Ended> {
        self.ranks.wait(self.limit)
    }
}

/// Does an act about step `step` on this number of ranks, each of them a process.
///
/// # Errors
/// What the ranks say.
pub fn run_in_processes(
    ranks: u32,
    program: &Path,
    dir: &Path,
    step: u64,
    act: &str,
) -> Result<()> {
    let ended = Job::start_many(ranks, program, act, dir, step, None, 64)?.wait();
    for rank in &ended {
        if rank.status.is_none() {
            bail!("rank {} hangs: {}", rank.rank, rank.said);
        }
    }
    match ended.iter().find(|rank| !rank.succeeded()) {
        Some(rank) => bail!("rank {}: {}", rank.rank, rank.said),
        None => Ok(()),
    }
}

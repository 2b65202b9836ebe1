//! Saves by ranks of an MPI job, of which one is killed at a random moment.
//!
//! `RESHARD_KILL_ROUNDS` says how often; 5 times unless set.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

#[expect(dead_code, reason = "other tests use the rest")]
mod common;

use common::{LIMIT, MODE, runs};
use reshard::Dialect;
use reshard_comm::ProcessGroup;
use reshard_comm_mpi::MpiGroup;
use reshard_crash::{RANKS, look, save, save_on_rank};
use std::{
    path::Path,
    process::Command,
    thread,
    time::{Duration, Instant},
};

const DIR: &str = "RESHARD_TEST_DIR";

/// What each process does: it saves until it is killed. It is no test of its own.
#[test]
#[ignore = "a rank, which another test starts"]
fn a_rank() {
    let (Ok(_), Some(dir)) = (std::env::var(MODE), std::env::var_os(DIR)) else {
        return;
    };
    let group = MpiGroup::init().unwrap();
    println!("process {} is there", std::process::id());
    for step in 2.. {
        save_on_rank(&group, Path::new(&dir), step, true, Dialect::Dcp).unwrap();
        if group.rank().0 == 0 {
            println!("step {step} is saved");
        }
    }
}

#[test]
fn what_killed_ranks_leave_is_the_old_checkpoint_or_the_new_one() {
    let rounds = std::env::var("RESHARD_KILL_ROUNDS").map_or(5, |rounds| rounds.parse().unwrap());
    let (mut longest, mut advanced) = (Duration::ZERO, 0);
    for round in 0..rounds {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path().join("step");
        save(&dir, 1, false, Dialect::Dcp).unwrap();
        let said = tempfile::NamedTempFile::new().unwrap();
        let log = said.reopen().unwrap();
        let mut job = common::mpirun(RANKS, std::env::current_exe().unwrap())
            .args(["--exact", "a_rank", "--ignored", "--nocapture"])
            .env(MODE, "save")
            .env(DIR, &dir)
            .stderr(log.try_clone().unwrap())
            .stdout(log)
            .spawn()
            .unwrap();
        let text = || std::fs::read_to_string(said.path()).unwrap();
        let begun = Instant::now();
        let ranks = loop {
            let there = text();
            let there = there.lines().filter_map(|line| {
                let rest = line.split_once("process ")?.1;
                rest.split_once(" is there")?.0.parse::<u32>().ok()
            });
            let there: Vec<u32> = there.collect();
            if there.len() == RANKS as usize {
                break there;
            }
            assert!(begun.elapsed() < LIMIT, "{}", text());
            thread::sleep(Duration::from_millis(2));
        };
        // Some moment of some save, by a hash of the round.
        let chance = (round + 1_u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        thread::sleep(Duration::from_micros(chance % 200_000));
        let victim = ranks[(chance >> 40) as usize % ranks.len()].to_string();
        let killed = Command::new("kill").args(["-KILL", &victim]).status();
        assert!(killed.unwrap().success());
        let begun = Instant::now();
        let status = loop {
            if let Some(status) = job.try_wait().unwrap() {
                break status;
            }
            assert!(begun.elapsed() < LIMIT, "the job goes on: {}", text());
            thread::sleep(Duration::from_millis(2));
        };
        assert!(!status.success());
        while ranks.iter().any(|rank| runs(*rank)) {
            assert!(begun.elapsed() < LIMIT, "some ranks go on: {}", text());
            thread::sleep(Duration::from_millis(2));
        }
        longest = longest.max(begun.elapsed());
        let told = text()
            .lines()
            .filter_map(|line| {
                let rest = line.split_once("step ")?.1;
                rest.split_once(" is saved")?.0.parse::<u64>().ok()
            })
            .max();
        let found = look(&dir).unwrap().unwrap();
        let last = told.unwrap_or(1);
        // The next save may have come as far as its commit.
        assert!(
            (last..=last + 1).contains(&found),
            "step {found} lies there, and {last} was told"
        );
        advanced += u64::from(found > 1);
    }
    println!(
        "{rounds} rounds, {advanced} with a newer checkpoint; all processes ended within {longest:?}"
    );
}

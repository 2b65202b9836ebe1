//! One of four ranks in four processes is killed: at each of its collectives, at each named step of the store, and at random
//! moments. The others get an error that names it; what lies in the directory is the old checkpoint or the new one.
#![expect(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

use reshard::Dialect;
use reshard_comm::testkit::Ended;
use reshard_crash::{ACTS, Act, DIES_AT_CALL, Job, look, run_in_processes, save, scattered, steps};
use reshard_model::testkit::is_thorough;
use reshard_storage::failpoint;
use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

/// Rounds of random moments for each act; with `RESHARD_THOROUGH` as many as [`MANY`].
const FEW: u64 = 4;
const MANY: u64 = 200;
/// Who is killed: the coordinator, and another one.
const VICTIMS: [u32; 2] = [0, 2];

/// A checkpoint that is overwritten and loaded again and again.
struct Target {
    _home: tempfile::TempDir,
    dir: PathBuf,
    step: u64,
    /// Rounds in which another rank than the victim failed, and those in which a save was committed and its victim killed.
    hit: u32,
    committed: u32,
}

impl Target {
    fn new() -> Self {
        let home = reshard_crash::scratch().unwrap();
        let dir = home.path().join("step");
        save(&dir, 1, false, Dialect::Dcp).unwrap();
        Self {
            _home: home,
            dir,
            step: 1,
            hit: 0,
            committed: 0,
        }
    }

    /// The step that a job of this act is about.
    fn of(&self, act: &Act) -> u64 {
        if act.saves { self.step + 1 } else { self.step }
    }

    fn start(&self, act: &Act, victim: Option<(u32, &str, &str)>) -> Job {
        let program = Path::new(env!("CARGO_BIN_EXE_reshard-rank"));
        // In every other round rank 0 hears of ranks 2 and 3 through rank 1, as in a group of many ranks.
        let fan_out = if self.step % 4 == 1 { 64 } else { 1 };
        Job::start(program, act.name, &self.dir, self.of(act), victim, fan_out).unwrap()
    }

    /// Looks at what the ranks said and at what they left, and makes everything as it was, one step later.
    fn judge(&mut self, act: &Act, victim: u32, what: &str, ended: &[Ended]) {
        let (old, new) = (self.step, self.of(act));
        let round = format!("{}, rank {victim} killed {what}", act.name);
        let found = look(&self.dir).unwrap_or_else(|e| panic!("{round}: {e:#}"));
        assert!(
            [Some(old), Some(new)].contains(&found),
            "{round}: found {found:?}"
        );
        let killed = ended
            .iter()
            .any(|rank| rank.rank == victim && !rank.succeeded());
        for rank in ended {
            let said = || format!("{round}: rank {}: {}", rank.rank, rank.said);
            assert!(rank.status.is_some(), "it hangs: {}", said());
            if rank.succeeded() {
                // What is said to be saved is there.
                assert_eq!(found, Some(new), "{}", said());
            } else if rank.rank != victim {
                assert!(killed, "nobody was killed: {}", said());
                let error = rank.said.lines().find(|line| line.starts_with("failed "));
                let names = error.is_some_and(|error| error.contains(&format!("rank {victim}")));
                assert!(names, "the error does not name it: {}", said());
            }
        }
        let failed = ended
            .iter()
            .any(|rank| rank.rank != victim && !rank.succeeded());
        self.hit += u32::from(failed);
        self.committed += u32::from(killed && act.saves && found == Some(new));
        // The next save goes through, whatever lies around.
        self.step = new + 1;
        save(&self.dir, self.step, true, Dialect::Dcp).unwrap();
        assert_eq!(look(&self.dir).unwrap(), Some(self.step), "{round}");
    }
}

/// How many collectives each victim takes part in, if nobody is killed.
fn calls(target: &mut Target, act: &Act) -> Vec<u64> {
    let ended = target.start(act, None).wait();
    let calls = VICTIMS.map(|victim| {
        let said = &ended[victim as usize].said;
        let done = said.lines().find_map(|line| line.strip_prefix("done "));
        done.unwrap_or_else(|| panic!("{}: {said}", act.name))
            .parse()
            .unwrap()
    });
    target.judge(act, u32::MAX, "never", &ended);
    calls.into()
}

#[test]
fn ranks_name_the_one_that_dies_at_any_of_its_collectives() {
    let mut target = Target::new();
    for (number, act) in (0..).zip(ACTS) {
        let calls = calls(&mut target, act);
        for (victim, calls) in VICTIMS.into_iter().zip(calls) {
            // Without RESHARD_THOROUGH one of the first half, which all come: the first, or one after a quarter, or the middle.
            let one = (number + u64::from(victim)) % 3 * (calls - 1) / 4;
            let at: BTreeSet<u64> = if is_thorough() {
                (0..calls).collect()
            } else {
                [one].into()
            };
            let (mut killed, rounds) = (0, at.len() as u32);
            for call in at {
                let hit = target.hit;
                let job = target.start(act, Some((victim, DIES_AT_CALL, &call.to_string())));
                let ended = job.wait();
                // The number of rounds of an exchange depends on how fast data are read. So the last fifth of the collectives may not come, or one of
                // them is the last one, in which the victim only receives and the others may have ended.
                let may_be_last = call + 1 + calls / 5 >= calls;
                let died = !ended[victim as usize].succeeded();
                killed += u32::from(died);
                target.judge(act, victim, &format!("at its collective {call}"), &ended);
                assert!(
                    target.hit > hit || may_be_last || !died,
                    "{}: nobody missed rank {victim} at {call}",
                    act.name
                );
            }
            let most = if is_thorough() { (4, 5) } else { (2, 3) };
            assert!(
                killed * most.1 >= rounds * most.0,
                "{}: rank {victim} died in {killed} of {rounds} rounds only",
                act.name
            );
        }
    }
}

#[test]
fn ranks_name_the_one_that_is_killed_at_any_named_step_of_a_save() {
    let mut target = Target::new();
    let (mut tried, mut met) = (0, BTreeSet::new());
    for (n, act) in ACTS.iter().filter(|act| act.saves).enumerate() {
        for step in steps(n) {
            // Only the coordinator begins and commits.
            for victim in VICTIMS {
                if victim != 0 && !step.starts_with("write.") {
                    continue;
                }
                let ended = target
                    .start(act, Some((victim, failpoint::VARIABLE, step)))
                    .wait();
                tried += 1;
                if !ended[victim as usize].succeeded() {
                    met.insert((step, act.name, victim));
                }
                target.judge(act, victim, &format!("at {step}"), &ended);
            }
        }
    }
    assert_eq!(met.len(), tried, "every named step must be met: {met:?}");
    let met: BTreeSet<&str> = met.into_iter().map(|(step, ..)| step).collect();
    assert_eq!(met, failpoint::STEPS.iter().copied().collect());
    assert!(target.committed > 0, "some steps lie behind the commit");
}

#[test]
#[ignore = "starts 64 processes at a time; cargo xtask processes runs it"]
fn sixty_four_ranks_save_and_load() {
    let home = reshard_crash::scratch().unwrap();
    let dir = home.path().join("step");
    let program = Path::new(env!("CARGO_BIN_EXE_reshard-rank"));
    for act in ["save", "load", "load-exchange"] {
        run_in_processes(64, program, &dir, 1, act).unwrap();
    }
    assert_eq!(look(&dir).unwrap(), Some(1));
}

#[test]
#[ignore = "kills at random moments; cargo xtask nightly runs it"]
fn ranks_name_the_one_that_is_killed_at_a_random_moment() {
    let rounds = if is_thorough() { MANY } else { FEW };
    for act in ACTS {
        let mut target = Target::new();
        let mut longest = Duration::ZERO;
        for i in 0..rounds {
            if i % 20 == 0 {
                // How long it takes here and now, so that moments are spread over all of it.
                let mut job = target.start(act, None);
                job.until_joined();
                let begun = Instant::now();
                let ended = job.wait();
                longest = begun.elapsed();
                target.judge(act, u32::MAX, "never", &ended);
            }
            let victim = VICTIMS[(i % 2) as usize];
            let mut job = target.start(act, None);
            job.until_joined();
            thread::sleep(longest.mul_f64(scattered(i)));
            job.kill(victim);
            let ended = job.wait();
            target.judge(act, victim, &format!("at moment {i}"), &ended);
        }
        if is_thorough() {
            assert!(target.hit > 0, "{}: nobody was missed", act.name);
        }
    }
}

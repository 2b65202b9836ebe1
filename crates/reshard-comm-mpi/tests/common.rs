//! What the tests share: jobs that `mpirun` starts. Each rank is this test program again, with one ignored test.

use reshard_comm::testkit::{Ended, Job};
use std::{
    process::{Command, Stdio},
    sync::Mutex,
    time::Duration,
};

/// What the ranks are to do.
pub(crate) const MODE: &str = "RESHARD_TEST_MODE";

/// Longer than a job should take on a busy machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// Another MPI library has another name for it.
fn launcher() -> String {
    std::env::var("RESHARD_MPIRUN").unwrap_or_else(|_| "mpirun".to_owned())
}

/// Whether MPICH starts the jobs, as its launcher says.
pub(crate) fn is_mpich() -> bool {
    let said = Command::new(launcher()).arg("--version").output();
    said.is_ok_and(|said| String::from_utf8_lossy(&said.stdout).contains("HYDRA"))
}

/// One job at a time: ranks that wait may keep a processor busy.
static ONE: Mutex<()> = Mutex::new(());

/// `mpirun -n RANKS PROGRAM`, also for the superuser, and also with more ranks than processors.
pub(crate) fn mpirun(ranks: u32, program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(launcher());
    // Open MPI 4, and Open MPI 5; others know none of them.
    for allow in [
        "OMPI_ALLOW_RUN_AS_ROOT",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM",
        "OMPI_MCA_rmaps_base_oversubscribe",
        "PRTE_ALLOW_RUN_AS_ROOT",
        "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM",
    ] {
        command.env(allow, "1");
    }
    command.env("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe");
    command
        .args(["-n", &ranks.to_string()])
        .arg(program)
        .stdin(Stdio::null());
    command
}

/// Starts ranks that do what `a_rank` of the test program does in this mode.
pub(crate) fn start(ranks: u32, mode: &str) -> Job {
    let command = |_| {
        let mut command = mpirun(ranks, std::env::current_exe().unwrap());
        command
            .args(["--exact", "a_rank", "--ignored", "--nocapture"])
            .env(MODE, mode);
        command
    };
    Job::start(0..1, command).unwrap()
}

/// Runs such a job to its end.
pub(crate) fn run(ranks: u32, mode: &str) -> Ended {
    let _one = ONE
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    // More ranks share the processors.
    let limit = LIMIT.max(Duration::from_secs(5) * ranks);
    start(ranks, mode).wait(limit).remove(0)
}

/// Runs such a job, which must succeed.
pub(crate) fn succeeds(ranks: u32, mode: &str) -> String {
    let ended = run(ranks, mode);
    assert!(
        ended.succeeded(),
        "{mode} on {ranks} ranks: {:?}: {}",
        ended.status,
        ended.said
    );
    ended.said
}

/// How many lines have this text.
pub(crate) fn lines_with(said: &str, text: &str) -> usize {
    said.lines().filter(|line| line.contains(text)).count()
}

/// Whether a process of this number still runs.
pub(crate) fn runs(process: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{process}/stat")).is_ok_and(|stat| {
        !stat
            .rsplit(')')
            .next()
            .unwrap_or_default()
            .starts_with(" Z")
    })
}

//! Jobs of real processes, which `mpirun` starts.
#![cfg(target_os = "linux")]
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "tests fail by panicking, and ranks say how far they are"
)]

mod common;

use bytes::Bytes;
use common::{LIMIT, MODE, lines_with, run, runs, succeeds};
use futures::executor::block_on;
use mpi::{
    Threading, environment,
    traits::{Communicator, Destination, Source},
};
use reshard_comm::{
    Cause, Comm, CommError, ProcessGroup, Rank, testkit::process_group_contract_of_rank,
};
use reshard_comm_mpi::{MpiError, MpiGroup};
use reshard_model::ErrorKind;
use std::{
    process::Command,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

/// What each process does. It is no test of its own.
#[test]
#[ignore = "a rank, which other tests start"]
fn a_rank() {
    let Ok(mode) = std::env::var(MODE) else {
        return;
    };
    match &*mode {
        "contract" => contract(MpiGroup::init().unwrap()),
        "contract-in-parts" => contract(MpiGroup::builder().part_limit(4099).init().unwrap()),
        "beside-the-job" => beside_the_job(),
        "threads" => too_few_threads(),
        "once" => only_once(),
        "launcher" => other_launcher(),
        "order" => last_drop_finalizes(),
        "broken" => broken_and_finalized(),
        "panics" => panics(),
        "early" => leaves_early(),
        "limit" => message_limit(),
        "missing" => missing(),
        "late" => late(),
        "late-init" => late_init(),
        "forever" => forever(),
        "large" => large(),
        other => panic!("no mode {other}"),
    }
}

fn contract(group: MpiGroup) {
    let rank = group.rank();
    let kept = process_group_contract_of_rank(Arc::new(group)).unwrap();
    println!("rank {rank} kept {kept} rules");
    assert!(kept > 9);
    // The suite has dropped its groups, and some on threads of its own.
    let until = Instant::now() + LIMIT;
    while !environment::is_finalized() {
        assert!(Instant::now() < until, "MPI is not finalized");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_group_of_mpi_keeps_the_contract_from_2_processes() {
    let said = succeeds(2, "contract");
    assert_eq!(lines_with(&said, " rules"), 2, "{said}");
}

#[test]
fn a_group_of_mpi_keeps_the_contract_from_4_processes() {
    let said = succeeds(4, "contract");
    assert_eq!(lines_with(&said, " rules"), 4, "{said}");
}

#[test]
fn a_group_of_mpi_keeps_the_contract_from_5_processes() {
    let said = succeeds(5, "contract");
    assert_eq!(lines_with(&said, " rules"), 5, "{said}");
}

#[test]
#[ignore = "half a minute; cargo xtask processes --mpi runs it"]
fn a_group_of_mpi_keeps_the_contract_from_68_processes() {
    // So many that not all of them send to the root itself.
    let said = succeeds(68, "contract");
    assert_eq!(lines_with(&said, " rules"), 68, "{said}");
}

#[test]
fn a_group_of_mpi_keeps_the_contract_from_1_process() {
    succeeds(1, "contract");
}

#[test]
fn messages_in_many_parts_keep_the_contract() {
    succeeds(3, "contract-in-parts");
}

/// A job that has MPI keeps using it on other threads, with the same tags, while the group does.
fn beside_the_job() {
    let (universe, granted) = environment::initialize_with_threading(Threading::Multiple).unwrap();
    assert_eq!(granted, Threading::Multiple);
    let world = universe.world();
    let (me, size) = (world.rank(), world.size());
    let group = MpiGroup::from_communicator(&world).unwrap();
    assert_eq!((group.rank().0, group.size()), (me as u32, size as u32));
    let suite = thread::spawn(move || process_group_contract_of_rank(Arc::new(group)).unwrap());
    for round in 0..2000 {
        let (next, last) = ((me + 1) % size, (me + size - 1) % size);
        let tag = 1 + round % 2;
        let mine = [me, round];
        mpi::request::scope(|scope| {
            let to = world.process_at_rank(next);
            let sent = to.immediate_send_with_tag(scope, &mine[..], tag);
            let from = world.any_process();
            let (got, status) = from.receive_vec_with_tag::<i32>(tag);
            assert_eq!((got, status.source_rank()), (vec![last, round], last));
            sent.wait();
        });
    }
    suite.join().unwrap();
    assert!(
        !environment::is_finalized(),
        "the job's MPI is not ours to finalize"
    );
    // A group of some of the processes, and the next one after it.
    let half = world.split_by_color(mpi::topology::Color::with_value(me % 2));
    let half = half.unwrap();
    for _ in 0..2 {
        let group = MpiGroup::from_communicator(&half).unwrap();
        let all = block_on(group.all_gather(vec![me as u8].into())).unwrap();
        let wanted: Vec<u8> = (0..size)
            .filter(|r| r % 2 == me % 2)
            .map(|r| r as u8)
            .collect();
        assert_eq!(all.concat(), wanted);
    }
    mpi::traits::CommunicatorCollectives::barrier(&world);
    drop(half);
    drop(universe);
    assert!(environment::is_finalized());
    println!("well");
}

#[test]
fn a_job_that_has_mpi_hands_over_its_communicator_and_keeps_using_it() {
    assert_eq!(lines_with(&succeeds(4, "beside-the-job"), "well"), 4);
}

fn too_few_threads() {
    let error = MpiGroup::from_communicator(&mpi::topology::SimpleCommunicator::world());
    assert!(matches!(error, Err(MpiError::NotInitialized)), "{error:?}");
    let (universe, granted) = environment::initialize_with_threading(Threading::Funneled).unwrap();
    if granted == Threading::Multiple {
        return println!("this library grants all threads always");
    }
    let error = MpiGroup::from_communicator(&universe.world()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    println!("said: {error}");
    let error = MpiGroup::init().unwrap_err();
    assert!(matches!(error, MpiError::Initialized), "{error}");
}

#[test]
fn a_job_that_initialized_mpi_for_too_few_threads_is_told() {
    let said = succeeds(2, "threads");
    let told = lines_with(
        &said,
        "said: MPI was initialized with thread level MPI_THREAD_FUNNELED",
    );
    let need = lines_with(&said, "initialize it with MPI_THREAD_MULTIPLE");
    let all = lines_with(&said, "grants all threads always");
    assert!((told, need) == (2, 2) || all == 2, "{said}");
}

fn only_once() {
    let group = MpiGroup::init().unwrap();
    let second = MpiGroup::init();
    assert!(matches!(second, Err(MpiError::Initialized)), "{second:?}");
    for limit in [0, (1 << 30) + 1] {
        let wrong = MpiGroup::builder().part_limit(limit);
        let wrong = wrong.from_communicator(&mpi::topology::SimpleCommunicator::world());
        // A library that grants fewer threads says that first.
        assert_eq!(wrong.unwrap_err().kind(), ErrorKind::Invalid);
    }
    drop(group);
    let third = MpiGroup::init();
    assert!(matches!(third, Err(MpiError::Finalized)), "{third:?}");
    let world = mpi::topology::SimpleCommunicator::world();
    let third = MpiGroup::from_communicator(&world);
    assert!(matches!(third, Err(MpiError::Finalized)), "{third:?}");
}

fn other_launcher() {
    let e = MpiGroup::init().unwrap_err();
    assert!(matches!(e, MpiError::Launcher { ranks: 4, .. }), "{e}");
    assert_eq!(e.kind(), ErrorKind::Invalid);
}

#[test]
fn a_process_that_the_launcher_of_another_library_started_is_no_job_of_one() {
    // What that launcher would set.
    let variable = if common::is_mpich() {
        "OMPI_COMM_WORLD_SIZE"
    } else {
        "PMI_SIZE"
    };
    let rank = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_rank", "--ignored", "--nocapture"])
        .env(MODE, "launcher")
        .env(variable, "4")
        .output()
        .unwrap();
    assert!(
        rank.status.success(),
        "{}",
        String::from_utf8_lossy(&rank.stderr)
    );
}

#[test]
fn a_process_initializes_mpi_once() {
    succeeds(2, "once");
}

fn last_drop_finalizes() {
    let group = MpiGroup::init().unwrap();
    let half = block_on(group.split(Some(group.rank().0 % 2), 0))
        .unwrap()
        .unwrap();
    drop(group);
    assert!(!environment::is_finalized());
    assert_eq!(block_on(half.all_gather(Bytes::new())).unwrap().len(), 2);
    drop(half);
    assert!(environment::is_finalized(), "the last drop waits for it");
    println!("well");
}

#[test]
fn mpi_is_finalized_when_the_last_group_is_dropped() {
    assert_eq!(lines_with(&succeeds(4, "order"), "well"), 4);
}

fn boom() -> Cause {
    Cause::new(ErrorKind::Unavailable, "boom")
}

/// The cause with which the group is broken for this rank.
fn broken(group: &dyn ProcessGroup) -> Cause {
    match block_on(Comm::new(group).with_deadline(LIMIT).agree("meet", Ok(()))) {
        Err(CommError::Broken(cause)) => cause,
        other => panic!("{other:?}"),
    }
}

fn broken_and_finalized() {
    let group = MpiGroup::init().unwrap();
    if group.rank() == Rank(1) {
        group.abort(boom());
    }
    assert_eq!(broken(&group), boom());
    drop(group);
    assert!(environment::is_finalized());
    println!("well");
}

#[test]
fn an_abort_breaks_the_group_and_not_the_job() {
    assert_eq!(lines_with(&succeeds(4, "broken"), "well"), 4);
}

fn panics() {
    let group = MpiGroup::init().unwrap();
    if group.rank() == Rank(1) {
        let panicked = thread::spawn(move || {
            block_on(group.barrier()).unwrap();
            let _held = group;
            std::panic::panic_any("on purpose");
        });
        assert!(panicked.join().is_err());
    } else {
        block_on(group.barrier()).unwrap();
        let text = broken(&group).to_string();
        // Who heard it from another rank hears the same.
        assert_eq!(text, "rank 1 left the group, because it panicked");
    }
    println!("well");
}

#[test]
fn a_rank_that_panics_is_named_by_the_others() {
    assert_eq!(lines_with(&succeeds(4, "panics"), "well"), 4);
}

fn leaves_early() {
    let group = MpiGroup::init().unwrap();
    let me = group.rank().0;
    let part = block_on(group.split((me > 0).then_some(0), 0)).unwrap();
    let large = Bytes::from(vec![7_u8; 20 << 20]);
    if me != 0 {
        thread::sleep(Duration::from_millis(u64::from(me) * 100));
    }
    let got = block_on(group.broadcast((me == 0).then(|| large.clone()), Rank(0))).unwrap();
    assert!(got == large);
    drop(group);
    if let Some(part) = part {
        for _ in 0..100 {
            assert_eq!(block_on(part.all_gather(Bytes::new())).unwrap().len(), 3);
        }
    }
    println!("well");
}

#[test]
fn a_rank_that_leaves_early_has_sent_everything_and_waits_for_the_others() {
    assert_eq!(lines_with(&succeeds(4, "early"), "well"), 4);
}

fn message_limit() {
    let group = MpiGroup::builder().message_limit(1000).init().unwrap();
    let long = Bytes::from(vec![0; 5000]);
    let me = group.rank().0;
    if me == 0 {
        drop(block_on(group.broadcast(Some(long), Rank(0))));
    }
    let text = broken(&group).to_string();
    if me == 1 {
        println!("said: {text}");
    }
}

#[test]
fn a_message_beyond_the_limit_breaks_the_group_and_is_told() {
    let said = succeeds(2, "limit");
    let told = "said: rank 0 announced a message of 5000 bytes, more than the limit of 1000";
    assert_eq!(lines_with(&said, told), 1, "{said}");
}

fn missing() {
    let (universe, _) = environment::initialize_with_threading(Threading::Multiple).unwrap();
    let world = universe.world();
    if world.rank() == 1 {
        thread::sleep(LIMIT);
    } else {
        let builder = MpiGroup::builder().deadline(Duration::from_secs(2));
        let error = builder.from_communicator(&world).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PeerFailed);
        println!("said: {error}");
        // Those that came have no group, so one of them ends the job.
        thread::sleep(Duration::from_secs(2));
        world.abort(3);
    }
}

#[test]
fn processes_that_did_not_come_are_missed_at_the_deadline() {
    let ended = run(3, "missing");
    assert!(ended.after < LIMIT / 2, "{:?}", ended.after);
    let told = "said: not all processes of the job made the group within 2 s";
    assert_eq!(lines_with(&ended.said, told), 2, "{}", ended.said);
}

/// A rank does not wait for ever for one that keeps its group. The job's own MPI works all the same.
fn late() {
    let (universe, _) = environment::initialize_with_threading(Threading::Multiple).unwrap();
    let world = universe.world();
    let patience = Duration::from_secs(1);
    let group = MpiGroup::builder().patience(patience);
    let group = group.from_communicator(&world).unwrap();
    if world.rank() == 0 {
        let begun = Instant::now();
        drop(group);
        assert!(begun.elapsed() >= patience);
        world.process_at_rank(1).send(&7);
    } else {
        let (seven, _) = world.process_at_rank(0).receive::<i32>();
        assert_eq!(seven, 7);
        assert_eq!(broken(&group).to_string(), "rank 0 left the group");
    }
    println!("well");
}

#[test]
fn a_drop_is_not_longer_than_its_patience() {
    assert_eq!(lines_with(&succeeds(2, "late"), "well"), 2);
}

fn late_init() {
    let group = MpiGroup::builder().patience(Duration::from_secs(1));
    let group = group.init().unwrap();
    if group.rank() == Rank(1) {
        thread::sleep(LIMIT);
    }
}

#[test]
fn a_job_whose_rank_gave_up_waiting_is_ended_by_mpirun() {
    let ended = run(2, "late-init");
    let came_to_its_end = lines_with(&ended.said, "a_rank ... ok");
    assert!(
        came_to_its_end < 2 && ended.after < LIMIT / 2,
        "{}",
        ended.said
    );
    // The launcher of MPICH ends the job, too, but with the code of the rank that gave up.
    assert!(!ended.succeeded() || common::is_mpich(), "{}", ended.said);
}

fn forever() {
    let group = MpiGroup::init().unwrap();
    for round in 0.. {
        block_on(group.barrier()).unwrap();
        if round == 3 {
            println!("process {} is there", std::process::id());
        }
    }
}

/// The processes of a job of `mpirun`, by what they say.
fn processes(said: &str) -> Vec<u32> {
    let said = said.lines().filter_map(|line| {
        let rest = line.split_once("process ")?.1;
        rest.split_once(" is there")?.0.parse().ok()
    });
    said.collect()
}

#[test]
fn a_rank_that_is_killed_ends_the_job() {
    for _ in 0..3 {
        let mut command = common::mpirun(4, std::env::current_exe().unwrap());
        let said = tempfile::NamedTempFile::new().unwrap();
        let log = said.reopen().unwrap();
        command
            .args(["--exact", "a_rank", "--ignored", "--nocapture"])
            .env(MODE, "forever")
            .stderr(log.try_clone().unwrap())
            .stdout(log);
        let mut job = command.spawn().unwrap();
        let until = Instant::now() + LIMIT;
        let ranks = loop {
            let text = std::fs::read_to_string(said.path()).unwrap();
            let ranks = processes(&text);
            if ranks.len() == 4 {
                break ranks;
            }
            assert!(Instant::now() < until, "{text}");
            thread::sleep(Duration::from_millis(5));
        };
        let victim = ranks[2].to_string();
        assert!(
            Command::new("kill")
                .args(["-KILL", &victim])
                .status()
                .unwrap()
                .success()
        );
        let status = loop {
            if let Some(status) = job.try_wait().unwrap() {
                break status;
            }
            assert!(Instant::now() < until, "the job goes on");
            thread::sleep(Duration::from_millis(5));
        };
        assert!(!status.success());
        while ranks.iter().any(|rank| runs(*rank)) {
            assert!(Instant::now() < until, "some ranks go on");
            thread::sleep(Duration::from_millis(5));
        }
    }
}

/// More than what MPI counts in 32 bits.
fn large() {
    let group = MpiGroup::init().unwrap();
    let me = group.rank().0;
    let length = (5 << 30) / 2 + 7;
    let byte = |at: usize| (at % 251) as u8;
    let data = (me == 0).then(|| Bytes::from((0..length).map(byte).collect::<Vec<u8>>()));
    let begun = Instant::now();
    let got = block_on(group.broadcast(data, Rank(0))).unwrap();
    let seconds = begun.elapsed().as_secs_f64();
    assert_eq!(got.len(), length);
    assert!(got.iter().enumerate().all(|(at, got)| *got == byte(at)));
    println!("rank {me}: {length} bytes in {seconds:.1} s");
}

#[test]
#[ignore = "8 GB of memory; cargo xtask processes --mpi runs it"]
fn a_message_of_more_than_2_gib_arrives_whole() {
    let said = succeeds(2, "large");
    assert_eq!(lines_with(&said, " bytes in "), 2, "{said}");
    println!("{said}");
}

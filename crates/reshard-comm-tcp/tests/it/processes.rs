//! Ranks in real processes: this program starts itself again for each rank.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

use futures::executor::block_on;
use reshard_comm::{
    Comm, CommError, ProcessGroup, Rank,
    testkit::{Job, process_group_contract_of_rank},
};
use reshard_comm_tcp::{StoreServer, TcpGroup};
use std::{
    io::{BufRead, BufReader},
    net::TcpListener,
    process::{Child, Command},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

const MODE: &str = "RESHARD_TEST_MODE";
const RANKS: u32 = 4;
const VICTIM: u32 = 2;
/// Longer than a test takes on a busy machine.
const LIMIT: Duration = Duration::from_secs(300);

/// What each process does. It is no test of its own.
#[test]
#[ignore = "a rank, which other tests start"]
fn a_rank() {
    let Ok(mode) = std::env::var(MODE) else {
        return;
    };
    // A rank that is lost has to be noticed before it counts as silent.
    let mut builder = TcpGroup::builder_from_env()
        .unwrap()
        .deadline(LIMIT)
        .silence(8 * LIMIT);
    if mode == "silent" {
        builder = builder
            .heartbeat(Duration::from_millis(500))
            .silence(Duration::from_secs(15));
    }
    let group = builder.connect().unwrap();
    match &*mode {
        "work" => block_on(work(&group)),
        "lost" | "silent" => block_on(lose_a_rank(&group)),
        "wave" => block_on(leave_early(&group)),
        "contract" => {
            let kept = process_group_contract_of_rank(Arc::new(group));
            println!("kept {}", kept.unwrap_or_else(|e| panic!("{e}")));
        }
        other => panic!("no mode {other}"),
    }
}

async fn work(group: &TcpGroup) {
    let me = group.rank().0;
    let all = group
        .all_gather(vec![me as u8; 3].into())
        .await
        .unwrap()
        .concat();
    assert_eq!(all, [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]);
    let large = vec![7_u8; 9 << 20];
    let got = group
        .broadcast((me == 3).then(|| large.clone().into()), Rank(3))
        .await
        .unwrap();
    assert!(got == large, "9 MiB are not what rank 3 sent");
    let part = group
        .split(Some(me % 2), RANKS - me)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(part.size(), 2);
    let all = part
        .all_gather(vec![me as u8].into())
        .await
        .unwrap()
        .concat();
    assert_eq!(
        all,
        [me as u8 % 2 + 2, me as u8 % 2],
        "sorted by order, the last one first"
    );
    let sum = Comm::new(group).all_reduce("sum", Ok(me), |parts| Ok(parts.iter().sum::<u32>()));
    assert_eq!(sum.await.unwrap(), 6);
    // A process may make a second group at the same store.
    let second = TcpGroup::from_env().unwrap();
    second.barrier().await.unwrap();
}

async fn lose_a_rank(group: &TcpGroup) {
    // The rank may be lost as early as here.
    let met = group.barrier().await;
    if group.rank().0 == VICTIM {
        // The test ends this process, or stops it.
        thread::sleep(2 * LIMIT);
        return;
    }
    let comm = Comm::new(group).with_deadline(2 * LIMIT);
    let outcome = match met {
        Ok(()) => comm.agree("meet", Ok(())).await,
        broken => broken,
    };
    let Err(CommError::Broken(cause)) = outcome else {
        panic!("{outcome:?}")
    };
    assert!(cause.message.contains("rank 2 vanished"), "{cause}");
    let again = group.all_gather(bytes::Bytes::new()).await.unwrap_err();
    assert!(
        again.to_string().contains("rank 2 vanished"),
        "it stays broken: {again}"
    );
}

/// The root of a broadcast leaves at once. The others still get what it sent.
async fn leave_early(group: &TcpGroup) {
    let large = vec![1_u8; 20 << 20];
    if group.rank().0 != 1 {
        thread::sleep(Duration::from_millis(100 * u64::from(group.rank().0)));
    }
    let got = group
        .broadcast((group.rank().0 == 1).then(|| large.clone().into()), Rank(1))
        .await
        .unwrap();
    assert!(got == large);
}

/// Starts ranks of a job of `size`, which meet at this store.
fn start(
    mode: &str,
    host: &str,
    port: u16,
    size: u32,
    ranks: impl IntoIterator<Item = u32>,
) -> Job {
    let job = Job::start(ranks, |rank| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "processes::a_rank", "--ignored", "--nocapture"])
            .env(MODE, mode)
            .env("RANK", rank.to_string())
            .env("WORLD_SIZE", size.to_string())
            .env("MASTER_ADDR", host)
            .env("MASTER_PORT", port.to_string());
        command
    });
    job.unwrap()
}

/// Waits until all ranks but the victim have ended well.
fn end(job: Job, victim: Option<u32>) {
    for rank in job.wait_but_for(victim, LIMIT) {
        if Some(rank.rank) == victim {
            continue;
        }
        assert!(
            rank.status.is_some(),
            "rank {} hangs: {}",
            rank.rank,
            rank.said
        );
        assert!(rank.succeeded(), "rank {}: {}", rank.rank, rank.said);
    }
}

fn store() -> (StoreServer, u16) {
    let store = StoreServer::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let port = store.address().port();
    (store, port)
}

/// Waits until a rank has a connection to another one.
fn until_connected(child: &Child) {
    let until = Instant::now() + LIMIT;
    loop {
        if tasks(child)
            .iter()
            .any(|name| name.starts_with("reshard-from"))
        {
            return;
        }
        assert!(Instant::now() < until, "the rank does not connect");
        thread::sleep(Duration::from_millis(5));
    }
}

/// The names of the threads of a process.
fn tasks(child: &Child) -> Vec<String> {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", child.id()))
        .into_iter()
        .flatten();
    let names = tasks
        .flatten()
        .filter_map(|task| std::fs::read(task.path().join("comm")).ok());
    names
        .map(|name| BufReader::new(&*name).lines().next().unwrap().unwrap())
        .collect()
}

#[test]
fn a_tcp_group_keeps_the_contract_from_processes() {
    for size in [5, 1] {
        let (_store, port) = store();
        let ended = start("contract", "127.0.0.1", port, size, 0..size).wait(4 * LIMIT);
        for rank in &ended {
            assert!(rank.succeeded(), "rank {}: {}", rank.rank, rank.said);
        }
        let mut kept = ended
            .iter()
            .map(|rank| rank.said.lines().find(|line| line.starts_with("kept ")));
        let first = kept.next().unwrap();
        assert!(
            first.is_some() && kept.all(|other| other == first),
            "{ended:?}"
        );
    }
}

#[test]
fn processes_work_together() {
    let (_store, port) = store();
    end(start("work", "127.0.0.1", port, RANKS, 0..RANKS), None);
}

#[test]
fn rank_0_serves_the_store_if_nobody_does() {
    // Nobody else uses this address, so the port stays free.
    let id = std::process::id().to_be_bytes();
    let host = format!(
        "127.{}.{}.{}",
        100 + id[1] % 100,
        id[2],
        id[3].clamp(1, 254)
    );
    let free = TcpListener::bind((&*host, 0)).unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    // The others come first, and wait for the store.
    let late = start("work", &host, port, RANKS, [1, 2, 3, 0]);
    end(late, None);
}

#[test]
fn a_killed_rank_is_named_by_all_others() {
    let (_store, port) = store();
    let mut job = start("lost", "127.0.0.1", port, RANKS, 0..RANKS);
    let victim = job.process(VICTIM);
    until_connected(victim);
    victim.kill().unwrap();
    end(job, Some(VICTIM));
}

#[test]
fn a_stopped_rank_is_named_by_all_others() {
    let (_store, port) = store();
    let mut job = start("silent", "127.0.0.1", port, RANKS, 0..RANKS);
    let victim = job.process(VICTIM);
    until_connected(victim);
    let id = victim.id().to_string();
    assert!(
        Command::new("kill")
            .args(["-STOP", &id])
            .status()
            .unwrap()
            .success()
    );
    end(job, Some(VICTIM));
}

#[test]
fn a_rank_that_leaves_early_has_sent_everything() {
    let (_store, port) = store();
    end(start("wave", "127.0.0.1", port, RANKS, 0..RANKS), None);
}

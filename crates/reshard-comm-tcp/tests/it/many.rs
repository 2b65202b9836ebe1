//! Many ranks: no rank has many connections, and what does not fit into the limits of the system is an error that says so.
//!
//! `RESHARD_RANKS=1024` measures with as many; `--nocapture` shows how long it took.
#![cfg(unix)]
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use crate::common::tcp_groups;
use bytes::Bytes;
use futures::executor::block_on;
use reshard_comm::{
    Comm, ProcessGroup, Rank,
    testkit::{Job, on_ranks},
};
use reshard_comm_tcp::{Serve, StoreServer, TcpGroup};
use std::{
    process::Command,
    time::{Duration, Instant},
};

const FAN_OUT: u32 = 64;

#[test]
fn a_rank_is_connected_with_few_others_however_many_there_are() {
    let ranks = std::env::var("RESHARD_RANKS").map_or(150, |ranks| ranks.parse().unwrap());
    let begun = Instant::now();
    let groups = tcp_groups(ranks, |builder| builder.fan_out(FAN_OUT));
    println!("{ranks} ranks have met after {:?}", begun.elapsed());
    let took = on_ranks(groups, |group| async move {
        let (me, size) = (group.rank().0, group.size());
        let mut took = Vec::new();
        for _ in 0..3 {
            let begun = Instant::now();
            let mine = Bytes::from(me.to_le_bytes().repeat(100));
            let all = group.gather(mine, Rank(0)).await.unwrap();
            if let Some(all) = &all {
                let right = |(rank, got): (u32, &Bytes)| *got == rank.to_le_bytes().repeat(100);
                assert!(all.len() == size as usize && (0..).zip(all).all(right));
            }
            let mine = group.scatter(all, Rank(0)).await.unwrap();
            assert_eq!(mine, me.to_le_bytes().repeat(100));
            let data = (me == 0).then(|| Bytes::from_static(b"data"));
            assert_eq!(group.broadcast(data, Rank(0)).await.unwrap(), "data");
            group.barrier().await.unwrap();
            took.push(begun.elapsed());
        }
        let begun = Instant::now();
        let comm = Comm::new(&group);
        let sum = comm.all_reduce("sum", Ok(me), |parts| Ok(parts.iter().sum::<u32>()));
        assert_eq!(sum.await.unwrap(), size * (size - 1) / 2);
        let part = group.split(Some(me % 2), 0).await.unwrap().unwrap();
        assert_eq!(part.size(), size / 2 + u32::from(me % 2 == 0) * (size % 2));
        let all = group
            .all_gather(me.to_le_bytes().to_vec().into())
            .await
            .unwrap();
        let right = |(rank, got): (u32, &Bytes)| *got == rank.to_le_bytes()[..];
        assert!((0..).zip(&all).all(right));
        took.push(begun.elapsed());
        // Those below it, and the one above it.
        let most = FAN_OUT as usize + 1;
        assert!(
            group.connections() <= most,
            "{} connections",
            group.connections()
        );
        // Its own part is done, but that of others may need it: all leave together.
        group.barrier().await.unwrap();
        took
    });
    println!(
        "gather, scatter, broadcast and barrier, three times, and others: {:?}",
        took[0]
    );
}

/// A rank that may have few files open.
fn with_few_files(mode: &str, files: u32, size: u32, port: u16) -> Job {
    let program = std::env::current_exe().unwrap();
    let job = Job::start(0..size.min(4), |rank| {
        let mut command = Command::new("sh");
        let script = format!("ulimit -n {files}; exec \"$0\" \"$@\"");
        command.args(["-c", &script]).arg(&program);
        command.args(["--exact", "many::a_rank", "--ignored", "--nocapture"]);
        command
            .env("RESHARD_TEST_MODE", mode)
            .env("RANK", rank.to_string())
            .env("WORLD_SIZE", size.to_string())
            .env("MASTER_ADDR", "127.0.0.1")
            .env("MASTER_PORT", port.to_string());
        command
    });
    job.unwrap()
}

/// What each process does. It is no test of its own.
#[test]
#[ignore = "a rank, which other tests start"]
fn a_rank() {
    let Ok(mode) = std::env::var("RESHARD_TEST_MODE") else {
        return;
    };
    let builder = TcpGroup::builder_from_env().unwrap();
    let serve = if mode == "serve" {
        Serve::Rank0
    } else {
        Serve::Nobody
    };
    let error = match builder
        .serve(serve)
        .deadline(Duration::from_secs(600))
        .connect()
    {
        Err(e) => e.to_string(),
        Ok(group) => {
            // A tree needs few files.
            block_on(group.barrier()).unwrap();
            block_on(group.all_to_all(vec![Bytes::new(); 4]))
                .unwrap_err()
                .to_string()
        }
    };
    println!("error {error}");
}

#[test]
fn a_limit_of_open_files_is_told_before_ranks_wait_for_each_other() {
    let store = StoreServer::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let port = store.address().port();
    for rank in with_few_files("talk", 34, 4, port).wait(Duration::from_secs(60)) {
        let said = rank.said;
        assert!(
            said.contains("error ") && said.contains("all_to_all of 4 ranks needs 3 connections"),
            "{said}"
        );
        assert!(said.contains("`ulimit -n`) to 35"), "{said}");
    }
    let mut job = with_few_files("serve", 100, 1000, 1);
    job.until_says(
        0,
        "error serving the store for 1000 ranks",
        Duration::from_secs(60),
    );
}

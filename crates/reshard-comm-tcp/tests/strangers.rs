//! Strangers at a rank's port change nothing.
//!
//! A program of its own, because it measures the memory and the threads of the whole process.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

#[path = "it/common.rs"]
mod common;

use common::tcp_groups;
use proptest::prelude::*;
use reshard_comm::{ProcessGroup, testkit::on_ranks};
use reshard_comm_tcp::TcpGroup;
use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    sync::Mutex,
    time::Duration,
};

/// The tests count the threads of their process, so they run one after another.
static ALONE: Mutex<()> = Mutex::new(());

fn stranger(at: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(at).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(300)))
        .unwrap();
    stream
}

/// All ranks do `rounds` of collectives, of which the first opens all connections.
fn work(groups: Vec<TcpGroup>, rounds: usize) -> Vec<TcpGroup> {
    on_ranks(groups, move |group| async move {
        for _ in 0..rounds {
            let all = group
                .all_gather(vec![group.rank().0 as u8].into())
                .await
                .unwrap();
            assert_eq!(all.concat(), (0..group.size() as u8).collect::<Vec<_>>());
        }
        group
    })
}

/// A number of `/proc/self/status`: KiB, or threads.
fn status(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(name)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn a_thousand_connections_keep_no_member_out_and_take_little_memory() {
    let _alone = ALONE.lock();
    let groups = tcp_groups(3, |builder| builder);
    let (memory, threads) = (status("VmRSS:"), status("Threads:"));
    let held: Vec<TcpStream> = (0..1000)
        .map(|i| {
            let mut stream = stranger(groups[i % 3].address());
            // Some say nothing, some say half of a claim.
            drop(stream.write_all(&[0; 50][..i % 51]));
            stream
        })
        .collect();
    // No rank has a connection yet, so members call while strangers hold the port.
    let groups = work(groups, 100);
    let grown = status("VmRSS:").saturating_sub(memory);
    assert!(grown < 100 << 10, "{grown} KiB more");
    let more = status("Threads:").saturating_sub(threads);
    assert!(more <= 3 * 128 + 40, "{more} threads more");
    drop(held);
    drop(work(groups, 100));
}

#[test]
fn half_a_handshake_that_stays_open_is_closed() {
    let _alone = ALONE.lock();
    let groups = tcp_groups(2, |builder| builder);
    let mut half = stranger(groups[0].address());
    let mut greeting = [0; 24];
    half.read_exact(&mut greeting).unwrap();
    half.write_all(&[0; 30]).unwrap();
    let groups = work(groups, 10);
    assert_eq!(
        half.read(&mut [0; 1]).unwrap_or(0),
        0,
        "closed after 5 seconds, without a word"
    );
    drop(work(groups, 10));
}

#[test]
fn a_claim_without_proof_is_closed_without_a_word() {
    let _alone = ALONE.lock();
    let groups = tcp_groups(2, |builder| builder);
    for from in [0_u32, 1, 2, u32::MAX] {
        let mut liar = stranger(groups[0].address());
        let mut greeting = [0; 24];
        liar.read_exact(&mut greeting).unwrap();
        let claim = [
            &from.to_le_bytes()[..],
            &0_u32.to_le_bytes(),
            &[7; 16],
            &[7; 32],
        ]
        .concat();
        liar.write_all(&claim).unwrap();
        // A frame of an absurd length, for which nobody asks.
        drop(liar.write_all(&[0xff; 4096]));
        assert_eq!(liar.read(&mut [0; 1]).unwrap_or(0), 0);
    }
    drop(work(groups, 10));
}

#[test]
fn what_one_rank_said_proves_nothing_to_another() {
    let _alone = ALONE.lock();
    let groups = tcp_groups(3, |builder| builder);
    // The stranger hands the greeting of one rank to another one as its claim, and what it says back.
    let mut one = stranger(groups[0].address());
    let mut other = stranger(groups[1].address());
    let (mut from_one, mut from_other) = ([0; 24], [0; 24]);
    one.read_exact(&mut from_one).unwrap();
    other.read_exact(&mut from_other).unwrap();
    assert_ne!(from_one, from_other, "each greeting is fresh");
    one.write_all(&[from_other; 3].concat()).unwrap();
    other.write_all(&[from_one; 3].concat()).unwrap();
    assert_eq!(one.read(&mut [0; 1]).unwrap_or(0), 0);
    assert_eq!(other.read(&mut [0; 1]).unwrap_or(0), 0);
    drop(work(groups, 10));
}

#[test]
fn random_bytes_change_nothing() {
    let _alone = ALONE.lock();
    let groups = tcp_groups(2, |builder| builder);
    let at = groups[0].address();
    proptest!(reshard_model::testkit::law(64), |(bytes in prop::collection::vec(any::<u8>(), 0..300))| {
        drop(stranger(at).write_all(&bytes));
    });
    drop(work(groups, 10));
}

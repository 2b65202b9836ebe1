//! The contract suite of `ProcessGroup` on groups that are joined by TCP.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

mod common;

use common::{Group, groups};
use reshard_comm::testkit;
use std::sync::Arc;

#[test]
fn a_tcp_group_keeps_the_contract() {
    testkit::process_group_contract(groups);
}

#[test]
fn a_tcp_group_behind_a_wrapper_keeps_the_contract() {
    let counting = |group| Arc::new(testkit::FaultGroup::counting(group)) as Group;
    testkit::process_group_contract(|size| groups(size).into_iter().map(counting).collect());
}

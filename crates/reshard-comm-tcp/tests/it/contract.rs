//! The contract suite of `ProcessGroup` on groups that are joined by TCP.

use crate::common::tcp_groups;
use reshard_comm::{ProcessGroup, testkit};
use std::sync::Arc;

type Group = Arc<dyn ProcessGroup>;

fn groups(size: u32) -> Vec<Group> {
    groups_with(size, 64)
}

fn groups_with(size: u32, fan_out: u32) -> Vec<Group> {
    let joined = tcp_groups(size, |builder| builder.fan_out(fan_out));
    joined
        .into_iter()
        .map(|group| Arc::new(group) as Group)
        .collect()
}

#[test]
fn a_tcp_group_keeps_the_contract() {
    testkit::process_group_contract(groups);
}

#[test]
fn a_tcp_group_that_is_a_deep_tree_keeps_the_contract() {
    for fan_out in [1, 2] {
        testkit::process_group_contract(|size| groups_with(size, fan_out));
    }
}

#[test]
fn a_tcp_group_behind_a_wrapper_keeps_the_contract() {
    let counting = |group| Arc::new(testkit::FaultGroup::counting(group)) as Group;
    testkit::process_group_contract(|size| groups(size).into_iter().map(counting).collect());
}

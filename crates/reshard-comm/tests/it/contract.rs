//! The contract suite on our own groups.

use async_trait::async_trait;
use bytes::Bytes;
use reshard_comm::{Cause, LocalGroup, ProcessGroup, Rank, Result, SingleProcess, testkit};
use std::sync::Arc;

type Group = Arc<dyn ProcessGroup>;

fn local(size: u32) -> Vec<Group> {
    LocalGroup::new(size)
        .into_iter()
        .map(|group| Arc::new(group) as Group)
        .collect()
}

#[test]
fn a_local_group_keeps_the_contract() {
    testkit::process_group_contract(local);
}

#[test]
fn a_single_process_keeps_the_contract() {
    testkit::process_group_contract(|size| {
        if size == 1 {
            vec![Arc::new(SingleProcess)]
        } else {
            local(size)
        }
    });
}

#[test]
fn a_group_without_faults_keeps_the_contract() {
    let counting = |group| Arc::new(testkit::FaultGroup::counting(group)) as Group;
    testkit::process_group_contract(|size| local(size).into_iter().map(counting).collect());
}

/// Implements what a transport must and nothing else.
#[derive(Debug)]
struct Minimal(Group);

#[async_trait]
impl ProcessGroup for Minimal {
    fn rank(&self) -> Rank {
        self.0.rank()
    }
    fn size(&self) -> u32 {
        self.0.size()
    }
    async fn all_to_all(&self, to: Vec<Bytes>) -> Result<Vec<Bytes>> {
        self.0.all_to_all(to).await
    }
    async fn split(&self, color: Option<u32>, order: u32) -> Result<Option<Group>> {
        Ok(self
            .0
            .split(color, order)
            .await?
            .map(|part| Arc::new(Self(part)) as Group))
    }
    fn abort(&self, cause: Cause) {
        self.0.abort(cause);
    }
}

#[test]
fn the_provided_methods_keep_the_contract() {
    testkit::process_group_contract(|size| {
        local(size)
            .into_iter()
            .map(|g| Arc::new(Minimal(g)) as Group)
            .collect()
    });
}

/// Gathers in the wrong order.
#[derive(Debug)]
struct Reversed(Group);

#[async_trait]
impl ProcessGroup for Reversed {
    fn rank(&self) -> Rank {
        self.0.rank()
    }
    fn size(&self) -> u32 {
        self.0.size()
    }
    async fn all_to_all(&self, to: Vec<Bytes>) -> Result<Vec<Bytes>> {
        self.0.all_to_all(to).await
    }
    async fn all_gather(&self, mine: Bytes) -> Result<Vec<Bytes>> {
        let mut all = self.0.all_gather(mine).await?;
        all.reverse();
        Ok(all)
    }
    async fn split(&self, color: Option<u32>, order: u32) -> Result<Option<Group>> {
        self.0.split(color, order).await
    }
    fn abort(&self, cause: Cause) {
        self.0.abort(cause);
    }
}

#[test]
fn a_broken_rule_is_named_with_the_place_where_it_is_written() {
    let reversed = |group| Arc::new(Reversed(group)) as Group;
    let broken = std::panic::catch_unwind(|| {
        testkit::process_group_contract(|size| local(size).into_iter().map(reversed).collect());
    });
    let text = *broken.unwrap_err().downcast::<String>().unwrap();
    let begins = "the group breaks the rule `all_gather_is_in_order_of_ranks`, which is written at `ProcessGroup::all_gather`: ";
    assert!(text.starts_with(begins), "{text}");
}

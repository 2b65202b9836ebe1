//! What ranks of a mesh tell each other, without a transport.

use bytes::Bytes;
use futures::executor::block_on;
use reshard_comm::{
    ProcessGroup, Rank,
    mesh::{Admission, Kind, Mesh, MeshGroup, Node, Task},
};
use std::{
    sync::{Arc, mpsc::Receiver},
    time::Duration,
};

struct Nothing;

impl Node for Nothing {}

/// Rank `me` of three, and its tasks.
fn rank(me: u32) -> (Arc<Mesh>, Receiver<Task>, MeshGroup) {
    let (mesh, tasks) = Mesh::new(me, 3, 64);
    let mesh = Arc::new(mesh);
    let group = MeshGroup::whole("MeshGroup", &mesh, Arc::new(Nothing));
    (mesh, tasks, group)
}

#[test]
fn a_rank_that_leaves_names_the_one_that_vanished_before() {
    let (first, _first_tasks, waiting) = rank(0);
    let (second, _second_tasks, leaving) = rank(1);
    let Admission::Yes(messages) = second.called_by(0) else {
        panic!("it has no other link");
    };
    // Rank 1 waits for nobody in this group, so it has not broken here.
    second.gone(2, "vanished: its connection was closed");
    drop(leaving);
    for message in messages.try_iter() {
        first.arrived(1, message);
    }
    let error = block_on(waiting.broadcast(None, Rank(1))).unwrap_err();
    let text = "rank 1 left the group, after rank 2 vanished: its connection was closed";
    assert_eq!(error.to_cause().to_string(), text);
}

#[test]
fn a_rank_that_leaves_the_job_says_so_to_groups_that_it_does_not_know() {
    let (second, _tasks, leaving) = rank(1);
    let Admission::Yes(messages) = second.called_by(0) else {
        panic!("it has no other link");
    };
    second.gone(2, "vanished: its connection was closed");
    let failed = block_on(leaving.broadcast(None, Rank(2))).unwrap_err();
    assert!(failed.to_string().contains("rank 2 vanished"), "{failed}");
    drop(leaving);
    second.shut(Duration::ZERO, Duration::ZERO);
    let bye = messages.try_iter().last().unwrap();
    assert_eq!(bye.kind, Kind::Bye);
    let text =
        "left the job, after a group of it broke: rank 2 vanished: its connection was closed";
    assert_eq!(bye.goodbye(), text);
}

#[test]
fn a_rank_that_gives_up_a_collective_names_the_one_that_vanished_before() {
    let (first, _first_tasks, waiting) = rank(0);
    let (second, _second_tasks, giving_up) = rank(1);
    let Admission::Yes(messages) = second.called_by(0) else {
        panic!("it has no other link");
    };
    let call = giving_up.gather(Bytes::new(), Rank(0));
    second.gone(2, "vanished: its connection was closed");
    let mut waits = Box::pin(giving_up.broadcast(None, Rank(0)));
    assert!(futures::FutureExt::now_or_never(&mut waits).is_none());
    drop((call, waits));
    for message in messages.try_iter() {
        first.arrived(1, message);
    }
    let error = block_on(waiting.broadcast(Some(Bytes::new()), Rank(0))).unwrap_err();
    let text = "rank 1 left a collective before it was done, after rank 2 vanished: its connection was closed";
    assert_eq!(error.to_cause().to_string(), text);
}

#[test]
fn a_rank_does_not_leave_before_a_link_that_it_admitted_has_said_goodbye() {
    let (mesh, _tasks, group) = rank(1);
    let Admission::Yes(messages) = mesh.called_by(0) else {
        panic!("it has no other link");
    };
    drop(group);
    // The transport has not come to its first message yet.
    let moment = Duration::from_millis(10);
    assert!(!mesh.shut(moment, moment), "its goodbye is not sent");
    assert_eq!(messages.try_iter().last().unwrap().kind, Kind::Bye);
    mesh.end_sending();
    assert!(
        !mesh.shut(moment, moment),
        "the other rank may still say something"
    );
    mesh.end_hearing();
    assert!(mesh.shut(moment, moment));
}

#[test]
fn a_call_that_fails_does_not_end_the_link_that_the_other_rank_opened() {
    let (mesh, tasks, group) = rank(1);
    let (other, _other_tasks, root) = rank(0);
    let mut waits = Box::pin(group.broadcast(None, Rank(0)));
    assert!(futures::FutureExt::now_or_never(&mut waits).is_none());
    assert!(matches!(tasks.try_recv(), Ok(Task::Dial(0))));
    // Rank 0 calls at the same time, sends its last message, and leaves.
    let Admission::Yes(_to_other) = mesh.called_by(0) else {
        panic!("the call of the lower rank counts");
    };
    let Admission::Yes(messages) = other.called_by(1) else {
        panic!("it has no other link");
    };
    block_on(root.broadcast(Some(Bytes::from_static(b"last")), Rank(0))).unwrap();
    mesh.unreachable(0, "can't be reached: it left or died");
    assert!(futures::FutureExt::now_or_never(&mut waits).is_none());
    for message in messages.try_iter() {
        mesh.arrived(0, message);
    }
    assert_eq!(block_on(waits).unwrap(), "last");
}

#[test]
fn a_call_that_fails_ends_a_link_without_a_connection() {
    let (mesh, _tasks, group) = rank(1);
    let mut waits = Box::pin(group.broadcast(None, Rank(0)));
    assert!(futures::FutureExt::now_or_never(&mut waits).is_none());
    mesh.unreachable(0, "can't be reached: it left or died");
    let error = block_on(waits).unwrap_err();
    assert_eq!(
        error.to_cause().to_string(),
        "rank 0 can't be reached: it left or died"
    );
}

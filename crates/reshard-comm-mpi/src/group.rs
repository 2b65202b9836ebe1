use crate::worker::Worker;
use reshard_comm::mesh::{self, MeshGroup, OverMesh};
use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

/// One rank of a group of processes of an MPI job.
///
/// Make it with [`init`](Self::init), or with [`from_communicator`](Self::from_communicator) if the job has MPI already. Its
/// futures need no particular executor, because a thread of the group makes all calls of MPI.
///
/// `gather`, `scatter` and `broadcast` go along a tree from the root, `barrier` and `split` along one from rank 0. At most 64
/// ranks are below another one. `all_gather` is such a tree in groups of more than 65 ranks.
///
/// # Failures
/// `abort`, a dropped future or a panic breaks the group on all ranks, and never ends the job: the group does not call
/// `MPI_Abort`. A process that dies ends the whole job, because that is what `mpirun` does.
///
/// # Leaving
/// Drop the group and its sub-groups before the process ends, and before the job finalizes MPI. The last drop is
/// *collective*:
/// 1. It says goodbye to all ranks, and waits until they have said goodbye, too.
/// 2. It frees the communicator.
/// 3. It finalizes MPI, if the group has initialized it. MPI can't be initialized again in this process.
/// 4. The thread of the group ends, and the drop returns.
///
/// If a rank does not come within the [`patience`](crate::Builder::patience), the drop returns without steps 2 and 3.
/// Then a job of its own MPI still works. If the group has initialized MPI, `mpirun` ends the job when this process
/// ends, because MPI was not finalized.
///
/// With several groups over one job, drop them in the same order on all ranks.
pub struct MpiGroup(MeshGroup);

/// What all groups of a rank share. The last one that is dropped shuts it.
struct Node {
    /// In a mutex only because it is shared between threads; it is used at the end.
    worker: Mutex<Worker>,
    patience: Duration,
}

impl mesh::Node for Node {}

impl Drop for Node {
    fn drop(&mut self) {
        let worker = self.worker.get_mut();
        worker
            .unwrap_or_else(PoisonError::into_inner)
            .shut(self.patience);
    }
}

impl MpiGroup {
    /// The whole group of a rank.
    pub(crate) fn whole(worker: Worker, patience: Duration) -> Self {
        let mesh = Arc::clone(&worker.mesh);
        let worker = Mutex::new(worker);
        Self(MeshGroup::whole(
            "MpiGroup",
            &mesh,
            Arc::new(Node { worker, patience }),
        ))
    }
}

impl fmt::Debug for MpiGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl OverMesh for MpiGroup {
    fn mesh_group(&self) -> &MeshGroup {
        &self.0
    }
}

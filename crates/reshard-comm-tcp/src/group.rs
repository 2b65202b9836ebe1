use crate::{files, store::wake_listener};
use reshard_comm::mesh::{self, Mesh, MeshGroup, OverMesh};
use std::{fmt, net::SocketAddr, sync::Arc, time::Duration};

/// One rank of a group of processes that are joined by TCP.
///
/// Its futures need no particular executor, because threads of the group do all I/O. Make it with
/// [`from_env`](Self::from_env) or [`builder`](Self::builder).
///
/// A connection between two ranks is opened when one of them first sends to the other one or waits for it. Sub-groups use
/// the connections of the whole group. A connection has two threads on each side.
///
/// `gather`, `scatter` and `broadcast` go along a tree from the root, `barrier` and `split` along one from rank 0. A rank
/// is connected with at most 64 others below it ([`fan_out`](crate::Builder::fan_out)), so a group of at most 65 ranks is a
/// star. `all_gather` is such a tree in larger groups. `all_to_all` connects each rank with each other one.
///
/// # Failures
/// If a rank vanishes, all ranks whose current or next call needs it get
/// [`CommError::Broken`](reshard_comm::CommError::Broken), which names it: at once if its connection is closed, else when it
/// was silent for too long ([`silence`](crate::Builder::silence)). They tell the others.
///
/// # Leaving
/// Drop the group and its sub-groups before the process ends. Then other ranks get all that this rank has sent. The last
/// drop waits until that is sent. A rank that leaves does not disturb ranks that don't need it any more.
pub struct TcpGroup {
    group: MeshGroup,
    node: Arc<Node>,
}

/// What all groups of a rank share. The last one that is dropped shuts it.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) mesh: Arc<Mesh>,
    /// Where this rank listens.
    pub(crate) address: SocketAddr,
    /// How long the last drop waits.
    pub(crate) patience: Duration,
}

impl mesh::Node for Node {
    fn may_link(&self, links: u64, what: &str) -> Result<(), String> {
        files::suffice(links, what)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        const BROKEN: Duration = Duration::from_secs(5);
        const ECHO: Duration = Duration::from_secs(2);
        // What a broken group wanted to send matters to nobody.
        let patience = if self.mesh.is_broken() {
            self.patience.min(BROKEN)
        } else {
            self.patience
        };
        self.mesh.shut(patience, ECHO);
        wake_listener(self.address);
    }
}

impl TcpGroup {
    /// The whole group of a rank.
    pub(crate) fn whole(node: Node) -> Self {
        let node = Arc::new(node);
        let kept: Arc<dyn mesh::Node> = Arc::clone(&node) as _;
        let group = MeshGroup::whole("TcpGroup", &node.mesh, kept);
        Self { group, node }
    }

    /// Where this rank listens for other ranks.
    pub fn address(&self) -> SocketAddr {
        self.node.address
    }

    /// With how many other ranks of the job this one is connected.
    pub fn connections(&self) -> usize {
        self.node.mesh.connections()
    }
}

impl fmt::Debug for TcpGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.group.fmt(f)
    }
}

impl OverMesh for TcpGroup {
    fn mesh_group(&self) -> &MeshGroup {
        &self.group
    }
}

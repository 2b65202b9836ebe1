//! What the tests share: groups of ranks on threads, each with a store of their own.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use reshard_comm_tcp::{Builder, Serve, StoreServer, TcpGroup};
use std::{thread, time::Duration};

/// All ranks of a new group, in order, with settings of the test.
pub(crate) fn tcp_groups(size: u32, set: impl Fn(Builder) -> Builder) -> Vec<TcpGroup> {
    let store = StoreServer::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let port = store.address().port();
    let ranks = (0..size).map(|rank| {
        let builder = TcpGroup::builder()
            .rank(rank, size)
            .master("127.0.0.1", port);
        let builder = builder
            .serve(Serve::Nobody)
            .deadline(Duration::from_secs(60));
        let builder = set(builder);
        thread::spawn(move || builder.connect().unwrap())
    });
    let ranks: Vec<_> = ranks.collect();
    let groups = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
    // Ranks may look into it later.
    store.detach();
    groups
}

//! What ranks of a save write for each other.
//!
//! A thread of its own lays the files out and writes them ([`work`]). It waits for the bytes of items that other ranks give
//! ([`feed`]). Meanwhile the rounds of the exchange run here. Nobody knows in which order a format and a store read items, so a rank asks
//! for the bytes that it needs next, and the ranks that have them send these ([`give`]). So no order of reading makes ranks wait for each
//! other in a circle.

mod feed;
mod give;
mod wire;
mod work;

use super::{resolve::Source, written::Target};
use crate::{
    Result, WriteResult,
    pipeline::exchange::{self, Apart, Outgoing, Stopped, Streams, Table},
};
use async_trait::async_trait;
use bytes::Bytes;
use feed::Feed;
use give::Giver;
use reshard_plan::SavePlan;
use std::sync::Arc;

/// Writes the files of a plan, and meanwhile gives to other ranks what they write. Returns whether the files were laid out, and where the
/// items lie.
pub(super) async fn exchange(
    peers: &Apart,
    plan: Arc<SavePlan>,
    source: Source,
    rank: u32,
    target: Target,
) -> (bool, Result<Vec<WriteResult>, Stopped>) {
    let source = Arc::new(source);
    let mut feed = None;
    let exchanged = exchange::exchange(peers.meeting(), Ok(()), |(), table| {
        let giver = Giver::new(&plan, Arc::clone(&source), &table)?;
        let shared = Feed::new(&plan, &table)?;
        work::start(&shared, &plan, &source, rank, target)?;
        feed = Some(Ends(Arc::clone(&shared)));
        Ok(Writes {
            feed: shared,
            giver,
            table,
        })
    })
    .await
    .map(drop);
    let Some(ends) = feed else {
        return (false, exchanged.map(|()| Vec::new()));
    };
    // The thread is at its end before this rank is done: nothing holds the state any more.
    if exchanged.is_err() {
        ends.0.stop();
    }
    let written = ends.0.written().await;
    (ends.0.is_laid_out(), exchanged.and_then(|()| Ok(written?)))
}

/// Ends the thread if this rank does not take part in the exchange any more, because its future was dropped.
struct Ends(Arc<Feed>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// What this rank takes from others, and what it gives to them.
struct Writes {
    feed: Arc<Feed>,
    giver: Giver,
    table: Arc<Table>,
}

#[async_trait]
impl Streams for Writes {
    async fn send(&mut self) -> Result<Outgoing> {
        // A rank has nothing to say until its files need bytes, or are written.
        self.feed.ready().await;
        let (asks, more) = self.feed.asks()?;
        let given = self.giver.round()?;
        let parts = asks
            .into_iter()
            .zip(given)
            .map(|(ask, given)| wire::part(&ask, given));
        Ok(Outgoing {
            parts: parts.collect::<Result<_>>()?,
            more,
        })
    }

    fn receive(&mut self, peer: usize, part: Vec<Bytes>) -> Result<()> {
        // Pieces may lie across blocks.
        let part = match <[Bytes; 1]>::try_from(part) {
            Ok([only]) => only,
            Err(blocks) => blocks.concat().into(),
        };
        let (ask, given) = wire::parted(part)?;
        self.giver.asked(peer, ask);
        self.feed.take(&self.table, peer, given)
    }
}

//! What ranks of a load read for each other.
//!
//! The stream from one rank to another is everything that the one serves to the other, in order. The plans say what is in it, so only an
//! object needs more, a length in front of it.

mod give;
mod take;

use super::lend::Exchanged;
use crate::{
    LoadCx, ReadCx, Result, StorageReader, Traffic,
    pipeline::exchange::{self, Outgoing, Peers, Stopped, Streams},
};
use async_trait::async_trait;
use bytes::Bytes;
use give::Giver;
use reshard_model::Payload;
use reshard_plan::{LoadPlan, ObjectId};
use std::collections::BTreeMap;
use take::Taker;

/// Carries out the exchange of a plan. `read` is the outcome of this rank's own reads; if it is an error, the peers learn it.
/// Returns the totals of all reads, and the objects that were received or were read for others.
pub(super) async fn exchange(
    peers: &Peers,
    plan: &LoadPlan,
    read: Result<(Traffic, Exchanged<'_>)>,
    from: &dyn StorageReader,
    how: &ReadCx<'_>,
    cx: &LoadCx<'_>,
) -> Result<(Traffic, BTreeMap<ObjectId, Payload>), Stopped> {
    let meeting = peers.meeting(&cx.comm, cx.exchange_memory);
    let exchanged = exchange::exchange(
        meeting,
        read,
        |(totals, Exchanged { served, received }), table| {
            let taker = Taker::new(plan, received, &table, from, cx)?;
            let mut giver = Giver::new(plan, served, table, (from, how, cx));
            giver.totals = totals;
            Ok(Reads {
                giver,
                taker,
                from,
                cx,
            })
        },
    );
    let Reads { giver, taker, .. } = exchanged.await?;
    let mut objects = taker.done(giver.table())?;
    let totals = giver.totals;
    objects.extend(giver.objects);
    Ok((totals, objects))
}

/// What this rank reads for others, and what others read for it.
struct Reads<'p, 'c> {
    giver: Giver<'p, 'c>,
    taker: Taker<'p>,
    from: &'c dyn StorageReader,
    cx: &'c LoadCx<'c>,
}

#[async_trait]
impl Streams for Reads<'_, '_> {
    async fn send(&mut self) -> Result<Outgoing> {
        self.giver.round().await
    }

    fn receive(&mut self, peer: usize, part: Vec<Bytes>) -> Result<()> {
        let mut blocks = part.into_iter();
        blocks.try_for_each(|block| self.taker.take(peer, block, self.from, self.cx))?;
        // What has no bytes needs no block.
        self.taker.take(peer, Bytes::new(), self.from, self.cx)
    }

    async fn meanwhile(&mut self) {
        self.giver.read_on().await;
    }
}

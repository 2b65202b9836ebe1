//! What ranks of a load read for each other.
//!
//! The stream from one rank to another is everything that the one serves to the other, in order. The plans say what is in it, so only an
//! object needs more, a length in front of it.
//!
//! Ranks of one process lend each other the places of the elements, if the format reads what several ranks want together. Then the rank
//! that reads fills them before the first round, and the streams have only the rest: objects, and what is cast or transformed.

mod give;
mod lending;
mod take;

use super::{device::Devices, lend::Exchanged};
use crate::{
    ExchangeTimes, LoadCx, ReadCx, Result, StorageReader, StrategyError, Traffic,
    pipeline::exchange::{self, Outgoing, Peers, Stopped, Streams},
};
use async_trait::async_trait;
use bytes::Bytes;
use give::Giver;
use lending::Offer;
use reshard_model::Payload;
use reshard_plan::{LoadPlan, ObjectId};
use reshard_storage::Progress;
use std::{collections::BTreeMap, time::Instant};
use take::Taker;

/// What came of an exchange.
#[derive(Default)]
pub(super) struct Exchange {
    /// Of all reads.
    pub(super) totals: Traffic,
    /// Those that were received or were read for others.
    pub(super) objects: BTreeMap<ObjectId, Payload>,
    pub(super) times: ExchangeTimes,
}

/// Carries out the exchange of a plan. `read` is the outcome of this rank's own reads; if it is an error, the peers learn it.
pub(super) async fn exchange(
    peers: &Peers,
    plan: &LoadPlan,
    read: Result<(Traffic, Exchanged<'_>, &Devices)>,
    from: &dyn StorageReader,
    how: &ReadCx<'_>,
    cx: &LoadCx<'_>,
) -> Result<Exchange, Stopped> {
    // What it reads for others is no progress of its own load.
    let silent = Progress::none();
    let quiet = ReadCx {
        progress: &silent,
        ..*how
    };
    let memory = read
        .as_ref()
        .map_or(cx.options.exchange_memory, |(.., devices)| {
            devices.share(cx.options.exchange_memory)
        });
    let mut meeting = peers.meeting(&cx.comm, memory);
    let lends = meeting.comm.group().shares_memory() && from.reads_columns_together();
    let read = read.and_then(|(totals, mut exchanged, devices)| {
        let offer = lends
            .then(|| Offer::new(plan, &mut exchanged.received, from, cx))
            .transpose()?;
        Ok(((totals, exchanged, devices), offer))
    });
    // It is dropped at the end of this function. Then peers let go of what they have borrowed.
    let (read, offer) = match read {
        Ok((read, offer)) => (Ok(read), offer),
        Err(e) => (Err(e), None),
    };
    meeting.lends = offer.as_ref().map(Offer::number);
    let exchanged = exchange::exchange(
        meeting,
        read,
        |(totals, Exchanged { served, received }, devices), table| {
            if offer.is_some() && !table.shares_memory() {
                let what = "some ranks of a group share memory, and others do not";
                return Err(StrategyError::Internal(what.into()));
            }
            let lent = offer.as_ref().map(|offer| &offer.receives);
            let mine = (devices, how.progress);
            let taker = Taker::new(plan, (received, lent), &table, (from, cx), mine)?;
            let mut giver = Giver::new(plan, served, table, (from, &quiet, cx), mine)?;
            giver.totals = totals;
            Ok(Reads {
                giver,
                taker,
                from,
                cx,
                devices,
                times: ExchangeTimes::default(),
                sent: Instant::now(),
            })
        },
    );
    let Reads {
        giver,
        taker,
        mut times,
        ..
    } = exchanged.await?;
    let mut objects = taker.done(giver.table())?;
    // Peers have filled what was lent to them.
    if let Some(offer) = &offer {
        how.progress.add(offer.bytes);
    }
    times.reading = giver.took;
    let totals = giver.totals;
    objects.extend(giver.objects);
    Ok(Exchange {
        totals,
        objects,
        times,
    })
}

/// What this rank reads for others, and what others read for it.
struct Reads<'p, 'c> {
    giver: Giver<'p, 'c>,
    taker: Taker<'p>,
    from: &'c dyn StorageReader,
    cx: &'c LoadCx<'c>,
    devices: &'c Devices,
    times: ExchangeTimes,
    /// When this rank had its part of the round, or the last thing came.
    sent: Instant,
}

#[async_trait]
impl Streams for Reads<'_, '_> {
    async fn send(&mut self) -> Result<Outgoing> {
        // If a device has not taken its data, the peers learn it with the next round.
        self.devices.check()?;
        let out = self.giver.round().await;
        self.times.rounds += 1;
        self.sent = Instant::now();
        out
    }

    fn receive(&mut self, peer: usize, part: Vec<Bytes>) -> Result<()> {
        // The first part of a round comes when all others are there, too.
        let begun = Instant::now();
        if peer == 0 {
            self.times.handing += begun - self.sent;
        }
        let mut blocks = part.into_iter();
        blocks.try_for_each(|block| self.taker.take(peer, block, self.from, self.cx))?;
        // What has no bytes needs no block.
        let taken = self.taker.take(peer, Bytes::new(), self.from, self.cx);
        self.times.filling += begun.elapsed();
        taken
    }

    async fn meanwhile(&mut self) {
        self.giver.read_on().await;
    }
}

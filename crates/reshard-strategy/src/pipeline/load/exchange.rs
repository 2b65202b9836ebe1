//! What ranks of a load read for each other, in rounds of bounded memory.
//!
//! From each rank to each other one there is a stream of bytes: all that the one hands out to the other, in order. Plans say what is in
//! it, so nothing else is sent but a length before each object. In each round a rank sends the next bytes of its streams, and all
//! ranks learn whether all are well and whether anybody has more.

mod give;
mod peers;
mod take;

use super::lend::Exchanged;
use crate::{LoadCx, ReadCx, ReadTotals, Result, StorageReader, StrategyError, cause};
use give::Giver;
use peers::{NO_MORE, STEP};
use reshard_comm::CommError;
use reshard_model::Payload;
use reshard_plan::{LoadPlan, ObjectId};
use std::collections::BTreeMap;
use take::Taker;

pub(super) use peers::Peers;

/// Why this rank has stopped.
pub(super) enum Stopped {
    /// It failed, and has told it, or has yet to.
    Here(StrategyError),
    /// Another rank failed and has told it.
    There(CommError),
}

impl From<StrategyError> for Stopped {
    fn from(e: StrategyError) -> Self {
        Self::Here(e)
    }
}

/// Carries out the exchange of a plan after this rank has `read` what it reads for itself; with an error, tells it to the peers.
/// Gives all that was read, and the objects that came or were read for others.
pub(super) async fn exchange(
    peers: &Peers,
    plan: &LoadPlan,
    read: Result<(ReadTotals, Exchanged<'_>)>,
    from: &dyn StorageReader,
    how: &ReadCx<'_>,
    cx: &LoadCx<'_>,
) -> Result<(ReadTotals, BTreeMap<ObjectId, Payload>), Stopped> {
    let comm = peers.comm(&cx.comm);
    let guard = comm.guard("an exchange");
    let exchanged = rounds(peers, plan, read, from, how, cx).await;
    // Whatever failed, the peers have heard it, or will when all ranks agree.
    guard.done();
    exchanged
}

async fn rounds(
    peers: &Peers,
    plan: &LoadPlan,
    read: Result<(ReadTotals, Exchanged<'_>)>,
    from: &dyn StorageReader,
    how: &ReadCx<'_>,
    cx: &LoadCx<'_>,
) -> Result<(ReadTotals, BTreeMap<ObjectId, Payload>), Stopped> {
    let comm = peers.comm(&cx.comm);
    let (table, read) = match (peers.meet(&cx.comm, cx.exchange_memory).await, read) {
        (Ok(table), read) => (table, read),
        (Err(_), Err(own)) => return Err(Stopped::Here(own)),
        (Err(e), Ok(_)) => return Err(Stopped::Here(e.into())),
    };
    let mut begun = read.and_then(|(totals, exchanged)| {
        let Exchanged { served, received } = exchanged;
        let giver = Giver::new(plan, served, &table)?;
        let taker = Taker::new(plan, received, &table, from, cx)?;
        Ok((totals, giver, taker))
    });
    loop {
        let parts = match &mut begun {
            Ok((totals, giver, _)) => giver.round(from, how, cx, totals).await,
            Err(_) => Ok(Vec::new()),
        };
        // A rank that can't go on takes the step all the same.
        let parts = match (parts, &begun) {
            (Err(e), _) => {
                let cause = cause(&e);
                begun = Err(e);
                Err(cause)
            }
            (Ok(_), Err(e)) => Err(cause(e)),
            (Ok(parts), Ok(_)) => Ok(parts),
        };
        let heard = comm.all_to_all(STEP, parts).await;
        let (totals, giver, taker) = match (&mut begun, &heard) {
            (Ok(begun), Ok(_)) => begun,
            (Ok(_), Err(e @ CommError::Ranks { .. })) => return Err(Stopped::There(e.clone())),
            (Ok(_), Err(e)) => return Err(Stopped::Here(table.named(e.clone()).into())),
            (Err(_), _) => {
                return match begun {
                    Err(e) => Err(Stopped::Here(e)),
                    Ok(_) => Err(Stopped::Here(StrategyError::Internal("an exchange lost its error".into()))),
                };
            }
        };
        let mut more = false;
        let mut failed = Ok(());
        for (peer, mut part) in heard.into_iter().flatten().enumerate() {
            more |= !part.is_empty() && part.split_to(1) != NO_MORE;
            failed = failed.and_then(|()| taker.take(peer, part, from, cx));
        }
        match (failed, more) {
            (Err(e), false) => return Err(Stopped::Here(e)),
            (Err(e), true) => begun = Err(e),
            (Ok(()), true) => {}
            (Ok(()), false) => {
                let totals = *totals;
                let mut objects = std::mem::take(&mut giver.objects);
                objects.append(&mut taker.done(&table)?);
                return Ok((totals, objects));
            }
        }
    }
}

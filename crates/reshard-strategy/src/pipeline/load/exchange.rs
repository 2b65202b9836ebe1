//! Sends what ranks of a load read for each other, in rounds of bounded memory.
//!
//! One stream of bytes goes from each rank to each other rank: everything that the one serves to the other, in order. The plans say
//! what is in the stream, so only an object needs more, a length in front of it. In each round a rank sends the next bytes of its
//! streams. All ranks of the group learn whether every rank succeeded, and whether any rank has more to send.

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

/// Why this rank stopped.
pub(super) enum Stopped {
    /// It failed itself. Its peers know it already, or will learn it when all ranks agree.
    Here(StrategyError),
    /// Another rank failed and has reported it.
    There(CommError),
}

impl From<StrategyError> for Stopped {
    fn from(e: StrategyError) -> Self {
        Self::Here(e)
    }
}

/// Carries out the exchange of a plan. `read` is the outcome of this rank's own reads; if it is an error, the peers learn it.
/// Returns the totals of all reads, and the objects that were received or were read for others.
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
    // If something failed, the peers have learnt it, or will learn it when all ranks agree.
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
    // All peers meet even if this rank has failed, because they wait for it. If both failed, its own error is the better one.
    let comm = peers.comm(&cx.comm);
    let (table, read) = match (peers.meet(&cx.comm, cx.exchange_memory).await, read) {
        (Ok(table), read) => (table, read),
        (Err(_), Err(own)) => return Err(Stopped::Here(own)),
        (Err(e), Ok(_)) => return Err(Stopped::Here(e.into())),
    };
    // From here on an error is kept in `begun`: it is handed in with the next round.
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
        // A rank that can't continue still takes the step, and hands in its cause instead of bytes.
        let parts = match (parts, &begun) {
            (Err(e), _) => {
                let cause = cause(&e);
                begun = Err(e);
                Err(cause)
            }
            (Ok(_), Err(e)) => Err(cause(e)),
            (Ok(parts), Ok(_)) => Ok(parts),
        };
        // The round itself. If any rank failed, all ranks stop here: a failed rank with its own error, the others with the
        // error that they heard.
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
        // Received bytes go to their places. All parts are looked at even after an error, because each says whether its rank
        // has more, and all ranks must agree on whether there is another round.
        let mut more = false;
        let mut failed = Ok(());
        for (peer, mut part) in heard.into_iter().flatten().enumerate() {
            more |= !part.is_empty() && part.split_to(1) != NO_MORE;
            failed = failed.and_then(|()| taker.take(peer, part, from, cx));
        }
        // An error of the last round can't be handed in here any more. The step `read` of the whole group will report it.
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

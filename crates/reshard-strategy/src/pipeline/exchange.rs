//! Sends what ranks read or write for each other, in rounds of bounded memory.
//!
//! One stream of bytes goes from each rank to each other rank. In each round a rank sends the next bytes of its streams. All ranks of
//! the group learn whether every rank succeeded, and whether any rank needs another round. What is in the streams, a load and a save
//! say by a [`Streams`].

mod peers;

use crate::{Result, StrategyError, cause};
use async_trait::async_trait;
use bytes::Bytes;
use peers::STEP;
use reshard_comm::CommError;
use reshard_plan::{ExchangeGroup, PlanError};
use serde::{Deserialize, Serialize};
use std::{
    future::poll_fn,
    pin::{Pin, pin},
    sync::Arc,
};

pub(super) use peers::{Apart, Meeting, Peers, Table};

/// The first byte of a part: whether its rank needs another round.
const MORE: Bytes = Bytes::from_static(&[1]);
const NO_MORE: Bytes = Bytes::from_static(&[0]);

/// The part of the global plan that one rank gets.
#[derive(Serialize, Deserialize)]
pub(super) struct Share<P> {
    pub(super) plan: P,
    /// `Some` if any rank has an exchange. It then holds this rank's exchange group, if it is in one.
    pub(super) exchange: Option<Option<ExchangeGroup>>,
}

impl<P> Share<P> {
    /// The shares of all ranks. `groups` checks that what one rank gives is exactly what another one takes, so that no rank waits for
    /// data that never come.
    pub(super) fn all(
        plans: Vec<P>,
        has_none: impl Fn(&P) -> bool,
        groups: impl FnOnce(&[P]) -> Result<Vec<Option<ExchangeGroup>>, PlanError>,
    ) -> Result<Vec<Self>> {
        if plans.iter().all(has_none) {
            return Ok(plans
                .into_iter()
                .map(|plan| Self {
                    plan,
                    exchange: None,
                })
                .collect());
        }
        let groups = groups(&plans)?;
        Ok(plans
            .into_iter()
            .zip(groups)
            .map(|(plan, group)| Self {
                plan,
                exchange: Some(group),
            })
            .collect())
    }
}

/// Why this rank stopped.
pub(super) enum Stopped {
    /// It failed itself. Its peers know it already, or will learn it when all ranks agree.
    Here(StrategyError),
    /// Another rank failed and has reported it.
    There(CommError),
    /// The peers can't hear each other any more.
    Lost(CommError),
}

impl From<StrategyError> for Stopped {
    fn from(e: StrategyError) -> Self {
        Self::Here(e)
    }
}

impl Stopped {
    pub(super) fn into_error(self) -> StrategyError {
        match self {
            Self::Here(e) => e,
            Self::There(e) | Self::Lost(e) => e.into(),
        }
    }

    /// The error to report if the others may not know of it, and the error that they know.
    pub(super) fn parted(self) -> (Result<()>, Option<CommError>) {
        match self {
            Self::Here(e) => (Err(e), None),
            Self::There(e) => (Ok(()), Some(e)),
            Self::Lost(e) => (Err(e.into()), None),
        }
    }
}

/// What a rank sends in one round.
pub(super) struct Outgoing {
    /// The blocks for each peer: at most [`Table::quota`] bytes.
    pub(super) parts: Vec<Vec<Bytes>>,
    /// Whether this rank needs another round.
    pub(super) more: bool,
}

/// What a rank sends to its peers and gets from them.
#[async_trait]
pub(super) trait Streams: Send {
    /// What it sends in the next round.
    async fn send(&mut self) -> Result<Outgoing>;
    /// Takes what a peer has sent in this round: blocks that follow each other.
    fn receive(&mut self, peer: usize, part: Vec<Bytes>) -> Result<()>;
    /// Goes on with local work while a round is on its way. It may be dropped at any time, and is called again in the next round.
    async fn meanwhile(&mut self) {}
}

/// Carries out an exchange. `begun` is what this rank did before; if it is an error, the peers learn it.
///
/// # Collective
/// All peers call it.
pub(super) async fn exchange<B: Send, T: Streams>(
    meeting: Meeting<'_>,
    begun: Result<B>,
    start: impl FnOnce(B, Arc<Table>) -> Result<T> + Send,
) -> Result<T, Stopped> {
    let guard = meeting.comm.guard("an exchange");
    let exchanged = rounds(meeting, begun, start).await;
    // If something failed, the peers have learnt it, or will learn it when all ranks agree.
    guard.done();
    exchanged
}

async fn rounds<B: Send, T: Streams>(
    meeting: Meeting<'_>,
    begun: Result<B>,
    start: impl FnOnce(B, Arc<Table>) -> Result<T> + Send,
) -> Result<T, Stopped> {
    // All peers meet even if this rank has failed, because they wait for it. If both failed, its own error is the better one.
    let (table, begun) = match (Table::meet(meeting).await, begun) {
        (Ok(table), begun) => (Arc::new(table), begun),
        (Err(_), Err(own)) => return Err(Stopped::Here(own)),
        (Err(e), Ok(_)) => return Err(Stopped::Lost(e)),
    };
    // From here on an error is kept in `streams`: it is handed in with the next round.
    let mut streams = begun.and_then(|begun| start(begun, Arc::clone(&table)));
    loop {
        let parts = match &mut streams {
            Ok(streams) => streams.send().await.map(with_more),
            Err(_) => Ok(Vec::new()),
        };
        // A rank that can't continue still takes the step, and hands in its cause instead of bytes.
        let parts = match (parts, &streams) {
            (Err(e), _) => {
                let cause = cause(&e);
                streams = Err(e);
                Err(cause)
            }
            (Ok(_), Err(e)) => Err(cause(e)),
            (Ok(parts), Ok(_)) => Ok(parts),
        };
        // The round itself. If any rank failed, all ranks stop here: a failed rank with its own error, the others with the
        // error that they heard.
        let heard = pin!(meeting.comm.all_to_all_blocks(STEP, parts));
        let heard = match &mut streams {
            Ok(going) => beside(heard, going.meanwhile()).await,
            Err(_) => heard.await,
        };
        let (going, heard) = match (&mut streams, heard) {
            (Ok(going), Ok(heard)) => (going, heard),
            (Ok(_), Err(e @ CommError::Ranks { .. })) => return Err(Stopped::There(e)),
            (Ok(_), Err(e)) => return Err(Stopped::Lost(table.named(e))),
            // Only the group knows why a peer has left.
            (Err(StrategyError::Comm(_)), Err(e)) if !matches!(e, CommError::Ranks { .. }) => {
                return Err(Stopped::Lost(table.named(e)));
            }
            (Err(_), _) => {
                let lost = || StrategyError::Internal("an exchange lost its error".into());
                return Err(Stopped::Here(streams.err().unwrap_or_else(lost)));
            }
        };
        // Received bytes go to their places. All parts are looked at even after an error, because each says whether its rank
        // has more, and all ranks must agree on whether there is another round.
        let mut more = false;
        let mut failed = Ok(());
        for (peer, mut part) in heard.into_iter().enumerate() {
            more |= says_more(&mut part);
            failed = failed.and_then(|()| going.receive(peer, part));
        }
        // An error of the last round can't be handed in here any more. A step of the whole group will report it.
        match (failed, more) {
            (Err(e), false) => return Err(Stopped::Here(e)),
            (Err(e), true) => streams = Err(e),
            (Ok(()), true) => {}
            (Ok(()), false) => return streams.map_err(Stopped::Here),
        }
    }
}

/// The first byte of each part tells the peer whether this rank has more.
fn with_more(Outgoing { mut parts, more }: Outgoing) -> Vec<Vec<Bytes>> {
    for part in &mut parts {
        part.insert(0, if more { MORE } else { NO_MORE });
    }
    parts
}

/// Takes the first byte of a part.
fn says_more(part: &mut [Bytes]) -> bool {
    let first = part.iter_mut().find(|block| !block.is_empty());
    first.is_some_and(|block| block.split_to(1) != NO_MORE)
}

/// Awaits `main`, and meanwhile lets `other` go on.
async fn beside<T>(
    mut main: Pin<&mut (impl Future<Output = T> + Send)>,
    other: impl Future<Output = ()> + Send,
) -> T {
    let mut other = pin!(other);
    let mut ended = false;
    poll_fn(|cx| {
        let polled = main.as_mut().poll(cx);
        if polled.is_pending() && !ended {
            ended = other.as_mut().poll(cx).is_ready();
        }
        polled
    })
    .await
}

/// For a rank that the plans name and the group lacks.
pub(super) fn not_a_peer() -> StrategyError {
    StrategyError::Internal("a rank of an exchange is not in its group".into())
}

/// For bytes that nobody waits for.
pub(super) fn unplanned() -> StrategyError {
    StrategyError::Internal("a rank has sent more than was planned".into())
}

//! What ranks tell each other before they finalize a call, and what follows from it.

use reshard_comm::{Cause, Rank};
use reshard_model::ErrorKind;
use serde::{Deserialize, Serialize};

/// The step in which ranks finalize.
pub(super) const FINALIZE: &str = "finalize";

/// What a rank says when it wants to finalize.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Told {
    /// The index and the URL of its oldest call.
    pub(super) oldest: Option<(u64, String)>,
    pub(super) written: bool,
    /// Requests that it has dropped, with their URLs.
    pub(super) dropped: Vec<(u64, String)>,
}

/// What all ranks do.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Verdict {
    Wait,
    Finalize,
    /// These requests are lost, for this reason.
    Lost(Vec<u64>, Cause),
}

/// Called on the coordinator.
pub(super) fn decide(all: &[Told]) -> Result<Verdict, Cause> {
    let ranks = || (0..).map(Rank).zip(all);
    let lost: Vec<_> = ranks()
        .flat_map(|(rank, told)| told.dropped.iter().map(move |(n, url)| (rank, *n, url)))
        .collect();
    if let Some((rank, _, url)) = lost.first() {
        let what = format!(
            "rank {rank} dropped its request to save to {url} before it was scheduled, so that save is lost on all ranks"
        );
        let numbers = lost.iter().map(|(_, number, _)| *number).collect();
        return Ok(Verdict::Lost(numbers, Cause::new(ErrorKind::Invalid, what)));
    }
    let meant = all.first().and_then(|told| told.oldest.as_ref());
    let key = |oldest: Option<&(u64, String)>| oldest.map(|(index, _)| *index);
    if let Some((rank, other)) = ranks().find(|(_, told)| key(told.oldest.as_ref()) != key(meant)) {
        let say = |oldest: Option<&(u64, String)>| {
            oldest.map_or("no call".to_owned(), |(index, url)| {
                format!("call {index}, to {url}")
            })
        };
        let what = format!(
            "unmatched asynchronous calls: rank 0 is to finalize {}, and rank {rank} {}; schedule the same requests in the same order \
             on all ranks",
            say(meant),
            say(other.oldest.as_ref())
        );
        return Err(Cause::new(ErrorKind::Invalid, what));
    }
    let finalize = meant.is_some() && all.iter().all(|told| told.written);
    Ok(if finalize {
        Verdict::Finalize
    } else {
        Verdict::Wait
    })
}

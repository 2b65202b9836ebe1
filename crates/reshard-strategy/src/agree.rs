//! Steps that all ranks take together, with this crate's errors. A rank that is alone keeps its own error as it is.

use crate::{Result, StrategyError, cause};
use reshard_comm::{Comm, CommError};
use serde::{Serialize, de::DeserializeOwned};

/// All ranks learn whether all did their part; each goes on with its own outcome.
///
/// # Errors
/// On every rank, when any of them failed.
pub async fn agree<T>(comm: &Comm<'_>, step: &'static str, outcome: Result<T>) -> Result<T> {
    let mine = outcome.as_ref().map(|_| ()).map_err(cause);
    match comm.agree(step, mine).await {
        Ok(()) => outcome,
        Err(e) => Err(theirs(comm, e, outcome)),
    }
}

/// The coordinator decides upon the parts of all ranks, and each gets its share of the decision.
///
/// # Errors
/// On every rank, when any of them failed, or the decision did.
pub(crate) async fn decide<T, U>(
    comm: &Comm<'_>,
    step: &'static str,
    part: Result<T>,
    decide: impl FnOnce(Vec<T>) -> Result<Vec<U>> + Send,
) -> Result<U>
where
    T: Serialize + DeserializeOwned + Send,
    U: Serialize + DeserializeOwned + Send,
{
    let mut own = None;
    let (part, failed) = match part {
        Ok(part) => (Ok(part), Ok(())),
        Err(e) => (Err(cause(&e)), Err(e)),
    };
    let decided = comm.reduce_scatter(step, part, |parts| {
        decide(parts).map_err(|e| {
            let c = cause(&e);
            own = Some(e);
            c
        })
    });
    match (decided.await, failed) {
        (Ok(share), _) => Ok(share),
        (Err(e), failed) => Err(theirs(comm, e, failed.and_then(|()| own.map_or(Ok(()), Err)))),
    }
}

/// What to return of an error that all ranks got.
pub(crate) fn theirs<T>(comm: &Comm<'_>, all: CommError, mine: Result<T>) -> StrategyError {
    match mine {
        Err(mine) if comm.size() == 1 => mine,
        _ => all.into(),
    }
}

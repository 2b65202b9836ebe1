//! Steps that all ranks take together, with this crate's errors. If a rank is alone, it keeps its own, typed error.

use crate::{Result, StrategyError, cause};
use reshard_comm::{Comm, CommError};
use serde::{Serialize, de::DeserializeOwned};

/// All ranks learn whether every rank succeeded. Each rank then continues with its own outcome.
///
/// # Errors
/// On every rank, if any rank failed.
pub async fn agree<T>(comm: &Comm<'_>, step: &'static str, outcome: Result<T>) -> Result<T> {
    let mine = outcome.as_ref().map(|_| ()).map_err(cause);
    match comm.agree(step, mine).await {
        Ok(()) => outcome,
        Err(e) => Err(theirs(comm, e, outcome)),
    }
}

/// The coordinator makes a decision from the parts of all ranks, and each rank gets its share of it.
///
/// # Errors
/// On every rank, if any rank or the decision failed.
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
        (Err(e), failed) => Err(theirs(
            comm,
            e,
            failed.and_then(|()| own.map_or(Ok(()), Err)),
        )),
    }
}

/// The error to return if all ranks got an error.
pub(crate) fn theirs<T>(comm: &Comm<'_>, all: CommError, mine: Result<T>) -> StrategyError {
    match mine {
        Err(mine) if comm.size() == 1 => mine,
        _ => all.into(),
    }
}

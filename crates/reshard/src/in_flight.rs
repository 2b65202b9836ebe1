//! Which places asynchronous saves of this process are writing to.

use reshard_comm::Rank;
use reshard_strategy::StrategyError;
use std::{
    collections::BTreeSet,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// Several ranks may live in one process, so each place is listed with the rank that writes to it.
static PLACES: Mutex<BTreeSet<(String, Rank)>> = Mutex::new(BTreeSet::new());

fn places() -> MutexGuard<'static, BTreeSet<(String, Rank)>> {
    PLACES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An asynchronous save of this rank to a place. The place is free again when this is dropped.
#[derive(Debug)]
pub(crate) struct InFlight((String, Rank));

impl InFlight {
    /// Lists a place.
    ///
    /// # Errors
    /// It is listed already.
    pub(crate) fn new(place: &str, rank: Rank) -> Result<Self, StrategyError> {
        let place = (place.to_owned(), rank);
        if !places().insert(place.clone()) {
            return Err(taken(&place.0));
        }
        Ok(Self(place))
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        places().remove(&self.0);
    }
}

/// Fails if an asynchronous save of this rank is writing to the place.
pub(crate) fn check(place: &str, rank: Rank) -> Result<(), StrategyError> {
    if places().contains(&(place.to_owned(), rank)) {
        return Err(taken(place));
    }
    Ok(())
}

fn taken(place: &str) -> StrategyError {
    StrategyError::Invalid(format!(
        "an earlier asynchronous save to {place} is not finished; finish that first, or save to another URL"
    ))
}

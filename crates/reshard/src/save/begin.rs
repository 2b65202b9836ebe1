//! How all ranks begin one new version of the place.

use super::set_up::SetUp;
use crate::{
    alike::{self, Rule},
    attempt::attempt,
    replace::{Replaced, no_checkpoint, replace},
};
use reshard_comm::Comm;
use reshard_storage::{Name, StorageError, StoreExt, Transaction};
use reshard_strategy::{StrategyError, cause};
use std::sync::Arc;

/// A new version that nothing is written to yet.
pub(super) struct Begun {
    pub(super) transaction: Arc<dyn Transaction>,
    /// What stays though the checkpoint that is replaced says that it is its own; on the coordinator.
    pub(super) stays: Vec<Name>,
}

impl SetUp {
    /// Begins a new version. What the place is, is found out here, once for all ranks.
    async fn begin(&self, attempt: &str, overwrite: bool) -> Result<Begun, StrategyError> {
        let store = self.store.resolved().await?.unwrap_or_else(|| Arc::clone(&self.store));
        let Replaced { if_exists, stays } =
            if overwrite { replace(&store, &self.registry).await? } else { Replaced::default() };
        match store.begin(attempt, if_exists).await {
            Ok(transaction) => Ok(Begun { transaction, stays }),
            Err(e) => {
                // Perhaps it was begun all the same, and only the answer is lost.
                if let Err(e) = store.remove_leftover(attempt).await {
                    tracing::debug!(error = %e, "what a failed save may have left could not be removed");
                }
                let exists = matches!(e, StorageError::Exists { .. });
                Err(if exists && overwrite { no_checkpoint() } else { e.into() })
            }
        }
    }

    /// Joins the version that the coordinator has begun.
    async fn join(&self, (attempt, place): (String, Option<String>)) -> Result<Begun, StrategyError> {
        let transaction = self.store.join(&attempt, place.as_deref()).await?;
        Ok(Begun { transaction, stays: Vec::new() })
    }
}

/// The coordinator begins a new version, then the others join it where it is, under the same name. With it come the keys of plain
/// tensors that are left to the coordinator.
pub(super) async fn begin(
    comm: &Comm<'_>,
    setup: &Result<SetUp, StrategyError>,
    url: &str,
    overwrite: bool,
    rule: Rule,
) -> Result<(Begun, Vec<String>), StrategyError> {
    let mut mine = None;
    let mut own = None;
    let part = match setup {
        Err(e) => Some(Err(cause(e))),
        Ok(setup) if comm.is_coordinator() => {
            let attempt = attempt();
            Some(match setup.begin(&attempt, overwrite).await {
                Ok(begun) => {
                    let place = begun.transaction.place();
                    mine = Some(begun);
                    Ok((attempt, place))
                }
                Err(e) => {
                    let cause = cause(&e);
                    own = Some(e);
                    Err(cause)
                }
            })
        }
        Ok(_) => None,
    };
    let begun: Result<(String, Option<String>), _> = comm.broadcast("begin", part).await;
    let transaction = mine.as_ref().map(|b| Arc::clone(&b.transaction));
    let joined = match (begun, setup) {
        (Ok(theirs), Ok(setup)) => {
            let begun = match mine {
                Some(begun) => Ok(begun),
                None => setup.join(theirs).await,
            };
            alike::agree(comm, "begin", begun, &setup.plain, rule).await
        }
        (Err(e), _) => Err(own.filter(|_| comm.size() == 1).unwrap_or_else(|| e.into())),
        (Ok(_), Err(_)) => Err(StrategyError::Invalid("a rank that failed was not heard".into())),
    };
    if let (Some(transaction), Err(_)) = (transaction, &joined)
        && let Err(e) = transaction.rollback().await
    {
        tracing::warn!(error = %e, url, "what a failed save left could not be removed");
    }
    joined
}

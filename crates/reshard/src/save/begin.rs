//! All ranks begin the same new version of the place.

use super::{options::SaveOptions, set_up::SetUp};
use crate::{
    CommonDifference,
    alike::{self, Compared, Mine},
    consistent,
    side_by_side::{self, Old, SideBySide},
};
use reshard_comm::Comm;
use reshard_open::{
    attempt::attempt,
    replace::{Replaced, no_checkpoint, refuse_prefix, replace},
};
use reshard_storage::{
    DryTransaction, IfExists, Name, PlaceKind, StorageError, Store, StoreExt, Transaction,
};
use reshard_strategy::{Formats, StrategyError, cause, check_replicas};
use std::sync::Arc;

/// A new version, in which nothing is written yet.
pub(super) struct Begun {
    pub(super) transaction: Arc<dyn Transaction>,
    /// Files that the replaced checkpoint names as its own, but that stay. Only on the coordinator.
    pub(super) stays: Vec<Name>,
    /// If the place keeps versions side by side.
    pub(super) side_by_side: Option<SideBySide>,
}

/// What a rank knows when the version has begun.
pub(super) struct Agreed {
    pub(super) begun: Begun,
    /// Keys of plain tensors that are left to the coordinator.
    pub(super) left: Vec<String>,
    /// How the common state of this rank differs from what is saved.
    pub(super) common_differs: Option<CommonDifference>,
}

impl SetUp {
    /// Begins a new version. The place is resolved here, once for all ranks.
    async fn begin(&self, attempt: &str, options: &SaveOptions) -> Result<Begun, StrategyError> {
        let overwrite = options.overwrite;
        let store = match &self.resolved {
            Some(resolved) => Arc::clone(resolved),
            // Why it can't be resolved is told here.
            None => {
                let resolved = self.store.resolved().await?;
                resolved.unwrap_or_else(|| Arc::clone(&self.store))
            }
        };
        let Replaced { if_exists, stays } = if overwrite {
            replace(&store, &self.registry, self.kind).await?
        } else {
            if self.kind == PlaceKind::Prefix {
                refuse_prefix(&store, &self.registry).await?;
            }
            Replaced::default()
        };
        let old = match &if_exists {
            IfExists::Refuse => Old::default(),
            IfExists::Replace(files) => Old::of(files, &Formats::of(&self.registry)?),
        };
        let begun = match options.pipeline.dry_run {
            true => store.begin_dry_run(attempt, if_exists).await,
            false => store.begin(attempt, if_exists).await,
        };
        match begun {
            Ok(transaction) => {
                self.checked(&store, transaction, stays, (old, options))
                    .await
            }
            Err(e) => {
                // The version may exist all the same, if only the answer was lost. A refusal leaves nothing, and the directory that
                // has the attempt's name by now may be somebody else's.
                if !refused(&e)
                    && let Err(e) = remove(&store, attempt).await
                {
                    tracing::debug!(error = %e, "what a failed save may have left could not be removed");
                }
                let exists = matches!(e, StorageError::Exists { .. });
                Err(if exists && overwrite {
                    no_checkpoint()
                } else {
                    e.into()
                })
            }
        }
    }

    /// What was begun, unless it could not replace the old version in one step.
    async fn checked(
        &self,
        store: &Arc<dyn Store>,
        transaction: Arc<dyn Transaction>,
        stays: Vec<Name>,
        (old, options): (Old, &SaveOptions),
    ) -> Result<Begun, StrategyError> {
        let (sharded, common) = (&self.sharded, self.common.key());
        let terms = (&old, self.kind, options);
        if let Err(e) = side_by_side::check(store, &*transaction, sharded, &common, terms).await {
            if let Err(e) = transaction.rollback().await {
                tracing::debug!(error = %e, "what a refused save may have left could not be removed");
            }
            return Err(e);
        }
        let side_by_side = SideBySide::of(&*transaction, sharded, self.kind, old);
        Ok(Begun {
            transaction,
            stays,
            side_by_side,
        })
    }

    /// Joins the version that the coordinator has begun.
    async fn join(
        &self,
        (attempt, place): (String, Option<String>),
        dry_run: bool,
    ) -> Result<Begun, StrategyError> {
        let transaction = match dry_run {
            true => Arc::new(DryTransaction::new(place.map(Name::new).transpose()?)),
            false => self.store.join(&attempt, place.as_deref()).await?,
        };
        let old = Old::default();
        let side_by_side = SideBySide::of(&*transaction, &self.sharded, self.kind, old);
        Ok(Begun {
            transaction,
            stays: Vec::new(),
            side_by_side,
        })
    }
}

/// Removes what an attempt has left.
async fn remove(store: &Arc<dyn Store>, attempt: &str) -> Result<(), StorageError> {
    for left in store
        .leftovers()
        .await?
        .iter()
        .filter(|l| l.attempt == attempt)
    {
        store.remove_leftover(left).await?;
    }
    Ok(())
}

/// Whether the store itself refused.
fn refused(e: &StorageError) -> bool {
    use StorageError::{Changed, Exists, Incomplete, Unsupported};
    matches!(
        e,
        Exists { .. } | Changed { .. } | Unsupported { .. } | Incomplete { .. }
    )
}

/// The coordinator begins a new version. The other ranks join it at its location, under the same name. Plain tensors and common state of all
/// ranks are compared.
pub(super) async fn begin(
    comm: &Comm<'_>,
    setup: &Result<SetUp, StrategyError>,
    options: &SaveOptions,
) -> Result<Agreed, StrategyError> {
    // Only the coordinator begins. What it has begun stays here, because others get just the name and the place.
    let mut mine = None;
    let mut own = None;
    let part = match setup {
        Err(e) => Some(Err(cause(e))),
        Ok(setup) if comm.is_coordinator() => {
            let attempt = attempt();
            Some(match setup.begin(&attempt, options).await {
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

    // A failure of any rank reaches all of them in place of the name.
    let begun: Result<(String, Option<String>), _> = comm.broadcast("begin", part).await;

    // The handle is kept apart, so a failure below can still be cleaned up.
    let transaction = mine.as_ref().map(|b| Arc::clone(&b.transaction));

    let joined = match (begun, setup) {
        (Ok(theirs), Ok(setup)) => {
            let begun = match mine {
                Some(begun) => Ok(begun),
                None => setup.join(theirs, options.pipeline.dry_run).await,
            };
            let mine = Mine {
                plain: &setup.plain,
                common: setup.values.as_ref().map(|values| values.digest),
            };
            let agreed = alike::agree(comm, "begin", begun, mine, options).await;
            let checked = match agreed {
                Ok(agreed) if options.check_replicas => {
                    let checked = check_replicas(
                        comm,
                        &setup.parts.flat,
                        &setup.plain,
                        options.pipeline.dialect,
                    )
                    .await;
                    checked.map(|()| agreed)
                }
                agreed => agreed,
            };
            match checked {
                Ok((begun, compared)) => with_difference(comm, begun, compared, setup).await,
                Err(e) => Err(e),
            }
        }
        (Err(e), _) => Err(own.filter(|_| comm.size() == 1).unwrap_or_else(|| e.into())),
        (Ok(_), Err(_)) => Err(StrategyError::Internal(
            "a failure did not reach the other ranks".into(),
        )),
    };
    if let (Some(transaction), Err(_)) = (transaction, &joined)
        && let Err(e) = transaction.rollback().await
    {
        tracing::warn!(error = %e, url = options.url, "what a failed save left could not be removed");
    }
    joined
}

/// If the common state of any rank may differ, each rank learns how its own does.
async fn with_difference(
    comm: &Comm<'_>,
    begun: Begun,
    compared: Compared,
    setup: &SetUp,
) -> Result<Agreed, StrategyError> {
    let common_differs = match compared.common_differs {
        true => consistent::difference(comm, setup.values.as_ref()).await?,
        false => None,
    };
    Ok(Agreed {
        begun,
        left: compared.left,
        common_differs,
    })
}

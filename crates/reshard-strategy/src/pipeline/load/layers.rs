//! Applies the layers of a load strategy.

use super::load_planned;
use crate::{
    LoadCx, LoadFailure, LoadLayer, LoadSetup, Loaded, Result, StorageReader, StrategyError, agree,
};
use reshard_comm::{Comm, CommError};
use reshard_model::FlatStateDict;
use std::{future::Future, pin::Pin, sync::Arc};

/// Loads with these layers, the outermost first.
pub(crate) fn load_in<'l>(
    layers: &'l [Arc<dyn LoadLayer>],
    template: FlatStateDict,
    from: Arc<dyn StorageReader>,
    cx: &'l LoadCx<'_>,
) -> Pin<Box<dyn Future<Output = Result<Loaded, Box<LoadFailure>>> + Send + 'l>> {
    Box::pin(async move {
        let Some((layer, inner)) = layers.split_first() else {
            return load_planned(template, &*from, cx).await;
        };
        let setup = LoadSetup {
            planner: Arc::clone(&cx.planner),
            reader: from,
            options: cx.options.clone(),
            group: None,
        };
        let setup = match layer.set_up(setup, &template, cx).await {
            Ok(setup) => setup,
            Err(error) => return Err(Box::new(LoadFailure::of_plan(error, template))),
        };
        let own = LoadCx {
            planner: setup.planner,
            options: &setup.options,
            ..cx.clone()
        };
        match setup.group {
            None => load_in(inner, template, setup.reader, &own).await,
            Some(group) => {
                let comm = Comm::new(&*group)
                    .with_coordinator(cx.comm.coordinator())
                    .with_deadline(cx.comm.deadline());
                let guard = cx.comm.guard("a load in a group of its own");
                let own = LoadCx { comm, ..own };
                let loaded = load_in(inner, template, setup.reader, &own).await;
                let loaded = told(loaded, &cx.comm).await;
                guard.done();
                loaded
            }
        }
    })
}

/// Reports a failure in a group of its own to the whole group, unless all ranks have learnt it there.
async fn told(
    loaded: Result<Loaded, Box<LoadFailure>>,
    comm: &Comm<'_>,
) -> Result<Loaded, Box<LoadFailure>> {
    let (loaded, own) = match loaded {
        Ok(loaded) => (Ok(loaded), Ok(())),
        Err(failure) => {
            let LoadFailure {
                error,
                template,
                decided,
            } = *failure;
            match matches!(error, StrategyError::Comm(CommError::Ranks { .. })) {
                true => (Err((template, decided, Some(error))), Ok(())),
                false => (Err((template, decided, None)), Err(error)),
            }
        }
    };
    let agreed = agree(comm, "read", own).await;
    match (agreed, loaded) {
        (Ok(()), Ok(loaded)) => Ok(loaded),
        (agreed, loaded) => {
            let (template, decided, heard) = match loaded {
                Ok(loaded) => (loaded.state, Some(loaded.decided), None),
                Err(failure) => failure,
            };
            let lost = || StrategyError::Internal("a failure was lost".into());
            Err(Box::new(LoadFailure {
                error: agreed.err().or(heard).unwrap_or_else(lost),
                template,
                decided,
            }))
        }
    }
}

//! A read that goes on while other things happen.

use crate::{
    ReadCx, ReadObject, Result, StorageReader, StrategyError, Traffic,
    pipeline::load::transfer::{reclaimed, scratch},
};
use reshard_model::{LentBuffer, LentView, Payload, Tensor};
use reshard_plan::Wanted;
use std::{
    pin::Pin,
    sync::Arc,
    time::{Duration, Instant},
};

/// What was read, in the order in which it was asked for.
pub(super) struct Fetched {
    pub(super) tensors: Vec<Tensor>,
    pub(super) payloads: Vec<Payload>,
    pub(super) traffic: Traffic,
    /// From the first call to the end.
    pub(super) took: Duration,
}

/// A read into temporary memory.
pub(super) struct Fetch<'c> {
    going: Pin<Box<dyn Future<Output = Result<Fetched>> + Send + 'c>>,
    done: Option<Result<Fetched>>,
}

impl<'c> Fetch<'c> {
    /// Prepares to read all of these together. It makes the memory for them.
    pub(super) fn start<'w>(
        all: impl Iterator<Item = &'w Wanted>,
        from: &'c dyn StorageReader,
        how: &'c ReadCx<'c>,
    ) -> Result<Self> {
        let (mut reads, mut waiting, mut objects) = (Vec::new(), Vec::new(), Vec::new());
        for what in all {
            match what {
                Wanted::Chunk(selection) => {
                    let key = what.key(from.metadata()).unwrap_or_default();
                    let (read, lent, views) =
                        scratch(key, selection.clone(), &selection.region.lengths)?;
                    reads.push(read);
                    waiting.push((lent, views));
                }
                Wanted::Object(object) => objects.push(ReadObject { object: *object }),
            }
        }
        // Tensors and objects are different calls of a format: one call for all of each kind.
        let going = async move {
            let begun = Instant::now();
            let traffic = match reads.is_empty() {
                true => Traffic::default(),
                false => from.read_tensors(reads, how).await?,
            };
            let payloads = match objects.is_empty() {
                true => Vec::new(),
                false => from.read_objects(&objects, how).await?,
            };
            Ok(Fetched {
                tensors: memory(waiting)?,
                payloads,
                traffic,
                took: begun.elapsed(),
            })
        };
        Ok(Self {
            going: Box::pin(going),
            done: None,
        })
    }

    pub(super) fn is_done(&self) -> bool {
        self.done.is_some()
    }

    /// Goes on until all is read. It may be dropped before.
    pub(super) async fn go_on(&mut self) {
        if self.done.is_none() {
            self.done = Some((&mut self.going).await);
        }
    }

    /// Call it once.
    pub(super) async fn finished(&mut self) -> Result<Fetched> {
        self.go_on().await;
        let twice = || StrategyError::Internal("a read was taken twice".into());
        self.done.take().unwrap_or_else(|| Err(twice()))
    }
}

fn memory(waiting: Vec<(Arc<LentBuffer>, Vec<LentView>)>) -> Result<Vec<Tensor>> {
    waiting
        .into_iter()
        .map(|(lent, views)| reclaimed(lent, views))
        .collect()
}

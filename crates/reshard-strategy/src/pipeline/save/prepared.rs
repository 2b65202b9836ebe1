//! A planned save with its branches.

use super::branch::Branch;
use crate::{KeyedData, Result, SaveTotals, Saved, StrategyError, agree, cause};
use reshard_comm::Comm;
use reshard_model::Data;
use std::{fmt, sync::Arc};

/// A planned save. It owns its plan and handles on the caller's buffers, and borrows nothing, so any thread can continue with it.
pub struct PreparedSave {
    /// Objects that the common strategy stores. They are written first, as in Megatron Core.
    objects: Option<Branch>,
    /// `None` if the objects of this rank could not be written. Ranks that wait for its tensors in an exchange learn it when they are
    /// dropped.
    format: Option<Branch>,
    objects_written: bool,
    /// Number of the data taken out that belong to `objects`.
    of_objects: usize,
}

impl fmt::Debug for PreparedSave {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PreparedSave").finish_non_exhaustive()
    }
}

fn dropped() -> StrategyError {
    StrategyError::Internal("tensors are written where objects were not".into())
}

impl PreparedSave {
    pub(crate) fn new(format: Branch) -> Self {
        Self {
            objects: None,
            format: Some(format),
            objects_written: false,
            of_objects: 0,
        }
    }

    /// Adds the branch of objects that the common strategy stores.
    pub(crate) fn with_objects(self, objects: Option<Branch>) -> Self {
        Self { objects, ..self }
    }

    fn format(&mut self) -> Result<&mut Branch> {
        self.format.as_mut().ok_or_else(dropped)
    }

    /// Takes out the data that this rank writes, in an order of its own, and drops all others. [`stage_save`](crate::stage_save) has them
    /// copied. When the copies are [put back](Self::put_data), the save holds nothing of the caller's. If the caller waits for the end of
    /// the save, no copies are needed.
    ///
    /// Data that a planner brings from outside the state are not among them.
    ///
    /// # Errors
    /// It is written already.
    pub fn take_data(&mut self) -> Result<Vec<KeyedData>> {
        let mut data = match &mut self.objects {
            Some(objects) => objects.take_data()?,
            None => Vec::new(),
        };
        self.of_objects = data.len();
        data.append(&mut self.format()?.take_data()?);
        Ok(data)
    }

    /// Puts copies where [`take_data`](Self::take_data) has taken the originals, in the same order.
    ///
    /// # Errors
    /// Another number of them.
    pub fn put_data(&mut self, mut copies: Vec<Data>) -> Result<()> {
        let of_format = copies.split_off(self.of_objects.min(copies.len()));
        if let Some(objects) = &mut self.objects {
            objects.put_data(copies)?;
        }
        self.format()?.put_data(of_format)
    }

    /// This rank will not write. Lets go of all data, and sends the reason to the ranks that wait for this one in an exchange. Afterwards
    /// call [`finish`](Self::finish) with the reason.
    pub fn give_up(&mut self, why: &StrategyError) {
        for branch in self.objects.iter_mut().chain(&mut self.format) {
            branch.give_up(why);
        }
    }

    /// Makes the layout of this rank's files and writes them. Call it once, on any thread. It calls no collectives, except those of an
    /// exchange of items between ranks, in a group that [`prepare`](crate::SaveShardedStrategy::prepare) has split off. If this rank does
    /// not call it, [give up](Self::give_up) or drop this: then the ranks that wait for it in the exchange learn it.
    ///
    /// # Errors
    /// Items that the format can't store; errors of the store. Pass the error to [`finish`](Self::finish).
    pub async fn write(&mut self) -> Result<()> {
        if let Some(objects) = &mut self.objects {
            let written = objects.write().await;
            if written.is_err() {
                self.format = None;
            }
            written?;
            self.objects_written = true;
        }
        self.format()?.write().await
    }

    /// Takes the outcome of [`write`](Self::write), so that the other ranks learn of a failure. Makes the format record, but commits
    /// nothing: `reshard::save` commits.
    ///
    /// # Collective
    /// Every rank calls it, even after a failed write. If one rank failed, all ranks get an error that names it and the step in which it
    /// failed.
    ///
    /// # Errors
    /// The failures of all ranks.
    pub async fn finish(mut self, written: Result<()>, comm: &Comm<'_>) -> Result<Saved> {
        let Some(objects) = self.objects.take() else {
            let format = self.format.ok_or_else(dropped)?;
            return format.finish(written, comm).await;
        };
        // A failure belongs to the objects unless these are written. If one rank could not write its objects, no rank continues.
        if !self.objects_written && written.is_err() {
            self.format = None;
        }
        let (of_objects, of_format) = match self.objects_written {
            true => (Ok(()), written),
            false => (written, Ok(())),
        };
        let objects = objects.finish(of_objects, comm).await?;
        let format = self.format.ok_or_else(dropped)?;
        let saved = format.finish(of_format, comm).await?;
        both(saved, objects, comm).await
    }
}

/// The result of both branches. Only the coordinator has the figures of all ranks.
async fn both(mut saved: Saved, objects: Saved, comm: &Comm<'_>) -> Result<Saved> {
    let merged = match (&saved.metadata, &objects.metadata) {
        (Some(tensors), Some(objects)) => tensors
            .with_objects(objects.objects().map(|(_, key)| key))
            .map(Some),
        _ => Ok(None),
    };
    let merged = merged.map_err(StrategyError::from);
    for (rank, objects) in saved.ranks.iter_mut().zip(&objects.ranks) {
        *rank += *objects;
    }
    saved.items += objects.items;
    let ranks = &saved.ranks;
    let told = merged.as_ref().map(|_| ()).map_err(cause);
    let totals = comm
        .all_reduce("write", told, |_: Vec<()>| Ok(SaveTotals::of(ranks)))
        .await;
    match (totals, merged) {
        (Ok(totals), Ok(merged)) => {
            saved.totals = totals;
            saved.metadata = merged.map(Arc::new);
            Ok(saved)
        }
        (Ok(_), Err(own)) => Err(own),
        (Err(e), merged) => Err(agree::theirs(comm, e, merged)),
    }
}

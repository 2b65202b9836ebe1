use super::{nobody, part};
use crate::{
    BackendVersion, Capabilities, FileLayout, FinishCx, PreparedSave, Records, Resolve, Result,
    SaveCommonStrategy, SaveCx, SaveShardedStrategy, SaveTotals, Saved, StorageWriter,
    StrategyError, WriteData, WriterHooks, agree, cause, pipeline::Planned,
};
use async_trait::async_trait;
use reshard_comm::{Comm, CommError};
use reshard_model::{Data, FlatStateDict, Payload, Sharded, ShardedObject};
use reshard_plan::{Declaration, SavePlan};
use reshard_storage::{FileBody, Source};
use std::sync::Arc;

/// Makes a strategy that stores tensors with `sharded`, and also objects: if `sharded` stores none, they become files of `common`.
///
/// Then the same planner plans objects separately, and a sharding policy decides only on tensors. If neither stores objects, a save fails
/// only if it has objects.
pub fn save_with_objects(
    sharded: Arc<dyn SaveShardedStrategy>,
    common: Option<Arc<dyn SaveCommonStrategy>>,
) -> Arc<dyn SaveShardedStrategy> {
    match sharded.can_handle_sharded_objects() {
        true => sharded,
        false => Arc::new(WithObjects { sharded, common }),
    }
}

#[derive(Debug)]
struct WithObjects {
    sharded: Arc<dyn SaveShardedStrategy>,
    common: Option<Arc<dyn SaveCommonStrategy>>,
}

impl WithObjects {
    /// The writer of objects, if the common strategy can store any.
    fn writer(&self, objects: &FlatStateDict) -> Result<Option<ObjectWriter>> {
        let able = match &self.common {
            Some(common) => common.layout_objects(&[])?.map(|_| Arc::clone(common)),
            None => None,
        };
        let leaf = objects.values().find_map(|leaf| match leaf {
            Sharded::Object(o) => Some(o.unique_key()),
            Sharded::Tensor(_) => None,
        });
        match (able, leaf) {
            (Some(common), _) => Ok(Some(ObjectWriter {
                common,
                sharded: self.sharded.key(),
            })),
            (None, None) => Ok(None),
            (None, Some(key)) => {
                let common = self.common.as_ref().map(|c| c.key());
                Err(nobody(
                    "storing",
                    &key,
                    &self.sharded.key(),
                    common.as_ref(),
                ))
            }
        }
    }
}

impl WithObjects {
    /// The error of a save whose objects can't be planned. All ranks have it. It says what is wrong with tensors, too: they are planned now,
    /// with what ranks declare of objects.
    async fn of_both(
        &self,
        error: StrategyError,
        tensors: FlatStateDict,
        cx: &SaveCx<'_>,
    ) -> StrategyError {
        let planned = match &error {
            StrategyError::Comm(e) => matches!(e, CommError::Ranks { step: "plan", .. }),
            StrategyError::Plan(_) => cx.comm.size() == 1,
            _ => false,
        };
        if !planned || !cx.validates() {
            return error;
        }
        let cx = SaveCx {
            kept_plan: None,
            ..cx.clone()
        };
        let of_tensors = self.sharded.prepare(tensors, &cx).await.err();
        match (error, of_tensors) {
            (error, None) => error,
            // The rank that validates tells both here. Others may have failed at objects alone.
            (
                StrategyError::Comm(CommError::Ranks { mut causes, .. }),
                Some(StrategyError::Comm(CommError::Ranks { step, causes: more })),
            ) => {
                causes.extend(more);
                CommError::Ranks { step, causes }.into()
            }
            (_, Some(of_tensors)) => of_tensors,
        }
    }
}

/// The context of the tensors: their planner is told of objects too, so that it finds keys that are both.
fn with_objects<'a>(objects: &FlatStateDict, cx: &SaveCx<'a>) -> SaveCx<'a> {
    if objects.is_empty() {
        return cx.clone();
    }
    let mut declares = (*cx.declares).clone();
    (declares.elsewhere).extend(objects.values().map(Declaration::of));
    SaveCx {
        declares: Arc::new(declares),
        ..cx.clone()
    }
}

#[async_trait]
impl SaveShardedStrategy for WithObjects {
    fn key(&self) -> BackendVersion {
        self.sharded.key()
    }

    fn capabilities(&self) -> Capabilities {
        self.sharded.capabilities()
    }

    async fn prepare(
        &self,
        state: FlatStateDict,
        cx: &SaveCx<'_>,
    ) -> Result<Box<dyn PreparedSave>> {
        let guard = cx.comm.guard("planning a save of objects");
        let (objects, tensors) = part(state);
        let writer = agree(&cx.comm, "plan", self.writer(&objects)).await;
        guard.done();
        let of_tensors = with_objects(&objects, cx);
        let objects = match writer? {
            Some(writer) => {
                let cx = SaveCx {
                    policy: None,
                    planner_data: None,
                    kept_plan: cx.kept_plan.as_ref().map(|kept| kept.of_objects()),
                    ..cx.clone()
                };
                match Planned::new(writer).prepare(objects, &cx).await {
                    Ok(objects) => Some(objects),
                    Err(error) => return Err(self.of_both(error, tensors, &of_tensors).await),
                }
            }
            None => None,
        };
        let tensors = self.sharded.prepare(tensors, &of_tensors).await?;
        match objects {
            Some(objects) => Ok(Box::new(Prepared {
                objects,
                tensors: Some(tensors),
                objects_written: false,
                of_objects: 0,
            })),
            None => Ok(tensors),
        }
    }
}

/// Stores nothing but objects, as a common strategy lays them out.
#[derive(Debug)]
struct ObjectWriter {
    common: Arc<dyn SaveCommonStrategy>,
    sharded: BackendVersion,
}

impl WriterHooks for ObjectWriter {
    fn plan_settings(&self) -> Option<String> {
        Some(self.common.key().to_string())
    }
}

impl StorageWriter for ObjectWriter {
    fn key(&self) -> BackendVersion {
        self.common.key()
    }

    fn layout(&self, _rank: u32, plan: &SavePlan, resolve: &Resolve<'_>) -> Result<FileLayout> {
        let mut objects = Vec::with_capacity(plan.items.len());
        for item in &plan.items {
            let WriteData::Object(data) = resolve(item)? else {
                let what = format!(
                    "{}: a tensor was planned where there are only objects",
                    item.key
                );
                return Err(StrategyError::Invalid(what));
            };
            let cell = ShardedObject::empty_from_unique_key(&item.key).ok();
            let cell = cell.unwrap_or_else(|| ShardedObject::item(&item.key, Payload::None));
            objects.push(ShardedObject { data, ..cell });
        }
        let files = match (self.common.layout_objects(&objects)?, objects.first()) {
            (Some(files), _) => files,
            (None, None) => Vec::new(),
            (None, Some(o)) => {
                return Err(nobody(
                    "storing",
                    &o.unique_key(),
                    &self.sharded,
                    Some(&self.common.key()),
                ));
            }
        };
        if !objects.is_empty() && files.is_empty() {
            let what = format!(
                "{} laid out no file for {} objects",
                self.common.key(),
                objects.len()
            );
            return Err(StrategyError::Internal(what));
        }
        // Which of the extents an object is made of, nobody has to know; the first object stands for all, so that they are counted.
        let mut extents = (0..)
            .zip(&files)
            .flat_map(|(n, file)| extents(file).map(move |i| (n, i)))
            .collect();
        let items = plan
            .items
            .iter()
            .map(|item| (item.id(), std::mem::take(&mut extents)))
            .collect();
        Ok(FileLayout {
            files,
            items,
            copied: Vec::new(),
        })
    }

    fn finish(&self, _: &FinishCx<'_>) -> Result<Records> {
        Ok(Records::default())
    }
}

fn extents(file: &FileBody) -> std::ops::Range<u32> {
    match &file.source {
        Source::Extents(extents) => 0..extents.len() as u32,
        Source::CopyOf { .. } => 0..0,
    }
}

/// Both saves, objects first, as Megatron Core writes them.
struct Prepared {
    objects: Box<dyn PreparedSave>,
    /// `None` if the objects of this rank could not be written. Ranks that wait for its tensors in an exchange learn it when they are
    /// dropped.
    tensors: Option<Box<dyn PreparedSave>>,
    objects_written: bool,
    /// How many of the data that were taken out are of objects.
    of_objects: usize,
}

fn dropped() -> StrategyError {
    StrategyError::Internal("tensors are written where objects were not".into())
}

#[async_trait]
impl PreparedSave for Prepared {
    fn take_data(&mut self) -> Result<Vec<Data>> {
        let mut data = self.objects.take_data()?;
        self.of_objects = data.len();
        let tensors = self.tensors.as_mut().ok_or_else(dropped)?;
        data.append(&mut tensors.take_data()?);
        Ok(data)
    }

    fn put_data(&mut self, mut copies: Vec<Data>) -> Result<()> {
        let of_tensors = copies.split_off(self.of_objects.min(copies.len()));
        self.objects.put_data(copies)?;
        let tensors = self.tensors.as_mut().ok_or_else(dropped)?;
        tensors.put_data(of_tensors)
    }

    fn give_up(&mut self, why: &StrategyError) {
        self.objects.give_up(why);
        if let Some(tensors) = &mut self.tensors {
            tensors.give_up(why);
        }
    }

    async fn write(&mut self) -> Result<()> {
        let objects = self.objects.write().await;
        if objects.is_err() {
            self.tensors = None;
        }
        objects?;
        self.objects_written = true;
        self.tensors.as_mut().ok_or_else(dropped)?.write().await
    }

    async fn finish(mut self: Box<Self>, written: Result<()>, comm: &Comm<'_>) -> Result<Saved> {
        // Whose failure it is, says whether the objects were written. If one rank's were not, nobody goes on.
        if !self.objects_written && written.is_err() {
            self.tensors = None;
        }
        let (objects, tensors) = if self.objects_written {
            (Ok(()), written)
        } else {
            (written, Ok(()))
        };
        let objects = self.objects.finish(objects, comm).await?;
        let saved = self
            .tensors
            .ok_or_else(dropped)?
            .finish(tensors, comm)
            .await?;
        both(saved, objects, comm).await
    }
}

/// What was saved of both. Numbers of all ranks are known to the coordinator alone.
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

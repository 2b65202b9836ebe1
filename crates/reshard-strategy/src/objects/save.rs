//! Saves objects with the common strategy, beside a format that stores none.

use super::{nobody, part};
use crate::{
    BackendVersion, FileLayout, FinishCx, PreparedSave, Records, Resolve, Result,
    SaveCommonStrategy, SaveCx, SaveShardedStrategy, StorageWriter, StrategyError, WriteData,
    WriterHooks, agree, pipeline::plan_branch,
};
use reshard_comm::CommError;
use reshard_model::{FlatStateDict, Payload, Sharded, ShardedObject};
use reshard_plan::{Declaration, SavePlan};
use reshard_storage::{FileBody, Source};
use std::sync::Arc;

/// Plans objects with the common strategy, and then the tensors with the format. The same planner plans both separately, and a sharding
/// policy decides only on tensors. If neither strategy stores objects, a save fails only if its state has objects.
pub(crate) async fn prepare(
    strategy: &SaveShardedStrategy,
    state: FlatStateDict,
    cx: &SaveCx<'_>,
) -> Result<PreparedSave> {
    let guard = cx.comm.guard("planning a save of objects");
    let (objects, tensors) = part(state);
    let writer = writer(strategy, &objects);
    let writer = agree(&cx.comm, "plan", writer).await;
    guard.done();
    let of_tensors = with_objects(&objects, cx);
    let branch = match writer? {
        Some(writer) => {
            let cx = SaveCx {
                policy: None,
                planner_data: None,
                kept_plan: cx.kept_plan.as_ref().map(|kept| kept.of_objects()),
                ..cx.clone()
            };
            match plan_branch(Ok(Arc::new(writer)), false, objects, &cx).await {
                Ok(objects) => Some(objects),
                Err(error) => return Err(of_both(strategy, error, tensors, &of_tensors).await),
            }
        }
        None => None,
    };
    let prepared = strategy.prepare_format(tensors, &of_tensors).await?;
    Ok(prepared.with_objects(branch))
}

/// The writer of objects. `None` if there are no objects and the common strategy can't store any.
fn writer(strategy: &SaveShardedStrategy, objects: &FlatStateDict) -> Result<Option<ObjectWriter>> {
    let able = match &strategy.common {
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
            sharded: strategy.key(),
        })),
        (None, None) => Ok(None),
        (None, Some(key)) => {
            let common = strategy.common.as_ref().map(|c| c.key());
            let advice = strategy.capabilities().no_sharded_objects;
            Err(nobody(
                "storing",
                &key,
                advice,
                &strategy.key(),
                common.as_ref(),
            ))
        }
    }
}

/// The error of a save whose objects can't be planned. All ranks have it. It includes the errors of the tensors, which are planned now,
/// with the declarations of the objects.
async fn of_both(
    strategy: &SaveShardedStrategy,
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
    let of_tensors = strategy.prepare_format(tensors, &cx).await.err();
    match (error, of_tensors) {
        (error, None) => error,
        // Only the rank that validates reports both here. Other ranks may have failed at objects alone.
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

/// The context of the tensors: their planner learns of objects too, so that it finds keys that are both.
fn with_objects<'a>(objects: &FlatStateDict, cx: &SaveCx<'a>) -> SaveCx<'a> {
    let mut declares = (*cx.declares).clone();
    (declares.elsewhere).extend(objects.values().map(Declaration::of));
    SaveCx {
        declares: Arc::new(declares),
        ..cx.clone()
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
                    None,
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

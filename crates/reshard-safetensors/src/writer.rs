//! Which bytes a rank writes.

mod file;
mod finish;
mod objects;
mod summed;

use crate::{
    names,
    overhead::entry_bytes,
    place::{self, Files},
    planner::WithEmpty,
    settings::SafetensorsConfig,
};
use file::NewFile;
use reshard_model::ObjectCodec;
use reshard_plan::{SavePlan, SavePlanner, WriteItem};
use reshard_strategy::{
    BackendVersion, FileLayout, FinishCx, Footprint, PolicyUse, Records, Resolve, Result,
    StorageWriter, StrategyError, WriterHooks,
};
use reshard_torch_format::TorchSave;
use std::{collections::BTreeMap, sync::Arc};

/// Writes what `transformers` or PyTorch DCP write.
#[derive(Clone, Debug)]
pub(crate) struct SafetensorsWriter {
    pub(crate) settings: SafetensorsConfig,
    /// The name of the one file that the checkpoint is, if it is one.
    pub(crate) file: Option<String>,
}

impl WriterHooks for SafetensorsWriter {
    fn plan_settings(&self) -> Option<String> {
        Some(format!("{:?} {:?}", self.settings, self.file))
    }

    fn prepare_local_plan(&self, plan: SavePlan) -> Result<SavePlan> {
        for item in &plan.items {
            place::storable(item, &self.settings, self.file.as_deref())?;
        }
        Ok(plan)
    }

    fn prepare_global_plan(&self, plans: Vec<SavePlan>) -> Result<Vec<SavePlan>> {
        match self.settings.sharded {
            true => place::sharded(plans, &self.settings.name),
            false => place::whole(plans, &self.settings, self.file.as_deref()),
        }
    }
}

impl StorageWriter for SafetensorsWriter {
    fn key(&self) -> BackendVersion {
        BackendVersion::new(names::NAME, 1)
    }

    fn planner(&self, base: Arc<dyn SavePlanner>) -> Result<Arc<dyn SavePlanner>> {
        Ok(Arc::new(WithEmpty { base }))
    }

    fn codec(&self) -> Option<Arc<dyn ObjectCodec>> {
        let codec = || -> Arc<dyn ObjectCodec> { Arc::new(TorchSave::default()) };
        self.settings.keep_objects.then(codec)
    }

    fn policy_use(&self) -> PolicyUse {
        match (&self.file, self.settings.sharded) {
            (Some(_), _) => PolicyUse::Limit,
            (None, true) => PolicyUse::Refused,
            (None, false) => PolicyUse::Pipeline,
        }
    }

    fn footprint(&self, item: &WriteItem) -> Result<Footprint> {
        let overhead = match item.tensor() {
            Some(t) => entry_bytes(&item.key, t.dtype, &t.global_shape)?,
            None => 0,
        };
        Ok(Footprint {
            whole: !self.settings.sharded,
            overhead,
        })
    }

    fn file_overhead(&self, plans: &[SavePlan]) -> Result<u64> {
        let planned = plans.first().map_or(&[][..], |plan| &plan.storage_data);
        Files::unpack(planned)?.overhead()
    }

    fn layout(&self, _rank: u32, plan: &SavePlan, resolve: &Resolve<'_>) -> Result<FileLayout> {
        let Files {
            names,
            of,
            empty,
            texts,
        } = Files::unpack(&plan.storage_data)?;
        let mut files: Vec<BTreeMap<&str, Vec<&WriteItem>>> = vec![BTreeMap::new(); names.len()];
        let mut pieces: BTreeMap<&str, u32> = BTreeMap::new();
        let (mut out, mut objects) = (FileLayout::default(), Vec::new());
        for item in &plan.items {
            if item.tensor().is_none() {
                objects.push(item);
                continue;
            }
            if !place::has_elements(&item) {
                out.items.push((item.id(), Vec::new()));
                continue;
            }
            let number = match self.settings.sharded {
                true => {
                    let next = pieces.entry(&item.key).or_default();
                    *next += 1;
                    Some(*next - 1)
                }
                false => of.get(&item.key).copied(),
            };
            let file = number.and_then(|n| files.get_mut(n as usize));
            let unplanned = || StrategyError::Internal(format!("{} is in no file", item.id()));
            file.ok_or_else(unplanned)?
                .entry(&item.key)
                .or_default()
                .push(item);
        }
        let mut empty = &empty[..];
        for (name, tensors) in names.into_iter().zip(files) {
            let n = out.files.len() as u32;
            let (body, items) = NewFile::of(
                tensors,
                (std::mem::take(&mut empty), &texts),
                &self.settings,
                resolve,
            )?
            .body(name)?;
            out.files.push(body);
            let extents = |of: Vec<u32>| of.into_iter().map(|extent| (n, extent)).collect();
            let items = items.into_iter().map(|(id, of)| (id, extents(of)));
            out.items.extend(items);
        }
        objects::add(objects, resolve, &mut out)?;
        Ok(out)
    }

    fn finish(&self, cx: &FinishCx<'_>) -> Result<Records> {
        if cx.rank.is_some() {
            return Err(StrategyError::Unsupported {
                strategy: self.key().to_string(),
                what: "a rank-local checkpoint, because a tensor lies in one file,".into(),
            });
        }
        finish::records(cx, &self.settings, self.file.as_deref())
    }
}

//! Which bytes go into which data file, and the index of all of them.

mod item;
mod table;
mod whole;

use crate::{
    TensorBundleConfig, dtype,
    graph::OBJECT_GRAPH,
    names::{self, KEY, RECORD, STATE, VERSION},
    object::{CODEC, Codec, Object},
    state_file::CheckpointState,
};
use bytes::Bytes;
use item::{Summed, is_stored};
use reshard_model::{ObjectCodec, Payload};
use reshard_plan::{SavePlan, TensorWrite, WriteItem};
use reshard_storage::{Extent, FileBody, Name};
use reshard_strategy::{
    BackendVersion, FileLayout, FinishCx, Footprint, PolicyUse, Records, Resolve, Result,
    StorageWriter, StrategyError, WriterHooks,
};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, sync::Arc};

/// Writes a bundle.
#[derive(Clone, Debug)]
pub(crate) struct BundleWriter(pub(crate) TensorBundleConfig);

/// The numbers of a rank's files, which travel in its plan.
#[derive(Serialize, Deserialize)]
struct Numbers {
    /// That of its first file.
    first: u32,
    /// How many files the checkpoint has.
    of: u32,
}

impl BundleWriter {
    fn unsupported(&self, what: String) -> StrategyError {
        StrategyError::Unsupported {
            strategy: self.key().to_string(),
            what,
        }
    }

    /// Fails for what a bundle can't hold.
    fn check(&self, item: &WriteItem) -> Result<()> {
        if item.key.is_empty() || item.key.starts_with('\0') {
            let what = format!(
                "the key {:?}, because such names mean something else in an index,",
                item.key
            );
            return Err(self.unsupported(what));
        }
        match item.tensor() {
            Some(t) if dtype::number(t.dtype).is_none() => {
                let what = format!(
                    "{}: elements of {}, which TensorFlow does not have; cast the tensor, or leave it out; this",
                    item.key, t.dtype
                );
                Err(self.unsupported(what))
            }
            Some(t) if t.global_shape.len() > crate::entry::MAX_AXES => Err(self.unsupported(
                format!("{}: a tensor of {} axes", item.key, t.global_shape.len()),
            )),
            _ => Ok(()),
        }
    }

    /// Fails if two items would get one name.
    fn distinct<'k>(&self, items: impl Iterator<Item = &'k WriteItem>) -> Result<()> {
        let mut by_name: BTreeMap<String, &str> = BTreeMap::new();
        for item in items {
            let name = match item.tensor() {
                Some(_) => self.0.name(&item.key),
                None => item.key.to_string(),
            };
            let other = by_name.entry(name).or_insert(&item.key);
            if **other != *item.key {
                let what = format!(
                    "{other} and {} would get one name in the index; rename one of them, or leave out object_names",
                    item.key
                );
                return Err(StrategyError::Invalid(what));
            }
        }
        Ok(())
    }
}

fn unnumbered(e: serde_json::Error) -> StrategyError {
    StrategyError::Internal(format!(
        "a plan does not say which numbers its files have: {e}"
    ))
}

/// Whether an item has all of its tensor.
fn is_all(t: &TensorWrite) -> bool {
    t.region.lengths == t.global_shape
}

impl WriterHooks for BundleWriter {
    fn plan_settings(&self) -> Option<String> {
        Some(format!("{:?}", self.0))
    }

    fn prepare_local_plan(&self, plan: SavePlan) -> Result<SavePlan> {
        plan.items.iter().try_for_each(|item| self.check(item))?;
        Ok(plan)
    }

    /// The name of a data file tells how many there are. So each rank learns which numbers its files have. The object graph that the
    /// save makes is in a file of its own, the last one, because it is known only when everything else is.
    fn prepare_global_plan(&self, mut plans: Vec<SavePlan>) -> Result<Vec<SavePlan>> {
        whole::bring_together(&mut plans)?;
        let items = || plans.iter().flat_map(|plan| &plan.items);
        let tensors = items().filter(|item| item.tensor().is_some());
        self.distinct(items())?;
        let has_graph = items().any(|item| *item.key == *OBJECT_GRAPH);
        let makes_graph = !has_graph && self.0.makes_graph(tensors.map(|item| &*item.key));
        let counts = plans.iter().map(|plan| {
            let files = plan.by_file()?.into_iter();
            Ok(files.filter(|items| items.iter().any(is_stored)).count())
        });
        let counts: Vec<usize> = counts.collect::<Result<_>>()?;
        let total: usize = counts.iter().sum::<usize>() + usize::from(makes_graph);
        let too_many = |_| self.unsupported(format!("a checkpoint of {total} files"));
        // TensorFlow opens the file of a tensor without elements, too.
        let of = u32::try_from(total).map_err(too_many)?.max(1);
        let mut first = 0u32;
        for (plan, count) in plans.iter_mut().zip(counts) {
            let numbers = serde_json::to_vec(&Numbers { first, of });
            plan.storage_data = numbers.map_err(unnumbered)?.into();
            first += u32::try_from(count).map_err(too_many)?;
        }
        Ok(plans)
    }
}

impl StorageWriter for BundleWriter {
    fn key(&self) -> BackendVersion {
        BackendVersion::new(KEY, VERSION)
    }

    fn codec(&self) -> Option<Arc<dyn ObjectCodec>> {
        Some(Arc::new(Codec::default()))
    }

    fn policy_use(&self) -> PolicyUse {
        PolicyUse::Pipeline
    }

    /// A data file holds nothing but elements and objects.
    fn footprint(&self, item: &WriteItem) -> Result<Footprint> {
        Ok(Footprint {
            whole: whole::whole(item).is_some(),
            overhead: 0,
        })
    }

    fn object_bytes(&self, encoded: &Bytes) -> u64 {
        Object::parse(encoded).map_or(0, |object| object.stored.len() as u64)
    }

    fn blank_object(&self, bytes: u64) -> Result<Payload> {
        Ok(Payload::Encoded {
            codec: CODEC,
            bytes: Object::blank(bytes).to_bytes(),
        })
    }

    fn layout(&self, _: u32, plan: &SavePlan, resolve: &Resolve<'_>) -> Result<FileLayout> {
        let numbers: Numbers = serde_json::from_slice(&plan.storage_data).map_err(unnumbered)?;
        let mut out = FileLayout::default();
        for items in plan.by_file()? {
            let mut extents: Vec<Box<dyn Extent>> = Vec::new();
            let mut wholes: BTreeMap<&str, Vec<&WriteItem>> = BTreeMap::new();
            for item in items {
                if !is_stored(item) {
                    out.items.push((item.id(), Vec::new()));
                    continue;
                }
                // A tensor in one part stays at its place in the file.
                if whole::whole(item).is_some_and(|t| !t.region.is_empty() && !is_all(t)) {
                    wholes.entry(&item.key).or_default().push(item);
                    continue;
                }
                let at = (out.files.len() as u32, extents.len() as u32);
                extents.push(Box::new(Summed::of(item, resolve(item)?)?));
                out.items.push((item.id(), vec![at]));
            }
            // All parts of such a tensor are one extent, which belongs to the first of them.
            for items in wholes.into_values() {
                let at = (out.files.len() as u32, extents.len() as u32);
                extents.push(Box::new(whole::summed(&items, resolve)?));
                let ids = items.iter().map(|item| item.id());
                let parts = std::iter::once(vec![at]).chain(std::iter::repeat(Vec::new()));
                out.items.extend(ids.zip(parts));
            }
            if extents.is_empty() {
                continue;
            }
            let shard = numbers.first.saturating_add(out.files.len() as u32);
            let name = Name::new(names::data(self.0.stem(), shard, numbers.of))?;
            out.files.push(FileBody::new(name, extents));
        }
        Ok(out)
    }

    fn finish(&self, cx: &FinishCx<'_>) -> Result<Records> {
        if cx.rank.is_some() {
            return Err(self.unsupported(
                "a rank-local checkpoint, because files are numbered over all ranks,".into(),
            ));
        }
        let table::Described {
            index,
            mut record,
            data,
        } = table::describe(&self.0, cx)?;
        let mut out = Records::default();
        if let Some((name, bytes)) = data {
            out.files.push((Name::new(name)?, bytes));
        }
        if !record.is_empty() {
            record.index = crc32c::crc32c(&index);
            let bytes = record.to_bytes();
            let bytes = bytes.map_err(|e| StrategyError::Internal(format!("{RECORD}: {e}")))?;
            out.files
                .push((Name::new(format!("{}{RECORD}", self.0.stem()))?, bytes));
        }
        if self.0.checkpoint_state {
            let state = CheckpointState::latest(self.0.stem()).to_string();
            out.files.push((Name::new(STATE)?, state.into()));
        }
        out.commit = Some((
            Name::new(format!("{}{}", self.0.stem(), names::INDEX))?,
            index.into(),
        ));
        Ok(out)
    }
}

//! The bytes of files: pickles, and storages that stream.

mod archive;

use crate::{
    NAME,
    chosen::{Target, TorchSaveWriter},
    dicts,
    index::Index,
    names::{INDEX, prefix},
    planner::WholeTensors,
    subclasses::joined,
    told::{FilePlan, Files, Receipt, What, unpack},
    tree::{described, encoding, tree_of},
};
use archive::{FileExtent, Source};
use reshard_model::{DType, Data, Layout, ObjectCodec, Payload, Value};
use reshard_plan::{SavePlan, SavePlanner, WriteItem};
use reshard_policy::PolicyMetrics;
use reshard_storage::{FileBody, Name};
use reshard_strategy::{
    BackendVersion, Blocks, Elements, FileLayout, FinishCx, Footprint, Piece, PolicyUse, Records,
    Resolve, Result, StorageWriter, StrategyError, WriteData, WriterHooks, decode_object, mosaic,
    run_of,
};
use reshard_torch_format::{
    Part, TorchSave,
    archive::{ArchiveLayout, ArchiveOptions},
    encode_tree,
};
use std::{collections::BTreeMap, sync::Arc, time::Duration};

impl WriterHooks for TorchSaveWriter {
    fn plan_settings(&self) -> Option<String> {
        Some(self.file_name().into())
    }
}

impl StorageWriter for TorchSaveWriter {
    fn key(&self) -> BackendVersion {
        BackendVersion::new(NAME, 1)
    }

    fn planner(&self, base: Arc<dyn SavePlanner>) -> Result<Arc<dyn SavePlanner>> {
        let writer = self.clone();
        Ok(Arc::new(WholeTensors { base, writer }))
    }

    fn codec(&self) -> Option<Arc<dyn ObjectCodec>> {
        Some(Arc::new(TorchSave::default()))
    }

    fn policy_use(&self) -> PolicyUse {
        match self.target {
            Target::File(_) => PolicyUse::Limit,
            Target::Folder => PolicyUse::Format,
        }
    }

    fn policy_metrics(&self) -> Option<PolicyMetrics> {
        self.asked.get().cloned()
    }

    fn footprint(&self, _: &WriteItem) -> Result<Footprint> {
        Ok(Footprint {
            whole: true,
            overhead: 0,
        })
    }

    /// A value of about this length, because the file has no encoded objects.
    fn blank_object(&self, bytes: u64) -> Result<Payload> {
        let bytes = vec![0; usize::try_from(bytes).unwrap_or_default()];
        Ok(Payload::Value(Value::Bytes(bytes.into())))
    }

    fn layout(&self, _rank: u32, plan: &SavePlan, resolve: &Resolve<'_>) -> Result<FileLayout> {
        let Files(files) = unpack(&plan.storage_data)?;
        let mut items: BTreeMap<&str, Vec<&WriteItem>> = BTreeMap::new();
        for item in &plan.items {
            items.entry(&item.key).or_default().push(item);
        }
        let mut out = FileLayout::default();
        for (n, file) in (0..).zip(&files) {
            out.files.push(self.file(file, &items, resolve)?);
            // The file is one extent, because what stands at its end depends on all of it. It counts as the first item's.
            let own = file.leaves.iter().filter_map(|leaf| items.get(&*leaf.key));
            for (i, item) in own.flatten().enumerate() {
                let extents = if i == 0 { vec![(n, 0)] } else { Vec::new() };
                out.items.push((item.id(), extents));
            }
        }
        Ok(out)
    }

    fn finish(&self, cx: &FinishCx<'_>) -> Result<Records> {
        let (mut weight_map, mut policy) = (BTreeMap::new(), None);
        for part in cx.written.iter().flatten().flat_map(|item| &item.parts) {
            let receipt: Receipt = unpack(&part.receipt)?;
            policy = policy.or(receipt.policy);
            if receipt.indexed {
                let own = receipt.keys.into_iter();
                weight_map.extend(own.map(|key| (key, part.file.to_string())));
            }
        }
        if let Some(metrics) = &mut policy {
            let asked = self.asked.get();
            metrics.duration = asked.map_or(Duration::ZERO, |asked| asked.duration);
        }
        let mut records = Records {
            policy,
            ..Records::default()
        };
        if weight_map.is_empty() {
            return Ok(records);
        }
        let total = cx.metadata.tensors().map(|t| t.bytes());
        let total = total.fold(0, u64::saturating_add);
        let index = Index::new(total, weight_map, cx.metadata.planner_data());
        records.commit = Some((Name::new(INDEX)?, index.to_bytes()?));
        Ok(records)
    }
}

impl TorchSaveWriter {
    fn file(
        &self,
        file: &FilePlan,
        items: &BTreeMap<&str, Vec<&WriteItem>>,
        resolve: &Resolve<'_>,
    ) -> Result<FileBody> {
        let (mut parts, mut sources) = (Vec::new(), Vec::<Source>::new());
        let mut shared: BTreeMap<Shared, usize> = BTreeMap::new();
        for leaf in &file.leaves {
            let own = items.get(&*leaf.key).map_or(&[][..], Vec::as_slice);
            let part = match &leaf.what {
                What::Object => Part::Value(object(&leaf.key, own, resolve)?),
                What::Tensor { shape, python, .. } => {
                    let tensor = described(&leaf.what)?;
                    let bytes = tensor.storage.len;
                    let (blocks, who) = elements(&leaf.key, shape, bytes, own, resolve)?;
                    let number = match who.as_ref().and_then(|who| shared.get(who)) {
                        Some(number) => *number,
                        None => {
                            sources.push(Source { blocks, bytes });
                            let number = sources.len() - 1;
                            shared.extend(who.map(|who| (who, number)));
                            number
                        }
                    };
                    match python.is_again {
                        true => Part::Again(tensor, number),
                        false => Part::Tensor(tensor, number),
                    }
                }
            };
            parts.push((leaf, part));
        }
        let leaves = joined(&file.subclasses, parts)?;
        let (plans, trees): (Vec<_>, Vec<_>) = leaves.into_iter().unzip();
        let leaves = plans.iter().map(AsRef::as_ref).zip(trees);
        let classes = dicts::classes(&file.dicts)?;
        let tree = tree_of(leaves.collect(), &file.empty, (file.indexed, classes));
        let encoded = encode_tree(&tree).map_err(encoding)?;
        let lengths = archive::lengths(&encoded.storages, &sources)?;
        let folder = match file.indexed {
            true => prefix(&file.name),
            false => prefix(self.file_name()),
        };
        let options = ArchiveOptions::default().with_prefix(folder);
        let layout = ArchiveLayout::new(&encoded.pickle, &lengths, &options).map_err(encoding)?;
        let receipt = Receipt {
            indexed: file.indexed,
            keys: file.leaves.iter().map(|leaf| leaf.key.clone()).collect(),
            policy: file.policy.clone(),
        };
        let receipt = crate::told::pack(&receipt)?;
        let extent = FileExtent::new(layout, encoded.storages, sources, receipt);
        let name = Name::new(file.name.as_str())?;
        Ok(FileBody::new(name, vec![Box::new(extent)]))
    }
}

/// Elements that several leaves may have.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Shared {
    /// In the caller's memory: by their buffer, type and place.
    Memory(usize, DType, u64, u64),
    /// Of a source that says which they are.
    Source(String, DType),
}

fn object(key: &str, items: &[&WriteItem], resolve: &Resolve<'_>) -> Result<Value> {
    let [item] = items else {
        let what = format!("{key}: an object of {} items is planned", items.len());
        return Err(StrategyError::Internal(what));
    };
    match resolve(item)? {
        WriteData::Object(Payload::None) => Err(StrategyError::Invalid(format!(
            "object {key} has no data to save"
        ))),
        WriteData::Object(payload) => decode_object(&TorchSave::default(), key, payload),
        WriteData::Tensor(_) => Err(StrategyError::Invalid(format!(
            "{key}: a tensor was given for an object"
        ))),
    }
}

/// The elements of a tensor, made of its pieces, in row-major order; and which elements they are, if they lie in one piece
/// in host memory, or come from one source that knows it.
fn elements(
    key: &str,
    shape: &[u64],
    bytes: u64,
    items: &[&WriteItem],
    resolve: &Resolve<'_>,
) -> Result<(Blocks, Option<Shared>)> {
    let mut runs = Vec::with_capacity(items.len());
    let mut pieces = Vec::with_capacity(items.len());
    let (mut who, mut planned) = (None, 0u64);
    for item in items {
        let WriteData::Tensor(data) = resolve(item)? else {
            return Err(StrategyError::Invalid(format!(
                "{key}: an object was given for a tensor"
            )));
        };
        let lost = || StrategyError::Internal(format!("{key}: an object is planned in a tensor"));
        let t = item.tensor().ok_or_else(lost)?;
        let size = t.dtype.size();
        who = match (&data, items) {
            (Data::Host(host), [_]) if host.layout().is_contiguous() && host.nbytes() > 0 => {
                let hull = host.layout().hull();
                let buffer = host.buffer_id();
                Some(Shared::Memory(buffer, t.dtype, hull.start, hull.end))
            }
            (Data::Lazy(source), [_]) if t.bytes() == bytes => {
                source.identity().map(|id| Shared::Source(id, t.dtype))
            }
            _ => None,
        };
        planned = planned.saturating_add(t.bytes());
        let run = run_of(&t.region, shape);
        pieces.push(Piece::new(t.region.clone(), size, &data));
        runs.push((run, Elements::of(item, t, data)?, size));
    }
    // The base planner has checked that the pieces cover the tensor once.
    if planned != bytes {
        let what = format!("{key}: {planned} of {bytes} bytes are planned");
        return Err(StrategyError::Internal(what));
    }
    if items.is_empty() {
        return Ok((Box::new(std::iter::empty()), None));
    }
    let size = runs.first().map_or(1, |(.., size)| *size);
    if runs.iter().all(|(run, ..)| run.is_some()) {
        runs.sort_by_key(|(run, ..)| run.as_ref().map(|run| run.start));
        let all = runs.into_iter().map(|(_, elements, _)| elements);
        return Ok((Box::new(all.flat_map(Elements::blocks)), who));
    }
    debug_assert!(Layout::contiguous(size, shape).is_some());
    Ok((mosaic(shape.into(), size, pieces), who))
}

//! Layout of `.distcp` files.

use crate::{
    Flavour, NAME,
    blob::{Blob, Form},
    buckets::Buckets,
    metadata::{self, StorageMeta},
    object,
    producer::COMMON_STATE,
};
use reshard_model::{DType, Data, Dialect, Dims, Layout, ObjectCodec};
use reshard_plan::{Offer, SavePlan, SavePlanner, TensorWrite, WriteItem, WriteKind};
use reshard_policy::ShardingPolicy;
use reshard_storage::{Extent, FileBody, Name};
use reshard_strategy::{
    BackendVersion, Elements, FileLayout, FinishCx, Footprint, PolicyUse, Records, Resolve, Result,
    StorageWriter, StrategyError, WriteData, WriterHooks, other_kind,
};
use reshard_torch_format::{
    TensorRef, TorchSave,
    archive::{ALIGNMENT, ArchiveLayout, ArchiveOptions},
};
use std::{collections::BTreeMap, sync::Arc};

/// Writes what PyTorch's FileSystemWriter writes.
#[derive(Debug)]
pub(crate) struct TorchDistWriter {
    pub(crate) flavour: Flavour,
    /// How the configuration spreads items over files.
    pub(crate) policy: Option<Arc<dyn ShardingPolicy>>,
    /// How Megatron Core's settings do.
    pub(crate) buckets: Option<Buckets>,
    pub(crate) archive: ArchiveOptions,
    pub(crate) keep_strides: bool,
    /// Whether any rank with a replica may write it.
    pub(crate) any_replica: bool,
}

impl WriterHooks for TorchDistWriter {
    /// Plans depend on the policy alone.
    fn plan_settings(&self) -> Option<String> {
        Some(String::new())
    }
}

impl StorageWriter for TorchDistWriter {
    fn key(&self) -> BackendVersion {
        BackendVersion::new(NAME, 1)
    }

    fn object_lists(&self) -> bool {
        true
    }

    fn planner(&self, base: Arc<dyn SavePlanner>) -> Result<Arc<dyn SavePlanner>> {
        let what = "keep_only_main_replica is a setting of the default planner; let your planner offer the replicas, and leave the setting out";
        let unable = || StrategyError::Invalid(what.into());
        match self.any_replica {
            true => base.with_offer(Offer::AllReplicas).ok_or_else(unable),
            false => Ok(base),
        }
    }

    fn codec(&self) -> Option<Arc<dyn ObjectCodec>> {
        Some(Arc::new(TorchSave::default()))
    }

    fn policy_use(&self) -> PolicyUse {
        PolicyUse::Pipeline
    }

    fn policy(&self) -> Option<Arc<dyn ShardingPolicy>> {
        self.policy.clone()
    }

    /// Every chunk is an archive, whose length grows with that of its pickle. A part of the chunk has smaller numbers in its pickle, and
    /// at most one step of alignment more behind its elements.
    fn footprint(&self, item: &WriteItem) -> Result<Footprint> {
        let Some(t) = item.tensor() else {
            return Ok(Footprint::default());
        };
        let shape = &t.region.lengths;
        let described = TensorRef::contiguous(t.dtype, shape).map_err(format_error)?;
        let mut pickle = described.pickle().map_err(format_error)?;
        if self.keep_strides {
            // Other strides than row-major ones may have longer numbers.
            pickle.resize(pickle.len() + LONGEST_NUMBER * shape.len(), 0);
        }
        let layout =
            ArchiveLayout::new(&pickle, &[t.bytes()], &self.archive).map_err(format_error)?;
        Ok(Footprint {
            whole: false,
            overhead: layout.len().saturating_sub(t.bytes()) + ALIGNMENT,
        })
    }

    fn layout(&self, rank: u32, plan: &SavePlan, resolve: &Resolve<'_>) -> Result<FileLayout> {
        let mut out = FileLayout::default();
        let mut forms = FormsByShape::default();
        for (n, (prefix, items)) in (0..).zip(self.files(plan)?) {
            let mut extents = Vec::with_capacity(items.len());
            for (i, item) in (0..).zip(objects_first(&items)) {
                extents.push(self.extent(item, resolve(item)?, &mut forms)?);
                out.items.push((item.id(), vec![(n, i)]));
            }
            out.files.push(FileBody::new(
                Name::new(format!("{prefix}__{rank}_{n}.distcp"))?,
                extents,
            ));
        }
        Ok(out)
    }

    fn finish(&self, cx: &FinishCx<'_>) -> Result<Records> {
        let name = match cx.rank {
            None => crate::METADATA.to_string(),
            Some(r) => format!("__{r}.metadata"),
        };
        let meta = StorageMeta::of_save(cx.url);
        // Versions that look it up know no common state that is an object.
        let mcore_data =
            cx.dialect == Dialect::Megatron && cx.metadata.object(COMMON_STATE).is_none();
        let bytes = metadata::write(cx.metadata, cx.written, self.flavour, &meta, mcore_data)?;
        Ok(Records::one(Name::new(name)?, bytes.into()))
    }
}

/// By element type, shape and strides: a model has few of them, and many tensors.
type FormsByShape = BTreeMap<(DType, Dims, Dims), Arc<Form>>;

impl TorchDistWriter {
    /// The items of each file, and what its name begins with.
    fn files<'a>(&'a self, plan: &'a SavePlan) -> Result<Vec<(&'a str, Vec<&'a WriteItem>)>> {
        let by_policy = !plan.files.is_empty();
        let Some(buckets) = &self.buckets else {
            let files = plan.by_file()?.into_iter();
            return Ok(files.map(|file| ("", file.iter().collect())).collect());
        };
        let mut files = match by_policy {
            // A policy decides on files, but not on their names.
            true => {
                let files = plan.by_file()?.into_iter();
                buckets.separate(files.map(|file| file.iter().collect()).collect())
            }
            false => buckets.split(&plan.items),
        };
        files.retain(|(_, items)| !items.is_empty());
        Ok(files)
    }

    fn extent(
        &self,
        item: &WriteItem,
        data: WriteData,
        forms: &mut FormsByShape,
    ) -> Result<Box<dyn Extent>> {
        match (&item.kind, data) {
            (WriteKind::Tensor(t), WriteData::Tensor(data)) => self.tensor(item, t, data, forms),
            (WriteKind::Object { .. }, WriteData::Object(payload)) => {
                object::extent(&item.key, payload)
            }
            _ => Err(other_kind(item)),
        }
    }

    fn tensor(
        &self,
        item: &WriteItem,
        t: &TensorWrite,
        data: Data,
        forms: &mut FormsByShape,
    ) -> Result<Box<dyn Extent>> {
        let too_large = || StrategyError::Invalid(format!("{}: the chunk is too large", item.key));
        let shape = &t.region.lengths;
        let elements = Elements::of(item, t, data)?;
        // A dense tensor in its memory order, with its strides, as PyTorch stores it; one with gaps row-major.
        if self.keep_strides
            && let Some(host) = elements.host().filter(|h| h.shape().len() == shape.len())
            && let Some(flat) = host.in_memory_order()
        {
            let strides = host.layout().strides().clone();
            let layout =
                Layout::new(t.dtype.size(), 0, shape.clone(), strides).ok_or_else(too_large)?;
            return self.blob(t, &layout, flat.into(), forms);
        }
        let layout = Layout::contiguous(t.dtype.size(), shape).ok_or_else(too_large)?;
        self.blob(t, &layout, elements, forms)
    }

    fn blob(
        &self,
        t: &TensorWrite,
        layout: &Layout,
        elements: Elements,
        forms: &mut FormsByShape,
    ) -> Result<Box<dyn Extent>> {
        let which = (t.dtype, layout.shape().clone(), layout.strides().clone());
        if let Some(form) = forms.get(&which) {
            return Ok(Box::new(Blob::new(Arc::clone(form), elements)));
        }
        let mut described = TensorRef::contiguous(t.dtype, layout.shape()).map_err(format_error)?;
        described.strides = layout.strides().clone();
        let pickle = described.pickle().map_err(format_error)?;
        let archive =
            ArchiveLayout::new(&pickle, &[layout.bytes()], &self.archive).map_err(format_error)?;
        let form = Arc::new(Form::new(archive));
        forms.insert(which, Arc::clone(&form));
        Ok(Box::new(Blob::new(form, elements)))
    }
}

/// The bytes of the longest integer of 64 bits in a pickle.
const LONGEST_NUMBER: usize = 11;

fn format_error(e: reshard_torch_format::Error) -> StrategyError {
    StrategyError::Invalid(e.to_string())
}

/// As PyTorch orders a file.
fn objects_first<'a>(items: &'a [&'a WriteItem]) -> impl Iterator<Item = &'a WriteItem> {
    let of = |objects: bool| {
        items
            .iter()
            .copied()
            .filter(move |i| i.tensor().is_none() == objects)
    };
    of(true).chain(of(false))
}

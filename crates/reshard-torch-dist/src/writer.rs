//! Layout of `.distcp` files.

use crate::{
    Flavour, NAME, Spread,
    blob::{Blob, Elements},
    metadata,
};
use bytes::Bytes;
use reshard_model::{Data, Dims, Layout, ObjectCodec, Payload, Region};
use reshard_plan::{Metadata, TensorWrite, WriteItem, WriteKind};
use reshard_storage::{Extent, FileBody, Name};
use reshard_strategy::{
    BackendVersion, FileLayout, Placed, Resolve, Result, StorageWriter, StrategyError, WriteData,
};
use reshard_torch_format::{
    TensorRef, TorchSave,
    archive::{ArchiveLayout, ArchiveOptions},
};
use std::sync::{Mutex, PoisonError};

/// Writes what PyTorch's FileSystemWriter writes.
#[derive(Debug)]
pub(crate) struct TorchDistWriter {
    pub(crate) flavour: Flavour,
    pub(crate) spread: Spread,
    pub(crate) archive: ArchiveOptions,
    pub(crate) keep_strides: bool,
    pub(crate) url: Mutex<String>,
}

impl StorageWriter for TorchDistWriter {
    fn key(&self) -> BackendVersion {
        BackendVersion::new(NAME, 1)
    }

    fn object_lists(&self) -> bool {
        true
    }

    fn reset(&self, url: &str) {
        *self.url.lock().unwrap_or_else(PoisonError::into_inner) = url.into();
    }

    fn layout(&self, rank: u32, items: &[WriteItem], resolve: &Resolve<'_>) -> Result<FileLayout> {
        let mut out = FileLayout::default();
        for (n, bucket) in self.buckets(items).into_iter().enumerate() {
            let name = Name::new(format!("__{rank}_{n}.distcp"))?;
            let (mut at, mut extents) = (0u64, Vec::with_capacity(bucket.len()));
            for item in bucket {
                let extent = self.extent(item, resolve(item)?)?;
                let length = extent.len();
                out.placed.push(Placed { id: item.id(), file: name.clone(), offset: at, length });
                extents.push(extent);
                at = at
                    .checked_add(length)
                    .ok_or_else(|| StrategyError::Invalid(format!("{name} is too long")))?;
            }
            out.files.push(FileBody { name, extents });
        }
        Ok(out)
    }

    fn finish(&self, md: &Metadata, placed: &[Vec<Placed>], rank: Option<u32>) -> Result<Vec<(Name, Bytes)>> {
        let name = match rank {
            None => crate::METADATA.to_string(),
            Some(r) => format!("__{r}.metadata"),
        };
        let url = self.url.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let bytes = metadata::write(md, placed, self.flavour, &url)?;
        Ok(vec![(Name::new(name)?, bytes.into())])
    }
}

impl TorchDistWriter {
    /// Objects first, then tensors, as in PyTorch. Over several files, objects go round robin and tensors, largest first, to
    /// the file with the fewest bytes.
    fn buckets<'i>(&self, items: &'i [WriteItem]) -> Vec<Vec<&'i WriteItem>> {
        let (objects, tensors): (Vec<_>, Vec<_>) =
            items.iter().partition(|i| matches!(i.kind, WriteKind::Object { .. }));
        let files = match self.spread {
            Spread::FilePerItem => return items.iter().map(|i| vec![i]).collect(),
            Spread::Files(1) if items.is_empty() => return Vec::new(),
            Spread::Files(1) => return vec![objects.into_iter().chain(tensors).collect()],
            Spread::Files(n) => n.max(1) as usize,
        };
        let mut out: Vec<(u64, Vec<&WriteItem>)> = vec![(0, Vec::new()); files];
        for (i, item) in objects.into_iter().enumerate() {
            out[i % files].1.push(item);
        }
        let bytes = |i: &WriteItem| i.tensor().map_or(0, TensorWrite::bytes);
        let mut tensors = tensors;
        tensors.sort_by_key(|i| std::cmp::Reverse(bytes(i)));
        for item in tensors {
            let lightest = (0..files).min_by_key(|&f| out[f].0).unwrap_or(0);
            out[lightest].0 += bytes(item);
            out[lightest].1.push(item);
        }
        out.into_iter().map(|(_, items)| items).collect()
    }

    fn extent(&self, item: &WriteItem, data: WriteData) -> Result<Box<dyn Extent>> {
        match (&item.kind, data) {
            (WriteKind::Tensor(t), WriteData::Tensor(data)) => self.tensor(item, t, data),
            (WriteKind::Object { .. }, WriteData::Object(payload)) => self.object(item, payload),
            _ => Err(StrategyError::Invalid(format!(
                "{}: an object was given for a tensor, or a tensor for an object",
                item.key
            ))),
        }
    }

    fn object(&self, item: &WriteItem, payload: Payload) -> Result<Box<dyn Extent>> {
        let codec = TorchSave::default();
        let bytes = match payload {
            Payload::Encoded { codec: name, bytes } if name == codec.name() => bytes,
            Payload::Encoded { codec: name, .. } => {
                let what = format!(
                    "{}: an object encoded as {name} can't be stored here; decode it first",
                    item.key
                );
                return Err(StrategyError::Invalid(what));
            }
            Payload::Value(v) => codec.encode(&v).map_err(|source| StrategyError::Object {
                key: item.key.to_string(),
                what: "it can't be encoded",
                source,
            })?,
            Payload::None => {
                return Err(StrategyError::Invalid(format!("object {} has no data to save", item.key)));
            }
        };
        Ok(Box::new(bytes))
    }

    fn tensor(&self, item: &WriteItem, t: &TensorWrite, data: Data) -> Result<Box<dyn Extent>> {
        let shape = &t.region.lengths;
        let invalid = |what: String| StrategyError::Invalid(format!("{}: {what}", item.key));
        if let Some((dtype, have)) = data.spec()
            && (dtype != t.dtype || without_ones(have) != without_ones(shape))
        {
            let planned = t.dtype;
            return Err(invalid(format!(
                "data of {dtype} {have} was given for a chunk of {planned} {shape}"
            )));
        }
        let item_size = t.dtype.size();
        let elements = match data {
            Data::Host(h) if self.keep_strides => return self.strided(item, t, h),
            Data::Host(h) => Elements::Host(h),
            Data::Device(d) => {
                let shape = Region::whole(d.shape());
                Elements::Source { source: std::sync::Arc::new(d), shape, item: item_size }
            }
            Data::Lazy(source) => Elements::Source { source, shape: Region::whole(shape), item: item_size },
            Data::None => return Err(invalid("there is no data to save".into())),
        };
        let layout =
            Layout::contiguous(item_size, shape).ok_or_else(|| invalid("the chunk is too large".into()))?;
        self.blob(t, &layout, elements)
    }

    /// A dense tensor in its memory order, with its strides, as PyTorch stores it; one with gaps row-major.
    fn strided(
        &self,
        item: &WriteItem,
        t: &TensorWrite,
        host: reshard_model::Tensor,
    ) -> Result<Box<dyn Extent>> {
        let shape = &t.region.lengths;
        let too_large = || StrategyError::Invalid(format!("{}: the chunk is too large", item.key));
        let row_major = Layout::contiguous(t.dtype.size(), shape).ok_or_else(too_large)?;
        let flat = host.in_memory_order().filter(|_| host.shape().len() == shape.len());
        let Some(flat) = flat else { return self.blob(t, &row_major, Elements::Host(host)) };
        let strides = host.layout().strides().clone();
        let layout = Layout::new(t.dtype.size(), 0, shape.clone(), strides).ok_or_else(too_large)?;
        self.blob(t, &layout, Elements::Host(flat))
    }

    fn blob(&self, t: &TensorWrite, layout: &Layout, elements: Elements) -> Result<Box<dyn Extent>> {
        let format_error = |e: reshard_torch_format::Error| StrategyError::Invalid(e.to_string());
        let mut described = TensorRef::contiguous(t.dtype, layout.shape()).map_err(format_error)?;
        described.strides = layout.strides().clone();
        let pickle = described.pickle().map_err(format_error)?;
        let layout = ArchiveLayout::new(&pickle, &[layout.bytes()], &self.archive).map_err(format_error)?;
        Ok(Box::new(Blob::new(layout, elements)))
    }
}

/// Prepended axes have extent 1 and are not in the local tensor's shape.
fn without_ones(shape: &[u64]) -> Dims {
    shape.iter().copied().filter(|&n| n != 1).collect()
}

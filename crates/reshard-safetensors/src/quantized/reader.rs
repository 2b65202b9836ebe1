//! A reader around the reader of a quantised checkpoint.

use super::{
    math,
    pairs::{Form, Quantised, is_scale, of_another_kind, quantised},
};
use crate::reader::SafetensorsReader;
use async_trait::async_trait;
use reshard_model::{DType, Dialect, LentBuffer, ObjectCodec, Payload, Region, Tensor};
use reshard_plan::{ChunkId, Metadata, ObjectId, Selection, TensorRef, cast};
use reshard_storage::{Entry, Name, Progress};
use reshard_strategy::{
    BackendVersion, BoxVerifier, Capabilities, CheckedItems, FileRole, Producer, ReadCx,
    ReadLimits, ReadObject, ReadTensor, ReaderHooks, Result, Rewritten, StorageInfo, StorageReader,
    StrategyError, Traffic, VerifyReport, VerifyRun,
};
use std::{collections::BTreeMap, sync::Arc};

/// So many elements are in memory as float32 at a time.
const ELEMENTS: u64 = 1 << 20;

/// What a chunk of the outer metadata is in the inner ones.
#[derive(Clone, Debug)]
enum Source {
    AsStored(ChunkId),
    Quantised(Box<Quantised>),
}

/// A quantised checkpoint, whose tensors have the type `dtype`.
#[derive(Debug)]
pub(crate) struct Dequantized {
    stored: SafetensorsReader,
    dtype: DType,
    limits: ReadLimits,
    metadata: Arc<Metadata>,
    /// By the ids of chunks.
    sources: Vec<Source>,
    /// Quantised tensors that can't be read as what they stand for, and why.
    refused: BTreeMap<Box<str>, String>,
}

impl Dequantized {
    /// `block` is how many rows and columns share a scale.
    pub(crate) fn new(
        stored: SafetensorsReader,
        dtype: DType,
        block: (u64, u64),
        limits: ReadLimits,
    ) -> Result<Self> {
        let (mut builder, mut sources) = (Metadata::builder(), Vec::new());
        let mut refused = BTreeMap::new();
        let inner = Arc::clone(&stored.metadata);
        for t in inner.tensors() {
            match quantised(&inner, &t, block) {
                Some(Err(why)) => drop(refused.insert(t.key().into(), why)),
                Some(Ok(found)) => {
                    let shape = &found.shape;
                    let tensor = builder.add_tensor(t.key(), dtype, shape, t.properties())?;
                    builder.add_chunk(tensor, &Region::whole(shape))?;
                    sources.push(Source::Quantised(Box::new(found)));
                }
                None if is_scale(&inner, &t, block) => {}
                None => {
                    if let Some(why) = of_another_kind(&inner, &t) {
                        refused.insert(t.key().into(), why);
                        continue;
                    }
                    let shape = t.shape();
                    let tensor = builder.add_tensor(t.key(), t.dtype(), &shape, t.properties())?;
                    for (id, region) in t.chunks() {
                        builder.add_chunk(tensor, &region)?;
                        sources.push(Source::AsStored(id));
                    }
                }
            }
        }
        for (_, key) in inner.objects() {
            builder.add_object(key)?;
        }
        let metadata = builder.finish(inner.planner_data().cloned())?;
        let metadata = metadata.with_annotations(inner.annotations().clone());
        Ok(Self {
            stored,
            dtype,
            limits,
            metadata: Arc::new(metadata),
            sources,
            refused,
        })
    }

    /// Whether it differs from what is stored.
    pub(crate) fn has_effect(&self) -> bool {
        let mut sources = self.sources.iter();
        !self.refused.is_empty() || sources.any(|source| matches!(source, Source::Quantised(_)))
    }

    fn source(&self, chunk: ChunkId) -> Result<&Source> {
        let unknown = || StrategyError::Internal(format!("no chunk has number {}", chunk.0));
        self.sources.get(chunk.0 as usize).ok_or_else(unknown)
    }

    /// A region of a stored chunk.
    async fn region(
        &self,
        chunk: ChunkId,
        region: Region,
        cx: &ReadCx<'_>,
        totals: &mut Traffic,
    ) -> Result<Tensor> {
        let lost = || StrategyError::Internal(format!("no chunk has number {}", chunk.0));
        let (t, _) = self.stored.metadata.chunk(chunk).ok_or_else(lost)?;
        let tensor = Tensor::zeros(t.key(), t.dtype(), &region.lengths)?;
        let whole = Region::whole(&region.lengths);
        let (lent, views) = LentBuffer::new(t.key(), vec![tensor]).map_err(|(e, _)| e)?;
        let wanted: Vec<_> = views.iter().map(|view| (view, whole.clone())).collect();
        let selection = Selection::new(chunk, t.dtype(), region);
        let into = lent.regions_mut(&wanted)?.into_iter();
        let reads = into.map(|into| ReadTensor::new(selection.clone(), into));
        let silent = Progress::none();
        let quiet = ReadCx::new(cx.verify, &silent);
        let read = self.stored.read_tensors(reads.collect(), &quiet).await?;
        // What is stored is not what was asked for.
        totals.beside += read.bytes;
        totals.requests += read.requests;
        totals.verified += read.verified;
        let tensors = lent.reclaim(views).map_err(|_| lost())?;
        tensors.into_iter().next().ok_or_else(lost)
    }

    /// What a region of a quantised tensor stands for.
    async fn numbers(
        &self,
        of: &Quantised,
        region: &Region,
        cx: &ReadCx<'_>,
        totals: &mut Traffic,
    ) -> Result<Vec<u8>> {
        let numbers = match of.form {
            Form::Blocks(block) => self.in_blocks(of, block, region, cx, totals).await?,
            Form::Groups(bytes) => self.in_groups(of, bytes, region, cx, totals).await?,
        };
        let size = self.dtype.size() as usize;
        let mut out = vec![0; numbers.len() * size];
        let bytes: Vec<u8> = numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
        cast::convert(DType::Float32, &bytes, self.dtype, &mut out)?;
        Ok(out)
    }

    async fn in_blocks(
        &self,
        of: &Quantised,
        block: (u64, u64),
        region: &Region,
        cx: &ReadCx<'_>,
        totals: &mut Traffic,
    ) -> Result<Vec<f32>> {
        let elements = self.region(of.elements, region.clone(), cx, totals).await?;
        let sizes = [block.0, block.1];
        let first = |axis: usize| region.offsets[axis] / sizes[axis];
        let count = |axis: usize| region.end(axis).div_ceil(sizes[axis]) - first(axis);
        let of_scales = Region::new([first(0), first(1)], [count(0), count(1)]);
        let scales = self.region(of.scales, of_scales, cx, totals).await?;
        let mut numbers = float32(&elements)?;
        math::scale_blocks(
            &mut numbers,
            region.lengths[1] as usize,
            (region.offsets[0], region.offsets[1]),
            &float32(&scales)?,
            count(1) as usize,
            block,
        );
        Ok(numbers)
    }

    async fn in_groups(
        &self,
        of: &Quantised,
        bytes: u64,
        region: &Region,
        cx: &ReadCx<'_>,
        totals: &mut Traffic,
    ) -> Result<Vec<f32>> {
        let last = region.ndim() - 1;
        let (from, to) = (region.offsets[last], region.end(last));
        let first = from / 2 / bytes;
        let mut of_scales = region.clone();
        of_scales.offsets[last] = first;
        of_scales.lengths[last] = to.div_ceil(2 * bytes) - first;
        let groups = of_scales.lengths[last];
        let mut of_bytes = of_scales.clone();
        of_bytes.offsets.push(0);
        of_bytes.lengths.push(bytes);
        let elements = self.region(of.elements, of_bytes, cx, totals).await?;
        let scales = self.region(of.scales, of_scales, cx, totals).await?;
        let (elements, scales) = (elements.to_bytes(), scales.to_bytes());
        let rows = elements
            .chunks((groups * bytes) as usize)
            .zip(scales.chunks(groups as usize));
        let start = first * 2 * bytes;
        let (from, to) = ((from - start) as usize, (to - start) as usize);
        let row = |(elements, scales)| math::e2m1(elements, scales, bytes as usize, from, to);
        Ok(rows.flat_map(row).collect())
    }

    /// Fills what is wanted of a quantised tensor, some of it at a time.
    async fn fill(
        &self,
        of: &Quantised,
        read: ReadTensor,
        cx: &ReadCx<'_>,
        totals: &mut Traffic,
    ) -> Result<()> {
        let wanted = read.into.bytes();
        if read.selection.flat.is_some() || read.selection.region.lengths[..] != *read.into.shape()
        {
            self.limits
                .whole("a quantised tensor", of.shape.volume().unwrap_or(u64::MAX))?;
            let whole = Region::whole(&of.shape);
            let numbers = self.numbers(of, &whole, cx, totals).await?;
            read.fill_from(&Tensor::new(self.dtype, &of.shape, numbers)?)?;
        } else {
            let mut left = vec![(read.selection.region, read.into)];
            while let Some((region, into)) = left.pop() {
                if let Some((axis, low, high)) = halves(&region) {
                    let (into_low, into_high) = into.split(axis, low.lengths[axis])?;
                    left.extend([(low, into_low), (high, into_high)]);
                } else {
                    let numbers = self.numbers(of, &region, cx, totals).await?;
                    into.fill(&numbers)?;
                }
            }
        }
        totals.needed += wanted;
        cx.progress.add(wanted);
        Ok(())
    }
}

/// The halves of a region that has too many elements, along its first axis that has two indexes.
fn halves(region: &Region) -> Option<(usize, Region, Region)> {
    let axis = region.lengths.iter().position(|n| *n > 1)?;
    if region.volume().is_some_and(|n| n <= ELEMENTS) {
        return None;
    }
    let at = region.lengths[axis] / 2;
    let (mut low, mut high) = (region.clone(), region.clone());
    low.lengths[axis] = at;
    high.offsets[axis] += at;
    high.lengths[axis] -= at;
    Some((axis, low, high))
}

fn float32(tensor: &Tensor) -> Result<Vec<f32>> {
    Ok(tensor.cast(DType::Float32)?.to_vec()?)
}

impl ReaderHooks for Dequantized {
    fn plan_settings(&self) -> Option<String> {
        Some(format!("as {}", self.dtype))
    }
}

#[async_trait]
impl StorageReader for Dequantized {
    fn key(&self) -> BackendVersion {
        self.stored.key()
    }

    fn metadata(&self) -> &Arc<Metadata> {
        &self.metadata
    }

    fn dialect(&self) -> Dialect {
        self.stored.dialect()
    }

    fn locate_chunk(&self, chunk: ChunkId) -> Vec<StorageInfo> {
        match self.source(chunk) {
            Ok(Source::AsStored(id)) => self.stored.locate_chunk(*id),
            Ok(Source::Quantised(of)) => [of.elements, of.scales]
                .into_iter()
                .flat_map(|id| self.stored.locate_chunk(id))
                .collect(),
            Err(_) => Vec::new(),
        }
    }

    fn locate_object(&self, object: ObjectId) -> Vec<StorageInfo> {
        self.stored.locate_object(object)
    }

    fn codec(&self) -> Arc<dyn ObjectCodec> {
        self.stored.codec()
    }

    fn capabilities(&self) -> Capabilities {
        self.stored.capabilities()
    }

    fn producer(&self) -> Producer {
        let mut producer = self.stored.producer();
        let refused = self.refused.iter();
        let refused = refused.map(|(key, why)| (key.to_string(), why.clone()));
        producer.unknown.extend(refused);
        let computed = |t: &TensorRef<'_>| {
            let first = t.chunks().next();
            first.is_some_and(|(id, _)| matches!(self.source(id), Ok(Source::Quantised(_))))
        };
        let computed = self.metadata.tensors().filter(computed);
        producer.dequantized = computed.map(|t| t.key().into()).collect();
        let stored = self.stored.metadata().tensors().map(|t| t.key());
        let is_scale =
            |key: &&str| self.metadata.tensor(key).is_none() && !self.refused.contains_key(*key);
        producer.scales = stored.filter(is_scale).map(Into::into).collect();
        producer
    }

    fn why_not(&self, key: &str) -> Option<String> {
        match self.refused.get(key) {
            Some(why) => Some(format!("reading {key} ({why})")),
            None => self.stored.why_not(key),
        }
    }

    fn permits(&self, key: &str) -> Result<()> {
        match self.refused.get(key) {
            Some(why) => Err(StrategyError::Unsupported {
                strategy: self.key().to_string(),
                what: format!("reading {key} as {} ({why})", self.dtype),
            }),
            None => self.stored.permits(key),
        }
    }

    fn owns(&self, name: &Name) -> bool {
        self.stored.owns(name)
    }

    fn role(&self, file: &Entry) -> FileRole {
        self.stored.role(file)
    }

    async fn read_tensors(&self, reads: Vec<ReadTensor>, cx: &ReadCx<'_>) -> Result<Traffic> {
        let (mut as_stored, mut totals) = (Vec::new(), Traffic::default());
        for mut read in reads {
            match self.source(read.selection.chunk)? {
                Source::AsStored(id) => {
                    read.selection.chunk = *id;
                    as_stored.push(read);
                }
                Source::Quantised(of) => self.fill(of, read, cx, &mut totals).await?,
            }
        }
        let read = self.stored.read_tensors(as_stored, cx).await?;
        totals += read;
        Ok(totals)
    }

    async fn read_objects(&self, reads: &[ReadObject], cx: &ReadCx<'_>) -> Result<Vec<Payload>> {
        self.stored.read_objects(reads, cx).await
    }

    fn rewritten(&self) -> Vec<Rewritten> {
        self.stored.rewritten()
    }

    fn covers(&self, file: &Name) -> bool {
        self.stored.covers(file)
    }

    async fn verifier<'r>(&'r self, run: &mut VerifyRun<'r>) -> Result<BoxVerifier<'r>> {
        self.stored.verifier(run).await
    }

    async fn verify_items(
        &self,
        items: &CheckedItems,
        progress: &Progress,
    ) -> Result<VerifyReport> {
        // What is chosen of it is chosen by its own numbers, not by those of what is stored.
        let mut items = items.clone();
        if let CheckedItems::Some { chunks, .. } = &mut items {
            for chunk in std::mem::take(chunks) {
                match self.source(chunk)? {
                    Source::AsStored(id) => drop(chunks.insert(*id)),
                    Source::Quantised(of) => chunks.extend([of.elements, of.scales]),
                }
            }
        }
        self.stored.verify_items(&items, progress).await
    }
}

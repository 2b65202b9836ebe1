//! Regions of tensors, straight from the file where that is possible.
//!
//! Tensors that share a storage are read together. Elements that need a change, or that lie packed, go through memory.

use super::opened::TorchSaveReader;
use crate::{
    error::{lost, unreadable},
    file::{Container, TorchFile, Zip, content, length},
};
use bytes::Bytes;
use reshard_model::{Layout, StridedCopy, Tensor};
use reshard_plan::{ChunkId, Metadata};
use reshard_storage::{Checksum, RecordRead};
use reshard_strategy::{
    ReadCx, ReadTensor, Result, Selection, StrategyError, Traffic,
    torch::{Crc, INFLATE, Stream, Unpacked},
};
use reshard_torch_format::{
    TensorRef,
    archive::{ByteOrder, Inflate, Method, Record},
};
use std::{collections::BTreeMap, ops::Range, sync::Arc};

/// So many bytes of a deflated record are unpacked at a time.
const BLOCK: usize = 256 << 10;

/// What is wanted of one tensor.
struct Wanted<'r> {
    chunk: ChunkId,
    tensor: &'r TensorRef,
    layout: Layout,
    reads: Vec<ReadTensor>,
}

pub(super) async fn read(
    reader: &TorchSaveReader,
    reads: Vec<ReadTensor>,
    cx: &ReadCx<'_>,
) -> Result<Traffic> {
    let (mut totals, mut records) = (Traffic::default(), Vec::new());
    for (file, storages) in by_storage(reader, reads)? {
        let file = reader.file(file)?;
        let (keys, storages): (Vec<_>, Vec<_>) = storages.into_iter().unzip();
        let places: Vec<(Option<&Record>, Range<u64>)> = match &file.container {
            Container::Zip(zip) => {
                let found = keys.iter().map(|key| record_of(zip, file, key));
                let found = found.collect::<Result<Vec<_>>>()?;
                let places = zip.places(&reader.store, &file.name, &found).await?;
                found.into_iter().map(Some).zip(places).collect()
            }
            Container::Legacy(head) => {
                let place = |key| Some((None, head.storages.get(key)?.data.clone()));
                let places = keys
                    .iter()
                    .map(|key| place(key).ok_or_else(|| lost_storage(key)));
                places.collect::<Result<_>>()?
            }
            Container::Safetensors(tensors) => {
                let place = |key: &str| Some((None, tensors.get(key)?.clone()));
                let places = keys
                    .iter()
                    .map(|key| place(key).ok_or_else(|| lost_storage(key)));
                places.collect::<Result<_>>()?
            }
            Container::Pickle => return Err(lost_storage("of a pickle")),
        };
        for ((record, at), wanted) in places.into_iter().zip(storages) {
            let storage = In {
                reader,
                file,
                at,
                record,
                order: file.order(),
            };
            storage.read(wanted, cx, &mut records, &mut totals).await?;
        }
    }
    let named = |e| lost(e, "a file of torch.save");
    let read = reader.store.read_into(records, cx.progress.clone()).await;
    totals += read.map_err(named)?;
    Ok(totals)
}

fn name_of(metadata: &Metadata, chunk: ChunkId) -> String {
    let found = metadata.chunk(chunk);
    found.map_or_else(|| "a tensor".into(), |(t, _)| format!("tensor {}", t.key()))
}

fn lost_storage(key: &str) -> StrategyError {
    StrategyError::Internal(format!("the storage {key} has no place"))
}

fn record_of<'z>(zip: &'z Zip, file: &TorchFile, key: &str) -> Result<&'z Record> {
    let record = zip.directory.get(&format!("data/{key}"));
    record.map_err(|e| unreadable(e, "a storage", file.name.as_str()))
}

/// What is wanted of each storage, by file.
type ByFile<'r> = BTreeMap<u32, BTreeMap<Box<str>, Vec<Wanted<'r>>>>;

fn by_storage(reader: &TorchSaveReader, reads: Vec<ReadTensor>) -> Result<ByFile<'_>> {
    let mut out = ByFile::new();
    for (chunk, reads) in ReadTensor::by_chunk(reads) {
        let unknown = || StrategyError::Internal(format!("no chunk has number {}", chunk.0));
        let (n, tensor) = reader
            .table
            .tensors
            .get(chunk.0 as usize)
            .ok_or_else(unknown)?;
        let file = reader.file(*n)?;
        let layout = tensor.layout();
        let layout = layout.map_err(|e| unreadable(e, "a tensor", file.name.as_str()))?;
        let storages = out.entry(*n).or_default();
        let of = storages.entry(tensor.storage.key.clone()).or_default();
        of.push(Wanted {
            chunk,
            tensor,
            layout,
            reads,
        });
    }
    Ok(out)
}

/// A storage in its file.
struct In<'r> {
    reader: &'r TorchSaveReader,
    file: &'r TorchFile,
    at: Range<u64>,
    /// Of an archive.
    record: Option<&'r Record>,
    order: ByteOrder,
}

impl In<'_> {
    async fn read(
        &self,
        all: Vec<Wanted<'_>>,
        cx: &ReadCx<'_>,
        records: &mut Vec<RecordRead>,
        totals: &mut Traffic,
    ) -> Result<()> {
        let packed = self.record.is_some_and(|r| r.method != Method::Stored);
        let mut straight = Vec::new();
        for wanted in all {
            match (wanted.tensor.is_lazy(self.order), packed, self.record) {
                (false, false, _) => straight.push(wanted),
                (false, true, Some(record)) if wanted.layout.is_injective() => {
                    self.inflate(wanted, record, cx, totals).await?;
                }
                _ => self.through_memory(wanted, cx, totals).await?,
            }
        }
        if straight.is_empty() {
            return Ok(());
        }
        let check = self.check(&straight, cx);
        totals.verified += u64::from(check.is_some());
        let mut parts = Vec::new();
        for wanted in straight {
            for read in wanted.reads {
                parts.push(read.part(&wanted.layout)?);
            }
        }
        records.push(RecordRead {
            name: self.file.name.clone(),
            record: self.at.clone(),
            parts,
            check,
        });
        Ok(())
    }

    /// The checksum covers the whole storage, so it is checked only if all of it is read anyway.
    fn check(&self, wanted: &[Wanted<'_>], cx: &ReadCx<'_>) -> Option<Box<dyn Checksum>> {
        let record = self.record.filter(|_| cx.verify)?;
        let all = |w: &Wanted<'_>| {
            let selections: Vec<&Selection> = w.reads.iter().map(|r| &r.selection).collect();
            w.layout.bytes() == record.size
                && w.layout.is_injective()
                && Selection::cover_once(&selections, w.layout.elements())
        };
        let whole = wanted.iter().find(|w| all(w))?;
        let (metadata, chunk) = (Arc::clone(&self.reader.metadata), whole.chunk);
        let name = move || name_of(&metadata, chunk);
        let sum = record.checksum()?;
        Some(Box::new(Crc::new(record.size, sum, name)))
    }

    fn name(&self, chunk: ChunkId) -> String {
        name_of(&self.reader.metadata, chunk)
    }

    async fn stored(&self) -> Result<Bytes> {
        let read = self.reader.store.read(&self.file.name, self.at.clone());
        read.await.map_err(|e| lost(e, self.file.name.as_str()))
    }

    /// Reads all of a storage, changes its elements, and lands them.
    async fn through_memory(
        &self,
        wanted: Wanted<'_>,
        cx: &ReadCx<'_>,
        totals: &mut Traffic,
    ) -> Result<()> {
        let Wanted {
            chunk,
            tensor,
            layout,
            reads,
        } = wanted;
        let kept = &self.reader.kept;
        let asked: u64 = reads.iter().map(|r| r.into.bytes()).sum();
        let whole = match kept.take(chunk, cx.verify) {
            Some(Unpacked::Tensor(whole)) => whole,
            _ => {
                kept.unpacks(chunk, layout.bytes(), asked, || self.name(chunk))?;
                let whole = self.whole(chunk, tensor, &layout, cx.verify).await?;
                (totals.beside, totals.requests) =
                    (totals.beside + length(&self.at), totals.requests + 1);
                totals.verified += u64::from(cx.verify && self.record.is_some());
                whole
            }
        };
        for read in reads {
            let bytes = read.into.bytes();
            (totals.needed, totals.bytes) = (totals.needed + bytes, totals.bytes + bytes);
            totals.beside = totals.beside.saturating_sub(bytes);
            cx.progress.add(bytes);
            read.fill_from(&whole)?;
        }
        if asked < whole.nbytes() {
            kept.keep(chunk, cx.verify, Unpacked::Tensor(whole));
        }
        Ok(())
    }

    /// A tensor in memory.
    async fn whole(
        &self,
        chunk: ChunkId,
        tensor: &TensorRef,
        layout: &Layout,
        verify: bool,
    ) -> Result<Tensor> {
        let (limits, name) = (&self.reader.limits, self.name(chunk));
        let size = self.record.map_or(length(&self.at), |r| r.size);
        limits.whole(format_args!("the storage of {name}"), length(&self.at))?;
        limits.whole(format_args!("the storage of {name}"), size)?;
        limits.whole(&name, layout.bytes())?;
        let damaged = |e| unreadable(e, &name, self.file.name.as_str());
        self.reader.kept.make_room(size);
        let stored = self.stored().await?;
        let content = match self.record {
            Some(record) => content(record, stored, u64::MAX, limits, verify).map_err(damaged)?,
            None => stored,
        };
        tensor
            .tensor(Arc::new(content), self.order)
            .map_err(damaged)
    }

    /// Fills regions from a deflated storage. At most one block of it is in memory, beside what is stored.
    async fn inflate(
        &self,
        wanted: Wanted<'_>,
        record: &Record,
        cx: &ReadCx<'_>,
        totals: &mut Traffic,
    ) -> Result<()> {
        let kept = &self.reader.kept;
        let hull = |read: &ReadTensor| Ok(read.selection.layout(&wanted.layout)?.hull());
        let hulls = wanted.reads.iter().map(hull).collect::<Result<Vec<_>>>()?;
        let all = hulls
            .into_iter()
            .reduce(|a, b| a.start.min(b.start)..a.end.max(b.end));
        let Range { start, end } = all.unwrap_or_default();
        let chunk = wanted.chunk;
        // A small one takes less memory than the stream; one that is read backwards would be unpacked for each block.
        if record.size <= INFLATE || kept.is_past(chunk, cx.verify, start) {
            return self.through_memory(wanted, cx, totals).await;
        }
        let damaged = |e| unreadable(e, &self.name(chunk), self.file.name.as_str());
        let (mut parts, mut asked): (Vec<StridedCopy>, u64) = (Vec::new(), 0);
        for read in wanted.reads {
            let part = read.part(&wanted.layout)?;
            asked += part.into.bytes();
            parts.push(part.into.strided_copy(&part.source)?);
        }
        (totals.needed, totals.bytes) = (totals.needed + asked, totals.bytes + asked);
        cx.progress.add(asked);
        let mut stream = match kept.take(chunk, cx.verify) {
            Some(Unpacked::Stream(stream)) if stream.at <= start => stream,
            _ => {
                let name = || self.name(chunk);
                kept.unpacks(chunk, record.size, asked, name)?;
                let what = format!("the packed storage of {}", self.name(chunk));
                self.reader.limits.whole(what, length(&self.at))?;
                let stored = self.stored().await?;
                let packed = stored.len() as u64;
                (totals.beside, totals.requests) = (totals.beside + packed, totals.requests + 1);
                Box::new(Stream {
                    content: Inflate::new(record, stored).map_err(damaged)?,
                    packed,
                    at: 0,
                })
            }
        };
        let mut block = vec![0; BLOCK];
        while stream.at < end {
            let n = stream.content.next_block(&mut block).map_err(damaged)?;
            let Some(got) = block.get(..n).filter(|got| !got.is_empty()) else {
                let what = format!("{}: its storage ends before its elements", self.name(chunk));
                return Err(StrategyError::corrupt(&self.file.name, None, what));
            };
            parts.iter_mut().for_each(|p| p.feed(stream.at, got));
            stream.at += n as u64;
        }
        let ended = stream.content.left() == 0;
        if ended && cx.verify {
            stream.content.verify().map_err(damaged)?;
            totals.verified += 1;
        }
        if !ended {
            kept.keep(chunk, cx.verify, Unpacked::Stream(stream));
        }
        Ok(())
    }
}

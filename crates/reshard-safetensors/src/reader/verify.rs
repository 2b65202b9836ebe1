//! Looks for damage without loading anything.

use super::objects;
use super::opened::{SafetensorsReader, tensor};
use crate::{OBJECTS, record::CHANGED};
use async_trait::async_trait;
use reshard_model::{DType, ErrorKind};
use reshard_plan::{Fault, TensorRef};
use reshard_storage::{Name, StoreExt};
use reshard_strategy::{
    ChunkCheck, Damage, ItemVerifier, ObjectCheck, Refused, Result, StrategyError, VerifyRun,
    crc32_differs, read_in_steps,
};
use std::collections::BTreeMap;

/// So many bytes are read at a time.
const STEP: u64 = 1 << 20;

pub(super) struct Verifier<'r> {
    reader: &'r SafetensorsReader,
    /// Tensors whose headers are not the written ones.
    changed: BTreeMap<&'r str, Refused>,
}

impl<'r> Verifier<'r> {
    pub(super) async fn new(
        reader: &'r SafetensorsReader,
        run: &mut VerifyRun<'r>,
    ) -> Result<Self> {
        // What opening took from the record is looked at now.
        let changed = changed(reader).await?;
        let refused = reader.refused.iter().map(|(key, why)| (&**key, why));
        for (key, why) in refused.chain(changed.iter().map(|(key, why)| (*key, why))) {
            run.refuse(key, why);
        }
        Ok(Self { reader, changed })
    }
}

#[async_trait]
impl<'r> ItemVerifier<'r> for Verifier<'r> {
    async fn tensor(&mut self, t: &TensorRef<'r>, _: &mut VerifyRun<'r>) -> bool {
        !self.changed.contains_key(t.key())
    }

    fn fault(&self, key: &'r str, fault: &Fault, run: &mut VerifyRun<'r>) {
        let what = fault.text();
        match fault {
            // The file of one rank has its pieces, and nobody has looked for the others.
            Fault::Hole { .. } if self.reader.is_alone => {
                let found = Damage::new(format!("{what}; open the folder of this file"));
                run.add(ErrorKind::Unsupported, key, || found.of_key(key));
            }
            Fault::Hole { .. } => {
                run.corrupt(key, format!("{what}; the file of a rank may be missing"));
            }
            _ => run.corrupt(key, what),
        }
    }

    async fn chunk(&mut self, item: ChunkCheck<'r>, run: &mut VerifyRun<'r>) -> Result<u64> {
        let ChunkCheck { key, id, read, .. } = item;
        if !read {
            return Ok(0);
        }
        let stored = self.reader.stored(id)?;
        let (file, start) = (stored.file, stored.bytes.start);
        let dtype = self.reader.metadata.chunk(id).map(|(t, _)| t.dtype());
        // Without checksums, this at least is known of bools.
        let looks = dtype == Some(DType::Bool) && stored.crc.is_none();
        let mut crc = crc32fast::Hasher::new();
        let look = |at, part: &[u8]| {
            crc.update(part);
            let wrong = part.iter().position(|byte| looks && *byte > 1);
            wrong.map_or(Ok(()), |n| {
                let what = format!("tensor {key}: a bool is neither 0 nor 1");
                Err(StrategyError::corrupt(file, Some(at + n as u64), what))
            })
        };
        let (store, bytes) = (&*self.reader.store, stored.bytes.clone());
        read_in_steps(store, file, bytes, STEP, run.progress, look).await?;
        let found = crc.finalize();
        if let Some(written) = stored.crc.filter(|written| *written != found) {
            let what = crc32_differs(&tensor(key), found, written);
            return Err(StrategyError::corrupt(file, Some(start), what));
        }
        run.report.without_checksum += u64::from(stored.crc.is_none());
        Ok(stored.bytes.end - start)
    }

    async fn object(&mut self, item: ObjectCheck<'r>, run: &mut VerifyRun<'r>) -> Result<u64> {
        if !item.read {
            return Ok(0);
        }
        let bytes = objects::check(self.reader, item.id, item.key).await?;
        run.progress.add(bytes);
        Ok(bytes)
    }

    async fn rest(&mut self, run: &mut VerifyRun<'r>) -> Result<()> {
        if run.items.is_all() && self.reader.has_record {
            // No program writes bytes between objects.
            let reader = self.reader;
            let size = reader.store.len(&Name::new(OBJECTS)?).await?.unwrap_or(0);
            let ranges = reader.objects.iter().map(|o| o.bytes.clone()).collect();
            let covered = &mut run.report.not_covered;
            covered.add_between(OBJECTS, size, ranges);
        }
        Ok(())
    }
}

/// The tensors of which something lies in files whose headers are not the written ones.
async fn changed(reader: &SafetensorsReader) -> Result<BTreeMap<&str, Refused>> {
    let files = reader.changed().await?;
    let mut out = BTreeMap::new();
    if files.is_empty() {
        return Ok(out);
    }
    for t in reader.metadata.tensors() {
        let mut of = t
            .chunks()
            .filter_map(|(id, _)| reader.chunks.get(id.0 as usize));
        if let Some(chunk) = of.find(|chunk| files.contains(&chunk.file)) {
            let mut why = Refused::damaged(CHANGED);
            let file = reader.files.get(chunk.file as usize);
            why.file = file.map(ToString::to_string);
            out.insert(t.key(), why);
        }
    }
    Ok(out)
}

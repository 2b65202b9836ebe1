//! Looks for damage without loading anything.

use super::{Refused, SafetensorsReader, Stored, objects, tensor};
use crate::unread::CHANGED;
use reshard_model::{DType, ErrorKind, Region};
use reshard_plan::TensorRef;
use reshard_storage::{Name, Progress};
use reshard_strategy::{
    CheckedItems, Damage, Result, StrategyError, VerifyReport, check_steps, crc32_differs,
};
use std::collections::BTreeMap;

/// So many bytes are read at a time.
const STEP: u64 = 1 << 20;

pub(super) async fn verify(
    reader: &SafetensorsReader,
    items: &CheckedItems,
    progress: &Progress,
) -> Result<VerifyReport> {
    let mut report = VerifyReport::default();
    // What opening took from the record is looked at now.
    let changed = changed(reader).await?;
    let refused = reader.refused.iter().map(|(key, why)| (&**key, why));
    let refused: BTreeMap<&str, &Refused> = refused
        .chain(changed.iter().map(|(key, why)| (*key, why)))
        .collect();
    for (key, why) in refused {
        report.items += 1;
        let found = Damage {
            key: Some(key.to_string()),
            file: why.file.as_ref().map(Name::to_string),
            offset: why.offset,
            what: why.what.clone(),
        };
        report.add(why.kind, found);
    }
    let sound = |t: &TensorRef<'_>| !changed.contains_key(t.key());
    for t in reader.metadata.tensors().filter(sound) {
        if let Some(what) = uncovered(&t) {
            // The file of one rank has its pieces, and nobody has looked for the others.
            let (kind, what) = match reader.kept.is_alone {
                true => (
                    ErrorKind::Unsupported,
                    format!("{what}; open the folder of this file"),
                ),
                false => (ErrorKind::Corrupt, what),
            };
            let found = Damage {
                key: Some(t.key().into()),
                file: None,
                offset: None,
                what,
            };
            report.add(kind, found);
        }
        for (id, _) in t.chunks() {
            report.items += 1;
            let stored = reader.stored(id)?;
            if !items.has_chunk(id) {
                continue;
            }
            match check(reader, &stored, t.dtype(), progress).await {
                Ok(()) => {
                    report.bytes += stored.bytes.end - stored.bytes.start;
                    report.without_checksum += u64::from(stored.crc.is_none());
                }
                Err(e) => report.add(e.kind(), Damage::of(Some(t.key()), &e)),
            }
        }
    }
    objects::verify(reader, items, progress, &mut report).await;
    if items.is_all() && reader.kept.has_record {
        objects::between(reader, &mut report).await?;
    }
    Ok(report)
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
            let why = Refused::damaged(CHANGED);
            let file = reader.files.get(chunk.file as usize).cloned();
            out.insert(t.key(), Refused { file, ..why });
        }
    }
    Ok(out)
}

/// What is wrong if the pieces of ranks do not make up their tensor.
fn uncovered(t: &TensorRef<'_>) -> Option<String> {
    let volume = |region: &Region| region.volume().map(u128::from);
    let whole = volume(&Region::whole(&t.shape()))?;
    let pieces = t.chunks().filter_map(|(_, region)| volume(&region));
    let (shape, pieces) = (t.shape(), pieces.sum::<u128>());
    match pieces.cmp(&whole) {
        std::cmp::Ordering::Equal => None,
        std::cmp::Ordering::Less => Some(format!(
            "its pieces have {pieces} of the {whole} elements of its shape {shape}; the file of a rank may be missing"
        )),
        std::cmp::Ordering::Greater => Some(format!(
            "its pieces overlap: they have {pieces} elements, and its shape {shape} has {whole}"
        )),
    }
}

async fn check(
    reader: &SafetensorsReader,
    stored: &Stored<'_>,
    dtype: DType,
    progress: &Progress,
) -> Result<()> {
    let mut crc = crc32fast::Hasher::new();
    for at in check_steps(&*reader.store, stored.bytes.clone(), STEP) {
        let part = reader.store.read(stored.file, at.clone()).await?;
        crc.update(&part);
        progress.add(at.end - at.start);
        // Without checksums, this at least is known of bools.
        if dtype == DType::Bool
            && stored.crc.is_none()
            && let Some(n) = part.iter().position(|byte| *byte > 1)
        {
            let what = format!("tensor {}: a bool is neither 0 nor 1", stored.key);
            return Err(StrategyError::corrupt(
                stored.file,
                Some(at.start + n as u64),
                what,
            ));
        }
    }
    match (crc.finalize(), stored.crc) {
        (found, Some(written)) if found != written => {
            let what = crc32_differs(&tensor(stored.key), found, written);
            Err(StrategyError::corrupt(
                stored.file,
                Some(stored.bytes.start),
                what,
            ))
        }
        _ => Ok(()),
    }
}

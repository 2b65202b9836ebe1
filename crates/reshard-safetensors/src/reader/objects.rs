//! Objects: each lies in the file of objects, as `torch.save` writes it.

use super::opened::{Object, SafetensorsReader};
use crate::OBJECTS;
use reshard_model::Payload;
use reshard_plan::ObjectId;
use reshard_storage::Name;
use reshard_strategy::{
    ReadObject, Result, StorageInfo, StorageReader, StrategyError, crc32_differs,
    torch::check_decodes,
};
use reshard_torch_format::TorchSave;

fn stored(reader: &SafetensorsReader, id: ObjectId) -> Result<(&str, Name, &Object)> {
    let unknown = || StrategyError::Internal(format!("no object has number {}", id.0));
    let object = reader.objects.get(id.0 as usize).ok_or_else(unknown)?;
    let key = reader.metadata.object_key(id).ok_or_else(unknown)?;
    Ok((key, Name::new(OBJECTS)?, object))
}

/// Where an object lies.
pub(super) fn locate(reader: &SafetensorsReader, id: ObjectId) -> Option<StorageInfo> {
    let (_, file, object) = stored(reader, id).ok()?;
    Some(StorageInfo::new(file, object.bytes.clone()))
}

/// Reads objects in one call, so that the store can join neighbours.
pub(super) async fn read(
    reader: &SafetensorsReader,
    reads: &[ReadObject],
    verify: bool,
) -> Result<Vec<Payload>> {
    let (mut ranges, mut objects) = (Vec::with_capacity(reads.len()), Vec::new());
    for read in reads {
        let (key, file, object) = stored(reader, read.object)?;
        let bytes = object.bytes.end - object.bytes.start;
        reader.limits.whole(format_args!("object {key}"), bytes)?;
        ranges.push((file, object.bytes.clone()));
        objects.push((key, object));
    }
    let (found, _) = reader.store.read_ranges(ranges).await?;
    let mut out = Vec::with_capacity(found.len());
    for ((key, object), bytes) in objects.into_iter().zip(found) {
        let crc = if verify {
            crc32fast::hash(&bytes)
        } else {
            object.crc
        };
        if crc != object.crc {
            let what = crc32_differs(&format!("object {key}"), crc, object.crc);
            let at = Some(object.bytes.start);
            return Err(StrategyError::corrupt(OBJECTS, at, what));
        }
        out.push(Payload::Encoded {
            codec: TorchSave::NAME,
            bytes,
        });
    }
    Ok(out)
}

/// Checks that an object has its checksum and can be decoded. Returns how many bytes were read.
pub(super) async fn check(reader: &SafetensorsReader, object: ObjectId, key: &str) -> Result<u64> {
    let mut bytes = 0;
    for payload in read(reader, &[ReadObject { object }], true).await? {
        if let Payload::Encoded { bytes: encoded, .. } = &payload {
            bytes += encoded.len() as u64;
        }
        check_decodes(&*reader.codec(), key, payload)?;
    }
    Ok(bytes)
}

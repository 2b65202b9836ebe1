//! Looks for damage without loading anything.

use super::{Chunk, ZarrReader, crc::differs};
use crate::names::ZARRAY;
use reshard_model::Dialect;
use reshard_storage::Progress;
use reshard_strategy::{Damage, Result, StrategyError, VerifyReport};

/// So many bytes are read at a time.
const STEP: u64 = 1 << 20;

pub(super) async fn verify(
    reader: &ZarrReader,
    full: bool,
    progress: &Progress,
) -> Result<VerifyReport> {
    let mut report = VerifyReport::default();
    for (key, why) in &reader.refused {
        report.items += 1;
        let found = Damage {
            key: Some(key.clone()),
            file: Some(format!("{key}/{ZARRAY}")),
            offset: None,
            what: why.what.clone(),
        };
        report.add(why.kind, found);
    }
    for array in &reader.arrays {
        for number in 0..array.count {
            report.items += 1;
            let checked = match array.file(number) {
                Ok(file) => {
                    let chunk = Chunk {
                        array,
                        number,
                        file,
                    };
                    check(reader, &chunk, full, progress).await
                }
                Err(e) => Err(e),
            };
            match checked {
                Ok(bytes) => report.bytes += bytes,
                Err(e) => report.add(e.kind(), Damage::of(Some(&array.key), &e)),
            }
        }
    }
    Ok(report)
}

/// Returns the number of bytes that were read.
async fn check(
    reader: &ZarrReader,
    chunk: &Chunk<'_>,
    full: bool,
    progress: &Progress,
) -> Result<u64> {
    let Chunk {
        array,
        number,
        file,
    } = chunk;
    let wrong = |what: String| Err(StrategyError::corrupt(file, None, what));
    let Some(bytes) = reader.stored(chunk)? else {
        // Other programs leave out chunks that have only the fill value. Megatron Core does not.
        return match reader.dialect {
            Dialect::Megatron => wrong(format!(
                "it is missing, and Megatron Core writes all chunks; a load puts the fill value in the place of this part of {}",
                array.key
            )),
            _ => Ok(0),
        };
    };
    if !full {
        return Ok(0);
    }
    let mut crc = crc32fast::Hasher::new();
    let mut at = 0;
    while at < bytes {
        let to = bytes.min(at + STEP);
        let part = reader.store.read(file, at..to).await?;
        crc.update(&part);
        progress.add(to - at);
        at = to;
    }
    match (crc.finalize(), array.checksum(*number)) {
        (found, Some(written)) if found != written => wrong(differs(&array.key, found, written)),
        _ => Ok(bytes),
    }
}

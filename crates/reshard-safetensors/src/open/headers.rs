//! Reads the headers of all files, of many files in one call.

use super::files::Found;
use crate::header::{self, Header, LENGTH};
use bytes::Bytes;
use reshard_storage::Name;
use reshard_strategy::{Foreign, OpenCx, Refused, Result, StrategyError, UnreadPart};
use std::collections::BTreeMap;

/// So many bytes of a file are read first, and so many where requests are dear. Most headers are shorter.
const FIRST: u64 = 16 << 10;
const FIRST_IF_DEAR: u64 = 128 << 10;

/// How many files are read in one call.
const AT_ONCE: usize = 256;

/// The header of a file, and the CRC-32 of all bytes up to the first tensor.
pub(super) type Read = std::result::Result<(Header, u32), Refused>;

/// The headers of the files, in their order. Where requests are dear, what the record of reshard says of a header is taken as it is, and the header is not
/// read: then it is among the second, by the number of its file.
///
/// # Errors
/// What the store says, and limits. What is wrong with a header is a part of the result.
pub(super) async fn read(
    cx: &OpenCx,
    found: &Found,
) -> Result<(Vec<Read>, BTreeMap<u32, UnreadPart>)> {
    let (mut noted, mut unread) = (BTreeMap::new(), BTreeMap::new());
    let record = found.record.as_ref();
    if let Some(record) = record.filter(|_| cx.store.hints().requests_are_dear()) {
        for (n, (name, bytes)) in (0..).zip(&found.files) {
            let (Some(bytes), Some((all, crc))) = (bytes, record.header(name)) else {
                continue;
            };
            let text = all.get(LENGTH as usize..).unwrap_or_default();
            // If it does not fit to the file, that itself says what is wrong.
            if let Ok(header) = header::parse(text, *bytes) {
                noted.insert(name, Ok((header, crc)));
                let part = UnreadPart::new(name.clone(), all.len() as u64, crc);
                unread.insert(n, part);
            }
        }
    }
    let mut out = Vec::with_capacity(found.files.len());
    let most = match cx.store.hints().requests_are_dear() {
        true => FIRST_IF_DEAR,
        false => FIRST,
    };
    for files in found.files.chunks(AT_ONCE) {
        let there: Vec<(&Name, u64)> = files
            .iter()
            .filter(|(name, _)| !noted.contains_key(name))
            .filter_map(|(name, bytes)| Some((name, (*bytes)?)))
            .collect();
        let ranges = there
            .iter()
            .map(|(name, bytes)| ((*name).clone(), 0..most.min(*bytes)))
            .collect();
        let (firsts, _) = cx.store.read_ranges(ranges).await?;
        let mut firsts = there.into_iter().zip(firsts);
        for (name, bytes) in files {
            if let Some(noted) = noted.remove(name) {
                out.push(noted);
                continue;
            }
            let read = match bytes.and_then(|_| firsts.next()) {
                None => Err(Refused::damaged("it is missing")),
                Some(((_, bytes), first)) => one(cx, name, bytes, first).await?,
            };
            out.push(read);
        }
    }
    Ok((out, unread))
}

async fn one(cx: &OpenCx, name: &Name, bytes: u64, first: Bytes) -> Result<Read> {
    let length = match header::length(&first, bytes) {
        Ok(length) => length,
        Err(fault) => return Ok(Err(of_other_program(&first).unwrap_or(fault))),
    };
    let end = LENGTH + length;
    // A header takes some times its length when it is parsed.
    cx.limits.whole(format_args!("the header of {name}"), end)?;
    let max = cx.limits.memory(length);
    if length.saturating_mul(4) > max {
        return Err(StrategyError::Limit {
            what: format!("the header of {name} has {length} bytes"),
            option: reshard_strategy::LimitOption::MaxMemory,
            max,
        });
    }
    let text = match end {
        end if end <= first.len() as u64 => first.slice(..end as usize),
        end => cx.store.read(name, 0..end).await?,
    };
    let crc = crc32fast::hash(&text);
    let text = text.get(LENGTH as usize..).unwrap_or_default();
    Ok(header::parse(text, bytes).map(|header| (header, crc)))
}

/// Why a file that is none of safetensors can't be read, if it is known what it is.
fn of_other_program(first: &[u8]) -> Option<Refused> {
    let foreign = Foreign::of_file(first, &[])?;
    Some(Refused::damaged(format!(
        "it is {}: {}",
        foreign.what, foreign.next
    )))
}

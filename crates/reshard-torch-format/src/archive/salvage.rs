//! Pickles of an archive whose directory can't be read: other programs find its records nevertheless.

use crate::{
    Limits,
    pickle::{Scan, scan},
};

/// What a record begins with.
const RECORD: &[u8] = b"PK\x03\x04";
/// The bytes of a header before the name.
const HEADER: usize = 30;
const DEFLATED: u16 = 8;

/// Scans all records that the headers in an archive describe, whatever its directory says and whatever the flags and checksums of a record
/// are. A record without a pickle is left out.
///
/// ```
/// use reshard_torch_format::archive::scan_records;
/// let header = b"PK\x03\x04\x14\0\0\0\0\0\0\0\0\0\0\0\0\0\x0b\0\0\0\x0b\0\0\0\x01\0\0\0a";
/// let file = [&header[..], b"cos\nsystem\n."].concat();
/// let found = scan_records(&file, &Default::default());
/// assert_eq!((&*found[0].0, &*found[0].1.globals[0].name), ("a", "os.system"));
/// ```
pub fn scan_records(bytes: &[u8], limits: &Limits) -> Vec<(Box<str>, Scan)> {
    // Beyond the budget nothing is unpacked.
    let mut left = limits.budget(bytes.len() as u64).left();
    let (mut out, mut at) = (Vec::new(), 0);
    while let Some(found) = bytes
        .get(at..)
        .and_then(|rest| rest.windows(RECORD.len()).position(|w| w == RECORD))
    {
        let record = bytes.get(at + found..).unwrap_or_default();
        at += found + RECORD.len();
        let Some((name, method, data)) = parts(record) else {
            continue;
        };
        // Records may claim each other's bytes, so what is looked at is bounded in all.
        let data = data.get(..left as usize).unwrap_or(data);
        left -= data.len() as u64;
        let unpacked = match method {
            DEFLATED => Some(inflated(data, left)),
            _ => None,
        };
        let scanned = match &unpacked {
            Some(content) => {
                left -= (content.len() as u64).min(left);
                scan(content, limits)
            }
            // What follows a record is no part of it.
            None => scan(data, limits),
        };
        if scanned.pickles > 0 || !scanned.globals.is_empty() {
            out.push((String::from_utf8_lossy(name).into(), scanned));
        }
    }
    out
}

/// The name, the method and the bytes from the data on.
fn parts(record: &[u8]) -> Option<(&[u8], u16, &[u8])> {
    let number = |at: usize| {
        let bytes = record.get(at..)?.first_chunk::<2>()?;
        Some(u16::from_le_bytes(*bytes))
    };
    let size = record.get(18..)?.first_chunk::<4>()?;
    let size = u32::from_le_bytes(*size) as usize;
    let (method, name, extra) = (number(8)?, number(26)?, number(28)?);
    let (name, rest) = record.get(HEADER..)?.split_at_checked(name.into())?;
    let data = rest.get(extra.into()..)?;
    // Sizes may stand behind the data.
    let data = data.get(..size).filter(|_| size > 0).unwrap_or(data);
    Some((name, method, data))
}

/// Unpacks up to `most` bytes, and as much of damaged ones as there is.
fn inflated(packed: &[u8], most: u64) -> Vec<u8> {
    let mut stream = flate2::Decompress::new(false);
    let (mut out, mut block) = (Vec::new(), vec![0; 1 << 16]);
    while (out.len() as u64) < most {
        let (read, written) = (stream.total_in(), stream.total_out());
        let rest = packed.get(read as usize..).unwrap_or_default();
        let status = stream.decompress(rest, &mut block, flate2::FlushDecompress::None);
        let n = (stream.total_out() - written) as usize;
        out.extend_from_slice(block.get(..n).unwrap_or_default());
        let is_done = !matches!(status, Ok(flate2::Status::Ok));
        if is_done || (n == 0 && stream.total_in() == read) {
            break;
        }
    }
    out
}

//! The header of a file: which tensors it has, and where.

use reshard_model::{SafetensorsDType, shortened};
use reshard_strategy::{Refused, UniqueMap};
use serde::{
    Deserialize, Serialize,
    de::{Deserializer, Error, MapAccess, Visitor},
};
use std::{collections::BTreeMap, fmt, ops::Range};

/// What the first tensor of a file that is written begins at a multiple of: a line of a processor's cache, since aligned memory is copied faster.
/// The format asks for 8.
pub(crate) const ALIGNED: usize = 64;

/// Bytes before the header: its length.
pub(crate) const LENGTH: u64 = 8;

/// The longest header that the reference implementation reads, in bytes.
pub(crate) const MOST: u64 = 100_000_000;

/// The longest key, in bytes. Keys are held several times, and stand in messages.
pub(crate) const LONGEST_KEY: usize = 1 << 16;

/// The most bytes of all keys of a file together, for the same reason.
const ALL_KEYS: usize = 1 << 25;

/// The key of what is said of the whole file.
pub(crate) const METADATA: &str = "__metadata__";

/// The most axes of a tensor.
pub(crate) const AXES: usize = 255;

/// A tensor of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) key: Box<str>,
    /// The name of its element type, and the type if the format has it.
    pub(crate) dtype: Result<SafetensorsDType, Box<str>>,
    /// As the header counts elements.
    pub(crate) shape: Vec<u64>,
    /// Its bytes in the file.
    pub(crate) bytes: Range<u64>,
}

/// A header.
#[derive(Debug, Default)]
pub(crate) struct Header {
    pub(crate) metadata: BTreeMap<Box<str>, String>,
    /// In the order of their bytes.
    pub(crate) entries: Vec<Entry>,
}

/// The length of the header, from the first bytes of a file of `file` bytes.
pub(crate) fn length(first: &[u8], file: u64) -> Result<u64, Refused> {
    let Some((length, _)) = first.split_first_chunk::<8>() else {
        return Err(Refused::damaged(format!(
            "it has {file} bytes, and the length of the header alone takes {LENGTH}"
        )));
    };
    let length = u64::from_le_bytes(*length);
    if length > MOST {
        let what =
            format!("its header is said to have {length} bytes, and at most {MOST} are allowed");
        return Err(Refused::damaged(what).at(0u64));
    }
    if LENGTH + length > file {
        let what = format!("its header is said to have {length} bytes, but the file has {file}");
        return Err(Refused::damaged(what).at(0u64));
    }
    Ok(length)
}

/// Whether a file of another name that begins so is one of safetensors: a possible length, then a JSON object.
pub(crate) fn is_start(first: &[u8]) -> bool {
    let Some((length, text)) = first.split_first_chunk() else {
        return false;
    };
    (2..=MOST).contains(&u64::from_le_bytes(*length)) && text.starts_with(b"{")
}

/// Parses a header, and checks that its tensors are the bytes of a file of `file` bytes: one after the other, without gaps.
pub(crate) fn parse(text: &[u8], file: u64) -> Result<Header, Refused> {
    if text.first() != Some(&b'{') {
        return Err(Refused::damaged("its header is no JSON object").at(LENGTH));
    }
    let raw: Raw = serde_json::from_slice(text).map_err(|e| {
        let what = format!("its header can't be parsed: {e}");
        unparsed(what, &e, LENGTH)
    })?;
    let start = LENGTH + text.len() as u64;
    let mut entries = Vec::with_capacity(raw.tensors.len());
    for (key, info) in raw.tensors {
        entries.push(entry(key, info, start)?);
    }
    entries.sort_by_key(|entry| (entry.bytes.start, entry.bytes.end));
    let mut at = start;
    for entry in &entries {
        let Range { start: from, end } = entry.bytes;
        let key = &entry.key;
        if from < at {
            let what = format!("the bytes of {key} begin within those of another tensor");
            return Err(Refused::damaged(what).at(from));
        }
        if from > at {
            let what = format!(
                "{} bytes before those of {key} belong to no tensor",
                from - at
            );
            return Err(Refused::damaged(what).at(at));
        }
        at = end;
    }
    if at > file {
        let what =
            format!("the file is cut: its tensors end at byte {at}, and it has {file} bytes");
        return Err(Refused::damaged(what).at(file));
    }
    if at < file {
        let what = format!("its last {} bytes belong to no tensor", file - at);
        return Err(Refused::damaged(what).at(at));
    }
    Ok(Header {
        metadata: raw.metadata,
        entries,
    })
}

/// The reason for refusing a text that can't be parsed and begins at byte `from` of its file. The offset is known only in a text of one line.
pub(crate) fn unparsed(what: String, e: &serde_json::Error, from: u64) -> Refused {
    let offset = (e.line() == 1).then(|| from + (e.column() as u64).saturating_sub(1));
    Refused::damaged(what).at(offset)
}

/// What is wrong with a key that is too long.
fn too_long(key: &str) -> Option<String> {
    let start = || key.chars().take(100).collect::<String>();
    let len = key.len();
    (len > LONGEST_KEY).then(|| {
        format!(
            "the key {:?}… has {len} bytes, and at most {LONGEST_KEY} are allowed",
            start()
        )
    })
}

fn entry(key: Box<str>, info: Info, start: u64) -> Result<Entry, Refused> {
    let (from, to) = info.data_offsets;
    let place = from.checked_add(start).zip(to.checked_add(start));
    let Some((from, to)) = place.filter(|(from, to)| from <= to) else {
        return Err(Refused::damaged(format!(
            "the offsets {from} and {to} of {key} are no range"
        )));
    };
    if info.shape.len() > AXES {
        let what = format!(
            "{key} has {} axes, and at most {AXES} are possible",
            info.shape.len()
        );
        return Err(Refused::damaged(what));
    }
    let dtype = SafetensorsDType::of(&info.dtype).ok_or_else(|| shortened(&info.dtype).into());
    if let Ok(dtype) = &dtype {
        let takes = dtype.bytes(&info.shape);
        if takes != Some(to - from) {
            let takes = takes.map_or("no number of".into(), |n| n.to_string());
            let what = format!(
                "{key} has {} bytes, but {} {:?} takes {takes} bytes",
                to - from,
                dtype.name,
                info.shape
            );
            return Err(Refused::damaged(what).at(from));
        }
    }
    Ok(Entry {
        key,
        dtype,
        shape: info.shape,
        bytes: from..to,
    })
}

struct Raw {
    metadata: BTreeMap<Box<str>, String>,
    tensors: BTreeMap<Box<str>, Info>,
}

#[derive(Deserialize)]
struct Info {
    dtype: Box<str>,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Map;

        impl<'de> Visitor<'de> for Map {
            type Value = Raw;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<Raw, A::Error> {
                let (mut metadata, mut tensors) = (None, UniqueMap::default());
                let mut bytes = 0usize;
                while let Some(key) = from.next_key::<Box<str>>()? {
                    if &*key == METADATA {
                        let all: UniqueMap<String> = from.next_value()?;
                        if metadata.replace(all.0).is_some() {
                            return Err(A::Error::custom("the key \"__metadata__\" comes twice"));
                        }
                        continue;
                    }
                    if let Some(what) = too_long(&key) {
                        return Err(A::Error::custom(what));
                    }
                    bytes += key.len();
                    if bytes > ALL_KEYS {
                        return Err(A::Error::custom(format_args!(
                            "its keys have more than {ALL_KEYS} bytes together"
                        )));
                    }
                    tensors.expect_new(&key)?;
                    let info = from
                        .next_value::<Info>()
                        .map_err(|e| A::Error::custom(format_args!("{key:?}: {e}")))?;
                    tensors.0.insert(key, info);
                }
                Ok(Raw {
                    metadata: metadata.unwrap_or_default(),
                    tensors: tensors.0,
                })
            }
        }
        from.deserialize_map(Map)
    }
}

/// A tensor to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NewEntry {
    pub(crate) key: Box<str>,
    pub(crate) dtype: SafetensorsDType,
    /// As the header counts elements.
    pub(crate) shape: Vec<u64>,
    pub(crate) bytes: u64,
}

/// The bytes of a file up to its first tensor. The tensors follow each other in this order, and the first one begins at a multiple of 64.
///
/// # Errors
/// It is longer than readers allow, or a key is.
pub(crate) fn text(
    metadata: &BTreeMap<Box<str>, String>,
    entries: &[NewEntry],
) -> Result<Vec<u8>, Refused> {
    let unwritable = |e: serde_json::Error| Refused::damaged(e.to_string());
    let mut out = vec![0; LENGTH as usize];
    out.extend(b"{\"__metadata__\":");
    serde_json::to_writer(&mut out, metadata).map_err(unwritable)?;
    let mut at = 0u64;
    for entry in entries {
        if let Some(what) = too_long(&entry.key) {
            return Err(Refused::damaged(what));
        }
        let end = at.checked_add(entry.bytes);
        let end = end.ok_or_else(|| Refused::damaged("a file of more than 2⁶⁴ bytes"))?;
        out.extend(entry_text(entry, [at, end])?);
        at = end;
    }
    out.push(b'}');
    finish(&mut out);
    let length = out.len() as u64 - LENGTH;
    if length > MOST {
        return Err(Refused::damaged(format!(
            "its header would have {length} bytes, and readers allow at most {MOST}; choose a smaller max_shard_size"
        )));
    }
    Ok(out)
}

/// An entry, with the comma before it.
pub(crate) fn entry_text(entry: &NewEntry, data_offsets: [u64; 2]) -> Result<Vec<u8>, Refused> {
    #[derive(Serialize)]
    struct Written<'e> {
        dtype: &'static str,
        shape: &'e [u64],
        data_offsets: [u64; 2],
    }
    let unwritable = |e: serde_json::Error| Refused::damaged(e.to_string());
    let mut out = vec![b','];
    serde_json::to_writer(&mut out, &entry.key).map_err(unwritable)?;
    out.push(b':');
    let written = Written {
        dtype: entry.dtype.name,
        shape: &entry.shape,
        data_offsets,
    };
    serde_json::to_writer(&mut out, &written).map_err(unwritable)?;
    Ok(out)
}

/// The bytes of a file up to its first tensor, from the JSON in them.
pub(crate) fn framed(json: &str) -> Vec<u8> {
    let mut out = vec![0; LENGTH as usize];
    out.extend(json.as_bytes());
    finish(&mut out);
    out
}

/// The JSON in the bytes of a file up to its first tensor.
pub(crate) fn json(all: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(all.get(LENGTH as usize..)?).ok()?;
    Some(text.trim_end_matches(' '))
}

/// Adds the spaces behind the JSON, and writes its length before it.
fn finish(out: &mut Vec<u8>) {
    // More spaces than other writers add: a header that one of them writes over this one is never the same, even of the same tensors.
    out.extend([b' '; 8]);
    while !out.len().is_multiple_of(ALIGNED) {
        out.push(b' ');
    }
    let length = (out.len() as u64).saturating_sub(LENGTH);
    if let Some(first) = out.first_chunk_mut() {
        *first = length.to_le_bytes();
    }
}

#[cfg(test)]
mod tests;

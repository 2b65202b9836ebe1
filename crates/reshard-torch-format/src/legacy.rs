//! Files that torch wrote before 1.6, or with `_use_new_zipfile_serialization=False`: five pickles, then the storages.
//!
//! The pickles are, in order: a magic number, the protocol (1001), facts about the machine, the object, and the sorted keys of its
//! storages. After them, each key has the number of elements (64 bits, little-endian) and the elements, also little-endian.

use crate::{
    Budget, Error, Limits, Outline, Result, StorageRef,
    archive::ByteOrder,
    pickle::{Graph, Id, Node, Op, Reader, run},
    tensor::{element_size, storage_of},
    value::Decoder,
};
use bytes::Bytes;
use reshard_model::Value;
use std::{collections::BTreeMap, ops::Range};

const MAGIC: [u8; 10] = [0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19];
const PROTOCOL: i64 = 1001;

/// Whether bytes start as such a file does.
pub(crate) fn is_legacy(bytes: &[u8]) -> bool {
    let mut reader = Reader::new(bytes);
    if !matches!(reader.next_op(), Ok(Op::Proto(_))) {
        return false;
    }
    // Pickles of protocol 4 have frames.
    let mut next = reader.next_op();
    if matches!(next, Ok(Op::Frame(_))) {
        next = reader.next_op();
    }
    matches!(next, Ok(Op::Long1(v)) if v == MAGIC)
}

/// The beginning of an old file, from which follows where everything lies.
///
/// ```
/// # fn main() -> Result<(), reshard_torch_format::Error> {
/// # let file: bytes::Bytes = [
/// #     &b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.\x80\x02}.\x80\x02K\x07.\x80\x02]."[..],
/// # ].concat().into();
/// use reshard_torch_format::{LegacyHead, Outline};
/// let head = LegacyHead::parse(&file, file.len() as u64, &Default::default())?;
/// let pickle = file.slice(head.pickle.clone());
/// let limits = Default::default();
/// assert_eq!(Outline::parse(&pickle, file.len() as u64, &limits)?.leaves()?.len(), 1);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LegacyHead {
    /// The bytes of the pickle of the object.
    pub pickle: Range<usize>,
    /// The storages by their keys. Their elements are little-endian.
    pub storages: BTreeMap<Box<str>, LegacyStorage>,
    /// Where the last storage ends. [`torch.load`](https://docs.pytorch.org/docs/stable/generated/torch.load.html) reads nothing of what follows.
    pub end: u64,
}

/// Where a storage of an old file lies.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LegacyStorage {
    /// Where the file says how many elements it has, in 8 bytes, little-endian.
    pub count: u64,
    /// How many elements it must have.
    pub elements: u64,
    /// The bytes of its elements.
    pub data: Range<u64>,
}

impl LegacyHead {
    /// Whether a file that starts so is an old torch file.
    pub fn is_legacy(bytes: &[u8]) -> bool {
        is_legacy(bytes)
    }

    /// Finds everything in a file of `file` bytes, by its first bytes, which contain all pickles.
    ///
    /// # Errors
    /// The pickles are damaged or not complete; the storages do not fit the file.
    pub fn parse(bytes: &Bytes, file: u64, limits: &Limits) -> Result<Self> {
        let budget = limits.budget(file);
        let mut at = preamble(bytes, limits, &budget)?;
        let start = at;
        let rest = bytes.slice(start..);
        let outline = Outline::parse(&rest, file, limits).map_err(|e| e.shifted(start as u64))?;
        at += outline.pickle_len();
        let pickle = start..at;
        let mut named: BTreeMap<Box<str>, (u64, u64)> = BTreeMap::new();
        for id in outline.graph().ids() {
            if let Some(stored) =
                storage_of(outline.graph(), id).map_err(|e| e.shifted(start as u64))?
            {
                let size = element_size(stored.class).unwrap_or(1).max(1);
                named.insert(stored.storage.key, (stored.storage.len, size));
            }
        }
        let keys_at = at;
        let (keys, root) = self::pickle(bytes, &mut at, limits, budget)?;
        let keys = storage_keys(&keys, root, keys_at)?;
        let (mut storages, mut next) = (BTreeMap::new(), at as u64);
        for key in keys {
            let (len, size) = *named
                .get(key)
                .ok_or_else(|| Error::pickle(keys_at, "a storage is listed that nothing uses"))?;
            let data = next
                .checked_add(8)
                .and_then(|from| Some(from..from.checked_add(len)?))
                .filter(|data| data.end <= file)
                .ok_or_else(|| Error::archive(next, "the file ends inside a storage"))?;
            let storage = LegacyStorage {
                count: next,
                elements: len / size,
                data: data.clone(),
            };
            next = data.end;
            if storages.insert(key.into(), storage).is_some() {
                return Err(Error::pickle(keys_at, "a storage is listed twice"));
            }
        }
        Ok(Self {
            pickle,
            storages,
            end: next,
        })
    }
}

/// The keys of the storages, in their order.
fn storage_keys<'k>(keys: &'k Graph<'_>, root: Id, at: usize) -> Result<Vec<&'k str>> {
    let bad = |what: &str| Error::pickle(at, what);
    let list = keys
        .as_seq(root)
        .ok_or_else(|| bad("the keys of the storages are not a list"))?;
    list.iter()
        .map(|&key| {
            keys.as_str(key)
                .ok_or_else(|| bad("the key of a storage is not a str"))
        })
        .collect()
}

/// Reads what comes before the object. Returns where the object starts.
fn preamble(bytes: &Bytes, limits: &Limits, budget: &Budget) -> Result<usize> {
    let mut at = 0;
    let (magic, root) = pickle(bytes, &mut at, limits, budget.clone())?;
    if !matches!(magic.node(root), Node::Long(v) if **v == MAGIC) {
        return Err(Error::pickle(
            0,
            "the magic number of an old torch file is missing",
        ));
    }
    let (protocol, root) = pickle(bytes, &mut at, limits, magic.budget().clone())?;
    match protocol.as_int(root) {
        Some(PROTOCOL) => {}
        other => {
            let what = format!("protocol {other:?} of old torch files (only 1001 is known)");
            return Err(Error::Unsupported {
                offset: at as u64,
                what: what.into(),
            });
        }
    }
    drop((magic, protocol));
    // What is not kept takes nothing of what follows.
    pickle(bytes, &mut at, limits, budget.clone())?;
    Ok(at)
}

/// Reads the object of such a file.
pub(crate) fn load(bytes: &Bytes, limits: &Limits) -> Result<Value> {
    let len = bytes.len() as u64;
    let budget = limits.budget(len);
    let mut at = preamble(bytes, limits, &budget)?;
    let start = at;
    let (object, root) = pickle(bytes, &mut at, limits, budget)?;
    let storages = storages(bytes, &mut at, &object, start, limits)?;
    let pickle = bytes.slice(start..);
    let fetch = |s: &StorageRef, _: &mut Budget| match storages.get(&*s.key) {
        Some(range) => Ok(bytes.slice(range.clone())),
        None => Err(Error::tensor(&s.key, "the file has no such storage")),
    };
    let mut decoder = Decoder::new(&object, &pickle, limits, fetch).of_file(ByteOrder::Little, len);
    decoder.value(root).map_err(|e| e.shifted(start as u64))
}

/// The next pickle of the file.
fn pickle<'a>(
    bytes: &'a Bytes,
    at: &mut usize,
    limits: &Limits,
    budget: Budget,
) -> Result<(Graph<'a>, Id)> {
    let mut graph = Graph::within(budget);
    let start = *at;
    let rest = bytes.get(start..).unwrap_or(&[]);
    let (root, len) = run(rest, &mut graph, limits).map_err(|e| e.shifted(start as u64))?;
    *at = start + len;
    Ok((graph, root))
}

/// Where each storage lies.
fn storages(
    bytes: &Bytes,
    at: &mut usize,
    object: &Graph<'_>,
    start: usize,
    limits: &Limits,
) -> Result<BTreeMap<Box<str>, Range<usize>>> {
    // How long an element is stands only where the object names its storage.
    let mut sizes: BTreeMap<Box<str>, u64> = BTreeMap::new();
    for id in object.ids() {
        if let Some(stored) = storage_of(object, id).map_err(|e| e.shifted(start as u64))? {
            sizes.insert(stored.storage.key, element_size(stored.class).unwrap_or(1));
        }
    }
    let (keys, root) = pickle(bytes, at, limits, object.budget().clone())?;
    let keys_at = *at;
    let bad = |at: usize, what: &str| Error::pickle(at, what);
    let mut out = BTreeMap::new();
    for key in storage_keys(&keys, root, keys_at)? {
        let size = sizes
            .get(key)
            .ok_or_else(|| bad(keys_at, "a storage is listed that nothing uses"))?;
        let count = bytes
            .get(*at..)
            .and_then(|b| b.first_chunk())
            .map(|c| u64::from_le_bytes(*c));
        let len = count
            .and_then(|n| n.checked_mul(*size))
            .and_then(|n| usize::try_from(n).ok());
        let range = len
            .and_then(|n| Some(*at + 8..(*at + 8).checked_add(n)?))
            .filter(|r| r.end <= bytes.len());
        let range = range.ok_or_else(|| bad(*at, "the file ends inside a storage"))?;
        *at = range.end;
        if out.insert(key.into(), range).is_some() {
            return Err(bad(keys_at, "a storage is listed twice"));
        }
    }
    Ok(out)
}

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
/// let outline = Outline::parse(&pickle, file.len() as u64, &limits)?;
/// assert_eq!(outline.contents(Default::default())?.leaves.len(), 1);
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
        let (named, keys_at) = (named(outline.graph(), start)?, at);
        let keys = self::pickle(bytes, &mut at, limits, budget)?;
        let mut end = at as u64;
        let storages = storages(&named, keys, keys_at, |len, size| {
            let data = end
                .checked_add(8)
                .and_then(|from| Some(from..from.checked_add(len)?))
                .filter(|data| data.end <= file)
                .ok_or_else(|| Error::archive(end, "the file ends inside a storage"))?;
            let count = std::mem::replace(&mut end, data.end);
            let elements = len / size;
            Ok(LegacyStorage {
                count,
                elements,
                data,
            })
        })?;
        Ok(Self {
            pickle,
            storages,
            end,
        })
    }
}

/// Reads what comes before the object. Returns where the object starts.
fn preamble(bytes: &Bytes, limits: &Limits, budget: &Budget) -> Result<usize> {
    let mut at = 0;
    let (magic, root) = pickle(bytes, &mut at, limits, budget.clone())?;
    if !matches!(magic.node(root), Node::Long(v) if **v == MAGIC) {
        let what = "the magic number of an old torch file is missing";
        return Err(Error::pickle(0, what));
    }
    let (protocol, root) = pickle(bytes, &mut at, limits, magic.budget().clone())?;
    let protocol_of = protocol.as_int(root);
    if protocol_of != Some(PROTOCOL) {
        let what = format!("protocol {protocol_of:?} of old torch files (only 1001 is known)");
        return Err(Error::unsupported(at as u64, what));
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
    let named = named(&object, start)?;
    let keys = pickle(bytes, &mut at, limits, object.budget().clone())?;
    let storages = storages(&named, keys, at, |_, size| {
        // How many elements there are stands before them.
        let count = bytes.get(at..).and_then(|b| b.first_chunk());
        let len = count.and_then(|c| u64::from_le_bytes(*c).checked_mul(size));
        let range = len
            .and_then(|n| Some(at + 8..(at + 8).checked_add(usize::try_from(n).ok()?)?))
            .filter(|r| r.end <= bytes.len())
            .ok_or_else(|| Error::pickle(at, "the file ends inside a storage"))?;
        at = range.end;
        Ok(range)
    })?;
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

/// By key, the length of a storage in bytes, and the size of its elements, which stands only where the object names the storage.
type Named = BTreeMap<Box<str>, (u64, u64)>;

fn named(object: &Graph<'_>, start: usize) -> Result<Named> {
    let mut named = Named::new();
    for id in object.ids() {
        if let Some(stored) = storage_of(object, id).map_err(|e| e.shifted(start as u64))? {
            let size = element_size(stored.class).unwrap_or(1).max(1);
            named.insert(stored.storage.key, (stored.storage.len, size));
        }
    }
    Ok(named)
}

/// The storages by their keys. `each` is called for them in their order, with their lengths and the sizes of their elements.
fn storages<T>(
    named: &Named,
    (keys, root): (Graph<'_>, Id),
    keys_at: usize,
    mut each: impl FnMut(u64, u64) -> Result<T>,
) -> Result<BTreeMap<Box<str>, T>> {
    let bad = |what: &str| Error::pickle(keys_at, what);
    let keys_of = keys.as_seq(root);
    let keys_of = keys_of.ok_or_else(|| bad("the keys of the storages are not a list"))?;
    // All of them are looked at first.
    let all = keys_of.iter().map(|&key| keys.as_str(key));
    let all: Option<Vec<&str>> = all.collect();
    let mut out = BTreeMap::new();
    for key in all.ok_or_else(|| bad("the key of a storage is not a str"))? {
        let (len, size) = *named
            .get(key)
            .ok_or_else(|| bad("a storage is listed that nothing uses"))?;
        if out.insert(key.into(), each(len, size)?).is_some() {
            return Err(bad("a storage is listed twice"));
        }
    }
    Ok(out)
}

//! Reads a table that is in memory. Everything in it may be damaged or hostile.

use super::{FOOTER, MAGIC, TRAILER};
use crate::{
    crc::{mask, unmask},
    varint,
};
use reshard_model::ErrorKind;
use reshard_strategy::Refused;
use std::{borrow::Cow, ops::Range};

pub(crate) type Result<T, E = Refused> = std::result::Result<T, E>;

/// The reason for refusing a table that is damaged at this byte.
pub(crate) fn damaged(offset: usize, what: impl Into<String>) -> Refused {
    Refused::damaged(what).at(offset as u64)
}

/// What an entry takes in memory at least when it is parsed, with its tensor, its chunk and its place. The shortest one has three
/// bytes in the table.
const ENTRY: u64 = 300;

/// What each byte of a value may take when it is parsed: a slice that says nothing has two bytes, and is a list.
const OF_VALUE: u64 = 24;

/// How much memory the parsed form of a table may take: its keys, its unpacked blocks and its entries. Keys share bytes, so a short
/// table may have long ones.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget(pub(crate) u64);

impl Budget {
    pub(crate) fn take(&mut self, bytes: u64) -> Result<()> {
        match self.0.checked_sub(bytes) {
            Some(rest) => self.0 = rest,
            None => {
                let what = "the index asks for more memory than is permitted";
                return Err(Refused::new(ErrorKind::Limit, what));
            }
        }
        Ok(())
    }
}

/// Where a block lies, without its trailer.
#[derive(Clone, Copy, Debug)]
struct Handle {
    offset: u64,
    size: u64,
}

impl Handle {
    fn take(bytes: &mut &[u8]) -> Option<Self> {
        let (offset, size) = (varint::take(bytes)?, varint::take(bytes)?);
        Some(Self { offset, size })
    }

    /// The bytes of the block and of its trailer.
    fn range(self, table: &[u8]) -> Option<Range<usize>> {
        let (from, size) = (
            usize::try_from(self.offset).ok()?,
            usize::try_from(self.size).ok()?,
        );
        let to = from.checked_add(size)?.checked_add(TRAILER)?;
        // No block reaches into the footer.
        (to <= table.len().checked_sub(FOOTER)?).then_some(from..to)
    }
}

/// The places of the meta data block and of the index block.
fn footer(table: &[u8]) -> Result<[Handle; 2]> {
    let Some(at) = table.len().checked_sub(FOOTER) else {
        let what = "it is too short to be a table; it was cut, or it is no index of a checkpoint";
        return Err(damaged(0, what));
    };
    if !table.ends_with(&MAGIC) {
        let what = "it does not end as a table does; it was cut, or it is no index of a checkpoint";
        return Err(damaged(at, what));
    }
    let mut handles = &table[at..];
    let mut take = || {
        let unknown = || damaged(at, "the footer does not say where blocks lie");
        Handle::take(&mut handles).ok_or_else(unknown)
    };
    Ok([take()?, take()?])
}

/// Takes an entry: where its block lies, its key and its value.
pub(crate) type Visit<'v> = dyn FnMut(usize, &[u8], &[u8]) -> Result<()> + 'v;

/// Gives all entries in their order. Keys increase strictly.
pub(crate) fn entries(table: &[u8], mut budget: Budget, visit: &mut Visit<'_>) -> Result<()> {
    let [_, index] = footer(table)?;
    // The index block has, for each data block, a key that is not before the keys of that block, and before those of the next one.
    let mut last: Option<Vec<u8>> = None;
    let mut separator: Option<Vec<u8>> = None;
    let index_at = usize::try_from(index.offset).unwrap_or(usize::MAX);
    let index = block(table, index, &mut budget)?;
    let mut blocks = budget;
    for_each(&index, index_at, &mut blocks, &mut |key, mut value, _| {
        let handle = Handle::take(&mut value)
            .ok_or_else(|| damaged(index_at, "the index block does not say where a block lies"))?;
        let block_at = usize::try_from(handle.offset).unwrap_or(usize::MAX);
        let block = block(table, handle, &mut budget)?;
        for_each(&block, block_at, &mut budget, &mut |key, value, first| {
            let before = match first {
                true => last.as_deref().max(separator.as_deref()),
                false => last.as_deref(),
            };
            // An empty key may be the very first one.
            if before.is_some_and(|before| key <= before) {
                return Err(unsorted(block_at, key, last.as_deref()));
            }
            match &mut last {
                Some(last) => key.clone_into(last),
                None => last = Some(key.to_vec()),
            }
            visit(block_at, key, value)
        })?;
        if last.as_deref().is_some_and(|last| key < last) {
            let what = "the index block gives a block a key that is before the keys in it, so it would not be found";
            return Err(damaged(index_at, what));
        }
        separator = Some(key.to_vec());
        Ok(())
    })
}

/// Checks what a reader does not need: the block of meta data, which is empty, and the padding of the footer. Returns how many bytes lie in no
/// block and not in the footer.
pub(crate) fn unclaimed(table: &[u8], mut budget: Budget) -> Result<u64> {
    let [meta, index] = footer(table)?;
    let at = table.len() - FOOTER;
    let footer = &table[at..table.len() - MAGIC.len()];
    // A number may have another byte more than it needs, and mean the same.
    let mut written = Vec::with_capacity(footer.len());
    for number in [meta.offset, meta.size, index.offset, index.size] {
        varint::put(&mut written, number);
    }
    written.resize(footer.len(), 0);
    if footer != written {
        let what = "the footer is not what TensorFlow writes: a byte of it has changed";
        return Err(damaged(at, what));
    }
    drop(block(table, meta, &mut budget)?);
    let index_at = usize::try_from(index.offset).unwrap_or(usize::MAX);
    let mut blocks: Vec<Range<usize>> = [meta, index]
        .into_iter()
        .filter_map(|handle| handle.range(table))
        .collect();
    let index = block(table, index, &mut budget)?;
    for_each(&index, index_at, &mut budget, &mut |_, mut value, _| {
        blocks.extend(Handle::take(&mut value).and_then(|handle| handle.range(table)));
        Ok(())
    })?;
    blocks.sort_unstable_by_key(|range| range.start);
    let blocks = blocks.into_iter().map(|r| r.start as u64..r.end as u64);
    Ok(reshard_strategy::unclaimed(at as u64, blocks))
}

fn unsorted(at: usize, key: &[u8], last: Option<&[u8]>) -> Refused {
    let shown = String::from_utf8_lossy(&key[..key.len().min(200)]);
    let what = match last == Some(key) {
        true => format!("the key {shown:?} is there twice"),
        false => format!("the key {shown:?} is not in order, so it would not be found"),
    };
    damaged(at, what)
}

/// A block, checked and unpacked.
fn block<'t>(table: &'t [u8], handle: Handle, budget: &mut Budget) -> Result<Cow<'t, [u8]>> {
    let at = usize::try_from(handle.offset).unwrap_or(usize::MAX);
    let outside = || {
        damaged(
            at,
            format!(
                "a block of {} bytes would lie outside of the file",
                handle.size
            ),
        )
    };
    let bytes = handle
        .range(table)
        .and_then(|range| table.get(range))
        .ok_or_else(outside)?;
    let (block, trailer) = bytes.split_at(bytes.len() - TRAILER);
    let (packed, stored) = (trailer[0], [trailer[1], trailer[2], trailer[3], trailer[4]]);
    let found = crc32c::crc32c(&bytes[..=block.len()]);
    let stored = u32::from_le_bytes(stored);
    if mask(found) != stored {
        let what = format!(
            "a block is damaged: its CRC-32C is {found:08x}, and {:08x} was written",
            unmask(stored)
        );
        return Err(damaged(at, what));
    }
    match packed {
        0 => Ok(Cow::Borrowed(block)),
        1 => snappy(block, at, budget).map(Cow::Owned),
        other => {
            let what = format!("a block is compressed by method {other}, which is not known");
            Err(Refused::unknown(what).at(at as u64))
        }
    }
}

/// Snappy makes at most 64 bytes of 3, and a header says how many it makes in all.
const MOST: u64 = 22;

fn snappy(block: &[u8], at: usize, budget: &mut Budget) -> Result<Vec<u8>> {
    let failed = |e: snap::Error| damaged(at, format!("a block can't be unpacked: {e}"));
    let length = snap::raw::decompress_len(block).map_err(failed)? as u64;
    if length > (block.len() as u64).saturating_mul(MOST) {
        let what = format!(
            "a block of {} bytes says that it unpacks to {length}, which snappy can't do",
            block.len()
        );
        return Err(damaged(at, what));
    }
    budget.take(length)?;
    snap::raw::Decoder::new()
        .decompress_vec(block)
        .map_err(failed)
}

/// Takes a key, its value, and whether it is the first one of its block.
type InBlock<'v> = dyn FnMut(&[u8], &[u8], bool) -> Result<()> + 'v;

/// Gives the entries of a block, and whether it is the first one. `at` is where the block lies in the table.
fn for_each(block: &[u8], at: usize, budget: &mut Budget, visit: &mut InBlock<'_>) -> Result<()> {
    let wrong = |what: &str| damaged(at, what);
    // Restarts are for seeking, which nobody does here. Only their number counts.
    let restarts = block
        .split_last_chunk()
        .map(|(rest, n)| (rest, u32::from_le_bytes(*n)));
    let (rest, restarts) = restarts.ok_or_else(|| wrong("a block is too short"))?;
    let entries = usize::try_from(restarts)
        .ok()
        .and_then(|n| rest.len().checked_sub(n.checked_mul(4)?))
        .and_then(|end| rest.get(..end));
    let mut left = entries.ok_or_else(|| wrong("a block has not as many restarts as it says"))?;
    let mut key: Vec<u8> = Vec::new();
    let mut first = true;
    while !left.is_empty() {
        let mut lengths = || -> Option<(usize, usize, usize)> {
            let mut next = || usize::try_from(varint::take(&mut left)?).ok();
            Some((next()?, next()?, next()?))
        };
        let cut = || wrong("an entry reaches beyond its block");
        let (shared, own, value) = lengths().ok_or_else(cut)?;
        if shared > key.len() {
            return Err(wrong(
                "an entry shares more of its key than the one before it has",
            ));
        }
        let (rest, tail) = left.split_at_checked(own).ok_or_else(cut)?;
        let (value, tail) = tail.split_at_checked(value).ok_or_else(cut)?;
        left = tail;
        key.truncate(shared);
        key.extend(rest);
        let takes = (value.len() as u64).saturating_mul(OF_VALUE) + ENTRY;
        budget.take(takes.saturating_add(key.len() as u64))?;
        visit(&key, value, first)?;
        first = false;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{
        super::write::{TableBuilder, of_block},
        *,
    };

    fn keys(table: &[u8]) -> Result<Vec<Vec<u8>>> {
        let mut keys = Vec::new();
        entries(table, Budget(1 << 20), &mut |_, key, _| {
            keys.push(key.to_vec());
            Ok(())
        })?;
        Ok(keys)
    }

    fn table(keys: &[&[u8]]) -> Vec<u8> {
        let mut builder = TableBuilder::default();
        keys.iter().for_each(|key| builder.add(key, b"v"));
        builder.finish()
    }

    #[test]
    fn a_block_that_claims_to_unpack_to_more_than_it_can_takes_no_memory() {
        // A gigabyte, in the header alone.
        let e = keys(&of_block(&[0x80, 0x80, 0x80, 0x80, 4, 0], 1)).unwrap_err();
        assert!(e.what.contains("which snappy can't do"), "{e:?}");
        // And one that does what it says, beyond the budget.
        let packed = snap::raw::Encoder::new()
            .compress_vec(&vec![0; 2 << 20])
            .unwrap();
        let e = keys(&of_block(&packed, 1)).unwrap_err();
        assert!(matches!(e.kind, ErrorKind::Limit), "{e:?}");
    }

    #[test]
    fn what_is_wrong_with_a_table_is_said() {
        let good = table(&[b"", b"a", b"b"]);
        assert_eq!(keys(&good).unwrap(), [&b""[..], b"a", b"b"]);
        let said = |table: &[u8]| keys(table).unwrap_err().what;
        assert!(said(&good[..47]).contains("too short"));
        assert!(said(&good[..good.len() - 1]).contains("does not end as a table does"));
        let mut flipped = good.clone();
        flipped[3] ^= 1;
        assert!(said(&flipped).contains("a block is damaged: its CRC-32C is"));
        assert!(said(&table(&[b"b", b"b"])).contains("there twice"));
        assert!(said(&table(&[b"b", b"a"])).contains("not in order"));
        assert!(said(&of_block(b"\0\0\0\0\x01\0\0\0", 9)).contains("method 9"));
        assert!(said(&of_block(b"\0", 0)).contains("too short"));
        assert!(said(&of_block(b"\0\0\0\x01", 0)).contains("restarts"));
        assert!(said(&of_block(b"\x01\0\0\0\0\0\0\x01\0\0\0", 0)).contains("shares more"));
        assert!(said(&of_block(b"\0\x09\0\0\0\0\0\x01\0\0\0", 0)).contains("beyond its block"));
    }

    #[test]
    fn every_changed_byte_of_a_table_is_found() {
        let good = table(&[b"a", b"b"]);
        let checked = |table: &[u8]| {
            keys(table)?;
            unclaimed(table, Budget(1 << 20))
        };
        assert_eq!(checked(&good), Ok(0));
        for at in 0..good.len() {
            for bit in 0..8 {
                let mut table = good.clone();
                table[at] ^= 1 << bit;
                assert!(checked(&table).is_err(), "byte {at}, bit {bit}");
            }
        }
    }

    #[test]
    fn bytes_in_no_block_are_counted() {
        // They lie behind the last block.
        let good = table(&[b"a"]);
        let more = [
            &good[..good.len() - FOOTER],
            &[7; 9],
            &good[good.len() - FOOTER..],
        ]
        .concat();
        assert_eq!(unclaimed(&more, Budget(1 << 20)), Ok(9));
    }

    #[test]
    fn tiny_entries_cost_what_they_take_when_they_are_parsed() {
        // Three bytes each in the table.
        let many = |n: u32| {
            let keys: Vec<_> = (0..n).map(|n| n.to_be_bytes()).collect();
            let keys: Vec<&[u8]> = keys.iter().map(|k| &k[..]).collect();
            table(&keys)
        };
        assert_eq!(keys(&many(3_000)).unwrap().len(), 3_000);
        let e = keys(&many(4_000)).unwrap_err();
        assert!(matches!(e.kind, ErrorKind::Limit), "{e:?}");
        // Values of empty slices.
        let value = |bytes: usize| {
            let mut builder = TableBuilder::default();
            builder.add(b"k", &b"\x3a\0".repeat(bytes / 2));
            keys(&builder.finish())
        };
        assert!(value(40_000).is_ok());
        assert!(matches!(value(50_000).unwrap_err().kind, ErrorKind::Limit));
    }

    #[test]
    fn long_keys_that_share_their_bytes_cost_what_they_are() {
        let mut block = vec![0];
        varint::put(&mut block, 5000);
        block.push(0);
        block.extend([b'k'; 5000]);
        for n in 0..=255u8 {
            varint::put(&mut block, 5000);
            block.extend([2, 0, n, 0]);
        }
        block.extend([0, 0, 0, 0, 1, 0, 0, 0]);
        let e = keys(&of_block(&block, 0)).unwrap_err();
        assert!(matches!(e.kind, ErrorKind::Limit), "{e:?}");
    }
}

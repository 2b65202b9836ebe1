//! What a reader says of its items is true: checks find damage, and checksums are those of the elements.

use super::{left::files, sample, sample::Cut};
use crate::{
    ElementChecksum, LoadShardedStrategy, OpenCx, StorageInfo, StorageReader, VerifyReport,
    item_parts,
};
use bytes::Bytes;
use futures_executor::block_on;
use reshard_model::{Data, ErrorKind, Sharded, Tensor};
use reshard_storage::{Name, Progress, Store, testkit::MemoryStore};
use std::{collections::BTreeMap, sync::Arc};

type Files = BTreeMap<Name, Bytes>;

/// Opens a copy of a checkpoint, and checks it. A checkpoint that can't be opened is `None`.
fn checked(load: &LoadShardedStrategy, all: &Files, full: bool) -> Option<VerifyReport> {
    let store = MemoryStore::new();
    let copies = all.iter().map(|(n, b)| (n.clone(), b.clone()));
    copies.for_each(|(name, bytes)| store.put(name, bytes));
    let store: Arc<dyn Store> = Arc::new(store);
    let reader = block_on(load.open(&OpenCx::new(store)));
    let reader = match reader {
        Ok(reader) => reader,
        Err(e) => {
            let kind = e.kind();
            let says_so = matches!(kind, ErrorKind::Corrupt | ErrorKind::NotFound);
            assert!(says_so, "a damaged checkpoint is {kind:?}: {e}");
            return None;
        }
    };
    Some(block_on(reader.verify(full, &Progress::none())).unwrap())
}

fn is_found(load: &LoadShardedStrategy, all: &Files, full: bool) -> bool {
    checked(load, all, full).is_none_or(|report| !report.damage.is_empty())
}

/// Opens what lies in a store.
fn open(load: &LoadShardedStrategy, store: &Arc<dyn Store>) -> Arc<dyn StorageReader> {
    block_on(load.open(&OpenCx::new(Arc::clone(store)))).unwrap()
}

/// A changed byte of an item is found where the format has checksums, and a file that is missing or cut always.
pub(super) fn damage_is_found(load: &LoadShardedStrategy, store: &Arc<dyn Store>) {
    let all = files(store);
    let reader = open(load, store);
    let parts: Vec<StorageInfo> = item_parts(&*reader).filter(|p| p.length() > 0).collect();
    let sound = checked(load, &all, true).expect("a sound checkpoint opens");
    for StorageInfo { file, range, .. } in parts {
        let at = (range.start + (range.end - range.start) / 2) as usize;
        let mut bytes = all[&file].to_vec();
        bytes[at] ^= 0x10;
        let changed = [(file.clone(), bytes.into())];
        if sound.without_checksum == 0 {
            let damaged = all.clone().into_iter().chain(changed).collect();
            assert!(
                is_found(load, &damaged, true),
                "byte {at} of {file} is changed, and a full check finds nothing"
            );
        }
        let cut = [(file.clone(), all[&file].slice(..at))];
        let damaged = all.clone().into_iter().chain(cut).collect();
        assert!(
            is_found(load, &damaged, false),
            "{file} ends at byte {at}, and a quick check finds nothing"
        );
        let mut damaged = all.clone();
        damaged.remove(&file);
        assert!(
            is_found(load, &damaged, false),
            "{file} is missing, and a quick check finds nothing"
        );
    }
}

/// The tensors of the sample, as one rank has them.
fn tensors() -> BTreeMap<Box<str>, Tensor> {
    let all = sample(Cut::Replicated, 0, 1, false).into_iter();
    let tensors = all.filter_map(|(_, leaf)| match leaf {
        Sharded::Tensor(t) => match t.data {
            Data::Host(data) => Some((t.key, data)),
            _ => None,
        },
        Sharded::Object(_) => None,
    });
    tensors.collect()
}

/// Checksums of elements are those of what was saved: the sample, on any ranks.
pub(super) fn checksums_are_those_of_elements(load: &LoadShardedStrategy, store: &Arc<dyn Store>) {
    let reader = open(load, store);
    let saved = tensors();
    for tensor in reader.metadata().tensors() {
        let (ids, regions): (Vec<_>, Vec<_>) = tensor.chunks().unzip();
        let sums = block_on(reader.element_checksums(&ids)).unwrap();
        assert_eq!(sums.len(), ids.len(), "one for each chunk");
        for (sum, region) in sums.into_iter().zip(regions) {
            let elements = saved[tensor.key()].narrow(&region).to_bytes();
            let is = match sum {
                None => continue,
                Some(ElementChecksum::Crc32(_)) => crc32fast::hash(&elements),
                Some(ElementChecksum::Crc32c(_)) => crc32c(&elements),
            };
            let says = sum.map(ElementChecksum::value);
            assert_eq!(says, Some(is), "{} {region}", tensor.key());
        }
    }
}

/// CRC-32C, bit by bit.
fn crc32c(bytes: &[u8]) -> u32 {
    let bit = |crc: u32, _| (crc >> 1) ^ (0x82f6_3b78 & (crc & 1).wrapping_neg());
    let byte = |crc: u32, byte: &u8| (0..8).fold(crc ^ u32::from(*byte), bit);
    !bytes.iter().fold(!0, byte)
}

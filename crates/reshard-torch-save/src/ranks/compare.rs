//! Whether tensors and objects of several files are equal.

use crate::{
    error::lost,
    file::{Container, TorchFile, length},
    reader::TorchSaveReader,
};
use bytes::Bytes;
use reshard_strategy::{Result, StrategyError};
use reshard_torch_format::{ObjectAt, TensorRef, archive::Method, encode};
use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    ops::Range,
    sync::Arc,
};

/// So many bytes are compared at a time.
const STEP: u64 = 1 << 20;

/// Whether the tensors of all ranks are equal.
pub(super) async fn tensors(
    reader: &TorchSaveReader,
    key: &str,
    all: &[(u32, Box<TensorRef>)],
) -> Result<bool> {
    let Some(((file, first), rest)) = all.split_first() else {
        return Ok(true);
    };
    for (other, tensor) in rest {
        if !same(reader, key, (*file, first), (*other, tensor)).await? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether two tensors have the same elements: by their checksums, or else by their bytes.
pub(crate) async fn same(
    reader: &TorchSaveReader,
    key: &str,
    (n, a): (u32, &TensorRef),
    (m, b): (u32, &TensorRef),
) -> Result<bool> {
    if let Some(same) = by_checksum(reader, (n, a), (m, b)) {
        return Ok(same);
    }
    let (one, other) = (reader.file(n)?, reader.file(m)?);
    let places = (place(reader, one, a).await?, place(reader, other, b).await?);
    let (Some(x), Some(y)) = places else {
        let (x, y) = (
            whole(reader, one, key, a).await?,
            whole(reader, other, key, b).await?,
        );
        return Ok(x == y);
    };
    let mut at = 0;
    while at < length(&x) {
        let end = length(&x).min(at + STEP);
        let read = |from: &Range<u64>, file: &TorchFile| {
            let range = from.start + at..from.start + end;
            let name = file.name.clone();
            async move {
                let read = reader.store().read(&name, range).await;
                read.map_err(|e| lost(e, name.as_str()))
            }
        };
        if read(&x, one).await? != read(&y, other).await? {
            return Ok(false);
        }
        at = end;
    }
    Ok(true)
}

/// Whether two tensors have the same elements, if their checksums tell.
pub(crate) fn by_checksum(
    reader: &TorchSaveReader,
    (n, a): (u32, &TensorRef),
    (m, b): (u32, &TensorRef),
) -> Option<bool> {
    if (a.dtype, &a.shape) != (b.dtype, &b.shape) {
        return Some(false);
    }
    let (one, other) = (reader.file(n).ok()?, reader.file(m).ok()?);
    if let (Some(x), Some(y)) = (one.checksum(a), other.checksum(b)) {
        return Some(x == y);
    }
    same_records(one, a, other, b).then_some(true)
}

/// Whether two tensors are the same view of records with the same checksum.
fn same_records(one: &TorchFile, a: &TensorRef, other: &TorchFile, b: &TensorRef) -> bool {
    let sum = |file: &TorchFile, tensor: &TensorRef| match &file.container {
        Container::Zip(zip) => {
            let record = zip.directory.find(&tensor.storage.record())?;
            Some((record.checksum()?, record.size, zip.order))
        }
        _ => None,
    };
    let is_same_view =
        (a.offset, &a.strides, a.conj, a.neg) == (b.offset, &b.strides, b.conj, b.neg);
    is_same_view && sum(one, a).is_some_and(|x| sum(other, b) == Some(x))
}

/// Where the elements of a tensor are in its file, if they are there one after the other, unchanged.
async fn place(
    reader: &TorchSaveReader,
    file: &TorchFile,
    tensor: &TensorRef,
) -> Result<Option<Range<u64>>> {
    let Ok(layout) = tensor.layout() else {
        return Ok(None);
    };
    if !layout.is_contiguous() || tensor.is_lazy(file.order()) {
        return Ok(None);
    }
    let storage = match &file.container {
        Container::Zip(zip) => match zip.directory.find(&tensor.storage.record()) {
            Some(record) if record.method == Method::Stored => {
                let places = zip.places(reader.store(), &file.name, &[record]).await?;
                places.into_iter().next()
            }
            _ => None,
        },
        _ => file.place(&tensor.storage),
    };
    let from = tensor.offset.saturating_mul(tensor.dtype.size());
    Ok(storage.and_then(|at| {
        let start = at.start.checked_add(from)?;
        let end = start.checked_add(layout.bytes())?;
        (end <= at.end).then_some(start..end)
    }))
}

/// All elements of a tensor, in row-major order.
async fn whole(
    reader: &TorchSaveReader,
    file: &TorchFile,
    key: &str,
    tensor: &TensorRef,
) -> Result<Bytes> {
    let bytes = reader.storage(file, key, &tensor.storage, false).await?;
    let made = tensor.tensor(Arc::new(bytes), file.order());
    let made = made.map_err(|e| crate::error::unreadable(e, key, file.name.as_str()))?;
    Ok(made.to_bytes())
}

/// An object as bytes, which also tells NaNs apart.
type EncodedObject = (Vec<u8>, Vec<Bytes>);

/// The keys of objects that are not equal in all files. `of` has the objects of each file. Those of one file are decoded at once, because
/// each time its pickle is parsed again.
pub(super) async fn differing(
    reader: &TorchSaveReader,
    of: BTreeMap<u32, Vec<(&str, ObjectAt)>>,
) -> Result<BTreeSet<Box<str>>> {
    let mut firsts: BTreeMap<&str, Option<EncodedObject>> = BTreeMap::new();
    let mut differ = BTreeSet::new();
    for (n, objects) in of {
        let file = reader.file(n)?;
        let all: Vec<ObjectAt> = objects.iter().map(|(_, at)| *at).collect();
        let mut decoded = file.outline(reader.limits(), |outline| {
            Ok(outline.values_without_storages(&all, file.order()))
        })?;
        for (key, at) in objects {
            if differ.contains(key) {
                continue;
            }
            let value = match decoded.remove(&at) {
                Some(value) => Some(value),
                // It has tensors, or all objects together are too much.
                None => match reader.value(n, key, at, false).await {
                    Ok(value) => Some(value),
                    Err(e @ StrategyError::Storage(_)) => return Err(e),
                    // Each rank keeps its own, and whoever reads it gets the error.
                    Err(_) => None,
                },
            };
            let encoded = value.and_then(|value| encode(&value).ok());
            let encoded = encoded.map(|encoded| (encoded.pickle, encoded.storages));
            match firsts.entry(key) {
                Entry::Vacant(new) => drop(new.insert(encoded)),
                Entry::Occupied(first) => {
                    if encoded.is_none() || *first.get() != encoded {
                        differ.insert(key.into());
                    }
                }
            }
        }
    }
    Ok(differ)
}

//! Objects: what is in the pickle and is no tensor.

use super::TorchSaveReader;
use crate::{
    error::{lost, unreadable},
    file::{Container, TorchFile, content, length},
};
use bytes::Bytes;
use reshard_model::{Payload, Value};
use reshard_strategy::{
    ReadCx, ReadObject, Result, StrategyError,
    torch::{parsing, tensor_bytes},
};
use reshard_torch_format::{Error as FormatError, ObjectAt, Outline, StorageRef};
use std::{
    collections::BTreeMap,
    sync::{MutexGuard, PoisonError},
};

pub(super) async fn read(
    reader: &TorchSaveReader,
    reads: &[ReadObject],
    cx: &ReadCx<'_>,
) -> Result<Vec<Payload>> {
    let mut out = Vec::with_capacity(reads.len());
    for read in reads {
        let (n, object) = reader
            .table
            .objects
            .get(read.object.0 as usize)
            .ok_or_else(|| StrategyError::Internal(format!("no object {}", read.object.0)))?;
        let key = reader.metadata.object_key(read.object).unwrap_or_default();
        let value = match reader.known(*n, *object)? {
            Some(value) => value,
            None => reader.value(*n, key, *object, cx.verify).await?,
        };
        out.push(Payload::Value(value));
    }
    Ok(out)
}

impl TorchSaveReader {
    fn values(&self) -> MutexGuard<'_, BTreeMap<u32, BTreeMap<ObjectAt, Value>>> {
        self.values.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An object without tensors. Not all of them may be decoded, because together they may be too much.
    fn known(&self, n: u32, object: ObjectAt) -> Result<Option<Value>> {
        if let Some(known) = self.values().get(&n) {
            return Ok(known.get(&object).cloned());
        }
        let file = self.file(n)?;
        let own = self.table.objects.iter().filter(|(of, _)| *of == n);
        let own: Vec<ObjectAt> = own.map(|(_, object)| *object).collect();
        let decoded = file.outline(&self.limits, |outline| {
            Ok(outline.values_without_storages(&own, file.order()))
        })?;
        let value = decoded.get(&object).cloned();
        self.values().insert(n, decoded);
        Ok(value)
    }

    /// An object with its tensors.
    pub(crate) async fn value(
        &self,
        n: u32,
        key: &str,
        object: ObjectAt,
        verify: bool,
    ) -> Result<Value> {
        let file = self.file(n)?;
        let needs = file.outline(&self.limits, |outline| outline.storages(&[object]))?;
        let all = needs.iter().map(|storage| storage.len);
        let bytes = all.fold(0, u64::saturating_add);
        self.limits.whole(format_args!("object {key}"), bytes)?;
        let mut storages = BTreeMap::new();
        for storage in &needs {
            let content = self.storage(file, key, storage, verify).await?;
            storages.insert(&*storage.key, content);
        }
        let order = file.order();
        let limits = parsing(&self.limits);
        let outline = Outline::parse(&file.pickle, file.bytes, &limits);
        let values = outline.and_then(|outline| {
            outline.values(&[object], order, |storage, _| {
                let lost = || FormatError::NoRecord {
                    name: storage.record().into(),
                    have: "what the object was said to need".into(),
                };
                storages.get(&*storage.key).cloned().ok_or_else(lost)
            })
        });
        let what = format!("object {key}");
        let values = values.map_err(|e| unreadable(e, &what, file.name.as_str()))?;
        let value = values.into_iter().next().unwrap_or(Value::None);
        let stored = bytes.saturating_add(file.pickle.len() as u64);
        self.limits.repeated(what, tensor_bytes(&value), stored)?;
        Ok(value)
    }

    /// The bytes of a storage.
    pub(crate) async fn storage(
        &self,
        file: &TorchFile,
        key: &str,
        storage: &StorageRef,
        verify: bool,
    ) -> Result<Bytes> {
        let what = format!("object {key}");
        let damaged = |e| unreadable(e, &what, file.name.as_str());
        file.has(storage).map_err(damaged)?;
        let read = |at| async {
            let read = self.store.read(&file.name, at).await;
            read.map_err(|e| lost(e, file.name.as_str()))
        };
        match &file.container {
            Container::Zip(zip) => {
                let record = zip.directory.get(&storage.record()).map_err(damaged)?;
                let places = zip.places(&self.store, &file.name, &[record]).await?;
                let at = places.into_iter().next().unwrap_or_default();
                self.limits.whole(&what, length(&at))?;
                let stored = read(at).await?;
                content(record, stored, file.bytes, &self.limits, verify).map_err(damaged)
            }
            _ => match file.place(storage) {
                Some(at) => read(at).await,
                None => Ok(Bytes::new()),
            },
        }
    }
}

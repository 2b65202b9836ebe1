//! Files of safetensors, as `torch_checkpointing` may write them for the tensors of a rank.

use super::{Container, TorchFile, length};
use crate::error::lost;
use bytes::Bytes;
use reshard_model::{Path, SafetensorsDType};
use reshard_storage::{Name, Store};
use reshard_strategy::{ReadLimits, Result, StrategyError, UniqueMap};
use reshard_torch_format::{Contents, Found, Leaf, Modules, StorageRef, TensorRef};
use serde::Deserialize;
use std::{collections::BTreeMap, ops::Range, sync::Arc};

/// Bytes before the header: its length.
const LENGTH: u64 = 8;

/// The entry of a tensor in the header; without anything, that of the texts of the file.
#[derive(Debug, Deserialize)]
struct Entry {
    dtype: Option<String>,
    #[serde(default)]
    shape: Vec<u64>,
    data_offsets: Option<(u64, u64)>,
}

impl TorchFile {
    /// Reads the header of a file. What it holds comes with it.
    pub(crate) async fn safetensors(
        store: &Arc<dyn Store>,
        name: Name,
        bytes: u64,
        limits: &ReadLimits,
    ) -> Result<(Self, Contents)> {
        let read = |range: Range<u64>| async {
            let read = store.read(&name, range).await;
            read.map_err(|e| lost(e, name.as_str()))
        };
        let damaged = |what: String| StrategyError::corrupt(&name, None, what);
        let first = read(0..bytes.min(LENGTH)).await?;
        let header = first.first_chunk().map(|n| u64::from_le_bytes(*n));
        let start = header
            .and_then(|n| n.checked_add(LENGTH))
            .filter(|end| *end <= bytes);
        let start = start.ok_or_else(|| damaged("its header is longer than the file".into()))?;
        limits.whole(format_args!("the header of {name}"), start)?;
        let header = read(LENGTH..start).await?;
        let entries: UniqueMap<Entry> = serde_json::from_slice(&header)
            .map_err(|e| damaged(format!("its header can't be parsed: {e}")))?;
        let (mut tensors, mut contents) = (BTreeMap::new(), Contents::default());
        contents.opens = true;
        for (key, entry) in entries.0 {
            if &*key == "__metadata__" {
                continue;
            }
            let (tensor, place) = described(&key, &entry, start..bytes).map_err(damaged)?;
            tensors.insert(key.clone(), place);
            let leaf = Leaf::Tensor(Ok(Box::new(tensor)));
            let path = Path(vec![key.to_string().into()]);
            contents.leaves.push(Found::new(path, leaf));
        }
        let file = Self {
            name,
            bytes,
            pickle: Bytes::new(),
            container: Container::Safetensors(tensors),
            modules: Modules::default(),
        };
        Ok((file, contents))
    }
}

fn described(
    key: &str,
    entry: &Entry,
    data: Range<u64>,
) -> Result<(TensorRef, Range<u64>), String> {
    let named = entry.dtype.as_deref().unwrap_or("nothing");
    let spelled = SafetensorsDType::of(named);
    let spelled = spelled.ok_or_else(|| format!("{key}: no element type is called {named}"))?;
    let in_model = spelled.in_model(&entry.shape);
    let (dtype, shape) = in_model.map_err(|e| format!("{key}: {e}"))?;
    let mut tensor = TensorRef::contiguous(dtype, &shape).map_err(|e| e.to_string())?;
    let place = entry.data_offsets.and_then(|(from, to)| {
        let place = from.checked_add(data.start)?..to.checked_add(data.start)?;
        (place.start <= place.end && place.end <= data.end).then_some(place)
    });
    let place = place.ok_or_else(|| format!("{key}: its bytes lie outside of the file"))?;
    if length(&place) != tensor.storage.len {
        return Err(format!(
            "{key}: it has {} bytes, but its shape takes {}",
            length(&place),
            tensor.storage.len
        ));
    }
    tensor.storage = StorageRef::new(key, Some(dtype), tensor.storage.len);
    Ok((tensor, place))
}

#[cfg(test)]
mod tests {
    use super::*;
    use reshard_model::DType;

    #[test]
    fn every_type_of_safetensors_is_one_of_these_files_too() {
        let tensor = |dtype: &str, bytes| {
            let entry = Entry {
                dtype: Some(dtype.into()),
                shape: vec![2, 4],
                data_offsets: Some((0, bytes)),
            };
            let described = described("w", &entry, 16..16 + bytes);
            described.map(|(tensor, _)| (tensor.dtype, tensor.shape.to_vec()))
        };
        assert_eq!(tensor("F8_E8M0", 8), Ok((DType::Float8E8M0Fnu, vec![2, 4])));
        assert_eq!(tensor("F4", 4), Ok((DType::Float4E2M1FnX2, vec![2, 2])));
        let unknown = tensor("F6_E2M3", 6).unwrap_err();
        assert!(unknown.contains("w: this version has no"), "{unknown}");
        let none = tensor("F7", 7).unwrap_err();
        assert!(none.contains("w: no element type"), "{none}");
    }
}

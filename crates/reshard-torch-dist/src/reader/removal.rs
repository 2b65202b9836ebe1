//! A checkpoint without some of its keys: new metadata over the same data files.

use super::opened::TorchDistReader;
use crate::{
    METADATA,
    limits::not_understood,
    metadata::{self, StorageMeta},
    producer,
};
use reshard_plan::{Entry, Metadata, PieceId};
use reshard_storage::Name;
use reshard_strategy::{Records, Removal, Result, StorageReader as _, StrategyError, WriteResult};
use std::{collections::BTreeSet, sync::Arc};

/// What is left of a checkpoint without the keys that start with `prefix`. Files of which nothing is left are not among those that stay.
///
/// The metadata have the flavour of the old ones. They keep the shapes of flattened tensors, the properties of tensors, the planner's paths,
/// and what `storage_meta` says.
pub(super) fn without(reader: &TorchDistReader, prefix: &str) -> Result<Removal> {
    refuse(reader)?;
    let old = reader.metadata();
    let (mut builder, mut keys) = (Metadata::builder(), Vec::new());
    let mut results = Vec::new();
    for entry in old.entries() {
        if entry.key().starts_with(prefix) {
            keys.push(entry.key().to_owned());
            continue;
        }
        match entry {
            Entry::Object(id, key) => {
                builder.add_object(key)?;
                let parts = reader.locate_object(id);
                results.push(located(
                    PieceId {
                        key: key.into(),
                        offset: None,
                    },
                    parts,
                )?);
            }
            Entry::Tensor(t) => {
                let id = builder.add_tensor(t.key(), t.dtype(), &t.shape(), t.properties())?;
                if let Some(original) = t.original_shape() {
                    builder.set_original_shape(id, original);
                }
                let key: Arc<str> = t.key().into();
                for (chunk, region) in t.chunks() {
                    builder.add_chunk(id, &region)?;
                    let id = PieceId {
                        key: Arc::clone(&key),
                        offset: Some(region.offsets),
                    };
                    results.push(located(id, reader.locate_chunk(chunk))?);
                }
            }
        }
    }
    if keys.is_empty() {
        return Ok(Removal::default());
    }
    let keeps: BTreeSet<Name> = (results.iter().flat_map(|r| &r.parts))
        .map(|part| part.file.clone())
        .collect();
    let metadata = builder.finish(old.planner_data().map(|data| data.without(prefix)))?;
    let signs = &reader.table.signs;
    let (flavour, url) = (producer::flavour(signs), reader.store.url());
    let meta = match signs.storage_meta {
        true => signs.meta.clone(),
        false => StorageMeta::of_save(&url),
    };
    let bytes = metadata::write(&metadata, &[results], flavour, &meta, signs.mcore_data)?;
    let records = Records::one(Name::new(METADATA)?, bytes.into());
    Ok(Removal::new(keys, keeps.into_iter().collect(), records))
}

/// Refuses what could not be written again as it is.
fn refuse(reader: &TorchDistReader) -> Result<()> {
    let table = &reader.table;
    if reader.is_rank_local() {
        return Err(not_understood(
            "removing keys from a rank-local checkpoint, in which each rank has its own metadata"
                .into(),
        ));
    }
    if let Some((key, what)) = table.unknown.first_key_value() {
        return Err(not_understood(format!(
            "writing metadata again that have {key} ({what})"
        )));
    }
    if table.transforms.len() > 1 {
        return Err(not_understood(
            "writing metadata again of items that went through stream transforms".into(),
        ));
    }
    Ok(())
}

fn located(id: PieceId, parts: Vec<reshard_strategy::StorageInfo>) -> Result<WriteResult> {
    if parts.is_empty() {
        let what = format!("it does not say where {id} lies, so it can't be written again");
        return Err(StrategyError::corrupt(METADATA, None, what));
    }
    Ok(WriteResult { id, parts })
}

//! The files that the coordinator writes: the index, and what reshard adds.

use super::{
    file::NewFile,
    summed::{Part, receipt},
};
use crate::{
    header,
    index::Index,
    names,
    place::Empty,
    record::{ObjectRecord, Record, SCHEMA, TensorRecord},
    settings::SafetensorsConfig,
    texts,
};
use bytes::Bytes;
use reshard_model::SafetensorsDType;
use reshard_storage::Name;
use reshard_strategy::{FinishCx, Records, Result, StorageInfo, StrategyError, crc32_combined};
use std::collections::BTreeMap;

/// The length and checksum of each run of a tensor in a file, by its start.
type Runs = BTreeMap<u64, (u64, u32)>;

/// What receipts tell.
#[derive(Default)]
struct Written<'w> {
    /// The checksum of the header of each file.
    headers: BTreeMap<Name, u32>,
    /// The headers themselves, except long ones.
    texts: BTreeMap<Name, String>,
    tensors: BTreeMap<&'w str, BTreeMap<Name, Runs>>,
    objects: BTreeMap<Box<str>, ObjectRecord>,
}

impl<'w> Written<'w> {
    fn of(cx: &'w FinishCx<'_>) -> Result<Self> {
        let mut out = Self::default();
        for result in cx.written.iter().flatten() {
            for part in &result.parts {
                out.add(&result.id.key, part)?;
            }
        }
        Ok(out)
    }

    fn add(&mut self, key: &'w str, part: &StorageInfo) -> Result<()> {
        let none = || StrategyError::Internal(format!("{} has no receipt", part.file));
        let (what, crc, kept) = receipt(&part.receipt).ok_or_else(none)?;
        match what {
            Part::Header => {
                self.headers.insert(part.file.clone(), crc);
                if let Some(text) = header::json(kept) {
                    self.texts.insert(part.file.clone(), text.to_owned());
                }
            }
            Part::Object => {
                let bytes = (part.range.start, part.range.end);
                self.objects.insert(key.into(), ObjectRecord { bytes, crc });
            }
            Part::Elements => {
                let files = self.tensors.entry(key).or_default();
                let runs = files.entry(part.file.clone()).or_default();
                // A run without bytes begins where another one does.
                if part.length() > 0 {
                    runs.insert(part.range.start, (part.length(), crc));
                }
            }
        }
        Ok(())
    }
}

/// `file` is the name of the one file that the checkpoint is, if it is one: then it has no records.
pub(super) fn records(
    cx: &FinishCx<'_>,
    settings: &SafetensorsConfig,
    file: Option<&str>,
) -> Result<Records> {
    let mut written = Written::of(cx)?;
    let mut record = Record {
        schema: SCHEMA,
        files: std::mem::take(&mut written.headers),
        headers: std::mem::take(&mut written.texts),
        objects: std::mem::take(&mut written.objects),
        planner_data: cx.metadata.planner_data().cloned(),
        ..Record::default()
    };
    let mut records = Records::default();
    // No rank has written a file if no tensor has elements.
    if record.files.is_empty() {
        let (name, header) = without_elements(cx, settings, file)?;
        record.files.insert(name.clone(), crc32fast::hash(&header));
        let text = header::json(&header).map(str::to_owned);
        record.headers.extend(text.map(|text| (name.clone(), text)));
        records.files.push((name, header));
    }
    if file.is_some() {
        return Ok(records);
    }
    let first = record.files.keys().next().cloned();
    let (mut weight_map, mut total) = (BTreeMap::new(), 0u64);
    for t in cx.metadata.tensors() {
        // A tensor without elements is in the first file.
        let empty = || {
            first
                .iter()
                .map(|name| (name.clone(), Runs::new()))
                .collect()
        };
        let files: BTreeMap<Name, Runs> = written.tensors.remove(t.key()).unwrap_or_else(empty);
        for (file, runs) in &files {
            weight_map.insert(t.key(), file.to_string());
            total = runs
                .values()
                .fold(total, |all, (n, _)| all.saturating_add(*n));
        }
        let crc = |(file, runs): (Name, Runs)| (file, crc32_combined(runs.into_values()));
        record.tensors.insert(
            t.key().into(),
            TensorRecord {
                parts: files.into_iter().map(crc).collect(),
                properties: t.properties(),
                dtype: Some(t.dtype()).filter(|dtype| SafetensorsDType::named(*dtype).is_none()),
            },
        );
    }
    // All files of a version lie in one folder, or directly in the place.
    let folder = first.and_then(|name| Name::new(name.folder()).ok());
    if (record.files.len() > 1 || folder.is_some()) && !settings.sharded {
        let text = Index::text(&weight_map, total).map_err(json)?;
        let name = Name::new(names::index(&settings.name))?;
        records.files.push((name, text));
    }
    let note = (Name::new(names::RECORD)?, record.to_bytes().map_err(json)?);
    records.commit = match folder {
        None => Some(note),
        // In a folder the files are found by the index. So what reshard notes lies with them, and the index comes last.
        Some(folder) => {
            let index = records.files.pop();
            records.files.push((folder.join(&note.0), note.1));
            index
        }
    };
    Ok(records)
}

fn json(e: serde_json::Error) -> StrategyError {
    StrategyError::Internal(format!("a record can't be written: {e}"))
}

/// The one file of a checkpoint that has no elements.
fn without_elements(
    cx: &FinishCx<'_>,
    settings: &SafetensorsConfig,
    file: Option<&str>,
) -> Result<(Name, Bytes)> {
    let empty = cx.metadata.tensors().map(|t| Empty {
        key: t.key().into(),
        dtype: t.dtype(),
        shape: t.shape(),
    });
    let empty: Vec<Empty> = empty.collect();
    let name = match (file, settings.sharded) {
        (Some(name), _) => name.into(),
        (None, true) => names::shard(0, &settings.name, 0, 1),
        (None, false) => names::file(&settings.name, 0, 1),
    };
    let texts = texts::of_all_files(cx.metadata.annotations());
    let facts = (&*empty, &texts);
    let file = NewFile::of(BTreeMap::new(), facts, settings, &|item| {
        Err(StrategyError::Internal(format!("{} is planned", item.id())))
    })?;
    let header = file.header(&name)?;
    Ok((Name::new(name)?, header))
}

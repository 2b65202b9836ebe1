//! Compares files with their sums in `reshard.json`, to find out whether another program has saved over a checkpoint.

use crate::sidecar::{FileSum, Sidecar};
use reshard_storage::{Name, Store, StoreExt};
use reshard_strategy::{Damage, Result, Rewritten, crc32_of};
use std::{ops::Range, sync::Arc};

/// Describes a file of another program.
pub(crate) fn of_another_program(file: impl ToString) -> Damage {
    let what = "another program has saved over this checkpoint: this file and data files are not those that reshard wrote";
    Damage::new(what).in_file(file)
}

/// The first of these descriptions that another program has written: its data are not those that were written, either.
///
/// # Errors
/// What the store says.
pub(crate) async fn saved_over(
    store: &Arc<dyn Store>,
    rewritten: Vec<Rewritten>,
    sidecar: Option<&Sidecar>,
) -> Result<Option<Damage>> {
    for Rewritten { file, elements, .. } in rewritten {
        let differ = match elements {
            Some(elements) => elements_differ(store, &file, elements, sidecar).await?,
            None => match sidecar {
                // Its own description may be gone, too, so missing data prove nothing.
                Some(sidecar) => data_differ(store, sidecar, Missing::Lost).await?,
                None => false,
            },
        };
        if differ {
            return Ok(Some(of_another_program(file)));
        }
    }
    Ok(None)
}

/// Whether a file with a description and elements has other elements, or another length.
async fn elements_differ(
    store: &Arc<dyn Store>,
    name: &Name,
    elements: Vec<(Range<u64>, u32)>,
    sidecar: Option<&Sidecar>,
) -> Result<bool> {
    let Some(bytes) = store.len(name).await? else {
        return Ok(false);
    };
    let noted = sidecar.and_then(|s| s.data.iter().find(|sum| sum.file == name.as_str()));
    if noted.is_some_and(|sum| sum.bytes != bytes) {
        return Ok(true);
    }
    for (range, crc32) in elements {
        if range.end > bytes || crc32_of(&**store, name, range).await? != crc32 {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The meaning of a data file that is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Missing {
    /// Another program has removed it: it has written other metadata.
    Replaced,
    /// It is lost.
    Lost,
}

/// Whether a data file has other bytes than those that were written. Short ones are read first.
pub(crate) async fn data_differ(
    store: &Arc<dyn Store>,
    sidecar: &Sidecar,
    missing: Missing,
) -> Result<bool> {
    // Older versions noted no data files.
    if sidecar.schema == 1 {
        return Ok(true);
    }
    let mut data: Vec<&FileSum> = sidecar.data.iter().collect();
    data.sort_by_key(|file| file.bytes);
    let mut present = Vec::with_capacity(data.len());
    for file in data {
        match store.len(&Name::new(&*file.file)?).await? {
            None if missing == Missing::Replaced => return Ok(true),
            None => {}
            Some(bytes) if bytes == file.bytes => present.push(file),
            Some(_) => return Ok(true),
        }
    }
    for file in present {
        if !is_as_written(store, file).await? {
            return Ok(true);
        }
    }
    Ok(false)
}

pub(crate) async fn is_as_written(store: &Arc<dyn Store>, file: &FileSum) -> Result<bool> {
    let name = Name::new(&*file.file)?;
    if store.len(&name).await? != Some(file.bytes) {
        return Ok(false);
    }
    let Some(crc32) = file.crc32 else {
        return Ok(true);
    };
    Ok(crc32_of(&**store, &name, 0..file.bytes).await? == crc32)
}

//! Whether the records of a checkpoint are those that reshard wrote.
//!
//! `reshard.json` has digests of all metadata, and of data files. If metadata differ, the data files tell why: if they differ, too, another
//! program has saved over the checkpoint, which is legal. If they are as they were written, the metadata are damaged.

use crate::{
    opened::Opened,
    sidecar::{FileSum, SIDECAR, Sidecar},
};
use reshard_model::ErrorKind;
use reshard_storage::{Name, Store, StoreExt};
use reshard_strategy::{Damage, Result, VerifyReport, check_steps};
use std::sync::Arc;

/// Bytes that are read at a time.
const STEP: u64 = 4 << 20;

/// Adds what is wrong with the metadata, judging by `reshard.json`, and with that file itself.
pub(crate) async fn check(opened: &Opened, report: &mut VerifyReport) {
    if let Err(e) = look(opened, report).await {
        report.add(e.kind(), Damage::of(None, &e));
    }
}

async fn look(opened: &Opened, report: &mut VerifyReport) -> Result<()> {
    let Some(sidecar) = opened.own_sidecar().await? else {
        return Ok(());
    };
    let Some(file) = differing(opened, &sidecar).await? else {
        return Ok(());
    };
    let found = |what: String| Damage {
        key: None,
        file: Some(file.clone()),
        offset: None,
        what,
    };
    // What the format says of the file concerns its key alone.
    let is_told = |d: &Damage| d.key.is_some() && d.file.as_ref() == Some(&file);
    if report.damage.iter().any(is_told) {
        return Ok(());
    }
    if data_differ(&opened.store, &sidecar).await? {
        let what = format!(
            "another program has saved over this checkpoint: this file and data files are not those of {SIDECAR}"
        );
        report.changed.push(found(what));
    } else {
        let what = format!(
            "it is not the file that was written, judging by {SIDECAR}, though the data files are; restore it from a copy. If another program \
             has saved the same data here, remove {SIDECAR}"
        );
        report.add(ErrorKind::Corrupt, found(what));
    }
    Ok(())
}

/// The first file of metadata that is not as it was written. Files that the format checks itself are left to it.
async fn differing(opened: &Opened, sidecar: &Sidecar) -> Result<Option<String>> {
    if let Some(file) = sidecar.differing(&opened.store, opened.formats()).await? {
        return Ok(Some(file));
    }
    for record in &sidecar.records {
        let name = Name::new(&*record.file)?;
        if !opened.reader.covers(&name) && !is_as_written(&opened.store, record).await? {
            return Ok(Some(record.file.clone()));
        }
    }
    Ok(None)
}

/// Whether a data file is not as it was written. Short ones are read first.
async fn data_differ(store: &Arc<dyn Store>, sidecar: &Sidecar) -> Result<bool> {
    // Older versions noted no data files.
    if sidecar.schema == 1 {
        return Ok(true);
    }
    let mut data: Vec<&FileSum> = sidecar.data.iter().collect();
    data.sort_by_key(|file| file.bytes);
    for file in &data {
        if store.len(&Name::new(&*file.file)?).await? != Some(file.bytes) {
            return Ok(true);
        }
    }
    for file in data {
        if !is_as_written(store, file).await? {
            return Ok(true);
        }
    }
    Ok(false)
}

async fn is_as_written(store: &Arc<dyn Store>, file: &FileSum) -> Result<bool> {
    let name = Name::new(&*file.file)?;
    if store.len(&name).await? != Some(file.bytes) {
        return Ok(false);
    }
    let Some(crc32) = file.crc32 else {
        return Ok(true);
    };
    let mut crc = crc32fast::Hasher::new();
    for range in check_steps(&**store, 0..file.bytes, STEP) {
        crc.update(&store.read(&name, range).await?);
    }
    Ok(crc.finalize() == crc32)
}

//! Whether the records of a checkpoint are those that reshard wrote.
//!
//! `reshard.json` has digests of all metadata, and of data files. If metadata differ, the data files tell why: if they differ, too, another
//! program has saved over the checkpoint, which is legal. If they are as they were written, the metadata are damaged.

use crate::{
    opened::Opened,
    sidecar::{FileSum, SIDECAR, Sidecar},
    written::{Missing, data_differ, is_as_written, of_another_program},
};
use reshard_model::ErrorKind;
use reshard_storage::{Name, StoreExt};
use reshard_strategy::{Damage, Result, VerifyReport};

/// Adds what is wrong with the metadata, judging by `reshard.json`, and with that file itself.
pub(crate) async fn check(opened: &Opened, report: &mut VerifyReport) {
    if let Err(e) = look(opened, report).await {
        report.add_error(None, &e);
    }
}

async fn look(opened: &Opened, report: &mut VerifyReport) -> Result<()> {
    if let Some(found) = &opened.changed {
        report.changed.push(found.clone());
        return Ok(());
    }
    let Some(sidecar) = opened.own_sidecar().await? else {
        return Ok(());
    };
    let Some(file) = differing(opened, &sidecar).await? else {
        return look_for_data(opened, &sidecar, report).await;
    };
    if is_reported(report, &file) {
        return Ok(());
    }
    let is_there = match Name::new(&*file) {
        // Older records do not say which data there were.
        _ if sidecar.schema == 1 => true,
        Ok(name) => opened.store.exists(&name).await?,
        Err(_) => false,
    };
    if is_there && data_differ(&opened.store, &sidecar, Missing::Replaced).await? {
        report.changed.push(of_another_program(file));
    } else {
        look_for_data(opened, &sidecar, report).await?;
        let what = format!(
            "it is not the file that was written, judging by {SIDECAR}, though the data files are; restore it from a copy. If another program \
             has saved the same data here, remove {SIDECAR}"
        );
        report.add(ErrorKind::Corrupt, Damage::new(what).in_file(file));
    }
    Ok(())
}

/// Whether the format reports damage of the file, or of the array in whose folder it lies, for one key alone.
fn is_reported(report: &VerifyReport, file: &str) -> bool {
    report.damage.iter().any(|d| match &d.key {
        Some(key) => {
            let inside = file.strip_prefix(&**key);
            d.file.as_deref() == Some(file) || inside.is_some_and(|rest| rest.starts_with('/'))
        }
        None => false,
    })
}

/// Adds the data files that are gone. Items whose files the format knows are checked by the format.
async fn look_for_data(
    opened: &Opened,
    sidecar: &Sidecar,
    report: &mut VerifyReport,
) -> Result<()> {
    let known = opened.item_files();
    for FileSum { file, .. } in &sidecar.data {
        let name = Name::new(&**file)?;
        let is_checked = known.contains(&name) || is_reported(report, file);
        if !is_checked && !opened.store.exists(&name).await? {
            let found = Damage::new(format!("it is missing, though {SIDECAR} lists it"));
            report.add(ErrorKind::Corrupt, found.in_file(file));
        }
    }
    Ok(())
}

/// The first file of metadata that is not as it was written. Files that the format checks itself are left to it.
async fn differing(opened: &Opened, sidecar: &Sidecar) -> Result<Option<String>> {
    if let Some(file) = opened.differing(sidecar).await? {
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

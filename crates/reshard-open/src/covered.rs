//! Which files of a checkpoint a full check covers. What no checksum covers is listed, so that nobody takes it for checked.

use crate::{opened::Opened, sidecar::is_sidecar};
use reshard_megatron::Integrity;
use reshard_model::{Dialect, ErrorKind};
use reshard_storage::Name;
use reshard_strategy::{FileRole, LoadCommonStrategy, OpenCx, Result, Uncovered, VerifyReport};
use std::collections::BTreeSet;

/// Files that have their digests in `reshard.json`. It has its own, too.
async fn noted(opened: &Opened) -> (Vec<String>, bool) {
    let Some(own) = opened.sidecar().await.0 else {
        return (Vec::new(), false);
    };
    let mut names = own.names();
    names.extend(own.records.into_iter().map(|record| record.file));
    (names, own.schema > 1)
}

/// After a full check of all items: checks the files of common state, and lists what nobody can confirm.
///
/// # Errors
/// The place can't be listed.
pub(crate) async fn check(opened: &Opened, report: &mut VerifyReport) -> Result<()> {
    let (noted, has_own) = noted(opened).await;
    let right: BTreeSet<&str> = noted.iter().map(String::as_str).collect();
    // All of them were compared.
    let integrity = match opened.reader.dialect() {
        Dialect::Megatron => Integrity::of(&opened.store).await.ok().flatten(),
        _ => None,
    };
    for (file, role) in opened.roles_by(&noted).await? {
        let name = file.name.as_str();
        let listed = integrity.as_ref().is_some_and(|i| i.get(name).is_some());
        let is_sidecar = has_own && is_sidecar(name.rsplit('/').next().unwrap_or(name));
        if listed || right.contains(name) || is_sidecar {
            report.not_covered.confirm(name);
            continue;
        }
        if opened.reader.covers(&file.name) {
            continue;
        }
        if let Some(common) = common_of(opened, &file.name)
            && of_common(opened, common, &file.name, report).await
        {
            continue;
        }
        let why = match role {
            FileRole::Items | FileRole::Part => Uncovered::NoChecksum,
            _ => Uncovered::Foreign,
        };
        report.not_covered.add(name, why, file.bytes);
    }
    Ok(())
}

/// The common strategy, if it gives files such names.
fn common_of<'o>(opened: &'o Opened, file: &Name) -> Option<&'o dyn LoadCommonStrategy> {
    let common = opened.common.as_deref()?;
    (common.owns(file) || common.owns_object(file)).then_some(common)
}

/// Whether the strategy knows how to check a file. What it finds is added.
async fn of_common(
    opened: &Opened,
    common: &dyn LoadCommonStrategy,
    file: &Name,
    report: &mut VerifyReport,
) -> bool {
    let cx = OpenCx::new(std::sync::Arc::clone(&opened.store)).with_limits(opened.limits);
    match common
        .check_file(file, &cx.with_dialect(Dialect::Megatron))
        .await
    {
        Ok(None) => return false,
        Ok(Some(left)) => {
            for (why, bytes) in left {
                report.not_covered.add(file.as_str(), why, bytes);
            }
        }
        // Decoding it finds most damage, and has told it then.
        Err(e) if e.kind() == ErrorKind::Corrupt && is_told(report, file) => {}
        Err(e) => report.add_error(None, &e),
    }
    true
}

fn is_told(report: &VerifyReport, file: &Name) -> bool {
    let name = file.as_str();
    let stem = name.strip_suffix(".pt").unwrap_or(name);
    report.damage.iter().any(|d| {
        d.file.as_deref() == Some(name) || d.key.as_deref() == Some(stem) || d.what.contains(name)
    })
}

//! Megatron Core's `integrity.json`: written by a save, and checked by `verify` and by loads that ask for it.

use crate::opened::Opened;
use bytes::Bytes;
use reshard_megatron::{INTEGRITY, Integrity, METADATA_JSON};
use reshard_model::{Dialect, ErrorKind};
use reshard_storage::{
    Entry, Name, PlaceKind, Progress, StorageError, Store, StoreExt, Transaction,
};
use reshard_strategy::{Damage, Result, StrategyError, VerifyReport, hex};
use sha2::{Digest, Sha256};
use std::{future::Future, sync::Arc};

/// Bytes that are hashed at a time.
const BLOCK: u64 = 4 << 20;

/// The SHA-256 of so many bytes, in hexadecimal. They are read by blocks.
async fn digest<F>(len: u64, progress: &Progress, read: impl Fn(u64, u64) -> F) -> Result<String>
where
    F: Future<Output = reshard_storage::Result<Bytes>>,
{
    let mut hasher = Sha256::new();
    let mut at = 0;
    while at < len {
        let end = len.min(at.saturating_add(BLOCK));
        hasher.update(read(at, end).await?);
        progress.add(end - at);
        at = end;
    }
    Ok(hex(&hasher.finalize()))
}

/// The digests of files that this rank has written, in their order; empty for a file that is not listed.
pub async fn of_written(transaction: &dyn Transaction, written: &[Entry]) -> Result<Vec<String>> {
    let mut out = Vec::with_capacity(written.len());
    for Entry { name, bytes } in written {
        out.push(match Integrity::covers(name) {
            true => {
                let read = |from, to| transaction.read(name, from..to);
                digest(*bytes, &Progress::none(), read).await?
            }
            false => String::new(),
        });
    }
    Ok(out)
}

/// The file for a checkpoint whose files are these, and its `metadata.json`.
pub fn manifest<'a>(
    files: impl IntoIterator<Item = (&'a Name, String)>,
    record: Option<&(Name, Bytes)>,
) -> Integrity {
    let mut out = Integrity::default();
    for (name, sha256) in files {
        out.insert(name, sha256);
    }
    if let Some((name, bytes)) = record {
        out.insert(name, hex(&Sha256::digest(bytes)));
    }
    out
}

/// Adds what is wrong by `integrity.json`, if there is one. If not `full`, it only looks whether all files are there.
pub async fn check(opened: &Opened, full: bool, progress: &Progress, report: &mut VerifyReport) {
    let store = &opened.store;
    let is_megatron = opened.reader.dialect() == Dialect::Megatron;
    // Without `metadata.json`, which it lists, the dialect is another one. Then a quick check makes no request for it.
    let looks = is_megatron || (full && opened.kind == PlaceKind::Folder);
    if !looks {
        return;
    }
    let integrity = match Integrity::of(store).await {
        Ok(Some(integrity)) if is_megatron || integrity.get(METADATA_JSON).is_some() => integrity,
        Err(e) if is_megatron => return report.add_error(None, &e),
        // There is none, or it belongs to another program.
        _ => return,
    };
    check_listed(&integrity, store, full, progress, report).await;
}

/// Adds what is wrong with the files that it lists.
async fn check_listed(
    integrity: &Integrity,
    store: &Arc<dyn Store>,
    full: bool,
    progress: &Progress,
    report: &mut VerifyReport,
) {
    for (file, want) in integrity.files() {
        let found = match Name::new(file) {
            Ok(name) => found(store, &name, want, full, progress).await,
            Err(e) => Err(e.into()),
        };
        match found {
            Ok((bytes, None)) => report.bytes += bytes,
            Ok((bytes, Some(what))) => {
                report.bytes += bytes;
                report.add(ErrorKind::Corrupt, Damage::new(what).in_file(file));
            }
            Err(e) => {
                let found = Damage::new(e.to_string()).in_file(file);
                report.add(e.kind(), found);
            }
        }
    }
}

/// How many bytes were read, and what is wrong with a file.
async fn found(
    store: &Arc<dyn Store>,
    name: &Name,
    want: &str,
    full: bool,
    progress: &Progress,
) -> Result<(u64, Option<String>)> {
    let Some(len) = store.len(name).await? else {
        let what = format!("it is missing, but {INTEGRITY} lists it");
        return Ok((0, Some(what)));
    };
    if !full {
        return Ok((0, None));
    }
    let read = |from, to| store.read(name, from..to);
    let is = digest(len, progress, read).await?;
    let what = format!("its SHA-256 is {is}, but {INTEGRITY} has {want}");
    Ok((len, (is != want).then_some(what)))
}

/// Fails if a file is not as `integrity.json` says.
///
/// # Errors
/// [`StrategyError::Corrupt`] with the first file; there is no `integrity.json`.
pub async fn require(store: &Arc<dyn Store>) -> Result<()> {
    let Some(integrity) = Integrity::of(store).await? else {
        return Err(StrategyError::NotStored {
            what: format!(
                "there is no {INTEGRITY} to verify the files by; save with `.integrity(true)`, or load without `verify_integrity`"
            ),
        });
    };
    let mut report = VerifyReport::default();
    check_listed(&integrity, store, true, &Progress::none(), &mut report).await;
    let all = report.lists().map(|(_, found, _)| found);
    let count: usize = all.iter().map(|found| found.len()).sum();
    match all.into_iter().flatten().next() {
        None => Ok(()),
        Some(first) => {
            let more = match count {
                1 => String::new(),
                _ => format!("; {} more files are wrong, too", count - 1),
            };
            let file = first.file.as_deref().unwrap_or(INTEGRITY);
            Err(StrategyError::corrupt(
                file,
                None,
                format!("{}{more}", first.what),
            ))
        }
    }
}

/// Files that lie in the place, and that `integrity.json` does not list. If nobody can list the place, those of them that the metadata and their
/// format name.
///
/// # Errors
/// What the store says.
pub async fn unlisted(opened: &Opened) -> Result<Vec<Name>> {
    let Ok(Some(integrity)) = Integrity::of(&opened.store).await else {
        return Ok(Vec::new());
    };
    let is_unlisted =
        |name: &Name| Integrity::covers(name) && integrity.get(name.as_str()).is_none();
    let files = match opened.store.top().await {
        Err(StorageError::Unsupported { .. }) => opened.files().await?,
        top => top?.files,
    };
    let names = files.into_iter().map(|file| file.name);
    Ok(names.filter(is_unlisted).collect())
}

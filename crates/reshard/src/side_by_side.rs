//! Saves into places that keep versions side by side, as object stores do: where the files of a version go, and what one put can
//! replace.

use crate::{CommonForm, save::SaveOptions};
use bytes::Bytes;
use reshard_megatron::{COMMON, METADATA_JSON, MetadataJson};
use reshard_model::Dialect;
use reshard_storage::{Name, PlaceKind, StorageError, Store, Transaction};
use reshard_strategy::Formats;
use reshard_strategy::{BackendVersion, Result, SaveShardedStrategy, StrategyError, read_small};
use std::sync::Arc;

/// The place of a version in a place that keeps several.
#[derive(Clone, Debug)]
pub(crate) struct SideBySide {
    /// The folder for the version's data files and for what reshard adds. `None` if the format gives all its files fixed names.
    pub(crate) folder: Option<Name>,
    /// The format records of the old version. Only the coordinator knows them.
    records: Vec<Name>,
}

/// What of an old version decides whether it can be replaced.
#[derive(Clone, Debug, Default)]
pub(crate) struct Old {
    /// Its files, except those in folders of attempts.
    files: Vec<Name>,
    /// Those of them that are format records.
    records: Vec<Name>,
}

impl Old {
    /// The old version among the files that a save replaces.
    pub(crate) fn of(files: &[Name], formats: &Formats) -> Self {
        let files: Vec<Name> = files.iter().filter(|f| is_outside(f)).cloned().collect();
        let is_record = |f: &&Name| formats.of_record(f.as_str()).is_some();
        let records = files.iter().filter(is_record).cloned().collect();
        Self { files, records }
    }

    fn has(&self, name: &str) -> bool {
        self.files.iter().any(|f| f.as_str() == name)
    }
}

fn is_outside(name: &Name) -> bool {
    reshard_open::attempt::folder_of(name).is_none()
}

impl SideBySide {
    /// `None` if the place has one version at a time.
    pub(crate) fn of(
        transaction: &dyn Transaction,
        sharded: &SaveShardedStrategy,
        kind: PlaceKind,
        old: Old,
    ) -> Option<Self> {
        let folder = transaction.folder()?;
        let takes_folder = kind == PlaceKind::Folder && sharded.capabilities().takes_folder;
        Some(Self {
            folder: takes_folder.then_some(folder),
            records: old.records,
        })
    }

    /// Refuses a commit that would not be one step: without a record that is put last, or if the old version has another record, which
    /// would stay.
    pub(crate) fn permits(
        &self,
        record: Option<&(Name, Bytes)>,
        key: &BackendVersion,
    ) -> Result<()> {
        let Some((record, _)) = record else {
            let why = "it has no file that says which version counts; let it have several files with an index (a smaller max_shard_size), or save to a local directory";
            return Err(refused(
                &format!("a checkpoint of {key} without an index"),
                why,
            ));
        };
        match self.records.iter().find(|old| *old != record) {
            None => Ok(()),
            Some(old) => Err(refused(
                "replacing what lies there",
                &format!(
                    "the old checkpoint has the record {old}, which would stay beside {record}; save to a new place"
                ),
            )),
        }
    }
}

/// Refuses, before anything is written, what could not be replaced in one step there.
///
/// # Errors
/// [`StorageError::Unsupported`] with the reason.
pub(crate) async fn check(
    store: &Arc<dyn Store>,
    transaction: &dyn Transaction,
    sharded: &SaveShardedStrategy,
    common: &BackendVersion,
    (old, kind, options): (&Old, PlaceKind, &SaveOptions),
) -> Result<()> {
    if transaction.folder().is_none() {
        return Ok(());
    }
    if options.integrity {
        let why = "integrity.json lists only files directly in the place, and this place keeps the data of each version in a folder; \
                   leave `integrity` out";
        return Err(refused("integrity.json", why));
    }
    if old.files.is_empty() {
        return Ok(());
    }
    let key = sharded.key();
    let no = |why: &str| Err(refused("replacing what lies there", why));
    if kind != PlaceKind::Folder || !sharded.capabilities().takes_folder {
        return no(&format!(
            "files of {key} have the same names in every version, and this place can't replace several files in one step; save to a \
             new place, or empty this one"
        ));
    }
    if options.pipeline.rank_local {
        return no(
            "each rank has a record of its own in a rank-local save, and this place can't replace several files in one step; save to a \
             new place",
        );
    }
    let Some(bytes) = metadata_json(&key, common, options) else {
        let others = [METADATA_JSON, COMMON];
        return match others.into_iter().find(|file| old.has(file)) {
            None => Ok(()),
            Some(file) => no(&format!(
                "the old checkpoint is in Megatron Core's dialect, whose {file} would stay; save to a new place"
            )),
        };
    };
    if options.common_form == CommonForm::File {
        return no(
            "in Megatron Core's dialect .metadata, common.pt and metadata.json would have to change in one step; choose \
             `CommonForm::Object` (`--common object` of the program), with which only .metadata changes, or save to a new place",
        );
    }
    let there = read_small(store, &Name::new(METADATA_JSON)?).await?;
    if there != Some(bytes) || old.has(COMMON) {
        return no(
            "its metadata.json or common.pt would have to change together with .metadata: the old checkpoint has another dialect, \
             another format, or common state in a file; save to a new place",
        );
    }
    Ok(())
}

/// The bytes of `metadata.json`, in the dialect that has this file.
pub(crate) fn metadata_json(
    sharded: &BackendVersion,
    common: &BackendVersion,
    options: &SaveOptions,
) -> Option<Bytes> {
    if options.pipeline.dialect != Dialect::Megatron {
        return None;
    }
    let json = MetadataJson::new(sharded, common);
    Some(match options.common_form {
        CommonForm::File => json.to_bytes(),
        _ => json.to_short_bytes(),
    })
}

fn refused(what: &str, why: &str) -> StrategyError {
    StorageError::Unsupported {
        what: what.into(),
        why: why.into(),
    }
    .into()
}

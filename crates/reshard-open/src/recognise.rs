//! Finds the format of a checkpoint if Megatron Core's `metadata.json` does not name it.

use crate::sidecar::{SIDECAR, Sidecar};
use reshard_megatron::METADATA_JSON;
use reshard_storage::{Depth, Entry, Listing, Name, PlaceKind, StorageError, Store, StoreExt};
use reshard_strategy::{
    BackendVersion, Detection, Formats, HEAD, LoadShardedStrategy, Result, StrategyError,
};
use std::{collections::VecDeque, io, sync::Arc};

/// A format that was recognised.
#[derive(Debug)]
pub(crate) struct Recognised {
    pub(crate) format: BackendVersion,
    /// Whether it may be older than `metadata.json`: it has common state, and its format does not name the file that is written last. Then
    /// it is a checkpoint only if it is whole.
    pub(crate) older: bool,
}

impl From<BackendVersion> for Recognised {
    fn from(format: BackendVersion) -> Self {
        let older = false;
        Self { format, older }
    }
}

/// The format that `reshard.json` names, or else the one that the linked formats recognise. First only a few names are
/// looked for, because thousands of ranks open a checkpoint at once, and each would list thousands of files. The place is
/// listed only if these names do not decide.
///
/// # Errors
/// [`StrategyError::NotACheckpoint`] if no format recognises it; [`StrategyError::Ambiguous`] if two do.
pub(crate) async fn recognise(store: &Arc<dyn Store>, formats: &Formats) -> Result<Recognised> {
    detect(store, &formats.of_kind(PlaceKind::Folder)).await
}

/// Another format than this one, if `reshard.json` names one and its format record is there, unchanged.
pub(crate) async fn noted_other(
    store: &Arc<dyn Store>,
    than: &BackendVersion,
    formats: &Formats,
) -> Option<BackendVersion> {
    let note = Sidecar::any(store).await?;
    // The record is hashed only if the note names another format.
    let noted = note.format(formats).filter(|noted| noted != than)?;
    note.belongs(store, formats).await.then_some(noted)
}

/// Fails if an empty checkpoint of the format that `metadata.json` names lies among files of another format.
pub(crate) async fn no_other(
    store: &Arc<dyn Store>,
    formats: &Formats,
    named: &BackendVersion,
) -> Result<()> {
    let sure = formats.that(Detection::Yes, &probe(store, formats).await?);
    let other = sure.iter().find(|format| format.key() != *named);
    other.map_or(Ok(()), |other| {
        let json = Name::new(METADATA_JSON)?;
        let what = format!(
            "it names {named}, of which nothing is there, and the files are of {}",
            other.key()
        );
        Err(StrategyError::corrupt(&json, None, what))
    })
}

async fn detect(store: &Arc<dyn Store>, formats: &Formats) -> Result<Recognised> {
    let probed = formats.that(Detection::Yes, &probe(store, formats).await?);
    let one = if let [format] = &*probed {
        Some(format.key())
    } else {
        None
    };
    let unfinished = reshard_megatron::is_unfinished(store).await?;
    if let Some(note) = Sidecar::any(store).await {
        if let Some(why) = note.unfinished(store).await? {
            let url = store.url();
            return Err(StrategyError::NotACheckpoint { url, why });
        }
        // With a `common.pt`, a note counts only if it names its format, because such a note is for PyTorch's dialect.
        let noted = match unfinished {
            true => note.strategy.clone(),
            false => note
                .format(formats)
                .filter(|noted| one.as_ref() != Some(noted)),
        };
        if let Some(noted) = noted
            && note.belongs(store, formats).await
        {
            return match later(store, formats, &note).await? {
                Some(other) if other != noted => Err(ambiguous(store, &noted, &other)),
                _ => Ok(noted.into()),
            };
        }
    }
    // If it were opened in PyTorch's dialect, its common state would be lost.
    if unfinished {
        let inside = deeper(store, formats, &store.top().await?).await?;
        return match one_of(formats, &inside.probes, store)? {
            // Files directly in the place tell nothing else.
            Some(format) if one.as_ref().is_none_or(|one| *one == format) => {
                let older = true;
                Ok(Recognised { format, older })
            }
            _ => Err(StrategyError::NotACheckpoint {
                url: store.url(),
                why: UNFINISHED.into(),
            }),
        };
    }
    if let Some(format) = one {
        return Ok(format.into());
    }
    let listed = store.top().await?;
    if let Some(format) = one_of(formats, &listed, store)? {
        return Ok(format.into());
    }
    let inside = deeper(store, formats, &listed).await?;
    if let Some(format) = one_of(formats, &inside.probes, store)? {
        return match inside.checkpoint {
            None => Ok(format.into()),
            // It would be a part of this one, and nobody would look at its files.
            Some(other) => Err(StrategyError::NotACheckpoint {
                url: store.url(),
                why: format!(
                    "{other} in it is a checkpoint, so it is a folder of several; open one of them, or choose the format {format}"
                ),
            }),
        };
    }
    let why = match listed.is_empty() {
        // A store that can pin has nothing to pin. Others have no empty places.
        true if store.pinned().await?.is_none() => "nothing is there".into(),
        true => "it is empty".into(),
        false => unknown(formats),
    };
    let url = store.url();
    Err(StrategyError::NotACheckpoint { url, why })
}

const UNFINISHED: &str =
    "there is a common.pt, but no metadata.json of Megatron Core, so its save was never finished";

/// The error for a place that may be older than `metadata.json`, but is not whole.
pub(crate) fn unfinished(
    store: &Arc<dyn Store>,
    format: &BackendVersion,
    why: &str,
) -> StrategyError {
    StrategyError::NotACheckpoint {
        url: store.url(),
        why: format!(
            "{UNFINISHED} ({why}); if it is older than metadata.json, choose the format {format}"
        ),
    }
}

/// The one format that answers `Yes` to these files, or else the one that answers `Likely`.
fn one_of(
    formats: &Formats,
    listed: &Listing,
    store: &Arc<dyn Store>,
) -> Result<Option<BackendVersion>> {
    only(|detected| formats.that(detected, listed), store)
}

/// The one format that gives the answer `Yes`, or else `Likely`.
fn only(
    that: impl Fn(Detection) -> Vec<LoadShardedStrategy>,
    store: &Arc<dyn Store>,
) -> Result<Option<BackendVersion>> {
    let sure = that(Detection::Yes);
    let found = if sure.is_empty() {
        that(Detection::Likely)
    } else {
        sure
    };
    match &*found {
        [] => Ok(None),
        [format] => Ok(Some(format.key())),
        [a, b, ..] => Err(ambiguous(store, &a.key(), &b.key())),
    }
}

/// The format that answers `Yes` because of a file that is newer than the format record of a note. Perhaps another
/// program, which does not know the note, saved that file.
async fn later(
    store: &Arc<dyn Store>,
    formats: &Formats,
    note: &Sidecar,
) -> Result<Option<BackendVersion>> {
    let names = note.names();
    let mut committed = None;
    for name in &names {
        committed = committed.max(store.modified(&Name::new(&**name)?).await?);
    }
    for format in &formats.all {
        for file in probe(store, &formats.only(format)).await?.files {
            if !names.iter().any(|n| n == file.name.as_str())
                && store.modified(&file.name).await? > committed
            {
                let is_sure = format.info().detect(&Listing::of(vec![file])) == Detection::Yes;
                return Ok(is_sure.then(|| format.key()));
            }
        }
    }
    Ok(None)
}

fn ambiguous(store: &Arc<dyn Store>, a: &BackendVersion, b: &BackendVersion) -> StrategyError {
    StrategyError::Ambiguous {
        url: store.url(),
        a: a.clone(),
        b: b.clone(),
    }
}

/// Whether nobody can list the place, and a listing was needed to find a format.
pub(crate) fn is_unlisted(e: &StrategyError) -> bool {
    matches!(e, StrategyError::Storage(StorageError::Unsupported { .. }))
}

/// Whether a place may be something else than a folder: no format recognises anything below its URL.
pub fn is_no_folder(e: &StrategyError) -> bool {
    match e {
        StrategyError::NotACheckpoint { .. } => true,
        StrategyError::Storage(StorageError::Io { source, .. }) => {
            source.kind() == io::ErrorKind::NotADirectory
        }
        _ => false,
    }
}

/// The format of a place that is no folder, by the names of its files. `None` if no linked format recognises it.
///
/// # Errors
/// [`StrategyError::Ambiguous`] if two do.
pub(crate) fn recognise_part(
    formats: &Formats,
    kind: PlaceKind,
    top: &Listing,
    store: &Arc<dyn Store>,
) -> Result<Option<BackendVersion>> {
    let formats = formats.of_kind(kind);
    match (kind, &*top.files) {
        (PlaceKind::File, [file]) => only(|detected| formats.of_file(detected, file), store),
        _ => one_of(&formats, top, store),
    }
}

/// Whether a file may be one of another format than its name says.
pub(crate) fn may_be_misnamed(e: &StrategyError) -> bool {
    matches!(
        e,
        StrategyError::NotACheckpoint { .. } | StrategyError::Corrupt { .. }
    )
}

/// The format of a file by its content. `None` if no linked format recognises it.
pub(crate) async fn of_content(
    formats: &Formats,
    store: &Arc<dyn Store>,
    top: &Listing,
) -> Result<Option<BackendVersion>> {
    let [file] = &*top.files else {
        return Ok(None);
    };
    // A file of a checkpoint that is a folder is a part of that.
    let is_part = |f: &LoadShardedStrategy| {
        !f.info().lives_in(PlaceKind::File) && f.info().own_file(file.name.as_str()).is_some()
    };
    if formats.all.iter().any(is_part) {
        return Ok(None);
    }
    let head = store.read(&file.name, 0..file.bytes.min(HEAD)).await?;
    let formats = formats.of_kind(PlaceKind::File).all.into_iter();
    let mut told = formats.filter(|f| f.info().detect_content.is_some_and(|is| is(&head)));
    Ok(told.next().map(|format| format.key()))
}

/// Why a file is no checkpoint.
pub(crate) fn no_format_of_files(formats: &Formats, store: &Arc<dyn Store>) -> StrategyError {
    let why = match &*formats.of_kind(PlaceKind::File).all {
        [] => "it is a file, and no linked format stores a checkpoint in one file; give the directory that it lies in".into(),
        known => {
            let names: Vec<_> = known.iter().map(|f| f.key().to_string()).collect();
            format!("it is a file, and its name is not one that the linked formats with checkpoints in one file give: {}", names.join(", "))
        }
    };
    StrategyError::NotACheckpoint {
        url: store.url(),
        why,
    }
}

/// The well-known files that exist.
async fn probe(store: &Arc<dyn Store>, formats: &Formats) -> Result<Listing> {
    Ok(Listing::of(store.present(formats.probes()?).await?))
}

/// So many folders are looked into. A place may be anything, such as a home directory.
const FOLDERS: usize = 64;

/// What folders hold.
struct Inside {
    /// The files by which a format may be recognised.
    probes: Listing,
    /// A folder directly in the place that is a checkpoint by its own files.
    checkpoint: Option<Name>,
}

/// Looks into folders, outer ones first.
async fn deeper(store: &Arc<dyn Store>, formats: &Formats, top: &Listing) -> Result<Inside> {
    let probes = formats.probes_in_folders();
    let (mut found, mut folders) = (Vec::new(), VecDeque::from(top.folders.clone()));
    let mut checkpoint = None;
    for _ in 0..FOLDERS {
        let Some(folder) = folders.pop_front().filter(|_| !probes.is_empty()) else {
            break;
        };
        let inside = store.list(Some(&folder), Depth::One).await?;
        let last = |e: &Entry| e.name.as_str().rsplit('/').next().map(str::to_owned);
        let is_probe = |e: &Entry| last(e).is_some_and(|file| probes.contains(&*file));
        let (of_folder, others): (Vec<_>, Vec<_>) = inside.files.into_iter().partition(is_probe);
        if checkpoint.is_none() && top.folders.contains(&folder) {
            let own = others.into_iter().filter_map(|e| {
                let name = Name::new(last(&e)?).ok()?;
                Some(Entry { name, ..e })
            });
            let own = Listing::of(own.collect());
            let mut sure = formats.that(Detection::Yes, &own).into_iter();
            // A group of arrays in a folder is no checkpoint of its own.
            let is_one = [METADATA_JSON, SIDECAR].iter().any(|name| own.has(name))
                || sure.any(|format| format.info().probes_in_folders.is_empty());
            checkpoint = is_one.then(|| folder.clone());
        }
        found.extend(of_folder);
        folders.extend(inside.folders);
    }
    Ok(Inside {
        probes: Listing::of(found),
        checkpoint,
    })
}

/// Why a place is no checkpoint.
fn unknown(formats: &Formats) -> String {
    let known = formats.all.iter().map(|f| match f.info().probes {
        [] => f.key().to_string(),
        names => {
            let inside = f
                .info()
                .probes_in_folders
                .iter()
                .map(|name| format!("*/{name}"));
            let all: Vec<String> = names
                .iter()
                .map(|name| (*name).into())
                .chain(inside)
                .collect();
            format!("{} ({})", f.key(), all.join(", "))
        }
    });
    format!(
        "it has none of the files by which the linked formats recognise a checkpoint: {}",
        known.collect::<Vec<_>>().join("; ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use async_trait::async_trait;
    use futures_executor::block_on;
    use reshard_storage::testkit::{Fault, FaultStore, MemoryStore, Op};
    use reshard_strategy::{FormatInfo, LoadFormat, LoadShardedStrategy, OpenCx, StorageReader};

    #[derive(Debug)]
    struct Fake(FormatInfo);

    /// `Yes` to one file, and `Likely` to another one.
    fn detected(top: &Listing, sure: &str, likely: &str) -> Detection {
        match () {
            () if top.has(sure) => Detection::Yes,
            () if top.has(likely) => Detection::Likely,
            () => Detection::No,
        }
    }

    #[async_trait]
    impl LoadFormat for Fake {
        fn info(&self) -> &FormatInfo {
            &self.0
        }

        fn settings(&self) -> serde_json::Value {
            serde_json::json!({})
        }

        async fn open(&self, cx: &OpenCx) -> Result<Arc<dyn StorageReader>> {
            Err(StrategyError::NotACheckpoint {
                url: cx.store.url(),
                why: "it is a test".into(),
            })
        }
    }

    fn formats() -> Formats {
        let all = [
            FormatInfo {
                backend: "a",
                detect: Some(|top| detected(top, "a.json", "data")),
                probes: &["a.json"],
                ..FormatInfo::NEW
            },
            FormatInfo {
                backend: "b",
                detect: Some(|top| detected(top, "b.json", "data")),
                probes: &["b.json", "b.old"],
                ..FormatInfo::NEW
            },
            FormatInfo {
                backend: "listed",
                detect: Some(|top| detected(top, "any.idx", "part")),
                ..FormatInfo::NEW
            },
        ];
        Formats {
            all: all
                .into_iter()
                .map(|info| LoadShardedStrategy::new(Fake(info)))
                .collect(),
            default: BackendVersion::new("a", 1),
        }
    }

    fn place(names: &[&str]) -> MemoryStore {
        let store = MemoryStore::new();
        names
            .iter()
            .for_each(|name| store.put(Name::new(*name).unwrap(), "1".into()));
        store
    }

    fn told(names: &[&str]) -> Result<String> {
        let store: Arc<dyn Store> = Arc::new(place(names));
        block_on(detect(&store, &formats())).map(|found| found.format.to_string())
    }

    #[test]
    fn a_format_is_told_by_the_names_of_its_files() {
        assert_eq!(told(&["a.json", "data", "x"]).unwrap(), "a/1");
        assert_eq!(told(&["any.idx", "x"]).unwrap(), "listed/1");
        // A `Yes` counts more than any number of `Likely`s.
        assert_eq!(told(&["any.idx", "data"]).unwrap(), "listed/1");
        assert_eq!(told(&["part"]).unwrap(), "listed/1");
        // A name in a subdirectory does not count.
        assert!(told(&["old/a.json"]).is_err());
    }

    #[test]
    fn two_formats_that_claim_a_place_are_both_named() {
        for names in [&["a.json", "b.json"][..], &["data"]] {
            let e = told(names).unwrap_err();
            assert!(
                matches!(&e, StrategyError::Ambiguous { a, b, .. } if *a.backend == *"a" && *b.backend == *"b"),
                "{e}"
            );
            assert!(e.to_string().contains("of a/1 or of b/1"), "{e}");
        }
    }

    #[test]
    fn a_place_that_no_format_knows_is_no_checkpoint() {
        let why = |names: &[&str]| match told(names).unwrap_err() {
            StrategyError::NotACheckpoint { why, .. } => why,
            e => panic!("{e}"),
        };
        // This store has empty places.
        assert_eq!(why(&[]), "it is empty");
        let known = why(&["README.md"]);
        assert!(
            known.ends_with("a/1 (a.json); b/1 (b.json, b.old); listed/1"),
            "{known}"
        );
    }

    #[test]
    fn where_a_well_known_file_lies_nothing_is_listed() {
        for (name, listed) in [("b.json", false), ("any.idx", true)] {
            let store = FaultStore::new(Arc::new(place(&[name, "x"])));
            store.fail(Op::List, 0, Fault::Before);
            let store: Arc<dyn Store> = Arc::new(store);
            assert_eq!(
                block_on(detect(&store, &formats())).is_err(),
                listed,
                "{name}"
            );
        }
    }
}

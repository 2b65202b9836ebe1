//! Files that are zip archives.

use super::window::{Window, length};
use crate::error::{lost, not_understood, unreadable};
use bytes::Bytes;
use reshard_model::ErrorKind;
use reshard_storage::{Name, Store};
use reshard_strategy::{ReadLimits, Result, StrategyError, torch::parsing};
use reshard_torch_format::{
    Error as FormatError, ScriptClasses,
    archive::{ByteOrder, Directory, Method, Record, Tail, check_version, unpack},
};
use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{Arc, Mutex, PoisonError},
};

/// The directory of an archive, and what was found out since.
#[derive(Debug)]
pub(crate) struct Zip {
    pub(crate) directory: Directory,
    pub(crate) order: ByteOrder,
    /// Where the data of records lie, by their names. Only the header before a record says it.
    places: Mutex<BTreeMap<Box<str>, Range<u64>>>,
}

/// An archive whose description was read.
pub(super) struct OpenedZip {
    pub(super) pickle: Bytes,
    pub(super) zip: Zip,
    /// The classes of its code, if it is TorchScript.
    pub(super) script: Option<ScriptClasses>,
}

/// The next step for TorchScript that is not opened.
pub(super) const OPEN_SCRIPT: &str = "--open-modules, the setting `open_modules`, reads its tensors; or load it with torch.jit.load, and save its state_dict() with torch.save";

/// The most bytes of the records with the version and the byte order.
const WORD: u64 = 1000;

pub(super) async fn open(
    store: &Arc<dyn Store>,
    name: &Name,
    bytes: u64,
    (first, tail): (Bytes, Bytes),
    limits: &ReadLimits,
) -> Result<OpenedZip> {
    let mut window = Window {
        store,
        name,
        bytes,
        first,
        tail,
    };
    let opened = open_window(&mut window, limits).await;
    match opened {
        // Nothing in it is torch's, so nothing of torch's is damaged.
        Err(e) if e.kind() == ErrorKind::Corrupt && !window.has_torch_names() => {
            let record = window.first_record();
            let why = format!(
                "it is a zip archive that torch.save has not written: its first record is {record:?}"
            );
            let url = store.url();
            Err(StrategyError::NotACheckpoint { url, why })
        }
        opened => opened,
    }
}

async fn open_window(window: &mut Window<'_>, limits: &ReadLimits) -> Result<OpenedZip> {
    let name = window.name;
    let damaged = |e| unreadable(e, "the archive", name.as_str());
    let directory = directory(window, limits).await?;
    if directory.find("model.json").is_some() {
        let what = format!(
            "reading {name} (TorchScript, as torch 1.0 to 1.3 wrote it; load it with torch.jit.load, and save its state_dict() with torch.save)"
        );
        return Err(not_understood(what));
    }
    let script = match directory.find("constants.pkl").is_some() && has_code(&directory) {
        true => Some(script_classes(window, &directory, limits).await?),
        false => None,
    };
    let version = directory.version().map_err(damaged)?;
    check_version(version, &word(window, version, limits).await?).map_err(damaged)?;
    let order = match directory.find("byteorder") {
        None => ByteOrder::Little,
        Some(order) => {
            ByteOrder::parse(Some(&word(window, order, limits).await?)).map_err(damaged)?
        }
    };
    let pickle = directory.get("data.pkl").map_err(damaged)?;
    let pickle = record(window, pickle, limits).await?;
    let zip = Zip {
        directory,
        order,
        places: Mutex::default(),
    };
    Ok(OpenedZip {
        pickle,
        zip,
        script,
    })
}

/// The name of a record in the folder of its archive.
fn inner_name<'d>(directory: &Directory, record: &'d Record) -> Option<&'d str> {
    record.name.get(directory.prefix().len() + "/".len()..)
}

/// Whether an archive has a program of TorchScript.
fn has_code(directory: &Directory) -> bool {
    let mut names = directory.records().filter_map(|r| inner_name(directory, r));
    names.any(|name| name.starts_with("code/"))
}

/// Reads which attributes of modules are parameters and buffers, as the code of TorchScript declares it.
async fn script_classes(
    window: &Window<'_>,
    directory: &Directory,
    limits: &ReadLimits,
) -> Result<ScriptClasses> {
    let mut classes = ScriptClasses::default();
    let mut code = 0u64;
    for found in directory.records() {
        let name = inner_name(directory, found).and_then(|name| name.strip_prefix("code/"));
        let Some(module) = name.and_then(|name| name.strip_suffix(".py")) else {
            continue;
        };
        code = code.saturating_add(found.size);
        limits.whole(format_args!("the code in {}", window.name), code)?;
        let text = record(window, found, limits).await?;
        classes.add(&module.replace('/', "."), &String::from_utf8_lossy(&text));
    }
    Ok(classes)
}

/// The directory, which is at the end. The parser says how much of the end it needs.
async fn directory(window: &mut Window<'_>, limits: &ReadLimits) -> Result<Directory> {
    let name = window.name;
    let mut range = Tail::first_range(window.bytes);
    loop {
        limits.whole(format_args!("the directory of {name}"), length(&range))?;
        let tail = window.read(range.clone()).await?;
        let parsed = Tail::parse(window.bytes, &tail);
        if tail.len() > window.tail.len() {
            window.tail = tail;
        }
        match parsed.map_err(|e| unreadable(e, "the archive", name.as_str()))? {
            Tail::Done(directory) => return Ok(directory),
            Tail::Need(more) if length(&more) > length(&range) => range = more,
            Tail::Need(_) => {
                let what = "its directory lies outside of it";
                return Err(StrategyError::corrupt(name, None, what));
            }
        }
    }
}

async fn word(window: &Window<'_>, found: &Record, limits: &ReadLimits) -> Result<Bytes> {
    if found.size > WORD || found.stored > WORD {
        let what = format!(
            "{:?} has {} bytes, and at most {WORD} are possible",
            found.name, found.size
        );
        return Err(StrategyError::corrupt(
            window.name,
            Some(found.header),
            what,
        ));
    }
    record(window, found, limits).await
}

/// The content of a record, checked.
async fn record(window: &Window<'_>, record: &Record, limits: &ReadLimits) -> Result<Bytes> {
    let damaged = |e| unreadable(e, "the archive", window.name.as_str());
    let header = window.read(record.header_range()).await?;
    let data = record.data_range(&header).map_err(damaged)?;
    let behind = window.read(record.behind(&data)).await?;
    record.confirm(&data, &behind).map_err(damaged)?;
    let what = format!("{:?} of {}", record.name, window.name);
    limits.whole(&what, record.stored)?;
    limits.whole(&what, record.size)?;
    content(record, window.read(data).await?, window.bytes, limits, true).map_err(damaged)
}

/// Unpacks a record, of a file of `file` bytes. What few bytes unpack to has the bound of what is parsed of such a file.
pub(crate) fn content(
    record: &Record,
    stored: Bytes,
    file: u64,
    limits: &ReadLimits,
    verify: bool,
) -> Result<Bytes, FormatError> {
    let parsing = parsing(limits);
    let most = match record.method {
        Method::Stored => u64::MAX,
        _ => limits.max_whole.min(parsing.budget(file).max()),
    };
    unpack(record, stored, most, verify.into())
}

impl Zip {
    /// Where the data of records lie. What is not known yet is read from the headers before them, and confirmed by what follows them.
    pub(crate) async fn places(
        &self,
        store: &Arc<dyn Store>,
        name: &Name,
        records: &[&Record],
    ) -> Result<Vec<Range<u64>>> {
        let unknown: Vec<&Record> = {
            let known = self.known();
            let new = records.iter().filter(|r| !known.contains_key(&r.name));
            new.copied().collect()
        };
        let damaged = |e| unreadable(e, "the archive", name.as_str());
        if !unknown.is_empty() {
            let read = |ranges: Vec<Range<u64>>| async {
                let ranges = ranges.into_iter().map(|range| (name.clone(), range));
                let read = store.read_ranges(ranges.collect()).await;
                read.map(|(bytes, _)| bytes)
                    .map_err(|e| lost(e, name.as_str()))
            };
            let headers = read(unknown.iter().map(|r| r.header_range()).collect()).await?;
            let found = unknown.iter().zip(&headers);
            let found = found.map(|(record, header)| record.data_range(header));
            let found = found.collect::<Result<Vec<_>, _>>().map_err(damaged)?;
            let behind = unknown.iter().zip(&found).map(|(r, data)| r.behind(data));
            let behind = read(behind.collect()).await?;
            let mut known = self.known();
            for ((record, data), behind) in unknown.iter().zip(found).zip(&behind) {
                record.confirm(&data, behind).map_err(damaged)?;
                known.insert(record.name.clone(), data);
            }
        }
        let known = self.known();
        let place = |record: &&Record| known.get(&record.name).cloned();
        let places: Option<Vec<_>> = records.iter().map(place).collect();
        places.ok_or_else(|| StrategyError::Internal("a record has no place".into()))
    }

    /// Where the data of a record lie, if its header was read.
    pub(crate) fn known_place(&self, record: &Record) -> Option<Range<u64>> {
        self.known().get(&record.name).cloned()
    }

    fn known(&self) -> std::sync::MutexGuard<'_, BTreeMap<Box<str>, Range<u64>>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

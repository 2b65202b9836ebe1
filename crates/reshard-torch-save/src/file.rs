//! One file of `torch.save`: its pickle, and where its storages lie.

mod legacy;
mod safetensors;
mod window;
mod zip;

use crate::{
    error::{lost, not_understood, unreadable},
    modules::module_in_words,
};
use bytes::Bytes;
use reshard_storage::{Name, Store};
use reshard_strategy::{Foreign, OpenCx, ReadLimits, Result, StrategyError, torch::parsing};
use reshard_torch_format::{
    Contents, Error as FormatError, LegacyHead, Modules, Outline, Result as FormatResult,
    StorageRef, TensorRef,
    archive::{ByteOrder, Method, RECORDS, Record},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    sync::Arc,
};

pub(crate) use window::length;
pub(crate) use zip::{Zip, content};

/// A file whose description was read.
#[derive(Debug)]
pub(crate) struct TorchFile {
    pub(crate) name: Name,
    pub(crate) bytes: u64,
    /// The pickle of the object.
    pub(crate) pickle: Bytes,
    pub(crate) container: Container,
    /// How its modules are read.
    pub(crate) modules: Modules,
}

/// In what the pickle and the storages lie.
#[derive(Debug)]
pub(crate) enum Container {
    /// A zip archive, as since torch 1.6.
    Zip(Zip),
    /// Pickles and storages one behind the other, as before.
    Legacy(LegacyHead),
    /// Only a pickle.
    Pickle,
    /// No pickle, but a header of safetensors: where each tensor is.
    Safetensors(BTreeMap<Box<str>, Range<u64>>),
}

/// So many bytes of the start of a file are read first. In a file by torch they hold the pickle of a model.
const FIRST: u64 = 64 << 10;
/// The same where requests are dear, with the bytes of the end, which hold the directory. A file of at most so many bytes is read whole.
const FIRST_IF_DEAR: u64 = 256 << 10;
const LAST_IF_DEAR: u64 = 256 << 10;
const WHOLE_IF_DEAR: u64 = 1 << 20;
/// So many bytes are read at first of an old file, whose description is not delimited.
const LEGACY: u64 = 1 << 20;

impl TorchFile {
    /// Reads the description of a file. No storage is read.
    pub(crate) async fn open(
        cx: &OpenCx,
        name: Name,
        bytes: u64,
        open_modules: bool,
    ) -> Result<Self> {
        let (store, limits) = (&cx.store, &cx.limits);
        let mut modules = Modules::default().with_open(open_modules);
        let (first, tail) = ends(store, &name, bytes).await?;
        let read = first.len();
        let (pickle, container) = if first.starts_with(b"PK\x03\x04") {
            let opened = zip::open(store, &name, bytes, (first, tail), limits).await?;
            modules.script = opened.script;
            (opened.pickle, Container::Zip(opened.zip))
        } else if LegacyHead::is_legacy(&first) {
            legacy::open(store, &name, bytes, first, limits).await?
        } else if first.get(257..262) == Some(b"ustar") {
            let what = format!(
                "reading {name} (a tar file, as torch wrote before 0.1.10; load it with torch and save it again)"
            );
            return Err(not_understood(what));
        } else if matches!(&*first, [0x80, 2..=5, ..]) {
            limits.whole(&name, bytes)?;
            let all = match read as u64 == bytes {
                true => first,
                false => {
                    let all = store.read(&name, 0..bytes).await;
                    all.map_err(|e| lost(e, name.as_str()))?
                }
            };
            whole(&all, &name, limits)?;
            (all, Container::Pickle)
        } else {
            let why = match Foreign::of_file(&first, &[]) {
                Some(foreign) => format!("{name} is {}: {}", foreign.what, foreign.next),
                None => format!(
                    "{name} does not begin as a file of torch.save does: it is neither a zip archive nor a pickle"
                ),
            };
            let url = store.url();
            return Err(StrategyError::NotACheckpoint { url, why });
        };
        let file = Self {
            name,
            bytes,
            pickle: freed(pickle, read),
            container,
            modules,
        };
        match file.modules.script.is_some() && !open_modules {
            true => Err(file.closed_script(limits)),
            false => Ok(file),
        }
    }

    /// The error for TorchScript that is not opened. It says what the module contains, if that can be read.
    fn closed_script(&self, limits: &ReadLimits) -> StrategyError {
        let contents = self.contents(limits).ok();
        let module = contents.and_then(|contents| contents.modules.into_iter().next());
        let what = module.map_or_else(String::new, |module| {
            format!(": {}", module_in_words(&module))
        });
        let what = format!(
            "reading {} (TorchScript, as torch.jit.save writes it{what}; {})",
            self.name,
            zip::OPEN_SCRIPT
        );
        not_understood(what)
    }

    /// Everything that the pickle contains.
    pub(crate) fn contents(&self, limits: &ReadLimits) -> Result<Contents> {
        self.outline(limits, |outline| {
            outline.contents_with(self.order(), &self.modules)
        })
    }

    /// A record that does not lie in the folder of the archive, and this folder.
    pub(crate) fn outside(&self) -> Option<(&str, &str)> {
        let Container::Zip(zip) = &self.container else {
            return None;
        };
        let folder = zip.directory.prefix();
        let is_inside = |record: &&Record| {
            let inside = record.name.strip_prefix(folder);
            inside.is_some_and(|name| name.starts_with('/'))
        };
        let mut outside = zip.directory.records().filter(|record| !is_inside(record));
        Some((&outside.next()?.name, folder))
    }

    /// Parses the pickle again and shows its parts to `f`.
    pub(crate) fn outline<T>(
        &self,
        limits: &ReadLimits,
        f: impl FnOnce(&Outline<'_>) -> FormatResult<T>,
    ) -> Result<T> {
        let limits = parsing(limits);
        Outline::parse(&self.pickle, self.bytes, &limits)
            .and_then(|outline| f(&outline))
            .map_err(|e| unreadable(e, "the pickle", self.name.as_str()))
    }

    /// The order of bytes in its elements.
    pub(crate) fn order(&self) -> ByteOrder {
        match &self.container {
            Container::Zip(zip) => zip.order,
            Container::Legacy(_) | Container::Pickle | Container::Safetensors(_) => {
                ByteOrder::Little
            }
        }
    }

    /// Checks that a storage is there, with the length that the pickle says.
    pub(crate) fn has(&self, storage: &StorageRef) -> FormatResult<()> {
        match &self.container {
            Container::Zip(zip) => storage.check(zip.directory.get(&storage.record())?.size),
            Container::Legacy(head) => match head.storages.get(&storage.key) {
                Some(found) => storage.check(length(&found.data)),
                None => Err(no_storage(storage)),
            },
            Container::Safetensors(tensors) => match tensors.get(&storage.key) {
                Some(at) => storage.check(length(at)),
                None => Err(no_storage(storage)),
            },
            Container::Pickle => Err(no_storage(storage)),
        }
    }

    /// The records of an archive that `torch.save` does not write, and storages that nothing has, with their lengths.
    pub(crate) fn unknown_records(&self, storages: &BTreeSet<Box<str>>) -> Vec<(String, u64)> {
        let Container::Zip(zip) = &self.container else {
            return Vec::new();
        };
        let prefix = format!("{}/", zip.directory.prefix());
        let name = |record: &Record| {
            let inner = record.name.strip_prefix(&prefix);
            inner.unwrap_or(&record.name).to_owned()
        };
        let is_known = |name: &str| match name.strip_prefix("data/") {
            Some(key) => storages.contains(key),
            None => RECORDS.contains(&name),
        };
        let named = zip.directory.records().map(|r| (name(r), r.size));
        named.filter(|(name, _)| !is_known(name)).collect()
    }

    /// Whether it has checksums. The layout before zip archives has none.
    pub(crate) fn has_checksums(&self) -> bool {
        match &self.container {
            Container::Zip(zip) => {
                let mut records = zip.directory.records();
                records.all(|record| record.checksum().is_some())
            }
            Container::Legacy(_) | Container::Pickle | Container::Safetensors(_) => false,
        }
    }

    /// The CRC-32 of the elements of a tensor, if they are all of a storage, in its order, and lie there as they are.
    pub(crate) fn checksum(&self, tensor: &TensorRef) -> Option<u32> {
        let Container::Zip(zip) = &self.container else {
            return None;
        };
        let record = zip.directory.find(&tensor.storage.record())?;
        let layout = tensor.layout().ok()?;
        let all = layout.is_contiguous() && layout.bytes() == record.size;
        record
            .checksum()
            .filter(|_| all && record.method == Method::Stored && !tensor.is_lazy(zip.order))
    }

    /// Where a storage lies. In an archive only the header before it says where it begins. Until somebody has read that, the header is counted
    /// too, without its padding.
    pub(crate) fn place(&self, storage: &StorageRef) -> Option<Range<u64>> {
        match &self.container {
            Container::Zip(zip) => {
                let record = zip.directory.find(&storage.record())?;
                zip.known_place(record).or_else(|| {
                    let header = record.header_range();
                    Some(header.start..header.end.checked_add(record.stored)?)
                })
            }
            Container::Legacy(head) => head.storages.get(&storage.key).map(|s| s.data.clone()),
            Container::Safetensors(tensors) => tensors.get(&storage.key).cloned(),
            Container::Pickle => None,
        }
    }
}

/// Whether a file that begins so was written by torch, whatever its name is.
pub(crate) fn has_torch_content(head: &[u8]) -> bool {
    match head.starts_with(b"PK\x03\x04") {
        true => window::has_torch_name(head),
        false => LegacyHead::is_legacy(head),
    }
}

/// The start of a file, and its end if requests are dear. A file that is not much longer than both is read with one request then.
async fn ends(store: &Arc<dyn Store>, name: &Name, bytes: u64) -> Result<(Bytes, Bytes)> {
    let lost = |e| lost(e, name.as_str());
    if !store.hints().requests_are_dear() {
        let first = store.read(name, 0..bytes.min(FIRST)).await.map_err(lost)?;
        return Ok((first, Bytes::new()));
    }
    if bytes <= WHOLE_IF_DEAR {
        let all = store.read(name, 0..bytes).await.map_err(lost)?;
        return Ok((all.clone(), all));
    }
    let ends = [0..FIRST_IF_DEAR, bytes - LAST_IF_DEAR..bytes];
    let ends = ends.map(|range| (name.clone(), range)).to_vec();
    let (read, _) = store.read_ranges(ends).await.map_err(lost)?;
    let mut read = read.into_iter();
    let mut next = || read.next().unwrap_or_default();
    Ok((next(), next()))
}

/// A small part of what was read, in memory of its own, so that the rest is freed.
fn freed(part: Bytes, read: usize) -> Bytes {
    match part.len() < read / 2 {
        true => Bytes::copy_from_slice(&part),
        false => part,
    }
}

/// Fails if something follows a bare pickle: elements that nothing describes, or the rest of an old file whose magic number is damaged.
fn whole(all: &Bytes, name: &Name, limits: &ReadLimits) -> Result<()> {
    let bytes = all.len() as u64;
    let parsing = parsing(limits);
    let outline = Outline::parse(all, bytes, &parsing);
    let outline = outline.map_err(|e| unreadable(e, "the pickle", name.as_str()))?;
    let end = outline.pickle_len() as u64;
    if end == bytes {
        return Ok(());
    }
    let what = format!(
        "{} bytes follow its pickle: it is an old file of torch.save without its magic number, or a file with elements behind the pickle, as \
         torch's serialization_offset has them, which reshard does not read",
        bytes - end
    );
    Err(StrategyError::corrupt(name, Some(end), what))
}

fn no_storage(storage: &StorageRef) -> FormatError {
    FormatError::NoRecord {
        name: storage.record().into(),
        have: "no storage of this key".into(),
    }
}

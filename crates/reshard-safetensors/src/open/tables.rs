//! What is stored, and where: the headers of all files as one table.

use super::{files::Found, headers::Read, sharding};
use crate::{
    OBJECTS, RECORD,
    header::{self, Entry, Header, LENGTH},
    names,
    reader::{Chunk, Object, SafetensorsReader},
    record::{CHANGED, TensorRecord},
    texts::Texts,
    torchao,
};
use reshard_model::{DType, Dims, Region, SafetensorsDType};
use reshard_plan::{Metadata, MetadataBuilder, TensorProperties};
use reshard_storage::{Name, PlaceKind};
use reshard_strategy::{OpenCx, Refused, Result, Rewritten, StrategyError, UnreadPart, few};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// So many notes are made.
const NOTES: usize = 100;
/// So many keys can be refused, each with its reason. A checkpoint with more of them is refused as a whole.
const REFUSED: usize = 100_000;

/// What a file has of a tensor.
struct Part {
    file: u32,
    start: u64,
    dtype: DType,
    region: Region,
}

/// Parts by key, and keys that can't be read.
#[derive(Default)]
struct Parts {
    of: BTreeMap<Box<str>, Vec<Part>>,
    refused: BTreeMap<Box<str>, Refused>,
    notes: Vec<String>,
    more_notes: u64,
    /// Keys that the index does not list, but a file of it has.
    unlisted: Vec<Box<str>>,
    /// Keys in other files than the index says. Only what lies where it says is read.
    elsewhere: Vec<Box<str>>,
    /// Keys of entries without an element type and without bytes.
    absent: BTreeSet<Box<str>>,
    /// Keys that were refused without a reason that is kept.
    more_refused: u64,
    is_sharded: bool,
    texts: Texts,
    rewritten: Vec<Rewritten>,
}

/// Builds the reader of these files from their headers.
///
/// # Errors
/// A file is damaged, and nothing tells which keys it should have; or the files are several models.
pub(super) fn reader(
    cx: &OpenCx,
    found: &Found,
    read: Vec<Read>,
    unread: BTreeMap<u32, UnreadPart>,
) -> Result<SafetensorsReader> {
    let mut parts = Parts::default();
    for (n, (file, read)) in (0..).zip(found.files.iter().zip(read)) {
        let read = read.and_then(|(header, crc)| match rewritten(found, file, crc) {
            Some(rewritten) => {
                parts.rewritten.push(rewritten);
                Err(Refused::damaged(CHANGED))
            }
            None => Ok(header),
        });
        let added = read.and_then(|header| parts.add(found, n, header));
        if let Err(fault) = added {
            parts.refuse_file(found, n, &file.0, fault)?;
        }
    }
    parts.missing(found);
    parts.bounded(found)?;
    parts.of_one_model(found, &cx.store.url())?;
    parts.reader(cx, found, unread)
}

/// The file of this number, if its header is not the noted one, and the elements that the noted one describes.
fn rewritten(found: &Found, (name, bytes): &(Name, Option<u64>), crc: u32) -> Option<Rewritten> {
    let record = found.record.as_ref()?;
    if *record.files.get(name)? == crc {
        return None;
    }
    let noted = record.header(name);
    let text = noted
        .as_ref()
        .and_then(|(all, _)| all.get(LENGTH as usize..));
    // If it does not fit to the file, that has another length now.
    let noted = text.and_then(|text| header::parse(text, bytes.unwrap_or(0)).ok());
    let elements = noted.into_iter().flat_map(|noted| noted.entries);
    let elements = elements.filter_map(|entry| {
        let crc = record.tensors.get(&entry.key)?.parts.get(name)?;
        Some((entry.bytes, *crc))
    });
    Some(Rewritten::new(name.clone(), Some(elements.collect())))
}

/// Adds the file of this number.
fn in_file(why: Refused, files: &[(Name, Option<u64>)], number: u32) -> Refused {
    match files.get(number as usize) {
        Some((name, _)) => why.in_file(name),
        None => why,
    }
}

impl Parts {
    fn refuse(&mut self, key: &str, why: Refused) {
        self.of.remove(key);
        match self.refused.len() {
            ..REFUSED => drop(self.refused.entry(key.into()).or_insert(why)),
            _ => self.more_refused += 1,
        }
    }

    /// # Errors
    /// More keys were refused than can be told.
    fn bounded(&self, found: &Found) -> Result<()> {
        let Some((key, why)) = self
            .refused
            .first_key_value()
            .filter(|_| self.more_refused > 0)
        else {
            return Ok(());
        };
        let all = REFUSED as u64 + self.more_refused;
        let what = format!(
            "{all} keys can't be read, and at most {REFUSED} may be; the first is {key}: {}",
            why.what
        );
        let name = found
            .index_name()
            .cloned()
            .map_or_else(|| Name::new(RECORD), Ok)?;
        Err(StrategyError::corrupt(&name, None, what))
    }

    fn note(&mut self, note: String) {
        match self.notes.len() {
            ..NOTES => self.notes.push(note),
            _ => self.more_notes += 1,
        }
    }

    /// Adds the tensors of a file.
    fn add(&mut self, found: &Found, file: u32, header: Header) -> Result<(), Refused> {
        let offsets = sharding::offsets(&header)?;
        self.is_sharded |= offsets.is_some();
        self.texts.add(file, header.metadata);
        for entry in header.entries {
            let key = entry.key.clone();
            match found.index.as_ref().map(|(_, index)| index.of.get(&key)) {
                None => {}
                Some(Some(of)) if *of == file => {}
                Some(Some(_)) => {
                    self.elsewhere.push(key);
                    continue;
                }
                Some(None) => self.unlisted.push(key.clone()),
            }
            if is_absent(&entry) {
                self.absent.insert(key);
                continue;
            }
            let noted = found.record.as_ref().map(|r| r.tensors.get(&key));
            let offsets = offsets.as_ref().map(|all| all.get(&key));
            let part = match (noted, offsets) {
                (Some(None), _) => Err(Refused::damaged(format!("{RECORD} does not name it"))),
                (_, Some(None)) => Err(Refused::damaged(
                    "the file of a rank does not say where its piece lies",
                )),
                (noted, offsets) => part(file, &entry, noted.flatten(), offsets.flatten()),
            };
            match part {
                _ if self.refused.contains_key(&key) => {}
                Ok(part) => {
                    // Nearly all tensors have one part.
                    let parts = self.of.entry(key).or_insert_with(|| Vec::with_capacity(1));
                    parts.push(part);
                }
                Err(why) => self.refuse(&key, in_file(why, &found.files, file)),
            }
        }
        Ok(())
    }

    /// Refuses the keys of a file that can't be read.
    fn refuse_file(&mut self, found: &Found, n: u32, name: &Name, fault: Refused) -> Result<()> {
        let mut keys: Vec<&str> = Vec::new();
        if let Some((_, index)) = &found.index {
            let of = index.of.iter().filter(|(_, file)| **file == n);
            keys.extend(of.map(|(key, _)| &**key));
        }
        if let Some(record) = &found.record {
            let of = record.tensors.iter();
            let of = of.filter(|(_, tensor)| tensor.parts.contains_key(name));
            keys.extend(of.map(|(key, _)| &**key));
        }
        if keys.is_empty() {
            return Err(StrategyError::corrupt(name, fault.offset, fault.what));
        }
        for key in keys {
            self.refuse(key, in_file(fault.clone(), &found.files, n));
        }
        Ok(())
    }

    /// Refuses keys that should be in a file, and are not.
    fn missing(&mut self, found: &Found) {
        let of_index = found.index.iter().flat_map(|(name, index)| {
            let of = index.of.iter();
            of.map(move |(key, file)| (&**key, *file, name.as_str()))
        });
        let numbers: BTreeMap<&Name, u32> =
            found.files.iter().map(|(name, _)| name).zip(0..).collect();
        let of_record = found.record.iter().flat_map(|record| {
            record.tensors.iter().flat_map(|(key, tensor)| {
                let files = tensor.parts.keys().filter_map(|file| numbers.get(file));
                files.map(|file| (&**key, *file, RECORD))
            })
        });
        let missing: Vec<(&str, u32, &str)> = of_index
            .chain(of_record)
            .filter(|(key, file, _)| {
                let parts = self.of.get(*key);
                !self.absent.contains(*key)
                    && !parts.is_some_and(|parts| parts.iter().any(|part| part.file == *file))
            })
            .collect();
        for (key, file, by) in missing {
            let why = Refused::damaged(format!("it does not have {key}, but {by} says so"));
            self.refuse(key, in_file(why, &found.files, file));
        }
    }

    /// # Errors
    /// Nothing tells which files belong together, and two of them have the same key, such as one model in two precisions.
    fn of_one_model(&self, found: &Found, url: &str) -> Result<()> {
        if found.record.is_some() || found.index.is_some() || self.is_sharded {
            return Ok(());
        }
        let alone = |part: &Part| {
            let (name, _) = found.files.get(part.file as usize)?;
            (!names::is_of_several(name)).then_some(name)
        };
        for (key, parts) in &self.of {
            let mut names = parts.iter().filter_map(alone);
            if let (Some(a), Some(b)) = (names.next(), names.next()) {
                let what = format!(
                    "{url} has several models: {key} is in both {a} and {b}; name the file of one of them, or put its files into a folder of their own"
                );
                return Err(StrategyError::Invalid(what));
            }
        }
        Ok(())
    }

    fn reader(
        mut self,
        cx: &OpenCx,
        found: &Found,
        unread: BTreeMap<u32, UnreadPart>,
    ) -> Result<SafetensorsReader> {
        let (mut builder, mut chunks) = (Metadata::builder(), Vec::new());
        let empty = TensorRecord::default();
        for (key, mut parts) in std::mem::take(&mut self.of) {
            let noted = found.record.as_ref().and_then(|r| r.tensors.get(&key));
            let noted = noted.unwrap_or(&empty);
            let whole = match together(&mut parts, &found.files) {
                Ok(whole) => whole,
                Err(why) => {
                    self.refuse(&key, why);
                    continue;
                }
            };
            let Some(dtype) = parts.first().map(|part| part.dtype) else {
                continue;
            };
            let strides = noted.properties.strides.as_ref();
            let fits = strides.is_none_or(|strides| strides.len() == whole.len());
            let properties = match fits {
                true => noted.properties.clone(),
                false => TensorProperties::default(),
            };
            let tensor = builder.add_tensor(&key, dtype, &whole, properties)?;
            for part in parts {
                builder.add_chunk(tensor, &part.region)?;
                let crc = found.files.get(part.file as usize);
                let crc = crc.and_then(|(name, _)| noted.parts.get(name)).copied();
                chunks.push(Chunk {
                    file: part.file,
                    start: part.start,
                    crc,
                });
            }
        }
        let objects = self.objects(found, &mut builder)?;
        if self.more_notes > 0 {
            self.notes.push(format!("{} more notes", self.more_notes));
        }
        let warnings = self.warnings(found);
        let planner_data = found.record.as_ref().and_then(|r| r.planner_data.clone());
        let annotations = self.texts.annotations(&found.files);
        self.notes.extend(torchao::note(&annotations));
        let metadata = builder.finish(planner_data)?.with_annotations(annotations);
        Ok(SafetensorsReader {
            store: Arc::clone(&cx.store),
            dialect: cx.dialect,
            limits: cx.limits,
            metadata: Arc::new(metadata),
            chunks,
            objects,
            refused: self.refused,
            files: found.files.iter().map(|(name, _)| name.clone()).collect(),
            unread,
            notes: self.notes,
            warnings,
            rewritten: self.rewritten,
            index: found.index_name().cloned(),
            unnamed: found.unnamed.clone(),
            has_record: found.record.is_some(),
            is_sharded: self.is_sharded,
            is_alone: cx.kind == PlaceKind::File,
        })
    }

    /// Reasons why another program may read other tensors from these files.
    fn warnings(&self, found: &Found) -> Vec<String> {
        let mut out = Vec::new();
        if let Some((rival, by)) = &found.rival {
            out.push(format!(
                "{rival} is next to {by}: transformers reads {rival}, and reshard the {} of {by}; to read {rival}, name that file, and move away the one of the two that is out of date",
                files(found.files.len())
            ));
        }
        let named = |keys: &[Box<str>]| few(keys.iter().map(|key| &**key));
        if let Some(index) = found.index_name() {
            if !found.unnamed.is_empty() {
                let unnamed = few(found.unnamed.iter().map(Name::as_str));
                out.push(format!("{index} names no tensor of {unnamed}, which lies beside it; nothing of it is read"));
            }
            if !self.unlisted.is_empty() {
                let keys = named(&self.unlisted);
                out.push(format!("{index} does not list {keys}, which its files have; reshard reads them, and other programs may not"));
            }
            if !self.elsewhere.is_empty() {
                let keys = named(&self.elsewhere);
                out.push(format!("{keys} is also in files other than {index} says; reshard reads what the index says, and other programs may not"));
            }
        }
        if found.record.is_none() && found.index.is_none() && found.files.len() > 1 {
            let names = few(found.files.iter().map(|(name, _)| name.as_str()));
            out.push(format!("{names} have no index, and are read as one checkpoint; other programs may read one of them, or none"));
        }
        if !self.absent.is_empty() {
            let keys = few(self.absent.iter().map(|key| &**key));
            out.push(format!("{keys} has neither an element type nor bytes, as PyTorch's Hugging Face writer leaves a key of its mapping that the state dict lacks; it is left out, and other readers refuse the file"));
        }
        out
    }

    /// What the record says of objects. Those that can't lie where it says are refused.
    fn objects(&mut self, found: &Found, to: &mut MetadataBuilder) -> Result<Vec<Object>> {
        let Some(record) = &found.record else {
            if found.objects.is_some() {
                self.note(format!(
                    "{OBJECTS} is there, but not {RECORD}, which says what it holds"
                ));
            }
            return Ok(Vec::new());
        };
        let (mut objects, mut last) = (Vec::with_capacity(record.objects.len()), 0);
        for (key, noted) in &record.objects {
            let (from, end) = noted.bytes;
            let wrong = match found.objects {
                None => Some("its file is missing"),
                Some(_) if from < last || end < from => {
                    Some("the bytes that the record names are not its own")
                }
                Some(bytes) if end > bytes => Some("its file ends before it does"),
                Some(_) if to.tensor(key).is_some() || self.refused.contains_key(key) => {
                    Some("another file has a tensor of this key")
                }
                Some(_) => None,
            };
            if let Some(what) = wrong {
                let why = Refused::damaged(what).in_file(OBJECTS).at(from);
                self.refused.entry(key.clone()).or_insert(why);
                continue;
            }
            last = end;
            to.add_object(key)?;
            objects.push(Object {
                bytes: from..end,
                crc: noted.crc,
            });
        }
        Ok(objects)
    }
}

fn files(n: usize) -> String {
    match n {
        1 => "file".into(),
        n => format!("{n} files"),
    }
}

/// Whether an entry describes no tensor at all.
fn is_absent(entry: &Entry) -> bool {
    entry.bytes.is_empty() && matches!(&entry.dtype, Err(name) if name.is_empty())
}

/// What an entry of a header is in the model.
fn part(
    file: u32,
    entry: &Entry,
    noted: Option<&TensorRecord>,
    offsets: Option<&Vec<u64>>,
) -> Result<Part, Refused> {
    let spelled = match &entry.dtype {
        Ok(spelled) => *spelled,
        Err(name) => {
            return Err(Refused::unknown(format!(
                "its element type {name} is not known"
            )));
        }
    };
    let zeros = vec![0; entry.shape.len()];
    let offsets = offsets.unwrap_or(&zeros);
    if offsets.len() != entry.shape.len() {
        let what = format!(
            "its piece lies at {offsets:?}, but it has {} axes",
            entry.shape.len()
        );
        return Err(Refused::damaged(what));
    }
    let (dtype, lengths, offsets) = match noted.and_then(|noted| noted.dtype) {
        None => {
            let (dtype, lengths) = spelled.in_model(&entry.shape).map_err(Refused::unknown)?;
            let (_, offsets) = spelled.in_model(offsets).map_err(Refused::damaged)?;
            (dtype, lengths, offsets)
        }
        Some(dtype) => as_bytes(dtype, spelled, &entry.shape, offsets).ok_or_else(|| {
            let what = format!(
                "{RECORD} says that its bytes are {dtype}, but it has {} {:?}",
                spelled.name, entry.shape
            );
            Refused::damaged(what)
        })?,
    };
    let ends = offsets.iter().zip(&lengths);
    if ends.clone().any(|(at, n)| at.checked_add(*n).is_none()) {
        return Err(Refused::damaged("its piece ends beyond 2⁶⁴"));
    }
    Ok(Part {
        file,
        start: entry.bytes.start,
        dtype,
        region: Region::new(&offsets[..], &lengths[..]),
    })
}

/// A tensor whose elements are stored as bytes, along one axis more.
fn as_bytes(
    dtype: DType,
    spelled: SafetensorsDType,
    shape: &[u64],
    offsets: &[u64],
) -> Option<(DType, Vec<u64>, Vec<u64>)> {
    let ((size, shape), (last, offsets)) = (shape.split_last()?, offsets.split_last()?);
    let is = SafetensorsDType::named(DType::UInt8) == Some(spelled)
        && *size == dtype.size()
        && *last == 0;
    is.then(|| (dtype, shape.to_vec(), offsets.to_vec()))
}

/// The shape of the tensor that these parts make up. Parts that come twice are dropped.
fn together(parts: &mut Vec<Part>, files: &[(Name, Option<u64>)]) -> Result<Dims, Refused> {
    let name = |part: &Part| {
        files
            .get(part.file as usize)
            .map_or("", |(name, _)| name.as_str())
    };
    parts.sort_by(|a, b| {
        let key = |part: &Part| {
            (
                part.region.offsets.clone(),
                part.region.lengths.clone(),
                part.file,
            )
        };
        key(a).cmp(&key(b))
    });
    let mut shape: Option<(DType, Dims)> = None;
    let mut last: Option<&Part> = None;
    for part in &*parts {
        let (dtype, whole) = shape.get_or_insert_with(|| (part.dtype, part.region.lengths.clone()));
        if *dtype != part.dtype || whole.len() != part.region.ndim() {
            let what = format!(
                "{} has it as {dtype} with {} axes, and {} as {} with {}",
                last.map_or("", name),
                whole.len(),
                name(part),
                part.dtype,
                part.region.ndim()
            );
            return Err(Refused::damaged(what));
        }
        for (axis, n) in whole.iter_mut().enumerate() {
            *n = (*n).max(part.region.end(axis));
        }
        let twice = |other: &&Part| other.region == part.region && !part.region.is_empty();
        if let Some(other) = last.filter(twice) {
            let what = format!(
                "both {} and {} have {}",
                name(other),
                name(part),
                part.region
            );
            return Err(Refused::damaged(what));
        }
        last = Some(part);
    }
    Ok(shape.map(|(_, shape)| shape).unwrap_or_default())
}

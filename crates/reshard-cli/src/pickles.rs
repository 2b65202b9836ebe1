//! The globals of the pickles at a place, for `inspect --pickles` and for `verify`.

use crate::{
    args::Reading,
    error::Result,
    io::Io,
    json,
    program::Program,
    table::{self, shown},
    units,
};
use bytes::Bytes;
use reshard::{
    OpenOptions,
    blocking::Checkpoint,
    storage::{Entry, Name, Store, StoreExt as _, wait},
    strategy::StrategyError,
};
use reshard_torch_format::{
    LegacyHead, Limits,
    archive::{Directory, Record, Tail, Verify, scan_records, unpack},
    pickle::{Scan, Verdict, scan},
};
use serde::Serialize;
use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    sync::Arc,
};

/// A global that a file names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(crate) struct Global {
    pub(crate) file: String,
    /// Its full name, or a description in brackets.
    pub(crate) global: String,
    pub(crate) verdict: &'static str,
    /// The first instruction that names it: a byte of its pickle.
    pub(crate) offset: u64,
    /// The record of an archive, or the object of a checkpoint, that is the pickle.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pickle: Option<String>,
}

impl Global {
    fn is(&self, verdict: Verdict) -> bool {
        self.verdict == verdict.name()
    }

    /// Its name and its place, in a line.
    pub(crate) fn line(&self) -> String {
        let Self {
            file,
            global,
            offset,
            ..
        } = self;
        let of = self
            .pickle
            .as_ref()
            .map_or_else(String::new, |p| format!(" of {p}"));
        shown(&format!("{file}: {global} (byte {offset}{of})")).into_owned()
    }
}

/// What the pickles at a place name.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Pickles {
    /// The number of pickles that were followed to their ends.
    pub(crate) pickles: u64,
    pub(crate) globals: Vec<Global>,
    /// Files and records that could not be followed to their ends, with the reasons.
    pub(crate) not_scanned: Vec<String>,
}

impl Pickles {
    pub(crate) fn of(&self, verdict: Verdict) -> Vec<Global> {
        let of = self.globals.iter().filter(|global| global.is(verdict));
        of.cloned().collect()
    }
}

/// How the names of files end that may be pickles.
const ENDINGS: [&str; 11] = [
    ".pt",
    ".pth",
    ".bin",
    ".ckpt",
    ".pkl",
    ".pickle",
    ".p",
    ".metadata",
    ".tar",
    ".dat",
    ".joblib",
];
/// So much of a file is read first. Small records of archives are there.
const FIRST: u64 = 64 << 10;
/// Of so many files and objects this is read together.
const TOGETHER: usize = 256;

/// Lists the globals of the files at a place, and of the objects of the checkpoint, if it opens.
pub(crate) fn scan_place(
    program: &Program,
    (url, reading): (&str, &Reading),
    checkpoint: Option<&Checkpoint>,
) -> Result<Pickles> {
    let limits = reading.limits();
    let (store, files) = match checkpoint {
        Some(checkpoint) => {
            let files = checkpoint.roles()?.into_iter().map(|(file, _)| file);
            (Arc::clone(checkpoint.store()), files.collect::<Vec<_>>())
        }
        None => {
            let options = reading.options().stores(program.stores.clone());
            let top = |url: &str| -> Result<_, StrategyError> {
                let store = options.store_at(url)?;
                let files = wait(store.top())?.files;
                Ok((store, files))
            };
            match top(url) {
                Ok(place) => place,
                Err(e) => one_file(&options, url)?.ok_or(e)?,
            }
        }
    };
    let mut scanner = Scanner {
        store: Arc::clone(&store),
        max: limits.max_whole,
        limits: Limits::default(),
        out: Pickles::default(),
    };
    let is_scanned = |file: &&Entry| {
        let name = file.name.as_str();
        files.len() == 1 || ENDINGS.iter().any(|ending| name.ends_with(ending))
    };
    let whole: BTreeSet<&Name> = files
        .iter()
        .filter(is_scanned)
        .map(|file| &file.name)
        .collect();
    let mut sources: Vec<_> = (files.iter().filter(is_scanned))
        .map(|file| Source::new(file.name.clone(), 0..file.bytes, None))
        .collect();
    for key in checkpoint.iter().flat_map(|c| c.objects()) {
        let parts = checkpoint.map_or_else(Vec::new, |c| c.object_parts(key));
        let parts = parts.into_iter().filter(|part| !whole.contains(&part.file));
        let object = || Some(format!("object {key}"));
        sources.extend(parts.map(|part| Source::new(part.file, part.range, object())));
    }
    while !sources.is_empty() {
        let rest = sources.split_off(sources.len().min(TOGETHER));
        let some = std::mem::replace(&mut sources, rest);
        begin(&store, &some);
        some.iter().for_each(|source| scanner.file(source));
    }
    // A record may have been looked at twice.
    scanner.out.globals.sort();
    scanner.out.globals.dedup();
    Ok(scanner.out)
}

/// A store and the files that are scanned in it.
type Place = (Arc<dyn Store>, Vec<Entry>);

/// A file whose name no format with checkpoints in single files has, by way of its folder.
fn one_file(options: &OpenOptions, url: &str) -> Result<Option<Place>, StrategyError> {
    let (folder, name) = url.rsplit_once('/').unwrap_or((".", url));
    let Ok(name) = Name::new(name) else {
        return Ok(None);
    };
    let store = options.store_at(if folder.is_empty() { "/" } else { folder })?;
    let bytes = wait(store.len(&name))?;
    Ok(bytes.map(|bytes| (store, vec![Entry { name, bytes }])))
}

/// Reads the beginnings of sources together. One that can't be read is read again when it is scanned, which tells why.
fn begin(store: &Arc<dyn Store>, sources: &[Source]) {
    let first = |source: &Source| {
        let at = &source.at;
        let end = at.end.min(at.start.saturating_add(FIRST)).max(at.start);
        (source.file.clone(), at.start..end)
    };
    if let Ok((read, _)) = wait(store.read_ranges(sources.iter().map(first).collect())) {
        for (source, bytes) in sources.iter().zip(read) {
            source.known.borrow_mut().push((0, bytes));
        }
    }
}

/// A file, or a part of one.
struct Source {
    file: Name,
    at: Range<u64>,
    /// The object that it is.
    pickle: Option<String>,
    /// What was read, with its places, so that small records take no requests of their own.
    known: RefCell<Vec<(u64, Bytes)>>,
}

impl Source {
    fn new(file: Name, at: Range<u64>, pickle: Option<String>) -> Self {
        Self {
            file,
            at,
            pickle,
            known: RefCell::default(),
        }
    }

    fn len(&self) -> u64 {
        self.at.end.saturating_sub(self.at.start)
    }

    /// The name of a pickle in it: a record, an object, or a record of an object.
    fn pickle(&self, record: Option<&str>) -> Option<String> {
        match (record, &self.pickle) {
            (Some(record), Some(object)) => Some(format!("{record} of {object}")),
            (Some(record), None) => Some(record.into()),
            (None, object) => object.clone(),
        }
    }

    fn read(&self, store: &Arc<dyn Store>, range: Range<u64>) -> Result<Bytes, String> {
        let (from, to) = (range.start.min(self.len()), range.end.min(self.len()));
        let slice = |(start, bytes): &(u64, Bytes)| {
            let (from, to) = (from.checked_sub(*start)?, to.checked_sub(*start)?);
            let (from, to) = (usize::try_from(from).ok()?, usize::try_from(to).ok()?);
            (from <= to && to <= bytes.len()).then(|| bytes.slice(from..to))
        };
        if let Some(known) = self.known.borrow().iter().find_map(slice) {
            return Ok(known);
        }
        let place = |at: u64| self.at.start.saturating_add(at);
        let read = wait(store.read(&self.file, place(from)..place(to)));
        let bytes = read.map_err(|e| e.to_string())?;
        // The beginning and the end are read first.
        let mut known = self.known.borrow_mut();
        if known.len() < 2 {
            known.push((from, bytes.clone()));
        }
        Ok(bytes)
    }
}

struct Scanner {
    store: Arc<dyn Store>,
    /// The most bytes that are read at a time.
    max: u64,
    limits: Limits,
    out: Pickles,
}

impl Scanner {
    fn file(&mut self, source: &Source) {
        if let Err(why) = self.try_file(source) {
            self.not_scanned(source, None, &why);
        }
    }

    fn not_scanned(&mut self, source: &Source, record: Option<&str>, why: &str) {
        let of = source.pickle(record);
        let of = of.map_or_else(String::new, |of| format!("{of} of "));
        let line = format!("{of}{}: {why}", source.file);
        self.out.not_scanned.push(shown(&line).into_owned());
    }

    fn bounded(&self, bytes: u64) -> Result<(), String> {
        match bytes > self.max {
            true => Err(format!("it is longer than --max-whole, {} bytes", self.max)),
            false => Ok(()),
        }
    }

    fn try_file(&mut self, source: &Source) -> Result<(), String> {
        let len = source.len();
        let mut bytes = source.read(&self.store, 0..len.min(FIRST))?;
        if bytes.starts_with(b"PK") {
            return self.archive(source);
        }
        if bytes.get(257..262) == Some(b"ustar") {
            return Err("a tar file, whose pickles are not looked at".into());
        }
        // Old torch files have storages behind their pickles, which need not be read.
        while LegacyHead::is_legacy(&bytes) {
            if let Ok(head) = LegacyHead::parse(&bytes, len, &self.limits) {
                let storages = head.storages.values().map(|storage| storage.count);
                let end = storages.min().unwrap_or(head.end);
                let pickles = bytes.get(..end as usize).unwrap_or(&bytes);
                let found = scan(pickles, &self.limits);
                self.add(source, None, found);
                if head.end < len {
                    let why = format!("{} bytes follow its storages", len - head.end);
                    self.not_scanned(source, None, &why);
                }
                return Ok(());
            }
            if bytes.len() as u64 >= len {
                break;
            }
            let more = (bytes.len() as u64).saturating_mul(8).min(len);
            self.bounded(more)?;
            bytes = source.read(&self.store, 0..more)?;
        }
        // Without its first instruction a pickle is told by where it ends.
        let begins = matches!(&*bytes, [0x80, 0..=5, ..]);
        if (bytes.len() as u64) < len {
            self.bounded(len)?;
            bytes = source.read(&self.store, 0..len)?;
        }
        let found = scan(&bytes, &self.limits);
        let runs = found.globals.iter().any(|g| g.verdict == Verdict::RunsCode);
        if begins || found.pickles > 0 || runs {
            self.add(source, None, found);
        }
        Ok(())
    }

    fn add(&mut self, source: &Source, record: Option<&str>, found: Scan) {
        if let Some(why) = found.stopped.as_deref().filter(|_| found.pickles == 0) {
            self.not_scanned(source, record, &format!("no pickle that ends: {why}"));
        } else if found.stopped.is_some() {
            let why = format!("what follows byte {} is no pickle", found.end);
            self.not_scanned(source, record, &why);
        }
        self.out.pickles += found.pickles as u64;
        let all = found.globals.into_iter().map(|global| Global {
            file: source.file.to_string(),
            global: global.name.into(),
            verdict: global.verdict.name(),
            offset: global.offset,
            pickle: source.pickle(record),
        });
        self.out.globals.extend(all);
    }

    /// The pickles in an archive, whatever their names are.
    fn archive(&mut self, source: &Source) -> Result<(), String> {
        let tried = self.directory(source).and_then(|directory| {
            let mut records = directory.records();
            records.try_for_each(|record| self.record(source, record))
        });
        // Other programs look at records of which the directory says nothing, or that it contradicts.
        let Err(why) = tried else {
            return Ok(());
        };
        self.bounded(source.len())?;
        let all = source.read(&self.store, 0..source.len())?;
        for (name, found) in scan_records(&all, &self.limits) {
            self.add(source, Some(&name), found);
        }
        Err(format!("its records were searched for, because {why}"))
    }

    fn directory(&self, source: &Source) -> Result<Directory, String> {
        let len = source.len();
        let mut range = Tail::first_range(len);
        loop {
            self.bounded(range.end.saturating_sub(range.start))?;
            let tail = source.read(&self.store, range.clone())?;
            match Tail::parse(len, &tail).map_err(|e| e.to_string())? {
                Tail::Done(directory) => return Ok(directory),
                Tail::Need(more) if more.start < range.start => range = more,
                Tail::Need(_) => return Err("its directory lies outside of it".into()),
            }
        }
    }

    fn record(&mut self, source: &Source, record: &Record) -> Result<(), String> {
        if record.size == 0 || is_storage(&record.name) {
            return Ok(());
        }
        self.bounded(record.size.max(record.stored))?;
        let header = source.read(&self.store, record.header_range())?;
        let data = record.data_range(&header).map_err(|e| e.to_string())?;
        let stored = source.read(&self.store, data)?;
        let content = unpack(record, stored, self.max, Verify::No).map_err(|e| e.to_string())?;
        let is_named = [".pkl", ".pickle", ".p", "_pkl", ".joblib"]
            .iter()
            .any(|ending| record.name.ends_with(ending));
        if is_named || matches!(&*content, [0x80, 0..=5, ..]) {
            let found = scan(&content, &self.limits);
            self.add(source, Some(&record.name), found);
        }
        Ok(())
    }
}

/// Whether a record has the name that torch gives to the elements of tensors: `…/data/0`. No program unpickles one.
fn is_storage(name: &str) -> bool {
    let mut parts = name.rsplit('/');
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    parts.next().is_some_and(is_number) && matches!(parts.next(), Some("data" | "constants"))
}

/// Prints what was found, as JSON or as a table with a row for each global.
pub(crate) fn print(pickles: &Pickles, is_json: bool, io: &mut Io<'_>) -> Result<()> {
    if is_json {
        #[derive(Serialize)]
        struct Report<'a> {
            schema: u32,
            #[serde(flatten)]
            pickles: &'a Pickles,
        }
        let report = Report { schema: 1, pickles };
        return json::write(io.out, &report);
    }
    let mut by_name: BTreeMap<(&str, &str), BTreeSet<&str>> = BTreeMap::new();
    for global in &pickles.globals {
        let files = by_name.entry((global.verdict, &global.global)).or_default();
        files.insert(&global.file);
    }
    // The worst come first.
    let order = [Verdict::RunsCode, Verdict::Unknown, Verdict::Allowed].map(Verdict::name);
    let rows = || {
        let by_name = &by_name;
        order.into_iter().flat_map(move |verdict| {
            let of = by_name.iter().filter(move |((v, _), _)| *v == verdict);
            of.map(|((verdict, name), files)| {
                let first = files.first().copied().unwrap_or_default();
                let more = match files.len() {
                    0 | 1 => String::new(),
                    n => format!(" and {} more", units::count(n as u64 - 1)),
                };
                [
                    (*verdict).to_owned(),
                    (*name).to_owned(),
                    format!("{first}{more}"),
                ]
            })
        })
    };
    table::rows(io.out, ["VERDICT", "GLOBAL", "FILE"], rows)?;
    io.out.flush()?;
    if pickles.pickles == 0 {
        io.note("no whole pickle was found");
    }
    for line in &pickles.not_scanned {
        io.note(format!("not scanned: {line}"));
    }
    Ok(())
}

//! The check that commands make before they trust what they read, and what it finds.

use crate::{
    error::{DAMAGED, FAILED, OK, Result, worse},
    glob::Keys,
    io::{Io, keys_that},
    table::shown,
    units,
};
use reshard::{
    ShardedObject,
    blocking::{Checkpoint, TensorHandle},
    megatron::INTEGRITY,
    storage::{Name, Progress, StoreExt as _, wait},
    strategy::{CheckedItems, Damage, StorageInfo, VerifyReport},
};
use std::collections::{BTreeMap, BTreeSet};

/// One finding, in a line: key, place, and what is wrong.
pub(crate) fn line(d: &Damage) -> String {
    shown(&d.to_string()).into_owned()
}

/// So many of them are named.
const NAMED: usize = 3;

/// From so many keys on, findings that say the same of one file are one line.
const ALIKE: usize = 3;

/// The file, what is wrong, and the key of a finding about a key in a file.
fn of_file(d: &Damage) -> Option<(&str, &str, &str)> {
    Some((d.file.as_deref()?, &d.what, d.key.as_deref()?))
}

/// The lines for findings. Those that say the same of one file are told once, with the number of keys that they are about: a file that is missing
/// holds thousands of tensors.
pub(crate) fn lines(found: &[Damage]) -> Vec<String> {
    let mut keys: BTreeMap<(&str, &str), BTreeSet<&str>> = BTreeMap::new();
    for (file, what, key) in found.iter().filter_map(of_file) {
        keys.entry((file, what)).or_default().insert(key);
    }
    keys.retain(|_, keys| keys.len() >= ALIKE);
    let mut told = BTreeSet::new();
    let mut lines = Vec::new();
    for d in found {
        let alike =
            of_file(d).and_then(|(file, what, _)| Some((file, what, keys.get(&(file, what))?)));
        let Some((file, what, keys)) = alike else {
            lines.push(line(d));
            continue;
        };
        if told.insert((file, what)) {
            let count = units::some(keys.len() as u64, "key");
            let named = keys.iter().take(NAMED).copied().collect::<Vec<_>>();
            let such_as = if keys.len() > NAMED { ", such as" } else { ":" };
            let of = format!("{file}: {what}; {count}{such_as} {}", named.join(", "));
            lines.push(shown(&of).into_owned());
        }
    }
    lines
}

/// The same without its key.
pub(crate) fn below_key(d: &Damage) -> String {
    shown(&d.without_key()).into_owned()
}

/// Findings that are only counted.
pub(crate) fn more_findings(n: u64) -> String {
    format!("{} more that are not listed", units::count(n))
}

/// Checks with a bar. The chosen items have so many bytes.
pub(crate) fn check(
    checkpoint: &Checkpoint,
    items: &CheckedItems,
    bytes: u64,
    io: &Io<'_>,
) -> Result<VerifyReport> {
    if *items == CheckedItems::None {
        return Ok(checkpoint.verify(false, Progress::default())?);
    }
    let (bar, progress) = io.progress("checking", bytes);
    let report = checkpoint.verify_items(items, progress);
    bar.finish_and_clear();
    Ok(report?)
}

/// Checks everything, with a bar.
pub(crate) fn check_all(checkpoint: &Checkpoint, io: &Io<'_>) -> Result<VerifyReport> {
    check(checkpoint, &CheckedItems::All, stored_bytes(checkpoint), io)
}

/// What a check found about the chosen keys before their data are read.
#[derive(Debug, Default)]
pub(crate) struct Doubts {
    /// What is wrong with a key, and the exit code for it.
    pub(crate) keys: BTreeMap<String, (String, u8)>,
    /// Damage that concerns the whole checkpoint.
    pub(crate) whole: Vec<String>,
}

/// The items to check before tensors are read in blocks: the chunks of the tensors that `is_cut` into several. A tensor that is read as a whole is
/// checked by that. `integrity.json` has digests of whole files, so with it all items are checked.
pub(crate) fn items_before(
    checkpoint: &Checkpoint,
    keys: Keys<'_>,
    is_cut: impl Fn(&TensorHandle) -> bool,
) -> CheckedItems {
    if has_integrity(checkpoint) {
        return CheckedItems::All;
    }
    let tensors = checkpoint.metadata().tensors();
    let chosen = tensors
        .zip(checkpoint.tensors())
        .filter(|(t, handle)| keys.has(t.key()) && is_cut(handle));
    let chunks: BTreeSet<_> = chosen
        .flat_map(|(t, _)| t.chunks().map(|(id, _)| id).collect::<Vec<_>>())
        .collect();
    match chunks.is_empty() {
        true => CheckedItems::None,
        false => CheckedItems::Some {
            chunks,
            objects: BTreeSet::new(),
        },
    }
}

pub(crate) fn has_integrity(checkpoint: &Checkpoint) -> bool {
    let name = Name::new(INTEGRITY);
    name.is_ok_and(|name| wait(checkpoint.store().exists(&name)).unwrap_or(true))
}

impl Doubts {
    /// What opening has found, and what a check of these items finds. `None` checks nothing.
    pub(crate) fn of(
        checkpoint: &Checkpoint,
        items: Option<&CheckedItems>,
        keys: Keys<'_>,
        io: &Io<'_>,
    ) -> Result<Self> {
        let mut out = Self::default();
        let producer = checkpoint.producer();
        for (refused, word, code) in [
            (producer.damaged, "damaged", DAMAGED),
            (producer.unknown, "not understood", FAILED),
        ] {
            for (key, what) in refused.into_iter().filter(|(key, _)| keys.has(key)) {
                out.keys.insert(key, (format!("{word}: {what}"), code));
            }
        }
        if let Some(items) = items {
            let bytes = match items {
                CheckedItems::None => 0,
                _ => stored_bytes(checkpoint),
            };
            out.add(&check(checkpoint, items, bytes, io)?, keys);
        }
        Ok(out)
    }

    fn add(&mut self, report: &VerifyReport, keys: Keys<'_>) {
        // Common state that is not understood, or too large, is no obstacle to reading tensors.
        let codes = [DAMAGED, FAILED, FAILED, FAILED];
        for ((_, found, rest), code) in report.lists().into_iter().zip(codes) {
            let concerns = |d: &&Damage| d.key.as_ref().is_none_or(|k| keys.has(k));
            for d in found.iter().filter(concerns) {
                match &d.key {
                    Some(key) => {
                        let why = || (below_key(d), code);
                        self.keys.entry(key.clone()).or_insert_with(why);
                    }
                    None if code == DAMAGED => self.whole.push(line(d)),
                    None => {}
                }
            }
            for key in rest.keys.iter().filter(|key| keys.has(key)) {
                let why = || {
                    let what = format!("one of {} findings that are not listed", rest.findings);
                    (what, code)
                };
                self.keys.entry(key.clone()).or_insert_with(why);
            }
        }
    }

    /// Those that concern tensors: objects, and cells of arrays of objects, have no elements.
    pub(crate) fn of_tensors(mut self, checkpoint: &Checkpoint) -> Self {
        let metadata = checkpoint.metadata();
        self.keys.retain(|key, _| {
            metadata.object(key).is_none()
                && (metadata.tensor(key).is_some()
                    || ShardedObject::empty_from_unique_key(key).is_err())
        });
        self
    }

    /// The exit code for all of them.
    pub(crate) fn exit_code(&self) -> u8 {
        let whole = if self.whole.is_empty() { OK } else { DAMAGED };
        let codes = self.keys.values().map(|(_, code)| *code);
        codes.fold(whole, worse)
    }

    /// The first line of the damage, with its key.
    pub(crate) fn damage(&self) -> Option<String> {
        let mut of_keys = self.keys.iter().filter(|(_, (_, code))| *code == DAMAGED);
        let of_key = of_keys
            .next()
            .map(|(key, (what, _))| format!("{}: {what}", shown(key)));
        self.whole.first().cloned().or(of_key)
    }

    /// Notes the damage of the whole checkpoint.
    pub(crate) fn note_whole(&self, io: &mut Io<'_>) {
        let told = self.whole.iter().map(|what| format!("damaged: {what}"));
        io.notes(NAMED, told, |more| {
            format!("damaged: {}", more_findings(more))
        });
    }

    /// Notes all of them, those of keys as `left out`, or as listed in spite of them. Returns the exit code.
    pub(crate) fn note(&self, dir: &str, is_listed: impl Fn(&str) -> bool, io: &mut Io<'_>) -> u8 {
        self.note_whole(io);
        for this in [DAMAGED, FAILED] {
            for listed in [false, true] {
                let mut of = self
                    .keys
                    .iter()
                    .filter(|(key, (_, code))| *code == this && is_listed(key) == listed);
                let Some((first, (why, _))) = of.next() else {
                    continue;
                };
                let are = match this {
                    DAMAGED => "damaged",
                    _ if why.starts_with("not understood") => "not understood",
                    _ => "not read",
                };
                let what = keys_that(first, of.count(), are);
                let how = if listed { "listed" } else { "left out" };
                io.note(match this {
                    DAMAGED => format!(
                        "{how}: {what} ({}); `reshard verify {dir}` lists all damage",
                        shown(why)
                    ),
                    _ => format!("{how}: {what}; `reshard inspect {dir}` says why"),
                });
            }
        }
        self.exit_code()
    }
}

/// The places of all stored items.
pub(crate) fn stored_parts(checkpoint: &Checkpoint) -> impl Iterator<Item = StorageInfo> {
    let objects = checkpoint.objects();
    checkpoint
        .tensors()
        .flat_map(|t| t.chunks())
        .flat_map(|c| c.parts)
        .chain(objects.flat_map(|k| checkpoint.object_parts(k)))
}

/// Bytes of all stored items.
pub(crate) fn stored_bytes(checkpoint: &Checkpoint) -> u64 {
    units::sum(stored_parts(checkpoint).map(|p| p.length()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_names_its_key_and_its_place_once() {
        let found = |key: &str, file: Option<&str>, what: &str| {
            let damage = Damage::new(what).of_key(key);
            line(&match file {
                Some(file) => damage.in_file(file).at(7),
                None => damage,
            })
        };
        assert_eq!(
            found("w", None, "nothing was found"),
            "w: nothing was found"
        );
        assert_eq!(
            found("w", Some("__0_0.distcp"), "it is short"),
            "w: __0_0.distcp at byte 7: it is short"
        );
        // Letters of a message, and whole words of it, are no key, and no file.
        for name in ["t", "a", "can't", "it"] {
            let want = format!("{name}: it can't have a tail");
            assert_eq!(found(name, None, "it can't have a tail"), want);
            assert_eq!(
                found("w", Some(name), "it can't be"),
                format!("w: {name} at byte 7: it can't be")
            );
        }
    }

    #[test]
    fn what_is_said_of_many_keys_of_one_file_is_one_line() {
        let found = |key: &str, file: &str, offset: Option<u64>, what: &str| {
            Damage::new(what).of_key(key).in_file(file).at(offset)
        };
        let missing = |key, at| found(key, "a.distcp", Some(at), "its file is missing");
        let all = [
            missing("x", 0),
            found("y", "b.distcp", Some(7), "the checksum is wrong"),
            missing("y", 10),
            missing("x", 20),
            missing("z", 30),
        ];
        assert_eq!(
            lines(&all),
            [
                "a.distcp: its file is missing; 3 keys: x, y, z",
                "y: b.distcp at byte 7: the checksum is wrong"
            ]
        );
        let more: Vec<Damage> = ["d", "c", "b", "a"]
            .into_iter()
            .map(|key| missing(key, 0))
            .collect();
        assert_eq!(
            lines(&more),
            ["a.distcp: its file is missing; 4 keys, such as a, b, c"]
        );
        // Each chunk of a few tensors is told.
        assert_eq!(lines(&all[..4]).len(), 4);
    }
}

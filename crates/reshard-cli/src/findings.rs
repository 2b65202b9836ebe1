//! The check that commands make before they trust what they read, and what it finds.

use crate::{error::Result, glob::Keys, io::Io, table::shown, units};
use reshard::{
    blocking::Checkpoint,
    storage::Progress,
    strategy::{CheckedItems, Damage, VerifyReport},
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
    let bar = io.bar("checking", bytes);
    let told = bar.clone();
    let report = checkpoint.verify_items(items, Progress::new(move |n| told.inc(n)));
    bar.finish_and_clear();
    Ok(report?)
}

/// Checks everything, with a bar.
pub(crate) fn check_all(checkpoint: &Checkpoint, io: &Io<'_>) -> Result<VerifyReport> {
    check(checkpoint, &CheckedItems::All, stored_bytes(checkpoint), io)
}

/// Bytes of all stored items.
pub(crate) fn stored_bytes(checkpoint: &Checkpoint) -> u64 {
    let chunks = checkpoint
        .tensors()
        .flat_map(|t| t.chunks())
        .flat_map(|c| c.parts);
    let objects = checkpoint
        .objects()
        .flat_map(|k| checkpoint.object_parts(k));
    chunks
        .chain(objects)
        .map(|p| p.length())
        .fold(0, u64::saturating_add)
}

/// Findings that concern the chosen keys.
pub(crate) fn concerning<'d>(
    found: &'d [Damage],
    keys: Keys<'_>,
) -> impl Iterator<Item = &'d Damage> {
    found
        .iter()
        .filter(move |d| d.key.as_ref().is_none_or(|k| keys.has(k)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_names_its_key_and_its_place_once() {
        let found = |key: &str, file: Option<&str>, what: &str| {
            let file = file.map(Into::into);
            line(&Damage {
                key: Some(key.into()),
                offset: file.is_some().then_some(7),
                file,
                what: what.into(),
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
        let found = |key: &str, file: &str, offset, what: &str| Damage {
            key: Some(key.into()),
            file: Some(file.into()),
            offset,
            what: what.into(),
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

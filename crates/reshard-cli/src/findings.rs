//! The check that commands make before they trust what they read, and what it finds.

use crate::{error::Result, glob::Keys, io::Io, table::shown, units};
use reshard::{
    blocking::Checkpoint,
    storage::Progress,
    strategy::{Damage, VerifyReport},
};

/// One finding, in a line: key, place, and what is wrong.
pub(crate) fn line(d: &Damage) -> String {
    shown(&d.to_string()).into_owned()
}

/// The same without its key.
pub(crate) fn below_key(d: &Damage) -> String {
    shown(&d.without_key()).into_owned()
}

/// Findings that are only counted.
pub(crate) fn more_findings(n: u64) -> String {
    format!("{} more that are not listed", units::count(n))
}

/// Checks with a bar.
pub(crate) fn check(checkpoint: &Checkpoint, full: bool, io: &Io<'_>) -> Result<VerifyReport> {
    if !full {
        return Ok(checkpoint.verify(false, Progress::default())?);
    }
    let bar = io.bar("checking", stored_bytes(checkpoint));
    let told = bar.clone();
    let report = checkpoint.verify(true, Progress::new(move |n| told.inc(n)));
    bar.finish_and_clear();
    Ok(report?)
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
}

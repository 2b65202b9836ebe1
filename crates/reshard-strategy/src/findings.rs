//! What a check of a checkpoint finds. A small file may be wrong in a million places, each of which has a long key. So what is listed has
//! a bound, and the rest is counted.

use crate::{NotCovered, StrategyError, with_sources};
use reshard_model::ErrorKind;
use serde::{Deserialize, Serialize};
use std::{collections::BTreeSet, fmt};

/// One problem of a checkpoint, or one part that could not be confirmed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Damage {
    /// The key, if it is about a key.
    pub key: Option<String>,
    /// The file, if it is about a file.
    pub file: Option<String>,
    /// Where in it.
    pub offset: Option<u64>,
    /// What is wrong.
    pub what: String,
}

impl Damage {
    /// A finding about the whole checkpoint; [`of_key`](Self::of_key) and [`in_file`](Self::in_file) say more.
    pub fn new(what: impl Into<String>) -> Self {
        Self {
            key: None,
            file: None,
            offset: None,
            what: what.into(),
        }
    }

    /// Adds the key of the tensor or object.
    #[must_use]
    pub fn of_key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Adds the file.
    #[must_use]
    pub fn in_file(mut self, file: impl ToString) -> Self {
        self.file = Some(file.to_string());
        self
    }

    /// Adds the byte of the file at which the problem begins.
    #[must_use]
    pub fn at(mut self, offset: impl Into<Option<u64>>) -> Self {
        self.offset = offset.into();
        self
    }

    /// Makes it of an error. Key and location have their own fields, so `what` does not repeat them.
    pub fn of(key: Option<&str>, e: &StrategyError) -> Self {
        let (file, offset, what) = match e {
            StrategyError::Corrupt {
                file, offset, what, ..
            } => (Some(file.clone()), *offset, what.clone()),
            StrategyError::Object { what, .. } => (None, None, (*what).into()),
            e => (None, None, e.to_string()),
        };
        Self {
            key: key.map(Into::into),
            file,
            offset,
            what: with_sources(what, e),
        }
    }

    /// The text without the key, for a list that names the key elsewhere.
    pub fn without_key(&self) -> String {
        match (&self.file, self.offset) {
            (Some(file), Some(at)) => format!("{file} at byte {at}: {}", self.what),
            (Some(file), None) => format!("{file}: {}", self.what),
            _ => self.what.clone(),
        }
    }
}

/// Prints key, location and problem in one line.
impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(key) = &self.key {
            write!(f, "{key}: ")?;
        }
        f.write_str(&self.without_key())
    }
}

/// What a check of a checkpoint found.
///
/// Each list ends when it takes 16 MiB. Findings after that are in [`unlisted`](Self::unlisted). So a list with findings is never empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerifyReport {
    /// What is wrong. The checkpoint is sound if this, the next three lists and `incomplete` are empty.
    pub damage: Vec<Damage>,
    /// What could not be checked, because of I/O.
    pub unchecked: Vec<Damage>,
    /// Items that this version does not understand. They may be sound.
    #[serde(default)]
    pub not_understood: Vec<Damage>,
    /// Items that exceed the [`ReadLimits`](crate::ReadLimits). They may be sound.
    #[serde(default)]
    pub not_read: Vec<Damage>,
    /// Parts of the checkpoint that are not there, although what is there is sound: the files of some ranks.
    #[serde(default)]
    pub incomplete: Vec<Damage>,
    /// Files of metadata that another program has saved since, with other data files. This is no damage.
    #[serde(default)]
    pub changed: Vec<Damage>,
    /// Stored items that were looked at.
    pub items: u64,
    /// Bytes that were read.
    pub bytes: u64,
    /// Items that were read and have no checksum, neither of their own nor in their encoding: their bytes may be any. Only a full check
    /// counts them.
    #[serde(default)]
    pub without_checksum: u64,
    /// Bytes that nobody can confirm. Only a full check looks for them.
    #[serde(default)]
    pub not_covered: NotCovered,
    /// Findings that are only counted.
    #[serde(default)]
    pub unlisted: Unlisted,
}

/// A line for each finding that is listed, and one that sums up: `sound: 12 items, 4096 bytes`.
impl fmt::Display for VerifyReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut counts = Vec::new();
        for (verdict, listed, rest) in self.lists() {
            for found in listed {
                writeln!(f, "{verdict}: {found}")?;
            }
            match listed.len() as u64 + rest.findings {
                0 => {}
                n => counts.push(format!("{n} {verdict}")),
            }
        }
        for found in &self.incomplete {
            writeln!(f, "incomplete: {found}")?;
        }
        if !self.incomplete.is_empty() {
            counts.push("incomplete".into());
        }
        for found in &self.changed {
            writeln!(f, "changed: {found}")?;
        }
        let verdict = match (counts.is_empty(), self.changed.is_empty()) {
            (true, true) => "sound".into(),
            (true, false) => "changed".into(),
            (false, _) => counts.join(", "),
        };
        write!(f, "{verdict}: {} items, {} bytes", self.items, self.bytes)?;
        if self.without_checksum > 0 {
            write!(f, ", {} of them without a checksum", self.without_checksum)?;
        }
        for (why, (bytes, _)) in self.not_covered.by_reason() {
            write!(f, "; not covered: {bytes} bytes {why}")?;
        }
        Ok(())
    }
}

/// The findings of a [`VerifyReport`] that are only counted, because its lists are full.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Unlisted {
    /// Of what is wrong.
    pub damage: Rest,
    /// Of what could not be checked.
    pub unchecked: Rest,
    /// Of what is not understood.
    pub not_understood: Rest,
    /// Of what exceeds the limits.
    pub not_read: Rest,
}

/// The rest of one list of findings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Rest {
    /// How many there are.
    pub findings: u64,
    /// The keys that they are about.
    pub keys: BTreeSet<String>,
    /// Whether some are about the whole checkpoint.
    pub whole: bool,
    /// Bytes that the list before them takes.
    pub listed: u64,
}

impl Rest {
    /// Counts a finding about a key, or about the whole checkpoint.
    pub fn count(&mut self, key: Option<&str>) {
        self.findings += 1;
        match key {
            None => self.whole = true,
            Some(key) if self.keys.contains(key) => {}
            Some(key) => drop(self.keys.insert(key.into())),
        }
    }
}

/// The most bytes of a list of findings, except that the last of them may reach beyond.
const LISTED: u64 = 16 << 20;

impl VerifyReport {
    /// Adds a finding to the list for errors of this kind. If the list is full, the finding is counted.
    pub fn add(&mut self, kind: ErrorKind, found: Damage) {
        if self.is_full(kind) {
            return self.rest(kind).count(found.key.as_deref());
        }
        self.rest(kind).listed += found.takes();
        match kind {
            ErrorKind::Unavailable => self.unchecked.push(found),
            ErrorKind::Unsupported => self.not_understood.push(found),
            ErrorKind::Limit => self.not_read.push(found),
            _ => self.damage.push(found),
        }
    }

    /// Adds an error about a key, or about the whole checkpoint.
    pub fn add_error(&mut self, key: Option<&str>, e: &StrategyError) {
        self.add(e.kind(), Damage::of(key, e));
    }

    /// Whether the list for errors of this kind is full. Then you need not make a finding: [`Rest::count`] counts it.
    pub fn is_full(&mut self, kind: ErrorKind) -> bool {
        self.rest(kind).listed >= LISTED
    }

    /// The lists of findings without which the checkpoint is sound, the worst first: the word for it, the findings, and those that are only
    /// counted.
    pub fn lists(&self) -> [(&'static str, &Vec<Damage>, &Rest); 4] {
        let (more, not_understood) = (&self.unlisted, &self.not_understood);
        [
            ("damaged", &self.damage, &more.damage),
            ("unchecked", &self.unchecked, &more.unchecked),
            ("not understood", not_understood, &more.not_understood),
            ("not read", &self.not_read, &more.not_read),
        ]
    }

    /// What is counted of errors of this kind.
    pub fn rest(&mut self, kind: ErrorKind) -> &mut Rest {
        let Unlisted {
            damage,
            unchecked,
            not_understood,
            not_read,
        } = &mut self.unlisted;
        match kind {
            ErrorKind::Unavailable => unchecked,
            ErrorKind::Unsupported => not_understood,
            ErrorKind::Limit => not_read,
            _ => damage,
        }
    }
}

impl Damage {
    /// Bytes of memory that it takes.
    fn takes(&self) -> u64 {
        let texts = [self.key.as_ref(), self.file.as_ref(), Some(&self.what)];
        let texts = texts.into_iter().flatten().map(String::len);
        (size_of::<Self>() + texts.sum::<usize>()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(key: &str, text: usize) -> Damage {
        Damage::new("x".repeat(text)).of_key(key)
    }

    #[test]
    fn a_report_tells_what_is_wrong_and_how_much_was_checked() {
        let mut report = VerifyReport {
            items: 3,
            bytes: 40,
            ..VerifyReport::default()
        };
        assert_eq!(report.to_string(), "sound: 3 items, 40 bytes");
        report.not_covered.add("f", crate::Uncovered::Between, 5);
        assert_eq!(
            report.to_string(),
            "sound: 3 items, 40 bytes; not covered: 5 bytes between items"
        );
        report.not_covered = NotCovered::default();
        report.without_checksum = 2;
        report.add(ErrorKind::Corrupt, found("a", 1));
        report.add(ErrorKind::Limit, found("b", 2));
        assert_eq!(
            report.to_string(),
            "damaged: a: x\nnot read: b: xx\n1 damaged, 1 not read: 3 items, 40 bytes, 2 of them without a checksum"
        );
    }

    #[test]
    fn a_list_ends_when_it_is_full_and_the_rest_is_counted_by_its_keys() {
        let mut report = VerifyReport::default();
        for n in 0..100 {
            report.add(ErrorKind::Corrupt, found(&format!("k{}", n / 10), 1 << 20));
        }
        // The sixteenth fills it, with the bytes around the texts.
        assert_eq!(report.damage.len(), 16);
        let rest = &report.unlisted.damage;
        assert_eq!((rest.findings, rest.whole), (84, false));
        let keys: Vec<&str> = rest.keys.iter().map(String::as_str).collect();
        assert_eq!(keys, ["k1", "k2", "k3", "k4", "k5", "k6", "k7", "k8", "k9"]);

        // Damage never takes the place of what could not be checked, and the other way round.
        report.add(ErrorKind::Limit, found("k", 1));
        assert_eq!(report.not_read.len(), 1);
        let whole = Damage {
            key: None,
            ..found("", 1)
        };
        report.add(ErrorKind::Corrupt, whole);
        let rest = &report.unlisted.damage;
        assert_eq!((rest.findings, rest.whole, rest.keys.len()), (85, true, 9));
    }
}

//! The bytes of an archive that no checksum covers: fields of its headers, and paddings.

use super::{
    Directory, Method, Record,
    layout::{Part, RECORDS, local_zip64_len, put_central_header, put_end, put_local_header},
};
use crate::{Error, Result};

/// What of an archive can't be confirmed: another program may give these bytes any values, so nobody knows whether they have changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unconfirmed {
    /// Bytes of headers and paddings.
    pub framing: u64,
    /// Bytes of packed records. Only what they unpack to has a checksum.
    pub packed: u64,
    /// Bytes of records without a checksum.
    pub unsummed: u64,
}

/// Compares the headers of an archive, and the paddings in them, with what `torch.save` writes: all its versions write the same. No checksum
/// covers these bytes, and a program that loads the archive looks at few of them.
///
/// If most parts of an archive are as `torch.save` writes them, another part is damaged. If not, another program has written the
/// archive. Then what has no meaning for a reader is counted.
#[derive(Debug, Default)]
pub struct Framing {
    /// Parts that are as torch writes them.
    like: u64,
    /// Other parts.
    unlike: u64,
    /// The first of them.
    first: Option<Error>,
    unconfirmed: Unconfirmed,
}

/// Bytes of a local header that say nothing to a reader: version, flags, time and date.
const FREE_LOCAL: u64 = 2 + 2 + 4;

/// Bytes of an entry of the directory that say something: signature, method, checksum, sizes, three lengths, disk and position.
const MEANT: u64 = 4 + 2 + 4 + 8 + 6 + 2 + 4;

/// Bytes of the end record.
const END: u64 = 22;

impl Framing {
    /// Begins with the directory and what is behind it. The archive has `len` bytes, and these are those from
    /// [`Directory::offset`] on.
    pub fn new(directory: &Directory, len: u64, tail: &[u8]) -> Self {
        let mut frame = Self::default();
        let (from, behind) = (directory.offset(), directory.behind);
        let at = |position: u64| usize::try_from(position.checked_sub(from)?).ok();
        let part = |from: u64, to: u64| tail.get(at(from)?..at(to)?);
        let ends = directory.records().skip(1).map(|record| record.entry);
        for (record, end) in directory.records().zip(ends.chain([behind])) {
            frame.entry(record, part(record.entry, end).unwrap_or_default());
        }
        let count = directory.records().len() as u64;
        let mut expected = Vec::new();
        put_end(&mut expected, count, from, behind - from);
        let found = part(behind, len).unwrap_or_default();
        let free = (found.len() as u64).saturating_sub(END);
        // Who adds a record or a comment writes the end anew.
        let is_new =
            has_comment(found) || directory.records().any(|r| !is_written_by_torch(&r.name));
        match found != expected && is_new {
            true => frame.unconfirmed.framing += free,
            false => frame.part(found == expected, free, || {
                Error::archive(behind, format!("what follows the directory {OTHERWISE}"))
            }),
        }
        // Nothing lies before the first record.
        let first = directory.records().map(|r| r.header).min().unwrap_or(0);
        if first > 0 {
            let what = format!("the {first} bytes before its first record belong to none");
            frame.part(false, first, || Error::archive(0, what));
        }
        frame
    }

    /// Compares the entry of a record.
    fn entry(&mut self, record: &Record, entry: &[u8]) {
        let part = Part::of(&record.name, record.size, record.header, 0);
        let crc = if record.size == 0 { 0 } else { record.crc32 };
        let mut expected = Vec::with_capacity(entry.len());
        put_central_header(&mut expected, &part, crc);
        let same = record.method == Method::Stored && entry == expected;
        let free = (entry.len() as u64).saturating_sub(MEANT + record.name.len() as u64);
        self.of_record((record, same), free, &part, || {
            let name = &record.name;
            let what = format!("the directory's entry of {name:?} {OTHERWISE}");
            Error::archive(record.entry, what)
        });
    }

    /// Continues with the header of a record: all bytes from [`Record::header`] to its data.
    pub fn header(&mut self, record: &Record, header: &[u8]) {
        let (name, len) = (record.name.len() as u64, header.len() as u64);
        if record.method != Method::Stored {
            self.unconfirmed.packed += record.stored;
        } else if record.checksum().is_none() {
            self.unconfirmed.unsummed += record.stored;
        }
        let extra = len.saturating_sub(30 + name);
        let data = record.header + len;
        let part = Part::of(&record.name, record.size, record.header, data);
        let has_room = extra >= local_zip64_len(record.header, record.size) + 4;
        let same = has_room && record.method == Method::Stored && {
            let mut expected = Vec::with_capacity(header.len());
            put_local_header(&mut expected, &part);
            expected == header
        };
        self.of_record((record, same), FREE_LOCAL + extra, &part, || {
            let what = format!("the header of {:?} {OTHERWISE}", record.name);
            Error::archive(record.header, what)
        });
    }

    fn of_record(
        &mut self,
        (record, same): (&Record, bool),
        free: u64,
        part: &Part,
        error: impl FnOnce() -> Error,
    ) {
        // No archive was seen that says what all versions of torch put into the fields of records that need zip64. A record that torch does not
        // write was added by another program: `Record::data_range` has checked that both headers give it this name.
        let is_open = part.zip64() || !is_written_by_torch(&record.name);
        match !same && is_open {
            true => self.unconfirmed.framing += free,
            false => self.part(same, free, error),
        }
    }

    fn part(&mut self, same: bool, free: u64, error: impl FnOnce() -> Error) {
        if same {
            self.like += 1;
            return;
        }
        self.unlike += 1;
        self.unconfirmed.framing += free;
        self.first.get_or_insert_with(error);
    }

    /// What can't be confirmed. Call it after all headers.
    ///
    /// # Errors
    /// [`Error::Archive`]: `torch.save` has written the archive, and something in it is otherwise now.
    pub fn finish(self) -> Result<Unconfirmed> {
        match self.first {
            Some(e) if self.like > self.unlike => Err(e),
            _ => Ok(self.unconfirmed),
        }
    }
}

/// Whether an end record stands alone, with a comment.
fn has_comment(end: &[u8]) -> bool {
    let length = end.get(20..22).and_then(|at| at.first_chunk());
    let length = length.map_or(0, |length| usize::from(u16::from_le_bytes(*length)));
    end.starts_with(b"PK\x05\x06") && length > 0 && end.len() == END as usize + length
}

/// Whether a record, with the folder in its name, has a name that `torch.save` gives.
fn is_written_by_torch(name: &str) -> bool {
    let inner = name.split_once('/').map_or(name, |(_, inner)| inner);
    let is_number = |key: &str| key.bytes().all(|b| b.is_ascii_digit());
    RECORDS.contains(&inner) || inner.strip_prefix("data/").is_some_and(is_number)
}

const OTHERWISE: &str =
    "is not what torch.save writes, as all else in the archive is: a byte has changed";

#[cfg(test)]
mod tests {
    use crate::{
        Error, Limits,
        archive::{Archive, ArchiveOptions, Era, Unconfirmed, write_archive},
    };

    fn written(era: Era) -> Vec<u8> {
        let options = ArchiveOptions::default().with_era(era);
        write_archive(b"\x80\x02N.", &[&[7; 100], &[], &[1, 2]], &options).unwrap()
    }

    fn checked(bytes: &[u8]) -> Result<Unconfirmed, Error> {
        let archive = Archive::open(bytes.to_vec().into(), &Limits::default())?;
        archive.check_records(|_| Ok(()))?;
        archive.check_framing()
    }

    #[test]
    fn every_changed_byte_of_an_archive_is_found() {
        for era in [Era::Torch21, Era::Torch27] {
            let sound = written(era);
            assert_eq!(checked(&sound).unwrap(), Unconfirmed::default());
            for at in 0..sound.len() {
                for bit in 0..8 {
                    let mut bytes = sound.clone();
                    bytes[at] ^= 1 << bit;
                    assert!(checked(&bytes).is_err(), "byte {at}, bit {bit}, {era:?}");
                }
            }
        }
    }

    #[test]
    fn what_other_programs_put_into_headers_is_counted() {
        // Each record has a time, in both of its headers.
        let mut bytes = written(Era::Torch27);
        let mut records = 0;
        for at in 0..bytes.len() - 4 {
            match &bytes[at..at + 4] {
                b"PK\x03\x04" => bytes[at + 10] = 9,
                b"PK\x01\x02" => {
                    bytes[at + 12] = 9;
                    records += 1;
                }
                _ => {}
            }
        }
        let found = checked(&bytes).unwrap();
        assert!(found.framing >= records * (8 + 16), "{found:?}");
        assert_eq!(found.packed, 0);
    }

    #[test]
    fn a_record_that_another_program_has_added_is_counted() {
        let bytes = include_bytes!("../../tests/data/added_record.pt");
        let found = checked(bytes).unwrap();
        assert!(found.framing > 0, "{found:?}");
    }

    #[test]
    fn the_part_that_has_changed_is_named() {
        let mut bytes = written(Era::Torch27);
        let at = bytes.windows(2).position(|w| w == b"ZZ").unwrap();
        bytes[at] = b'z';
        let said = checked(&bytes).unwrap_err().to_string();
        assert!(
            said.contains(r#"the header of "archive/data.pkl" is not what torch.save writes"#),
            "{said}"
        );
    }
}

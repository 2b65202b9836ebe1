//! Archives of one form: comparing their ends gives what reading them gives.

use proptest::prelude::*;
use reshard_model::DType;
use reshard_torch_format::{
    TensorRef,
    archive::{ArchiveOptions, Era, Form, Record, Tail, Verify, unpack, write_archive},
};
use std::ops::Range;

const END: usize = 1024;

/// What the ends of an archive say of its one tensor.
#[derive(Debug, PartialEq)]
struct Said {
    tensor: TensorRef,
    order: Option<Vec<u8>>,
    storage: Range<u64>,
    crc32: u32,
}

/// Reads the ends as a reader of parts does. `None` when something is wrong, or when they are not enough.
fn read(archive: &[u8]) -> Option<(Said, Option<Form>)> {
    let len = archive.len() as u64;
    let (first, last) = ends(archive);
    let Ok(Tail::Done(directory)) = Tail::parse(len, last) else {
        return None;
    };
    let at = |r: Range<u64>| match (
        first.get(r.start as usize..r.end as usize),
        len - last.len() as u64,
    ) {
        (None, start) if r.start >= start => {
            last.get((r.start - start) as usize..(r.end - start) as usize)
        }
        (found, _) => found,
    };
    let find = |r: &Record| {
        let data = r.data_range(at(r.header_range())?).ok()?;
        r.confirm(&data, at(r.behind(&data))?).ok()?;
        Some(data)
    };
    let content = |r: &Record| {
        let stored = bytes::Bytes::copy_from_slice(at(find(r)?)?);
        unpack(r, stored, 1 << 20, Verify::Crc).ok()
    };
    let mut described = vec![directory.find("data.pkl")?];
    let tensor = TensorRef::parse(&content(described[0])?, &Default::default()).ok()?;
    let order = match directory.find("byteorder") {
        None => None,
        Some(r) => {
            described.push(r);
            Some(content(r)?.to_vec())
        }
    };
    let record = directory.find(&tensor.storage.record())?;
    let storage = find(record)?;
    let form = Form::new(
        len,
        (first, last),
        &directory,
        &described,
        (record, &storage),
    );
    Some((
        Said {
            tensor,
            order,
            storage,
            crc32: record.crc32,
        },
        form,
    ))
}

fn ends(archive: &[u8]) -> (&[u8], &[u8]) {
    (&archive[..END], &archive[archive.len() - END..])
}

fn matches(form: &Form, archive: &[u8]) -> Option<u32> {
    let (first, last) = ends(archive);
    form.matches(archive.len() as u64, first, last)
}

/// A tensor of 1,000 float32 or of 2,000 float16.
fn archive(half: bool, old: bool, fill: u8) -> Vec<u8> {
    let (dtype, n) = if half {
        (DType::Float16, 2000)
    } else {
        (DType::Float32, 1000)
    };
    let tensor = TensorRef::contiguous(dtype, &[n]).unwrap();
    let era = if old { Era::Torch21 } else { Era::Torch27 };
    let options = ArchiveOptions::default().with_era(era);
    write_archive(&tensor.pickle().unwrap(), &[&[fill; 4000]], &options).unwrap()
}

#[test]
fn an_archive_with_other_elements_has_the_same_form() {
    for (half, old) in [(false, false), (true, false), (false, true)] {
        let (said, form) = read(&archive(half, old, 1)).unwrap();
        let form = form.unwrap();
        assert_eq!(form.storage(), &said.storage);
        let other = archive(half, old, 2);
        let (of_other, _) = read(&other).unwrap();
        assert_ne!(of_other.crc32, said.crc32);
        assert_eq!(matches(&form, &other), Some(of_other.crc32));
        assert_eq!(matches(&form, &archive(!half, old, 1)), None);
        assert_eq!(matches(&form, &archive(half, !old, 1)), None);
    }
}

#[test]
fn a_checksum_that_the_archive_contradicts_is_no_match() {
    let mut bytes = archive(false, false, 1);
    let form = read(&bytes).unwrap().1.unwrap();
    let behind = form.storage().end as usize + 4;
    bytes[behind] ^= 1;
    assert_eq!(matches(&form, &bytes), None);
}

#[test]
fn every_byte_of_the_descriptor_behind_the_storage_counts() {
    for old in [false, true] {
        let bytes = archive(false, old, 1);
        let form = read(&bytes).unwrap().1.unwrap();
        let behind = form.storage().end as usize;
        for at in behind..behind + 16 {
            let mut bytes = bytes.clone();
            bytes[at] ^= 1;
            assert_eq!(
                (matches(&form, &bytes), read(&bytes)),
                (None, None),
                "byte {} of it",
                at - behind
            );
        }
    }
}

#[test]
fn an_archive_that_does_not_end_with_its_directory_has_no_form() {
    let mut bytes = archive(false, false, 1);
    bytes.extend_from_slice(b"more");
    assert_eq!(
        read(&bytes).map(|(said, form)| (said.storage, form)),
        Some((704..4704, None))
    );
}

type Changes = Vec<(prop::sample::Index, u8)>;

fn change(bytes: &mut [u8], changes: &Changes) {
    // In the ends, where it matters.
    let n = bytes.len();
    for (at, value) in changes {
        let at = at.index(2 * END);
        bytes[if at < END { at } else { n - 2 * END + at }] = *value;
    }
}

fn changes() -> impl Strategy<Value = Changes> {
    prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3)
}

proptest! {
    #![proptest_config(reshard_model::testkit::law(4000))]

    #[test]
    fn what_a_form_matches_says_what_reading_says(
        half: bool, old: bool, damage in changes(), more in changes(), fill: u8,
    ) {
        let mut one = archive(half, old, 1);
        change(&mut one, &damage);
        let mut other = archive(half, old, fill);
        change(&mut other, &damage);
        change(&mut other, &more);
        let Some((said, Some(form))) = read(&one) else { return Ok(()) };
        prop_assert_eq!(matches(&form, &one), Some(said.crc32));
        if let Some(crc32) = matches(&form, &other) {
            let again = read(&other).map(|(said, _)| said);
            prop_assert_eq!(again, Some(Said { crc32, ..said }));
        }
    }

    #[test]
    fn any_ends_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..1500), cut in any::<prop::sample::Index>(), len: u64) {
        let form = read(&archive(false, false, 1)).unwrap().1.unwrap();
        let (first, last) = bytes.split_at(cut.index(bytes.len() + 1));
        prop_assert_eq!(form.matches(len, first, last), None);
    }
}

//! Archives: against torch's own bytes, against the `zip` crate, in every accepted form, and damaged at every byte.

use crate::samples::{folder, sample};
use bytes::Bytes;
use crc32fast::Hasher;
use proptest::prelude::*;
use reshard_model::{DType, ErrorKind, Tensor, Value};
use reshard_torch_format::{
    Error, Limits, LoadOptions, TensorRef,
    archive::{
        Archive, ArchiveLayout, ArchiveOptions, ByteOrder, Era, Record, Tail, Verify, write_archive,
    },
    load, load_with, save,
};
use std::io::{Cursor, Read, Write};
use zip::{CompressionMethod, ZipArchive, ZipWriter, write::SimpleFileOptions};

/// CRC-32 of so many zeros, by doubling.
fn crc_of_zeros(n: u64) -> u32 {
    let (mut sum, mut part) = (Hasher::new(), Hasher::new());
    part.update(&[0]);
    for bit in 0..40 {
        if n >> bit & 1 == 1 {
            sum.combine(&part);
        }
        let same = part.clone();
        part.combine(&same);
    }
    sum.finalize()
}

#[test]
fn beyond_4_gib_the_bytes_are_torchs_too() {
    const BIG: u64 = 1 << 32;
    for sizes in [
        &[BIG - 2][..],
        &[BIG - 1],
        &[BIG + 100],
        &[BIG + 100, 8, 0],
        &[8, BIG + 100, BIG - 1],
    ] {
        let name = sizes
            .iter()
            .map(u64::to_string)
            .collect::<Vec<_>>()
            .join("_");
        let read =
            |ext: &str| std::fs::read(folder("zip64").join(format!("{name}.{ext}"))).unwrap();
        let (head, tail) = (read("head"), read("tail"));
        // The pickle stands in the head, behind a header of 64-byte alignment.
        let data =
            30 + "archive/data.pkl".len() + usize::from(u16::from_le_bytes([head[28], head[29]]));
        let end = head.windows(4).position(|w| w == b"PK\x07\x08").unwrap();
        let layout =
            ArchiveLayout::new(&head[data..end], sizes, &ArchiveOptions::default()).unwrap();
        assert_eq!(
            layout.len().to_string(),
            String::from_utf8(read("len")).unwrap().trim(),
            "{name}"
        );
        assert!(layout.head() == head, "{name}");
        let crcs: Vec<u32> = sizes
            .iter()
            .map(|&n| if n == 0 { 0 } else { crc_of_zeros(n) })
            .collect();
        assert!(layout.finish(&crcs).unwrap() == tail, "{name}");
        let Tail::Done(directory) =
            Tail::parse(layout.len(), &tail[sizes.last().map_or(0, |_| 0)..]).unwrap()
        else {
            panic!("{name}: the directory lies in the tail")
        };
        for (i, &size) in sizes.iter().enumerate() {
            let record = directory.get(&format!("data/{i}")).unwrap();
            assert_eq!((record.size, record.crc32), (size, crcs[i]), "{name}");
            let header = if i == 0 {
                head[head.len() - (layout.storage(0).start - record.header) as usize..].to_vec()
            } else {
                let gap = layout.gap(i - 1, crcs[i - 1]);
                gap[(record.header - layout.storage(i - 1).end) as usize..].to_vec()
            };
            assert_eq!(
                record.data_range(&header).unwrap(),
                layout.storage(i),
                "{name}"
            );
        }
    }
}

fn options() -> impl Strategy<Value = ArchiveOptions> {
    ("[a-z]{1,70}", any::<bool>()).prop_map(|(prefix, old)| {
        let era = if old { Era::Torch21 } else { Era::Torch27 };
        ArchiveOptions::default().with_prefix(prefix).with_era(era)
    })
}

/// Reads an archive as from a remote place: its end, then what is needed. Gives the number of requests for the directory.
fn read_in_ranges(file: &[u8], first: u64, name: &str) -> Result<(Vec<u8>, usize), Error> {
    let fetch = |r: std::ops::Range<u64>| &file[r.start as usize..r.end as usize];
    let len = file.len() as u64;
    let mut range = len.saturating_sub(first)..len;
    let mut requests = 1;
    let directory = loop {
        match Tail::parse(len, fetch(range.clone()))? {
            Tail::Done(directory) => break directory,
            Tail::Need(more) => {
                assert!(more.start < range.start && more.end == len);
                range = more;
                requests += 1;
            }
        }
    };
    let record: &Record = directory.get(name)?;
    let data = record.data_range(fetch(record.header_range()))?;
    Ok((fetch(data).to_vec(), requests))
}

proptest! {
    #![proptest_config(reshard_model::testkit::law(256))]
    #[test]
    fn what_is_laid_out_is_read_back_by_us_and_by_the_zip_crate(
        pickle in prop::collection::vec(any::<u8>(), 0..300),
        storages in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 0..20),
        options in options(), first in 1u64..5000,
    ) {
        let parts: Vec<&[u8]> = storages.iter().map(Vec::as_slice).collect();
        let file = write_archive(&pickle, &parts, &options).unwrap();
        let lens: Vec<u64> = parts.iter().map(|s| s.len() as u64).collect();
        let layout = ArchiveLayout::new(&pickle, &lens, &options).unwrap();
        prop_assert_eq!(file.len() as u64, layout.len());
        prop_assert!(file.starts_with(layout.head()));
        let archive = Archive::open(file.clone().into(), &Limits::default()).unwrap();
        prop_assert_eq!(archive.directory().prefix(), &*options.prefix);
        prop_assert_eq!(archive.read("data.pkl", Verify::Crc).unwrap(), &pickle);
        prop_assert_eq!(archive.byte_order().unwrap(), ByteOrder::Little);
        // The zip crate does not find the end record of some archives, where the windows that it looks through meet.
        let mut zip = ZipArchive::new(Cursor::new(&file)).ok();
        for (i, s) in storages.iter().enumerate() {
            let at = layout.storage(i);
            prop_assert_eq!(&file[at.start as usize..at.end as usize], &s[..]);
            prop_assert_eq!(at.start % 64, 0);
            prop_assert_eq!(&archive.read(&format!("data/{i}"), Verify::Crc).unwrap(), s);
            if let Some(zip) = &mut zip {
                let mut content = Vec::new();
                zip.by_name(&format!("{}/data/{i}", options.prefix)).unwrap().read_to_end(&mut content).unwrap();
                prop_assert_eq!(&content, s);
            }
            let (data, requests) = read_in_ranges(&file, first, &format!("data/{i}")).unwrap();
            prop_assert_eq!(&data, s);
            prop_assert!(requests <= 4);
        }
    }
}

#[test]
fn the_zip_crate_reads_usual_archives() {
    for era in [Era::Torch21, Era::Torch27] {
        for n in 0..30 {
            let parts: Vec<Vec<u8>> = (0..n).map(|i| vec![i; usize::from(i) * 7]).collect();
            let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
            let file =
                write_archive(b"N.", &parts, &ArchiveOptions::default().with_era(era)).unwrap();
            let mut zip = ZipArchive::new(Cursor::new(&file)).unwrap();
            assert_eq!(
                zip.len(),
                usize::from(n) + if era == Era::Torch27 { 6 } else { 4 }
            );
            for i in 0..zip.len() {
                std::io::copy(&mut zip.by_index(i).unwrap(), &mut std::io::sink()).unwrap();
            }
        }
    }
}

/// An ordinary zip of these records.
fn zip(records: &[(&str, &[u8])], method: CompressionMethod) -> Vec<u8> {
    let mut w = ZipWriter::new(Cursor::new(Vec::new()));
    for (name, data) in records {
        w.start_file(
            *name,
            SimpleFileOptions::default().compression_method(method),
        )
        .unwrap();
        w.write_all(data).unwrap();
    }
    w.finish().unwrap().into_inner()
}

fn ones() -> (Vec<u8>, Vec<u8>) {
    let t = TensorRef::contiguous(DType::Float32, &[50]).unwrap();
    (t.pickle().unwrap(), [1f32.to_le_bytes(); 50].concat())
}

#[test]
fn whatever_pytorchs_reader_accepts_is_read() {
    let (pickle, data) = ones();
    let want = Value::Tensor(Tensor::from_vec(&[50], vec![1f32; 50]).unwrap());
    let minimal = [
        ("p/data.pkl", &pickle[..]),
        ("p/data/0", &data),
        ("p/version", b"3\n"),
    ];
    let reversed = [
        ("x/version", &b"10"[..]),
        ("x/data/0", &data),
        ("x/data.pkl", &pickle),
    ];
    let dotted = [
        ("p/data.pkl", &pickle[..]),
        ("p/data/0", &data),
        ("p/.data/version", b"1"),
    ];
    for records in [minimal, reversed, dotted] {
        for method in [CompressionMethod::Stored, CompressionMethod::Deflated] {
            let mut file = zip(&records, method);
            assert_eq!(load(file.clone().into()).unwrap(), want);
            file.extend([b'!'; 100]);
            assert_eq!(
                load(file.clone().into()).unwrap(),
                want,
                "bytes behind the end"
            );
            file.insert(0, b'!');
            assert!(load(file.into()).is_err(), "bytes before the start");
        }
    }
    let swapped: Vec<u8> = data
        .chunks(4)
        .flat_map(|c| c.iter().rev().copied().collect::<Vec<_>>())
        .collect();
    let big = [
        minimal[0],
        ("p/data/0", &swapped[..]),
        minimal[2],
        ("p/byteorder", b"big"),
    ];
    assert_eq!(
        load(zip(&big, CompressionMethod::Stored).into()).unwrap(),
        want,
        "big-endian"
    );
}

#[test]
fn a_storage_without_a_tensor_is_read_unless_its_bytes_had_to_change() {
    let text = |t: &str| [&b"X"[..], &(t.len() as u32).to_le_bytes(), t.as_bytes()].concat();
    let read = |class: &str, bytes: usize, order: &[u8], view: &[u8]| {
        let class = format!("ctorch\n{class}\n").into_bytes();
        let pickle = [
            b"\x80\x02(".to_vec(),
            text("storage"),
            class,
            text("0"),
            text("cpu"),
            b"K\x02".to_vec(),
        ];
        let pickle = [&pickle.concat()[..], view, b"tQ."].concat();
        let storage = vec![1; bytes];
        let records = [
            ("p/data.pkl", &pickle[..]),
            ("p/data/0", &storage),
            ("p/version", b"3"),
            ("p/byteorder", order),
        ];
        load(zip(&records, CompressionMethod::Stored).into())
    };
    let view = |first: u8| [&b"("[..], &text("v"), &[b'K', first, b'K', 1, b't']].concat();
    for (class, bytes) in [
        ("CharStorage", 2),
        ("ShortStorage", 4),
        ("FloatStorage", 8),
        ("UntypedStorage", 2),
    ] {
        assert!(
            matches!(read(class, bytes, b"little", b""), Ok(Value::Opaque(o)) if &*o.name == class)
        );
        assert!(
            read(class, bytes, b"little", b"N").is_ok()
                && read(class, bytes, b"little", &view(0)).is_ok()
        );
        let refused = "a bare storage that is a view or big-endian is not supported";
        assert!(
            read(class, bytes, b"little", &view(1))
                .unwrap_err()
                .to_string()
                .contains(refused)
        );
        // Of what has one byte an element there is nothing to swap; what an untyped storage holds nobody knows.
        match read(class, bytes, b"big", b"") {
            Ok(_) => assert_eq!(class, "CharStorage"),
            Err(e) => assert!(
                class != "CharStorage" && e.to_string().contains(refused),
                "{class}: {e}"
            ),
        }
    }
}

#[test]
fn what_is_wrong_with_an_archive_is_said() {
    let (pickle, data) = ones();
    let base = [
        ("p/data.pkl", &pickle[..]),
        ("p/data/0", &data),
        ("p/version", b"3\n"),
    ];
    let stored = |records: &[(&str, &[u8])]| {
        load(zip(records, CompressionMethod::Stored).into()).unwrap_err()
    };
    let messages = [
        (
            stored(&base[..2]),
            "the archive has no record \"version\"; it holds p/data.pkl, p/data/0",
        ),
        (
            stored(&[base[0], base[2]]),
            "the archive has no record \"data/0\"; it holds p/data.pkl, p/version",
        ),
        (
            stored(&[base[0], base[1], ("p/version", b"11")]),
            "version 11 of torch's archives (only 1 to 10 are known)",
        ),
        (
            stored(&[base[0], base[1], ("p/version", b"x")]),
            "its version is not a number",
        ),
        (
            stored(&[base[0], base[2], ("p/data/0", &data[..40])]),
            "it has 200 bytes, but its record has 40",
        ),
        (
            stored(&[base[0], base[1], base[2], ("p/byteorder", b"pdp")]),
            "its byte order is \"pdp\", neither",
        ),
        (
            stored(&[("data.pkl", b"N.")]),
            "its records lie in no folder",
        ),
        (
            stored(&[("p/../data.pkl", b"N.")]),
            "would leave the archive's folder",
        ),
        (
            stored(&[("/p/data.pkl", b"N.")]),
            "would leave the archive's folder",
        ),
        (
            load(sample("int8.pt").slice(..700)).unwrap_err(),
            "cut short or not an archive",
        ),
    ];
    for (error, want) in messages {
        assert!(error.to_string().contains(want), "{error}\nis not: {want}");
        assert!(
            matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Unsupported),
            "{error}"
        );
    }
}

#[test]
fn records_named_twice_or_lying_in_each_other_are_refused() {
    let file = zip(
        &[("p/aaa", b"one"), ("p/bbb", b"two"), ("p/version", b"3")],
        CompressionMethod::Stored,
    );
    let directory = file.windows(4).position(|w| w == b"PK\x01\x02").unwrap();
    let mut twice = file.clone();
    let second = directory + 46 + 5 + 46;
    assert_eq!(&twice[second..second + 5], b"p/bbb");
    twice[second..second + 5].copy_from_slice(b"p/aaa");
    assert!(
        load(twice.into())
            .unwrap_err()
            .to_string()
            .contains("\"p/aaa\" occurs twice")
    );
    // The second one claims to start where the first does.
    let mut inside = file.clone();
    inside[second - 4..second].fill(0);
    assert!(
        load(inside.into())
            .unwrap_err()
            .to_string()
            .contains("overlaps")
    );
    let mut larger = file;
    larger[directory + 20] = 200;
    larger[directory + 24] = 200;
    assert!(load(larger.into()).is_err());
}

#[test]
fn an_archive_that_unpacks_to_more_than_it_may_is_refused() {
    let file = zip(
        &[("p/data.pkl", &vec![b'0'; 1 << 20]), ("p/version", b"3")],
        CompressionMethod::Deflated,
    );
    let limits = Limits {
        unpacked: 1000,
        ..Default::default()
    };
    let error = load_with(
        file.clone().into(),
        &LoadOptions::default().with_limits(limits),
    )
    .unwrap_err();
    assert!(error.to_string().contains("1000 unpacked bytes"), "{error}");
    // A directory that lies about the size gets no memory for it.
    let mut lie = file;
    let directory = lie.windows(4).position(|w| w == b"PK\x01\x02").unwrap();
    lie[directory + 24..directory + 28].copy_from_slice(&0xF000_0000u32.to_le_bytes());
    assert!(load(lie.into()).is_err());
}

#[test]
fn an_archive_cut_anywhere_is_an_error() {
    let file = sample("tied.pt");
    for len in 0..file.len() {
        assert!(load(file.slice(..len)).is_err(), "cut at {len}");
    }
}

#[test]
fn a_bit_flipped_anywhere_gives_an_error_or_the_right_value() {
    for name in ["tied.pt", "numbers.pt"] {
        let file = sample(name);
        let want = load(file.clone()).unwrap();
        for at in 0..file.len() {
            for bit in 0..8 {
                let mut damaged = file.to_vec();
                damaged[at] ^= 1 << bit;
                if let Ok(value) = load(damaged.into()) {
                    assert_eq!(value, want, "{name}: bit {bit} of byte {at}");
                }
            }
        }
    }
}

#[test]
fn a_flipped_bit_of_a_tensor_is_found_unless_told_not_to_look() {
    let file = save(&Value::Tensor(
        Tensor::from_vec(&[4], vec![1u8, 2, 3, 4]).unwrap(),
    ))
    .unwrap();
    let at = file.windows(4).position(|w| w == [1, 2, 3, 4]).unwrap();
    let mut damaged = file;
    damaged[at] = 9;
    let damaged = Bytes::from(damaged);
    let error = load(damaged.clone()).unwrap_err();
    assert!(
        matches!(&error, Error::Checksum { name, .. } if &**name == "archive/data/0"),
        "{error}"
    );
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    let value = load_with(damaged, &LoadOptions::default().with_verify(Verify::No)).unwrap();
    assert_eq!(
        value.as_tensor().unwrap().to_vec::<u8>().unwrap(),
        [9, 2, 3, 4]
    );
}

#[test]
fn a_layout_wants_as_many_checksums_as_it_has_storages() {
    let layout = ArchiveLayout::new(b"N.", &[1, 2], &ArchiveOptions::default()).unwrap();
    assert_eq!(layout.finish(&[1]).unwrap_err().kind(), ErrorKind::Invalid);
    assert!(layout.gap(1, 0).is_empty() && layout.storage(2).is_empty());
    assert!(ArchiveLayout::new(b"N.", &[u64::MAX], &ArchiveOptions::default()).is_err());
    for prefix in ["", "a/b"] {
        assert!(
            ArchiveLayout::new(b"N.", &[], &ArchiveOptions::default().with_prefix(prefix)).is_err()
        );
    }
}

#[test]
fn nothing_may_follow_a_bare_pickle() {
    let pickle = b"\x80\x02K\x07.";
    assert_eq!(load(Bytes::from_static(pickle)).unwrap(), 7.into());
    let e = load([&pickle[..], &[7; 8]].concat().into()).unwrap_err();
    assert!(e.to_string().contains("bytes follow the pickle"), "{e}");
}

#[test]
fn an_old_file_may_have_frames() {
    let magic = b"\x80\x04\x95\x0d\0\0\0\0\0\0\0\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.";
    let rest = b"\x80\x02M\xe9\x03.\x80\x02}.\x80\x02K\x07.\x80\x02].";
    let file = [&magic[..], rest].concat();
    assert_eq!(load(file.into()).unwrap(), 7.into());
}

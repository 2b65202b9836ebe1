//! Packed records, unpacked block by block.

use bytes::Bytes;
use proptest::prelude::*;
use reshard_torch_format::{
    Error, Result,
    archive::{Directory, Inflate, Record, Tail, Verify, unpack},
};
use std::io::{Cursor, Write};
use zip::{CompressionMethod, ZipWriter, write::SimpleFileOptions};

/// An archive of one record, with its directory.
fn archive(content: &[u8], method: CompressionMethod) -> (Bytes, Directory) {
    let mut w = ZipWriter::new(Cursor::new(Vec::new()));
    w.start_file(
        "p/data/0",
        SimpleFileOptions::default().compression_method(method),
    )
    .unwrap();
    w.write_all(content).unwrap();
    let file = Bytes::from(w.finish().unwrap().into_inner());
    let Tail::Done(directory) = Tail::parse(file.len() as u64, &file).unwrap() else {
        panic!("all bytes were given")
    };
    (file, directory)
}

fn stored(file: &Bytes, record: &Record) -> Bytes {
    let range = |r: std::ops::Range<u64>| r.start as usize..r.end as usize;
    let data = record
        .data_range(&file[range(record.header_range())])
        .unwrap();
    file.slice(range(data))
}

/// All blocks, and the checksum compared.
fn blocks(record: &Record, stored: &[u8], len: usize) -> Result<Vec<u8>> {
    let mut content = Inflate::new(record, stored)?;
    let (mut out, mut block) = (Vec::new(), vec![0; len]);
    loop {
        let n = content.next_block(&mut block)?;
        out.extend(&block[..n]);
        assert!(
            out.len() as u64 <= record.size,
            "more than the directory says"
        );
        assert_eq!(content.left(), record.size - out.len() as u64);
        if n == 0 {
            return content.verify().map(|()| out);
        }
    }
}

proptest! {
    #![proptest_config(reshard_model::testkit::law(256))]
    #[test]
    fn blocks_of_any_length_are_the_content(
        content in prop::collection::vec(0u8..4, 0..5000),
        len in 1usize..6000,
        packed: bool,
    ) {
        let method = if packed { CompressionMethod::Deflated } else { CompressionMethod::Stored };
        let (file, directory) = archive(&content, method);
        let record = directory.get("data/0").unwrap();
        let stored = stored(&file, record);
        prop_assert_eq!(&blocks(record, &stored, len).unwrap(), &content);
        prop_assert_eq!(&unpack(record, stored, 5000, Verify::No).unwrap()[..], &content[..]);
    }

    #[test]
    fn a_record_never_unpacks_to_more_or_less_than_the_directory_says(
        content in prop::collection::vec(0u8..4, 1..5000),
        size in 0u64..6000,
        len in 1usize..6000,
    ) {
        let (file, directory) = archive(&content, CompressionMethod::Deflated);
        let mut record = directory.get("data/0").unwrap().clone();
        let stored = stored(&file, &record);
        prop_assume!(size != record.size);
        record.size = size;
        let both = [blocks(&record, &stored, len).map(drop), unpack(&record, stored, 10_000, Verify::No).map(drop)];
        for one in both {
            let refused = matches!(one, Err(Error::Archive { .. }));
            prop_assert!(refused);
        }
    }

    #[test]
    fn damaged_packed_bytes_are_an_error_or_give_what_the_checksum_finds(
        at: prop::sample::Index,
        bit in 0u8..8,
    ) {
        let content: Vec<u8> = (0..2000u32).map(|i| (i * i % 7) as u8).collect();
        let (file, directory) = archive(&content, CompressionMethod::Deflated);
        let record = directory.get("data/0").unwrap();
        let mut damaged = stored(&file, record).to_vec();
        let at = at.index(damaged.len());
        damaged[at] ^= 1 << bit;
        if let Ok(same) = blocks(record, &damaged, 64) {
            prop_assert_eq!(same, content);
        }
    }
}

#[test]
fn bytes_that_are_cut_short_are_no_record() {
    let (file, directory) = archive(&[7; 3000], CompressionMethod::Deflated);
    let record = directory.get("data/0").unwrap();
    let stored = stored(&file, record);
    let cut = &stored[..stored.len() - 1];
    assert!(matches!(
        Inflate::new(record, cut),
        Err(Error::Archive { .. })
    ));
    let mut shorter = record.clone();
    shorter.stored -= 1;
    let error = blocks(&shorter, cut, 100).unwrap_err().to_string();
    assert!(error.contains("does not unpack to 3000 bytes"), "{error}");
}

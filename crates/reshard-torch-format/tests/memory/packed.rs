//! Archives: packed records, and directories.

use crate::{
    asm::{int, program, tensor, tuple},
    counting::measured,
};
use reshard_torch_format::{
    Limits, LoadOptions,
    archive::{Archive, ArchiveOptions, Inflate, Tail, Verify, write_archive},
    load, load_with,
};
use std::io::{Cursor, Write};
use zip::{CompressionMethod, ZipWriter, write::SimpleFileOptions};

const MIB: usize = 1 << 20;

/// An archive of packed zeros, among other records.
fn packed(records: &[(&str, &[u8])], zeros: (&str, usize)) -> Vec<u8> {
    let mut w = ZipWriter::new(Cursor::new(Vec::new()));
    let packed = SimpleFileOptions::default().compression_method(CompressionMethod::Deflated);
    for (name, content) in records {
        w.start_file(*name, packed).unwrap();
        w.write_all(content).unwrap();
    }
    w.start_file(zeros.0, packed).unwrap();
    for _ in 0..zeros.1 / MIB {
        w.write_all(&[0; MIB]).unwrap();
    }
    w.finish().unwrap().into_inner()
}

fn floats(n: i64, storage: i64) -> Vec<u8> {
    program(&[&tensor(
        &tuple(&[&int(n)]),
        &tuple(&[&int(1)]),
        storage,
        b"",
    )])
}

#[track_caller]
fn refused(file: Vec<u8>, why: &str) {
    let most = (file.len() + 4 * MIB) as u64;
    let (result, peak, seconds) = measured(|| load(file.into()).map(drop));
    let said = result.unwrap_err().to_string();
    assert!(said.contains(why), "{said}");
    assert!(
        peak <= most && seconds < 5.0,
        "{peak} bytes, {seconds} s: {said}"
    );
}

#[test]
fn packed_records_unpack_within_the_budget_and_to_no_more_than_they_say() {
    const LARGE: usize = 200 * MIB;
    let elements = (LARGE / 4) as i64;
    refused(
        packed(&[("p/version", b"3")], ("p/data.pkl", LARGE)),
        "bytes of memory",
    );
    refused(
        packed(&[("p/data.pkl", b"N.")], ("p/version", LARGE)),
        "\"p/version\" has 209715200 bytes",
    );
    refused(
        packed(
            &[("p/data.pkl", b"N."), ("p/version", b"3")],
            ("p/byteorder", LARGE),
        ),
        "\"p/byteorder\" has 209715200 bytes",
    );
    let whole = packed(
        &[
            ("p/data.pkl", &floats(elements, elements)),
            ("p/version", b"3"),
        ],
        ("p/data/0", LARGE),
    );
    refused(whole.clone(), "bytes of memory");
    // The pickle and the record have to agree before anything is unpacked.
    let short = packed(
        &[("p/data.pkl", &floats(1, 1)), ("p/version", b"3")],
        ("p/data/0", LARGE),
    );
    refused(short, "its record has 209715200");
    let trusted = Limits {
        memory: Some(256 << 20),
        ..Default::default()
    };
    let (value, peak, _) = measured(|| {
        load_with(
            whole.clone().into(),
            &LoadOptions::default().with_limits(trusted),
        )
        .unwrap()
    });
    assert_eq!(value.as_tensor().unwrap().nbytes(), LARGE as u64);
    assert!(peak < (LARGE + 4 * MIB) as u64, "{peak}");

    let archive = Archive::open(whole.into(), &trusted).unwrap();
    let record = archive.directory().get("data/0").unwrap();
    let header = record.header_range();
    let data = record
        .data_range(&archive.bytes()[header.start as usize..header.end as usize])
        .unwrap();
    let (sum, peak, _) = measured(|| {
        let stored = archive
            .bytes()
            .slice(data.start as usize..data.end as usize);
        let mut content = Inflate::new(record, stored).unwrap();
        let mut block = vec![0; 64 * 1024];
        let mut sum = 0;
        loop {
            match content.next_block(&mut block).unwrap() {
                0 => break,
                n => sum += n,
            }
        }
        content.verify().unwrap();
        sum
    });
    assert_eq!(sum, LARGE);
    assert!(peak < MIB as u64, "{peak} bytes to unpack block by block");
}

#[test]
fn an_archive_of_many_records_is_read_in_no_time() {
    const RECORDS: usize = 65_000;
    let pickle = program(&[b"N"]);
    let storages = vec![&b"x"[..]; RECORDS];
    let file = write_archive(&pickle, &storages, &ArchiveOptions::default()).unwrap();
    let ((), peak, seconds) = measured(|| {
        let archive = Archive::open(file.clone().into(), &Limits::default()).unwrap();
        for i in 0..RECORDS {
            assert_eq!(
                &archive.read(&format!("data/{i}"), Verify::Crc).unwrap()[..],
                b"x"
            );
        }
    });
    assert!(
        seconds < 5.0 && peak < 10 * file.len() as u64,
        "{seconds} s, {peak} bytes"
    );
}

#[test]
fn a_comment_that_names_thousands_of_directories_is_not_believed() {
    let storages = vec![&b""[..]; 20_000];
    let file = write_archive(b"N.", &storages, &ArchiveOptions::default()).unwrap();
    let Tail::Done(directory) = Tail::parse(file.len() as u64, &file).unwrap() else {
        panic!("all was given")
    };
    let (offset, end) = (directory.offset(), file.len() - 22);
    // An entry less than there is, so that each directory is read to its end before it is found wrong.
    let len = (end as u64 - offset) as u32;
    let fields = [
        &b"PK\x05\x06\0\0\0\0"[..],
        &19_999u16.to_le_bytes(),
        &19_999u16.to_le_bytes(),
        &len.to_le_bytes(),
        &(offset as u32).to_le_bytes(),
        &[0, 0],
    ];
    let bomb = [&file[..end], &fields.concat().repeat(2900)].concat();
    let (result, _, seconds) = measured(|| Tail::parse(bomb.len() as u64, &bomb).map(drop));
    assert!(
        result
            .unwrap_err()
            .to_string()
            .contains("longer than its entries")
    );
    assert!(seconds < 2.0, "{seconds} s");
}

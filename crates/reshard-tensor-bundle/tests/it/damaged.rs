//! Damaged checkpoints. Each has a clear verdict, and what is not damaged is read.

use super::{files, open, piece, place, save, store, try_open};
use futures::executor::block_on;
use reshard_model::{ErrorKind, Region};
use reshard_storage::Progress;
use reshard_strategy::with_sources;
use reshard_tensor_bundle::testkit::{self, EntryFields};
use std::collections::BTreeMap;

type Files = BTreeMap<String, Vec<u8>>;
const INDEX: &str = ".index";
const DATA: [&str; 2] = [".data-00000-of-00002", ".data-00001-of-00002"];

/// `w` in two slices of two ranks, and `v` whole.
fn sound() -> Files {
    let place = store();
    let rows = |from, n| piece("w", &[4, 3], Region::new([from, 0], [n, 3]));
    let whole = piece("v", &[5], Region::whole(&[5]));
    save(&place, vec![vec![rows(0, 2), whole], vec![rows(2, 2)]]);
    files(&place)
}

/// What opening or a full check says.
fn verdict(files: &Files) -> String {
    let reader = match try_open(&place(files)) {
        Ok(reader) => reader,
        Err(e) => {
            assert!(
                matches!(
                    e.kind(),
                    ErrorKind::Corrupt | ErrorKind::Unsupported | ErrorKind::Limit
                ),
                "{e}"
            );
            return with_sources(e.to_string(), &e);
        }
    };
    let report = block_on(reader.verify(true, &Progress::none())).unwrap();
    let all = report
        .damage
        .iter()
        .chain(&report.not_understood)
        .chain(&report.unchecked);
    all.map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

type Entries = Vec<(Vec<u8>, Vec<u8>)>;

/// With another index.
fn with_entries(edit: impl FnOnce(&mut Entries)) -> Files {
    let mut files = sound();
    let mut entries = testkit::entries_of(&files[INDEX]).unwrap();
    edit(&mut entries);
    files.insert(INDEX.into(), testkit::table(&entries));
    files
}

/// With another entry of a name, or of a slice that begins with this row.
fn with_entry(key: &str, edit: impl FnOnce(&mut EntryFields)) -> Files {
    with_entries(|entries| {
        let key = match key.strip_prefix("w@") {
            Some(row) => testkit::slice_key(b"w", &[(row.parse().unwrap(), 2), (0, 3)]),
            None => key.into(),
        };
        let (_, entry) = entries.iter_mut().find(|(k, _)| *k == key).unwrap();
        let mut fields = EntryFields::parse(entry).unwrap();
        edit(&mut fields);
        *entry = fields.to_bytes();
    })
}

fn with_header(num_shards: i64, endianness: i64, versions: (i64, i64)) -> Files {
    with_entries(|entries| entries[0].1 = testkit::header(num_shards, endianness, versions))
}

fn with_file(name: &str, edit: impl FnOnce(&mut Vec<u8>)) -> Files {
    let mut files = sound();
    edit(files.get_mut(name).unwrap());
    files
}

fn without(name: &str) -> Files {
    let mut files = sound();
    files.remove(name).unwrap();
    files
}

fn damaged_files_and_tables() -> Vec<(Files, &'static str)> {
    let bomb = |packed: u8, block: &[u8]| {
        let mut files = sound();
        files.insert(INDEX.into(), testkit::table_of(block, packed));
        files
    };
    let half = |files: &mut Vec<u8>| files.truncate(files.len() / 2);
    vec![
        (
            without(DATA[0]),
            ".data-00000-of-00002: it is missing; 2 entries lie in it",
        ),
        (
            without(DATA[1]),
            ".data-00001-of-00002: it is missing, and an entry of w lies in it",
        ),
        (
            with_file(DATA[0], half),
            "it was cut, or belongs to another checkpoint",
        ),
        (
            with_file(DATA[0], |b| b[3] ^= 8),
            "w: .data-00000-of-00002 at byte 0: a part of w is damaged: its CRC-32C is",
        ),
        (
            with_file(INDEX, |b| b[5] ^= 1),
            ".index at byte 0: a block is damaged: its CRC-32C is",
        ),
        (
            with_file(INDEX, |b| b.truncate(40)),
            "too short to be a table",
        ),
        (
            with_file(INDEX, |b| b.truncate(b.len() - 3)),
            "it does not end as a table does; it was cut",
        ),
        (
            with_file(INDEX, |b| {
                let at = b.len() - 45;
                b[at] ^= 0x7f
            }),
            "block",
        ),
        (
            bomb(1, &[0x80, 0x80, 0x80, 0x80, 8, 0]),
            "which snappy can't do",
        ),
        (bomb(1, &[50, 0xff, 0xff]), "a block can't be unpacked"),
        (bomb(7, b"\0\0\0\0\x01\0\0\0"), "compressed by method 7"),
        (
            with_header(3, 0, (1, 0)),
            ".data-00000-of-00003: it is missing",
        ),
        (with_header(-1, 0, (1, 0)), "there are -1 data files"),
        (with_header(2, 2, (1, 0)), "bytes have the order 2"),
        (with_header(2, 0, (-1, 0)), "its version is -1"),
        (
            with_header(2, 0, (9, 2)),
            "version 1 of the format can't read it (it needs 2)",
        ),
        // `bad_consumers`, packed and one by one.
        (
            with_entries(|e| e[0].1 = vec![0x08, 2, 0x1a, 6, 0x08, 1, 0x1a, 2, 3, 1]),
            "version 1 of the format must not read it",
        ),
        (
            with_entries(|e| e[0].1 = vec![0x08, 2, 0x1a, 6, 0x08, 1, 0x18, 3, 0x18, 1]),
            "version 1 of the format must not read it",
        ),
        (with_entries(|e| drop(e.remove(0))), "it has no header"),
        (with_entries(|e| e.swap(1, 2)), "is not in order"),
        (
            with_entries(|e| e.insert(1, e[1].clone())),
            "is there twice",
        ),
        (
            with_entries(|e| drop(e.remove(1))),
            "w: .index: its slice [0:2, 0:3] has no entry",
        ),
        (
            with_entries(|e| e.last_mut().unwrap().1 = vec![0xff]),
            "w: .index: its entry is no such message",
        ),
        (
            with_entries(|e| e[1].1 = vec![0xff]),
            "the entry of a slice of \"w\" is no such message",
        ),
        (
            with_file(INDEX, |b| {
                // Where the index of blocks lies, in the last 48 bytes.
                let at = b.len() - 48;
                b[at..at + 8].copy_from_slice(&[0, 0, 0xff, 0xff, 0xff, 0xff, 0x7f, 1]);
            }),
            ".index at byte 34359738367: a block of 1 bytes would lie outside of the file",
        ),
        (with_file(INDEX, Vec::clear), "too short to be a table"),
    ]
}

fn damaged_entries() -> Vec<(Files, &'static str)> {
    vec![
        (
            with_entry("v", |e| e.shard_id = 2),
            "v: .index: it lies in data file 2, and the header says that there are 2",
        ),
        (
            with_entry("v", |e| e.shard_id = -1),
            "it lies in data file -1",
        ),
        (
            with_entry("v", |e| e.offset = 1 << 40),
            "but v lies in 1099511627776..1099511627796 of it",
        ),
        (with_entry("v", |e| e.offset = i64::MAX), "end beyond 2^63"),
        (with_entry("v", |e| e.offset = -4), "its offset is -4"),
        (
            with_entry("v", |e| e.offset = 0),
            "its entry shares bytes with one of",
        ),
        (
            with_entry("v", |e| e.size = 16),
            "its entry has 16 bytes, which is not what 5 elements of int32 take",
        ),
        (
            with_entry("v", |e| e.shape = vec![6]),
            "its entry has 20 bytes, which is not what 6 elements",
        ),
        (
            with_entry("v", |e| e.shape = vec![-5]),
            "has a negative length",
        ),
        (
            with_entry("v", |e| e.shape = vec![i64::MAX; 3]),
            "has too many elements",
        ),
        (
            with_entry("v", |e| e.dtype = 99),
            "v: .index: it has elements of type 99",
        ),
        (with_entry("v", |e| e.dtype = 7), "v: .data-00000-of-00002"),
        (with_entry("v", |e| e.crc32c ^= 1), "a part of v is damaged"),
        (
            with_entry("w", |e| e.slices[0][0] = (3, Some(2))),
            "does not lie in its shape [4, 3]",
        ),
        (
            with_entry("w", |e| e.slices[0].truncate(1)),
            "does not lie in its shape [4, 3]",
        ),
        (
            with_entry("w", |e| e.slices.push(e.slices[0].clone())),
            "overlap",
        ),
        (with_entry("w", |e| drop(e.slices.pop())), "w: .index: "),
        (
            with_entry("w", |e| e.dtype = 1),
            "its slice [0:2, 0:3]: it has elements of int32, and the tensor of float32",
        ),
        (
            with_entry("w@0", |e| e.shape = vec![3, 2]),
            "its entry says that it has the shape [3, 2]",
        ),
    ]
}

/// In a folder, with a file `checkpoint` of this text.
fn with_state_file(text: &str) -> Files {
    let named = sound()
        .into_iter()
        .map(|(name, bytes)| (format!("model{name}"), bytes));
    named.chain([("checkpoint".into(), text.into())]).collect()
}

fn damaged_state_files() -> Vec<(Files, &'static str)> {
    assert_eq!(
        verdict(&with_state_file("model_checkpoint_path: \"model\"\n")),
        ""
    );
    vec![
        (
            with_state_file("model_checkpoint_path: \"../secret/model\"\n"),
            "checkpoint: its latest checkpoint \"../secret/model\" does not lie in this folder (\"../secret/model.index\" can't name a file of a checkpoint: it leads out of the checkpoint's directory); open it by its prefix",
        ),
        (
            with_state_file("model_checkpoint_path: \"/elsewhere/other\"\n"),
            "checkpoint: it says that \"other\" is the latest checkpoint, but there is no other.index; open another one by its prefix",
        ),
        (
            with_state_file("model_checkpoint_path: \"mod"),
            "checkpoint: it does not name the latest checkpoint; open one by its prefix",
        ),
        (
            with_state_file(""),
            "checkpoint: it does not name the latest checkpoint; open one by its prefix",
        ),
    ]
}

#[test]
fn each_damaged_checkpoint_has_a_clear_verdict() {
    let sound = sound();
    assert_eq!(verdict(&sound), "");
    let cases = [
        damaged_files_and_tables(),
        damaged_entries(),
        damaged_state_files(),
    ]
    .concat();
    assert_eq!(cases.len(), 49);
    for (n, (files, told)) in cases.iter().enumerate() {
        assert!(
            *files != sound && cases[..n].iter().all(|c| c.0 != *files),
            "{told:?}: it is there twice"
        );
        let verdict = verdict(files);
        assert!(verdict.contains(told), "case {n}, {told:?}: {verdict:?}");
        assert!(verdict.lines().count() <= 4, "case {n}: {verdict}");
    }
}

#[test]
fn what_is_not_damaged_is_read() {
    for (files, key) in [
        (with_entry("v", |e| e.size = 16), "w"),
        (with_entry("w", |e| e.slices[0].truncate(1)), "v"),
        (with_file(DATA[1], Vec::clear), "v"),
    ] {
        let reader = open(&place(&files));
        assert!(reader.permits(key).is_ok());
        let other = if key == "v" { "w" } else { "v" };
        assert_eq!(
            reader.permits(other).unwrap_err().kind(),
            ErrorKind::Corrupt
        );
    }
}

#[test]
fn a_note_of_another_index_is_ignored() {
    let place = store();
    let mut tensor = piece("w", &[2], Region::whole(&[2]));
    tensor.allow_shape_mismatch = true;
    save(&place, vec![vec![tensor]]);
    let mut files = files(&place);
    files.insert(
        ".reshard_bundle.json".into(),
        br#"{"schema":1,"index":5,"objects":{"w":"bytes"}}"#.to_vec(),
    );
    assert_eq!(verdict(&files), "");
    files.insert(
        ".reshard_bundle.json".into(),
        br#"{"schema":2,"index":5}"#.to_vec(),
    );
    assert!(verdict(&files).contains("its schema is 2"));
    files.insert(".reshard_bundle.json".into(), b"{".to_vec());
    assert!(verdict(&files).contains("what reshard noted can't be parsed"));
}

#[test]
fn many_entries_that_share_their_bytes_are_refused_before_memory_is_taken() {
    // A file of a kilobyte, of which a thousand tensors have all.
    let entries = |files: &mut Files| {
        let bytes = vec![7; 4 << 20];
        let mut entries = vec![(Vec::new(), testkit::header(1, 0, (1, 0)))];
        for n in 0..200u32 {
            let fields = EntryFields {
                dtype: 4,
                shape: vec![4 << 20],
                shard_id: 0,
                offset: 0,
                size: 4 << 20,
                crc32c: crc32c::crc32c(&bytes),
                slices: Vec::new(),
            };
            entries.push((format!("t{n:05}").into_bytes(), fields.to_bytes()));
        }
        files.clear();
        files.insert(INDEX.into(), testkit::table(&entries));
        files.insert(".data-00000-of-00001".into(), bytes);
    };
    let mut files = Files::new();
    entries(&mut files);
    let e = open(&place(&files)).permits("t00007").unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Limit, "{e}");
    assert!(verdict(&files).contains("shares bytes"));
}

/// TensorFlow restores slices of int32, and of uint32 only whole tensors.
#[test]
fn slices_that_tensorflow_does_not_restore_are_told() {
    let producer = |files: &Files| open(&place(files)).producer();
    let mut files = sound();
    assert_eq!(producer(&files).loadable_by, ["TensorFlow"]);
    let mut entries = testkit::entries_of(&files[INDEX]).unwrap();
    for (_, entry) in entries.iter_mut().filter(|(key, _)| !key.is_empty()) {
        let mut fields = EntryFields::parse(entry).unwrap();
        if fields.dtype == 3 {
            fields.dtype = 22;
            *entry = fields.to_bytes();
        }
    }
    files.insert(INDEX.into(), testkit::table(&entries));
    let told = producer(&files);
    assert!(told.loadable_by.is_empty(), "{:?}", told.loadable_by);
    let note =
        "1 tensor lies in slices of a type that TensorFlow reads only whole, such as w of uint32";
    assert!(
        told.notes.iter().any(|n| n.starts_with(note)),
        "{:?}",
        told.notes
    );
}

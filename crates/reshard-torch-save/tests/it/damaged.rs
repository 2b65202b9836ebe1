//! Damaged files and indexes: `verify` says what is wrong, or the checkpoint can't be opened and the error says why. Sound tensors beside
//! damaged ones can still be read.

use super::{fixtures::read, open, place, try_open};
use futures::executor::block_on;
use proptest::prelude::*;
use reshard_model::{ErrorKind, Region, Tensor, Value};
use reshard_storage::{Progress, Store};
use reshard_strategy::with_sources;
use reshard_torch_format::{encode, save};
use std::{fs, path::PathBuf, sync::Arc};

const INDEX: &str = "pytorch_model.bin.index.json";

fn tensor(n: i32, from: i32) -> Value {
    Tensor::from_vec(&[n as u64], (from..from + n).collect::<Vec<i32>>())
        .unwrap()
        .into()
}

fn state() -> Value {
    Value::Dict(vec![
        ("a".into(), tensor(100, 0)),
        ("b".into(), tensor(50, 1000)),
        ("step".into(), 7.into()),
    ])
}

fn sound() -> Vec<u8> {
    save(&state()).unwrap()
}

/// Where some bytes lie.
fn find(bytes: &[u8], part: &[u8]) -> usize {
    bytes.windows(part.len()).position(|w| w == part).unwrap()
}

fn last(bytes: &[u8], part: &[u8]) -> usize {
    bytes.windows(part.len()).rposition(|w| w == part).unwrap()
}

fn changed(at: usize, new: &[u8]) -> Vec<u8> {
    let mut bytes = sound();
    bytes[at..at + new.len()].copy_from_slice(new);
    bytes
}

/// What is said of a place: the findings of `verify`, or the error of opening it.
fn said(store: &Arc<dyn Store>) -> String {
    let reader = match try_open(store) {
        Ok(reader) => reader,
        Err(e) => return format!("{:?}: {}", e.kind(), with_sources(e.to_string(), &e)),
    };
    let report = block_on(reader.verify(true, &Progress::none())).unwrap();
    let kinds = [
        ("Corrupt", &report.damage),
        ("Unsupported", &report.not_understood),
        ("Limit", &report.not_read),
        ("Unavailable", &report.unchecked),
    ];
    let all = kinds.iter().flat_map(|(kind, found)| {
        let one = move |d: &reshard_strategy::Damage| format!("{kind}: {d}");
        found.iter().map(one)
    });
    all.collect::<Vec<_>>().join("\n")
}

fn file(bytes: Vec<u8>) -> Arc<dyn Store> {
    place([("model.pt", bytes)])
}

/// A file whose pickle is another one. Its records are those of the sound one.
fn with_pickle(edit: impl Fn(&mut Vec<u8>)) -> Vec<u8> {
    let encoded = encode(&state()).unwrap();
    let mut pickle = encoded.pickle.clone();
    edit(&mut pickle);
    let storages: Vec<&[u8]> = encoded.storages.iter().map(|s| &**s).collect();
    reshard_torch_format::archive::write_archive(&pickle, &storages, &Default::default()).unwrap()
}

/// Old layout: what torch 2.15 wrote.
fn legacy() -> Vec<u8> {
    let data = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../reshard-torch-format/tests/data");
    fs::read(data.join("torch-2.15.0/legacy.pt")).unwrap()
}

/// An old file that holds a number.
const OLD_NUMBER: &[u8] =
    b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.\x80\x02}.\x80\x02K\x07.\x80\x02].";

/// What is wrong with something, the thing, and what is said of it.
type Damaged<T> = Vec<(&'static str, T, &'static str)>;

/// What is wrong with an archive, the archive, and what is said of it.
fn damaged_zips(sound: &[u8]) -> Damaged<Vec<u8>> {
    let element = find(sound, &[7, 0, 0, 0, 8, 0, 0, 0]);
    let end = sound.len();
    let storage = |from: usize| last(&sound[..from], b"PK\x03\x04");
    let header = storage(element);
    let central = last(sound, b"archive/data/0");
    vec![
        (
            "an element",
            changed(element, &[9]),
            "Corrupt: a: model.pt at byte",
        ),
        (
            "cut short",
            sound[..end / 2].to_vec(),
            "Corrupt: model.pt: the archive can't be read",
        ),
        (
            "one byte short",
            sound[..end - 1].to_vec(),
            "Corrupt: model.pt: the archive can't be read",
        ),
        ("empty", Vec::new(), "NotFound"),
        ("text", b"hello".to_vec(), "NotFound"),
        (
            "a header's name",
            changed(header + 31, b"X"),
            "its name differs from the directory's",
        ),
        (
            "a header's signature",
            changed(header, b"XX"),
            "its signature is wrong",
        ),
        (
            "a name in the directory",
            changed(central + 13, b"7"),
            "has no record \"data/0\"",
        ),
        (
            "the end record",
            changed(end - 22, b"XX"),
            "Corrupt: model.pt: the archive can't be read",
        ),
        (
            "the pickle's bytes",
            changed(find(sound, b"_rebuild"), b"X"),
            "is damaged: its CRC-32 is",
        ),
        (
            "a directory beyond the file",
            changed(end - 6, &[0xff, 0xff, 0xff, 0x7f]),
            "Corrupt: model.pt: the archive can't be read",
        ),
        (
            "two records of one name",
            {
                let mut bytes = changed(last(sound, b"archive/data/1") + 13, b"0");
                let header = find(&bytes, b"archive/data/1");
                bytes[header + 13] = b'0';
                bytes
            },
            "record \"archive/data/0\" occurs twice",
        ),
        (
            "a version from the future",
            {
                let at = find(sound, b"archive/version");
                let at = at + find(&sound[at..], b"3\n");
                changed(at, b"9")
            },
            "is damaged: its CRC-32",
        ),
    ]
}

/// The same of the pickle of an archive.
fn damaged_pickles() -> Damaged<Vec<u8>> {
    vec![
        (
            "the pickle cut off",
            with_pickle(|p| p.truncate(p.len() / 2)),
            "Corrupt: model.pt: the pickle can't be read",
        ),
        (
            "an unknown opcode",
            with_pickle(|p| p[2] = 0xff),
            "Corrupt: model.pt: the pickle can't be read",
        ),
        (
            "a storage longer than its record",
            with_pickle(|p| {
                let at = find(p, b"K\x64t");
                p[at + 1] = 101;
            }),
            "Corrupt: a: model.pt: a can't be read",
        ),
        (
            "a shape beyond its storage",
            with_pickle(|p| {
                let at = find(p, b"K\x64\x85");
                p[at + 1] = 101;
            }),
            "do not lie in a storage of 400 bytes",
        ),
        (
            "a storage that is not there",
            with_pickle(|p| {
                let at = find(p, b"X\x01\x00\x00\x001");
                p[at + 5] = b'5';
            }),
            "Corrupt: b: model.pt: b can't be read: the archive has no record \"data/5\"",
        ),
    ]
}

#[test]
fn a_record_outside_of_the_folder_is_told() {
    let mut bytes = sound();
    let name = b"archive/.data/serialization_id";
    for at in [find(&bytes, name), last(&bytes, name)] {
        bytes[at] = b'b';
    }
    let told = open(&file(bytes)).producer().warnings;
    let says = "model.pt has the record \"brchive/.data/serialization_id\" outside of its folder \"archive\": reshard reads the file, and torch.load refuses it";
    assert_eq!(told, [says]);
}

/// What is wrong with a file that is no zip archive, the file, and what is said of it.
fn damaged_old() -> Damaged<Vec<u8>> {
    vec![
        (
            "old, cut in its pickles",
            legacy()[..60].to_vec(),
            "Corrupt: model.pt",
        ),
        (
            "old, cut in its storages",
            legacy()[..legacy().len() - 1].to_vec(),
            "the file ends inside a storage",
        ),
        (
            "old, with more behind it",
            [legacy(), vec![0; 3]].concat(),
            "3 bytes follow its last storage",
        ),
        (
            "old, without tensors, with more behind it",
            [OLD_NUMBER, &[0; 3]].concat(),
            "3 bytes follow its last storage",
        ),
        (
            "old, saved twice into one file",
            [legacy(), legacy()].concat(),
            "Unsupported: reading the next object of `torch.save` in model.pt (at byte ",
        ),
        (
            "old, with another count",
            {
                let mut bytes = legacy();
                let head = reshard_torch_format::LegacyHead::parse(
                    &bytes.clone().into(),
                    bytes.len() as u64,
                    &Default::default(),
                );
                let first = head.unwrap().storages.into_values().next().unwrap();
                bytes[first.count as usize] ^= 1;
                bytes
            },
            "elements, but the pickle says",
        ),
        (
            "old, with another magic number",
            {
                let mut bytes = legacy();
                bytes[6] ^= 1;
                bytes
            },
            "bytes follow its pickle: it is an old file of torch.save without its magic number",
        ),
        (
            "a pickle with elements behind it",
            [&b"\x80\x04K)."[..], &[7; 24]].concat(),
            "Corrupt: model.pt at byte 5: 24 bytes follow its pickle",
        ),
        (
            "a tar file",
            {
                let mut tar = vec![0; 512];
                tar[257..262].copy_from_slice(b"ustar");
                tar
            },
            "Unsupported: reading model.pt (a tar file",
        ),
    ]
}

/// What is wrong with a folder, the folder, and what is said of it. `a` lies in `x.bin` and is sound in the first of these lists.
fn damaged_folders() -> [Damaged<Arc<dyn Store>>; 2] {
    let with = |index: &str| {
        let alone = |key: &str, value| save(&Value::Dict(vec![(key.into(), value)])).unwrap();
        place([
            (INDEX, index.as_bytes().to_vec()),
            ("x.bin", alone("a", tensor(3, 0))),
            ("y.bin", alone("b", tensor(4, 9))),
        ])
    };
    let map = |map: &str| with(&format!("{{\"metadata\":{{}},\"weight_map\":{map}}}"));
    assert_eq!(said(&map(r#"{"a":"x.bin","b":"y.bin"}"#)), "");
    let of_b = vec![
        (
            "a file that is missing",
            map(r#"{"a":"x.bin","b":"gone.bin"}"#),
            "b: gone.bin: pytorch_model.bin.index.json names this file, but it is not there",
        ),
        (
            "a key that lies elsewhere",
            map(r#"{"a":"x.bin","b":"x.bin"}"#),
            "b: x.bin: b: pytorch_model.bin.index.json says that it lies here",
        ),
        (
            "a key that no index names",
            map(r#"{"a":"x.bin","c":"y.bin"}"#),
            "b: y.bin: the file holds it, but pytorch_model.bin.index.json does not name it",
        ),
    ];
    let indexes = vec![
        (
            "a file outside of the folder",
            map(r#"{"a":"../x.bin"}"#),
            "a: \"../x.bin\" can't name a file of a checkpoint: it leads out of the checkpoint's directory",
        ),
        (
            "an absolute path",
            map(r#"{"a":"/etc/x.bin"}"#),
            "a: \"/etc/x.bin\" can't name a file of a checkpoint: it is absolute",
        ),
        (
            "a file in a folder",
            map(r#"{"a":"sub/x.bin"}"#),
            "sub/x.bin: pytorch_model.bin.index.json names this file, but it is not there",
        ),
        (
            "a key twice",
            map(r#"{"a":"x.bin","a":"y.bin"}"#),
            "it is no index: the key \"a\" comes twice",
        ),
        (
            "no map",
            with("{}"),
            "it is no index: missing field `weight_map`",
        ),
        (
            "a list",
            with("[]"),
            "it is no index: invalid length 1, expected an object",
        ),
        (
            "an index that is cut",
            with("{\"weight_map\":"),
            "it is no index: EOF",
        ),
        ("an empty index", with(""), "it is no index: EOF"),
        (
            "the first file is missing",
            {
                let alone =
                    |key: &str| save(&Value::Dict(vec![(key.into(), tensor(3, 0))])).unwrap();
                let names = [1, 2].map(|n| format!("pytorch_model-0000{n}-of-00002.bin"));
                let index = serde_json::json!({ "weight_map": { "a": names[0], "b": names[1] } });
                place([
                    (INDEX, index.to_string().into_bytes()),
                    (&names[1], alone("b")),
                ])
            },
            "a: pytorch_model-00001-of-00002.bin: pytorch_model.bin.index.json names this file, but it is not there",
        ),
    ];
    [of_b, indexes]
}

#[test]
fn each_damaged_checkpoint_gets_a_clear_verdict_and_the_rest_is_read() {
    let sound = sound();
    let files = [damaged_zips(&sound), damaged_pickles(), damaged_old()].concat();
    let [of_b, indexes] = damaged_folders();
    assert_eq!((files.len(), of_b.len(), indexes.len()), (27, 3, 9));
    for (name, bytes, want) in files {
        assert_ne!(bytes, sound, "{name}");
        let told = said(&file(bytes));
        assert!(told.contains(want), "{name}: {told:?} lacks {want:?}");
    }
    for (name, store, want) in of_b.iter().chain(&indexes) {
        let told = said(store);
        assert!(
            told.starts_with("Corrupt: ") && told.contains(want),
            "{name}: {told:?} lacks {want:?}"
        );
    }
    for (name, store, _) in of_b {
        let a = read(&open(&store), "a", Region::whole(&[3]));
        assert_eq!(a.to_vec::<i32>().unwrap(), [0, 1, 2], "{name}");
    }
    assert_eq!(said(&file(sound)), "");
    assert_eq!(said(&file(legacy())), "");
}

#[test]
fn two_leaves_of_one_name_are_both_named() {
    let inner = Value::Dict(vec![("b".into(), tensor(1, 0))]);
    let both = Value::Dict(vec![("a.b".into(), tensor(1, 0)), ("a".into(), inner)]);
    let e = try_open(&file(save(&both).unwrap())).unwrap_err();
    let told = with_sources(e.to_string(), &e);
    assert_eq!(e.kind(), ErrorKind::Unsupported);
    assert!(
        told.contains(r#"["a.b"]"#) && told.contains(r#"["a"]["b"]"#),
        "{told}"
    );
}

proptest! {
    #![proptest_config(reshard_model::testkit::law(256))]
    /// Whatever is changed in a file, nothing panics, and what is read of a tensor without an error is what was saved.
    #[test]
    fn no_change_of_a_file_gives_other_elements(at in any::<prop::sample::Index>(), bit in 0u8..8, cut in any::<bool>()) {
        let mut bytes = sound();
        let at = at.index(bytes.len());
        match cut {
            true => bytes.truncate(at),
            false => bytes[at] ^= 1 << bit,
        }
        let store = file(bytes);
        let Ok(reader) = try_open(&store) else { return Ok(()) };
        drop(block_on(reader.verify(true, &Progress::none())));
        for (key, n, from) in [("a", 100i32, 0i32), ("b", 50, 1000)] {
            if reader.metadata().tensor(key).is_none() {
                continue;
            }
            let region = Region::whole(&[n as u64]);
            if let Ok(got) = super::fixtures::try_read(&reader, key, region) {
                prop_assert_eq!(got.to_vec::<i32>().unwrap(), (from..from + n).collect::<Vec<_>>());
            }
        }
    }

    /// Any bytes as a file.
    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..400), zip in any::<bool>()) {
        let start: &[u8] = if zip { b"PK\x03\x04" } else { b"\x80\x02" };
        let told = said(&file([start, &bytes].concat()));
        prop_assert!(told.len() < 1 << 20);
    }
}

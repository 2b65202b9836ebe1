//! Bundles whose numbers are big-endian. Programs on such machines write them.

use super::{files, load, numbers, open, piece, place, save, store, wanted};
use futures::executor::block_on;
use reshard_model::{
    Construct, DType, Opaque, Path, Payload, Region, Sharded, ShardedObject, ShardedTensor, Tensor,
    Value,
};
use reshard_storage::{IfExists, Progress, Store};
use reshard_strategy::{
    ReadCx, ReadObject,
    testkit::{Rank, numbered, save_on_ranks},
};
use reshard_tensor_bundle::{
    OBJECT_GRAPH, TensorBundleConfig,
    testkit::{self, EntryFields},
};
use std::{collections::BTreeMap, sync::Arc};

type Files = BTreeMap<String, Vec<u8>>;

const DATA: &str = ".data-00000-of-00001";
const STRING: i64 = 7;

/// The bytes of a word of each type that is used here, by TensorFlow's numbers.
fn word(dtype: i64) -> usize {
    match dtype {
        12 => 1,
        14 | 16 | 19 => 2,
        3 | 8 | 13 => 4,
        18 => 8,
        other => unreachable!("type {other}"),
    }
}

/// Short strings with swapped words: the checksum of their lengths, which counts them as words. And the checksum of their entry.
fn big_strings(stored: &mut [u8], count: usize) -> u32 {
    let (lengths, rest) = stored.split_at_mut(count);
    let words: Vec<u8> = lengths
        .iter()
        .flat_map(|n| u32::from(*n).to_be_bytes())
        .collect();
    let crc = crc32c::crc32c(&words);
    let masked = crc.rotate_right(15).wrapping_add(0xa282_ead8);
    rest[..4].copy_from_slice(&masked.to_be_bytes());
    crc32c::crc32c_append(crc, rest)
}

/// The same checkpoint with swapped numbers and without an object graph.
fn swapped(files: &Files) -> Files {
    let mut out = files.clone();
    let data = out.get_mut(DATA).unwrap();
    let mut entries = testkit::entries_of(&files[".index"]).unwrap();
    entries.retain(|(key, _)| key != OBJECT_GRAPH.as_bytes());
    for (key, entry) in &mut entries {
        if key.is_empty() {
            *entry = testkit::header(1, 1, (1, 0));
            continue;
        }
        let mut fields = EntryFields::parse(entry).unwrap();
        if !fields.slices.is_empty() {
            continue;
        }
        let bytes = &mut data[fields.offset as usize..][..fields.size as usize];
        fields.crc32c = match fields.dtype {
            STRING => big_strings(bytes, fields.shape.iter().product::<i64>() as usize),
            dtype => {
                bytes
                    .chunks_exact_mut(word(dtype))
                    .for_each(<[u8]>::reverse);
                crc32c::crc32c(bytes)
            }
        };
        *entry = fields.to_bytes();
    }
    out.insert(".index".into(), testkit::table(&entries));
    out
}

/// What a full check finds.
fn damage(place: &Arc<dyn Store>) -> Vec<String> {
    let report = block_on(open(place).verify(true, &Progress::none())).unwrap();
    report.damage.iter().map(ToString::to_string).collect()
}

#[test]
fn numbers_are_swapped_while_they_are_read() {
    let shape = [7, 5];
    let rows = |from, n| Region::new([from, 0], [n, 5]);
    let little = store();
    save(
        &little,
        vec![vec![
            piece("w", &shape, rows(0, 3)),
            piece("w", &shape, rows(3, 4)),
        ]],
    );
    let files = swapped(&files(&little));
    let big = place(&files);
    for region in [
        Region::whole(&shape),
        rows(1, 4),
        Region::new([0, 2], [7, 2]),
        Region::new([6, 4], [1, 1]),
    ] {
        let got = load(&big, vec![vec![wanted("w", &shape, region.clone())]]);
        assert_eq!(got[0][0].to_vec::<i32>().unwrap(), numbers(&shape, &region));
    }
    assert_eq!(damage(&big), [""; 0]);
    assert!(open(&big).producer().notes[0].contains("big-endian"));

    // A flipped bit is noticed when all of the slice is read.
    let mut damaged = files;
    damaged.get_mut(".data-00000-of-00001").unwrap()[3] ^= 1;
    let damaged = place(&damaged);
    assert_eq!(damage(&damaged).len(), 1);
    let got = super::try_load(
        &damaged,
        vec![vec![wanted("w", &shape, Region::whole(&shape))]],
    );
    let e = got.into_iter().next().unwrap().unwrap_err();
    assert!(
        e.error.to_string().contains("a part of w is damaged"),
        "{}",
        e.error
    );
}

/// Elements of a type that only TensorFlow has.
fn opaque(name: &str, shape: &[i64], stored: &'static [u8]) -> Value {
    Value::Opaque(Box::new(Opaque {
        module: "tensorflow".into(),
        name: name.into(),
        construct: Construct::Reduce(vec![
            Value::Tuple(shape.iter().map(|n| Value::Int(*n)).collect()),
            Value::Bytes(bytes::Bytes::from_static(stored)),
        ]),
        state: None,
        items: Vec::new(),
        pairs: Vec::new(),
    }))
}

/// A checkpoint of one rank.
fn saved(tensors: &[(&str, Tensor)], objects: &[(&str, Value)]) -> Files {
    let leaves = tensors
        .iter()
        .map(|(key, tensor)| ShardedTensor::full(key, tensor.clone()));
    let mut flat = numbered::flat(leaves);
    for (key, value) in objects {
        let object = ShardedObject::item(key, Payload::Value(value.clone()));
        flat.insert(Path(vec![(*key).into()]), Sharded::Object(object));
    }
    let rank = Rank {
        strategy: Arc::new(TensorBundleConfig::default().into()),
        planner: Arc::new(numbered::Unvalidated) as _,
        flat,
    };
    let place = store();
    for saved in save_on_ranks(&place, IfExists::Refuse, vec![rank]) {
        drop(saved.unwrap());
    }
    files(&place)
}

fn object(place: &Arc<dyn Store>, key: &str) -> reshard_strategy::Result<Value> {
    let reader = open(place);
    let reads = [ReadObject {
        object: reader.metadata().object(key).unwrap(),
    }];
    let none = Progress::none();
    let read = block_on(reader.read_objects(&reads, &ReadCx::new(true, &none)))?;
    let [Payload::Encoded { bytes, .. }] = &read[..] else {
        unreachable!("{read:?}")
    };
    Ok(reader.codec().decode(bytes).unwrap())
}

#[test]
fn halves_of_complex_numbers_are_swapped_each_by_itself_and_words_of_other_types_by_their_size() {
    let counted = |dtype: DType, shape: &[u64]| {
        let bytes = shape.iter().product::<u64>() * dtype.size();
        Tensor::new(dtype, shape, (0..bytes as u8).collect::<Vec<u8>>()).unwrap()
    };
    let tensors = [
        ("a", counted(DType::Complex64, &[2, 3])),
        ("b", counted(DType::Complex128, &[2])),
        ("c", counted(DType::BFloat16, &[5])),
        ("d", counted(DType::Float16, &[])),
    ];
    let objects = [
        (
            "e",
            opaque("qint32", &[2, 1], b"\x01\x02\x03\x04\x05\x06\x07\x08"),
        ),
        ("f", opaque("quint16", &[3], b"\x01\x02\x03\x04\x05\x06")),
        ("g", opaque("quint8", &[3], b"\x01\x02\x03")),
    ];
    let little = saved(&tensors, &objects);
    let big = swapped(&little);
    assert_ne!(little[DATA], big[DATA]);
    let place = place(&big);
    assert_eq!(damage(&place), [""; 0]);
    for (key, tensor) in &tensors {
        let whole = Region::whole(tensor.shape());
        let leaf = ShardedTensor::region_of(key, tensor.dtype(), tensor.shape(), whole);
        let got = load(&place, vec![vec![leaf]]);
        assert_eq!(got[0][0].to_bytes(), tensor.to_bytes(), "{key}");
    }
    for (key, value) in &objects {
        assert_eq!(object(&place, key).unwrap(), *value, "{key}");
    }
}

#[test]
fn lengths_of_strings_and_their_checksum_are_words_and_the_strings_are_none() {
    let list = Value::List(vec!["ab".into(), "".into(), "é".into()]);
    let objects = [("list", list), ("one", Value::from("only"))];
    let little = saved(&[], &objects);
    let big = swapped(&little);
    let sound = place(&big);
    assert_eq!(damage(&sound), [""; 0]);
    for (key, value) in &objects {
        assert_eq!(object(&sound, key).unwrap(), *value, "{key}");
    }

    // The lengths, then their checksum, then the strings.
    let entries = testkit::entries_of(&big[".index"]).unwrap();
    let (_, entry) = entries.iter().find(|(key, _)| key == b"list").unwrap();
    let at = EntryFields::parse(entry).unwrap().offset as usize;
    for (byte, what) in [
        (at + 4, "the lengths of strings are damaged"),
        (at + 7, "list is damaged: its CRC-32C is"),
    ] {
        let mut files = big.clone();
        files.get_mut(DATA).unwrap()[byte] ^= 1;
        let damaged = place(&files);
        let error = object(&damaged, "list").unwrap_err().to_string();
        assert!(error.contains(what), "{error}");
        let found = damage(&damaged);
        assert!(found.len() == 1 && found[0].contains(what), "{found:?}");
    }
    // With the order of the other half of all machines the checksum of lengths is another one.
    let mut files = big;
    let data = files.get_mut(DATA).unwrap();
    data[at + 3..at + 7].reverse();
    let error = object(&place(&files), "list").unwrap_err().to_string();
    assert!(
        error.contains("the lengths of strings are damaged"),
        "{error}"
    );
}

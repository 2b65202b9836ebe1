//! Folders of arrays that zarr-python and TensorStore wrote.

use super::{files, load, open, place, try_load};
use futures::executor::block_on;
use proptest::prelude::*;
use reshard_model::{DType, Dialect, ErrorKind, Region, ShardedTensor, Tensor};
use reshard_storage::{Entry, LocalStore, Name, Progress, Store};
use reshard_strategy::{FileRole, LoadShardedStrategy, OpenCx, VerifyReport};
use reshard_zarr::ZarrLoadConfig;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::PathBuf,
    sync::{Arc, LazyLock},
};

type Files = BTreeMap<String, Vec<u8>>;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

static EXPECTED: LazyLock<BTreeMap<String, Value>> = LazyLock::new(|| {
    let text = fs::read(folder().join("expected.json")).unwrap();
    serde_json::from_slice(&text).unwrap()
});

/// The files of a case, in memory.
fn case(name: &str) -> Files {
    let store: Arc<dyn Store> = Arc::new(LocalStore::at(folder().join(name)).unwrap());
    files(&store)
}

fn stored(files: &Files) -> Arc<dyn Store> {
    place(files)
}

struct Want {
    dtype: DType,
    shape: Vec<u64>,
    sha256: String,
    missing: u64,
}

fn wants(case: &str) -> BTreeMap<String, Want> {
    let tensors = EXPECTED[case]["tensors"].as_object().unwrap();
    let want = |of: &Value| Want {
        dtype: of["dtype"].as_str().unwrap().parse().unwrap(),
        shape: of["shape"]
            .as_array()
            .unwrap()
            .iter()
            .map(|n| n.as_u64().unwrap())
            .collect(),
        sha256: of["sha256"].as_str().unwrap().into(),
        missing: of["missing"].as_u64().unwrap(),
    };
    tensors
        .iter()
        .map(|(key, of)| (key.clone(), want(of)))
        .collect()
}

fn whole(files: &Files, key: &str, want: &Want) -> Tensor {
    let leaf = ShardedTensor::region_of(key, want.dtype, &want.shape, Region::whole(&want.shape));
    load(&stored(files), vec![vec![leaf]]).remove(0).remove(0)
}

fn hash(tensor: &Tensor) -> String {
    let sum = Sha256::digest(tensor.to_bytes());
    sum.iter().map(|b| format!("{b:02x}")).collect()
}

fn verified(files: &Files) -> VerifyReport {
    let reader = open(&stored(files), Dialect::Dcp);
    block_on(reader.verify(true, &Progress::none())).unwrap()
}

/// The error of a load of one whole tensor.
fn refused(files: &Files, case: &str, key: &str) -> (ErrorKind, String) {
    let want = &wants(case)[key];
    let leaf = ShardedTensor::region_of(key, want.dtype, &want.shape, Region::whole(&want.shape));
    let failed = try_load(&stored(files), vec![vec![leaf]]).remove(0);
    let e = failed.map(drop).unwrap_err().error;
    (e.kind(), e.to_string())
}

#[test]
fn every_array_has_the_elements_that_the_other_program_reads() {
    let mut arrays = 0;
    for name in EXPECTED.keys() {
        let files = case(name);
        let reader = open(&stored(&files), Dialect::Dcp);
        let keys: BTreeSet<String> = reader
            .metadata()
            .tensors()
            .map(|t| t.key().into())
            .collect();
        let wants = wants(name);
        assert_eq!(keys, wants.keys().cloned().collect(), "{name}");
        for (key, want) in &wants {
            let found = reader.metadata().tensor(key).unwrap();
            assert_eq!(
                (found.dtype(), &found.shape()[..]),
                (want.dtype, &want.shape[..]),
                "{name}/{key}"
            );
            assert_eq!(hash(&whole(&files, key, want)), want.sha256, "{name}/{key}");
            arrays += 1;
        }
    }
    assert!(arrays > 120, "{arrays}");
}

#[test]
fn what_is_not_known_is_refused_by_name_for_its_array_alone() {
    for name in EXPECTED.keys() {
        let reader = open(&stored(&case(name)), Dialect::Dcp);
        let unknown = reader.producer().unknown;
        let refused = EXPECTED[name]["refused"].as_object().unwrap();
        assert_eq!(
            unknown.keys().collect::<Vec<_>>(),
            refused.keys().collect::<Vec<_>>(),
            "{name}"
        );
        for (key, names) in refused {
            let what = &unknown[key];
            assert!(
                what.contains(names.as_str().unwrap()),
                "{name}/{key}: {what}"
            );
            assert_eq!(
                reader.permits(key).unwrap_err().kind(),
                ErrorKind::Unsupported
            );
        }
        let report = verified(&case(name));
        assert_eq!(report.not_understood.len(), refused.len(), "{name}");
        assert!(report.damage.is_empty(), "{name}: {:?}", report.damage);
    }
}

#[test]
fn chunks_that_are_not_stored_are_counted() {
    for name in EXPECTED.keys() {
        let all = open(&stored(&case(name)), Dialect::Dcp).producer().notes;
        let about_types = |note: &&String| note.contains(" and are read as ");
        let types: Vec<&str> = all
            .iter()
            .filter(about_types)
            .map(|note| note.split(':').next().unwrap())
            .collect();
        let is_read_as_another = |key: &&String| {
            ["moments", "durations", "int2", "int4"]
                .iter()
                .any(|name| key.starts_with(name))
        };
        let keys = wants(name);
        let read_as_others: Vec<_> = keys.keys().filter(is_read_as_another).collect();
        assert_eq!(types, read_as_others, "{name}");
        let notes: Vec<_> = all.iter().filter(|note| !about_types(note)).collect();
        let missing: Vec<String> = wants(name)
            .iter()
            .filter(|(_, want)| want.missing > 0)
            .map(|(key, want)| format!("{key}: {} of ", want.missing))
            .collect();
        assert_eq!(notes.len(), missing.len(), "{name}: {notes:?}");
        for (note, missing) in notes.iter().zip(missing) {
            assert!(
                note.starts_with(&missing),
                "{name}: {note} is not about {missing}"
            );
        }
    }
}

#[test]
fn a_folder_of_the_file_system_reads_as_one_in_memory() {
    let store: Arc<dyn Store> = Arc::new(LocalStore::at(folder().join("v3")).unwrap());
    let want = &wants("v3")["sharded_zstd"];
    let leaf = ShardedTensor::region_of(
        "sharded_zstd",
        want.dtype,
        &want.shape,
        Region::whole(&want.shape),
    );
    let found = load(&store, vec![vec![leaf]]).remove(0).remove(0);
    assert_eq!(hash(&found), want.sha256);
}

/// The stored files of an array, by their names in it.
fn chunks_of(files: &Files, key: &str) -> Vec<String> {
    let prefix = format!("{key}/");
    let is_chunk = |name: &&String| {
        name.strip_prefix(&prefix)
            .is_some_and(|rest| !rest.starts_with('.') && rest != "zarr.json")
    };
    files.keys().filter(is_chunk).cloned().collect()
}

#[test]
fn a_cut_chunk_is_damage_that_names_file_and_codec() {
    for (name, key, codec) in [
        ("v2", "gzip", "gzip"),
        ("v2", "zlib", "zlib"),
        ("v2", "zstd", "zstd"),
        ("v2", "blosc", "blosc"),
        ("v2", "bz2", "bz2"),
        ("v2", "lz4", "lz4"),
        ("v2", "delta", "delta"),
        ("v2", "shuffle", "zlib"),
        ("v2", "scale_ints", "fixedscaleoffset"),
        ("v2", "packbits", "packbits"),
        ("v2", "fletcher32", "fletcher32"),
        ("v2", "adler32", "adler32"),
        ("v2", "crc32_end", "crc32"),
        ("v3", "crc32c", "crc32c"),
        ("v3", "sharded_zstd", ""),
        ("v2", "plain", "it has"),
        ("v3", "big", "it has"),
    ] {
        let mut files = case(name);
        let file = chunks_of(&files, key)[0].clone();
        files.get_mut(&file).unwrap().pop();
        let (kind, said) = refused(&files, name, key);
        assert_eq!(kind, ErrorKind::Corrupt, "{said}");
        assert!(
            said.contains(&file) && said.contains(codec) && said.contains(key),
            "{said}"
        );
        let report = verified(&files);
        let [found] = &report.damage[..] else {
            panic!("{name}/{key}: {:?}", report.damage)
        };
        assert_eq!(found.file.as_deref(), Some(&*file));
        // The others are not concerned.
        let plain = &wants(name)["layers/0/bias"];
        assert_eq!(hash(&whole(&files, "layers/0/bias", plain)), plain.sha256);
    }
}

/// Changes the index of the first shard of an array of 6 inner chunks, and makes its checksum right.
fn with_index(key: &str, change: impl FnOnce(&mut [u64])) -> Files {
    let mut files = case("v3");
    let name = chunks_of(&files, key)[0].clone();
    let shard = files.get_mut(&name).unwrap();
    let at = shard.len() - 6 * 16 - 4;
    let entries = shard.split_off(at);
    let mut words: Vec<u64> = entries[..96]
        .as_chunks::<8>()
        .0
        .iter()
        .map(|n| u64::from_le_bytes(*n))
        .collect();
    change(&mut words);
    let words: Vec<u8> = words.iter().flat_map(|n| n.to_le_bytes()).collect();
    shard.extend_from_slice(&words);
    shard.extend(crc32c(&words).to_le_bytes());
    files
}

/// Bit by bit, as the polynomial is defined.
pub(super) fn crc32c(bytes: &[u8]) -> u32 {
    let step = |crc: u32, byte: &u8| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            (crc >> 1) ^ (0x82f6_3b78 & 0u32.wrapping_sub(crc & 1))
        })
    };
    !bytes.iter().fold(!0, step)
}

#[test]
fn every_damage_of_an_index_has_its_verdict() {
    let sound = with_index("sharded", |_| {});
    assert!(verified(&sound).damage.is_empty());
    let outside = with_index("sharded", |words| words[2] = 1 << 40);
    let overlapping = with_index("sharded", |words| words[2] = words[0] + 4);
    let short = with_index("sharded", |words| words[1] -= 4);
    let mut wrong = sound.clone();
    let file = chunks_of(&wrong, "sharded")[0].clone();
    *wrong.get_mut(&file).unwrap().last_mut().unwrap() ^= 1;
    let mut cut = sound.clone();
    cut.get_mut(&file).unwrap().truncate(50);
    for (files, said) in [
        (
            outside,
            "inner chunk 1 of 24 bytes at byte 1099511627776 does not lie in its shard",
        ),
        (overlapping, "lie in each other"),
        (short, "it has 20 bytes, but a chunk of sharded has 24"),
        (wrong, "the CRC-32C of the index of a shard is"),
        (cut, "too short for the index of 6 inner chunks"),
    ] {
        let report = verified(&files);
        let [found] = &report.damage[..] else {
            panic!("{said}: {:?}", report.damage)
        };
        assert!(found.what.contains(said), "{found}");
        assert_eq!(
            (found.key.as_deref(), found.file.as_deref()),
            (Some("sharded"), Some(&*file))
        );
        let (kind, error) = refused(&files, "v3", "sharded");
        assert_eq!(kind, ErrorKind::Corrupt);
        assert!(error.contains(said), "{error}");
        // What lies in the other shards can be read.
        let rest = Region::new([6, 0], [4, 9]);
        let leaf = || ShardedTensor::region_of("sharded", DType::Float32, &[10, 9], rest.clone());
        let found = load(&stored(&files), vec![vec![leaf()]])
            .remove(0)
            .remove(0);
        let want = load(&stored(&sound), vec![vec![leaf()]])
            .remove(0)
            .remove(0);
        assert_eq!(found.to_bytes(), want.to_bytes());
    }
}

#[test]
fn files_of_arrays_and_groups_have_their_roles() {
    for name in ["v2", "v3", "lone_v2", "lone_v3", "tensorstore_v2"] {
        let files = case(name);
        let reader = open(&stored(&files), Dialect::Dcp);
        for file in files.keys() {
            let entry = Entry {
                name: Name::new(file.as_str()).unwrap(),
                bytes: 1,
            };
            assert_ne!(reader.role(&entry), FileRole::Foreign, "{name}: {file}");
        }
        let other = Entry {
            name: Name::new("plain/notes.txt").unwrap(),
            bytes: 1,
        };
        assert_eq!(reader.role(&other), FileRole::Foreign);
    }
}

#[test]
fn a_chunk_that_would_take_more_memory_than_is_allowed_is_refused() {
    let strategy = LoadShardedStrategy::new(ZarrLoadConfig::default());
    let mut cx = OpenCx::new(stored(&case("v2")));
    cx.limits = cx.limits.with_max_whole(1000);
    let reader = block_on(strategy.open(&cx)).unwrap();
    let report = block_on(reader.verify(true, &Progress::none())).unwrap();
    let keys: BTreeSet<_> = report
        .not_read
        .iter()
        .filter_map(|found| found.key.as_deref())
        .collect();
    assert_eq!(keys, ["all", "blosc", "blosc_bits", "lz4"].into());
}

/// An array of bytes in one chunk of zstd, which has 4 bytes for each 128 KiB of zeros.
fn blown_up(blocks: u64) -> Files {
    const BLOCK: u64 = 128 << 10;
    let array = json!({
        "zarr_format": 3, "node_type": "array", "shape": [blocks * BLOCK], "data_type": "uint8", "fill_value": 0,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [blocks * BLOCK]}},
        "chunk_key_encoding": "default", "codecs": ["bytes", "zstd"],
    });
    let mut chunk = b"\x28\xb5\x2f\xfd\x00\x38".to_vec();
    for n in 1..=blocks {
        let header = u32::from(n == blocks) | 1 << 1 | (BLOCK as u32) << 3;
        chunk.extend_from_slice(&header.to_le_bytes());
    }
    Files::from([
        ("a/zarr.json".into(), array.to_string().into_bytes()),
        ("a/c/0".into(), chunk),
    ])
}

#[test]
fn a_chunk_of_few_bytes_and_very_many_elements_is_not_decoded_for_a_check() {
    let open = |blocks| {
        let strategy = LoadShardedStrategy::new(ZarrLoadConfig::default());
        block_on(strategy.open(&OpenCx::new(stored(&blown_up(blocks))))).unwrap()
    };
    let verify = |blocks| block_on(open(blocks).verify(true, &Progress::none())).unwrap();
    let report = verify(8);
    assert!(
        report.not_read.is_empty() && report.bytes == 38,
        "{report:?}"
    );
    let report = verify(2049);
    let said: Vec<_> = report.not_read.iter().map(|found| &*found.what).collect();
    assert!(
        matches!(&said[..], [one] if one.contains("268566528 bytes of elements share 8202 stored bytes")),
        "{said:?}"
    );
    assert!(report.damage.is_empty() && report.bytes == 0, "{report:?}");
}

fn part(shape: &[u64]) -> impl Strategy<Value = Region> + use<> {
    let axis = |n: &u64| {
        (0..*n).prop_flat_map({
            let n = *n;
            move |from| (Just(from), 1..=n - from)
        })
    };
    shape.iter().map(axis).collect::<Vec<_>>().prop_map(|axes| {
        let (offsets, lengths): (Vec<u64>, Vec<u64>) = axes.into_iter().unzip();
        Region::new(offsets, lengths)
    })
}

static ALL: LazyLock<BTreeMap<&str, Files>> = LazyLock::new(|| {
    ["v2", "v3"]
        .into_iter()
        .map(|name| (name, case(name)))
        .collect()
});

proptest! {
    #![proptest_config(reshard_model::testkit::law(256))]
    #[test]
    fn a_part_of_an_array_is_that_part_of_the_whole(
        (name, key, parts) in prop::sample::select(
            ["v2", "v3"].into_iter().flat_map(|name| wants(name).into_iter().map(move |(key, want)| (name, key, want.shape))).collect::<Vec<_>>()
        ).prop_flat_map(|(name, key, shape)| (Just(name), Just(key), prop::collection::vec(part(&shape), 1..4))),
    ) {
        let (files, want) = (&ALL[name], &wants(name)[&key]);
        let all = whole(files, &key, want);
        let leaf = |region: &Region| ShardedTensor::region_of(&key, want.dtype, &want.shape, region.clone());
        let found = load(&stored(files), vec![parts.iter().map(leaf).collect()]).remove(0);
        for (found, region) in found.iter().zip(&parts) {
            prop_assert_eq!(found.to_bytes(), all.narrow(region).to_bytes(), "{}/{} {}", name, key, region);
        }
    }

    #[test]
    fn changed_bytes_never_make_a_reader_panic(
        name in prop::sample::select(vec!["v2", "v3"]), at in any::<prop::sample::Index>(), in_file in any::<prop::sample::Index>(), byte: u8, cut: bool,
    ) {
        let mut files = ALL[name].clone();
        let names: Vec<String> = files.keys().filter(|name| !files[*name].is_empty()).cloned().collect();
        let file = files.get_mut(at.get(&names)).unwrap();
        let place = in_file.index(file.len());
        if cut {
            file.truncate(place);
        } else {
            file[place] = byte;
        }
        let strategy = LoadShardedStrategy::new(ZarrLoadConfig::default());
        if let Ok(reader) = block_on(strategy.open(&OpenCx::new(stored(&files)))) {
            drop(block_on(reader.verify(true, &Progress::none())));
            drop(reader.producer());
        }
    }
}

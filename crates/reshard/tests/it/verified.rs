//! What `verify` counts, and what it says of what can't be looked at.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use futures::executor::block_on;
use reshard::{
    Dialect, ShardedObject, ShardedTensor, StateDict, Tensor, Value, blocking,
    plan::Entry,
    storage::{LocalStore, Progress, Store},
    strategy::{LoadShardedStrategy, OpenCx, StorageReader, VerifyReport},
    torch_dist::TorchDistLoadConfig,
};
use reshard_storage::testkit::{Fault, FaultStore, Op};
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

/// Three tensors, one of them above what is checked at once, and two objects; PyTorch's dialect.
fn saved() -> (tempfile::TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    let url = dir.path().join("x").display().to_string();
    let mut state = StateDict::new();
    for (key, elements) in [("small", 10u64), ("middle", 5_000), ("large", 3 << 20)] {
        let tensor =
            Tensor::from_vec(&[elements], (0..elements).map(|i| i as f32).collect()).unwrap();
        state.insert(key, ShardedTensor::full(key, tensor));
    }
    for i in 0..2 {
        let object = ShardedObject::new("o", Value::Int(i), &[2], &[i as u64], 0).unwrap();
        state.insert(format!("o{i}"), object);
    }
    blocking::run(reshard::save(&state, &url).dialect(Dialect::Dcp)).unwrap();
    (dir, url)
}

fn open(store: Arc<dyn Store>) -> Arc<dyn StorageReader> {
    block_on(LoadShardedStrategy::new(TorchDistLoadConfig::default()).open(&OpenCx::new(store)))
        .unwrap()
}

/// The report, and the bytes that were told while it was made.
fn verify(reader: &dyn StorageReader, full: bool) -> (VerifyReport, u64) {
    let told = Arc::new(AtomicU64::new(0));
    let tell = Arc::clone(&told);
    let progress = Progress::new(move |n| {
        tell.fetch_add(n, Ordering::Relaxed);
    });
    (
        block_on(reader.verify(full, &progress)).unwrap(),
        told.load(Ordering::Relaxed),
    )
}

/// Stored bytes of all items.
fn stored(reader: &dyn StorageReader) -> u64 {
    let metadata = reader.metadata();
    let parts = metadata.entries().flat_map(|entry| match entry {
        Entry::Tensor(t) => t
            .chunks()
            .flat_map(|(id, _)| reader.locate_chunk(id))
            .collect::<Vec<_>>(),
        Entry::Object(id, _) => reader.locate_object(id),
    });
    parts.map(|part| part.range.end - part.range.start).sum()
}

#[test]
fn all_items_and_their_bytes_are_counted() {
    let (_dir, url) = saved();
    let reader = open(Arc::new(LocalStore::open(&url).unwrap()));
    let (report, told) = verify(&*reader, true);
    assert_eq!((report.items, report.bytes), (5, stored(&*reader)));
    // Descriptions of a large one are looked at before its records are.
    assert!(
        told >= report.bytes && told < report.bytes + (64 << 10),
        "{told}"
    );
    let (quick, told) = verify(&*reader, false);
    assert_eq!((quick.items, quick.bytes, told), (5, 0, 0));
}

#[test]
fn a_file_that_is_not_listed_is_missing_or_not_a_file_or_can_not_be_looked_at() {
    let (dir, url) = saved();
    let file = dir.path().join("x/__0_0.distcp");
    let aside = dir.path().join("aside");
    std::fs::rename(&file, &aside).unwrap();
    let of = |store: Arc<dyn Store>| verify(&*open(store), false).0;
    let local = || Arc::new(LocalStore::open(&url).unwrap());
    let report = of(local());
    assert_eq!((report.damage.len(), report.unchecked.len()), (5, 0));
    assert!(
        report
            .damage
            .iter()
            .all(|d| d.what == "its file is missing"),
        "{report:?}"
    );

    std::fs::create_dir(&file).unwrap();
    let report = of(local());
    assert_eq!((report.damage.len(), report.unchecked.len()), (5, 0));
    assert!(
        report
            .damage
            .iter()
            .all(|d| d.what.starts_with("its file can't be read: ")),
        "{report:?}"
    );

    std::fs::remove_dir(&file).unwrap();
    let store = FaultStore::new(local());
    let reader = open(Arc::new(store.clone()));
    for _ in 0..5 {
        store.fail(Op::Read, 0, Fault::Before);
    }
    let report = verify(&*reader, false).0;
    assert!(
        report.damage.len() < 5 && !report.unchecked.is_empty(),
        "what the disk refuses is no damage: {report:?}"
    );
}

#[test]
fn a_large_tensor_that_is_described_otherwise_than_the_metadata_say_is_damaged() {
    let (dir, url) = saved();
    let file = dir.path().join("x/__0_0.distcp");
    let mut bytes = std::fs::read(&file).unwrap();
    // The description of the large one says another type; its checksum says so, too.
    let reader = open(Arc::new(LocalStore::open(&url).unwrap()));
    let (chunk, _) = reader
        .metadata()
        .tensor("large")
        .unwrap()
        .chunks()
        .next()
        .unwrap();
    let at = reader.locate_chunk(chunk).remove(0).range.start as usize;
    let name = bytes[at..]
        .windows(12)
        .position(|w| w == b"FloatStorage")
        .unwrap()
        + at;
    bytes[name] = b'H';
    std::fs::write(&file, bytes).unwrap();
    let report = verify(&*reader, true).0;
    assert_eq!(report.damage.len(), 1, "{report:?}");
    assert_eq!(report.damage[0].key.as_deref(), Some("large"));
}

#[test]
fn every_copy_in_a_rank_local_checkpoint_is_checked() {
    let fixtures = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures");
    let home = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(fixtures.join("dcp/rank_local_w2/ckpt"))
        .unwrap()
        .map(Result::unwrap)
    {
        std::fs::copy(entry.path(), home.path().join(entry.file_name())).unwrap();
    }
    let url = home.path().display().to_string();
    let damage = || {
        blocking::Checkpoint::open(&url)
            .unwrap()
            .verify(true, Progress::none())
            .unwrap()
            .damage
    };
    assert_eq!(damage(), []);
    for file in ["__0_0.distcp", "__1_0.distcp"] {
        let path = home.path().join(file);
        let sound = std::fs::read(&path).unwrap();
        let mut records = 0;
        for at in (0..sound.len() - 30).filter(|at| sound[*at..].starts_with(b"PK\x03\x04")) {
            // The first byte of its content, whichever item it belongs to.
            let length = |at: usize| usize::from(u16::from_le_bytes([sound[at], sound[at + 1]]));
            let mut bytes = sound.clone();
            bytes[at + 30 + length(at + 26) + length(at + 28)] ^= 0x40;
            std::fs::write(&path, bytes).unwrap();
            assert!(
                damage().iter().any(|d| d.file.as_deref() == Some(file)),
                "{file}, the record at {at}"
            );
            records += 1;
        }
        assert!(records > 4, "{file} has {records} records");
        std::fs::write(&path, sound).unwrap();
    }
}

//! Damaged checkpoints, each with a verdict, and what a load says of it.

use super::{files, load, open, piece, place, save, store, try_load, wanted};
use futures::executor::block_on;
use proptest::prelude::*;
use reshard_model::{Dialect, ErrorKind, Region, ShardedTensor};
use reshard_storage::{Entry, Name, Progress, Store};
use reshard_strategy::{FileRole, VerifyReport};
use std::{collections::BTreeMap, sync::Arc};

type Files = BTreeMap<String, Vec<u8>>;

/// Two arrays, each of rows of two ranks. With reshard's record, or as Megatron Core leaves it.
fn saved(with_record: bool) -> Files {
    let place = store();
    let half = |rank: u64| {
        let rows = Region::new([2 * rank, 0], [2, 3]);
        vec![
            piece("w", &[4, 3], rows),
            piece("v", &[4], Region::new([2 * rank], [2])),
        ]
    };
    save(&place, vec![half(0), half(1)]);
    let mut found = files(&place);
    if !with_record {
        found.remove("reshard-zarr.json");
    }
    found
}

fn w() -> ShardedTensor {
    wanted("w", &[4, 3], Region::whole(&[4, 3]))
}

fn v() -> ShardedTensor {
    wanted("v", &[4], Region::whole(&[4]))
}

fn verified(files: &Files, dialect: Dialect) -> VerifyReport {
    let reader = open(&place(files), dialect);
    block_on(reader.verify(true, &Progress::none())).unwrap()
}

/// The one finding of a list.
fn one(list: &[reshard_strategy::Damage]) -> String {
    match list {
        [found] => found.to_string(),
        all => panic!("{} findings: {all:?}", all.len()),
    }
}

fn load_error(files: &Files, leaf: ShardedTensor) -> (ErrorKind, String) {
    let e = try_load(&place(files), vec![vec![leaf]])
        .remove(0)
        .map(drop)
        .unwrap_err()
        .error;
    (e.kind(), e.to_string())
}

/// The other array is not concerned.
fn v_is_sound(files: &Files) {
    let loaded = load(&place(files), vec![vec![v()]]);
    assert_eq!(loaded[0][0].to_vec::<i32>().unwrap(), [0, 1, 2, 3]);
}

#[test]
fn a_sound_checkpoint_has_no_findings() {
    for with_record in [true, false] {
        for dialect in [Dialect::Megatron, Dialect::Dcp] {
            let report = verified(&saved(with_record), dialect);
            assert!(
                report.damage.is_empty() && report.not_understood.is_empty(),
                "{report:?}"
            );
            assert_eq!((report.items, report.bytes), (4, 64));
        }
    }
}

#[test]
fn a_missing_chunk_is_the_fill_value_and_megatron_core_would_have_written_it() {
    let mut files = saved(false);
    files.remove("w/1.0");
    let found = one(&verified(&files, Dialect::Megatron).damage);
    assert!(found.starts_with("w: w/1.0: it is missing"), "{found}");
    assert!(verified(&files, Dialect::Dcp).damage.is_empty());
    let loaded = load(&place(&files), vec![vec![w()]]);
    assert_eq!(
        loaded[0][0].to_vec::<i32>().unwrap(),
        [0, 1, 2, 3, 4, 5, 0, 0, 0, 0, 0, 0]
    );
    let notes = open(&place(&files), Dialect::Dcp).producer().notes;
    assert_eq!(
        notes,
        ["w: 1 of 2 chunks are not stored; their elements are the fill value"]
    );
}

#[test]
fn fill_values_stand_for_chunks_that_are_not_stored() {
    let mut files = saved(false);
    for chunk in ["w/0.0", "w/1.0"] {
        files.remove(chunk);
    }
    let text = String::from_utf8(files["w/.zarray"].clone()).unwrap();
    let text = text.replace("\"fill_value\": null", "\"fill_value\": -7");
    files.insert("w/.zarray".into(), text.into());
    let part = wanted("w", &[4, 3], Region::new([1, 1], [2, 2]));
    let loaded = load(&place(&files), vec![vec![part, w()]]);
    assert_eq!(loaded[0][0].to_vec::<i32>().unwrap(), [-7; 4]);
    assert_eq!(loaded[0][1].to_vec::<i32>().unwrap(), [-7; 12]);

    // Megatron Core writes every chunk, so those that are not there are damage. Other programs leave out what is the fill value.
    let report = verified(&files, Dialect::Megatron);
    let told: Vec<String> = report.damage.iter().map(ToString::to_string).collect();
    assert!(
        told.len() == 2
            && told[0].starts_with("w: w/0.0: it is missing")
            && told[1].starts_with("w: w/1.0: it is missing"),
        "{told:?}"
    );
    assert!(verified(&files, Dialect::Dcp).damage.is_empty());
    let notes = open(&place(&files), Dialect::Dcp).producer().notes;
    assert_eq!(
        notes,
        ["w: 2 of 2 chunks are not stored; their elements are the fill value"]
    );
}

#[test]
fn a_chunk_that_reshard_wrote_and_that_is_missing_is_damage() {
    let mut files = saved(true);
    files.remove("w/1.0");
    let found = one(&verified(&files, Dialect::Dcp).damage);
    assert!(
        found.starts_with("w: w/1.0: it is missing, and it holds a chunk of w"),
        "{found}"
    );
    let (kind, said) = load_error(&files, w());
    assert_eq!(kind, ErrorKind::Corrupt);
    assert!(said.contains("w/1.0: it is missing"), "{said}");
    v_is_sound(&files);
}

#[test]
fn a_short_or_long_chunk_is_named_with_both_lengths() {
    for (bytes, with_record) in [(23, false), (25, false), (0, true), (48, true)] {
        let mut files = saved(with_record);
        files.get_mut("w/1.0").unwrap().resize(bytes, 0);
        let want = format!("w/1.0: it has {bytes} bytes, but a chunk of w has 24");
        let found = one(&verified(&files, Dialect::Megatron).damage);
        assert_eq!(found, format!("w: {want}"));
        let (kind, said) = load_error(&files, w());
        assert_eq!(kind, ErrorKind::Corrupt);
        assert!(said.contains(&want), "{said}");
        v_is_sound(&files);
    }
}

/// Megatron Core writes none.
#[test]
fn chunks_without_a_checksum_are_counted() {
    for (with_record, without) in [(true, 0), (false, 4)] {
        let files = saved(with_record);
        let report = verified(&files, Dialect::Megatron);
        assert_eq!((report.items, report.without_checksum), (4, without));
        let reader = open(&place(&files), Dialect::Megatron);
        let quick = block_on(reader.verify(false, &Progress::none())).unwrap();
        assert_eq!(quick.without_checksum, 0, "nothing was read");
    }
}

#[test]
fn changed_bytes_are_found_by_their_checksum() {
    let mut files = saved(true);
    files.get_mut("w/0.0").unwrap()[5] ^= 1;
    let found = one(&verified(&files, Dialect::Dcp).damage);
    assert!(
        found.contains("w/0.0: a chunk of w is damaged") && found.contains("CRC-32"),
        "{found}"
    );
    let (kind, said) = load_error(&files, w());
    assert_eq!(kind, ErrorKind::Corrupt);
    assert!(said.contains("a chunk of w is damaged"), "{said}");
    v_is_sound(&files);
}

#[test]
fn a_damaged_description_concerns_its_array_alone() {
    let cut = saved(false)["w/.zarray"][..60].to_vec();
    for text in [cut, b"{}".to_vec(), vec![b' '; 2 << 20]] {
        let mut files = saved(false);
        files.insert("w/.zarray".into(), text);
        let report = verified(&files, Dialect::Megatron);
        let found = one(&report.damage);
        assert!(found.starts_with("w: w/.zarray: "), "{found}");
        let (kind, said) = load_error(&files, w());
        assert_eq!(kind, ErrorKind::Corrupt, "{said}");
        assert!(said.contains("w/.zarray: array w"), "{said}");
        v_is_sound(&files);
    }
}

#[test]
fn a_description_that_is_not_the_written_one_is_damage() {
    let mut files = saved(true);
    let text = String::from_utf8(files["w/.zarray"].clone()).unwrap();
    files.insert("w/.zarray".into(), text.replace("<i4", "<f4").into());
    let found = one(&verified(&files, Dialect::Dcp).damage);
    assert!(found.contains("not the one that was written"), "{found}");
    let mut files = saved(true);
    files.remove("w/.zarray");
    let found = one(&verified(&files, Dialect::Dcp).damage);
    assert!(
        found.contains("reshard-zarr.json names it, but its .zarray is not there"),
        "{found}"
    );
    assert_eq!(load_error(&files, w()).0, ErrorKind::Corrupt);
    v_is_sound(&files);
}

#[test]
fn lock_files_are_passed_over_and_left_over() {
    let mut files = saved(false);
    for name in ["w.sync/.zarray", "w.sync/0.0", "w.sync/1.0"] {
        files.insert(name.into(), Vec::new());
    }
    assert!(verified(&files, Dialect::Megatron).damage.is_empty());
    let reader = open(&place(&files), Dialect::Megatron);
    let keys: Vec<&str> = reader.metadata().tensors().map(|t| t.key()).collect();
    assert_eq!(keys, ["v", "w"]);
    assert_eq!(role(&*reader, "w.sync/0.0"), FileRole::Leftover);
    assert!(reader.owns(&Name::new("w.sync/0.0").unwrap()));
    assert_eq!(
        reader.producer().notes,
        ["3 lock files of Megatron Core lie beside arrays"]
    );

    // An array may have such a name.
    files.insert("w.sync/.zarray".into(), files["v/.zarray"].clone());
    assert!(
        open(&place(&files), Dialect::Megatron)
            .metadata()
            .tensor("w.sync")
            .is_some()
    );
}

#[test]
fn an_array_in_the_way_of_a_chunk_is_an_array_and_the_chunk_is_missing() {
    let mut files = saved(false);
    files.remove("w/1.0");
    files.insert("w/1.0/.zarray".into(), files["v/.zarray"].clone());
    files.insert("w/1.0/0".into(), vec![0; 8]);
    files.insert("w/1.0/1".into(), vec![0; 8]);
    let found = one(&verified(&files, Dialect::Megatron).damage);
    assert!(found.starts_with("w: w/1.0: it is a directory"), "{found}");
    assert!(
        open(&place(&files), Dialect::Megatron)
            .metadata()
            .tensor("w/1.0")
            .is_some()
    );
}

#[test]
fn more_chunks_than_can_be_described_are_not_read() {
    for (shape, chunks) in [("1000000000000000000", "1"), ("4000000000", "2")] {
        let mut files = saved(false);
        let text = String::from_utf8(files["v/.zarray"].clone()).unwrap();
        let text = text.replace("\n        4\n", &format!("\n        {shape}\n"));
        let text = text.replace("\n        2\n", &format!("\n        {chunks}\n"));
        files.insert("huge/.zarray".into(), text.into());
        let report = verified(&files, Dialect::Dcp);
        let found = one(&report.not_read);
        assert!(
            found.contains("huge") && found.contains("chunks"),
            "{found}"
        );
        v_is_sound(&files);
    }
}

/// A file of 200 bytes must not take a terabyte.
#[test]
fn an_array_of_fill_values_alone_has_a_limit() {
    let mut files = saved(false);
    let text = String::from_utf8(files["v/.zarray"].clone()).unwrap();
    let text = text.replace("\n        4\n", "\n        4000000000\n");
    let text = text.replace("\n        2\n", "\n        1000000000\n");
    files.insert("huge/.zarray".into(), text.into());
    let huge = wanted("huge", &[4_000_000_000], Region::new([5], [1]));
    let (kind, said) = load_error(&files, huge);
    assert_eq!(kind, ErrorKind::Limit, "{said}");
    assert!(
        said.contains("huge") && said.contains("allow_repeated"),
        "{said}"
    );
    v_is_sound(&files);
}

#[test]
fn a_type_that_is_not_known_is_refused_by_name_for_its_array_alone() {
    let mut files = saved(false);
    let text = String::from_utf8(files["w/.zarray"].clone()).unwrap();
    files.insert("w/.zarray".into(), text.replace("<i4", "|S4").into());
    let found = one(&verified(&files, Dialect::Megatron).not_understood);
    assert!(found.contains("w: ") && found.contains("|S4"), "{found}");
    let (kind, said) = load_error(&files, w());
    assert_eq!(kind, ErrorKind::Unsupported);
    assert!(said.contains("reading w") && said.contains("|S4"), "{said}");
    assert!(
        open(&place(&files), Dialect::Dcp)
            .producer()
            .unknown
            .contains_key("w")
    );
    v_is_sound(&files);
}

#[test]
fn chunks_beyond_the_shape_are_left_over_and_other_files_are_foreign() {
    let mut files = saved(true);
    for name in ["w/2.0", "w/notes.txt", "other/0", "w/0"] {
        files.insert(name.into(), vec![1]);
    }
    let reader = open(&place(&files), Dialect::Dcp);
    assert_eq!(role(&*reader, "w/2.0"), FileRole::Leftover);
    assert_eq!(role(&*reader, "w/.zarray"), FileRole::Part);
    assert_eq!(role(&*reader, "reshard-zarr.json"), FileRole::Part);
    for foreign in ["w/notes.txt", "other/0", "metadata.json"] {
        assert_eq!(role(&*reader, foreign), FileRole::Foreign, "{foreign}");
    }
    assert!(!reader.owns(&Name::new("w/notes.txt").unwrap()));
}

fn role(reader: &dyn reshard_strategy::StorageReader, name: &str) -> FileRole {
    reader.role(&Entry {
        name: Name::new(name).unwrap(),
        bytes: 1,
    })
}

proptest! {
    #![proptest_config(reshard_model::testkit::law(64))]

    /// Any bytes of a description, a record and a chunk.
    #[test]
    fn no_bytes_make_the_reader_panic(
        which in 0usize..3, at in 0usize..400, byte: u8, cut in any::<bool>(), with_record: bool,
    ) {
        let mut files = saved(with_record);
        let name = ["w/.zarray", "reshard-zarr.json", "w/0.0"][which];
        if let Some(bytes) = files.get_mut(name) {
            let at = at % bytes.len();
            match cut {
                true => bytes.truncate(at),
                false => bytes[at] = byte,
            }
        }
        let place: Arc<dyn Store> = place(&files);
        let strategy = reshard_strategy::LoadShardedStrategy::new(reshard_zarr::ZarrLoadConfig::default());
        let cx = reshard_strategy::OpenCx::new(Arc::clone(&place));
        if let Ok(reader) = block_on(strategy.open(&cx)) {
            block_on(reader.verify(true, &Progress::none())).unwrap();
            drop(try_load(&place, vec![vec![w(), v()]]));
        }
    }
}

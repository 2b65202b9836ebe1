//! Damaged checkpoints, each with a verdict, and what a load says of it.

use super::{Files, files, load, open, piece, place, save, store, try_load, try_open, wanted};
use futures::executor::block_on;
use proptest::prelude::*;
use reshard_model::{DType, ErrorKind, Region, ShardedTensor};
use reshard_safetensors::{INDEX, RECORD, SafetensorsConfig, SafetensorsLoadConfig};
use reshard_storage::{Entry, Name, Progress};
use reshard_strategy::{
    Damage, FileRole, LoadFormat, LoadShardedStrategy, OpenCx, ReadLimits, VerifyReport,
};
use std::sync::Arc;

pub(super) const FIRST: &str = "model-00001-of-00002.safetensors";
pub(super) const SECOND: &str = "model-00002-of-00002.safetensors";

/// `v` in the first file, `w` in the second. With reshard's record, or as another program leaves it.
pub(super) fn saved(with_record: bool) -> Files {
    let place = store();
    let config = SafetensorsConfig::default().with_max_shard_size(300);
    let half = |rank: u64| {
        let rows = Region::new([2 * rank, 0], [2, 3]);
        vec![
            piece("w", &[4, 3], rows),
            piece("v", &[4], Region::new([2 * rank], [2])),
        ]
    };
    save(&place, &config, vec![half(0), half(1)]);
    let mut found = files(&place);
    if !with_record {
        found.remove(RECORD);
    }
    found
}

/// The files of two ranks, with reshard's record or without.
pub(super) fn sharded(with_record: bool) -> Files {
    let place = store();
    let half = |rank: u64| vec![piece("w", &[4, 2], Region::new([2 * rank, 0], [2, 2]))];
    let config = SafetensorsConfig::default().with_sharded(true);
    save(&place, &config, vec![half(0), half(1)]);
    let mut found = files(&place);
    if !with_record {
        found.remove(RECORD);
    }
    found
}

pub(super) fn shard(n: u32) -> String {
    format!("shard-{n:05}-model-00001-of-00001.safetensors")
}

pub(super) fn w() -> ShardedTensor {
    wanted("w", &[4, 3], Region::whole(&[4, 3]))
}

pub(super) fn v() -> ShardedTensor {
    wanted("v", &[4], Region::whole(&[4]))
}

fn verified(files: &Files) -> VerifyReport {
    block_on(open(&place(files)).verify(true, &Progress::none())).unwrap()
}

/// The one finding of a list.
fn one(list: &[Damage]) -> String {
    match list {
        [found] => found.to_string(),
        all => panic!("{} findings: {all:?}", all.len()),
    }
}

/// What opening says.
fn unopened(files: &Files) -> String {
    let e = try_open(&place(files)).map(drop).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Corrupt, "{e}");
    e.to_string()
}

fn load_error(files: &Files, leaf: ShardedTensor) -> String {
    let e = try_load(&place(files), vec![vec![leaf]])
        .remove(0)
        .map(drop)
        .unwrap_err()
        .error;
    assert_eq!(e.kind(), ErrorKind::Corrupt, "{e}");
    e.to_string()
}

/// `w` is damaged, and `v` is not concerned.
fn w_alone(files: &Files, said: &str) {
    let found = one(&verified(files).damage);
    assert!(found.starts_with("w: ") && found.contains(said), "{found}");
    let e = load_error(files, w());
    assert!(e.contains(said) && e.contains("w"), "{e}");
    let loaded = load(&place(files), vec![vec![v()]]);
    assert_eq!(loaded[0][0].to_vec::<i32>().unwrap(), [0, 1, 2, 3]);
}

/// Changes the text of a header, and fits its length.
pub(super) fn edit(files: &mut Files, file: &str, from: &str, to: &str) {
    let bytes = &files[file];
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let text = String::from_utf8(bytes[8..8 + length].to_vec()).unwrap();
    assert!(text.contains(from), "{text}");
    let text = text.replace(from, to);
    let mut out = (text.len() as u64).to_le_bytes().to_vec();
    out.extend(text.bytes());
    out.extend(&bytes[8 + length..]);
    files.insert(file.into(), out);
}

pub(super) fn replace(files: &mut Files, file: &str, from: &str, to: &str) {
    let text = String::from_utf8(files[file].clone()).unwrap();
    assert!(text.contains(from), "{text}");
    files.insert(file.into(), text.replace(from, to).into());
}

#[test]
fn a_sound_checkpoint_has_no_findings() {
    for (found, items) in [
        (saved(true), 2),
        (saved(false), 2),
        (sharded(true), 2),
        (sharded(false), 2),
    ] {
        let report = verified(&found);
        let none = report.damage.is_empty() && report.not_understood.is_empty();
        assert!(none && report.items == items, "{report:?}");
    }
}

#[test]
fn a_header_that_changed_since_the_save_is_told() {
    let mut files = saved(true);
    edit(&mut files, SECOND, "I32", "U32");
    w_alone(
        &files,
        "not the one that was written, judging by reshard-safetensors.json",
    );
    files.remove(RECORD);
    assert!(
        verified(&files).damage.is_empty(),
        "without a record nobody knows"
    );
}

#[test]
fn an_index_that_names_what_is_not_there_is_told() {
    let mut files = saved(false);
    replace(&mut files, INDEX, "\"w\"", "\"x\"");
    let found = one(&verified(&files).damage);
    assert!(
        found.starts_with("x: ")
            && found.contains("does not have x, but model.safetensors.index.json says so"),
        "{found}"
    );
    let warnings = open(&place(&files)).producer().warnings;
    assert_eq!(
        warnings,
        [
            "model.safetensors.index.json does not list w, which its files have; reshard reads them, and other programs may not"
        ]
    );

    let mut files = saved(false);
    replace(&mut files, INDEX, SECOND, FIRST);
    let found = one(&verified(&files).damage);
    assert!(found.starts_with("w: ") && found.contains(FIRST), "{found}");

    let mut files = saved(false);
    replace(&mut files, INDEX, SECOND, "other.safetensors");
    w_alone(&files, "other.safetensors: ");
}

#[test]
fn a_file_that_is_missing_without_an_index_is_told_by_the_numbers_of_the_others() {
    let mut files = saved(false);
    files.remove(INDEX);
    assert!(verified(&files).damage.is_empty());
    files.remove(SECOND);
    assert_eq!(unopened(&files), format!("{SECOND}: it is missing"));
}

#[test]
fn a_piece_that_lies_far_away_costs_no_memory() {
    let mut files = sharded(false);
    edit(&mut files, &shard(2), "[2,0]", "[1000000000000,0]");
    let reader = open(&place(&files));
    assert_eq!(reader.permits("w").unwrap_err().kind(), ErrorKind::Limit);
    let found = one(&verified(&files).damage);
    assert!(
        found.contains("the file of a rank may be missing"),
        "{found}"
    );
}

#[test]
fn types_that_are_not_known_are_refused_for_their_tensor_alone() {
    for (dtype, shape, said) in [
        ("F9", "[4,3]", "its element type F9 is not known"),
        ("F6_E2M3", "[8,8]", "has no element type F6_E2M3"),
        ("F4", "[32,3]", "no whole number of pairs"),
    ] {
        let mut files = saved(false);
        edit(
            &mut files,
            SECOND,
            "\"dtype\":\"I32\",\"shape\":[4,3]",
            &format!("\"dtype\":\"{dtype}\",\"shape\":{shape}"),
        );
        let report = verified(&files);
        assert!(report.damage.is_empty(), "{report:?}");
        let found = one(&report.not_understood);
        assert!(found.starts_with("w: ") && found.contains(said), "{found}");
        assert_eq!(open(&place(&files)).not_understood(), ["w"]);
        let loaded = load(&place(&files), vec![vec![v()]]);
        assert_eq!(loaded[0][0].to_vec::<i32>().unwrap(), [0, 1, 2, 3]);
    }
}

#[test]
fn a_long_element_type_is_shortened_in_messages() {
    let mut files = saved(false);
    let long = "F".repeat(100_000);
    let new = format!("\"dtype\":\"{long}\",\"shape\":[4,3]");
    let old = "\"dtype\":\"I32\",\"shape\":[4,3]";
    edit(&mut files, SECOND, old, &new);
    let found = one(&verified(&files).not_understood);
    assert!(found.len() < 2_000, "{} bytes", found.len());
    assert!(found.contains("(100000 bytes)"), "{found}");
}

#[test]
fn a_header_is_charged_before_it_is_parsed() {
    let length = header_length(&saved(false)[FIRST]);
    let open = |max| {
        let limits = ReadLimits::default().with_max_memory(max);
        let cx = OpenCx::new(place(&saved(false))).with_limits(limits);
        let strategy = LoadShardedStrategy::new(SafetensorsLoadConfig::default());
        block_on(strategy.open(&cx)).map(drop)
    };
    let e = open(4 * length - 1).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Limit, "{e}");
    let told = format!("the header of {FIRST} has {length} bytes");
    assert!(e.to_string().contains(&told), "{e}");
    open(1 << 20).unwrap();
}

fn header_length(file: &[u8]) -> u64 {
    u64::from_le_bytes(file[..8].try_into().unwrap())
}

#[test]
fn a_record_that_is_none_is_told() {
    for (text, said) in [
        ("", "EOF"),
        (
            "{\"schema\":9,\"files\":{},\"tensors\":{}}",
            "its schema is 9",
        ),
        (
            "{\"schema\":1,\"files\":{\"../x\":1},\"tensors\":{}}",
            "leads out of",
        ),
    ] {
        let mut files = saved(true);
        files.insert(RECORD.into(), text.into());
        let found = unopened(&files);
        assert!(found.starts_with(RECORD) && found.contains(said), "{found}");
    }
    let mut files = saved(true);
    replace(&mut files, RECORD, "\"w\"", "\"x\"");
    let found: Vec<_> = verified(&files)
        .damage
        .iter()
        .map(Damage::to_string)
        .collect();
    assert_eq!(found.len(), 2, "{found:?}");
}

#[test]
fn roles_of_files_are_told_by_their_names() {
    let mut files = saved(true);
    for more in [
        "config.json",
        "model-00001-of-00009.safetensors",
        "x.safetensors.bak",
    ] {
        files.insert(more.into(), Vec::new());
    }
    let reader = open(&place(&files));
    let role = |name: &str| {
        let name = Name::new(name).unwrap();
        reader.role(&Entry { name, bytes: 0 })
    };
    assert_eq!(role(INDEX), FileRole::Part);
    assert_eq!(role(RECORD), FileRole::Part);
    assert_eq!(role("model-00001-of-00009.safetensors"), FileRole::Leftover);
    assert_eq!(role("config.json"), FileRole::Foreign);
    assert_eq!(role("x.safetensors.bak"), FileRole::Foreign);
    files.remove(RECORD);
    let reader = open(&place(&files));
    let name = Name::new("model-00001-of-00009.safetensors").unwrap();
    assert_eq!(reader.role(&Entry { name, bytes: 0 }), FileRole::Foreign);
}

proptest! {
    #![proptest_config(reshard_model::testkit::law(256))]

    #[test]
    fn with_a_record_no_damage_goes_unseen_or_panics(
        which in 0usize..4, at in any::<prop::sample::Index>(), bits in 1u8.., is_sharded: bool,
    ) {
        let sound = if is_sharded { sharded(true) } else { saved(true) };
        let mut files = sound.clone();
        let name = sound.keys().nth(which % sound.len()).unwrap().clone();
        let file = files.get_mut(&name).unwrap();
        let at = at.index(file.len());
        file[at] ^= bits;
        let Ok(reader) = try_open(&place(&files)) else { return Ok(()) };
        let report = block_on(reader.verify(true, &Progress::none())).unwrap();
        // The record itself has no checksum, and with a record nobody needs the index.
        if ![RECORD, INDEX].contains(&&*name) {
            prop_assert!(!report.damage.is_empty(), "byte {at} of {name}");
        }
    }

    #[test]
    fn without_a_record_no_damage_makes_a_reader_panic(
        which in 0usize..3, changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in any::<prop::sample::Index>(), is_sharded: bool,
    ) {
        let sound = if is_sharded { sharded(false) } else { saved(false) };
        let mut files = sound.clone();
        let name = sound.keys().nth(which % sound.len()).unwrap().clone();
        let file = files.get_mut(&name).unwrap();
        for (at, byte) in changes {
            let at = at.index(file.len());
            file[at] = byte;
        }
        if cut.index(4) == 0 {
            file.truncate(cut.index(file.len()));
        }
        let place = place(&files);
        for dequantize in [None, Some(DType::Float32)] {
            let config = SafetensorsLoadConfig::default();
            let config = match dequantize {
                Some(dtype) => config.with_dequantize(dtype).with_allow_unquantized(true),
                None => config,
            };
            let strategy = config;
            let opened = block_on(strategy.open(&OpenCx::new(Arc::clone(&place))));
            if let Ok(reader) = opened {
                drop(block_on(reader.verify(true, &Progress::none())));
                drop(reader.producer());
            }
        }
        drop(try_load(&place, vec![vec![w()], vec![v()]]));
    }
}

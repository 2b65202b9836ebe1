//! Leaves that are no tensors: refused, or kept beside the tensors.

use super::{Files, files, numbers, open, piece, place, store, whole};
use futures::executor::block_on;
use proptest::prelude::*;
use reshard_model::{
    ErrorKind, FlatStateDict, Path, Payload, Region, Sharded, ShardedObject, ShardedTensor, Value,
};
use reshard_plan::{DefaultLoadPlanner, DefaultSavePlanner};
use reshard_safetensors::{OBJECTS, RECORD, SafetensorsConfig, SafetensorsLoadConfig};
use reshard_storage::{Entry, IfExists, Name, Progress, Store};
use reshard_strategy::{
    FileRole, LoadShardedStrategy, Loaded, Result, Saved, VerifyReport,
    testkit::{Rank, load_on_ranks, save_on_ranks},
};
use serde_json::{Value as Json, json};
use std::sync::Arc;

fn keep() -> SafetensorsConfig {
    SafetensorsConfig::default().with_keep_objects(true)
}

fn object(key: &str, value: impl Into<Value>) -> Sharded {
    Sharded::Object(ShardedObject::item(key, Payload::Value(value.into())))
}

fn flat(leaves: Vec<Sharded>) -> FlatStateDict {
    let leaves = leaves.into_iter().enumerate();
    leaves
        .map(|(n, leaf)| (Path(vec![format!("{n}").into()]), leaf))
        .collect()
}

/// Rank 1 has `list`, and rank 2 `name` and `step`; each has rows of `w`.
fn states() -> Vec<FlatStateDict> {
    let rows = |rank| Sharded::Tensor(piece("w", &[3, 2], Region::new([rank, 0], [1, 2])));
    let list = Value::List(vec![1.into(), "two".into(), Value::None]);
    vec![
        flat(vec![rows(0)]),
        flat(vec![rows(1), object("list", list)]),
        flat(vec![rows(2), object("step", 7), object("name", "run 7")]),
    ]
}

fn try_save(
    store: &Arc<dyn Store>,
    config: &SafetensorsConfig,
    states: Vec<FlatStateDict>,
) -> Vec<Result<Saved>> {
    let rank = |flat| Rank {
        strategy: Arc::new(config.clone().into()),
        planner: Arc::new(DefaultSavePlanner::DEFAULT) as _,
        flat,
    };
    let ranks = states.into_iter().map(rank).collect();
    save_on_ranks(store, IfExists::Refuse, ranks)
}

fn saved(config: &SafetensorsConfig, states: Vec<FlatStateDict>) -> Files {
    let store = store();
    for outcome in try_save(&store, config, states) {
        outcome.unwrap();
    }
    files(&store)
}

fn load(files: &Files, leaves: Vec<Sharded>) -> Result<Loaded> {
    let rank = Rank {
        strategy: LoadShardedStrategy::new(SafetensorsLoadConfig::default()).into(),
        planner: Arc::new(DefaultLoadPlanner::DEFAULT) as _,
        flat: flat(leaves),
    };
    let loaded = load_on_ranks(&place(files), vec![rank]).remove(0);
    loaded.map_err(|failed| failed.error)
}

fn wanted(key: &str) -> Sharded {
    match object(key, 0) {
        Sharded::Object(o) => Sharded::Object(ShardedObject {
            data: Payload::None,
            ..o
        }),
        tensor => tensor,
    }
}

fn loaded(files: &Files, key: &str) -> Value {
    let loaded = load(files, vec![wanted(key)]);
    let state = loaded.unwrap().state;
    match state.into_values().next().unwrap() {
        Sharded::Object(ShardedObject {
            data: Payload::Value(value),
            ..
        }) => value,
        other => panic!("{other:?}"),
    }
}

fn verified(files: &Files) -> VerifyReport {
    block_on(open(&place(files)).verify(true, &Progress::none())).unwrap()
}

#[test]
fn an_object_is_refused_by_its_key_unless_it_is_to_be_kept() {
    for config in [
        SafetensorsConfig::default(),
        SafetensorsConfig::default().with_sharded(true),
    ] {
        let place = store();
        for outcome in try_save(&place, &config, states()) {
            let e = outcome.unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Unsupported, "{e}");
            let said = e.to_string();
            let named = ["list", "step", "name"]
                .iter()
                .any(|key| said.contains(key));
            assert!(named && said.contains("set `keep_objects`"), "{said}");
        }
        assert!(files(&place).is_empty(), "nothing is written");
    }
}

#[test]
fn objects_lie_beside_the_tensors_and_come_back_with_them() {
    for config in [
        keep(),
        keep().with_max_shard_size(256),
        keep().with_sharded(true),
    ] {
        let found = saved(&config, states());
        assert!(found.contains_key(OBJECTS) && found.contains_key(RECORD));
        assert_eq!(loaded(&found, "step"), 7.into());
        assert_eq!(loaded(&found, "name"), "run 7".into());
        let list = Value::List(vec![1.into(), "two".into(), Value::None]);
        assert_eq!(loaded(&found, "list"), list);
        let shape = Region::whole(&[3, 2]);
        let w = ShardedTensor::template("w", reshard_model::DType::Int32, &[3, 2]);
        let all = load(&found, vec![wanted("step"), Sharded::Tensor(w)]);
        let all = all.unwrap().state;
        let Some(Sharded::Tensor(w)) = all.into_values().nth(1) else {
            unreachable!()
        };
        let w = w.data.host().unwrap().to_vec::<i32>().unwrap();
        assert_eq!(w, numbers(&[3, 2], &shape));

        let report = verified(&found);
        assert!(report.damage.is_empty(), "{report:?}");
        assert_eq!(report.without_checksum, 0);
        let reader = open(&place(&found));
        let keys: Vec<&str> = reader.metadata().objects().map(|(_, key)| key).collect();
        assert_eq!(keys, ["list", "name", "step"]);
        assert!(reader.owns(&Name::new(OBJECTS).unwrap()));
    }
}

#[test]
fn the_bytes_do_not_depend_on_which_ranks_have_the_objects() {
    let mut all = Vec::new();
    for state in states() {
        all.extend(state.into_values());
    }
    assert_eq!(saved(&keep(), states()), saved(&keep(), vec![flat(all)]));
}

#[test]
fn objects_alone_are_a_checkpoint() {
    for config in [keep(), keep().with_sharded(true)] {
        let found = saved(&config, vec![flat(vec![object("step", 7)])]);
        assert_eq!(loaded(&found, "step"), 7.into());
    }
}

#[test]
fn without_objects_the_files_are_those_of_other_saves() {
    let tensors = || vec![flat(vec![Sharded::Tensor(whole("w", &[3, 2]))])];
    let found = saved(&keep(), tensors());
    assert_eq!(found, saved(&SafetensorsConfig::default(), tensors()));
    assert!(!String::from_utf8_lossy(&found[RECORD]).contains("objects"));
}

/// An object is damaged, and the tensor is not concerned.
fn object_alone(files: &Files, key: &str, said: &str) {
    let report = verified(files);
    let found: Vec<String> = report.damage.iter().map(ToString::to_string).collect();
    let named = |f: &String| f.starts_with(&format!("{key}: ")) && f.contains(said);
    assert!(found.iter().any(named), "{found:?}");
    let e = load(files, vec![wanted(key)]).map(drop).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Corrupt, "{e}");
    assert!(e.to_string().contains(key), "{e}");
    let w = ShardedTensor::template("w", reshard_model::DType::Int32, &[3, 2]);
    assert!(load(files, vec![Sharded::Tensor(w)]).is_ok());
}

/// Changes what the record says of the objects.
fn noted(files: &Files, change: impl FnOnce(&mut Json)) -> Files {
    let mut files = files.clone();
    let mut record: Json = serde_json::from_slice(&files[RECORD]).unwrap();
    change(&mut record["objects"]);
    files.insert(RECORD.into(), record.to_string().into());
    files
}

#[test]
fn a_flipped_bit_in_an_object_is_found_and_the_others_are_read() {
    let sound = saved(&keep(), states());
    let record: Json = serde_json::from_slice(&sound[RECORD]).unwrap();
    let at = |key: &str, end: usize| record["objects"][key]["bytes"][end].as_u64().unwrap();
    for byte in [at("name", 0), at("name", 1) - 1] {
        let mut files = sound.clone();
        files.get_mut(OBJECTS).unwrap()[byte as usize] ^= 0x10;
        object_alone(&files, "name", "CRC-32");
        assert_eq!(verified(&files).damage.len(), 1);
        assert_eq!(loaded(&files, "step"), 7.into());
        assert!(block_on(open(&place(&files)).verify(false, &Progress::none())).is_ok());
    }
}

#[test]
fn a_file_of_objects_that_is_missing_or_cut_is_told() {
    let sound = saved(&keep(), states());
    let mut files = sound.clone();
    files.remove(OBJECTS);
    for key in ["list", "name", "step"] {
        object_alone(&files, key, "missing");
    }
    let mut files = sound;
    files.get_mut(OBJECTS).unwrap().pop();
    object_alone(&files, "step", "ends before");
    assert_eq!(loaded(&files, "name"), "run 7".into());
}

#[test]
fn a_record_that_names_other_bytes_is_damage_of_that_object() {
    let sound = saved(&keep(), states());
    for bytes in [
        json!([0, 4]),
        json!([u64::MAX, u64::MAX]),
        json!([u64::MAX, 0]),
        json!([400, 300]),
    ] {
        let files = noted(&sound, |objects| objects["step"]["bytes"] = bytes.clone());
        object_alone(&files, "step", "");
        assert_eq!(loaded(&files, "name"), "run 7".into(), "{bytes}");
    }
    // A key can't be a tensor, too.
    let files = noted(&sound, |objects| {
        objects["w"] = objects["step"].clone();
        objects.as_object_mut().unwrap().remove("step");
    });
    let found = verified(&files).damage;
    assert!(
        found
            .iter()
            .any(|f| f.to_string().contains("a tensor of this key")),
        "{found:?}"
    );
}

#[test]
fn objects_whose_record_is_gone_are_noted() {
    let mut files = saved(&keep(), states());
    files.remove(RECORD);
    let notes = open(&place(&files)).producer().notes;
    assert!(notes.iter().any(|note| note.contains(OBJECTS)), "{notes:?}");
    // Who has the record of another version does not need the file.
    let other = saved(&keep(), vec![flat(vec![Sharded::Tensor(whole("w", &[2]))])]);
    let reader = open(&place(&other));
    let name = Name::new(OBJECTS).unwrap();
    let role = reader.role(&Entry { name, bytes: 1 });
    assert_eq!(role, FileRole::Leftover);
}

proptest! {
    #![proptest_config(reshard_model::testkit::law(48))]

    #[test]
    fn no_ranges_in_a_record_make_a_reader_panic(
        ranges in proptest::collection::vec((prop_oneof![0u64..2000, any::<u64>()], prop_oneof![0u64..2000, any::<u64>()]), 0..5),
    ) {
        let sound = saved(&keep(), vec![flat(vec![object("step", 7)])]);
        let files = noted(&sound, |objects| {
            for (n, (from, to)) in ranges.iter().enumerate() {
                objects[format!("{n}")] = json!({"bytes": [from, to], "crc": 0});
            }
        });
        for n in 0..ranges.len() {
            drop(load(&files, vec![wanted(&format!("{n}"))]));
        }
        verified(&files);
    }
}

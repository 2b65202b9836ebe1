//! What loads do with keys that only one side has: all of Megatron Core's choices, in all back ends and wrappers.

use crate::ranks::layered;
use crate::ranks::{Group, groups};
use reshard::{
    DType, Error, ErrorKind, LoadError, LoadReport, ShardedObject, ShardedTensor, StateDict,
    StrictHandling, Tensor, Value, ValueTree,
    strategy::{LoadShardedStrategy, SaveShardedStrategy},
};
use reshard_comm::testkit::on_ranks;
use reshard_torch_dist as _;
use serde_json::{Value as Json, json};
use std::sync::Arc;

/// The back ends that save and load, by the tags of their settings.
const BACKENDS: [&str; 3] = ["torch_dist", "zarr", "zarr3"];

/// How ranks load from a back end.
fn ways(backend: &str) -> [Json; 3] {
    let base = json!({ "format": backend });
    [
        base.clone(),
        layered(json!({ "type": "fully_parallel" }), &base),
        layered(json!({ "type": "two_stage" }), &base),
    ]
}

const SHAPE: [u64; 2] = [4, 3];

/// Megatron Core's state of this test: tensors and objects, some of them nested, and an empty dict.
fn state(rank: u32, keys: &[&str], with_data: bool) -> StateDict {
    let mut top = StateDict::new();
    let mut nested = StateDict::new();
    for key in keys {
        let into = match key.starts_with("Nested") {
            true => &mut nested,
            false => &mut top,
        };
        let at = key.trim_start_matches("Nested.");
        if at.starts_with("Ten") {
            let (dtype, data) = match *key == ODD {
                true => (DType::Int64, Tensor::from_vec(&SHAPE, vec![1i64; 12])),
                false => (
                    DType::Float32,
                    Tensor::from_vec(&SHAPE, vec![rank as f32; 12]),
                ),
            };
            let data = data.unwrap();
            let t = ShardedTensor::declare(key, dtype, &SHAPE, &[(0, rank.into(), 2)], 0).unwrap();
            into.insert(at, if with_data { t.with_data(data) } else { t });
        } else {
            let value = Value::Int(i64::from(rank));
            let cell = ShardedObject::new(key, value, &[2], &[rank.into()], 0).unwrap();
            let cell = match with_data {
                true => cell,
                false => ShardedObject::empty_from_unique_key(&cell.unique_key()).unwrap(),
            };
            into.insert(at, cell);
        }
    }
    nested.insert_tree("empty", StateDict::new());
    top.insert_tree("Nested", nested);
    top
}

const STORED: [&str; 6] = ["TenA", "TenB", "ObjA", "ObjB", "Nested.TenE", "Nested.ObjF"];

/// A key that is stored in a way that nobody understands, if [`spoil`] has made it so.
const ODD: &str = "TenOdd";
const STORED_AND_ODD: [&str; 7] = [
    "TenA",
    "TenB",
    ODD,
    "ObjA",
    "ObjB",
    "Nested.TenE",
    "Nested.ObjF",
];

/// Gives a tensor an element type that nobody knows.
fn spoil(backend: &str, url: &str) {
    let (files, known, unknown): (&[&str], _, _) = match backend {
        "torch_dist" => (&[".metadata"], "int64", "int66"),
        "zarr" => (&["TenOdd/.zarray"], "<i8", "<U8"),
        // What describes all arrays has a copy.
        _ => (&["TenOdd/zarr.json", "zarr.json"], "int64", "int66"),
    };
    let dir = std::path::Path::new(url);
    if backend != "torch_dist" {
        // It tells what was changed since. Other programs write none.
        std::fs::remove_file(dir.join(format!("reshard-{backend}.json"))).unwrap();
    }
    for file in files {
        let path = dir.join(file);
        let mut bytes = std::fs::read(&path).unwrap();
        let known = known.as_bytes();
        let at = bytes.windows(known.len()).position(|w| w == known).unwrap();
        bytes[at..at + known.len()].copy_from_slice(unknown.as_bytes());
        std::fs::write(path, bytes).unwrap();
    }
}

fn save(backend: &str, url: &str, keys: &'static [&'static str]) {
    let (url, backend): (Arc<str>, Arc<str>) = (url.into(), backend.into());
    let saved = on_ranks(groups(2), move |group: Group| {
        let (url, backend) = (Arc::clone(&url), Arc::clone(&backend));
        async move {
            let settings: SaveShardedStrategy =
                serde_json::from_value(json!({ "format": &*backend })).unwrap();
            let state = state(group.rank().0, keys, true);
            let save = reshard::save(&state, &*url).group(&*group);
            save.strategy(settings).await
        }
    });
    saved.into_iter().for_each(|saved| drop(saved.unwrap()));
}

type Loaded = Result<(ValueTree, LoadReport), LoadError>;

fn load(
    url: &str,
    way: &Json,
    strict: StrictHandling,
    keys: [&'static [&'static str]; 2],
) -> Vec<Loaded> {
    let (url, way): (Arc<str>, Arc<Json>) = (url.into(), Arc::new(way.clone()));
    on_ranks(groups(2), move |group: Group| {
        let (url, way) = (Arc::clone(&url), Arc::clone(&way));
        async move {
            let settings: LoadShardedStrategy = serde_json::from_value((*way).clone()).unwrap();
            let rank = group.rank().0;
            let template = state(rank, keys[rank as usize], false);
            let load = reshard::load(template, &*url).group(&*group).strict(strict);
            load.strategy(settings).with_report().await
        }
    })
}

/// What a load comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// An error on all ranks.
    Raise,
    /// A state, and nothing is said.
    Quiet,
    /// A state, and the keys are in the report.
    Tell,
}

/// Megatron Core's verdicts for keys that are stored and not requested ("missing"), and requested and not stored ("unexpected"). It fails
/// inside of its strategies where `assume_ok_unexpected` was wrong.
fn verdicts(strict: StrictHandling) -> (Verdict, Verdict) {
    use StrictHandling::*;
    use Verdict::*;
    match strict {
        AssumeOkUnexpected | RaiseUnexpected => (Quiet, Raise),
        LogUnexpected | ReturnUnexpected | IgnoreAll => (Quiet, Tell),
        LogAll | ReturnAll => (Tell, Tell),
        RaiseAll => (Raise, Raise),
    }
}

fn said(e: &Error) -> String {
    let mut out = e.to_string();
    let mut source = std::error::Error::source(e);
    while let Some(e) = source {
        out += &format!(": {e}");
        source = e.source();
    }
    out
}

/// Fails on all ranks, with this in the message.
fn raised(loaded: Vec<Loaded>, kind: ErrorKind, parts: &[&str], case: &str) {
    for loaded in loaded {
        let e = loaded.map(drop).unwrap_err();
        assert_eq!(e.kind(), kind, "{case}: {e}");
        let said = said(&e.into_parts().0);
        let all = parts.iter().all(|part| said.contains(part));
        assert!(all, "{case}: {said}");
    }
}

fn sorted(keys: &[String]) -> Vec<&str> {
    let mut keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    keys.sort_unstable();
    keys
}

fn each(check: impl Fn(&str, &Json, StrictHandling, &str)) {
    for backend in BACKENDS {
        let dir = tempfile::tempdir().unwrap();
        let url = dir.path().join("ckpt").display().to_string();
        save(backend, &url, &STORED);
        for way in ways(backend) {
            for strict in StrictHandling::ALL {
                check(&url, &way, strict, &format!("{way} {strict}"));
            }
        }
    }
}

#[test]
fn whoever_asks_for_what_is_stored_gets_it_and_nothing_is_said() {
    each(|url, way, strict, case| {
        for (rank, loaded) in load(url, way, strict, [&STORED; 2]).into_iter().enumerate() {
            let (loaded, report) = loaded.unwrap_or_else(|e| panic!("{case}: {e}"));
            assert!(report.notes.not_stored.is_empty(), "{case}");
            assert!(report.notes.not_requested.is_empty(), "{case}");
            let nested = loaded.get("Nested").unwrap();
            assert!(nested.get("empty").is_some(), "{case}");
            let e = nested
                .get("TenE")
                .unwrap()
                .leaf()
                .unwrap()
                .as_tensor()
                .unwrap();
            assert_eq!(e.to_vec::<f32>().unwrap(), [rank as f32; 12], "{case}");
            let f = nested.get("ObjF").unwrap().leaf().unwrap();
            assert_eq!(f.as_int(), Some(rank as i64), "{case}");
        }
    });
}

/// Rank 1 asks for a tensor more, which then is not missing: it counts over all ranks.
#[test]
fn stored_keys_that_no_rank_asks_for_are_told_alike_to_all() {
    each(|url, way, strict, case| {
        let loaded = load(
            url,
            way,
            strict,
            [&["ObjA", "ObjB"], &["TenB", "ObjA", "ObjB"]],
        );
        match verdicts(strict).0 {
            Verdict::Raise => raised(
                loaded,
                ErrorKind::Invalid,
                &["TenA", "Nested.TenE", "Nested.ObjF/shard_0_2"],
                case,
            ),
            verdict => {
                for loaded in loaded {
                    let (_, report) = loaded.unwrap_or_else(|e| panic!("{case}: {e}"));
                    let want: &[&str] = match verdict {
                        Verdict::Tell => &[
                            "Nested.ObjF/shard_0_2",
                            "Nested.ObjF/shard_1_2",
                            "Nested.TenE",
                            "TenA",
                        ],
                        _ => &[],
                    };
                    assert_eq!(sorted(&report.notes.not_requested), want, "{case}");
                    assert!(report.notes.not_stored.is_empty(), "{case}");
                }
            }
        }
    });
}

/// Only rank 1 asks for them: it alone is told, unless that is an error, which all get.
#[test]
fn requested_keys_that_are_not_stored_are_told_to_the_rank_that_asks() {
    const MORE: [&str; 8] = [
        "TenA",
        "TenB",
        "TenBb",
        "ObjA",
        "ObjB",
        "Objects",
        "Nested.TenE",
        "Nested.ObjF",
    ];
    each(|url, way, strict, case| {
        let loaded = load(url, way, strict, [&STORED, &MORE]);
        match verdicts(strict).1 {
            Verdict::Raise => raised(
                loaded,
                ErrorKind::NotFound,
                &[
                    "TenBb is not in the checkpoint; did you mean TenB",
                    "Objects/shard_1_2",
                ],
                case,
            ),
            _ => {
                for (rank, loaded) in loaded.into_iter().enumerate() {
                    let (loaded, report) = loaded.unwrap_or_else(|e| panic!("{case}: {e}"));
                    let want: &[&str] = match rank {
                        0 => &[],
                        _ => &["Objects/shard_1_2", "TenBb"],
                    };
                    assert_eq!(sorted(&report.notes.not_stored), want, "{case}");
                    assert!(report.notes.not_requested.is_empty(), "{case}");
                    // Whatever is stored has been loaded.
                    let b = loaded.get("TenB").unwrap().leaf().unwrap();
                    let b = b.as_tensor().unwrap().to_vec::<f32>().unwrap();
                    assert_eq!(b, [rank as f32; 12], "{case}");
                    assert!(loaded.get("Objects").is_none(), "{case}");
                }
            }
        }
    });
}

/// What is stored and not understood counts as stored: it is told if no rank asks for it, and whoever asks for it is told why not.
#[test]
fn keys_that_are_stored_and_not_understood_count() {
    for backend in BACKENDS {
        let dir = tempfile::tempdir().unwrap();
        let url = dir.path().join("ckpt").display().to_string();
        save(backend, &url, &STORED_AND_ODD);
        spoil(backend, &url);
        for way in ways(backend) {
            for strict in StrictHandling::ALL {
                let case = format!("{way} {strict}");
                for loaded in load(&url, &way, strict, [&STORED; 2]) {
                    match (verdicts(strict).0, loaded) {
                        (Verdict::Raise, loaded) => {
                            let e = loaded.map(drop).unwrap_err();
                            assert_eq!(e.kind(), ErrorKind::Invalid, "{case}: {e}");
                            let said = said(&e.into_parts().0);
                            assert!(said.contains(ODD), "{case}: {said}");
                        }
                        (verdict, loaded) => {
                            let (_, report) = loaded.unwrap_or_else(|e| panic!("{case}: {e}"));
                            let told: &[&str] = match verdict {
                                Verdict::Tell => &[ODD],
                                _ => &[],
                            };
                            assert_eq!(report.notes.not_requested, told, "{case}");
                            assert!(report.notes.not_stored.is_empty(), "{case}");
                        }
                    }
                }
                for loaded in load(&url, &way, strict, [&STORED_AND_ODD, &STORED]) {
                    let e = loaded.map(drop).unwrap_err();
                    assert_eq!(e.kind(), ErrorKind::Unsupported, "{case}: {e}");
                    let said = said(&e.into_parts().0);
                    assert!(said.contains(ODD), "{case}: {said}");
                }
            }
        }
    }
}

//! Every saver of a back end with every loader of it, and with every loader of another.

use crate::ranks::layered;
use crate::ranks::{Group, groups};
use reshard::{
    DType, ErrorKind, LoadError, ShardedObject, ShardedTensor, StateDict, Tensor, Value, ValueTree,
    strategy::{LoadShardedStrategy, SaveShardedStrategy},
};
use reshard_comm::testkit::on_ranks;
use reshard_torch_dist as _;
use serde_json::{Value as Json, json};
use std::sync::Arc;

const BACKENDS: [&str; 3] = ["torch_dist", "zarr", "zarr3"];

fn savers(backend: &str) -> [Json; 2] {
    let base = json!({ "format": backend });
    [
        base.clone(),
        layered(json!({ "type": "fully_parallel" }), &base),
    ]
}

fn loaders(backend: &str) -> Vec<Json> {
    let base = json!({ "format": backend });
    let exchanges = ["broadcast", "gather_rounds", "gather_object"];
    let shared = exchanges.map(|exchange| {
        layered(
            json!({ "type": "fully_parallel", "exchange": exchange }),
            &base,
        )
    });
    let two_stage = layered(json!({ "type": "two_stage" }), &base);
    [base.clone(), two_stage]
        .into_iter()
        .chain(shared)
        .collect()
}

fn numbers(from: u64, n: u64) -> Vec<i32> {
    (from as i32..(from + n) as i32).collect()
}

/// What a rank has of four: half of a tensor, of which another rank has a copy; a whole tensor, as all have it; a cell of an object.
fn state(rank: u64, with_data: bool) -> StateDict {
    let mut state = StateDict::new();
    let (half, copy) = (rank % 2, (rank / 2) as u32);
    let mut add = |key: &str, shape: [u64; 2], cut: &[_], replica: u32, from| {
        let t = ShardedTensor::declare(key, DType::Int32, &shape, cut, 0).unwrap();
        let t = t.with_replica_id(replica);
        let data = Tensor::from_vec(&shape, numbers(from, shape[0] * shape[1]));
        let t = if with_data {
            t.with_data(data.unwrap())
        } else {
            t
        };
        state.insert(key, t);
    };
    add("cut", [3, 4], &[(0, half, 2)], copy, 12 * half);
    add("whole", [2, 2], &[], rank as u32, 7);
    let value = Value::Int(if with_data { rank as i64 } else { -1 });
    let cell = ShardedObject::new("cells", value, &[4], &[rank], 0).unwrap();
    state.insert("cells", cell);
    state
}

fn save(settings: &Json, url: &str) {
    let (settings, url): (_, Arc<str>) = (settings.clone(), url.into());
    let saved = on_ranks(groups(4), move |group: Group| {
        let (settings, url) = (settings.clone(), Arc::clone(&url));
        async move {
            let config: SaveShardedStrategy = serde_json::from_value(settings).unwrap();
            let state = state(group.rank().0.into(), true);
            let save = reshard::save(&state, &*url).group(&*group);
            save.strategy(config).await
        }
    });
    saved.into_iter().for_each(|saved| drop(saved.unwrap()));
}

/// What each rank gets. In the load each has the part that another one has saved.
fn load(settings: &Json, url: &str) -> Vec<Result<ValueTree, LoadError>> {
    let (settings, url): (_, Arc<str>) = (settings.clone(), url.into());
    on_ranks(groups(4), move |group: Group| {
        let (settings, url) = (settings.clone(), Arc::clone(&url));
        async move {
            let config: LoadShardedStrategy = serde_json::from_value(settings).unwrap();
            let template = state(u64::from(3 - group.rank().0), false);
            let load = reshard::load(template, &*url).group(&*group);
            load.strategy(config).await
        }
    })
}

#[test]
fn every_loader_of_a_backend_and_version_loads_what_every_saver_of_it_has_saved() {
    for backend in BACKENDS {
        for saver in savers(backend) {
            let dir = tempfile::tempdir().unwrap();
            let url = dir.path().join("ckpt").display().to_string();
            save(&saver, &url);
            for loader in loaders(backend) {
                for (rank, got) in load(&loader, &url).into_iter().enumerate() {
                    let got = got.unwrap_or_else(|e| panic!("{saver} by {loader}: {e}"));
                    let of = 3 - rank as u64;
                    let leaf = |key: &str| got.get(key).unwrap().leaf().unwrap();
                    let elements = |key: &str| {
                        let tensor = leaf(key).as_tensor().unwrap();
                        tensor.to_vec::<i32>().unwrap()
                    };
                    let what = format!("{saver} by {loader} on rank {rank}");
                    assert_eq!(elements("cut"), numbers(12 * (of % 2), 12), "{what}");
                    assert_eq!(elements("whole"), numbers(7, 4), "{what}");
                    assert_eq!(leaf("cells").as_int(), Some(of as i64), "{what}");
                }
            }
        }
    }
}

/// An error with its sources.
fn told(e: &dyn std::error::Error) -> String {
    match e.source() {
        Some(source) => format!("{e}: {}", told(source)),
        None => e.to_string(),
    }
}

#[test]
fn a_loader_that_does_not_accept_the_stored_backend_and_version_is_refused_by_name() {
    for backend in BACKENDS {
        let dir = tempfile::tempdir().unwrap();
        let url = dir.path().join("ckpt").display().to_string();
        save(&json!({ "format": backend }), &url);
        for other in BACKENDS.into_iter().filter(|other| *other != backend) {
            for loader in loaders(other) {
                for got in load(&loader, &url) {
                    let e = got.map(drop).unwrap_err();
                    let said = told(&e);
                    let stored = format!("{backend}/1");
                    assert_eq!(e.kind(), ErrorKind::Unsupported, "{said}");
                    assert!(said.contains(&stored) && said.contains(other), "{said}");
                }
            }
        }
    }
}

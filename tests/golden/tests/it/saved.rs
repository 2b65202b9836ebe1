//! Zarr checkpoints of Megatron Core, saved again by what their ranks declared: the same files with the same bytes.

use futures::executor::block_on;
use reshard::strategy::testkit::layered;
use reshard::{
    Checkpoint, Data, LocalGroup, ProcessGroup, ShardedObject, ShardedTensor, StateDict, Tensor,
    model::Dims, strategy::SaveShardedStrategy,
};
use reshard_golden::{Fixture, fixtures, ours, sha256};
use reshard_parallel as _;
use serde_json::{Value as Json, json};
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

fn dims(json: &Json) -> Dims {
    json.as_array()
        .unwrap()
        .iter()
        .map(|n| n.as_u64().unwrap())
        .collect()
}

/// A leaf as its rank declared it, with the data of the fixture.
fn tensor(leaf: &Json, whole: &Tensor) -> ShardedTensor {
    let range = leaf["flattened_range"]
        .as_array()
        .map(|r| r[0].as_u64().unwrap()..r[1].as_u64().unwrap());
    let replica = match &leaf["replica_id"] {
        Json::Array(all) => all
            .iter()
            .map(|n| n.as_u64().unwrap() as u32)
            .collect::<Vec<_>>(),
        one => vec![one.as_u64().unwrap() as u32],
    };
    let t = ShardedTensor {
        key: leaf["key"].as_str().unwrap().into(),
        data: Data::None,
        dtype: leaf["dtype"].as_str().unwrap().parse().unwrap(),
        local_shape: dims(&leaf["local_shape"]),
        global_shape: dims(&leaf["global_shape"]),
        global_offset: dims(&leaf["global_offset"]),
        axis_fragmentations: Some(dims(&leaf["axis_fragmentations"])),
        replica_id: reshard::model::ReplicaId(replica.into()),
        prepend_axis_num: leaf["prepend_axis_num"].as_u64().unwrap() as usize,
        allow_shape_mismatch: leaf["allow_shape_mismatch"].as_bool().unwrap(),
        optional: false,
        flattened_range: range.clone(),
        tag: None,
    };
    let chunk = whole.narrow(&t.region()).to_bytes();
    let size = t.dtype.size() as usize;
    let data = match range {
        None => Tensor::new(t.dtype, &t.local_shape, chunk.to_vec()).unwrap(),
        Some(r) => {
            let part = chunk[r.start as usize * size..r.end as usize * size].to_vec();
            Tensor::new(t.dtype, &[r.end - r.start], part).unwrap()
        }
    };
    assert_eq!(
        sha256(data.blocks(1 << 20)),
        leaf["data_sha256"].as_str().unwrap(),
        "{}",
        t.key
    );
    t.with_data(data)
}

fn states(f: &Fixture) -> Vec<StateDict> {
    let text = fs::read_to_string(f.checkpoint().join("../expected.json")).unwrap();
    let json: Json = serde_json::from_str(&text).unwrap();
    let checkpoint = block_on(Checkpoint::open(&f.url())).unwrap();
    let state = |rank: &Json| {
        let mut state = StateDict::new();
        for (n, leaf) in rank["leaves"].as_array().unwrap().iter().enumerate() {
            let name = format!("leaf{n}");
            match leaf["kind"].as_str().unwrap() {
                "tensor" => {
                    let whole = checkpoint.tensor(leaf["key"].as_str().unwrap()).unwrap();
                    let leaf = tensor(leaf, &block_on(whole.read(..)).unwrap());
                    state.insert(&*name, leaf);
                }
                "object" => {
                    let key = leaf["unique_key"].as_str().unwrap();
                    let value = block_on(checkpoint.object(key)).unwrap();
                    let (shape, at) = (dims(&leaf["global_shape"]), dims(&leaf["global_offset"]));
                    let of = leaf["key"].as_str().unwrap();
                    let is_main = leaf["replica_id"]
                        .as_array()
                        .map_or(leaf["replica_id"] == 0, |all| all.iter().all(|n| *n == 0));
                    let object = ShardedObject::new(of, value, &shape, &at, u32::from(!is_main));
                    state.insert(&*name, object.unwrap());
                }
                _ => {}
            }
        }
        state.insert("iteration", 7);
        state
    };
    json["save_spec"]
        .as_array()
        .unwrap()
        .iter()
        .map(state)
        .collect()
}

fn save(states: Vec<StateDict>, url: &str, settings: &Json) {
    let groups = LocalGroup::new(states.len() as u32);
    std::thread::scope(|scope| {
        let ranks = groups.into_iter().zip(states).map(|(group, state)| {
            scope.spawn(move || {
                block_on(async {
                    let config: SaveShardedStrategy =
                        serde_json::from_value(settings.clone()).unwrap();
                    let rank = group.rank().0;
                    let dp = group.split(Some(rank % 2), rank).await.unwrap().unwrap();
                    reshard::save(&state, url)
                        .group(&group)
                        .sub_group("dp", dp)
                        .strategy(config)
                        .await
                        .unwrap();
                });
            })
        });
        let ranks: Vec<_> = ranks.collect();
        ranks.into_iter().for_each(|rank| rank.join().unwrap());
    });
}

/// All files below a folder, by name.
fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let (mut out, mut folders) = (BTreeMap::new(), vec![folder.to_owned()]);
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let path: PathBuf = entry.unwrap().path();
            match path.is_dir() {
                true => folders.push(path),
                false => {
                    let name = path.strip_prefix(folder).unwrap().display().to_string();
                    drop(out.insert(name, fs::read(path).unwrap()));
                }
            }
        }
    }
    out
}

#[test]
fn the_files_of_a_zarr_checkpoint_are_megatron_cores_to_the_byte() {
    let base = json!({ "format": "zarr" });
    let ways = [
        base.clone(),
        layered(json!({ "type": "fully_parallel" }), &base),
        layered(json!({ "type": "fully_parallel", "group": "dp" }), &base),
    ];
    let (mut arrays, mut wrong) = (0, Vec::new());
    for f in fixtures().iter().filter(|f| f.expected.backend == "zarr") {
        let theirs = files(&f.checkpoint());
        for way in &ways {
            let dir = tempfile::tempdir().unwrap();
            let place = dir.path().join("ckpt");
            save(states(f), &place.display().to_string(), way);
            let mut mine = files(&place);
            for added in ["reshard.json", "reshard-zarr.json"] {
                assert!(mine.remove(added).is_some(), "{f}: {added}");
            }
            for (name, bytes) in &theirs {
                // Pickles may say the same in other words, and lock files are not needed.
                if name.contains(".sync/") {
                    continue;
                }
                match mine.remove(name) {
                    None => wrong.push(format!("{f}: {way}: {name} is missing")),
                    Some(_) if name.ends_with(".pt") => {}
                    Some(found) if found == *bytes => arrays += 1,
                    Some(_) => wrong.push(format!("{f}: {way}: {name} has other bytes")),
                }
            }
            wrong.extend(mine.keys().map(|name| format!("{f}: {way}: {name} is new")));
        }
    }
    println!("{arrays} files are the same");
    assert!(arrays > 200 || !ours() && arrays > 0, "{arrays}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

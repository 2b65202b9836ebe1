//! The distribution is Megatron Core's: its vectors, and checkpoints that it wrote.

use crate::ranks::{Saver, groups, save, writers};
use futures::executor::block_on;
use reshard::{
    AsyncCallsQueue, AsyncSaver, Checkpoint, DType, Dialect, ShardedObject, ShardedTensor,
    StateDict, Tensor,
    model::{Payload, ReplicaId},
    plan::{SavePlan, SavePlanner},
};
use reshard_comm::testkit::on_ranks;
use reshard_model::testkit::{fixture, fixture_text, ours};
use reshard_parallel::{FullyParallelSave, HeldShard, distribute_shards_to_ranks};
use reshard_torch_dist::TorchDistConfig;
use reshard_zarr::ZarrConfig;
use serde_json::Value;
use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    sync::{Arc, Mutex},
};

fn json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// What is known of a fixture. `None` if the fixtures are of another folder, which lacks it.
fn expected(name: &str) -> Option<Value> {
    Some(json(&fixture(name)?.join("expected.json")))
}

fn numbers(value: &Value) -> Vec<u64> {
    let all = value.as_array().unwrap().iter();
    all.map(|n| n.as_u64().unwrap()).collect()
}

#[test]
fn vectors_of_megatron_core() {
    let Some(all) = fixture_text("megatron/vectors_012.json") else {
        return;
    };
    let all: Value = serde_json::from_str(&all).unwrap();
    let mut seen = 0;
    for vector in all["vectors"].as_array().unwrap() {
        if vector["fn"] != "distribute_shards_to_ranks" {
            continue;
        }
        let sizes = &vector["in"]["shard_to_size"];
        let held = vector["in"]["shard_to_ranks"].as_object().unwrap();
        let shards: Vec<HeldShard<&str>> = held
            .iter()
            .map(|(id, ranks)| HeldShard {
                id: id.as_str(),
                ranks: numbers(ranks).into_iter().map(|r| r as u32).collect(),
                bytes: sizes[id].as_u64().unwrap(),
                main_is_elsewhere: false,
            })
            .collect();
        let chosen = distribute_shards_to_ranks(&shards);
        let got: Vec<(&str, u64)> = chosen
            .iter()
            .map(|(at, rank)| (shards[*at].id, u64::from(*rank)))
            .collect();
        // The order of keys is that in which Megatron gives shards out.
        let out = vector["out"].as_object().unwrap().iter();
        let want: Vec<(&str, u64)> = out
            .map(|(id, rank)| (id.as_str(), rank.as_u64().unwrap()))
            .collect();
        assert_eq!(got, want);
        seen += 1;
    }
    assert!(seen == 40 || !ours(), "{seen} vectors");
}

/// What a load does: a shard whose main replica is elsewhere comes last.
#[test]
fn shards_whose_main_replica_is_elsewhere_come_last() {
    let shard = |id, bytes, main_is_elsewhere| HeldShard {
        id,
        ranks: vec![0, 1, 2, 3],
        bytes,
        main_is_elsewhere,
    };
    // The groups of data parallel ranks in Megatron's test, of tensor parallel rank 1.
    let shards = [
        shard("keyC", 400, true),
        shard("keyD", 4000, true),
        shard("keyE", 400, true),
        shard("key_TP_repl1", 40, false),
        shard("key_TP_repl2", 40, false),
    ];
    let chosen = distribute_shards_to_ranks(&shards);
    assert_eq!(chosen, [(3, 0), (4, 1), (1, 2), (0, 3), (2, 0)]);
}

/// A rank's tensors, as Megatron's programs declared them.
fn state(leaves: &Value) -> StateDict {
    let mut state = StateDict::new();
    for leaf in leaves.as_array().unwrap() {
        if leaf["kind"] != "tensor" {
            continue;
        }
        let key = leaf["key"].as_str().unwrap();
        let dtype: DType = leaf["dtype"].as_str().unwrap().parse().unwrap();
        let dims = |name: &str| numbers(&leaf[name]);
        let replica: Box<[u32]> = match &leaf["replica_id"] {
            Value::Array(_) => dims("replica_id").into_iter().map(|n| n as u32).collect(),
            one => [one.as_u64().unwrap() as u32].into(),
        };
        let t = ShardedTensor::new(
            key,
            Tensor::zeros(key, dtype, &dims("local_shape")).unwrap(),
            dtype,
            &dims("local_shape"),
            &dims("global_shape"),
            &dims("global_offset"),
            Some(&dims("axis_fragmentations")),
            ReplicaId(replica),
            leaf["prepend_axis_num"].as_u64().unwrap() as usize,
            false,
            None,
        )
        .unwrap();
        state.insert(leaf["path"][0].as_str().unwrap(), t);
    }
    state
}

/// Which rank writes which piece, as their plans say: arrays do not tell.
#[derive(Clone, Debug)]
struct Noted(Arc<Mutex<Written>>, u32);

impl SavePlanner for Noted {
    fn finish_plan(&self, plan: SavePlan) -> reshard::plan::Result<SavePlan> {
        let mut written = self.0.lock().unwrap();
        for item in &plan.items {
            let region = &item.tensor().unwrap().region;
            let at = (item.key.to_string(), region.offsets.to_vec());
            assert!(written.insert(at, self.1).is_none());
        }
        drop(written);
        Ok(plan)
    }
}

#[test]
fn ranks_write_the_arrays_that_they_write_in_megatron_core() {
    let Some(expected) = expected("megatron/zarr012_fully_parallel_world_w6") else {
        return;
    };
    let ranks = expected["save_spec"].as_array().unwrap();
    let shards = ranks.iter().flat_map(|rank| {
        let shards = rank["extra"]["main_rank_for_shard"].as_array().unwrap();
        shards.iter().map(|shard| {
            let (key, offset) = (shard[0][0].as_str().unwrap(), numbers(&shard[0][1]));
            ((key.to_owned(), offset), shard[1].as_u64().unwrap() as u32)
        })
    });
    let want: Written = shards.collect();
    let dir = tempfile::tempdir().unwrap();
    let url = dir.path().join("ckpt").display().to_string();
    let written: Arc<Mutex<Written>> = Arc::default();
    let savers = groups(ranks.len()).into_iter().zip(ranks);
    let savers = savers.map(|(group, rank)| {
        let noted = Noted(Arc::clone(&written), group.rank().0);
        (group, state(&rank["leaves"]), noted, url.clone())
    });
    on_ranks(savers.collect(), |(group, state, noted, url)| async move {
        let save = reshard::save(&state, &url).group(&*group).planner(noted);
        let zarr = FullyParallelSave::new().around(ZarrConfig::default());
        save.strategy(zarr).await.unwrap();
    });
    assert!(want.len() > ranks.len());
    assert_eq!(*written.lock().unwrap(), want);
}

#[test]
fn ranks_write_what_they_write_in_megatron_core() {
    for name in [
        "mc012_fully_parallel_world_w6",
        "mc012_fully_parallel_dp_w4",
        "mc016_fully_parallel_world_w6",
        "mc016_fully_parallel_dp_w4",
    ] {
        let Some(expected) = expected(&format!("megatron/{name}")) else {
            continue;
        };
        let ranks = expected["save_spec"].as_array().unwrap();
        let whole = name.contains("world");
        let mut want = BTreeMap::new();
        let mut savers = Vec::new();
        for (rank, group) in ranks.iter().zip(groups(ranks.len())) {
            let extra = &rank["extra"];
            let members = match &extra["parallelization_group"] {
                Value::Array(_) => numbers(&extra["parallelization_group"]),
                _ => (0..ranks.len() as u64).collect(),
            };
            for shard in extra["main_rank_for_shard"].as_array().unwrap() {
                let (key, offset) = (shard[0][0].as_str().unwrap(), numbers(&shard[0][1]));
                let rank = members[shard[1].as_u64().unwrap() as usize];
                want.insert((key.to_owned(), offset), rank as u32);
            }
            let settings = FullyParallelSave::new();
            savers.push(Saver {
                group,
                color: (!whole).then_some(members[0] as u32),
                state: state(&rank["leaves"]),
                settings: match whole {
                    true => settings.around(TorchDistConfig::default()),
                    false => settings.group("dp").around(TorchDistConfig::default()),
                },
            });
        }
        let dir = tempfile::tempdir().unwrap();
        let url = dir.path().join("ckpt").display().to_string();
        save(savers, &url)
            .into_iter()
            .for_each(|s| drop(s.unwrap()));
        assert!(!want.is_empty());
        assert_eq!(writers(&url), want, "{name}");
    }
}

/// Which rank wrote which chunk of a checkpoint of Megatron Core, and the states that its ranks saved, which version 0.12 tells.
fn saved_by_megatron(name: &str) -> Option<(Written, Vec<StateDict>)> {
    let theirs = fixture(&format!("megatron/{name}"))?.join("ckpt");
    // All versions saved the same.
    let told = name.replace("mc016", "mc012").replace("mc020", "mc012");
    let expected = expected(&format!("megatron/{told}"))?;
    let ranks = expected["save_spec"].as_array().unwrap().iter();
    let states = ranks.map(|rank| state(&rank["leaves"])).collect();
    Some((writers(&theirs.display().to_string()), states))
}

type Written = BTreeMap<(String, Vec<u64>), u32>;

/// The same state by our way of Megatron's asynchronous save: which rank wrote which chunk.
#[test]
fn saves_in_the_background_are_distributed_as_those_of_megatron_core() {
    for name in ["mc012_async_w2", "mc016_async_w2", "mc020_async_w2"] {
        let Some((theirs, states)) = saved_by_megatron(name) else {
            continue;
        };
        let dir = tempfile::tempdir().unwrap();
        let url = dir.path().join("ckpt").display().to_string();
        let of_ranks = url.clone();
        on_ranks(
            groups(states.len()).into_iter().zip(states).collect(),
            move |(group, state)| {
                let url = of_ranks.clone();
                async move {
                    let mut queue = AsyncCallsQueue::new(&*group).await.unwrap();
                    let request = queue.request(reshard::save(&state, &url)).await.unwrap();
                    queue.schedule(request).unwrap();
                    assert_eq!(queue.close(false).await.unwrap().len(), 1);
                }
            },
        );
        assert_eq!(theirs.len(), 3, "{name}");
        assert_eq!(writers(&url), theirs, "{name}");
    }
}

/// Megatron's program saved three times with `cached_metadata`; its checkpoint is the third one. Here the saver and the settings keep
/// what they know of the structure.
#[test]
fn the_third_save_of_a_structure_is_distributed_as_that_of_megatron_core() {
    for name in ["mc012_cached_metadata_w2", "mc016_cached_metadata_w2"] {
        let Some((theirs, states)) = saved_by_megatron(name) else {
            continue;
        };
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().display().to_string();
        on_ranks(
            groups(states.len()).into_iter().zip(states).collect(),
            move |(group, state)| {
                let home = home.clone();
                async move {
                    let kept = FullyParallelSave::new()
                        .cache(true)
                        .around(TorchDistConfig::default());
                    let mut saver = AsyncSaver::new(&*group).await.unwrap();
                    for turn in 0..3 {
                        let plain = format!("{home}/plain-{turn}");
                        let handle = saver.start(reshard::save(&state, &plain)).await.unwrap();
                        handle.finish().await.unwrap();
                        let shared = format!("{home}/shared-{turn}");
                        let save = reshard::save(&state, &shared).strategy(kept.clone());
                        saver.start(save).await.unwrap().finish().await.unwrap();
                    }
                    saver.close().await.unwrap();
                }
            },
        );
        let ours = |turn: &str| writers(&dir.path().join(turn).display().to_string());
        assert_eq!(theirs.len(), 3, "{name}");
        assert_eq!(ours("plain-2"), theirs, "{name}");
        assert_eq!(ours("shared-2"), ours("shared-0"), "{name}");
    }
}

/// PyTorch's `async_save` with a thread writes what its `save` writes, and so does ours.
#[test]
fn a_save_in_the_background_is_distributed_as_that_of_pytorch() {
    let Some(fixture) = fixture("dcp/async_thread") else {
        return;
    };
    let expected = json(&fixture.join("expected.json"));
    let mut saved = StateDict::new();
    for (key, told) in expected["tensors"].as_object().unwrap() {
        let dtype: DType = told["dtype"].as_str().unwrap().parse().unwrap();
        let data = Tensor::zeros(key, dtype, &numbers(&told["shape"])).unwrap();
        saved.insert(key.as_str(), ShardedTensor::full(key, data));
    }
    for key in expected["bytes"].as_object().unwrap().keys() {
        let object = Payload::Value(reshard::Value::from(7));
        saved.insert(key.as_str(), ShardedObject::item(key, object));
    }
    let dir = tempfile::tempdir().unwrap();
    let url = dir.path().join("ckpt").display().to_string();
    block_on(async {
        let group = reshard::LocalGroup::new(1).remove(0);
        let mut saver = AsyncSaver::new(&group).await.unwrap();
        let save = reshard::save(&saved, &url).dialect(Dialect::Dcp);
        saver.start(save).await.unwrap().finish().await.unwrap();
        saver.close().await.unwrap();
    });
    let told = |ours: &str| {
        let opened = block_on(Checkpoint::open(ours)).unwrap();
        let mut all: Vec<String> = opened
            .tensors()
            .flat_map(|t| {
                let chunks = t.chunks().into_iter();
                let tell = |c: reshard::StoredChunk| {
                    format!("{} {} {}", t.key(), c.region, c.parts[0].file)
                };
                chunks.map(tell).collect::<Vec<_>>()
            })
            .collect();
        all.extend(opened.objects().map(str::to_owned));
        all
    };
    let theirs = fixture.join("ckpt");
    let theirs = told(&theirs.display().to_string());
    assert_eq!(theirs.len(), 3);
    assert_eq!(told(&url), theirs);
}

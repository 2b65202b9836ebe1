//! The distribution is Megatron Core's: its vectors, and checkpoints that it wrote.

use crate::ranks::{Saver, groups, save, writers};
use reshard::{AsyncCallsQueue, DType, ShardedTensor, StateDict, Tensor, model::ReplicaId};
use reshard_comm::testkit::on_ranks;
use reshard_parallel::{FullyParallelSave, HeldShard, distribute_shards_to_ranks};
use reshard_torch_dist::TorchDistConfig;
use serde_json::Value;
use std::{collections::BTreeMap, fs, path::Path};

fn json(path: &str) -> Value {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    serde_json::from_slice(&fs::read(root.join(path)).unwrap()).unwrap()
}

fn numbers(value: &Value) -> Vec<u64> {
    let all = value.as_array().unwrap().iter();
    all.map(|n| n.as_u64().unwrap()).collect()
}

#[test]
fn vectors_of_megatron_core() {
    let all = json("crates/reshard-model/tests/data/vectors_012.json");
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
    assert_eq!(seen, 40);
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

#[test]
fn ranks_write_what_they_write_in_megatron_core() {
    for name in [
        "mc012_fully_parallel_world_w6",
        "mc012_fully_parallel_dp_w4",
        "mc016_fully_parallel_world_w6",
        "mc016_fully_parallel_dp_w4",
    ] {
        let expected = json(&format!("tests/fixtures/megatron/{name}/expected.json"));
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
            let settings = FullyParallelSave::new(TorchDistConfig::default());
            savers.push(Saver {
                group,
                color: (!whole).then_some(members[0] as u32),
                state: state(&rank["leaves"]),
                settings: if whole {
                    settings
                } else {
                    settings.group("dp")
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

/// The same state by our way of Megatron's asynchronous save: which rank wrote which chunk.
#[test]
fn saves_in_the_background_are_distributed_as_those_of_megatron_core() {
    for name in ["mc012_async_w2", "mc016_async_w2", "mc020_async_w2"] {
        let home = format!("tests/fixtures/megatron/{name}");
        // The three versions saved the same.
        let expected = json("tests/fixtures/megatron/mc012_async_w2/expected.json");
        let ranks = expected["save_spec"].as_array().unwrap();
        let states: Vec<StateDict> = ranks.iter().map(|rank| state(&rank["leaves"])).collect();
        let dir = tempfile::tempdir().unwrap();
        let url = dir.path().join("ckpt").display().to_string();
        let of_ranks = url.clone();
        on_ranks(
            groups(ranks.len()).into_iter().zip(states).collect(),
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
        let theirs = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../..")
            .join(home);
        let theirs = writers(&theirs.join("ckpt").display().to_string());
        assert_eq!(theirs.len(), 3, "{name}");
        assert_eq!(writers(&url), theirs, "{name}");
    }
}

//! Checkpoints of other programs, loaded by ranks that read for each other.

use crate::{
    loads::declared,
    templates::{differences, object, paths, template},
};
use futures::executor::block_on;
use reshard::strategy::testkit::layered;
use reshard::{
    Checkpoint, LoadError, LocalGroup, ProcessGroup, ShardedTensor, StateDict, StrictHandling,
    ValueTree,
    storage::{CountingStore, LocalStore, Name},
    strategy::LoadShardedStrategy,
};
use reshard_golden::{Fixture, chain, fixtures, ours};
use reshard_parallel as _;
use serde_json::{Value as Json, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    sync::Arc,
};

/// Each way in which ranks read for each other, over all ranks and in sub-groups.
fn ways(backend: &str) -> Vec<Json> {
    let base = json!({ "format": backend });
    let shared = |exchange: &str| {
        layered(
            json!({ "type": "fully_parallel", "exchange": exchange }),
            &base,
        )
    };
    let mut out: Vec<Json> = ["broadcast", "gather_rounds", "gather_object"]
        .map(shared)
        .into();
    out.push(layered(json!({ "type": "two_stage" }), &base));
    out.push(layered(
        json!({ "type": "two_stage", "cpu_transfer": false, "data_parallel_group": "dp" }),
        &base,
    ));
    out.push(layered(
        json!({ "type": "fully_parallel", "group": "dp" }),
        &shared("broadcast"),
    ));
    out
}

/// The ranks of the group "dp": as many as there are in the fixtures of two data parallel groups.
const GROUPS: u32 = 2;

fn load(
    settings: &Json,
    templates: Vec<StateDict>,
    url: &str,
) -> Vec<Result<ValueTree, LoadError>> {
    let groups = LocalGroup::new(templates.len() as u32);
    std::thread::scope(|scope| {
        let ranks = groups.into_iter().zip(templates).map(|(group, template)| {
            scope.spawn(move || {
                block_on(async {
                    let config: LoadShardedStrategy =
                        serde_json::from_value(settings.clone()).unwrap();
                    let rank = group.rank().0;
                    let dp = group.split(Some(rank % GROUPS), rank).await.unwrap();
                    reshard::load(template, url)
                        .group(&group)
                        .sub_group("dp", dp.unwrap())
                        .strict(StrictHandling::RaiseAll)
                        .strategy(config)
                        .await
                })
            })
        });
        let ranks: Vec<_> = ranks.collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// The number of ranks that saved it, which its name says.
fn world(f: &Fixture) -> usize {
    let last = f.name.rsplit("_w").next().and_then(|n| n.parse().ok());
    last.unwrap_or(1)
}

/// Whether its program saved it with shared work, in the background, or with a plan that it kept.
fn is_by_settings(f: &Fixture) -> bool {
    [
        "_fully_parallel_",
        "_async_",
        "_cached_metadata_",
        "/async_",
        // The programs that could load these saved them, and loaded them in two stages.
        "/zarr012_",
    ]
    .iter()
    .any(|name| f.name.contains(name))
}

/// Every rank gets all of it, on as many ranks as saved it and on other numbers.
#[test]
fn ranks_that_read_for_each_other_get_what_the_program_saved() {
    let (mut settings, mut loads, mut wrong) = (0.., 0, Vec::new());
    let mut whole = 0;
    for f in fixtures().iter().filter(|f| f.expected.sound) {
        let checkpoint = block_on(Checkpoint::open(&f.url())).unwrap();
        let paths = paths(&checkpoint);
        let template = || {
            template(&paths, |key| match checkpoint.tensor(key) {
                Ok(t) => ShardedTensor::template(key, t.dtype(), t.shape()).into(),
                Err(_) => object(&checkpoint, key),
            })
        };
        // Of those that were saved by such settings each way is tried on all these ranks, of the others one after the other.
        let all = ways(&f.expected.backend);
        let (ways, ranks) = match is_by_settings(f) {
            true => (all, vec![1, 2, world(f), world(f) + 1]),
            false => {
                let way = settings
                    .next()
                    .and_then(|n: usize| all.get(n % all.len()).cloned());
                (way.into_iter().collect(), vec![2.max(world(f))])
            }
        };
        whole += usize::from(is_by_settings(f));
        for way in ways {
            for ranks in &ranks {
                loads += 1;
                let templates = (0..*ranks).map(|_| template()).collect();
                for loaded in load(&way, templates, checkpoint.url()) {
                    match loaded {
                        Ok(state) => wrong.extend(differences(f, &checkpoint, &paths, &state)),
                        Err(e) => wrong.push(format!("{f}: {way}: {}", chain(&e))),
                    }
                }
            }
        }
    }
    println!("{loads} loads, {whole} checkpoints by such settings");
    assert!(whole == 18 || !ours() && whole > 0, "{whole}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// What a rank loaded, the files of chunks that it opened, and how many bytes it read of chunks.
type Counted = (ValueTree, BTreeSet<Name>, u64);

fn counted(settings: &Json, templates: Vec<StateDict>, f: &Fixture) -> Vec<Counted> {
    let groups = LocalGroup::new(templates.len() as u32);
    let url = f.url();
    std::thread::scope(|scope| {
        let ranks = groups.into_iter().zip(templates).map(|(group, template)| {
            let url = &url;
            scope.spawn(move || {
                let place = Arc::new(LocalStore::at(f.checkpoint()).unwrap());
                let store = Arc::new(CountingStore::new(place));
                let config: LoadShardedStrategy = serde_json::from_value(settings.clone()).unwrap();
                let loaded = block_on(async {
                    let rank = group.rank().0;
                    let dp = group.split(Some(rank % GROUPS), rank).await.unwrap();
                    reshard::load(template, url)
                        .group(&group)
                        .sub_group("dp", dp.unwrap())
                        .store(Arc::<CountingStore>::clone(&store))
                        .strategy(config)
                        .await
                });
                let counts = store.take();
                let is_chunk = |name: &Name| {
                    let file = name.as_str().rsplit('/').next();
                    file.is_some_and(|file| file.starts_with(|c: char| c.is_ascii_digit()))
                };
                let chunks = counts.opened.into_iter().filter(is_chunk).collect();
                (loaded.unwrap(), chunks, counts.records.bytes)
            })
        });
        let ranks: Vec<_> = ranks.collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// The tensors of each rank, as it saved them.
fn declarations(f: &Fixture) -> Vec<StateDict> {
    let json = fs::read(f.folder.join("expected.json")).unwrap();
    let json: Json = serde_json::from_slice(&json).unwrap();
    let state = |rank: &Json| {
        let mut state = StateDict::new();
        for (i, leaf) in rank["leaves"].as_array().unwrap().iter().enumerate() {
            if leaf["kind"] == "tensor" {
                state.insert(i.to_string(), declared(leaf));
            }
        }
        state
    };
    json["save_spec"]
        .as_array()
        .unwrap()
        .iter()
        .map(state)
        .collect()
}

/// Megatron Core's cases of its load in two stages. Ranks of one data parallel group want the same chunks, or ranges of them.
#[test]
fn a_chunk_that_megatron_core_stored_as_zarr_is_read_by_one_rank_of_its_group() {
    for name in [
        "megatron/zarr012_tp2_dp2_w4",
        "megatron/zarr012_dist_opt_model_space_w4",
    ] {
        let all = fixtures();
        let Some(f) = all.iter().find(|f| f.name == name) else {
            assert!(!ours(), "{name}");
            continue;
        };
        let zarr = json!({ "format": "zarr" });
        let plain = counted(&zarr, declarations(f), f);
        // A plain load reads a chunk on each rank that wants some of it.
        let twice = plain
            .iter()
            .map(|(_, chunks, _)| chunks.len())
            .sum::<usize>();
        for settings in [
            layered(
                json!({ "type": "two_stage", "data_parallel_group": "dp" }),
                &zarr,
            ),
            layered(json!({ "type": "fully_parallel", "group": "dp" }), &zarr),
        ] {
            let shared = counted(&settings, declarations(f), f);
            let mut readers: BTreeMap<(u32, Name), u32> = BTreeMap::new();
            let mut bytes = 0;
            for (rank, ((state, chunks, read), (expected, wanted, _))) in
                (0..).zip(shared.iter().zip(&plain))
            {
                assert!(state == expected, "{name}: rank {rank} by {settings}");
                assert!(!wanted.is_empty(), "{name}: rank {rank}");
                for chunk in chunks {
                    let before = readers.insert((rank % GROUPS, chunk.clone()), rank);
                    let two_stage = settings["layers"][0]["type"] == "two_stage";
                    // Ranks that share the work may each read one of two ranges of a chunk, because these are two pieces.
                    let apart = !two_stage && name.contains("dist_opt");
                    assert!(
                        before.is_none() || apart,
                        "{name}: {chunk} is read twice by {settings}"
                    );
                    // In two stages by the lowest rank of the group.
                    assert!(!two_stage || rank < GROUPS, "{chunk}");
                }
                bytes += read;
            }
            let wanted: BTreeSet<(u32, Name)> = (0..)
                .zip(&plain)
                .flat_map(|(rank, (_, chunks, _))| {
                    chunks
                        .iter()
                        .map(move |chunk| (rank % GROUPS, chunk.clone()))
                })
                .collect();
            assert!(readers.keys().eq(&wanted), "{name}: {readers:?}");
            assert!(readers.len() < twice, "{name}: no chunk is shared");
            let stored = |name: &Name| {
                fs::metadata(f.checkpoint().join(name.as_str()))
                    .unwrap()
                    .len()
            };
            let once: u64 = wanted.iter().map(|(_, chunk)| stored(chunk)).sum();
            assert_eq!(bytes, once, "{name} by {settings}");
        }
    }
}

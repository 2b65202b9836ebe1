//! Checkpoints of other programs, loaded by ranks that read for each other.

use crate::templates::{differences, object, paths, template};
use futures::executor::block_on;
use reshard::{
    Checkpoint, LoadError, LocalGroup, ProcessGroup, ShardedTensor, StateDict, StrictHandling,
    ValueTree, strategy::LoadShardedConfig,
};
use reshard_golden::{Fixture, chain, fixtures, ours};
use reshard_parallel as _;
use serde_json::{Value as Json, json};

/// Each way in which ranks read for each other, over all ranks and in sub-groups.
fn ways(backend: &str) -> Vec<Json> {
    let base = json!({ "type": backend });
    let shared =
        |exchange: &str| json!({ "type": "fully_parallel", "exchange": exchange, "base": base });
    let mut out: Vec<Json> = ["broadcast", "gather_rounds", "gather_object"]
        .map(shared)
        .into();
    out.push(json!({ "type": "two_stage", "base": base }));
    out.push(json!({ "type": "two_stage", "cpu_transfer": false, "data_parallel_group": "dp", "base": base }));
    out.push(json!({ "type": "fully_parallel", "group": "dp", "base": shared("broadcast") }));
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
                    let config: Box<dyn LoadShardedConfig> =
                        serde_json::from_value(settings.clone()).unwrap();
                    let rank = group.rank().0;
                    let dp = group.split(Some(rank % GROUPS), rank).await.unwrap();
                    reshard::load(template, url)
                        .group(&group)
                        .sub_group("dp", dp.unwrap())
                        .strict(StrictHandling::RaiseAll)
                        .boxed_strategy(config)
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
    assert!(whole == 18 || !ours(), "{whole}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

//! Objects that one rank reads and hands out.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "what a test calls fails by panicking too"
)]

use futures::executor::block_on;
use reshard_comm::{Comm, LocalGroup, testkit::on_ranks};
use reshard_example::{ExampleConfig, ExampleLoadConfig};
use reshard_model::{FlatStateDict, Path, Payload, Sharded, ShardedObject, Value};
use reshard_plan::{
    DefaultLoadPlanner, DefaultSavePlanner, LoadContext, LoadPlan, LoadPlanner, PlanError,
    share_reads,
};
use reshard_storage::{CountingStore, IfExists, Store, testkit::MemoryStore};
use reshard_strategy::{
    LoadCx, LoadPipelineOptions, LoadShardedStrategy, OpenCx, SaveShardedStrategy,
    testkit::{Rank, save_on_ranks},
};
use std::{collections::BTreeMap, sync::Arc};

/// The highest rank reads for all.
#[derive(Debug)]
struct Highest;

impl LoadPlanner for Highest {
    fn create_global_plan(
        &self,
        plans: Vec<LoadPlan>,
        cx: &LoadContext<'_>,
    ) -> Result<Vec<LoadPlan>, PlanError> {
        share_reads(
            plans,
            cx.metadata,
            |_| Some(0),
            |all| {
                all.iter()
                    .map(|demand| demand.ranks[demand.ranks.len() - 1])
                    .collect()
            },
        )
    }
}

fn object(name: &str, data: Payload) -> (Path, Sharded) {
    (
        Path(vec![name.into()]),
        Sharded::Object(ShardedObject::item(name, data)),
    )
}

const VALUES: [(&str, i64); 3] = [("a", 7), ("b", -1), ("c", 40_000)];

/// How many ranges all ranks together read of the store, beside those of opening.
fn ranges(store: &Arc<dyn Store>, ranks: u32, planner: impl LoadPlanner) -> u64 {
    let counting = CountingStore::new(Arc::clone(store));
    let counted: Arc<dyn Store> = Arc::new(counting.clone());
    let reader = block_on(
        LoadShardedStrategy::new(ExampleLoadConfig::default())
            .open(&OpenCx::new(Arc::clone(&counted))),
    )
    .unwrap();
    counting.take();
    let planner: Arc<dyn LoadPlanner> = Arc::new(planner);
    on_ranks(LocalGroup::new(ranks), move |group| {
        let (reader, counted, planner) = (
            Arc::clone(&reader),
            Arc::clone(&counted),
            Arc::clone(&planner),
        );
        async move {
            let template: FlatStateDict = VALUES
                .iter()
                .map(|(name, _)| object(name, Payload::None))
                .collect();
            let groups = BTreeMap::new();
            let options = LoadPipelineOptions::default();
            let cx = LoadCx::new(&options, Comm::new(&group), &groups, counted, planner);
            let loaded = LoadShardedStrategy::new(ExampleLoadConfig::default())
                .load(template, reader, &cx)
                .await;
            let loaded = loaded.map_err(|failure| failure.error).unwrap();
            for ((name, value), leaf) in VALUES.iter().zip(loaded.state.values()) {
                let Sharded::Object(found) = leaf else {
                    panic!("{name} is a tensor")
                };
                assert_eq!(found.data, Payload::Value(Value::Int(*value)));
            }
        }
    });
    counting.take().ranges
}

#[test]
fn an_object_that_several_ranks_want_is_read_once() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let values = VALUES
        .iter()
        .map(|(name, value)| object(name, Payload::Value(Value::Int(*value))));
    let rank = Rank {
        strategy: Arc::new(SaveShardedStrategy::new(ExampleConfig::default())),
        planner: Arc::new(DefaultSavePlanner::DEFAULT) as _,
        flat: values.collect(),
    };
    save_on_ranks(&store, IfExists::Refuse, vec![rank])
        .into_iter()
        .for_each(|o| drop(o.unwrap()));
    let once = ranges(&store, 1, DefaultLoadPlanner::DEFAULT);
    assert_eq!(ranges(&store, 3, DefaultLoadPlanner::DEFAULT), 3 * once);
    assert_eq!(ranges(&store, 3, Highest), once);
}

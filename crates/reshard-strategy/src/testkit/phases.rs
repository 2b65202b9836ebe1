//! The phases of a save can be parted: what is staged may change before it is written.

use super::{
    Cut, Observer, Rank, check_sample,
    left::{failed, files, nothing_is_left},
    load_on_ranks, sample, sample_template, save_on_ranks, save_staged_on_ranks,
};
use crate::{
    AsyncStager, BlockingAsyncStager, KeyedData, LoadShardedStrategy, Result, SaveShardedStrategy,
    StrategyError,
};
use async_trait::async_trait;
use reshard_comm::CommError;
use reshard_model::{Data, FlatStateDict, LentBuffer, Region, Sharded, Tensor};
use reshard_plan::{DefaultLoadPlanner, DefaultSavePlanner, SavePlanner};
use reshard_storage::{IfExists, Store, testkit::MemoryStore};
use std::sync::{Arc, Mutex};

const RANKS: u32 = 2;

pub(super) fn phases_can_be_parted(save: &SaveShardedStrategy, load: &LoadShardedStrategy) {
    let objects =
        save.clone().can_handle_sharded_objects() && load.clone().can_handle_sharded_objects();
    let pair = Pair {
        save,
        load,
        objects,
    };
    pair.what_is_staged_may_change_before_it_is_written();
    pair.a_failed_layout_is_told_to_all();
    pair.a_failed_staging_is_told_to_all();
}

struct Pair<'c> {
    save: &'c SaveShardedStrategy,
    load: &'c LoadShardedStrategy,
    objects: bool,
}

impl Pair<'_> {
    fn ranks(
        &self,
        planner: impl Fn(u32) -> Arc<dyn SavePlanner>,
    ) -> Vec<Rank<SaveShardedStrategy, dyn SavePlanner>> {
        let rank = |r| Rank {
            strategy: self.save.clone().into(),
            planner: planner(r),
            flat: sample(Cut::Columns, r, RANKS, self.objects),
        };
        (0..RANKS).map(rank).collect()
    }

    fn what_is_staged_may_change_before_it_is_written(&self) {
        let planner = |_| Arc::new(DefaultSavePlanner::DEFAULT) as Arc<dyn SavePlanner>;

        // The files of a save without staging are what the staged saves below have to write, too.
        let plain: Arc<dyn Store> = Arc::new(MemoryStore::new());
        for saved in save_on_ranks(&plain, IfExists::Refuse, self.ranks(planner)) {
            saved.unwrap();
        }
        let stagers: Vec<Arc<BlockingAsyncStager>> = (0..RANKS).map(|_| Arc::default()).collect();
        let dynamic: Vec<Arc<dyn AsyncStager>> =
            stagers.iter().map(|s| Arc::clone(s) as _).collect();
        let mut allocations = Vec::new();
        for _ in 0..3 {
            let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
            let ranks = self.ranks(planner);

            // Every rank's tensors are overwritten once they are staged, as a training step does it.
            let handles = ranks
                .iter()
                .map(|rank| handles(&rank.flat))
                .collect::<Vec<_>>();
            let handles = Mutex::new(handles);
            let staged = move |rank: u32| {
                let own = std::mem::take(&mut handles.lock().unwrap()[rank as usize]);
                own.into_iter().for_each(spoil);
            };
            for saved in save_staged_on_ranks(&store, IfExists::Refuse, ranks, &dynamic, staged) {
                saved.unwrap();
            }
            assert!(
                files(&store) == files(&plain),
                "a staged save writes the bytes of one that is not"
            );
            let template = sample_template(Cut::Rows, 0, 1, self.objects.then_some(RANKS));
            let planner = Arc::new(DefaultLoadPlanner::DEFAULT) as _;
            let rank = Rank {
                strategy: self.load.clone().into(),
                planner,
                flat: template,
            };
            for loaded in load_on_ranks(&store, vec![rank]) {
                check_sample(&loaded.map_err(|f| f.error).unwrap().state);
            }
            allocations.push(stagers.iter().map(|s| s.allocations()).sum::<u64>());
        }

        // The first save allocates its memory. Later ones must use that again.
        assert!(
            allocations[0] > 0 && allocations[1..].iter().all(|n| *n == allocations[0]),
            "{allocations:?}"
        );
    }

    fn a_failed_layout_is_told_to_all(&self) {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        let planner = |r| {
            let fails = move |hook| match hook {
                "planner.transform_object" if r == 1 => Err("a fault".into()),
                _ => Ok(()),
            };
            Arc::new(Observer::new(fails).on(DefaultSavePlanner::DEFAULT)) as Arc<dyn SavePlanner>
        };
        let e = failed(save_on_ranks(&store, IfExists::Refuse, self.ranks(planner)));
        let text = e.to_string();
        // A rank whose pieces all go to others fails when it gives the first.
        let step = match self.writes() {
            true => "in `layout`",
            false => "",
        };
        assert!(
            text.contains("a fault") && text.contains(&format!("rank 1: {step}")),
            "{text}"
        );
        nothing_is_left(&store);
    }

    /// Whether rank 1 writes a file.
    fn writes(&self) -> bool {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        let planner = |_| Arc::new(DefaultSavePlanner::DEFAULT) as Arc<dyn SavePlanner>;
        let saved = save_on_ranks(&store, IfExists::Refuse, self.ranks(planner));
        let ranks = saved.into_iter().flat_map(|rank| rank.unwrap().ranks);
        ranks.skip(1).any(|rank| rank.items > 0)
    }

    fn a_failed_staging_is_told_to_all(&self) {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        let planner = |_| Arc::new(DefaultSavePlanner::DEFAULT) as Arc<dyn SavePlanner>;
        let stagers: [Arc<dyn AsyncStager>; RANKS as usize] =
            [Arc::new(BlockingAsyncStager::new()), Arc::new(NoMemory)];
        let saved = save_staged_on_ranks(
            &store,
            IfExists::Refuse,
            self.ranks(planner),
            &stagers,
            |_| (),
        );
        let e = failed(saved);
        let CommError::Ranks { causes, .. } = &e else {
            panic!("{e}")
        };
        assert_eq!(causes.keys().map(|r| r.0).collect::<Vec<_>>(), [1], "{e}");
        assert!(e.to_string().contains("a stager without memory"), "{e}");
        nothing_is_left(&store);
    }
}

/// Handles on the caller's tensors.
pub(super) fn handles(flat: &FlatStateDict) -> Vec<Tensor> {
    let tensors = flat.values().filter_map(|leaf| match leaf {
        Sharded::Tensor(t) => t.data.host().cloned(),
        Sharded::Object(_) => None,
    });
    tensors.collect()
}

/// Takes a buffer for a load, for which nobody else may have a handle on it, and fills it with other elements.
pub(super) fn spoil(tensor: Tensor) {
    let shape = tensor.shape().clone();
    let lent = LentBuffer::new("staged", vec![tensor]);
    let (lent, views) = lent
        .map_err(|(e, _)| e)
        .expect("a staged save holds nothing of the caller's");
    for region in lent
        .regions_mut(&[(&views[0], Region::whole(&shape))])
        .unwrap()
    {
        let other = vec![0xa5; region.bytes() as usize];
        region.fill(&other).unwrap();
    }
}

/// A stager that fails.
#[derive(Debug)]
pub(super) struct NoMemory;

#[async_trait]
impl AsyncStager for NoMemory {
    async fn stage(&self, _: Vec<KeyedData>) -> Result<Vec<Data>> {
        Err(StrategyError::Invalid("a stager without memory".into()))
    }
}

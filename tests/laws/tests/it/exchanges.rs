//! Exchanges in whole saves: whoever writes the pieces, the checkpoint loads to the same state.

use futures::executor::block_on;
use proptest::prelude::*;
use reshard::{
    Dialect, OpenOptions, SaveReport,
    plan::{DefaultSavePlanner, Metadata, PlanError, SavePlan, SavePlanner, share_writes},
    policy::{ByFiles, MaxShardSize},
};
use reshard_laws::{
    contents::{choices, contents},
    law,
    place::{Place, stores},
    ranks::{group, load, save},
};
use reshard_storage::LocalStore;

/// In each group the pieces go to these ranks, in turn.
#[derive(Clone, Debug)]
struct Writers {
    base: DefaultSavePlanner,
    groups: Vec<Option<u32>>,
    writers: Vec<u32>,
}

impl SavePlanner for Writers {
    fn base(&self) -> &dyn SavePlanner {
        &self.base
    }

    fn create_global_plan(
        &self,
        plans: Vec<SavePlan>,
    ) -> Result<(Vec<SavePlan>, Metadata), PlanError> {
        let (plans, metadata) = self.base.create_global_plan(plans)?;
        let ranks = plans.len() as u32;
        let group = |rank: u32| self.groups[rank as usize];
        let writer = |i: usize| self.writers[i % self.writers.len()] % ranks;
        Ok((
            share_writes(plans, group, |all| (0..all.len()).map(writer).collect())?,
            metadata,
        ))
    }
}

proptest! {
    #![proptest_config(law(48))]

    #[test]
    fn whoever_writes_the_pieces_the_same_is_loaded_back(
        contents in contents(), n in 2u32..6, m in 1u32..4, mut choices in choices(), local in any::<bool>(),
        groups in prop::collection::vec(prop::option::weighted(0.8, 0u32..2), 5),
        writers in prop::collection::vec(0u32..5, 1..6), memory in 0u64..20_000, cut in 0u64..4,
        dialect in prop_oneof![Just(Dialect::Megatron), Just(Dialect::Dcp)],
    ) {
        let home = tempfile::tempdir().unwrap();
        // Ranks of one process share their I/O threads, and may not wait for each other there.
        let place = match local {
            true => Place::of(LocalStore::at(home.path().join("ckpt")).unwrap()),
            false => Place::new(),
        };
        let states = contents.states(&contents.cut(n, &mut choices), &mut choices);
        let base = match dialect {
            Dialect::Megatron => DefaultSavePlanner::DEFAULT,
            _ => DefaultSavePlanner::DCP,
        };
        let planner = Writers { base, groups, writers };
        let saved = save(group(n), states, place.url(), move |_, save| {
            let save = save.planner(planner.clone()).dialect(dialect).exchange_memory(memory);
            match cut {
                0 => save,
                1 => save.policy(ByFiles::new(2)),
                _ => save.policy(MaxShardSize::new(cut * 2000)),
            }
        });
        saved.into_iter().for_each(|o| drop::<SaveReport>(o.unwrap()));

        let opened = block_on(OpenOptions::new().stores(stores()).open(place.url())).unwrap();
        let report = block_on(opened.verify(true, Default::default())).unwrap();
        prop_assert!(report.damage.is_empty() && report.unchecked.is_empty(), "{:?}", report);
        let cut = contents.cut(m, &mut choices);
        let (templates, watches): (Vec<_>, Vec<_>) =
            (0..m).map(|r| contents.template(&cut, r, n, dialect, &mut choices)).unzip();
        for (r, outcome) in (0..).zip(load(group(m), templates, place.url(), |_, load| load)) {
            contents.check(&cut, r, n, &outcome.unwrap().0);
        }
        watches.iter().for_each(|w| w.check_filled());
    }
}

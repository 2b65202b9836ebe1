//! Plans and bytes depend on the state alone: not on the run, on timing, on who decides, on how elements lie in memory.

use futures::task::noop_waker;
use proptest::prelude::*;
use reshard::{
    Dialect, LocalGroup, Rank, StateDict,
    plan::{DefaultSavePlanner, PlanError, SavePlan, SavePlanner},
};
use reshard_laws::{
    contents::{Choices, choices, contents},
    law,
    place::{Place, stores},
    ranks::{group, save},
};
use std::{
    collections::BTreeMap,
    future::IntoFuture,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll},
};

/// Polls futures in an order that choices give, on this thread, until all are done.
fn interleaved<T>(
    futures: Vec<Pin<Box<dyn Future<Output = T> + Send + '_>>>,
    choices: &mut Choices,
) -> Vec<T> {
    let waker = noop_waker();
    let mut futures: Vec<_> = futures.into_iter().map(Some).collect();
    let mut done: Vec<Option<T>> = futures.iter().map(|_| None).collect();
    while done.iter().any(Option::is_none) {
        let i = choices.below(futures.len() as u64) as usize;
        if let Some(future) = &mut futures[i]
            && let Poll::Ready(out) = future.as_mut().poll(&mut Context::from_waker(&waker))
        {
            done[i] = Some(out);
            futures[i] = None;
        }
        std::thread::yield_now();
    }
    done.into_iter().flatten().collect()
}

fn clear(place: &Place) {
    let names: Vec<_> = place.files().into_keys().collect();
    futures::executor::block_on(place.store().remove(&names)).unwrap();
}

/// Keeps the plans that ranks end up with.
#[derive(Clone, Debug, Default)]
struct Keeping {
    dcp: bool,
    plans: Arc<Mutex<Vec<SavePlan>>>,
}

impl SavePlanner for Keeping {
    fn base(&self) -> &dyn SavePlanner {
        if self.dcp {
            &DefaultSavePlanner::DCP
        } else {
            &DefaultSavePlanner::DEFAULT
        }
    }

    fn finish_plan(&self, plan: SavePlan) -> Result<SavePlan, PlanError> {
        let plan = self.base().finish_plan(plan)?;
        self.plans.lock().unwrap().push(plan.clone());
        Ok(plan)
    }
}

proptest! {
    #![proptest_config(law(32))]

    #[test]
    fn any_interleaving_of_ranks_gives_the_same_bytes(
        contents in contents(), n in 1u32..5, mut choices in choices(), dcp in any::<bool>(),
    ) {
        let dialect = if dcp { Dialect::Dcp } else { Dialect::Megatron };
        let place = Place::new();
        let cut = contents.cut(n, &mut choices);
        for outcome in save(group(n), contents.states(&cut, &mut choices), place.url(), move |_, s| s.dialect(dialect)) {
            outcome.unwrap();
        }
        let first = place.files();
        clear(&place);

        // Other choices: the elements are the same, but lie elsewhere.
        let states: Vec<StateDict> = contents.states(&cut, &mut choices);
        let groups = LocalGroup::new(n);
        let saves = states.iter().zip(&groups).map(|(state, group)| {
            let save = reshard::save(state, place.url()).group(group).stores(stores());
            save.dialect(dialect).into_future()
        });
        for outcome in interleaved(saves.collect(), &mut choices) {
            outcome.unwrap();
        }
        let second = place.files();
        prop_assert_eq!(first.keys().collect::<Vec<_>>(), second.keys().collect::<Vec<_>>());
        for (name, bytes) in &first {
            prop_assert!(second[name] == bytes, "{} differs", name);
        }
    }

    #[test]
    fn plans_are_equal_whoever_decides(contents in contents(), n in 2u32..5, mut choices in choices(), dcp in any::<bool>()) {
        let cut = contents.cut(n, &mut choices);
        let mut seen = Vec::new();
        for coordinator in [0, n - 1, 0] {
            let place = Place::new();
            let keeping: Vec<Keeping> = (0..n).map(|_| Keeping { dcp, plans: Arc::default() }).collect();
            let plans: Vec<_> = keeping.iter().map(|k| Arc::clone(&k.plans)).collect();
            let states = contents.states(&cut, &mut choices);
            let saved = save(group(n), states, place.url(), move |rank, save| {
                let dialect = if dcp { Dialect::Dcp } else { Dialect::Megatron };
                save.planner(keeping[rank.index()].clone()).dialect(dialect).coordinator(Rank(coordinator))
            });
            let mut metadata = None;
            for (rank, outcome) in (0..).zip(saved) {
                let report = outcome.unwrap();
                prop_assert_eq!(report.metadata.is_some(), rank == coordinator);
                metadata = metadata.or(report.metadata);
            }
            let metadata = metadata.unwrap();
            let chunks: BTreeMap<String, Vec<_>> = metadata
                .tensors()
                .map(|t| (t.key().to_owned(), t.chunks().map(|(_, region)| region).collect()))
                .collect();
            let plans: Vec<_> = plans.iter().map(|p| p.lock().unwrap().clone()).collect();
            prop_assert!(plans.iter().all(|p| p.len() == 1), "one plan a rank");
            seen.push((plans, chunks));
        }
        prop_assert_eq!(&seen[0], &seen[1]);
        prop_assert_eq!(&seen[0], &seen[2]);
    }
}

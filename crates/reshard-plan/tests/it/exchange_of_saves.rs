//! What ranks write for each other: every piece is still written once, by the rank that was chosen, from the leaf that it had.

#![expect(
    clippy::unwrap_used,
    reason = "what a test calls fails by panicking too"
)]

use crate::cuts::*;
use proptest::prelude::*;
use reshard_model::{FlatStateDict, Region};
use reshard_plan::*;
use std::collections::BTreeSet;

const RANKS: usize = 4;

/// Boxes of a tensor, each on one rank, and an object on some.
fn states() -> impl Strategy<Value = Vec<FlatStateDict>> {
    (
        shapes(),
        seeds(),
        prop::collection::vec(0..RANKS, 10),
        0..RANKS,
    )
        .prop_map(|(shape, seeds, holders, n)| {
            let mut ranks = vec![Vec::new(); RANKS];
            for (region, holder) in cut(&shape, &seeds).into_iter().zip(&holders) {
                ranks[*holder].push(leaf("w", &shape, region));
            }
            let mut states: Vec<FlatStateDict> = ranks.into_iter().map(flat).collect();
            for (rank, state) in states.iter_mut().enumerate().take(n) {
                state.extend(objects(&[&format!("o{rank}")]));
            }
            states
        })
}

fn plain(states: &[FlatStateDict]) -> Vec<SavePlan> {
    save(&DefaultSavePlanner::DEFAULT, states).unwrap().0
}

/// Who has each item, and the item as that rank has it; by the rank that writes it.
fn placed(plans: &[SavePlan]) -> Vec<Vec<(u32, WriteItem)>> {
    let items = take_items(&mut plans.to_vec()).unwrap();
    items
        .into_iter()
        .map(|own| own.into_iter().map(|p| (p.from, p.item)).collect())
        .collect()
}

proptest! {
    #![proptest_config(reshard_model::testkit::law(256))]
    #[test]
    fn each_piece_is_written_once_by_the_rank_that_was_chosen(
        states in states(), groups in prop::collection::vec(prop::option::of(0u32..3), RANKS),
        writers in prop::collection::vec(0..RANKS as u32, 1..9), again in prop::collection::vec(0..RANKS as u32, 1..9),
    ) {
        let plans = plain(&states);
        let mut expected: Vec<Vec<(u32, WriteItem)>> = vec![Vec::new(); RANKS];
        for (rank, plan) in plans.iter().enumerate().filter(|(rank, _)| groups[*rank].is_none()) {
            expected[rank].extend(plan.items.iter().map(|item| (rank as u32, item.clone())));
        }
        let shared = share_writes(plans.clone(), |rank| groups[rank as usize], |all| {
            let chosen: Vec<u32> = (0..all.len()).map(|i| writers[i % writers.len()]).collect();
            for (offered, by) in all.iter().zip(&chosen) {
                assert_eq!((groups[offered.from as usize], offered.from), (Some(offered.group), offered.by));
                expected[*by as usize].push((offered.from, offered.item.clone()));
            }
            chosen
        }).unwrap();
        prop_assert_eq!(&placed(&shared), &expected);

        // Who has a piece gives it, and nobody else; the ranks that communicate are a group.
        let found = save_exchange_groups(&shared).unwrap();
        for (rank, plan) in (0u32..).zip(&shared) {
            let gives: Vec<_> = plan.exchange.gives.iter().map(|g| (g.to, g.item.clone())).collect();
            let owed = (0u32..).zip(&expected).filter(|(by, _)| *by != rank);
            let owed: Vec<_> = owed.flat_map(|(by, own)| own.iter().filter(|(from, _)| *from == rank).map(move |(_, i)| (by, i.clone()))).collect();
            prop_assert_eq!(gives.len(), owed.len());
            prop_assert!(owed.iter().all(|one| gives.contains(one)));
            prop_assert_eq!(found[rank as usize].is_some(), !plan.exchange.is_empty());
            let peers = plan.exchange.gives.iter().map(|g| g.to).chain(plan.exchange.takes.iter().copied());
            prop_assert!(peers.into_iter().all(|peer| found[peer as usize] == found[rank as usize]));
            prop_assert_eq!(&postcard::from_bytes::<SavePlan>(&postcard::to_stdvec(plan).unwrap()).unwrap(), plan);
        }

        // Shared once more, a piece comes from the rank that has it, not from the rank that would have written it.
        let twice = share_writes(shared, |_| Some(0), |all| (0..all.len()).map(|i| again[i % again.len()]).collect()).unwrap();
        let mut all: Vec<_> = placed(&twice).concat();
        let mut before = expected.concat();
        let order = |(from, item): &(u32, WriteItem)| (*from, item.source);
        all.sort_by_key(order);
        before.sort_by_key(order);
        prop_assert_eq!(all, before);
    }

    /// Whatever a planner makes of plans, the check says yes only to plans that can be carried out, and nothing panics.
    #[test]
    fn hostile_plans_are_refused_or_fit(
        states in states(), writers in prop::collection::vec(0..RANKS as u32, 1..9),
        spoils in prop::collection::vec((0..9usize, 0..RANKS, any::<prop::sample::Index>(), any::<u32>()), 1..4),
    ) {
        let mut plans = share_writes(plain(&states), |_| Some(0), |all| (0..all.len()).map(|i| writers[i % writers.len()]).collect()).unwrap();
        for (what, rank, at, number) in spoils {
            let SavePlan { items, exchange, .. } = &mut plans[rank];
            let small = number % (RANKS as u32 + 2);
            let (i, g, t) = [items.len(), exchange.gives.len(), exchange.takes.len()].map(|n| at.index(n.max(1))).into();
            match what {
                0 if !exchange.gives.is_empty() => drop(exchange.gives.remove(g)),
                1 if !exchange.takes.is_empty() => drop(exchange.takes.remove(t)),
                2 if !exchange.gives.is_empty() => exchange.gives[g].to = small,
                3 if !exchange.takes.is_empty() => exchange.takes[t] = small,
                4 if !items.is_empty() => items[i].source = WriteItem::TAKEN + small,
                5 if !items.is_empty() => items[i].source = number,
                6 if !items.is_empty() => drop(items.remove(i)),
                7 => exchange.takes.push(number),
                8 if !items.is_empty() => exchange.gives.push(Give::new(small, items[i].clone())),
                _ => {}
            }
        }
        let checked = save_exchange_groups(&plans);
        let shared = share_writes(plans.clone(), |_| Some(0), |all| all.iter().map(|o| o.by).collect());
        prop_assert_eq!(checked.is_ok(), shared.is_ok());
        if checked.is_ok() {
            let gives: usize = plans.iter().map(|p| p.exchange.gives.len()).sum();
            let takes: usize = plans.iter().map(|p| p.taken_items().unwrap().len()).sum();
            prop_assert_eq!(gives, takes);
        }
    }
}

fn two() -> Vec<SavePlan> {
    let rows = |r: u64| flat([leaf("w", &[4], Region::new([2 * r], [2]))]);
    plain(&[rows(0), rows(1)])
}

fn to(rank: u32) -> impl FnOnce(&[Offered]) -> Vec<u32> {
    move |all| vec![rank; all.len()]
}

#[test]
fn what_one_gives_and_another_takes_must_be_the_same() {
    let e = |spoil: fn(&mut [SavePlan])| {
        let mut plans = share_writes(two(), |_| Some(0), to(0)).unwrap();
        spoil(&mut plans);
        save_exchange_groups(&plans).unwrap_err().to_string()
    };
    assert_eq!(
        e(|p| p[1].exchange.gives.clear()),
        "w: rank 0 waits for float32 [2:4] from rank 1, which does not hand it out"
    );
    assert_eq!(
        e(|p| {
            p[0].exchange.takes.clear();
            p[0].items.pop();
        }),
        "w: rank 1 hands float32 [2:4] out to rank 0, which does not wait for it"
    );
    assert_eq!(
        e(|p| p[1].exchange.gives[0].item.key = "v".into()),
        "w: rank 0 waits for float32 [2:4] from rank 1, which hands out float32 [2:4] of v"
    );
    assert_eq!(
        e(|p| p[1].exchange.gives[0].to = 2),
        "w: rank 1 hands float32 [2:4] out to rank 2 of 2"
    );
    assert_eq!(
        e(|p| p[1].exchange.gives[0].to = 1),
        "w: rank 1 hands float32 [2:4] out to itself"
    );
    assert_eq!(
        e(|p| p[0].exchange.takes[0] = 0),
        "w: rank 0 waits for it from rank 0 of 2"
    );
    assert_eq!(
        e(|p| p[1].exchange.gives[0].item.source = WriteItem::TAKEN),
        "w: rank 1 hands it out to rank 0, but has it from another rank"
    );
    assert_eq!(
        e(|p| p[0].items[0].source = WriteItem::TAKEN),
        "w: its source is also the source of w[0]"
    );
    assert_eq!(
        e(|p| p[0].items[1].source += 1),
        "w: its source is item 1 of those that other ranks give, but they give 1"
    );
    assert_eq!(
        e(|p| drop(p[0].items.pop())),
        "an exchange: no item is written with what rank 1 gives"
    );
}

#[test]
fn a_choice_of_writers_that_can_not_be_is_refused() {
    let e = |choose: fn(&[Offered]) -> Vec<u32>| {
        share_writes(two(), |_| Some(0), choose)
            .unwrap_err()
            .to_string()
    };
    assert_eq!(
        e(|_| vec![0]),
        "an exchange: 1 ranks were chosen to write 2 pieces; choose one rank for each piece"
    );
    assert_eq!(
        e(|_| vec![0, 2]),
        "w: rank 2 was chosen to write it, but there are only 2 ranks"
    );
    let mut laid_out = two();
    laid_out[1].files = vec![1];
    let e = share_writes(laid_out, |_| None, to(0))
        .unwrap_err()
        .to_string();
    assert!(e.contains("its file is decided already"), "{e}");
}

#[test]
fn the_default_planner_makes_no_exchange_of_a_save() {
    let plans = two();
    assert!(plans.iter().all(|plan| plan.exchange.is_empty()));
    assert_eq!(save_exchange_groups(&plans).unwrap(), [None, None]);
    let sources: BTreeSet<u32> = plans
        .iter()
        .flat_map(|p| &p.items)
        .map(|i| i.source)
        .collect();
    assert!(sources.iter().all(|s| *s < WriteItem::TAKEN));
}

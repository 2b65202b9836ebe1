//! Groups that are not "all ranks, rank 0 decides": sub-groups, other coordinators, ranks that don't talk at all.

use futures::executor::block_on;
use proptest::prelude::*;
use reshard::{
    DType, Dialect, ErrorKind, LocalGroup, OpenOptions, ProcessGroup, Rank, Region, ShardedTensor,
    StateDict, Tensor, storage::Name,
};
use reshard_comm::testkit::on_ranks;
use reshard_laws::{
    contents::{Choices, Contents, Global, choices, contents},
    law,
    place::{Place, stores},
    ranks::{Groups, group, load, save},
};
use std::sync::Arc;

/// Ranks 1 and 3 of four, as a group of two; the others have gone on to something else.
fn one_and_three() -> Groups {
    let parts = on_ranks(LocalGroup::new(4), |group| async move {
        let color = (group.rank().0 % 2 == 1).then_some(0);
        let part = group.split(color, 0).await.unwrap();
        // The group stays with its rank, as a training job keeps it.
        (part, group)
    });
    let (parts, all): (Vec<_>, Vec<_>) = parts.into_iter().unzip();
    std::mem::forget(all);
    parts.into_iter().flatten().collect()
}

fn sample() -> Contents {
    let tensor = |key: &str, dtype| Global {
        key: key.into(),
        dtype,
        shape: vec![9, 40],
        salt: 3,
        prepended: false,
    };
    Contents {
        tensors: vec![tensor("a", DType::Float32), tensor("b", DType::Int64)],
        objects: true,
        extra: reshard::Value::Dict(Vec::new()),
    }
}

#[test]
fn a_sub_group_saves_and_loads_like_a_group_of_its_own() {
    let contents = sample();
    let place = Place::new();
    let groups = one_and_three();
    assert_eq!(
        groups
            .iter()
            .map(|g| (g.rank().0, g.size()))
            .collect::<Vec<_>>(),
        [(0, 2), (1, 2)]
    );
    let cut = contents.rows(2);
    let saved = save(
        groups,
        contents.states(&cut, &mut Choices::of([0])),
        place.url(),
        |_, s| s.coordinator(Rank(1)),
    );
    saved.into_iter().for_each(|o| drop(o.unwrap()));
    let cut = contents.columns(2);
    let templates = (0..2)
        .map(|r| {
            contents
                .template(&cut, r, 2, Dialect::Megatron, &mut Choices::of([1, 3]))
                .0
        })
        .collect();
    for (r, outcome) in (0..).zip(load(one_and_three(), templates, place.url(), |_, l| {
        l.coordinator(Rank(1))
    })) {
        contents.check(&cut, r, 2, &outcome.unwrap().0);
    }
}

proptest! {
    #![proptest_config(law(24))]

    #[test]
    fn any_rank_may_decide(
        contents in contents(), n in 1u32..5, m in 1u32..5, saver in 0u32..4, loader in 0u32..4, mut choices in choices(),
    ) {
        let (saver, loader, place) = (saver % n, loader % m, Place::new());
        let cut = contents.cut(n, &mut choices);
        let saved =
            save(group(n), contents.states(&cut, &mut choices), place.url(), move |_, s| s.coordinator(Rank(saver)));
        saved.into_iter().for_each(|o| drop(o.unwrap()));
        let cut = contents.cut(m, &mut choices);
        let templates =
            (0..m).map(|r| contents.template(&cut, r, n, Dialect::Megatron, &mut choices).0).collect();
        let loaded = load(group(m), templates, place.url(), move |_, l| l.coordinator(Rank(loader)));
        for (r, outcome) in (0..).zip(loaded) {
            contents.check(&cut, r, n, &outcome.unwrap().0);
        }
    }
}

/// Saved by two ranks that exchange no plans.
fn rank_local(contents: &Contents, dialect: Dialect) -> Place {
    let place = Place::new();
    let states = contents.states(&contents.rows(2), &mut Choices::of([0]));
    let saved = save(group(2), states, place.url(), move |_, s| {
        s.rank_local(true).dialect(dialect)
    });
    for outcome in saved {
        assert!(
            outcome.unwrap().metadata.is_some(),
            "every rank has its own"
        );
    }
    place
}

#[test]
fn a_rank_local_checkpoint_has_a_record_a_rank_and_loads_on_as_many() {
    let contents = sample();
    let place = rank_local(&contents, Dialect::Dcp);
    let names: Vec<String> = place.files().keys().map(Name::to_string).collect();
    assert!(
        names.contains(&"__0.metadata".into()) && names.contains(&"__1.metadata".into()),
        "{names:?}"
    );
    assert!(!names.contains(&".metadata".into()), "{names:?}");
    let cut = contents.rows(2);
    let templates = (0..2)
        .map(|r| {
            contents
                .template(&cut, r, 2, Dialect::Dcp, &mut Choices::of([0]))
                .0
        })
        .collect();
    for (r, outcome) in (0..).zip(load(group(2), templates, place.url(), |_, l| l)) {
        contents.check(&cut, r, 2, &outcome.unwrap().0);
    }
}

#[test]
fn one_process_opens_a_rank_local_checkpoint_as_a_whole() {
    let contents = sample();
    for dialect in [Dialect::Dcp, Dialect::Megatron] {
        let place = rank_local(&contents, dialect);
        let opened = block_on(OpenOptions::new().stores(stores()).open(place.url())).unwrap();
        for t in &contents.tensors {
            let got = block_on(opened.tensor(&t.key).unwrap().read(..)).unwrap();
            assert!(
                got.to_bytes() == t.whole().to_bytes(),
                "{} in {dialect}",
                t.key
            );
        }
        let report = block_on(opened.verify(true, Default::default())).unwrap();
        assert!(report.damage.is_empty(), "{report:?}");
    }
}

#[test]
fn a_missing_rank_of_a_rank_local_checkpoint_is_named() {
    let contents = sample();
    let place = rank_local(&contents, Dialect::Dcp);
    block_on(place.store().remove(&[Name::new("__0.metadata").unwrap()])).unwrap();
    let e = block_on(OpenOptions::new().stores(stores()).open(place.url())).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NotFound);
    assert!(
        e.strategy_error()
            .to_string()
            .contains("__0.metadata of rank 0 is missing"),
        "{e}"
    );

    // A last rank that is missing shows in what it held.
    let place = rank_local(&contents, Dialect::Dcp);
    block_on(place.store().remove(&[Name::new("__1.metadata").unwrap()])).unwrap();
    let opened = block_on(OpenOptions::new().stores(stores()).open(place.url())).unwrap();
    let e = block_on(opened.tensor("a").unwrap().read(..)).unwrap_err();
    assert!(
        e.strategy_error()
            .to_string()
            .contains("no chunk covers [5:9, 0:40]"),
        "{e}"
    );
    drop(Arc::clone(place.store()));
}

/// A list of all ranks on every rank would take the square of their number.
#[test]
fn what_ranks_are_told_of_a_save_grows_with_their_number_and_no_faster() {
    const RANKS: u32 = 48;
    for rank_local in [false, true] {
        let place = Place::new();
        let states = (0..RANKS).map(|r| {
            let region = Region::new([u64::from(r)], [1]);
            let leaf = ShardedTensor::region_of("w", DType::UInt8, &[u64::from(RANKS)], region);
            let mut state = StateDict::new();
            state.insert(
                "w",
                leaf.with_data(Tensor::from_vec(&[1], vec![r as u8]).unwrap()),
            );
            state
        });
        let saved = save(group(RANKS), states.collect(), place.url(), move |_, s| {
            s.coordinator(Rank(3))
                .rank_local(rank_local)
                .dialect(Dialect::Dcp)
        });
        let reports: Vec<_> = saved.into_iter().map(Result::unwrap).collect();
        let told: Vec<usize> = reports.iter().map(|r| r.ranks.len()).collect();
        assert_eq!(told.iter().sum::<usize>(), RANKS as usize, "{told:?}");
        let listed = &reports[3];
        assert_eq!(
            listed.ranks.iter().map(|r| r.bytes).sum::<u64>(),
            listed.bytes()
        );
        for r in &reports {
            assert_eq!(r.totals, listed.totals);
            assert_eq!(
                (r.totals.ranks, r.totals.all.items, r.files()),
                (RANKS, RANKS.into(), RANKS.into())
            );
            assert!((r.imbalance() - 1.0).abs() < 1e-9, "{}", r.imbalance());
        }
    }
}

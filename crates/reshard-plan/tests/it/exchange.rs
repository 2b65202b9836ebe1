//! What ranks read for each other is what each would have read for itself.

use crate::cuts::*;
use proptest::prelude::*;
use reshard_model::{Dims, FlatStateDict, Region};
use reshard_plan::*;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

const RANKS: usize = 5;

/// Where each element of a leaf comes from, by leaf and place in it.
type Filled = BTreeMap<(u32, Dims), Dims>;

/// The elements of a selection: where they are in the tensor.
fn read(what: &Wanted, metadata: &Metadata) -> Vec<Dims> {
    let Wanted::Chunk(s) = what else {
        panic!("an object")
    };
    let (_, chunk) = metadata.chunk(s.chunk).unwrap();
    assert!(s.region.fits(&chunk.lengths));
    let global = |e: Dims| e.iter().zip(&chunk.offsets).map(|(a, b)| a + b).collect();
    elements(&s.region).into_iter().map(global).collect()
}

fn put(item: &ReadItem, elements_read: &[Dims], into: &mut Filled) {
    let places = elements(&item.dest_region);
    assert_eq!(places.len(), elements_read.len());
    for (place, element) in places.into_iter().zip(elements_read) {
        assert_eq!(
            into.insert((item.dest, place), element.clone()),
            None,
            "filled twice"
        );
    }
}

/// Carries plans out: each rank reads its items and what it serves, then gets what others have read for it.
fn carry_out(plans: &[LoadPlan], metadata: &Metadata) -> Vec<Filled> {
    let mut sent: BTreeMap<(u32, u32), VecDeque<Vec<Dims>>> = BTreeMap::new();
    for (rank, plan) in (0..).zip(plans) {
        for serve in &plan.exchange.serves {
            for (i, to) in serve.to.iter().enumerate() {
                let what = match (&serve.what, serve.parts.get(i)) {
                    (Wanted::Chunk(of), Some(part)) => {
                        Wanted::Chunk(Selection::new(of.chunk, of.dtype, part.clone()))
                    }
                    (what, _) => what.clone(),
                };
                sent.entry((rank, *to))
                    .or_default()
                    .push_back(read(&what, metadata));
            }
        }
    }
    let mut out = vec![Filled::new(); plans.len()];
    for ((rank, plan), into) in (0..).zip(plans).zip(&mut out) {
        for item in &plan.items {
            put(item, &read(&item.wanted(metadata).unwrap(), metadata), into);
        }
        for receive in &plan.exchange.receives {
            let got = sent
                .get_mut(&(receive.from, rank))
                .and_then(VecDeque::pop_front)
                .expect("it is sent");
            receive.items.iter().for_each(|item| put(item, &got, into));
        }
    }
    assert!(
        sent.values().all(VecDeque::is_empty),
        "all that is sent is taken"
    );
    out
}

/// Any regions of a tensor, which may overlap, each wanted by some of the ranks.
fn overlapping() -> impl Strategy<Value = (Vec<u64>, Vec<FlatStateDict>)> {
    let axes = prop::collection::vec(
        (1u64..7, prop::collection::vec((0u64..7, 1u64..7), 10)),
        1..4,
    );
    let holders = prop::collection::vec(prop::collection::btree_set(0..RANKS, 0..4), 1..10);
    (axes, holders).prop_map(|(axes, holders)| {
        let shape: Vec<u64> = axes.iter().map(|(length, _)| *length).collect();
        let mut ranks = vec![Vec::new(); RANKS];
        for (i, holders) in holders.into_iter().enumerate() {
            let along = axes.iter().map(|(length, cuts)| {
                let from = cuts[i].0 % length;
                (from, cuts[i].1.min(length - from))
            });
            let (offsets, lengths): (Vec<u64>, Vec<u64>) = along.unzip();
            let region = Region::new(offsets.as_slice(), lengths.as_slice());
            for rank in holders {
                ranks[rank].push(leaf("w", &shape, region.clone()));
            }
        }
        (shape, ranks.into_iter().map(flat).collect())
    })
}

/// Regions of a tensor, each wanted by some of the ranks; by some of them twice.
fn templates() -> impl Strategy<Value = (Vec<u64>, Vec<FlatStateDict>)> {
    (
        shapes(),
        seeds(),
        prop::collection::vec(prop::collection::vec(0..RANKS, 0..5), 10),
    )
        .prop_map(|(shape, seeds, holders)| {
            let mut ranks = vec![Vec::new(); RANKS];
            for (region, holders) in cut(&shape, &seeds).into_iter().zip(&holders) {
                holders
                    .iter()
                    .for_each(|&rank| ranks[rank].push(leaf("w", &shape, region.clone())));
            }
            (shape, ranks.into_iter().map(flat).collect())
        })
}

fn plain(templates: &[FlatStateDict], metadata: &Metadata) -> Vec<LoadPlan> {
    templates
        .iter()
        .map(|t| load(DefaultLoadPlanner::DEFAULT, t, metadata).unwrap())
        .collect()
}

proptest! {
    #![proptest_config(reshard_model::testkit::law(256))]
    #[test]
    fn an_exchange_fills_what_the_plain_plan_fills_and_reads_each_box_once_a_group(
        (shape, templates) in prop_oneof![templates(), overlapping()], from in seeds(),
        groups in prop::collection::vec(prop::option::of(0u32..3), RANKS), readers in prop::collection::vec(0u32..RANKS as u32, 1..9),
    ) {
        let metadata = table(&shape, &cut(&shape, &from));
        let plans = plain(&templates, &metadata);
        let group = |rank: u32| groups[rank as usize];
        let mut demands = Vec::new();
        let shared = share_reads(plans.clone(), &metadata, group, |all| {
            for demand in all {
                prop_assert_group(demand, &groups);
                demands.push(demand.clone());
            }
            // Any reader, also of another group, also one that does not want it.
            all.iter().enumerate().map(|(i, _)| readers[i % readers.len()]).collect()
        }).unwrap();
        prop_assert_eq!(carry_out(&shared, &metadata), carry_out(&plans, &metadata));

        // What is read for a group is what its ranks want, each element once, except what one rank alone wants in several leaves.
        let mut once: BTreeMap<(u32, Dims), Vec<&[u32]>> = BTreeMap::new();
        for demand in &demands {
            for element in read(&demand.what, &metadata) {
                once.entry((demand.group, element)).or_default().push(&demand.ranks);
            }
        }
        for (element, ranks) in &once {
            prop_assert!(ranks.len() == 1 || ranks.iter().all(|r| r.len() == 1 && *r == ranks[0]), "{:?} {:?}", element, ranks);
        }
        let wanted: BTreeSet<(u32, Dims)> = plans.iter().zip(&groups).filter_map(|(plan, group)| Some((plan, (*group)?))).flat_map(|(plan, group)| {
            plan.items.iter().flat_map(|i| read(&i.wanted(&metadata).unwrap(), &metadata)).map(move |e| (group, e)).collect::<Vec<_>>()
        }).collect();
        prop_assert_eq!(&once.into_keys().collect::<BTreeSet<_>>(), &wanted);
        // Nobody reads anything else, or in another way.
        let demanded: BTreeSet<String> = demands.iter().map(|d| format!("{:?}", d.what)).collect();
        for (plan, group) in shared.iter().zip(&groups) {
            let inside = |what: &Wanted| demands.iter().any(|d| match (&d.what, what) {
                (Wanted::Chunk(of), Wanted::Chunk(part)) => of.chunk == part.chunk && of.region.contains(&part.region),
                _ => false,
            });
            let known = plan.exchange.serves.iter().all(|s| demanded.contains(&format!("{:?}", s.what)));
            prop_assert!(known);
            prop_assert!(group.is_none() || plan.items.iter().all(|i| inside(&i.wanted(&metadata).unwrap())));
            prop_assert!(plan.items.is_sorted_by_key(|i| i.dest), "in the order of leaves");
            prop_assert_eq!(&postcard::from_bytes::<LoadPlan>(&postcard::to_stdvec(plan).unwrap()).unwrap(), plan);
        }

        // The ranks that talk are a group.
        let found = exchange_groups(&shared, &metadata).unwrap();
        for (rank, plan) in (0u32..).zip(&shared) {
            let group = found[rank as usize];
            prop_assert_eq!(group.is_some(), !plan.exchange.is_empty());
            let Some(group) = group else { continue };
            let to: BTreeSet<u32> = plan.exchange.serves.iter().flat_map(|s| s.to.to_vec()).collect();
            let from: BTreeSet<u32> = plan.exchange.receives.iter().map(|r| r.from).collect();
            prop_assert!(to.iter().chain(&from).all(|peer| found[*peer as usize] == Some(group)));
            prop_assert!(to.len().max(from.len()) <= group.most_peers as usize);
            prop_assert_eq!(found.iter().filter(|other| **other == Some(group)).count(), group.ranks as usize);
            prop_assert!(found[group.first as usize] == Some(group) && group.first <= rank);
        }
    }

    #[test]
    fn an_exchange_that_lacks_anything_is_refused((shape, templates) in templates(), which in any::<prop::sample::Index>(), loses in any::<bool>()) {
        let metadata = table(&shape, &[Region::whole(&shape)]);
        let lowest = |all: &[Demand]| all.iter().map(|d| d.ranks[0]).collect();
        let mut plans = share_reads(plain(&templates, &metadata), &metadata, |_| Some(0), lowest).unwrap();
        let busy: Vec<usize> = (0..RANKS).filter(|r| match loses {
            true => !plans[*r].exchange.receives.is_empty(),
            false => !plans[*r].exchange.serves.is_empty(),
        }).collect();
        prop_assume!(!busy.is_empty());
        let rank = busy[which.index(busy.len())];
        let exchange = &mut plans[rank].exchange;
        if loses {
            let at = which.index(exchange.receives.len());
            exchange.receives.remove(at);
        } else {
            let at = which.index(exchange.serves.len());
            exchange.serves.remove(at);
        }
        let e = exchange_groups(&plans, &metadata).unwrap_err().to_string();
        prop_assert!(e.starts_with("w: ") && e.contains(&format!("rank {rank}")), "{e}");
    }
}

fn prop_assert_group(demand: &Demand, groups: &[Option<u32>]) {
    assert!(
        demand
            .ranks
            .iter()
            .all(|r| groups[*r as usize] == Some(demand.group)),
        "{demand:?}"
    );
    assert!(
        !demand.ranks.is_empty() && demand.ranks.is_sorted_by(|a, b| a < b),
        "{demand:?}"
    );
}

#[test]
fn what_one_hands_out_and_another_waits_for_must_be_the_same() {
    let metadata = stored(&[
        flat([
            leaf("a", &[4], Region::whole(&[4])),
            leaf("b", &[4], Region::whole(&[4])),
        ]),
        objects(&["o"]),
    ]);
    let template = || {
        let mut out = flat([
            leaf("a", &[4], Region::whole(&[4])),
            leaf("b", &[4], Region::whole(&[4])),
        ]);
        out.extend(objects(&["o"]));
        out
    };
    let plans = plain(&[template(), template(), template()], &metadata);
    let lowest = |all: &[Demand]| all.iter().map(|d| d.ranks[0]).collect();
    let shared = share_reads(plans, &metadata, |_| Some(0), lowest).unwrap();
    let whole = exchange_groups(&shared, &metadata).unwrap()[0].unwrap();
    assert_eq!((whole.first, whole.ranks, whole.most_peers), (0, 3, 2));

    type Change = fn(&mut [LoadPlan]);
    let wrong: [(Change, &str); 10] = [
        (
            |p| p[0].exchange.serves.swap(0, 1),
            "a: rank 1 waits for [0:4] of chunk 0 from rank 0, which hands out [0:4] of chunk 1 of b",
        ),
        (
            |p| p[2].exchange.receives.swap(1, 2),
            "o: rank 2 waits for the object from rank 0, which hands out [0:4] of chunk 1 of b",
        ),
        (
            |p| drop(p[1].exchange.receives.pop()),
            "o: rank 0 hands the object out to rank 1, which does not wait for it",
        ),
        (
            |p| drop(p[0].exchange.serves.pop()),
            "o: rank 1 waits for the object from rank 0, which does not hand it out",
        ),
        (
            |p| p[0].exchange.serves[1].to = [1].into(),
            "b: rank 2 waits for [0:4] of chunk 1 from rank 0, which hands out the object of o",
        ),
        (
            |p| p[0].exchange.serves[1].to = [].into(),
            "b: rank 0 hands [0:4] of chunk 1 out to nobody",
        ),
        (
            |p| p[0].exchange.serves[1].to = [1, 2, 3].into(),
            "b: rank 0 hands [0:4] of chunk 1 out to rank 3 of 3",
        ),
        (
            |p| p[0].exchange.serves[1].to = [1, 0].into(),
            "b: rank 0 hands [0:4] of chunk 1 out to itself",
        ),
        (
            |p| p[0].exchange.serves[1].to = [1, 2, 1].into(),
            "b: rank 0 hands [0:4] of chunk 1 out to rank 1 twice",
        ),
        (
            |p| p[1].exchange.receives[0].from = 1,
            "a: rank 1 waits for it from rank 1 of 3",
        ),
    ];
    for (change, says) in wrong {
        let mut plans = shared.clone();
        change(&mut plans);
        assert_eq!(
            exchange_groups(&plans, &metadata).unwrap_err().to_string(),
            says
        );
    }
    let mut plans = shared.clone();
    plans[1].exchange.receives[0].items.clear();
    let e = exchange_groups(&plans, &metadata).unwrap_err().to_string();
    assert_eq!(
        e,
        "an exchange: rank 1 waits for something from rank 0 that goes nowhere"
    );
    let mut plans = shared;
    let other = plans[1].exchange.receives[1].items[0].clone();
    plans[1].exchange.receives[0].items.push(other);
    let e = exchange_groups(&plans, &metadata).unwrap_err().to_string();
    assert_eq!(
        e,
        "b: rank 1 puts [0:4] of chunk 0 from rank 0 into an item that wants [0:4] of chunk 1"
    );
}

#[test]
fn the_default_planner_makes_no_exchange() {
    let metadata = stored(&[flat([leaf("w", &[4], Region::whole(&[4]))])]);
    let templates: Vec<_> = (0..3)
        .map(|_| flat([leaf("w", &[4], Region::whole(&[4]))]))
        .collect();
    let plans = plain(&templates, &metadata);
    let global = DefaultLoadPlanner::DEFAULT
        .create_global_plan(plans, &LoadContext::new(&metadata, 0, true))
        .unwrap();
    assert!(
        global
            .iter()
            .all(|p| p.exchange.is_empty() && p.items.len() == 1)
    );
    assert_eq!(exchange_groups(&global, &metadata).unwrap(), [None; 3]);
}

#[test]
fn a_choice_that_can_not_be_is_refused() {
    let metadata = stored(&[flat([leaf("w", &[4], Region::whole(&[4]))])]);
    let template = || flat([leaf("w", &[4], Region::whole(&[4]))]);
    let plans = || plain(&[template(), template()], &metadata);
    let e = share_reads(plans(), &metadata, |_| Some(0), |_| vec![7])
        .unwrap_err()
        .to_string();
    assert_eq!(
        e,
        "w: rank 7 was chosen to read it, but there are only 2 ranks"
    );
    let e = share_reads(plans(), &metadata, |_| Some(0), |_| vec![])
        .unwrap_err()
        .to_string();
    assert_eq!(
        e,
        "an exchange: 0 ranks were chosen for 1 reads; choose one rank for each read"
    );
}

use crate::cuts::*;
use proptest::prelude::*;
use reshard_model::{Dims, FlatStateDict, Region};
use reshard_plan::*;
use std::collections::BTreeMap;

/// A tensor cut into boxes, each offered by some of the ranks.
fn ranks() -> impl Strategy<Value = (Vec<u64>, Vec<FlatStateDict>)> {
    (
        shapes(),
        seeds(),
        prop::collection::vec(prop::collection::vec(0usize..5, 1..4), 10),
    )
        .prop_map(|(shape, seeds, holders)| {
            let mut ranks = vec![Vec::new(); 5];
            for (region, holders) in cut(&shape, &seeds).into_iter().zip(&holders) {
                for (i, &rank) in holders.iter().enumerate() {
                    ranks[rank].push(leaf("w", &shape, region.clone()).with_replica_id(i as u32));
                }
            }
            (shape, ranks.into_iter().map(flat).collect())
        })
}

/// How often each element is written.
fn written(plans: &[SavePlan]) -> BTreeMap<Dims, u32> {
    let mut out = BTreeMap::new();
    let tensors = plans
        .iter()
        .flat_map(|p| &p.items)
        .filter_map(WriteItem::tensor);
    tensors
        .flat_map(|t| elements(&t.region))
        .for_each(|e| *out.entry(e).or_default() += 1);
    out
}

proptest! {
    #![proptest_config(reshard_model::testkit::law(256))]
    #[test]
    fn all_ranks_together_write_each_element_once((shape, ranks) in ranks()) {
        for planner in [DefaultSavePlanner::DCP, DefaultSavePlanner::DEFAULT, DefaultSavePlanner::DCP.with_dedup(Dedup::LowestRank)] {
            let (plans, metadata) = save(&planner, &ranks).unwrap();
            let written = written(&plans);
            prop_assert!(written.values().all(|n| *n == 1));
            prop_assert_eq!(written.len(), elements(&Region::whole(&shape)).len());
            // what is written is what a rank has, and what the table says
            for (plan, state) in plans.iter().zip(&ranks) {
                for item in &plan.items {
                    let reshard_model::Sharded::Tensor(t) = &state[item.source as usize] else { panic!() };
                    prop_assert_eq!(&item.tensor().unwrap().region, &t.region());
                }
            }
            let tensor = metadata.tensor("w").unwrap();
            let chunks: Vec<Region> = tensor.chunks().map(|(_, r)| r).collect();
            let items: Vec<Region> = plans.iter().flat_map(|p| &p.items).map(|i| i.tensor().unwrap().region.clone()).collect();
            prop_assert_eq!(chunks, items);
            prop_assert_eq!(metadata.problems(), vec![]);
        }
    }

    #[test]
    fn plans_are_the_same_every_time((_, ranks) in ranks()) {
        // tables of keys and pieces take another seed each time
        let once = || {
            let (plans, metadata) = save(&DefaultSavePlanner::DCP, &ranks).unwrap();
            (plans, format!("{metadata:?}"), metadata.tensor("w").unwrap().chunks().collect::<Vec<_>>())
        };
        prop_assert_eq!(once(), once());
    }

    #[test]
    fn replicas_are_spread_by_bytes(weights in prop::collection::vec(1u64..100, 1..40), n in 1usize..6) {
        let state = || flat(weights.iter().enumerate().map(|(i, w)| leaf(&format!("w{i}"), &[*w], Region::whole(&[*w]))));
        let ranks: Vec<FlatStateDict> = (0..n).map(|_| state()).collect();
        let (plans, _) = save(&DefaultSavePlanner::DCP, &ranks).unwrap();
        let load = |p: &SavePlan| p.items.iter().map(WriteItem::cost).sum::<u64>();
        let (least, most) = (plans.iter().map(load).min().unwrap(), plans.iter().map(load).max().unwrap());
        // the last piece that the fullest rank got, it got as the emptiest one
        prop_assert!(most - least <= 4 * weights.iter().max().unwrap());
        let (lowest, _) = save(&DefaultSavePlanner::DCP.with_dedup(Dedup::LowestRank), &ranks).unwrap();
        prop_assert!(lowest[1..].iter().all(|p| p.items.is_empty()));
    }

    #[test]
    fn every_wanted_element_is_read_once_from_where_it_is(shape in shapes(), from in seeds(), to in seeds()) {
        let metadata = table(&shape, &cut(&shape, &from));
        let wanted: Vec<Region> = cut(&shape, &to);
        let template = flat(wanted.iter().map(|r| leaf("w", &shape, r.clone())));
        let plan = load(DefaultLoadPlanner::DEFAULT, &template, &metadata).unwrap();
        let mut got: Vec<BTreeMap<Dims, Dims>> = vec![BTreeMap::new(); wanted.len()];
        for item in &plan.items {
            let Stored::Chunk(id) = item.stored else { panic!() };
            let (tensor, chunk) = metadata.chunk(id).unwrap();
            prop_assert_eq!(tensor.key(), "w");
            prop_assert_eq!(item.piece.offset.as_ref(), Some(&chunk.offsets));
            prop_assert!(item.stored_region.fits(&chunk.lengths));
            for (dest, source) in elements(&item.dest_region).into_iter().zip(elements(&item.stored_region)) {
                let global = source.iter().zip(&chunk.offsets).map(|(a, b)| a + b).collect();
                prop_assert_eq!(got[item.dest as usize].insert(dest, global), None);
            }
        }
        for (region, got) in wanted.iter().zip(got) {
            let want = elements(region).into_iter().map(|e| (e.iter().zip(&region.offsets).map(|(a, b)| a - b).collect(), e));
            prop_assert_eq!(got, want.collect::<BTreeMap<Dims, Dims>>());
        }
    }

    #[test]
    fn a_lost_chunk_fails_exactly_what_wants_it(shape in shapes(), from in seeds(), to in seeds(), lost in any::<prop::sample::Index>()) {
        let mut chunks = cut(&shape, &from);
        let lost = chunks.swap_remove(lost.index(chunks.len()));
        let metadata = table(&shape, &chunks);
        for region in cut(&shape, &to) {
            let template = flat([leaf("w", &shape, region.clone())]);
            match (lost.intersect(&region), load(DefaultLoadPlanner::DEFAULT, &template, &metadata)) {
                (None, plan) => prop_assert!(plan.is_ok()),
                (Some(_), Err(PlanError::Load(Problems(p)))) => {
                    let [Problem { fault: Fault::Hole { region: hole, .. }, .. }] = &*p else { panic!("{p:?}") };
                    prop_assert!(!hole.is_empty() && region.contains(hole) && lost.contains(hole));
                }
                (Some(_), other) => prop_assert!(false, "{:?}", other),
            }
        }
        let holes = metadata.problems();
        prop_assert_eq!(holes.is_empty(), lost.is_empty());
    }

    #[test]
    fn a_chunk_too_many_fails_exactly_what_it_meets(shape in shapes(), from in seeds(), to in seeds(), extra in any::<prop::sample::Index>()) {
        let mut chunks = cut(&shape, &from);
        let extra = cut(&shape, &to)[extra.index(cut(&shape, &to).len())].clone();
        chunks.push(extra.clone());
        let metadata = table(&shape, &chunks);
        prop_assert_eq!(metadata.problems().is_empty(), extra.is_empty());
        for region in cut(&shape, &to) {
            let plan = load(DefaultLoadPlanner::DEFAULT, &flat([leaf("w", &shape, region.clone())]), &metadata);
            prop_assert_eq!(plan.is_err(), extra.intersect(&region).is_some());
        }
    }

    #[test]
    fn many_chunks_are_found_by_the_index_as_one_by_one(rows in prop::collection::vec(0u64..4, 40..90), columns in 1u64..4, wants in prop::collection::vec((0u64..200, 0u64..60), 2..6)) {
        // enough chunks and leaves that the index is sorted
        let height: u64 = rows.iter().sum();
        let shape = [height, columns];
        let mut at = 0;
        let chunks: Vec<Region> = rows.iter().map(|&n| { at += n; Region::new([at - n, 0], [n, columns]) }).collect();
        let metadata = table(&shape, &chunks);
        let regions: Vec<Region> = wants.iter().map(|&(from, n)| {
            let from = from.min(height);
            Region::new([from, 0], [n.min(height - from), columns])
        }).collect();
        let plan = load(DefaultLoadPlanner::DEFAULT, &flat(regions.iter().map(|r| leaf("w", &shape, r.clone()))), &metadata).unwrap();
        for (dest, region) in regions.iter().enumerate() {
            let got: Vec<&Dims> = plan.items.iter().filter(|i| i.dest as usize == dest).filter_map(|i| i.piece.offset.as_ref()).collect();
            let want: Vec<&Dims> = chunks.iter().filter(|c| c.intersect(region).is_some()).map(|c| &c.offsets).collect();
            prop_assert_eq!(got, want);
        }
    }

    #[test]
    fn plans_travel((_, ranks) in ranks()) {
        let (plans, metadata) = save(&DefaultSavePlanner::DCP, &ranks).unwrap();
        for (plan, state) in plans.iter().zip(&ranks) {
            let bytes = postcard::to_stdvec(plan).unwrap();
            prop_assert_eq!(&postcard::from_bytes::<SavePlan>(&bytes).unwrap(), plan);
            let plan = load(DefaultLoadPlanner::DEFAULT, state, &metadata).unwrap();
            let bytes = postcard::to_stdvec(&plan).unwrap();
            prop_assert_eq!(postcard::from_bytes::<LoadPlan>(&bytes).unwrap(), plan);
        }
    }
}

//! Access integrity: what ranks declare is validated in every format and wrapper, all keys at once, and the verdict reaches all ranks.

use futures::executor::block_on;
use reshard::strategy::testkit::layered;
use reshard::{
    ErrorKind, KeptPlan, OpenOptions, Result, SaveReport, ShardedObject, ShardedTensor, StateDict,
    Tensor, strategy::SaveShardedStrategy,
};
use reshard_laws::{
    place::{Place, stores},
    ranks::{group, save, told},
};
use reshard_parallel as _;
use serde_json::{Value as Json, json};
use std::sync::Arc;

/// The formats, each by itself and with ranks that share their work.
fn formats() -> Vec<Json> {
    let plain = ["torch_dist", "zarr", "zarr3"].map(|tag| json!({ "format": tag }));
    let shared = plain
        .clone()
        .map(|base| layered(json!({ "type": "fully_parallel" }), &base));
    plain.into_iter().chain(shared).collect()
}

fn shares(format: &Json) -> bool {
    format.get("layers").is_some()
}

/// Ranks 0 and 1 have the first half of a tensor, rank 2 has the second.
fn half(key: &str, rank: u32, replica: u32) -> ShardedTensor {
    let at = u64::from(rank == 2);
    let data = Tensor::from_vec(&[2, 3], vec![at as f32; 6]).unwrap();
    let half = ShardedTensor::from_rank_offsets(key, data, &[(0, at, 2)]).unwrap();
    half.with_replica_id(replica)
}

/// Each rank has a cell of an array.
fn cell(key: &str, rank: u32, replica: u32) -> ShardedObject {
    ShardedObject::new(key, 1, &[3], &[rank.into()], replica).unwrap()
}

/// What three ranks hold: their replicas of `w`, of `v`, and of the cells of `rng`.
fn states(w: [u32; 3], v: [u32; 3], rng: [u32; 3]) -> Vec<StateDict> {
    let state = |rank: usize| {
        let (mut state, number) = (StateDict::new(), rank as u32);
        state.insert("w", half("w", number, w[rank]));
        state.insert("v", half("v", number, v[rank]));
        state.insert("rng", cell("rng", number, rng[rank]));
        state
    };
    (0..3).map(state).collect()
}

/// Replicas that make up a tensor.
const SOUND: [u32; 3] = [0, 1, 0];

fn saved(
    states: Vec<StateDict>,
    format: &Json,
    validate: bool,
) -> (Place, Vec<Result<SaveReport>>) {
    let place = Place::new();
    let format = format.clone();
    let outcomes = save(group(3), states, place.url(), move |_, s| {
        let strategy: SaveShardedStrategy = serde_json::from_value(format.clone()).unwrap();
        s.strategy(strategy).validate_access_integrity(validate)
    });
    (place, outcomes)
}

/// All ranks were told the same by the coordinator, in these words, and nothing was written.
fn refused(place: &Place, outcomes: &[Result<SaveReport>], parts: &[&str], case: &str) {
    for outcome in outcomes {
        assert_eq!(
            outcome.as_ref().err().map(reshard::Error::kind),
            Some(ErrorKind::Invalid),
            "{case}"
        );
    }
    let (step, causes) = told(outcomes.iter().map(|o| o.as_ref().err()));
    assert_eq!(
        (step, causes.keys().copied().collect::<Vec<_>>()),
        ("plan", vec![0]),
        "{case}: {causes:?}"
    );
    let missing = parts.iter().find(|part| !causes[&0].contains(**part));
    assert_eq!(missing, None, "{case}: {}", causes[&0]);
    assert!(place.files().is_empty() && place.leftovers() == 0, "{case}");
}

#[test]
fn tensors_and_objects_with_no_main_replica_or_two_are_refused_together_on_all_ranks() {
    for format in formats() {
        let bad = states([0, 0, 0], [1, 2, 0], [0, 1, 0]);
        let (place, outcomes) = saved(bad, &format, true);
        let parts = [
            "w: [0:2, 0:3] has 2 main replicas, on ranks 0, 1",
            "v: nobody is the main replica of [0:2, 0:3], which ranks 0, 1 have",
            "rng/shard_1_3 is missing: rank 1 has only a replica",
        ];
        refused(&place, &outcomes, &parts, &format.to_string());
    }
}

/// Ranks 0 and 1 have the first and the second half of the first chunk, rank 2 has the second chunk.
fn flattened(ranges: [(u64, u64); 3]) -> Vec<StateDict> {
    let state = |(rank, (from, to)): (u64, (u64, u64))| {
        let data = Tensor::from_vec(&[to - from], vec![rank as f32; (to - from) as usize]).unwrap();
        let chunk = [(0, u64::from(rank == 2), 2)];
        let leaf = ShardedTensor::from_rank_offsets_flat("m", data, &[2, 3], &chunk, 0, from..to);
        let mut state = StateDict::new();
        state.insert("m", leaf.unwrap());
        state
    };
    (0..).zip(ranges).map(state).collect()
}

#[test]
fn flattened_ranges_that_leave_elements_out_or_overlap_are_refused_on_all_ranks() {
    for format in formats() {
        let case = format.to_string();
        let (_, outcomes) = saved(flattened([(0, 2), (2, 6), (0, 6)]), &format, true);
        outcomes.into_iter().for_each(|o| drop(o.unwrap()));
        for (ranges, said) in [
            (
                [(0, 2), (3, 6), (0, 6)],
                "m: the flattened ranges of chunk [0:2, 0:3] leave out its elements 2:3",
            ),
            (
                [(0, 2), (2, 6), (0, 5)],
                "m: the flattened ranges of chunk [2:4, 0:3] leave out its elements 5:6",
            ),
            (
                [(0, 3), (2, 6), (0, 6)],
                "m: the flattened ranges of chunk [0:2, 0:3] on rank 0 and on rank 1 both have its elements 2:3",
            ),
        ] {
            let (place, outcomes) = saved(flattened(ranges), &format, true);
            refused(&place, &outcomes, &[said], &case);
        }
    }
}

/// The tensors are alone in this.
#[test]
fn objects_that_are_sound_do_not_hide_tensors_that_are_not() {
    for format in formats() {
        let bad = states([0, 0, 0], SOUND, [0; 3]);
        let (place, outcomes) = saved(bad, &format, true);
        let parts = ["w: [0:2, 0:3] has 2 main replicas, on ranks 0, 1"];
        refused(&place, &outcomes, &parts, &format.to_string());
    }
}

#[test]
fn a_key_that_is_a_tensor_on_one_rank_and_an_object_on_another_is_refused_with_both() {
    for format in formats() {
        let mut states = states(SOUND, SOUND, [0; 3]);
        let both = ShardedTensor::full("both", Tensor::from_vec(&[1], vec![1f32]).unwrap());
        states[0].insert("both", both);
        let other = ShardedObject::new("both", 1, &[1], &[0], 0).unwrap();
        states[2].insert("both", other);
        let (place, outcomes) = saved(states, &format, true);
        let parts = ["both is a tensor on rank 0, but an object on rank 2"];
        refused(&place, &outcomes, &parts, &format.to_string());
    }
}

/// Without the check, a key without a main replica is not there. A piece that two ranks want to write is still refused, unless ranks share
/// their work: then it is given to one of them.
#[test]
fn nothing_is_asked_of_replicas_if_the_check_is_switched_off() {
    for format in formats() {
        let case = format.to_string();
        let (place, outcomes) = saved(states(SOUND, [1; 3], [0; 3]), &format, false);
        outcomes.into_iter().for_each(|o| drop(o.unwrap()));
        let opened = block_on(OpenOptions::new().stores(stores()).open(place.url())).unwrap();
        let absent = opened.tensor("v").unwrap_err();
        assert_eq!(absent.kind(), ErrorKind::NotFound, "{case}: {absent}");

        let (place, outcomes) = saved(states([0; 3], SOUND, [0; 3]), &format, false);
        if !shares(&format) {
            let parts = ["w: chunks [0:2, 0:3] of rank 0 and [0:2, 0:3] of rank 1 overlap"];
            refused(&place, &outcomes, &parts, &case);
            continue;
        }
        outcomes.into_iter().for_each(|o| drop(o.unwrap()));
        let opened = block_on(OpenOptions::new().stores(stores()).open(place.url())).unwrap();
        let w = block_on(opened.tensor("w").unwrap().read(..)).unwrap();
        let want = [vec![0f32; 6], vec![1.; 6]].concat();
        assert_eq!(w.to_vec::<f32>().unwrap(), want, "{case}");
    }
}

/// Ranks that share their work write the same pieces in both saves. Only the replicas that they were given differ.
#[test]
fn a_kept_plan_does_not_hide_replicas_that_have_changed() {
    for format in formats() {
        let place = Place::new();
        let kept: Vec<Arc<KeptPlan>> = (0..3).map(|_| Arc::default()).collect();
        let once = |states| {
            let (format, kept) = (format.clone(), kept.clone());
            save(group(3), states, place.url(), move |rank, s| {
                let strategy: SaveShardedStrategy = serde_json::from_value(format.clone()).unwrap();
                s.strategy(strategy)
                    .overwrite(true)
                    .kept_plan(&kept[rank.index()])
            })
        };
        for _ in 0..2 {
            let outcomes = once(states(SOUND, SOUND, [0; 3]));
            outcomes.into_iter().for_each(|o| drop(o.unwrap()));
        }
        assert_eq!(kept[0].reused(), 1, "{format}");
        let outcomes = once(states([0, 0, 0], SOUND, [0; 3]));
        let (_, causes) = told(outcomes.iter().map(|o| o.as_ref().err()));
        assert!(
            causes[&0].contains("w: [0:2, 0:3] has 2 main replicas"),
            "{format}: {causes:?}"
        );
    }
}

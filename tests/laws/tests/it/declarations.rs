//! What ranks declare of their leaves reaches the coordinator's planner, in every save, however little travels.

use reshard::{
    DType, KeptPlan, ProcessGroup, ShardedTensor, StateDict, Tensor,
    plan::{Declared, Metadata, PlanError, SavePlan, SavePlanner},
};
use reshard_comm::testkit::FaultGroup;
use reshard_laws::{
    place::Place,
    ranks::{Groups, disagreed, group, save, told},
};
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

/// Keeps what it is told of all ranks, and refuses two element types for one key. It may fail after that.
#[derive(Clone, Debug, Default)]
struct Looks(Arc<Mutex<Vec<Arc<Declared>>>>, Arc<AtomicBool>);

impl SavePlanner for Looks {
    fn validates(&self) -> bool {
        true
    }

    fn validate(&self, ranks: &[Arc<Declared>]) -> Result<(), PlanError> {
        *self.0.lock().unwrap() = ranks.to_vec();
        let mut types: BTreeMap<&str, DType> = BTreeMap::new();
        for leaf in ranks.iter().flat_map(|rank| &rank.leaves) {
            let dtype = leaf.dtype.unwrap_or(DType::UInt8);
            if *types.entry(&*leaf.key).or_insert(dtype) != dtype {
                return Err(PlanError::planner(format!("{} has two types", leaf.key)));
            }
        }
        Ok(())
    }

    fn create_global_plan(
        &self,
        plans: Vec<SavePlan>,
    ) -> Result<(Vec<SavePlan>, Metadata), PlanError> {
        match self.1.load(Ordering::SeqCst) {
            true => Err(PlanError::planner("it fails here")),
            false => self.base().create_global_plan(plans),
        }
    }
}

/// 100 tensors, of which rank 0 has the main replicas.
fn state(rank: u32, dtype: DType) -> StateDict {
    let mut state = StateDict::new();
    for i in 0..100 {
        let key = format!("layers.{i}.attention.linear_qkv.weight");
        let zeros = Tensor::zeros(&key, dtype, &[3]).unwrap();
        let leaf = ShardedTensor::full(&key, zeros).with_replica_id(rank);
        state.insert(key.as_str(), leaf);
    }
    state
}

fn states(odd: Option<DType>) -> Vec<StateDict> {
    let dtype = |rank: u32| odd.filter(|_| rank == 2).unwrap_or(DType::Float32);
    (0..3).map(|rank| state(rank, dtype(rank))).collect()
}

/// Each rank's leaves, as its planner is told of them.
fn declares(states: &[StateDict], told: &[Arc<Declared>]) {
    assert_eq!(told.len(), states.len());
    for (rank, declared) in told.iter().enumerate() {
        let ids = declared
            .leaves
            .iter()
            .map(|leaf| leaf.replica_id.0.to_vec());
        assert_eq!(ids.collect::<Vec<_>>(), vec![vec![rank as u32]; 100]);
    }
}

#[test]
fn a_planner_sees_the_replicas_of_all_ranks_and_its_verdict_reaches_them() {
    let place = Place::new();
    let looks = Looks::default();
    let planner = looks.clone();
    let saved = save(group(3), states(None), place.url(), move |_, s| {
        s.planner(planner.clone())
    });
    saved.into_iter().for_each(|s| drop(s.unwrap()));
    declares(&states(None), &looks.0.lock().unwrap());

    let odd = states(Some(DType::Float16));
    let failed = save(group(3), odd.clone(), place.url(), |_, s| {
        s.overwrite(true).planner(Looks::default())
    });
    let (step, causes) = told(failed.iter().map(|s| s.as_ref().err()));
    assert_eq!(
        (step, causes.keys().copied().collect::<Vec<_>>()),
        ("plan", vec![0])
    );
    assert!(
        causes[&0].contains("layers.0.attention.linear_qkv.weight has two types"),
        "{causes:?}"
    );

    // Without the planner nobody looks at replicas, and a rank that saves by itself looks at its own.
    let plain = save(group(3), odd.clone(), place.url(), |_, s| {
        s.overwrite(true).validate_access_integrity(false)
    });
    plain.into_iter().for_each(|s| drop(s.unwrap()));
    let looks = Looks::default();
    let planner = looks.clone();
    let alone = save(group(3), odd, place.url(), move |_, s| {
        s.overwrite(true).rank_local(true).planner(planner.clone())
    });
    alone.into_iter().for_each(|s| drop(s.unwrap()));
    assert_eq!(looks.0.lock().unwrap().len(), 1);
}

/// Whichever rank lacks it, whatever is kept, and whatever was lost.
#[test]
fn a_planner_that_only_some_ranks_have_is_an_error() {
    let place = Place::new();
    for lacks in 0..3 {
        for lost in [None, Some(0), Some(lacks)] {
            let mut kept: Vec<Arc<KeptPlan>> = (0..3).map(|_| Arc::default()).collect();
            if let Some(lost) = lost {
                let all = kept.clone();
                let saved = save(group(3), states(None), place.url(), move |rank, s| {
                    let s = s.overwrite(true).planner(Looks::default());
                    s.kept_plan(&all[rank.0 as usize])
                });
                saved.into_iter().for_each(|s| drop(s.unwrap()));
                kept[lost as usize] = Arc::default();
            }
            let failed = save(group(3), states(None), place.url(), move |rank, s| {
                let s = s.overwrite(true).kept_plan(&kept[rank.0 as usize]);
                match rank.0 == lacks {
                    true => s.validate_access_integrity(false),
                    false => s.planner(Looks::default()),
                }
            });
            let what = disagreed(failed.iter().map(|s| s.as_ref().err()));
            assert!(what.contains("`planner`: "), "{lacks} {lost:?}: {what}");
        }
    }
}

/// Saves one state after the other, of which the ranks keep what they declare.
struct Job {
    place: Place,
    looks: Looks,
    kept: Vec<Arc<KeptPlan>>,
    /// Whether a rank keeps it.
    keeps: fn(usize) -> bool,
}

impl Job {
    /// Bytes and steps that rank 1 takes part in, if all succeeds.
    fn save(&self, states: Vec<StateDict>) -> Option<(u64, u64)> {
        let counted: Vec<Arc<FaultGroup>> = group(3)
            .into_iter()
            .map(|g| Arc::new(FaultGroup::counting(g)))
            .collect();
        let groups: Groups = counted
            .iter()
            .map(|g| Arc::clone(g) as Arc<dyn ProcessGroup>)
            .collect();
        let (looks, kept, keeps) = (self.looks.clone(), self.kept.clone(), self.keeps);
        self.looks.0.lock().unwrap().clear();
        let saved = save(groups, states, self.place.url(), move |rank, s| {
            let s = s.overwrite(true).planner(looks.clone());
            match keeps(rank.0 as usize) {
                true => s.kept_plan(&kept[rank.0 as usize]),
                false => s,
            }
        });
        saved
            .iter()
            .all(Result::is_ok)
            .then(|| (counted[1].sent(), counted[1].calls()))
    }

    fn sees(&self, states: &[StateDict]) {
        declares(states, &self.looks.0.lock().unwrap());
    }
}

fn job(keeps: fn(usize) -> bool) -> Job {
    Job {
        place: Place::new(),
        looks: Looks::default(),
        kept: (0..3).map(|_| Arc::default()).collect(),
        keeps,
    }
}

/// The coordinator heard another state last, from a save that failed later: it must not take that for what is told now.
#[test]
fn what_a_failed_save_declared_is_not_taken_for_something_else() {
    let job = job(|_| true);
    let (all, fewer) = (states(None), (0..3).map(|_| StateDict::new()).collect());
    job.save(all.clone()).unwrap();
    job.looks.1.store(true, Ordering::SeqCst);
    assert!(job.save(fewer).is_none());
    job.looks.1.store(false, Ordering::SeqCst);
    job.save(all.clone()).unwrap();
    job.sees(&all);
}

#[test]
fn ranks_that_save_by_themselves_always_see_their_own() {
    let job = job(|_| true);
    let all = states(None);
    job.save(all.clone()).unwrap();
    let (looks, kept) = (Looks::default(), job.kept.clone());
    let planner = looks.clone();
    let saved = save(group(3), all, job.place.url(), move |rank, s| {
        let s = s.overwrite(true).rank_local(true).planner(planner.clone());
        s.kept_plan(&kept[rank.0 as usize])
    });
    saved.into_iter().for_each(|s| drop(s.unwrap()));
    let seen = looks.0.lock().unwrap();
    assert_eq!((seen.len(), seen[0].leaves.len()), (1, 100));
}

/// Where the coordinator keeps nothing, nobody says "the same", and nothing travels twice.
#[test]
fn declarations_that_only_some_ranks_keep_travel_once() {
    let all = states(None);
    for keeps in [|rank| rank == 2, |rank| rank > 0, |rank| rank == 0] {
        let job = job(keeps);
        let first = job.save(all.clone()).unwrap();
        for _ in 0..3 {
            assert_eq!(job.save(all.clone()).unwrap(), first);
            job.sees(&all);
        }
    }
}

#[test]
fn what_was_declared_before_travels_as_a_hash() {
    let mut job = job(|_| true);
    let all = states(None);
    let (first, steps) = job.save(all.clone()).unwrap();
    job.sees(&all);
    let (second, same_steps) = job.save(all.clone()).unwrap();
    job.sees(&all);
    assert_eq!(steps, same_steps);
    assert!(first > 4_000 && second < first - 4_000, "{first} {second}");

    // What has changed travels whole, also after a save that failed.
    assert!(job.save(states(Some(DType::Float16))).is_none());
    assert_eq!(job.looks.0.lock().unwrap().len(), 3);
    let (after_failure, _) = job.save(all.clone()).unwrap();
    assert_eq!(after_failure, second);
    let mut other = all.clone();
    other[1] = state(1, DType::Float32);
    other[1].insert(
        "more",
        ShardedTensor::full("more", Tensor::zeros("more", DType::Int8, &[1]).unwrap()),
    );
    let (changed, _) = job.save(other).unwrap();
    assert!(changed > first, "{changed} {first}");
    assert_eq!(job.looks.0.lock().unwrap()[1].leaves.len(), 101);

    // The coordinator has lost what it heard: all tell it again, in one more step.
    job.save(all.clone()).unwrap();
    job.kept[0] = Arc::default();
    let (again, more_steps) = job.save(all.clone()).unwrap();
    job.sees(&all);
    assert!(
        more_steps > steps && again > first && again < 2 * first,
        "{again} {first} {more_steps} {steps}"
    );
    assert_eq!(job.save(all.clone()).unwrap(), (second, steps));
    job.sees(&all);
}

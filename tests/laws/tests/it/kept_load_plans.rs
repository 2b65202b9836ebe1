//! A load with a kept plan loads what a load without it does, whatever was loaded before, and plans anew what has changed.

use proptest::prelude::*;
use reshard::{
    DType, Dialect, KeptLoadPlan, Load, Rank, ShardedTensor, StateDict, Tensor, Value, ValueTree,
    plan::{DefaultLoadPlanner, LoadPlanner, StrictHandling},
    policy::MaxShardSize,
    strategy::testkit::Observer,
    torch_dist::TorchDistLoadConfig,
};
use reshard_laws::{
    contents::{choices, contents},
    law,
    observed::tapped_load,
    place::Place,
    ranks::{group, load, save},
};
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

type Kept = Vec<Arc<KeptLoadPlan>>;

fn kept(ranks: u32) -> Kept {
    (0..ranks).map(|_| Arc::new(KeptLoadPlan::new())).collect()
}

proptest! {
    #![proptest_config(law(48))]

    #[test]
    fn loads_with_a_kept_plan_load_the_same(
        contents in contents(), saved in 1u32..4, n in 1u32..4, mut choices in choices(), mut steps in choices(), dcp: bool,
    ) {
        let dialect = if dcp { Dialect::Dcp } else { Dialect::Megatron };
        let mut contents = contents;
        let mut cut = contents.cut(saved, &mut choices);
        let mut into = contents.cut(n, &mut choices);
        let mut policy = false;
        let mut kept = kept(n);
        for _ in 0..4 {
            let place = Place::new();
            let states = contents.states(&cut, &mut choices.clone());
            for saved in save(group(saved), states, place.url(), move |_, s| {
                let s = s.dialect(dialect);
                if policy { s.policy(MaxShardSize::new(3000)) } else { s }
            }) {
                saved.unwrap();
            }
            let (templates, watches): (Vec<_>, Vec<_>) = (0..n)
                .map(|r| contents.template(&into, r, saved, dialect, &mut choices))
                .unzip();
            let plans = kept.clone();
            let loaded = load(group(n), templates, place.url(), move |rank, l| {
                l.kept_plan(&plans[rank.0 as usize])
            });
            for (rank, loaded) in (0..n).zip(loaded) {
                let (loaded, _) = loaded.unwrap();
                contents.check(&into, rank, saved, &loaded);
            }
            watches.iter().for_each(reshard_laws::contents::Watch::check_filled);

            // The next one: half of them have the same shape.
            for tensor in &mut contents.tensors {
                tensor.salt = tensor.salt.wrapping_add(5);
            }
            let which = steps.below(contents.tensors.len() as u64) as usize;
            match steps.below(12) {
                0 => cut = contents.cut(saved, &mut choices),
                1 => into = contents.cut(n, &mut choices),
                2 => policy = !policy,
                3 => kept[steps.below(n.into()) as usize] = Arc::default(),
                4 => contents.objects = !contents.objects,
                5 => if let Some(tensor) = contents.tensors.get_mut(which) {
                    match tensor.shape.first_mut() {
                        Some(first) => *first += 1,
                        None => tensor.shape.push(2),
                    }
                    cut = contents.cut(saved, &mut choices);
                    into = contents.cut(n, &mut choices);
                },
                _ => {}
            }
        }
    }
}

const RANKS: u32 = 3;

/// 100 tensors of so many rows.
fn state(ranks: u32, rank: u32, rows: u64, salt: f32) -> StateDict {
    let mut state = StateDict::new();
    for i in 0..100 {
        let key = format!("layers.{i}.weight");
        let elements = vec![salt + i as f32; (rows * 2) as usize];
        let data = Tensor::from_vec(&[rows, 2], elements).unwrap();
        let at = [(0, rank.into(), ranks.into())];
        let leaf = ShardedTensor::from_rank_offsets(&key, data, &at).unwrap();
        state.insert(key.as_str(), leaf);
    }
    state
}

fn checkpoint(rows: u64, salt: f32) -> Place {
    let place = Place::new();
    let states = (0..2).map(|rank| state(2, rank, rows, salt)).collect();
    let saved = save(group(2), states, place.url(), |_, s| s);
    saved.into_iter().for_each(|s| drop(s.unwrap()));
    place
}

fn templates(rows: u64) -> Vec<StateDict> {
    (0..RANKS)
        .map(|rank| state(RANKS, rank, rows, 0.))
        .collect()
}

/// One load after the other.
struct Job {
    kept: Kept,
    planned: Arc<AtomicU64>,
}

impl Job {
    fn new() -> Self {
        Self {
            kept: kept(RANKS),
            planned: Arc::default(),
        }
    }

    /// How many ranks have planned, and what they have loaded.
    fn load(
        &self,
        place: &Place,
        templates: Vec<StateDict>,
        set: impl for<'a> Fn(Rank, Load<'a>) -> Load<'a> + Send + Sync + 'static,
    ) -> (u64, Vec<ValueTree>) {
        let (kept, planned) = (self.kept.clone(), Arc::clone(&self.planned));
        let observer = Observer::new(move |hook| {
            if hook == "reader.prepare_local_plan" {
                planned.fetch_add(1, Ordering::SeqCst);
            }
            Ok(())
        });
        let loaded = load(group(RANKS), templates, place.url(), move |rank, l| {
            let l = l.strategy(tapped_load(&observer, TorchDistLoadConfig::default()));
            set(rank, l.kept_plan(&kept[rank.0 as usize]))
        });
        let loaded = loaded.into_iter().map(|l| l.unwrap().0).collect();
        (self.planned.swap(0, Ordering::SeqCst), loaded)
    }
}

fn holds(loaded: &[ValueTree], rows: u64, salt: f32) {
    for state in loaded {
        for i in 0..100 {
            let Some(Value::Tensor(t)) = state
                .get(&format!("layers.{i}.weight"))
                .and_then(ValueTree::leaf)
            else {
                panic!("layer {i} is gone");
            };
            let want = vec![salt + i as f32; (rows * 2) as usize];
            assert_eq!(t.to_vec::<f32>().unwrap(), want);
        }
    }
}

#[test]
fn checkpoints_of_one_shape_are_planned_once() {
    let job = Job::new();
    for salt in [1., 2., 3.] {
        let (planned, loaded) = job.load(&checkpoint(6, salt), templates(4), |_, l| l);
        holds(&loaded, 4, salt);
        assert_eq!(planned, if salt == 1. { 3 } else { 0 });
    }
    assert_eq!(job.kept[2].reused(), 2);
}

#[test]
fn another_checkpoint_or_another_template_is_planned_anew_by_all() {
    let job = Job::new();
    let place = checkpoint(6, 1.);
    job.load(&place, templates(4), |_, l| l);
    assert_eq!(job.load(&place, templates(4), |_, l| l).0, 0);

    // The same tensors in other chunks.
    let other = Place::new();
    let states = (0..4).map(|rank| state(4, rank, 3, 2.)).collect();
    let saved = save(group(4), states, other.url(), |_, s| s);
    saved.into_iter().for_each(|s| drop(s.unwrap()));
    let (planned, loaded) = job.load(&other, templates(4), |_, l| l);
    holds(&loaded, 4, 2.);
    assert_eq!(planned, 3);

    // One rank wants a leaf less; then other settings.
    job.load(&place, templates(4), |_, l| l);
    let fewer = || {
        let mut fewer = templates(4);
        fewer[1].remove("layers.7.weight");
        fewer
    };
    assert_eq!(job.load(&place, fewer(), |_, l| l).0, 3);
    assert_eq!(job.load(&place, fewer(), |_, l| l).0, 0);
    job.load(&place, templates(4), |_, l| l);
    let ignore = StrictHandling::IgnoreAll;
    assert_eq!(
        job.load(&place, templates(4), move |_, l| l.strict(ignore))
            .0,
        3
    );
    assert_eq!(
        job.load(&place, templates(4), move |_, l| l.strict(ignore))
            .0,
        0
    );

    // A leaf of another type.
    let mut typed = templates(4);
    let data = Tensor::from_vec(&[4, 2], vec![0f64; 8]).unwrap();
    let leaf = ShardedTensor::from_rank_offsets("layers.0.weight", data, &[(0, 0, 3)]).unwrap();
    assert_eq!(leaf.dtype, DType::Float64);
    typed[0].insert("layers.0.weight", leaf);
    let kept = job.kept.clone();
    let failed = load(group(RANKS), typed, place.url(), move |rank, l| {
        l.kept_plan(&kept[rank.0 as usize])
    });
    assert!(failed.iter().all(Result::is_err));
}

#[test]
fn a_rank_that_has_lost_its_plan_makes_all_plan_anew() {
    let place = checkpoint(6, 1.);
    for lost in 0..3 {
        let mut job = Job::new();
        job.load(&place, templates(4), |_, l| l);
        job.kept[lost] = Arc::default();
        assert_eq!(job.load(&place, templates(4), |_, l| l).0, 3);
        assert_eq!(job.load(&place, templates(4), |_, l| l).0, 0);
    }
}

#[test]
fn planners_that_say_nothing_are_asked_each_time() {
    #[derive(Debug)]
    struct Silent;
    impl LoadPlanner for Silent {
        fn base(&self) -> &dyn LoadPlanner {
            &DefaultLoadPlanner::DEFAULT
        }
    }
    let (job, place) = (Job::new(), checkpoint(6, 1.));
    for _ in 0..3 {
        assert_eq!(
            job.load(&place, templates(4), |_, l| l.planner(Silent)).0,
            3
        );
    }
}

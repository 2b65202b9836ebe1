//! A save with a kept plan writes what a save without it writes, whatever was saved before, and plans anew what has changed.

use futures::executor::block_on;
use proptest::prelude::*;
use reshard::{
    AsyncCallsQueue, AsyncSaver, DType, Dialect, KeptPlan, OpenOptions, ProcessGroup, Rank, Save,
    ShardedObject, ShardedTensor, StateDict, Tensor, Value, blocking,
    model::{HostBuffer, Layout, Payload, Tree},
    plan::{DefaultSavePlanner, PlanError, SavePlan, SavePlanner},
    policy::{AllInOne, ByFiles, MaxShardSize},
    strategy::testkit::Observer,
};
use reshard_comm::testkit::{FaultGroup, on_ranks};
use reshard_laws::{
    contents::{Choices, choices, contents},
    law,
    observed::tapped_save,
    place::{Place, stores},
    ranks::{Groups, group, save},
};
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

type Kept = Vec<Arc<KeptPlan>>;

fn kept(ranks: u32) -> Kept {
    (0..ranks).map(|_| Arc::new(KeptPlan::new())).collect()
}

/// Settings that all ranks have.
#[derive(Clone, Copy, Debug, Default)]
struct How {
    dcp: bool,
    policy: u64,
    alone: bool,
    coordinator: u32,
}

impl How {
    fn set(self, save: Save<'_>) -> Save<'_> {
        let save = save
            .dialect(match self.dcp {
                true => Dialect::Dcp,
                false => Dialect::Megatron,
            })
            .rank_local(self.alone)
            .coordinator(Rank(self.coordinator));
        match self.policy {
            1 => save.policy(MaxShardSize::new(3000)),
            2 if !self.alone => save.policy(AllInOne { gather: true }),
            3 => save.policy(ByFiles::new(2)),
            _ => save,
        }
    }
}

fn assert_same(fresh: &Place, kept: &Place, what: &str) {
    let (fresh, kept) = (fresh.files(), kept.files());
    assert_eq!(
        fresh.keys().collect::<Vec<_>>(),
        kept.keys().collect::<Vec<_>>(),
        "{what}"
    );
    for (name, bytes) in &fresh {
        assert!(kept[name] == bytes, "{what}: {name} differs");
    }
}

/// The same leaves in another order.
fn turned(state: StateDict) -> StateDict {
    match state {
        Tree::Dict(d) => Tree::Dict(d.into_iter().rev().collect()),
        other => other,
    }
}

proptest! {
    #![proptest_config(law(64))]

    #[test]
    fn saves_with_a_kept_plan_write_the_same_bytes(
        contents in contents(), n in 1u32..4, choices in choices(), mut steps in choices(), in_background: bool,
    ) {
        let (mut contents, mut choices) = (contents, choices);
        let mut how = How { dcp: steps.below(2) == 1, policy: steps.below(5), ..How::default() };
        let mut kept = kept(n);
        let place = Place::new();
        for step in 0..5 {
            let what = match step { 0 => 0, _ => change(&mut contents, &mut choices, &mut how, &mut steps, n) };
            if what == 9 {
                kept[steps.below(n.into()) as usize] = Arc::default();
            }
            let odd = (what == 10).then(|| steps.below(n.into()) as usize);
            let cut = contents.cut(n, &mut choices.clone());
            let states = || {
                let mut states = contents.states(&cut, &mut choices.clone());
                if let Some(odd) = odd {
                    states[odd] = turned(std::mem::take(&mut states[odd]));
                }
                states
            };
            let fresh = Place::new();
            for saved in save(group(n), states(), fresh.url(), move |_, s| how.set(s)) {
                saved.unwrap();
            }
            if what == 11 {
                // It fails on one rank, where planning ends.
                let (kept, who) = (kept.clone(), steps.below(n.into()) as u32);
                let failed = save(group(n), states(), place.url(), move |rank, s| {
                    let s = how.set(s).overwrite(true).kept_plan(&kept[rank.0 as usize]);
                    s.planner(Fails::new(how, rank.0 == who))
                });
                prop_assert!(failed.iter().all(Result::is_err));
            }
            // Views, buffers and objects are new ones in each save.
            let kept = kept.clone();
            if in_background {
                let url: Arc<str> = place.url().into();
                let ranks = group(n).into_iter().zip(states()).collect();
                on_ranks(ranks, move |(group, state)| {
                    let (url, kept) = (Arc::clone(&url), Arc::clone(&kept[group.rank().0 as usize]));
                    async move {
                        let save = how.set(reshard::save(&state, &*url).stores(stores())).overwrite(true);
                        let mut saver = AsyncSaver::new(&*group).await.unwrap();
                        let handle = saver.start(save.kept_plan(&kept)).await.unwrap();
                        drop(state);
                        handle.finish().await.unwrap();
                        saver.close().await.unwrap();
                    }
                });
            } else {
                let saved = save(group(n), states(), place.url(), move |rank, s| {
                    how.set(s).overwrite(true).kept_plan(&kept[rank.0 as usize])
                });
                saved.into_iter().for_each(|s| drop(s.unwrap()));
            }
            assert_same(&fresh, &place, &format!("step {step}, change {what}"));
        }
    }
}

/// Changes something, or only the data; tells what.
fn change(
    contents: &mut reshard_laws::contents::Contents,
    choices: &mut Choices,
    how: &mut How,
    steps: &mut Choices,
    n: u32,
) -> u64 {
    // Half of all saves have the structure of the one before.
    let what = steps.below(24);
    for tensor in &mut contents.tensors {
        tensor.salt = tensor.salt.wrapping_add(7);
    }
    let which = steps.below(contents.tensors.len() as u64) as usize;
    let tensor = contents.tensors.get_mut(which);
    match (what, tensor) {
        (1, Some(t)) => match t.shape.last_mut() {
            Some(last) => *last += 1,
            None => t.shape.push(2),
        },
        (2, Some(t)) => {
            t.dtype = DType::ALL[steps.below(DType::ALL.len() as u64) as usize];
        }
        (3, Some(t)) => t.key += "x",
        (4, _) => contents.objects = !contents.objects,
        (5, _) => how.policy = steps.below(5),
        (6, _) => how.coordinator = steps.below(n.into()) as u32,
        (7, _) => how.dcp = !how.dcp,
        (8, _) => how.alone = !how.alone,
        (12, _) => *choices = Choices::of(vec![steps.below(1000) as u32; 5]),
        (13, _) => {
            let long = "x".repeat(steps.below(300) as usize);
            contents.extra = Value::Dict(vec![("a".into(), long.into())]);
        }
        _ => {}
    }
    what
}

/// Says that its plans are as those of the default planner, and fails at the end of planning, if it shall.
#[derive(Debug)]
struct Fails {
    fails: bool,
    base: DefaultSavePlanner,
}

impl Fails {
    fn new(how: How, fails: bool) -> Self {
        let base = match how.dcp {
            true => DefaultSavePlanner::DCP,
            false => DefaultSavePlanner::DEFAULT,
        };
        let base = base.with_allow_holes(how.alone);
        Self { fails, base }
    }
}

impl SavePlanner for Fails {
    fn base(&self) -> &dyn SavePlanner {
        &self.base
    }

    fn plan_settings(&self) -> Option<String> {
        Some(String::new())
    }

    fn finish_plan(&self, plan: SavePlan) -> Result<SavePlan, PlanError> {
        match self.fails {
            true => Err(PlanError::planner("it fails here")),
            false => Ok(plan),
        }
    }
}

const RANKS: u32 = 3;

/// Some 100 tensors of which each rank has a part, one that all have, and an object.
fn state(rank: u32, elements: u64) -> StateDict {
    let mut state = StateDict::new();
    let salt = rank as f32 + elements as f32;
    for i in 0..100 {
        let key = format!("layers.{i}.attention.linear_qkv.weight");
        let data = Tensor::from_vec(&[4], vec![salt; 4]).unwrap();
        let leaf = ShardedTensor::from_rank_offsets(&key, data, &[(0, rank.into(), RANKS.into())])
            .unwrap();
        state.insert(key.as_str(), leaf);
    }
    let bias = Tensor::from_vec(&[elements], vec![1f32; elements as usize]).unwrap();
    let bias = ShardedTensor::full(&format!("bias.{rank}"), bias);
    state.insert("bias", bias);
    let norm = Tensor::from_vec(&[2], vec![1f32; 2]).unwrap();
    state.insert(
        "norm",
        ShardedTensor::full("norm", norm).with_replica_id(rank),
    );
    let object = |n: i64| Value::Tuple(vec![n.into(), "rng".into()]);
    let at = u64::from(rank);
    let cell = ShardedObject::new("rng", object(at as i64), &[RANKS.into()], &[at], 0).unwrap();
    state.insert("rng", cell);
    state
}

fn states() -> Vec<StateDict> {
    (0..RANKS).map(|rank| state(rank, 4)).collect()
}

/// How often some rank has made a local plan, and whatever else is counted.
#[derive(Clone, Debug, Default)]
struct Planned(Arc<AtomicU64>);

impl Planned {
    fn observer(&self) -> Observer {
        let count = Arc::clone(&self.0);
        Observer::new(move |hook| {
            if hook == "writer.prepare_local_plan" {
                count.fetch_add(1, Ordering::SeqCst);
            }
            Ok(())
        })
    }

    fn take(&self) -> u64 {
        self.0.swap(0, Ordering::SeqCst)
    }
}

/// One save after the other through kept plans.
struct Job {
    place: Place,
    kept: Kept,
    planned: Planned,
}

impl Job {
    fn new() -> Self {
        Self {
            place: Place::new(),
            kept: kept(RANKS),
            planned: Planned::default(),
        }
    }

    /// How many ranks have planned; the bytes and steps of rank 1. What is written is what a fresh save writes.
    fn save(
        &self,
        states: Vec<StateDict>,
        set: impl for<'a> Fn(Rank, Save<'a>) -> Save<'a> + Send + Sync + Clone + 'static,
    ) -> (u64, u64, u64) {
        let fresh = Place::new();
        let observer = Planned::default().observer();
        let other = set.clone();
        let saved = save(group(RANKS), states.clone(), fresh.url(), move |rank, s| {
            other(rank, s.strategy(tapped_save(&observer, true)))
        });
        saved.into_iter().for_each(|s| drop(s.unwrap()));

        let counted: Vec<Arc<FaultGroup>> = group(RANKS)
            .into_iter()
            .map(|g| Arc::new(FaultGroup::counting(g)))
            .collect();
        let groups: Groups = counted
            .iter()
            .map(|g| Arc::clone(g) as Arc<dyn ProcessGroup>)
            .collect();
        let (kept, observer) = (self.kept.clone(), self.planned.observer());
        let saved = save(groups, states, self.place.url(), move |rank, s| {
            let s = s.overwrite(true).strategy(tapped_save(&observer, true));
            set(rank, s.kept_plan(&kept[rank.0 as usize]))
        });
        saved.into_iter().for_each(|s| drop(s.unwrap()));
        assert_same(&fresh, &self.place, "kept");
        (self.planned.take(), counted[1].sent(), counted[1].calls())
    }
}

#[test]
fn a_structure_that_is_known_is_not_planned_again() {
    let job = Job::new();
    let (planned, first, steps) = job.save(states(), |_, s| s);
    assert_eq!(planned, 3);
    let results = 100 * 120; // what ranks tell of what they wrote
    for reused in 1..4 {
        let (planned, sent, fewer) = job.save(states(), |_, s| s);
        assert_eq!((planned, job.kept[1].reused()), (0, reused));
        assert!(sent + 5_000 < first && sent < results, "{sent} {first}");
        assert!(fewer < steps, "{fewer} {steps}");
    }

    // Other data, other strides, and an object that is longer.
    let mut other = states();
    let columns = Layout::new(4, 0, [4].into(), [2].into()).unwrap();
    let bytes: Vec<u8> = (0..28).collect();
    let strided = Tensor::with_layout(DType::Float32, columns, Arc::new(bytes)).unwrap();
    other[1].insert("bias", ShardedTensor::full("bias.1", strided));
    let long = "x".repeat(5000);
    let cell = ShardedObject::new("rng", long.as_str(), &[3], &[1], 0).unwrap();
    other[1].insert("rng", cell);
    other[0].insert("step", 7);
    assert_eq!(job.save(other, |_, s| s).0, 0);
}

/// In Megatron and DCP the cached structure of the first save stays, and the second one is cut without a word.
#[test]
fn a_save_of_4_elements_and_then_of_6_plans_anew_and_has_all_6() {
    let job = Job::new();
    let of = |elements| (0..RANKS).map(|rank| state(rank, elements)).collect();
    for (elements, planned) in [(4, 3), (4, 0), (6, 3), (6, 0), (4, 3)] {
        assert_eq!(job.save(of(elements), |_, s| s).0, planned);
        let opened = OpenOptions::new().stores(stores());
        let opened = block_on(opened.open(job.place.url())).unwrap();
        let bias = block_on(opened.tensor("bias.1").unwrap().read(..)).unwrap();
        let ones = vec![1f32; elements as usize];
        assert_eq!(bias.to_vec::<f32>().unwrap(), ones);
    }
}

type Change = Box<dyn Fn(&mut StateDict)>;

#[test]
fn whatever_changes_on_one_rank_is_planned_anew_by_all() {
    let leaf = |key: &str, dtype: DType, shape: &[u64]| {
        ShardedTensor::full(key, Tensor::zeros(key, dtype, shape).unwrap())
    };
    let with =
        |leaf: ShardedTensor| move |state: &mut StateDict| drop(state.insert("bias", leaf.clone()));
    let mut changes: Vec<(&str, Change)> = vec![
        ("elements", Box::new(|s| *s = state(1, 6))),
        ("fewer", Box::new(|s| *s = state(1, 3))),
        ("type", Box::new(with(leaf("bias.1", DType::Int32, &[4])))),
        (
            "axes",
            Box::new(with(leaf("bias.1", DType::Float32, &[2, 2]))),
        ),
        ("key", Box::new(with(leaf("bias.x", DType::Float32, &[4])))),
        (
            "tag",
            Box::new(with(leaf("bias.1", DType::Float32, &[4]).with_tag("t"))),
        ),
        ("order", Box::new(|s| *s = turned(std::mem::take(s)))),
        ("less", Box::new(|s| drop(s.remove("bias")))),
        (
            "more",
            Box::new(|s| {
                let more = ShardedTensor::full("more", Tensor::from_vec(&[1], vec![1u8]).unwrap());
                drop(s.insert("more", more));
            }),
        ),
        (
            "path",
            Box::new(|s| {
                let leaf = s.remove("bias").unwrap();
                drop(s.insert_tree("moved", leaf));
            }),
        ),
    ];
    let grow = ShardedObject::new("other", 1, &[1], &[0], 0).unwrap();
    changes.push((
        "object",
        Box::new(move |s| drop(s.insert("rng2", grow.clone()))),
    ));
    for (what, change) in &changes {
        let job = Job::new();
        job.save(states(), |_, s| s);
        assert_eq!(job.save(states(), |_, s| s).0, 0, "{what}");
        let mut other = states();
        change(&mut other[1]);
        assert_eq!(job.save(other.clone(), |_, s| s).0, 3, "{what}");
        assert_eq!(job.save(other, |_, s| s).0, 0, "{what}");
        assert_eq!(job.save(states(), |_, s| s).0, 3, "{what}");
    }
}

/// The chunk that each rank has moves from one to another, while all keys and shapes stay.
#[test]
fn pieces_that_move_between_ranks_are_planned_anew() {
    let job = Job::new();
    job.save(states(), |_, s| s);
    let moved = vec![state(2, 4), state(0, 4), state(1, 4)];
    let mut moved: Vec<StateDict> = moved;
    for (rank, state) in moved.iter_mut().enumerate() {
        let norm = Tensor::from_vec(&[2], vec![1f32; 2]).unwrap();
        let norm = ShardedTensor::full("norm", norm).with_replica_id((rank as u32 + 1) % 3);
        state.insert("norm", norm);
    }
    assert_eq!(job.save(moved.clone(), |_, s| s).0, 3);
    assert_eq!(job.save(moved, |_, s| s).0, 0);
}

#[test]
fn other_settings_are_planned_anew() {
    type Set = for<'a> fn(Rank, Save<'a>) -> Save<'a>;
    let settings: [Set; 9] = [
        |_, s| s.policy(MaxShardSize::new(4000)),
        |_, s| s.policy(MaxShardSize::new(5000)),
        |_, s| s.policy(ByFiles::new(2)),
        |_, s| s.policy(AllInOne { gather: true }),
        |_, s| s.max_files(1000),
        |_, s| s.coordinator(Rank(2)),
        |_, s| s.planner(DefaultSavePlanner::DEFAULT.with_allow_holes(true)),
        |_, s| s.rank_local(true),
        |_, s| s.planner(Fails::new(How::default(), false)),
    ];
    let job = Job::new();
    for set in settings {
        // Each setting alone makes the difference.
        job.save(states(), |_, s| s);
        assert_eq!(job.save(states(), set).0, 3);
        assert_eq!(job.save(states(), set).0, 0);
        assert_eq!(job.save(states(), set).0, 0);
    }
    // The dialect: what is no tensor is an item.
    assert_eq!(job.save(states(), |_, s| s.dialect(Dialect::Dcp)).0, 3);
    assert_eq!(job.save(states(), |_, s| s.dialect(Dialect::Dcp)).0, 0);
}

/// A planner that does not say what its plans depend on may look at anything.
#[test]
fn planners_that_say_nothing_are_asked_each_time() {
    #[derive(Debug)]
    struct Silent;
    impl SavePlanner for Silent {}
    let job = Job::new();
    for _ in 0..3 {
        assert_eq!(job.save(states(), |_, s| s.planner(Silent)).0, 3);
    }
    assert_eq!(job.kept[1].reused(), 0);
}

#[test]
fn a_rank_that_has_lost_its_plan_makes_all_plan_anew() {
    for lost in 0..3 {
        let mut job = Job::new();
        job.save(states(), |_, s| s);
        job.kept[lost] = Arc::default();
        assert_eq!(job.save(states(), |_, s| s).0, 3);
        assert_eq!(job.save(states(), |_, s| s).0, 0);
        // One that never keeps anything.
        for _ in 0..2 {
            let planned = job.save(states(), move |rank, s| match rank.0 as usize == lost {
                true => s.kept_plan(&Arc::default()),
                false => s,
            });
            assert_eq!(planned.0, 3);
        }
    }
}

/// Each rank knows a plan for what it has, but they are of different saves.
#[test]
fn plans_of_different_saves_are_not_mixed() {
    let mut job = Job::new();
    let first: Vec<StateDict> = (0..3).map(|rank| state(rank, 4)).collect();
    let mut second = first.clone();
    second[0] = state(0, 9);
    job.save(first.clone(), |_, s| s);
    let of_first = std::mem::take(&mut job.kept[0]);
    job.save(second, |_, s| s);
    job.kept[0] = of_first;
    assert_eq!(job.save(first, |_, s| s).0, 3);
}

/// Two leaves of one rank hold one piece. Whether they are equal, only their data tell.
#[test]
fn pieces_that_a_rank_holds_twice_are_compared_in_each_save() {
    let place = Place::new();
    let kept = kept(1);
    let run = |second: f32| {
        let mut state = StateDict::new();
        for (name, value) in [("a", 1.), ("b", second)] {
            let data = Tensor::from_vec(&[2], vec![value; 2]).unwrap();
            state.insert(name, ShardedTensor::full("w", data));
        }
        let kept = kept.clone();
        let saved = save(group(1), vec![state], place.url(), move |_, s| {
            let s = s.overwrite(true).dialect(Dialect::Dcp);
            s.kept_plan(&kept[0])
        });
        saved.into_iter().all(|s| s.is_ok())
    };
    assert!(run(1.));
    assert!(run(1.));
    assert!(!run(2.));
    assert!(run(1.));
}

/// Whoever keeps a plan keeps no tensor.
#[test]
fn a_kept_plan_holds_no_data() {
    #[derive(Debug)]
    struct Buffer(Vec<u8>);
    impl HostBuffer for Buffer {
        fn as_bytes(&self) -> &[u8] {
            &self.0
        }
    }
    let place = Place::new();
    let kept = kept(1);
    for _ in 0..2 {
        let buffer: Arc<dyn HostBuffer> = Arc::new(Buffer(vec![1; 16]));
        let alive = Arc::downgrade(&buffer);
        let layout = Layout::contiguous(4, &[4]).unwrap();
        let data = Tensor::with_layout(DType::Float32, layout, buffer).unwrap();
        let payload = Value::Tensor(data.clone());
        let mut state = StateDict::new();
        state.insert("w", ShardedTensor::full("w", data));
        state.insert("o", ShardedObject::item("o", Payload::Value(payload)));
        let kept = kept.clone();
        let saved = save(group(1), vec![state], place.url(), move |_, s| {
            s.overwrite(true).kept_plan(&kept[0])
        });
        saved.into_iter().for_each(|s| drop(s.unwrap()));
        assert!(alive.upgrade().is_none());
    }
    assert_eq!(kept[0].reused(), 1);
}

/// Nobody has to ask for it.
#[test]
fn savers_and_queues_keep_plans_themselves() {
    for queue in [false, true] {
        let planned = Planned::default();
        let place = Place::new();
        let url: Arc<str> = place.url().into();
        let observer = planned.observer();
        on_ranks(group(RANKS), move |group| {
            let (url, observer) = (Arc::clone(&url), observer.clone());
            async move {
                let mut saver = AsyncSaver::new(&*group).await.unwrap();
                let mut calls = AsyncCallsQueue::new(&*group).await.unwrap();
                for elements in [4, 4, 4, 6, 6] {
                    let state = state(group.rank().0, elements);
                    let save = reshard::save(&state, &*url)
                        .stores(stores())
                        .overwrite(true)
                        .strategy(tapped_save(&observer, true));
                    if queue {
                        let request = calls.request(save).await.unwrap();
                        calls.schedule(request).unwrap();
                        calls.maybe_finalize(true).await.unwrap();
                    } else {
                        saver.start(save).await.unwrap().finish().await.unwrap();
                    }
                }
                calls.close(false).await.unwrap();
                saver.close().await.unwrap();
            }
        });
        assert_eq!(planned.take(), 6, "queue: {queue}");
    }
}

#[test]
fn a_policy_is_not_asked_for_a_plan_that_is_known() {
    let dir = tempfile::tempdir().unwrap();
    let kept = Arc::new(KeptPlan::new());
    let state = state(0, 4);
    let durations = ["a", "b"].map(|name| {
        let url = dir.path().join(name).display().to_string();
        let save = reshard::save(&state, &url).kept_plan(&kept);
        let saved = blocking::run(save.rank_local(true).policy(AllInOne::new())).unwrap();
        saved.policy.unwrap().duration
    });
    assert_eq!(kept.reused(), 1);
    assert!(!durations[0].is_zero() && durations[1].is_zero());
}

//! A fault in any hook of a save or load, on any ranks, whoever decides: every rank learns the step, the ranks and the causes;
//! nobody hangs; a failed save leaves nothing that looks like a checkpoint, a failed load gives the templates back.
//!
//! The idea is that of the faults in PyTorch's `test_checkpoint.py`; its places, in ours:
//!
//! | save, in PyTorch | here | load, in PyTorch | here |
//! | --- | --- | --- | --- |
//! | `set_up_planner` | `planner.set_up` | (opening storage) | `stores` |
//! | `set_up_storage_writer` | `writer.set_up` | `read_metadata` | `reader.open`, `registry` |
//! | `create_local_plan` | `planner.create_local_plan` | `set_up_planner` | `planner.set_up` |
//! | `prepare_local_plan` | `writer.prepare_local_plan` | `set_up_storage_reader` | `reader.set_up` |
//! | `create_global_plan` | `planner.create_global_plan` | `create_local_plan` | `planner.create_local_plan` |
//! | `prepare_global_plan` | `writer.prepare_global_plan` | `prepare_local_plan` | `reader.prepare_local_plan` |
//! | `finish_plan` | `planner.finish_plan` | `create_global_plan` | `planner.create_global_plan` |
//! | `lookup_object` | `planner.lookup_object` | `prepare_global_plan` | `reader.prepare_global_plan` |
//! | `transform_object` | `planner.transform_object` | `finish_plan` | `planner.finish_plan` |
//! | `write_data` | `writer.layout` | `lookup_tensor` | `planner.lookup_tensor` |
//! | `write_data`, on its threads | `writer.bytes` | `read_data` | `reader.read_tensors`, `reader.read_objects` |
//! | `finish` | `writer.finish` | `transform_tensor` | `planner.transform_tensor` |
//! | (writing, committing) | `stores.rs` | `load_bytes` | `reader.decode`, `planner.load_object` |
//! | | | `commit_tensor` | `planner.commit_tensor` |

use reshard::{
    DType, Dialect, Rank, Registry, StateDict, Stores, Value, ValueTree,
    plan::{DefaultLoadPlanner, DefaultSavePlanner, Destination, LoadPlanner, PlanError, ReadItem},
    strategy::{LoadShardedStrategy, testkit::Observer},
    torch_dist::TorchDistLoadConfig,
};
use reshard_example::ExampleLoadConfig;
use reshard_laws::{
    contents::{Contents, Cut, Global, Watch},
    observed::{tapped_load, tapped_save},
    place::Place,
    ranks::{group, load, save, told, try_load, try_save},
};

const RANKS: u32 = 3;

/// Failing ranks, and who decides.
const WHO: &[(&[u32], u32)] = &[
    (&[0], 0),
    (&[1], 0),
    (&[2], 1),
    (&[1], 1),
    (&[0, 2], 2),
    (&[0, 1, 2], 0),
];

/// A hook, whether only the coordinator calls it, and the step in which a fault of it happens.
type Hook = (&'static str, bool, &'static str);

const SAVE: &[Hook] = &[
    ("planner.set_up", false, "plan"),
    ("writer.set_up", false, "plan"),
    ("planner.create_local_plan", false, "plan"),
    ("writer.prepare_local_plan", false, "plan"),
    ("planner.create_global_plan", true, "plan"),
    ("writer.prepare_global_plan", true, "plan"),
    ("planner.finish_plan", false, "plan"),
    ("planner.lookup_object", false, "layout"),
    ("planner.transform_object", false, "layout"),
    ("writer.layout", false, "layout"),
    ("writer.bytes", false, "write"),
    ("writer.finish", true, "write"),
];

const LOAD: &[Hook] = &[
    ("stores", false, "open"),
    ("registry", false, "open"),
    ("reader.open", false, "open"),
    ("planner.set_up", false, "plan"),
    ("reader.set_up", false, "plan"),
    ("planner.create_local_plan", false, "plan"),
    ("reader.prepare_local_plan", false, "plan"),
    ("planner.create_global_plan", true, "plan"),
    ("reader.prepare_global_plan", true, "plan"),
    ("planner.finish_plan", false, "plan"),
    ("planner.lookup_tensor", false, "read"),
    ("reader.read_tensors", false, "read"),
    ("planner.transform_tensor", false, "read"),
    ("reader.read_objects", false, "read"),
    ("reader.decode", false, "read"),
    ("planner.load_object", false, "read"),
    ("planner.commit_tensor", false, "read"),
];

fn contents() -> Contents {
    let tensor = |key: &str, rows| Global {
        key: key.into(),
        dtype: DType::Float32,
        shape: vec![rows, 40],
        salt: 3,
        prepended: false,
    };
    Contents {
        tensors: vec![tensor("a", 60), tensor("b", 7)],
        objects: true,
        extra: Value::Dict(Vec::new()),
    }
}

/// What the same choices make every time: each kind of memory but devices.
fn states(contents: &Contents, cut: &Cut) -> Vec<StateDict> {
    (0..RANKS)
        .map(|r| contents.state(cut, r, &mut simple()))
        .collect()
}

fn simple() -> reshard_laws::contents::Choices {
    reshard_laws::contents::Choices::of([0, 1, 3, 2, 0, 1])
}

fn templates(contents: &Contents, cut: &Cut) -> (Vec<StateDict>, Vec<Watch>) {
    (0..RANKS)
        .map(|r| contents.template(cut, r, RANKS, Dialect::Megatron, &mut simple()))
        .unzip()
}

fn faulty(hook: &'static str, fails: bool, panics: bool) -> Observer {
    Observer::new(move |at| match fails && at == hook {
        true if panics => panic!("a panic in {hook}"),
        true => Err(format!("a fault in {hook}").into()),
        false => Ok(()),
    })
}

fn fails(hook: &Hook, who: &[u32], coordinator: u32) -> Vec<u32> {
    who.iter()
        .copied()
        .filter(|r| !hook.1 || *r == coordinator)
        .collect()
}

#[test]
fn a_fault_in_any_hook_of_a_save_is_told_to_all_and_leaves_nothing() {
    let (contents, old) = (contents(), Place::new());
    let cut = contents.rows(RANKS);
    for outcome in save(
        group(RANKS),
        states(&contents, &contents.columns(RANKS)),
        old.url(),
        |_, s| s,
    ) {
        outcome.unwrap();
    }
    let before = old.files();
    for hook in SAVE {
        for &(who, coordinator) in WHO {
            let expected = fails(hook, who, coordinator);
            if expected.is_empty() {
                continue;
            }
            let new = Place::new();
            for (place, torch) in [(&new, false), (&new, true), (&old, false), (&old, true)] {
                let outcomes = save(
                    group(RANKS),
                    states(&contents, &cut),
                    place.url(),
                    move |rank, save| {
                        let observer = faulty(hook.0, who.contains(&rank.0), false);
                        let planner = observer.on(DefaultSavePlanner::DEFAULT);
                        save.strategy(tapped_save(&observer, torch))
                            .planner(planner)
                            .coordinator(Rank(coordinator))
                            .overwrite(true)
                    },
                );
                let (step, causes) = told(outcomes.iter().map(|o| o.as_ref().err()));
                // Laying out is local: all are told after the write, and the cause names the step.
                let (all, of_one) = if hook.2 == "layout" {
                    ("write", "in `layout`: ")
                } else {
                    (hook.2, "")
                };
                assert_eq!(step, all, "{hook:?}: {causes:?}");
                assert!(
                    causes.values().all(|c| c.starts_with(of_one)),
                    "{hook:?}: {causes:?}"
                );
                assert_eq!(
                    causes.keys().copied().collect::<Vec<_>>(),
                    expected,
                    "{hook:?}: {causes:?}"
                );
                let fault = format!("a fault in {}", hook.0);
                assert!(
                    causes.values().all(|c| c.contains(&fault)),
                    "{hook:?}: {causes:?}"
                );
                assert_eq!(place.leftovers(), 0, "{hook:?}");
            }
            assert!(new.files().is_empty(), "{hook:?}");
            assert_eq!(old.files(), before, "{hook:?}");
        }
    }
}

#[test]
fn a_panic_in_any_hook_of_a_save_is_an_error_on_all_other_ranks() {
    let contents = contents();
    let cut = contents.rows(RANKS);
    for hook in SAVE {
        for who in [0, 1] {
            if hook.1 && who != 0 {
                continue;
            }
            let place = Place::new();
            let outcomes = try_save(
                group(RANKS),
                states(&contents, &cut),
                place.url(),
                move |rank, save| {
                    let observer = faulty(hook.0, rank.0 == who, true);
                    let planner = observer.on(DefaultSavePlanner::DEFAULT);
                    save.strategy(tapped_save(&observer, who == 0))
                        .planner(planner)
                },
            );
            for (rank, outcome) in (0..).zip(outcomes) {
                match outcome {
                    Ok(Ok(_)) => panic!("rank {rank} went on: {hook:?} panics on rank {who}"),
                    Ok(Err(e)) => {
                        let text = e.strategy_error().to_string();
                        assert!(
                            text.contains(&format!("rank {who}")) && text.contains("panic"),
                            "{hook:?}: {text}"
                        );
                    }
                    Err(_) => assert_eq!(rank, who, "{hook:?}"),
                }
            }
            assert!(place.files().is_empty(), "{hook:?}");
            // A coordinator that panics can't clear up; what it leaves is hidden.
            assert!(who == 0 || place.leftovers() == 0, "{hook:?}");
        }
    }
}

/// Lets elements go through memory of their own, so that `transform_tensor` is called.
#[derive(Debug)]
struct ByScratch;

impl LoadPlanner for ByScratch {
    fn base(&self) -> &dyn LoadPlanner {
        &DefaultLoadPlanner::DEFAULT
    }

    fn lookup_tensor(&self, item: &ReadItem) -> Result<Destination, PlanError> {
        // Some of them: the others go straight to the leaf.
        Ok(if &*item.piece.key == "a" {
            Destination::Scratch
        } else {
            Destination::Leaf
        })
    }
}

/// Checkpoints of the example's format and of `torch_dist`.
fn checkpoints(contents: &Contents) -> [(Place, bool); 2] {
    [false, true].map(|torch| {
        let place = Place::new();
        let states = states(contents, &contents.columns(RANKS));
        let outcomes = save(group(RANKS), states, place.url(), move |_, save| {
            if torch {
                save
            } else {
                save.strategy(reshard_example::ExampleConfig::default())
            }
        });
        outcomes.into_iter().for_each(|o| drop(o.unwrap()));
        (place, torch)
    })
}

fn tapped(observer: Observer, torch: bool) -> LoadShardedStrategy {
    match torch {
        true => tapped_load(&observer, TorchDistLoadConfig::default()),
        false => tapped_load(&observer, ExampleLoadConfig::default()),
    }
}

#[test]
fn a_fault_in_any_hook_of_a_load_is_told_to_all_and_gives_the_templates_back() {
    let contents = contents();
    let cut = contents.rows(RANKS);
    for (place, torch) in checkpoints(&contents) {
        for hook in LOAD {
            for &(who, coordinator) in WHO {
                let expected = fails(hook, who, coordinator);
                if expected.is_empty() {
                    continue;
                }
                let (templates, watches) = templates(&contents, &cut);
                let outcomes = load(
                    group(RANKS),
                    templates,
                    place.url(),
                    move |rank, mut load| {
                        let fails = who.contains(&rank.0);
                        if fails && hook.0 == "stores" {
                            load = load.stores(Stores::linked().unwrap());
                        }
                        if fails && hook.0 == "registry" {
                            load = load.registry(Registry::default());
                        }
                        let observer = faulty(hook.0, fails, false);
                        load.planner(observer.on(ByScratch))
                            .strategy(tapped(observer, torch))
                            .coordinator(Rank(coordinator))
                    },
                );
                let errors: Vec<_> = outcomes
                    .into_iter()
                    .map(|o| o.map(drop).unwrap_err())
                    .collect();
                let (step, causes) = told(errors.iter().map(|e| Some(e.error())));
                assert_eq!(step, hook.2, "{hook:?}: {causes:?}");
                assert_eq!(
                    causes.keys().copied().collect::<Vec<_>>(),
                    expected,
                    "{hook:?}: {causes:?}"
                );
                if hook.0.contains('.') {
                    let fault = format!("a fault in {}", hook.0);
                    assert!(
                        causes.values().all(|c| c.contains(&fault)),
                        "{hook:?}: {causes:?}"
                    );
                }
                for (r, e) in (0..).zip(errors) {
                    let (_, template) = e.into_parts();
                    let leaves = |s: &StateDict| {
                        let mut paths = Vec::new();
                        s.visit(&mut |p, _| paths.push(reshard::model::Path::from(p)));
                        paths.sort();
                        paths
                    };
                    let fresh = contents
                        .template(&cut, r, RANKS, Dialect::Megatron, &mut simple())
                        .0;
                    assert_eq!(leaves(&template), leaves(&fresh), "{hook:?}");
                }
                watches.iter().for_each(Watch::check_back);
            }
        }
    }
}

#[test]
fn a_panic_in_any_hook_of_a_load_is_an_error_on_all_other_ranks() {
    let contents = contents();
    let cut = contents.rows(RANKS);
    for (place, torch) in checkpoints(&contents) {
        for hook in LOAD.iter().filter(|h| h.0.contains('.')) {
            for who in [0, 1] {
                if hook.1 && who != 0 {
                    continue;
                }
                let (templates, _) = templates(&contents, &cut);
                let outcomes = try_load(group(RANKS), templates, place.url(), move |rank, load| {
                    let observer = faulty(hook.0, rank.0 == who, true);
                    load.planner(observer.on(ByScratch))
                        .strategy(tapped(observer, torch))
                });
                for (rank, outcome) in (0..).zip(outcomes) {
                    match outcome {
                        Ok(Ok(_)) => panic!("rank {rank} went on: {hook:?} panics on rank {who}"),
                        Ok(Err(e)) => {
                            let text = e.error().strategy_error().to_string();
                            let both =
                                text.contains(&format!("rank {who}")) && text.contains("panic");
                            assert!(both, "{hook:?}: {text}");
                        }
                        Err(_) => assert_eq!(rank, who, "{hook:?}"),
                    }
                }
            }
        }
    }
}

#[test]
fn without_a_fault_the_taps_change_nothing() {
    let contents = contents();
    let cut = contents.rows(RANKS);
    for (place, torch) in checkpoints(&contents) {
        let (templates, watches) = templates(&contents, &cut);
        let outcomes = load(group(RANKS), templates, place.url(), move |_, load| {
            let observer = faulty("none", true, true);
            load.planner(observer.on(ByScratch))
                .strategy(tapped(observer, torch))
        });
        for (r, outcome) in (0..).zip(outcomes) {
            let plain: ValueTree = outcome.unwrap().0;
            contents.check(&cut, r, RANKS, &plain);
        }
        watches.iter().for_each(Watch::check_filled);
    }
}

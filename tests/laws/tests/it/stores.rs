//! A store that fails: at any call, on any rank.

use reshard::storage::Store;
use reshard::{
    DType, Data, Dialect, Durability, ErrorKind, Region, ShardedTensor, StateDict, Value,
    model::{BoxError, Dims, TensorSource},
    plan::{DefaultSavePlanner, PlanError, SavePlan, SavePlanner},
    torch_dist::TorchDistConfig,
};
use reshard_laws::{
    contents::{Choices, Contents, Global, Watch},
    place::Place,
    ranks::{group, load, save, told},
};
use reshard_storage::testkit::{Fault, FaultStore, MemoryStore, Op};
use std::{
    collections::BTreeSet,
    sync::{Arc, Condvar, Mutex},
    thread,
};

pub(crate) const RANKS: u32 = 3;

pub(crate) fn contents() -> Contents {
    let tensor = |key: &str, rows| Global {
        key: key.into(),
        dtype: DType::Float32,
        shape: vec![rows, 40],
        salt: 3,
        prepended: false,
    };
    Contents {
        tensors: vec![tensor("a", 120), tensor("b", 7)],
        objects: true,
        extra: Value::Dict(Vec::new()),
    }
}

pub(crate) fn states(contents: &Contents) -> Vec<StateDict> {
    contents.states(&contents.rows(RANKS), &mut Choices::of([0, 1, 3, 2]))
}

pub(crate) fn templates(contents: &Contents) -> (Vec<StateDict>, Vec<Watch>) {
    let cut = contents.columns(RANKS);
    (0..RANKS)
        .map(|r| {
            contents.template(
                &cut,
                r,
                RANKS,
                Dialect::Megatron,
                &mut Choices::of([0, 1, 3, 2]),
            )
        })
        .unzip()
}

fn faulty(inner: &Place, op: Op, nth: u64, fault: Fault) -> Place {
    let store = FaultStore::new(Arc::clone(inner.store()));
    store.fail(op, nth, fault);
    Place::of(store)
}

/// A sound checkpoint in memory.
fn sound(contents: &Contents) -> Place {
    let place = Place::of(MemoryStore::new());
    save(group(RANKS), states(contents), place.url(), |_, s| s)
        .into_iter()
        .for_each(|o| drop(o.unwrap()));
    place
}

#[test]
fn a_call_that_fails_fails_the_save_on_all_ranks_and_leaves_nothing() {
    let contents = contents();
    let mut met = 0;
    for op in [Op::Begin, Op::Write, Op::Commit] {
        for fault in [Fault::Before, Fault::After] {
            if (op, fault) == (Op::Commit, Fault::After) {
                // It is committed then, whatever the store says.
                continue;
            }
            for nth in 0.. {
                let inner = Place::new();
                let place = faulty(&inner, op, nth, fault);
                let outcomes = save(group(RANKS), states(&contents), place.url(), |_, s| s);
                if outcomes.iter().all(Result::is_ok) {
                    assert!(nth > 0, "{op:?} is never called");
                    break;
                }
                met += 1;
                let (step, causes) = told(outcomes.iter().map(|o| o.as_ref().err()));
                let steps: &[&str] = match op {
                    Op::Begin => &["begin"],
                    Op::Write => &["write", "commit"],
                    _ => &["commit"],
                };
                assert!(steps.contains(&step), "{op:?} {nth}: {step}");
                assert_eq!(causes.len(), 1, "{causes:?}");
                assert!(
                    causes.values().all(|c| c.contains("injected fault")),
                    "{causes:?}"
                );
                let e = outcomes[0].as_ref().unwrap_err();
                assert_eq!(e.kind(), ErrorKind::Unavailable, "{e}");
                assert!(
                    inner.files().is_empty() && inner.leftovers() == 0,
                    "{op:?} {nth} {fault:?}"
                );
            }
        }
    }
    assert!(met >= 10, "only {met} faults were met");
}

#[test]
fn an_old_checkpoint_outlives_every_failed_save() {
    let contents = contents();
    let old = sound(&contents);
    let before = old.files();
    for op in [Op::Begin, Op::Write, Op::Commit] {
        for nth in 0..2 {
            let place = faulty(&old, op, nth, Fault::Before);
            let outcomes = save(group(RANKS), states(&contents), place.url(), |_, s| {
                s.overwrite(true)
            });
            if outcomes.iter().any(Result::is_err) {
                assert_eq!(old.files(), before, "{op:?} {nth}");
                assert_eq!(old.leftovers(), 0, "{op:?} {nth}");
            }
        }
    }
}

#[test]
fn a_file_that_is_not_whole_in_the_transaction_is_never_committed_whoever_wrote_it() {
    let contents = contents();
    let modes = [
        (RANKS, Dialect::Megatron, false),
        (RANKS, Dialect::Dcp, true),
        (1, Dialect::Megatron, false),
    ];
    for (ranks, dialect, local) in modes {
        let states = || contents.states(&contents.rows(ranks), &mut Choices::of([0, 1, 3, 2]));
        let save = |place: &Place| {
            save(group(ranks), states(), place.url(), move |_, s| {
                s.overwrite(true).dialect(dialect).rank_local(local)
            })
        };
        let old = Place::new();
        save(&old).into_iter().for_each(|o| drop(o.unwrap()));
        let before = old.files();
        let mut met = BTreeSet::new();
        for fault in [Fault::Lost, Fault::Cut] {
            let all = u64::from(ranks);
            // Which rank comes first is chance: often enough, the one that writes more records than its own.
            for nth in (0..3 * all).chain((0..12).map(|n| all + n % all)) {
                let outcomes = save(&faulty(&old, Op::Write, nth, fault));
                assert_eq!(old.files(), before, "{dialect} {nth} {fault:?}");
                assert_eq!(old.leftovers(), 0, "{dialect} {nth} {fault:?}");
                // A call that wrote nothing, or that is never made, can't lose anything.
                if outcomes.iter().all(Result::is_ok) {
                    continue;
                }
                let text = outcomes[0].as_ref().unwrap_err().to_string();
                assert!(text.contains("nothing is committed"), "{text}");
                let told =
                    ["__", "common.pt", "reshard.json", ".metadata"].map(|f| text.contains(f));
                met.insert(
                    told.into_iter()
                        .position(|t| t)
                        .unwrap_or_else(|| panic!("{text}")),
                );
                if ranks > 1 {
                    assert_eq!(
                        self::told(outcomes.iter().map(|o| o.as_ref().err())).0,
                        "commit"
                    );
                }
            }
        }
        assert!(
            met.contains(&0) && met.len() >= 2,
            "data and records: {met:?}"
        );
    }
}

/// Loses an item after all ranks have agreed upon it.
#[derive(Debug)]
struct Forgetful(u32);

impl SavePlanner for Forgetful {
    fn base(&self) -> &dyn SavePlanner {
        &DefaultSavePlanner::DEFAULT
    }

    fn finish_plan(&self, plan: SavePlan) -> Result<SavePlan, PlanError> {
        let mut plan = self.base().finish_plan(plan)?;
        if self.0 == 0 {
            plan.items.pop();
        }
        Ok(plan)
    }
}

#[test]
fn a_checkpoint_that_lacks_a_planned_item_is_not_committed() {
    let contents = contents();
    for ranks in [1, RANKS] {
        let states = contents.states(&contents.rows(ranks), &mut Choices::of([0, 1, 3, 2]));
        let place = Place::new();
        let outcomes = save(group(ranks), states, place.url(), |rank, s| {
            s.planner(Forgetful(rank.0))
        });
        for outcome in outcomes {
            let e = outcome
                .err()
                .unwrap_or_else(|| panic!("a checkpoint with a hole was committed"));
            let text = e.to_string();
            assert!(
                text.contains("items were written where") && text.contains("nothing is committed"),
                "{text}"
            );
        }
        assert!(place.files().is_empty() && place.leftovers() == 0);
    }
}

#[test]
fn what_can_not_be_cleared_away_does_not_hide_why_the_save_failed() {
    let contents = contents();
    let inner = Place::new();
    let store = FaultStore::new(Arc::clone(inner.store()));
    store.fail(Op::Write, 0, Fault::Before);
    store.fail(Op::Rollback, 0, Fault::Before);
    let place = Place::of(store);
    let outcomes = save(group(RANKS), states(&contents), place.url(), |_, s| s);
    let (step, causes) = told(outcomes.iter().map(|o| o.as_ref().err()));
    assert_eq!(step, "write");
    assert!(
        causes.values().all(|c| c.contains("write to")),
        "{causes:?}"
    );
    assert!(inner.files().is_empty(), "nothing is visible");
    assert_eq!(inner.leftovers(), 1, "and the rest can be found");
}

#[test]
fn a_place_that_is_taken_is_refused_on_all_ranks() {
    let contents = contents();
    let place = sound(&contents);
    let before = place.files();
    let outcomes = save(group(RANKS), states(&contents), place.url(), |_, s| s);
    let (step, causes) = told(outcomes.iter().map(|o| o.as_ref().err()));
    assert_eq!((step, causes.len()), ("begin", 1));
    assert!(
        outcomes
            .iter()
            .all(|o| o.as_ref().unwrap_err().kind() == ErrorKind::Exists)
    );
    assert_eq!((place.files(), place.leftovers()), (before, 0));
}

#[test]
fn a_call_that_fails_fails_the_load_on_all_ranks_and_gives_the_templates_back() {
    let contents = contents();
    let sound = sound(&contents);
    let cut = contents.columns(RANKS);
    for op in [Op::Read, Op::ReadRanges, Op::ReadInto, Op::Head, Op::List] {
        for fault in [Fault::Before, Fault::Short, Fault::After] {
            for nth in 0.. {
                let place = faulty(&sound, op, nth, fault);
                let (templates, watches) = templates(&contents);
                let outcomes = load(group(RANKS), templates, place.url(), |_, l| l);
                if outcomes.iter().all(Result::is_ok) {
                    for (r, outcome) in (0..).zip(outcomes) {
                        contents.check(&cut, r, RANKS, &outcome.unwrap().0);
                    }
                    break;
                }
                let errors: Vec<_> = outcomes
                    .into_iter()
                    .map(|o| o.map(drop).unwrap_err())
                    .collect();
                let (_, causes) = told(errors.iter().map(|e| Some(e.error())));
                assert_eq!(causes.len(), 1, "{op:?} {nth} {fault:?}: {causes:?}");
                drop(errors);
                watches.iter().for_each(Watch::check_back);
            }
        }
    }
}

#[test]
fn a_flipped_bit_is_never_loaded() {
    let contents = contents();
    let sound = sound(&contents);
    let cut = contents.rows(RANKS);
    let (mut found, mut harmless) = (0, 0);
    for op in [Op::Read, Op::ReadRanges, Op::ReadInto] {
        for nth in 0..8 {
            let place = faulty(&sound, op, nth, Fault::FlippedBit);
            // The same cut as was saved, so that every item is read whole and checked.
            let templates = (0..RANKS)
                .map(|r| {
                    contents
                        .template(&cut, r, RANKS, Dialect::Megatron, &mut Choices::of([0]))
                        .0
                })
                .collect();
            for (r, outcome) in (0..).zip(load(group(RANKS), templates, place.url(), |_, l| l)) {
                match outcome {
                    Ok((plain, _)) => {
                        contents.check(&cut, r, RANKS, &plain);
                        harmless += 1;
                    }
                    Err(_) => found += 1,
                }
            }
        }
    }
    assert!(found > 0 && harmless > 0, "{found} {harmless}");
}

#[test]
fn damage_at_rest_is_found_by_verify_and_by_loads() {
    let contents = contents();
    let sound = sound(&contents);
    let cut = contents.rows(RANKS);
    for (name, bytes) in sound.files() {
        for part in 0..16 {
            let mut damaged = bytes.to_vec();
            let at = bytes.len() * part / 16;
            damaged[at] ^= 0x04;
            let store = MemoryStore::new();
            for (n, b) in sound.files() {
                store.put(n, b);
            }
            store.put(name.clone(), damaged.into());
            let place = Place::of(store);
            let templates = (0..RANKS)
                .map(|r| {
                    contents
                        .template(&cut, r, RANKS, Dialect::Megatron, &mut Choices::of([0]))
                        .0
                })
                .collect();
            for (r, outcome) in (0..).zip(load(group(RANKS), templates, place.url(), |_, l| l)) {
                if let Ok((plain, _)) = outcome {
                    contents.check(&cut, r, RANKS, &plain);
                }
            }
        }
    }
}

#[test]
fn on_disk_a_failed_save_leaves_neither_the_place_nor_its_stage() {
    let contents = contents();
    let dir = tempfile::tempdir().unwrap();
    let local =
        reshard::storage::LocalStore::open(&dir.path().join("ckpt").display().to_string()).unwrap();
    let local: Arc<dyn Store> = Arc::new(local);
    for (op, nth) in [(Op::Write, 0), (Op::Write, 2), (Op::Commit, 0)] {
        let store = FaultStore::new(Arc::clone(&local));
        store.fail(op, nth, Fault::Before);
        let place = Place::of(store);
        let outcomes = save(group(RANKS), states(&contents), place.url(), |_, s| s);
        assert!(outcomes.iter().all(Result::is_err), "{op:?}");
        assert_eq!(
            std::fs::read_dir(dir.path()).unwrap().count(),
            0,
            "{op:?} {nth}"
        );
    }
}

/// Elements that are made while they are written; which threads asked for them is noted, and the first one of another thread
/// than the first thread's gets a fault.
struct OnThreads {
    seen: Arc<Seen>,
    faulty: bool,
}

#[derive(Default)]
struct Seen {
    threads: Mutex<BTreeSet<String>>,
    more: Condvar,
}

impl TensorSource for OnThreads {
    fn dtype(&self) -> DType {
        DType::UInt8
    }

    fn shape(&self) -> Dims {
        [1 << 20].into()
    }

    fn read(&self, _: &Region, out: &mut [u8]) -> Result<(), BoxError> {
        let me = format!("{:?}", thread::current().id());
        let mut seen = self.seen.threads.lock().unwrap();
        if seen.insert(me) {
            self.seen.more.notify_all();
        }
        if self.faulty && seen.len() > 1 {
            return Err("a fault on the second thread".into());
        }
        // Until another thread has taken a file of its own; there is one, unless something is wrong.
        let patience = std::time::Duration::from_secs(300);
        drop(
            self.seen
                .more
                .wait_timeout_while(seen, patience, |seen| seen.len() < 2),
        );
        out.fill(1);
        Ok(())
    }
}

#[test]
fn a_fault_on_one_of_several_writer_threads_fails_the_save_on_all_ranks_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let run = |place: &str, faulty: bool| {
        let seen = Arc::new(Seen::default());
        let state = |rank: u32| {
            let mut state = StateDict::new();
            for i in 0..8u64 {
                let region = Region::new([u64::from(rank) << 20], [1 << 20]);
                let key = format!("w{i}");
                let leaf = ShardedTensor::region_of(&key, DType::UInt8, &[3 << 20], region);
                let source = OnThreads {
                    seen: Arc::clone(&seen),
                    faulty: faulty && rank == 1,
                };
                state.insert(key, leaf.with_data(Data::Lazy(Arc::new(source))));
            }
            state
        };
        let url = dir.path().join(place).display().to_string();
        let states = (0..RANKS).map(state).collect();
        let outcomes = save(group(RANKS), states, &url, |_, s| {
            s.strategy(TorchDistConfig::new().with_files_per_rank(4))
                .durability(Durability::Process)
        });
        (outcomes, seen.threads.lock().unwrap().len())
    };
    let (outcomes, threads) = run("faulty", true);
    assert!(threads > 1, "one thread wrote all");
    let (step, causes) = told(outcomes.iter().map(|o| o.as_ref().err()));
    assert_eq!(
        (step, causes.keys().copied().collect::<Vec<_>>()),
        ("write", vec![1])
    );
    assert!(
        causes[&1].contains("a fault on the second thread"),
        "{causes:?}"
    );
    assert_eq!(
        std::fs::read_dir(dir.path()).unwrap().count(),
        0,
        "neither a checkpoint nor a transaction is left"
    );

    // The same without a fault.
    let (outcomes, _) = run("sound", false);
    outcomes.into_iter().for_each(|o| drop(o.unwrap()));
    let files = std::fs::read_dir(dir.path().join("sound")).unwrap();
    let data = files.filter(|f| {
        f.as_ref()
            .unwrap()
            .path()
            .extension()
            .is_some_and(|e| e == "distcp")
    });
    assert_eq!(
        data.count(),
        4 * RANKS as usize,
        "as many files as asked for"
    );
}

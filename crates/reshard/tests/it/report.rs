//! What a load tells of itself.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use futures::{executor::block_on, future::join_all};
use reshard::{
    DType, ErrorKind, LoadError, LoadReport, LocalGroup, Phase, Region, ShardedTensor, StateDict,
    Tensor, ValueTree,
    model::FlatStateDict,
    plan::{DefaultLoadPlanner, Destination, LoadContext, LoadPlan, LoadPlanner, ReadItem},
    storage::LocalStore,
};
use reshard_model::testkit::Events;
use reshard_storage::testkit::{Fault, FaultStore, Op};
use std::{
    future::IntoFuture as _,
    sync::{Arc, Mutex},
    thread::sleep,
    time::{Duration, Instant},
};
use tempfile::TempDir;

/// Two ranks save half of a tensor each.
fn saved() -> (TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    let url = dir.path().join("ckpt").display().to_string();
    let groups = LocalGroup::new(2);
    let states: Vec<StateDict> = (0..2u64)
        .map(|rank| {
            let rows = Tensor::from_vec(&[512, 8], vec![rank as f32; 4096]).unwrap();
            let mut state = StateDict::new();
            state.insert(
                "w",
                ShardedTensor::from_rank_offsets("w", rows, &[(0, rank, 2)]).unwrap(),
            );
            state.insert("step", 7);
            state
        })
        .collect();
    let saves = groups.iter().zip(&states).map(|(group, state)| {
        let save = reshard::save(state, &url).group(group);
        async { save.await }
    });
    block_on(join_all(saves))
        .into_iter()
        .for_each(|saved| drop(saved.unwrap()));
    (dir, url)
}

fn load(url: &str, templates: Vec<StateDict>) -> Vec<Result<(ValueTree, LoadReport), LoadError>> {
    let groups = LocalGroup::new(templates.len() as u32);
    let loads = groups.iter().zip(templates);
    block_on(join_all(loads.map(|(group, template)| {
        reshard::load(template, url).group(group).with_report()
    })))
}

fn rows(from: u64, rows: u64) -> StateDict {
    let mut template = StateDict::new();
    let region = Region::new([from, 0], [rows, 8]);
    template.insert(
        "w",
        ShardedTensor::region_of("w", DType::Float32, &[1024, 8], region),
    );
    template
}

#[test]
fn the_report_of_a_load_says_what_each_rank_read_of_which_files() {
    let (_dir, url) = saved();
    let loaded = load(&url, vec![rows(0, 512), rows(256, 768)]);
    let reports: Vec<LoadReport> = loaded.into_iter().map(|l| l.unwrap().1).collect();
    let beside = [".metadata", "common.pt", "metadata.json"];
    let names = |r: &LoadReport| r.opened.iter().cloned().collect::<Vec<_>>();
    assert_eq!(
        names(&reports[0]),
        [&beside[..1], &["__0_0.distcp"], &beside[1..]].concat()
    );
    assert_eq!(
        names(&reports[1]),
        [
            &beside[..1],
            &["__0_0.distcp", "__1_0.distcp"],
            &beside[1..]
        ]
        .concat()
    );
    assert_eq!(reports[0].ranks, reports[1].ranks);
    assert_eq!(reports[0].files(), 9);
    for (r, rows) in reports.iter().zip([512, 768]) {
        assert_eq!(r.totals.needed, rows * 32);
    }
    // Each is read once.
    let small = [".metadata", "common.pt", "metadata.json"]
        .map(|f| std::fs::metadata(format!("{url}/{f}")).unwrap().len())
        .iter()
        .sum::<u64>();
    let expected = reports
        .iter()
        .map(|r| small + r.totals.bytes + r.totals.beside);
    assert_eq!(
        reports[0].ranks.iter().map(|r| r.bytes).collect::<Vec<_>>(),
        expected.collect::<Vec<_>>()
    );
    let most = reports[0].ranks[1].bytes as f64;
    assert!((reports[0].imbalance() - 2.0 * most / reports[0].bytes() as f64).abs() < 1e-9);
    assert!(reports[0].metadata.tensor("w").is_some());
}

/// Sleeps in one phase, and keeps the time for how long.
#[derive(Debug)]
struct Slow {
    phase: Phase,
    slept: Arc<Mutex<Duration>>,
}

impl Slow {
    fn sleep_in(&self, phase: Phase) {
        if phase == self.phase {
            let before = Instant::now();
            sleep(Duration::from_millis(300));
            *self.slept.lock().unwrap() += before.elapsed();
        }
    }
}

impl LoadPlanner for Slow {
    fn base(&self) -> &dyn LoadPlanner {
        &DefaultLoadPlanner::DEFAULT
    }

    fn create_local_plan(
        &self,
        template: &FlatStateDict,
        cx: &LoadContext<'_>,
    ) -> reshard::plan::Result<LoadPlan> {
        self.sleep_in(Phase::Plan);
        self.base().create_local_plan(template, cx)
    }

    fn lookup_tensor(&self, item: &ReadItem) -> reshard::plan::Result<Destination> {
        self.sleep_in(Phase::Read);
        self.base().lookup_tensor(item)
    }
}

#[test]
fn planning_counts_as_planning_and_reading_as_reading() {
    let (_dir, url) = saved();
    for phase in [Phase::Plan, Phase::Read] {
        let slept = Arc::new(Mutex::new(Duration::ZERO));
        let before = Instant::now();
        let load = reshard::load(rows(0, 512), &url).planner(Slow {
            phase,
            slept: Arc::clone(&slept),
        });
        let (_, report) = block_on(load.with_report()).unwrap();
        // A busy machine makes any phase long. But what was slept is in its own phase; and no time is in two of them, so it is in
        // no other.
        let (slept, all) = (*slept.lock().unwrap(), before.elapsed());
        assert!(
            slept > Duration::ZERO && report.time(phase) >= slept,
            "{phase:?}, slept {slept:?}: {report:?}"
        );
        let sum: Duration = [Phase::Plan, Phase::Read, Phase::Finish]
            .map(|phase| report.time(phase))
            .iter()
            .sum();
        assert!(sum <= all, "{sum:?} of {all:?}: {report:?}");
    }
}

#[test]
fn a_rank_whose_state_does_not_fit_the_common_state_fails_the_load_of_all() {
    let (_dir, url) = saved();
    let mut clash = StateDict::new();
    clash.insert_tree("step", rows(0, 4));
    let loaded = load(&url, vec![rows(0, 4), clash]);
    for (rank, outcome) in loaded.into_iter().enumerate() {
        let Err(error) = outcome else {
            panic!("rank {rank} went on")
        };
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.to_string().contains("rank 1"), "{error}");
        let (_, template) = error.into_parts();
        assert!(template.get("w").or_else(|| template.get("step")).is_some());
    }
}

/// Of an event: the act, the phase, the rank, and the error if it has one.
type Told = (String, String, u32, Option<String>);

/// What ranks told of the phases of what `f` does, sorted by rank.
fn told<T>(f: impl FnOnce() -> T) -> (T, Vec<Told>) {
    let (out, text) = Events::only(tracing::Level::INFO).of(f);
    let of = |event: &str| {
        let field = |name: &str| {
            let (_, rest) = event.split_once(&format!("{name}="))?;
            Some(rest.trim_start_matches('"').split('"').next()?.to_owned())
        };
        let rank = field("rank")?.split(' ').next()?.parse().ok()?;
        let act = event.split('"').next()?.to_owned();
        // It is the last field, and may have quotes.
        let error = event
            .split_once("error=")
            .map(|(_, error)| error.to_owned());
        Some((act, field("phase")?, rank, error))
    };
    let mut all: Vec<Told> = text.split("act=\"").filter_map(of).collect();
    all.sort_by_key(|(_, _, rank, _)| *rank);
    (out, all)
}

/// Whether an event is of this act, phase and rank, with an error that says so, or without one.
fn is(event: &Told, (act, phase, rank): (&str, &str, u32), error: Option<&str>) -> bool {
    let same = match (&event.3, error) {
        (Some(found), Some(error)) => found.contains(error),
        (found, error) => found.is_none() && error.is_none(),
    };
    (&*event.0, &*event.1, event.2) == (act, phase, rank) && same
}

/// These events and no others; each has a phase, and the error of it.
fn are(told: &[Told], act: &str, phases: [&[(&str, Option<&str>)]; 2]) {
    let all = (0..).zip(phases).flat_map(|(rank, phases)| {
        phases
            .iter()
            .map(move |(phase, error)| (rank, *phase, *error))
    });
    let all: Vec<_> = all.collect();
    assert_eq!(told.len(), all.len(), "{told:#?}");
    for (event, (rank, phase, error)) in told.iter().zip(all) {
        assert!(is(event, (act, phase, rank), error), "{event:?}: {told:#?}");
    }
}

/// Two ranks save into a place of which some calls of one rank fail.
fn save_with(op: Op, rank: usize) -> Vec<Told> {
    let dir = tempfile::tempdir().unwrap();
    let url = dir.path().join("ckpt").display().to_string();
    let states = [0, 1].map(|rank: u64| {
        let rows = Tensor::from_vec(&[4, 2], vec![rank as f32; 8]).unwrap();
        let leaf = ShardedTensor::from_rank_offsets("w", rows, &[(0, rank, 2)]).unwrap();
        let mut state = StateDict::new();
        state.insert("w", leaf);
        state
    });
    let stores = [0, 1].map(|_| FaultStore::new(Arc::new(LocalStore::open(&url).unwrap())));
    stores[rank].fail(op, 0, Fault::Before);
    let groups = LocalGroup::new(2);
    let (saved, told) = told(|| {
        let saves = groups.iter().zip(&states).zip(stores);
        block_on(join_all(saves.map(|((group, state), store)| {
            let save = reshard::save(state, &url).group(group);
            save.store(Arc::new(store)).into_future()
        })))
    });
    assert!(saved.iter().all(Result::is_err), "{saved:?}");
    told
}

#[test]
fn each_rank_tells_in_which_phase_a_save_failed_and_why() {
    let failed = Some("write to");
    let heard = Some("rank 1");
    are(
        &save_with(Op::Write, 1),
        "save",
        [
            &[("plan", None), ("write", None), ("commit", heard)],
            &[("plan", None), ("write", failed), ("commit", failed)],
        ],
    );
    let (failed, heard) = (Some("commit"), Some("rank 0"));
    are(
        &save_with(Op::Commit, 0),
        "save",
        [
            &[("plan", None), ("write", None), ("commit", failed)],
            &[("plan", None), ("write", None), ("commit", heard)],
        ],
    );
    let failed = Some("begin");
    are(
        &save_with(Op::Begin, 0),
        "save",
        [&[("plan", failed)], &[("plan", failed)]],
    );
}

#[test]
fn each_rank_tells_in_which_phase_a_load_failed_and_why() {
    let (dir, url) = saved();
    let mut missing = rows(0, 4);
    missing.insert(
        "x",
        ShardedTensor::template("nowhere", DType::Float32, &[2]),
    );
    let (_, events) = told(|| load(&url, vec![rows(0, 4), missing]));
    let plan: &[_] = &[("plan", Some("nowhere"))];
    are(&events, "load", [plan, plan]);

    // The second rank reads what is damaged.
    let file = dir.path().join("ckpt/__1_0.distcp");
    let mut bytes = std::fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    let (loaded, events) = told(|| load(&url, vec![rows(0, 4), rows(512, 512)]));
    assert!(loaded.iter().all(Result::is_err));
    let read: &[_] = &[("plan", None), ("read", Some("rank 1"))];
    are(&events, "load", [read, read]);

    let mut clash = StateDict::new();
    clash.insert_tree("step", rows(0, 4));
    let (_, events) = told(|| load(&url, vec![rows(0, 4), clash]));
    let finish: &[_] = &[("plan", None), ("read", None), ("finish", Some("rank 1"))];
    are(&events, "load", [finish, finish]);
}

#[test]
fn the_metadata_of_a_save_is_on_the_ranks_that_ask_for_it() {
    for on_all in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let url = dir.path().join("ckpt").display().to_string();
        let (groups, state) = (LocalGroup::new(2), StateDict::new());
        let mut states = [state.clone(), state];
        for (rank, state) in (0..2u64).zip(&mut states) {
            let rows = Tensor::from_vec(&[2, 3], vec![rank as f32; 6]).unwrap();
            let piece = ShardedTensor::from_rank_offsets("w", rows, &[(0, rank, 2)]).unwrap();
            state.insert("w", piece);
        }
        let saves = groups.iter().zip(&states).map(|(group, state)| {
            let save = reshard::save(state, &url).group(group);
            save.metadata_on_all_ranks(on_all).into_future()
        });
        let reports = block_on(join_all(saves)).into_iter().map(Result::unwrap);
        let metadata: Vec<_> = reports.map(|report| report.metadata).collect();
        let first = metadata[0].as_ref().unwrap();
        assert_eq!(first.tensor("w").unwrap().chunks().count(), 2);
        match on_all {
            true => assert_eq!(metadata[0], metadata[1]),
            false => assert!(metadata[1].is_none()),
        }
    }
}

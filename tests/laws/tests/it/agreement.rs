//! Ranks that pass different options all get the same error, which names the option, the ranks and the values; nothing is saved or loaded.

use futures::executor::block_on;
use proptest::prelude::*;
use reshard::{
    AsyncCallsQueue, AsyncSaver, Cast, CommonForm, DType, Dialect, Durability, ErrorKind,
    KeptLoadPlan, KeptPlan, Load, LoadError, LocalGroup, ProcessGroup, Rank, Save, ShardedTensor,
    Staging, StateDict, StoredCommon, StrictHandling, Tensor,
    megatron::TorchCommon,
    model::Path,
    plan::{DefaultLoadPlanner, DefaultSavePlanner},
    policy::MaxShardSize,
    safetensors::{SafetensorsConfig, SafetensorsLoadConfig},
    strategy::{ReadLimits, SaveShardedStrategy},
    tensor_bundle::TensorBundleConfig,
    torch_dist::TorchDistConfig,
    torch_save::TorchSaveConfig,
    zarr::{Zarr3Config, ZarrConfig},
};
use reshard_comm::testkit::on_ranks;
use reshard_laws::law;
use std::{collections::BTreeMap, fs, path, sync::Arc, time::Duration};

fn formats() -> [SaveShardedStrategy; 6] {
    [
        TorchDistConfig::new().into(),
        TorchSaveConfig::default().into(),
        SafetensorsConfig::default().into(),
        ZarrConfig::default().into(),
        Zarr3Config::default().into(),
        TensorBundleConfig::default().into(),
    ]
}

type SetSave = for<'a> fn(Save<'a>) -> Save<'a>;
type SetLoad = for<'a> fn(Load<'a>) -> Load<'a>;

/// Each option of a save that must agree, with another value than the default. Formats and dialects are added by the law.
const SAVE: &[(&str, SetSave)] = &[
    ("coordinator", |s| s.coordinator(Rank(1))),
    ("common_strategy", |s| s.common_strategy(TorchCommon)),
    ("common_form", |s| s.common_form(CommonForm::Object)),
    ("content_metadata", |s| s.content_metadata("other")),
    ("stored_common", |s| {
        s.stored_common(StoredCommon::new(CommonForm::File, 1.into()))
    }),
    ("empty_dicts", |s| s.empty_dicts([Path(vec!["e".into()])])),
    ("planner", |s| s.planner(DefaultSavePlanner::DCP)),
    ("policy", |s| s.policy(MaxShardSize::new(1 << 20))),
    ("max_slices", |s| s.max_slices(99)),
    ("max_files", |s| s.max_files(99)),
    ("overwrite", |s| s.overwrite(true)),
    ("durability", |s| s.durability(Durability::Machine)),
    ("rank_local", |s| s.rank_local(true)),
    ("coordinators_plain_tensors", |s| {
        s.coordinators_plain_tensors(true)
    }),
    ("validate_access_integrity", |s| {
        s.validate_access_integrity(false)
    }),
    ("check_replicas", |s| s.check_replicas(true)),
    ("flatten", |s| s.flatten(false)),
    ("compare_common", |s| s.compare_common(false)),
    ("integrity", |s| s.integrity(true)),
];

/// Options of a save that ranks may pass differently.
const SAVE_MAY: &[SetSave] = &[
    |s| s.deadline(Duration::from_secs(99)),
    |s| s.warn_after(Duration::from_secs(99)),
    |s| s.exchange_memory(1 << 20),
    |s| s.progress(|_| ()),
    |s| s.kept_plan(&Arc::new(KeptPlan::new())),
    |s| s.staging(Staging::Share),
    |s| s.preprocess_common_before_consistency_check(|_| ()),
    |s| s.before_commit(|| async { Ok(()) }),
    |s| s.registry(reshard::Registry::linked().unwrap()),
    |s| s.stores(reshard::Stores::linked().unwrap()),
];

const LOAD: &[(&str, SetLoad)] = &[
    ("coordinator", |l| l.coordinator(Rank(1))),
    ("strategy", |l| l.strategy(SafetensorsLoadConfig::default())),
    ("format", |l| l.format("torch_save".parse().unwrap())),
    ("planner", |l| l.planner(DefaultLoadPlanner::DEFAULT)),
    ("cast", |l| l.cast(Cast::Any)),
    ("strict", |l| l.strict(StrictHandling::IgnoreAll)),
    ("verify", |l| l.verify(false)),
    ("verify_integrity", |l| l.verify_integrity(true)),
];

const LOAD_MAY: &[SetLoad] = &[
    |l| l.deadline(Duration::from_secs(99)),
    |l| l.warn_after(Duration::from_secs(99)),
    |l| l.exchange_memory(1 << 20),
    |l| l.copy_ahead(1 << 20),
    |l| l.progress(|_| ()),
    |l| l.kept_plan(&Arc::new(KeptLoadPlan::new())),
    |l| l.limits(ReadLimits::default()),
    |l| l.registry(reshard::Registry::linked().unwrap()),
    |l| l.stores(reshard::Stores::linked().unwrap()),
];

/// Row `rank` of a tensor with one row per rank.
fn row(rank: Rank) -> StateDict {
    let row = Tensor::from_vec(&[1, 4], vec![rank.0 as f32; 4]).unwrap();
    let row = ShardedTensor::from_rank_offsets("w", row, &[(0, rank.0.into(), 2)]).unwrap();
    let mut state = StateDict::new();
    state.insert("w", row);
    state
}

fn template() -> StateDict {
    let mut template = StateDict::new();
    template.insert("w", ShardedTensor::template("w", DType::Float32, &[2, 4]));
    template
}

#[derive(Clone, Copy, Debug)]
enum Entry {
    Awaited,
    AsyncSaver,
    Queue,
}

/// Two ranks save, each to its URL with its options. Returns their errors.
fn save(
    entry: Entry,
    urls: [String; 2],
    set: impl for<'a> Fn(Rank, Save<'a>) -> Save<'a> + Send + Sync + 'static,
) -> Vec<Result<(), reshard::Error>> {
    let set = Arc::new(set);
    let ranks = LocalGroup::new(2).into_iter().zip(urls).collect();
    on_ranks(ranks, move |(group, url): (LocalGroup, String)| {
        let set = Arc::clone(&set);
        async move {
            let rank = group.rank();
            let state = row(rank);
            let save = reshard::save(&state, &url).durability(Durability::Process);
            let save = set(rank, save);
            match entry {
                Entry::Awaited => save.group(&group).await.map(drop),
                Entry::AsyncSaver => {
                    let mut saver = AsyncSaver::new(&group).await.unwrap();
                    let saved = match saver.start(save).await {
                        Ok(handle) => handle.finish().await.map(drop),
                        Err(e) => Err(e),
                    };
                    saver.close().await.unwrap();
                    saved
                }
                Entry::Queue => {
                    let mut queue = AsyncCallsQueue::new(&group).await.unwrap();
                    match queue.request(save).await {
                        Ok(request) => {
                            queue.schedule(request).unwrap();
                            queue.close(false).await.map(drop)
                        }
                        Err(e) => Err(e),
                    }
                }
            }
        }
    })
}

fn load(
    urls: [String; 2],
    set: impl for<'a> Fn(Rank, Load<'a>) -> Load<'a> + Send + Sync + 'static,
) -> Vec<Result<Vec<f32>, LoadError>> {
    let set = Arc::new(set);
    let ranks = LocalGroup::new(2).into_iter().zip(urls).collect();
    on_ranks(ranks, move |(group, url): (LocalGroup, String)| {
        let set = Arc::clone(&set);
        async move {
            let load = reshard::load(template(), &url).group(&group);
            let loaded = set(group.rank(), load).await?;
            Ok(loaded.tensor("w").unwrap().to_vec().unwrap())
        }
    })
}

/// Every rank got the same error, which names the option with one value for each rank.
fn all_name<E: std::fmt::Display>(
    option: &str,
    outcomes: impl IntoIterator<Item = (ErrorKind, E)>,
) -> String {
    let mut errors = outcomes.into_iter().map(|(kind, e)| {
        let e = e.to_string();
        assert_eq!(kind, ErrorKind::Invalid, "{e}");
        let (_, what) = e.split_once(": ranks have different options").unwrap();
        what.to_owned()
    });
    let first = errors.next().unwrap();
    errors.for_each(|e| assert_eq!(e, first));
    let line = first
        .lines()
        .find(|line| line.starts_with(&format!("  `{option}`: rank 0 has ")));
    let line = line.unwrap_or_else(|| panic!("{option} is not named: {first}"));
    let (zero, one) = line.split_once(", rank 1 has ").unwrap();
    assert_ne!(zero.split_once(" has ").unwrap().1, one);
    first
}

fn refused(option: &str, saved: Vec<Result<(), reshard::Error>>) -> String {
    let errors = saved.into_iter().map(|s| s.unwrap_err());
    all_name(option, errors.map(|e| (e.kind(), e)))
}

fn files(dir: &path::Path) -> usize {
    fs::read_dir(dir).unwrap().count()
}

/// The option that is set on one rank only, in a save to a format.
fn difference(
    format: usize,
    option: usize,
    at: Rank,
) -> (
    &'static str,
    impl for<'a> Fn(Rank, Save<'a>) -> Save<'a> + Send + Sync + 'static,
) {
    let name = match option.checked_sub(SAVE.len()) {
        None => SAVE[option].0,
        Some(0) => "strategy",
        Some(_) => "dialect",
    };
    let set = on_each(move |rank, save| {
        let [mut formats, others] = [formats(), formats()];
        let config = std::mem::replace(&mut formats[format], TorchDistConfig::new().into());
        if rank != at {
            return save.strategy(config);
        }
        match name {
            "strategy" => {
                let mut others = Vec::from(others);
                save.strategy(others.remove((format + 1) % others.len()))
            }
            "dialect" => {
                let can = config.capabilities();
                let usual = match can.saves(Dialect::Megatron) {
                    true => Dialect::Megatron,
                    false => can.dialects[0],
                };
                let other = Dialect::ALL.iter().find(|d| **d != usual).unwrap();
                save.strategy(config).dialect(*other)
            }
            _ => SAVE[option].1(save.strategy(config)),
        }
    });
    (name, set)
}

/// Helps to infer the lifetimes of a closure.
fn on_each<F>(set: F) -> F
where
    F: for<'a> Fn(Rank, Save<'a>) -> Save<'a> + Send + Sync + 'static,
{
    set
}

proptest! {
    #![proptest_config(law(180))]

    #[test]
    fn a_save_whose_ranks_pass_different_options_fails_on_all_of_them(
        format in 0..formats().len(), option in 0..SAVE.len() + 2, at in 0u32..2, elsewhere: bool,
        entry in prop_oneof![Just(Entry::Awaited), Just(Entry::AsyncSaver), Just(Entry::Queue)],
    ) {
        let dir = tempfile::tempdir().unwrap();
        let url = |name: &str| dir.path().join(name).display().to_string();
        let (name, set) = difference(format, option, Rank(at));
        // The coordinator of a queue is that of the queue.
        prop_assume!(name != "coordinator" || !matches!(entry, Entry::Queue));
        let urls = [url("a"), url(if elsewhere { "b" } else { "a" })];
        let what = refused(name, save(entry, urls, set));
        prop_assert_eq!(what.contains("`place`"), elsewhere, "{}", what);
        prop_assert_eq!(files(dir.path()), 0);
    }

    #[test]
    fn a_save_may_differ_in_the_rest(format in 0..formats().len(), option in 0..SAVE_MAY.len(), at in 0u32..2) {
        let dir = tempfile::tempdir().unwrap();
        let url = dir.path().join("a").display().to_string();
        let saved = save(Entry::Awaited, [url.clone(), url], move |rank, save| {
            let mut formats = Vec::from(formats());
            let save = save.strategy(formats.remove(format));
            if rank == Rank(at) { SAVE_MAY[option](save) } else { save }
        });
        saved.into_iter().for_each(|saved| saved.unwrap());
    }

    #[test]
    fn a_load_whose_ranks_pass_different_options_fails_on_all_of_them(
        format in 0..formats().len(), option in 0..=LOAD.len(), at in 0u32..2, other_exists: bool,
    ) {
        let dir = tempfile::tempdir().unwrap();
        let url = |name: &str| dir.path().join(name).display().to_string();
        for name in ["a", "b"].iter().take(1 + usize::from(other_exists)) {
            let saved = save(Entry::Awaited, [url(name), url(name)], move |_, save| {
                save.strategy(Vec::from(formats()).remove(format))
            });
            saved.into_iter().for_each(|saved| saved.unwrap());
        }
        let (name, urls) = match LOAD.get(option) {
            Some((name, _)) => (*name, [url("a"), url("a")]),
            None => ("place", [url("a"), url("b")]),
        };
        let loaded = load(urls, move |rank, load| match LOAD.get(option) {
            Some((_, set)) if rank == Rank(at) => set(load),
            _ => load,
        });
        let errors = loaded.into_iter().map(|loaded| loaded.unwrap_err());
        all_name(name, errors.map(|e| (e.error().kind(), e)));
    }

    #[test]
    fn a_load_may_differ_in_the_rest(format in 0..formats().len(), option in 0..LOAD_MAY.len(), at in 0u32..2) {
        let dir = tempfile::tempdir().unwrap();
        let url = dir.path().join("a").display().to_string();
        let saved = save(Entry::Awaited, [url.clone(), url.clone()], move |_, save| {
            save.strategy(Vec::from(formats()).remove(format))
        });
        saved.into_iter().for_each(|saved| saved.unwrap());
        let loaded = load([url.clone(), url], move |rank, load| {
            if rank == Rank(at) { LOAD_MAY[option](load) } else { load }
        });
        for loaded in loaded {
            prop_assert_eq!(loaded.unwrap(), [0., 0., 0., 0., 1., 1., 1., 1.]);
        }
    }
}

#[test]
fn a_local_path_is_made_absolute_and_its_links_are_not_resolved() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    fs::create_dir(dir.join("real")).unwrap();
    std::os::unix::fs::symlink("real", dir.join("link")).unwrap();
    let text = |name: &str| format!("{}/{name}", dir.display());
    let what = save(Entry::Awaited, [text("real/x"), text("link/x")], |_, s| s);
    let what = refused("place", what);
    assert!(
        what.contains("/real/x, rank 1 has file:///") && what.ends_with("/link/x"),
        "{what}"
    );
    let same = [text("real/./x"), format!("file://{}", text("real/x"))];
    let saved = save(Entry::Awaited, same, |_, s| s);
    saved.into_iter().for_each(|saved| saved.unwrap());
}

#[test]
fn only_rank_local_ranks_may_have_different_places() {
    let dir = tempfile::tempdir().unwrap();
    let url = |name: &str| dir.path().join(name).display().to_string();
    let places = || [url("a"), url("b")];
    for saved in save(Entry::Awaited, places(), |_, save| save.rank_local(true)) {
        saved.unwrap();
    }
    let what = save(Entry::Awaited, places(), |rank, save| {
        save.rank_local(true).overwrite(rank == Rank(1))
    });
    let what = refused("overwrite", what);
    assert!(what.contains("`place`"), "{what}");

    // Each rank reads its own copy.
    fs::create_dir(url("b")).unwrap();
    for file in fs::read_dir(url("a")).unwrap() {
        let file = file.unwrap();
        fs::copy(
            file.path(),
            path::Path::new(&url("b")).join(file.file_name()),
        )
        .unwrap();
    }
    for loaded in load(places(), |_, load| load) {
        assert_eq!(loaded.unwrap(), [0., 0., 0., 0., 1., 1., 1., 1.]);
    }
    let loaded = load(places(), |rank, load| load.verify(rank == Rank(0)));
    let errors = loaded.into_iter().map(|loaded| loaded.unwrap_err());
    all_name("verify", errors.map(|e| (e.error().kind(), e)));
}

#[test]
fn a_group_goes_on_after_its_ranks_disagreed() {
    let dir = tempfile::tempdir().unwrap();
    let url = dir.path().join("a").display().to_string();
    let groups = LocalGroup::new(3);
    let all = |odd: bool| -> BTreeMap<u32, Result<(), String>> {
        std::thread::scope(|scope| {
            let ranks = groups.iter().map(|group| {
                let url = &url;
                scope.spawn(move || {
                    let rank = group.rank();
                    let mut state = StateDict::new();
                    state.insert("step", 1);
                    let save = reshard::save(&state, url).group(group);
                    let save = save.overwrite(odd && rank == Rank(1));
                    let saved = block_on(async { save.await });
                    (rank.0, saved.map(drop).map_err(|e| e.to_string()))
                })
            });
            let ranks: Vec<_> = ranks.collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        })
    };
    for (_, e) in all(true) {
        let e = e.unwrap_err();
        let line = "`overwrite`: ranks 0, 2 have false, rank 1 has true";
        assert!(e.contains(line), "{e}");
    }
    assert!(all(false).into_values().all(|saved| saved == Ok(())));
}

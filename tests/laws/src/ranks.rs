//! Saves and loads on ranks that are threads of this process. A rank that hangs for a minute fails the test.

use crate::place::stores;
use reshard::{
    Load, LoadError, LoadReport, LocalGroup, ProcessGroup, Rank, Result, Save, SaveReport,
    StateDict, ValueTree,
    strategy::{StrategyError, testkit::Moved},
};
use reshard_comm::testkit::try_on_ranks;
use std::{collections::BTreeMap, sync::Arc, thread};

/// The ranks of a group, as whatever transport.
pub type Groups = Vec<Arc<dyn ProcessGroup>>;

/// A new group of this process.
pub fn group(ranks: u32) -> Groups {
    LocalGroup::new(ranks)
        .into_iter()
        .map(|g| Arc::new(g) as Arc<dyn ProcessGroup>)
        .collect()
}

/// What a rank of a load gets.
pub type Loaded = Result<(ValueTree, LoadReport), LoadError>;

/// Each of `groups` saves its state with the options that `set` adds.
pub fn save(
    groups: Groups,
    states: Vec<StateDict>,
    url: &str,
    set: impl for<'a> Fn(Rank, Save<'a>) -> Save<'a> + Send + Sync + 'static,
) -> Vec<Result<SaveReport>> {
    whole(try_save(groups, states, url, set))
}

/// [`save`] where ranks may panic.
pub fn try_save(
    groups: Groups,
    states: Vec<StateDict>,
    url: &str,
    set: impl for<'a> Fn(Rank, Save<'a>) -> Save<'a> + Send + Sync + 'static,
) -> Vec<thread::Result<Result<SaveReport>>> {
    assert_eq!(groups.len(), states.len());
    let (url, set): (Arc<str>, _) = (url.into(), Arc::new(set));
    try_on_ranks(
        groups.into_iter().zip(states).collect(),
        move |(group, state)| {
            let (url, set) = (Arc::clone(&url), Arc::clone(&set));
            async move {
                set(
                    group.rank(),
                    reshard::save(&state, &*url).group(&*group).stores(stores()),
                )
                .await
            }
        },
    )
}

/// Each of `groups` loads its template with the options that `set` adds. A load that succeeds has told all of its progress, unless `set` watches it.
pub fn load(
    groups: Groups,
    templates: Vec<StateDict>,
    url: &str,
    set: impl for<'a> Fn(Rank, Load<'a>) -> Load<'a> + Send + Sync + 'static,
) -> Vec<Loaded> {
    whole(try_load(groups, templates, url, set))
}

/// [`load`] where ranks may panic.
pub fn try_load(
    groups: Groups,
    templates: Vec<StateDict>,
    url: &str,
    set: impl for<'a> Fn(Rank, Load<'a>) -> Load<'a> + Send + Sync + 'static,
) -> Vec<thread::Result<Loaded>> {
    assert_eq!(groups.len(), templates.len());
    let (url, set): (Arc<str>, _) = (url.into(), Arc::new(set));
    try_on_ranks(
        groups.into_iter().zip(templates).collect(),
        move |(group, template)| {
            let (url, set) = (Arc::clone(&url), Arc::clone(&set));
            async move {
                let moved = Moved::default();
                let load = reshard::load(template, &*url)
                    .group(&*group)
                    .stores(stores())
                    .progress(moved.tell());
                let loaded = set(group.rank(), load).with_report().await;
                if loaded.is_ok() {
                    moved.check();
                }
                loaded
            }
        },
    )
}

fn whole<T>(outcomes: Vec<thread::Result<T>>) -> Vec<T> {
    outcomes
        .into_iter()
        .map(|o| o.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        .collect()
}

/// What every rank was told of a failure: the step, and the cause of each rank that failed.
///
/// # Panics
/// When a rank went on, or was told something else than the others.
pub fn told<'e>(
    errors: impl IntoIterator<Item = Option<&'e reshard::Error>>,
) -> (&'static str, BTreeMap<u32, String>) {
    let mut all = errors.into_iter().map(|e| {
        let e = e.unwrap_or_else(|| panic!("a rank went on where another failed"));
        match e.strategy_error() {
            StrategyError::Comm(reshard::comm::CommError::Ranks { step, causes }) => (
                *step,
                causes
                    .iter()
                    .map(|(r, c)| (r.0, c.to_string()))
                    .collect::<BTreeMap<_, _>>(),
            ),
            other => panic!("a rank was not told who failed, but: {other}"),
        }
    });
    let first = all.next().unwrap();
    for other in all {
        assert_eq!(other, first, "ranks were told different things");
    }
    first
}

/// The message that every rank got because ranks passed different options.
///
/// # Panics
/// When a rank went on, or got something else than the others.
pub fn disagreed<'e>(errors: impl IntoIterator<Item = Option<&'e reshard::Error>>) -> String {
    let mut all = errors.into_iter().map(|e| {
        let e = e.unwrap_or_else(|| panic!("a rank went on where another failed"));
        match e.strategy_error() {
            StrategyError::Invalid(what) if what.contains("different options") => what.clone(),
            other => panic!("a rank got another error: {other}"),
        }
    });
    let first = all.next().unwrap();
    all.for_each(|other| assert_eq!(other, first, "ranks got different errors"));
    first
}

//! The options of saves and loads on which all ranks must agree, and those that may differ.

use reshard_storage::{Store, without_secrets};
use serde::Serialize;
use std::{fmt, fmt::Debug, sync::Arc};

/// The option that ranks of rank-local checkpoints may pass differently.
pub(crate) const PLACE: &str = "place";

/// Whether ranks may pass an option differently.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Rule {
    /// All ranks pass the same, or all of them fail.
    Agree,
    /// As [`Agree`](Self::Agree), except that ranks of rank-local checkpoints may differ.
    AgreeUnlessRankLocal,
    /// Each rank may pass its own.
    Differ,
    /// The call has no such option.
    Absent,
}

/// An option of saves or loads.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(not(test), expect(dead_code, reason = "the table is checked by tests"))]
pub(crate) struct OptionRule {
    /// The name, as in errors. Methods with other names set the same option.
    name: &'static str,
    other_methods: &'static [&'static str],
    save: Rule,
    load: Rule,
    /// Why it may differ, or what is compared.
    note: &'static str,
}

const fn option(name: &'static str, save: Rule, load: Rule, note: &'static str) -> OptionRule {
    OptionRule {
        name,
        other_methods: &[],
        save,
        load,
        note,
    }
}

impl OptionRule {
    const fn also(self, other_methods: &'static [&'static str]) -> Self {
        Self {
            other_methods,
            ..self
        }
    }
}

use Rule::{Absent, Agree, AgreeUnlessRankLocal, Differ};

/// Every option of [`Save`](crate::Save) and [`Load`](crate::Load). `docs/ranks.md` shows this table.
///
/// The options that must agree are listed in the order in which they are compared.
#[cfg_attr(not(test), expect(dead_code, reason = "the table is checked by tests"))]
pub(crate) const OPTIONS: &[OptionRule] = &[
    option(
        PLACE,
        AgreeUnlessRankLocal,
        AgreeUnlessRankLocal,
        "the URL; a local path is made absolute, and its links are not resolved",
    ),
    option("coordinator", Agree, Agree, ""),
    option(
        "strategy",
        Agree,
        Agree,
        "the format with all its settings, and wrappers around it",
    )
    .also(&["boxed_strategy"]),
    option("format", Absent, Agree, ""),
    option("dialect", Agree, Absent, ""),
    option("common_strategy", Agree, Absent, "the name"),
    option("common_form", Agree, Absent, ""),
    option("content_metadata", Agree, Absent, ""),
    option("stored_common", Agree, Absent, ""),
    option("empty_dicts", Agree, Absent, ""),
    option(
        "planner",
        Agree,
        Agree,
        "the type, and `plan_settings` if the planner has any",
    ),
    option("cast", Absent, Agree, ""),
    option("strict", Absent, Agree, ""),
    option("verify", Absent, Agree, ""),
    option("verify_integrity", Absent, Agree, ""),
    option("policy", Agree, Absent, "the type with all its settings").also(&["boxed_policy"]),
    option("max_slices", Agree, Absent, ""),
    option("max_files", Agree, Absent, ""),
    option("overwrite", Agree, Absent, ""),
    option("dry_run", Agree, Absent, ""),
    option("durability", Agree, Absent, ""),
    option("rank_local", Agree, Absent, ""),
    option("coordinators_plain_tensors", Agree, Absent, ""),
    option("validate_access_integrity", Agree, Absent, ""),
    option("check_replicas", Agree, Absent, ""),
    option("flatten", Agree, Absent, ""),
    option("compare_common", Agree, Absent, ""),
    option("integrity", Agree, Absent, ""),
    option("start", Agree, Absent, "whether the save is asynchronous"),
    option(
        "group",
        Differ,
        Differ,
        "each rank passes its handle of the group",
    ),
    option(
        "sub_group",
        Differ,
        Differ,
        "each rank passes the sub-group that it is in",
    ),
    option("deadline", Differ, Differ, "how long this rank waits"),
    option("warn_after", Differ, Differ, "what this rank logs"),
    option(
        "stateful",
        Differ,
        Differ,
        "part of the state, which is each rank's own",
    ),
    option("exchange_memory", Differ, Differ, "memory of this rank"),
    option("copy_ahead", Absent, Differ, "memory of this rank"),
    option("limits", Absent, Differ, "memory of this rank"),
    option("staging", Differ, Absent, "memory of this rank"),
    option("stager", Differ, Absent, "memory of this rank"),
    option("kept_plan", Differ, Differ, "each rank passes its own"),
    option("note", Differ, Absent, "the coordinator's are written"),
    option("progress", Differ, Differ, "a callback"),
    option("before_commit", Differ, Absent, "a callback"),
    option(
        "preprocess_common_before_consistency_check",
        Differ,
        Absent,
        "a callback",
    ),
    option(
        "registry",
        Differ,
        Differ,
        "the strategy that it finds is compared",
    ),
    option(
        "stores",
        Differ,
        Differ,
        "the place that it opens is compared",
    )
    .also(&["store"]),
];

/// The place as ranks compare it: the URL of the open store, or the text that the caller gave if it can't be opened.
pub(crate) fn place_of(store: Option<&Arc<dyn Store>>, url: &str) -> String {
    let url = store.map_or_else(|| without_secrets(url).into_owned(), |store| store.url());
    url.trim_end_matches('/').to_owned()
}

/// Settings with their type, as configuration has them.
pub(crate) fn settings_of(settings: &(impl Serialize + Debug + ?Sized)) -> String {
    serde_json::to_string(settings).unwrap_or_else(|_| format!("{settings:?}"))
}

/// The type of a planner, with its settings if it has any.
pub(crate) fn planner_of(name: &str, settings: Option<String>) -> String {
    match settings {
        Some(settings) => format!("{name} ({settings})"),
        None => name.to_owned(),
    }
}

/// The value of an option, or that it was not set.
pub(crate) fn or_default(value: Option<impl fmt::Display>) -> String {
    value.map_or_else(|| "the default".to_owned(), |value| value.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use reshard_comm::Rank;
    use std::collections::BTreeSet;

    const PAGE: &str = include_str!("../../../docs/ranks.md");

    impl Rule {
        fn is_compared(self) -> bool {
            matches!(self, Agree | AgreeUnlessRankLocal)
        }

        fn cell(self) -> &'static str {
            match self {
                Agree => "must agree",
                AgreeUnlessRankLocal => "must agree, unless rank-local",
                Differ => "may differ",
                Absent => "",
            }
        }
    }

    /// The names of options that a call must compare.
    fn compared(rule: fn(&OptionRule) -> Rule) -> Vec<&'static str> {
        let compared = OPTIONS.iter().filter(|option| rule(option).is_compared());
        let names = compared.map(|option| option.name);
        ["version of reshard"].into_iter().chain(names).collect()
    }

    #[test]
    fn saves_and_loads_compare_the_options_of_the_table() {
        let state = crate::StateDict::new();
        let save = crate::save(&state, "x").options.agreed(Rank(0), None);
        assert_eq!(
            save.names().collect::<Vec<_>>(),
            compared(|option| option.save)
        );
        let load = crate::load(crate::StateDict::new(), "x");
        let load = load.options.agreed(Rank(0), None);
        assert_eq!(
            load.names().collect::<Vec<_>>(),
            compared(|option| option.load)
        );
    }

    #[test]
    fn the_table_has_every_option() {
        let sources = [
            include_str!("save/builder.rs"),
            include_str!("load.rs"),
            include_str!("ranks.rs"),
            include_str!("opened.rs"),
        ];
        let is_option = |line: &&str| line.contains("(mut self") || line.contains("(self, ");
        let methods = sources
            .iter()
            .flat_map(|source| source.lines())
            .filter(is_option)
            .filter_map(|line| {
                line.trim()
                    .strip_prefix("pub fn ")?
                    .split(['(', '<'])
                    .next()
            });
        let of_table = |option: &'static OptionRule| {
            let others = option.other_methods.iter().copied();
            [option.name].into_iter().chain(others)
        };
        let of_table: BTreeSet<&str> = OPTIONS.iter().flat_map(of_table).collect();
        let missing: Vec<&str> = methods.filter(|m| !of_table.contains(m)).collect();
        assert_eq!(missing, [""; 0]);
    }

    #[test]
    fn the_page_shows_the_table() {
        let row = |option: &OptionRule| {
            let others = option.other_methods.iter();
            let names: Vec<String> = [&option.name]
                .into_iter()
                .chain(others)
                .map(|name| format!("`{name}`"))
                .collect();
            let (save, load) = (option.save.cell(), option.load.cell());
            let names = names.join(", ");
            format!("| {names} | {save} | {load} | {} |\n", option.note)
        };
        let rows: String = OPTIONS.iter().map(row).collect();
        let table = format!("| option | save | load | |\n| --- | --- | --- | --- |\n{rows}\n");
        assert!(
            PAGE.contains(&table),
            "docs/ranks.md must have this table:\n{table}"
        );
    }
}

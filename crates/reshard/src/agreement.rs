//! Values of options as ranks compare them. `docs/ranks.md` lists the options on which all ranks must agree.

use reshard_storage::{Store, without_secrets};
use serde::Serialize;
use std::{fmt, fmt::Debug, sync::Arc};

/// The option that ranks of rank-local checkpoints may pass differently.
pub(crate) const PLACE: &str = "place";

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
    use reshard_comm::Rank;
    use std::collections::BTreeSet;

    /// A row of the table of options: its names, and the rules for saves and loads.
    struct Row {
        names: Vec<&'static str>,
        save: &'static str,
        load: &'static str,
    }

    /// The table of `docs/ranks.md`. The options that must agree are in the order in which they are compared.
    fn table() -> Vec<Row> {
        let page = include_str!("../../../docs/ranks.md");
        let (_, table) = page
            .split_once("| option | save | load | |\n| --- | --- | --- | --- |\n")
            .expect("docs/ranks.md has the table of options");
        let row = |line: &'static str| {
            let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
            let [names, save, load, _] = cells[..] else {
                panic!("{line}")
            };
            let names = names.split(", ").map(|name| name.trim_matches('`'));
            let known = [
                "must agree",
                "must agree, unless rank-local",
                "may differ",
                "",
            ];
            assert!(known.contains(&save) && known.contains(&load), "{line}");
            Row {
                names: names.collect(),
                save,
                load,
            }
        };
        table
            .lines()
            .take_while(|line| !line.is_empty())
            .map(row)
            .collect()
    }

    /// The names of options that a call must compare.
    fn compared(rule: fn(&Row) -> &'static str) -> Vec<&'static str> {
        let table = table();
        let compared = table
            .iter()
            .filter(|row| rule(row).starts_with("must agree"));
        let names = compared.map(|row| row.names[0]);
        ["version of reshard"].into_iter().chain(names).collect()
    }

    #[test]
    fn saves_and_loads_compare_the_options_of_the_table() {
        let state = crate::StateDict::new();
        let save = crate::save(&state, "x").options.agreed(Rank(0), None);
        assert_eq!(save.names().collect::<Vec<_>>(), compared(|row| row.save));
        let load = crate::load(crate::StateDict::new(), "x");
        let load = load.options.agreed(Rank(0), None);
        assert_eq!(load.names().collect::<Vec<_>>(), compared(|row| row.load));
    }

    #[test]
    fn the_table_has_every_option() {
        let sources = [
            include_str!("save/builder.rs"),
            include_str!("load.rs"),
            include_str!("ranks.rs"),
            include_str!("../../reshard-open/src/opened.rs"),
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
        let of_table: BTreeSet<&str> = table().into_iter().flat_map(|row| row.names).collect();
        let missing: Vec<&str> = methods.filter(|m| !of_table.contains(m)).collect();
        assert_eq!(missing, [""; 0]);
    }
}

//! The guide to stores says what the suite does.

use std::collections::BTreeSet;

const GUIDE: &str = include_str!("../../../docs/stores.md");

/// The rules that `store_contract` runs, each with new places.
fn rules() -> BTreeSet<String> {
    let contract = include_str!("../src/testkit/contract.rs");
    let calls = contract.match_indices("(make()").map(|(at, _)| {
        let begin = contract[..at]
            .rfind(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
            .map_or(0, |before| before + 1);
        contract[begin..at].to_owned()
    });
    calls.filter(|rule| rule != "are_side_by_side").collect()
}

#[test]
fn the_guide_to_stores_names_every_rule_of_the_suite_and_no_other() {
    let begin = GUIDE.find("## What `store_contract` checks").unwrap();
    let rows = GUIDE[begin..].lines().filter_map(|line| {
        let (rule, _) = line.strip_prefix("| `")?.split_once("` |")?;
        Some(rule.to_owned())
    });
    let (told, run) = (rows.collect::<BTreeSet<_>>(), rules());
    assert!(run.len() > 25, "{run:?}");
    assert_eq!(told, run);
}

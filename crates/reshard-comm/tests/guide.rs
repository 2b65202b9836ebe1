//! The guide to process groups says what the suite does.

use std::collections::BTreeSet;

const GUIDE: &str = include_str!("../../../docs/process-groups.md");

/// The rules of the suite.
fn rules() -> BTreeSet<&'static str> {
    let contract = include_str!("../src/testkit/contract.rs");
    let (_, list) = contract.split_once("= rules! {").unwrap();
    let (list, _) = list.split_once("};").unwrap();
    let words = list.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    words.filter(|word| word.contains('_')).collect()
}

#[test]
fn the_guide_to_process_groups_names_every_rule_of_the_suite_and_no_other() {
    let begin = GUIDE.find("## What the suite checks").unwrap();
    let rows = GUIDE[begin..].lines().filter_map(|line| {
        let (rule, _) = line.strip_prefix("| `")?.split_once("` |")?;
        Some(rule)
    });
    let (told, run) = (rows.collect::<BTreeSet<_>>(), rules());
    assert!(run.len() > 15, "{run:?}");
    assert_eq!(told, run);
}

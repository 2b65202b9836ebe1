//! The guide to process groups says what the suite does.

use std::collections::BTreeSet;

const GUIDE: &str = include_str!("../../../docs/process-groups.md");
const CONTRACT: &str = include_str!("../src/testkit/contract.rs");

#[test]
fn the_guide_to_process_groups_names_every_rule_of_the_suite_and_no_other() {
    let (_, list) = CONTRACT.split_once("= rules! {").unwrap();
    let (list, _) = list.split_once("};").unwrap();
    let words = list.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    let run: BTreeSet<_> = words.filter(|word| word.contains('_')).collect();

    let (_, told) = GUIDE.split_once("## What the suite checks").unwrap();
    let rows = told.lines().filter_map(|line| {
        let (rule, _) = line.strip_prefix("| `")?.split_once("` |")?;
        Some(rule)
    });
    assert!(run.len() > 15, "{run:?}");
    assert_eq!(rows.collect::<BTreeSet<_>>(), run);
}

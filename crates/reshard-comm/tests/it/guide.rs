//! The guide to process groups says what the suite does.

use std::collections::BTreeSet;

const GUIDE: &str = include_str!("../../../../docs/process-groups.md");
const CONTRACT: &str = include_str!("../../src/testkit/contract.rs");

#[test]
fn the_guide_to_process_groups_names_every_rule_of_the_suite_and_no_other() {
    let (_, list) = CONTRACT.split_once("= rules! {").unwrap();
    let (list, _) = list.split_once("};").unwrap();
    // `all_to_all_is_a_transpose at "ProcessGroup::all_to_all"`, and so on.
    let run: BTreeSet<_> = list
        .split(" at \"")
        .zip(list.split(" at \"").skip(1))
        .filter_map(|(before, at)| {
            let name = before.rsplit(char::is_whitespace).next()?;
            Some((name, at.split_once('"')?.0))
        })
        .collect();

    let (_, told) = GUIDE.split_once("## What the suite checks").unwrap();
    let rows = told.lines().filter_map(|line| {
        let (name, rest) = line.strip_prefix("| `")?.split_once("` | `")?;
        Some((name, rest.split_once("` |")?.0))
    });
    assert!(run.len() > 15, "{run:?}");
    assert_eq!(rows.collect::<BTreeSet<_>>(), run);
}

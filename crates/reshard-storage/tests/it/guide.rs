//! The guide to stores says what the suite does.

use std::collections::BTreeSet;

const GUIDE: &str = include_str!("../../../../docs/stores.md");
const CONTRACT: &str = include_str!("../../src/testkit/contract.rs");

/// The text between two quotation marks, where a piece of source begins with the first.
fn quoted(text: &str) -> Option<&str> {
    Some(text.strip_prefix('"')?.split_once('"')?.0)
}

#[test]
fn the_guide_to_stores_names_every_rule_of_the_suite_and_no_other() {
    // `"reads.ranges_are_exact" at "Store::read": …`, and `rule("writes.copies", "Source::CopyOf")`.
    let lines = CONTRACT.lines().map(str::trim);
    let run: BTreeSet<_> = lines
        .filter_map(|line| {
            let listed = line.split_once(" at ").map(|(_, at)| (line, at));
            let called = line
                .strip_prefix("rule(")
                .and_then(|of| Some((of, of.split_once(", ")?.1)));
            let (name, written) = listed.or(called)?;
            Some((quoted(name)?, quoted(written)?))
        })
        .collect();

    let (_, told) = GUIDE.split_once("## What `store_contract` checks").unwrap();
    let rows = told.lines().filter_map(|line| {
        let (name, rest) = line.strip_prefix("| `")?.split_once("` | `")?;
        Some((name, rest.split_once("` |")?.0))
    });
    assert!(run.len() > 25, "{run:?}");
    assert_eq!(rows.collect::<BTreeSet<_>>(), run);
}

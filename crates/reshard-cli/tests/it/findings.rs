//! More findings than are listed.

use crate::{
    handmade::Item,
    limits::{made, sound},
    run,
};

#[test]
fn findings_that_are_not_listed_count_for_every_command() {
    // Each of these is one finding, with a key of 200 kB. After them comes one that is not listed.
    let long = |n: u32| format!("a{n:03}{}", "k".repeat(200_000));
    let mut items: Vec<Item> = (0..100)
        .map(|n| Item::tensor(&long(n), &[1], b"no archive".to_vec()))
        .collect();
    let mut last = sound("z", 3 << 20, false);
    let middle = last.stored.len() / 2;
    last.stored[middle] ^= 1;
    items.extend([last, sound("zz", 4, false)]);
    let made = made(&items);

    let (code, j) = made.verified(&[]);
    assert_eq!((code, &j["status"]), (1, &"damaged".into()));
    let listed = j["damage"].as_array().unwrap();
    let more = j["not_listed"]["damage"].as_u64().unwrap();
    assert_eq!(listed.len() as u64 + more, 101);
    assert!(
        (80..90).contains(&listed.len()),
        "{} are listed",
        listed.len()
    );
    assert!(listed.iter().all(|d| d["key"] != "z"));
    let ran = run(&["verify", &made.url]);
    assert_eq!(ran.code, 1);
    let said = format!("and {more} more that are not listed\n");
    assert!(ran.out.contains(&said), "{}", ran.out.len());
    assert!(ran.err.starts_with("101 problems in "), "{}", ran.err);

    // It is larger than a block, so nothing but the check tells that its elements are wrong.
    let ran = run(&["digest", &made.url, "--key", "z*"]);
    assert_eq!(ran.code, 1);
    assert!(ran.out.ends_with("  zz\n") && ran.out.lines().count() == 1);
    assert!(ran.err.contains("no digest of z: "), "{}", ran.err);
    let to = made.beside("to");
    let ran = run(&["convert", &made.url, &to, "--key", "z"]);
    assert_eq!(ran.code, 1, "{}", ran.err);
    assert!(
        ran.err.contains("z") && ran.err.contains("CRC-32") && !std::path::Path::new(&to).exists(),
        "{}",
        ran.err
    );
    assert_eq!(run(&["convert", &made.url, &to, "--key", "zz"]).code, 0);
}

#[test]
fn what_a_check_finds_of_places_is_counted_by_inspect_and_stops_prune() {
    let long = |n: u32| format!("{n:03}{}", "k".repeat(200_000));
    let items: Vec<Item> = (0..100)
        .map(|n| Item::object(&long(n), vec![0]).without_place())
        .collect();
    let made = made(&items);
    let ran = run(&["inspect", &made.url, "--json", "--summary"]);
    let j: serde_json::Value = serde_json::from_str(&ran.damaged()).unwrap();
    let listed = j["problems"].as_array().unwrap().len() as u64;
    let more = j["not_listed"]["problems"].as_u64().unwrap();
    assert!(more > 0 && listed + more == 100, "{listed} and {more}");
    let out = run(&["inspect", &made.url, "--summary"]).damaged();
    assert!(out.contains("100 problems") && out.contains("and 95 more"));
    assert_eq!(run(&["prune", &made.url, "--dry-run"]).code, 1);
}

//! The examples of the page on mapping files.

use reshard_map::MapFile;

#[test]
fn every_example_of_the_page_is_a_map() {
    let page = include_str!("../../../../docs/mapping.md");
    let examples: Vec<&str> = page
        .split("```toml\n")
        .skip(1)
        .filter_map(|rest| rest.split("```").next())
        .collect();
    assert!(examples.len() > 15);
    for example in examples {
        MapFile::parse(example).unwrap_or_else(|e| panic!("{e}\n{example}"));
    }
}

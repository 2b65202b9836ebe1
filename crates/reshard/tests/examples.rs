//! The examples do what they say.

#[path = "../examples/another_split.rs"]
mod another_split;
#[path = "../examples/planner.rs"]
mod planner;
#[path = "../examples/policy.rs"]
mod policy;
#[path = "../examples/read_a_region.rs"]
mod read_a_region;
#[path = "../examples/save_and_load.rs"]
mod save_and_load;

#[test]
fn every_example_runs() {
    another_split::main().unwrap();
    planner::main().unwrap();
    policy::main().unwrap();
    read_a_region::first_row(read_a_region::GOLDEN, None).unwrap();
    save_and_load::main().unwrap();
}

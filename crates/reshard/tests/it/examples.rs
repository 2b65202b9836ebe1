//! The examples do what they say.

#[path = "../../examples/another_split.rs"]
mod another_split;
#[path = "../../examples/foreign_checkpoint.rs"]
mod foreign_checkpoint;
#[path = "../../examples/fsdp_4_to_2.rs"]
mod fsdp_4_to_2;
#[path = "../../examples/plan_alone.rs"]
mod plan_alone;
#[path = "../../examples/planner.rs"]
mod planner;
#[path = "../../examples/policy.rs"]
mod policy;
#[path = "../../examples/read_a_region.rs"]
mod read_a_region;
#[path = "../../examples/save_and_load.rs"]
mod save_and_load;

#[test]
fn every_example_runs() {
    another_split::main().unwrap();
    planner::main().unwrap();
    policy::main().unwrap();
    read_a_region::first_row(read_a_region::GOLDEN, None).unwrap();
    save_and_load::main().unwrap();
}

#[test]
fn a_job_of_fsdp_on_4_ranks_goes_on_on_2() {
    fsdp_4_to_2::main().unwrap();
}

#[test]
fn a_checkpoint_of_another_program_is_told_and_read_as_f32() {
    let show = foreign_checkpoint::show;
    let corner = show(foreign_checkpoint::FSDP, Some("model.0.weight")).unwrap();
    assert_eq!(corner.len(), 4);
    let missing = show(foreign_checkpoint::FSDP, Some("model.9.weight")).unwrap_err();
    assert!(missing.to_string().contains("model.9.weight"), "{missing}");
    show(foreign_checkpoint::FSDP, None).unwrap();
}

#[test]
fn a_save_of_1000_ranks_is_planned_without_data() {
    plan_alone::main().unwrap();
}

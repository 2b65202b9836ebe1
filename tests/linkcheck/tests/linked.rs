//! One line of `Cargo.toml` is enough.

#[test]
fn a_program_that_names_only_the_facade_has_all_that_is_built_in() {
    let mut linked = reshard_linkcheck::linked().unwrap();
    // Tests of other crates, built together with this one, switch on the store of reshard-storage's testkit, and places in clouds.
    linked.retain(|name| !name.ends_with("://") || name == "file://");
    assert_eq!(
        linked,
        [
            "save_sharded of safetensors/1",
            "save_sharded of tensor_bundle/2",
            "save_sharded of torch_dist/1",
            "save_sharded of torch_save/1",
            "save_sharded of zarr/1",
            "save_sharded of zarr3/1",
            "load_sharded of rank_files/1",
            "load_sharded of safetensors/1",
            "load_sharded of tensor_bundle/2",
            "load_sharded of torch_dist/1",
            "load_sharded of torch_save/1",
            "load_sharded of zarr/1",
            "load_sharded of zarr3/1",
            "save_common of torch/1",
            "load_common of torch/1",
            "file://",
        ]
    );
}

#[test]
fn all_of_it_comes_from_crates_of_reshard() {
    for r in reshard::Registry::linked().unwrap().iter() {
        assert!(
            r.origin.starts_with("reshard-") && !r.origin_version.is_empty(),
            "{r:?}"
        );
    }
}

//! What a failure leaves of a group.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use futures::{executor::block_on, future::join_all};
use reshard::{DType, LocalGroup, Region, ShardedTensor, StateDict, Tensor};

/// The state of a rank that has rows `from` and `from + 1` of six.
fn rows(from: u64) -> StateDict {
    let mut state = StateDict::new();
    let region = Region::new([from, 0], [2, 4]);
    let leaf = ShardedTensor::region_of("w", DType::Float32, &[6, 4], region);
    state.insert(
        "w",
        leaf.with_data(Tensor::from_vec(&[2, 4], vec![1f32; 8]).unwrap()),
    );
    state
}

#[test]
fn a_save_that_fails_while_it_is_planned_leaves_the_group_usable() {
    let home = tempfile::tempdir().unwrap();
    let url = home.path().join("step").display().to_string();
    let groups = LocalGroup::new(3);
    let save = |from: [u64; 3]| {
        let states = from.map(rows);
        let saves = groups.iter().zip(&states).map(|(group, state)| {
            let save = reshard::save(state, &url).group(group);
            async { save.await.map(drop).map_err(|e| e.to_string()) }
        });
        block_on(join_all(saves))
    };
    // Rows 2 and 3 are nobody's.
    let failed = save([0, 4, 0]);
    assert!(
        failed
            .iter()
            .all(|e| e.as_ref().is_err_and(|e| e.contains("w"))),
        "{failed:?}"
    );
    assert_eq!(save([0, 2, 4]), [Ok(()), Ok(()), Ok(())]);
}

//! Causes of errors that beginners meet are named.
#![cfg(all(feature = "torch-dist", feature = "local"))]
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use futures::{executor::block_on, future::join_all};
use reshard::{DType, Dialect, LocalGroup, Region, ShardedTensor, StateDict, Tensor, blocking};
use std::{future::IntoFuture, time::Duration};

fn half(rank: u64) -> StateDict {
    let region = Region::new([rank], [1]);
    let leaf = ShardedTensor::region_of("w", DType::Float32, &[2], region);
    let mut state = StateDict::new();
    let data = Tensor::from_vec(&[1], vec![rank as f32]).unwrap();
    state.insert("w", leaf.with_data(data));
    state
}

#[test]
fn a_rank_that_saves_alone_is_asked_for_its_group() {
    for dialect in [Dialect::Megatron, Dialect::Dcp] {
        let home = tempfile::tempdir().unwrap();
        let state = half(0);
        let save = reshard::save(&state, home.path().join("x")).dialect(dialect);
        let e = blocking::run(save).unwrap_err().to_string();
        assert!(e.contains("w: "), "{e}");
        assert!(
            e.contains("only one rank saves: if other ranks of the job hold the rest"),
            "{e}"
        );
        assert!(e.contains("`.group(…)`"), "{e}");
    }
}

#[test]
fn two_ranks_without_a_group_are_asked_for_it() {
    let home = tempfile::tempdir().unwrap();
    let mut state = StateDict::new();
    let data = Tensor::from_vec(&[1], vec![1f32]).unwrap();
    state.insert("w", ShardedTensor::full("w", data));
    let save = || blocking::run(reshard::save(&state, home.path().join("x")));
    save().unwrap();
    let e = save().unwrap_err().to_string();
    assert!(
        e.contains("if another rank of this job has just saved it"),
        "{e}"
    );
    assert!(e.contains("`.overwrite(true)`"), "{e}");
}

#[test]
fn full_on_several_ranks_is_told_to_be_replicated() {
    let home = tempfile::tempdir().unwrap();
    let mut state = StateDict::new();
    let data = Tensor::from_vec(&[2], vec![1f32, 2.]).unwrap();
    state.insert("w", ShardedTensor::full("w", data));
    let groups = LocalGroup::new(2);
    let saves = groups.iter().map(|group| {
        reshard::save(&state, home.path().join("x"))
            .group(group)
            .dialect(Dialect::Megatron)
            .into_future()
    });
    for outcome in block_on(join_all(saves)) {
        let e = outcome.unwrap_err().to_string();
        assert!(
            e.contains("`ShardedTensor::replicated(key, data, rank)` in place of `full`"),
            "{e}"
        );
    }
}

#[test]
fn a_rank_that_never_comes_is_named() {
    let home = tempfile::tempdir().unwrap();
    let state = half(0);
    let groups = LocalGroup::new(2);
    let save = reshard::save(&state, home.path().join("x"))
        .group(&groups[0])
        .warn_after(Duration::from_millis(2))
        .deadline(Duration::from_millis(40));
    let e = blocking::run(save).unwrap_err().to_string();
    assert!(e.contains("no answer within 0.04 s from rank 1"), "{e}");
}

/// A plain tensor of Megatron's dialect lies in `common.pt`.
fn plain() -> StateDict {
    let mut state = StateDict::new();
    let weight = Tensor::from_vec(&[4], vec![1f32, 2., 3., 4.]).unwrap();
    state.insert("weight", weight);
    state.insert("step", 7);
    state
}

#[test]
fn the_report_of_a_save_counts_common_state_on_every_rank() {
    let home = tempfile::tempdir().unwrap();
    let (state, place) = (plain(), home.path().join("x"));
    let groups = LocalGroup::new(2);
    let saves = groups
        .iter()
        .map(|group| reshard::save(&state, &place).group(group).into_future());
    let bytes = || std::fs::metadata(place.join("common.pt")).unwrap().len();
    for report in block_on(join_all(saves)) {
        let report = report.unwrap();
        let names: Vec<&str> = report.common.iter().map(|f| f.name.as_str()).collect();
        assert_eq!((names, report.common_bytes()), (vec!["common.pt"], bytes()));
        assert_eq!((report.bytes(), report.files()), (0, 0));
        let told = report.to_string();
        assert!(
            told.starts_with("saved 0 bytes in 0 files, and ")
                && told.contains(" kB of common state in common.pt; "),
            "{told}"
        );
    }
    // No other dialect has any.
    let save = reshard::save(&state, home.path().join("y")).dialect(Dialect::Dcp);
    let report = blocking::run(save).unwrap();
    assert_eq!((report.common.len(), report.common_bytes()), (0, 0));
    assert!(!report.to_string().contains("common state"), "{report}");
}

#[test]
fn a_sharded_leaf_that_lies_in_common_state_is_told_so() {
    let home = tempfile::tempdir().unwrap();
    let place = home.path().join("x");
    blocking::save(&plain(), &place).unwrap();
    let template = |key: &str| {
        let mut template = StateDict::new();
        template.insert_piece(ShardedTensor::template(key, DType::Float32, &[4]));
        template
    };
    let wanted = "weight is not in the checkpoint as a sharded leaf: it is in the common state, as a plain tensor of shape [4]; \
                  load it as a plain leaf, or save it with `.dialect(Dialect::Dcp)` or as a sharded leaf";
    let e = blocking::load(template("weight"), &place).unwrap_err();
    assert!(e.to_string().contains(wanted), "{e}");
    assert_eq!(e.kind(), reshard::ErrorKind::NotFound);
    let e = blocking::load(template("step"), &place).unwrap_err();
    assert!(
        e.to_string()
            .contains("in the common state, as a value of type int"),
        "{e}"
    );
    let e = blocking::load(template("other"), &place).unwrap_err();
    assert!(
        e.to_string().contains("other is not in the checkpoint"),
        "{e}"
    );
    assert!(!e.to_string().contains("common state"), "{e}");

    // All ranks learn it.
    let groups = LocalGroup::new(2);
    let loads = groups.iter().map(|group| {
        reshard::load(template("weight"), &place)
            .group(group)
            .into_future()
    });
    for e in block_on(join_all(loads)) {
        let e = e.unwrap_err().to_string();
        assert!(e.contains(wanted), "{e}");
    }
}

#[test]
fn a_plain_leaf_of_a_tensor_that_is_stored_sharded_is_refused() {
    let home = tempfile::tempdir().unwrap();
    let place = home.path().join("x");
    let tensor = || Tensor::from_vec(&[4], vec![1f32; 4]).unwrap();
    let mut state = StateDict::new();
    state.insert_piece(ShardedTensor::full("weight", tensor()));
    state.insert("bias", tensor());
    blocking::save(&state, &place).unwrap();
    let mut template = StateDict::new();
    template.insert("bias", tensor());
    blocking::load(template.clone(), &place).unwrap();
    template.insert("weight", tensor());
    let e = blocking::load(template, &place).unwrap_err().to_string();
    assert!(
        e.contains("weight is a sharded tensor of shape [4], but the template has a plain tensor"),
        "{e}"
    );
    assert!(!e.contains("bias"), "{e}");
}

#[test]
fn an_error_that_ends_main_is_printed_as_its_message() {
    let home = tempfile::tempdir().unwrap();
    let nowhere = home.path().join("x");
    let e = blocking::Checkpoint::open(&nowhere).unwrap_err();
    assert_eq!(format!("{e:?}"), e.to_string());
    let e = blocking::load(StateDict::new(), &nowhere).unwrap_err();
    assert_eq!(format!("{e:?}"), e.to_string());
    let e = blocking::run(reshard_manager::prune(&nowhere)).unwrap_err();
    assert_eq!(format!("{e:?}"), e.to_string());

    // A cause that the message does not say follows it.
    blocking::save(&plain(), home.path().join("y")).unwrap();
    std::fs::write(home.path().join("y/.metadata"), b"no pickle").unwrap();
    let e = blocking::Checkpoint::open(home.path().join("y")).unwrap_err();
    let shown = format!("{e:?}");
    assert!(shown.starts_with(&e.to_string()), "{shown}");
    let mut cause = std::error::Error::source(&e);
    while let Some(e) = cause {
        assert!(shown.contains(&e.to_string()), "{shown}");
        cause = e.source();
    }
    assert!(!shown.contains(" { "), "{shown}");
}

#[test]
fn elements_that_an_int_type_does_not_hold_are_refused_and_not_wrapped() {
    let home = tempfile::tempdir().unwrap();
    let place = home.path().join("x");
    let mut state = StateDict::new();
    let ints = Tensor::from_vec(&[2, 2], vec![1i64, 2, 300, 4]).unwrap();
    state.insert_piece(ShardedTensor::full("ints", ints));
    let floats = Tensor::from_vec(&[2], vec![2.75f32, -1.]).unwrap();
    state.insert_piece(ShardedTensor::full("floats", floats));
    blocking::save(&state, &place).unwrap();
    let open = blocking::Checkpoint::open(&place).unwrap();
    let ints = open.tensor("ints").unwrap();
    let e = ints.read_as::<u8>(..).unwrap_err();
    assert_eq!(e.kind(), reshard::ErrorKind::Invalid);
    assert!(
        e.to_string()
            .contains("ints: element [1, 0] is 300, which uint8 can't hold"),
        "{e}"
    );
    assert_eq!(ints.read_as::<u8>(Region::rows(0..1)).unwrap(), [1, 2]);
    assert_eq!(ints.read_as::<i16>(..).unwrap(), [1, 2, 300, 4]);
    assert_eq!(ints.read_as::<f32>(..).unwrap(), [1., 2., 300., 4.]);
    let floats = open.tensor("floats").unwrap();
    assert_eq!(floats.read_as::<i8>(..).unwrap(), [2, -1]);
    assert!(floats.read_as::<u64>(..).is_err());

    let mut memory = [9i16; 6];
    ints.read_into(.., &mut memory[1..5]).unwrap();
    assert_eq!(memory, [9, 1, 2, 300, 4, 9]);
    let e = ints.read_into(.., &mut memory[..3]).unwrap_err();
    assert!(
        e.to_string().contains("does not have the 3 elements"),
        "{e}"
    );
    assert_eq!(memory, [9, 1, 2, 300, 4, 9]);
    let e = ints.read_into(.., &mut [0u8; 4]).unwrap_err();
    assert!(
        e.to_string().contains("is 300, which uint8 can't hold"),
        "{e}"
    );
    // A cast that is asked for wraps, as PyTorch's does.
    let all = open.tensor("ints").unwrap().read(..).unwrap();
    let wrapped = all.cast(DType::UInt8).unwrap().to_vec::<u8>().unwrap();
    assert_eq!(wrapped, [1, 2, 44, 4]);
}

#[test]
fn quantised_elements_are_not_read_as_numbers_of_another_type() {
    let home = tempfile::tempdir().unwrap();
    let place = home.path().join("x");
    let mut state = StateDict::new();
    let packed = Tensor::from_vec(&[2], vec![7i32, -7]).unwrap();
    state.insert_piece(ShardedTensor::full("q.qweight", packed));
    let scales = Tensor::from_vec(&[1], vec![0.5f32]).unwrap();
    state.insert_piece(ShardedTensor::full("q.scales", scales));
    blocking::save(&state, &place).unwrap();
    let open = blocking::Checkpoint::open(&place).unwrap();
    let weight = open.tensor("q.qweight").unwrap();
    // The first type holds each of its values, the second does not.
    let refused = [
        weight.read_as::<f64>(..).unwrap_err(),
        weight.read_as::<f32>(..).unwrap_err(),
    ];
    for e in refused {
        assert!(e.to_string().contains("its scale in q.scales"), "{e}");
    }
    assert_eq!(weight.read_as::<i32>(..).unwrap(), [7, -7]);
}

/// Larger than what is read at a time.
#[test]
fn memory_of_the_caller_gets_all_blocks_of_a_region_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let (rows, columns) = (7u64, 3 << 20);
    let data: Vec<u16> = (0..rows * columns)
        .map(|i| ((i * 40_503) >> 7) as u16)
        .collect();
    let mut state = StateDict::new();
    let tensor = Tensor::from_vec(&[rows, columns], data.clone()).unwrap();
    state.insert_piece(ShardedTensor::full("w", tensor));
    blocking::save(&state, dir.path()).unwrap();
    let checkpoint = blocking::Checkpoint::open(dir.path()).unwrap();
    let w = checkpoint.tensor("w").unwrap();
    let mut read = vec![0u16; data.len()];
    w.read_into(.., &mut read).unwrap();
    assert!(read == data);
    let part = Region::new([1, 5], [6, columns - 6]);
    let mut read = vec![0u16; (6 * (columns - 6)) as usize];
    w.read_into(part.clone(), &mut read).unwrap();
    assert!(read == w.read_as::<u16>(part).unwrap());
}

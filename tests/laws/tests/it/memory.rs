//! A checkpoint that is read with too little memory is not damaged.

use proptest::prelude::*;
use reshard::{
    Dialect, Durability, ErrorKind, OpenOptions, ReadLimits, ShardedObject, ShardedTensor,
    StateDict, Tensor,
    blocking::{self, Checkpoint},
    storage::Progress,
};
use reshard_laws::{
    formats::{FORMATS, Format, FormatPlace, format},
    law,
    place::stores,
};
use std::sync::LazyLock;

/// Saves a tensor of many rows, one of another type, many small ones, and objects where the format stores them.
fn saved(format: Format) -> FormatPlace {
    let place = format.place();
    let mut state = StateDict::new();
    let wide = Tensor::from_vec(&[300, 40], vec![1.5f32; 300 * 40]).unwrap();
    state.insert("wide", ShardedTensor::full("wide", wide));
    let ints = Tensor::from_vec(&[3000], (0..3000).collect::<Vec<i64>>()).unwrap();
    state.insert("ints", ShardedTensor::full("ints", ints));
    for n in 0..50 {
        let key = format!("layers.{n}.bias");
        let small = Tensor::from_vec(&[2], vec![n as f32; 2]).unwrap();
        state.insert(&*key, ShardedTensor::full(&key, small));
    }
    if format.stores_objects {
        let text = "text".repeat(2000);
        let object = ShardedObject::new("object", text.as_str(), &[1], &[0], 0).unwrap();
        state.insert("object", object);
    }
    let save = reshard::save(&state, place.url())
        .stores(stores())
        .dialect(Dialect::Dcp)
        .strategy(format.save_config())
        .durability(Durability::Process);
    blocking::run(save).unwrap();
    place
}

static PLACES: LazyLock<Vec<FormatPlace>> =
    LazyLock::new(|| FORMATS.into_iter().map(saved).collect());

/// Opens and verifies a checkpoint and reads everything in it, and returns the errors.
fn errors(url: &str, limits: ReadLimits) -> Vec<(ErrorKind, String)> {
    let mut found = Vec::new();
    let mut note = |e: reshard::Error| found.push((e.kind(), e.to_string()));
    let checkpoint =
        match Checkpoint::open_with(OpenOptions::new().stores(stores()).limits(limits), url) {
            Ok(checkpoint) => checkpoint,
            Err(e) => {
                note(e);
                return found;
            }
        };
    for tensor in checkpoint.tensors() {
        tensor.read(..).map(drop).unwrap_or_else(&mut note);
        let part = tensor.blocks(100).next().unwrap();
        tensor.read(part).map(drop).unwrap_or_else(&mut note);
    }
    for key in checkpoint.objects() {
        checkpoint.object(key).map(drop).unwrap_or_else(&mut note);
    }
    match checkpoint.verify(true, Progress::none()) {
        Ok(report) => {
            let damage = report.damage.into_iter();
            found.extend(damage.map(|found| (ErrorKind::Corrupt, found.what)));
            let rest = report.unchecked.into_iter().chain(report.not_understood);
            found.extend(rest.map(|found| (ErrorKind::Unsupported, found.what)));
            found.extend(
                report
                    .not_read
                    .into_iter()
                    .map(|found| (ErrorKind::Limit, found.what)),
            );
        }
        Err(e) => note(e),
    }
    found
}

/// From nothing to more than these checkpoints take, most of them small.
fn budget() -> impl Strategy<Value = u64> {
    (0..20u32).prop_flat_map(|bits| 0..1u64 << bits)
}

proptest! {
    #![proptest_config(law(60))]

    #[test]
    fn a_checkpoint_that_is_read_with_too_little_memory_is_not_damaged(
        format in format(), memory in budget(), whole in budget(), kept in budget(),
    ) {
        let number = FORMATS.iter().position(|f| *f == format).unwrap();
        let limits = ReadLimits::default()
            .with_max_memory(memory)
            .with_max_whole(whole)
            .with_max_kept(kept);
        for (kind, what) in errors(PLACES[number].url(), limits) {
            let blames = matches!(kind, ErrorKind::Corrupt | ErrorKind::NotFound | ErrorKind::Internal);
            prop_assert!(!blames, "{:?}: {:?}: {}", format, kind, what);
        }
    }
}

#[test]
fn every_format_is_read_within_the_usual_limits_and_beyond_small_ones() {
    for (format, place) in FORMATS.iter().zip(&*PLACES) {
        let usual = errors(place.url(), ReadLimits::default());
        assert!(usual.is_empty(), "{format:?}: {usual:?}");
        let small = ReadLimits::default().with_max_memory(8).with_max_whole(8);
        let found = errors(place.url(), small);
        // The example reads what it likes.
        let is_limited = found.iter().any(|(kind, _)| *kind == ErrorKind::Limit);
        assert!(
            is_limited || format.tag == "example",
            "{format:?}: {found:?}"
        );
    }
}

//! Any text as a mapping file, applied to a few tensors; the inverse is tried too.
#![no_main]

use libfuzzer_sys::fuzz_target;
use reshard_map::{Limits, MapFile, Source};

const LIMITS: Limits = Limits {
    pieces: 1000,
    names: 1000,
    name_bytes: 100_000,
    steps: 1_000_000,
};

fuzz_target!(|text: &str| {
    let Ok(file) = MapFile::parse(text) else {
        return;
    };
    let given = file
        .parameters()
        .map(|(name, _)| (name.to_owned(), 2))
        .collect();
    let Ok(map) = file.bind(&given) else { return };
    let dtype = reshard_model::DType::Float32;
    let stored = [
        Source::new("w", dtype, [4, 6]),
        Source::new("module.w", dtype, [4, 6]),
        Source::new("l.0.w", dtype, [12]),
        Source::new("l.1.w", dtype, [12]),
        Source::new("s", dtype, []),
        Source::new("e", dtype, [0, 1 << 40]),
    ];
    let Ok(mapping) = map.apply(stored, ["rng"], LIMITS) else {
        return;
    };
    drop(mapping.inverse());
    if let Ok(inverse) = map.inverse()
        && let Ok(back) = inverse.apply_after(&mapping, LIMITS)
    {
        drop(back.additions().common(|_| None));
    }
});

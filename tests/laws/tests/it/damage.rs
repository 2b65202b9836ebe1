//! Damage that a check finds is found by loads, a changed bit in metadata is damage, and a folder that another program has saved over is not.

use proptest::{prelude::*, sample::Index};
use reshard::{Dialect, ShardedTensor, StateDict, Tensor, blocking, blocking::Checkpoint};
use reshard_example as _;
use reshard_laws::{
    formats::{FORMATS, Format},
    law,
};
use reshard_storage::{Durability, Progress};
use reshard_strategy::VerifyReport;
use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

/// Two tensors of this many elements, and a value where the format has a place for it.
fn save(format: &Format, dialect: Dialect, url: &str, n: u64) {
    let mut state = StateDict::new();
    for (key, n) in [("w", n), ("b", n + 1)] {
        let data = (0..n).map(|i| i as f32 + n as f32).collect();
        let tensor = Tensor::from_vec(&[n], data).unwrap();
        state.insert(key, ShardedTensor::replicated(key, tensor, 0));
    }
    if dialect != Dialect::TensorsOnly {
        state.insert("step", 7);
    }
    let save = reshard::save(&state, url).dialect(dialect);
    let config = format.save_config();
    let save = save.strategy(config).durability(Durability::Process);
    drop(blocking::run(save).unwrap());
}

/// The formats, in the dialects in which they are used most.
fn kinds() -> Vec<(Format, Dialect)> {
    let mut out = Vec::new();
    for format in FORMATS {
        let dialect = match format.stores_objects {
            true => Dialect::Dcp,
            false => Dialect::TensorsOnly,
        };
        out.push((format, dialect));
        if ["torch_dist", "zarr"].contains(&format.tag) {
            out.push((format, Dialect::Megatron));
        }
    }
    out
}

/// All files of a place.
fn files(at: &Path) -> Vec<PathBuf> {
    let (mut out, mut left) = (Vec::new(), vec![at.to_path_buf()]);
    while let Some(next) = left.pop() {
        match next.is_dir() {
            true => left.extend(fs::read_dir(next).unwrap().map(|e| e.unwrap().path())),
            false => out.push(next),
        }
    }
    out.sort();
    out
}

fn is_sound(report: &VerifyReport) -> bool {
    let found = [
        &report.damage,
        &report.unchecked,
        &report.not_understood,
        &report.not_read,
    ];
    found.into_iter().all(Vec::is_empty)
}

/// Whether opening or a check tells that something is wrong.
fn is_found(url: &str, full: bool) -> bool {
    let Ok(checkpoint) = Checkpoint::open(url) else {
        return true;
    };
    match checkpoint.verify(full, Progress::none()) {
        Ok(report) => !is_sound(&report),
        Err(_) => true,
    }
}

/// Whether a load of everything fails.
fn load_fails(url: &str) -> bool {
    let loaded = Checkpoint::open(url).and_then(|all| {
        all.load_plain_tensors()?;
        all.state()
    });
    loaded.is_err()
}

proptest! {
    #![proptest_config(law(4))]

    #[test]
    fn no_changed_bit_in_metadata_passes_as_sound(
        at in prop::collection::vec((any::<Index>(), any::<Index>(), 0u32..8), 4),
        n in 1u64..6,
    ) {
        for (format, dialect) in kinds() {
            let dir = tempfile::tempdir().unwrap();
            let url = format.on_disk(dir.path());
            save(&format, dialect, &url, n);
            let items = Checkpoint::open(&url).unwrap().item_files();
            let is_metadata = |file: &PathBuf| {
                let name = file.strip_prefix(&url).unwrap().display().to_string();
                !name.is_empty() && !items.contains(&name)
            };
            let metadata: Vec<PathBuf> = files(Path::new(&url)).into_iter().filter(is_metadata).collect();
            prop_assert!(!is_found(&url, true), "{format:?}");
            for (file, byte, bit) in at.iter().filter(|_| !metadata.is_empty()) {
                let file = file.get(&metadata);
                let whole = fs::read(file).unwrap();
                let mut bytes = whole.clone();
                let byte = byte.index(bytes.len());
                bytes[byte] ^= 1 << bit;
                fs::write(file, bytes).unwrap();
                // An archive with checksums of its own, which only a full check looks at.
                let full = file.ends_with("common.pt");
                prop_assert!(is_found(&url, full), "{format:?} {dialect:?}: bit {bit} of byte {byte} of {}", file.display());
                fs::write(file, whole).unwrap();
            }
        }
    }

    #[test]
    fn loads_find_what_a_check_finds(
        at in prop::collection::vec((any::<Index>(), any::<Index>(), 0u32..3), 3),
        n in 1u64..6,
    ) {
        for (format, dialect) in kinds() {
            let dir = tempfile::tempdir().unwrap();
            let url = format.on_disk(dir.path());
            save(&format, dialect, &url, n);
            let all = files(Path::new(&url));
            for (file, byte, how) in &at {
                let file = file.get(&all);
                let whole = fs::read(file).unwrap();
                let byte = byte.index(whole.len());
                fs::remove_file(file).unwrap();
                match how {
                    0 => fs::write(file, &whole[..byte]).unwrap(),
                    1 => symlink("../nothing", file).unwrap(),
                    _ => fs::create_dir(file).unwrap(),
                }
                if is_found(&url, true) {
                    prop_assert!(load_fails(&url), "{format:?} {dialect:?}: {how} at {byte} of {}", file.display());
                }
                match file.symlink_metadata() {
                    Ok(is) if is.is_dir() => fs::remove_dir(file).unwrap(),
                    Ok(_) => fs::remove_file(file).unwrap(),
                    Err(_) => {}
                }
                fs::write(file, whole).unwrap();
            }
        }
    }

    #[test]
    fn what_another_program_saved_over_is_changed_and_no_damage(n in 1u64..6, more in 1u64..6) {
        for (format, dialect) in kinds().into_iter().filter(|(format, _)| !format.is_file()) {
            let dir = tempfile::tempdir().unwrap();
            let [url, other] = ["ours", "other"].map(|name| dir.path().join(name).display().to_string());
            save(&format, dialect, &url, n);
            save(&format, dialect, &other, n + more);
            let mut is_bound = false;
            for file in files(Path::new(&other)) {
                let name = file.strip_prefix(&other).unwrap();
                // Other programs have no records of reshard.
                let is_ours = name.display().to_string().contains("reshard");
                if !is_ours {
                    fs::copy(&file, Path::new(&url).join(name)).unwrap();
                }
                is_bound |= is_ours;
            }
            let report = Checkpoint::open(&url).unwrap().verify(true, Progress::none()).unwrap();
            prop_assert!(is_sound(&report), "{format:?} {dialect:?}: {report}");
            prop_assert_eq!(!report.changed.is_empty(), is_bound, "{:?} {:?}: {}", format, dialect, report);
            let tensors = |url: &String| {
                let mut all = Checkpoint::open(url).unwrap().load_plain_tensors().unwrap();
                // Without a record a number may be a tensor.
                all.retain(|key, _| key != "step");
                all
            };
            let [read, want] = [&url, &other].map(tensors);
            prop_assert_eq!(read, want, "{:?} {:?}", format, dialect);
        }
    }
}

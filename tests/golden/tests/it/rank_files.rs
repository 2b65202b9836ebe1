//! Folders with one file per rank: DTensors, ShardedTensors, and the layout of `torch_checkpointing`.

#![expect(clippy::panic, reason = "helpers of tests fail as tests do")]

use reshard::{
    BackendVersion, ErrorKind, OpenOptions, Region, blocking, blocking::Checkpoint,
    storage::Progress, strategy::VerifyReport, torch_save::RankFilesLoadConfig,
};
use reshard_convert::convert;
use reshard_golden::{chain, compare_facts, root};
use serde_json::Value as Json;
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};
use tempfile::TempDir;

fn folder(name: &str) -> PathBuf {
    root().join("rank_files").join(name)
}

fn fixtures() -> Vec<PathBuf> {
    let all = fs::read_dir(root().join("rank_files")).unwrap();
    let all = all.map(|entry| entry.unwrap().path());
    let mut all: Vec<PathBuf> = all
        .filter(|path| path.join("expected.json").is_file())
        .collect();
    all.sort();
    assert!(!all.is_empty(), "no fixtures of rank_files");
    all
}

/// The checkpoint of a fixture, or its item `model` if it has several.
fn open(dir: &Path) -> Checkpoint {
    let url = dir.display().to_string();
    let all = Checkpoint::open(&url).unwrap();
    assert_eq!(
        *all.backend(),
        BackendVersion::new("rank_files", 1),
        "{url}"
    );
    if !all.tensors().any(|t| t.key().starts_with("model.")) {
        return all;
    }
    let config = RankFilesLoadConfig::default().with_item("model");
    Checkpoint::open_with(OpenOptions::new().strategy(config), &url).unwrap()
}

fn verify(checkpoint: &Checkpoint) -> VerifyReport {
    checkpoint.verify(true, Progress::none()).unwrap()
}

/// What differs from `expected.json`.
fn wrong(checkpoint: &Checkpoint, fixture: &Path) -> Vec<String> {
    let text = fs::read_to_string(fixture.join("expected.json")).unwrap();
    let expected: Json = serde_json::from_str(&text).unwrap();
    let tensors = expected["tensors"].as_object().unwrap();
    let found: BTreeSet<String> = checkpoint.tensors().map(|t| t.key().to_owned()).collect();
    let names: BTreeSet<String> = tensors.keys().cloned().collect();
    let mut out: Vec<String> = found.symmetric_difference(&names).cloned().collect();
    for (key, facts) in tensors {
        let read = checkpoint.tensor(key).and_then(|t| t.read(..));
        let same = read
            .map_err(|e| chain(&e))
            .and_then(|t| compare_facts(facts, &t));
        out.extend(
            same.err()
                .map(|e| format!("{}: {key}: {e}", fixture.display())),
        );
    }
    out
}

/// A copy of a fixture's checkpoint.
fn copy(name: &str) -> TempDir {
    let home = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(folder(name).join("ckpt")).unwrap() {
        let from = entry.unwrap().path();
        fs::write(
            home.path().join(from.file_name().unwrap()),
            fs::read(&from).unwrap(),
        )
        .unwrap();
    }
    home
}

#[test]
fn ranks_make_up_the_global_tensors() {
    for fixture in fixtures() {
        let checkpoint = open(&fixture.join("ckpt"));
        assert_eq!(wrong(&checkpoint, &fixture), Vec::<String>::new());
        let report = verify(&checkpoint);
        assert!(
            report.damage.is_empty() && report.incomplete.is_empty(),
            "{report}"
        );
        assert!(report.not_understood.is_empty(), "{report}");
    }
}

#[test]
fn a_conversion_by_three_ranks_has_the_same_tensors() {
    for fixture in fixtures() {
        let home = tempfile::tempdir().unwrap();
        let url = home.path().join("new").display().to_string();
        blocking::run(convert(&open(&fixture.join("ckpt")), &url).ranks(3)).unwrap();
        let converted = Checkpoint::open(&url).unwrap();
        assert_eq!(*converted.backend(), BackendVersion::new("torch_dist", 1));
        assert_eq!(wrong(&converted, &fixture), Vec::<String>::new());
    }
}

#[test]
fn items_are_the_first_part_of_keys_and_what_is_equal_appears_once() {
    let url = folder("verl_fsdp2_w4/ckpt").display().to_string();
    let all = Checkpoint::open(&url).unwrap();
    let keys: BTreeSet<&str> = all.metadata().entries().map(|e| e.key()).collect();
    for key in [
        "model.embed.weight",
        "optim.state.0.exp_avg",
        "optim.state.0.step",
        "optim.param_groups.0.lr",
        "extra_state.lr_scheduler.last_epoch",
    ] {
        assert!(keys.contains(key), "{key} is not one of {keys:?}");
    }
    // The state of random numbers is another one on each rank.
    let rng: Vec<&&str> = keys
        .iter()
        .filter(|key| key.starts_with("extra_state.rng"))
        .collect();
    let equal = [&"extra_state.rng.cpu"];
    let own = [0, 1, 2, 3].map(|rank| format!("extra_state.rng.cpu.rank_{rank}"));
    assert!(rng == equal || rng.iter().copied().eq(&own), "{rng:?}");
    let tc = Checkpoint::open(folder("tc_2d_w4/ckpt").display().to_string()).unwrap();
    assert_eq!(tc.object("lr").unwrap().as_float(), Some(0.1));
    let none = RankFilesLoadConfig::default().with_item("none");
    let e = Checkpoint::open_with(OpenOptions::new().strategy(none), &url).unwrap_err();
    assert!(chain(&e).contains("model"), "{}", chain(&e));
}

#[test]
fn a_tensor_that_differs_keeps_the_rank_in_its_key() {
    // Rank 0's `step` in the place of rank 1's `lr`: an item whose values differ.
    let home = copy("tc_fsdp2_w2");
    fs::copy(home.path().join("step_0.pt"), home.path().join("lr_1.pt")).unwrap();
    let e = Checkpoint::open(home.path().display().to_string()).unwrap();
    let report = verify(&e);
    assert!(report.to_string().contains("not of one save"), "{report}");
    let home = copy("verl_fsdp2_w4");
    let swapped = |n: u32| {
        home.path()
            .join(format!("extra_state_world_size_4_rank_{n}.pt"))
    };
    let mut bytes = fs::read(folder(
        "verl_fsdp2_w4/ckpt/extra_state_world_size_4_rank_0.pt",
    ))
    .unwrap();
    patch_stored(&mut bytes, "/data/0", |data| data[0] ^= 1);
    fs::write(swapped(2), bytes).unwrap();
    let all = Checkpoint::open(home.path().display().to_string()).unwrap();
    let mut keys = all
        .tensors()
        .map(|t| t.key().to_owned())
        .filter(|key| key.contains("rng"));
    assert_eq!(keys.next().as_deref(), Some("extra_state.rng.cpu.rank_0"));
    assert_eq!(keys.count(), 3);
}

/// The checksum of zip archives.
fn crc32(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ (0xEDB8_8320 & (crc & 1).wrapping_neg());
        }
    }
    !crc
}

/// Changes a stored record, and its checksums in the archive.
fn patch_stored(zip: &mut [u8], name: &str, change: impl FnOnce(&mut [u8])) {
    let find = |zip: &[u8], magic: &[u8], at: usize| {
        zip[at..]
            .windows(4)
            .position(|w| w == magic)
            .map(|n| at + n)
    };
    let int = |zip: &[u8], at: usize, n: usize| {
        zip[at..at + n]
            .iter()
            .rev()
            .fold(0usize, |all, b| all << 8 | usize::from(*b))
    };
    // The central directory says where the header is, and has a checksum, too.
    let mut at = 0;
    while let Some(entry) = find(zip, b"PK\x01\x02", at) {
        let length = int(zip, entry + 28, 2);
        let own = String::from_utf8_lossy(&zip[entry + 46..entry + 46 + length]).into_owned();
        if own.ends_with(name) {
            let header = int(zip, entry + 42, 4);
            let data = header + 30 + int(zip, header + 26, 2) + int(zip, header + 28, 2);
            let size = int(zip, entry + 24, 4);
            change(&mut zip[data..data + size]);
            let crc = crc32(&zip[data..data + size]).to_le_bytes();
            zip[entry + 16..entry + 20].copy_from_slice(&crc);
            // The checksum is in the header, or behind the data.
            if int(zip, header + 14, 4) != 0 {
                zip[header + 14..header + 18].copy_from_slice(&crc);
            }
            if zip[data + size..].starts_with(b"PK\x07\x08") {
                zip[data + size + 4..data + size + 8].copy_from_slice(&crc);
            }
            return;
        }
        at = entry + 4;
    }
    panic!("no record {name}");
}

#[test]
fn a_missing_rank_makes_it_incomplete() {
    for (name, file, whole) in [
        ("verl_fsdp2_w4", "model_world_size_4_rank_2.pt", false),
        ("mesh_3d", "rank5.pt", false),
        ("sharded_tensor", "rank1.pt", false),
        ("tc_safetensors_w2", "model_1.safetensors", false),
        // All that it holds, another rank holds, too.
        ("plain_hsdp_w4", "rank3.pt", true),
    ] {
        let home = copy(name);
        fs::remove_file(home.path().join(file)).unwrap();
        let checkpoint = open(home.path());
        let rank: String = file
            .chars()
            .rev()
            .skip_while(|c| !c.is_ascii_digit())
            .take(1)
            .collect();
        let report = verify(&checkpoint);
        let missing = report
            .incomplete
            .first()
            .map(ToString::to_string)
            .unwrap_or_default();
        assert!(report.damage.is_empty(), "{name}: {report}");
        assert!(
            missing.contains(&format!("rank {rank} ")),
            "{name}: {missing:?}"
        );
        let read: Vec<_> = checkpoint.tensors().map(|t| t.read(..)).collect();
        assert_eq!(read.iter().all(Result::is_ok), whole, "{name}");
        for e in read.into_iter().filter_map(Result::err) {
            assert_eq!(e.kind(), ErrorKind::NotFound, "{}", chain(&e));
            assert!(
                chain(&e).contains(&format!("rank {rank} ")),
                "{}",
                chain(&e)
            );
        }
        let out = tempfile::tempdir().unwrap();
        let to = out.path().join("out").display().to_string();
        let converted = blocking::run(convert(&checkpoint, &to));
        assert_eq!(converted.is_ok(), whole, "{name}");
    }
}

#[test]
fn a_file_of_one_rank_is_a_part() {
    let file = folder("verl_fsdp2_w4/ckpt/model_world_size_4_rank_1.pt");
    let part = Checkpoint::open(file.display().to_string()).unwrap();
    assert_eq!(*part.backend(), BackendVersion::new("torch_save", 1));
    let whole = open(&folder("verl_fsdp2_w4/ckpt"));
    let (own, all) = (
        part.tensor("embed.weight").unwrap(),
        whole.tensor("embed.weight").unwrap(),
    );
    assert_eq!(own.shape(), all.shape());
    let held = Region::new([3, 0], [3, 8]);
    let regions: Vec<Region> = own.chunks().into_iter().map(|c| c.region).collect();
    assert_eq!(regions, std::slice::from_ref(&held));
    let bytes = |t: reshard::Tensor| t.to_bytes();
    assert_eq!(
        bytes(own.read(held.clone()).unwrap()),
        bytes(all.read(held).unwrap())
    );
    let e = own.read(Region::new([2, 0], [2, 8])).unwrap_err();
    assert!(chain(&e).contains("ranks 0, 2 and 3"), "{}", chain(&e));
    let report = verify(&part);
    assert!(report.damage.is_empty(), "{report}");
    assert!(
        report
            .to_string()
            .contains("incomplete: the files of ranks 0, 2 and 3 are missing"),
        "{report}"
    );
}

#[test]
fn replicas_that_differ_are_damage() {
    // Without checksums, and with them.
    let home = copy("tc_safetensors_w2");
    let file = home.path().join("model_1.safetensors");
    let mut bytes = fs::read(&file).unwrap();
    let start = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    bytes[start + 160] ^= 1; // `layers.0.b`, which is replicated
    fs::write(&file, bytes).unwrap();
    let report = verify(&open(home.path()));
    let found: Vec<String> = report.damage.iter().map(ToString::to_string).collect();
    assert!(
        found.len() == 1 && found[0].contains("layers.0.b") && found[0].contains("replicas differ"),
        "{found:?}"
    );

    let home = copy("plain_hsdp_w4");
    let file = home.path().join("rank3.pt");
    let mut bytes = fs::read(&file).unwrap();
    patch_stored(&mut bytes, "/data/4", |data| data[0] ^= 1);
    fs::write(&file, bytes).unwrap();
    let report = verify(&open(home.path()));
    let found = report.to_string();
    assert!(
        report.damage.len() == 1 && found.contains("up.bias") && found.contains("rank3.pt"),
        "{found}"
    );
}

#[test]
fn files_of_different_saves_are_refused_by_file_and_key() {
    for (name, from, to, says) in [
        ("plain_hsdp_w4", "rank1.pt", "rank3.pt", "rank 3"),
        ("tc_2d_w4", "model_1.pt", "model_2.pt", "rank 2"),
    ] {
        let home = copy(name);
        fs::copy(home.path().join(from), home.path().join(to)).unwrap();
        let report = verify(&open(home.path()));
        let found = report.to_string();
        assert!(
            !report.damage.is_empty() && found.contains(to) && found.contains(says),
            "{found}"
        );
    }
    // A file of another mesh.
    let home = copy("tc_2d_w4");
    fs::copy(
        folder("tc_fsdp2_w2/ckpt/model_1.pt"),
        home.path().join("model_1.pt"),
    )
    .unwrap();
    let report = verify(&open(home.path()));
    let found = report.to_string();
    assert!(
        found.contains("uneven") && found.contains("model_1.pt"),
        "{found}"
    );
}

#[test]
fn without_metadata_safetensors_stay_what_they_are() {
    let home = copy("tc_safetensors_w2");
    fs::remove_file(home.path().join("metadata.pkl")).unwrap();
    let opened = Checkpoint::open(home.path().display().to_string());
    let backend = opened.map(|c| c.backend().to_string());
    assert!(backend.is_err() || backend.is_ok_and(|b| b == "safetensors/1"));
}

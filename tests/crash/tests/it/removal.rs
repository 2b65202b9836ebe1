//! `SIGKILL` at every named step of a removal of keys.
#![expect(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

use reshard::{
    Dialect, Durability, ShardedObject, ShardedTensor, StateDict, Tensor, Value, blocking,
    storage::Progress,
    strategy::SaveShardedStrategy,
    torch_dist::TorchDistConfig,
    zarr::{Zarr3Config, ZarrConfig},
};
use reshard_storage::failpoint;
use std::{
    collections::BTreeSet,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

const PREFIX: &str = "optimizer.";

/// Which checkpoint is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    TorchDist(Dialect),
    Zarr,
    /// As Megatron Core writes it, without what reshard adds.
    PlainZarr,
    Zarr3,
}

const KINDS: [Kind; 5] = [
    Kind::TorchDist(Dialect::Megatron),
    Kind::TorchDist(Dialect::Dcp),
    Kind::Zarr,
    Kind::PlainZarr,
    Kind::Zarr3,
];

fn save(dir: &Path, kind: Kind) {
    let mut state = StateDict::new();
    for (n, key) in (0..).zip(["model.w", "optimizer.m", "optimizer.v", "model.b"]) {
        let data = Tensor::from_vec(&[64], vec![n as f32; 64]).unwrap();
        state.insert(key, ShardedTensor::full(key, data));
    }
    state.insert("step", 7);
    let (dialect, config): (_, SaveShardedStrategy) = match kind {
        Kind::TorchDist(dialect) => {
            let config = TorchDistConfig::new().with_separation_hint(PREFIX);
            (dialect, config.into())
        }
        Kind::Zarr | Kind::PlainZarr => (Dialect::Megatron, ZarrConfig::default().into()),
        Kind::Zarr3 => (Dialect::Megatron, Zarr3Config::default().into()),
    };
    if dialect == Dialect::Megatron {
        for key in ["rng", "optimizer.rng"] {
            let cell = ShardedObject::new(key, Value::Int(5), &[1], &[0], 0).unwrap();
            state.insert(key, cell);
        }
    }
    let url = dir.display().to_string();
    let save = reshard::save(&state, &url)
        .dialect(dialect)
        .integrity(dialect == Dialect::Megatron)
        .strategy(config)
        .durability(Durability::Process);
    blocking::run(save).unwrap();
    if kind == Kind::PlainZarr {
        for ours in ["reshard.json", "reshard-zarr.json", "integrity.json"] {
            std::fs::remove_file(dir.join(ours)).unwrap();
        }
    }
    std::fs::write(dir.join("README.md"), "of somebody").unwrap();
}

/// Whether the keys are gone: all of them are, or none. The rest is always whole.
fn is_removed(dir: &Path, at: &str) -> bool {
    let url = dir.display().to_string();
    let opened = blocking::Checkpoint::open(&url).unwrap_or_else(|e| panic!("killed at {at}: {e}"));
    let report = opened.verify(true, Progress::none()).unwrap();
    assert!(
        report.damage.is_empty(),
        "killed at {at}: {:?}",
        report.damage
    );
    let tensors = blocking::load_plain_tensors(&url).unwrap();
    let value = |key: &str| Some(tensors.get(key)?.to_vec::<f32>().unwrap()[63]);
    assert_eq!(
        (value("model.w"), value("model.b")),
        (Some(0.0), Some(3.0)),
        "killed at {at}"
    );
    let optimizer = (value("optimizer.m"), value("optimizer.v"));
    assert!(
        [(None, None), (Some(1.0), Some(2.0))].contains(&optimizer),
        "killed at {at}"
    );
    // In PyTorch's dialect there are none.
    let is_there = |cell: &str| opened.objects().any(|key| key == cell);
    let cells = ["rng/shard_0_1", "optimizer.rng/shard_0_1"].map(is_there);
    let of_optimizer = cells[0] && optimizer.0.is_some();
    assert_eq!(cells[1], of_optimizer, "killed at {at}");
    optimizer.0.is_none()
}

/// The steps that a removal never meets: of what Megatron Core left, it links files and writes none.
fn passed_by(kind: Kind) -> &'static [&'static str] {
    match kind {
        Kind::PlainZarr => &["write.half", "write.opened"],
        _ => &[],
    }
}

/// The steps that it meets again: it removes several files, and may write several.
fn met_again(kind: Kind) -> &'static [&'static str] {
    match kind {
        Kind::TorchDist(Dialect::Dcp) | Kind::PlainZarr => &["commit.removing"],
        _ => &["commit.removing", "write.opened"],
    }
}

/// At its second meeting a removal has written, or removed, a part of its files.
const MEETINGS: usize = 2;

#[test]
fn a_removal_killed_at_any_named_step_leaves_the_old_or_the_new() {
    for kind in KINDS {
        let (mut met, mut again) = (BTreeSet::new(), BTreeSet::new());
        for (&step, nth) in failpoint::STEPS
            .iter()
            .flat_map(|step| (1..=MEETINGS).map(move |nth| (step, nth)))
        {
            let at = format!("{step} {nth}");
            let home = reshard_crash::scratch().unwrap();
            let dir = home.path().join("step");
            save(&dir, kind);
            let remove = || {
                let mut command = Command::new(env!("CARGO_BIN_EXE_reshard-saver"));
                command
                    .arg(&dir)
                    .args(["remove", PREFIX])
                    .stderr(Stdio::null());
                command
            };
            let status = remove().env(failpoint::VARIABLE, &at).status().unwrap();
            let removed = is_removed(&dir, &at);
            if status.success() {
                assert!(removed, "it went through {at}");
            } else {
                let steps = if nth == 1 { &mut met } else { &mut again };
                steps.insert(step);
                let committed = step.starts_with("commit.")
                    && !matches!(step, "commit.record" | "commit.synced" | "commit.ready");
                assert_eq!(removed, committed, "{kind:?}: killed at {at}");
            }
            // The next one goes through, whatever lies around. Pruning leaves nothing beside, and what is of others where it was.
            assert!(remove().status().unwrap().success(), "after {at}");
            assert!(is_removed(&dir, &at));
            let url = dir.display().to_string();
            let prune = reshard_manager::prune(&url).older_than(Duration::ZERO);
            blocking::run(prune).unwrap();
            assert_eq!(
                std::fs::read_dir(home.path()).unwrap().count(),
                1,
                "after {at}"
            );
            let readme = std::fs::read_to_string(dir.join("README.md")).unwrap();
            assert_eq!(readme, "of somebody", "after {at}");
            assert!(is_removed(&dir, &at));
        }
        let all = failpoint::STEPS.iter().copied();
        let all: BTreeSet<&str> = all.filter(|step| !passed_by(kind).contains(step)).collect();
        assert_eq!(met, all, "{kind:?}: every named step must be met");
        let several: BTreeSet<&str> = met_again(kind).iter().copied().collect();
        assert_eq!(again, several, "{kind:?}");
    }
}

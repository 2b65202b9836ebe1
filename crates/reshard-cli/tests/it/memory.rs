//! Memory stays bounded, whatever a tensor's size is.

use crate::{run, states};
use reshard::{
    DType, Data, Region, ShardedTensor, StateDict,
    model::{BoxError, TensorSource},
};
use std::{process::Command, sync::Arc};

/// The peak of a child process, in kilobytes: it runs this very test, with its arguments in the environment.
const ARGS: &str = "RESHARD_TEST_ARGS";
const ROWS: u64 = 1 << 16;
const COLUMNS: u64 = 1 << 10;
/// 256 MiB.
const BYTES: u64 = ROWS * COLUMNS * 4;

/// Elements that are nowhere: each is its row.
struct Rows(u64);

impl TensorSource for Rows {
    fn read(&self, region: &Region, out: &mut [u8]) -> Result<(), BoxError> {
        let width = region.lengths[1] as usize * 4;
        for (row, out) in (self.0 + region.offsets[0]..).zip(out.chunks_mut(width)) {
            out.chunks_mut(4)
                .for_each(|e| e.copy_from_slice(&(row as u32).to_le_bytes()));
        }
        Ok(())
    }
}

fn large() -> states::Saved {
    let rank = |rank: u64| {
        // Not where blocks end.
        let (from, to) = if rank == 0 {
            (0, 30_001)
        } else {
            (30_001, ROWS)
        };
        let region = Region::new([from, 0], [to - from, COLUMNS]);
        let leaf = ShardedTensor::region_of("w", DType::Int32, &[ROWS, COLUMNS], region);
        let mut state = StateDict::new();
        state.insert("w", leaf.with_data(Data::Lazy(Arc::new(Rows(from)))));
        state
    };
    states::save(&[rank(0), rank(1)], reshard::Dialect::Dcp)
}

fn peak_of(args: &[&str]) -> u64 {
    let out = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "memory::a_child_runs_a_command",
            "--nocapture",
            "--test-threads=1",
        ])
        .env(ARGS, args.join("\n"))
        .output()
        .unwrap();
    let text = String::from_utf8(out.stdout).unwrap();
    assert!(
        out.status.success(),
        "{text}{}",
        String::from_utf8_lossy(&out.stderr)
    );
    let peak = text
        .lines()
        .find_map(|l| l.split_once("peak: "))
        .unwrap_or_else(|| panic!("{text}"))
        .1;
    peak.trim().parse().unwrap()
}

#[test]
fn a_child_runs_a_command() {
    let Ok(args) = std::env::var(ARGS) else {
        return;
    };
    let args: Vec<&str> = args.lines().collect();
    let ran = run(&args);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let peak = status
        .lines()
        .find_map(|l| l.strip_prefix("VmHWM:"))
        .unwrap();
    println!("\npeak: {}", peak.trim().trim_end_matches("kB"));
}

#[test]
#[cfg(target_os = "linux")]
fn commands_that_read_a_large_tensor_stay_far_below_its_size() {
    let saved = large();
    let to = saved.beside("to");
    let [zarr, zarr3] = ["zarr", "zarr3"].map(|to| saved.beside(to));
    let commands: [&[&str]; 8] = [
        &["digest", &saved.url],
        &["verify", &saved.url],
        &["convert", &saved.url, &to, "--ranks", "3"],
        &["digest", &to],
        &["convert", &saved.url, &zarr, "--to", "zarr"],
        &["convert", &zarr, &zarr3, "--to", "zarr3", "--ranks", "2"],
        &["diff", &to, &zarr3],
        &["stats", &to],
    ];
    for args in commands {
        let peak = peak_of(args) << 10;
        assert!(
            peak < BYTES / 2,
            "{args:?} took {peak} bytes for a tensor of {BYTES}"
        );
    }
    assert_eq!(
        run(&["digest", &saved.url]).ok(),
        run(&["digest", &to]).ok()
    );
}

//! A load reports exactly the bytes that the system read for it.
//!
//! A program of its own, because the system counts the reads of the whole process.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use reshard::{
    DType, Dialect, LoadReport, Phase, Region, ShardedTensor, StateDict, Tensor, blocking,
};

/// Bytes that this process has read, and how many of them this question takes.
fn read_so_far() -> (u64, u64) {
    let text = std::fs::read_to_string("/proc/self/io").unwrap();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("rchar: "))
        .unwrap();
    (line.parse().unwrap(), text.len() as u64)
}

/// Bytes that the process reads when it asks how many CPUs it may use, as threads of a load do some times.
fn how_many_cpus() -> u64 {
    let (before, question) = read_so_far();
    assert!(std::thread::available_parallelism().is_ok());
    read_so_far().0 - before - question
}

/// Loads the same again and again: the first time the process looks at itself too. The smallest difference is the load's own.
fn system_and_report(template: impl Fn() -> StateDict, url: &str) -> (u64, LoadReport) {
    let mut all = Vec::new();
    for _ in 0..4 {
        let (before, question) = read_so_far();
        let load = reshard::load(template(), url);
        let (_, report) = blocking::run(load.with_report()).unwrap();
        let (after, _) = read_so_far();
        all.push((after - before - question, report));
    }
    all.into_iter().min_by_key(|(system, _)| *system).unwrap()
}

#[test]
fn a_load_counts_all_that_the_system_read_the_gaps_between_ranges_too() {
    let home = tempfile::tempdir().unwrap();
    let url = home.path().join("step").display().to_string();
    let mut state = StateDict::new();
    // Large ones are read by head and tail; others are so small that they are read along when their neighbours are wanted.
    let rows = |i: u64| match i {
        _ if i % 50 == 7 => 3000,
        _ if i.is_multiple_of(3) => 4,
        _ => 40,
    };
    for i in 0..200u64 {
        let rows = rows(i);
        state.insert(
            format!("w{i:03}"),
            Tensor::from_vec(&[rows, 8], vec![i as f32; rows as usize * 8]).unwrap(),
        );
        state.insert(format!("o{i:03}"), format!("an object {i}"));
    }
    blocking::run(reshard::save(&state, &url).dialect(Dialect::Dcp)).unwrap();
    let every = |step: usize, columns: u64| {
        move || {
            let mut template = StateDict::new();
            for i in (0..200u64).step_by(step) {
                let rows = rows(i);
                let region = Region::new([1, 0], [rows - 1, columns]);
                let leaf = ShardedTensor::region_of(
                    &format!("w{i:03}"),
                    DType::Float32,
                    &[rows, 8],
                    region,
                );
                template.insert(format!("w{i:03}"), leaf);
            }
            template
        }
    };
    let (mut gaps, own) = (0, how_many_cpus());
    for (step, columns) in [(1, 8), (1, 3), (2, 8), (3, 1), (7, 8)] {
        let (system, report) = system_and_report(every(step, columns), &url);
        let (told, few) = (report.bytes(), 0..20);
        let same = few
            .into_iter()
            .any(|questions| told + questions * own == system);
        assert!(
            same,
            "each {step}th, {columns} columns: told {told}, but the system read {system}"
        );
        gaps += report.totals.beside;
        assert!(report.time(Phase::Read) > std::time::Duration::ZERO);
    }
    assert!(gaps > 0);
}

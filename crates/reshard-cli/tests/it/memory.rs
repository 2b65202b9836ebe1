//! Memory stays bounded, whatever a tensor's size is.

use crate::{run, states};
use reshard::{
    DType, Data, Region, ShardedTensor, StateDict,
    model::{BoxError, Dims, TensorSource},
};
use serde_json::json;
use std::{
    io::{Seek as _, SeekFrom, Write as _},
    process::Command,
    sync::Arc,
};

/// The peak of a child process, in kilobytes: it runs this very test, with its arguments in the environment.
const ARGS: &str = "RESHARD_TEST_ARGS";
const ROWS: u64 = 1 << 16;
const COLUMNS: u64 = 1 << 10;
/// 256 MiB.
const BYTES: u64 = ROWS * COLUMNS * 4;

/// Elements that are nowhere: each is its row.
struct Rows {
    dtype: DType,
    from: u64,
    to: u64,
}

impl TensorSource for Rows {
    fn dtype(&self) -> DType {
        self.dtype
    }

    fn shape(&self) -> Dims {
        [self.to - self.from, COLUMNS].into()
    }

    fn read(&self, region: &Region, out: &mut [u8]) -> Result<(), BoxError> {
        let width = region.lengths[1] as usize * 4;
        for (row, out) in (self.from + region.offsets[0]..).zip(out.chunks_mut(width)) {
            out.chunks_mut(4)
                .for_each(|e| e.copy_from_slice(&(row as u32).to_le_bytes()));
        }
        Ok(())
    }
}

fn large(dtype: DType) -> states::Saved {
    let rank = |rank: u64| {
        // Not where blocks end.
        let (from, to) = if rank == 0 {
            (0, 30_001)
        } else {
            (30_001, ROWS)
        };
        let region = Region::new([from, 0], [to - from, COLUMNS]);
        let leaf = ShardedTensor::region_of("w", dtype, &[ROWS, COLUMNS], region);
        let mut state = StateDict::new();
        state.insert(
            "w",
            leaf.with_data(Data::Lazy(Arc::new(Rows { dtype, from, to }))),
        );
        state
    };
    states::save(&[rank(0), rank(1)], reshard::Dialect::Dcp)
}

/// The same tensor, stored flattened: each rank has half of the rows, in two ranges of the flattened chunk.
fn flattened() -> states::Saved {
    let rank = |rank: u64| {
        let mut state = StateDict::new();
        let (elements, cut) = (ROWS / 2 * COLUMNS, 12_345_678);
        for (name, range) in [("front", 0..cut), ("back", cut..elements)] {
            let half = [ROWS / 2, COLUMNS];
            let leaf = ShardedTensor::declare("w", DType::Int32, &half, &[(0, rank, 2)], 0);
            let source = Elements {
                from: rank * elements + range.start,
                elements: range.end - range.start,
            };
            let leaf = ShardedTensor {
                flattened_range: Some(range),
                data: Data::Lazy(Arc::new(source)),
                ..leaf.unwrap()
            };
            state.insert(name, leaf);
        }
        state
    };
    states::save(&[rank(0), rank(1)], reshard::Dialect::Megatron)
}

/// Elements of a range of the tensor that begins there.
struct Elements {
    from: u64,
    elements: u64,
}

impl TensorSource for Elements {
    fn dtype(&self) -> DType {
        DType::Int32
    }

    fn shape(&self) -> Dims {
        [self.elements].into()
    }

    fn read(&self, region: &Region, out: &mut [u8]) -> Result<(), BoxError> {
        let from = self.from + region.offsets.last().unwrap();
        for (at, out) in (from..).zip(out.chunks_mut(4)) {
            out.copy_from_slice(&((at / COLUMNS) as u32).to_le_bytes());
        }
        Ok(())
    }
}

/// A file as torch wrote it before 1.6: the same tensor, all zeros but one element.
fn legacy(path: &str) {
    fn text(out: &mut Vec<u8>, text: &str) {
        out.push(b'X');
        out.extend((text.len() as u32).to_le_bytes());
        out.extend(text.as_bytes());
    }
    fn number(out: &mut Vec<u8>, n: u64) {
        out.push(b'J');
        out.extend((n as u32).to_le_bytes());
    }
    // The magic number, the version of the protocol, what the machine is like.
    let mut head =
        b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.\x80\x02}(".to_vec();
    text(&mut head, "little_endian");
    head.extend(b"\x88u.\x80\x02}(");
    text(&mut head, "w");
    head.extend(b"ctorch._utils\n_rebuild_tensor_v2\n((");
    text(&mut head, "storage");
    head.extend(b"ctorch\nFloatStorage\n");
    text(&mut head, "0");
    text(&mut head, "cpu");
    number(&mut head, ROWS * COLUMNS);
    head.extend(b"NtQK\0(");
    number(&mut head, ROWS);
    number(&mut head, COLUMNS);
    head.extend(b"t(");
    number(&mut head, COLUMNS);
    head.extend(b"K\x01t\x89ccollections\nOrderedDict\n)RtRu.");
    // The storages that follow.
    head.extend(b"\x80\x02]");
    text(&mut head, "0");
    head.extend(b"a.");
    head.extend((ROWS * COLUMNS).to_le_bytes());
    let mut file = std::fs::File::create(path).unwrap();
    file.write_all(&head).unwrap();
    file.set_len(head.len() as u64 + BYTES - 4).unwrap();
    file.seek(SeekFrom::End(0)).unwrap();
    file.write_all(&7f32.to_le_bytes()).unwrap();
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
    let saved = large(DType::Int32);
    let to = saved.beside("to");
    let [zarr, zarr3, plain] = ["zarr", "zarr3", "plain"].map(|to| saved.beside(to));
    let flat = flattened();
    let commands: [&[&str]; 9] = [
        &["digest", &saved.url],
        &["verify", &saved.url],
        &["convert", &saved.url, &to, "--ranks", "3"],
        &["digest", &to],
        &["convert", &saved.url, &zarr, "--to", "zarr"],
        &["convert", &zarr, &zarr3, "--to", "zarr3", "--ranks", "2"],
        &["diff", &to, &zarr3],
        &["stats", &to],
        &["convert", &flat.url, &plain, "--unflatten", "--ranks", "3"],
    ];
    for args in commands {
        let peak = peak_of(args) << 10;
        assert!(
            peak < BYTES / 2,
            "{args:?} took {peak} bytes for a tensor of {BYTES}"
        );
    }
    for other in [&to, &plain] {
        assert_eq!(
            run(&["digest", &saved.url]).ok(),
            run(&["digest", other]).ok()
        );
    }
}

/// Formats that nobody cuts into small chunks: a tensor lies in one piece of 256 MiB.
#[test]
#[cfg(target_os = "linux")]
#[ignore = "takes minutes without optimisation; cargo xtask nightly runs it"]
fn conversions_between_the_neighbours_formats_and_by_a_map_stay_far_below_a_tensor_s_size() {
    // Very small numbers.
    let saved = large(DType::Float32);
    let [safetensors, pt, bundle, mapped] =
        ["safetensors", "model.pt", "bundle", "mapped"].map(|to| saved.beside(to));
    let map = saved.beside("map.toml");
    let rules = "[[rule]]\ntranspose = 'w'\naxes = [1, 0]\n\
                 [[rule]]\nsplit = 'w'\nto = ['model.a', 'model.b']\nsizes = [300, 724]\n";
    std::fs::write(&map, rules).unwrap();
    let half = saved.beside("half");
    let [at_once, old] = ["at-once.pt", "old.pt"].map(|to| saved.beside(to));
    legacy(&old);
    let conversions: [&[&str]; 9] = [
        &[&saved.url, &at_once],
        &[&old, &saved.beside("from-old"), "--ranks", "2"],
        &[
            &saved.url,
            &safetensors,
            "--to",
            "safetensors",
            "--ranks",
            "2",
        ],
        &[
            &safetensors,
            &bundle,
            "--to",
            "tensor_bundle",
            "--ranks",
            "2",
        ],
        // One rank writes the file, and the others give it what they have.
        &[&bundle, &pt, "--ranks", "2"],
        &[&pt, &saved.beside("from-pt")],
        &[&pt, &half, "--dtype", "bf16"],
        &[&bundle, &saved.beside("from-bundle"), "--ranks", "2"],
        &[&safetensors, &mapped, "--map", &map, "--ranks", "2"],
    ];
    for args in conversions {
        let peak = peak_of(&[&["convert"], args].concat()) << 10;
        assert!(
            peak < BYTES / 2,
            "{args:?} took {peak} bytes for a tensor of {BYTES}"
        );
    }
    let reads: [&[&str]; 5] = [
        &["stats", &safetensors],
        &["verify", &safetensors],
        &["diff", &safetensors, &bundle],
        &["digest", &bundle],
        &["stats", &half],
    ];
    for args in reads {
        let peak = peak_of(args) << 10;
        assert!(
            peak < BYTES / 2,
            "{args:?} took {peak} bytes for a tensor of {BYTES}"
        );
    }
    let digest = |url: &str| run(&["digest", url]).ok();
    for to in [
        &pt,
        &at_once,
        &saved.beside("from-pt"),
        &saved.beside("from-bundle"),
    ] {
        assert_eq!(digest(to), digest(&saved.url));
    }
    let old = run(&["stats", &saved.beside("from-old"), "--json"]).json();
    let stats = &old["tensors"][0]["stats"];
    assert_eq!(
        (&stats["min"], &stats["max"]),
        (&json!(0.0), &json!(7.0)),
        "{old}"
    );
    let ran = run(&["diff", &saved.url, &mapped, "--map", &map]);
    assert_eq!(ran.code, 0, "{}", ran.out);
}

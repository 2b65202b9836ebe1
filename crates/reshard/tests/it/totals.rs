//! What a load reads, to the byte: a change of these figures is a change of how quick loads are, or of what they check.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use reshard::{
    DType, Dialect, Region, ShardedTensor, StateDict, Tensor, Value, blocking,
    strategy::{Traffic, with_sources},
};
use tempfile::TempDir;

/// Small tensors of two forms, a larger one, and an object.
fn saved(small: u64) -> (TempDir, String) {
    let home = tempfile::tempdir().unwrap();
    let url = home.path().join("step").display().to_string();
    let mut state = StateDict::new();
    for i in 0..small {
        state.insert(
            format!("s{i:04}"),
            Tensor::from_vec(&[2, 8], vec![i as f32; 16]).unwrap(),
        );
        state.insert(
            format!("m{i:04}"),
            Tensor::from_vec(&[64, 32], vec![i as f32; 2048]).unwrap(),
        );
    }
    state.insert(
        "large",
        Tensor::from_vec(&[1024, 256], vec![3f32; 256 << 10]).unwrap(),
    );
    state.insert("object", vec![Value::from("a"), Value::from(7)]);
    blocking::run(reshard::save(&state, &url).dialect(Dialect::Dcp)).unwrap();
    (home, url)
}

fn part(
    key: &str,
    shape: [u64; 2],
    offsets: [u64; 2],
    lengths: [u64; 2],
) -> (String, ShardedTensor) {
    let region = Region::new(offsets, lengths);
    (
        key.into(),
        ShardedTensor::region_of(key, DType::Float32, &shape, region),
    )
}

fn whole(key: &str, shape: [u64; 2]) -> (String, ShardedTensor) {
    part(key, shape, [0, 0], shape)
}

fn totals(
    url: &str,
    verify: bool,
    leaves: impl IntoIterator<Item = (String, ShardedTensor)>,
) -> Traffic {
    let mut template = StateDict::new();
    leaves
        .into_iter()
        .for_each(|(key, leaf)| drop(template.insert(key, leaf)));
    let load = reshard::load(template, url).verify(verify);
    blocking::run(load.with_report()).unwrap().1.totals
}

const SMALL: [u64; 2] = [2, 8];
const MIDDLE: [u64; 2] = [64, 32];
const LARGE: [u64; 2] = [1024, 256];

/// What is read, whether it is checked, and the figures.
type Case<'a> = (&'a str, bool, Vec<(String, ShardedTensor)>, [u64; 5]);

fn small(n: u64) -> impl Iterator<Item = (String, ShardedTensor)> {
    (0..n).map(|i| whole(&format!("s{i:04}"), SMALL))
}

fn middle(n: u64) -> impl Iterator<Item = (String, ShardedTensor)> {
    (0..n).map(|i| whole(&format!("m{i:04}"), MIDDLE))
}

fn reads_so_much(cases: Vec<Case<'_>>) {
    let (_home, url) = saved(600);
    let mut wrong = String::new();
    for (what, verify, leaves, expected) in cases {
        let t = totals(&url, verify, leaves);
        let got = [t.needed, t.bytes, t.beside, t.requests, t.verified];
        if got != expected {
            wrong.push_str(&format!("{what}: {got:?}, not {expected:?}\n"));
        }
    }
    assert!(
        wrong.is_empty(),
        "[needed, read, headers, requests, verified]\n{wrong}"
    );
}

#[test]
fn a_load_of_whole_tensors_reads_what_it_needs_and_little_beside() {
    reads_so_much(vec![
        (
            "a small archive",
            true,
            small(1).collect(),
            [64, 64, 1577, 1, 1],
        ),
        (
            "small archives",
            true,
            small(3).collect(),
            [192, 192, 4731, 3, 3],
        ),
        (
            "a small archive, not checked",
            false,
            small(1).collect(),
            [64, 64, 1577, 1, 0],
        ),
        (
            "an archive",
            true,
            middle(1).collect(),
            [8192, 8192, 2048, 3, 1],
        ),
        (
            "archives of one form",
            true,
            middle(3).collect(),
            [24576, 24576, 9426, 9, 3],
        ),
        (
            "archives, not checked",
            false,
            middle(3).collect(),
            [24576, 24576, 9426, 9, 0],
        ),
        (
            "a large tensor",
            true,
            vec![whole("large", LARGE)],
            [1 << 20, 1 << 20, 2048, 6, 1],
        ),
        (
            "more than are read at once",
            true,
            small(600).chain(middle(600)).collect(),
            [4_953_600, 4_953_600, 2_175_000, 2400, 1200],
        ),
        (
            "an unwanted one between",
            true,
            vec![
                whole("s0001", SMALL),
                whole("m0003", MIDDLE),
                whole("s0005", SMALL),
            ],
            [8320, 8320, 5202, 5, 3],
        ),
    ]);
}

#[test]
fn a_load_of_parts_reads_what_it_needs_and_little_beside() {
    let rows = |at| part("large", LARGE, [at, 0], [512, 256]);
    let named = |name: &str, (_, leaf): (String, ShardedTensor)| (name.to_owned(), leaf);
    reads_so_much(vec![
        (
            "rows of a small archive",
            true,
            vec![part("s0005", SMALL, [1, 0], [1, 8])],
            [32, 32, 1609, 1, 1],
        ),
        (
            "rows",
            true,
            vec![part("m0001", MIDDLE, [3, 0], [7, 32])],
            [896, 896, 2048, 3, 0],
        ),
        (
            "columns",
            true,
            vec![part("m0001", MIDDLE, [0, 3], [64, 2])],
            [512, 8072, 2048, 3, 0],
        ),
        (
            "half of it",
            true,
            vec![rows(512)],
            [1 << 19, 1 << 19, 2048, 3, 0],
        ),
        (
            "both halves",
            true,
            vec![named("a", rows(0)), named("b", rows(512))],
            [1 << 20, 1 << 20, 2048, 6, 1],
        ),
        (
            "one half twice",
            true,
            vec![named("a", rows(0)), named("b", rows(0))],
            [1 << 20, 1 << 19, 2048, 4, 0],
        ),
    ]);
}

#[test]
fn a_byte_that_flipped_is_noticed_by_whom_reads_the_whole_tensor() {
    let (_home, url) = saved(2);
    let file = format!("{url}/__0_0.distcp");
    let bytes = std::fs::read(&file).unwrap();
    for (key, shape, value) in [
        ("s0001", SMALL, 1f32),
        ("m0001", MIDDLE, 1.0),
        ("large", LARGE, 3.0),
    ] {
        let elements = value
            .to_le_bytes()
            .repeat(shape.iter().product::<u64>() as usize);
        let at = bytes
            .windows(elements.len())
            .position(|w| w == elements)
            .unwrap();
        for at in [at, at + elements.len() - 1] {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            std::fs::write(&file, damaged).unwrap();
            let load = |verify| {
                let mut template = StateDict::new();
                template.insert(key, whole(key, shape).1);
                blocking::run(reshard::load(template, &url).verify(verify).with_report())
            };
            let e = load(true).unwrap_err();
            let e = with_sources(e.to_string(), &e);
            assert!(e.contains(key) && e.contains("__0_0.distcp"), "{e}");
            assert_eq!(load(false).unwrap().1.totals.verified, 0);
        }
    }
}

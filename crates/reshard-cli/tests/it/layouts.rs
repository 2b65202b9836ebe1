//! Archives of tensors whose records lie otherwise than PyTorch lays them: all of them are read, with few requests more.

use crate::{
    handmade::{Item, pickle, view, zip, zstd},
    limits::made,
};
use reshard::strategy::{Traffic, with_sources};
use reshard::{DType, Region, ShardedTensor, StateDict, Value, blocking, model::Tree};

const SHAPE: [u64; 2] = [64, 32];

/// Name and content of a record, and whether it is packed.
type Record<'a> = (&'a str, &'a [u8], bool);

fn elements() -> Vec<u8> {
    (0..2048u16)
        .flat_map(|i| f32::from(i).to_le_bytes())
        .collect()
}

/// The description of the tensor.
fn described() -> Vec<u8> {
    pickle(view(&SHAPE, &[32, 1], 2048))
}

/// The same, with a text before it that is thrown away.
fn padded(bytes: u32) -> Vec<u8> {
    let text = [
        &b"X"[..],
        &bytes.to_le_bytes(),
        &vec![b'x'; bytes as usize],
        b"0",
    ]
    .concat();
    [&b"\x80\x02"[..], &text, &described()[2..]].concat()
}

/// Loads the tensor, and says what was read for it.
fn load(archive: Vec<u8>) -> Result<Traffic, String> {
    load_rows(Item::tensor("w", &SHAPE, archive), &[(0, 64)], true)
}

/// Loads rows of a tensor, from the first number to before the second, into a leaf each.
fn load_rows(item: Item, rows: &[(u64, u64)], verify: bool) -> Result<Traffic, String> {
    let made = made(&[item]);
    let mut template = StateDict::new();
    for (i, (from, to)) in rows.iter().enumerate() {
        let region = Region::new([*from, 0], [to - from, 32]);
        template.insert(
            format!("rows {i}"),
            ShardedTensor::region_of("w", DType::Float32, &SHAPE, region),
        );
    }
    let load = reshard::load(template, &made.url).verify(verify);
    let (state, report) =
        blocking::run(load.with_report()).map_err(|e| with_sources(e.to_string(), &e))?;
    for (i, (from, to)) in rows.iter().enumerate() {
        let Some(Tree::Leaf(Value::Tensor(found))) = state.get(&format!("rows {i}")) else {
            panic!("{state:?}")
        };
        let bytes = *from as usize * 128..*to as usize * 128;
        assert_eq!(found.to_bytes(), elements()[bytes]);
    }
    Ok(report.totals)
}

#[test]
fn records_may_lie_in_any_order_and_have_any_neighbours() {
    let (pickle, long, data, filler) = (described(), padded(2000), elements(), vec![7; 5000]);
    let version = ("version", &b"3\n"[..], false);
    let cases: [(&str, &[Record<'_>], [u64; 2]); 8] = [
        (
            "as usual",
            &[
                ("data.pkl", &pickle, false),
                version,
                ("data/0", &data, false),
            ],
            [2048, 3],
        ),
        (
            "storage first",
            &[
                ("data/0", &data, false),
                ("data.pkl", &pickle, false),
                version,
            ],
            [2048, 3],
        ),
        (
            "all in the middle",
            &[
                ("a", &filler, false),
                ("data.pkl", &pickle, false),
                ("data/0", &data, false),
                version,
                ("z", &filler, false),
            ],
            [2324, 8],
        ),
        (
            "a packed description",
            &[
                ("a", &filler, false),
                ("data.pkl", &long, true),
                ("data/0", &data, false),
                version,
            ],
            [2293, 7],
        ),
        (
            "a description over the end",
            &[
                ("data.pkl", &long, false),
                ("data/0", &data, false),
                version,
            ],
            [4284, 6],
        ),
        (
            "a description before the tail",
            &[
                ("data/0", &data, false),
                version,
                ("data.pkl", &long, false),
            ],
            [4286, 6],
        ),
        (
            "a byte order in the middle",
            &[
                ("data.pkl", &pickle, false),
                ("a", &filler, false),
                ("byteorder", b"little", false),
                ("data/0", &data, false),
                version,
            ],
            [2145, 7],
        ),
        (
            "nothing stored in between",
            &[
                ("data.pkl", &pickle, false),
                version,
                ("data/0", &data, true),
            ],
            [0, 2],
        ),
    ];
    let mut wrong = String::new();
    for (what, records, expected) in cases {
        let t = load(zip(records)).unwrap();
        assert_eq!((t.needed, t.bytes, t.verified), (8192, 8192, 1), "{what}");
        let got = [t.beside, t.requests];
        if got != expected {
            wrong.push_str(&format!("{what}: {got:?}, not {expected:?}\n"));
        }
    }
    assert!(wrong.is_empty(), "[headers, requests]\n{wrong}");
}

#[test]
fn a_directory_may_be_longer_than_the_tail_that_is_read() {
    let (pickle, data) = (described(), elements());
    let names: Vec<String> = (0..40)
        .map(|i| format!("a name of some length {i}"))
        .collect();
    let mut records = vec![
        ("data.pkl", &pickle[..], false),
        ("data/0", &data, false),
        ("version", b"3\n", false),
    ];
    records.extend(names.iter().map(|name| (&**name, &b""[..], false)));
    let t = load(zip(&records)).unwrap();
    assert_eq!((t.beside, t.requests), (5363, 5));
}

#[test]
fn a_description_has_a_size_that_is_plausible() {
    let data = elements();
    // What is thrown away, what is around it, and the rest.
    let (most, other) = (1 << 20, (padded(0).len()) as u32);
    let archive = |bytes| {
        zip(&[
            ("data.pkl", &padded(bytes)[..], false),
            ("data/0", &data, false),
            ("version", b"3\n", false),
        ])
    };
    load(archive(most - other)).unwrap();
    let e = load(archive(most - other + 1)).unwrap_err();
    assert!(
        e.contains("tensor w") && e.contains("larger than any tensor needs"),
        "{e}"
    );
}

#[test]
fn what_is_packed_is_unpacked_as_far_as_it_is_wanted_and_checked_at_its_end() {
    let (pickle, data) = (described(), elements());
    let usual = [("data.pkl", &pickle[..], false), ("version", b"3\n", false)];
    let deflated = || {
        Item::tensor(
            "w",
            &SHAPE,
            zip(&[usual[0], usual[1], ("data/0", &data, true)]),
        )
    };
    let stored = zip(&[usual[0], usual[1], ("data/0", &data, false)]);
    let transformed = || Item::tensor("w", &SHAPE, zstd(&stored, 0)).transformed("stream.zstd/1");
    let mut wrong = String::new();
    for (what, item, rows, verify, expected) in [
        (
            "deflated",
            deflated(),
            vec![(0, 64)],
            true,
            [8192, 8192, 0, 2, 1],
        ),
        (
            "deflated, not checked",
            deflated(),
            vec![(0, 64)],
            false,
            [8192, 8192, 0, 2, 0],
        ),
        (
            "first rows",
            deflated(),
            vec![(0, 10)],
            true,
            [1280, 1280, 4460, 2, 1],
        ),
        (
            "last rows",
            deflated(),
            vec![(60, 64)],
            true,
            [512, 512, 5228, 2, 1],
        ),
        (
            "rows at both ends",
            deflated(),
            vec![(0, 2), (62, 64)],
            true,
            [512, 512, 5228, 2, 1],
        ),
        (
            "rows in the middle",
            deflated(),
            vec![(30, 33)],
            true,
            [384, 384, 5356, 2, 1],
        ),
        (
            "transformed",
            transformed(),
            vec![(0, 64)],
            true,
            [8192, 8192, 540, 1, 1],
        ),
        (
            "transformed, not checked",
            transformed(),
            vec![(0, 64)],
            false,
            [8192, 8192, 540, 1, 0],
        ),
        (
            "transformed rows",
            transformed(),
            vec![(1, 2), (7, 9)],
            true,
            [384, 384, 8348, 1, 1],
        ),
    ] {
        let t = load_rows(item, &rows, verify).unwrap();
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
fn small_neighbours_are_read_together_and_what_lies_between_counts_as_headers() {
    let (pickle, data) = (described(), elements());
    let archive = || {
        zip(&[
            ("data.pkl", &pickle[..], false),
            ("version", b"3\n", false),
            ("data/0", &data, false),
        ])
    };
    let beside = archive().len() as u64 - data.len() as u64;
    let keys = ["a", "b", "c"];
    let made = made(&keys.map(|key| Item::tensor(key, &SHAPE, archive())));
    let mut template = StateDict::new();
    for key in keys {
        template.insert(key, ShardedTensor::template(key, DType::Float32, &SHAPE));
    }
    let (_, report) = blocking::run(reshard::load(template, &made.url).with_report()).unwrap();
    let t = report.totals;
    assert_eq!((t.needed, t.bytes, t.verified), (3 * 8192, 3 * 8192, 3));
    // Both ends of each archive, then the elements in one read with two gaps between them.
    assert_eq!((t.beside, t.requests), (6 * 1024 + 2 * beside, 7));
}

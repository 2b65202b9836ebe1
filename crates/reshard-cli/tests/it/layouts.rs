//! Archives of tensors whose records lie otherwise than PyTorch lays them: all of them are read, with few requests more.

use crate::{
    handmade::{Item, pickle, view, zip},
    limits::made,
};
use reshard::{DType, ShardedTensor, StateDict, blocking, strategy::ReadTotals};

const SHAPE: [u64; 2] = [64, 32];

fn elements() -> Vec<u8> {
    (0..2048u16).flat_map(|i| f32::from(i).to_le_bytes()).collect()
}

/// The description of the tensor.
fn described() -> Vec<u8> {
    pickle(view(&SHAPE, &[32, 1], 2048))
}

/// The same, with a text before it that is thrown away.
fn padded(bytes: u32) -> Vec<u8> {
    let text = [&b"X"[..], &bytes.to_le_bytes(), &vec![b'x'; bytes as usize], b"0"].concat();
    [&b"\x80\x02"[..], &text, &described()[2..]].concat()
}

/// Loads the tensor, and says what was read for it.
fn load(archive: Vec<u8>) -> Result<ReadTotals, String> {
    let made = made(&[Item::tensor("w", &SHAPE, archive)]);
    let mut template = StateDict::new();
    template.insert("w", ShardedTensor::template("w", DType::Float32, &SHAPE));
    let (state, report) = blocking::run(reshard::load(template, &made.url).with_report()).map_err(|e| {
        std::iter::successors(Some(&e as &dyn std::error::Error), |e| e.source())
            .map(|e| e.to_string())
            .collect::<Vec<_>>()
            .join(": ")
    })?;
    let Some(reshard::Tree::Leaf(reshard::Value::Tensor(w))) = state.get("w") else { panic!("{state:?}") };
    assert_eq!(w.to_bytes(), elements());
    Ok(report.totals)
}

#[test]
fn records_may_lie_in_any_order_and_have_any_neighbours() {
    let (pickle, long, data, filler) = (described(), padded(2000), elements(), vec![7; 5000]);
    let version = ("version", &b"3\n"[..], false);
    let cases: [(&str, &[(&str, &[u8], bool)], [u64; 2]); 8] = [
        ("as usual", &[("data.pkl", &pickle, false), version, ("data/0", &data, false)], [2048, 3]),
        ("storage first", &[("data/0", &data, false), ("data.pkl", &pickle, false), version], [2048, 3]),
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
            &[("a", &filler, false), ("data.pkl", &long, true), ("data/0", &data, false), version],
            [2293, 7],
        ),
        (
            "a description over the end",
            &[("data.pkl", &long, false), ("data/0", &data, false), version],
            [4284, 6],
        ),
        (
            "a description before the tail",
            &[("data/0", &data, false), version, ("data.pkl", &long, false)],
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
            &[("data.pkl", &pickle, false), version, ("data/0", &data, true)],
            [0, 2],
        ),
    ];
    let mut wrong = String::new();
    for (what, records, expected) in cases {
        let t = load(zip(records)).unwrap();
        assert_eq!((t.needed, t.read, t.verified), (8192, 8192, 1), "{what}");
        let got = [t.headers, t.requests];
        if got != expected {
            wrong.push_str(&format!("{what}: {got:?}, not {expected:?}\n"));
        }
    }
    assert!(wrong.is_empty(), "[headers, requests]\n{wrong}");
}

#[test]
fn a_directory_may_be_longer_than_the_tail_that_is_read() {
    let (pickle, data) = (described(), elements());
    let names: Vec<String> = (0..40).map(|i| format!("a name of some length {i}")).collect();
    let mut records =
        vec![("data.pkl", &pickle[..], false), ("data/0", &data, false), ("version", b"3\n", false)];
    records.extend(names.iter().map(|name| (&**name, &b""[..], false)));
    let t = load(zip(&records)).unwrap();
    assert_eq!((t.headers, t.requests), (5363, 5));
}

#[test]
fn a_description_has_a_size_that_is_plausible() {
    let data = elements();
    // What is thrown away, what is around it, and the rest.
    let (most, other) = (1 << 20, (padded(0).len()) as u32);
    let archive = |bytes| {
        zip(&[("data.pkl", &padded(bytes)[..], false), ("data/0", &data, false), ("version", b"3\n", false)])
    };
    load(archive(most - other)).unwrap();
    let e = load(archive(most - other + 1)).unwrap_err();
    assert!(e.contains("tensor w") && e.contains("larger than any tensor needs"), "{e}");
}

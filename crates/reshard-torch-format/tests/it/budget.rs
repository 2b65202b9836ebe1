//! What is drawn from the budget of memory: the least with which a file is read, to the byte.

use bytes::Bytes;
use reshard_model::DType;
use reshard_torch_format::{
    Limits, LoadOptions, TensorRef,
    archive::{ArchiveOptions, write_archive},
    load_with,
};

/// The least budget with which a pickle is read.
fn least(pickle: &[u8]) -> u64 {
    let enough = |memory| {
        let limits = Limits {
            memory: Some(memory),
            ..Limits::default()
        };
        load_with(
            Bytes::copy_from_slice(pickle),
            &LoadOptions::default().with_limits(limits),
        )
        .is_ok()
    };
    let (mut too_few, mut most) = (0, 1 << 30);
    assert!(enough(most) && !enough(too_few));
    while most - too_few > 1 {
        let half = too_few.midpoint(most);
        if enough(half) {
            most = half
        } else {
            too_few = half
        }
    }
    most
}

/// A dict of ints, the first ones of which come a second time.
fn dict(keys: u16, again: u16) -> Vec<u8> {
    let pairs = (0..keys)
        .chain(0..again)
        .flat_map(|key| [&b"M"[..], &key.to_le_bytes(), b"N"].concat());
    [&b"}("[..], &pairs.collect::<Vec<_>>(), b"u"].concat()
}

fn program(parts: &[&[u8]]) -> Vec<u8> {
    [parts.concat(), b".".to_vec()].concat()
}

#[test]
fn what_is_built_is_drawn_from_the_budget() {
    let bytes = [&b"B"[..], &1000u32.to_le_bytes(), &[7; 1000]].concat();
    let array = [&b"\x96"[..], &1000u64.to_le_bytes(), &[7; 1000]].concat();
    let latin = [
        b"c_codecs\nencode\n(X",
        &200u32.to_le_bytes()[..],
        "ÿ".repeat(100).as_bytes(),
        b"U\x06latin1tR",
    ]
    .concat();
    let tensor = TensorRef::contiguous(DType::Float32, &[4, 4])
        .unwrap()
        .pickle()
        .unwrap();
    let odd = [&b"X"[..], &3u32.to_le_bytes(), b"\xed\xa0\x80"].concat();
    // Three views of one storage, which have to be copied. As many bytes as the file has are free.
    let mut negated = TensorRef::contiguous(DType::Float32, &[1024]).unwrap();
    negated.neg = true;
    let negated = negated.pickle().unwrap();
    let view = &negated[2..negated.len() - 1];
    let views = [&b"\x80\x02("[..], view, view, view, b"t."].concat();
    let twice = |what: &[u8]| program(&[b"(", what, b"q\0h\0t"]);
    let mut wrong = String::new();
    for (what, pickle, expected) in [
        ("nothing", program(&[b"N"]), 1296),
        ("a small dict", program(&[&dict(4, 0)]), 2384),
        (
            "a small dict with a key again",
            program(&[&dict(4, 1)]),
            2384,
        ),
        ("a dict", program(&[&dict(100, 0)]), 31_632),
        (
            "a key again and again",
            program(&[b"}(", &b"K\x07N".repeat(200), b"u"]),
            15_712,
        ),
        ("a dict with a key again", program(&[&dict(100, 1)]), 32_464),
        (
            "a dict with all keys again",
            program(&[&dict(100, 100)]),
            33_264,
        ),
        (
            "the same, written out twice",
            twice(&dict(100, 100)),
            59_184,
        ),
        ("bytes", program(&[&bytes]), 1296),
        ("bytes, twice", twice(&bytes), 1600),
        ("bytes of Python 2", program(&[&latin]), 1824),
        ("bytes of Python 2, twice", twice(&latin), 2384),
        ("a byte array", program(&[b"\x80\x05", &array]), 1776),
        (
            "a tensor",
            write_archive(&tensor, &[&[0; 64]], &ArchiveOptions::default()).unwrap(),
            2224,
        ),
        ("a str that is none", program(&[&odd]), 2096),
        (
            "copies",
            write_archive(&views, &[&[0; 4096]], &ArchiveOptions::default()).unwrap(),
            11_831,
        ),
        ("a class", program(&[b"ca.module\nC\n"]), 1776),
        ("an object", program(&[b"ca.module\nC\n)R"]), 1872),
        (
            "a list",
            program(&[b"](", &b"N".repeat(1000), b"e"]),
            133_328,
        ),
    ] {
        let found = least(&pickle);
        if found != expected {
            wrong.push_str(&format!("{what}: {found}, not {expected}\n"));
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

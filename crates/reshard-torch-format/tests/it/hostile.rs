//! Bytes from anywhere give an error, never a panic.

use crate::samples::samples;
use bytes::Bytes;
use proptest::{prelude::*, sample::Index};
use reshard_torch_format::{
    Error, Limits, LoadOptions, TensorRef,
    archive::{Archive, Tail, Verify},
    load, load_with,
    pickle::{Graph, Op, Reader, run},
};
use std::sync::LazyLock;

/// Everything that reads; small limits keep a hostile file that is *allowed* to be large from taking time.
pub(crate) fn read_all(bytes: &[u8]) {
    let limits = Limits {
        nodes: 20_000,
        bytes: 1 << 20,
        unpacked: 1 << 20,
        ..Default::default()
    };
    let options = LoadOptions::default()
        .with_limits(limits)
        .with_verify(Verify::No);
    let shared = Bytes::copy_from_slice(bytes);
    let value = load_with(shared.clone(), &options);
    if let Ok(value) = value {
        // What was read can be written, unless it is nested deeper than Python could.
        if let Ok(file) = reshard_torch_format::save(&value) {
            assert_eq!(
                load_with(file.into(), &LoadOptions::default()).unwrap(),
                value
            );
        }
    }
    let mut graph = Graph::default();
    drop(run(bytes, &mut graph, &limits));
    drop(TensorRef::parse(bytes, &limits));
    drop(Tail::parse(bytes.len() as u64, bytes));
    drop(Tail::parse(u64::MAX, bytes));
    if let Ok(archive) = Archive::open(shared, &limits) {
        for record in archive.directory().records() {
            drop(archive.content(record, Verify::Crc));
        }
        if let Ok(pickle) = archive.read("data.pkl", Verify::No) {
            drop(TensorRef::parse(&pickle, &limits));
        }
    }
}

static FILES: LazyLock<Vec<Bytes>> =
    LazyLock::new(|| samples().into_iter().map(|(_, bytes, _)| bytes).collect());

/// The pickle in each sample, or the sample if it is one.
static PICKLES: LazyLock<Vec<Bytes>> = LazyLock::new(|| {
    FILES
        .iter()
        .map(
            |bytes| match Archive::open(bytes.clone(), &Limits::default()) {
                Ok(archive) => archive.read("data.pkl", Verify::Crc).unwrap(),
                Err(_) => bytes.clone(),
            },
        )
        .collect()
});

fn mutate(bytes: &[u8], changes: &[(Index, u8, u8)]) -> Vec<u8> {
    let mut out = bytes.to_vec();
    for (at, kind, v) in changes {
        let at = at.index(out.len().max(1));
        match kind % 4 {
            0 if at < out.len() => out[at] = *v,
            1 => out.insert(at, *v),
            2 if at < out.len() => {
                out.remove(at);
            }
            _ => out.truncate(at + 1),
        }
    }
    out
}

fn changes() -> impl Strategy<Value = Vec<(Index, u8, u8)>> {
    prop::collection::vec(
        (
            any::<Index>(),
            prop_oneof![8 => Just(0u8), 1 => 0u8..4],
            any::<u8>(),
        ),
        1..6,
    )
}

/// Instructions that fit together often enough to get somewhere.
fn program() -> impl Strategy<Value = Vec<u8>> {
    let op = prop_oneof![
        4 => any::<u8>().prop_map(|v| vec![b'K', v]),
        3 => (0u8..8).prop_map(|v| vec![b'h', v]),
        3 => (0u8..8).prop_map(|v| vec![b'q', v]),
        6 => prop::sample::select(b"()]}tN0123ldeasubRQo.".to_vec()).prop_map(|c| vec![c]),
        4 => (0x80u8..0x99).prop_map(|c| vec![c]),
        2 => "[a-z]{0,3}".prop_map(|s: String| [&[0x8c, s.len() as u8], s.as_bytes()].concat()),
        2 => prop::sample::select(vec!["c__builtin__\nset\n", "ccollections\nOrderedDict\n", "c_codecs\nencode\n",
            "ctorch._utils\n_rebuild_tensor_v2\n", "ctorch\nFloatStorage\n", "X\x07\0\0\0storage", "iargparse\nNamespace\n",
            "c__builtin__\ngetattr\n"]).prop_map(|s| s.as_bytes().to_vec()),
        1 => prop::collection::vec(any::<u8>(), 0..6),
    ];
    prop::collection::vec(op, 0..60).prop_map(|ops| [ops.concat(), vec![b'.']].concat())
}

proptest! {
    #![proptest_config(reshard_model::testkit::law(2000))]

    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        read_all(&bytes);
        read_all(&[b"PK\x03\x04", &bytes[..], b"PK\x05\x06\0\0\0\0\x01\0\x01\0\0\0\0\0\0\0\0\0\0\0"].concat());
    }

    #[test]
    fn random_programs_never_panic(program in program()) {
        read_all(&program);
    }

    #[test]
    fn damaged_pickles_never_panic(which: Index, changes in changes()) {
        let one: &Bytes = which.get(&PICKLES);
        read_all(&mutate(one, &changes));
    }

    #[test]
    fn damaged_files_never_panic(which: Index, changes in changes()) {
        let one: &Bytes = which.get(&FILES);
        read_all(&mutate(one, &changes));
    }

    #[test]
    fn instructions_are_written_as_they_were_read(which: Index) {
        let bytes: &Bytes = which.get(&PICKLES);
        let mut reader = Reader::new(bytes);
        let mut again = Vec::new();
        loop {
            let op = reader.next_op().unwrap();
            op.write(&mut again);
            if op == Op::Stop {
                break;
            }
        }
        prop_assert_eq!(&again[..], &bytes[..again.len()]);
    }
}

fn pickle_error(bytes: &[u8]) -> String {
    let mut graph = Graph::default();
    match run(bytes, &mut graph, &Limits::default()) {
        Ok(_) => panic!("{bytes:?} was read"),
        Err(e) => e.to_string(),
    }
}

#[test]
fn what_is_wrong_with_a_pickle_is_said_with_the_offset() {
    for (bytes, want) in [
        (
            &b""[..],
            "damaged at byte 0: the input ends inside an instruction",
        ),
        (
            b"\x80\x02",
            "damaged at byte 2: the input ends inside an instruction",
        ),
        (b"\x80\x06N.", "byte 0: pickle protocol 6 is not supported"),
        (
            b"NN.",
            "damaged at byte 2: the pickle ends with values left over",
        ),
        (
            b"(.",
            "damaged at byte 1: an instruction finds too few values",
        ),
        (b"N\xff.", "damaged at byte 1: 0xff is not a pickle opcode"),
        (b"X\xff\xff\xff\xffa.", "damaged at byte 0: the input ends"),
        (
            b"\x8b\xff\xff\xff\xff.",
            "damaged at byte 0: a length is negative",
        ),
        (
            b"Nr\xff\xff\xff\xff.",
            "damaged at byte 1: a memo number is larger than the pickle",
        ),
        (
            b"h\x00.",
            "damaged at byte 0: it names a memo entry that is not there",
        ),
        (
            b"\x82\x01.",
            "byte 0: a class by its number in Python's extension registry is not supported",
        ),
        (
            b"\x95\xff\0\0\0\0\0\0\0N.",
            "damaged at byte 0: a frame is longer than the rest",
        ),
        (
            b"NNR.",
            "damaged at byte 2: the arguments of a call are not a tuple",
        ),
        (
            b"N)R.",
            "damaged at byte 2: what is called is not a class or a function",
        ),
        (
            b"NNb.",
            "damaged at byte 2: it sets the state of something that is not an object",
        ),
        (
            b"NNa.",
            "damaged at byte 2: it appends to something that is not a list",
        ),
        (b"}(Nu.", "damaged at byte 3: a key has no value"),
        (
            b"X\x02\0\0\0\xff\xfe.",
            "damaged at byte 0: a text is not UTF-8",
        ),
        (b"I12x\n.", "damaged at byte 0: an int is not a number"),
        (b"cfoo", "damaged at byte 0: a line of text has no end"),
    ] {
        let error = pickle_error(bytes);
        assert!(error.contains(want), "{error}\nis not: {want}");
    }
    let limits = Limits {
        memo: 1,
        ..Default::default()
    };
    assert!(matches!(
        run(b"Np0\np1\n.", &mut Graph::default(), &limits),
        Err(Error::Limit { offset: 4, .. })
    ));
}

#[test]
fn an_old_file_cut_anywhere_is_an_error_and_offsets_count_from_its_start() {
    let file = crate::samples::sample("legacy.pt");
    for len in 0..file.len() {
        assert!(load(file.slice(..len)).is_err(), "cut at {len}");
    }
    let error = load(file.slice(..file.len() - 1)).unwrap_err().to_string();
    assert!(error.contains("the file ends inside a storage"), "{error}");
}

//! Small files that expand: each stops at its budget, or is read.

use crate::{
    asm::{archive, get, global, int, keep, laugh, program, put, tensor, text, tuple},
    counting::measured,
};
use proptest::prelude::*;
use reshard_torch_format::{Limits, LoadOptions, Result, TensorRef, load, load_with};

const MIB: u64 = 1 << 20;

/// What reading takes for the instructions themselves, whatever is built of them.
fn machine(file: &[u8]) -> u64 {
    32 * file.len() as u64 + 64 * 1024
}

/// Loads a file under the limits that are usual; says why it was refused, or nothing.
fn refusal(file: Vec<u8>) -> String {
    let len = file.len();
    let most = Limits::default().budget(len as u64).max() + machine(&file);
    let (result, peak, seconds) = measured(|| load(file.into()).map(drop));
    assert!(
        peak <= most,
        "{peak} bytes for a file of {len}, {most} are the most: {result:?}"
    );
    assert!(
        seconds < 5.0,
        "{seconds} s for a file of {len} bytes: {result:?}"
    );
    result.map_or_else(|e| e.to_string(), |()| String::new())
}

#[track_caller]
fn refused(file: Vec<u8>, why: &str) {
    let said = refusal(file);
    assert!(said.contains(why), "{said:?} is not: {why}");
}

#[test]
fn shared_values_stop_at_the_budget_when_they_are_written_out() {
    let name = global(&"m".repeat(490), &"n".repeat(490));
    let long = [&b"\x8b"[..], &100_000u32.to_le_bytes(), &[0x7f; 100_000]].concat();
    let odd = [&b"X"[..], &3u32.to_le_bytes(), b"\xed\xa0\x80"].concat();
    for leaf in [
        &name[..],
        &[&name[..], b")R"].concat(),
        &long,
        &[&global("a", "B")[..], b")R"].concat(),
        &[&global("a", "B")[..], b")\x81N\x85R"].concat(),
        b"N",
        b"K\x01",
        b"]",
        b"}",
        b"\x8f",
        b"(\x91",
        b"G\0\0\0\0\0\0\0\0",
        b"\x96\x01\0\0\0\0\0\0\0a",
        &odd,
        &text(&"t".repeat(1000)),
        b"}(K\x01K\x02K\x03K\x04u",
    ] {
        refused(laugh(leaf, 6, 14), "bytes of memory");
    }
    let said = refusal(laugh(b"N", 6, 14));
    assert!(said.contains("exceeds the limit of 671"), "{said}");
    assert!(said.contains("raise it in `Limits::memory`"), "{said}");
}

#[test]
fn a_higher_limit_lets_a_trusted_file_through() {
    let file = laugh(b"N", 5, 14);
    refused(file.clone(), "bytes of memory");
    let limits = Limits {
        memory: Some(512 * MIB),
        ..Default::default()
    };
    assert!(load_with(file.into(), &LoadOptions::default().with_limits(limits)).is_ok());
}

#[test]
fn a_large_shared_text_stops_at_the_text_that_is_allowed_or_at_the_budget() {
    refused(
        laugh(&text(&"q".repeat(1_000_000)), 3, 10),
        "bytes of memory",
    );
    // Bytes are shared with the file.
    let bytes = [&b"B"[..], &1_000_000u32.to_le_bytes(), &[7; 1_000_000]].concat();
    assert_eq!(refusal(laugh(&bytes, 2, 10)), "");
    refused(laugh(&bytes, 4, 10), "bytes of text");
}

#[test]
fn names_put_together_of_shared_texts_are_drawn_from_the_budget() {
    let side = 200;
    let mut out = Vec::new();
    for i in 0..2 * side {
        out.extend([text(&format!("{i:0>490}")), keep(i)].concat());
    }
    for a in 0..side {
        for b in side..2 * side {
            out.extend([&get(a)[..], &get(b), b"\x930"].concat());
        }
    }
    let file = program(&[&out, b"N"]);
    let limits = Limits {
        memory: Some(16 * MIB),
        ..Default::default()
    };
    let most = 16 * MIB + machine(&file);
    let (result, peak, _) =
        measured(|| load_with(file.into(), &LoadOptions::default().with_limits(limits)).map(drop));
    assert!(
        peak <= most && result.unwrap_err().to_string().contains("bytes of memory"),
        "{peak}"
    );
}

#[test]
fn objects_made_of_single_letters_are_drawn_from_the_budget() {
    refused(
        program(&[&global("a", "B"), &b")R".repeat(2_000_000)]),
        "bytes of memory",
    );
    refused(
        program(&[b"(", &b"]".repeat(3_000_000), b"t"]),
        "bytes of memory",
    );
    refused(
        program(&[b"(", &b"N".repeat(3_000_000), b"t"]),
        "bytes of memory",
    );
    refused(
        program(&[b"(", &b"N\x85".repeat(3_000_000), b"t"]),
        "bytes of memory",
    );
}

#[test]
fn deep_or_endless_values_are_refused_at_once() {
    refused(
        program(&[&b"]".repeat(100_000), &b"a".repeat(99_999)]),
        "256 levels of nesting",
    );
    refused(
        program(&[b"N", &b"\x85".repeat(200_000)]),
        "256 levels of nesting",
    );
    refused(program(&[&b"(".repeat(3_000_000)]), "too few values");
    refused(
        program(&[b"]", &put(0), &get(0), b"a"]),
        "a value that contains itself",
    );
    refused(
        program(&[b"}", &put(0), b"K\x01", &get(0), b"s"]),
        "a value that contains itself",
    );
    refused(
        program(&[b"]", &put(0), b"(", &get(0).repeat(50), b"e"]),
        "a value that contains itself",
    );
}

#[test]
fn absurd_numbers_take_no_memory() {
    refused(
        program(&[b"Nr\xff\xff\xff\xff"]),
        "a memo number is larger than the pickle",
    );
    refused(program(&[b"p99999999999999999999\n"]), "is not a number");
    refused(
        program(&[b"\x8d\xff\xff\xff\xff\xff\xff\xff\xffabc"]),
        "the input ends inside an instruction",
    );
    refused(program(&[b"\x8b\xff\xff\xff\xff"]), "a length is negative");
    refused(
        program(&[b"\x95\xff\xff\xff\xff\xff\xff\xff\xffN"]),
        "a frame is longer",
    );
    let digits = b"9".repeat(2_000_000);
    for int in [
        [b"L", &digits[..], b"L\n"].concat(),
        [b"I", &digits[..], b"\n"].concat(),
    ] {
        refused(program(&[&int]), "4300 decimal digits of an int");
    }
    // As long as they may be, many times.
    let int = [b"L", &b"9".repeat(4299)[..], b"L\n"].concat();
    assert_eq!(refusal(program(&[b"(", &int.repeat(1000), b"t"])), "");
}

#[test]
fn a_tensor_of_a_hundred_thousand_axes_is_refused() {
    let axes = [&tuple(&[&b"K\x01".repeat(100_000)])[..], &keep(0)].concat();
    let many = [
        &tensor(&get(0), &get(0), 1, b"")[..],
        &keep(1),
        b"](",
        &get(1).repeat(1000),
        b"e",
    ]
    .concat();
    refused(
        archive(&program(&[&axes, &many])),
        "a tensor of 100000 axes (at most 64) is not supported",
    );
    let axes = [&tuple(&[&b"K\x01".repeat(64)])[..], &keep(0)].concat();
    let many = |n| {
        [
            &tensor(&get(0), &get(0), 1, b"")[..],
            &keep(1),
            b"](",
            &get(1).repeat(n),
            b"e",
        ]
        .concat()
    };
    assert_eq!(refusal(archive(&program(&[&axes, &many(1000)]))), "");
    refused(
        archive(&program(&[&axes, &many(200_000)])),
        "bytes of memory",
    );
}

#[test]
fn elements_that_have_to_be_copied_are_copied_once_and_drawn_from_the_budget() {
    let neg = [b"}", &text("neg")[..], b"\x88s"].concat();
    let wide = |n: i64| {
        let t = tensor(&tuple(&[&int(n)]), &tuple(&[&int(0)]), 1, &neg);
        archive(&program(&[&t, &put(1), b"0](", &get(1).repeat(100), b"e"]))
    };
    refused(wide(1 << 28), "bytes of memory");
    assert_eq!(
        refusal(wide(1 << 22)),
        "",
        "16 MiB, a hundred times the same"
    );
    // Elements that are in the file may be copied once, whatever the budget is.
    let storage = vec![0; 8 << 20];
    let t = program(&[&tensor(
        &tuple(&[&int(2 << 20)]),
        &tuple(&[&int(1)]),
        2 << 20,
        &neg,
    )]);
    let file =
        reshard_torch_format::archive::write_archive(&t, &[&storage], &Default::default()).unwrap();
    let limits = Limits {
        memory: Some(MIB),
        ..Default::default()
    };
    assert!(load_with(file.into(), &LoadOptions::default().with_limits(limits)).is_ok());
}

#[test]
fn a_tensor_without_a_copy_may_repeat_its_elements() {
    let t = |n: i64| tensor(&tuple(&[&int(n)]), &tuple(&[&int(0)]), 1, b"");
    refused(archive(&program(&[&t(1 << 40)])), "bytes in a tensor");
    let many = program(&[&t(1 << 28), &put(1), b"0](", &get(1).repeat(1000), b"e"]);
    assert_eq!(refusal(archive(&many)), "");
}

/// Instructions that share, call, and fill, in any order that gets somewhere.
fn hostile() -> impl Strategy<Value = Vec<u8>> {
    let leaf = prop_oneof![
        (1usize..2000).prop_map(|n| text(&"x".repeat(n))),
        (1usize..400).prop_map(|n| global(&"m".repeat(n), "n")),
        (1usize..400).prop_map(|n| [&global("m", &"n".repeat(n))[..], b")R"].concat()),
        (9u32..3000).prop_map(|n| [&b"\x8b"[..], &n.to_le_bytes(), &vec![1; n as usize]].concat()),
        (20usize..3000).prop_map(|n| [b"L", &b"7".repeat(n)[..], b"\n"].concat()),
        (1usize..500).prop_map(|n| [b"V", &b"\xe9".repeat(n)[..], b"\n"].concat()),
        (1usize..500).prop_map(|n| [b"S'", &b"\\n".repeat(n)[..], b"'\n"].concat()),
        (1usize..60).prop_map(|n| [b"(", &b"K\x01".repeat(n)[..], b"t"].concat()),
        (1usize..60).prop_map(|n| [b"}(", &b"K\x01N".repeat(n)[..], b"u"].concat()),
        (1usize..60).prop_map(|n| [b"}", &b"K\x01K\x02s".repeat(n)[..]].concat()),
        (1usize..60).prop_map(|n| [b"(", &b"N".repeat(n)[..], b"\x91"].concat()),
        (1usize..60)
            .prop_map(|n| [&global("a", "B")[..], b")\x81(", &b"N".repeat(n), b"e"].concat()),
        (1usize..60).prop_map(|n| [b"(", &b"]".repeat(n)[..], b"l"].concat()),
        prop::sample::select(vec![
            &b"N"[..],
            b"]",
            b"}",
            b")",
            b"\x8f",
            b"G\0\0\0\0\0\0\0\0",
            b"\x88",
            b"K\x05"
        ])
        .prop_map(<[u8]>::to_vec),
    ];
    let wrap = prop::sample::select(vec![
        (&b"]("[..], &b"e"[..]),
        (b"(", b"t"),
        (b"(", b"\x91"),
        (b"\x8f(", b"\x90"),
        (b"}(", b"u"),
        (b"ca\nB\n(", b"tR"),
        (b"ca\nB\n(", b"t\x81"),
        (b"ca\nB\n)R(", b"e"),
        (b"ca\nB\n)R(", b"u"),
        (b"ca\nB\n)R(", b"tb"),
        (b"cbuiltins\nset\n(](", b"etR"),
    ]);
    let levels = prop::collection::vec((wrap, 1usize..12), 0..7);
    (leaf, levels).prop_map(|(leaf, levels)| {
        let mut out = [leaf, keep(0)].concat();
        for (level, ((open, close), width)) in (0u32..).zip(&levels) {
            // Pairs are whole.
            out.extend(
                [
                    open,
                    &get(level).repeat(2 * width)[..],
                    close,
                    &keep(level + 1),
                ]
                .concat(),
            );
        }
        program(&[&out, &get(levels.len() as u32)])
    })
}

proptest! {
    #![proptest_config(reshard_model::testkit::law(1500))]

    #[test]
    fn nothing_takes_more_than_its_budget(pickle in hostile(), memory in 0u64..4_000_000, packed: bool) {
        let file = if packed { archive(&pickle) } else { pickle.clone() };
        let limits = Limits { memory: Some(memory), ..Default::default() };
        let most = memory + machine(&file);
        let options = LoadOptions::default().with_limits(limits);
        let parse = |file: Vec<u8>| -> Result<()> { load_with(file.into(), &options).map(drop) };
        let (result, peak, _) = measured(|| parse(file));
        prop_assert!(peak <= most, "{peak} bytes, {most} are the most: {result:?}");
        let (result, peak, _) = measured(|| TensorRef::parse(&pickle, &limits).map(drop));
        prop_assert!(peak <= most, "{peak} bytes for a graph, {most} are the most: {result:?}");
    }
}

#[test]
fn a_memo_number_takes_a_bit_for_each_that_is_below_it() {
    // A number may be as large as the pickle is long.
    let number = 1_000_000u32.to_le_bytes();
    let pickle = [
        &b"N0".repeat(1 << 19)[..],
        b"K\x01r",
        &number,
        b"0j",
        &number,
    ]
    .concat();
    assert_eq!(refusal(archive(&program(&[&pickle]))), "");
}

//! Globals of pickles that nobody trusts.

use crate::{rebuild::pickles, samples::samples};
use proptest::prelude::*;
use reshard_model::testkit::law;
use reshard_torch_format::{
    Limits,
    pickle::{Verdict, scan, verdict},
};

fn found(pickle: &[u8]) -> Vec<(String, Verdict)> {
    let all = scan(pickle, &Limits::default()).globals.into_iter();
    all.map(|global| (global.name.into(), global.verdict))
        .collect()
}

#[test]
fn globals_are_found_however_a_pickle_names_them() {
    use Verdict::{Allowed, RunsCode, Unknown};
    let unnamed = "(a name that can't be determined)";
    let hidden = "(instructions that a frame hides)";
    type Row<'a> = (&'a [u8], &'a [(&'a str, Verdict)]);
    let cases: [Row<'_>; 27] = [
        // GLOBAL, with the names of Python 2.
        (b"c__builtin__\neval\n(S'1'\ntR.", &[("builtins.eval", RunsCode)]),
        // INST and OBJ.
        (b"(S'ls'\nios\nsystem\n.", &[("os.system", RunsCode)]),
        (b"(cposix\nsystem\nS'ls'\no.", &[("posix.system", RunsCode)]),
        // STACK_GLOBAL: names from the stack, the memo and a duplicate.
        (b"\x80\x04\x8c\x02os\x8c\x06system\x93.", &[("os.system", RunsCode)]),
        (b"\x80\x04\x8c\x02os\x94\x8c\x06system\x940h\x00h\x01\x93.", &[("os.system", RunsCode)]),
        (b"\x80\x04\x8c\x02os\x94q\x05X\x06\x00\x00\x00system0\x8c\x06systemr\x00\x01\x00\x000h\x05j\x00\x01\x00\x00\x93.", &[("os.system", RunsCode)]),
        (b"\x80\x04\x8c\x03pdb2\x93.", &[("pdb.pdb", RunsCode)]),
        // Names that a call computes, or that are no text.
        (b"\x80\x04c__main__\nf\n)R\x8c\x06system\x93.", &[(unnamed, Unknown), ("__main__.f", Unknown)]),
        (b"\x80\x04K\x01K\x02\x93.", &[(unnamed, Unknown)]),
        // A qualified name that leads out of its module.
        (b"\x80\x04\x8c\x05torch\x8c\x17serialization.os.system\x93.", &[("torch.serialization.os.system", RunsCode)]),
        // getattr, also in chains: judged by what it returns.
        (b"c__builtin__\ngetattr\n(cmy\nOuter\nS'Inner'\ntR.", &[("my.Outer", Unknown), ("my.Outer.Inner", Unknown)]),
        (
            b"c__builtin__\ngetattr\n(c__builtin__\ngetattr\n(cmy\nmod\nS'os'\ntRS'system'\ntR.",
            &[("my.mod", Unknown), ("my.mod.os", RunsCode), ("my.mod.os.system", RunsCode)],
        ),
        (
            b"c__builtin__\ngetattr\n(cmy\nf\n)RS'__globals__'\ntR.",
            &[("(attribute __globals__ of a computed value)", RunsCode), ("my.f", Unknown)],
        ),
        // getattr that somebody else calls.
        (b"cmy\nf\n(c__builtin__\ngetattr\ntR.", &[("builtins.getattr", RunsCode), ("my.f", Unknown)]),
        // Calls in chains, and a state that is set.
        (
            b"cimportlib\nimport_module\n(S'os'\ntR(dS'x'\ncmy\ng\nsb.",
            &[("importlib.import_module", RunsCode), ("my.g", Unknown)],
        ),
        // Attributes of a module are set.
        (
            b"\x80\x02ctorch\n_utils\n}U\x01xU\x01ysb.",
            &[("(attributes of torch._utils are set)", RunsCode), ("torch._utils", Unknown)],
        ),
        // The extension registry of Python.
        (b"\x80\x02\x82\x01.", &[("(a class by its number in the extension registry)", Unknown)]),
        // Pickles behind a pickle, and one in a byte string.
        (b"\x80\x02K\x01.\x80\x02cos\nsystem\n.", &[("os.system", RunsCode)]),
        (
            b"\x80\x03ctorch.storage\n_load_from_bytes\nC\x0ccos\nsystem\n.\x85R.",
            &[("os.system", RunsCode), ("torch.storage._load_from_bytes", Unknown)],
        ),
        // One in text, as protocols before 3 write bytes.
        (
            b"\x80\x02ctorch.storage\n_load_from_bytes\nc_codecs\nencode\nX\x0c\0\0\0cos\nsystem\n.U\x06latin1\x86R\x85R.",
            &[("_codecs.encode", Allowed), ("os.system", RunsCode), ("torch.storage._load_from_bytes", Unknown)],
        ),
        // One that a call makes, and one that somebody else loads.
        (
            b"\x80\x02ctorch.storage\n_load_from_bytes\ncmy\nf\n)R\x85R.",
            &[("(a pickle that can't be determined)", RunsCode), ("my.f", Unknown), ("torch.storage._load_from_bytes", Unknown)],
        ),
        (
            b"\x80\x02cfunctools\npartial\nctorch.storage\n_load_from_bytes\n\x85R.",
            &[("functools.partial", Allowed), ("torch.storage._load_from_bytes", RunsCode)],
        ),
        // What breaks after Python has run it.
        (b"cos\nsystem\n(S'ls'\ntR\xff", &[("os.system", RunsCode)]),
        (b"\x80\x02ccollections\nOrderedDict\n)R.", &[("collections.OrderedDict", Allowed)]),
        // A frame that ends inside bytes: Python's reader in C runs these bytes. A frame in a frame. One that ends with an instruction.
        (b"\x80\x04\x95\x03\0\0\0\0\0\0\0C\x0bcos\nsystem\n0.", &[(hidden, RunsCode)]),
        (b"\x80\x04\x95\x0c\0\0\0\0\0\0\0N\x95\x01\0\0\0\0\0\0\0N.", &[(hidden, RunsCode)]),
        (b"\x80\x04\x95\x02\0\0\0\0\0\0\0K\x01\x95\x01\0\0\0\0\0\0\0.", &[]),
    ];
    for (pickle, want) in cases {
        let mut want: Vec<(String, Verdict)> =
            want.iter().map(|(name, v)| ((*name).into(), *v)).collect();
        want.sort();
        assert_eq!(found(pickle), want, "{}", pickle.escape_ascii());
    }
}

#[test]
fn a_scan_says_where_it_stopped() {
    let limits = Limits::default();
    let broken = scan(b"\x80\x02K\x01.\xff\xff", &limits);
    assert_eq!((broken.pickles, broken.end), (1, 5));
    assert!(broken.stopped.unwrap().starts_with("byte 5: 0xff is not"));
    let sound = scan(b"\x80\x02K\x01.N.", &limits);
    assert_eq!((sound.pickles, sound.end, sound.stopped), (2, 7, None));
}

/// Texts that are fetched many times, names made of them, and pickles that are loaded many times.
#[test]
fn a_scan_takes_no_more_for_what_a_pickle_repeats() {
    let text = [b"V", &b"a".repeat(100_000)[..], b"\\u0041\nq\0"].concat();
    let inner = [&b"N0".repeat(50_000)[..], b"N."].concat();
    let length = (inner.len() as u32).to_le_bytes();
    let load = b"ctorch.storage\n_load_from_bytes\nq\x01";
    for (pickle, name) in [
        (
            [b"\x80\x04", &text[..], &b"h\0".repeat(50_000), b"."].concat(),
            None,
        ),
        (
            [b"\x80\x04", &text[..], &b"h\0h\0\x93".repeat(20_000), b"."].concat(),
            Some("(a name longer than 255 bytes)"),
        ),
        (
            [
                b"\x80\x04B",
                &length[..],
                &inner,
                b"q\0",
                load,
                &b"h\x01h\0\x85R0".repeat(20_000),
                b"N.",
            ]
            .concat(),
            Some("torch.storage._load_from_bytes"),
        ),
    ] {
        let scanned = scan(&pickle, &Limits::default());
        let names: Vec<&str> = scanned.globals.iter().map(|global| &*global.name).collect();
        assert_eq!(names, name.into_iter().collect::<Vec<_>>());
        assert_eq!(scanned.stopped, None);
    }
}

#[test]
fn pickles_in_byte_strings_are_followed_to_a_depth() {
    let mut pickle = b"cos\nsystem\n.".to_vec();
    for depth in 1..=6 {
        let length = (pickle.len() as u32).to_le_bytes();
        let load = b"\x80\x03ctorch.storage\n_load_from_bytes\nB";
        pickle = [load, &length[..], &pickle, b"\x85R."].concat();
        let names: Vec<String> = found(&pickle).into_iter().map(|(name, _)| name).collect();
        let deep = "(a pickle in more than 4 byte strings)".to_owned();
        assert_eq!(names.contains(&"os.system".into()), depth <= 4);
        assert_eq!(names.contains(&deep), depth > 4);
    }
}

/// All that reading interprets is in the table.
#[test]
fn what_torch_writes_for_tensors_is_allowed() {
    for (module, name, _) in pickles::FUNCTIONS {
        assert_eq!(verdict(module, name), Verdict::Allowed, "{module}.{name}");
    }
    for module in [
        "torch.nn.modules.linear",
        "__main__",
        "transformers.training_args",
    ] {
        assert_eq!(verdict(module, "Linear"), Verdict::Unknown);
    }
}

proptest! {
    #![proptest_config(law(2000))]

    #[test]
    fn any_bytes_are_scanned_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        drop(found(&bytes));
    }

    /// Damage shows other globals, and never panics.
    #[test]
    fn damaged_pickles_are_scanned(
        n in any::<prop::sample::Index>(), at in any::<prop::sample::Index>(), byte: u8,
    ) {
        let all: Vec<Vec<u8>> = pickles::pickles().map(|(_, pickle)| pickle).collect();
        let mut pickle = n.get(&all).clone();
        let at = at.index(pickle.len());
        pickle[at] = byte;
        drop(found(&pickle));
    }

    #[test]
    fn every_name_has_a_verdict(module in "[a-z_.]{0,20}", name in "[a-zA-Z_.]{0,20}") {
        prop_assert!(!verdict(&module, &name).name().is_empty());
    }
}

/// What a scan finds are all names that a parse finds.
#[test]
fn a_scan_finds_what_a_parse_finds() {
    for (name, bytes, _) in samples()
        .into_iter()
        .filter(|(name, ..)| name.ends_with(".pkl"))
    {
        let mut graph = reshard_torch_format::pickle::Graph::default();
        if reshard_torch_format::pickle::run(&bytes, &mut graph, &Limits::default()).is_err() {
            continue;
        }
        let scanned = found(&bytes);
        for id in graph.ids() {
            if let Some((module, class)) = graph.as_global(id)
                && class != "getattr"
            {
                let full = format!("{module}.{class}");
                assert!(
                    scanned.iter().any(|(name, _)| *name == full),
                    "{name}: {full}"
                );
            }
        }
    }
}

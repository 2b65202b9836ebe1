//! Containers in all idioms: which of their tensors are leaves.

use crate::samples::folder;
use bytes::Bytes;
use reshard_torch_format::{Contents, Leaf, Limits, Outline};
use serde_json::Value as Json;

fn contents(pickle: Vec<u8>) -> Contents {
    let limits = Limits::default();
    let pickle = Bytes::from(pickle);
    let outline = Outline::parse(&pickle, 10_000, &limits).unwrap();
    outline.contents(Default::default()).unwrap()
}

/// The keys of tensors, and those of objects.
fn keys(contents: &Contents) -> (Vec<String>, Vec<String>) {
    let (mut tensors, mut objects) = (Vec::new(), Vec::new());
    for found in &contents.leaves {
        match &found.leaf {
            Leaf::Tensor(Ok(_)) => tensors.push(found.path.to_string()),
            Leaf::Tensor(Err(e)) => panic!("{e}"),
            Leaf::Part(part) => panic!("{part:?}"),
            Leaf::Object(_) => objects.push(found.path.to_string()),
        }
    }
    (tensors, objects)
}

/// The classes of dicts and tuples, by their paths.
fn classes(contents: &Contents) -> Vec<(String, String)> {
    let of = contents.dicts.iter().filter_map(|dict| {
        let class = dict.class.as_ref()?;
        Some((dict.path.to_string(), class.class()))
    });
    of.collect()
}

fn unhex(text: &str) -> Vec<u8> {
    let byte = |i| u8::from_str_radix(&text[i..i + 2], 16).unwrap();
    (0..text.len()).step_by(2).map(byte).collect()
}

#[test]
fn every_container_of_python_3_shows_its_tensors_in_every_protocol() {
    let text = std::fs::read(folder("containers").join("python3.json")).unwrap();
    let cases: Json = serde_json::from_slice(&text).unwrap();
    for (name, case) in cases.as_object().unwrap() {
        let texts = |of: &str| -> Vec<String> {
            let all = case[of].as_array().unwrap().iter();
            all.map(|v| v.as_str().unwrap().into()).collect()
        };
        for (protocol, pickle) in texts("pickles").into_iter().enumerate() {
            let found = contents(unhex(&pickle));
            let want = (texts("tensors"), texts("objects"));
            assert_eq!(keys(&found), want, "{name} in protocol {protocol}");
            // The class of a container that was taken apart is not lost.
            let want = match &**name {
                "unknown dict" if protocol < 2 => Some(("", "copyreg._reconstructor")),
                "unknown dict" => Some(("", "stranger.Config")),
                "unknown OrderedDict" => Some(("", "stranger.Ordered")),
                "arguments and items" => Some(("", "stranger.Output")),
                "list" => Some(("", "builtins.list")),
                "tuple" => Some(("", "builtins.tuple")),
                _ => continue,
            };
            let classes = classes(&found);
            let first = classes.first().map(|(path, class)| (&**path, &**class));
            assert_eq!(first, want, "{name} in protocol {protocol}");
        }
    }
}

/// `{…}` as instructions of Python 2 and of hand-written pickles.
const W: &str = "ctorch._utils\n_rebuild_tensor\n((S'storage'\nctorch\nFloatStorage\nS'0'\nS'cpu'\nI4\ntQI0\n(I4\nt(I1\nttR";

#[test]
fn every_container_of_python_2_shows_its_tensors() {
    let cases: [(&str, &[&str], &[&str]); 16] = [
        // Protocol 0.
        ("(dp0\nS'w'\np1\nWs.", &["w"], &[]),
        ("(dp0\nVw\np1\nWsVn\nL3L\ns.", &["w"], &["n"]),
        ("(S'w'\nWd.", &["w"], &[]),
        ("(lp0\nWaWa.", &["0", "1"], &[]),
        ("(WWl.", &["0", "1"], &[]),
        ("(WI1\ntp0\n.", &["0"], &["1"]),
        ("(dS'a'\n(W(I1\nttp0\ns.", &[], &["a"]),
        // `OrderedDict`, whose items are an argument.
        (
            "ccollections\nOrderedDict\np0\n((lp1\n(lp2\nS'w'\naWaatRp3\n.",
            &["w"],
            &[],
        ),
        // The same of a subclass, with attributes.
        (
            "cstranger\nOrdered\n((l(lS'w'\naWaatR(dS'x'\nI1\nsb.",
            &["w"],
            &[],
        ),
        // A subclass of `dict`.
        (
            "ccopy_reg\n_reconstructor\n(cstranger\nConfig\nc__builtin__\ndict\n(dS'w'\nWstR.",
            &["w"],
            &[],
        ),
        (
            "ccollections\ndefaultdict\n(c__builtin__\nlist\ntRS'w'\nWs.",
            &["w"],
            &[],
        ),
        // Instances of classes of Python 2 are no containers.
        ("(dS'a'\n(istranger\nOld\n(dS'w'\nWsbs.", &[], &["a"]),
        // Protocols 1 and 2.
        ("}q\x00(U\x01wWU\x01nK\x01u.", &["w"], &["n"]),
        ("\u{80}\x02]q\x00(WWe.", &["0", "1"], &[]),
        (
            "\u{80}\x02cstranger\nConfig\n)\u{81}q\x01U\x01wWs}U\x01xK\x01sb.",
            &["w"],
            &[],
        ),
        ("\u{80}\x02W\u{85}.", &["0"], &[]),
    ];
    for (text, tensors, objects) in cases {
        let text = text.replace('W', W);
        let pickle = text.chars().map(|c| u8::try_from(u32::from(c)).unwrap());
        let found = contents(pickle.collect());
        let (t, o) = keys(&found);
        assert_eq!(
            (&t[..], &o[..]),
            (&tensors.map_strings()[..], &objects.map_strings()[..]),
            "{text:?}"
        );
    }
}

trait Strings {
    fn map_strings(&self) -> Vec<String>;
}

impl Strings for &[&str] {
    fn map_strings(&self) -> Vec<String> {
        self.iter().map(ToString::to_string).collect()
    }
}

#[test]
fn what_the_class_of_a_container_does_not_say_is_said() {
    let pickle = format!("cstranger\nOrdered\n((l(lS'w'\na{W}aatR.");
    let found = contents(pickle.into_bytes());
    let [(path, unsaid)] = &found.unsaid[..] else {
        panic!("{:?}", found.unsaid)
    };
    assert!(
        path.0.is_empty() && unsaid.contains("gets the items as an argument"),
        "{unsaid}"
    );
    let text = std::fs::read(folder("containers").join("python3.json")).unwrap();
    let cases: Json = serde_json::from_slice(&text).unwrap();
    let pickle = cases["arguments and items"]["pickles"][2].as_str().unwrap();
    let found = contents(unhex(pickle));
    assert!(
        found
            .unsaid
            .iter()
            .any(|(_, unsaid)| unsaid.contains("arguments of its class that hold tensors"))
    );
}

/// Lists, tuples and dicts that contain themselves or each other, thousands of levels deep, and one that is named very often.
#[test]
fn containers_of_any_depth_are_looked_at_without_recursion() {
    let limits = Limits::default();
    let deep = format!("{}{W}{}.", "(".repeat(50_000), "t".repeat(50_000));
    let own = "(lp0\n(g0\ntp1\nag1\na.".to_owned();
    let wide = format!("({W}tp0\n0(l{}.", "g0\na".repeat(5_000));
    for (text, is_read) in [(deep, false), (own, true), (wide, true)] {
        let pickle = Bytes::from(text);
        let read = Outline::parse(&pickle, pickle.len() as u64, &limits)
            .and_then(|outline| outline.contents(Default::default()));
        assert_eq!(read.is_ok(), is_read, "{:?}", read.err());
    }
}

//! All linked formats into all linked formats. A format that is linked is in it.

use crate::formats::states::{
    Case, cases, contents, dialect, formats, holds_objects, leaves, open, save, strategy, unwrapped,
};
use futures::executor::block_on;
use reshard::{
    BackendVersion, Checkpoint, Dialect, ErrorKind, ShardedTensor, StateDict, Tensor, blocking,
};
use reshard_convert::{ConvertError, NotHeld, convert};
use std::{collections::BTreeSet, ops::Range};

/// The pairs of which not everything is carried over, or comes back: safetensors has no place for objects, and zarr only for those of Megatron
/// Core. All others, so many, are carried over and back.
const NOT: &[&str] = &[
    "megatron: safetensors can't save it",
    "megatron: tensor_bundle can't save it",
    "megatron: torch_dist not all to safetensors",
    "megatron: torch_save can't save it",
    "megatron: zarr not all to safetensors",
    "megatron: zarr not back from tensor_bundle",
    "megatron: zarr not back from torch_save",
    "megatron: zarr3 not all to safetensors",
    "megatron: zarr3 not back from tensor_bundle",
    "megatron: zarr3 not back from torch_save",
    "objects: safetensors can't save it",
    "objects: tensor_bundle not all to safetensors",
    "objects: tensor_bundle not all to zarr",
    "objects: tensor_bundle not all to zarr3",
    "objects: torch_dist not all to safetensors",
    "objects: torch_dist not all to zarr",
    "objects: torch_dist not all to zarr3",
    "objects: torch_save not all to safetensors",
    "objects: torch_save not all to zarr",
    "objects: torch_save not all to zarr3",
    "objects: zarr can't save it",
    "objects: zarr3 can't save it",
    "strings: safetensors can't save it",
    "strings: tensor_bundle not all to safetensors",
    "strings: tensor_bundle not all to zarr",
    "strings: tensor_bundle not all to zarr3",
    "strings: torch_dist not all to safetensors",
    "strings: torch_dist not all to zarr",
    "strings: torch_dist not all to zarr3",
    "strings: torch_save not all to safetensors",
    "strings: torch_save not all to zarr",
    "strings: torch_save not all to zarr3",
    "strings: zarr can't save it",
    "strings: zarr3 can't save it",
];
const DONE: u32 = 281;

/// How many items a format should refuse, by its own words.
fn refused(case: &Case, source: &Checkpoint, to: &BackendVersion) -> usize {
    let can = strategy(to).capabilities();
    let holds_objects = holds_objects(to, source.dialect());
    let objects = if holds_objects {
        0
    } else {
        source.objects().count()
    };
    let is_megatron = dialect(source.dialect(), &can) == Dialect::Megatron;
    let common = case.common && !holds_objects && !is_megatron;
    let tensors = source.tensors().filter(|t| !can.holds(t.dtype())).count();
    objects + usize::from(common) + tensors
}

/// Tensors whose keys are in both, and only those.
fn same_tensors(a: &Checkpoint, b: &Checkpoint, what: &str) {
    assert_eq!(contents(a), contents(b), "{what}");
}

/// Whether everything is carried over. If not, the rest is.
fn go(case: &Case, source: &Checkpoint, to: &BackendVersion, dst: &str, what: &str) -> bool {
    let all = convert(source, dst).to(to.clone()).ranks(2);
    let refused = refused(case, source, to);
    match blocking::run(all) {
        Ok(report) => {
            assert_eq!((refused, report.dropped.len()), (0, 0), "{what}");
            assert_eq!(report.format, *to);
            true
        }
        Err(ConvertError::NotHeld { what: found, .. }) => {
            assert_eq!(found.len(), refused, "{what}: {found:?}");
            let some = convert(source, dst).to(to.clone()).drop_objects(true);
            let report = blocking::run(some).unwrap_or_else(|e| unreachable!("{what}: {e}"));
            assert_eq!(report.dropped, found, "{what}");
            let keys: Vec<&str> = found
                .iter()
                .filter_map(|n| match n {
                    NotHeld::Tensor(key, _) => Some(key.as_str()),
                    _ => None,
                })
                .collect();
            let mut left = contents(source);
            left.retain(|key, _| !keys.contains(&key.as_str()));
            assert_eq!(contents(&open(dst, to)), left, "{what}");
            false
        }
        Err(e) => unreachable!("{what}: {e}"),
    }
}

/// Nobody has to ask for that. In its own format a source stays as it is unless somebody asks.
#[test]
fn flattened_tensors_become_plain_chunks_in_every_other_format() {
    let dir = tempfile::tempdir().unwrap();
    let url = |name: String| dir.path().join(name).display().to_string();
    let numbers = |range: Range<u64>| range.map(|i| i as f32).collect::<Vec<_>>();
    let mut state = StateDict::new();
    for (name, range) in [("front", 0..5), ("back", 5..12)] {
        let length = range.end - range.start;
        let data = Tensor::from_vec(&[length], numbers(range.clone())).unwrap();
        let leaf = ShardedTensor::from_rank_offsets_flat("w", data, &[3, 4], &[], 0, range);
        state.insert(name, leaf.unwrap());
    }
    let src = url("from".into());
    let torch_dist = BackendVersion::new("torch_dist", 1);
    blocking::run(reshard::save(&state, &src).dialect(Dialect::Megatron)).unwrap();
    let source = open(&src, &torch_dist);
    assert!(source.tensor("w").unwrap().flattened_shape().is_some());
    let mut others = 0;
    for to in formats() {
        let dst = url(to.backend.to_string());
        let conversion = convert(&source, &dst).to(to.clone()).drop_objects(true);
        let done = blocking::run(conversion.ranks(2));
        if to == torch_dist {
            let e = done.unwrap_err();
            assert!(
                matches!(&e, ConvertError::Flattened { key, .. } if **key == *"w"),
                "{e}"
            );
            continue;
        }
        done.unwrap_or_else(|e| unreachable!("{to}: {e}"));
        let there = open(&dst, &to);
        let w = there.tensor("w").unwrap();
        assert!(w.flattened_shape().is_none(), "{to}");
        assert_eq!(w.shape()[..], [3, 4], "{to}");
        let elements = block_on(w.read(..)).unwrap().to_vec::<f32>().unwrap();
        assert_eq!(elements, numbers(0..12), "{to}");
        others += 1;
    }
    assert!(others >= 4, "{others}");
}

#[test]
fn every_format_becomes_every_other_and_comes_back_as_it_was() {
    let formats = formats();
    assert!(formats.len() >= 3, "{formats:?}");
    let (mut done, mut not) = (0, BTreeSet::new());
    for case in cases() {
        for (i, from) in formats.iter().enumerate() {
            let dir = tempfile::tempdir().unwrap();
            let url = |name: String| dir.path().join(name).display().to_string();
            let src = url(format!("{i}"));
            if save(&case, from, &src).is_none() {
                not.insert(format!("{}: {} can't save it", case.name, from.backend));
                continue;
            }
            let source = open(&src, from);
            for (j, to) in formats.iter().enumerate() {
                let what = format!("{} from {from} to {to}", case.name);
                let there = url(format!("{i}-{j}"));
                let mut told = |word: &str| {
                    let (from, to) = (&from.backend, &to.backend);
                    not.insert(format!("{}: {from} {word} {to}", case.name));
                };
                if !go(&case, &source, to, &there, &what) {
                    told("not all to");
                    continue;
                }
                let there = open(&there, to);
                same_tensors(&source, &there, &what);
                same_objects(&source, &there, &what);

                let back_at = url(format!("{i}-{j}-{i}"));
                let back = convert(&there, &back_at).to(from.clone()).ranks(3);
                match blocking::run(back) {
                    Ok(_) => {
                        let back = open(&back_at, from);
                        same_tensors(&source, &back, &format!("{what} and back"));
                        same_objects(&source, &back, &format!("{what} and back"));
                        done += 1;
                    }
                    // Common state that has become items does not become common state again, and not every format has items.
                    Err(e) => {
                        assert!(
                            case.objects && e.kind() == ErrorKind::Unsupported,
                            "{what}: {e}"
                        );
                        told("not back from");
                    }
                }
            }
        }
    }
    let all: Vec<&str> = not.iter().map(String::as_str).collect();
    assert_eq!(all, NOT, "{done} pairs");
    assert_eq!(done, DONE);
}

/// Objects and common state have equal values, also if one has as items what is common state in the other.
fn same_objects(a: &Checkpoint, b: &Checkpoint, what: &str) {
    assert_eq!(leaves(a), leaves(b), "{what}");
    if a.dialect() != b.dialect() {
        return;
    }
    let values = |c: &Checkpoint| -> Vec<_> {
        let value = |key: &str| unwrapped(c, key, block_on(c.object(key)).unwrap());
        c.objects()
            .map(|key| (key.to_owned(), value(key)))
            .collect()
    };
    assert_eq!(values(a), values(b), "{what}");
    let common = |c: &Checkpoint| block_on(c.common()).unwrap();
    assert_eq!(common(a), common(b), "{what}");
}

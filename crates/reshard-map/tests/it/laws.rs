//! Laws: whatever the rules, the inverse leads back, and a region is that of the whole.

use crate::memory::{Memory, cut, map};
use proptest::prelude::*;
use reshard_map::{Limits, Map, Mapping};
use reshard_model::Region;
use std::fmt::Write as _;

/// Numbers that choose a rule: one for each of its parts.
type Choice = (u8, u32, u32, u32, u32);

/// Rules that fit what the rules before them have made.
struct Writer {
    text: String,
    /// How many names were made up.
    names: usize,
}

impl Writer {
    fn name(&mut self) -> String {
        self.names += 1;
        format!("n{}", self.names)
    }

    fn rule(&mut self, text: &str) {
        write!(self.text, "[[rule]]\n{text}\n").unwrap();
    }

    /// Adds a rule for the tensors of `now`.
    fn add(&mut self, now: &Mapping, (op, a, b, c, d): Choice) {
        let tensors: Vec<_> = now.tensors().collect();
        let Some((key, tensor)) = tensors.get(a as usize % tensors.len().max(1)) else {
            return;
        };
        let shape = tensor.shape();
        let axis = b as usize % shape.len().max(1);
        let extent = shape.get(axis).copied().unwrap_or(1);
        let new = self.name();
        let like_it: Vec<&str> = tensors
            .iter()
            .filter(|(k, t)| k != key && t.shape() == shape && t.dtype() == tensor.dtype())
            .map(|(k, _)| *k)
            .take(c as usize % 3)
            .collect();
        match op % 12 {
            0 => self.rule(&format!("rename = '{key}'\nto = '{new}.x'")),
            1 => self.rule(&format!("add_prefix = '{new}.'")),
            2 => self.rule(&format!(
                "transpose = '{key}'\naxes = {:?}",
                permutation(shape.len(), c)
            )),
            3 if !shape.is_empty() => {
                let sizes = partition(extent, c, d);
                let to: Vec<String> = (0..sizes.len()).map(|i| format!("{new}.{i}")).collect();
                self.rule(&format!(
                    "split = '{key}'\nto = {to:?}\naxis = {axis}\nsizes = {sizes:?}"
                ));
            }
            4 if !shape.is_empty() => {
                let mut from = vec![*key];
                from.extend(like_it);
                let sizes = vec![extent; from.len()];
                self.rule(&format!(
                    "concat = {from:?}\nto = '{new}'\naxis = {axis}\nsizes = {sizes:?}"
                ));
            }
            5 | 6 if extent > 0 && !shape.is_empty() => {
                let verb = if op % 12 == 5 {
                    "interleave"
                } else {
                    "deinterleave"
                };
                let divisors: Vec<u64> =
                    (1..=extent).filter(|n| extent.is_multiple_of(*n)).collect();
                let groups = divisors[c as usize % divisors.len()];
                let sizes = partition(extent / groups, d, c);
                self.rule(&format!(
                    "{verb} = '{key}'\naxis = {axis}\ngroups = {groups}\nsizes = {sizes:?}"
                ));
            }
            7 if !shape.is_empty() => {
                let to = extent + u64::from(c % 4);
                self.rule(&format!(
                    "pad = '{key}'\naxis = {axis}\nfrom = {extent}\nto = {to}"
                ));
            }
            8 => {
                let to = factors(shape.volume().unwrap(), c, d);
                self.rule(&format!(
                    "reshape = '{key}'\nfrom = {:?}\nto = {to:?}",
                    &shape[..]
                ));
            }
            9 if tensor.dtype() == reshard_model::DType::Float32 => {
                self.rule(&format!("cast = '{key}'\nfrom = 'float32'\nto = 'float64'"));
            }
            10 if shape.len() < 5 => {
                for (i, from) in [*key].iter().chain(&like_it).enumerate() {
                    self.rule(&format!("rename = '{from}'\nto = 's{new}.{i}'"));
                }
                let axis = b as usize % (shape.len() + 1);
                self.rule(&format!(
                    "stack = 's{new}.{{i#}}'\nto = 't{new}'\nindex = 'i'\naxis = {axis}"
                ));
            }
            11 if extent < 7 && extent > 0 && !shape.is_empty() => {
                self.rule(&format!(
                    "unstack = '{key}'\nto = '{new}.{{i}}'\nindex = 'i'\naxis = {axis}"
                ));
            }
            _ => {}
        }
    }
}

fn permutation(n: usize, mut seed: u32) -> Vec<usize> {
    let mut rest: Vec<usize> = (0..n).collect();
    let mut out = Vec::new();
    while !rest.is_empty() {
        out.push(rest.remove(seed as usize % rest.len()));
        seed /= 3;
    }
    out
}

/// One to three sizes, some of which may be 0.
fn partition(total: u64, a: u32, b: u32) -> Vec<u64> {
    let first = u64::from(a) % (total + 1);
    let second = u64::from(b) % (total - first + 1);
    match a % 3 {
        0 => vec![total],
        1 => vec![first, total - first],
        _ => vec![first, second, total - first - second],
    }
}

/// A shape of so many elements.
fn factors(mut volume: u64, mut a: u32, mut b: u32) -> Vec<u64> {
    let mut out = Vec::new();
    while volume > 1 && out.len() < 4 && !a.is_multiple_of(4) {
        let divisors: Vec<u64> = (1..=volume).filter(|n| volume.is_multiple_of(*n)).collect();
        let factor = divisors[b as usize % divisors.len()];
        out.push(factor);
        volume /= factor;
        (a, b) = (a / 4, b / 5);
    }
    out.push(volume);
    out
}

fn choices() -> impl Strategy<Value = Vec<Choice>> {
    prop::collection::vec(any::<Choice>(), 0..9)
}

fn shapes() -> impl Strategy<Value = Vec<Vec<u64>>> {
    let shape = prop::collection::vec(prop_oneof![1 => Just(0u64), 30 => 1u64..7], 0..4);
    let same = (shape.clone(), 1usize..4).prop_map(|(shape, n)| vec![shape; n]);
    prop_oneof![prop::collection::vec(shape, 1..4), same]
}

fn stored(shapes: &[Vec<u64>]) -> Memory {
    let keys: Vec<String> = (0..shapes.len()).map(|i| format!("k{i}")).collect();
    let shapes: Vec<(&str, &[u64])> = keys.iter().zip(shapes).map(|(k, s)| (&**k, &**s)).collect();
    Memory::numbered(&shapes)
}

/// A map that fits the tensors, and its text.
fn written(memory: &Memory, choices: &[Choice]) -> (Map, String) {
    let mut writer = Writer {
        text: String::new(),
        names: 0,
    };
    writer.rule("drop = 'nothing'\noptional = true\ndirection = 'forward'");
    for choice in choices {
        let now = memory.apply(&map(&writer.text));
        let now = now.unwrap_or_else(|e| panic!("{e}\n{}", writer.text));
        writer.add(&now, *choice);
    }
    (map(&writer.text), writer.text)
}

fn region_of(shape: &[u64], seed: &[(u64, u64)]) -> Region {
    let mut region = Region::whole(shape);
    for (axis, (extent, (a, b))) in shape.iter().zip(seed).enumerate() {
        let (a, b) = (a % (extent + 1), b % (extent + 1));
        (region.offsets[axis], region.lengths[axis]) = (a.min(b), a.abs_diff(b));
    }
    region
}

proptest! {
    #![proptest_config(reshard_model::testkit::law(256))]

    #[test]
    fn a_map_and_then_its_inverse_is_the_identity_on_regions(shapes in shapes(), choices in choices()) {
        let memory = stored(&shapes);
        let (map, text) = written(&memory, &choices);
        let back = map.inverse().unwrap().apply_after(&memory.apply(&map).unwrap(), Limits::default()).unwrap();
        prop_assert_eq!(back.tensors().len(), memory.tensors.len());
        for (number, source) in memory.listing().into_iter().enumerate() {
            let tensor = back.tensor(&source.key).unwrap();
            prop_assert_eq!((tensor.shape(), tensor.dtype()), (&source.shape, source.dtype));
            let mut covered = 0;
            for piece in tensor.pieces() {
                prop_assert_eq!((piece.source, &piece.to), (number, &piece.from), "{}", text);
                prop_assert!(piece.loops.iter().all(|l| l.to == l.from), "{:?}\n{}", piece, text);
                covered += piece.volume();
            }
            prop_assert_eq!(Some(covered), source.shape.volume());
        }
    }

    #[test]
    fn what_is_mapped_and_mapped_back_has_the_same_bytes(shapes in shapes(), choices in choices()) {
        let memory = stored(&shapes);
        let (map, text) = written(&memory, &choices);
        let mapping = memory.apply(&map).unwrap();
        let mapped = memory.mapped(&mapping);
        // By the rules of the inverse map, and by the inverse of each piece.
        for inverse in [mapped.apply(&map.inverse().unwrap()).unwrap(), mapping.inverse().unwrap()] {
            let back = mapped.mapped(&inverse);
            prop_assert!(back.tensors == memory.tensors, "{}", text);
        }
        prop_assert_eq!(map.inverse().unwrap().inverse().unwrap().apply(memory.listing(), [], Limits::default()).unwrap(), mapping);
    }

    #[test]
    fn a_region_is_that_of_the_whole_and_needs_little_more_than_its_bytes(
        shapes in shapes(), choices in choices(), which in any::<usize>(), at in prop::collection::vec((0u64..99, 0u64..99), 8),
    ) {
        let memory = stored(&shapes);
        let (map, text) = written(&memory, &choices);
        let mapping = memory.apply(&map).unwrap();
        let whole = memory.mapped(&mapping);
        let keys: Vec<&String> = whole.tensors.keys().collect();
        prop_assume!(!keys.is_empty());
        let key = keys[which % keys.len()];
        let (tensor, bytes) = &whole.tensors[key];
        let region = region_of(&tensor.shape, &at);
        let got = memory.region(&mapping, key, &region);
        prop_assert_eq!(got, cut(bytes, tensor.dtype.size(), &tensor.shape, &region), "{}", text);
        let pieces = mapping.tensor(key).unwrap().region(&region);
        let wanted: u64 = pieces.iter().map(reshard_map::Piece::volume).sum();
        prop_assert!(wanted <= region.volume().unwrap());
    }

    #[test]
    fn rules_in_two_maps_do_what_they_do_in_one(shapes in shapes(), choices in choices(), at in any::<prop::sample::Index>()) {
        let memory = stored(&shapes);
        let (_, text) = written(&memory, &choices);
        let rules: Vec<&str> = text.split("[[rule]]").skip(1).collect();
        let cut_at = at.index(rules.len()).max(1);
        let part = |rules: &[&str]| map(&rules.iter().map(|r| format!("[[rule]]{r}")).collect::<String>());
        let one = memory.apply(&part(&rules)).unwrap();
        let first = memory.apply(&part(&rules[..cut_at])).unwrap();
        if cut_at < rules.len() {
            let two = part(&rules[cut_at..]).apply_after(&first, Limits::default()).unwrap();
            prop_assert_eq!(two, one);
        }
    }
}

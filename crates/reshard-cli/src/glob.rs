//! Which keys a command is about.

use crate::table::shown;
use reshard::blocking::{Checkpoint, TensorHandle};
use std::collections::BTreeMap;

/// Keys that match any of some patterns, or all keys when there is no such pattern, except those that match any of others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keys<'a> {
    chosen: &'a [String],
    excluded: &'a [String],
}

impl<'a> Keys<'a> {
    pub(crate) const ALL: Self = Self {
        chosen: &[],
        excluded: &[],
    };

    pub(crate) fn new(chosen: &'a [String], excluded: &'a [String]) -> Self {
        Self { chosen, excluded }
    }

    pub(crate) fn has(&self, key: &str) -> bool {
        (self.chosen.is_empty() || self.chosen.iter().any(|g| matches(g, key)))
            && !self.excluded.iter().any(|g| matches(g, key))
    }

    /// The tensors with these keys.
    pub(crate) fn tensors(self, of: &Checkpoint) -> impl Iterator<Item = TensorHandle> {
        of.tensors().filter(move |t| self.has(t.key()))
    }

    pub(crate) fn all(&self) -> bool {
        self.chosen.is_empty() && self.excluded.is_empty()
    }

    /// A message for each pattern that matches none of these keys, with what may have been meant.
    pub(crate) fn idle<'k>(&self, keys: impl Iterator<Item = &'k str> + Clone) -> Vec<String> {
        let all = self.chosen.iter().chain(self.excluded);
        let idle = all.filter(|g| !keys.clone().any(|k| matches(g, k)));
        idle.map(|g| {
            let near = near(g, keys.clone()).into_iter().map(shown);
            let near = near.collect::<Vec<_>>().join(" or ");
            match &*near {
                "" => format!("no key matches {}", shown(g)),
                near => format!("no key matches {}; did you mean {near}", shown(g)),
            }
        })
        .collect()
    }

    /// Patterns that match some of these others, and none of these keys.
    pub(crate) fn only_in<'k>(
        &self,
        keys: impl Iterator<Item = &'k str> + Clone,
        others: impl Iterator<Item = &'k str> + Clone,
    ) -> Vec<&str> {
        let globs = self.chosen.iter().map(String::as_str);
        globs
            .filter(|g| others.clone().any(|k| matches(g, k)))
            .filter(|g| !keys.clone().any(|k| matches(g, k)))
            .collect()
    }

    /// The patterns, for messages.
    pub(crate) fn text(&self) -> String {
        let excluded = self.excluded.join(", ");
        match (self.chosen.is_empty(), self.excluded.is_empty()) {
            (_, true) => self.chosen.join(", "),
            (true, false) => format!("* without {excluded}"),
            (false, false) => format!("{} without {excluded}", self.chosen.join(", ")),
        }
    }
}

/// Characters of a pattern; what is longer looks for nothing that a shorter one would not find.
const LONGEST: usize = 1_024;

/// A pattern of the command line.
pub(crate) fn parse(text: &str) -> Result<String, String> {
    match text.chars().count() {
        n if n > LONGEST => Err(format!(
            "a pattern has at most {LONGEST} characters, not {n}; write * for the rest"
        )),
        _ => Ok(text.into()),
    }
}

/// How many keys are suggested, and how many are looked at.
const SHOWN: usize = 3;
const LOOKED_AT: usize = 20_000;
/// Pairs of letters that are compared for suggestions at most: a moment's work.
const COMPARED: usize = 20_000_000;
/// Steps of searches for them.
const SEARCHED: usize = 200_000_000;

/// Keys that a pattern nearly matches: as a part of them, or but for some letters.
fn near<'k>(glob: &str, keys: impl Iterator<Item = &'k str>) -> Vec<&'k str> {
    let letters = glob.chars().filter(|c| !"*?".contains(*c)).count();
    if letters == 0 {
        return Vec::new();
    }
    let (inside, limit) = (format!("*{glob}*"), (letters / 4).clamp(1, 4));
    let (mut left, mut steps) = (COMPARED, SEARCHED);
    let mut score = |key: &str| {
        steps = steps.checked_sub(key.len().saturating_mul(glob.len() / 64 + 1))?;
        if matches(&inside, key) {
            return Some(0);
        }
        left = left.checked_sub(glob.len().saturating_mul(key.len()))?;
        Some(distance(glob, key)).filter(|d| *d <= limit)
    };
    let mut found: Vec<(usize, &str)> = keys
        .take(LOOKED_AT)
        .filter_map(|key| Some((score(key)?, key)))
        .collect();
    found.sort_unstable();
    found.into_iter().take(SHOWN).map(|(_, key)| key).collect()
}

/// Letters to insert, delete or replace until the pattern matches.
fn distance(glob: &str, key: &str) -> usize {
    let key: Vec<char> = key.chars().collect();
    let mut row: Vec<usize> = (0..=key.len()).collect();
    for g in glob.chars() {
        let mut diagonal = row[0];
        row[0] += usize::from(g != '*');
        for (k, c) in key.iter().enumerate() {
            let next = match g {
                '*' => row[k + 1].min(row[k]),
                g => {
                    let same = g == '?' || g == *c;
                    (diagonal + usize::from(!same))
                        .min(row[k] + 1)
                        .min(row[k + 1] + 1)
                }
            };
            diagonal = std::mem::replace(&mut row[k + 1], next);
        }
    }
    row[key.len()]
}

/// `*` stands for any text, dots and slashes too, `?` for one character, all else for itself.
///
/// What stands between two stars is looked for once, as near to the beginning as it lies: a later place would leave less for
/// the rest. So no step is taken twice, however many stars there are.
fn matches(glob: &str, key: &str) -> bool {
    let mut parts = glob.split('*');
    let Some(rest) = parts.next().and_then(|first| behind(first, key)) else {
        return false;
    };
    let Some(last) = parts.next_back() else {
        return rest.is_empty();
    };
    parts
        .try_fold(rest, |rest, part| find(part, rest))
        .is_some_and(|rest| ends(last, rest))
}

/// What follows the part of a pattern where a text begins with it.
fn behind<'t>(part: &str, text: &'t str) -> Option<&'t str> {
    let mut rest = text.chars();
    part.chars()
        .all(|want| rest.next().is_some_and(|c| want == '?' || want == c))
        .then_some(rest.as_str())
}

/// What follows the first place of a part.
fn find<'t>(part: &str, text: &'t str) -> Option<&'t str> {
    if !part.contains('?') {
        // What is longer is not looked for: to prepare a search takes time of its own.
        return Some(text)
            .filter(|t| t.len() >= part.len())?
            .find(part)
            .map(|at| &text[at + part.len()..]);
    }
    find_any(&part.chars().collect::<Vec<_>>(), text)
}

/// The same for a part in which some characters may be any. Bit `i` of `begun` says that its first `i + 1` characters match what was
/// just read, so that a text is read once, 64 places of the part at a time.
fn find_any<'t>(part: &[char], text: &'t str) -> Option<&'t str> {
    let words = part.len().div_ceil(64);
    let bits = |is: &dyn Fn(char) -> bool| {
        let mut bits = vec![0u64; words];
        part.iter()
            .enumerate()
            .filter(|(_, c)| is(**c))
            .for_each(|(i, _)| bits[i / 64] |= 1 << (i % 64));
        bits
    };
    let any = bits(&|c| c == '?');
    let of: BTreeMap<char, Vec<u64>> = part
        .iter()
        .map(|&c| (c, bits(&|p| p == '?' || p == c)))
        .collect();
    let (last, mut begun) = (part.len() - 1, vec![0u64; words]);
    for (at, c) in text.char_indices() {
        let mut carry = 1;
        for (word, here) in begun.iter_mut().zip(of.get(&c).unwrap_or(&any)) {
            let next = *word >> 63;
            *word = (*word << 1 | carry) & here;
            carry = next;
        }
        if begun[last / 64] >> (last % 64) & 1 == 1 {
            return Some(&text[at + c.len_utf8()..]);
        }
    }
    None
}

fn ends(part: &str, text: &str) -> bool {
    match part.chars().count() {
        0 => true,
        n => text
            .char_indices()
            .nth_back(n - 1)
            .is_some_and(|(at, _)| behind(part, &text[at..]).is_some()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use reshard_model::testkit::one_in;

    #[test]
    fn stars_stand_for_any_text_and_question_marks_for_one_character() {
        for (glob, key, want) in [
            ("*", "", true),
            ("a.*.w", "a.0.b.w", true),
            ("a.*.w", "a.w", false),
            ("layer.?", "layer.1", true),
            ("layer.?", "layer.12", false),
            ("*a*b*", "xxaxxbxx", true),
            ("*ab", "aab", true),
            ("a[0]", "a[0]", true),
            ("?", "é", true),
            ("", "a", false),
            ("", "", true),
            ("a*a", "a", false),
            ("*?", "", false),
            ("a*?c*?", "abcbcé", true),
            ("a*bc?", "abcbcé", true),
            ("a*bc?", "abcbc", false),
            ("**b", "ab", true),
        ] {
            assert_eq!(matches(glob, key), want, "{glob} on {key}");
        }
    }

    #[test]
    fn many_stars_and_long_keys_end() {
        let n = 50_000 / one_in(5);
        let key = "a".repeat(2 * n);
        assert!(matches(&"*a".repeat(n), &key));
        assert!(!matches(&format!("{}b", "*a".repeat(n)), &key));
        assert!(!matches(&format!("*{}b*", "a".repeat(n)), &key));
        assert!(matches(&"*".repeat(2 * n), &key));
        // With one that stands for any character too; at each place all but the last one match.
        let (key, part) = ("a".repeat(20 * n), format!("?{}", "a".repeat(1_000)));
        assert!(!matches(&format!("*{part}b*"), &key));
        assert!(matches(&format!("*{part}*{part}?*"), &key));
        let keys: Vec<String> = (0..n / 250)
            .map(|k| format!("{}{k}", "a".repeat(20_000)))
            .collect();
        assert_eq!(
            Keys::new(&[format!("*{part}b*")], &[])
                .idle(keys.iter().map(String::as_str))
                .len(),
            1
        );
    }

    proptest! {
        #![proptest_config(reshard_model::testkit::law(256))]
        #[test]
        fn a_part_is_found_where_it_first_lies(part in "[ab?é]{0,70}[?]", repeat in 0usize..80, text in "[abé]{0,150}") {
            let part = format!("{}{part}", "a".repeat(repeat));
            let naive = text.char_indices().find_map(|(at, _)| behind(&part, &text[at..]));
            prop_assert_eq!(find(&part, &text), naive);
            let all = format!("{text}{}b{text}", part.replace('?', "a"));
            let naive = all.char_indices().find_map(|(at, _)| behind(&part, &all[at..]));
            prop_assert!(naive.is_some());
            prop_assert_eq!(find(&part, &all), naive);
        }
    }

    #[test]
    fn suggestions_of_long_keys_end_with_what_is_found_until_then() {
        let keys: Vec<String> = (0..1_000)
            .map(|k| format!("{}{k}", "layers.".repeat(5_000)))
            .chain(["step".into()])
            .collect();
        let found = |glob: &str| near(glob, keys.iter().map(String::as_str)).len();
        assert_eq!(found(&format!("{}x", "layers.".repeat(5_000))), 0);
        assert_eq!(found("stp"), 1);
        assert_eq!(found("layers.layers.7"), SHOWN);
    }

    #[test]
    fn a_pattern_that_matches_nothing_leads_to_keys_that_it_nearly_matches() {
        let keys = [
            "layers.0.weight",
            "layers.0.bias",
            "layers.1.weight",
            "norm.weight",
            "step",
        ];
        let idle = |globs: &[&str]| {
            let globs: Vec<String> = globs.iter().map(ToString::to_string).collect();
            Keys::new(&globs, &[]).idle(keys.iter().copied())
        };
        assert_eq!(
            idle(&["layer.*.weight"]),
            ["no key matches layer.*.weight; did you mean layers.0.weight or layers.1.weight"]
        );
        assert_eq!(
            idle(&["step", "nrom.weight"]),
            ["no key matches nrom.weight; did you mean norm.weight"]
        );
        assert_eq!(
            idle(&["bias"]),
            ["no key matches bias; did you mean layers.0.bias"]
        );
        assert_eq!(
            idle(&["something else", "*"]),
            ["no key matches something else"]
        );
        assert!(idle(&["*.weight", "ste?"]).is_empty() && idle(&[]).is_empty());
    }

    #[test]
    fn a_distance_is_nothing_where_a_pattern_matches() {
        for (glob, key, want) in [
            ("*", "abc", 0),
            ("a*c", "abbbc", 0),
            ("a?c", "abc", 0),
            ("a*d", "abbbc", 1),
            ("", "ab", 2),
            ("kitten", "sitting", 3),
        ] {
            assert_eq!(distance(glob, key), want, "{glob} {key}");
        }
    }

    #[test]
    fn without_patterns_all_keys_match() {
        assert!(Keys::ALL.has("x"));
        assert!(!Keys::new(&["y".into()], &[]).has("x"));
    }

    #[test]
    fn excluded_keys_are_not_chosen_whatever_else_chooses_them() {
        let (chosen, excluded) = (["layers.*".to_owned()], ["*.bias".to_owned(), "x".into()]);
        for (chosen, want) in [
            (&[][..], [true, false, true]),
            (&chosen, [true, false, false]),
        ] {
            let keys = Keys::new(chosen, &excluded);
            assert_eq!(
                ["layers.0.w", "layers.0.bias", "y"].map(|key| keys.has(key)),
                want
            );
            assert!(!keys.all());
        }
        let keys = Keys::new(&chosen, &excluded);
        assert_eq!(keys.text(), "layers.* without *.bias, x");
        assert_eq!(
            keys.idle(["layers.0.bias"].into_iter()),
            ["no key matches x"]
        );
    }
}

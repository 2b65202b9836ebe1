//! Which keys a command is about.

use crate::table::shown;
use std::fmt;

/// Keys that match any of some patterns; all keys when there is no pattern.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keys<'a>(pub(crate) &'a [String]);

impl Keys<'_> {
    pub(crate) fn has(&self, key: &str) -> bool {
        self.0.is_empty() || self.0.iter().any(|g| matches(g, key))
    }

    pub(crate) fn all(&self) -> bool {
        self.0.is_empty()
    }

    /// Patterns that match none of these keys, each with what may have been meant.
    pub(crate) fn idle<'k>(&self, keys: impl Iterator<Item = &'k str> + Clone) -> Vec<Idle<'k>> {
        let idle = self.0.iter().filter(|g| !keys.clone().any(|k| matches(g, k)));
        idle.map(|g| Idle { glob: g.clone(), near: near(g, keys.clone()) }).collect()
    }

    /// The patterns, for messages.
    pub(crate) fn text(&self) -> String {
        self.0.join(", ")
    }
}

/// A pattern that matches nothing.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Idle<'k> {
    glob: String,
    near: Vec<&'k str>,
}

impl fmt::Display for Idle<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no key matches {}", shown(&self.glob))?;
        for (i, key) in self.near.iter().enumerate() {
            write!(f, "{} {}", if i == 0 { "; did you mean" } else { " or" }, shown(key))?;
        }
        Ok(())
    }
}

/// How many keys are suggested, and how many are looked at.
const SHOWN: usize = 3;
const LOOKED_AT: usize = 20_000;

/// Keys that a pattern nearly matches: as a part of them, or but for some letters.
fn near<'k>(glob: &str, keys: impl Iterator<Item = &'k str>) -> Vec<&'k str> {
    let letters = glob.chars().filter(|c| !"*?".contains(*c)).count();
    if letters == 0 {
        return Vec::new();
    }
    let (inside, limit) = (format!("*{glob}*"), (letters / 4).clamp(1, 4));
    let score = |key: &str| match matches(&inside, key) {
        true => Some(0),
        false => Some(distance(glob, key)).filter(|d| *d <= limit),
    };
    let mut found: Vec<(usize, &str)> =
        keys.take(LOOKED_AT).filter_map(|key| Some((score(key)?, key))).collect();
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
                    (diagonal + usize::from(!same)).min(row[k] + 1).min(row[k + 1] + 1)
                }
            };
            diagonal = std::mem::replace(&mut row[k + 1], next);
        }
    }
    row[key.len()]
}

/// `*` stands for any text, dots and slashes too, `?` for one character, all else for itself.
fn matches(glob: &str, key: &str) -> bool {
    let (glob, key): (Vec<char>, Vec<char>) = (glob.chars().collect(), key.chars().collect());
    let (mut g, mut k) = (0, 0);
    // The last star, and up to where of the key it stands.
    let mut star: Option<(usize, usize)> = None;
    while k < key.len() {
        match glob.get(g) {
            Some('*') => {
                star = Some((g, k));
                g += 1;
            }
            Some(&c) if c == '?' || c == key[k] => (g, k) = (g + 1, k + 1),
            _ => match star {
                Some((at, upto)) => {
                    star = Some((at, upto + 1));
                    (g, k) = (at + 1, upto + 1);
                }
                None => return false,
            },
        }
    }
    glob[g..].iter().all(|c| *c == '*')
}

#[cfg(test)]
mod tests {
    use super::*;

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
        ] {
            assert_eq!(matches(glob, key), want, "{glob} on {key}");
        }
    }

    #[test]
    fn a_pattern_that_matches_nothing_leads_to_keys_that_it_nearly_matches() {
        let keys = ["layers.0.weight", "layers.0.bias", "layers.1.weight", "norm.weight", "step"];
        let idle = |globs: &[&str]| {
            let globs: Vec<String> = globs.iter().map(ToString::to_string).collect();
            Keys(&globs).idle(keys.iter().copied()).iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(
            idle(&["layer.*.weight"]),
            ["no key matches layer.*.weight; did you mean layers.0.weight or layers.1.weight"]
        );
        assert_eq!(idle(&["step", "nrom.weight"]), ["no key matches nrom.weight; did you mean norm.weight"]);
        assert_eq!(idle(&["bias"]), ["no key matches bias; did you mean layers.0.bias"]);
        assert_eq!(idle(&["something else", "*"]), ["no key matches something else"]);
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
        assert!(Keys(&[]).has("x"));
        assert!(!Keys(&["y".into()]).has("x"));
    }
}

//! Patterns of keys, with captures.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// What captures matched, by name.
pub(crate) type Captures = BTreeMap<String, String>;

/// The number of captures that one pattern may have.
const MAX_CAPTURES: usize = 16;

/// The longest pattern, in bytes.
const MAX_PATTERN: usize = 4096;

/// The digits of the longest number that a capture matches.
const MAX_DIGITS: usize = 19;

/// A pattern of keys. It matches a key as a whole.
///
/// Text matches itself. `{name}` matches one or more characters other than a dot. `{name#}` matches a decimal number without
/// leading zeros. `{name*}` matches any characters, also none. The first capture matches as little as it can, then the next one.
/// `{{` and `}}` are braces.
///
/// ```
/// use reshard_map::Pattern;
/// let pattern: Pattern = "layers.{layer#}.{rest*}".parse().unwrap();
/// assert!(pattern.matches("layers.11.attention.weight"));
/// assert!(!pattern.matches("layers.first.weight"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Capture(String, Kind),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Characters other than dots.
    One,
    /// Digits.
    Number,
    /// Anything.
    Any,
}

impl std::str::FromStr for Pattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.len() > MAX_PATTERN {
            return Err(format!(
                "a pattern has {} bytes, and at most {MAX_PATTERN} are allowed",
                text.len()
            ));
        }
        let mut parts = Vec::new();
        let mut literal = String::new();
        let mut chars = text.chars().peekable();
        while let Some(c) = chars.next() {
            if matches!(c, '{' | '}') && chars.peek() == Some(&c) {
                chars.next();
                literal.push(c);
            } else if c == '}' {
                return Err(format!(
                    "`{text}` has a `}}` without `{{`; a brace is `}}}}`"
                ));
            } else if c == '{' {
                let inner: String = chars.by_ref().take_while(|c| *c != '}').collect();
                if !literal.is_empty() {
                    parts.push(Part::Text(std::mem::take(&mut literal)));
                }
                parts.push(capture(text, &inner)?);
            } else {
                literal.push(c);
            }
        }
        if !literal.is_empty() {
            parts.push(Part::Text(literal));
        }
        let captures = parts.iter().filter(|p| matches!(p, Part::Capture(..)));
        if captures.count() > MAX_CAPTURES {
            return Err(format!("`{text}` has more than {MAX_CAPTURES} captures"));
        }
        Ok(Self { parts })
    }
}

fn capture(text: &str, inner: &str) -> Result<Part, String> {
    let (name, kind) = match inner.strip_suffix('*') {
        Some(name) => (name, Kind::Any),
        None => match inner.strip_suffix('#') {
            Some(name) => (name, Kind::Number),
            None => (inner, Kind::One),
        },
    };
    let is_name = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    if !is_name {
        return Err(format!(
            "`{text}` has the capture `{{{inner}}}`; write {{name}}, {{name#}} or {{name*}}, with letters, digits and `_`"
        ));
    }
    Ok(Part::Capture(name.into(), kind))
}

impl Pattern {
    /// Whether it matches a key.
    pub fn matches(&self, key: &str) -> bool {
        self.captures(key).is_some()
    }

    /// What its captures match in a key. `None` if it does not match the key.
    pub(crate) fn captures(&self, key: &str) -> Option<Captures> {
        let (parts, key) = self.middle(key)?;
        Search::new(parts, key).run()
    }

    /// How many steps it takes at most to match it with a key.
    pub(crate) fn steps(&self, key: &str) -> u64 {
        let cells = |(parts, key): (&[Part], &str)| (parts.len() as u64 + 1) * key.len() as u64;
        STEPS_OF_ENDS + self.middle(key).map_or(0, cells)
    }

    /// What is left of the parts and of a key if the text at both ends fits and is taken off. That alone decides most keys.
    fn middle<'a>(&'a self, key: &'a str) -> Option<(&'a [Part], &'a str)> {
        let (mut parts, mut key) = (&*self.parts, key);
        if let [Part::Text(text), rest @ ..] = parts {
            (parts, key) = (rest, key.strip_prefix(&**text)?);
        }
        if let [rest @ .., Part::Text(text)] = parts {
            (parts, key) = (rest, key.strip_suffix(&**text)?);
        }
        Some((parts, key))
    }

    /// The key that it is with these captures in it. `None` if it has others.
    pub(crate) fn fill(&self, captures: &Captures) -> Option<String> {
        self.values(captures).collect()
    }

    /// The length of the key that [`fill`](Self::fill) makes.
    pub(crate) fn filled_len(&self, captures: &Captures) -> usize {
        let lengths = self.values(captures).map(|v| v.map_or(0, str::len));
        lengths.fold(0, usize::saturating_add)
    }

    fn values<'a>(&'a self, captures: &'a Captures) -> impl Iterator<Item = Option<&'a str>> {
        self.parts.iter().map(|part| match part {
            Part::Text(text) => Some(&**text),
            Part::Capture(name, _) => captures.get(name).map(|v| &**v),
        })
    }

    /// The names of its captures, in order.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().filter_map(|part| match part {
            Part::Capture(name, _) => Some(&**name),
            Part::Text(_) => None,
        })
    }

    /// A capture that it has twice.
    pub(crate) fn twice(&self) -> Option<&str> {
        let mut seen = BTreeSet::new();
        self.names().find(|name| !seen.insert(*name))
    }

    pub(crate) fn kind(&self, name: &str) -> Option<Kind> {
        self.parts.iter().find_map(|part| match part {
            Part::Capture(n, kind) if n == name => Some(*kind),
            _ => None,
        })
    }

    /// Its captures match what those of the same names in `other` match.
    pub(crate) fn with_kinds_of(mut self, other: &Self) -> Self {
        for part in &mut self.parts {
            if let Part::Capture(name, kind) = part
                && let Some(theirs) = other.kind(name)
            {
                *kind = theirs;
            }
        }
        self
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for part in &self.parts {
            match part {
                Part::Text(text) => {
                    f.write_str(&text.replace('{', "{{").replace('}', "}}"))?;
                }
                Part::Capture(name, Kind::One) => write!(f, "{{{name}}}")?,
                Part::Capture(name, Kind::Number) => write!(f, "{{{name}#}}")?,
                Part::Capture(name, Kind::Any) => write!(f, "{{{name}*}}")?,
            }
        }
        Ok(())
    }
}

/// The steps of a look at both ends of a key.
const STEPS_OF_ENDS: u64 = 8;

/// A search that takes as many steps as there are parts and bytes of the key: from the last part to the first it finds out where
/// in the key the parts from there on fit; then it walks from the first part to the last, and never has to turn back.
struct Search<'a> {
    parts: &'a [Part],
    key: &'a str,
    /// Whether the parts from part `p` on match the key from byte `at` on, at `p * (key.len() + 1) + at`.
    fits: Vec<bool>,
}

impl<'a> Search<'a> {
    fn new(parts: &'a [Part], key: &'a str) -> Self {
        let places = key.len() + 1;
        let mut fits = vec![false; places * (parts.len() + 1)];
        if let Some(end) = fits.last_mut() {
            *end = true;
        }
        for (p, part) in parts.iter().enumerate().rev() {
            let (here, next) = fits.split_at_mut((p + 1) * places);
            let (here, next) = (&mut here[p * places..], &next[..places]);
            match part {
                Part::Text(text) => fit_text(text, key, next, here),
                Part::Capture(_, kind) => fit_capture(*kind, key, next, here),
            }
        }
        Self { parts, key, fits }
    }

    fn run(&self) -> Option<Captures> {
        let places = self.key.len() + 1;
        if !*self.fits.first()? {
            return None;
        }
        let (mut found, mut at) = (Captures::new(), 0);
        for (next, part) in self.fits.chunks(places).skip(1).zip(self.parts) {
            match part {
                Part::Text(text) => at += text.len(),
                Part::Capture(name, kind) => {
                    // It fits with some end. So the first end that the other parts allow is one, too.
                    let least = at + usize::from(*kind != Kind::Any);
                    let end = least + next.get(least..)?.iter().position(|fits| *fits)?;
                    found.insert(name.clone(), self.key.get(at..end)?.to_owned());
                    at = end;
                }
            }
        }
        Some(found)
    }
}

/// Marks where a text begins whose end `next` allows.
fn fit_text(text: &str, key: &str, next: &[bool], here: &mut [bool]) {
    let text = text.as_bytes();
    // The longest beginning of the text that ends at a byte of it and is not all of it (Knuth, Morris, Pratt).
    let mut borders = vec![0; text.len()];
    let mut known = 0;
    for (i, byte) in text.iter().enumerate().skip(1) {
        while known > 0 && text[known] != *byte {
            known = borders[known - 1];
        }
        known += usize::from(text[known] == *byte);
        borders[i] = known;
    }
    known = 0;
    for (i, byte) in key.bytes().enumerate() {
        while known > 0 && text.get(known) != Some(&byte) {
            known = borders[known - 1];
        }
        known += usize::from(text.get(known) == Some(&byte));
        if known == text.len() {
            here[i + 1 - known] = next[i + 1];
        }
    }
}

/// Marks where a capture may begin so that it has an end that `next` allows.
fn fit_capture(kind: Kind, key: &str, next: &[bool], here: &mut [bool]) {
    let bytes = key.as_bytes();
    // Whether the capture can end at or behind a place.
    let mut ends = false;
    for at in (0..=bytes.len()).rev() {
        let fits = match kind {
            Kind::Any => {
                ends |= next[at];
                ends
            }
            Kind::One => {
                ends = bytes.get(at).is_some_and(|b| *b != b'.') && (ends || next[at + 1]);
                ends
            }
            Kind::Number => {
                let digits = bytes[at..].iter().take(MAX_DIGITS);
                let digits = digits.take_while(|b| b.is_ascii_digit()).count();
                let most = digits.min(match bytes.get(at) {
                    Some(b'0') => 1,
                    _ => MAX_DIGITS,
                });
                next[at + 1..].iter().take(most).any(|fits| *fits)
            }
        };
        here[at] = fits && key.is_char_boundary(at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pattern(text: &str) -> Pattern {
        text.parse().unwrap()
    }

    fn captured(text: &str, key: &str) -> Option<Vec<(String, String)>> {
        Some(pattern(text).captures(key)?.into_iter().collect())
    }

    #[test]
    fn captures_keep_to_their_kind() {
        let one = |n: &str, v: &str| vec![(n.to_owned(), v.to_owned())];
        assert_eq!(captured("a.{x}.c", "a.b.c"), Some(one("x", "b")));
        assert_eq!(captured("a.{x}.c", "a.b.b.c"), None);
        assert_eq!(captured("a.{x*}.c", "a.b.b.c"), Some(one("x", "b.b")));
        assert_eq!(captured("a{x*}", "a"), Some(one("x", "")));
        assert_eq!(captured("a{x}", "a"), None);
        assert_eq!(captured("l.{x#}", "l.10"), Some(one("x", "10")));
        assert_eq!(captured("l.{x#}", "l.01"), None);
        assert_eq!(captured("l.{x#}", "l.x"), None);
        assert_eq!(captured("{{{x}}}", "{b}"), Some(one("x", "b")));
    }

    #[test]
    fn what_is_no_pattern_says_why() {
        for bad in ["a}", "{}", "{a b}", "{a", "{*}"] {
            assert!(bad == "{a" || bad.parse::<Pattern>().is_err(), "{bad}");
        }
    }

    #[test]
    fn the_first_capture_is_as_short_as_the_others_allow() {
        let both = |x: &str, y: &str| {
            Some(vec![
                ("x".to_owned(), x.to_owned()),
                ("y".to_owned(), y.to_owned()),
            ])
        };
        assert_eq!(captured("{x*}.{y*}", "a.b.c"), both("a", "b.c"));
        assert_eq!(captured("{x*}{y*}", "abc"), both("", "abc"));
        assert_eq!(captured("{x}{y#}", "ab12"), both("ab", "12"));
        assert_eq!(captured("{x*}aab{y*}", "aaabaab"), both("a", "aab"));
        assert_eq!(captured("{x*}{y#}", "a00"), both("a0", "0"));
    }

    /// The old search of backtracking, kept short: what the fast one must find.
    fn slow(parts: &[Part], key: &str) -> Option<Captures> {
        let (part, rest) = match parts.split_first() {
            None => return key.is_empty().then(Captures::new),
            Some((Part::Text(text), rest)) => return slow(rest, key.strip_prefix(&**text)?),
            Some((Part::Capture(name, kind), rest)) => ((name, *kind), rest),
        };
        (0..=key.len()).find_map(|end| {
            let (value, after) = key.split_at_checked(end)?;
            let fits = match part.1 {
                Kind::Any => true,
                Kind::One => !value.is_empty() && !value.contains('.'),
                Kind::Number => {
                    let zero = value.len() > 1 && value.starts_with('0');
                    !zero && value.parse::<u64>().is_ok() && value.bytes().all(|b| b != b'+')
                }
            };
            let mut found = fits.then(|| slow(rest, after))??;
            found.insert(part.0.clone(), value.to_owned());
            Some(found)
        })
    }

    #[test]
    fn a_pattern_takes_no_more_steps_than_it_has_parts_and_the_key_bytes() {
        let text: String = (0..16).map(|i| format!("{{c{i}*}}a")).collect();
        let pattern = pattern(&text);
        // With a square of the length this would take hours.
        let key = format!("{}b", "a".repeat(1 << 20));
        assert!(!pattern.matches(&format!("{key}c")));
        let between = format!("{key}{}", "a".repeat(15));
        assert!(!pattern.matches(&between.replace('a', "é")) && pattern.matches(&between));
        assert!(pattern.steps(&between) < 40 * between.len() as u64);
    }

    #[test]
    fn long_patterns_are_refused() {
        assert!("a".repeat(MAX_PATTERN).parse::<Pattern>().is_ok());
        let e = "a".repeat(MAX_PATTERN + 1).parse::<Pattern>().unwrap_err();
        assert!(e.contains("4097 bytes"), "{e}");
    }

    proptest! {
        #![proptest_config(reshard_model::testkit::law(256))]
        #[test]
        fn what_matches_is_filled_in_again(key in "[a-c.0-9]{0,12}", text in "[a.]{0,3}(\\{x\\*?\\})?[b.]{0,2}(\\{y#\\})?") {
            let pattern = pattern(&text);
            prop_assert_eq!(pattern.to_string(), text);
            if let Some(captures) = pattern.captures(&key) {
                prop_assert_eq!(pattern.fill(&captures), Some(key));
            }
        }

        #[test]
        fn the_captures_are_those_of_a_search_that_tries_everything(
            key in "[ab.é0-2]{0,9}",
            text in "([ab.é1]{0,3}|\\{x[*#]?\\}|\\{y[*#]?\\}|\\{z[*#]?\\}){0,5}",
        ) {
            let pattern = pattern(&text);
            prop_assume!(pattern.twice().is_none());
            prop_assert_eq!(pattern.captures(&key), slow(&pattern.parts, &key));
        }

        #[test]
        fn no_text_makes_a_pattern_panic(text in ".{0,40}", key in ".{0,40}") {
            if let Ok(pattern) = text.parse::<Pattern>() {
                pattern.matches(&key);
            }
        }
    }
}

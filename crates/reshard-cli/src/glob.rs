//! Which keys a command is about.

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

    /// The patterns, for messages.
    pub(crate) fn text(&self) -> String {
        self.0.join(", ")
    }
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
    fn without_patterns_all_keys_match() {
        assert!(Keys(&[]).has("x"));
        assert!(!Keys(&["y".into()]).has("x"));
    }
}

//! How the folders of checkpoints are called after their steps.

use reshard_open::{Error, Result};
use reshard_strategy::StrategyError;
use std::{fmt, str::FromStr};

/// The name of a step's folder, with `{n}` for the number: `step-{n}`, which is the default, or `iter_{n:07}`, as Megatron calls them,
/// with zeros before numbers of fewer than 7 digits.
///
/// A name and a number belong together in one way only: a folder `step-007` is not of `step-{n}`, and `iter_7` is not of `iter_{n:07}`.
///
/// ```
/// use reshard_manager::StepPattern;
///
/// let megatrons: StepPattern = "iter_{n:07}".parse()?;
/// assert_eq!(megatrons.name(500), "iter_0000500");
/// assert_eq!(megatrons.number("iter_0000500"), Some(500));
/// assert_eq!(megatrons.number("iter_500"), None);
/// # Ok::<(), reshard::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepPattern {
    before: String,
    after: String,
    /// How many digits a number has at least.
    width: usize,
}

/// A number has no more digits.
const WIDEST: usize = 20;

impl Default for StepPattern {
    fn default() -> Self {
        Self {
            before: "step-".into(),
            after: String::new(),
            width: 1,
        }
    }
}

impl StepPattern {
    /// Parses a pattern. Beside the number it has letters, digits, `-`, `_`, `.` and `=`.
    ///
    /// # Errors
    /// It has no `{n}` or several, another character, or begins with a dot, as hidden names do.
    pub fn new(pattern: &str) -> Result<Self> {
        parse(pattern).map_err(|why| {
            let what = format!("{pattern:?} {why}; write it as step-{{n}} or iter_{{n:07}}");
            Error::new("reading a pattern", "", StrategyError::Invalid(what))
        })
    }

    /// The name of a step.
    pub fn name(&self, number: u64) -> String {
        let Self {
            before,
            after,
            width,
        } = self;
        format!("{before}{number:0width$}{after}")
    }

    /// The number in a name. `None` if it is not one of this pattern.
    pub fn number(&self, name: &str) -> Option<u64> {
        let rest = name.strip_prefix(&*self.before)?;
        let digits = rest.strip_suffix(&*self.after)?;
        // `parse` takes a sign, too.
        let number = digits.parse().ok()?;
        (self.name(number) == name).then_some(number)
    }
}

fn parse(pattern: &str) -> Result<StepPattern, &'static str> {
    let Some((before, rest)) = pattern.split_once('{') else {
        return Err("has no {n} for the number of a step");
    };
    let Some((inside, after)) = rest.split_once('}') else {
        return Err("has a { without a }");
    };
    if after.contains(['{', '}']) || before.contains('}') {
        return Err("has more than one pair of braces");
    }
    let width = match inside.strip_prefix('n') {
        Some("") => 1,
        // As `format!` has it: a zero, and then how many digits.
        Some(rest) => rest
            .strip_prefix(":0")
            .filter(|digits| digits.bytes().all(|b| b.is_ascii_digit()))
            .and_then(|digits| digits.parse().ok())
            .filter(|width| (1..=WIDEST).contains(width))
            .ok_or("has something else than {n}, or {n:01} to {n:020}, in its braces")?,
        None => return Err("has something else than {n} in its braces"),
    };
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.=".contains(c);
    if !before.chars().chain(after.chars()).all(allowed) {
        return Err("has a character that is no letter, digit, `-`, `_`, `.` or `=`");
    }
    if before.starts_with('.') {
        return Err("begins with a dot, as the names of unfinished saves do");
    }
    // A name would say two numbers.
    if before.ends_with(|c: char| c.is_ascii_digit())
        || after.starts_with(|c: char| c.is_ascii_digit())
    {
        return Err("has a digit beside the number");
    }
    Ok(StepPattern {
        before: before.into(),
        after: after.into(),
        width,
    })
}

impl FromStr for StepPattern {
    type Err = Error;

    fn from_str(pattern: &str) -> Result<Self> {
        Self::new(pattern)
    }
}

impl fmt::Display for StepPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = match self.width {
            1 => "{n}".into(),
            width => format!("{{n:0{width}}}"),
        };
        write!(f, "{}{number}{}", self.before, self.after)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_and_a_number_belong_together_in_one_way_only() {
        for text in [
            "step-{n}",
            "iter_{n:07}",
            "{n}",
            "a.{n:020}-b.c=1",
            "{n:03}x",
        ] {
            let pattern = StepPattern::new(text).unwrap();
            assert_eq!(pattern.to_string(), text);
            for number in [0, 7, 999, 1000, 12_345_678, u64::MAX] {
                assert_eq!(
                    pattern.number(&pattern.name(number)),
                    Some(number),
                    "{text}"
                );
            }
        }
        let [plain, padded] = ["step-{n}", "s{n:03}"].map(|p| StepPattern::new(p).unwrap());
        for odd in [
            "step-",
            "step-+1",
            "step--1",
            "step-01",
            "step-1 ",
            "xstep-1",
            "step-1.tmp",
            "step-99999999999999999999",
            "Step-1",
            ".step-1",
        ] {
            assert_eq!(plain.number(odd), None, "{odd}");
        }
        for odd in ["s1", "s01", "s0001", "s", "s+01"] {
            assert_eq!(padded.number(odd), None, "{odd}");
        }
        assert_eq!(StepPattern::default(), plain);
    }

    #[test]
    fn what_is_no_pattern_is_refused_with_the_reason() {
        for (text, why) in [
            ("step", "no {n}"),
            ("step-{n", "without a }"),
            ("{n}-{n}", "more than one"),
            ("}{n}", "more than one"),
            ("{m}", "something else than {n} in"),
            ("{n:7}", "{n:01} to {n:020}"),
            ("{n:0}", "{n:01} to {n:020}"),
            ("{n:0+7}", "{n:01} to {n:020}"),
            ("{n:021}", "{n:01} to {n:020}"),
            ("a/{n}", "no letter"),
            ("schritt-ü{n}", "no letter"),
            (".{n}", "begins with a dot"),
            ("v2{n}", "a digit beside"),
            ("{n}0", "a digit beside"),
        ] {
            let e = StepPattern::new(text).unwrap_err().to_string();
            assert!(e.contains(why) && e.contains(&format!("{text:?}")), "{e}");
        }
    }
}

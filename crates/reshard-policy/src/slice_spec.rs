use crate::PolicyError;
use reshard_model::{Dims, Region};
use std::{fmt, str::FromStr};

/// TensorFlow's text form of a part of a tensor: the full shape, each number followed by a space, then `offset,length` for
/// each axis, joined by colons.
///
/// It parses everything that TensorFlow's C++ parses, and prints only the canonical form. The whole tensor is the empty
/// text, so a scalar and a tensor of any shape look the same.
///
/// ```
/// use reshard_model::Region;
/// use reshard_policy::SliceSpec;
/// let spec = SliceSpec::part(&[4, 3, 5], Region::new([0, 1, 3], [4, 1, 2]))?;
/// assert_eq!(spec.to_string(), "4 3 5 0,4:1,1:3,2");
/// assert_eq!("4 3 5 -:1,1:3,2".parse::<SliceSpec>()?, spec);
/// assert_eq!("".parse::<SliceSpec>()?, SliceSpec::Whole);
/// # Ok::<(), reshard_policy::PolicyError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum SliceSpec {
    /// All of a tensor, whose shape is not given.
    #[default]
    Whole,
    /// A part, which may be the whole tensor.
    Part {
        /// Shape of the whole tensor.
        full_shape: Dims,
        /// The part.
        region: Region,
    },
}

impl SliceSpec {
    /// A part of a tensor of this shape. For a scalar this is [`Whole`](Self::Whole).
    ///
    /// # Errors
    /// A region outside the shape, or a shape of 2^63 elements or more.
    pub fn part(full_shape: &[u64], region: Region) -> Result<Self, PolicyError> {
        let full_shape = Dims::from(full_shape);
        if !region.fits(&full_shape) {
            return Err(PolicyError::invalid(format!(
                "slice {region} does not lie in shape {full_shape}"
            )));
        }
        if full_shape
            .volume()
            .is_none_or(|n| i64::try_from(n).is_err())
        {
            return Err(PolicyError::invalid(format!(
                "shape {full_shape} has 2^63 elements or more"
            )));
        }
        Ok(if full_shape.is_empty() {
            Self::Whole
        } else {
            Self::Part { full_shape, region }
        })
    }
}

impl fmt::Display for SliceSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::Part { full_shape, region } = self else {
            return Ok(());
        };
        full_shape.iter().try_for_each(|n| write!(f, "{n} "))?;
        for (axis, (offset, length)) in region.offsets.iter().zip(&region.lengths).enumerate() {
            write!(f, "{}{offset},{length}", if axis == 0 { "" } else { ":" })?;
        }
        Ok(())
    }
}

impl FromStr for SliceSpec {
    type Err = PolicyError;

    fn from_str(s: &str) -> Result<Self, PolicyError> {
        if s.is_empty() {
            return Ok(Self::Whole);
        }
        let wrong = |what: String| {
            PolicyError::invalid(format!(
                "slice spec {s:?}: {what}; expected the full shape and offset,length of each axis, such as \"4 3 0,4:1,2\""
            ))
        };

        // The last space ends the shape, because the slice itself has none.
        let Some((shape, parts)) = s.rsplit_once(' ') else {
            return Err(wrong("there is no space between shape and slice".into()));
        };
        let extent =
            |text: &str| number(text).ok_or_else(|| wrong(format!("{text:?} is not a length")));
        let full_shape: Dims = shape
            .split(' ')
            .map(extent)
            .collect::<Result<Vec<u64>, _>>()?
            .into();
        let mut region = Region::default();

        // The shape comes first, so "-" can stand for the whole of an axis. An empty part between colons counts for
        // nothing.
        for part in parts.split(':').filter(|part| !part.is_empty()) {
            let Some(&whole) = full_shape.get(region.ndim()) else {
                return Err(wrong(format!(
                    "the slice has more axes than shape {full_shape}"
                )));
            };
            let (offset, length) = if part == "-" {
                (0, whole)
            } else {
                let pair = pair(part).ok_or_else(|| {
                    wrong(format!("{part:?} is neither a pair of numbers nor '-'"))
                })?;
                if pair.1 == 0 {
                    return Err(wrong(format!("{part:?} has no length")));
                }
                pair
            };
            region.offsets.push(offset);
            region.lengths.push(length);
        }
        if region.ndim() < full_shape.len() {
            return Err(wrong(format!(
                "the slice has fewer axes than shape {full_shape}"
            )));
        }

        // `part` checks what concerns both shape and slice.
        Self::part(&full_shape, region).map_err(|e| wrong(e.to_string()))
    }
}

fn pair(text: &str) -> Option<(u64, u64)> {
    let mut numbers = text.split(',').filter(|part| !part.is_empty());
    let pair = (number(numbers.next()?)?, number(numbers.next()?)?);
    numbers.next().is_none().then_some(pair)
}

/// Decimal, with a sign and white space around it as C++ allows, of 63 bits and not negative.
fn number(text: &str) -> Option<u64> {
    let text = text.trim_matches([' ', '\t', '\n', '\x0b', '\x0c', '\r']);
    text.parse::<i64>().ok().and_then(|n| u64::try_from(n).ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(text: &str) -> Option<String> {
        text.parse::<SliceSpec>().ok().map(|spec| spec.to_string())
    }

    #[test]
    fn what_cpp_reads_is_read_and_printed_in_one_form() {
        let same = [
            ("4 0,4", "4 0,4"),
            ("+4 00,04\n", "4 0,4"),
            ("4 ,0,,4,:", "4 0,4"),
            ("4 3 -:0,3", "4 3 0,4:0,3"),
            ("3 0 -:-", "3 0 0,3:0,0"),
            ("4 -0,1", "4 0,1"),
        ];
        for (text, canonical) in same {
            assert_eq!(read(text).as_deref(), Some(canonical), "{text:?}");
        }
        let refused = [
            " ",
            "4 ",
            "4  0,4",
            " 4 0,4",
            "4\t0,4",
            "a 0,4",
            "4 0",
            "4 0,1,2",
            "4 0,4:0,3",
            "-4 0,4",
            "4 -1,2",
            "4 0,-1",
            "4 3,5",
            "4 0,0",
            "4_0 0,4",
            "4.0 0,4",
            "4 0, 4",
            "4,0,4",
            "٤ 0,4",
            "99999999999999999999 0,4",
            "4 0,4 ",
            "4294967296 4294967296 0,1:0,1",
            "4 9223372036854775807,9223372036854775807",
        ];
        for text in refused {
            assert_eq!(read(text), None, "{text:?}");
        }
    }

    #[test]
    fn an_error_quotes_the_text_and_shows_a_right_one() {
        let error = "4 3 0,4".parse::<SliceSpec>().unwrap_err().to_string();
        assert!(
            error.contains("\"4 3 0,4\": the slice has fewer axes than shape [4, 3]"),
            "{error}"
        );
        assert!(error.contains("such as"), "{error}");
    }

    proptest! {
        #![proptest_config(reshard_model::testkit::law(256))]
        #[test]
        fn what_is_printed_is_read_again(axes in prop::collection::vec((0u64..1000, 0u64..1000, 1u64..1000), 0..5)) {
            let shape: Vec<u64> = axes.iter().map(|a| a.0 + a.1 + a.2).collect();
            let region = Region::new(
                axes.iter().map(|a| a.0).collect::<Vec<_>>(), axes.iter().map(|a| a.2).collect::<Vec<_>>(),
            );
            let spec = SliceSpec::part(&shape, region).unwrap();
            prop_assert_eq!(spec.to_string().parse::<SliceSpec>().unwrap(), spec);
        }

        #[test]
        fn no_text_panics(text in "[-+0-9,: ]{0,40}|.{0,20}") {
            if let Ok(spec) = text.parse::<SliceSpec>() {
                prop_assert_eq!(spec.to_string().parse::<SliceSpec>().ok(), Some(spec).filter(|s| !empty(s)));
            }
        }
    }

    /// Slices of no length can be said with "-" only.
    fn empty(spec: &SliceSpec) -> bool {
        matches!(spec, SliceSpec::Part { region, .. } if region.is_empty())
    }
}

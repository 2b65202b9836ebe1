//! A part of a tensor, as a command line gives it.

use crate::units::some;
use reshard::{Region, blocking::TensorHandle};
use std::fmt;

/// Ranges along the first axes, as `--region` gives them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wanted(Vec<Along>);

/// A part of an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Along {
    from: u64,
    /// The end of the axis, if it is not given.
    to: Option<u64>,
}

impl std::str::FromStr for Wanted {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad =
            || format!("{text:?} is not a region; write 0:2,3:5 for rows 0 and 1, columns 3 and 4");
        let int = |text: &str, default: Option<u64>| match text.trim() {
            "" => Some(default),
            digits => digits.parse().ok().map(Some),
        };
        let along = |part: &str| match part.split_once(':') {
            Some((from, to)) => Some(Along {
                from: int(from, Some(0))??,
                to: int(to, None)?,
            }),
            None => {
                let from: u64 = part.trim().parse().ok()?;
                Some(Along {
                    from,
                    to: Some(from.checked_add(1)?),
                })
            }
        };
        let all: Option<Vec<_>> = text.split(',').map(along).collect();
        all.map(Self).ok_or_else(bad)
    }
}

impl Wanted {
    /// The region of a tensor; axes that are not given are whole.
    pub(crate) fn within(&self, tensor: &TensorHandle) -> Result<Region, String> {
        let shape = tensor.shape();
        if self.0.len() > shape.len() {
            let axes = match shape.len() {
                1 => "1 axis".to_owned(),
                n => format!("{n} axes"),
            };
            return Err(format!(
                "--region has {}, and {} of shape {shape} has {axes}",
                some(self.0.len() as u64, "range"),
                tensor.key(),
            ));
        }
        let mut region = Region::whole(shape);
        for (axis, along) in self.0.iter().enumerate() {
            let to = along.to.unwrap_or(shape[axis]);
            if along.from > to || to > shape[axis] {
                return Err(format!(
                    "{along} does not lie in axis {axis} of {} of shape {shape}",
                    tensor.key()
                ));
            }
            region.offsets[axis] = along.from;
            region.lengths[axis] = to - along.from;
        }
        Ok(region)
    }
}

impl fmt::Display for Along {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.from)?;
        self.to.map_or(Ok(()), |to| write!(f, "{to}"))
    }
}

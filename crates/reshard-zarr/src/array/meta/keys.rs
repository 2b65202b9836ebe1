//! The names of chunk files within an array.

use super::json::MAX_AXES;
use reshard_model::Dims;

/// How the position of a chunk in the grid becomes the name of its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChunkKeys {
    /// Whether names begin with `c`, as the default encoding of v3 has it.
    pub(crate) prefixed: bool,
    /// `.` or `/`.
    pub(crate) separator: char,
}

impl ChunkKeys {
    /// v2 without a `dimension_separator`.
    pub(crate) const DOTS: Self = Self {
        prefixed: false,
        separator: '.',
    };
    /// The default of v3.
    pub(crate) const SLASHES: Self = Self {
        prefixed: true,
        separator: '/',
    };

    /// The name of a chunk's file, relative to the directory of the array.
    pub(crate) fn name(self, cell: &[u64]) -> String {
        if cell.is_empty() && !self.prefixed {
            return "0".into();
        }
        let prefix = self.prefixed.then(|| "c".to_owned());
        let parts = prefix.into_iter().chain(cell.iter().map(u64::to_string));
        parts.collect::<Vec<_>>().join(&self.separator.to_string())
    }

    /// The position of the chunk whose file has this name. `None` if it is no chunk of an array of so many axes.
    pub(crate) fn cell(self, name: &str, axes: usize) -> Option<Dims> {
        if axes > MAX_AXES {
            return None;
        }
        let name = match (self.prefixed, axes) {
            (true, 0) => return (name == "c").then(Dims::default),
            (false, 0) => return (name == "0").then(Dims::default),
            (true, _) => name.strip_prefix('c')?.strip_prefix(self.separator)?,
            (false, _) => name,
        };
        let mut out = Dims::default();
        for part in name.split(self.separator) {
            // `01` and `+1` are names of other files.
            let plain = part.bytes().all(|b| b.is_ascii_digit());
            if !plain || (part.len() > 1 && part.starts_with('0')) || out.len() == axes {
                return None;
            }
            out.push(part.parse().ok()?);
        }
        (out.len() == axes).then_some(out)
    }
}

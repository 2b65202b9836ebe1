//! The file `checkpoint` of a folder, which says which checkpoint there is the latest.

use std::fmt::Write;

/// What the file `checkpoint` says.
///
/// ```
/// use reshard_tensor_bundle::CheckpointState;
/// let state = CheckpointState::latest("ckpt-3");
/// assert_eq!(
///     state.to_string(),
///     "model_checkpoint_path: \"ckpt-3\"\nall_model_checkpoint_paths: \"ckpt-3\"\n"
/// );
/// assert_eq!(CheckpointState::parse(&state.to_string()), Some(state));
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct CheckpointState {
    /// The latest checkpoint: a prefix, relative to the folder, or absolute.
    pub model_checkpoint_path: String,
    /// All that are kept, oldest first.
    pub all_model_checkpoint_paths: Vec<String>,
    /// When each of them was written, in seconds since 1970. Empty, or as many as there are paths.
    pub all_model_checkpoint_timestamps: Vec<f64>,
    /// When one was kept for good.
    pub last_preserved_timestamp: Option<f64>,
}

impl CheckpointState {
    /// One checkpoint, which is the latest.
    pub fn latest(prefix: impl Into<String>) -> Self {
        let prefix = prefix.into();
        Self {
            all_model_checkpoint_paths: vec![prefix.clone()],
            model_checkpoint_path: prefix,
            ..Self::default()
        }
    }

    /// The same with another one as the latest. Timestamps are dropped, because there is none for it.
    #[must_use]
    pub fn with_latest(mut self, prefix: impl Into<String>) -> Self {
        let prefix = prefix.into();
        self.all_model_checkpoint_paths
            .retain(|path| *path != prefix);
        self.all_model_checkpoint_paths.push(prefix.clone());
        self.all_model_checkpoint_timestamps.clear();
        Self {
            model_checkpoint_path: prefix,
            ..self
        }
    }

    /// Parses the file. `None` if it is no such file, or does not name the latest checkpoint.
    pub fn parse(text: &str) -> Option<Self> {
        let mut out = Self::default();
        for line in text.lines().map(str::trim) {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let (field, value) = line.split_once(':')?;
            let value = value.trim();
            match field.trim() {
                "model_checkpoint_path" => out.model_checkpoint_path = quoted(value)?,
                "all_model_checkpoint_paths" => {
                    out.all_model_checkpoint_paths.push(quoted(value)?);
                }
                "all_model_checkpoint_timestamps" => {
                    out.all_model_checkpoint_timestamps
                        .push(value.parse().ok()?);
                }
                "last_preserved_timestamp" => {
                    out.last_preserved_timestamp = Some(value.parse().ok()?);
                }
                _ => return None,
            }
        }
        (!out.model_checkpoint_path.is_empty()).then_some(out)
    }
}

/// As TensorFlow writes it.
impl std::fmt::Display for CheckpointState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(
            f,
            "model_checkpoint_path: {}",
            escaped(&self.model_checkpoint_path)
        )?;
        for path in &self.all_model_checkpoint_paths {
            writeln!(f, "all_model_checkpoint_paths: {}", escaped(path))?;
        }
        for time in &self.all_model_checkpoint_timestamps {
            writeln!(f, "all_model_checkpoint_timestamps: {time:?}")?;
        }
        if let Some(time) = self.last_preserved_timestamp {
            writeln!(f, "last_preserved_timestamp: {time:?}")?;
        }
        Ok(())
    }
}

/// A text in the escapes of C.
fn escaped(text: &str) -> String {
    let mut out = String::from("\"");
    for byte in text.bytes() {
        match byte {
            b'\n' => out.push_str("\\n"),
            b'\r' => out.push_str("\\r"),
            b'\t' => out.push_str("\\t"),
            b'"' | b'\'' | b'\\' => out.extend(['\\', char::from(byte)]),
            b' '..=b'~' => out.push(char::from(byte)),
            // A `String` can always be written to.
            byte => drop(write!(out, "\\{byte:03o}")),
        }
    }
    out.push('"');
    out
}

/// The text of a quoted one.
fn quoted(text: &str) -> Option<String> {
    let quote = text.chars().next().filter(|c| matches!(c, '"' | '\''))?;
    let inside = text.strip_prefix(quote)?.strip_suffix(quote)?;
    let (mut out, mut rest) = (Vec::new(), inside.as_bytes());
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        if byte != b'\\' {
            out.push(byte);
            continue;
        }
        let (&escape, tail) = rest.split_first()?;
        rest = tail;
        out.push(match escape {
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'"' | b'\'' | b'\\' | b'?' => escape,
            b'0'..=b'7' => {
                let digits = rest.iter().take(2).take_while(|b| matches!(b, b'0'..=b'7'));
                let more = digits.count();
                let digits = std::iter::once(&escape).chain(&rest[..more]);
                let n = digits.fold(0u32, |n, digit| n * 8 + u32::from(digit - b'0'));
                rest = &rest[more..];
                u8::try_from(n).ok()?
            }
            _ => return None,
        });
    }
    String::from_utf8(out).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_of_a_manager_is_read_and_written_the_same() {
        let text = "model_checkpoint_path: \"ckpt-3\"\n\
            all_model_checkpoint_paths: \"ckpt-2\"\n\
            all_model_checkpoint_paths: \"ckpt-3\"\n\
            all_model_checkpoint_timestamps: 1795219230.0936239\n\
            all_model_checkpoint_timestamps: 1795219230.0975358\n\
            last_preserved_timestamp: 1795219229.0498304\n";
        let state = CheckpointState::parse(text).unwrap();
        assert_eq!(state.model_checkpoint_path, "ckpt-3");
        assert_eq!(state.all_model_checkpoint_paths.len(), 2);
        assert_eq!(state.to_string(), text);
        let next = state.with_latest("ckpt-2");
        assert_eq!(next.all_model_checkpoint_paths, ["ckpt-3", "ckpt-2"]);
        assert!(next.all_model_checkpoint_timestamps.is_empty());
    }

    #[test]
    fn any_text_is_escaped_and_read_again() {
        for text in ["a\"b\\c'\n\t\r", "é中", "\u{1}9", "~"] {
            let state = CheckpointState::latest(text);
            assert!(state.to_string().is_ascii());
            assert_eq!(CheckpointState::parse(&state.to_string()), Some(state));
        }
        for bad in [
            "",
            "x",
            "model_checkpoint_path: a",
            "model_checkpoint_path: \"\\q\"",
            "model_checkpoint_path: \"\\777\"",
            "model_checkpoint_path: \"",
            "other: \"a\"",
        ] {
            assert_eq!(CheckpointState::parse(bad), None, "{bad:?}");
        }
    }
}

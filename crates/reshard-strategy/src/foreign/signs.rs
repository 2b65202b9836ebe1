//! Signs by which files and folders of other programs are recognised.

/// Content by which a file is recognised.
#[derive(Clone, Copy, Debug)]
pub(super) enum Content {
    /// These bytes at this offset.
    At(usize, &'static [u8]),
    /// These bytes at the end.
    End(&'static [u8]),
    /// A zip archive whose first entry has a name that fits one of these patterns.
    FirstInZip(&'static [&'static str]),
    /// A start for which this returns true, of a format without a magic number.
    Check(fn(&[u8]) -> bool),
}

impl Content {
    pub(super) fn is_in(self, head: &[u8], tail: &[u8]) -> bool {
        match self {
            Self::At(at, bytes) => head.get(at..).is_some_and(|rest| rest.starts_with(bytes)),
            Self::End(bytes) => tail.ends_with(bytes),
            Self::FirstInZip(patterns) => first_in_zip(head)
                .is_some_and(|name| patterns.iter().any(|pattern| fits(pattern, name))),
            Self::Check(check) => check(head),
        }
    }
}

/// The name of the first entry of a zip archive, from its local header.
fn first_in_zip(head: &[u8]) -> Option<&str> {
    let rest = head.strip_prefix(b"PK\x03\x04")?;
    let length = u16::from_le_bytes([*rest.get(22)?, *rest.get(23)?]);
    std::str::from_utf8(rest.get(26..26 + usize::from(length))?).ok()
}

/// Whether this is the start of an archive of Keras 3: its first entry names the version of Keras.
pub(super) fn is_keras(head: &[u8]) -> bool {
    let version = b"\"keras_version\"";
    first_in_zip(head) == Some("metadata.json") && head.windows(version.len()).any(|w| w == version)
}

/// Whether this is the start of ONNX's `ModelProto`: the version of the format, then the producer's name or the graph.
pub(super) fn is_onnx(head: &[u8]) -> bool {
    match head {
        [0x08, 3..=0x7f, 0x12, length, rest @ ..] => {
            let name = rest.get(..usize::from(*length));
            name.is_some_and(|name| name.iter().all(|b| (b' '..=b'~').contains(b)))
        }
        // A graph begins with its first node, which begins with an input or an output.
        [0x08, 3..=0x7f, 0x3a, rest @ ..] => {
            let node = rest
                .iter()
                .position(|b| b & 0x80 == 0)
                .and_then(|end| rest.get(end + 1));
            node == Some(&0x0a)
        }
        _ => false,
    }
}

/// Whether this is the start of a map of msgpack whose first key is text and whose first value is a map or an array of Flax.
pub(super) fn is_msgpack(head: &[u8]) -> bool {
    let rest = match head {
        [0x81..=0x8f, rest @ ..] | [0xde, _, _, rest @ ..] | [0xdf, _, _, _, _, rest @ ..] => rest,
        _ => return false,
    };
    let (length, rest) = match rest {
        [fixed @ 0xa1..=0xbf, rest @ ..] => (usize::from(fixed & 0x1f), rest),
        [0xd9, length, rest @ ..] => (usize::from(*length), rest),
        _ => return false,
    };
    let Some((key, [value, ..])) = rest.split_at_checked(length) else {
        return false;
    };
    let is_text = std::str::from_utf8(key).is_ok_and(|key| !key.contains(char::is_control));
    // Maps, and extension types.
    is_text && matches!(value, 0x80..=0x8f | 0xde | 0xdf | 0xc7..=0xc9 | 0xd4..=0xd8)
}

/// Whether a path fits a pattern, part by part.
pub(super) fn matches(pattern: &str, path: &str) -> bool {
    let (mut of_pattern, mut of_path) = (pattern.split('/'), path.split('/'));
    loop {
        match (of_pattern.next(), of_path.next()) {
            (None, None) => return true,
            (Some(part), Some(name)) if fits(part, name) => {}
            _ => return false,
        }
    }
}

/// Whether the pattern continues in a folder of this path.
pub(super) fn leads_through(pattern: &str, folder: &str) -> bool {
    let depth = folder.split('/').count();
    let mut parts = pattern.split('/');
    folder
        .split('/')
        .all(|name| parts.next().is_some_and(|part| fits(part, name)))
        && pattern.split('/').count() > depth
}

/// Whether a name fits a part of a pattern, in which each `*` stands for any text.
fn fits(part: &str, name: &str) -> bool {
    let Some((first, rest)) = part.split_once('*') else {
        return part == name;
    };
    let Some(mut name) = name.strip_prefix(first) else {
        return false;
    };
    let (middle, last) = rest
        .rsplit_once('*')
        .map_or((None, rest), |(middle, last)| (Some(middle), last));
    if let Some(middle) = middle {
        match name.split_once(middle) {
            Some((_, behind)) => name = behind,
            None => return false,
        }
    }
    name.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::{
        super::{FOREIGN, Foreign},
        *,
    };
    use proptest::prelude::*;
    use std::hint::black_box;

    #[test]
    fn paths_fit_patterns_part_by_part() {
        for (pattern, path, want) in [
            ("mp_rank_*/model.pt", "mp_rank_00/model.pt", true),
            ("mp_rank_*/model.pt", "mp_rank_00/x/model.pt", false),
            ("*/a", "a", false),
            (
                "mp_rank_*_model_states.pt",
                "mp_rank_00_model_states.pt",
                true,
            ),
            (
                "mp_rank_*_model_states.pt",
                "mp_rank_00_optim_states.pt",
                false,
            ),
            ("*_x_*.pt", "bf16_x_0.pt", true),
            ("*_x_*.pt", "bf16_y_0.pt", false),
            ("x*x", "x", false),
        ] {
            assert_eq!(matches(pattern, path), want, "{pattern} {path}");
        }
        assert!(leads_through("iter_*/mp_rank_*/x", "iter_1"));
        assert!(leads_through("iter_*/mp_rank_*/x", "iter_1/mp_rank_00"));
        assert!(!leads_through("iter_*/mp_rank_*/x", "iter_1/mp_rank_00/x"));
        assert!(!Foreign::may_be_in("some/deep/folder"));
    }

    #[test]
    fn each_kind_has_a_sign_and_a_next_step() {
        for foreign in FOREIGN {
            assert!(
                !foreign.what.is_empty() && !foreign.next.is_empty(),
                "{foreign:?}"
            );
            assert!(
                !foreign.content.is_empty() || !foreign.folder.is_empty(),
                "{foreign:?}"
            );
        }
    }

    #[test]
    fn files_of_linked_formats_are_not_foreign() {
        for head in [
            &b"\x08\x00\x00\x00\x00\x00\x00\x00{      }"[..],
            b"\x88\xa5\x00\x00\x00\x00\x00\x00{\"__metadata__\":{}}",
            b"PK\x03\x04\x00\x00\x08\x08\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x10\x00\x12\x00archive/data.pkl",
            b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.",
            b"{\"zarr_format\": 3}",
        ] {
            assert!(Foreign::of_file(head, b"").is_none(), "{head:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_looked_at_without_a_panic(head: Vec<u8>, tail: Vec<u8>, path: String) {
            black_box(Foreign::of_file(&head, &tail));
            let zip = [b"PK\x03\x04", &head[..]].concat();
            black_box(Foreign::of_file(&zip, &tail));
            black_box(Foreign::of_folder([&*path].into_iter()));
            black_box((Foreign::may_be_in(&path), Foreign::of_name(&path)));
        }
    }
}

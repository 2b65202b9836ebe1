//! The parsers of what comes from outside, for fuzz targets: whatever the bytes are, none of them panics.

use crate::{header, index::Index};
use reshard_model::Layout;

/// Any bytes as a file: the length of its header, and the header.
pub fn header(file: &[u8]) {
    let bytes = file.len() as u64;
    let Ok(length) = header::length(file, bytes) else {
        return;
    };
    let text = &file[8..][..length as usize];
    let Ok(found) = header::parse(text, bytes) else {
        return;
    };
    let mut at = 8 + length;
    for entry in &found.entries {
        assert_eq!(entry.bytes.start, at, "tensors follow each other");
        at = entry.bytes.end;
        let Ok(spelled) = &entry.dtype else { continue };
        if let Ok((dtype, shape)) = spelled.in_model(&entry.shape) {
            let takes = Layout::contiguous(dtype.size(), &shape).map(|l| l.bytes());
            let has = entry.bytes.end - entry.bytes.start;
            assert_eq!(takes, Some(has), "a tensor has its bytes");
        }
    }
    assert_eq!(at, bytes, "they fill the file");
}

/// Any bytes as an index.
pub fn index(text: &[u8]) {
    if let Ok(index) = Index::parse(text) {
        let files = index.files.len();
        assert!(
            index.of.values().all(|file| (*file as usize) < files),
            "every key has a file"
        );
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    fn file(text: &[u8], data: &[u8]) -> Vec<u8> {
        let length = (text.len() as u64).to_le_bytes();
        [&length[..], text, data].concat()
    }

    #[test]
    fn an_empty_tensor_with_long_axes_makes_no_target_panic() {
        let text =
            r#"{"w":{"dtype":"BOOL","shape":[0,3,6148914691236517206],"data_offsets":[0,0]}}"#;
        super::header(&file(text.as_bytes(), &[]));
    }

    proptest! {
        #![proptest_config(reshard_model::testkit::law(256))]
        #[test]
        fn no_bytes_make_a_target_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            super::header(&bytes);
            super::header(&file(&bytes, &[]));
            super::index(&bytes);
        }

        #[test]
        fn no_numbers_in_a_header_make_a_target_panic(
            shape in prop::collection::vec(prop_oneof![0u64..9, any::<u64>()], 0..4),
            offsets in (any::<u64>(), any::<u64>()),
            dtype in prop::sample::select(vec!["F32", "F4", "F6_E3M2", "BOOL", "X9"]),
            data in 0usize..64,
        ) {
            let (from, to) = offsets;
            for (from, to) in [(from, to), (0, data as u64), (0, to)] {
                let text = format!(r#"{{"w":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{from},{to}]}}}}"#);
                super::header(&file(text.as_bytes(), &vec![0; data]));
            }
        }
    }
}

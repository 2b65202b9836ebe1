use super::*;
use proptest::prelude::*;
use serde_json::Value;

/// Buffers of C-Blosc with all its codecs, from `make_blosc.py`.
const FILE: &[u8] = include_bytes!("../../../../tests/fixtures/blosc.safetensors");

/// Their names, which end with how many bytes come out.
fn buffers() -> Vec<(String, Bytes, usize)> {
    let (length, rest) = FILE.split_first_chunk().unwrap();
    let (header, data) = rest.split_at(u64::from_le_bytes(*length) as usize);
    let header: Value = serde_json::from_slice(header).unwrap();
    let entry = |(name, of): (&String, &Value)| {
        let at = |n: usize| of["data_offsets"][n].as_u64().unwrap() as usize;
        let (_, size) = name.rsplit_once(' ').unwrap();
        let bytes = Bytes::from_static(&data[at(0)..at(1)]);
        (name.clone(), bytes, size.parse().unwrap())
    };
    header.as_object().unwrap().iter().map(entry).collect()
}

/// `text()` of `make_blosc.py`.
fn text(size: usize) -> Vec<u8> {
    let byte = |i: u64| match i {
        3000..3800 => i.pow(3) / 11 % 65521 / 7,
        _ => i % 900 / 48 * 8,
    };
    (0..size as u64).map(|i| byte(i) as u8).collect()
}

#[test]
fn every_codec_shuffle_and_size_of_elements_gives_back_the_text() {
    let all = buffers();
    assert_eq!(all.len(), 5 * 3 * 6 * 2 + 2);
    for (name, stored, size) in all {
        let out = undo(&stored, size as u64).unwrap_or_else(|e| panic!("{name}: {e:?}"));
        assert!(out == text(size), "{name}");
        let less = undo(&stored, size as u64 - u64::from(size > 0));
        assert!(less.is_err() || size == 0, "{name} in one byte less");
    }
}

#[test]
fn headers_that_c_blosc_does_not_write_are_refused() {
    let name = "lz4, shuffle bytes, elements of 4, 21001";
    let (_, stored, _) = buffers().into_iter().find(|b| b.0 == name).unwrap();
    let refused = |at: usize, byte: u8| {
        let mut stored = stored.to_vec();
        stored[at] = byte;
        undo(&stored.into(), 1 << 20).unwrap_err().what
    };
    assert!(refused(0, 5).contains("version 5"), "Blosc 2");
    assert!(refused(2, stored[2] | 8).contains("flags 0x29"));
    assert!(refused(2, 5 << 5).contains("no compression 5"));
    assert!(refused(3, 0).contains("elements have 0"));
    assert!(refused(10, 1).contains("blocks of 8"), "longer than all");
    assert!(refused(19, 1).contains("block 0 of 2, at byte 16777240: it begins after"));
    let few = undo(&stored.slice(..9), 9).unwrap_err().what;
    assert!(few.contains("9 bytes are too few"));
}

/// A buffer of two blocks of four bytes, which begin at these bytes, with one stream as it is at byte 24.
fn two_blocks(starts: [u32; 2], stream: &[u8]) -> Bytes {
    let mut stored = vec![VERSION, 1, Header::WHOLE | 1 << 5, 1];
    let length = stream.len() as u32;
    for word in [8, 4, 28 + length, starts[0], starts[1], length] {
        stored.extend(word.to_le_bytes());
    }
    stored.extend(stream);
    stored.into()
}

/// Thousands of blocks could share a stream that is long and gives one byte.
#[test]
fn blocks_that_share_a_stream_are_refused() {
    let fault = undo(&two_blocks([24, 24], &[7; 4]), 8).unwrap_err().what;
    assert!(
        fault.contains("block 1 of 2, at byte 24: it overlaps"),
        "{fault:?}"
    );
    let fault = undo(&two_blocks([24, 24], &[]), 8).unwrap_err().what;
    assert!(
        fault.contains("block 0 of 2, at byte 24: a stream is empty"),
        "{fault:?}"
    );
}

#[test]
fn a_block_whose_streams_leave_bytes_over_is_damage() {
    // 515 bytes in blocks of 515, elements of 4, not shuffled, and four streams of 128 bytes as they are.
    let mut stored = vec![VERSION, 1, 0, 4];
    for word in [515u32, 515, 0, 20] {
        stored.extend(word.to_le_bytes());
    }
    for _ in 0..4 {
        stored.extend(128u32.to_le_bytes());
        stored.extend([7; 128]);
    }
    let packed = stored.len() as u32;
    stored[12..16].copy_from_slice(&packed.to_le_bytes());
    let fault = undo(&stored.into(), 515).unwrap_err();
    assert!(fault.what.contains("into 4 streams"), "{fault:?}");
}

proptest! {
    #![proptest_config(reshard_model::testkit::law(256))]

    /// Whatever is damaged, the size that the header says comes out, or an error.
    #[test]
    fn damaged_buffers_are_errors_or_have_their_size(
        which in any::<prop::sample::Index>(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let all = buffers();
        let (name, stored, _) = which.get(&all);
        let mut stored = stored.to_vec();
        if let Some(cut) = cut {
            stored.truncate(cut.index(stored.len()) + 1);
        }
        for (at, byte) in damage {
            let at = at.index(stored.len());
            stored[at] = byte;
        }
        if let Some(packed) = stored.get(12..16) {
            let said = u32::from_le_bytes(packed.try_into().unwrap()) as usize;
            if said != stored.len() {
                let packed = stored.len() as u32;
                stored[12..16].copy_from_slice(&packed.to_le_bytes());
            }
        }
        let stored = Bytes::from(stored);
        if let Ok(out) = undo(&stored, 1 << 16) {
            let said = u32::from_le_bytes(stored[4..8].try_into().unwrap());
            prop_assert_eq!(out.len(), said as usize, "{}", name);
        }
    }
}

use super::*;
use crate::{
    array::meta::{Numbers, Recoded, Sum},
    testkit::CODECS,
};
use flate2::{Compression, write};
use proptest::prelude::*;
use reshard_model::Dims;
use std::io::Write;

fn encode(codec: Codec, bytes: &[u8]) -> Vec<u8> {
    match codec {
        Codec::Gzip => {
            let mut out = write::GzEncoder::new(Vec::new(), Compression::new(5));
            out.write_all(bytes).unwrap();
            out.finish().unwrap()
        }
        Codec::Zlib => {
            let mut out = write::ZlibEncoder::new(Vec::new(), Compression::new(1));
            out.write_all(bytes).unwrap();
            out.finish().unwrap()
        }
        Codec::Zstd => ::zstd::encode_all(bytes, 3).unwrap(),
        Codec::Bz2 => {
            let mut out = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::new(1));
            out.write_all(bytes).unwrap();
            out.finish().unwrap()
        }
        Codec::Blosc => blosc(bytes),
        Codec::Lz4 => {
            let block = lz4_flex::block::compress(bytes);
            [&(bytes.len() as u32).to_le_bytes()[..], &block].concat()
        }
        Codec::Checksum { sum, at_start } => {
            let sum = sum.of(bytes).to_le_bytes();
            match at_start {
                true => [&sum, bytes].concat(),
                false => [bytes, &sum].concat(),
            }
        }
        filter => panic!("{filter:?} is not lossless for any bytes"),
    }
}

/// One block in one stream, which is LZ4 if that is shorter.
fn blosc(bytes: &[u8]) -> Vec<u8> {
    let mut stream = lz4_flex::block::compress(bytes);
    if stream.len() >= bytes.len() {
        stream = bytes.to_vec();
    }
    let size = bytes.len() as u32;
    let packed = 24 + stream.len() as u32;
    let mut out = vec![2, 1, 1 << 5 | 16, 4];
    for word in [size, size, packed, 20, stream.len() as u32] {
        out.extend(word.to_le_bytes());
    }
    out.extend(stream);
    out
}

/// Those that take any bytes.
const ALL: &[Codec] = CODECS.split_at(11).0;

fn all_encoded(codecs: &[Codec], bytes: &[u8]) -> Bytes {
    let out = codecs
        .iter()
        .fold(bytes.to_vec(), |bytes, codec| encode(*codec, &bytes));
    out.into()
}

fn some(n: usize) -> Vec<u8> {
    (0..n).map(|i| (i * i / 7) as u8).collect()
}

#[test]
fn every_codec_gives_back_what_it_was_given() {
    for n in [1, 4, 1000, 300_000] {
        for &one in ALL {
            let codecs = [one];
            let stored = all_encoded(&codecs, &some(n));
            assert_eq!(
                decode(&codecs, stored, n as u64).unwrap(),
                some(n),
                "{one:?}"
            );
        }
    }
    assert_eq!(decode(&[], some(9).into(), 9).unwrap(), some(9));
}

#[test]
fn more_bytes_than_a_chunk_has_are_damage_and_take_no_memory() {
    // 64 MiB of zeros are a few kB, and the chunk has 1000 bytes.
    let zeros = vec![0; 64 << 20];
    for &one in ALL {
        if matches!(one, Codec::Checksum { .. }) {
            continue;
        }
        let stored = all_encoded(&[one], &zeros);
        assert!(stored.len() < 1 << 20, "{one:?}");
        let fault = decode(&[one], stored, 1000).unwrap_err();
        assert_eq!(
            fault.what,
            format!("{}: more than 1000 bytes come out", one.name())
        );
    }
    // The inner one is bounded, too.
    let twice = [Codec::Gzip, Codec::Zstd];
    let stored = encode(Codec::Zstd, &zeros).into();
    let fault = decode(&twice, stored, 1000).unwrap_err();
    assert!(
        fault.what.starts_with("zstd: more than 66661 bytes"),
        "{fault:?}"
    );
}

#[test]
fn what_is_cut_or_too_short_or_too_long_is_named_with_its_codec() {
    for &one in ALL {
        let stored = all_encoded(&[one], &some(1000));
        let cut = decode(&[one], stored.slice(..stored.len() - 1), 1000).unwrap_err();
        assert!(cut.what.starts_with(one.name()), "{cut:?}");
        let more = decode(&[one], [&stored, &[0][..]].concat().into(), 1000).unwrap_err();
        assert!(more.what.starts_with(one.name()), "{more:?}");
        let short = decode(&[one], stored, 1001).unwrap_err();
        assert!(short.what.contains("1000 bytes come out of"), "{short:?}");
    }
    let old = decode(
        &[Codec::Zstd],
        Bytes::from_static(b"\x25\xb5\x2f\xfd abc"),
        3,
    )
    .unwrap_err();
    assert!(old.what.contains("no frame begins"), "{old:?}");
}

#[test]
fn a_chunk_of_another_order_of_axes_and_bytes_has_its_elements() {
    // Columns first, big-endian: [[1, 2, 3], [4, 5, 6]].
    let stored = Stored {
        big_endian: true,
        axes: Some(vec![1, 0]),
        codecs: vec![Codec::Gzip],
    };
    let bytes: Vec<u8> = [1i16, 4, 2, 5, 3, 6]
        .iter()
        .flat_map(|n| n.to_be_bytes())
        .collect();
    let bytes = all_encoded(&stored.codecs, &bytes);
    let tensor = elements(&stored, DType::Int16, &[2, 3], bytes).unwrap();
    assert_eq!(tensor.shape(), &Dims::from([2, 3]));
    assert_eq!(tensor.to_vec::<i16>().unwrap(), [1, 2, 3, 4, 5, 6]);
    // A complex number is swapped in halves.
    let stored = Stored {
        big_endian: true,
        ..Stored::default()
    };
    let bytes = [1.5f32.to_be_bytes(), 2.5f32.to_be_bytes()].concat();
    let tensor = elements(&stored, DType::Complex64, &[], bytes.into()).unwrap();
    assert_eq!(
        tensor.to_bytes(),
        [1.5f32.to_le_bytes(), 2.5f32.to_le_bytes()].concat()
    );
}

/// Little-endian bytes of numbers.
macro_rules! bytes {
    ($($number:expr),*) => { [$($number.to_le_bytes().to_vec()),*].concat() };
}

fn numbers(decoded: DType, encoded: DType) -> Recoded {
    let of = |dtype| Numbers {
        dtype,
        big_endian: false,
    };
    Recoded {
        decoded: of(decoded),
        encoded: of(encoded),
    }
}

/// A filter from one type of numbers to another.
fn delta(to: DType, from: DType) -> Codec {
    Codec::Delta(numbers(to, from))
}

fn scale(to: DType, from: DType) -> Codec {
    Codec::Scale {
        offset: 1000.0,
        scale: 10.0,
        numbers: numbers(to, from),
    }
}

#[test]
fn filters_give_the_numbers_of_numpy() {
    use DType::*;
    for (codec, stored, want) in [
        (
            delta(Int32, Int8),
            bytes!(5i8, -7i8, 1i8),
            bytes!(5i32, -2i32, -1i32),
        ),
        // Without a sign, and around the end of the type.
        (
            delta(Int32, UInt8),
            bytes!(5u8, 249u8),
            bytes!(5i32, 254i32),
        ),
        (delta(UInt8, UInt8), bytes!(5u8, 254u8), bytes!(5u8, 3u8)),
        // Each sum is rounded to the decoded type.
        (
            delta(Float32, Float32),
            bytes!(1e8f32, 1f32, 1f32),
            bytes!(1e8f32, 1e8f32, 1e8f32),
        ),
        (
            delta(Float64, Float32),
            bytes!(1e8f32, 1f32),
            bytes!(1e8f64, 100_000_001f64),
        ),
        (
            delta(Float64, Int16),
            bytes!(-1i16, 3i16),
            bytes!(-1f64, 2f64),
        ),
        (
            scale(Float64, UInt8),
            bytes!(1u8, 200u8),
            bytes!(1000.1f64, 1020f64),
        ),
        (scale(Float32, Float32), bytes!(1f32), bytes!(1000.1f32)),
        (scale(Int16, Int8), bytes!(-11i8), bytes!(998i16)),
        (
            Codec::Shuffle { element: 3 },
            vec![1, 4, 2, 5, 3, 6],
            vec![1, 2, 3, 4, 5, 6],
        ),
        (
            Codec::PackBits,
            vec![6, 0b1010_0001, 0b0100_0000],
            vec![1, 0, 1, 0, 0, 0, 0, 1, 0, 1],
        ),
        (
            Codec::Narrow { bits: 4 },
            vec![7, 8, 15, 0xf0],
            vec![7, 0xf8, 0xff, 0],
        ),
        (
            Codec::Narrow { bits: 2 },
            vec![1, 2, 7],
            vec![1, 0xfe, 0xff],
        ),
    ] {
        let out = decode(&[codec], stored.into(), want.len() as u64).unwrap();
        assert_eq!(out, want, "{codec:?}");
    }
    // In the other order of bytes.
    let codec = Codec::Delta(Recoded {
        decoded: Numbers {
            dtype: Int16,
            big_endian: true,
        },
        encoded: Numbers {
            dtype: Int16,
            big_endian: true,
        },
    });
    let out = decode(&[codec], Bytes::from_static(&[1, 0, 0, 255]), 4).unwrap();
    assert_eq!(&out[..], [1, 0, 1, 255]);
}

#[test]
fn what_a_filter_never_writes_is_damage() {
    use DType::*;
    for (codec, stored, decoded, what) in [
        (
            delta(Int32, Int16),
            vec![0; 3],
            4,
            "delta: 3 bytes are not whole elements of 2 bytes",
        ),
        (
            delta(Int32, Int16),
            vec![0; 6],
            8,
            "delta: more than 8 bytes come out",
        ),
        (
            scale(Int8, Int16),
            bytes!(0i16),
            1,
            "fixedscaleoffset: the number 1000 is no int8",
        ),
        (
            scale(UInt16, Float64),
            bytes!(f64::NAN),
            2,
            "fixedscaleoffset: the number NaN is no uint16",
        ),
        (
            Codec::Shuffle { element: 4 },
            vec![0; 6],
            6,
            "shuffle: 6 bytes are not whole",
        ),
        (
            Codec::PackBits,
            vec![8, 0],
            8,
            "packbits: 8 bits of 1 bytes are unused",
        ),
        (
            Codec::PackBits,
            vec![0; 3],
            9,
            "packbits: more than 9 bytes come out",
        ),
        (
            Codec::Lz4,
            [&u32::MAX.to_le_bytes()[..], &[0]].concat(),
            1 << 40,
            "lz4: 1 bytes are too few",
        ),
    ] {
        let fault = decode(&[codec], stored.into(), decoded).unwrap_err();
        assert!(fault.what.starts_with(what), "{codec:?}: {fault:?}");
    }
}

#[test]
fn checksums_are_those_of_other_programs() {
    for (sum, want) in [
        (Sum::Crc32c, 0xe306_9283),
        (Sum::Crc32, 0xcbf4_3926),
        (Sum::Adler32, 0x091e_01de),
        (Sum::Fletcher32, 0x09df_09d5),
    ] {
        assert_eq!(sum.of(b"123456789"), want, "{sum:?}");
    }
    assert_eq!(Sum::Fletcher32.of(&[0xff; 4000]), 0xffff_ffff);
}

fn codecs() -> impl Strategy<Value = Vec<Codec>> {
    prop::collection::vec(prop::sample::select(ALL.to_vec()), 0..4)
}

proptest! {
    #![proptest_config(reshard_model::testkit::law(256))]
    #[test]
    fn every_chain_gives_back_what_it_was_given(codecs in codecs(), bytes in prop::collection::vec(any::<u8>(), 1..300)) {
        let stored = all_encoded(&codecs, &bytes);
        prop_assert_eq!(decode(&codecs, stored, bytes.len() as u64).unwrap(), bytes);
    }

    #[test]
    fn changed_bytes_are_an_error_or_a_chunk_of_the_right_size(
        codecs in codecs(), size in 1usize..400, changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4), cut in any::<prop::sample::Index>(), cuts: bool,
    ) {
        let mut stored = all_encoded(&codecs, &some(size)).to_vec();
        for (at, byte) in changes {
            let at = at.index(stored.len());
            stored[at] = byte;
        }
        if cuts {
            stored.truncate(cut.index(stored.len() + 1));
        }
        if let Ok(out) = decode(&codecs, stored.into(), size as u64) {
            prop_assert_eq!(out.len(), size);
        }
    }

    #[test]
    fn no_bytes_make_a_codec_panic(codecs in prop::collection::vec(prop::sample::select(&CODECS[..]), 0..4), bytes in prop::collection::vec(any::<u8>(), 0..80), size in 0u64..2000) {
        drop(decode(&codecs, bytes.into(), size));
    }

    #[test]
    fn no_header_makes_blosc_panic(header in prop::array::uniform16(any::<u8>()), rest in prop::collection::vec(any::<u8>(), 0..60), size in 1u32..500, block in 1u32..500) {
        let mut stored = [&header[..], &rest].concat();
        let packed = stored.len() as u32;
        stored[4..8].copy_from_slice(&size.to_le_bytes());
        stored[8..12].copy_from_slice(&block.to_le_bytes());
        stored[12..16].copy_from_slice(&packed.to_le_bytes());
        stored[0] = 2;
        drop(decode(&[Codec::Blosc], stored.into(), size.into()));
    }
}

/// A decoder that can't get memory.
struct NoMemory(&'static str);

impl Read for NoMemory {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        Err(match self.0 {
            "" => io::ErrorKind::OutOfMemory.into(),
            text => io::Error::other(text),
        })
    }
}

#[test]
fn a_lack_of_memory_is_no_damage() {
    let kind = |stream: &mut dyn Read, stored| {
        let mut stream = stream;
        all(&mut stream, stored, u64::MAX).unwrap_err().kind
    };
    assert_eq!(kind(&mut NoMemory(""), 1), ErrorKind::Unavailable);
    let zstd = "Allocation error : not enough memory";
    assert_eq!(kind(&mut NoMemory(zstd), 1), ErrorKind::Unavailable);
    assert_eq!(kind(&mut NoMemory("bad block"), 1), ErrorKind::Corrupt);
    // No machine has that much.
    assert_eq!(
        kind(&mut io::empty(), usize::MAX / 8),
        ErrorKind::Unavailable
    );
    let file = Name::new("a/c/0").unwrap();
    let e = error_in(&file, Some(0), Refused::new(ErrorKind::Unavailable, "none"));
    assert_eq!(e.kind(), ErrorKind::Unavailable, "{e}");
    let e = error_in(&file, Some(0), Refused::damaged("bad"));
    assert_eq!(e.kind(), ErrorKind::Corrupt, "{e}");
}

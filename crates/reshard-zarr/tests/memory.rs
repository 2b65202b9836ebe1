//! How much memory the decoders of compressed chunks take, measured where it is allocated.
#![expect(clippy::unwrap_used, reason = "a test")]

use reshard_model::testkit::CountingAllocator;
use reshard_zarr::testkit::undo;
use std::io::Write;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

const CHUNK: usize = 4 << 20;
/// The states of decoders: that of bzip2 is the largest.
const STATE: usize = 4 << 20;
/// What a codec may give besides the elements, because it may not be the last one.
const BESIDE: usize = CHUNK / 8 + (64 << 10);

fn encoded(codec: &str, bytes: &[u8]) -> Vec<u8> {
    use flate2::{Compression, write};
    match codec {
        "gzip" => {
            let mut out = write::GzEncoder::new(Vec::new(), Compression::new(1));
            out.write_all(bytes).unwrap();
            out.finish().unwrap()
        }
        "zlib" => {
            let mut out = write::ZlibEncoder::new(Vec::new(), Compression::new(1));
            out.write_all(bytes).unwrap();
            out.finish().unwrap()
        }
        "zstd" => zstd::encode_all(bytes, 1).unwrap(),
        "bz2" => {
            let mut out = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::new(9));
            out.write_all(bytes).unwrap();
            out.finish().unwrap()
        }
        _ => {
            let block = lz4_flex::block::compress(bytes);
            [&(bytes.len() as u32).to_le_bytes()[..], &block].concat()
        }
    }
}

// One test, so that nothing else allocates meanwhile.
#[test]
fn a_decoder_takes_no_more_than_its_chunk_whatever_is_stored() {
    let noise: Vec<u8> = (0..CHUNK as u32)
        .map(|n| (n.wrapping_mul(0x9e37_79b9) >> 24) as u8)
        .collect();
    for codec in ["gzip", "zlib", "zstd", "bz2", "lz4"] {
        let sound = encoded(codec, &noise);
        let (came, peak) = ALLOCATOR.peak_of(|| undo(codec, sound, CHUNK as u64));
        assert!(came, "{codec}");
        println!("{codec}: {} KiB for a chunk of 4 MiB", peak >> 10);
        assert!(peak <= 2 * CHUNK + STATE, "{codec}: {peak}");

        // Sixteen times the chunk.
        let bomb = encoded(codec, &vec![0; 16 * CHUNK]);
        let stored = bomb.len();
        let (came, peak) = ALLOCATOR.peak_of(|| undo(codec, bomb, CHUNK as u64));
        assert!(!came, "{codec}");
        println!(
            "{codec}: {} KiB for {stored} bytes of 64 MiB zeros",
            peak >> 10
        );
        assert!(peak <= 2 * (CHUNK + BESIDE) + STATE, "{codec}: {peak}");
    }
}

//! How much memory tables of a million chunks take, measured where it is allocated.
#![expect(clippy::unwrap_used, reason = "a test")]

use reshard_model::{DType, Region, testkit::CountingAllocator};
use reshard_plan::Metadata;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

const MILLION: u32 = 1_000_000;

/// Bytes a chunk beside the text of keys.
fn each(text: usize, build: impl Fn(&mut reshard_plan::MetadataBuilder)) -> usize {
    let before = ALLOCATOR.live();
    let mut b = Metadata::builder();
    build(&mut b);
    let metadata = b.finish(None).unwrap();
    let live = ALLOCATOR.live() - before;
    assert_eq!(metadata.chunk_count() as u32, MILLION);
    (live - text) / MILLION as usize
}

// One test, so that nothing else allocates meanwhile.
#[test]
fn a_chunk_takes_under_100_bytes() {
    let row = |i: u32| Region::new([u64::from(i), 0], [1, 64]);
    let one = each(1, |b| {
        let w = b
            .add_tensor(
                "w",
                DType::BFloat16,
                &[MILLION.into(), 64],
                Default::default(),
            )
            .unwrap();
        for i in 0..MILLION {
            b.add_chunk(w, &row(i)).unwrap();
        }
    });
    let many = each(8 * MILLION as usize, |b| {
        for i in 0..MILLION {
            let w = b
                .add_tensor(
                    &format!("w{i:07}"),
                    DType::BFloat16,
                    &[1, 64],
                    Default::default(),
                )
                .unwrap();
            b.add_chunk(w, &Region::whole(&[1, 64])).unwrap();
        }
    });
    // chunks of a thousand tensors in turns, from the last row to the first, far out
    let mixed = each(4 * 1000, |b| {
        let shape = [1 << 40, 64];
        let add = |i: u32| {
            b.add_tensor(
                &format!("{i:04}"),
                DType::BFloat16,
                &shape,
                Default::default(),
            )
            .unwrap()
        };
        let tensors: Vec<_> = (0..1000).map(add).collect();
        for i in (0..MILLION).rev() {
            let far = Region::new([u64::from(i) << 20, 0], [1, 64]);
            b.add_chunk(tensors[i as usize % 1000], &far).unwrap();
        }
    });
    assert!(
        one <= 16 && many < 100 && mixed < 100,
        "{one} {many} {mixed}"
    );
}

use super::*;
use proptest::prelude::*;

const KINDS: [ElementChecksum; 2] = [ElementChecksum::Crc32(0), ElementChecksum::Crc32c(0)];

/// The chunks of a tensor of elements of 8 bytes.
fn chunks(shape: &[u64], regions: &[Region], kind: ElementChecksum) -> Chunks {
    let chunk = |r: &Region| {
        let says = sums::extended(kind, &bytes(shape, r));
        Chunk::new(r.clone(), says, None).unwrap()
    };
    let chunks = regions.iter().map(chunk).collect();
    Chunks::new("k", 8, chunks, Room::default())
}

/// The bytes of a box of a tensor whose elements are their row-major indices.
fn bytes(shape: &[u64], of: &Region) -> Vec<u8> {
    let strides = Region::whole(shape).strides();
    let index = |at: &Region| -> u64 { at.offsets.iter().zip(&strides).map(|(o, s)| o * s).sum() };
    of.clone()
        .blocks(1)
        .flat_map(|b| index(&b).to_le_bytes())
        .collect()
}

fn cut(shape: &[u64], axis: usize, at: u64) -> Vec<Region> {
    let (mut low, mut high) = (Region::whole(shape), Region::whole(shape));
    low.lengths[axis] = at;
    (high.offsets[axis], high.lengths[axis]) = (at, shape[axis] - at);
    [low, high].into_iter().filter(|r| !r.is_empty()).collect()
}

proptest! {
    #![proptest_config(reshard_model::testkit::law(256))]
    #[test]
    fn damage_is_found_whatever_the_chunks_and_the_blocks_are(
        shape in prop::collection::vec(1u64..6, 1..4), kind in prop::sample::select(&KINDS[..]),
        stored in (0usize..3, 0u64..6), pieces in (0usize..3, 0u64..6),
        block in 1u64..9, damage in any::<prop::sample::Index>(), order in any::<u64>(),
    ) {
        let cut_at = |(axis, at): (usize, u64)| {
            let axis = axis % shape.len();
            cut(&shape, axis, at % (shape[axis] + 1))
        };
        let (stored, pieces) = (cut_at(stored), cut_at(pieces));
        let volume: u64 = shape.iter().product();
        for bad in [None, Some(damage.index(volume as usize) as u64)] {
            let checked = chunks(&shape, &stored, kind);
            let mut blocks: Vec<Region> = pieces.iter().flat_map(|p| p.clone().blocks(block)).collect();
            let turn = (order % blocks.len() as u64) as usize;
            blocks.rotate_left(turn);
            let mut failed = 0;
            for block in &blocks {
                let mut read = bytes(&shape, block);
                if let Some(bad) = bad {
                    let damaged = read.chunks_mut(8).find(|e| **e == bad.to_le_bytes());
                    damaged.into_iter().for_each(|e| e[7] ^= 1);
                }
                failed += u32::from(checked.see(block, &read).is_err());
            }
            prop_assert_eq!(failed, u32::from(bad.is_some()));
            // After damage the rest of a block is not looked at.
            if bad.is_none() {
                prop_assert_eq!(checked.rest().count(), 0);
                prop_assert_eq!(checked.room.0.load(Ordering::Relaxed), 0);
            }
        }
    }
}

fn left(checked: &Chunks) -> usize {
    checked.rest().count()
}

proptest! {
    #![proptest_config(reshard_model::testkit::law(256))]
    #[test]
    fn what_is_read_again_in_other_blocks_is_counted_once(
        shape in prop::collection::vec(1u64..6, 1..3), kind in prop::sample::select(&KINDS[..]),
        reads in prop::collection::vec(any::<[prop::sample::Index; 4]>(), 0..6), bad: bool,
    ) {
        let whole = Region::whole(&shape);
        let checked = chunks(&shape, std::slice::from_ref(&whole), kind);
        let mut blocks: Vec<Region> = reads.iter().map(|ends| {
            let mut block = whole.clone();
            for (axis, ends) in ends.chunks(2).take(shape.len()).enumerate() {
                let [a, b] = [0, 1].map(|end| ends[end].index(shape[axis] as usize) as u64);
                (block.offsets[axis], block.lengths[axis]) = (a.min(b), a.abs_diff(b) + 1);
            }
            block
        }).collect();
        blocks.push(whole);
        let mut failed = false;
        for block in &blocks {
            let mut read = bytes(&shape, block);
            if bad {
                let first = read.chunks_mut(8).find(|e| **e == [0; 8]);
                first.into_iter().for_each(|e| e[7] ^= 1);
            }
            failed |= checked.see(block, &read).is_err();
        }
        prop_assert_eq!(failed, bad);
        prop_assert_eq!(left(&checked), 0);
        prop_assert_eq!(checked.room.0.load(Ordering::Relaxed), 0);
    }
}

#[test]
fn a_chunk_that_is_not_read_as_a_whole_is_left() {
    let regions = cut(&[8], 0, 4);
    let checked = chunks(&[8], &regions, ElementChecksum::Crc32(0));
    for block in [Region::new([0], [2]), Region::new([1], [5])] {
        checked.see(&block, &bytes(&[8], &block)).unwrap();
    }
    let rest: Vec<&Region> = checked.rest().map(|chunk| &chunk.region).collect();
    assert_eq!(rest, [&regions[1]]);
    assert_eq!(checked.room.0.load(Ordering::Relaxed), 1);
}

#[test]
fn a_chunk_that_is_read_by_its_columns_is_left() {
    let shape = [FEW_PARTS as u64 + 2, 8];
    let whole = Region::whole(&shape);
    let checked = chunks(
        &shape,
        std::slice::from_ref(&whole),
        ElementChecksum::Crc32(0),
    );
    for column in 0..8 {
        let column = Region::new([0, column], [shape[0], 1]);
        checked.see(&column, &bytes(&shape, &column)).unwrap();
        assert_eq!(left(&checked), 1);
    }
}

#[test]
fn parts_of_chunks_take_bounded_memory() {
    // Every other row, so that no part joins another.
    let rows = FEW_PARTS as u64;
    let shape = [2 * rows, 1];
    let whole = Region::whole(&shape);
    let checked = chunks(
        &shape,
        std::slice::from_ref(&whole),
        ElementChecksum::Crc32(0),
    );
    checked.room.changed(0, MOST_PARTS as usize - 1);
    let row = |row| Region::new([row, 0], [1, 1]);
    for n in [0, 2] {
        checked.see(&row(n), &bytes(&shape, &row(n))).unwrap();
    }
    let held = checked.room.0.load(Ordering::Relaxed);
    assert_eq!((held, left(&checked)), (MOST_PARTS - 1, 1));
}

#[test]
fn damage_is_told_with_the_key_and_the_place() {
    let whole = Region::whole(&[2]);
    let says = ElementChecksum::Crc32c(7);
    let place = StorageInfo::new(reshard::storage::Name::new("data-0").unwrap(), 40..56);
    let chunk = Chunk::new(whole.clone(), says, Some(place)).unwrap();
    let checked = Chunks::new("layer.w", 8, vec![chunk], Room::default());
    let error = checked.see(&whole, &bytes(&[2], &whole)).unwrap_err();
    let text = error.to_string();
    assert!(
        text.starts_with(
            "data-0 at byte 40: layer.w: the CRC-32C of the elements of chunk [0:2] is "
        ),
        "{text}"
    );
}

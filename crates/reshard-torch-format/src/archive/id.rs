//! `.data/serialization_id`: two numbers that torch writes for its usage logs, and that make its archives reproducible.
//!
//! The first folds the hashes of the record names, in the order in which libstdc++'s hash set keeps them; the second
//! folds the CRC-32s. Both are reproduced here, so that an archive equals torch's to the last byte.

use indexmap::IndexMap;

/// The first half, for records of these names, in the order in which they are written.
pub(super) fn fold_names<'a>(names: impl Iterator<Item = &'a str>) -> u64 {
    fold(set_order(names))
}

/// Forty digits: the folded names, and the CRC-32s in the order of the records.
pub(super) fn serialization_id(names: u64, crcs: impl Iterator<Item = u32>) -> String {
    format!("{names:020}{:020}", fold(crcs.map(u64::from)))
}

fn fold(values: impl IntoIterator<Item = u64>) -> u64 {
    values.into_iter().fold(0u64, |h, v| {
        h ^ v
            .wrapping_add(0x9E37_79B9)
            .wrapping_add(h << 6)
            .wrapping_add(h >> 2)
    })
}

/// Bucket counts that libstdc++ grows through when elements are added one by one.
const BUCKETS: [usize; 21] = [
    13, 29, 59, 127, 257, 541, 1109, 2357, 5087, 10273, 20753, 42043, 85229, 172_933, 351_061,
    712_697, 1_447_153, 2_938_679, 5_967_347, 12_117_689, 24_607_243,
];

/// Hashes of the names in the order in which `std::unordered_set<std::string>` iterates over them.
///
/// Its elements form one linked list; an element goes to the front of its bucket's stretch, or to the front of the
/// whole list when its bucket is empty. Growing replays the list into the larger table by the same rule.
fn set_order<'a>(names: impl Iterator<Item = &'a str>) -> Vec<u64> {
    let mut hashes = names.map(|n| hash(n.as_bytes())).peekable();
    let mut order: Vec<u64> = Vec::new();
    for buckets in BUCKETS {
        // The table grows when it holds as many elements as buckets.
        let more: Vec<u64> = hashes.by_ref().take(buckets - order.len()).collect();
        order = replay(buckets, order.into_iter().chain(more));
        if hashes.peek().is_none() {
            break;
        }
    }
    order
}

/// The order of a table of so many buckets that these elements were added to.
fn replay(buckets: usize, elements: impl Iterator<Item = u64>) -> Vec<u64> {
    let mut stretches: IndexMap<u64, Vec<u64>> = IndexMap::new();
    for h in elements {
        stretches.entry(h % buckets as u64).or_default().push(h);
    }
    let newest_first = stretches.into_values().rev();
    newest_first.flat_map(|s| s.into_iter().rev()).collect()
}

/// libstdc++'s `std::hash<std::string>` on 64-bit machines: MurmurHash2, 64 bits, with its fixed seed.
fn hash(bytes: &[u8]) -> u64 {
    const MUL: u64 = 0xC6A4_A793_5BD1_E995;
    const SEED: u64 = 0xC70F_6907;
    let mix = |v: u64| v ^ (v >> 47);
    let mut h = SEED ^ (bytes.len() as u64).wrapping_mul(MUL);
    let (words, rest) = bytes.as_chunks::<8>();
    for word in words {
        let v = mix(u64::from_le_bytes(*word).wrapping_mul(MUL)).wrapping_mul(MUL);
        h = (h ^ v).wrapping_mul(MUL);
    }
    if !rest.is_empty() {
        let v = rest.iter().rev().fold(0u64, |v, &b| v << 8 | u64::from(b));
        h = (h ^ v).wrapping_mul(MUL);
    }
    mix(mix(h).wrapping_mul(MUL))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(storages: usize, new: bool) -> Vec<String> {
        let mut v = vec!["data.pkl".to_string()];
        if new {
            v.extend([".format_version".into(), ".storage_alignment".into()]);
        }
        v.push("byteorder".into());
        v.extend((0..storages).map(|i| format!("data/{i}")));
        v.push("version".into());
        v
    }

    fn first_half(storages: usize, new: bool) -> u64 {
        fold(set_order(names(storages, new).iter().map(String::as_str)))
    }

    #[test]
    fn the_first_half_is_torchs() {
        assert_eq!(first_half(0, true), 2_908_468_677_762_923_104);
        assert_eq!(first_half(1, true), 15_728_199_511_854_643_026);
        assert_eq!(first_half(2, true), 5_611_085_236_196_705_294);
        assert_eq!(first_half(0, false), 6_364_577_379_464_010_513);
        assert_eq!(first_half(1, false), 5_768_588_573_859_962_782);
        assert_eq!(first_half(2, false), 13_263_068_698_938_530_805);
    }

    /// Values of `std::unordered_set<std::string>` of GCC 12, where the table has grown once, twice, and more.
    #[test]
    fn it_is_libstdcpps_after_growing_too() {
        for (storages, want) in GROWN {
            assert_eq!(first_half(storages, true), want, "{storages} storages");
        }
    }

    const GROWN: [(usize, u64); 9] = [
        (7, 6_895_295_647_852_065_578),
        (8, 8_268_647_735_604_577_700),
        (9, 1_977_860_353_369_201_443),
        (24, 12_647_775_507_600_111_753),
        (54, 17_381_657_268_951_784_543),
        (130, 10_899_235_613_604_673_089),
        (300, 13_402_011_482_046_020_200),
        (1200, 7_006_458_023_395_743_877),
        (5083, 8_593_572_403_437_211_690),
    ];
}

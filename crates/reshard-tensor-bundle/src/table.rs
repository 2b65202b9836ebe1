//! Sorted tables of keys and values, as LevelDB stores them.
//!
//! A table has data blocks, an empty block of meta data, a block that says where the data blocks lie, and a footer. `docs/formats/tensor_bundle.md` has every byte.

pub(crate) mod read;
pub(crate) mod write;

/// Bytes behind a block: how it is compressed, and the masked CRC-32C of block and that byte.
pub(crate) const TRAILER: usize = 5;

/// Bytes of the footer.
pub(crate) const FOOTER: usize = 48;

/// The last bytes of a table.
pub(crate) const MAGIC: [u8; 8] = 0xdb47_7524_8b80_fb57u64.to_le_bytes();

#[cfg(test)]
mod tests {
    use super::{
        read::{Budget, entries},
        write::TableBuilder,
    };
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn read(table: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
        let mut all = Vec::new();
        entries(table, Budget(u64::MAX), &mut |_, key, value| {
            all.push((key.to_vec(), value.to_vec()));
            Ok(())
        })
        .unwrap();
        all
    }

    proptest! {
        #![proptest_config(reshard_model::testkit::law(256))]
        #[test]
        fn any_sorted_entries_are_read_as_they_were_written(
            entries: BTreeMap<Vec<u8>, Vec<u8>>, long in 0usize..4,
        ) {
            let mut entries = entries;
            for n in 0..long {
                // Blocks end before and after such values.
                entries.insert(vec![b'l', n as u8], vec![n as u8; 200_000 * n]);
            }
            let mut builder = TableBuilder::default();
            for (key, value) in &entries {
                builder.add(key, value);
            }
            let table = builder.finish();
            let want: Vec<_> = entries.into_iter().collect();
            prop_assert_eq!(read(&table), want);
        }

        #[test]
        fn no_bytes_make_the_reader_panic(mut bytes: Vec<u8>, end in 0usize..3, at: prop::sample::Index, flip: u8) {
            if end > 0 {
                bytes = match end {
                    1 => { let mut b = TableBuilder::default(); b.add(b"a", &bytes); b.add(b"b", b"2"); b.finish() }
                    _ => { bytes.extend([0; 40]); bytes.extend(super::MAGIC); bytes }
                };
                let at = at.index(bytes.len());
                bytes[at] ^= flip;
            }
            let mut count = 0usize;
            drop(entries(&bytes, Budget(1 << 20), &mut |_, _, _| { count += 1; Ok(()) }));
            prop_assert!(count <= 1 << 20);
        }
    }
}

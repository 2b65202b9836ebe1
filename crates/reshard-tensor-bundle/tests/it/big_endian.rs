//! Bundles whose numbers are big-endian. Programs on such machines write them.

use super::{files, load, numbers, open, piece, place, save, store, wanted};
use futures::executor::block_on;
use reshard_model::Region;
use reshard_storage::Progress;
use reshard_tensor_bundle::{
    OBJECT_GRAPH,
    testkit::{self, EntryFields},
};

/// The same checkpoint with swapped numbers and without an object graph.
fn swapped(
    files: &std::collections::BTreeMap<String, Vec<u8>>,
) -> std::collections::BTreeMap<String, Vec<u8>> {
    let mut out = files.clone();
    let data = out.get_mut(".data-00000-of-00001").unwrap();
    let mut entries = testkit::entries_of(&files[".index"]).unwrap();
    entries.retain(|(key, _)| key != OBJECT_GRAPH.as_bytes());
    for (key, entry) in &mut entries {
        if key.is_empty() {
            *entry = testkit::header(1, 1, (1, 0));
            continue;
        }
        let mut fields = EntryFields::parse(entry).unwrap();
        if !fields.slices.is_empty() {
            continue;
        }
        let bytes = &mut data[fields.offset as usize..][..fields.size as usize];
        bytes.chunks_exact_mut(4).for_each(<[u8]>::reverse);
        fields.crc32c = crc32c::crc32c(bytes);
        *entry = fields.to_bytes();
    }
    out.insert(".index".into(), testkit::table(&entries));
    out
}

#[test]
fn numbers_are_swapped_while_they_are_read() {
    let shape = [7, 5];
    let rows = |from, n| Region::new([from, 0], [n, 5]);
    let little = store();
    save(
        &little,
        vec![vec![
            piece("w", &shape, rows(0, 3)),
            piece("w", &shape, rows(3, 4)),
        ]],
    );
    let files = swapped(&files(&little));
    let big = place(&files);
    for region in [
        Region::whole(&shape),
        rows(1, 4),
        Region::new([0, 2], [7, 2]),
        Region::new([6, 4], [1, 1]),
    ] {
        let got = load(&big, vec![vec![wanted("w", &shape, region.clone())]]);
        assert_eq!(got[0][0].to_vec::<i32>().unwrap(), numbers(&shape, &region));
    }
    let verified = |place| {
        block_on(open(place).verify(true, &Progress::none()))
            .unwrap()
            .damage
    };
    assert!(verified(&big).is_empty());
    assert!(open(&big).producer().notes[0].contains("big-endian"));

    // A flipped bit is noticed when all of the slice is read.
    let mut damaged = files;
    damaged.get_mut(".data-00000-of-00001").unwrap()[3] ^= 1;
    let damaged = place(&damaged);
    assert_eq!(verified(&damaged).len(), 1);
    let got = super::try_load(
        &damaged,
        vec![vec![wanted("w", &shape, Region::whole(&shape))]],
    );
    let e = got.into_iter().next().unwrap().unwrap_err();
    assert!(
        e.error.to_string().contains("a part of w is damaged"),
        "{}",
        e.error
    );
}

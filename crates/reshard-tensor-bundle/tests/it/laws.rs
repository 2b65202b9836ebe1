//! Laws: what any ranks save, any ranks load, and TensorFlow's rules hold for the files.

use super::{files, load, numbers, open, piece, save, save_as, store, wanted};
use futures::executor::block_on;
use proptest::prelude::*;
use reshard_model::{Payload, Region, Value};
use reshard_plan::ObjectId;
use reshard_storage::Progress;
use reshard_strategy::{
    ReadCx, ReadObject,
    testkit::numbered::{Cut, boxes, deal},
};
use reshard_tensor_bundle::{
    OBJECT_GRAPH, ObjectGraph, TensorBundleConfig,
    testkit::{self, EntryFields},
};
use std::collections::BTreeMap;

fn cuts() -> impl Strategy<Value = Vec<Cut>> {
    proptest::collection::vec((0usize..16, 0usize..4, 0u64..16), 0..9)
}

/// A tensor, put together by the index and the data files alone, as TensorFlow does it.
fn as_others_read(files: &BTreeMap<String, Vec<u8>>, key: &str) -> (Vec<u64>, Vec<i32>) {
    let entries: BTreeMap<Vec<u8>, Vec<u8>> = testkit::entries_of(&files[testkit::INDEX])
        .unwrap()
        .into_iter()
        .collect();
    let shards = files
        .keys()
        .filter(|name| name.starts_with(".data-"))
        .count();
    let entry = |key: &[u8]| EntryFields::parse(&entries[key]).unwrap();
    let elements = |e: &EntryFields| -> Vec<i32> {
        let name = format!(".data-{:05}-of-{shards:05}", e.shard_id);
        let bytes = &files[&name][e.offset as usize..][..e.size as usize];
        assert_eq!(crc32c(bytes), e.crc32c);
        let words = bytes.chunks_exact(4);
        words
            .map(|b| i32::from_le_bytes(b.try_into().unwrap()))
            .collect()
    };
    let full = entry(key.as_bytes());
    assert_eq!(full.dtype, 3);
    let shape: Vec<u64> = full.shape.iter().map(|n| *n as u64).collect();
    if full.slices.is_empty() {
        return (shape, elements(&full));
    }
    let mut all = vec![-1; shape.iter().product::<u64>() as usize];
    for slice in &full.slices {
        let extents: Vec<(i64, i64)> = slice
            .iter()
            .map(|(start, n)| (*start, n.unwrap()))
            .collect();
        let part = entry(&testkit::slice_key(key.as_bytes(), &extents));
        let region = Region::new(
            extents
                .iter()
                .map(|(start, _)| *start as u64)
                .collect::<Vec<_>>(),
            extents.iter().map(|(_, n)| *n as u64).collect::<Vec<_>>(),
        );
        for (at, element) in numbers(&shape, &region).into_iter().zip(elements(&part)) {
            assert_eq!(std::mem::replace(&mut all[at as usize], element), -1);
        }
    }
    (shape, all)
}

fn crc32c(bytes: &[u8]) -> u32 {
    bytes.iter().fold(!0u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| match crc & 1 {
            1 => crc >> 1 ^ 0x82f6_3b78,
            _ => crc >> 1,
        })
    }) ^ !0
}

proptest! {
    #![proptest_config(reshard_model::testkit::law(48))]

    #[test]
    fn any_pieces_of_any_ranks_are_loaded_by_any_ranks_and_read_by_others(
        shape in proptest::collection::vec(0u64..8, 0..4),
        saved in cuts(), from in 1usize..5, seed in 0usize..9,
        asked in cuts(), to in 1usize..4,
    ) {
        let pieces = |ranks, seed| {
            let all = deal(boxes(&shape, &saved), ranks, seed).into_iter();
            all.map(|regions| regions.into_iter().map(|r| piece("a/w", &shape, r)).collect()).collect()
        };
        let place = store();
        save(&place, pieces(from, seed));

        let asked = deal(boxes(&shape, &asked), to, seed);
        let templates = asked.iter().map(|regions| {
            regions.iter().map(|r| wanted("a/w", &shape, r.clone())).collect()
        });
        for (regions, tensors) in asked.iter().zip(load(&place, templates.collect())) {
            for (region, tensor) in regions.iter().zip(tensors) {
                prop_assert_eq!(tensor.to_vec::<i32>().unwrap(), numbers(&shape, region));
            }
        }

        let (said, elements) = as_others_read(&files(&place), "a/w");
        prop_assert_eq!(&said, &shape);
        prop_assert_eq!(elements, numbers(&shape, &Region::whole(&shape)));
        let report = block_on(open(&place).verify(true, &Progress::none())).unwrap();
        prop_assert!(report.damage.is_empty(), "{:?}", report.damage);

        // The same pieces on the same ranks: the same bytes.
        let again = store();
        save(&again, pieces(from, seed));
        prop_assert_eq!(files(&again), files(&place));
    }
}

#[test]
fn names_make_an_object_graph_that_leads_to_them() {
    let place = store();
    let leaf = |key: &str| piece(key, &[2], Region::whole(&[2]));
    let leaves = || vec![vec![leaf("net.weight"), leaf("net.bias")], vec![]];
    save_as(
        &TensorBundleConfig::default().with_object_names(true),
        &place,
        leaves(),
    );
    let reader = open(&place);
    let graph = reader.metadata().object(OBJECT_GRAPH).unwrap();
    let read = [ReadObject { object: graph }];
    let payload =
        block_on(reader.read_objects(&read, &ReadCx::new(true, &Progress::none()))).unwrap();
    let [Payload::Encoded { bytes, .. }] = &*payload else {
        unreachable!()
    };
    let value = reader.codec().decode(bytes).unwrap();
    let paths = ObjectGraph::of(&value).unwrap().owner_paths();
    assert_eq!(paths["net/weight/.ATTRIBUTES/VARIABLE_VALUE"], "net/weight");
    assert_eq!(paths["net/bias/.ATTRIBUTES/VARIABLE_VALUE"], "net/bias");
    assert_eq!(
        reader.metadata().object_key(ObjectId(0)),
        Some(OBJECT_GRAPH)
    );
    assert!(matches!(value, Value::Bytes(_) | Value::Str(_)));

    // In the index they have TensorFlow's names, and loads find them by their own.
    let names = testkit::entries_of(&files(&place)[testkit::INDEX]).unwrap();
    let has = |name: &str| names.iter().any(|(key, _)| key == name.as_bytes());
    assert!(has("net/bias/.ATTRIBUTES/VARIABLE_VALUE") && !has("net.bias"));
    assert!(reader.metadata().tensor("net.bias").is_some());
    let got = load(
        &place,
        vec![vec![wanted("net.weight", &[2], Region::whole(&[2]))]],
    );
    assert_eq!(got[0][0].to_vec::<i32>().unwrap(), [0, 1]);

    // By default names are keys, and there is no graph of them.
    let plain = store();
    save(&plain, leaves());
    assert!(open(&plain).metadata().object(OBJECT_GRAPH).is_none());
}

#[test]
fn a_state_without_anything_is_an_index_and_an_empty_file() {
    let place = store();
    save(&place, vec![vec![], vec![]]);
    let names: Vec<String> = files(&place).into_keys().collect();
    assert_eq!(names, [".data-00000-of-00001", ".index"]);
    assert_eq!(open(&place).metadata().object_count(), 0);
}

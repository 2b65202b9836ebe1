//! Places where requests are dear: opening asks for little, and what it did not look at is looked at later.

use super::{
    damaged::{saved, sharded, w},
    files, open, place, store, try_load, whole,
};
use futures::executor::block_on;
use reshard_model::{ErrorKind, Region};
use reshard_safetensors::{RECORD, SafetensorsConfig};
use reshard_storage::{Progress, Store};
use reshard_strategy::testkit::numbered::{self, dear, wanted};
use std::sync::Arc;

/// What a check finds: how many items there are, and the keys and files of damage. What is wrong with a header that was read is told more exactly.
fn found(store: &Arc<dyn Store>) -> (u64, Vec<String>) {
    let report = block_on(open(store).verify(true, &Progress::none())).unwrap();
    let damage = report.damage.into_iter();
    (
        report.items,
        damage
            .map(|d| format!("{:?} {:?}", d.key, d.file))
            .collect(),
    )
}

#[test]
fn a_thousand_files_are_open_after_their_record_and_a_listing() {
    let place = store();
    let leaves = (0..1_000).map(|n| whole(&format!("t.{n}"), &[2]));
    let config = SafetensorsConfig::default().with_max_shard_size(256);
    super::save(&place, &config, vec![leaves.collect()]);
    let mut files = files(&place);
    assert_eq!(files.len(), 1_002);
    let counted = dear(&files);
    let store: Arc<dyn Store> = Arc::new(counted.clone());
    assert_eq!(open(&store).metadata().tensors().count(), 1_000);
    let counts = counted.take();
    assert_eq!((counts.requests, counts.lists), (2, 1));
    let found = super::load(&store, vec![vec![wanted("t.7", &[2], Region::whole(&[2]))]]);
    assert_eq!(found[0][0].to_vec::<i32>().unwrap(), [0, 1]);

    // Without the record there is one request for each header.
    files.remove(RECORD);
    let counted = dear(&files);
    let store: Arc<dyn Store> = Arc::new(counted.clone());
    assert_eq!(open(&store).metadata().tensors().count(), 1_000);
    assert_eq!(counted.take().requests, 1_002);
}

/// Whatever the damage is, a check says the same as where opening has read all headers.
#[test]
fn a_check_looks_at_what_opening_did_not_read() {
    for sound in [saved(true), sharded(true)] {
        let of_tensors = |name: &&String| name.ends_with(".safetensors");
        for name in sound.keys().filter(of_tensors) {
            for at in (0..sound[name].len()).step_by(3) {
                let mut files = sound.clone();
                files.get_mut(name).unwrap()[at] ^= 2;
                let there = found(&(Arc::new(dear(&files)) as _));
                assert_eq!(there, found(&place(&files)), "byte {at} of {name}");
                assert!(!there.1.is_empty(), "byte {at} of {name}");
            }
            let mut files = sound.clone();
            for length in [sound[name].len() - 1, 100, 7, 0] {
                files.get_mut(name).unwrap().truncate(length);
                assert_eq!(found(&(Arc::new(dear(&files)) as _)), found(&place(&files)));
            }
            files.remove(name);
            assert_eq!(found(&(Arc::new(dear(&files)) as _)), found(&place(&files)));
        }
        assert!(found(&(Arc::new(dear(&sound)) as _)).1.is_empty());
    }
}

#[test]
fn a_changed_header_is_said_by_a_read_that_no_checksum_covers() {
    let mut files = saved(true);
    let file = "model-00002-of-00002.safetensors";
    let text = String::from_utf8_lossy(&files[file]).find("I32").unwrap();
    files.get_mut(file).unwrap()[text] = b'U';
    let store: Arc<dyn Store> = Arc::new(dear(&files));
    // All elements have a checksum.
    super::load(&store, vec![vec![w()]]);
    let part = wanted("w", &[4, 3], Region::new([1, 1], [1, 1]));
    let reader_says = |leaf| {
        let e = try_load(&store, vec![vec![leaf]]).remove(0).map(drop);
        let e = e.unwrap_err().error;
        (e.kind(), e.to_string())
    };
    let (kind, told) = reader_says(part);
    assert_eq!(kind, ErrorKind::Corrupt);
    assert!(
        told.contains(file) && told.contains("tensor w: its header is not the one"),
        "{told}"
    );
}

/// Then the header of the file is read, and what is wrong is told as elsewhere.
#[test]
fn what_a_record_says_of_another_file_is_not_told_of_a_file() {
    let sound = saved(true);
    let [one, two] = [1, 2].map(|n| format!("model-0000{n}-of-00002.safetensors"));
    let mut files = sound.clone();
    files.insert(one.clone(), sound[&two].clone());
    files.insert(two.clone(), sound[&one].clone());
    let text = |store: Arc<dyn Store>| {
        let report = block_on(open(&store).verify(true, &Progress::none())).unwrap();
        let told = report.damage.iter().map(ToString::to_string);
        told.collect::<Vec<_>>()
    };
    let there = text(Arc::new(dear(&files)));
    assert_eq!(there, text(place(&files)));
    let changed = "its header is not the one that was written";
    assert!(
        !there.is_empty() && there.iter().all(|told| told.contains(changed)),
        "{there:?}"
    );
}

/// What a record says of a header counts only if it is what was written.
#[test]
fn a_record_that_says_something_else_than_the_header_is_not_believed() {
    let mut files = saved(true);
    let text = String::from_utf8(files[RECORD].clone()).unwrap();
    let changed = text.replacen("[4,3]", "[3,4]", 1);
    assert!(changed != text);
    files.insert(RECORD.into(), changed.into());
    let store: Arc<dyn Store> = Arc::new(dear(&files));
    let reader = open(&store);
    assert_eq!(*reader.metadata().tensor("w").unwrap().shape(), [4, 3]);
    let found = numbered::load(
        &reshard_safetensors::SafetensorsLoadConfig::default(),
        &store,
        vec![vec![w()]],
    );
    assert_eq!(
        found[0][0].to_vec::<i32>().unwrap(),
        (0..12).collect::<Vec<_>>()
    );
}

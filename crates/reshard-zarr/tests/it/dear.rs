//! Places where requests are dear: opening asks for little, and what it did not look at is looked at later.

use super::{files, open, piece, place, store, wanted, zarr3};
use futures::executor::block_on;
use reshard_model::{Dialect, ErrorKind, Region, ShardedTensor};
use reshard_storage::{Progress, Store};
use reshard_strategy::{
    LoadShardedStrategy, OpenCx, Result, SaveShardedStrategy,
    testkit::numbered::{self, Files, dear},
};
use reshard_zarr::{Zarr3LoadConfig, ZarrConfig, ZarrLoadConfig};
use std::sync::Arc;

/// Arrays of two ranks: many small ones, and one of two files with three inner chunks each in Zarr v3.
fn saved(config: &SaveShardedStrategy, count: usize) -> Files {
    let place = store();
    let half = |rank: u64| {
        let mut leaves = vec![piece("w", &[6, 3], Region::new([3 * rank, 0], [3, 3]))];
        if rank == 0 {
            let small = |n| piece(&format!("small/{n}"), &[2], Region::whole(&[2]));
            leaves.extend((0..count).map(small));
        }
        leaves
    };
    numbered::save(config, &place, vec![half(0), half(1)]);
    files(&place)
}

fn v2() -> Files {
    saved(&ZarrConfig::default().into(), 30)
}

fn v3() -> Files {
    saved(&zarr3::config(12).into(), 30)
}

/// A load of this region of `w`.
fn load(store: &Arc<dyn Store>, region: Region) -> Result<()> {
    let leaves: Vec<ShardedTensor> = vec![wanted("w", &[6, 3], region)];
    let loaded = numbered::try_load(&ZarrLoadConfig::default(), store, vec![leaves]).remove(0);
    loaded.map(drop).map_err(|failure| failure.error)
}

fn said(store: &Arc<dyn Store>, region: Region) -> (ErrorKind, String) {
    let e = load(store, region).unwrap_err();
    (e.kind(), e.to_string())
}

fn verified(store: &Arc<dyn Store>) -> String {
    let reader = open(store, Dialect::Dcp);
    let report = block_on(reader.verify(true, &Progress::none())).unwrap();
    format!("{report:?}")
}

#[test]
fn what_reshard_wrote_is_open_after_its_record_and_a_listing() {
    let formats: [(Files, &LoadShardedStrategy); 2] = [
        (
            saved(&ZarrConfig::default().into(), 999),
            &ZarrLoadConfig::default().into(),
        ),
        (
            saved(&zarr3::config(12).into(), 999),
            &Zarr3LoadConfig::default().into(),
        ),
    ];
    for (files, config) in formats {
        let counted = dear(&files);
        let store: Arc<dyn Store> = Arc::new(counted.clone());
        let cx = OpenCx::new(Arc::clone(&store));
        let reader = block_on(config.open(&cx)).unwrap();
        assert_eq!(reader.metadata().tensors().count(), 1000);
        let counts = counted.take();
        assert_eq!((counts.requests, counts.lists), (2, 1));
        assert_eq!(counts.opened.len(), 1, "{:?}", counts.opened);
        // The elements are as they were, of a whole array and of a part of a chunk.
        for region in [Region::whole(&[6, 3]), Region::new([1, 1], [3, 1])] {
            let want = numbered::numbers(&[6, 3], &region);
            let leaves = vec![vec![wanted("w", &[6, 3], region)]];
            let found = numbered::load(&ZarrLoadConfig::default(), &store, leaves);
            assert_eq!(found[0][0].to_vec::<i32>().unwrap(), want);
        }
    }
}

/// Whatever the damage is, a check says the same as where opening has read all descriptions and indexes.
#[test]
fn a_check_looks_at_what_opening_did_not_read() {
    type Change = fn(&mut Files);
    let of_both: [Change; 4] = [
        |_| (),
        |files| {
            let names: Vec<String> = files.keys().cloned().collect();
            let of_w = |name: &&String| name.starts_with("w/") && !name.ends_with("0");
            files.remove(names.iter().find(of_w).unwrap());
        },
        |files| {
            let name = if files.contains_key("w/zarr.json") {
                "w/zarr.json"
            } else {
                "w/.zarray"
            };
            let text = String::from_utf8(files[name].clone()).unwrap();
            // It is as long as before.
            files.insert(name.into(), text.replacen('6', "7", 1).into());
        },
        |files| {
            let name = if files.contains_key("w/zarr.json") {
                "w/zarr.json"
            } else {
                "w/.zarray"
            };
            files.get_mut(name).unwrap().push(b' ');
        },
    ];
    let of_v3: [Change; 4] = [
        |files| *files.get_mut("w/c/1/0").unwrap().last_mut().unwrap() ^= 1,
        |files| files.get_mut("w/c/1/0").unwrap()[13] ^= 1,
        |files| files.get_mut("w/c/1/0").unwrap().truncate(50),
        |files| drop(files.remove("w/c/1/0")),
    ];
    let changes = of_both
        .iter()
        .flat_map(|change| [(v2(), *change), (v3(), *change)]);
    let changes = changes.chain(of_v3.iter().map(|change| (v3(), *change)));
    for (n, (mut files, change)) in changes.enumerate() {
        change(&mut files);
        let there: Arc<dyn Store> = Arc::new(dear(&files));
        let report = verified(&there);
        assert_eq!(report, verified(&place(&files)), "change {n}");
        let is_sound = report.contains("damage: []");
        assert_eq!(is_sound, n < 2, "change {n}: {report}");
    }
}

#[test]
fn a_damaged_index_is_said_by_a_read_that_no_checksum_covers() {
    let mut files = v3();
    *files.get_mut("w/c/1/0").unwrap().last_mut().unwrap() ^= 1;
    for store in [place(&files), Arc::new(dear(&files)) as _] {
        // Whole inner chunks have checksums.
        load(&store, Region::whole(&[6, 3])).unwrap();
        let (kind, said) = said(&store, Region::new([3, 0], [1, 1]));
        assert_eq!(kind, ErrorKind::Corrupt);
        assert!(
            said.contains("w/c/1/0") && said.contains("CRC-32C of the index"),
            "{said}"
        );
    }
}

#[test]
fn a_changed_description_is_said_by_a_read_that_no_checksum_covers() {
    for (mut files, name) in [(v2(), "w/.zarray"), (v3(), "w/zarr.json")] {
        let text = String::from_utf8(files[name].clone()).unwrap();
        files.insert(name.into(), text.replacen('6', "7", 1).into());
        let store: Arc<dyn Store> = Arc::new(dear(&files));
        // Whole chunks have checksums, so they are what was saved.
        load(&store, Region::whole(&[6, 3])).unwrap();
        let (kind, said) = said(&store, Region::new([1, 1], [1, 1]));
        assert_eq!(kind, ErrorKind::Corrupt);
        assert!(
            said.contains(name) && said.contains("not the one that was written"),
            "{said}"
        );
    }
}

/// Another program may have written a shard again, with its inner chunks in another order.
#[test]
fn an_index_of_another_order_is_not_the_written_one() {
    let mut files = v3();
    let shard = files.get_mut("w/c/0/0").unwrap();
    let data = shard[..36].to_vec();
    for (n, from) in [24, 0, 12].into_iter().enumerate() {
        shard[from..from + 12].copy_from_slice(&data[12 * n..][..12]);
        shard[36 + 16 * n..][..8].copy_from_slice(&(from as u64).to_le_bytes());
    }
    let sum = super::arrays::crc32c(&shard[36..84]);
    shard[84..].copy_from_slice(&sum.to_le_bytes());
    let part = Region::new([1, 1], [1, 1]);
    for store in [place(&files), Arc::new(dear(&files)) as _] {
        let (kind, told) = said(&store, part.clone());
        assert_eq!(kind, ErrorKind::Corrupt);
        let want = "do not lie where they were written";
        assert!(told.contains("w/c/0/0") && told.contains(want), "{told}");
        assert!(verified(&store).contains(want));
        assert_eq!(said(&store, Region::whole(&[6, 3])).0, ErrorKind::Corrupt);
    }
    // Without the record nothing says that it was written otherwise.
    files.remove("reshard-zarr3.json");
    for store in [place(&files), Arc::new(dear(&files)) as _] {
        let leaves = vec![vec![wanted("w", &[6, 3], part.clone())]];
        let found = numbered::load(&ZarrLoadConfig::default(), &store, leaves);
        assert_eq!(found[0][0].to_vec::<i32>().unwrap(), [4]);
    }
}

#[test]
fn a_record_of_an_older_version_lacks_what_descriptions_say() {
    for (mut files, record) in [(v2(), "reshard-zarr.json"), (v3(), "reshard-zarr3.json")] {
        let mut json: serde_json::Value = serde_json::from_slice(&files[record]).unwrap();
        for (_, array) in json["arrays"].as_object_mut().unwrap() {
            let described = array.as_object_mut().unwrap().remove("described");
            assert!(described.is_some());
        }
        files.insert(record.into(), json.to_string().into());
        let counted = dear(&files);
        let store: Arc<dyn Store> = Arc::new(counted.clone());
        load(&store, Region::whole(&[6, 3])).unwrap();
        assert!(counted.take().requests > 31);
        assert!(verified(&store).contains("damage: []"));
    }
}

/// What a record says of a description counts only if it is what was written.
#[test]
fn a_record_that_says_something_else_than_the_description_is_not_believed() {
    for (mut files, record) in [(v2(), "reshard-zarr.json"), (v3(), "reshard-zarr3.json")] {
        let mut json: serde_json::Value = serde_json::from_slice(&files[record]).unwrap();
        json["arrays"]["w"]["described"]["shape"] = serde_json::json!([7, 3]);
        files.insert(record.into(), json.to_string().into());
        let store: Arc<dyn Store> = Arc::new(dear(&files));
        let reader = open(&store, Dialect::Dcp);
        assert_eq!(*reader.metadata().tensor("w").unwrap().shape(), [6, 3]);
    }
}

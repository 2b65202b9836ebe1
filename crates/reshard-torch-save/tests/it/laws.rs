//! What any ranks save, any ranks load, and a reader of files of `torch.save` reads.

use super::contracts::InFiles;
use proptest::prelude::*;
use reshard_model::{Region, Tensor, Value};
use reshard_strategy::{
    SaveShardedStrategy,
    testkit::numbered::{
        Cut, Files, boxes, deal, files, load, numbers, piece, save, store, wanted,
    },
};
use reshard_torch_format as torch_format;
use reshard_torch_save::{TorchSaveConfig, TorchSaveLoadConfig};
use std::collections::{BTreeMap, BTreeSet};

const KEYS: [&str; 3] = ["a/w", "b", "c.d"];

/// All tensors in these files, each read as a whole, and the file of each.
fn as_others_read(files: &Files) -> BTreeMap<String, (String, Tensor)> {
    let archives = files.iter().filter(|(name, _)| name.ends_with(".bin"));
    let tensors = archives.flat_map(|(name, bytes)| {
        let Value::Dict(pairs) = torch_format::load(bytes.clone().into()).unwrap() else {
            unreachable!("{name} is no dict")
        };
        pairs.into_iter().map(move |(key, value)| {
            let Value::Tensor(tensor) = value else {
                unreachable!("{key:?} is no tensor")
            };
            (key.as_str().unwrap().to_owned(), (name.clone(), tensor))
        })
    });
    tensors.collect()
}

/// The file of each tensor, as the index says.
fn index(files: &Files) -> Option<BTreeMap<String, String>> {
    let index = files.get("pytorch_model.bin.index.json")?;
    let index: serde_json::Value = serde_json::from_slice(index).unwrap();
    Some(serde_json::from_value(index["weight_map"].clone()).unwrap())
}

fn cuts() -> impl Strategy<Value = Vec<Cut>> {
    proptest::collection::vec((0usize..16, 0usize..4, 0u64..16), 0..9)
}

proptest! {
    #![proptest_config(reshard_model::testkit::law(48))]

    #[test]
    fn any_pieces_of_any_ranks_are_loaded_by_any_ranks_and_read_by_others(
        shape in proptest::collection::vec(0u64..8, 0..4),
        saved in cuts(), from in 1usize..5, seed in 0usize..9,
        asked in cuts(), to in 1usize..4, in_files in proptest::option::of(1u64..2_000),
    ) {
        let config: &SaveShardedStrategy = &match in_files {
            Some(bytes) => InFiles(bytes).into(),
            None => TorchSaveConfig::default().into(),
        };
        let all: Vec<(&str, Region)> = KEYS.iter()
            .flat_map(|key| boxes(&shape, &saved).into_iter().map(move |region| (*key, region)))
            .collect();
        let pieces = |ranks, seed| -> Vec<Vec<_>> {
            let of_rank = |all: Vec<(&str, Region)>| {
                all.into_iter().map(|(key, region)| piece(key, &shape, region)).collect()
            };
            deal(all.clone(), ranks, seed).into_iter().map(of_rank).collect()
        };
        let place = store();
        save(config, &place, pieces(from, seed));

        let asked = deal(boxes(&shape, &asked), to, seed);
        let templates = asked.iter().map(|regions| {
            let wanted = |region: &Region| KEYS.map(|key| wanted(key, &shape, region.clone()));
            regions.iter().flat_map(wanted).collect()
        });
        let loaded = load(&TorchSaveLoadConfig::default(), &place, templates.collect());
        for (regions, tensors) in asked.iter().zip(loaded) {
            let of_each = regions.iter().flat_map(|region| KEYS.map(|_| region));
            for (region, tensor) in of_each.zip(tensors) {
                prop_assert_eq!(tensor.to_vec::<i32>().unwrap(), numbers(&shape, region));
            }
        }

        let found = files(&place);
        let read = as_others_read(&found);
        prop_assert_eq!(read.keys().map(String::as_str).collect::<Vec<_>>(), KEYS);
        for (_, tensor) in read.values() {
            prop_assert_eq!(&tensor.shape()[..], &shape[..]);
            let elements = tensor.to_vec::<i32>().unwrap();
            prop_assert_eq!(elements, numbers(&shape, &Region::whole(&shape)));
        }
        let lies: BTreeMap<String, String> =
            read.into_iter().map(|(key, (file, _))| (key, file)).collect();
        let archives: BTreeSet<&String> = lies.values().collect();
        match index(&found) {
            Some(said) => prop_assert_eq!(said, lies),
            None => prop_assert_eq!(archives.len(), 1),
        }

        // The same pieces on other ranks: the same bytes.
        let again = store();
        save(config, &again, pieces(from % 4 + 1, seed + 1));
        prop_assert!(files(&again) == found, "other bytes");
    }
}

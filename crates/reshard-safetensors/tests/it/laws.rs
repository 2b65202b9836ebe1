//! What any ranks save, any ranks load, and other programs read.

use super::{as_others_read, files, load, numbers, open, piece, save, store, wanted};
use proptest::prelude::*;
use reshard_model::Region;
use reshard_safetensors::SafetensorsConfig;
use reshard_strategy::testkit::numbered::{Cut, boxes, deal};

fn cuts() -> impl Strategy<Value = Vec<Cut>> {
    proptest::collection::vec((0usize..16, 0usize..4, 0u64..16), 0..9)
}

proptest! {
    #![proptest_config(reshard_model::testkit::law(48))]

    #[test]
    fn any_pieces_of_any_ranks_are_loaded_by_any_ranks_and_read_by_others(
        shape in proptest::collection::vec(1u64..8, 0..4),
        saved in cuts(), from in 1usize..5, seed in 0usize..9,
        asked in cuts(), to in 1usize..4, sharded: bool,
    ) {
        let config = SafetensorsConfig::default().with_sharded(sharded);
        let pieces = |ranks, seed| {
            let all = deal(boxes(&shape, &saved), ranks, seed).into_iter();
            all.map(|regions| regions.into_iter().map(|r| piece("a/w", &shape, r)).collect()).collect()
        };
        let place = store();
        save(&place, &config, pieces(from, seed));

        let asked = deal(boxes(&shape, &asked), to, seed);
        let templates = asked.iter().map(|regions| {
            regions.iter().map(|r| wanted("a/w", &shape, r.clone())).collect()
        });
        for (regions, tensors) in asked.iter().zip(load(&place, templates.collect())) {
            for (region, tensor) in regions.iter().zip(tensors) {
                prop_assert_eq!(tensor.to_vec::<i32>().unwrap(), numbers(&shape, region));
            }
        }
        let chunks = open(&place).metadata().tensor("a/w").unwrap().chunk_count();
        prop_assert_eq!(chunks, if sharded { boxes(&shape, &saved).len() } else { 1 });
        if sharded {
            return Ok(());
        }

        let found = files(&place);
        let (said, elements) = as_others_read(&found["model.safetensors"], "a/w");
        prop_assert_eq!(&said, &shape);
        prop_assert_eq!(elements, numbers(&shape, &Region::whole(&shape)));

        // The same pieces on other ranks: the same bytes.
        let again = store();
        save(&again, &config, pieces(from % 4 + 1, seed + 1));
        prop_assert_eq!(files(&again), found);
    }
}

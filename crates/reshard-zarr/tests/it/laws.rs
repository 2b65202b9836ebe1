//! Laws of grids: what any ranks save, any ranks load, and other programs read.

use super::{as_others_read, files, load, numbers, piece, save, store, wanted};
use proptest::prelude::*;
use reshard_model::{DType, Region, ShardedTensor, Tensor};
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

        let found = files(&place);
        let (said, chunks, elements) = as_others_read(&found, "a/w");
        prop_assert_eq!(&said, &shape);
        prop_assert_eq!(elements, numbers(&shape, &Region::whole(&shape)));
        let longest = |axis: usize| boxes(&shape, &saved).iter().map(|b| b.lengths[axis]).max();
        for (axis, n) in chunks.iter().enumerate() {
            prop_assert_eq!(Some(*n), longest(axis));
        }

        // The same pieces on other ranks: the same bytes.
        let again = store();
        save(&again, pieces(from % 4 + 1, seed + 1));
        prop_assert_eq!(files(&again), found);
    }

    #[test]
    fn flattened_ranges_are_stored_as_the_tensor_that_they_are_of(
        axes in proptest::collection::vec((1u64..4, 1u64..4), 1..4),
        ends in proptest::collection::vec(0u64..30, 0..4),
        from in 1usize..4, to in 1usize..4,
    ) {
        let (fragments, cell): (Vec<u64>, Vec<u64>) = axes.into_iter().unzip();
        let shape: Vec<u64> = fragments.iter().zip(&cell).map(|(f, n)| f * n).collect();
        let leaves = |ends: &[u64], with_data: bool| -> Vec<ShardedTensor> {
            let elements: u64 = cell.iter().product();
            let mut ends: Vec<u64> = ends.iter().map(|e| e % (elements + 1)).collect();
            ends.extend([0, elements]);
            ends.sort_unstable();
            let mut out = Vec::new();
            for at in Region::whole(&fragments).blocks(1) {
                let offsets: Vec<u64> = at.offsets.iter().zip(&cell).map(|(i, n)| i * n).collect();
                let region = Region::new(offsets.clone(), cell.clone());
                for pair in ends.windows(2) {
                    let range = pair[0]..pair[1];
                    let leaf = ShardedTensor {
                        axis_fragmentations: Some(fragments[..].into()),
                        flattened_range: Some(range.clone()),
                        ..ShardedTensor::region_of("flat", DType::Int32, &shape, region.clone())
                    };
                    let data = numbers(&shape, &region)[range.start as usize..range.end as usize].to_vec();
                    out.push(match with_data {
                        true => leaf.with_data(Tensor::from_vec(&[data.len() as u64], data).unwrap()),
                        false => leaf,
                    });
                }
            }
            out
        };
        let place = store();
        save(&place, deal(leaves(&ends, true), from, 1));

        let (said, chunks, elements) = as_others_read(&files(&place), "flat");
        prop_assert_eq!((said, chunks), (shape.clone(), cell.clone()));
        prop_assert_eq!(&elements, &numbers(&shape, &Region::whole(&shape)));

        // As it was, in other ranges, and unflattened.
        let whole = wanted("flat", &shape, Region::whole(&shape));
        for tensors in load(&place, vec![vec![whole]; to]) {
            prop_assert_eq!(tensors[0].to_vec::<i32>().unwrap(), elements.clone());
        }
        for ends in [ends, vec![1, 2]] {
            let want = leaves(&ends, true);
            let got = load(&place, vec![leaves(&ends, false)]).remove(0);
            for (want, got) in want.iter().zip(got) {
                prop_assert_eq!(&got, want.data.host().unwrap());
            }
        }
    }
}

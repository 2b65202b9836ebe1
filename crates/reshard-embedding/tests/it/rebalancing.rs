//! Orders of rows that spread the load.

use crate::{rows, table};
use proptest::prelude::*;
use reshard_embedding::{LookupOptions, Permutation, embedding_lookup};
use reshard_model::{Leaf, StateDict, Tensor, Tree, ValueTree};

proptest! {
    #![proptest_config(reshard_model::testkit::law(256))]
    #[test]
    fn an_order_is_a_bijection_that_keeps_to_the_capacities(
        capacities in rows(), frequencies in prop::collection::vec(prop_oneof![0u64..20, Just(u64::MAX)], 0..30),
    ) {
        let total = capacities.iter().sum::<u64>() as usize;
        let frequencies = &frequencies[..frequencies.len().min(total)];
        let order = Permutation::balanced(frequencies, &capacities).unwrap();
        // `new` refuses what is no bijection
        prop_assert_eq!(&Permutation::new(order.rows().to_vec()).unwrap(), &order);
        prop_assert_eq!(order.len(), total);
        prop_assert_eq!(order.inverse().inverse(), order.clone());
        let loads = order.loads(frequencies, &capacities).unwrap();
        prop_assert_eq!(loads.parts.iter().sum::<u128>(), frequencies.iter().map(|&f| u128::from(f)).sum::<u128>());
        prop_assert!(loads.max() as f64 >= loads.mean() * 0.999_999);
        // In a part, ids ascend.
        let id_of_row = order.inverse();
        let mut rest = id_of_row.rows();
        for &n in &capacities {
            let (part, behind) = rest.split_at(n as usize);
            prop_assert!(part.is_sorted());
            rest = behind;
        }
    }

    #[test]
    fn each_id_goes_to_the_part_with_the_least_load_that_has_room(
        capacities in rows(), frequencies in prop::collection::vec(0u64..20, 0..30),
    ) {
        let total = capacities.iter().sum::<u64>() as usize;
        let mut frequencies = frequencies;
        frequencies.resize(total, 0);
        let mut ids: Vec<usize> = (0..total).collect();
        ids.sort_by_key(|&id| std::cmp::Reverse(frequencies[id])); // stable: ties stay in the order of ids
        let mut parts: Vec<(u64, Vec<i64>)> = vec![(0, Vec::new()); capacities.len()];
        for id in ids {
            let with_room = (0..parts.len()).filter(|&p| (parts[p].1.len() as u64) < capacities[p]);
            let part = with_room.min_by_key(|&p| parts[p].0).unwrap();
            parts[part].0 += frequencies[id];
            parts[part].1.push(id as i64);
        }
        let want: Vec<i64> = parts.into_iter().flat_map(|(_, mut ids)| { ids.sort_unstable(); ids }).collect();
        prop_assert_eq!(Permutation::balanced(&frequencies, &capacities).unwrap().inverse().rows().to_vec(), want);
    }

    #[test]
    fn a_lookup_through_the_order_gives_what_it_gave_before(
        rows in rows(), width in 0u64..3, frequencies in prop::collection::vec(0u64..9, 0..6),
        picks in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
    ) {
        let before = table(&rows, &[width]);
        let total = rows.iter().sum::<u64>();
        let frequencies = &frequencies[..frequencies.len().min(total as usize)];
        let order = Permutation::balanced(frequencies, &rows).unwrap();
        let after = order.apply(&before).unwrap();
        let ids: Vec<i64> = picks.iter().map(|i| i.index(total as usize) as i64).collect();
        let plain = embedding_lookup(&before, &ids, &LookupOptions::new()).unwrap();
        let through = LookupOptions::new().through(&order);
        prop_assert_eq!(&embedding_lookup(&after, &ids, &through).unwrap(), &plain);
        prop_assert_eq!(order.undo(&after).unwrap().to_tensor().unwrap(), before.to_tensor().unwrap());
        prop_assert_eq!(after.part_rows(), rows);
        // Kept, in other parts.
        let whole = after.to_tensor().unwrap().to_vec::<i64>().unwrap();
        let anew = reshard_embedding::ShardedVariable::from_parts(
            "table", [Tensor::from_vec(&[total, width], whole).unwrap()],
        ).unwrap();
        prop_assert_eq!(&embedding_lookup(&anew, &ids, &through).unwrap(), &plain);
    }

    #[test]
    fn what_is_saved_beside_the_table_is_the_order(capacities in rows(), frequencies in prop::collection::vec(0u64..9, 0..4)) {
        let total = capacities.iter().sum::<u64>();
        let frequencies = &frequencies[..frequencies.len().min(total as usize)];
        let order = Permutation::balanced(frequencies, &capacities).unwrap();
        match order.sharded_tensor("emb", 1).unwrap() {
            None => prop_assert!(order.is_identity()),
            Some(saved) => {
                prop_assert!(!order.is_identity());
                let template = Permutation::template("emb", total);
                prop_assert_eq!(&*saved.key, "emb/REBALANCE/row_of_id");
                prop_assert_eq!((&saved.key, saved.dtype, &saved.global_shape), (&template.key, template.dtype, &template.global_shape));
                prop_assert_eq!(Permutation::from_tensor(saved.data.host().unwrap()).unwrap(), order);
            }
        }
    }
}

#[test]
fn a_frequency_sorted_vocabulary_is_spread_evenly() {
    // Zipf: the first part would have most of the load.
    let frequencies: Vec<u64> = (1..=1000).map(|rank| 1_000_000 / rank).collect();
    let capacities = [250; 4];
    let before = Permutation::identity(1000)
        .unwrap()
        .loads(&frequencies, &capacities)
        .unwrap();
    let order = Permutation::balanced(&frequencies, &capacities).unwrap();
    let after = order.loads(&frequencies, &capacities).unwrap();
    assert!(before.max_over_mean() > 3.0, "{before:?}");
    assert!(after.max_over_mean() < 1.01, "{after:?}");
}

#[test]
fn ties_go_to_the_lower_id_and_the_lower_part() {
    let order = Permutation::balanced(&[5, 5, 5, 1, 9], &[2, 2, 1]).unwrap();
    // 4 (9) to part 0; 0 (5) to part 1; 1 (5) to part 2, which is full; 2 (5) to part 1, which is full; 3 (1) to part 0
    assert_eq!(order.inverse().rows(), [3, 4, 0, 2, 1]);
    assert!(Permutation::balanced(&[], &[1, 2]).unwrap().is_identity());
    assert!(Permutation::balanced(&[], &[]).unwrap().is_empty());
}

#[test]
fn what_is_no_order_is_refused() {
    let says = |r: Result<Permutation, reshard_embedding::EmbeddingError>, what: &str| {
        let message = r.unwrap_err().to_string();
        assert!(message.contains(what), "{message}");
    };
    says(Permutation::new(vec![0, 0]), "row 0 is given to two ids");
    says(
        Permutation::new(vec![0, 2]),
        "id 1 has row 2, but there are 2 rows",
    );
    says(Permutation::new(vec![i64::MIN]), "id 0 has row");
    says(
        Permutation::balanced(&[1, 1], &[1]),
        "there are 2 frequencies, but only 1 rows",
    );
    says(Permutation::balanced(&[], &[u64::MAX, 1]), "too many rows");
    says(Permutation::balanced(&[], &[1 << 62]), "no memory");
    says(Permutation::of_mod(4, 0), "at least one part");
    says(Permutation::of_mod(1 << 62, 2), "no memory");
    says(Permutation::identity(u64::MAX), "no memory");
    says(
        Permutation::from_tensor(&Tensor::from_vec(&[1], vec![0i32]).unwrap()),
        "not int32",
    );
    says(
        Permutation::from_tensor(&Tensor::from_vec(&[1, 1], vec![0i64]).unwrap()),
        "one axis",
    );
    let order = Permutation::identity(3).unwrap();
    assert!(order.apply(&table(&[4], &[])).is_err() && order.undo(&table(&[2], &[])).is_err());
    assert!(order.loads(&[], &[2]).is_err());
}

#[test]
fn rows_that_were_not_asked_for_are_refused_and_change_nothing() {
    let order = Permutation::of_mod(5, 2).unwrap();
    let mut v = table(&[2, 3], &[1]);
    let before = v.to_tensor().unwrap();
    let mut template = StateDict::new();
    order
        .undo_template_into(&mut v, &mut template, "emb", 0)
        .unwrap();
    let leaves = template.remove("emb").unwrap();
    let regions: Vec<String> = match leaves {
        Tree::List(leaves) => leaves
            .into_iter()
            .map(|l| match l.into_leaf() {
                Some(Leaf::Tensor(t)) => t.region().to_string(),
                other => panic!("{other:?}"),
            })
            .collect(),
        other => panic!("{other:?}"),
    };
    assert_eq!(
        regions,
        [
            "[0:1, 0:1]",
            "[3:4, 0:1]",
            "[1:2, 0:1]",
            "[4:5, 0:1]",
            "[2:3, 0:1]"
        ]
    );
    let row = || Tensor::from_vec(&[1, 1], vec![9i64]).unwrap();
    let two = || Tensor::from_vec(&[2, 1], vec![9i64, 9]).unwrap();
    let list = |rows: Vec<Tensor>| {
        let mut loaded = ValueTree::new();
        loaded.insert_tree(
            "emb",
            Tree::List(rows.into_iter().map(|t| Tree::Leaf(t.into())).collect()),
        );
        loaded
    };
    for (rows, why) in [
        (vec![row(); 4], "not the rows of part 1 [2:5, 0:1]"),
        (
            vec![row(), two(), row(), row(), row()],
            "not the rows of part 0",
        ),
        (vec![row(); 6], "more rows than task 0"),
    ] {
        let e = order
            .undo_restore_from(&mut v, &mut list(rows), "emb", 0)
            .unwrap_err()
            .to_string();
        assert!(e.contains(why), "{e}");
        assert_eq!(v.to_tensor().unwrap(), before);
    }
    assert!(
        order
            .undo_template_into(&mut table(&[4], &[]), &mut StateDict::new(), "emb", 0)
            .is_err()
    );
}

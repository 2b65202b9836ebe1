//! Nothing that is asked for makes a panic, or takes memory that nobody has.

use crate::table;
use proptest::prelude::*;
use reshard_embedding::{
    Combiner, Cut, Ids, Index, LookupOptions, Mirrored, PartitionedVariable, Permutation,
    ShardedVariable, SparseIds, Strategy as Order, embedding_lookup, embedding_lookup_sparse,
    lookup_gradients,
};
use reshard_model::{DType, Dims, Tensor};
use reshard_policy::partition::PartitionSpec;

fn extreme() -> impl Strategy<Value = u64> {
    prop_oneof![
        0u64..4,
        Just(1 << 31),
        Just(1 << 32),
        Just(1 << 61),
        Just(1 << 63),
        Just(u64::MAX),
        any::<u64>()
    ]
}

fn id() -> impl Strategy<Value = i64> {
    prop_oneof![-3i64..8, Just(i64::MIN), Just(i64::MAX), any::<i64>()]
}

fn dtype() -> impl Strategy<Value = DType> {
    prop::sample::select(DType::ALL.to_vec())
}

proptest! {
    #![proptest_config(reshard_model::testkit::law(256))]
    #[test]
    fn any_shape_and_cut_makes_a_variable_or_an_error(
        shape in prop::collection::vec(extreme(), 0..4), parts in prop::collection::vec(prop_oneof![1u64..5, extreme()], 0..4),
        lists in prop::option::of(prop::collection::vec(prop::collection::vec(extreme(), 0..3), 0..4)),
        dtype in dtype(), subscript in prop::collection::vec(id().prop_map(Index::At), 0..3),
    ) {
        let spec = match lists {
            Some(lists) => PartitionSpec::Splits(lists.into_iter().map(Dims::from).collect()),
            None => PartitionSpec::partitions(parts),
        };
        if let Ok(mut v) = PartitionedVariable::declare("w", &shape, dtype, &spec, 3) {
            drop(v.slice(&subscript));
            drop(v.to_tensor());
            drop(v.sharded_tensors(0));
            drop(v.templates(1));
            drop(v.assign(&Tensor::zeros("x", dtype, &[1]).unwrap()));
        }
        if let Ok(v) = ShardedVariable::declare("w", &shape, dtype, &spec, 3) {
            drop(embedding_lookup(&v, &[0, 1], &LookupOptions::new()));
            drop(v.like("x", DType::Complex128));
        }
        drop(Mirrored::declare("w", &shape, dtype, 2));
    }

    #[test]
    fn empty_variables_of_any_shape_work(
        mut shape in prop::collection::vec(prop_oneof![1u64..4, extreme()], 1..4), at in any::<prop::sample::Index>(), ids in prop::collection::vec(id(), 0..4),
    ) {
        let at = at.index(shape.len());
        shape[at] = 0;
        let made = ShardedVariable::create("v", &shape, DType::Float32, Cut::Whole, 1, |_, _, s| Tensor::zeros("v", DType::Float32, s));
        if let Ok(mut v) = made {
            let whole = v.to_tensor().unwrap();
            v.assign_add(&whole).unwrap();
            let slice = v.slice(&[]).unwrap();
            prop_assert_eq!(slice.shape(), v.shape());
            let rows = embedding_lookup(&v, &ids, &LookupOptions::new().max_norm(1.0));
            prop_assert_eq!(rows.is_ok(), ids.iter().all(|&id| u64::try_from(id).is_ok_and(|id| id < shape[0])));
            if let Ok(rows) = rows {
                drop(lookup_gradients(&v, &ids, &rows, &LookupOptions::new()).unwrap());
                drop(v.scatter_add(&ids, &rows));
            }
            // Two rows that fit the memory are really made.
            if v.row_shape().iter().product::<u64>() < 1 << 20 {
                let ids = SparseIds::ragged(&[&ids, &[]]);
                drop(embedding_lookup_sparse(&v, &ids, Combiner::Mean, &LookupOptions::new()));
            }
        }
    }

    #[test]
    fn any_ids_give_rows_or_an_error(
        rows in prop::collection::vec(0u64..4, 1..5), ids in prop::collection::vec(id(), 0..6), by_mod: bool,
        lines in extreme(), axes in prop::collection::vec(extreme(), 0..3),
    ) {
        let mut v = table(&rows, &[2]);
        let total = rows.iter().sum::<u64>();
        let options = LookupOptions::new().strategy(if by_mod { Order::Mod } else { Order::Div });
        let found = embedding_lookup(&v, &ids, &options);
        let valid = ids.iter().all(|&id| u64::try_from(id).is_ok_and(|id| id < total));
        prop_assert!(by_mod || found.is_ok() == valid);
        drop(v.sparse_read(&ids));
        let values = Tensor::from_vec(&[ids.len() as u64, 2], vec![1i64; 2 * ids.len()]).unwrap();
        prop_assert_eq!(v.scatter_update(&ids, &values).is_ok(), valid);
        prop_assert_eq!(lookup_gradients(&v, &ids, &values, &LookupOptions::new()).is_ok(), valid);
        if let Ok(shaped) = Ids::shaped(ids.clone(), &axes) {
            drop(embedding_lookup(&v, shaped, &options));
        }
        // Lines that nobody has memory for. What is allowed is small.
        if let Ok(sparse) = SparseIds::new(lines, vec![0; ids.len()], ids) && !(1 << 16..1 << 40).contains(&lines) {
            let f = ShardedVariable::from_parts("f", [Tensor::from_vec(&[3, 1], vec![0f32; 3]).unwrap()]).unwrap();
            drop(embedding_lookup_sparse(&f, &sparse, Combiner::Sqrtn, &LookupOptions::new()));
        }
    }

    #[test]
    fn any_list_is_an_order_or_an_error(rows in prop::collection::vec(id(), 0..6)) {
        let mut sorted = rows.clone();
        sorted.sort_unstable();
        let is_order = (0..).zip(&sorted).all(|(i, &row)| i == row);
        prop_assert_eq!(Permutation::new(rows).is_ok(), is_order);
    }
}

//! A lookup over a group gives the rows of the whole table, however the table is cut and whichever ranks hold its parts.

use proptest::prelude::*;
use reshard::{DType, ErrorKind, Rank, Tensor, model::Dims};
use reshard_comm::{Comm, testkit::on_ranks};
use reshard_embedding::{
    AnyVariable, Choice, EmbeddingError, LookupOptions, Result, Strategy as Order, Tasks,
    VariableScope, embedding_lookup, embedding_lookup_over, lookup_gradients_over, slices_of,
};
use reshard_laws::{law, ranks::group};
use reshard_policy::partition::PartitionSpec;
use std::sync::Arc;

/// A table that is nowhere the same.
fn whole(rows: u64) -> Tensor {
    Tensor::from_vec(&[rows, 2], (0..2 * rows).map(|i| i as f32 + 1.).collect()).unwrap()
}

#[derive(Clone, Debug)]
struct Case {
    ranks: u32,
    /// Rows of each part; `None` for a mirrored table.
    parts: Option<Vec<u64>>,
    rows: u64,
    order: Order,
    /// What each rank looks up, as shares of all rows.
    ids: Vec<Vec<prop::sample::Index>>,
}

impl Case {
    /// The variable as one task of many, or of all tasks, has it.
    fn table(&self, tasks: Tasks) -> AnyVariable {
        let whole = whole(self.rows);
        let mirrors = self.parts.is_none();
        let choice = if mirrors {
            Choice::Mirror
        } else {
            Choice::Shard
        };
        let mut scope = VariableScope::new(tasks).with_chooser(move |_, _, _| choice);
        let parts = self.parts.as_ref();
        let spec = parts.map(|parts| PartitionSpec::splits([&parts[..], &[2]]));
        let (shape, of) = ([self.rows, 2], slices_of(&whole));
        let made = scope.variable("emb", &shape, DType::Float32, spec.as_ref(), of);
        made.unwrap()
    }

    /// The ids of a rank. In "mod" order each part must have the rows of its ids, so only those of the first row of each are taken.
    fn ids(&self, rank: Rank) -> Vec<i64> {
        let ids = self.ids[rank.0 as usize].iter();
        match (&self.parts, self.order) {
            (Some(parts), Order::Mod) => {
                let with_rows = (0..).zip(parts).filter(|(_, rows)| **rows > 0);
                let firsts: Vec<i64> = with_rows.map(|(part, _)| part).collect();
                ids.map(|i| firsts[i.index(firsts.len())]).collect()
            }
            _ => ids.map(|i| i.index(self.rows as usize) as i64).collect(),
        }
    }

    fn options(&self) -> LookupOptions<'static> {
        LookupOptions::new().strategy(self.order)
    }
}

fn cases() -> impl Strategy<Value = Case> {
    let parts = prop::option::of(prop::collection::vec(0u64..4, 1..6));
    let order = prop_oneof![Just(Order::Div), Just(Order::Mod)];
    (1u32..5, parts, order).prop_flat_map(|(ranks, parts, order)| {
        let parts = parts.filter(|parts| parts.iter().any(|&rows| rows > 0));
        let rows = parts.as_ref().map_or(5, |parts| parts.iter().sum());
        let of_rank = prop::collection::vec(any::<prop::sample::Index>(), 0..5);
        let ids = prop::collection::vec(of_rank, ranks as usize);
        ids.prop_map(move |ids| Case {
            ranks,
            parts: parts.clone(),
            rows,
            order,
            ids,
        })
    })
}

proptest! {
    #![proptest_config(law(192))]

    #[test]
    fn a_lookup_over_a_group_is_that_of_the_whole_table_and_gradients_return(case in cases()) {
        let all = case.table(case.ranks.into());
        let want = |rank| embedding_lookup(&all, case.ids(rank), &case.options().max_norm(3.)).unwrap();
        // The gradient of each row as a whole: what every rank adds to it.
        let mut dense = vec![0f32; 2 * case.rows as usize];
        let (me, shared) = (Arc::new(case.clone()), group(case.ranks));
        let found = on_ranks(shared, move |group| {
            let case = Arc::clone(&me);
            async move {
                let rank = group.rank();
                let table = case.table(Tasks::only(case.ranks, rank.0));
                let (comm, ids) = (Comm::new(&*group), case.ids(rank));
                let rows = embedding_lookup_over(comm, &table, &ids, &case.options().max_norm(3.)).await?;
                let upstream = embedding_lookup_over(comm, &table, &ids, &case.options()).await?;
                let slices = lookup_gradients_over(comm, &table, &ids, &upstream, &case.options()).await?;
                Ok::<_, EmbeddingError>((rows, slices))
            }
        });
        let found: Vec<_> = found.into_iter().collect::<Result<_>>().unwrap();
        for (rank, (rows, _)) in (0..).map(Rank).zip(&found) {
            prop_assert_eq!(rows, &want(rank));
            // The gradient of a row is here the row itself, once for each time that it was looked up.
            let rows = embedding_lookup(&all, case.ids(rank), &case.options()).unwrap();
            let numbered = numbers(&all, &case.ids(rank), &case.options());
            for (row, values) in numbered.into_iter().zip(rows.to_vec::<f32>().unwrap().chunks(2)) {
                dense[2 * row] += values[0];
                dense[2 * row + 1] += values[1];
            }
        }
        // Each holder of a part has all of its gradient, and nobody else any.
        let starts = case.parts.clone().unwrap_or_else(|| vec![case.rows]);
        for (rank, (_, slices)) in found.iter().enumerate() {
            let mut start = 0;
            prop_assert_eq!(slices.len(), starts.len());
            for (part, (rows, slice)) in starts.iter().zip(slices).enumerate() {
                let own = case.parts.is_none() || all.parts()[part].task() == rank as u32;
                let range = 2 * start as usize..2 * (start + rows) as usize;
                let want = if own { dense[range].to_vec() } else { vec![0.; range.len()] };
                prop_assert_eq!(slice.to_dense().unwrap().to_vec::<f32>().unwrap(), want);
                prop_assert_eq!(&slice.dense_shape, &Dims::from([*rows, 2]));
                start += rows;
            }
        }
    }
}

/// The number of the row of each id: the rows of [`whole`] tell it.
fn numbers(all: &AnyVariable, ids: &[i64], options: &LookupOptions<'_>) -> Vec<usize> {
    let rows = embedding_lookup(all, ids, options).unwrap();
    let first = rows.to_vec::<f32>().unwrap().into_iter().step_by(2);
    first.map(|x| (x as usize - 1) / 2).collect()
}

/// A table in three parts, of which each of two ranks holds those that `held` says.
fn looked_up(held: [&'static [u32]; 2], ids: [&'static [i64]; 2]) -> Vec<Result<Tensor>> {
    on_ranks(group(2), move |group| async move {
        let rank = group.rank().0 as usize;
        let case = Case {
            ranks: 3,
            parts: Some(vec![1, 0, 2]),
            rows: 3,
            order: Order::Div,
            ids: Vec::new(),
        };
        let mut table = case.table(3.into());
        // Parts whose memory is lent to a load have no data.
        for task in (0..3).filter(|task| !held[rank].contains(task)) {
            table.templates(task);
        }
        embedding_lookup_over(Comm::new(&*group), &table, ids[rank], &LookupOptions::new()).await
    })
}

#[test]
fn a_part_that_nobody_holds_is_an_error_with_its_number_and_no_rank_hangs() {
    let values = |found: &Result<Tensor>| found.as_ref().unwrap().to_vec::<f32>().unwrap();
    let found = looked_up([&[0], &[2]], [&[0, 2, 1], &[]]);
    assert_eq!(values(&found[0]), [1., 2., 5., 6., 3., 4.]);
    assert_eq!(values(&found[1]), [0f32; 0]);

    let mut found = looked_up([&[0], &[0, 1]], [&[0], &[0, 2]]).into_iter();
    let [of_other, own] = [(); 2].map(|()| found.next().unwrap().unwrap_err());
    assert!(
        matches!(
            own,
            EmbeddingError::NotHeld {
                part: 2,
                id: 2,
                ranks: 2,
                ..
            }
        ),
        "{own}"
    );
    assert_eq!(own.kind(), ErrorKind::Invalid);
    let text = of_other.to_string();
    assert!(
        text.contains("rank 1") && text.contains("part 2 is needed for id 2"),
        "{text}"
    );
}

#[test]
fn ranks_with_different_tables_or_a_wrong_id_all_fail() {
    let found = on_ranks(group(2), |group| async move {
        let rank = group.rank().0;
        let case = |parts| Case {
            ranks: 2,
            parts: Some(parts),
            rows: 3,
            order: Order::Div,
            ids: Vec::new(),
        };
        let (comm, options) = (Comm::new(&*group), LookupOptions::new());
        let same = case(vec![1, 2]).table(Tasks::only(2, rank));
        let wrong = embedding_lookup_over(comm, &same, &[i64::from(rank) * 7], &options).await;
        let other = case(vec![1 + u64::from(rank), 2 - u64::from(rank)]);
        let other = other.table(Tasks::only(2, rank));
        let other = embedding_lookup_over(comm, &other, &[0], &options).await;
        let fine = embedding_lookup_over(comm, &same, &[2], &options).await;
        (
            wrong.unwrap_err().to_string(),
            other.unwrap_err().to_string(),
            fine.unwrap(),
        )
    });
    assert!(
        found[0].0.contains("rank 1") && found[0].0.contains("id 7"),
        "{}",
        found[0].0
    );
    assert!(found[1].0.contains("id 7 at position 0"), "{}", found[1].0);
    for (_, other, fine) in &found {
        assert!(
            other.contains("the same table") && other.contains("rank 1 has emb"),
            "{other}"
        );
        assert_eq!(fine.to_vec::<f32>().unwrap(), [5., 6.]);
    }
}

//! A lookup in parts is a lookup in the whole.

use crate::{rows, table};
use half::{bf16, f16};
use proptest::prelude::*;
use reshard_embedding::{
    Combiner, Ids, LookupOptions, Permutation, ShardedVariable, SparseIds, Strategy as Order,
    embedding_lookup, embedding_lookup_into, embedding_lookup_sparse, lookup_gradients,
    safe_embedding_lookup_sparse,
};
use reshard_model::{Element, ErrorKind, Region, Tensor};

fn floats<T: Element>(rows: Vec<Vec<T>>) -> ShardedVariable {
    let width = rows[0].len() as u64;
    let parts = rows
        .into_iter()
        .map(|row| Tensor::from_vec(&[1, width], row).unwrap());
    ShardedVariable::from_parts("emb", parts).unwrap()
}

proptest! {
    #![proptest_config(reshard_model::testkit::law(256))]
    #[test]
    fn rows_come_in_the_order_asked_for_whatever_the_parts_and_threads(
        rows in rows(), inner in prop::collection::vec(0u64..4, 0..3), threads in 1usize..4,
        picks in prop::collection::vec(any::<prop::sample::Index>(), 0..30),
    ) {
        let total = rows.iter().sum::<u64>();
        let ids: Vec<i64> = picks.iter().map(|i| i.index(total as usize) as i64).collect();
        let got = embedding_lookup(&table(&rows, &inner), &ids, &LookupOptions::new().threads(threads)).unwrap();
        let width = inner.iter().product::<u64>() as i64;
        let want: Vec<i64> = ids.iter().flat_map(|id| id * width..(id + 1) * width).collect();
        prop_assert_eq!(got.shape().to_vec(), [&[ids.len() as u64], inner.as_slice()].concat());
        prop_assert_eq!(got.to_vec::<i64>().unwrap(), want);
    }

    #[test]
    fn mod_lookups_are_lookups_through_the_order_of_mod(total in 1u64..40, parts in 1u64..9) {
        let rows: Vec<u64> = (0..parts).map(|i| total / parts + u64::from(i < total % parts)).collect();
        let (v, order) = (table(&rows, &[2]), Permutation::of_mod(total, parts).unwrap());
        let ids: Vec<i64> = (0..total as i64).rev().collect();
        let by_mod = embedding_lookup(&v, &ids, &LookupOptions::new().strategy(Order::Mod)).unwrap();
        prop_assert_eq!(by_mod, embedding_lookup(&v, &ids, &LookupOptions::new().through(&order)).unwrap());
    }

    #[test]
    fn by_mod_id_i_is_row_i_div_n_of_part_i_mod_n_whatever_the_parts(rows in rows(), id in -2i64..40) {
        let v = table(&rows, &[2]);
        let n = rows.len() as i64;
        let (part, row) = (id.rem_euclid(n) as usize, id.div_euclid(n));
        let got = embedding_lookup(&v, &[id], &LookupOptions::new().strategy(Order::Mod));
        let upstream = Tensor::from_vec(&[1, 2], vec![7i64, 8]).unwrap();
        let gradients = lookup_gradients(&v, &[id], &upstream, &LookupOptions::new().strategy(Order::Mod));
        if id < 0 || row as u64 >= rows[part] {
            prop_assert!(got.is_err() && gradients.is_err());
            return Ok(());
        }
        let at = rows[..part].iter().sum::<u64>() as i64 + row;
        prop_assert_eq!(got.unwrap().to_vec::<i64>().unwrap(), [2 * at, 2 * at + 1]);
        for (i, of_part) in gradients.unwrap().into_iter().enumerate() {
            prop_assert_eq!(of_part.indices, if i == part { vec![row] } else { vec![] });
        }
    }

    #[test]
    fn gradients_through_an_order_are_those_of_the_rows_that_it_says(
        rows in rows(), frequencies in prop::collection::vec(0u64..9, 0..6), picks in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
    ) {
        let (v, total) = (table(&rows, &[]), rows.iter().sum::<u64>() as usize);
        let order = Permutation::balanced(&frequencies[..frequencies.len().min(total)], &rows).unwrap();
        let ids: Vec<i64> = picks.iter().map(|i| i.index(total) as i64).collect();
        let upstream = Tensor::from_vec(&[ids.len() as u64], ids.iter().map(|id| id * 3 + 1).collect()).unwrap();
        let through = lookup_gradients(&v, &ids, &upstream, &LookupOptions::new().through(&order)).unwrap();
        let at = order.rows_of(&ids).unwrap();
        prop_assert_eq!(through, lookup_gradients(&v, at, &upstream, &LookupOptions::new()).unwrap());
    }

    #[test]
    fn rows_are_clipped_by_the_norm_of_all_their_axes(
        rows in rows(), inner in prop::collection::vec(0u64..5, 0..3), bound in prop_oneof![Just(0.0), Just(-1.0), 0.01f64..50.0],
        seed in 1u64..1000, picks in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
    ) {
        let (width, total) = (inner.iter().product::<u64>(), rows.iter().sum::<u64>());
        // Never 0, of which TensorFlow's rule makes NaN when the bound is 0.
        let element = |i: u64| (i * seed * 37 % 101) as f64 / 7.0 + 0.5;
        let mut at = 0;
        let parts = rows.iter().map(|&n| {
            at += n * width;
            Tensor::from_vec(&[&[n], inner.as_slice()].concat(), (at - n * width..at).map(element).collect::<Vec<f64>>()).unwrap()
        });
        let v = ShardedVariable::from_parts("emb", parts).unwrap();
        let ids: Vec<i64> = picks.iter().map(|i| i.index(total as usize) as i64).collect();
        let got = embedding_lookup(&v, &ids, &LookupOptions::new().max_norm(bound)).unwrap().to_vec::<f64>().unwrap();
        prop_assert_eq!(got.len() as u64, ids.len() as u64 * width);
        for (id, got) in ids.iter().zip(got.chunks(width.max(1) as usize)) {
            let row: Vec<f64> = (0..width).map(|i| element(*id as u64 * width + i)).collect();
            let norm = row.iter().map(|x| x * x).sum::<f64>().sqrt();
            let scale = bound.max(0.0) / norm.max(bound);
            for (got, x) in got.iter().zip(&row) {
                prop_assert!((got - x * scale).abs() <= 1e-12 * x, "{} for {} times {}", got, x, scale);
            }
        }
    }

    #[test]
    fn safe_lookups_are_sums_of_what_means_something(
        rows in rows(), combiner in prop_oneof![Just(Combiner::Sum), Just(Combiner::Mean), Just(Combiner::Sqrtn)],
        lines in prop::collection::vec(prop::collection::vec((-3i64..9, prop::sample::select(vec![-1f32, 0.0, 0.5, 2.0, f32::NAN])), 0..4), 0..6),
        weighted: bool, default_id in prop::option::of(Just(0i64)), threads in 1usize..4,
    ) {
        let total = rows.iter().sum::<u64>() as i64;
        let mut at = 0;
        let parts = rows.iter().map(|&n| {
            at += n;
            Tensor::from_vec(&[n], (at - n..at).map(|i| (i + 1) as f64).collect()).unwrap()
        });
        let v = ShardedVariable::from_parts("emb", parts).unwrap();
        let ids: Vec<Vec<i64>> = lines.iter().map(|l| l.iter().map(|(id, _)| (*id).min(total - 1)).collect()).collect();
        let borrowed: Vec<&[i64]> = ids.iter().map(Vec::as_slice).collect();
        let mut sparse = SparseIds::ragged(&borrowed);
        if weighted {
            sparse = sparse.with_weights(lines.iter().flatten().map(|x| x.1).collect::<Vec<_>>()).unwrap();
        }
        let options = LookupOptions::new().threads(threads);
        let got = safe_embedding_lookup_sparse(&v, &sparse, combiner, default_id, &options).unwrap();
        for ((ids, line), got) in ids.iter().zip(&lines).zip(got.to_vec::<f64>().unwrap()) {
            let weight = |w: f32| if weighted { f64::from(w) } else { 1.0 };
            let mut taken: Vec<(i64, f64)> = ids.iter().zip(line).map(|(id, (_, w))| (*id, weight(*w))).collect();
            taken.retain(|(id, w)| *id >= 0 && (combiner == Combiner::Sum || *w > 0.0));
            if taken.is_empty() {
                taken.extend(default_id.map(|id| (id, 1.0)));
            }
            let sum: f64 = taken.iter().map(|(id, w)| w * (id + 1) as f64).sum();
            let want = match combiner {
                _ if taken.is_empty() => 0.0,
                Combiner::Sum => sum,
                Combiner::Mean => sum / taken.iter().map(|t| t.1).sum::<f64>(),
                Combiner::Sqrtn => sum / taken.iter().map(|t| t.1 * t.1).sum::<f64>().sqrt(),
            };
            prop_assert!((got - want).abs() <= 1e-12 * want.abs() || got.is_nan() && want.is_nan(), "{} for {}", got, want);
        }
    }

    #[test]
    fn dense_gradients_are_what_a_scatter_into_zeros_gives(
        rows in rows(), picks in prop::collection::vec((any::<prop::sample::Index>(), -9i64..9), 0..30),
    ) {
        let total = rows.iter().sum::<u64>();
        let ids: Vec<i64> = picks.iter().map(|(i, _)| i.index(total as usize) as i64).collect();
        let upstream = Tensor::from_vec(&[ids.len() as u64], picks.iter().map(|p| p.1).collect()).unwrap();
        let mut v = table(&rows, &[]);
        let slices = lookup_gradients(&v, &ids, &upstream, &LookupOptions::new()).unwrap();
        prop_assert_eq!(slices.iter().map(|s| s.indices.len()).sum::<usize>(), ids.len());
        let dense: Vec<Tensor> = slices.iter().map(|s| s.to_dense().unwrap()).collect();
        v.assign_sub(&v.to_tensor().unwrap()).unwrap();
        v.scatter_add(&ids, &upstream).unwrap();
        for (part, dense) in v.parts().iter().zip(dense) {
            prop_assert_eq!(part.data().unwrap(), &dense);
        }
    }

    #[test]
    fn sparse_sums_are_sums_of_lookups(
        rows in rows(), lines in prop::collection::vec(prop::collection::vec((any::<prop::sample::Index>(), 1u8..5), 0..4), 0..6),
        combiner in prop_oneof![Just(Combiner::Sum), Just(Combiner::Mean), Just(Combiner::Sqrtn)], weighted: bool,
    ) {
        let total = rows.iter().sum::<u64>() as usize;
        let mut at = 0u64;
        let parts = rows.iter().map(|&n| {
            at += n;
            Tensor::from_vec(&[n, 2], (2 * (at - n)..2 * at).map(|i| i as f64).collect()).unwrap()
        });
        let v = ShardedVariable::from_parts("emb", parts).unwrap();
        let picked: Vec<Vec<i64>> = lines.iter().map(|l| l.iter().map(|(i, _)| i.index(total) as i64).collect()).collect();
        let borrowed: Vec<&[i64]> = picked.iter().map(Vec::as_slice).collect();
        let weights: Vec<f32> = lines.iter().flatten().map(|(_, w)| if weighted { f32::from(*w) } else { 1.0 }).collect();
        let mut ids = SparseIds::ragged(&borrowed);
        if weighted {
            ids = ids.with_weights(weights.clone()).unwrap();
        }
        let got = embedding_lookup_sparse(&v, &ids, combiner, &LookupOptions::new()).unwrap().to_vec::<f64>().unwrap();
        let mut weights = weights.into_iter().map(f64::from);
        for (line, got) in picked.iter().zip(got.chunks(2)) {
            let weights: Vec<f64> = weights.by_ref().take(line.len()).collect();
            let divisor = match combiner {
                Combiner::Sum => 1.0,
                Combiner::Mean => weights.iter().sum(),
                Combiner::Sqrtn => weights.iter().map(|w| w * w).sum::<f64>().sqrt(),
            };
            for (column, &got) in got.iter().enumerate() {
                let sum: f64 = line.iter().zip(&weights).map(|(id, w)| w * (2 * id + column as i64) as f64).sum();
                let want = if line.is_empty() { 0.0 } else { sum / divisor };
                prop_assert!((got - want).abs() <= 1e-12 * want.abs(), "{} for {}", got, want);
            }
        }
        let safe = safe_embedding_lookup_sparse(&v, &ids, combiner, None, &LookupOptions::new()).unwrap();
        prop_assert_eq!(safe.to_vec::<f64>().unwrap(), got);
    }
}

#[test]
fn an_id_without_a_row_is_named_with_its_place() {
    let v = table(&[4, 0, 2], &[]);
    let message = |ids: Ids<'_>, options: &LookupOptions<'_>| {
        let e = embedding_lookup(&v, ids, options).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Invalid);
        e.to_string()
    };
    let plain = LookupOptions::new();
    let ids = Ids::shaped(vec![0, 5, 6, -1], &[2, 2]).unwrap();
    assert_eq!(
        message(ids, &plain),
        "table: id 6 at position 2 is out of range: rows are 0 to 5"
    );
    assert!(message((&[i64::MIN]).into(), &plain).contains("-9223372036854775808"));
    let by_mod = plain.strategy(Order::Mod);
    let e = message((&[0, 3, 4]).into(), &by_mod);
    assert_eq!(
        e,
        "table: id 4 at position 2 is out of range: in \"mod\" order it is row 1 of part 1, which has 0"
    );
    assert!(
        embedding_lookup(&table(&[0], &[3]), &[0], &plain)
            .unwrap_err()
            .to_string()
            .contains("there are no rows")
    );
}

#[test]
fn the_first_wrong_id_is_told_whatever_the_number_of_threads() {
    // 8 MiB, so that several threads are at work
    let v = table(&[1000], &[1024]);
    let mut ids: Vec<i64> = (0..1000).collect();
    (ids[400], ids[900]) = (1000, -3);
    for threads in 1..5 {
        let e = embedding_lookup(&v, &ids, &LookupOptions::new().threads(threads)).unwrap_err();
        assert!(e.to_string().contains("id 1000 at position 400"), "{e}");
    }
    ids.truncate(400);
    let got = embedding_lookup(&v, &ids, &LookupOptions::new().threads(3)).unwrap();
    assert_eq!(
        got.into_vec::<i64>().unwrap(),
        (0..400 * 1024).collect::<Vec<i64>>()
    );
}

#[test]
fn a_lookup_fills_memory_that_is_there() {
    let v = table(&[2, 1], &[2]);
    let options = LookupOptions::new();
    let mut out = embedding_lookup(&v, &[0, 1], &options).unwrap();
    let memory = out.buffer_id();
    embedding_lookup_into(&v, &[2, 0], &options, &mut out).unwrap();
    assert_eq!(
        (out.buffer_id(), out.to_vec::<i64>().unwrap()),
        (memory, vec![4, 5, 0, 1])
    );
    let message = |ids: &[i64], out: &mut Tensor| {
        embedding_lookup_into(&v, ids, &options, out)
            .unwrap_err()
            .to_string()
    };
    assert!(message(&[0], &mut out).contains("values of shape [1, 2] of int64, but [2, 2]"));
    assert!(message(&[0, 3], &mut out).contains("out of range"));
    let other = out.clone();
    assert!(message(&[0, 1], &mut out).contains("shared"));
    // also after an error it has its memory
    assert!(out.same_buffer(&other) && out.buffer_id() == memory);
    drop(out);
    let mut column = Tensor::from_vec(&[1, 2, 4], vec![0i64; 8])
        .unwrap()
        .narrow(&Region::new([0, 0, 0], [1, 2, 2]));
    let ids = Ids::shaped(vec![0, 1], &[1, 2]).unwrap();
    assert!(
        embedding_lookup_into(&v, ids, &options, &mut column)
            .unwrap_err()
            .to_string()
            .contains("gaps")
    );
}

/// Results of more than 32 MiB are written past the caches. Three parts of odd sizes, so that the wrong part is guessed, too.
#[test]
fn a_large_result_is_the_same_in_new_memory_and_in_kept() {
    let (rows, width) = (1000u64, 64u64);
    let part = |from: u64, to: u64| {
        let elements = (from * width..to * width).map(|i| i as f32).collect();
        Tensor::from_vec(&[to - from, width], elements).unwrap()
    };
    let v =
        ShardedVariable::from_parts("emb", [part(0, 7), part(7, 640), part(640, rows)]).unwrap();
    let mut ids: Vec<i64> = (0..140_000u64).map(|i| (i * 7919 % rows) as i64).collect();
    let options = LookupOptions::new().threads(3);
    let mut out = embedding_lookup(&v, &ids, &options).unwrap();
    let right = |out: &Tensor, ids: &[i64]| {
        let got = out.to_vec::<f32>().unwrap();
        got.chunks(width as usize).zip(ids).all(|(row, &id)| {
            (row.iter().zip(id as u64 * width..)).all(|(&x, expected)| x == expected as f32)
        })
    };
    assert!(right(&out, &ids));
    ids.reverse();
    embedding_lookup_into(&v, &ids, &options, &mut out).unwrap();
    assert!(right(&out, &ids));
    for at in [0, 5, 70_000, 139_999] {
        let id = std::mem::replace(&mut ids[at], rows as i64);
        let e = embedding_lookup_into(&v, &ids, &options, &mut out).unwrap_err();
        assert!(
            e.to_string().contains(&format!("id 1000 at position {at}")),
            "{e}"
        );
        ids[at] = id;
    }
}

#[test]
fn sparse_lookups_are_the_same_by_any_number_of_threads() {
    let n = 3000u64;
    let rows =
        Tensor::from_vec(&[n, 32], (0..n * 32).map(|i| (i % 1009) as f32).collect()).unwrap();
    let v = ShardedVariable::from_parts("emb", [rows]).unwrap();
    // 20,000 lines of 0 to 4 ids, 2.5 MB
    let lines: Vec<Vec<i64>> = (0..20_000)
        .map(|i| (0..i % 5).map(|k| (i * 7 + k * 13) % n as i64).collect())
        .collect();
    let borrowed: Vec<&[i64]> = lines.iter().map(Vec::as_slice).collect();
    let ids = SparseIds::ragged(&borrowed);
    let look = |threads| {
        let options = LookupOptions::new().threads(threads);
        embedding_lookup_sparse(&v, &ids, Combiner::Sum, &options)
            .unwrap()
            .to_vec::<f32>()
            .unwrap()
    };
    let got = look(3);
    assert!(got == look(1));
    for (line, got) in lines.iter().zip(got.chunks(32)) {
        for (column, &got) in got.iter().enumerate() {
            let sum: u64 = line
                .iter()
                .map(|&id| (id as u64 * 32 + column as u64) % 1009)
                .sum();
            assert_eq!(got, sum as f32);
        }
    }
}

#[test]
fn options_that_do_not_go_together_are_refused() {
    let (v, order) = (table(&[2, 1], &[]), Permutation::identity(3).unwrap());
    let look = |v: &ShardedVariable, o: LookupOptions<'_>| {
        embedding_lookup(v, &[0], &o).unwrap_err().to_string()
    };
    assert!(
        look(
            &v,
            LookupOptions::new().through(&order).strategy(Order::Mod)
        )
        .contains("use a permutation with \"div\"")
    );
    let other = table(&[2, 2], &[]);
    assert!(
        look(&other, LookupOptions::new().through(&order)).contains("3 rows, but the table has 4")
    );
    assert!(
        look(&v, LookupOptions::new().max_norm(1.0)).contains("max_norm is not defined for int64")
    );
    let f = floats(vec![vec![1f32]]);
    assert!(look(&f, LookupOptions::new().max_norm(f64::NAN)).contains("not a number"));
    for bound in [f64::INFINITY, f64::NEG_INFINITY, 1e39] {
        assert!(
            look(&f, LookupOptions::new().max_norm(bound))
                .contains("more than can be computed with")
        );
    }
    let wide = floats(vec![vec![1f64]]);
    assert!(embedding_lookup(&wide, &[0], &LookupOptions::new().max_norm(1e39)).is_ok());
    let upstream = Tensor::from_vec(&[1, 1], vec![1f32]).unwrap();
    assert!(lookup_gradients(&f, &[0], &upstream, &LookupOptions::new().max_norm(1.0)).is_err());
    assert!(lookup_gradients(&f, &[0, 0], &upstream, &LookupOptions::new()).is_err());
    let ids = SparseIds::ragged(&[&[0]]);
    let e = embedding_lookup_sparse(&v, &ids, Combiner::Sum, &LookupOptions::new()).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unsupported);
}

#[test]
fn ids_are_whole_numbers_in_a_shape_that_they_fill() {
    assert!(
        Ids::shaped(vec![1, 2, 3], &[2, 2])
            .unwrap_err()
            .to_string()
            .contains("3 given for shape [2, 2]")
    );
    assert!(Ids::shaped(vec![], &[u64::MAX, u64::MAX]).is_err());
    let e = Ids::of(&Tensor::from_vec(&[1], vec![1f32]).unwrap()).unwrap_err();
    assert!(e.to_string().contains("elements are float32"), "{e}");
    fn ids<T: Element>(values: Vec<T>) -> Result<Vec<i64>, reshard_embedding::EmbeddingError> {
        Ok(Ids::of(&Tensor::from_vec(&[1], values).unwrap())?
            .values()
            .to_vec())
    }
    assert_eq!(ids(vec![i64::MIN]).unwrap(), [i64::MIN]);
    assert_eq!(ids(vec![u32::MAX]).unwrap(), [i64::from(u32::MAX)]);
    assert_eq!(
        (ids(vec![-7i32]).unwrap(), ids(vec![-7i16]).unwrap()),
        (vec![-7], vec![-7])
    );
    assert_eq!(
        (ids(vec![-7i8]).unwrap(), ids(vec![255u8]).unwrap()),
        (vec![-7], vec![255])
    );
    assert_eq!(ids(vec![65_535u16]).unwrap(), [65_535]);
    assert!(ids(vec![1u64]).is_err());
    let got = embedding_lookup(
        &table(&[3], &[]),
        Ids::shaped(vec![2], &[]).unwrap(),
        &LookupOptions::new(),
    )
    .unwrap();
    assert_eq!(
        (got.shape().len(), got.to_vec::<i64>().unwrap()),
        (0, vec![2])
    );
}

#[test]
fn a_sparse_matrix_is_checked_when_it_is_made() {
    let says = |r: Result<SparseIds, reshard_embedding::EmbeddingError>, what: &str| {
        let message = r.unwrap_err().to_string();
        assert!(message.contains(what), "{message}");
    };
    says(
        SparseIds::new(2, [0, 1], [5]),
        "1 ids were given, but 2 lines",
    );
    says(
        SparseIds::new(2, [1, 0], [5, 5]),
        "line 0 comes after line 1",
    );
    says(
        SparseIds::new(2, [0, 2], [5, 5]),
        "in line 2, but there are 2 lines",
    );
    says(
        SparseIds::ragged(&[&[1], &[2]]).with_weights([1.0]),
        "1 weights were given for 2 ids",
    );
}

#[test]
fn safe_lookups_leave_out_what_means_nothing() {
    let v = floats(vec![vec![1f32, 10.0], vec![2.0, 20.0], vec![3.0, 30.0]]);
    let ids = SparseIds::ragged(&[&[0, -1, 2], &[-5], &[], &[1, 2]])
        .with_weights([1.0, 9.0, -1.0, 1.0, 0.0, 2.0])
        .unwrap();
    let look = |combiner, default| {
        let options = LookupOptions::new();
        safe_embedding_lookup_sparse(&v, &ids, combiner, default, &options)
            .unwrap()
            .to_vec::<f32>()
            .unwrap()
    };
    // weights that are not positive count in sums only
    assert_eq!(
        look(Combiner::Sum, None),
        [-2.0, -20.0, 0.0, 0.0, 0.0, 0.0, 6.0, 60.0]
    );
    assert_eq!(
        look(Combiner::Mean, Some(1)),
        [1.0, 10.0, 2.0, 20.0, 2.0, 20.0, 3.0, 30.0]
    );
    // an id that weighs nothing is no id
    let weightless = SparseIds::ragged(&[&[2]]).with_weights([0.0]).unwrap();
    for (combiner, want) in [(Combiner::Sqrtn, [1.0, 10.0]), (Combiner::Sum, [0.0, 0.0])] {
        let got =
            safe_embedding_lookup_sparse(&v, &weightless, combiner, Some(0), &LookupOptions::new());
        assert_eq!(got.unwrap().to_vec::<f32>().unwrap(), want);
    }
    let plain =
        embedding_lookup_sparse(&v, &ids, Combiner::Sum, &LookupOptions::new()).unwrap_err();
    assert!(plain.to_string().contains("id -1 at position 1"), "{plain}");
    let missing =
        safe_embedding_lookup_sparse(&v, &ids, Combiner::Mean, Some(3), &LookupOptions::new());
    assert!(missing.unwrap_err().to_string().contains("id 3"));
    // where no line needs it the default is not looked up
    let full = SparseIds::ragged(&[&[0]]);
    assert!(
        safe_embedding_lookup_sparse(&v, &full, Combiner::Mean, Some(3), &LookupOptions::new())
            .is_ok()
    );
}

#[test]
fn sixteen_bit_rows_are_added_up_in_float32() {
    let ids = SparseIds::ragged(&[&[0, 1, 1, 1, 1]]);
    let b = bf16::from_f32;
    let got = embedding_lookup_sparse(
        &floats(vec![vec![b(256.0)], vec![b(1.0)]]),
        &ids,
        Combiner::Sum,
        &LookupOptions::new(),
    );
    assert_eq!(got.unwrap().to_vec::<bf16>().unwrap(), [b(260.0)]); // 256 + 1 is 256 in bfloat16
    let h = f16::from_f32;
    let got = embedding_lookup_sparse(
        &floats(vec![vec![h(60000.0)], vec![h(60000.0)]]),
        &ids,
        Combiner::Mean,
        &LookupOptions::new(),
    );
    assert_eq!(got.unwrap().to_vec::<f16>().unwrap(), [h(60000.0)]); // the sum is no float16
}

#[test]
fn rows_are_clipped_before_they_are_combined() {
    let v = floats(vec![vec![3f32, 4.0], vec![0.0, 10.0]]);
    let ids = SparseIds::ragged(&[&[0, 1]]);
    let got = embedding_lookup_sparse(&v, &ids, Combiner::Sum, &LookupOptions::new().max_norm(5.0))
        .unwrap();
    assert_eq!(got.to_vec::<f32>().unwrap(), [3.0, 9.0]);
}

#[test]
fn indexed_slices_are_checked_when_they_are_made_dense() {
    let v = table(&[2], &[2]);
    let upstream = Tensor::from_vec(&[1, 2], vec![1i64, 2]).unwrap();
    let [good] = lookup_gradients(&v, &[1], &upstream, &LookupOptions::new())
        .unwrap()
        .try_into()
        .unwrap();
    assert_eq!(
        good.to_dense().unwrap().to_vec::<i64>().unwrap(),
        [0, 0, 1, 2]
    );
    for index in [2, -1, i64::MIN] {
        let mut bad = good.clone();
        bad.indices[0] = index;
        assert!(bad.to_dense().is_err());
    }
    let mut bad = good.clone();
    bad.dense_shape = [2, 3].into();
    assert!(bad.to_dense().is_err());
    bad.dense_shape = [].into();
    assert!(bad.to_dense().is_err());
    let mut bad = good;
    bad.values = Tensor::from_vec(&[1, 2], vec![true, false]).unwrap();
    assert_eq!(bad.to_dense().unwrap_err().kind(), ErrorKind::Unsupported);
}

#[test]
fn rows_of_every_length_are_found_in_parts_of_every_length() {
    // Runs of rows that the lookup takes together have rows of one part, of several, and of parts without any.
    let lengths = [3u64, 0, 1, 2_000, 1, 1, 0, 700, 5];
    let total: u64 = lengths.iter().sum();
    for width in [1u64, 15, 16, 32, 64, 128, 256, 257] {
        let mut row = 0;
        let parts = lengths.map(|n| {
            let elements = (row * width..(row + n) * width).map(|e| e as f32).collect();
            row += n;
            Tensor::from_vec(&[n, width], elements).unwrap()
        });
        let table = ShardedVariable::from_parts("t", parts).unwrap();
        let ids: Vec<i64> = (0..total as i64).rev().chain([0, 2_004, 2_003]).collect();
        let look = |ids: &[i64]| embedding_lookup(&table, ids, &LookupOptions::new());
        let found = look(&ids).unwrap().to_vec::<f32>().unwrap();
        let want = ids.iter().flat_map(|id| {
            let first = *id as u64 * width;
            (first..first + width).map(|e| e as f32)
        });
        assert!(found.iter().copied().eq(want), "{width}");
        for wrong in [-1, i64::MIN, total as i64, i64::MAX] {
            let e = look(&[2, 1, wrong, 0]).unwrap_err();
            assert!(
                matches!(e, reshard_embedding::EmbeddingError::IdOutOfRange { id, at: 2, .. } if id == wrong),
                "{width}: {e}"
            );
        }
    }
}

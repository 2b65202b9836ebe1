//! A variable is one tensor in a checkpoint, into however many parts it is cut.

use proptest::prelude::*;
use reshard::policy::partition::PartitionSpec;
use reshard::{
    DType, Dialect, Region, ShardedTensor, StateDict, Tensor, Value, ValueTree, blocking,
    model::Dims,
};
use reshard_embedding::{
    LookupOptions, Mirrored, PartitionedVariable, Permutation, ShardedVariable, Strategy as Order,
    Tasks, embedding_lookup, slices_of,
};
use reshard_laws::{
    law,
    place::{Place, stores},
    ranks::{group, load, save},
};

/// A tensor that is nowhere the same.
fn whole(shape: &[u64]) -> Tensor {
    let n = shape.iter().product::<u64>();
    Tensor::from_vec(shape, (0..n as i64).map(|i| i * 7 + 1).collect()).unwrap()
}

/// Cuts an axis at random places; parts may be empty.
fn cut(extent: u64, places: &[prop::sample::Index]) -> Dims {
    let mut at: Vec<u64> = places
        .iter()
        .map(|i| i.index(extent as usize + 1) as u64)
        .collect();
    at.extend([0, extent]);
    at.sort_unstable();
    at.windows(2).map(|w| w[1] - w[0]).collect()
}

fn spec(shape: &[u64], places: &[Vec<prop::sample::Index>]) -> PartitionSpec {
    PartitionSpec::Splits(
        shape
            .iter()
            .zip(places)
            .map(|(&n, places)| cut(n, places))
            .collect(),
    )
}

type Places = Vec<Vec<prop::sample::Index>>;

/// Places to cut some axes at, several axes at once or only the first.
fn places() -> impl Strategy<Value = Places> {
    let axis = || prop::collection::vec(any::<prop::sample::Index>(), 0..3);
    prop_oneof![
        prop::collection::vec(axis(), 3..4),
        axis().prop_map(|rows| vec![rows, Vec::new(), Vec::new()]),
    ]
}

fn dialect() -> impl Strategy<Value = Dialect> {
    prop_oneof![Just(Dialect::Megatron), Just(Dialect::Dcp)]
}

/// Saves what each rank has.
fn saved(states: Vec<StateDict>, dialect: Dialect) -> Place {
    let place = Place::new();
    let n = states.len() as u32;
    for outcome in save(group(n), states, place.url(), move |_, save| {
        save.dialect(dialect)
    }) {
        outcome.unwrap();
    }
    place
}

fn loaded(templates: Vec<StateDict>, place: &Place) -> Vec<ValueTree> {
    let n = templates.len() as u32;
    load(group(n), templates, place.url(), |_, load| load)
        .into_iter()
        .map(|o| o.unwrap().0)
        .collect()
}

/// A state dict that something puts its own under `emb` of.
fn with(put: impl FnOnce(&mut StateDict)) -> StateDict {
    let mut state = StateDict::new();
    state.insert("step", 3);
    put(&mut state);
    state
}

proptest! {
    #![proptest_config(law(48))]

    #[test]
    fn what_is_saved_in_n_parts_is_loaded_in_m(
        shape in prop::collection::vec(0u64..6, 1..4), before in places(), after in places(),
        n in 1u32..4, m in 1u32..4, dialect in dialect(), in_place: bool,
    ) {
        let whole = whole(&shape);
        let before = spec(&shape, &before);
        let make = |tasks| PartitionedVariable::create("emb", &shape, DType::Int64, &before, tasks, slices_of(&whole)).unwrap();
        let states = (0..n).map(|task| with(|state| make(Tasks::only(n, task)).save_into(state, "emb", task).unwrap())).collect();
        let place = saved(states, dialect);

        let after = spec(&shape, &after);
        let zeros = |_: &[u64], _: &[u64], shape: &[u64]| Tensor::zeros("emb", DType::Int64, shape);
        let mut mine: Vec<PartitionedVariable> = (0..m).map(|task| {
            let tasks = Tasks::only(m, task);
            match in_place {
                true => PartitionedVariable::create("emb", &shape, DType::Int64, &after, tasks, zeros).unwrap(),
                false => PartitionedVariable::declare("emb", &shape, DType::Int64, &after, tasks).unwrap(),
            }
        }).collect();
        let memory = |v: &PartitionedVariable| v.parts().iter().map(|p| p.data().map(Tensor::buffer_id)).collect::<Vec<_>>();
        let memories: Vec<_> = mine.iter().map(memory).collect();
        let templates = (0..).zip(&mut mine).map(|(task, v)| with(|t| v.template_into(t, "emb", task))).collect();
        for (task, mut plain) in (0..).zip(loaded(templates, &place)) {
            let v = &mut mine[task as usize];
            v.restore_from(&mut plain, "emb", task).unwrap();
            for part in v.parts() {
                prop_assert_eq!(part.data().is_some(), part.task() == task);
                if let Some(data) = part.data() {
                    prop_assert_eq!(data, &whole.narrow(part.region()));
                }
            }
            prop_assert!(!in_place || memory(v) == memories[task as usize]);
        }

        // As a whole, by a program that knows nothing of parts.
        let mut template = StateDict::new();
        template.insert("w", ShardedTensor::template("emb", DType::Int64, &shape));
        let [plain] = loaded(vec![template], &place).try_into().unwrap();
        prop_assert_eq!(plain.get("w").and_then(ValueTree::leaf).and_then(Value::as_tensor).unwrap(), &whole);
    }

    #[test]
    fn what_was_never_cut_is_loaded_in_parts(shape in prop::collection::vec(0u64..6, 1..4), places in places()) {
        let whole = whole(&shape);
        let state = with(|state| drop(state.insert("w", ShardedTensor::full("emb", whole.clone()))));
        let place = saved(vec![state], Dialect::Dcp);
        let mut v = PartitionedVariable::declare("emb", &shape, DType::Int64, &spec(&shape, &places), 1).unwrap();
        let [mut plain] = loaded(vec![with(|t| v.template_into(t, "emb", 0))], &place).try_into().unwrap();
        v.restore_from(&mut plain, "emb", 0).unwrap();
        prop_assert_eq!(v.to_tensor().unwrap(), whole);
    }

    #[test]
    fn the_order_of_rows_is_kept_or_undone_in_other_parts(
        rows in 1u64..20, before in any::<[prop::sample::Index; 2]>(), after in any::<[prop::sample::Index; 2]>(),
        frequencies in prop::collection::vec(0u64..9, 0..20), picks in prop::collection::vec(any::<prop::sample::Index>(), 0..9),
    ) {
        let plain_table = |spec: &PartitionSpec| {
            ShardedVariable::create("emb", &[rows, 2], DType::Int64, spec, 2, slices_of(&whole(&[rows, 2]))).unwrap()
        };
        let spec = |places: &[prop::sample::Index]| PartitionSpec::Splits(vec![cut(rows, places), [2].into()]);
        let table = plain_table(&spec(&before));
        let frequencies = &frequencies[..frequencies.len().min(rows as usize)];
        let order = Permutation::balanced(frequencies, &table.part_rows()).unwrap();
        let balanced = order.apply(&table).unwrap();
        let states = (0..2).map(|task| {
            let mut state = StateDict::new();
            balanced.save_into(&mut state, "emb", task).unwrap();
            if let Some(rows) = order.sharded_tensor("emb", task).unwrap() {
                state.insert("order", rows);
            }
            state
        }).collect();
        let place = saved(states, Dialect::Dcp);

        let mut again = ShardedVariable::declare("emb", &[rows, 2], DType::Int64, &spec(&after), 1).unwrap();
        let mut template = StateDict::new();
        again.template_into(&mut template, "emb", 0);
        if !order.is_identity() {
            template.insert("order", Permutation::template("emb", rows));
        }
        let [mut plain] = loaded(vec![template], &place).try_into().unwrap();
        again.restore_from(&mut plain, "emb", 0).unwrap();
        let kept = match plain.remove("order") {
            Some(rows) => Permutation::from_tensor(&rows.into_leaf().and_then(Value::into_tensor).unwrap()).unwrap(),
            None => Permutation::identity(rows).unwrap(),
        };
        prop_assert_eq!(&kept, &order);
        let ids: Vec<i64> = picks.iter().map(|i| i.index(rows as usize) as i64).collect();
        let want = embedding_lookup(&table, &ids, &LookupOptions::new()).unwrap();
        prop_assert_eq!(&embedding_lookup(&again, &ids, &LookupOptions::new().through(&kept)).unwrap(), &want);
        let undone = kept.undo(&again).unwrap();
        prop_assert_eq!(&embedding_lookup(&undone, &ids, &LookupOptions::new()).unwrap(), &want);
        prop_assert_eq!(undone.to_tensor().unwrap(), table.to_tensor().unwrap());
    }

    #[test]
    fn the_order_of_rows_is_undone_by_tasks_that_load_their_own_parts_only(
        (rows, width) in (0u64..20, 0u64..3), before in any::<[prop::sample::Index; 2]>(), after in any::<[prop::sample::Index; 3]>(),
        order in prop_oneof![(1u64..5).prop_map(Ok), prop::collection::vec(0u64..9, 0..20).prop_map(Err)], m in 1u32..4,
    ) {
        let spec = |places: &[prop::sample::Index]| PartitionSpec::Splits(vec![cut(rows, places), [width].into()]);
        let whole = whole(&[rows, width]);
        let table = ShardedVariable::create("emb", &[rows, width], DType::Int64, &spec(&before), 1, slices_of(&whole)).unwrap();
        let order = match order {
            Ok(parts) => Permutation::of_mod(rows, parts).unwrap(),
            Err(f) => Permutation::balanced(&f[..f.len().min(rows as usize)], &table.part_rows()).unwrap(),
        };
        let state = with(|s| order.apply(&table).unwrap().save_into(s, "emb", 0).unwrap());
        let place = saved(vec![state], Dialect::Dcp);

        let mut mine: Vec<ShardedVariable> = (0..m).map(|task| {
            ShardedVariable::declare("emb", &[rows, width], DType::Int64, &spec(&after), Tasks::only(m, task)).unwrap()
        }).collect();
        let templates = (0..).zip(&mut mine)
            .map(|(task, v)| with(|t| order.undo_template_into(v, t, "emb", task).unwrap()))
            .collect();
        for (task, mut plain) in (0..).zip(loaded(templates, &place)) {
            let v = &mut mine[task as usize];
            order.undo_restore_from(v, &mut plain, "emb", task).unwrap();
            for part in v.parts() {
                prop_assert_eq!(part.data().is_some(), part.task() == task);
                if let Some(data) = part.data() {
                    prop_assert_eq!(data, &whole.narrow(part.region()));
                }
            }
        }
    }

    #[test]
    fn a_table_trained_by_mod_is_read_from_its_checkpoint(rows in 1u64..20, n in 1u64..5, m in 1u64..5) {
        let spec = |parts: u64| PartitionSpec::partitions([parts, 1]);
        let trained = ShardedVariable::create("emb", &[rows, 1], DType::Int64, &spec(n), 1, slices_of(&whole(&[rows, 1]))).unwrap();
        let ids: Vec<i64> = (0..rows as i64).collect();
        let want = embedding_lookup(&trained, &ids, &LookupOptions::new().strategy(Order::Mod)).unwrap();
        let state = with(|state| trained.save_into(state, "emb", 0).unwrap());
        let place = saved(vec![state], Dialect::Megatron);
        let mut read = ShardedVariable::declare("emb", &[rows, 1], DType::Int64, &spec(m), 1).unwrap();
        let [mut plain] = loaded(vec![with(|t| read.template_into(t, "emb", 0))], &place).try_into().unwrap();
        read.restore_from(&mut plain, "emb", 0).unwrap();
        let order = Permutation::of_mod(rows, n).unwrap();
        prop_assert_eq!(&embedding_lookup(&read, &ids, &LookupOptions::new().through(&order)).unwrap(), &want);
        prop_assert_eq!(order.undo(&read).unwrap().to_tensor().unwrap(), want);
    }
}

#[test]
fn of_a_mirrored_variable_one_copy_is_stored_and_all_are_loaded() {
    let values = |shape: &[u64]| Ok(whole(shape));
    let copy =
        |task| Mirrored::create("bias", &[3], DType::Int64, Tasks::only(3, task), values).unwrap();
    let place = saved(
        (0..3)
            .map(|task| with(|s| copy(task).save_into(s, "bias", task).unwrap()))
            .collect(),
        Dialect::Dcp,
    );
    let opened = blocking::run(
        reshard::OpenOptions::new()
            .stores(stores())
            .open(place.url()),
    )
    .unwrap();
    assert_eq!(opened.tensor("bias").unwrap().chunks().len(), 1);
    let mut copies: Vec<Mirrored> = (0..4)
        .map(|t| Mirrored::declare("bias", &[3], DType::Int64, Tasks::only(4, t)).unwrap())
        .collect();
    let templates = (0..)
        .zip(&mut copies)
        .map(|(task, v)| with(|t| v.template_into(t, "bias", task)))
        .collect();
    for (task, mut plain) in (0..).zip(loaded(templates, &place)) {
        copies[task as usize]
            .restore_from(&mut plain, "bias", task)
            .unwrap();
        let copy = &copies[task as usize].parts()[task as usize];
        assert_eq!(copy.data(), Some(&whole(&[3])));
    }
}

#[test]
fn a_failed_load_gives_a_variable_its_memory_back() {
    let zeros = |_: &[u64], _: &[u64], shape: &[u64]| Tensor::zeros("emb", DType::Int64, shape);
    let spec = PartitionSpec::partitions([2]);
    let mut v = ShardedVariable::create("emb", &[4], DType::Int64, &spec, 1, zeros).unwrap();
    let memory = |v: &ShardedVariable| {
        v.parts()
            .iter()
            .map(|p| p.data().map(Tensor::buffer_id))
            .collect::<Vec<_>>()
    };
    let before = memory(&v);
    let mut state = StateDict::new();
    state.insert("w", ShardedTensor::full("other", whole(&[4])));
    let place = saved(vec![state], Dialect::Dcp);
    let template = with(|t| v.template_into(t, "emb", 0));
    let e = blocking::run(reshard::load(template, place.url()).stores(stores())).unwrap_err();
    let (_, mut template) = e.into_parts();
    v.reclaim_from(&mut template, "emb", 0).unwrap();
    assert_eq!(memory(&v), before);
    assert!(v.reclaim_from(&mut StateDict::new(), "emb", 0).is_err());
    assert_eq!(
        v.to_tensor()
            .unwrap()
            .narrow(&Region::new([0], [4]))
            .to_vec::<i64>()
            .unwrap(),
        [0; 4]
    );
}

/// An error, and why it came to it.
fn story(e: &dyn std::error::Error) -> String {
    std::iter::successors(Some(e), |e| e.source())
        .map(|e| e.to_string())
        .collect::<Vec<_>>()
        .join(": ")
}

/// TensorFlow 1 restores 13 rows into a variable of 12, which then has 13.
#[test]
fn a_table_of_another_length_or_type_is_not_loaded_whole_or_in_parts() {
    let mut state = StateDict::new();
    state.insert("w", ShardedTensor::full("emb", whole(&[13, 4])));
    let place = saved(vec![state], Dialect::Dcp);
    let refused = |rows: u64, dtype: DType, parts: u64, words: &[&str]| {
        let spec = PartitionSpec::partitions([parts, 1]);
        let mut v = ShardedVariable::declare("emb", &[rows, 4], dtype, &spec, 1).unwrap();
        let template = with(|t| v.template_into(t, "emb", 0));
        let e = blocking::run(reshard::load(template, place.url()).stores(stores())).unwrap_err();
        let story = story(&e);
        assert!(
            words.iter().all(|w| story.contains(w)),
            "{story} lacks one of {words:?}"
        );
    };
    for parts in [1, 5] {
        refused(12, DType::Int64, parts, &["emb", "[12, 4]", "[13, 4]"]);
        refused(14, DType::Int64, parts, &["emb", "[14, 4]", "[13, 4]"]);
        refused(13, DType::Int32, parts, &["emb", "int32", "int64"]);
    }
}

#[test]
fn a_lost_part_is_named_with_its_rows() {
    let spec = PartitionSpec::partitions([3, 1]);
    let make = |task| {
        let tasks = Tasks::only(3, task);
        ShardedVariable::create(
            "emb",
            &[6, 2],
            DType::Int64,
            &spec,
            tasks,
            slices_of(&whole(&[6, 2])),
        )
        .unwrap()
    };
    // Task 1 saves nothing of it.
    let states = [0, 2].map(|task| with(|s| make(task).save_into(s, "emb", task).unwrap()));
    let place = Place::new();
    let outcomes: Vec<_> = save(group(2), states.into(), place.url(), |_, s| s)
        .into_iter()
        .map(|o| o.unwrap_err())
        .collect();
    for e in &outcomes {
        let story = story(e);
        assert!(
            story.contains("emb") && story.contains("[2:4, 0:2]"),
            "{story}"
        );
    }
}

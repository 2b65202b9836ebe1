//! In every format a state dict that was saved loads again, whatever its keys are and however many pieces they have.

use futures::executor::block_on;
use proptest::prelude::*;
use reshard::{
    DType, Dialect, OpenOptions, ShardedTensor, StateDict, Tensor, Value, ValueTree,
    model::Payload,
    plan::{PlanError, SaveContext, SavePlan, SavePlanner},
    policy::partition::PartitionSpec,
};
use reshard_embedding::{PartitionedVariable, Tasks, slices_of};
use reshard_laws::{
    contents::{choices, contents},
    formats::{FORMATS, Format, format},
    law,
    place::stores,
    ranks::{group, load, save},
};
use reshard_model::{FlatStateDict, ShardedObject};

/// Keys that are no paths: with dots, the beginning of another key, a path of another leaf.
const KEYS: [&str; 6] = ["tensor-A", "t1.p0", "layers.0", "layers", "t0", "extra.t"];

const ELEMENTS: u64 = 6;

fn variable() -> Tensor {
    Tensor::from_vec(&[ELEMENTS, 2], (0..12i64).collect()).unwrap()
}

/// A variable in as many parts, of which task `rank` has some.
fn partitioned(parts: u64, tasks: Tasks, with_data: bool) -> PartitionedVariable {
    let rows = (0..parts).map(|part| reshard::model::local_chunk(ELEMENTS, parts, part).1);
    let spec = PartitionSpec::Splits(vec![rows.collect(), [2].into()]);
    let shape = [ELEMENTS, 2];
    match with_data {
        true => PartitionedVariable::create(
            "var/table",
            &shape,
            DType::Int64,
            &spec,
            tasks,
            slices_of(&variable()),
        ),
        false => PartitionedVariable::declare("var/table", &shape, DType::Int64, &spec, tasks),
    }
    .unwrap()
}

/// The same with an object whose key is not its path.
fn with_object(mut state: StateDict, objects: bool, template: bool) -> StateDict {
    state.remove("extra");
    if objects {
        let value = Value::Str("an object".into());
        let mut cell = ShardedObject::new("obj-key", value, &[1], &[0], 0).unwrap();
        if template {
            cell.data = Payload::None;
        }
        state.insert("obj", cell);
    }
    state
}

proptest! {
    #![proptest_config(law(60))]

    #[test]
    fn every_format_loads_the_keys_that_were_saved(
        format in format(), mut contents in contents(),
        n in 1u32..4, m in 1u32..4, parts in 1u64..4, mut choices in choices(),
        first in 0usize..6,
    ) {
        contents.objects = false;
        contents.extra = Value::Dict(Vec::new());
        for (i, t) in contents.tensors.iter_mut().enumerate() {
            t.dtype = Format::common_dtype(t.dtype);
            t.key = KEYS[(first + i) % KEYS.len()].into();
        }
        let place = format.place();
        let cut = contents.cut(n, &mut choices);
        let states = (0..n).map(|rank| {
            let state = contents.state(&cut, rank, &mut choices);
            let mut state = with_object(state, format.stores_objects, false);
            let tasks = Tasks::only(n, rank);
            partitioned(parts, tasks, true).save_into(&mut state, "emb", rank).unwrap();
            state
        });
        let saved = save(group(n), states.collect(), place.url(), move |_, save| {
            save.dialect(Dialect::Dcp).strategy(format.save_config())
        });
        saved.into_iter().for_each(|saved| drop(saved.unwrap()));

        let opened = block_on(OpenOptions::new().stores(stores()).open(place.url())).unwrap();
        let keys: Vec<&str> = opened.metadata().tensors().map(|t| t.key()).collect();
        let mut wanted: Vec<&str> = contents.tensors.iter().map(|t| &*t.key).collect();
        wanted.push("var/table");
        wanted.sort_unstable();
        prop_assert_eq!(keys, wanted);

        let cut = contents.cut(m, &mut choices);
        let (mut watches, mut variables) = (Vec::new(), Vec::new());
        let templates = (0..m).map(|rank| {
            let (template, watch) = contents.template(&cut, rank, n, Dialect::Dcp, &mut choices);
            watches.push(watch);
            let mut template = with_object(template, format.stores_objects, true);
            let mut variable = partitioned(2, Tasks::only(m, rank), false);
            variable.template_into(&mut template, "emb", rank);
            variables.push(variable);
            template
        });
        let templates = templates.collect();
        for (rank, outcome) in (0..).zip(load(group(m), templates, place.url(), |_, load| load)) {
            let (mut plain, _) = outcome.unwrap();
            let variable = &mut variables[rank as usize];
            variable.restore_from(&mut plain, "emb", rank).unwrap();
            for part in variable.parts().iter().filter(|part| part.task() == rank) {
                let want = variable_rows(part.region().offsets[0], part.region().lengths[0]);
                prop_assert_eq!(part.data().unwrap().to_vec::<i64>().unwrap(), want);
            }
            if format.stores_objects {
                let object = plain.remove("obj").and_then(ValueTree::into_leaf);
                prop_assert_eq!(object, Some(Value::Str("an object".into())));
            }
            plain.insert_tree("extra", ValueTree::new());
            contents.check(&cut, rank, n, &plain);
        }
        watches.iter().for_each(|w| w.check_filled());
    }
}

fn variable_rows(from: u64, len: u64) -> Vec<i64> {
    (from as i64 * 2..(from + len) as i64 * 2).collect()
}

/// A key that is the beginning of a path, the path of an empty dict, or that of a hole in a list: no leaf is lost, and the file can be read.
#[test]
fn keys_that_are_in_the_way_of_paths_are_all_stored() {
    for format in FORMATS {
        let tensor = |n: f32| Tensor::from_vec(&[1], vec![n]).unwrap();
        let leaf = |key: &str, n| ShardedTensor::full(key, tensor(n));
        let state = |of: &dyn Fn(&str, f32) -> ShardedTensor| {
            let mut model = StateDict::new();
            model.insert("w", of("model.w", 1.));
            let mut state = StateDict::new();
            state.insert_tree("model", model);
            state.insert("a", of("model", 2.));
            state.insert("b", of("empty", 3.));
            state.insert_tree("empty", StateDict::new());
            let list = [of("elsewhere", 6.), of("list.1", 4.)];
            let list = list.map(|leaf| StateDict::Leaf(leaf.into()));
            state.insert_tree("list", StateDict::List(list.into()));
            state.insert("c", of("list.0", 5.));
            state
        };
        let place = format.place();
        let saved = save(group(1), vec![state(&leaf)], place.url(), move |_, save| {
            save.dialect(Dialect::Dcp).strategy(format.save_config())
        });
        saved.into_iter().for_each(|saved| drop(saved.unwrap()));
        let template = |key: &str, _| ShardedTensor::template(key, DType::Float32, &[1]);
        let loaded = load(group(1), vec![state(&template)], place.url(), |_, load| {
            load
        });
        let (plain, _) = loaded.into_iter().next().unwrap().unwrap();
        let mut found = Vec::new();
        plain.visit(&mut |_, value| {
            found.extend(value.as_tensor().unwrap().to_vec::<f32>().unwrap())
        });
        found.sort_by(f32::total_cmp);
        assert_eq!(found, [1., 2., 3., 4., 5., 6.], "{format:?}");
    }
}

#[derive(Debug)]
struct Renaming;

impl SavePlanner for Renaming {
    fn create_local_plan(
        &self,
        state: &FlatStateDict,
        cx: &SaveContext<'_>,
    ) -> Result<SavePlan, PlanError> {
        let mut plan = self.base().create_local_plan(state, cx)?;
        for item in &mut plan.items {
            item.key = format!("foo_{}", item.key).into();
        }
        Ok(plan)
    }
}

#[test]
fn a_planner_renames_keys_in_every_format() {
    for format in FORMATS {
        let place = format.place();
        let mut inner = StateDict::new();
        let tensor = Tensor::from_vec(&[2], vec![1f32, 2.]).unwrap();
        inner.insert("w", ShardedTensor::full("model.w", tensor));
        let mut state = StateDict::new();
        state.insert_tree("model", inner);
        let saved = save(group(1), vec![state], place.url(), move |_, save| {
            let save = save.dialect(Dialect::Dcp).planner(Renaming);
            save.strategy(format.save_config())
        });
        saved.into_iter().for_each(|saved| drop(saved.unwrap()));
        let opened = block_on(OpenOptions::new().stores(stores()).open(place.url())).unwrap();
        let keys: Vec<&str> = opened.metadata().tensors().map(|t| t.key()).collect();
        assert_eq!(keys, ["foo_model.w"], "{format:?}");
    }
}

//! The order of all calls on two ranks: DCP's, as it was traced on PyTorch 2.15.
//!
//! ```text
//! PyTorch, save                                  here
//! writer.reset                                   writer.reset
//! writer.storage_meta                            writer.storage_meta
//! planner.set_up_planner                         planner.set_up
//! writer.set_up_storage_writer                   writer.set_up
//! planner.create_local_plan                      planner.create_local_plan
//! writer.prepare_local_plan                      writer.prepare_local_plan
//! -- gather; the coordinator:
//!   planner.create_global_plan                   planner.create_global_plan
//!   writer.prepare_global_plan                   writer.prepare_global_plan
//! -- scatter
//! planner.finish_plan                            planner.finish_plan
//! writer.write_data                              writer.layout
//!   planner.resolve_data, for each item            planner.lookup_object, planner.transform_object
//!   (bytes)                                      writer.bytes, on threads
//! -- gather; the coordinator:
//!   writer.finish                                writer.finish
//!
//! PyTorch, load                                  here
//! reader.read_metadata                           reader.open
//! reader.reset                                   reader.reset
//! planner.set_up_planner                         planner.set_up
//! reader.set_up_storage_reader                   reader.set_up
//! planner.create_local_plan                      planner.create_local_plan
//! reader.prepare_local_plan                      reader.prepare_local_plan
//! -- gather; the coordinator:
//!   planner.create_global_plan                   planner.create_global_plan
//!   reader.prepare_global_plan                   reader.prepare_global_plan
//! -- scatter
//! planner.finish_plan                            planner.finish_plan
//! reader.read_data                               planner.lookup_tensor, for each item; then reader.read_tensors
//!   planner.resolve_tensor, for each tensor        planner.transform_tensor, for those that go through memory
//!   planner.load_bytes, for each object          reader.read_objects; planner.load_object, reader.decode for each
//!   planner.commit_tensor                        planner.commit_tensor, for each item
//! ```
//!
//! Two differences are deliberate: a reader is reset when it is opened already, because opening is what makes it; and all items are
//! looked up before the first byte is read, so that reads of many items can be one.

use reshard::{
    DType, Rank, ShardedObject, ShardedTensor, StateDict, Tensor, Value,
    plan::{DefaultLoadPlanner, DefaultSavePlanner, Destination, LoadPlanner, PlanError, ReadItem},
    strategy::testkit::Observer,
    torch_dist::TorchDistLoadConfig,
};
use reshard_example::ExampleLoadConfig;
use reshard_laws::{
    observed::{tapped_load, tapped_save},
    place::Place,
    ranks::{group, load, save},
};
use std::sync::{Arc, Mutex};

type Calls = Arc<Mutex<Vec<&'static str>>>;

fn record() -> (Calls, Observer) {
    let calls = Calls::default();
    let heard = Arc::clone(&calls);
    let observer = Observer::new(move |hook| {
        heard.lock().unwrap().push(hook);
        Ok(())
    });
    (calls, observer)
}

/// Two tensors and an object a rank.
fn state(rank: u64, data: bool) -> StateDict {
    let mut state = StateDict::new();
    for key in ["a", "b"] {
        let t = ShardedTensor::declare(key, DType::Float32, &[2], &[(0, rank, 2)], 0).unwrap();
        let local = Tensor::from_vec(&[2], vec![rank as f32; 2]).unwrap();
        state.insert(key, if data { t.with_data(local) } else { t });
    }
    let mut rng = ShardedObject::new("rng", Value::Int(rank as i64), &[2], &[rank], 0).unwrap();
    if !data {
        rng.data = Default::default();
    }
    state.insert("rng", rng);
    state
}

/// `a` goes through memory.
#[derive(Debug)]
struct ByScratch;

impl LoadPlanner for ByScratch {
    fn base(&self) -> &dyn LoadPlanner {
        &DefaultLoadPlanner::DEFAULT
    }

    fn lookup_tensor(&self, item: &ReadItem) -> Result<Destination, PlanError> {
        Ok(if &*item.piece.key == "a" {
            Destination::Scratch
        } else {
            Destination::Leaf
        })
    }
}

#[test]
fn hooks_are_called_in_dcps_order() {
    for (coordinator, torch) in [(0usize, false), (1, true), (0, true), (1, false)] {
        let place = Place::new();
        let (calls, observers): (Vec<Calls>, Vec<Observer>) = (0..2).map(|_| record()).unzip();
        let states = (0..2).map(|r| state(r, true)).collect();
        let outcomes = save(group(2), states, place.url(), move |rank, save| {
            let observer = &observers[rank.index()];
            let planner = observer.on(DefaultSavePlanner::DEFAULT);
            save.strategy(tapped_save(observer, torch))
                .planner(planner)
                .coordinator(Rank(coordinator as u32))
        });
        outcomes.into_iter().for_each(|o| drop(o.unwrap()));
        for (rank, calls) in calls.iter().enumerate() {
            let resolved = ["planner.lookup_object", "planner.transform_object"];
            let mut want = vec![
                "writer.reset",
                "writer.storage_meta",
                "planner.set_up",
                "writer.set_up",
                "planner.create_local_plan",
                "writer.prepare_local_plan",
            ];
            if rank == coordinator {
                want.extend([
                    "planner.validate",
                    "planner.create_global_plan",
                    "writer.prepare_global_plan",
                ]);
            }
            want.extend(["planner.finish_plan", "writer.layout"]);
            want.extend([resolved; 3].concat());
            want.extend(["writer.bytes"; 3]);
            if rank == coordinator {
                want.push("writer.finish");
            }
            assert_eq!(
                *calls.lock().unwrap(),
                want,
                "rank {rank}, decided by {coordinator}"
            );
        }

        let (calls, observers): (Vec<Calls>, Vec<Observer>) = (0..2).map(|_| record()).unzip();
        let templates = (0..2).map(|r| state(r, false)).collect();
        let outcomes = load(group(2), templates, place.url(), move |rank, load| {
            let observer = &observers[rank.index()];
            let strategy = match torch {
                true => tapped_load(observer, TorchDistLoadConfig::default()),
                false => tapped_load(observer, ExampleLoadConfig::default()),
            };
            load.strategy(strategy)
                .planner(observer.on(ByScratch))
                .coordinator(Rank(coordinator as u32))
        });
        outcomes.into_iter().for_each(|o| drop(o.unwrap()));
        for (rank, calls) in calls.iter().enumerate() {
            let mut want = vec![
                "reader.open",
                "reader.reset",
                "planner.set_up",
                "reader.set_up",
                "planner.create_local_plan",
                "reader.prepare_local_plan",
            ];
            if rank == coordinator {
                want.extend(["planner.create_global_plan", "reader.prepare_global_plan"]);
            }
            want.push("planner.finish_plan");
            want.extend(["planner.lookup_tensor"; 2]);
            // What goes straight to its leaf first, then what goes through memory.
            want.extend([
                "reader.read_tensors",
                "reader.read_tensors",
                "planner.transform_tensor",
            ]);
            want.push("reader.read_objects");
            // A cell that is stored as a list has to be taken apart before a planner sees it.
            want.extend(match torch {
                true => ["reader.decode", "planner.load_object"],
                false => ["planner.load_object", "reader.decode"],
            });
            want.extend(["planner.commit_tensor"; 2]);
            assert_eq!(
                *calls.lock().unwrap(),
                want,
                "rank {rank}, decided by {coordinator}"
            );
        }
    }
}

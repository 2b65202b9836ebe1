use super::{
    Cut, Observer, Rank, check_sample, load_on_ranks, sample, sample_template, save_on_ranks,
};
use crate::{LoadShardedStrategy, OpenCx, Result, SaveShardedStrategy, StrategyError};
use reshard_model::{
    DType, Data, ErrorKind, FlatStateDict, Path, Region, Sharded, ShardedTensor, Tensor,
    testkit::Rule,
};
use reshard_plan::{
    DefaultLoadPlanner, DefaultSavePlanner, LoadContext, LoadPlanner, SaveContext, SavePlan,
    SavePlanner, WriteData, WriteKind,
};
use reshard_storage::{IfExists, Store, testkit::MemoryStore};
use std::sync::{Arc, Mutex};

type Calls = Arc<Mutex<Vec<&'static str>>>;

fn recorder() -> (Calls, Observer) {
    let calls = Calls::default();
    let heard = Arc::clone(&calls);
    (
        calls,
        Observer::new(move |hook| -> Result<(), _> {
            {
                heard.lock().unwrap().push(hook);
                Ok(())
            }
        }),
    )
}

/// The calls in order, each row of equal ones once.
fn order(calls: &Calls) -> Vec<&'static str> {
    let mut out = calls.lock().unwrap().clone();
    out.retain(|c| c.starts_with("planner."));
    out.dedup();
    out
}

/// Runs the rules of [`SavePlanner`] for planners that `make` makes, one a rank, over a format, which is given by the
/// configurations of its strategies: plans depend on nothing but their input, every item resolves to what it says, what is saved
/// loads again, each hook is called in its place, and a planner around this one changes nothing.
///
/// The planner must leave keys, element types and elements as they are.
///
/// # Panics
/// When a rule is broken. The text has the name of the rule, and the item whose documentation has it.
pub fn save_planner_contract<P: SavePlanner>(
    make: impl Fn() -> P,
    save: &(impl Clone + Into<SaveShardedStrategy>),
    load: &(impl Clone + Into<LoadShardedStrategy>),
) {
    let save: &SaveShardedStrategy = &save.clone().into();
    let load: &LoadShardedStrategy = &load.clone().into();
    rule("plans.depend_on_their_input_alone", "SavePlanner")
        .check(|| plans_depend_on_their_input_alone(&make));
    rule(
        "plans.items_resolve_to_what_they_say",
        "SavePlanner::lookup_object",
    )
    .check(|| items_resolve_to_what_they_say(&make));
    // A planner behind another one must see the same hooks in the same order.
    for wrapped in [false, true] {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        rule(
            "hooks.are_called_in_their_places",
            called(wrapped, "SavePlanner", "SavePlanner::base"),
        )
        .check(|| hooks_of_a_save(&make, wrapped, save, &store));
        rule("saves.load_in_another_split", "SavePlanner")
            .check(|| loads_in_another_split(load, &store));
    }
}

/// Where it is written which hooks are called: of a planner that is behind another one, and of one that is not.
fn called(wrapped: bool, alone: &'static str, base: &'static str) -> &'static str {
    if wrapped { base } else { alone }
}

fn rule(name: &'static str, written: &'static str) -> Rule {
    let of = "the planner";
    Rule { of, name, written }
}

/// Saves the sample on two ranks.
fn hooks_of_a_save<P: SavePlanner>(
    make: &impl Fn() -> P,
    wrapped: bool,
    save: &SaveShardedStrategy,
    store: &Arc<dyn Store>,
) {
    let mut heard = Vec::new();
    let ranks = (0..2).map(|r| {
        let (calls, observer) = recorder();
        heard.push(calls);
        let planner: Arc<dyn SavePlanner> = if wrapped {
            Arc::new(Around(observer.on(make())))
        } else {
            Arc::new(observer.on(make()))
        };
        Rank {
            strategy: save.clone().into(),
            planner,
            flat: sample(Cut::Rows, r, 2, false),
        }
    });
    let ranks = ranks.collect();
    save_on_ranks(store, IfExists::Refuse, ranks)
        .into_iter()
        .for_each(|o| drop(o.unwrap()));
    for (rank, calls) in heard.iter().enumerate() {
        let mut order = order(calls);
        // Items are resolved one by one.
        let mut resolved = order.split_off(
            order
                .iter()
                .position(|c| *c == "planner.lookup_object")
                .unwrap_or(order.len()),
        );
        resolved.dedup();
        let mut want = vec!["planner.set_up", "planner.create_local_plan"];
        if rank == 0 {
            if make().validates() {
                want.push("planner.validate");
            }
            want.push("planner.create_global_plan");
        }
        want.push("planner.finish_plan");
        assert_eq!(order, want, "rank {rank}");
        let turns = resolved
            .chunks(2)
            .all(|c| c == ["planner.lookup_object", "planner.transform_object"]);
        assert!(
            turns,
            "each item is looked up, then transformed: {resolved:?}"
        );
    }
}

/// What was saved must load again with the default planner, in another split.
fn loads_in_another_split(load: &LoadShardedStrategy, store: &Arc<dyn Store>) {
    let template = sample_template(Cut::Columns, 0, 1, None);
    let planner = Arc::new(DefaultLoadPlanner::DEFAULT);
    let rank = Rank {
        strategy: load.clone().into(),
        planner: planner as _,
        flat: template,
    };
    for loaded in load_on_ranks(store, vec![rank]) {
        check_sample(&loaded.map_err(|f| f.error).unwrap().state);
    }
}

fn plans_of(planner: &impl SavePlanner, ranks: u32) -> (Vec<FlatStateDict>, Vec<SavePlan>) {
    let mut flats: Vec<FlatStateDict> = (0..ranks)
        .map(|r| sample(Cut::Replicated, r, ranks, true))
        .collect();
    let local = flats.iter_mut().zip(0..).map(|(flat, r)| {
        let cx = SaveContext::new(r, r == 0);
        planner.set_up(flat, &cx).unwrap();
        planner.create_local_plan(flat, &cx).unwrap()
    });
    let local = local.collect();
    (flats, local)
}

fn plans_depend_on_their_input_alone<P: SavePlanner>(make: &impl Fn() -> P) {
    let [a, b] = [make(), make()];
    let ((_, one), (_, two)) = (plans_of(&a, 3), plans_of(&b, 3));
    assert_eq!(one, two);
    let (plans, metadata) = a.create_global_plan(one.clone()).unwrap();
    let again = b.create_global_plan(two).unwrap();
    assert_eq!((plans.len(), &plans), (3, &again.0), "one plan a rank");
    let keys =
        |m: &reshard_plan::Metadata| m.entries().map(|e| e.key().to_owned()).collect::<Vec<_>>();
    assert_eq!(keys(&metadata), keys(&again.1));
    for (mine, theirs) in plans.into_iter().zip(again.0) {
        assert_eq!(a.finish_plan(mine).unwrap(), b.finish_plan(theirs).unwrap());
    }
    assert!(
        a.create_global_plan(vec![SavePlan::default(); 3]).is_ok(),
        "there may be nothing to save"
    );
}

fn items_resolve_to_what_they_say<P: SavePlanner>(make: &impl Fn() -> P) {
    let planner = make();
    let (flats, local) = plans_of(&planner, 2);
    let (plans, _) = planner.create_global_plan(local).unwrap();
    for (flat, plan) in flats.iter().zip(plans) {
        for item in planner.finish_plan(plan).unwrap().items {
            let found = planner.lookup_object(&item, flat).unwrap();
            match (planner.transform_object(&item, found).unwrap(), &item.kind) {
                (WriteData::Tensor(Data::Host(t)), WriteKind::Tensor(w)) => {
                    assert_eq!(
                        (t.dtype(), t.nbytes()),
                        (w.dtype, w.bytes()),
                        "{}",
                        item.id()
                    );
                }
                (WriteData::Tensor(_), WriteKind::Tensor(_))
                | (WriteData::Object(_), WriteKind::Object { .. }) => {}
                (data, _) => panic!("{} resolves to {data:?}", item.id()),
            }
        }
    }
}

/// A planner that changes nothing: all goes through `base`.
#[derive(Debug)]
struct Around<P>(P);

impl<P: SavePlanner> SavePlanner for Around<P> {
    fn base(&self) -> &dyn SavePlanner {
        &self.0
    }
}

/// The same around a planner of loads.
#[derive(Debug)]
struct AroundLoad<P>(P);

impl<P: LoadPlanner> LoadPlanner for AroundLoad<P> {
    fn base(&self) -> &dyn LoadPlanner {
        &self.0
    }
}

/// Runs the rules of [`LoadPlanner`], as [`save_planner_contract`] does for [`SavePlanner`]. The planner must not allow partial
/// loads. Objects are loaded only if both strategies say that they can.
///
/// # Panics
/// When a rule is broken. The text has the name of the rule, and the item whose documentation has it.
pub fn load_planner_contract<P: LoadPlanner>(
    make: impl Fn() -> P,
    save: &(impl Clone + Into<SaveShardedStrategy>),
    load: &(impl Clone + Into<LoadShardedStrategy>),
) {
    let save: &SaveShardedStrategy = &save.clone().into();
    let load: &LoadShardedStrategy = &load.clone().into();
    // Objects are part of the test only if the format can both save and load them.
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let (saves, loads) = (save.clone(), load.clone());
    let objects = saves.can_handle_sharded_objects() && loads.can_handle_sharded_objects();
    let of = objects.then_some(2);
    let ranks = (0..2).map(|r| Rank {
        strategy: save.clone().into(),
        planner: Arc::new(DefaultSavePlanner::DEFAULT) as Arc<dyn SavePlanner>,
        flat: sample(Cut::Rows, r, 2, objects),
    });
    save_on_ranks(&store, IfExists::Refuse, ranks.collect())
        .into_iter()
        .for_each(|o| drop(o.unwrap()));

    // A planner behind another one must see the same hooks in the same order.
    for wrapped in [false, true] {
        rule(
            "hooks.are_called_in_their_places",
            called(wrapped, "LoadPlanner", "LoadPlanner::base"),
        )
        .check(|| hooks_of_a_load(&make, wrapped, load, &store, of));
    }
    rule("plans.depend_on_their_input_alone", "LoadPlanner")
        .check(|| read_plans_depend_on_their_input_alone(&make, &store, load, of));
    rule(
        "loads.a_missing_key_is_an_error",
        "LoadPlanner::create_local_plan",
    )
    .check(|| what_is_missing_is_an_error(&make, &store, load));
}

/// Loads the sample on three ranks.
fn hooks_of_a_load<P: LoadPlanner>(
    make: &impl Fn() -> P,
    wrapped: bool,
    load: &LoadShardedStrategy,
    store: &Arc<dyn Store>,
    objects_of: Option<u32>,
) {
    let mut heard = Vec::new();
    let ranks = (0..3).map(|r| {
        let (calls, observer) = recorder();
        heard.push(calls);
        let planner: Arc<dyn LoadPlanner> = if wrapped {
            Arc::new(AroundLoad(observer.on(make())))
        } else {
            Arc::new(observer.on(make()))
        };
        Rank {
            strategy: load.clone().into(),
            planner,
            flat: sample_template(Cut::Columns, r, 3, objects_of),
        }
    });
    let ranks = ranks.collect();
    for loaded in load_on_ranks(store, ranks) {
        check_sample(&loaded.map_err(|f| f.error).unwrap().state);
    }
    for (rank, calls) in heard.iter().enumerate() {
        let order = order(calls);

        // The order before the plan is finished is fixed. Behind that the hooks follow the items, whose order is
        // the format's.
        let plan = order
            .iter()
            .position(|c| *c == "planner.finish_plan")
            .unwrap_or(0);
        let mut want = vec!["planner.set_up", "planner.create_local_plan"];
        if rank == 0 {
            want.push("planner.create_global_plan");
        }
        assert_eq!(order[..plan], want, "rank {rank}");
        assert_eq!(
            order.last(),
            Some(&"planner.commit_tensor"),
            "what is loaded is committed, last"
        );
        assert_eq!(
            order.contains(&"planner.load_object"),
            objects_of.is_some(),
            "{order:?}"
        );
        assert!(order.contains(&"planner.lookup_tensor"), "{order:?}");
    }
}

fn read_plans_depend_on_their_input_alone<P: LoadPlanner>(
    make: &impl Fn() -> P,
    store: &Arc<dyn Store>,
    load: &LoadShardedStrategy,
    objects_of: Option<u32>,
) {
    let reader =
        futures_executor::block_on(load.clone().open(&OpenCx::new(Arc::clone(store)))).unwrap();
    let plan = || {
        let planner = make();
        let cx = LoadContext::new(reader.metadata(), 0, true);
        let mut flat = sample_template(Cut::Columns, 0, 2, objects_of);
        planner.set_up(&mut flat, &cx).unwrap();
        let local = planner.create_local_plan(&flat, &cx).unwrap();
        let global = planner.create_global_plan(vec![local; 2], &cx).unwrap();
        assert_eq!(global.len(), 2, "one plan a rank");
        for item in global.iter().flat_map(|p| &p.items) {
            assert_eq!(
                item.dest_region.lengths, item.stored_region.lengths,
                "{}",
                item.piece
            );
        }
        global
            .into_iter()
            .map(|p| planner.finish_plan(p).unwrap())
            .collect::<Vec<_>>()
    };
    assert_eq!(plan(), plan());
}

fn what_is_missing_is_an_error<P: LoadPlanner>(
    make: &impl Fn() -> P,
    store: &Arc<dyn Store>,
    load: &LoadShardedStrategy,
) {
    let leaf = ShardedTensor::region_of("nowhere", DType::Int8, &[2], Region::whole(&[2]))
        .with_data(Tensor::from_vec(&[2], vec![5i8; 2]).unwrap());
    let flat: FlatStateDict = [(Path(vec!["nowhere".into()]), Sharded::Tensor(leaf))].into();
    let rank = Rank {
        strategy: load.clone().into(),
        planner: Arc::new(make()) as Arc<dyn LoadPlanner>,
        flat,
    };
    for outcome in load_on_ranks(store, vec![rank]) {
        let failure = outcome.map(drop).unwrap_err();
        assert_eq!(
            StrategyError::kind(&failure.error),
            ErrorKind::NotFound,
            "{}",
            failure.error
        );
        let Sharded::Tensor(t) = &failure.template[0] else {
            panic!("the template changed")
        };
        assert_eq!(t.data.host().unwrap().to_vec::<i8>().unwrap(), [5, 5]);
    }
}

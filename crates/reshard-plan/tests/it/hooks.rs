//! A hook that is not overridden is that of the base, and the defaults do what they say.

use crate::cuts::{flat, leaf, objects, stored};
use reshard_model::{DType, FlatStateDict, Payload, Region, ShardedTensor, Tensor, Value};
use reshard_plan::{Result, *};
use std::sync::{Arc, Mutex};

/// Notes the names of its hooks.
#[derive(Clone, Debug, Default)]
struct Noted(Arc<Mutex<Vec<&'static str>>>);

/// Overrides nothing.
#[derive(Debug)]
struct Over(Noted);

impl Noted {
    fn note(&self, hook: &'static str) {
        self.0.lock().unwrap().push(hook);
    }

    fn take(&self) -> Vec<&'static str> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

/// What can't come from anywhere else.
fn mark<T>(note: &Noted, hook: &'static str) -> Result<T> {
    note.note(hook);
    Err(PlanError::planner(hook))
}

#[deny(clippy::missing_trait_methods)]
impl SavePlanner for Noted {
    fn name(&self) -> &'static str {
        std::any::type_name::<Self>()
    }

    fn base(&self) -> &dyn SavePlanner {
        self
    }
    fn plan_settings(&self) -> Option<String> {
        Some("noted".into())
    }
    fn with_offer(&self, _: Offer) -> Option<Arc<dyn SavePlanner>> {
        Some(Arc::new(self.clone()))
    }
    fn set_up(&self, _: &mut FlatStateDict, _: &SaveContext<'_>) -> Result<()> {
        mark(self, "set_up")
    }
    fn create_local_plan(&self, _: &FlatStateDict, _: &SaveContext<'_>) -> Result<SavePlan> {
        mark(self, "create_local_plan")
    }
    fn validates(&self) -> bool {
        true
    }
    fn validate(&self, _: &[Arc<Declared>]) -> Result<()> {
        mark(self, "validate")
    }
    fn create_global_plan(&self, _: Vec<SavePlan>) -> Result<(Vec<SavePlan>, Metadata)> {
        mark(self, "create_global_plan")
    }
    fn finish_plan(&self, _: SavePlan) -> Result<SavePlan> {
        mark(self, "finish_plan")
    }
    fn lookup_object(&self, _: &WriteItem, _: &FlatStateDict) -> Result<WriteData> {
        mark(self, "lookup_object")
    }
    fn transform_object(&self, _: &WriteItem, _: WriteData) -> Result<WriteData> {
        mark(self, "transform_object")
    }
}

impl SavePlanner for Over {
    fn base(&self) -> &dyn SavePlanner {
        &self.0
    }
}

#[deny(clippy::missing_trait_methods)]
impl LoadPlanner for Noted {
    fn name(&self) -> &'static str {
        std::any::type_name::<Self>()
    }

    fn base(&self) -> &dyn LoadPlanner {
        self
    }
    fn plan_settings(&self) -> Option<String> {
        Some("noted".into())
    }
    fn set_up(&self, _: &mut FlatStateDict, _: &LoadContext<'_>) -> Result<()> {
        mark(self, "set_up")
    }
    fn create_local_plan(&self, _: &FlatStateDict, _: &LoadContext<'_>) -> Result<LoadPlan> {
        mark(self, "create_local_plan")
    }
    fn create_global_plan(&self, _: Vec<LoadPlan>, _: &LoadContext<'_>) -> Result<Vec<LoadPlan>> {
        mark(self, "create_global_plan")
    }
    fn finish_plan(&self, _: LoadPlan) -> Result<LoadPlan> {
        mark(self, "finish_plan")
    }
    fn load_object(&self, _: &ReadItem, _: Payload) -> Result<Payload> {
        mark(self, "load_object")
    }
    fn lookup_tensor(&self, _: &ReadItem) -> Result<Destination> {
        mark(self, "lookup_tensor")
    }
    fn transform_tensor(&self, _: &ReadItem, _: Tensor) -> Result<Tensor> {
        mark(self, "transform_tensor")
    }
    fn commit_tensor(&self, _: &ReadItem, _: &ShardedTensor) -> Result<()> {
        mark(self, "commit_tensor")
    }
}

impl LoadPlanner for Over {
    fn base(&self) -> &dyn LoadPlanner {
        &self.0
    }
}

fn state() -> FlatStateDict {
    flat([leaf("w", &[2], Region::whole(&[2]))])
}

fn said<T>(outcome: Result<T>) -> String {
    outcome.err().expect("the base was not asked").to_string()
}

#[test]
fn hooks_of_a_save_that_are_not_overridden_are_those_of_the_base() {
    let (noted, cx) = (Noted::default(), SaveContext::new(0, true));
    let planner: &dyn SavePlanner = &Over(noted.clone());
    let item = DefaultSavePlanner::DEFAULT
        .create_local_plan(&state(), &cx)
        .unwrap()
        .items
        .remove(0);
    let data = DefaultSavePlanner::DEFAULT
        .lookup_object(&item, &state())
        .unwrap();
    let errors = [
        said(planner.set_up(&mut state(), &cx)),
        said(planner.create_local_plan(&state(), &cx)),
        said(planner.validate(&[])),
        said(planner.create_global_plan(Vec::new())),
        said(planner.finish_plan(SavePlan::default())),
        said(planner.lookup_object(&item, &state())),
        said(planner.transform_object(&item, data)),
    ];
    let hooks = noted.take();
    assert_eq!(
        (hooks.len(), hooks[0], hooks[6]),
        (7, "set_up", "transform_object")
    );
    // What is made of a planner would lose what is around it.
    assert!(noted.with_offer(Offer::AllReplicas).is_some());
    assert!(planner.with_offer(Offer::AllReplicas).is_none());
    assert!(planner.validates() && DefaultSavePlanner::DEFAULT.validates());
    let without = [
        DefaultSavePlanner::DCP,
        DefaultSavePlanner::DEFAULT.with_allow_holes(true),
    ];
    assert!(without.iter().all(|planner| !planner.validates()));
    assert!(
        errors.iter().zip(hooks).all(|(e, hook)| e.contains(hook)),
        "{errors:?}"
    );
}

#[test]
fn hooks_of_a_load_that_are_not_overridden_are_those_of_the_base() {
    let (noted, metadata) = (Noted::default(), stored(&[state()]));
    let (planner, cx): (&dyn LoadPlanner, _) =
        (&Over(noted.clone()), LoadContext::new(&metadata, 0, true));
    let item = DefaultLoadPlanner::DEFAULT
        .create_local_plan(&state(), &cx)
        .unwrap()
        .items
        .remove(0);
    let tensor = Tensor::from_vec(&[2], vec![1f32, 2.]).unwrap();
    let errors = [
        said(planner.set_up(&mut state(), &cx)),
        said(planner.create_local_plan(&state(), &cx)),
        said(planner.create_global_plan(Vec::new(), &cx)),
        said(planner.finish_plan(LoadPlan::default())),
        said(planner.load_object(&item, Payload::None)),
        said(planner.lookup_tensor(&item)),
        said(planner.transform_tensor(&item, tensor)),
        said(planner.commit_tensor(&item, &ShardedTensor::template("k", DType::Float32, &[1]))),
    ];
    let hooks = noted.take();
    assert_eq!(
        (hooks.len(), hooks[0], hooks[7]),
        (8, "set_up", "commit_tensor")
    );
    assert!(
        errors.iter().zip(hooks).all(|(e, hook)| e.contains(hook)),
        "{errors:?}"
    );
}

#[test]
fn the_defaults_hand_plans_and_objects_on_as_they_are() {
    let saves: &dyn SavePlanner = &DefaultSavePlanner::DEFAULT;
    let (ranks, cx) = ([state(), objects(&["o"])], SaveContext::new(0, true));
    let local = |state| saves.create_local_plan(state, &cx).unwrap();
    let plan = local(&ranks[0]);
    assert_eq!(saves.finish_plan(plan.clone()).unwrap().items.len(), 1);
    let (plans, metadata) = saves
        .create_global_plan(vec![plan, local(&ranks[1])])
        .unwrap();
    assert_eq!(
        plans.iter().map(|p| p.items.len()).collect::<Vec<_>>(),
        [1, 1]
    );

    let loads: &dyn LoadPlanner = &DefaultLoadPlanner::DEFAULT;
    let cx = LoadContext::new(&metadata, 0, true);
    let plans: Vec<LoadPlan> = ranks
        .iter()
        .map(|state| loads.create_local_plan(state, &cx).unwrap())
        .collect();
    let items = |plans: &[LoadPlan]| plans.iter().map(|p| p.items.len()).collect::<Vec<_>>();
    assert_eq!(items(&plans), [1, 1]);
    let plans = loads.create_global_plan(plans, &cx).unwrap();
    assert_eq!(items(&plans), [1, 1]);
    let finished = loads.finish_plan(plans[0].clone()).unwrap();
    assert_eq!(finished.items.len(), 1);
    let seven = || Payload::Value(Value::Int(7));
    assert_eq!(
        loads.load_object(&plans[1].items[0], seven()).unwrap(),
        seven()
    );
}

#[test]
fn a_context_says_who_asks_and_what_the_format_said() {
    let said = Value::Int(3);
    let cx = SaveContext::new(5, true).with_storage_meta(Some(&said));
    assert_eq!(
        (cx.rank, cx.is_coordinator, cx.storage_meta),
        (5, true, Some(&said))
    );
}

#[test]
fn a_builder_finds_its_tensors_and_shows_what_it_has() {
    let mut b = Metadata::builder();
    let ids = ["a", "b"].map(|key| {
        b.add_tensor(key, DType::Int8, &[2], Default::default())
            .unwrap()
    });
    b.add_object("o").unwrap();
    b.add_chunk(ids[1], &Region::whole(&[2])).unwrap();
    assert_eq!(
        ["a", "b", "o", "c"].map(|key| b.tensor(key)),
        [Some(ids[0]), Some(ids[1]), None, None]
    );
    assert_eq!(
        format!("{b:?}"),
        "MetadataBuilder { tensors: 2, chunks: 1, objects: 1, .. }"
    );
}

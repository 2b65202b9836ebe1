//! The state of a parameter may be cut in another way than the parameter, as with ZeRO-1. And a call that fails changes nothing.

use super::toy::on_ranks;
use proptest::prelude::*;
use reshard::{
    DType, Region, ShardedTensor, StateDict, Tensor, Value, ValueTree,
    model::{Leaf, local_chunk},
};
use reshard_optim::{
    ModelState, OptimError, OptimizerState, ParamGroup, ParamId, Parameter, StateDictOptions,
    get_state_dict, set_model_state_dict, set_optimizer_state_dict, set_state_dict,
};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

const SHAPE: [u64; 2] = [6, 4];

/// How a tensor lies on ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Cut {
    /// A plain tensor on each rank.
    Unsharded,
    /// A sharded tensor that is whole on each rank.
    Replicas,
    Rows,
    Columns,
    /// A range of the elements.
    Flattened,
}

fn cut() -> impl Strategy<Value = Cut> {
    let all = &[
        Cut::Unsharded,
        Cut::Replicas,
        Cut::Rows,
        Cut::Columns,
        Cut::Flattened,
    ];
    prop::sample::select(&all[..])
}

/// A number for each element, so that each part of each tensor differs.
fn whole(salt: f32) -> Tensor {
    Tensor::from_vec(&SHAPE, (0..24).map(|n| salt + n as f32).collect()).unwrap()
}

#[derive(Clone, Debug)]
struct Held {
    cut: Cut,
    place: (u64, u64),
    local: Tensor,
}

impl Held {
    fn new(cut: Cut, place: (u64, u64), whole: &Tensor) -> Self {
        let of = |leaf: Option<ShardedTensor>| match leaf {
            None => whole.clone(),
            Some(t) => match t.flattened_range {
                None => whole.narrow(&t.region()),
                Some(range) => {
                    let elements = whole.to_vec::<f32>().unwrap();
                    let own = elements[range.start as usize..range.end as usize].to_vec();
                    Tensor::from_vec(&[own.len() as u64], own).unwrap()
                }
            },
        };
        let local = of(declared(cut, place));
        Self { cut, place, local }
    }

    fn leaf(&self) -> Leaf {
        match declared(self.cut, self.place) {
            None => Leaf::Value(self.local.clone().into()),
            Some(t) => Leaf::Tensor(t.with_data(self.local.clone())),
        }
    }

    fn take(&mut self, value: Value) -> Result<(), BoxError> {
        let tensor = value.into_tensor().ok_or("no tensor")?;
        if tensor.shape() != self.local.shape() {
            let (got, has) = (tensor.shape(), self.local.shape());
            return Err(format!("got {got}, and has {has}").into());
        }
        self.local = tensor;
        Ok(())
    }

    fn numbers(&self) -> Vec<f32> {
        self.local.to_vec().unwrap()
    }
}

fn declared(cut: Cut, (rank, ranks): (u64, u64)) -> Option<ShardedTensor> {
    let chunk = |n| local_chunk(n, ranks, rank);
    let mut region = Region::whole(&SHAPE);
    match cut {
        Cut::Unsharded => return None,
        Cut::Replicas | Cut::Flattened => {}
        Cut::Rows => (region.offsets[0], region.lengths[0]) = chunk(SHAPE[0]),
        Cut::Columns => (region.offsets[1], region.lengths[1]) = chunk(SHAPE[1]),
    }
    let mut t = ShardedTensor::region_of("any", DType::Float32, &SHAPE, region);
    if cut == Cut::Replicas {
        t = t.with_replica_id(rank as u32);
    }
    if cut == Cut::Flattened {
        let (from, len) = chunk(24);
        t.flattened_range = Some(from..from + len);
    }
    Some(t)
}

#[derive(Clone, Debug)]
struct Model {
    weight: Held,
    other: Held,
    /// The name that it refuses.
    refuses: Option<&'static str>,
}

impl ModelState for Model {
    fn parameters(&self) -> Vec<Parameter> {
        let param = |name: &str, id, held: &Held| Parameter {
            name: name.into(),
            id: ParamId(id),
            requires_grad: true,
            data: held.leaf(),
        };
        vec![
            param("net.w", 0, &self.weight),
            param("net.v", 1, &self.other),
        ]
    }

    fn load(&mut self, name: &str, value: Value) -> Result<(), BoxError> {
        if self.refuses == Some(name) {
            self.refuses = None;
            return Err("a fault".into());
        }
        match name {
            "net.w" => self.weight.take(value),
            _ => self.other.take(value),
        }
    }
}

#[derive(Clone, Debug)]
struct Optimizer {
    moments: [Held; 2],
    lr: f64,
    refuses_state: Option<u64>,
    refuses_group: bool,
    /// It has not taken a step, and declares nothing.
    is_new: bool,
}

impl OptimizerState for Optimizer {
    fn param_groups(&self) -> Vec<ParamGroup> {
        vec![ParamGroup {
            params: vec![ParamId(0), ParamId(1)],
            options: vec![("lr".into(), Value::Float(self.lr))],
        }]
    }

    fn state(&self, param: ParamId) -> Vec<(Box<str>, Leaf)> {
        match self.is_new {
            true => Vec::new(),
            false => vec![("exp_avg".into(), self.moments[param.0 as usize].leaf())],
        }
    }

    fn load_group(&mut self, _: usize, options: Vec<(Box<str>, Value)>) -> Result<(), BoxError> {
        if std::mem::take(&mut self.refuses_group) {
            return Err("a fault".into());
        }
        for (name, value) in options {
            if let ("lr", Value::Float(lr)) = (&*name, value) {
                self.lr = lr;
            }
        }
        Ok(())
    }

    fn load_state(
        &mut self,
        param: ParamId,
        state: Vec<(Box<str>, Value)>,
    ) -> Result<(), BoxError> {
        if self.refuses_state == Some(param.0) {
            self.refuses_state = None;
            return Err("a fault".into());
        }
        for (_, value) in state {
            self.moments[param.0 as usize].take(value)?;
        }
        Ok(())
    }
}

/// The model and optimizer of a rank: parameters cut in one way, and their state in others.
fn job(cuts: [Cut; 4], place: (u64, u64), salt: f32) -> (Model, Optimizer) {
    let held = |n: usize| Held::new(cuts[n], place, &whole(salt + 100. * n as f32));
    let model = Model {
        weight: held(0),
        other: held(1),
        refuses: None,
    };
    let optimizer = Optimizer {
        moments: [held(2), held(3)],
        lr: f64::from(salt),
        refuses_state: None,
        refuses_group: false,
        is_new: false,
    };
    (model, optimizer)
}

fn numbers(model: &Model, optimizer: &Optimizer) -> Vec<Vec<f32>> {
    let [a, b] = &optimizer.moments;
    let lr = vec![optimizer.lr as f32];
    vec![
        model.weight.numbers(),
        model.other.numbers(),
        a.numbers(),
        b.numbers(),
        lr,
    ]
}

/// What was got, as values.
fn plain(state: StateDict) -> ValueTree {
    state.map(&mut |leaf| match leaf {
        Leaf::Value(value) => value,
        Leaf::Tensor(t) => Value::Tensor(t.data.host().unwrap().clone()),
        other => panic!("{other:?}"),
    })
}

proptest! {
    #![proptest_config(reshard_model::testkit::law(64))]

    #[test]
    fn what_was_got_can_be_set_however_parameters_and_their_state_are_cut(
        ranks in 1u32..4, cuts in prop::array::uniform4(cut()), new in prop::array::uniform4(cut()),
        full: bool, from_coordinator: bool, flat: bool,
    ) {
        // Parts of ranks have no other place.
        let new = if full { new } else { cuts };
        on_ranks(ranks, async |rank, comm| {
            let place = (rank, ranks.into());
            let options = StateDictOptions {
                full_state_dict: full,
                cpu_offload: full && from_coordinator,
                broadcast_from_rank0: full && from_coordinator,
                flatten_optimizer_state_dict: flat,
                comm,
                ..StateDictOptions::default()
            };
            let (model, optimizer) = job(cuts, place, 1.);
            let got = get_state_dict(&model, &[&optimizer], &options).await.unwrap();
            // The whole dict of another job, which cuts everything in its own way.
            let (mut model, mut optimizer) = job(new, place, 5000.);
            let (of_model, of_optimizer) = (plain(got.model), plain(got.optim));
            set_state_dict(&mut model, &mut [&mut optimizer], of_model, of_optimizer, &options).await.unwrap();
            let (model_then, optimizer_then) = job(new, place, 1.);
            assert_eq!(numbers(&model, &optimizer), numbers(&model_then, &optimizer_then));
        });
    }

    #[test]
    fn a_call_that_fails_leaves_everything_as_it_was(
        ranks in 1u32..4, cuts in prop::array::uniform4(cut()), from_coordinator: bool, fault in 0usize..7, faulty in 0u64..3,
    ) {
        on_ranks(ranks, async |rank, comm| {
            let place = (rank, ranks.into());
            // Without a broadcast ranks do not know of each other's failures.
            let is_faulty = !from_coordinator || rank == faulty % u64::from(ranks);
            let options = StateDictOptions {
                full_state_dict: true,
                cpu_offload: from_coordinator,
                broadcast_from_rank0: from_coordinator,
                comm,
                ..StateDictOptions::default()
            };
            let (mut model, mut optimizer) = job(cuts, place, 1.);
            let got = get_state_dict(&model, &[&optimizer], &options).await.unwrap();
            let (mut of_model, mut of_optimizer) = (plain(got.model), plain(got.optim));
            (model, optimizer) = job(cuts, place, 5000.);
            let is_coordinators = rank == 0 || !from_coordinator;
            match fault {
                0 if is_faulty => model.refuses = Some("net.w"),
                1 if is_faulty => model.refuses = Some("net.v"),
                2 | 3 if is_faulty => optimizer.refuses_state = Some(fault as u64 - 2),
                4 if is_faulty => optimizer.refuses_group = true,
                5 if is_coordinators => drop(of_model.remove("net.v")),
                6 if is_coordinators => drop(of_optimizer.remove("state")),
                _ => {}
            }
            let before = numbers(&model, &optimizer);
            let set = set_state_dict(&mut model, &mut [&mut optimizer], of_model, of_optimizer, &options).await;
            assert!(set.is_err());
            assert_eq!(numbers(&model, &optimizer), before, "{:?}", set);
        });
    }
}

#[test]
fn state_that_an_optimizer_does_not_declare_is_whole_or_an_error() {
    for (param, is_whole) in [
        (Cut::Unsharded, true),
        (Cut::Replicas, true),
        (Cut::Rows, false),
        (Cut::Flattened, false),
    ] {
        for from_coordinator in [false, true] {
            let cuts = [param, param, Cut::Unsharded, Cut::Unsharded];
            on_ranks(2, async |rank, comm| {
                let options = StateDictOptions {
                    full_state_dict: true,
                    cpu_offload: from_coordinator,
                    broadcast_from_rank0: from_coordinator,
                    comm,
                    ..StateDictOptions::default()
                };
                let stepped = [param, param, Cut::Columns, Cut::Columns];
                let (model, optimizer) = job(stepped, (rank, 2), 1.);
                let got = get_state_dict(&model, &[&optimizer], &options)
                    .await
                    .unwrap();
                let (model, mut optimizer) = job(cuts, (rank, 2), 5000.);
                optimizer.is_new = true;
                let set = set_optimizer_state_dict(
                    &model,
                    &mut [&mut optimizer],
                    plain(got.optim),
                    &options,
                )
                .await;
                match is_whole {
                    true => {
                        set.unwrap();
                        assert_eq!(
                            optimizer.moments[0].numbers(),
                            whole(201.).to_vec::<f32>().unwrap()
                        );
                    }
                    false => {
                        let e = set.unwrap_err().to_string();
                        assert!(e.contains("does not declare this state"), "{e}");
                        assert_eq!(
                            optimizer.moments[0].numbers(),
                            whole(5200.).to_vec::<f32>().unwrap()
                        );
                    }
                }
            });
        }
    }
}

/// A model that takes a value once, and never again.
struct Stubborn(Model, bool);

impl ModelState for Stubborn {
    fn parameters(&self) -> Vec<Parameter> {
        self.0.parameters()
    }

    fn load(&mut self, name: &str, value: Value) -> Result<(), BoxError> {
        if std::mem::replace(&mut self.1, true) {
            return Err("not twice".into());
        }
        self.0.load(name, value)
    }
}

#[test]
fn values_that_are_not_taken_back_are_named() {
    let (model, _) = job([Cut::Unsharded; 4], (0, 1), 1.);
    let mut stubborn = Stubborn(model, false);
    let mut state = ValueTree::new();
    for name in ["net.w", "net.v"] {
        state.insert(name, whole(7.));
    }
    let options = StateDictOptions::default();
    let set = futures::executor::block_on(set_model_state_dict(&mut stubborn, state, &options));
    let Err(OptimError::NotRestored { names, source }) = set else {
        panic!("{set:?}")
    };
    assert_eq!(names, ["net.v", "net.w"]);
    assert!(matches!(*source, OptimError::Load { .. }));
}

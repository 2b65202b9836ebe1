//! A model and an optimizer that keep what they are given.

use futures::{executor::block_on, future::join_all};
use reshard::{DType, LocalGroup, Region, ShardedTensor, Tensor, Value, model::Leaf};
use reshard_comm::Comm;
use reshard_optim::{ModelState, OptimizerState, ParamGroup, ParamId, Parameter};
use std::collections::BTreeMap;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A tensor of which this rank has some rows.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) name: String,
    pub(super) id: u64,
    pub(super) trained: bool,
    pub(super) shape: Vec<u64>,
    pub(super) dtype: DType,
    /// This rank's rows; `None` if it has all of a plain tensor.
    pub(super) rows: Option<(u64, u64)>,
    pub(super) local: Tensor,
}

impl Held {
    /// Zeros, whole.
    pub(super) fn zeros(name: &str, id: u64, dtype: DType, shape: &[u64]) -> Self {
        Self {
            name: name.into(),
            id,
            trained: true,
            shape: shape.into(),
            dtype,
            rows: None,
            local: Tensor::zeros(name, dtype, shape).unwrap(),
        }
    }

    /// The rows of a rank, as `torch.chunk` cuts them.
    pub(super) fn of_rank(mut self, rank: u64, ranks: u64) -> Self {
        let rows = self.shape[0];
        let each = rows.div_ceil(ranks);
        let from = (rank * each).min(rows);
        let to = (from + each).min(rows);
        self.rows = Some((from, to - from));
        self.local = self.local.narrow(&self.region());
        self
    }

    pub(super) fn region(&self) -> Region {
        let mut region = Region::whole(&self.shape);
        if let Some((from, rows)) = self.rows {
            (region.offsets[0], region.lengths[0]) = (from, rows);
        }
        region
    }

    fn leaf(&self) -> Leaf {
        match self.rows {
            None => Leaf::Value(self.local.clone().into()),
            Some(_) => {
                let key = format!("any key of {}", self.name);
                let t = ShardedTensor::region_of(&key, self.dtype, &self.shape, self.region());
                Leaf::Tensor(t.with_data(self.local.clone()))
            }
        }
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct ToyModel {
    pub(super) prefix: String,
    pub(super) params: Vec<Held>,
    pub(super) buffers: Vec<Held>,
}

impl ModelState for ToyModel {
    fn parameters(&self) -> Vec<Parameter> {
        let param = |p: &Held| Parameter {
            name: format!("{}{}", self.prefix, p.name),
            id: ParamId(p.id),
            requires_grad: p.trained,
            data: p.leaf(),
        };
        self.params.iter().map(param).collect()
    }

    fn buffers(&self) -> Vec<(String, Leaf)> {
        let named = |b: &Held| (format!("{}{}", self.prefix, b.name), b.leaf());
        self.buffers.iter().map(named).collect()
    }

    fn load(&mut self, name: &str, value: Value) -> Result<(), BoxError> {
        let name = name.strip_prefix(&*self.prefix).ok_or("not my name")?;
        let mut all = self.params.iter_mut().chain(&mut self.buffers);
        let held = all.find(|h| h.name == name).ok_or("no such name")?;
        let tensor = value.into_tensor().ok_or("no tensor")?;
        if tensor.shape() != held.local.shape() {
            let (got, has) = (tensor.shape(), held.local.shape());
            return Err(format!("got {got}, and has {has}").into());
        }
        held.local = tensor;
        Ok(())
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct ToyOptimizer {
    pub(super) groups: Vec<ParamGroup>,
    pub(super) state: BTreeMap<u64, Vec<(Box<str>, Value)>>,
}

impl ToyOptimizer {
    /// Adam before its first step.
    pub(super) fn of(model: &ToyModel, groups: &[&[u64]]) -> Self {
        let group = |ids: &&[u64]| ParamGroup {
            params: ids.iter().map(|id| ParamId(*id)).collect(),
            options: vec![("lr".into(), Value::Float(0.))],
        };
        let state = model.params.iter().map(|p| {
            let zeros = || Value::Tensor(Tensor::zeros("", p.dtype, p.local.shape()).unwrap());
            let step = Tensor::zeros("", DType::Float32, &[]).unwrap();
            let entries = [
                ("step", step.into()),
                ("exp_avg", zeros()),
                ("exp_avg_sq", zeros()),
            ];
            (p.id, entries.map(|(n, v)| (n.into(), v)).into())
        });
        Self {
            groups: groups.iter().map(group).collect(),
            state: state.collect(),
        }
    }
}

impl OptimizerState for ToyOptimizer {
    fn param_groups(&self) -> Vec<ParamGroup> {
        self.groups.clone()
    }

    fn state(&self, param: ParamId) -> Vec<(Box<str>, Leaf)> {
        let state = self.state.get(&param.0).into_iter().flatten();
        state
            .map(|(n, v)| (n.clone(), Leaf::Value(v.clone())))
            .collect()
    }

    fn load_group(
        &mut self,
        index: usize,
        options: Vec<(Box<str>, Value)>,
    ) -> Result<(), BoxError> {
        self.groups[index].options = options;
        Ok(())
    }

    fn load_state(
        &mut self,
        param: ParamId,
        state: Vec<(Box<str>, Value)>,
    ) -> Result<(), BoxError> {
        self.state.insert(param.0, state);
        Ok(())
    }
}

/// What each of some ranks makes of its number and the way to the others.
pub(super) fn on_ranks<T>(ranks: u32, each: impl AsyncFn(u64, Comm<'_>) -> T) -> Vec<T> {
    let groups = LocalGroup::new(ranks);
    let each = &each;
    block_on(join_all(groups.iter().enumerate().map(
        |(rank, group)| async move { each(rank as u64, Comm::new(group)).await },
    )))
}

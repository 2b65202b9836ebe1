//! Finds the plain tensors of a state dict: those that no leaf declares as a piece of a global tensor.

use super::{Parts, Slot};
use crate::{Construct, Data, Path, Payload, Sharded, Step, Tree, Value, ValueTree};

/// A tensor that is not declared as a piece of a global tensor. A checkpoint holds it once, so it should be the same on all
/// ranks.
#[derive(Clone, Debug)]
pub struct PlainTensor {
    /// In [`Dialect::Megatron`](crate::Dialect::Megatron) its path in common state. In [`Dialect::Dcp`](crate::Dialect::Dcp)
    /// the key of the item that holds it, with more steps if it is inside an object.
    pub path: Path,
    /// Its elements: [`Data::Host`] or [`Data::Device`].
    pub data: Data,
}

impl Parts {
    /// All plain tensors, including those inside lists, tuples and objects, as handles on the caller's buffers.
    pub fn plain_tensors(&self) -> Vec<PlainTensor> {
        let mut found = Found {
            out: Vec::new(),
            path: Vec::new(),
        };
        let is_value = |slot: &Slot| matches!(slot, Slot::Value);
        let mut item = |path: &[Step], slot: &Slot| {
            let leaf = is_value(slot).then(|| self.flat.get(&Path::from(path)));
            let Some(leaf) = leaf.flatten() else { return };
            found.path.push(leaf.key().into());
            match leaf {
                Sharded::Tensor(t) => found.add(t.data.clone()),
                Sharded::Object(o) => {
                    if let Payload::Value(v) = &o.data {
                        found.value(v);
                    }
                }
            }
            found.path.pop();
        };
        if self.skeleton.slots.any(&is_value) {
            self.skeleton.slots.visit(&mut item);
        }
        found.tree(&self.common);
        found.out
    }
}

struct Found {
    out: Vec<PlainTensor>,
    path: Vec<Step>,
}

impl Found {
    fn add(&mut self, data: Data) {
        self.out.push(PlainTensor {
            path: Path(self.path.clone()),
            data,
        });
    }

    fn below(&mut self, step: Step, look: impl FnOnce(&mut Self)) {
        self.path.push(step);
        look(self);
        self.path.pop();
    }

    fn tree(&mut self, tree: &ValueTree) {
        match tree {
            Tree::Leaf(v) => self.value(v),
            Tree::Dict(d) => d
                .iter()
                .for_each(|(k, v)| self.below(k.clone(), |f| f.tree(v))),
            Tree::List(v) => (0..)
                .zip(v)
                .for_each(|(i, v)| self.below(Step::Index(i), |f| f.tree(v))),
        }
    }

    fn value(&mut self, value: &Value) {
        match value {
            Value::Tensor(t) => self.add(t.clone().into()),
            Value::Device(t) => self.add(t.clone().into()),
            Value::List(v) | Value::Tuple(v) | Value::Set(v) => self.values(v),
            Value::Dict(d) => self.pairs(d),
            Value::Opaque(o) => {
                match &o.construct {
                    Construct::Global => {}
                    Construct::Reduce(args) | Construct::NewObj(args) => {
                        self.below("args".into(), |f| f.values(args));
                    }
                    Construct::NewObjEx(args, kwargs) => {
                        self.below("args".into(), |f| f.values(args));
                        self.below("kwargs".into(), |f| f.pairs(kwargs));
                    }
                }
                if let Some(state) = &o.state {
                    self.below("state".into(), |f| f.value(state));
                }
                self.below("items".into(), |f| f.values(&o.items));
                self.below("pairs".into(), |f| f.pairs(&o.pairs));
            }
            Value::None
            | Value::Bool(_)
            | Value::Int(_)
            | Value::BigInt(_)
            | Value::Float(_)
            | Value::Str(_)
            | Value::Bytes(_)
            | Value::Local(_) => {}
        }
    }

    fn values(&mut self, values: &[Value]) {
        (0..)
            .zip(values)
            .for_each(|(i, v)| self.below(Step::Index(i), |f| f.value(v)));
    }

    fn pairs(&mut self, pairs: &[(Value, Value)]) {
        for (key, value) in pairs {
            let step = match key {
                Value::Str(s) => Step::Key(s.clone()),
                Value::Int(i @ 0..) => Step::Index(i.unsigned_abs()),
                other => format!("{other:?}").into(),
            };
            self.below(step, |f| f.value(value));
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{
        Construct, DType, DeviceTensor, Dialect, Leaf, LocalNonpersistent, Opaque, ShardedTensor,
        StateDict, Tensor, Tree, Value, ValueTree, split, testkit::FakeDevice,
    };

    fn tensor(n: u8) -> Value {
        Value::Tensor(Tensor::from_vec(&[1], vec![n]).unwrap())
    }

    /// Paths of the plain tensors and their one element.
    fn found(state: StateDict, dialect: Dialect) -> Vec<(String, u8)> {
        let plain = split(state, dialect).unwrap().plain_tensors();
        let one = |t: &super::PlainTensor| t.data.host().map_or(0, |t| t.to_bytes()[0]);
        plain.iter().map(|t| (t.path.to_string(), one(t))).collect()
    }

    fn state() -> StateDict {
        let mut state = StateDict::new();
        state.insert(
            "declared",
            ShardedTensor::full("declared", Tensor::from_vec(&[1], vec![9u8]).unwrap()),
        );
        state.insert("w", tensor(1));
        let list = ValueTree::List(vec![Tree::Leaf(tensor(2)), Tree::Leaf(tensor(3))]);
        state.insert_tree("list", list.map(&mut Leaf::Value));
        state.insert("tuple", Value::Tuple(vec![1.into(), tensor(4)]));
        state.insert(
            "value",
            Value::Dict(vec![(Value::Int(7), tensor(5)), (Value::Int(-1), 0.into())]),
        );
        state.insert("local", LocalNonpersistent::new(1));
        state.insert("step", 7);
        state
    }

    #[test]
    fn plain_tensors_are_found_in_containers_under_the_same_names_in_both_dialects() {
        let want: Vec<(String, u8)> = [
            ("w", 1),
            ("list.0", 2),
            ("list.1", 3),
            ("tuple.1", 4),
            ("value.7", 5),
        ]
        .map(|(p, n)| (p.into(), n))
        .into();
        for dialect in [Dialect::Megatron, Dialect::Dcp] {
            assert_eq!(found(state(), dialect), want, "{dialect:?}");
        }
    }

    #[test]
    fn plain_tensors_are_found_in_every_part_of_an_object_and_on_devices() {
        let object = Opaque {
            module: "m".into(),
            name: "C".into(),
            construct: Construct::NewObjEx(vec![tensor(1)], vec![("k".into(), tensor(2))]),
            state: Some(Value::Dict(vec![("w".into(), tensor(3))])),
            items: vec![Value::Set(vec![tensor(4)])],
            pairs: vec![(Value::Tuple(vec![]), tensor(5))],
        };
        let mut state = StateDict::new();
        state.insert("o", Value::Opaque(Box::new(object)));
        let device = DeviceTensor::new(DType::UInt8, &[1], FakeDevice::new(1)).unwrap();
        state.insert("d", Value::Device(device));
        let want: Vec<(String, u8)> = [
            ("o.args.0", 1),
            ("o.kwargs.k", 2),
            ("o.state.w", 3),
            ("o.items.0.0", 4),
            ("o.pairs.Tuple([])", 5),
            ("d", 0),
        ]
        .map(|(p, n)| (p.into(), n))
        .into();
        assert_eq!(found(state, Dialect::Dcp), want);
    }
}

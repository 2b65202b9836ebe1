//! Values on their way into a model and its optimizers: all are taken, or none.

use super::{GROUPS, ModelState, OptimizerState, STATE};
use crate::{OptimError, ParamId, Result};
use reshard_model::{BoxError, Data, Leaf, Payload, Value};
use std::collections::BTreeSet;

/// The values that a call loads. Everything that can be refused without the model's or an optimizer's own check has been.
#[derive(Debug, Default)]
pub(super) struct Changes {
    /// The model's name, the canonical name, and the value.
    pub(super) model: Vec<(String, String, Value)>,
    /// The optimizer, the parameter, its canonical name, and its state.
    pub(super) states: Vec<(usize, ParamId, String, Named)>,
    /// The optimizer, the number of the group, and its options.
    pub(super) groups: Vec<(usize, usize, Named)>,
}

/// Values by name.
type Named = Vec<(Box<str>, Value)>;

/// The values before a call.
#[derive(Default)]
pub(super) struct Before {
    model: Vec<(String, Value)>,
    states: Vec<(usize, ParamId, Named)>,
    groups: Vec<(usize, usize, Named)>,
}

impl Changes {
    /// Loads all values. `before` gets what they replace, also if the load fails.
    pub(super) fn load(
        self,
        mut model: Option<&mut (dyn ModelState + '_)>,
        optimizers: &mut [&mut dyn OptimizerState],
        before: &mut Before,
    ) -> Result<()> {
        if let Some(model) = &mut model {
            before.of_model(&**model, &self.model)?;
            for (own, fqn, value) in self.model {
                model.load(&own, value).map_err(failed(fqn))?;
            }
        }
        for (at, id, fqn, state) in self.states {
            let optimizer = &mut optimizers[at];
            let name = format!("{STATE}.{fqn}");
            let old = values(optimizer.state(id), &name)?;
            before.states.push((at, id, old));
            optimizer.load_state(id, state).map_err(failed(name))?;
        }
        for (at, index, options) in self.groups {
            let optimizer = &mut optimizers[at];
            let old = optimizer.param_groups().into_iter().nth(index);
            let old = old.map_or_else(Vec::new, |group| group.options);
            before.groups.push((at, index, old));
            let name = format!("{GROUPS}.{index}");
            optimizer.load_group(index, options).map_err(failed(name))?;
        }
        Ok(())
    }
}

impl Before {
    fn of_model(
        &mut self,
        model: &dyn ModelState,
        changes: &[(String, String, Value)],
    ) -> Result<()> {
        let names: BTreeSet<&str> = changes.iter().map(|(own, ..)| &**own).collect();
        let params = model.parameters().into_iter().map(|p| (p.name, p.data));
        for (name, leaf) in params.chain(model.buffers()) {
            if !names.contains(&*name) {
                continue;
            }
            if let Some(value) = value(leaf, &name)? {
                self.model.push((name, value));
            }
        }
        Ok(())
    }

    /// Loads the values before the call again, and returns the error of the call. Values that don't go back are named.
    pub(super) fn restore(
        self,
        error: OptimError,
        model: Option<&mut (dyn ModelState + '_)>,
        optimizers: &mut [&mut dyn OptimizerState],
    ) -> OptimError {
        let mut lost = Vec::new();
        let mut note = |name: String, outcome: std::result::Result<(), BoxError>| {
            if outcome.is_err() {
                lost.push(name);
            }
        };
        // Backwards, so that of two changes of one value the older one counts.
        for (at, index, options) in self.groups.into_iter().rev() {
            let restored = optimizers[at].load_group(index, options);
            note(format!("{GROUPS}.{index}"), restored);
        }
        for (at, id, state) in self.states.into_iter().rev() {
            let restored = optimizers[at].load_state(id, state);
            note(format!("{STATE} of parameter {id}"), restored);
        }
        if let Some(model) = model {
            for (name, value) in self.model.into_iter().rev() {
                let restored = model.load(&name, value);
                note(name, restored);
            }
        }
        match lost.is_empty() {
            true => error,
            false => OptimError::NotRestored {
                names: lost,
                source: Box::new(error),
            },
        }
    }
}

fn failed(name: String) -> impl FnOnce(BoxError) -> OptimError {
    move |source| OptimError::Load { name, source }
}

fn values(state: Vec<(Box<str>, Leaf)>, of: &str) -> Result<Named> {
    let mut out = Vec::new();
    for (name, leaf) in state {
        if let Some(value) = value(leaf, &format!("{of}.{name}"))? {
            out.push((name, value));
        }
    }
    Ok(out)
}

/// The value of a leaf, as a load gives it: tensors of devices are copied, because the load may write into their memory. `None` for a
/// template.
fn value(leaf: Leaf, name: &str) -> Result<Option<Value>> {
    let data = match leaf {
        Leaf::Value(Value::Device(t)) => Data::Device(t),
        Leaf::Value(value) => return Ok(Some(value)),
        Leaf::Object(o) => {
            return Ok(match o.data {
                Payload::Value(value) => Some(value),
                Payload::None | Payload::Encoded { .. } => None,
            });
        }
        Leaf::Local(_) => return Ok(None),
        Leaf::Tensor(t) => t.data,
        Leaf::Factory(f) => f.data,
    };
    Ok(data.to_host(name)?.map(Value::Tensor))
}

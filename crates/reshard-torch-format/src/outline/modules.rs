//! Pickled modules of torch: which of their attributes `state_dict()` would return.

use super::containers::{Mapping, is_tensor};
use crate::pickle::{Graph, Id, Node};
use std::collections::{BTreeMap, BTreeSet};

/// How an [`Outline`](super::Outline) shows the modules that a file contains.
///
/// ```
/// use reshard_torch_format::{Modules, ScriptClasses};
/// let code = "class Linear(Module):\n  __parameters__ = [\"weight\", ]\n  __buffers__ = []\n  weight : Tensor\n";
/// let mut classes = ScriptClasses::default();
/// classes.add("__torch__.torch.nn", code);
/// let modules = Modules::default().with_open(true).with_script(Some(classes));
/// ```
#[derive(Clone, Debug, Default, derive_setters::Setters)]
#[setters(prefix = "with_")]
#[non_exhaustive]
pub struct Modules {
    /// Whether a module is taken apart into the tensors of its `state_dict()`. If not, it is one object.
    pub open: bool,
    /// The classes of a TorchScript archive, whose modules say in their code which attributes are parameters and buffers.
    pub script: Option<ScriptClasses>,
}

/// The modules that the code of a TorchScript archive declares. The code is not executed.
#[derive(Clone, Debug, Default)]
pub struct ScriptClasses(BTreeMap<Box<str>, ScriptClass>);

#[derive(Clone, Debug, Default)]
struct ScriptClass {
    parameters: BTreeSet<Box<str>>,
    /// Releases before 1.6 don't write them: each tensor that is no parameter is one.
    buffers: Option<BTreeSet<Box<str>>>,
}

impl ScriptClasses {
    /// Adds the classes that the code of a module declares, by the name of that module, such as `__torch__.torch.nn.modules.linear`.
    pub fn add(&mut self, module: &str, code: &str) {
        let mut class: Option<(Box<str>, ScriptClass)> = None;
        for line in code.lines() {
            // A declaration ends where the next one begins.
            if !line.starts_with([' ', '\t']) && !line.is_empty() {
                self.0.extend(class.take());
                let name = line.strip_prefix("class ");
                let name = name.and_then(|line| line.strip_suffix("(Module):"));
                class =
                    name.map(|name| (format!("{module}.{name}").into(), ScriptClass::default()));
                continue;
            }
            let Some((_, class)) = &mut class else {
                continue;
            };
            match line.trim_start().split_once(" = ") {
                Some(("__parameters__", list)) => class.parameters = texts(list),
                Some(("__buffers__", list)) => class.buffers = Some(texts(list)),
                _ => {}
            }
        }
        self.0.extend(class);
    }

    fn get(&self, module: &str, name: &str) -> Option<&ScriptClass> {
        self.0.get(&*format!("{module}.{name}"))
    }
}

/// The texts of a list such as `["weight", "bias", ]`.
fn texts(list: &str) -> BTreeSet<Box<str>> {
    let (mut out, mut open) = (BTreeSet::new(), None::<String>);
    let mut chars = list.chars();
    while let Some(c) = chars.next() {
        match (&mut open, c) {
            (None, '"') => open = Some(String::new()),
            (None, _) => {}
            (Some(_), '"') => out.extend(open.take().map(String::into_boxed_str)),
            (Some(text), '\\') => text.extend(chars.next()),
            (Some(text), c) => text.push(c),
        }
    }
    out
}

/// A module of a file.
#[derive(Clone, Copy)]
pub(super) struct Module<'g> {
    /// Module and name of its class.
    pub(super) class: (&'g str, &'g str),
    pub(super) parts: Parts<'g>,
}

/// Where the parts of a module are.
#[derive(Clone, Copy)]
pub(super) enum Parts<'g> {
    /// In dicts among its attributes, as in Python.
    Dicts {
        parameters: Id,
        buffers: Option<Id>,
        modules: Id,
        /// The names of buffers that `state_dict()` leaves out.
        hidden: Option<Id>,
        /// Hooks that may change what `state_dict()` returns.
        hooks: bool,
    },
    /// Among its attributes, as in TorchScript.
    Script(&'g [(Id, Id)], &'g str, &'g str),
}

/// A part of a module.
#[derive(Clone, Copy)]
pub(super) struct ModulePart<'g> {
    pub(super) name: &'g str,
    pub(super) value: Id,
    pub(super) is_module: bool,
}

impl<'g> Module<'g> {
    /// Reads a node as a module.
    pub(super) fn of(graph: &'g Graph<'_>, id: Id, modules: &Modules) -> Option<Self> {
        let Node::Call(call) = graph.node(id) else {
            return None;
        };
        let Node::Dict(state) = graph.node(call.state?) else {
            return None;
        };
        let class = match (graph.as_global(call.callable)?, graph.as_seq(call.args)?) {
            // Protocols 0 and 1.
            (("copyreg", "_reconstructor"), [class, ..]) => graph.as_global(*class)?,
            (class, _) => class,
        };
        if let Some(script) = &modules.script {
            script.get(class.0, class.1)?;
            let parts = Parts::Script(state, class.0, class.1);
            return Some(Self { class, parts });
        }
        let mut found: [Option<Id>; 6] = [None; 6];
        for &(key, value) in state {
            let at = match graph.as_str(key) {
                Some("_parameters") => 0,
                Some("_buffers") => 1,
                Some("_modules") => 2,
                Some("_non_persistent_buffers_set") => 3,
                Some("_state_dict_hooks") => 4,
                Some("_state_dict_pre_hooks") => 5,
                _ => continue,
            };
            if let Some(place) = found.get_mut(at) {
                *place = Some(value);
            }
        }
        let [parameters, buffers, modules, hidden, hooks, pre_hooks] = found;
        let has_items = |id: Id| Mapping::of(graph, id).is_none_or(|dict| !dict.pairs.is_empty());
        let parts = Parts::Dicts {
            parameters: parameters.filter(|id| Mapping::of(graph, *id).is_some())?,
            buffers,
            modules: modules.filter(|id| Mapping::of(graph, *id).is_some())?,
            hidden,
            hooks: [hooks, pre_hooks].into_iter().flatten().any(has_items),
        };
        Some(Self { class, parts })
    }

    /// What `state_dict()` would look at, in its order: parameters, buffers, and the modules inside. `None` if a name is no text.
    pub(super) fn parts(
        &self,
        graph: &'g Graph<'_>,
        script: Option<&ScriptClasses>,
    ) -> Option<Vec<ModulePart<'g>>> {
        match self.parts {
            Parts::Dicts {
                parameters,
                buffers,
                modules,
                hidden,
                ..
            } => {
                let hidden = hidden.map_or_else(BTreeSet::new, |set| set_of_texts(graph, set));
                let mut out = items(graph, Some(parameters), false)?;
                let buffers = items(graph, buffers, false)?.into_iter();
                out.extend(buffers.filter(|part| !hidden.contains(part.name)));
                out.extend(items(graph, Some(modules), true)?);
                Some(out)
            }
            Parts::Script(state, module, name) => {
                let class = script?.get(module, name)?;
                let (mut out, mut buffers, mut modules) = (Vec::new(), Vec::new(), Vec::new());
                for &(key, value) in state {
                    let name = graph.as_str(key)?;
                    let is_call = matches!(graph.node(value), Node::Call(_));
                    let part = ModulePart {
                        name,
                        value,
                        is_module: false,
                    };
                    match &class.buffers {
                        _ if !is_call => {}
                        _ if class.parameters.contains(name) => out.push(part),
                        Some(all) if all.contains(name) => buffers.push(part),
                        None if is_tensor(graph, value) => buffers.push(part),
                        _ if is_script_object(graph, value, script) => modules.push(ModulePart {
                            is_module: true,
                            ..part
                        }),
                        _ => {}
                    }
                }
                out.extend(buffers);
                out.extend(modules);
                Some(out)
            }
        }
    }
}

/// Whether an attribute is an object of a class that the code declares as a module.
fn is_script_object(graph: &Graph<'_>, id: Id, script: Option<&ScriptClasses>) -> bool {
    let Node::Call(call) = graph.node(id) else {
        return false;
    };
    let class = graph.as_global(call.callable).zip(script);
    class.is_some_and(|((module, name), script)| script.get(module, name).is_some())
}

/// The items of a dict of a module that are not `None`, each key once with its last value.
fn items<'g>(graph: &'g Graph<'_>, id: Option<Id>, is_module: bool) -> Option<Vec<ModulePart<'g>>> {
    let Some(id) = id else {
        return Some(Vec::new());
    };
    let mut out: indexmap::IndexMap<&str, Id> = indexmap::IndexMap::new();
    for &(key, value) in &*Mapping::of(graph, id)?.pairs {
        out.insert(graph.as_str(key)?, value);
    }
    let out = out
        .into_iter()
        .filter(|(_, value)| *graph.node(*value) != Node::None);
    let out = out.map(|(name, value)| ModulePart {
        name,
        value,
        is_module,
    });
    Some(out.collect())
}

/// The texts of a set, which protocols before 4 make from a list.
fn set_of_texts<'g>(graph: &'g Graph<'_>, id: Id) -> BTreeSet<&'g str> {
    let items = match graph.node(id) {
        Node::Set(items) => items,
        Node::Call(call) => match graph.as_seq(call.args) {
            Some([items]) => {
                return graph
                    .as_seq(*items)
                    .map_or_else(BTreeSet::new, |items| texts_of(graph, items));
            }
            _ => return BTreeSet::new(),
        },
        _ => return BTreeSet::new(),
    };
    texts_of(graph, items)
}

fn texts_of<'g>(graph: &'g Graph<'_>, items: &[Id]) -> BTreeSet<&'g str> {
    items.iter().filter_map(|id| graph.as_str(*id)).collect()
}

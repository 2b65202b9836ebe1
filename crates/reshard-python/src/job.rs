//! Saves and loads of all ranks, planned by reshard, for `reshard.torch.save` and `load`.

use crate::{
    error::{Raise as _, exception_of_kind, own},
    group::{Group, seconds},
    state::{Node, State, state},
    value::tree_to_python,
    version::durability,
    wait::{tell, wait},
};
use pyo3::prelude::*;
use reshard::{
    AsyncSaver, Cast, Dialect, ProcessGroup, Registry, Save, SaveHandle, SingleProcess,
    StrictHandling,
    policy::ShardingPolicy,
    strategy::{SaveShardedStrategy, StrategyError},
};
use std::{
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};

/// The options of a save.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct Saving {
    /// Names of a format, or its settings as JSON.
    format: Option<String>,
    dialect: String,
    policy: Option<String>,
    overwrite: bool,
    durable: bool,
    check_replicas: bool,
    coordinators_plain_tensors: bool,
    integrity: bool,
    deadline: f64,
    /// Called with the bytes that were written since its last call.
    progress: Option<Py<PyAny>>,
    /// The step, and how many of the newest checkpoints stay: the place has one folder for each step then.
    step: Option<u64>,
    keep: Option<u64>,
}

/// The options of a load.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct Loading {
    strict: bool,
    cast: String,
    verify: bool,
    deadline: f64,
    progress: Option<Py<PyAny>>,
}

/// Settings of a save that are read before it is begun.
struct Settings {
    strategy: SaveShardedStrategy,
    policy: Option<Box<dyn ShardingPolicy>>,
    dialect: Dialect,
    how: Saving,
}

impl Settings {
    fn of(py: Python<'_>, how: Saving) -> PyResult<Self> {
        let registry = Registry::linked().raised(py)?;
        let strategy = strategy(&registry, how.format.as_deref()).raised(py)?;
        let policy = how.policy.as_deref().map(serde_json::from_str).transpose();
        let policy = policy.map_err(|e| own(py, "MismatchError", &format!("policy: {e}")))?;
        let dialect = match &*how.dialect {
            "pytorch" => Dialect::Dcp,
            "megatron" => Dialect::Megatron,
            "tensors" => Dialect::TensorsOnly,
            other => {
                let text =
                    format!("dialect is {other:?}; give \"pytorch\", \"megatron\" or \"tensors\"");
                return Err(own(py, "MismatchError", &text));
            }
        };
        Ok(Self {
            strategy,
            policy,
            dialect,
            how,
        })
    }

    fn set<'a>(self, save: Save<'a>, group: &'a dyn ProcessGroup) -> Save<'a> {
        let Self {
            strategy,
            policy,
            dialect,
            how,
        } = self;
        let mut save = save
            .strategy(strategy)
            .dialect(dialect)
            .group(group)
            .deadline(seconds(how.deadline))
            .overwrite(how.overwrite)
            .durability(durability(how.durable))
            .check_replicas(how.check_replicas)
            .coordinators_plain_tensors(how.coordinators_plain_tensors)
            .integrity(how.integrity);
        if let Some(policy) = policy {
            save = save.boxed_policy(policy);
        }
        if let Some(call) = how.progress {
            save = save.progress(move |bytes| tell(&call, (bytes,)));
        }
        save
    }
}

fn strategy(
    registry: &Registry,
    format: Option<&str>,
) -> Result<SaveShardedStrategy, StrategyError> {
    match format {
        None => registry.save_sharded(&registry.default_of(reshard::strategy::Action::SaveSharded)),
        Some(json) if json.starts_with('{') => {
            let json =
                serde_json::from_str(json).map_err(|e| StrategyError::Invalid(e.to_string()))?;
            SaveShardedStrategy::from_json(json, registry)
        }
        Some(name) => registry.save_sharded(&registry.named_save(name)?),
    }
}

fn group_of(group: Option<&Group>) -> &dyn ProcessGroup {
    match group {
        Some(group) => &**group.ranks(),
        None => &SingleProcess,
    }
}

/// Saves the state of all ranks. Returns what the save did, in one line.
#[pyfunction]
#[pyo3(signature = (place, node, how, group))]
pub(crate) fn save(
    py: Python<'_>,
    place: PathBuf,
    node: Node,
    how: Saving,
    group: Option<&Group>,
) -> PyResult<String> {
    let State { state, .. } = state(py, node)?;
    let (step, keep) = (how.step, how.keep);
    let settings = Settings::of(py, how)?;
    let ranks = group_of(group);
    let Some(step) = step else {
        let save = settings.set(reshard::save(&state, &place), ranks);
        let report = wait(py, async move { save.await })?.raised(py)?;
        return Ok(report.to_string());
    };
    let saver = reshard_manager::Saver::new(&place);
    let saver = match keep {
        Some(keep) => saver.keep(keep),
        None => saver,
    };
    let saved = {
        let save = saver.save(step, &state, |save| settings.set(save, ranks));
        wait(py, save)?
    };
    let saved = saved.map_err(|e| exception_of_kind(py, e.kind(), &e))?;
    Ok(saved.to_string())
}

/// Loads into the memory that a template describes. Returns the values of its leaves that are no tensors, in the order of the template.
#[pyfunction]
#[pyo3(signature = (place, node, how, group))]
pub(crate) fn load<'py>(
    py: Python<'py>,
    place: PathBuf,
    node: Node,
    how: Loading,
    group: Option<&Group>,
) -> PyResult<Vec<Option<Bound<'py, PyAny>>>> {
    let State { state, values } = state(py, node)?;
    let cast: Cast = serde_json::from_value(how.cast.clone().into())
        .map_err(|e| own(py, "MismatchError", &format!("cast: {e}")))?;
    let strict = match how.strict {
        true => StrictHandling::AssumeOkUnexpected,
        false => StrictHandling::LogUnexpected,
    };
    let mut load = reshard::load(state, &place)
        .group(group_of(group))
        .deadline(seconds(how.deadline))
        .verify(how.verify)
        .strict(strict)
        .cast(cast);
    if let Some(call) = how.progress {
        load = load.progress(move |now| tell(&call, (now.sum, now.total)));
    }
    let loaded = wait(py, async move { load.await })?;
    let loaded = loaded.map_err(reshard::Error::from).raised(py)?;
    let value = |path: &reshard::model::Path| match loaded.at(&path.0) {
        Some(found) => Ok(Some(tree_to_python(py, found)?)),
        None => Ok(None),
    };
    values.iter().map(value).collect()
}

/// Saves in the background.
#[pyclass(frozen, module = "reshard._reshard")]
pub(crate) struct Saver(Mutex<Option<AsyncSaver>>);

/// A save in the background.
#[pyclass(frozen, module = "reshard._reshard")]
pub(crate) struct Pending(Mutex<Option<SaveHandle>>);

fn lock<T>(m: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

#[pymethods]
impl Saver {
    /// Takes sub-groups of its own. All ranks make one.
    #[new]
    #[pyo3(signature = (group))]
    fn new(py: Python<'_>, group: Option<&Group>) -> PyResult<Self> {
        let ranks: Arc<dyn ProcessGroup> = match group {
            Some(group) => Arc::clone(group.ranks()) as _,
            None => Arc::new(SingleProcess),
        };
        let made = wait(py, async move { AsyncSaver::new(&*ranks).await })?;
        let made = made.map_err(|e| exception_of_kind(py, e.kind(), &e))?;
        Ok(Self(Mutex::new(Some(made))))
    }

    /// Plans a save, and copies what it writes.
    fn start(&self, py: Python<'_>, place: PathBuf, node: Node, how: Saving) -> PyResult<Pending> {
        let State { state, .. } = state(py, node)?;
        let settings = Settings::of(py, how)?;
        let Some(mut saver) = lock(&self.0).take() else {
            return Err(own(py, "Error", "another thread is starting a save"));
        };
        let started = {
            let save = settings.set(reshard::save(&state, &place), &SingleProcess);
            wait(py, saver.start(save))
        };
        *lock(&self.0) = Some(saver);
        Ok(Pending(Mutex::new(Some(started?.raised(py)?))))
    }
}

#[pymethods]
impl Pending {
    /// Whether it has ended, well or not.
    fn done(&self) -> bool {
        lock(&self.0).as_ref().is_none_or(SaveHandle::is_done)
    }

    /// Waits for the end. Returns what the save did, in one line. It can be called once.
    fn finish(&self, py: Python<'_>) -> PyResult<String> {
        let Some(handle) = lock(&self.0).take() else {
            return Err(own(
                py,
                "Error",
                "the outcome of this save was taken already",
            ));
        };
        let report = wait(py, handle.finish())?.raised(py)?;
        Ok(report.to_string())
    }
}

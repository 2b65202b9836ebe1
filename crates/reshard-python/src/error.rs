//! Errors of reshard as the classes of `reshard._errors`.

use pyo3::{prelude::*, types::PyDict};
use reshard::{ErrorKind, model::ModelError, storage::StorageError, strategy::StrategyError};

/// What an exception says besides its message.
#[derive(Default)]
struct Facts {
    key: Option<String>,
    path: Option<String>,
    offset: Option<u64>,
    hint: Option<String>,
}

/// The exception for an error of an operation on a checkpoint.
pub(crate) fn raise(py: Python<'_>, e: &reshard::Error) -> PyErr {
    let mut facts = Facts::default();
    collect(e.strategy_error(), &mut facts);
    let url = Some(e.url()).filter(|url| !url.is_empty());
    facts.path = facts.path.or_else(|| url.map(str::to_owned));
    facts.hint = e.whereabouts().map(|found| found.hint().to_string());
    let text = reshard::model::with_sources(e.to_string(), e);
    exception(py, class(e.kind()), &text, facts)
}

/// The exception for an error of a part that knows of no checkpoint.
pub(crate) fn raise_strategy(py: Python<'_>, e: &StrategyError) -> PyErr {
    let mut facts = Facts::default();
    collect(e, &mut facts);
    let text = reshard::model::with_sources(e.to_string(), e);
    exception(py, class(e.kind()), &text, facts)
}

/// The exception for another error whose kind is known.
pub(crate) fn exception_of_kind(
    py: Python<'_>,
    kind: ErrorKind,
    e: &dyn std::error::Error,
) -> PyErr {
    let text = reshard::model::with_sources(e.to_string(), e);
    exception(py, class(kind), &text, Facts::default())
}

/// An exception of this crate, of a class by name.
pub(crate) fn own(py: Python<'_>, class: &str, text: &str) -> PyErr {
    exception(py, class, text, Facts::default())
}

/// An exception about a key.
pub(crate) fn about(py: Python<'_>, class: &str, key: &str, text: &str) -> PyErr {
    let key = Some(key.to_owned());
    exception(
        py,
        class,
        text,
        Facts {
            key,
            ..Facts::default()
        },
    )
}

/// Attaches the interpreter's exception to a result.
pub(crate) trait Raise<T> {
    /// The result with an exception.
    fn raised(self, py: Python<'_>) -> PyResult<T>;
}

impl<T> Raise<T> for reshard::Result<T> {
    fn raised(self, py: Python<'_>) -> PyResult<T> {
        self.map_err(|e| raise(py, &e))
    }
}

impl<T> Raise<T> for Result<T, StrategyError> {
    fn raised(self, py: Python<'_>) -> PyResult<T> {
        self.map_err(|e| raise_strategy(py, &e))
    }
}

impl<T> Raise<T> for Result<T, StorageError> {
    fn raised(self, py: Python<'_>) -> PyResult<T> {
        self.map_err(StrategyError::from).raised(py)
    }
}

impl<T> Raise<T> for Result<T, ModelError> {
    fn raised(self, py: Python<'_>) -> PyResult<T> {
        self.map_err(StrategyError::from).raised(py)
    }
}

fn class(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Invalid => "MismatchError",
        ErrorKind::NotFound => "NotFoundError",
        ErrorKind::Exists => "ExistsError",
        ErrorKind::Corrupt => "DamagedError",
        ErrorKind::Unsupported => "UnsupportedError",
        ErrorKind::Limit => "LimitError",
        ErrorKind::Unavailable => "UnavailableError",
        ErrorKind::PeerFailed => "RankFailedError",
        _ => "Error",
    }
}

fn collect(e: &StrategyError, facts: &mut Facts) {
    match e {
        StrategyError::Corrupt { file, offset, .. } => {
            facts.path = Some(file.clone());
            facts.offset = *offset;
        }
        StrategyError::Object { key, .. } => facts.key = Some(key.clone()),
        StrategyError::NotACheckpoint { url, .. } => facts.path = Some(url.clone()),
        StrategyError::Model(e) => of_model(e, facts),
        StrategyError::Storage(e) => of_storage(e, facts),
        _ => {}
    }
}

fn of_model(e: &ModelError, facts: &mut Facts) {
    let (ModelError::Invalid { key, .. }
    | ModelError::NotFound { key, .. }
    | ModelError::Unsupported { key, .. }
    | ModelError::BufferShared { key }
    | ModelError::ReadOnly { key }
    | ModelError::Source { key, .. }) = e
    else {
        return;
    };
    facts.key = Some(key.clone()).filter(|key| !key.is_empty());
}

fn of_storage(e: &StorageError, facts: &mut Facts) {
    match e {
        StorageError::NotFound { path } | StorageError::Io { path, .. } => {
            facts.path = Some(path.clone());
        }
        StorageError::Short { path, range, .. } => {
            facts.path = Some(path.clone());
            facts.offset = Some(range.start);
        }
        StorageError::Check { name, range, .. } => {
            facts.path = Some(name.to_string());
            facts.offset = Some(range.start);
        }
        _ => {}
    }
}

fn exception(py: Python<'_>, class: &str, text: &str, facts: Facts) -> PyErr {
    let make = || {
        let class = py.import("reshard._errors")?.getattr(class)?;
        let said = PyDict::new(py);
        said.set_item("key", facts.key)?;
        said.set_item("path", facts.path)?;
        said.set_item("offset", facts.offset)?;
        said.set_item("hint", facts.hint)?;
        PyResult::Ok(PyErr::from_value(class.call((text,), Some(&said))?))
    };
    make().unwrap_or_else(|e| e)
}

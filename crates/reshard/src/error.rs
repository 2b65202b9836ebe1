use reshard_comm::CommError;
use reshard_model::{ErrorKind, ModelError, StateDict};
use reshard_plan::PlanError;
use reshard_storage::StorageError;
use reshard_strategy::StrategyError;
use std::fmt;

/// Result of this crate's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, and where.
#[derive(Debug)]
pub struct Error {
    act: &'static str,
    url: String,
    source: StrategyError,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (act, url) = (self.act, &self.url);
        match &self.source {
            // Its URL in another form would be no news.
            StrategyError::NotACheckpoint { why, .. } => {
                write!(f, "{act} {url}: it is not a checkpoint: {why}")
            }
            e => write!(f, "{act} {url}: {e}"),
        }
    }
}

impl std::error::Error for Error {
    /// What lies behind the error that the message tells already.
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        std::error::Error::source(&self.source)
    }
}

impl Error {
    pub(crate) fn new(act: &'static str, url: &str, source: impl Into<StrategyError>) -> Self {
        Self { act, url: url.into(), source: source.into() }
    }

    /// What the caller can do.
    pub fn kind(&self) -> ErrorKind {
        self.source.kind()
    }

    /// The checkpoint in question.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The error itself.
    pub fn strategy_error(&self) -> &StrategyError {
        &self.source
    }
}

/// Attaches what was being done with which checkpoint.
pub(crate) trait Context<T> {
    fn during(self, act: &'static str, url: &str) -> Result<T>;
}

macro_rules! context {
    ($($e:ty),*) => {$(
        impl<T> Context<T> for Result<T, $e> {
            fn during(self, act: &'static str, url: &str) -> Result<T> {
                self.map_err(|e| Error::new(act, url, e))
            }
        }
    )*};
}
context!(StrategyError, StorageError, ModelError, PlanError, CommError);

/// A load that failed; the template's buffers are in it.
pub struct LoadError {
    error: Error,
    template: Box<StateDict>,
}

impl LoadError {
    pub(crate) fn new(error: Error, template: StateDict) -> Self {
        Self { error, template: Box::new(template) }
    }

    /// Why.
    pub fn error(&self) -> &Error {
        &self.error
    }

    /// What the caller can do.
    pub fn kind(&self) -> ErrorKind {
        self.error.kind()
    }

    /// The error, and the template with its buffers: unharmed when the load failed before the first byte was moved, else
    /// partly filled.
    pub fn into_parts(self) -> (Error, StateDict) {
        (self.error, *self.template)
    }
}

impl fmt::Debug for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.error, f)
    }
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.error, f)
    }
}

impl std::error::Error for LoadError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        std::error::Error::source(&self.error)
    }
}

impl From<LoadError> for Error {
    fn from(e: LoadError) -> Self {
        e.error
    }
}

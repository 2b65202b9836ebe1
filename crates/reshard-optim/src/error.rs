//! What can be wrong with optimizer state.

use crate::{ParamId, state_dict::GROUPS};
use reshard_comm::CommError;
use reshard_model::{BoxError, Dims, ErrorKind, ModelError, Path, Step};

/// Result of this crate's functions.
pub type Result<T, E = OptimError> = std::result::Result<T, E>;

/// What can be wrong with optimizer state.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum OptimError {
    /// The optimizer has state for a parameter that the map does not have.
    #[error(
        "the optimizer has state ({}) for param id {id}, which no parameter of the model has; \
         give `param_id_to_sharded_param_map` all parameters of the optimizer",
        names.join(", ")
    )]
    UnknownParam {
        /// The id.
        id: ParamId,
        /// Names of its state.
        names: Vec<String>,
    },
    /// Two parameters have one id.
    #[error(
        "param id {id} is given to {first} and to {second}; each parameter needs an id of its own"
    )]
    SameId {
        /// The id.
        id: ParamId,
        /// Name of one parameter.
        first: String,
        /// Name of the other one.
        second: String,
    },
    /// Two leaves of the model have one dotted name.
    #[error("two leaves of the model are named {name}; rename one of them")]
    SameName {
        /// The name.
        name: String,
    },
    /// The steps of two parameters differ, so they can't be stored once.
    #[error(
        "the optimizer step differs per parameter: it is {first} for param id {first_id} and {second} for param id {second_id}; \
         leave out `common_step`, and keep the steps as state of each parameter"
    )]
    UnequalSteps {
        /// A parameter.
        first_id: ParamId,
        /// Its step.
        first: String,
        /// Another parameter.
        second_id: ParamId,
        /// Its step.
        second: String,
    },
    /// State of a parameter has another shape than the parameter.
    #[error(
        "{key}: state of shape {state} does not match param id {id}, whose local shape is {model}"
    )]
    Shape {
        /// Key of the state.
        key: String,
        /// The parameter.
        id: ParamId,
        /// Shape of the state.
        state: Dims,
        /// Local shape of the parameter.
        model: Dims,
    },
    /// State of a parameter is not a tensor.
    #[error(
        "{key}: the state of param id {id} is a {found}, but only tensors can be declared as the parameter is; exclude it by name"
    )]
    NoTensor {
        /// Key of the state.
        key: String,
        /// The parameter.
        id: ParamId,
        /// Python's name of its type.
        found: String,
    },
    /// A range of a flattened parameter that is transposed.
    #[error(
        "{key}: param id {id} is both transposed and flattened; elements that follow each other in memory do not follow each other \
         in the stored tensor, so a range of them is no range there; store it unflattened, or not transposed"
    )]
    TransposedAndFlattened {
        /// Key of the state.
        key: String,
        /// The parameter.
        id: ParamId,
    },
    /// The state dict does not have the form of an optimizer's.
    #[error("at {path}: {what}")]
    Structure {
        /// The place.
        path: Path,
        /// What is wrong.
        what: String,
    },
    /// A key of a bucket, or a layout, that contradicts itself.
    #[error("{what}")]
    Layout {
        /// What is wrong, with the parameter and both values.
        what: String,
    },
    /// Keys of a state dict that is set are missing or unexpected.
    #[error(
        "the {of} and its state dict differ; missing: {}; unexpected: {}; set `strict` to false to load the rest",
        listed(missing),
        listed(unexpected)
    )]
    Incompatible {
        /// `model` or `optimizer`.
        of: &'static str,
        /// What the model or optimizer has, and the state dict does not have.
        missing: Vec<String>,
        /// What only the state dict has.
        unexpected: Vec<String>,
    },
    /// Options of state dicts that contradict each other.
    #[error("{0}")]
    Options(&'static str),
    /// Something that no whole state dict can have, or that can't be broadcast.
    #[error("{name}: {what}")]
    NotWhole {
        /// Its name in the state dict.
        name: String,
        /// Why.
        what: String,
    },
    /// A rank failed, or the ranks lost each other.
    #[error(transparent)]
    Comm(#[from] CommError),
    /// A model or an optimizer does not take a value.
    #[error("{name} was not loaded")]
    Load {
        /// Its name in the state dict.
        name: String,
        /// The error.
        #[source]
        source: BoxError,
    },
    /// A load failed, and then the model or an optimizer did not take back the values that it had before.
    #[error(
        "a load failed, and these did not take back the values that they had before: {}",
        listed(names)
    )]
    NotRestored {
        /// What has other values than before.
        names: Vec<String>,
        /// Why the load failed.
        #[source]
        source: Box<OptimError>,
    },
    /// A declaration that contradicts itself.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A module failed.
    #[error("module {name} failed")]
    Module {
        /// Prefix of its keys.
        name: String,
        /// Its error.
        #[source]
        source: BoxError,
    },
}

/// The message with its causes.
impl std::fmt::Debug for OptimError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        reshard_model::write_with_causes(self, f)
    }
}

impl OptimError {
    /// What the caller can do.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::TransposedAndFlattened { .. } => ErrorKind::Unsupported,
            Self::Model(e) => e.kind(),
            Self::Comm(e) => e.kind(),
            Self::NotRestored { source, .. } => source.kind(),
            _ => ErrorKind::Invalid,
        }
    }

    pub(crate) fn structure(path: &[Step], what: &str) -> Self {
        Self::Structure {
            path: path.into(),
            what: what.into(),
        }
    }

    /// A part of the state dict of an optimizer, or all of it, is no dict.
    pub(crate) fn no_dict(path: &[Step]) -> Self {
        let what = match path {
            [] => "the state dict of an optimizer is a dict",
            _ => "this part of the state dict of an optimizer is a dict",
        };
        Self::structure(path, what)
    }

    /// The param groups of an optimizer are no list.
    pub(crate) fn no_groups() -> Self {
        Self::structure(&[GROUPS.into()], "param groups are a list")
    }
}

/// Names in a message.
fn listed(names: &[String]) -> String {
    match names {
        [] => "nothing".into(),
        names => names.join(", "),
    }
}

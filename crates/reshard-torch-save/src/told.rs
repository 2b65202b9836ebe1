//! What plans of ranks tell the coordinator and the writer, in the data of the format.

use bytes::Bytes;
use reshard_model::{DType, Dims, Path};
use reshard_plan::{PlanError, Result};
use reshard_policy::PolicyMetrics;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, OnceLock},
};

/// What a rank tells the coordinator.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Told {
    /// Of keys whose paths have int keys of dicts: which steps these are. Paths of keys have them as text.
    pub(crate) ints: BTreeMap<Box<str>, BTreeSet<u16>>,
    /// The description of the policy.
    pub(crate) policy: Option<String>,
}

/// What the coordinator tells a rank: the files that it writes.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Files(pub(crate) Vec<FilePlan>);

/// A file.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct FilePlan {
    pub(crate) name: String,
    /// Whether an index names it.
    pub(crate) indexed: bool,
    /// What it holds, in its order.
    pub(crate) leaves: Vec<LeafPlan>,
    /// The paths of empty dicts.
    pub(crate) empty: Vec<Path>,
    /// The dicts that are no plain ones.
    pub(crate) dicts: Vec<DictPlan>,
    /// The tensors of torchao, without the inner tensors, which are leaves.
    pub(crate) subclasses: Vec<DictPlan>,
    /// What the policy did, if this is the first of its files.
    pub(crate) policy: Option<PolicyMetrics>,
}

/// A dict or tensor of a file with a class of its own.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct DictPlan {
    /// Its path, with keys as text.
    pub(crate) path: Path,
    /// The object without its items or inner tensors, as `torch.save` writes it.
    pub(crate) object: Bytes,
}

/// A leaf of a file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct LeafPlan {
    pub(crate) key: Box<str>,
    pub(crate) path: Vec<At>,
    pub(crate) what: What,
}

/// A step of a path, with what contains it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum At {
    Key(Box<str>),
    Int(i64),
    Bool(bool),
    None,
    Index(u64),
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum What {
    Tensor {
        dtype: DType,
        shape: Dims,
        requires_grad: bool,
        python: PythonTensor,
    },
    Object,
}

/// What Python knows of a tensor, and a file says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PythonTensor {
    /// Whether it is a `torch.nn.Parameter`.
    pub(crate) is_parameter: bool,
    /// Whether it is the same object as an earlier tensor over the same elements.
    pub(crate) is_again: bool,
    /// Its device, if that is not `cpu`.
    pub(crate) device: Option<Box<str>>,
}

pub(crate) fn pack(what: &impl Serialize) -> Result<Bytes> {
    serde_json::to_vec(what)
        .map(Bytes::from)
        .map_err(PlanError::planner)
}

/// Nothing for no bytes.
pub(crate) fn unpack<T: DeserializeOwned + Default>(bytes: &[u8]) -> Result<T> {
    match bytes {
        [] => Ok(T::default()),
        _ => serde_json::from_slice(bytes).map_err(PlanError::planner),
    }
}

/// What a file says when it is written, for the index.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Receipt {
    pub(crate) indexed: bool,
    pub(crate) keys: Vec<Box<str>>,
    /// As in the plan of the file.
    pub(crate) policy: Option<PolicyMetrics>,
}

/// What the coordinator's policy did in this save. Nothing if it was not asked, because the plan is one that was kept.
pub(crate) type Asked = Arc<OnceLock<PolicyMetrics>>;

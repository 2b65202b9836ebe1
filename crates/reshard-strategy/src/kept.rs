//! What is kept of the plan of a save or load, for the next one.

use crate::declared::{Digest, KeptDeclarations};
use reshard_plan::{ExchangeGroup, LoadPlan, Metadata, SavePlan};
use reshard_policy::PolicyMetrics;
use std::{
    fmt,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

/// The plan of the last save. A save of a structure that is known is not planned again: each rank sends 32 bytes, and takes its part of
/// the kept plan. It is Megatron Core's `cached_structure` and DCP's `enable_plan_caching`.
///
/// Each rank has one of its own, and takes it for one save after the other. It holds no tensors, but some kilobytes for each leaf:
/// this rank's plan, what the plan was made of, and on the coordinator the metadata and what ranks
/// [declare](reshard_plan::SavePlanner::validates).
///
/// # What is compared
/// All on which a plan depends, on every rank, not a hash of it: for each leaf its path, key, element type, shapes, offsets, replica id,
/// flattened range, tag and device, and the length of an object that is encoded; then the planner, policy, format and their settings,
/// limits, dialect, paths of keys, ranks and coordinator. If anything differs on any rank, or if a rank has not kept the plan of the
/// same save, all ranks plan anew. The data are not compared. They may have other strides, and objects other values and lengths. If the save has a policy, which counts the
/// bytes of objects, the lengths of encoded objects are compared as well.
///
/// # What is not kept
/// The plan of a planner, policy or format that does not say what its plans depend on
/// ([`SavePlanner::plan_settings`](reshard_plan::SavePlanner::plan_settings) and methods of the same name). The plan of ranks that hold a
/// piece twice, since such leaves are compared by their data. Also then a rank that has declared the same before sends 32 bytes instead.
pub type KeptPlan = Kept<Decided>;

/// The plan of the last load, for a caller that loads many checkpoints of one shape. If the template has the same structure on all ranks, and the
/// checkpoint stores the same, the plan is used again. Then each rank sends 32 bytes.
///
/// Each rank has one of its own, and takes it for one load after the other. It holds this rank's plan, and the metadata of the checkpoint.
///
/// What is compared is what [`KeptPlan`] compares, and [`Metadata`]: keys, types, shapes, chunks and paths, not where their bytes lie.
/// Planners and formats that do not say what their plans depend on plan anew
/// ([`LoadPlanner::plan_settings`](reshard_plan::LoadPlanner::plan_settings)).
pub type KeptLoadPlan = Kept<DecidedLoad>;

/// A plan that is used again: [`KeptPlan`] or [`KeptLoadPlan`].
pub struct Kept<D> {
    pub(crate) declarations: KeptDeclarations,
    known: Mutex<Option<Known<D>>>,
    reused: AtomicU64,
    objects: OnceLock<Arc<Self>>,
}

impl<D> Default for Kept<D> {
    fn default() -> Self {
        Self {
            declarations: KeptDeclarations::default(),
            known: Mutex::default(),
            reused: AtomicU64::default(),
            objects: OnceLock::new(),
        }
    }
}

impl<D> fmt::Debug for Kept<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kept")
            .field("reused", &self.reused())
            .finish_non_exhaustive()
    }
}

/// A plan, and what it was made of.
struct Known<D> {
    structure: Vec<u8>,
    of_all: Digest,
    decided: Arc<D>,
}

/// What all ranks of a save have agreed on.
#[derive(Debug)]
pub struct Decided {
    /// This rank's part, finished.
    pub(crate) plan: Arc<SavePlan>,
    /// `Some` if any rank has an exchange. It then holds this rank's exchange group, if it is in one.
    pub(crate) exchange: Option<Option<ExchangeGroup>>,
    /// On the coordinator, or on each rank of a rank-local save.
    pub(crate) metadata: Arc<Metadata>,
    pub(crate) policy: Option<PolicyMetrics>,
}

/// What all ranks of a load have agreed on.
#[derive(Debug)]
pub struct DecidedLoad {
    /// This rank's part, finished.
    pub(crate) plan: LoadPlan,
    /// `Some` if any rank has an exchange. It then holds this rank's exchange group, if it is in one.
    pub(crate) exchange: Option<Option<ExchangeGroup>>,
    /// The keys of the tensors that this rank asks for.
    pub(crate) keys: Vec<Arc<str>>,
    /// Of the checkpoint.
    pub(crate) metadata: Arc<Metadata>,
}

impl<D> Kept<D> {
    /// Without a plan.
    pub fn new() -> Self {
        Self::default()
    }

    /// How many saves or loads have used a plan that was kept here.
    pub fn reused(&self) -> u64 {
        self.reused.load(Ordering::Relaxed)
    }

    /// For objects that are saved or loaded apart.
    pub(crate) fn of_objects(&self) -> Arc<Self> {
        Arc::clone(self.objects.get_or_init(Arc::default))
    }

    /// The plan of this structure, and the digest of those of all ranks.
    pub(crate) fn known(&self, structure: &[u8]) -> Option<(Digest, Arc<D>)> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let known = known.as_ref().filter(|k| k.structure == structure)?;
        Some((known.of_all, Arc::clone(&known.decided)))
    }

    /// Keeps a plan with all on which it depends on this rank, and the digest of the structures of all ranks.
    pub(crate) fn keep(&self, structure: Vec<u8>, of_all: Digest, decided: &Arc<D>) {
        *self.known.lock().unwrap_or_else(PoisonError::into_inner) = Some(Known {
            structure,
            of_all,
            decided: Arc::clone(decided),
        });
    }

    pub(crate) fn used(&self) {
        self.reused.fetch_add(1, Ordering::Relaxed);
    }
}

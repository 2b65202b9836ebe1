//! What one rank brings to the planning of a save.

use super::{plans::local_plan, resolve::measure_objects, structure::holds_a_piece_twice};
use crate::{
    Result, SaveCx, StorageWriter,
    declared::{Digest, KeptDeclarations, Told},
    kept::Decided,
    pipeline::placement::Offer,
};
use reshard_model::{FlatStateDict, Value};
use reshard_plan::Declared;
use reshard_policy::ShardingPolicy;
use sha2::{Digest as _, Sha256};
use std::sync::Arc;

/// This rank, after its set-up.
pub(super) struct Local<'a> {
    pub(super) writer: &'a dyn StorageWriter,
    pub(super) state: &'a FlatStateDict,
    pub(super) cx: &'a SaveCx<'a>,
    pub(super) policy: Option<&'a dyn ShardingPolicy>,
    /// Whether the policy counts the bytes of objects.
    pub(super) measures_objects: bool,
    pub(super) storage_meta: Option<Value>,
    /// All on which its plan depends, if that is known and the caller keeps plans.
    pub(super) structure: Option<Vec<u8>>,
    /// What was decided for this structure in the last save, and the digest of the structures of all ranks.
    pub(super) known: Option<(Digest, Arc<Decided>)>,
}

impl Local<'_> {
    /// What it declares of its leaves.
    pub(super) fn declared(&self) -> Declared {
        self.cx.declares.of(self.state)
    }

    /// What it offers, and the digest of its declarations. Declarations that are `kept` are not sent again.
    pub(super) fn offer(
        &mut self,
        kept: Option<&KeptDeclarations>,
    ) -> Result<(Offer, Option<Digest>)> {
        let meta = self.storage_meta.as_ref();
        let mut plan = local_plan(self.writer, self.state, meta, self.cx)?;
        if self.measures_objects {
            measure_objects(self.writer, &*self.cx.planner, self.state, &mut plan.items)?;
        }
        let declared = || self.declared();
        let (told, digest) = Told::of(self.cx.validates(), declared, kept)?;
        if holds_a_piece_twice(self.state) {
            self.structure = None;
        }
        let structure = self.structure.as_ref().map(Sha256::digest);
        let offer = Offer::new(
            plan,
            self.state,
            self.policy,
            told,
            structure.map(Into::into),
        )?;
        Ok((offer, digest))
    }
}

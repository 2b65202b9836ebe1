//! What each rank determines alone before a save begins: strategies, the parts of its state, the place.

use super::{builder::Save, options::Target};
use crate::{
    CommonForm, StoredCommon,
    consistent::Values,
    in_flight::{self, InFlight},
    stateful,
};
use reshard_megatron::{COMMON_STATE, RESERVED};
use reshard_model::{
    Dialect, Flatten, Parts, Path, PlainTensor, Sharded, ShardedObject, Value, ValueTree, split_as,
    split_ref,
};
use reshard_open::sidecar::SIDECAR;
use reshard_storage::{PlaceKind, Store, Stores};
use reshard_strategy::{
    Action, BackendVersion, Capabilities, Registry, SaveCommonStrategy, SaveShardedStrategy,
    StrategyError,
};
use std::sync::Arc;

/// Bytes of all notes of a checkpoint.
const MOST_NOTES: usize = 64 << 10;

pub(super) struct SetUp {
    pub(super) store: Arc<dyn Store>,
    /// What kind of place it is.
    pub(super) kind: PlaceKind,
    pub(super) registry: Registry,
    pub(super) sharded: SaveShardedStrategy,
    pub(super) common: Arc<dyn SaveCommonStrategy>,
    pub(super) parts: Parts,
    /// Tensors that are not declared as sharded, to be compared between ranks; empty if a rank is alone.
    pub(super) plain: Vec<PlainTensor>,
    /// Values of common state, to be compared between ranks.
    pub(super) values: Option<Values>,
    /// The place that the URL means, if it could be resolved before the save begins. Two spellings of one place are equal in it.
    pub(super) resolved: Option<Arc<dyn Store>>,
    /// Keeps other saves from the place while an asynchronous one is not finished.
    pub(super) in_flight: Option<InFlight>,
}

impl SetUp {
    /// The resolved place, or the one that was given.
    pub(super) fn place(&self) -> &Arc<dyn Store> {
        self.resolved.as_ref().unwrap_or(&self.store)
    }
}

impl Save<'_> {
    /// Whether all settings have a meaning in the dialect.
    fn agree_with_dialect(&self) -> Result<(), StrategyError> {
        if self.options.common.is_some()
            && (self.options.pipeline.dialect != Dialect::Megatron
                || self.options.stored_common.is_some())
        {
            let what = "a common strategy of your own can only store new common state in Megatron's dialect: other dialects have no common \
                        state, and common state that is carried over stays as it was stored; leave the strategy out";
            return Err(StrategyError::Invalid(what.into()));
        }
        if self.options.integrity && self.options.pipeline.dialect != Dialect::Megatron {
            let what = "`integrity.json` is a file of Megatron Core's dialect; save in it, or leave `integrity` out";
            return Err(StrategyError::Invalid(what.into()));
        }
        if self.options.flatten != Flatten::default()
            && self.options.pipeline.dialect == Dialect::Megatron
        {
            let what = "Megatron Core's dialect has no flat state dict; save in PyTorch's, or leave `flatten` out";
            return Err(StrategyError::Invalid(what.into()));
        }
        Ok(())
    }

    /// Whether the place has room for the notes.
    fn check_notes(&self, kind: PlaceKind, strategy: &BackendVersion) -> Result<(), StrategyError> {
        let bytes: usize = self
            .options
            .notes
            .iter()
            .map(|(k, v)| k.len() + v.len())
            .sum();
        if bytes > MOST_NOTES {
            let what = format!(
                "the notes have {bytes} bytes, and a checkpoint has room for {MOST_NOTES}; save them in the state"
            );
            return Err(StrategyError::Invalid(what));
        }
        if !self.options.notes.is_empty() && kind != PlaceKind::Folder {
            let what = format!(
                "a note in {}, which is no folder and so has no room for `{SIDECAR}` of its own (save to a folder, or leave the notes out),",
                self.options.url
            );
            return Err(StrategyError::Unsupported {
                strategy: strategy.to_string(),
                what,
            });
        }
        Ok(())
    }

    /// Finds the format and the place. The format may choose another dialect.
    pub(super) fn find_target(&mut self) -> Result<Target, StrategyError> {
        let registry = match self.options.registry.take() {
            Some(r) => r,
            None => Registry::linked()?,
        };
        let stores = match self.options.stores.take() {
            Some(s) => s,
            None => Stores::linked()?,
        };
        let strategy = match self.options.strategy.take() {
            Some(strategy) => strategy,
            None => registry.save_sharded(&registry.default_of(Action::SaveSharded))?,
        };
        let sharded = self.options.strategy.insert(strategy).clone();
        sharded.format.check()?;
        if sharded.common.is_some() {
            let what = "the save has a common strategy, and so has its sharded strategy; leave `common` out of this one, and give it to \
                        `Save::common_strategy`";
            return Err(StrategyError::Invalid(what.into()));
        }
        let can = sharded.capabilities();
        if !self.options.dialect_is_chosen && !can.saves(self.options.pipeline.dialect) {
            self.options.pipeline.dialect = can.dialects.first().copied().unwrap_or_default();
        }
        Ok(Target {
            registry,
            sharded,
            store: stores.open(&self.options.url),
        })
    }

    /// Checks everything that one rank can check alone.
    pub(super) fn set_up(&self, target: Target) -> Result<SetUp, StrategyError> {
        let Target {
            registry,
            mut sharded,
            store,
        } = target;
        let can = sharded.capabilities();
        // Settings that contradict each other are refused before anything is done with the state.
        self.agree_with_dialect()?;
        let common = match self.options.common.clone() {
            Some(c) => c,
            None => registry.save_common(&registry.default_of(Action::SaveCommon))?,
        };
        if self.options.common_form == CommonForm::Object && !sharded.can_handle_sharded_objects() {
            let what = "common state in a sharded object (choose `CommonForm::File`)".into();
            return Err(StrategyError::Unsupported {
                strategy: sharded.key().to_string(),
                what,
            });
        }
        if !can.saves(self.options.pipeline.dialect) {
            let what = format!(
                "the dialect {}; it saves in {}",
                self.options.pipeline.dialect,
                names(can.dialects)
            );
            return Err(StrategyError::Unsupported {
                strategy: sharded.key().to_string(),
                what,
            });
        }
        sharded.permits(&self.options.pipeline)?;
        let (store, kind) = place(store?, &can, &sharded.key())?;
        self.check_notes(kind, &sharded.key())?;
        // Only Megatron's dialect has a common strategy.
        if self.options.pipeline.dialect == Dialect::Megatron {
            sharded.common = Some(Arc::clone(&common));
        }
        let mut parts = if self.statefuls.is_empty() {
            split_ref(
                self.state,
                self.options.pipeline.dialect,
                self.options.flatten,
            )?
        } else {
            let mut state = self.state.clone();
            for (key, value) in &self.statefuls {
                stateful::insert(&mut state, key, value.state_dict())?;
            }
            split_as(state, self.options.pipeline.dialect, self.options.flatten)?
        };
        parts
            .dropped_empty
            .extend_from_slice(&self.options.empty_dicts);

        // A rank alone has nobody to compare its plain tensors with.
        let alone = self.ranks.group.size() == 1;
        let plain = if alone {
            Vec::new()
        } else {
            parts.plain_tensors()
        };

        let compares = !alone
            && self.options.compare_common
            && self.options.pipeline.dialect == Dialect::Megatron;
        let values = match compares && self.options.stored_common.is_none() {
            true => Values::of(&parts.common, self.options.preprocess_common.as_ref()),
            false => None,
        };

        // Common state is added after the comparisons above were prepared, since it is not the caller's.
        match (&self.options.stored_common, self.options.pipeline.dialect) {
            (Some(stored), Dialect::Megatron) => self.add_stored(stored, &mut parts)?,
            (Some(_), dialect) => {
                let what = format!(
                    "the dialect {dialect} has no common state; save it as a part of the state"
                );
                return Err(StrategyError::Invalid(what));
            }
            (None, Dialect::Megatron) => self.add_reserved(&mut parts)?,
            (None, _) => {}
        }

        Ok(SetUp {
            store,
            kind,
            registry,
            sharded,
            common,
            parts,
            plain,
            values,
            resolved: None,
            in_flight: None,
        })
    }

    /// Finds the place that the URL means, and refuses it while an asynchronous save of this process is writing to it.
    pub(super) async fn list_place(&self, mut set_up: SetUp) -> Result<SetUp, StrategyError> {
        // A place that can't be resolved is reported where the save begins.
        let resolved = set_up.store.resolved().await.ok().flatten();
        set_up.resolved = resolved;
        let (place, rank) = (set_up.place().url(), self.ranks.group.rank());
        if self.options.asynchronous {
            set_up.in_flight = Some(InFlight::new(&place, rank)?);
        } else {
            in_flight::check(&place, rank)?;
        }
        Ok(set_up)
    }

    /// Puts common state that is stored as an object into the state.
    fn add_stored(&self, stored: &StoredCommon, parts: &mut Parts) -> Result<(), StrategyError> {
        if self.options.content_metadata.is_some() || parts.common != ValueTree::new() {
            let what = "common state is carried over as it was stored, but the state has more of it; \
                        take the leaves that are not sharded out of the state";
            return Err(StrategyError::Invalid(what.into()));
        }
        if let (Some(object), true) = (
            stored.leaf(),
            self.ranks.group.rank() == self.ranks.coordinator,
        ) {
            parts
                .flat
                .insert(Path(vec![(&*object.key).into()]), Sharded::Object(object));
        }
        Ok(())
    }

    /// Inserts a leaf with a reserved key. Fails if the caller's state has such a key.
    fn add_reserved(&self, parts: &mut Parts) -> Result<(), StrategyError> {
        let is_taken = |key: &&str| {
            self.state.get(key).is_some() || self.statefuls.iter().any(|(k, _)| k == key)
        };
        let taken = RESERVED.into_iter().find(is_taken);
        if let Some(key) = taken {
            let what = format!(
                "the key {key} at the top of a state dict is reserved for Megatron Core; choose another one"
            );
            return Err(StrategyError::Invalid(what));
        }
        let is_common =
            |leaf: &Sharded| matches!(leaf, Sharded::Object(o) if &*o.key == COMMON_STATE);
        if let Some((path, _)) = parts.flat.iter().find(|(_, leaf)| is_common(leaf)) {
            let what = format!(
                "the sharded object at {path} has the key {COMMON_STATE}, under which Megatron Core keeps common state; choose another one"
            );
            return Err(StrategyError::Invalid(what));
        }
        if let Some(content) = self.options.content_metadata.clone() {
            parts
                .common
                .insert_tree("content_metadata", ValueTree::from(content));
        }
        if self.options.common_form == CommonForm::Object {
            let common = Value::from(std::mem::take(&mut parts.common));
            // Every rank has a replica; the coordinator's is the main one.
            let replica = u32::from(self.ranks.group.rank() != self.ranks.coordinator);
            let object = ShardedObject::new(COMMON_STATE, common, &[1], &[0], replica)?;
            parts
                .flat
                .insert(Path(vec![COMMON_STATE.into()]), Sharded::Object(object));
        }
        Ok(())
    }
}

pub(super) fn last_part(url: &str) -> &str {
    url.trim_end_matches('/').rsplit('/').next().unwrap_or(url)
}

/// The place of a checkpoint of a strategy: a folder, or what of the URL it is otherwise.
fn place(
    store: Arc<dyn Store>,
    can: &Capabilities,
    strategy: &BackendVersion,
) -> Result<(Arc<dyn Store>, PlaceKind), StrategyError> {
    let url = store.url();
    let kind = can.place(last_part(&url));
    if kind == PlaceKind::Folder {
        return Ok((store, kind));
    }
    let part = store.of_kind(kind).ok_or_else(|| {
        let what = format!("{url}, because this store has only folders; save to another place,");
        StrategyError::Unsupported {
            strategy: strategy.to_string(),
            what,
        }
    });
    Ok((part?, kind))
}

fn names(dialects: &[Dialect]) -> String {
    let names: Vec<&str> = dialects.iter().map(|d| d.name()).collect();
    names.join(" or ")
}

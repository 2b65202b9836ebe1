//! What of a source a target can hold, and what becomes of the rest.

use crate::{
    Convert, ConvertError, NotHeld, Result, cast::is_cast, keys::Keys, leaves::is_name_of_cell,
    optimizer::Canonical, target::Target,
};
use reshard::{CommonForm, DType, Dialect, StoredCommon, plan::Entry, strategy::Capabilities};
use std::collections::BTreeSet;

/// What becomes of common state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommonAs {
    /// It stays common state, in this form.
    Common(CommonForm),
    /// Each leaf becomes an item.
    Items,
    /// The target has no place for it.
    Nothing,
}

/// How items of the source become items of the target.
#[derive(Debug)]
pub(crate) struct Fit {
    /// In which dialect the target is written.
    pub(crate) dialect: Dialect,
    pub(crate) common: CommonAs,
    /// To which element type floats are cast.
    pub(crate) dtype: Option<DType>,
    /// What the target has no place for, by key. Common state has no key.
    pub(crate) dropped: Vec<NotHeld>,
    keys: BTreeSet<String>,
    can: Capabilities,
    /// Whether a cell of an array of objects is written as a list.
    pub(crate) object_lists: bool,
    /// Whether objects that are no cells of arrays become common state.
    makes_common: bool,
}

impl Fit {
    /// Fails if the target can't hold all that was chosen, unless the rest may be dropped, or has no common state in the form that was asked for. Reads common state, if there is no place for it.
    pub(crate) async fn of(
        setup: &Convert<'_>,
        target: &Target,
        (keys, canonical): (&Keys<'_>, &Canonical),
    ) -> Result<Self> {
        let (source, form) = (setup.source, setup.common_form);
        let can = target.capabilities();
        let default = || dialect(source.dialect(), &can);
        let dialect = setup.dialect.unwrap_or_else(default);
        let holds_objects = match dialect {
            // What the format does not store, the common strategy stores.
            Dialect::Megatron => true,
            Dialect::TensorsOnly => false,
            _ => target.has_objects(),
        };
        if let Some(form) = form
            && (dialect != Dialect::Megatron
                || (form == CommonForm::Object && !target.has_objects()))
        {
            let format = target.key();
            return Err(ConvertError::CommonForm { form, format });
        }
        let common = source.stored_common().await.map_err(ConvertError::Read)?;
        let in_object = common.as_ref().and_then(StoredCommon::object_key);
        let mut fit = Self {
            dialect,
            common: match (source.dialect(), dialect) {
                (Dialect::Megatron, Dialect::Megatron) => {
                    let stored = common.as_ref().map(StoredCommon::form);
                    CommonAs::Common(match form.or(stored) {
                        Some(CommonForm::Object) if form.is_none() && !target.has_objects() => {
                            CommonForm::File
                        }
                        form => form.unwrap_or_default(),
                    })
                }
                // Of objects that are no cells of arrays.
                (_, Dialect::Megatron) => CommonAs::Common(form.unwrap_or_default()),
                (Dialect::Megatron, _) if holds_objects => CommonAs::Items,
                _ => CommonAs::Nothing,
            },
            dtype: setup.dtype,
            dropped: Vec::new(),
            keys: BTreeSet::new(),
            can,
            object_lists: dialect == Dialect::Megatron && target.has_objects() && can.object_lists,
            makes_common: dialect == Dialect::Megatron && source.dialect() != dialect,
        };
        let entries = source.metadata().entries();
        for entry in entries.filter(|e| keys.has(e.key()) && in_object != Some(e.key())) {
            let Some(to) = canonical.key(entry.key()) else {
                continue;
            };
            match entry {
                Entry::Object(..) if !holds_objects => fit.drop_object(to),
                Entry::Tensor(t) => fit.check(to, t.dtype()),
                Entry::Object(..) => {}
            }
        }
        for made in &canonical.made {
            fit.check(made.key(), made.dtype());
        }
        if common.is_some() && fit.common == CommonAs::Nothing {
            let common = source.common().await.map_err(ConvertError::Read)?;
            if common != reshard::ValueTree::new() {
                fit.dropped.push(NotHeld::Common);
            }
        }
        // Whoever drops objects may not expect that tensors are among them.
        fit.dropped
            .sort_by_key(|what| !matches!(what, NotHeld::Tensor(..)));
        if fit.dropped.is_empty() || setup.drop_objects {
            return Ok(fit);
        }
        Err(ConvertError::NotHeld {
            src: source.url().into(),
            format: target.key(),
            what: fit.dropped,
        })
    }

    /// The element type with which a tensor is written.
    pub(crate) fn written(&self, stored: DType) -> DType {
        match self.dtype {
            Some(to) if is_cast(stored, to) => to,
            _ => stored,
        }
    }

    /// Whether the target gets the item of this key.
    pub(crate) fn has(&self, key: &str) -> bool {
        !self.keys.contains(key)
    }

    /// Whether an object that is encoded so can be given to the target as it is.
    pub(crate) fn takes_encoded(&self, codec: &str) -> bool {
        self.can.codec == codec
    }

    /// Whether an object that is a dict becomes the items of that dict.
    pub(crate) fn splits_objects(&self) -> bool {
        self.can.splits_objects
    }

    /// Whether the object that gets this key becomes common state.
    pub(crate) fn is_common(&self, key: &str) -> bool {
        self.makes_common && !is_name_of_cell(key)
    }

    /// In which form there is new common state, if it is made of objects.
    pub(crate) fn new_common(&self) -> Option<CommonForm> {
        match self.common {
            CommonAs::Common(form) if self.makes_common => Some(form),
            _ => None,
        }
    }

    fn check(&mut self, key: &str, dtype: DType) {
        let dtype = self.written(dtype);
        if !self.can.holds(dtype) {
            self.keys.insert(key.into());
            self.dropped.push(NotHeld::Tensor(key.into(), dtype));
        }
    }

    fn drop_object(&mut self, key: &str) {
        self.keys.insert(key.into());
        self.dropped.push(NotHeld::Object(key.into()));
    }
}

/// Refuses a dialect that the target does not have.
pub(crate) fn has_dialect(target: &Target, dialect: Dialect) -> Result<()> {
    let can = target.capabilities();
    if can.saves(dialect) {
        return Ok(());
    }
    Err(ConvertError::Dialect {
        dialect,
        format: target.key(),
        has: can.dialects,
    })
}

/// The dialect of the source if the target has it, or else the one that keeps the most.
fn dialect(source: Dialect, can: &Capabilities) -> Dialect {
    if can.saves(source) {
        return source;
    }
    let others = [Dialect::Dcp, Dialect::TensorsOnly, Dialect::Megatron];
    let other = others.into_iter().find(|d| can.saves(*d));
    // A strategy without a dialect refuses whatever it gets.
    other.unwrap_or(source)
}

//! The state of an opened checkpoint: where its items lie, and what is wrong with them.

use super::{
    overlaps::Overlaps,
    repeats::{Repeats, repeated},
    waste::{Waste, wasted},
};
use crate::{
    OwnFile,
    lost::Lost,
    names::hint,
    own_file,
    table::{Item, Table},
};
use reshard_model::Dialect;
use reshard_storage::{Name, StorageError, Store};
use reshard_strategy::{OpenCx, ReadLimits, StrategyError, torch::Kept};
use std::{collections::BTreeSet, sync::Arc};

/// What the parsed forms of all objects may take together in addition to 64 times their lengths, in bytes, and what each may take at least.
const ALL_SLACK: u64 = 512 << 20;
const LEAST_SLACK: u64 = 16 << 10;

/// A `torch_dist` checkpoint.
#[derive(Debug)]
pub(crate) struct TorchDistReader {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) table: Table,
    pub(super) dialect: Dialect,
    pub(super) rank_local: Option<u32>,
    pub(super) overlaps: Overlaps,
    pub(crate) limits: ReadLimits,
    pub(super) repeats: Repeats,
    pub(super) waste: Waste,
    pub(super) kept: Kept,
    /// Files that its metadata name.
    pub(super) named: BTreeSet<Name>,
    /// Separation hints of its data files.
    hints: BTreeSet<Box<str>>,
}

impl TorchDistReader {
    pub(crate) fn new(cx: &OpenCx, table: Table, rank_local: Option<u32>) -> Self {
        let OpenCx {
            mut limits,
            dialect,
            ..
        } = *cx;
        // Of many objects each may take less memory, so that nobody spends hours on all of them. A check decodes copies, too.
        let copies = table.copies.iter();
        let copies = copies.filter(|(item, _)| matches!(item, Item::Object(_)));
        let objects = (table.metadata.object_count() + copies.count()).max(1) as u64;
        limits.slack = limits.slack.min((ALL_SLACK / objects).max(LEAST_SLACK));
        let store = Arc::clone(&cx.store);
        let overlaps = Overlaps::of(&table);
        let repeats = if limits.allow_repeated {
            Repeats::new()
        } else {
            repeated(&table)
        };
        let waste = wasted(&table, limits.max_whole);
        // PyTorch has no such hints. So in its dialect such a name belongs to another program, whatever the metadata say.
        let files = table
            .files
            .iter()
            .flatten()
            .filter(|_| dialect == Dialect::Megatron);
        let hints = files
            .filter_map(|name| hint(name.as_str()))
            .map(Into::into)
            .collect();
        let named = table.files.iter().flatten().cloned().collect();
        let kept = Kept::new(limits.kept());
        Self {
            store,
            table,
            dialect,
            rank_local,
            overlaps,
            limits,
            repeats,
            waste,
            kept,
            named,
            hints,
        }
    }

    /// What a file is by its name, with the hints that this checkpoint's data files have.
    pub(super) fn own_file(&self, name: &str) -> Option<OwnFile> {
        own_file(name).or_else(|| self.hints.contains(hint(name)?).then_some(OwnFile::Data))
    }

    /// Interprets an error of the store: missing bytes of a checkpoint are damage.
    pub(crate) fn lost(&self, e: StorageError, what: Option<String>) -> StrategyError {
        let file = match &e {
            StorageError::NotFound { path }
            | StorageError::Short { path, .. }
            | StorageError::NoFile { path, .. }
            | StorageError::LinkedDirectory { path, .. } => path.clone(),
            StorageError::Record { name, .. } | StorageError::Check { name, .. } => {
                name.to_string()
            }
            _ => return e.into(),
        };
        let what = what.map_or_else(
            || "stored bytes are missing or damaged".into(),
            |w| format!("{w} is missing or damaged"),
        );
        StrategyError::Corrupt {
            file,
            offset: None,
            what,
            source: Some(Box::new(Lost(e))),
        }
    }
}

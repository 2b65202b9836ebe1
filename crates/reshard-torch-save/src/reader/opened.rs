//! An opened checkpoint: its files, and where its items are stored.

use crate::{
    file::TorchFile,
    modules::module_in_words,
    names::{INDEX, WEIGHTS},
    table::Table,
};
use reshard_model::{Dialect, Value, some};
use reshard_plan::Metadata;
use reshard_storage::Store;
use reshard_strategy::{OpenCx, ReadLimits, Result, StrategyError, few, torch::Kept};
use reshard_torch_format::ObjectAt;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
};

/// The most modules that are named.
const MODULES: usize = 5;

/// How the files of a checkpoint belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// One file, which has all.
    File,
    /// An index says which file has which key.
    Indexed,
    /// Each rank has a file.
    Ranks,
}

#[derive(Debug)]
pub(crate) struct TorchSaveReader {
    pub(super) store: Arc<dyn Store>,
    pub(super) limits: ReadLimits,
    pub(super) dialect: Dialect,
    pub(super) metadata: Arc<Metadata>,
    pub(super) table: Table,
    /// Those that could be opened.
    pub(super) files: Vec<Option<TorchFile>>,
    /// How the files belong together.
    pub(super) kind: Kind,
    /// Whether the file of a whole model is next to the index, which does not name it.
    pub(super) rival: bool,
    /// Unpacked parts of storages.
    pub(super) kept: Kept,
    /// Objects without tensors, by file: all of a file are decoded at once, because each time its pickle is parsed again.
    pub(super) values: Mutex<BTreeMap<u32, BTreeMap<ObjectAt, Value>>>,
}

impl TorchSaveReader {
    pub(crate) fn new(
        cx: &OpenCx,
        files: Vec<Option<TorchFile>>,
        mut table: Table,
        kind: Kind,
    ) -> Self {
        let metadata = std::mem::take(&mut table.metadata);
        Self {
            store: Arc::clone(&cx.store),
            limits: cx.limits,
            dialect: cx.dialect,
            metadata: Arc::new(metadata),
            kept: Kept::new(cx.limits.kept()),
            values: Mutex::default(),
            table,
            files,
            kind,
            rival: false,
        }
    }

    /// The same with another table.
    pub(crate) fn with_table(mut self, mut table: Table) -> Self {
        self.metadata = Arc::new(std::mem::take(&mut table.metadata));
        Self { table, ..self }
    }

    pub(crate) fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    pub(crate) fn limits(&self) -> &ReadLimits {
        &self.limits
    }

    /// The same, next to the file of a whole model that its index does not name.
    pub(crate) fn with_rival(self, rival: bool) -> Self {
        Self { rival, ..self }
    }

    /// Reasons why another program may read other tensors from these files.
    pub(super) fn warnings(&self) -> Vec<String> {
        let mut out = Vec::new();
        if self.rival {
            out.push(format!(
                "{WEIGHTS} is next to {INDEX}: transformers reads {WEIGHTS}, and reshard the files of the index; to read {WEIGHTS}, name that file, and move away the one of the two that is out of date"
            ));
        }
        if !self.table.unnamed.is_empty() {
            let keys = few(self.table.unnamed.iter().map(|(key, _)| &**key));
            out.push(format!("{INDEX} does not list {keys}, which its files have; reshard leaves them out, and other programs may not"));
        }
        for module in self.modules(false) {
            out.push(format!(
                "{module}; --open-modules, the setting `open_modules`, reads them under the names of its state_dict()"
            ));
        }
        let one = self.kind == Kind::File;
        for missing in &self.table.missing {
            out.push(match one {
                true => format!("it is the part of one rank: {missing}; the folder with the files of all ranks is the checkpoint"),
                false => format!("it is incomplete: {missing}"),
            });
        }
        for why in &self.table.broken {
            let file = why.file.as_deref().unwrap_or_default();
            out.push(format!("{file} can't be opened: {}", why.what));
        }
        if !self.table.others.is_empty() {
            let names = few(self.table.others.iter().map(String::as_str));
            out.push(format!(
                "{names} are not read: they are neither files of torch.save nor safetensors"
            ));
        }
        for file in self.files.iter().flatten() {
            if let Some((record, folder)) = file.outside() {
                out.push(format!(
                    "{} has the record {record:?} outside of its folder {folder:?}: reshard reads the file, and torch.load refuses it",
                    file.name
                ));
            }
        }
        out
    }

    /// The modules that were opened, and the classes of torchao's tensors.
    pub(super) fn notes(&self) -> Vec<String> {
        let of_torchao = self.table.subclasses.iter().map(|(class, n)| {
            let tensors = some(*n, "tensor");
            format!(
                "quantised by torchao: {tensors} of class {class}, whose inner tensors are listed"
            )
        });
        self.modules(true).into_iter().chain(of_torchao).collect()
    }

    /// The modules that were opened, or those that were not, in words.
    pub(super) fn modules(&self, open: bool) -> Vec<String> {
        let of = self.table.modules.iter().filter_map(|(n, module)| {
            let file = self.files.get(*n as usize)?.as_ref()?;
            let place = match &*module.path.0 {
                [] => String::new(),
                _ => format!(" at {}", module.path),
            };
            let words = module_in_words(module);
            let hooks = match module.hooks {
                true => ", whose hooks may change what state_dict() returns",
                false => "",
            };
            (file.modules.open == open)
                .then(|| format!("{} holds {words}{place}{hooks}", file.name))
        });
        let all: Vec<String> = of.collect();
        match all.len() {
            0..=MODULES => all,
            n => {
                let mut few: Vec<String> = all.into_iter().take(MODULES).collect();
                few.push(format!("there are {} more modules", n - MODULES));
                few
            }
        }
    }

    pub(crate) fn file(&self, number: u32) -> Result<&TorchFile> {
        let file = self.files.get(number as usize).and_then(Option::as_ref);
        file.ok_or_else(|| StrategyError::Internal(format!("there is no file {number}")))
    }

    /// Names of the files that it consists of.
    pub(super) fn names(&self) -> BTreeSet<&str> {
        let files = self.files.iter().flatten();
        let index = (self.kind == Kind::Indexed).then_some(INDEX);
        files.map(|file| file.name.as_str()).chain(index).collect()
    }
}

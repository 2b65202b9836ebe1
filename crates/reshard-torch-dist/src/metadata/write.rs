//! The pickle of a `.metadata` file, in any flavour. Nothing in it depends on time, place or hash order.

use super::{
    names::{FS, MD, SH},
    spelling::unspell,
};
use crate::Flavour;
use reshard_model::{DType, Step};
use reshard_plan::{Entry, Metadata, PlannerData, TensorProperties};
use reshard_strategy::{Result, StrategyError, WriteResult};
use reshard_torch_format::pickle::{Emitter, Op};
use std::{borrow::Cow, collections::BTreeMap};

/// As PyTorch does: dicts and lists are filled in batches of this many, which bounds a reader's stack.
const BATCH: usize = 1000;

/// `storage_meta`: what PyTorch's storage says of a save.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct StorageMeta {
    pub(crate) checkpoint_id: Option<String>,
    pub(crate) save_id: Option<String>,
    pub(crate) load_id: Option<String>,
    pub(crate) modules: Vec<String>,
}

impl StorageMeta {
    /// That of a save to a URL. PyTorch puts a random id into `save_id`; nothing reads it, and equal saves shall give equal bytes.
    pub(crate) fn of_save(url: &str) -> Self {
        Self {
            checkpoint_id: Some(url.into()),
            ..Self::default()
        }
    }
}

/// Writes `.metadata` for items that lie at `results`, in order of ranks and of writing. `mcore_data` is there if a tensor is stored flattened,
/// or if it is asked for.
pub(crate) fn write(
    metadata: &Metadata,
    results: &[Vec<WriteResult>],
    flavour: Flavour,
    meta: &StorageMeta,
    mcore_data: bool,
) -> Result<Vec<u8>> {
    let mut w = Writer {
        e: Emitter::new(4),
        flavour,
        constants: BTreeMap::new(),
        keys: BTreeMap::new(),
    };
    w.metadata(metadata, results, meta)?;
    if mcore_data || metadata.tensors().any(|t| t.original_shape().is_some()) {
        w.mcore_data(metadata);
    }
    w.e.op(Op::SetItems);
    w.e.op(Op::Build);
    Ok(w.e.finish())
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Constant {
    Global(&'static str, &'static str),
    DType(DType),
    Layout,
    MemFormat(u8),
    Text(&'static str),
}

struct Writer<'m> {
    e: Emitter,
    flavour: Flavour,
    /// Memo numbers of what comes again and again.
    constants: BTreeMap<Constant, u32>,
    keys: BTreeMap<Cow<'m, [u8]>, u32>,
}

impl<'m> Writer<'m> {
    /// The object, up to the last of PyTorch's fields.
    fn metadata(
        &mut self,
        metadata: &'m Metadata,
        results: &'m [Vec<WriteResult>],
        meta: &StorageMeta,
    ) -> Result<()> {
        self.new_object(MD, "Metadata");
        self.e.op(Op::EmptyDict);
        self.e.op(Op::Mark);
        self.text("state_dict_metadata");
        self.state_dict_metadata(metadata);
        self.text("planner_data");
        self.planner_data(metadata.planner_data());
        self.text("storage_data");
        self.storage_data(metadata, results)?;
        if self.flavour.has_storage_meta() {
            self.text("storage_meta");
            self.storage_meta(meta);
            self.text("version");
            self.e.str("1.0.0");
        }
        Ok(())
    }

    /// Calls `each` between MARK and SETITEMS or APPENDS, in batches.
    fn batches<T>(
        &mut self,
        items: impl Iterator<Item = T>,
        end: Op<'static>,
        mut each: impl FnMut(&mut Self, T),
    ) {
        let mut n = 0;
        for item in items {
            if n == 0 {
                self.e.op(Op::Mark);
            }
            each(self, item);
            n += 1;
            if n == BATCH {
                self.e.op(end);
                n = 0;
            }
        }
        if n > 0 {
            self.e.op(end);
        }
    }

    fn state_dict_metadata(&mut self, metadata: &'m Metadata) {
        self.e.op(Op::EmptyDict);
        self.batches(metadata.entries(), Op::SetItems, |w, entry| {
            w.key(entry.key());
            match entry {
                Entry::Object(..) => w.new_object(MD, "BytesStorageMetadata"),
                Entry::Tensor(t) => {
                    w.new_object(MD, "TensorStorageMetadata");
                    w.e.op(Op::EmptyDict);
                    w.e.op(Op::Mark);
                    w.text("properties");
                    w.properties(t.dtype(), &t.properties());
                    w.text("size");
                    w.size(&t.shape());
                    w.text("chunks");
                    w.e.op(Op::EmptyList);
                    w.batches(t.chunks(), Op::Appends, |w, (_, region)| {
                        w.new_object(MD, "ChunkStorageMetadata");
                        w.e.op(Op::EmptyDict);
                        w.e.op(Op::Mark);
                        w.text("offsets");
                        w.size(&region.offsets);
                        w.text("sizes");
                        w.size(&region.lengths);
                        w.e.op(Op::SetItems);
                        w.e.op(Op::Build);
                    });
                    w.e.op(Op::SetItems);
                    w.e.op(Op::Build);
                }
            }
        });
    }

    fn properties(&mut self, dtype: DType, p: &TensorProperties) {
        let (module, format) = match self.flavour {
            Flavour::Universal => (SH, "MEM_FORMAT_ENCODING"),
            _ => (MD, "_MEM_FORMAT_ENCODING"),
        };
        self.new_object(module, "TensorProperties");
        self.e.op(Op::Mark);
        self.constant(Constant::DType(dtype), |w| {
            w.global_now("torch", dtype.name())
        });
        self.constant(Constant::Layout, |w| {
            w.global("torch.serialization", "_get_layout");
            w.e.str("torch.strided");
            w.e.op(Op::Tuple1);
            w.e.op(Op::Reduce);
        });
        self.e.bool(p.requires_grad);
        let code = p.memory_format as u8;
        self.constant(Constant::MemFormat(code), |w| {
            w.global(module, format);
            w.e.int(code.into());
            w.e.op(Op::Tuple1);
            w.e.op(Op::Reduce);
        });
        self.e.bool(p.pin_memory);
        if self.flavour == Flavour::Torch215 {
            match &p.strides {
                Some(s) => self.ints(s),
                None => self.e.none(),
            }
        }
        self.e.op(Op::Tuple);
        self.e.op(Op::Build);
    }

    fn planner_data(&mut self, data: Option<&'m PlannerData>) {
        match data {
            None => self.e.none(),
            Some(PlannerData::Paths(paths)) => {
                self.e.op(Op::EmptyDict);
                self.batches(paths.iter(), Op::SetItems, |w, (key, path)| {
                    w.key(key);
                    w.e.op(Op::Mark);
                    for step in &path.0 {
                        match step {
                            Step::Key(k) => w.plain_bytes(&unspell(k)),
                            Step::Index(i) => w.e.uint(*i),
                        }
                    }
                    w.e.op(Op::Tuple);
                });
            }
            Some(PlannerData::Str(s)) => self.plain_text(s),
            Some(PlannerData::List(items)) => {
                self.e.op(Op::EmptyList);
                self.batches(items.iter(), Op::Appends, |w, item| {
                    w.planner_data(Some(item))
                });
            }
            Some(PlannerData::Bytes(b)) => self.e.op(bytes_op(b)),
            // What a later version of the planner adds is not for PyTorch.
            Some(_) => self.e.none(),
        }
    }

    fn storage_data(
        &mut self,
        metadata: &'m Metadata,
        results: &'m [Vec<WriteResult>],
    ) -> Result<()> {
        // The closure below can't fail, so it keeps the first item without a chunk for the end.
        let mut lost = None;
        self.e.op(Op::EmptyDict);
        let parts = results
            .iter()
            .flatten()
            .map(|p| Ok((p, p.part()?)))
            .collect::<Result<Vec<_>>>()?;

        // Results come in the order of ranks and of writing, so equal saves give equal bytes.
        self.batches(parts.into_iter(), Op::SetItems, |w, (p, part)| {
            w.new_object(MD, "MetadataIndex");
            w.e.op(Op::EmptyDict);
            w.e.op(Op::Mark);
            w.text("fqn");
            w.key(&p.id.key);
            w.text("index");
            match &p.id.offset {
                None => w.e.none(),
                Some(offset) => {
                    // PyTorch finds the chunk faster by its index, and checks it by the offset.
                    let tensor = metadata.tensor(&p.id.key);
                    match tensor.and_then(|t| t.chunk_index(offset)) {
                        Some(i) => w.e.uint(i as u64),
                        None => {
                            lost.get_or_insert_with(|| p.id.to_string());
                            w.e.none();
                        }
                    }
                    w.text("offset");
                    w.size(offset);
                }
            }
            w.e.op(Op::SetItems);
            w.e.op(Op::Build);
            w.new_object(FS, "_StorageInfo");
            w.e.op(Op::EmptyDict);
            w.e.op(Op::Mark);
            w.text("relative_path");
            w.shared(part.file.as_str().as_bytes().into());
            w.text("offset");
            w.e.uint(part.range.start);
            w.text("length");
            w.e.uint(part.length());
            w.e.op(Op::SetItems);
            w.e.op(Op::Build);
        });
        match lost {
            Some(id) => Err(StrategyError::Internal(format!(
                "{id} was written, but is not in the plan's metadata"
            ))),
            None => Ok(()),
        }
    }

    /// What Megatron Core 0.8 to 0.15 look up when they load a flattened leaf: the original shape of each tensor that is stored flattened, and
    /// an empty dict for each other tensor.
    fn mcore_data(&mut self, metadata: &'m Metadata) {
        self.text("mcore_data");
        self.e.op(Op::EmptyDict);
        let tensors = metadata.entries().filter_map(|entry| match entry {
            Entry::Tensor(t) => Some(t),
            Entry::Object(..) => None,
        });
        self.batches(tensors, Op::SetItems, |w, t| {
            w.key(t.key());
            w.e.op(Op::EmptyDict);
            if let Some(original) = t.original_shape() {
                w.e.op(Op::Mark);
                w.text("nd_reformulated_orig_global_shape");
                w.ints(&original);
                w.e.op(Op::SetItems);
            }
        });
    }

    fn storage_meta(&mut self, meta: &StorageMeta) {
        self.new_object(MD, "StorageMeta");
        self.e.op(Op::EmptyDict);
        self.e.op(Op::Mark);
        self.text("checkpoint_id");
        self.optional(meta.checkpoint_id.as_deref());
        self.text("save_id");
        self.optional(meta.save_id.as_deref());
        self.text("load_id");
        self.optional(meta.load_id.as_deref());
        self.text("modules");
        self.e.op(Op::EmptyList);
        self.batches(meta.modules.iter(), Op::Appends, |w, module| {
            w.plain_text(module);
        });
        self.e.op(Op::SetItems);
        self.e.op(Op::Build);
    }

    fn optional(&mut self, text: Option<&str>) {
        match text {
            Some(text) => self.plain_text(text),
            None => self.e.none(),
        }
    }

    fn size(&mut self, dims: &[u64]) {
        self.global("torch", "Size");
        self.ints(dims);
        self.e.op(Op::Tuple1);
        self.e.op(Op::Reduce);
    }

    fn ints(&mut self, dims: &[u64]) {
        match dims.len() {
            0 => self.e.op(Op::EmptyTuple),
            1..=3 => {
                dims.iter().for_each(|&d| self.e.uint(d));
                self.e
                    .op([Op::Tuple1, Op::Tuple2, Op::Tuple3][dims.len() - 1]);
            }
            _ => {
                self.e.op(Op::Mark);
                dims.iter().for_each(|&d| self.e.uint(d));
                self.e.op(Op::Tuple);
            }
        }
    }

    fn new_object(&mut self, module: &'static str, name: &'static str) {
        self.global(module, name);
        self.e.op(Op::EmptyTuple);
        self.e.op(Op::NewObj);
    }

    fn global(&mut self, module: &'static str, name: &'static str) {
        self.constant(Constant::Global(module, name), |w| {
            w.global_now(module, name)
        });
    }

    fn global_now(&mut self, module: &'static str, name: &'static str) {
        self.text(module);
        self.text(name);
        self.e.op(Op::StackGlobal);
    }

    fn text(&mut self, s: &'static str) {
        self.constant(Constant::Text(s), |w| w.plain_text(s));
    }

    /// A text that comes only once.
    fn plain_text(&mut self, s: &str) {
        self.plain_bytes(s.as_bytes());
    }

    /// The same, in Python's UTF-8.
    fn plain_bytes(&mut self, s: &[u8]) {
        match u8::try_from(s.len()) {
            Ok(_) => self.e.op(Op::ShortBinUnicode(s)),
            Err(_) => self.e.op(Op::BinUnicode(s)),
        }
    }

    /// A key, in which lone surrogates are spelled.
    fn key(&mut self, key: &'m str) {
        self.shared(unspell(key));
    }

    /// A key or file name: written at its first use, named after that.
    fn shared(&mut self, text: Cow<'m, [u8]>) {
        match self.keys.get(&text) {
            Some(&id) => self.e.get(id),
            None => {
                self.plain_bytes(&text);
                let id = self.e.memoize();
                self.keys.insert(text, id);
            }
        }
    }

    fn constant(&mut self, c: Constant, write: impl FnOnce(&mut Self)) {
        match self.constants.get(&c) {
            Some(&id) => self.e.get(id),
            None => {
                write(self);
                let id = self.e.memoize();
                self.constants.insert(c, id);
            }
        }
    }
}

fn bytes_op(b: &[u8]) -> Op<'_> {
    match u8::try_from(b.len()) {
        Ok(_) => Op::ShortBinBytes(b),
        Err(_) => Op::BinBytes(b),
    }
}

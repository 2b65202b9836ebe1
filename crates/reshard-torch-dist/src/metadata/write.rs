//! The pickle of a `.metadata` file, in any flavour. Nothing in it depends on time, place or hash order.

use super::{
    names::{FS, MD, SH},
    spelling::unspell,
};
use crate::Flavour;
use reshard_model::{DType, Step};
use reshard_plan::{Entry, Metadata, PlannerData, TensorProperties};
use reshard_strategy::{Result, StorageInfo, StrategyError, WriteResult};
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
    // Everything that can fail comes first.
    let stored = results.iter().flatten().map(|p| Stored::of(metadata, p));
    let stored = stored.collect::<Result<Vec<_>>>()?;
    w.object(MD, "Metadata", |w| {
        w.text("state_dict_metadata");
        w.state_dict_metadata(metadata);
        w.text("planner_data");
        w.planner_data(metadata.planner_data());
        w.text("storage_data");
        w.storage_data(stored);
        if flavour.has_storage_meta() {
            w.text("storage_meta");
            w.storage_meta(meta);
            w.text("version");
            w.e.str("1.0.0");
        }
        if mcore_data || metadata.tensors().any(|t| t.original_shape().is_some()) {
            w.mcore_data(metadata);
        }
    });
    Ok(w.e.finish())
}

/// An item that was written.
struct Stored<'m> {
    written: &'m WriteResult,
    part: &'m StorageInfo,
    /// The number of a chunk among those of its tensor: PyTorch finds the chunk faster by it, and checks it by the offset.
    index: Option<usize>,
}

impl<'m> Stored<'m> {
    fn of(metadata: &Metadata, written: &'m WriteResult) -> Result<Self> {
        let (id, part) = (&written.id, written.part()?);
        let index = match &id.offset {
            None => None,
            Some(offset) => {
                let tensor = metadata.tensor(&id.key);
                let index = tensor.and_then(|t| t.chunk_index(offset));
                let what = || format!("{id} was written, but is not in the plan's metadata");
                Some(index.ok_or_else(|| StrategyError::Internal(what()))?)
            }
        };
        Ok(Self {
            written,
            part,
            index,
        })
    }
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
                Entry::Tensor(t) => w.object(MD, "TensorStorageMetadata", |w| {
                    w.text("properties");
                    w.properties(t.dtype(), &t.properties());
                    w.text("size");
                    w.size(&t.shape());
                    w.text("chunks");
                    w.e.op(Op::EmptyList);
                    w.batches(t.chunks(), Op::Appends, |w, (_, region)| {
                        w.object(MD, "ChunkStorageMetadata", |w| {
                            w.text("offsets");
                            w.size(&region.offsets);
                            w.text("sizes");
                            w.size(&region.lengths);
                        });
                    });
                }),
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
                Some(s) => self.e.ints(s),
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
                            Step::Key(k) => w.e.raw_str(&unspell(k)),
                            Step::Index(i) => w.e.uint(*i),
                        }
                    }
                    w.e.op(Op::Tuple);
                });
            }
            Some(PlannerData::Str(s)) => self.e.raw_str(s.as_bytes()),
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

    /// Results come in the order of ranks and of writing, so equal saves give equal bytes.
    fn storage_data(&mut self, stored: Vec<Stored<'m>>) {
        self.e.op(Op::EmptyDict);
        self.batches(stored.into_iter(), Op::SetItems, |w, stored| {
            let (id, part) = (&stored.written.id, stored.part);
            w.object(MD, "MetadataIndex", |w| {
                w.text("fqn");
                w.key(&id.key);
                w.text("index");
                match stored.index {
                    None => w.e.none(),
                    Some(i) => w.e.uint(i as u64),
                }
                if let Some(offset) = &id.offset {
                    w.text("offset");
                    w.size(offset);
                }
            });
            w.object(FS, "_StorageInfo", |w| {
                w.text("relative_path");
                w.shared(part.file.as_str().as_bytes().into());
                w.text("offset");
                w.e.uint(part.range.start);
                w.text("length");
                w.e.uint(part.length());
            });
        });
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
                w.e.ints(&original);
                w.e.op(Op::SetItems);
            }
        });
    }

    fn storage_meta(&mut self, meta: &StorageMeta) {
        self.object(MD, "StorageMeta", |w| {
            for (name, text) in [
                ("checkpoint_id", &meta.checkpoint_id),
                ("save_id", &meta.save_id),
                ("load_id", &meta.load_id),
            ] {
                w.text(name);
                match text {
                    Some(text) => w.e.raw_str(text.as_bytes()),
                    None => w.e.none(),
                }
            }
            w.text("modules");
            w.e.op(Op::EmptyList);
            w.batches(meta.modules.iter(), Op::Appends, |w, module| {
                w.e.raw_str(module.as_bytes());
            });
        });
    }

    fn size(&mut self, dims: &[u64]) {
        self.global("torch", "Size");
        self.e.ints(dims);
        self.e.op(Op::Tuple1);
        self.e.op(Op::Reduce);
    }

    /// An object with these fields.
    fn object(&mut self, module: &'static str, name: &'static str, fields: impl FnOnce(&mut Self)) {
        self.new_object(module, name);
        self.e.op(Op::EmptyDict);
        self.e.op(Op::Mark);
        fields(self);
        self.e.op(Op::SetItems);
        self.e.op(Op::Build);
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
        self.constant(Constant::Text(s), |w| w.e.raw_str(s.as_bytes()));
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
                self.e.raw_str(&text);
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

use crate::{
    Error, Result,
    pickle::{Emitter, Graph, Id, Node, Op, is_allowed},
};
use reshard_model::DType;

/// The device of a storage: `cpu`, `cuda:0`, …
pub type Location = Box<str>;

/// A storage, as a pickle describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StorageRef {
    /// Its key. Its record is `data/{key}`.
    pub key: Box<str>,
    /// The type of its elements. `None` for a storage of bytes.
    pub dtype: Option<DType>,
    /// Its length in bytes.
    pub len: u64,
    /// The device it was on.
    pub location: Location,
}

/// The storage classes that every torch has. Newer element types use untyped storages.
const LEGACY: &[(DType, &str)] = &[
    (DType::Float64, "DoubleStorage"),
    (DType::Float32, "FloatStorage"),
    (DType::Float16, "HalfStorage"),
    (DType::BFloat16, "BFloat16Storage"),
    (DType::Int64, "LongStorage"),
    (DType::Int32, "IntStorage"),
    (DType::Int16, "ShortStorage"),
    (DType::Int8, "CharStorage"),
    (DType::UInt8, "ByteStorage"),
    (DType::Bool, "BoolStorage"),
    (DType::Complex64, "ComplexFloatStorage"),
    (DType::Complex128, "ComplexDoubleStorage"),
];

/// The storage classes of bytes, and those of quantized tensors, whose elements reshard does not know, with bytes per element.
const OTHERS: &[(&str, u64)] = &[
    ("UntypedStorage", 1),
    ("_UntypedStorage", 1),
    ("QInt8Storage", 1),
    ("QUInt8Storage", 1),
    ("QInt32Storage", 4),
    ("QUInt4x2Storage", 1),
    ("QUInt2x4Storage", 1),
];

pub(super) fn legacy_name(dtype: DType) -> Option<&'static str> {
    let mut classes = LEGACY.iter();
    classes.find(|(d, _)| *d == dtype).map(|(_, name)| *name)
}

fn legacy_dtype(name: &str) -> Option<DType> {
    let mut classes = LEGACY.iter();
    classes.find(|(_, n)| *n == name).map(|(dtype, _)| *dtype)
}

/// Bytes per element of a storage class; `None` for an unknown class.
pub(crate) fn element_size(name: &str) -> Option<u64> {
    let mut others = OTHERS.iter();
    let other = others.find(|(n, _)| *n == name).map(|(_, size)| *size);
    other.or_else(|| Some(legacy_dtype(name)?.size()))
}

impl StorageRef {
    /// A storage of `len` bytes on the CPU.
    pub fn new(key: &str, dtype: Option<DType>, len: u64) -> Self {
        Self {
            key: key.into(),
            dtype,
            len,
            location: "cpu".into(),
        }
    }

    /// Name of its record, without the archive's prefix.
    pub fn record(&self) -> String {
        format!("data/{}", self.key)
    }

    /// Compares its length with that of its record.
    ///
    /// # Errors
    /// [`Error::Tensor`] when they differ.
    pub fn check(&self, record: u64) -> Result<()> {
        let Self { key, len, .. } = self;
        if *len == record {
            return Ok(());
        }
        let what = format!("the pickle says that it has {len} bytes, but its record has {record}");
        Err(Error::tensor(key, what))
    }

    /// Writes it into a pickle.
    ///
    /// # Errors
    /// [`Error::Encode`] for names that a pickle can't hold.
    pub fn emit(&self, e: &mut Emitter) -> Result<()> {
        match self.dtype.and_then(|d| Some((legacy_name(d)?, d.size()))) {
            Some((name, size)) => self.emit_as(e, "torch", name, size),
            None => self.emit_as(e, "torch.storage", "UntypedStorage", 1),
        }
    }

    /// Writes it as a storage of another class.
    pub(crate) fn emit_as(
        &self,
        e: &mut Emitter,
        module: &str,
        class: &str,
        size: u64,
    ) -> Result<()> {
        e.op(Op::Mark);
        e.str("storage");
        e.global(module, class)?;
        e.str(&self.key);
        e.str(&self.location);
        e.uint(self.len / size.max(1));
        e.op(Op::Tuple);
        e.memoize();
        e.op(Op::BinPersId);
        Ok(())
    }
}

/// A storage from a persistent id, with its class.
#[derive(Debug)]
pub(crate) struct Stored<'g> {
    pub(crate) storage: StorageRef,
    pub(crate) module: &'g str,
    pub(crate) class: &'g str,
    /// The first element, if an old file refers to a part of another storage.
    pub(crate) view: u64,
}

/// Reads `("storage", class, key, location, elements)`; `None` if the node is something else.
pub(crate) fn storage_of<'g>(graph: &'g Graph<'_>, id: Id) -> Result<Option<Stored<'g>>> {
    let Node::Persistent(tuple) = graph.node(id) else {
        return Ok(None);
    };
    let bad = |what: &str| Error::tensor("?", format!("a storage is described wrongly: {what}"));
    let no_storage = || graph.unsupported(id, "a persistent id that is not a storage");

    // Old files add a sixth field, the view.
    let (tag, class, key, location, count, view) = match graph.as_seq(*tuple) {
        Some(&[tag, class, key, location, count]) => (tag, class, key, location, count, None),
        Some(&[tag, class, key, location, count, view]) => {
            (tag, class, key, location, count, Some(view))
        }
        _ => return Err(no_storage()),
    };
    if graph.as_str(tag) != Some("storage") {
        return Err(no_storage());
    }
    let (module, class) = graph
        .as_global(class)
        .ok_or_else(|| bad("its class has no name"))?;
    let is_torchs = matches!(module, "torch" | "torch.storage" | "torch.cuda");
    if !is_torchs || !is_allowed(module, class) {
        return Err(bad("its class is not torch's"));
    }
    let (Some(key), Some(location)) = (graph.as_str(key), graph.as_str(location)) else {
        return Err(bad("its key or location is not a str"));
    };

    // The key becomes the name of a record, so it must not lead out of the archive's folder.
    if key.is_empty()
        || key.len() > 1000
        || key.contains(['\\', '\0'])
        || key.split('/').any(|p| p == "..")
    {
        return Err(bad("its key can't be the name of a record"));
    }
    if location.len() > 1000 {
        return Err(bad("its location is longer than any location can be"));
    }
    let Some(size) = element_size(class) else {
        return Err(graph.unsupported(id, format!("a storage of class {module}.{class}")));
    };

    // The pickle counts elements, and the record bytes. A product too large is refused, since later arithmetic relies
    // on it.
    let count = graph.as_int(count).and_then(|n| u64::try_from(n).ok());
    let len = count
        .and_then(|n| n.checked_mul(size))
        .filter(|n| *n <= i64::MAX as u64);
    let Some(len) = len else {
        return Err(Error::tensor(key, "its number of elements is impossible"));
    };
    let first = |view: Id| match graph.node(view) {
        Node::None => Some(0),
        _ => match graph.as_seq(view)? {
            &[_, first, _] => u64::try_from(graph.as_int(first)?).ok(),
            _ => None,
        },
    };
    let view = view.map_or(Some(0), first);
    let view = view.ok_or_else(|| bad("its view is wrong"))?;
    let storage = StorageRef {
        key: key.into(),
        dtype: legacy_dtype(class),
        len,
        location: location.into(),
    };
    Ok(Some(Stored {
        storage,
        module,
        class,
        view,
    }))
}

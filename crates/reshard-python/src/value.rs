//! Values of reshard as Python values, and back.

use crate::{
    error::{Raise as _, about, own},
    memory::{Memories, Strided, regions},
};
use bytes::Bytes;
use pyo3::{
    IntoPyObjectExt as _,
    prelude::*,
    types::{PyBool, PyBytes, PyDict, PyFloat, PyInt, PyList, PySet, PyString, PyTuple},
};
use reshard::{
    Region, Tensor, Value, ValueTree,
    model::{Construct, ObjectCodec as _, Opaque, Step},
};
use reshard_torch_format::{
    TorchSave,
    pickle::{Verdict, verdict},
};

/// A tensor in memory of reshard, which Python copies into memory of its own.
#[pyclass(frozen, module = "reshard._reshard")]
pub(crate) struct HostTensor(Tensor);

impl HostTensor {
    pub(crate) fn new(tensor: Tensor) -> Self {
        Self(tensor)
    }
}

#[pymethods]
impl HostTensor {
    /// PyTorch's name of the element type.
    #[getter]
    fn dtype(&self) -> &'static str {
        self.0.dtype().name()
    }

    /// Elements along each axis.
    #[getter]
    fn shape(&self) -> Vec<u64> {
        self.0.shape().to_vec()
    }

    /// The elements in row-major order.
    fn tobytes<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.to_bytes())
    }

    /// Copies the elements into other memory of the same shape and type.
    fn copy_into(&self, py: Python<'_>, into: Strided) -> PyResult<()> {
        let into = Memories::default().tensor(py, "", into)?;
        let fill = || {
            let whole = [Region::whole(into.shape())];
            let mut all = regions("", into, &whole)?.into_iter();
            all.try_for_each(|region| region.fill(&self.0.to_bytes()))
        };
        py.detach(fill).raised(py)
    }
}

/// A value as Python's. Tensors become what `reshard._objects.tensor` makes of them, unknown classes inert objects.
pub(crate) fn to_python<'py>(py: Python<'py>, value: &Value) -> PyResult<Bound<'py, PyAny>> {
    let list = |all: &[Value]| {
        all.iter()
            .map(|v| to_python(py, v))
            .collect::<PyResult<Vec<_>>>()
    };
    match value {
        Value::None => Ok(py.None().into_bound(py)),
        Value::Bool(b) => b.into_bound_py_any(py),
        Value::Int(i) => i.into_bound_py_any(py),
        Value::BigInt(bytes) => big_int(py, bytes),
        Value::Float(f) => f.into_bound_py_any(py),
        Value::Str(s) => s.into_bound_py_any(py),
        Value::Bytes(b) => Ok(PyBytes::new(py, b).into_any()),
        Value::List(all) => Ok(PyList::new(py, list(all)?)?.into_any()),
        Value::Tuple(all) => Ok(PyTuple::new(py, list(all)?)?.into_any()),
        Value::Set(all) => Ok(PySet::new(py, list(all)?)?.into_any()),
        Value::Dict(all) => {
            let dict = PyDict::new(py);
            for (key, value) in all {
                dict.set_item(to_python(py, key)?, to_python(py, value)?)?;
            }
            Ok(dict.into_any())
        }
        Value::Tensor(tensor) => {
            let here = Bound::new(py, HostTensor(tensor.clone()))?;
            objects(py)?.call_method1("tensor", (here,))
        }
        Value::Opaque(opaque) => inert(py, opaque),
        Value::Local(_) => Ok(py.None().into_bound(py)),
        other => {
            let text = format!(
                "a value of type {} can't be shown in Python",
                other.type_name()
            );
            Err(own(py, "UnsupportedError", &text))
        }
    }
}

/// A value of Python's own types. Others are for `torch.save`.
///
/// # Errors
/// A value of another type.
pub(crate) fn from_python(value: &Bound<'_, PyAny>) -> PyResult<Value> {
    let list = |all: &Bound<'_, PyAny>| -> PyResult<Vec<Value>> {
        all.try_iter()?.map(|one| from_python(&one?)).collect()
    };
    if value.is_none() {
        return Ok(Value::None);
    }
    if let Ok(flag) = value.cast::<PyBool>() {
        return Ok(Value::Bool(flag.is_true()));
    }
    if value.is_instance_of::<PyInt>() {
        return match value.extract() {
            Ok(int) => Ok(Value::Int(int)),
            Err(_) => big_int_of(value),
        };
    }
    if value.is_instance_of::<PyFloat>() {
        return Ok(Value::Float(value.extract()?));
    }
    if let Ok(text) = value.cast::<PyString>() {
        return Ok(Value::Str(text.to_cow()?.into()));
    }
    if let Ok(bytes) = value.cast::<PyBytes>() {
        return Ok(Value::Bytes(Bytes::copy_from_slice(bytes.as_bytes())));
    }
    if value.is_instance_of::<PyList>() {
        return Ok(Value::List(list(value)?));
    }
    if value.is_instance_of::<PyTuple>() {
        return Ok(Value::Tuple(list(value)?));
    }
    if value.is_instance_of::<PySet>() {
        return Ok(Value::Set(list(value)?));
    }
    if let Ok(dict) = value.cast::<PyDict>() {
        let pairs = dict
            .iter()
            .map(|(k, v)| Ok((from_python(&k)?, from_python(&v)?)));
        return Ok(Value::Dict(pairs.collect::<PyResult<_>>()?));
    }
    let text = format!(
        "a value of type {} is none of Python's own",
        value.get_type().name()?
    );
    Err(own(value.py(), "UnsupportedError", &text))
}

/// An integer of more than 64 bits, in as few bytes as hold its sign, too.
fn big_int_of(value: &Bound<'_, PyAny>) -> PyResult<Value> {
    let bits: usize = value.call_method0("bit_length")?.extract()?;
    let how = PyDict::new(value.py());
    how.set_item("signed", true)?;
    let bytes = value.call_method("to_bytes", (bits / 8 + 1, "little"), Some(&how))?;
    let bytes: Vec<u8> = bytes.extract()?;
    Ok(Value::BigInt(bytes.into()))
}

/// A tree of values as dicts and lists.
pub(crate) fn tree_to_python<'py>(
    py: Python<'py>,
    tree: &ValueTree,
) -> PyResult<Bound<'py, PyAny>> {
    match tree {
        ValueTree::Leaf(value) => to_python(py, value),
        ValueTree::List(all) => {
            let all: PyResult<Vec<_>> = all.iter().map(|t| tree_to_python(py, t)).collect();
            Ok(PyList::new(py, all?)?.into_any())
        }
        ValueTree::Dict(all) => {
            let dict = PyDict::new(py);
            for (step, tree) in all {
                let key = match step {
                    Step::Key(key) => key.into_bound_py_any(py)?,
                    Step::Index(index) => index.into_bound_py_any(py)?,
                };
                dict.set_item(key, tree_to_python(py, tree)?)?;
            }
            Ok(dict.into_any())
        }
    }
}

fn objects(py: Python<'_>) -> PyResult<Bound<'_, PyModule>> {
    py.import("reshard._objects")
}

/// An integer of more than 64 bits: two's complement, little-endian, as in a pickle.
fn big_int<'py>(py: Python<'py>, bytes: &[u8]) -> PyResult<Bound<'py, PyAny>> {
    let how = PyDict::new(py);
    how.set_item("signed", true)?;
    let int = py.import("builtins")?.getattr("int")?;
    int.call_method(
        "from_bytes",
        (PyBytes::new(py, bytes), "little"),
        Some(&how),
    )
}

/// An object of a class that nobody imports.
fn inert<'py>(py: Python<'py>, opaque: &Opaque) -> PyResult<Bound<'py, PyAny>> {
    let list = |all: &[Value]| {
        all.iter()
            .map(|v| to_python(py, v))
            .collect::<PyResult<Vec<_>>>()
    };
    let (args, kwargs) = match &opaque.construct {
        Construct::Reduce(args) | Construct::NewObj(args) => (Some(args), Vec::new()),
        Construct::NewObjEx(args, kwargs) => (Some(args), kwargs.clone()),
        // The class itself.
        _ => (None, Vec::new()),
    };
    let args = match args {
        Some(args) => PyTuple::new(py, list(args)?)?.into_any(),
        None => py.None().into_bound(py),
    };
    let kwargs = to_python(py, &Value::Dict(kwargs))?;
    let state = match &opaque.state {
        Some(state) => to_python(py, state)?,
        None => py.None().into_bound(py),
    };
    let items = PyList::new(py, list(&opaque.items)?)?;
    let pairs = opaque.pairs.iter();
    let pairs: PyResult<Vec<_>> = pairs
        .map(|(k, v)| Ok((to_python(py, k)?, to_python(py, v)?)))
        .collect();
    objects(py)?.call_method1("made", (opaque.class(), args, kwargs, state, items, pairs?))
}

/// The first class or function of a value that Python must not import, with what is known of it.
pub(crate) fn not_allowed(value: &Value) -> Option<(String, Verdict)> {
    let mut found = None;
    // It visits all parts, and changes none.
    value.clone().visit_mut(&mut |part| {
        if let Value::Opaque(opaque) = part
            && found.is_none()
        {
            let verdict = verdict(&opaque.module, &opaque.name);
            found = (verdict != Verdict::Allowed).then(|| (opaque.class(), verdict));
        }
    });
    found
}

/// The pickle of a value in a file of `torch.save`, which holds no class or function that Python must not import.
pub(crate) fn pickled(py: Python<'_>, key: &str, value: &Value) -> PyResult<Bytes> {
    if let Some((class, verdict)) = not_allowed(value) {
        let text = format!(
            "{key}: it is a pickle that refers to {class}, which is {}; planners of PyTorch unpickle what they read, so it is refused. If you trust \
             whoever wrote the checkpoint, pass allow_pickle=True",
            match verdict {
                Verdict::RunsCode => "known to run code",
                _ => "not known to be harmless",
            }
        );
        return Err(about(py, "PickleError", key, &text));
    }
    let encoded = TorchSave::default().encode(value);
    encoded.map_err(|e| about(py, "UnsupportedError", key, &format!("{key}: {e}")))
}

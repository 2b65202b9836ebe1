//! `__metadata__` of torchao's quantised tensors, as `torchao.prototype.safetensors` writes it.
//!
//! It has an entry for each tensor of the state dict with its class and attributes, and `tensor_names` lists these entries. The inner tensors
//! of `layer.weight` are `layer._weight_qdata`, `layer._weight_scale` and so on.

use reshard_model::{Construct, Opaque, Value, some};
use reshard_plan::{AnnotationKind, Annotations, Metadata, PlanError, Result};
use reshard_torch_format::Subclass;
use serde_json::Value as Json;
use std::collections::{BTreeMap, BTreeSet};

/// The entry that lists the tensors.
pub(crate) const NAMES: &str = "tensor_names";

/// A class that torchao opens from safetensors: its name, its inner tensors and its attributes, in the order in which torchao writes them.
type Class = (
    &'static str,
    &'static [&'static str],
    &'static [&'static str],
);

const CLASSES: &[Class] = &[
    (
        "Float8Tensor",
        &["qdata", "scale"],
        &[
            "block_size",
            "mm_config",
            "act_quant_kwargs",
            "kernel_preference",
            "dtype",
        ],
    ),
    (
        "Int4PlainInt32Tensor",
        &["act_pre_scale", "qdata", "scale", "zero_point"],
        &["block_size", "shape"],
    ),
    (
        "Int4Tensor",
        &["act_pre_scale", "qdata", "scale", "zero_point"],
        &["activation_dtype", "block_size", "shape"],
    ),
    (
        "Int4TilePackedTo4dTensor",
        &["act_pre_scale", "qdata", "scale_and_zero"],
        &["block_size", "shape"],
    ),
    (
        "Int8Tensor",
        &[
            "zero_point",
            "act_quant_scale",
            "act_quant_zero_point",
            "act_pre_scale",
            "qdata",
            "scale",
        ],
        &["act_quant_kwargs", "reduce_range", "block_size", "dtype"],
    ),
    (
        "IntxUnpackedToInt8Tensor",
        &["qdata", "scale", "zero_point"],
        &[
            "target_dtype",
            "block_size",
            "dtype",
            "activation_quantization",
        ],
    ),
    (
        "MXTensor",
        &["qdata", "scale"],
        &[
            "elem_dtype",
            "block_size",
            "orig_dtype",
            "kernel_preference",
            "act_quant_kwargs",
            "is_swizzled_scales",
        ],
    ),
    (
        "NVFP4Tensor",
        &["per_tensor_scale", "act_per_tensor_scale", "qdata", "scale"],
        &[
            "is_swizzled_scales",
            "use_triton_kernel",
            "act_quant_kwargs",
            "block_size",
            "orig_dtype",
        ],
    ),
];

/// Enums that torchao opens from safetensors: the names of their values.
const ENUMS: &[(&str, &[(&str, &str)])] = &[
    (
        "KernelPreference",
        &[
            ("auto", "AUTO"),
            ("torch", "TORCH"),
            ("mslk", "MSLK"),
            ("emulated", "EMULATED"),
            ("triton", "TRITON"),
        ],
    ),
    (
        "MappingType",
        &[
            ("1", "SYMMETRIC"),
            ("2", "SYMMETRIC_NO_CLIPPING_ERR"),
            ("3", "ASYMMETRIC"),
        ],
    ),
    (
        "ScaleCalculationMode",
        &[
            ("floor", "FLOOR"),
            ("rceil", "RCEIL"),
            ("ceil", "CEIL"),
            ("even", "EVEN"),
        ],
    ),
];

/// The fields of the only named tuple.
const MM_CONFIG: (&str, &[&str]) = (
    "Float8MMConfig",
    &["emulate", "use_fast_accum", "pad_inner_dim"],
);

/// Classes of attributes that torchao opens from safetensors.
const ATTRIBUTES: &[&str] = &[
    "PerRow",
    "PerTensor",
    "QuantizeTensorToFloat8Kwargs",
    "QuantizeTensorToInt8Kwargs",
    "QuantizeTensorToMXKwargs",
    "QuantizeTensorToNVFP4Kwargs",
];

/// How many tensors of which classes the metadata of a checkpoint states, in words.
pub(crate) fn note(annotations: &Annotations) -> Option<String> {
    let texts = annotations.of_all_files(AnnotationKind::Text);
    let texts = texts.filter_map(|(id, value)| Some((&*id.name, value.as_str()?)));
    let texts: BTreeMap<&str, &str> = texts.collect();
    let names: Vec<String> = serde_json::from_str(texts.get(NAMES)?).ok()?;
    let mut classes: BTreeMap<String, u64> = BTreeMap::new();
    for text in names.iter().filter_map(|name| texts.get(&**name)) {
        let entry: Json = serde_json::from_str(text).ok()?;
        let class = entry.get("_type")?.as_str()?;
        if class != "Tensor" {
            *classes.entry(class.to_owned()).or_default() += 1;
        }
    }
    let classes = classes.iter();
    let classes: Vec<String> = classes
        .map(|(class, n)| format!("{} of class {class}", some(*n, "tensor")))
        .collect();
    (!classes.is_empty()).then(|| format!("quantised by torchao: {}", classes.join(", ")))
}

/// The entries of `__metadata__`, if a checkpoint has a tensor of torchao.
///
/// # Errors
/// A tensor that torchao could not open from the file.
pub(crate) fn texts(metadata: &Metadata) -> Result<BTreeMap<Box<str>, String>> {
    let all = metadata.annotations();
    let mut all = all.of_all_files(AnnotationKind::TensorSubclass).peekable();
    let mut out = BTreeMap::new();
    if all.peek().is_none() {
        return Ok(out);
    }
    let mut inner = BTreeSet::new();
    for (id, value) in all {
        let key = id.path.to_string();
        let refused = |what: &str| PlanError::Unsupported {
            key: key.as_str().into(),
            what: format!("{what}; a file of torch.save has a place for it"),
        };
        let subclass = Subclass::of(value).ok_or_else(|| refused("it is no tensor of torchao"))?;
        if !key.contains('.') {
            return Err(refused(
                "torchao opens a tensor from safetensors only below a module, such as in layer.weight",
            ));
        }
        let text = text(&subclass).ok_or_else(|| {
            let what = format!(
                "torchao does not open its class {} with these attributes from safetensors",
                subclass.name()
            );
            refused(&what)
        })?;
        let paths = subclass.inner();
        let paths = paths
            .iter()
            .filter_map(|name| Subclass::inner_path(&id.path, name));
        inner.extend(paths.map(|path| path.to_string()));
        out.insert(key.into(), text);
    }
    let plain = metadata.tensors().filter(|t| !inner.contains(t.key()));
    for tensor in plain {
        out.insert(tensor.key().into(), r#"{"_type": "Tensor"}"#.into());
    }
    let names: Vec<String> = out.keys().map(|name| quoted(name)).collect();
    out.insert(NAMES.into(), format!("[{}]", names.join(", ")));
    Ok(out)
}

/// The entry of a tensor. `None` if torchao could not open it.
fn text(subclass: &Subclass) -> Option<String> {
    let (class, tensors, names) = CLASSES.iter().find(|class| class.0 == subclass.name())?;
    let held: BTreeSet<String> = subclass.inner().into_iter().collect();
    if !held.iter().all(|name| tensors.contains(&&**name)) {
        return None;
    }
    let own: BTreeMap<&str, &Value> = subclass.attributes().collect();
    let mut attributes = Vec::new();
    for name in *names {
        // These two describe the tensor for which it stands.
        let described = match *name {
            "dtype" => subclass.args().get(1),
            "shape" => subclass.args().get(2),
            _ => None,
        };
        // An attribute of a later version.
        let Some(value) = own.get(name).copied().or(described) else {
            continue;
        };
        attributes.push(format!("{}: {}", quoted(name), json(value)?));
    }
    let held = tensors.iter().filter(|name| held.contains(**name));
    let held: Vec<String> = held.map(|name| quoted(name)).collect();
    Some(format!(
        r#"{{"_type": {}, "_data": {{{}}}, "_tensor_data_names": [{}]}}"#,
        quoted(class),
        attributes.join(", "),
        held.join(", ")
    ))
}

fn quoted(text: &str) -> String {
    Json::from(text).to_string()
}

/// A value as JSON of torchao, with the spaces of Python's `json.dumps`.
fn json(value: &Value) -> Option<String> {
    Some(match value {
        Value::None => "null".into(),
        Value::Bool(v) => v.to_string(),
        Value::Int(v) => v.to_string(),
        Value::Float(v) => Json::from(*v).to_string(),
        Value::Str(v) => quoted(v),
        Value::List(v) | Value::Tuple(v) => {
            let items: Option<Vec<String>> = v.iter().map(json).collect();
            format!("[{}]", items?.join(", "))
        }
        Value::Opaque(o) => match (&*o.module, &o.construct, &o.state) {
            ("torch", Construct::Global, None) => typed("torch.dtype", &quoted(&o.name)),
            ("torch", Construct::Reduce(args), None) if &*o.name == "Size" => json(args.first()?)?,
            _ => object(o)?,
        },
        _ => return None,
    })
}

fn object(o: &Opaque) -> Option<String> {
    let name = o.name.rsplit('.').next()?;
    match (&o.construct, &o.state) {
        (Construct::Reduce(args), None) => {
            let (_, values) = ENUMS.iter().find(|(class, _)| *class == name)?;
            let value = match args.as_slice() {
                [Value::Int(n)] => n.to_string(),
                [Value::Str(s)] => s.to_string(),
                _ => return None,
            };
            let (_, value) = values.iter().find(|(own, _)| *own == value)?;
            Some(typed(name, &quoted(value)))
        }
        (Construct::NewObj(args), None) if name == MM_CONFIG.0 => {
            fields(name, MM_CONFIG.1.iter().copied().zip(args))
        }
        (Construct::NewObj(args), state) if args.is_empty() && ATTRIBUTES.contains(&name) => {
            let pairs = match state {
                Some(Value::Dict(pairs)) => pairs.as_slice(),
                None => &[],
                Some(_) => return None,
            };
            let named = pairs.iter().map(|(k, v)| Some((k.as_str()?, v)));
            let named: Option<Vec<(&str, &Value)>> = named.collect();
            fields(name, named?.into_iter())
        }
        _ => None,
    }
}

fn fields<'a>(class: &str, pairs: impl Iterator<Item = (&'a str, &'a Value)>) -> Option<String> {
    let pairs = pairs.map(|(name, value)| Some(format!("{}: {}", quoted(name), json(value)?)));
    let pairs: Option<Vec<String>> = pairs.collect();
    Some(typed(class, &format!("{{{}}}", pairs?.join(", "))))
}

fn typed(class: &str, data: &str) -> String {
    format!(r#"{{"_type": {}, "_data": {data}}}"#, quoted(class))
}

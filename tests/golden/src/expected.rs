//! What the writers of fixtures say of them, in one form for all families.

use crate::Family;
use reshard::{
    DType,
    model::{Dims, Path, Step},
};
use serde_json::Value as Json;
use std::collections::BTreeMap;

type Result<T> = std::result::Result<T, String>;

/// What is known of a checkpoint.
#[derive(Debug)]
pub struct Expected {
    /// The format: `torch_dist` or `zarr`.
    pub backend: String,
    /// Whether it is as its writer left it.
    pub sound: bool,
    /// Whether a reader can know that it is damaged; only of damaged ones.
    pub detectable: bool,
    /// In words.
    pub description: String,
    /// Tensors as they are stored, by key; of a damaged checkpoint what they were before, as far as that is known.
    pub tensors: BTreeMap<String, TensorFacts>,
    /// Objects by key.
    pub objects: BTreeMap<String, Object>,
    /// Common state of Megatron Core.
    pub common: Option<Says>,
    /// Sizes of all files of the checkpoint, by name.
    pub files: BTreeMap<String, u64>,
    /// Tensors that Megatron Core saved as flattened ranges, with the shape in which they are stored.
    pub flattened: BTreeMap<String, Dims>,
    /// Whether the checkpoint keeps the nesting of the state dict; `None` when it is not known.
    pub nested: Option<bool>,
    /// Calls of the real loader, with what came out.
    pub loads: Vec<Json>,
    /// Items that torch itself can't load.
    pub beyond_torch: Vec<String>,
}

/// What is known of a tensor.
#[derive(Clone, Debug)]
pub struct TensorFacts {
    /// Element type.
    pub dtype: DType,
    /// Shape of the whole.
    pub shape: Dims,
    /// SHA-256 of its row-major little-endian bytes.
    pub sha256: String,
    /// Where it lay in the state dict.
    pub path: Option<Path>,
    /// Its chunks, if they are known.
    pub chunks: Option<Vec<Chunk>>,
}

/// A stored part of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// First element.
    pub offsets: Dims,
    /// Elements per axis.
    pub sizes: Dims,
    /// Where it is stored.
    pub place: Option<Place>,
}

/// Where an item is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Name of the file.
    pub file: String,
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub length: u64,
}

/// What is known of an object.
#[derive(Clone, Debug)]
pub struct Object {
    /// Its content.
    pub says: Says,
    /// Where it lay in the state dict.
    pub path: Option<Path>,
    /// Where it is stored.
    pub place: Option<Place>,
}

/// What Python said of a value.
#[derive(Clone, Debug)]
pub enum Says {
    /// `repr(value)`, and the class if it is known.
    Repr(String, Option<String>),
    /// The lossless form of Megatron's fixtures.
    Typed(Json),
    /// Nothing but that it is there.
    Nothing,
}

impl TensorFacts {
    /// What an `expected.json` says of a tensor.
    ///
    /// # Errors
    /// What is missing.
    pub fn parse(t: &Json) -> Result<Self> {
        facts(t)
    }
}

impl Expected {
    /// Reads an `expected.json`; `None` when it is of another format.
    ///
    /// # Errors
    /// What is missing.
    pub fn parse(family: Family, text: &str) -> Result<Option<Self>> {
        let json: Json = serde_json::from_str(text).map_err(|e| e.to_string())?;
        match family {
            Family::Dcp => dcp(&json),
            Family::Megatron => megatron(&json),
        }
    }

    /// Whether Megatron Core wraps what a cell of an array of objects holds into a list.
    pub fn wraps_objects(&self) -> bool {
        self.backend == "torch_dist"
    }

    fn new(json: &Json) -> Self {
        let text = |name: &str| json[name].as_str().unwrap_or_default().to_owned();
        Self {
            backend: json["backend"].as_str().unwrap_or("torch_dist").into(),
            sound: json.get("expect").is_none_or(|e| e == "ok"),
            detectable: json["detectable_by_reader"].as_bool().unwrap_or(false),
            description: text("description") + &text("note"),
            tensors: BTreeMap::new(),
            objects: BTreeMap::new(),
            common: None,
            files: BTreeMap::new(),
            flattened: BTreeMap::new(),
            nested: None,
            loads: Vec::new(),
            beyond_torch: Vec::new(),
        }
    }
}

fn dcp(json: &Json) -> Result<Option<Expected>> {
    if json["format"] == "safetensors" {
        return Ok(None);
    }
    let mut out = Expected::new(json);
    if !out.sound {
        for (key, t) in json["undamaged"].as_object().into_iter().flatten() {
            out.tensors.insert(key.clone(), facts(t)?);
        }
        return Ok(Some(out));
    }
    for (name, size) in object(&json["files"], "files")? {
        out.files.insert(
            name.clone(),
            size.as_u64().ok_or("files: a size is no number")?,
        );
    }
    for (key, t) in object(&json["tensors"], "tensors")? {
        let chunks = match t["chunks"].as_array() {
            None => None,
            Some(all) => Some(all.iter().map(chunk).collect::<Result<Vec<Chunk>>>()?),
        };
        let facts = TensorFacts {
            chunks,
            path: path(&t["path"]),
            ..facts(t)?
        };
        out.tensors.insert(key.clone(), facts);
    }
    if let Some(all) = json["bytes"].as_object() {
        for (key, o) in all {
            let text = o["repr"].as_str().ok_or("bytes: no repr")?;
            let says = Says::Repr(text.into(), o["type"].as_str().map(Into::into));
            out.objects.insert(
                key.clone(),
                Object {
                    says,
                    path: path(&o["path"]),
                    place: place(o),
                },
            );
        }
    }
    // Megatron's one says only which keys there are.
    for (key, class) in json["keys"].as_object().into_iter().flatten() {
        if class == "BytesStorageMetadata" {
            out.objects.insert(
                key.clone(),
                Object {
                    says: Says::Nothing,
                    path: None,
                    place: None,
                },
            );
        }
    }
    out.nested = json["metadata"]["has_planner_data"].as_bool();
    let lost = json["torch_cannot_load"].as_array();
    out.beyond_torch = lost
        .into_iter()
        .flatten()
        .filter_map(|k| Some(k.as_str()?.to_owned()))
        .collect();
    Ok(Some(out))
}

fn megatron(json: &Json) -> Result<Option<Expected>> {
    let mut out = Expected::new(json);
    let is_dcp = match &*out.backend {
        "torch_dist" => true,
        "zarr" => false,
        _ => return Ok(None),
    };
    for file in array(&json["files"], "files")? {
        let name = file["path"].as_str().ok_or("files: no path")?;
        out.files
            .insert(name.into(), file["size"].as_u64().ok_or("files: no size")?);
    }
    let dcp = &json["dcp"];
    let mut places = BTreeMap::new();
    let rows = match is_dcp {
        true => &array(&dcp["storage"], "dcp.storage")?[..],
        false => &[],
    };
    for row in rows {
        let key = row[0].as_str().ok_or("dcp.storage: no name")?.to_owned();
        let offset = row[1].as_array().map(|_| dims(&row[1])).transpose()?;
        let (Some(file), Some(at), Some(length)) =
            (row[3].as_str(), row[4].as_u64(), row[5].as_u64())
        else {
            return Err(format!("dcp.storage: {row}"));
        };
        places.insert(
            (key, offset),
            Place {
                file: file.into(),
                offset: at,
                length,
            },
        );
    }
    for (key, t) in object(&json["tensors"], "tensors")? {
        let mut stored = facts(t)?;
        // Arrays of Zarr have the tensor's own shape, whether it was saved flattened or not.
        if !is_dcp {
            stored.shape = dims(&t["global_shape"]).or(Ok::<_, String>(stored.shape))?;
            out.tensors.insert(key.clone(), stored);
            continue;
        }
        // What is stored of a flattened tensor has another shape, which PyTorch reads as it is. Megatron Core gives one axis.
        if t["flattened_in_ckpt"] == true {
            let plain = facts(&dcp["plain_load"][key])?;
            out.flattened.insert(key.clone(), plain.shape);
            stored.shape = dims(&t["global_shape"])?;
        }
        let item = &dcp["items"][key];
        let chunk = |c: &Json| {
            let (offsets, sizes) = (dims(&c[0])?, dims(&c[1])?);
            let place = places.get(&(key.clone(), Some(offsets.clone()))).cloned();
            Ok(Chunk {
                offsets,
                sizes,
                place,
            })
        };
        let chunks = array(&item["chunks"], "dcp.items.chunks")?
            .iter()
            .map(chunk)
            .collect::<Result<_>>()?;
        out.tensors.insert(
            key.clone(),
            TensorFacts {
                chunks: Some(chunks),
                ..stored
            },
        );
    }
    for (key, o) in object(&json["objects"], "objects")? {
        let place = places.get(&(key.clone(), None)).cloned();
        out.objects.insert(
            key.clone(),
            Object {
                says: Says::Typed(o["typed"].clone()),
                path: None,
                place,
            },
        );
    }
    out.common = json["common"].get("typed").map(|t| Says::Typed(t.clone()));
    out.loads = array(&json["loads"], "loads")?.clone();
    Ok(Some(out))
}

fn facts(t: &Json) -> Result<TensorFacts> {
    let dtype = t["dtype"].as_str().ok_or("a tensor without dtype")?;
    let dtype = dtype
        .parse()
        .map_err(|_| format!("unknown dtype {dtype}"))?;
    let sha256 = t["sha256"]
        .as_str()
        .ok_or("a tensor without sha256")?
        .into();
    Ok(TensorFacts {
        dtype,
        shape: dims(&t["shape"])?,
        sha256,
        path: None,
        chunks: None,
    })
}

fn chunk(c: &Json) -> Result<Chunk> {
    Ok(Chunk {
        offsets: dims(&c["offsets"])?,
        sizes: dims(&c["sizes"])?,
        place: place(c),
    })
}

fn place(item: &Json) -> Option<Place> {
    Some(Place {
        file: item["file"].as_str()?.into(),
        offset: item["offset"].as_u64()?,
        length: item["length"].as_u64()?,
    })
}

fn path(steps: &Json) -> Option<Path> {
    let step = |s: &Json| match s {
        Json::String(s) => Some(Step::from(s.as_str())),
        other => other.as_u64().map(Step::Index),
    };
    Some(Path(
        steps.as_array()?.iter().map(step).collect::<Option<_>>()?,
    ))
}

fn dims(json: &Json) -> Result<Dims> {
    let all = json
        .as_array()
        .and_then(|a| a.iter().map(Json::as_u64).collect::<Option<Dims>>());
    all.ok_or_else(|| format!("{json} is no shape"))
}

fn object<'j>(json: &'j Json, what: &str) -> Result<&'j serde_json::Map<String, Json>> {
    json.as_object().ok_or_else(|| format!("no {what}"))
}

fn array<'j>(json: &'j Json, what: &str) -> Result<&'j Vec<Json>> {
    json.as_array().ok_or_else(|| format!("no {what}"))
}

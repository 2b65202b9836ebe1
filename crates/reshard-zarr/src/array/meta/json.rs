//! Fields of JSON objects, with errors that name them.

use reshard_model::Dims;
use reshard_strategy::Refused;
use serde_json::{Map, Value};

/// The most bytes of the metadata of one array or group. Attributes are part of it.
pub(crate) const MAX_TEXT: usize = 64 << 20;
/// The most axes of an array.
pub(crate) const MAX_AXES: usize = 64;
/// The most characters of a value in an error.
const SHOWN: usize = 120;

/// Parses the text of a file, whose name is for errors.
pub(crate) fn parse(file: &str, text: &[u8]) -> Result<Map<String, Value>, Refused> {
    if text.len() > MAX_TEXT {
        return Err(too_long(file, text.len() as u64));
    }
    match serde_json::from_slice(text) {
        Ok(Value::Object(fields)) => Ok(fields),
        Ok(other) => Err(Refused::damaged(format!(
            "{file} is {}, not a JSON object",
            shown(&other)
        ))),
        Err(e) => Err(Refused::damaged(format!("{file} is not JSON: {e}"))),
    }
}

/// What is wrong with a file that is not even read.
pub(crate) fn too_long(file: &str, bytes: u64) -> Refused {
    Refused::damaged(format!(
        "{file} has {bytes} bytes, and no such file has more than {MAX_TEXT}"
    ))
}

/// The most memory that a JSON text takes as it is parsed, roughly: each object, list and value in one.
pub(crate) fn takes(text: &[u8]) -> u64 {
    let of = |byte: &u8| match byte {
        b'{' => 700,
        b'[' => 160,
        b',' => 128,
        _ => 0,
    };
    text.iter().map(of).sum::<u64>() + text.len() as u64
}

/// A value as text for an error. Long values are cut.
pub(crate) fn shown(value: &Value) -> String {
    let mut text = value.to_string();
    if let Some((at, _)) = text.char_indices().nth(SHOWN) {
        text.truncate(at);
        text.push('…');
    }
    text
}

/// A field that has to be there.
pub(crate) fn field<'a>(of: &'a Map<String, Value>, name: &str) -> Result<&'a Value, Refused> {
    of.get(name)
        .ok_or_else(|| Refused::damaged(format!("the field {name:?} is missing")))
}

/// Fails if the metadata in a file are those of another version of Zarr.
pub(crate) fn version(of: &Map<String, Value>, file: &str, known: u64) -> Result<(), Refused> {
    match field(of, "zarr_format")? {
        found if found.as_u64() == Some(known) => Ok(()),
        other => Err(Refused::unknown(format!(
            "version {} of Zarr in {file}",
            shown(other)
        ))),
    }
}

/// What separates the numbers in the names of chunks. `what` names the setting.
pub(crate) fn separator(value: &Value, what: &str) -> Result<char, Refused> {
    match value.as_str() {
        Some(".") => Ok('.'),
        Some("/") => Ok('/'),
        _ => Err(Refused::damaged(format!("its {what} is {}", shown(value)))),
    }
}

/// One number per axis.
pub(crate) fn dims(of: &Map<String, Value>, name: &str) -> Result<Dims, Refused> {
    let value = field(of, name)?;
    let wrong = || {
        let shown = shown(value);
        Refused::damaged(format!("{name} is {shown}, not a list of lengths"))
    };
    let list = value.as_array().ok_or_else(wrong)?;
    if list.len() > MAX_AXES {
        return Err(Refused::damaged(format!(
            "{name} has {} axes, and an array has at most {MAX_AXES}",
            list.len()
        )));
    }
    list.iter()
        .map(|n| n.as_u64().ok_or_else(wrong))
        .collect::<Result<Vec<u64>, Refused>>()
        .map(Dims::from)
}

/// A v3 extension: its name, and its configuration, which may be left out. A name alone stands for both.
pub(crate) struct Named<'a> {
    pub(crate) name: &'a str,
    configuration: Option<&'a Map<String, Value>>,
}

impl<'a> Named<'a> {
    pub(crate) fn of(what: &str, value: &'a Value) -> Result<Self, Refused> {
        let wrong = || Refused::damaged(format!("{what} is {}, without a name", shown(value)));
        match value {
            Value::String(name) => Ok(Self {
                name,
                configuration: None,
            }),
            Value::Object(fields) => Ok(Self {
                name: fields
                    .get("name")
                    .and_then(Value::as_str)
                    .ok_or_else(wrong)?,
                configuration: match fields.get("configuration") {
                    None | Some(Value::Null) => None,
                    Some(c) => Some(c.as_object().ok_or_else(wrong)?),
                },
            }),
            _ => Err(wrong()),
        }
    }

    /// A setting, if it is there.
    pub(crate) fn get(&self, name: &str) -> Option<&'a Value> {
        self.configuration?.get(name)
    }

    /// All settings.
    pub(crate) fn settings(&self) -> Result<&'a Map<String, Value>, Refused> {
        self.configuration
            .ok_or_else(|| Refused::damaged(format!("{} has no configuration", self.name)))
    }
}

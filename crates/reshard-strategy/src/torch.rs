//! Objects and tensors as `torch.save` archives, for formats that store them so: how the limits of a load bound the parser, and what
//! the parser's errors mean for a checkpoint.

mod crc;
mod kept;

pub use crc::Crc;
pub use kept::{INFLATE, Kept, Stream, Unpacked};

use crate::{LimitOption, NotCovered, ReadLimits, Result, StrategyError, Uncovered, decode_object};
use bytes::Bytes;
use reshard_model::{BoxError, Construct, ObjectCodec, Payload, Value};
use reshard_torch_format::{
    Error as FormatError, Limits, LoadOptions, Result as FormatResult, TorchSave,
    archive::{Archive, ArchiveOptions, Method, Unconfirmed},
};
use std::fmt;

/// The limits of a parser.
pub fn parsing(limits: &ReadLimits) -> Limits {
    // One number for records and for tensors whose elements share memory; of records the ratio of deflate is another bound.
    let unpacked = if limits.allow_repeated {
        u64::MAX
    } else {
        limits.max_whole
    };
    Limits {
        memory: limits.max_memory,
        unpacked,
        slack: limits.slack,
        ..Limits::default()
    }
}

/// What a parser found too much, if an option allows it.
fn too_much(e: &FormatError, what: impl fmt::Display) -> Option<StrategyError> {
    let FormatError::Limit { offset, limit, max } = e else {
        return None;
    };
    let (option, why) = match *limit {
        "bytes of memory" => (
            LimitOption::MaxMemory,
            format!(
                "asks for more memory than a file of its length may take, at byte {offset} of its pickle"
            ),
        ),
        "unpacked bytes" => (
            LimitOption::MaxWhole,
            "unpacks to more than is read as a whole".into(),
        ),
        "bytes in a tensor" => (
            LimitOption::AllowRepeated,
            "holds a tensor whose elements share memory and are too many".into(),
        ),
        _ => return None,
    };
    Some(StrategyError::Limit {
        what: format!("{what} {why}"),
        option,
        max: *max,
    })
}

/// What a parser said when that is no damage: more than a limit allows, or what it is not made for, which `told` puts into words.
pub fn no_damage(
    e: &FormatError,
    what: impl fmt::Display,
    told: impl FnOnce(String) -> StrategyError,
) -> Option<StrategyError> {
    too_much(e, what).or_else(|| beyond_us(e).map(told))
}

/// What the parser is not made for, if that is all that is wrong.
fn beyond_us(e: &FormatError) -> Option<String> {
    match e {
        FormatError::Unsupported { what, .. } => Some(what.trim_end_matches(',').into()),
        FormatError::Limit { .. } => Some(e.to_string()),
        _ => None,
    }
}

/// Whether a codec's error says only that: cycles, depth, more nodes than its limits allow.
pub fn is_beyond_us(e: &BoxError) -> bool {
    e.downcast_ref().is_some_and(|e| beyond_us(e).is_some())
}

/// Checks that an object can be decoded, whose checksums are right. So one beyond the limits of the decoder is not damaged.
///
/// # Errors
/// Those of the codec.
pub fn check_decodes(codec: &dyn ObjectCodec, key: &str, payload: Payload) -> Result<()> {
    match decode_object(codec, key, payload) {
        Err(StrategyError::Object { source, .. }) if is_beyond_us(&source) => Ok(()),
        decoded => decoded.map(drop),
    }
}

/// The codec of objects: `torch.save` archives, within limits.
#[derive(Clone, Debug)]
pub struct TorchObjects {
    codec: TorchSave,
    limits: ReadLimits,
}

/// Within the default limits.
impl Default for TorchObjects {
    fn default() -> Self {
        Self::new(&ReadLimits::default())
    }
}

impl TorchObjects {
    /// Within these limits.
    pub fn new(limits: &ReadLimits) -> Self {
        let load = LoadOptions::default().with_limits(parsing(limits));
        Self {
            codec: TorchSave::new(load, ArchiveOptions::default()),
            limits: *limits,
        }
    }

    /// What the value of an object doesn't say, in words: which parts are one object in Python, and what Python knows of tensors in it.
    ///
    /// # Errors
    /// The pickle can't be read.
    pub fn unsaid(&self, bytes: &Bytes) -> FormatResult<Option<String>> {
        self.codec.unsaid(bytes)
    }
}

impl ObjectCodec for TorchObjects {
    fn name(&self) -> &'static str {
        self.codec.name()
    }

    fn decode(&self, bytes: &Bytes) -> Result<Value, BoxError> {
        let value = self.codec.decode(bytes).map_err(|e| {
            match e.downcast_ref().and_then(|e| too_much(e, "it")) {
                Some(limit) => limit.into(),
                None => e,
            }
        })?;
        let stored = bytes.len() as u64;
        self.limits
            .repeated("all its tensors", tensor_bytes(&value), stored)?;
        Ok(value)
    }

    fn encode(&self, value: &Value) -> Result<Bytes, BoxError> {
        self.codec.encode(value)
    }
}

/// Bytes of all tensors in a value, each as often as it is there.
pub fn tensor_bytes(value: &Value) -> u64 {
    let mut bytes = 0u64;
    let mut left = vec![value];
    while let Some(v) = left.pop() {
        match v {
            Value::Tensor(t) => bytes = bytes.saturating_add(t.nbytes()),
            Value::List(v) | Value::Tuple(v) | Value::Set(v) => left.extend(v),
            Value::Dict(d) => left.extend(d.iter().flat_map(|(k, v)| [k, v])),
            Value::Opaque(o) => {
                match &o.construct {
                    Construct::Reduce(args) | Construct::NewObj(args) => left.extend(args),
                    Construct::NewObjEx(args, kwargs) => {
                        left.extend(args);
                        left.extend(kwargs.iter().flat_map(|(k, v)| [k, v]));
                    }
                    _ => {}
                }
                left.extend(o.state.iter().chain(&o.items));
                left.extend(o.pairs.iter().flat_map(|(k, v)| [k, v]));
            }
            _ => {}
        }
    }
    bytes
}

/// Compares every record of an archive with its checksum. Together they unpack to no more than is made of an input of that
/// length.
///
/// # Errors
/// What the parser says.
pub fn check_records(archive: &Bytes, limits: &ReadLimits) -> FormatResult<()> {
    let mut limits = parsing(limits);
    let mut budget = limits.budget(archive.len() as u64);
    limits.unpacked = limits.unpacked.min(budget.max());
    Archive::open(archive.clone(), &limits)?.check_records(|record| {
        if record.method != Method::Stored && budget.take(record.size).is_err() {
            let (offset, limit, max) = (record.header, "bytes of memory", budget.max());
            return Err(FormatError::Limit { offset, limit, max });
        }
        Ok(())
    })
}

/// Checks what no checksum of an archive covers, and counts what can't be confirmed.
///
/// # Errors
/// What the parser says.
pub fn check_framing(archive: &Bytes, limits: &ReadLimits) -> FormatResult<Unconfirmed> {
    Archive::open(archive.clone(), &parsing(limits))?.check_framing()
}

/// Both: all bytes of an archive.
///
/// # Errors
/// What the parser says.
pub fn check_archive(archive: &Bytes, limits: &ReadLimits) -> FormatResult<Unconfirmed> {
    check_records(archive, limits)?;
    check_framing(archive, limits)
}

/// What can't be confirmed of an archive, in the words of a report.
pub fn uncovered(of: Unconfirmed) -> [(Uncovered, u64); 3] {
    [
        (Uncovered::Framing, of.framing),
        (Uncovered::Packed, of.packed),
        (Uncovered::NoChecksum, of.unsummed),
    ]
}

/// Adds what can't be confirmed of an archive in a file.
pub fn add_uncovered(to: &mut NotCovered, file: &str, of: Unconfirmed) {
    for (why, bytes) in uncovered(of) {
        to.add(file, why, bytes);
    }
}

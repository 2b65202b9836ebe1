//! `reshard show`.

mod grid;

use crate::{
    args::Show,
    error::{CliError, OK, Result},
    io::Io,
    json,
    program::Program,
    table::shown,
};
use grid::{Grid, number};
use reshard::{
    Region, Value,
    blocking::{Checkpoint, TensorHandle},
    model::ValueTree,
};
use serde::{Serialize, ser::SerializeSeq};
use std::cell::RefCell;

/// So many elements are read at a time. Numbers in JSON take many times their size.
const BLOCK: u64 = 1 << 14;

/// Tensors of at most so many bytes are read as a whole, which checks them, whatever part of them is shown.
const SMALL: u64 = 1 << 20;

pub(crate) fn run(program: &Program, args: &Show, io: &mut Io<'_>) -> Result<u8> {
    let checkpoint = program.open(&args.dir, args.reading.options(), io)?;
    let has = |key: &str| checkpoint.metadata().object(key).is_some();
    match checkpoint.tensor(&args.key) {
        Ok(tensor) => show_tensor(&checkpoint, &tensor, args, io)?,
        Err(_) if has(&args.key) => {
            show_value(&checkpoint, &checkpoint.object(&args.key)?, args, io)?
        }
        Err(e) => {
            let common = checkpoint.common();
            // A slip of the pen has nothing to do with common state that can't be read.
            if common.is_err() && !checkpoint.metadata().near(&args.key).is_empty() {
                return Err(absent(args, &checkpoint, &e));
            }
            let common = common?;
            let value = match common.find(&args.key) {
                Some(value) => Some(Value::from(ValueTree::clone(value))),
                None => inside(&checkpoint, &common, &args.key)?,
            };
            let value = value.ok_or_else(|| absent(args, &checkpoint, &e))?;
            show_value(&checkpoint, &value, args, io)?;
        }
    }
    Ok(OK)
}

/// A part of an object or of a value in the common state, such as an attribute of a `Namespace`. The longest name that is there wins.
fn inside(checkpoint: &Checkpoint, common: &ValueTree, key: &str) -> Result<Option<Value>> {
    for (at, _) in key.rmatch_indices('.') {
        let (first, rest) = (&key[..at], &key[at + 1..]);
        let value = match common.find(first) {
            Some(value) => Value::from(ValueTree::clone(value)),
            None if checkpoint.metadata().object(first).is_some() => checkpoint.object(first)?,
            None => continue,
        };
        if let Some(found) = part_of(&value, rest) {
            return Ok(Some(found.clone()));
        }
    }
    Ok(None)
}

/// The part of a value that a name means: keys of dicts, attributes of objects and indices of lists, joined with dots.
fn part_of<'v>(value: &'v Value, name: &str) -> Option<&'v Value> {
    let dots = name.rmatch_indices('.').map(|(at, _)| at);
    for end in std::iter::once(name.len()).chain(dots) {
        let (first, rest) = (&name[..end], name.get(end + 1..));
        let Some(part) = step(value, first) else {
            continue;
        };
        match rest.map(|rest| part_of(part, rest)) {
            None => return Some(part),
            Some(None) => {}
            Some(found) => return found,
        }
    }
    None
}

fn step<'v>(value: &'v Value, name: &str) -> Option<&'v Value> {
    let number = name.parse::<i64>().ok();
    let of_pairs = |pairs: &'v [(Value, Value)]| {
        let is_it = |key: &Value| match key {
            Value::Str(key) => **key == *name,
            Value::Int(key) => Some(*key) == number,
            _ => false,
        };
        let mut found = pairs.iter().filter(|(key, _)| is_it(key));
        found.next().map(|(_, value)| value)
    };
    match value {
        Value::Dict(pairs) => of_pairs(pairs),
        Value::List(all) | Value::Tuple(all) => all.get(usize::try_from(number?).ok()?),
        Value::Opaque(object) => {
            let in_state = object.state.as_ref().and_then(|state| step(state, name));
            in_state.or_else(|| of_pairs(&object.pairs))
        }
        _ => None,
    }
}

fn absent(args: &Show, checkpoint: &Checkpoint, e: &reshard::Error) -> CliError {
    let near = checkpoint.metadata().near(&args.key);
    let hint = match &*near {
        [] => format!(
            "`reshard ls {0}` lists tensors and objects, and `reshard inspect {0}` shows common state, too",
            args.dir
        ),
        near => format!("did you mean {}?", near.join(" or ")),
    };
    match e.kind() {
        reshard::ErrorKind::NotFound => {
            CliError::told(format!("{} has no key {:?}", args.dir, args.key), hint)
        }
        reshard::ErrorKind::Corrupt => {
            let hint = format!("`reshard verify {}` lists all damage", args.dir);
            CliError::damaged(e.to_string(), hint)
        }
        // It is there, and can't be read.
        _ => CliError::told(e.to_string(), hint),
    }
}

fn show_value(of: &Checkpoint, value: &Value, args: &Show, io: &mut Io<'_>) -> Result<()> {
    if args.region.is_some() {
        let what = format!("{} is no tensor, so it has no regions", args.key);
        return Err(CliError::told(what, "leave --region out"));
    }
    match args.reading.json {
        true => {
            #[derive(Serialize)]
            struct Shown<'a, V> {
                schema: u32,
                key: &'a str,
                value: V,
            }
            let value = json::value(value);
            json::write_about(
                io.out,
                &[of],
                &Shown {
                    schema: 1,
                    key: &args.key,
                    value,
                },
            )
        }
        false => Ok(writeln!(io.out, "{}", shown(&json::text(value)))?),
    }
}

fn show_tensor(of: &Checkpoint, tensor: &TensorHandle, args: &Show, io: &mut Io<'_>) -> Result<()> {
    let whole = Region::whole(tensor.shape());
    let region = match &args.region {
        Some(wanted) => wanted.within(tensor).map_err(|what| {
            CliError::told(
                what,
                "write ranges as 0:2, single indices as 5, and a whole axis as :",
            )
        })?,
        None => whole.clone(),
    };
    // Its checksums are of whole chunks.
    if tensor.nbytes() <= SMALL {
        drop(tensor.read(whole.clone())?);
    }
    if args.reading.json {
        return json_of(of, (tensor, &region), args, io);
    }
    let part = match region == whole {
        true => String::new(),
        false => format!(", elements {region}"),
    };
    let head = format!(
        "{} {} {}{part}",
        tensor.key(),
        tensor.dtype(),
        tensor.shape()
    );
    writeln!(io.out, "{}", shown(&head))?;
    let grid = Grid::of(&region).ok_or_else(|| {
        CliError::told(
            format!("{} has too many axes for a table", tensor.key()),
            "choose a part with --region, or print all with --json",
        )
    })?;
    writeln!(
        io.out,
        "{}",
        grid.text(|part| number::texts(&tensor.read(part)?))?
    )?;
    Ok(())
}

/// All elements of the region, in row-major order.
fn json_of(
    of: &Checkpoint,
    (tensor, region): (&TensorHandle, &Region),
    args: &Show,
    io: &mut Io<'_>,
) -> Result<()> {
    #[derive(Serialize)]
    struct Shown<'a> {
        schema: u32,
        key: &'a str,
        dtype: &'static str,
        shape: &'a [u64],
        offsets: &'a [u64],
        lengths: &'a [u64],
        values: Elements<'a>,
    }
    // What can't be shown at all is told before anything is written.
    if let Some(first) = region.clone().blocks(BLOCK).next() {
        values(tensor, first)?;
    }
    let failed = RefCell::new(None);
    let shown = Shown {
        schema: 1,
        key: &args.key,
        dtype: tensor.dtype().name(),
        shape: tensor.shape(),
        offsets: &region.offsets,
        lengths: &region.lengths,
        values: Elements {
            tensor,
            region,
            failed: &failed,
        },
    };
    let written = json::write_about(io.out, &[of], &shown);
    match failed.into_inner() {
        Some(e) => Err(e),
        None => written,
    }
}

fn values(tensor: &TensorHandle, block: Region) -> Result<Vec<serde_json::Value>> {
    let read = tensor.read(block)?;
    json::numbers(&read).ok_or_else(|| number::unknown(&read))
}

/// Elements that are read while they are written.
struct Elements<'a> {
    tensor: &'a TensorHandle,
    region: &'a Region,
    /// Why reading has failed. A serializer knows only its own errors.
    failed: &'a RefCell<Option<CliError>>,
}

impl Serialize for Elements<'_> {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let mut all = s.serialize_seq(None)?;
        for block in self.region.clone().blocks(BLOCK) {
            match values(self.tensor, block) {
                Ok(values) => values.iter().try_for_each(|v| all.serialize_element(v))?,
                Err(e) => {
                    *self.failed.borrow_mut() = Some(e);
                    return Err(serde::ser::Error::custom("the elements can't be read"));
                }
            }
        }
        all.end()
    }
}

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
            let value = common.find(&args.key);
            let value = value.ok_or_else(|| absent(args, &checkpoint, &e))?;
            show_value(&checkpoint, &Value::from(ValueTree::clone(value)), args, io)?;
        }
    }
    Ok(OK)
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

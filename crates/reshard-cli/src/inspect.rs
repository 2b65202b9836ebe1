//! `reshard inspect`.

mod facts;
mod owners;
mod print;
mod sums;

use crate::{
    args::Inspect,
    error::{DAMAGED, OK, Result, printed},
    glob::Keys,
    io::Io,
    json::{self, Seq},
    pickles,
    program::Program,
    steps,
};
use facts::{Facts, length};
use reshard::{
    StoredChunk, Value,
    blocking::{Checkpoint, TensorHandle},
    plan::AnnotationId,
    strategy::Producer,
};
use reshard_convert::ItemKind;
use reshard_optim::StoredOptimizer;
use serde::{Serialize, Serializer, ser::SerializeMap};
use serde_json::{Value as Json, json};
use std::ops::Range;

pub(crate) fn run(program: &Program, args: &Inspect, io: &mut Io<'_>) -> Result<u8> {
    if args.pickles {
        let opened = program.open_quietly(&args.dir, args.reading.options()).ok();
        let from = (&*args.dir, &args.reading);
        let found = pickles::scan_place(program, from, opened.as_ref())?;
        return printed(pickles::print(&found, args.reading.json, io), OK);
    }
    let opened = program.open(&args.dir, args.reading.options(), io);
    let checkpoint = opened.map_err(|e| steps::with_newest(program, &args.dir, e))?;
    let facts = Facts::of(checkpoint)?;
    let code = match facts.is_damaged {
        true => DAMAGED,
        false => OK,
    };
    printed(print_all(&facts, args, io), code)
}

fn print_all(facts: &Facts, args: &Inspect, io: &mut Io<'_>) -> Result<()> {
    let (keys, summary) = (args.select.keys(), args.summary);
    let unknown = facts.checkpoint.producer().unknown;
    let known = facts.checkpoint.metadata().entries().map(|e| e.key());
    let known = known.chain(unknown.keys().map(String::as_str));
    io.require_some(keys, &args.dir, known)?;
    if args.reading.json {
        json::write(
            io.out,
            &Report {
                facts,
                keys,
                summary,
            },
        )?;
    } else {
        print::summary(facts, io.out)?;
        if !summary {
            print::lists(facts, keys, io.out)?;
        }
    }
    io.out.flush()?;
    Ok(())
}

/// The JSON, schema 1. The first members are as promised; those after `files` are added over time.
struct Report<'a> {
    facts: &'a Facts,
    keys: Keys<'a>,
    summary: bool,
}

impl Serialize for Report<'_> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        // The members come in the order that the schema promises, and lists are streamed, so no list is in memory
        // twice.
        let f = self.facts;
        let c = &f.checkpoint;
        let mut m = s.serialize_map(None)?;
        m.serialize_entry("schema", &1)?;
        m.serialize_entry("backend", &c.backend().backend)?;
        m.serialize_entry("version", &c.backend().version)?;
        m.serialize_entry("dialect", c.dialect().name())?;
        if !self.summary {
            let tensors = || self.keys.tensors(c).map(|t| TensorRow(t, f));
            m.serialize_entry("tensors", &Seq(tensors))?;
            let objects = || {
                c.objects()
                    .filter(|k| self.keys.has(k))
                    .map(|k| ObjectRow::of(f, k))
            };
            m.serialize_entry("objects", &Seq(objects))?;
            m.serialize_entry("common", &f.common.as_ref().ok().map(json::value))?;
            m.serialize_entry("files", &f.files)?;
        }
        m.serialize_entry("totals", &f.totals())?;
        m.serialize_entry("producer", &producer(c))?;
        m.serialize_entry("iteration", &f.iteration())?;
        m.serialize_entry("parallel", &f.parallel())?;
        m.serialize_entry("problems", &f.problems)?;
        m.serialize_entry("leftovers", &f.leftovers)?;
        m.serialize_entry("sidecar", &f.sidecar)?;
        m.serialize_entry("notes", &f.notes)?;
        m.serialize_entry("foreign", &f.foreign)?;
        m.serialize_entry("not_understood", &f.not_understood)?;
        m.serialize_entry("not_read", &f.not_read)?;
        m.serialize_entry("incomplete", &f.incomplete)?;
        m.serialize_entry("links", &f.links)?;
        m.serialize_entry("not_listed", &f.not_listed)?;
        m.serialize_entry("sums", &f.sums)?;
        let optimizers: Vec<Json> = f.optimizers().into_iter().map(optimizer).collect();
        m.serialize_entry("optimizers", &optimizers)?;
        if !self.summary {
            let stated = || c.metadata().annotations().iter();
            let stated = || stated().map(|(id, value)| annotation(id, value));
            m.serialize_entry("metadata", &Seq(stated))?;
        }
        m.end()
    }
}

/// A distributed optimizer of Megatron Core. Ranges of data-parallel groups are each `[first, one past the last]`.
fn optimizer(o: StoredOptimizer) -> Json {
    let range = |r: &Range<u64>| [r.start, r.end];
    let missing: Vec<_> = o.missing_dp_groups.iter().map(range).collect();
    json!({
        "sharding_type": o.sharding_type.name(),
        "prefix": o.prefix,
        "dp_groups": o.dp_groups.len(),
        "missing_dp_groups": missing,
    })
}

/// A fact that the checkpoint states beside its tensors and objects.
fn annotation(id: &AnnotationId, value: &Value) -> Json {
    let kind = ItemKind::of(id.kind).name();
    json!({ "kind": kind, "name": id.to_string(), "value": json::value(value) })
}

struct TensorRow<'f>(TensorHandle, &'f Facts);

impl Serialize for TensorRow<'_> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let t = &self.0;
        let mut m = s.serialize_map(None)?;
        m.serialize_entry("key", t.key())?;
        m.serialize_entry("dtype", t.dtype().name())?;
        m.serialize_entry("shape", &**t.shape())?;
        if let Some(stored) = t.flattened_shape() {
            m.serialize_entry("flattened_shape", &*stored)?;
        }
        m.serialize_entry("bytes", &t.nbytes())?;
        let chunks = t.chunks();
        m.serialize_entry("chunks", &Seq(|| chunks.iter().map(ChunkRow::of)))?;
        if let Some(owner) = self.1.owners.get(t.key()) {
            m.serialize_entry("owner", owner)?;
        }
        m.end()
    }
}

#[derive(Serialize)]
struct ChunkRow<'a> {
    offsets: &'a [u64],
    lengths: &'a [u64],
    file: Option<&'a str>,
    offset: Option<u64>,
    length: Option<u64>,
}

impl<'a> ChunkRow<'a> {
    fn of(c: &'a StoredChunk) -> Self {
        let p = c.parts.first();
        Self {
            offsets: &c.region.offsets,
            lengths: &c.region.lengths,
            file: p.map(|p| p.file.as_str()),
            offset: p.map(|p| p.range.start),
            length: p.map(|_| length(&c.parts)),
        }
    }
}

/// Which programs wrote it. `flattened` is how many tensors are stored flattened.
fn producer(checkpoint: &Checkpoint) -> Json {
    let Producer {
        written_by,
        loadable_by,
        notes,
        save,
        unknown,
        damaged,
        // They are among the notes of the report.
        warnings: _,
        // Its tensors have the types that were asked for.
        dequantized: _,
        scales: _,
        copies: _,
    } = checkpoint.producer();
    let tensors = checkpoint.metadata().tensors();
    let mut all = json!({
        "written_by": written_by,
        "loadable_by": loadable_by,
        "notes": notes,
        "flattened": tensors.filter(|t| t.original_shape().is_some()).count(),
    });
    for (name, found) in [("save", save), ("unknown", unknown), ("damaged", damaged)] {
        if !found.is_empty() {
            all[name] = json!(found);
        }
    }
    all
}

#[derive(Serialize)]
struct ObjectRow<'a> {
    key: &'a str,
    bytes: Option<u64>,
    file: Option<String>,
    offset: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    owner: Option<&'a str>,
}

impl<'a> ObjectRow<'a> {
    fn of(f: &'a Facts, key: &'a str) -> Self {
        let parts = f.checkpoint.object_parts(key);
        let p = parts.first();
        Self {
            key,
            bytes: p.map(|_| length(&parts)),
            offset: p.map(|p| p.range.start),
            file: p.map(|p| p.file.to_string()),
            owner: f.owners.get(key).map(String::as_str),
        }
    }
}

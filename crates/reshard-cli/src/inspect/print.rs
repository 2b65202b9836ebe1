//! The same for people.

use super::{
    facts::{Facts, File, length},
    sums::Sum,
};
use crate::{
    error::Result,
    glob::Keys,
    table::{self, BAD, BOLD, GOOD, fact, styled_fact},
    units,
};
use reshard::{
    Value,
    blocking::TensorHandle,
    model::Opaque,
    plan::{AnnotationId, AnnotationKind},
    strategy::FileRole,
};
use reshard_convert::ItemKind;
use std::{collections::BTreeMap, io::Write};

/// Problems and leftovers that are listed; the rest is counted.
const FEW: usize = 5;

pub(super) fn summary(f: &Facts, out: &mut dyn Write) -> Result<()> {
    let c = &f.checkpoint;
    let (producer, totals) = (c.producer(), f.totals());
    writeln!(out, "{BOLD}{}{BOLD:#}", table::shown(c.url()))?;
    let format = format!("{}, dialect {}", c.backend(), c.dialect());
    fact(out, "format", format)?;
    // What the bytes tell is a guess, where their writer says who it was.
    if f.sidecar.is_none() && !producer.written_by.is_empty() {
        fact(out, "written by", producer.written_by.join("; "))?;
    }
    if let Some(s) = &f.sidecar {
        fact(out, "saved by", &s.writer)?;
        if let Some(policy) = &s.policy {
            fact(out, "files by", policy)?;
        }
    }
    for (name, value) in &producer.save {
        fact(out, "save", format!("{name} {}", brief(value)))?;
    }
    if !producer.loadable_by.is_empty() {
        fact(out, "loads in", producer.loadable_by.join("; "))?;
    }
    if let Some(i) = f.iteration() {
        fact(out, "iteration", units::signed(i))?;
    }
    let parallel = f.parallel_text();
    if !parallel.is_empty() {
        fact(out, "parallel", parallel)?;
    }
    for optimizer in f.optimizers() {
        fact(out, "optimizer", optimizer)?;
    }
    let chunks = units::some(totals.chunks, "chunk");
    let amount = |n, more: &str, bytes| {
        let (n, bytes) = (units::count(n), units::bytes(bytes));
        format!("{n}{more}, {bytes}")
    };
    let tensors = amount(
        totals.tensors,
        &format!(" in {chunks}"),
        totals.tensor_bytes,
    );
    fact(out, "tensors", tensors)?;
    sums(f, out)?;
    fact(
        out,
        "objects",
        amount(totals.objects, "", totals.object_bytes),
    )?;
    if let Some(stated) = stated(f) {
        fact(out, "metadata", stated)?;
    }
    fact(out, "files", amount(totals.files, "", totals.file_bytes))?;
    condition(f, out)?;
    for note in producer.notes.iter().chain(&f.notes) {
        fact(out, "note", note)?;
    }
    if f.sums.by_module.len() < 2 {
        return Ok(());
    }
    writeln!(out)?;
    let row = |(name, sum): (&String, &Sum)| {
        [
            if name.is_empty() {
                "(top level)".into()
            } else {
                name.clone()
            },
            units::count(sum.tensors),
            units::count(sum.elements),
            units::bytes(sum.bytes),
        ]
    };
    let head = ["MODULE", ">TENSORS", ">ELEMENTS", ">SIZE"];
    table::rows(out, head, || f.sums.by_module.iter().map(row))?;
    Ok(())
}

/// Parameters, element types and kinds. What tensors of one type or kind hold is said by the line before.
fn sums(f: &Facts, out: &mut dyn Write) -> Result<()> {
    let sums = &f.sums;
    if sums.parameters > 0 {
        fact(out, "parameters", units::count(sums.parameters))?;
    }
    for (kind, of) in [("type", &sums.by_dtype), ("kind", &sums.by_kind)] {
        if of.len() > 1 {
            for (name, sum) in of {
                fact(out, kind, format!("{name}: {}", sum.text()))?;
            }
        }
    }
    Ok(())
}

/// How many facts it states beside its tensors and objects, by kind.
fn stated(f: &Facts) -> Option<String> {
    let mut kinds: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    for (id, value) in f.checkpoint.metadata().annotations().iter() {
        // That the root is no dict has no class.
        if id.kind != AnnotationKind::ContainerType || value.as_str().is_none() {
            *kinds.entry(noun(id.kind)).or_default() += 1;
        }
    }
    let all = kinds.iter();
    let all: Vec<String> = all
        .map(|((noun, with), n)| units::some(*n, noun) + with)
        .collect();
    (!all.is_empty()).then(|| all.join(", "))
}

/// What an annotation is about, and what it says of it.
fn noun(kind: AnnotationKind) -> (&'static str, &'static str) {
    match kind {
        AnnotationKind::Attribute | AnnotationKind::DimensionNames => ("attribute", ""),
        AnnotationKind::KeyType => ("key", " without text"),
        AnnotationKind::ContainerType => ("container", " with a class"),
        AnnotationKind::TensorClass => ("tensor", " with a class"),
        AnnotationKind::TensorSubclass => ("tensor", " quantised by torchao"),
        AnnotationKind::PythonState => ("item", " of which Python knows more"),
        AnnotationKind::SameObject => ("object", " at two places"),
        AnnotationKind::Device => ("tensor", " of a device"),
        AnnotationKind::Record => ("record", " of other programs"),
        _ => ("text", ""),
    }
}

/// The class of a tensor of torchao, and the block of elements that has one scale.
fn quantised(o: &Opaque) -> String {
    let block = match &o.state {
        Some(Value::Dict(state)) => state.iter().find(|(k, _)| k.as_str() == Some("block_size")),
        _ => None,
    };
    let sizes = match block {
        Some((_, Value::List(sizes) | Value::Tuple(sizes))) => sizes.iter().map(short).collect(),
        Some((_, size)) => vec![short(size)],
        None => return o.class(),
    };
    format!("{}, blocks of [{}]", o.class(), sizes.join(", "))
}

/// What is wrong with it, and what lies in it that is not its own.
fn condition(f: &Facts, out: &mut dyn Write) -> Result<()> {
    let rest = &f.not_listed;
    match f.problems.len() as u64 + rest.problems {
        0 if !f.incomplete.is_empty() => {
            let missing = f.incomplete.join("; ");
            styled_fact(out, "coverage", BAD, format!("incomplete: {missing}"))?;
        }
        0 => styled_fact(
            out,
            "coverage",
            GOOD,
            "complete; all items lie in their files",
        )?,
        n => styled_fact(out, "coverage", BAD, units::some(n, "problem"))?,
    }
    few_of(out, "problem", &f.problems, rest.problems)?;
    let unread = [
        ("not understood", &f.not_understood),
        ("not read", &f.not_read),
    ];
    let unread = unread
        .iter()
        .flat_map(|(word, found)| found.iter().map(move |f| format!("{word}: {f}")));
    let unread = unread.collect::<Vec<_>>();
    few_of(out, "unread", &unread, rest.not_understood + rest.not_read)?;
    few(out, "leftover", &f.leftovers)?;
    // Of a damaged checkpoint they may be what is left of it.
    if !f.leftovers.is_empty() && f.problems.is_empty() {
        let url = f.checkpoint.url();
        fact(
            out,
            "",
            format!("`reshard prune {url}` removes what no save is writing any more"),
        )?;
    }
    few(out, "foreign", &f.foreign)?;
    let (followed, not): (Vec<_>, Vec<_>) = f.links.iter().partition(|l| l.followed);
    if !followed.is_empty() {
        let what = format!(
            "{}; the linked files are read",
            units::some(followed.len() as u64, "file")
        );
        fact(out, "links", what)?;
    }
    let not: Vec<String> = not
        .iter()
        .map(|l| format!("{} is a link to {}", l.name, l.target))
        .collect();
    few(out, "not followed", &not)
}

/// The regions of an incomplete tensor that are there.
fn part(t: &TensorHandle) -> String {
    let chunks = t.chunks();
    let held: u64 = chunks.iter().filter_map(|c| c.region.volume()).sum();
    if Some(held) == t.shape().volume() {
        return "all".into();
    }
    let regions = chunks.iter().map(|c| c.region.to_string());
    let regions: Vec<String> = regions.collect();
    match table::few(&regions, FEW) {
        ([], _) => "none".into(),
        (all, None) => all.join(", "),
        (all, Some(more)) => format!("{} and {more} more", all.join(", ")),
    }
}

fn few(out: &mut dyn Write, name: &str, all: &[String]) -> Result<()> {
    few_of(out, name, all, 0)
}

/// The same, if there are so many more.
fn few_of(out: &mut dyn Write, name: &str, all: &[String], more: u64) -> Result<()> {
    for one in all.iter().take(FEW) {
        fact(out, name, one)?;
    }
    let more = all.len().saturating_sub(FEW) as u64 + more;
    if more > 0 {
        fact(out, "", format!("and {} more", units::count(more)))?;
    }
    Ok(())
}

/// The tensors and objects that were chosen; if all are, common state and files too.
pub(super) fn lists(f: &Facts, keys: Keys<'_>, out: &mut dyn Write) -> Result<()> {
    let c = &f.checkpoint;
    let tensors = || keys.tensors(c);
    let objects = || c.objects().filter(|k| keys.has(k));
    if tensors().next().is_some() {
        writeln!(out)?;
        let is_part = !f.incomplete.is_empty();
        let row = |t: TensorHandle| {
            [
                t.key().into(),
                t.dtype().to_string(),
                t.shape().to_string(),
                units::bytes(t.nbytes()),
                units::count(t.chunks().len() as u64),
                f.owners.get(t.key()).cloned().unwrap_or_default(),
                if is_part { part(&t) } else { String::new() },
            ]
        };
        let owner = if f.owners.is_empty() { "" } else { "OWNER" };
        let parts = if is_part { "PART" } else { "" };
        let head = ["TENSOR", "TYPE", "SHAPE", ">SIZE", ">CHUNKS", owner, parts];
        table::rows(out, head, || tensors().map(row))?;
    }
    if objects().next().is_some() {
        writeln!(out)?;
        let row = |key: &str| match &*c.object_parts(key) {
            [] => [key.into(), "?".into(), "not recorded".into()],
            parts @ [first, ..] => {
                let file = brief(first.file.as_str());
                [key.into(), units::bytes(length(parts)), file]
            }
        };
        table::rows(out, ["OBJECT", ">SIZE", "FILE"], || objects().map(row))?;
    }
    if !keys.all() {
        return Ok(());
    }
    let annotations = c.metadata().annotations();
    if !annotations.is_empty() {
        writeln!(out)?;
        let row = |(id, value): (&AnnotationId, &Value)| {
            let value = match (value, short(value)) {
                (Value::Opaque(o), _) if id.kind == AnnotationKind::TensorSubclass => quantised(o),
                (_, text) if text.is_empty() => value.type_name(),
                (_, text) => text,
            };
            let kind = ItemKind::of(id.kind).name().replace('_', " ");
            [id.to_string(), kind, value]
        };
        table::rows(out, ["METADATA", "KIND", "VALUE"], || {
            annotations.iter().map(row)
        })?;
    }
    if let Ok(Value::Dict(common)) = &f.common
        && !common.is_empty()
    {
        writeln!(out)?;
        let row = |(k, v): &(Value, Value)| [short(k), v.type_name(), short(v)];
        table::rows(out, ["COMMON", "TYPE", "VALUE"], || common.iter().map(row))?;
    }
    writeln!(out)?;
    let row = |f: &File| {
        let unowned = f.bytes.saturating_sub(f.owned);
        // Archives lie side by side; a file of items has no other bytes unless an older save left them.
        let note = match f.role {
            _ if f.items > 0 && unowned > 0 => {
                format!("{} belong to no item", units::bytes(unowned))
            }
            FileRole::Leftover | FileRole::Record => "left over".into(),
            FileRole::Foreign => "foreign".into(),
            _ => String::new(),
        };
        let note = match &f.target {
            Some(target) if note.is_empty() => format!("link to {target}"),
            Some(target) => format!("{note}, link to {target}"),
            None => note,
        };
        let items = if f.items == 0 {
            String::new()
        } else {
            units::count(f.items)
        };
        [f.name.clone(), units::bytes(f.bytes), items, note]
    };
    table::rows(out, ["FILE", ">SIZE", ">ITEMS", ""], || {
        f.files.iter().map(row)
    })?;
    Ok(())
}

/// The name of a file, which may be as long as a path, and which each object may name.
fn brief(name: &str) -> String {
    const WIDTH: usize = 255;
    table::beginning(name, WIDTH)
}

/// A value in a few words.
fn short(v: &Value) -> String {
    const WIDTH: usize = 60;
    let many = |n: usize, what| units::some(n as u64, what);
    match v {
        Value::None => "None".into(),
        Value::Str(s) if s.chars().count() > WIDTH => {
            format!(
                "{}…",
                s.chars().take(WIDTH).collect::<String>().escape_debug()
            )
        }
        Value::Str(s) => s.escape_debug().to_string(),
        Value::Bytes(b) => many(b.len(), "byte"),
        Value::List(v) | Value::Tuple(v) | Value::Set(v) => many(v.len(), "element"),
        Value::BigInt(bytes) if bytes.len() > WIDTH => {
            format!("an integer of {} bytes", bytes.len())
        }
        Value::Dict(d) => many(d.len(), "entry").replace("entrys", "entries"),
        Value::Tensor(t) => format!("{} {}", t.dtype(), t.shape()),
        Value::Opaque(o) => match &o.state {
            Some(Value::Dict(d)) => many(d.len(), "field"),
            _ => String::new(),
        },
        other => crate::json::text(other),
    }
}

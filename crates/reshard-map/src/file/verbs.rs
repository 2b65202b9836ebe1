//! Rules as a mapping file writes them.

use super::fields::Fields;
use crate::{
    MapError, Pattern, Result,
    number::Number,
    rule::{Blocks, Direction, Layers, Parts, Resize, Rule, Verb},
};
use strum::VariantNames as _;

/// The names of rules. A rule has exactly one of them as a field.
const VERBS: &[&str] = Verb::<Number>::VARIANTS;

/// Reads a rule.
pub(super) fn rule(number: usize, mut fields: Fields) -> Result<Rule<Number>> {
    let found: Vec<&'static str> = VERBS.iter().copied().filter(|v| fields.has(v)).collect();
    let verb = if let [verb] = *found { verb } else { "" };
    let fault = |what| MapError::Rule {
        rule: number,
        verb,
        what,
    };
    if verb.is_empty() {
        return Err(fault(match &*found {
            [] => format!(
                "it has {}, but none of the fields that say what it does: {}",
                list(&fields.names()),
                VERBS.join(", ")
            ),
            several => format!(
                "{} are several rules; write each of them as one `[[rule]]`",
                list(several)
            ),
        }));
    }
    let out = Rule {
        number,
        optional: fields.flag("optional").map_err(fault)?,
        prepares: fields.flag("prepares").map_err(fault)?,
        direction: direction(&mut fields).map_err(fault)?,
        when: fields.number("when").map_err(fault)?,
        verb: read(verb, &mut fields).map_err(fault)?,
    };
    fields.done().map_err(fault)?;
    Ok(out)
}

fn required(number: Option<Number>, name: &str) -> Result<Number, String> {
    number.ok_or_else(|| format!("`{name}` is missing"))
}

fn list(names: &[&str]) -> String {
    if names.is_empty() {
        return "no field".into();
    }
    let names: Vec<String> = names.iter().map(|n| format!("`{n}`")).collect();
    names.join(" and ")
}

fn direction(fields: &mut Fields) -> Result<Option<Direction>, String> {
    match fields.text("direction")?.as_deref() {
        None => Ok(None),
        Some("forward") => Ok(Some(Direction::Forward)),
        Some("inverse") => Ok(Some(Direction::Inverse)),
        Some(other) => Err(format!(
            "`direction` is \"forward\" or \"inverse\", not {other:?}"
        )),
    }
}

fn read(verb: &str, f: &mut Fields) -> Result<Verb<Number>, String> {
    Ok(match verb {
        "rename" => renaming(f)?,
        "drop" => Verb::Drop(f.patterns(verb)?),
        "keep" => Verb::Keep(f.patterns(verb)?),
        "add_prefix" => Verb::AddPrefix(prefix(f, verb)?),
        "strip_prefix" => Verb::StripPrefix(prefix(f, verb)?),
        "canonical" => match f.flag(verb)? {
            true => Verb::Canonical,
            false => return Err("write `canonical = true`".into()),
        },
        "stack" => Verb::Stack(layers(f, verb)?),
        "unstack" => Verb::Unstack(layers(f, verb)?),
        "split" => Verb::Split(split(f)?),
        "concat" => Verb::Concat(concat(f)?),
        "interleave" => Verb::Interleave(f.patterns(verb)?, blocks(f)?),
        "deinterleave" => Verb::Deinterleave(f.patterns(verb)?, blocks(f)?),
        "transpose" => Verb::Transpose(f.patterns(verb)?, permutation(f.axes("axes")?)?),
        "pad" => Verb::Pad(f.patterns(verb)?, resize(f, true)?),
        "trim" => {
            let (keys, resize) = (f.patterns(verb)?, resize(f, false)?);
            let padding = f.flag("padding")?;
            Verb::Trim(keys, Resize { padding, ..resize })
        }
        "cast" => Verb::Cast {
            keys: f.patterns(verb)?,
            from: f.dtype("from")?,
            to: f.dtype("to")?.ok_or("`to` is missing: the new type")?,
            lossless: f.flag("lossless")?,
        },
        _ => Verb::Reshape {
            keys: f.patterns(verb)?,
            from: f.numbers("from")?,
            to: f.numbers("to")?.ok_or("`to` is missing: the new shape")?,
        },
    })
}

fn split(f: &mut Fields) -> Result<Parts<Number>, String> {
    let whole = source(f.pattern("split")?)?;
    let parts = f.patterns("to")?.into_iter();
    let parts: Vec<Pattern> = parts.map(|part| part.with_kinds_of(&whole)).collect();
    for part in &parts {
        same_captures(&whole, part, None)?;
    }
    Ok(Parts {
        axis: f.axis()?,
        sizes: sizes(f, parts.len())?,
        whole,
        parts,
    })
}

fn concat(f: &mut Fields) -> Result<Parts<Number>, String> {
    let parts = f.patterns("concat")?.into_iter().map(source);
    let parts: Vec<Pattern> = parts.collect::<Result<_, _>>()?;
    let first = parts.first().ok_or("`concat` is empty")?;
    let whole = f.pattern("to")?.with_kinds_of(first);
    for part in &parts {
        same_captures(part, &whole, None)?;
    }
    Ok(Parts {
        axis: f.axis()?,
        sizes: sizes(f, parts.len())?,
        whole,
        parts,
    })
}

fn blocks(f: &mut Fields) -> Result<Blocks<Number>, String> {
    Ok(Blocks {
        axis: f.axis()?,
        groups: required(f.number("groups")?, "groups")?,
        sizes: f
            .numbers("sizes")?
            .filter(|s| !s.is_empty())
            .ok_or("`sizes` is missing: the blocks of a group")?,
    })
}

fn resize(f: &mut Fields, padding: bool) -> Result<Resize<Number>, String> {
    Ok(Resize {
        axis: f.axis()?,
        from: f.number("from")?,
        to: required(f.number("to")?, "to")?,
        padding,
    })
}

fn layers(f: &mut Fields, verb: &str) -> Result<Layers<Number>, String> {
    let from = source(f.pattern(verb)?)?;
    let to = f.pattern("to")?.with_kinds_of(&from);
    let axis = f.axis()?;
    let index = f
        .text("index")?
        .ok_or("`index` is missing: the capture that is the number")?;
    let count = f.number("count")?;
    let (single, stacked) = match verb {
        "stack" => (from, to),
        _ => (to, from),
    };
    if single.twice().is_some() || single.kind(&index).is_none() {
        return Err(format!("`{single}` must have `{{{index}}}` once"));
    }
    if stacked.kind(&index).is_some() {
        return Err(format!("`{stacked}` can't have `{{{index}}}`"));
    }
    same_captures(&single, &stacked, Some(&index))?;
    Ok(Layers {
        single,
        stacked,
        axis,
        index,
        count,
    })
}

/// A pattern that keys are matched with.
fn source(pattern: Pattern) -> Result<Pattern, String> {
    match pattern.twice() {
        None => Ok(pattern),
        Some(name) => Err(format!("`{pattern}` has `{{{name}}}` twice")),
    }
}

fn renaming(f: &mut Fields) -> Result<Verb<Number>, String> {
    let from = source(f.pattern("rename")?)?;
    let to = f.pattern("to")?.with_kinds_of(&from);
    let unknown = to.names().find(|n| from.kind(n).is_none());
    match unknown {
        None => Ok(Verb::Rename { from, to }),
        Some(name) => Err(format!(
            "`{from}` has no `{{{name}}}`, which the new name needs"
        )),
    }
}

/// Fails if two patterns have different captures beside the one that is the number of a layer.
fn same_captures(from: &Pattern, to: &Pattern, index: Option<&str>) -> Result<(), String> {
    let [a, b] = [from, to].map(|pattern| {
        let mut names: Vec<&str> = pattern.names().filter(|n| Some(*n) != index).collect();
        names.sort_unstable();
        names
    });
    if a == b {
        return Ok(());
    }
    let other = if index.is_some() { "other " } else { "" };
    Err(format!(
        "`{from}` and `{to}` must have the same {other}captures"
    ))
}

fn prefix(f: &mut Fields, verb: &str) -> Result<String, String> {
    f.text(verb)?
        .filter(|p| !p.is_empty())
        .ok_or_else(|| "the prefix is empty".into())
}

fn sizes(f: &mut Fields, parts: usize) -> Result<Vec<Number>, String> {
    let sizes = f.numbers("sizes")?.unwrap_or_default();
    if sizes.is_empty() || sizes.len() == parts {
        Ok(sizes)
    } else {
        Err(format!(
            "`sizes` has {} entries for {parts} parts",
            sizes.len()
        ))
    }
}

fn permutation(axes: Option<Vec<usize>>) -> Result<Vec<usize>, String> {
    let axes = axes.ok_or("`axes` is missing: the old axis of each new one")?;
    let mut sorted = axes.clone();
    sorted.sort_unstable();
    if sorted.into_iter().eq(0..axes.len()) {
        Ok(axes)
    } else {
        Err("`axes` must have each number of an axis once, from 0 on".into())
    }
}

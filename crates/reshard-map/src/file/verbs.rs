//! Rules as a mapping file writes them.

use super::fields::Fields;
use crate::{
    MapError, Pattern, Result,
    number::Number,
    rule::{Blocks, Direction, Layers, Rule, Verb},
};

/// The names of rules. A rule has exactly one of them as a field.
const VERBS: [&str; 17] = [
    "rename",
    "drop",
    "keep",
    "add_prefix",
    "strip_prefix",
    "canonical",
    "stack",
    "unstack",
    "split",
    "concat",
    "interleave",
    "deinterleave",
    "transpose",
    "pad",
    "trim",
    "cast",
    "reshape",
];

/// Reads a rule.
pub(super) fn rule(number: usize, mut fields: Fields) -> Result<Rule<Number>> {
    let found: Vec<&'static str> = VERBS.into_iter().filter(|v| fields.has(v)).collect();
    let verb = match *found {
        [verb] => verb,
        [] => {
            return Err(MapError::Rule {
                rule: number,
                verb: "",
                what: format!(
                    "it has {}, but none of the fields that say what it does: {}",
                    list(&fields.names()),
                    VERBS.join(", ")
                ),
            });
        }
        _ => {
            return Err(MapError::Rule {
                rule: number,
                verb: "",
                what: format!(
                    "{} are several rules; write each of them as one `[[rule]]`",
                    list(&found)
                ),
            });
        }
    };
    let fault = |what| MapError::Rule {
        rule: number,
        verb,
        what,
    };
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

/// An axis; the first one, unless said otherwise.
fn axis(f: &mut Fields) -> Result<usize, String> {
    Ok(f.axis("axis")?.unwrap_or(0))
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
        "rename" => {
            let (from, to) = renaming(f, verb)?;
            Verb::Rename { from, to }
        }
        "drop" => Verb::Drop {
            keys: f.patterns(verb)?,
        },
        "keep" => Verb::Keep {
            keys: f.patterns(verb)?,
        },
        "add_prefix" => Verb::AddPrefix {
            prefix: prefix(f, verb)?,
        },
        "strip_prefix" => Verb::StripPrefix {
            prefix: prefix(f, verb)?,
        },
        "canonical" => {
            if !f.flag(verb)? {
                return Err("write `canonical = true`".into());
            }
            Verb::Canonical
        }
        "stack" | "unstack" => stacking(verb, f)?,
        "split" | "concat" | "interleave" | "deinterleave" => parts(verb, f)?,
        "transpose" => Verb::Transpose {
            keys: f.patterns(verb)?,
            axes: permutation(f.axes("axes")?)?,
        },
        "pad" => Verb::Pad {
            keys: f.patterns(verb)?,
            axis: axis(f)?,
            from: f.number("from")?,
            to: required(f.number("to")?, "to")?,
        },
        "trim" => Verb::Trim {
            keys: f.patterns(verb)?,
            axis: axis(f)?,
            from: f.number("from")?,
            to: required(f.number("to")?, "to")?,
            padding: f.flag("padding")?,
        },
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

/// The rules of parts and groups along an axis.
fn parts(verb: &str, f: &mut Fields) -> Result<Verb<Number>, String> {
    Ok(match verb {
        "split" => {
            let from = source(f.pattern(verb)?)?;
            let to: Vec<Pattern> = f
                .patterns("to")?
                .into_iter()
                .map(|to| to.with_kinds_of(&from))
                .collect();
            for part in &to {
                same_captures(&from, part)?;
            }
            Verb::Split {
                axis: axis(f)?,
                sizes: sizes(f, to.len())?,
                from,
                to,
            }
        }
        "concat" => {
            let from: Vec<Pattern> = f
                .patterns(verb)?
                .into_iter()
                .map(source)
                .collect::<Result<_, _>>()?;
            let first = from.first().ok_or("`concat` is empty")?;
            let to = f.pattern("to")?.with_kinds_of(first);
            for part in &from {
                same_captures(part, &to)?;
            }
            Verb::Concat {
                axis: axis(f)?,
                sizes: sizes(f, from.len())?,
                from,
                to,
            }
        }
        _ => {
            let keys = f.patterns(verb)?;
            let blocks = Blocks {
                axis: axis(f)?,
                groups: required(f.number("groups")?, "groups")?,
                sizes: f
                    .numbers("sizes")?
                    .filter(|s| !s.is_empty())
                    .ok_or("`sizes` is missing: the blocks of a group")?,
            };
            if verb == "interleave" {
                Verb::Interleave { keys, blocks }
            } else {
                Verb::Deinterleave { keys, blocks }
            }
        }
    })
}

fn stacking(verb: &str, f: &mut Fields) -> Result<Verb<Number>, String> {
    let from = source(f.pattern(verb)?)?;
    let to = f.pattern("to")?.with_kinds_of(&from);
    let layers = Layers {
        axis: f.axis("axis")?.unwrap_or(0),
        index: f
            .text("index")?
            .ok_or("`index` is missing: the capture that is the number")?,
        count: f.number("count")?,
    };
    let (single, stacked) = if verb == "stack" {
        (&from, &to)
    } else {
        (&to, &from)
    };
    if single.twice().is_some() || single.kind(&layers.index).is_none() {
        return Err(format!("`{single}` must have `{{{}}}` once", layers.index));
    }
    if stacked.names().any(|n| n == layers.index) {
        return Err(format!("`{stacked}` can't have `{{{}}}`", layers.index));
    }
    let others = |p: &Pattern| {
        let mut names: Vec<String> = p
            .names()
            .filter(|n| *n != layers.index)
            .map(String::from)
            .collect();
        names.sort_unstable();
        names
    };
    if others(single) != others(stacked) {
        return Err(format!(
            "`{single}` and `{stacked}` must have the same other captures"
        ));
    }
    Ok(if verb == "stack" {
        Verb::Stack { from, to, layers }
    } else {
        Verb::Unstack { from, to, layers }
    })
}

/// A pattern that keys are matched with.
fn source(pattern: Pattern) -> Result<Pattern, String> {
    match pattern.twice() {
        None => Ok(pattern),
        Some(name) => Err(format!("`{pattern}` has `{{{name}}}` twice")),
    }
}

fn renaming(f: &mut Fields, verb: &str) -> Result<(Pattern, Pattern), String> {
    let from = source(f.pattern(verb)?)?;
    let to = f.pattern("to")?.with_kinds_of(&from);
    let unknown = to.names().find(|n| from.kind(n).is_none());
    if let Some(name) = unknown {
        return Err(format!(
            "`{from}` has no `{{{name}}}`, which the new name needs"
        ));
    }
    Ok((from, to))
}

fn same_captures(from: &Pattern, to: &Pattern) -> Result<(), String> {
    let sorted = |p: &Pattern| {
        let mut names: Vec<String> = p.names().map(String::from).collect();
        names.sort_unstable();
        names
    };
    if sorted(from) == sorted(to) {
        Ok(())
    } else {
        Err(format!("`{from}` and `{to}` must have the same captures"))
    }
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

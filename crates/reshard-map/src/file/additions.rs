//! The sections `[[object]]`, `[common]` and `[args]`.

use super::fields::Fields;
use crate::{
    MapError, Pattern, Result,
    additions::{Array, Becomes, Constant, Lookup, NUMBER, Origin, Sections},
    number::Number,
};
use reshard_model::Value;
use std::collections::BTreeMap;

/// The most entries of each section.
const MAX_ENTRIES: usize = 4096;

/// Takes the sections out of the top of a file.
pub(super) fn sections(top: &mut Fields) -> Result<Sections<Number>> {
    let arrays = match top.take("object") {
        None => Vec::new(),
        Some(toml::Value::Array(all)) if all.len() <= MAX_ENTRIES => all,
        Some(_) => {
            return Err(MapError::Syntax(format!(
                "`object` is no list of at most {MAX_ENTRIES} tables; write `[[object]]`"
            )));
        }
    };
    let arrays = arrays.into_iter().zip(1..).map(|(value, number)| {
        let fault = |what| MapError::Syntax(format!("`[[object]]` {number}: {what}"));
        match value {
            toml::Value::Table(table) => array(Fields::new(table)).map_err(fault),
            _ => Err(fault("it is no table".into())),
        }
    });
    Ok(Sections {
        arrays: arrays.collect::<Result<_>>()?,
        common: origins(top, "common")?,
        args: origins(top, "args")?,
    })
}

fn array(mut f: Fields) -> Result<Array<Number>, String> {
    let each = f.number("each")?;
    let keys = f.patterns("key")?;
    let number = each.as_ref().map(|_| NUMBER);
    for key in &keys {
        if key.to_string().contains('/') {
            return Err(format!(
                "`{key}` has a `/`, which Megatron Core can't have in the key of an array"
            ));
        }
        if !key.names().eq(number) {
            return Err(match number {
                Some(number) => format!(
                    "with `each`, `{key}` must have `{{{number}}}` once and no other capture"
                ),
                None => format!("`{key}` has a capture; `each` says how many numbers there are"),
            });
        }
    }
    let out = Array {
        keys,
        each,
        cells: f
            .numbers("cells")?
            .filter(|cells| !cells.is_empty())
            .ok_or("`cells` is missing: the shape of the array")?,
        needs: optional_pattern(&mut f, "needs")?,
        when: f.number("when")?,
    };
    f.done()?;
    Ok(out)
}

fn origins(top: &mut Fields, section: &str) -> Result<BTreeMap<String, Origin<Number>>> {
    let table = match top.take(section) {
        None => return Ok(BTreeMap::new()),
        Some(toml::Value::Table(table)) if table.len() <= MAX_ENTRIES => table,
        Some(_) => {
            let what = format!("`{section}` is no table of at most {MAX_ENTRIES} values");
            return Err(MapError::Syntax(what));
        }
    };
    let all = table.into_iter().map(|(name, value)| {
        let fault = |what| MapError::Syntax(format!("`{name}` of `[{section}]`: {what}"));
        if section == "common" && name == "args" {
            return Err(fault("write `[args]`".into()));
        }
        let origin = match value {
            toml::Value::Table(table) => origin(Fields::new(table)),
            value => constant(value).map(Origin::Constant),
        };
        Ok((name.clone(), origin.map_err(fault)?))
    });
    all.collect()
}

fn origin(mut f: Fields) -> Result<Origin<Number>, String> {
    const KINDS: [&str; 5] = ["number", "flag", "tensor", "width", "config"];
    let kinds: Vec<&str> = KINDS.into_iter().filter(|kind| f.has(kind)).collect();
    let missing = || format!("it has exactly one of `{}`", KINDS.join("`, `"));
    let out = match &*kinds {
        [kind @ ("number" | "flag")] => Origin::Number {
            number: f.number(kind)?.ok_or_else(missing)?,
            flag: *kind == "flag",
        },
        ["tensor"] => Origin::Tensor(f.pattern("tensor")?),
        ["width"] => Origin::Width(f.pattern("width")?),
        ["config"] => Origin::Config(Lookup {
            paths: texts(&mut f, "config")?,
            becomes: becomes(&mut f)?,
            optional: f.flag("optional")?,
        }),
        _ => return Err(missing()),
    };
    f.done()?;
    Ok(out)
}

fn becomes(f: &mut Fields) -> Result<Becomes, String> {
    match (f.take("then"), f.take("listed")) {
        (None, None) => Ok(Becomes::Same),
        (Some(value), None) => constant(value).map(Becomes::Then),
        (None, Some(toml::Value::Table(table))) if table.len() <= MAX_ENTRIES => {
            let all = table
                .into_iter()
                .map(|(text, value)| Ok((text, constant(value)?)));
            all.collect::<Result<_, String>>().map(Becomes::Listed)
        }
        _ => Err("it has `then` with a value, or `listed` with a table, or neither".into()),
    }
}

/// One text, or a list of them.
fn texts(f: &mut Fields, name: &str) -> Result<Vec<String>, String> {
    let text = |value| match value {
        toml::Value::String(text) => Ok(text),
        _ => Err(format!("`{name}` has something that is no text")),
    };
    match f.take(name) {
        Some(toml::Value::Array(all)) if (1..=MAX_ENTRIES).contains(&all.len()) => {
            all.into_iter().map(text).collect()
        }
        Some(one) => Ok(vec![text(one)?]),
        None => Err(format!("`{name}` is missing")),
    }
}

fn constant(value: toml::Value) -> Result<Constant, String> {
    Ok(Constant(match value {
        toml::Value::String(text) => Value::Str(text.into()),
        toml::Value::Integer(number) => Value::Int(number),
        toml::Value::Float(number) => Value::Float(number),
        toml::Value::Boolean(flag) => Value::Bool(flag),
        _ => return Err("a value is a text, a number, true or false".into()),
    }))
}

fn optional_pattern(f: &mut Fields, name: &str) -> Result<Option<Pattern>, String> {
    f.has(name).then(|| f.pattern(name)).transpose()
}

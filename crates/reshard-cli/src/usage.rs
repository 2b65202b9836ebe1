//! Errors of the command line, which repeat what was typed or pasted.

use crate::table::{shown, steers};
use clap::{
    builder::StyledStr,
    error::{ContextKind, ContextValue, Error},
};
use std::error::Error as _;

/// Stands in help texts within `{n}`, which clap would replace by a line break. It has no width, and nobody gets to see it.
pub(crate) const JOINER: char = '\u{2060}';

/// The error, or the help, with its styles. What it repeats of the arguments is escaped, as everywhere else.
pub(crate) fn text(mut e: Error) -> String {
    for (kind, value) in e.context().filter_map(escaped).collect::<Vec<_>>() {
        e.insert(kind, value);
    }
    // What a parser of values says is no part of the context.
    let why = e.source().map(ToString::to_string);
    // One that was typed is an escape by now.
    let text = e.render().ansi().to_string().replace(JOINER, "");
    match why.filter(|why| why.contains(steers)) {
        Some(why) => text.replace(&why, &shown(&why)),
        None => text,
    }
}

fn escaped((kind, value): (ContextKind, &ContextValue)) -> Option<(ContextKind, ContextValue)> {
    let own = |s: &String| shown(s).into_owned();
    let value = match value {
        ContextValue::String(s) => ContextValue::String(own(s)),
        ContextValue::Strings(all) => ContextValue::Strings(all.iter().map(own).collect()),
        // Suggestions. Their own styles can't be told from those that are typed, so they go with these.
        ContextValue::StyledStrs(all) => ContextValue::StyledStrs(all.iter().map(plain).collect()),
        _ => return None,
    };
    Some((kind, value))
}

fn plain(s: &StyledStr) -> StyledStr {
    shown(&s.to_string()).into_owned().into()
}

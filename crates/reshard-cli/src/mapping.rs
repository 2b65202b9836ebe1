//! The map of `--map`.

use crate::{
    args::Mapping,
    error::{CliError, Result},
    table::shown,
};
use reshard::{
    Checkpoint,
    map::{Map, MapError, MapFile},
    storage::wait,
};
use std::{collections::BTreeMap, fs::File, io::Read as _};

/// A mapping file of more bytes than this is not read.
const MAX_FILE: u64 = 1 << 20;

/// The map that was asked for, with parameters of the checkpoint.
pub(crate) fn map(args: &Mapping, source: &Checkpoint) -> Result<Option<Map>> {
    let Some(name) = &args.map else {
        return Ok(None);
    };
    let file = MapFile::parse(&text(name)?).map_err(|e| explained(name, e))?;
    let given: BTreeMap<String, u64> = args.set.iter().cloned().collect();
    let values = wait(source.map_parameters(&file, &given))?;
    let map = file.bind(&values).map_err(|e| explained(name, e))?;
    let map = if args.inverse { map.inverse() } else { Ok(map) };
    map.map(Some).map_err(|e| explained(name, e))
}

/// The text of a map that comes with reshard, or of a mapping file.
pub(crate) fn text(name: &str) -> Result<String> {
    MapFile::text_of(name).map_or_else(|| read(name), |text| Ok(text.into()))
}

/// The text of a mapping file.
fn read(path: &str) -> Result<String> {
    let known: Vec<&str> = MapFile::names().collect();
    let hint = format!("give a file, or one of {}", known.join(", "));
    let text = || -> std::io::Result<String> {
        let mut text = String::new();
        File::open(path)?
            .take(MAX_FILE + 1)
            .read_to_string(&mut text)?;
        Ok(text)
    };
    match text() {
        Ok(text) if text.len() as u64 <= MAX_FILE => Ok(text),
        Ok(_) => Err(CliError::told(
            format!("{} has more than {MAX_FILE} bytes", shown(path)),
            hint,
        )),
        Err(e) => Err(CliError::told(
            format!("{} can't be read: {e}", shown(path)),
            hint,
        )),
    }
}

/// The error of a map, with its name and with what to do.
pub(crate) fn explained(map: &str, e: MapError) -> CliError {
    let hint = match &e {
        MapError::Parameter { .. } => {
            "--set NAME=N gives a parameter; without it, it is taken from `args` or `config.json` in the checkpoint"
        }
        MapError::NoInverse { .. } => "leave out --inverse, or change the mapping file",
        _ => "`docs/mapping.md` describes mapping files",
    };
    let what = format!("{}: {e}", shown(map));
    match e {
        // The parser shows the line with the mistake.
        MapError::Syntax(_) => CliError::Quoted {
            what: what.trim_end().to_owned(),
            hint: hint.into(),
        },
        _ => CliError::told(shown(&what), hint),
    }
}

//! The map of `--map`.

use crate::{
    args::Mapping,
    error::{CliError, Result},
    io::Io,
    units,
};
use reshard::{
    Checkpoint,
    map::{Map, MapError, MapFile, Parameter},
    model::shortened,
    storage::wait,
    strategy::first,
};
use std::{
    collections::BTreeMap,
    fs::File,
    io::{Read as _, read_to_string},
    path::Path,
};

/// A mapping file of more bytes than this is not read.
const MAX_FILE: u64 = 1 << 20;

/// The map that was asked for, with parameters of the checkpoint. A note lists the tensors that it does not know.
pub(crate) fn map(args: &Mapping, source: &Checkpoint, io: &mut Io<'_>) -> Result<Option<Map>> {
    let Some(name) = &args.map else {
        return Ok(None);
    };
    let told = |e| explained(args, e);
    let file = MapFile::parse(&text(name)?).map_err(told)?;

    // Before parameters are asked for, which are of no use to a map that does not fit.
    let tensors = source.metadata().tensors().map(|t| t.key());
    let keys: Vec<&str> = tensors.chain(source.objects()).collect();
    file.check_keys(keys.into_iter(), args.inverse)
        .map_err(told)?;

    let given = given(&args.set)?;
    let mut values = wait(source.map_parameters(&file, &BTreeMap::new()))?;
    for (name, value) in given {
        if let Some(stored) = values
            .insert(name.clone(), value)
            .filter(|stored| *stored != value)
        {
            io.note(format!(
                "--set {name}={value} is used, and the checkpoint says {stored}"
            ));
        }
    }
    let mut map = file.bind(&values).map_err(told)?;
    if args.inverse {
        map = map.inverse().map_err(told)?;
    }
    let all = file.values(&values).map_err(told)?;
    note_defaults(&file, &values, &all, io);
    if let Some(unmapped) = args.unmapped {
        map = map.with_unmapped(unmapped);
    }
    let mapped = source.mapped(&map).map_err(told)?;
    note_unmapped(mapped.mapping(), io);
    Ok(Some(map))
}

/// The parameters of `--set`, each of which has one value.
fn given(set: &[(String, u64)]) -> Result<BTreeMap<String, u64>> {
    let mut all = BTreeMap::new();
    for (name, value) in set {
        if let Some(other) = all.insert(name.clone(), *value) {
            let what = format!("--set gives {name} twice: {other} and {value}");
            return Err(CliError::told(what, "leave one of them out"));
        }
    }
    Ok(all)
}

/// Notes parameters that the checkpoint could have told and did not, so that the map's default decides.
fn note_defaults(
    file: &MapFile,
    known: &BTreeMap<String, u64>,
    all: &BTreeMap<String, u64>,
    io: &mut Io<'_>,
) {
    let could_tell = |p: &Parameter| p.args().or(p.config()).is_some();
    let of_default = |(name, p): (&str, &Parameter)| {
        let value = all.get(name)?;
        (could_tell(p) && !known.contains_key(name)).then(|| format!("{name}={value}"))
    };
    let defaults: Vec<String> = file.parameters().filter_map(of_default).collect();
    if !defaults.is_empty() {
        io.note(format!(
            "the checkpoint does not tell these parameters of the map, which are its defaults: {}; --set gives others",
            defaults.join(", ")
        ));
    }
}

/// So many tensors are named. The ledger in JSON has all.
const NAMED: usize = 20;

fn note_unmapped(mapping: &reshard::map::Mapping, io: &mut Io<'_>) {
    // Those that were left out have no rule.
    let left_out = |key: &str| {
        let mut dropped = mapping.dropped().iter();
        dropped.any(|item| item.rule.is_none() && *item.key == *key)
    };
    let Some(unmapped) = mapping.unmapped().first() else {
        return;
    };
    let what = match left_out(unmapped) {
        true => "are left out",
        false => "keep their names",
    };
    let count = units::some(mapping.unmapped().len() as u64, "tensor");
    let keys = mapping.unmapped().iter().map(|key| shortened(key));
    io.note(format!(
        "no rule of the map matches {count}, which {what}: {}",
        first(NAMED, keys)
    ));
}

/// The text of a map that comes with reshard, or of a mapping file.
pub(crate) fn text(name: &str) -> Result<String> {
    if let Some(text) = MapFile::text_of(name) {
        return Ok(text.into());
    }
    let known: Vec<&str> = MapFile::names().collect();
    let hint = format!("give a file, or one of {}", known.join(", "));
    read(Path::new(name), MAX_FILE, &hint)
}

/// The text of a file that the command line names.
pub(crate) fn read(path: &Path, max: u64, hint: &str) -> Result<String> {
    let text = File::open(path).and_then(|file| read_to_string(file.take(max + 1)));
    let why = match text {
        Ok(text) if text.len() as u64 <= max => return Ok(text),
        Ok(_) => format!("has more than {}", units::bytes(max)),
        Err(e) => format!("can't be read: {e}"),
    };
    Err(CliError::told(format!("{} {why}", path.display()), hint))
}

/// The error of a map, with its name and with what to do.
pub(crate) fn explained(args: &Mapping, e: MapError) -> CliError {
    let map = args.map.as_deref().unwrap_or("--map");
    let other_side = match args.inverse {
        false => "the keys look like the other side of this map: use `--inverse`?",
        true => "the keys look like the other side of this map: leave out `--inverse`?",
    };
    let hint = match &e {
        MapError::NoMatch { inverse: true, .. } | MapError::Unmapped { inverse: true, .. } => {
            other_side
        }
        MapError::NoMatch { .. } => "`reshard ls` lists the keys; choose a map for them",
        MapError::Unmapped { .. } => {
            "`--unmapped keep` carries them over as they are, and `--unmapped drop` leaves them out"
        }
        MapError::Parameter { .. } => {
            "--set NAME=N gives a parameter; without it, it is taken from `args` or `config.json` in the checkpoint"
        }
        MapError::NoInverse { .. } => "leave out --inverse, or change the mapping file",
        _ => "`docs/mapping.md` describes mapping files",
    };
    let what = format!("{map}: {e}");
    match e {
        // The parser shows the line with the mistake.
        MapError::Syntax(_) => CliError::Quoted {
            what: what.trim_end().to_owned(),
            hint: hint.into(),
        },
        _ => CliError::told(what, hint),
    }
}

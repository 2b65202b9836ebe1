//! `reshard plugins`.

use crate::{
    args::Plugins,
    error::{OK, Result},
    io::Io,
    json,
    program::Program,
    table,
};
use reshard::{
    policy::{names, names_of},
    storage::StoreScheme,
    strategy::{LoadLayer, Registration, SaveLayer},
};
use serde_json::{Value as Json, json};

pub(crate) fn run(program: &Program, args: &Plugins, io: &mut Io<'_>) -> Result<u8> {
    let (saves, loads) = (names_of::<dyn SaveLayer>(), names_of::<dyn LoadLayer>());
    if args.json {
        let strategy = |r: &Registration| {
            json!({
                "action": r.key().action.to_string(),
                "backend": r.backend,
                "version": r.version,
                "crate": r.origin,
                "crate_version": r.origin_version,
            })
        };
        let store = |s: &StoreScheme| json!({ "scheme": s.scheme, "crate": s.origin, "crate_version": s.origin_version });
        let report = json!({
            "schema": 1,
            "strategies": program.registry.iter().map(strategy).collect::<Vec<Json>>(),
            "stores": program.stores.schemes().map(store).collect::<Vec<Json>>(),
            "policies": names(),
            "layers": { "save": saves, "load": loads },
        });
        json::write(io.out, &report)?;
        return Ok(OK);
    }
    let row = |r: &Registration| {
        [
            r.key().action.to_string(),
            r.backend.into(),
            r.version.to_string(),
            format!("{} {}", r.origin, r.origin_version),
        ]
    };
    table::rows(io.out, ["STRATEGY", "BACKEND", ">VERSION", "CRATE"], || {
        program.registry.iter().map(row)
    })?;
    writeln!(io.out)?;
    let row = |s: &StoreScheme| {
        [
            format!("{}://", s.scheme),
            format!("{} {}", s.origin, s.origin_version),
        ]
    };
    table::rows(io.out, ["STORE", "CRATE"], || {
        program.stores.schemes().map(row)
    })?;
    writeln!(io.out)?;
    table::rows(io.out, ["POLICY"], || {
        names().into_iter().map(|name| [name.into()])
    })?;
    if !saves.is_empty() || !loads.is_empty() {
        writeln!(io.out)?;
        table::rows(io.out, ["LAYER", "OF"], || {
            let saves = saves.iter().map(|name| [*name, "saves"]);
            let rows = saves.chain(loads.iter().map(|name| [*name, "loads"]));
            rows.map(|row| row.map(String::from))
        })?;
    }
    Ok(OK)
}

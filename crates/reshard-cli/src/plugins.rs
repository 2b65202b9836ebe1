//! `reshard plugins`.

use crate::{
    args::Plugins,
    error::{OK, Result},
    io::Io,
    json,
    program::Program,
    table,
};
use reshard::{policy::names, storage::StoreScheme, strategy::Registration};
use serde_json::{Value as Json, json};

pub(crate) fn run(program: &Program, args: &Plugins, io: &mut Io<'_>) -> Result<u8> {
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
    Ok(OK)
}

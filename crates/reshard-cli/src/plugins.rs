//! `reshard plugins`.

use crate::{
    args::Plugins,
    error::{OK, Result},
    io::Io,
    json,
    program::Program,
    table,
};
use reshard::policy::names;
use serde::Serialize;

#[derive(Serialize)]
struct Report {
    schema: u32,
    strategies: Vec<Strategy>,
    stores: Vec<Scheme>,
    policies: Vec<&'static str>,
}

#[derive(Serialize)]
struct Strategy {
    action: String,
    backend: &'static str,
    version: u32,
    #[serde(rename = "crate")]
    origin: &'static str,
    crate_version: &'static str,
}

#[derive(Serialize)]
struct Scheme {
    scheme: &'static str,
    #[serde(rename = "crate")]
    origin: &'static str,
    crate_version: &'static str,
}

pub(crate) fn run(program: &Program, args: &Plugins, io: &mut Io<'_>) -> Result<u8> {
    let strategy = |r: &reshard::strategy::Registration| Strategy {
        action: r.key().action.to_string(),
        backend: r.backend,
        version: r.version,
        origin: r.origin,
        crate_version: r.origin_version,
    };
    let strategies = program.registry.iter().map(strategy).collect();
    let scheme = |s: &reshard::storage::StoreScheme| Scheme {
        scheme: s.scheme,
        origin: s.origin,
        crate_version: s.origin_version,
    };
    let stores = program.stores.schemes().map(scheme).collect();
    let report = Report {
        schema: 1,
        strategies,
        stores,
        policies: names(),
    };

    if args.json {
        json::write(io.out, &report)?;
        return Ok(OK);
    }
    let row = |s: &Strategy| {
        [
            s.action.clone(),
            s.backend.into(),
            s.version.to_string(),
            format!("{} {}", s.origin, s.crate_version),
        ]
    };
    table::rows(io.out, ["STRATEGY", "BACKEND", ">VERSION", "CRATE"], || {
        report.strategies.iter().map(row)
    })?;
    writeln!(io.out)?;
    let row = |s: &Scheme| {
        [
            format!("{}://", s.scheme),
            format!("{} {}", s.origin, s.crate_version),
        ]
    };
    table::rows(io.out, ["STORE", "CRATE"], || report.stores.iter().map(row))?;
    writeln!(io.out)?;
    table::rows(io.out, ["POLICY"], || {
        report.policies.iter().map(|name| [(*name).into()])
    })?;
    Ok(OK)
}

//! Laws of whole saves and loads.

#![expect(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

mod access;
mod agreement;
mod alike;
mod background;
mod buckets;
mod bytes;
mod contracts;
mod damage;
mod declarations;
mod dry_run;
mod exchanges;
mod flattened;
mod flattened_tables;
mod groups;
mod hooks;
mod kept_load_plans;
mod kept_plans;
mod keys;
mod ledger;
mod lookups;
mod megatron;
mod memory;
mod names;
mod partial;
mod plain;
mod policies;
mod protocol;
mod ranks_that_leave;
mod replicas;
mod repointed;
mod round_trip;
mod runtime;
mod secrets;
mod sizes;
mod stores;
mod templates;
mod transforms;
mod variables;
mod wrapped_loads;
mod zarr;

//! Saves to places in object stores, and what lies there.

use crate::{part, step_of, template};
use anyhow::{Context, Result, bail};
use futures::{executor::block_on, future::join_all};
use reshard::{
    CommonForm, Dialect, ErrorKind, LocalGroup, OpenOptions, StateDict,
    storage::{Hints, Progress, Store, StoreExt as _},
};
use std::sync::Arc;

/// The name of the place in messages.
const URL: &str = "s3://place";

/// Parts so small that each file has two.
pub fn small_parts() -> Hints {
    Hints::default()
        .with_part_size(256 << 10)
        .with_concurrency(8)
        .with_coalesce_gap(64 << 10)
}

/// Two ranks save step `step` in a dialect; Megatron Core's has common state in an object, since three files can't change together. What each of them says.
///
/// # Errors
/// The state can't be made.
pub fn save_to(
    store: &Arc<dyn Store>,
    step: u64,
    overwrite: bool,
    dialect: Dialect,
) -> Result<[Result<()>; 2]> {
    let form = match dialect {
        Dialect::Megatron => CommonForm::Object,
        _ => CommonForm::default(),
    };
    let groups = LocalGroup::new(2);
    let states: Result<Vec<StateDict>> = (0..2).map(|rank| part(step, rank, 2)).collect();
    let states = states?;
    let saves = groups.iter().zip(&states).map(|(group, state)| {
        let save = reshard::save(state, URL)
            .group(group)
            .store(Arc::clone(store))
            .dialect(dialect)
            .common_form(form)
            .overwrite(overwrite);
        async move { Ok(save.await.map(drop)?) }
    });
    let said: Vec<Result<()>> = block_on(join_all(saves));
    said.try_into().ok().context("two ranks say two things")
}

/// The same, if all ranks say that it is there.
///
/// # Errors
/// What the first rank says that does not.
pub fn saved_to(
    store: &Arc<dyn Store>,
    step: u64,
    overwrite: bool,
    dialect: Dialect,
) -> Result<()> {
    save_to(store, step, overwrite, dialect)?
        .into_iter()
        .collect()
}

/// Which save a reader gets.
///
/// # Errors
/// It gets none, or one that is not wholly of one save.
pub fn load_from(store: &Arc<dyn Store>) -> Result<u64> {
    let load = reshard::load(template(), URL).store(Arc::clone(store));
    let loaded = block_on(async { load.await }).map_err(|e| e.into_parts().0)?;
    step_of(&loaded)
}

/// Which save lies there, and whether all of its bytes are sound; `None` if no checkpoint does.
///
/// # Errors
/// What lies there is not wholly of one save.
pub fn look_at(store: &Arc<dyn Store>) -> Result<Option<u64>> {
    let open = OpenOptions::new().store(Arc::clone(store));
    let checkpoint = match block_on(open.open(URL)) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        opened => opened.context("something lies there that is no checkpoint")?,
    };
    let damage = block_on(checkpoint.verify(true, Progress::default()))?.damage;
    if !damage.is_empty() {
        bail!("damaged: {damage:?}");
    }
    load_from(store).map(Some)
}

/// Removes all that lies there: a server of thousands of runs would keep it to the end.
///
/// # Errors
/// As the store.
pub fn remove_all(store: &Arc<dyn Store>) -> Result<()> {
    block_on(async {
        let files = store.files().await?.into_iter();
        let names: Vec<_> = files.map(|file| file.name).collect();
        Ok(store.remove(&names).await?)
    })
}

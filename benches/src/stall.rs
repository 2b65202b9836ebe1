//! How long an asynchronous save keeps training waiting.

use crate::{
    measured::Measured,
    ranks::{Args, nbytes, on_ranks},
    state::Cut,
};
use anyhow::Result;
use reshard::{Durability, Staging, StateDict, blocking};

/// From the call until the state may change. The save ends off the clock, before the next one starts.
pub(crate) fn stall(a: &Args, share: bool) -> Result<Measured> {
    let (b, url, dir) = (a.clone(), a.dir.display().to_string(), a.dir.clone());
    let (runs, states) = on_ranks(
        2,
        a.iterations,
        move |rank| {
            let state = b.state.build(b.gb, rank, 2, Cut::Rows, 2)?;
            Ok((state, None::<blocking::AsyncSaver>))
        },
        move || drop(std::fs::remove_dir_all(&dir)),
        move |(state, saver), group| {
            // The first run warms up, so making the saver is in nobody's time.
            let mut saver = match saver {
                Some(saver) => saver,
                None => blocking::AsyncSaver::new(group)?,
            };
            let staging = if share { Staging::Share } else { Staging::Copy };
            let save = reshard::save(&state, &url)
                .durability(Durability::Process)
                .staging(staging);
            let handle = saver.start(save)?;
            handle.staged();
            Ok((state, saver, handle))
        },
        |(state, saver, handle)| {
            handle.finish()?;
            Ok((state, Some(saver)))
        },
    )?;
    let states: Vec<StateDict> = states.into_iter().map(|(state, _)| state).collect();
    Ok(runs.measured_with_memory(states.iter().map(nbytes).sum()))
}

/// Two threads, each with half of the bytes, from and into touched memory.
pub(crate) fn copy(a: &Args) -> Result<Measured> {
    let per_rank = (a.state.nbytes(a.gb) / 2) as usize;
    let (runs, _) = on_ranks(
        2,
        a.iterations,
        move |_| Ok((vec![1u8; per_rank], vec![2u8; per_rank])),
        || (),
        move |(from, mut to), _| {
            to.copy_from_slice(&from);
            Ok((from, to))
        },
        Ok,
    )?;
    Ok(runs.measured(per_rank as u64 * 2))
}

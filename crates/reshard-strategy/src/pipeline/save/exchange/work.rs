//! The thread that lays out and writes the files of a rank that takes part in an exchange.

use super::{
    super::{
        resolve::{Source, codec},
        written::{Target, lay_out},
    },
    feed::Feed,
};
use crate::{FileLayout, Result, StrategyError, WriteResult};
use reshard_comm::Cause;
use reshard_model::Payload;
use reshard_plan::{PieceId, SavePlan, WriteData, WriteItem};
use reshard_storage::{FileBody, Written, wait, work_here};
use std::{
    collections::BTreeSet,
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    thread,
};

/// Starts the thread. It tells `feed` when it ends.
pub(super) fn start(
    feed: &Arc<Feed>,
    plan: &Arc<SavePlan>,
    source: &Arc<Source>,
    rank: u32,
    target: Target,
) -> Result<()> {
    let (feed, plan, source) = (Arc::clone(feed), Arc::clone(plan), Arc::clone(source));
    let work = move || {
        let done = catch_unwind(AssertUnwindSafe(|| {
            write(&feed, &plan, &source, rank, &target)
        }));
        // Nothing of the state is held when the end is told.
        drop((plan, source, target));
        feed.ended(done.unwrap_or_else(|panic| {
            Err(StrategyError::Internal(Cause::from_panic(&*panic).message))
        }));
    };
    let named = thread::Builder::new().name("reshard-exchange".into());
    named.spawn(work).map(drop).map_err(no_thread)
}

fn no_thread(e: io::Error) -> StrategyError {
    StrategyError::Invalid(format!(
        "no thread could be started to write what other ranks give: {e}"
    ))
}

fn write(
    feed: &Arc<Feed>,
    plan: &SavePlan,
    source: &Source,
    rank: u32,
    target: &Target,
) -> Result<Vec<WriteResult>> {
    let resolve = |item: &WriteItem| match item.taken() {
        None => source.resolve(item),
        Some(n) => taken(feed, n, item, source),
    };
    let FileLayout {
        files,
        items,
        copied,
    } = lay_out(&*source.writer, (rank, target.limit), plan, &resolve)?;
    feed.laid_out();
    let fed = fed(plan, &items);
    let written = write_files(files, &fed, feed, target)?;
    FileLayout::results(items, copied, &written)
}

/// The data of an item that another rank gives. Tensors come while they are written, objects now.
fn taken(feed: &Arc<Feed>, n: usize, item: &WriteItem, source: &Source) -> Result<WriteData> {
    if let Some(t) = item.tensor() {
        return Ok(WriteData::Tensor(feed.tensor(n, t)));
    }
    let codec = codec(&*source.writer)?.name();
    let failed = |e| StrategyError::Invalid(format!("object {}: {e}", item.key));
    let bytes = feed.whole(n).map_err(failed)?;
    Ok(WriteData::Object(Payload::Encoded { codec, bytes }))
}

/// The files with tensors that other ranks give.
fn fed(plan: &SavePlan, items: &[(PieceId, Vec<crate::ExtentId>)]) -> BTreeSet<usize> {
    let taken = plan
        .items
        .iter()
        .filter(|item| item.taken().is_some() && item.tensor().is_some());
    files_of(&taken.map(WriteItem::id).collect(), items)
}

/// The files of some items. What lies in the extent of another item follows that item.
fn files_of(
    wanted: &BTreeSet<PieceId>,
    items: &[(PieceId, Vec<crate::ExtentId>)],
) -> BTreeSet<usize> {
    let (mut out, mut before) = (BTreeSet::new(), None);
    for (id, extents) in items {
        let files = extents.iter().map(|(file, _)| *file as usize);
        before = files.clone().next_back().or(before);
        if wanted.contains(id) {
            out.extend(files);
            out.extend(before);
        }
    }
    out
}

/// Writes files that wait for other ranks on this thread alone, so that no I/O thread waits for a rank. Writes the others as usual.
fn write_files(
    files: Vec<FileBody>,
    fed: &BTreeSet<usize>,
    feed: &Feed,
    target: &Target,
) -> Result<Vec<Written>> {
    let (mut waiting, mut own) = (Vec::new(), Vec::new());
    for (n, file) in files.into_iter().enumerate() {
        if fed.contains(&n) {
            &mut waiting
        } else {
            &mut own
        }
        .push((n, file));
    }
    let (own, waiting) = thread::scope(|scope| {
        let write_own = || {
            let written = numbered(own, |files| wait(target.write(files)));
            // Nobody needs the other files any more.
            if written.is_err() {
                feed.stop();
            }
            written
        };
        let named = thread::Builder::new().name("reshard-own-files".into());
        let own = named.spawn_scoped(scope, write_own).map_err(no_thread)?;
        let waiting = numbered(waiting, |files| work_here(|| wait(target.write(files))));
        let own = own
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        Ok::<_, StrategyError>((own, waiting))
    })?;
    // If both failed, the files that wait may have failed for the sake of the others.
    let mut written: Vec<(usize, Written)> = own?.into_iter().chain(waiting?).collect();
    written.sort_by_key(|(n, _)| *n);
    Ok(written.into_iter().map(|(_, written)| written).collect())
}

fn numbered(
    files: Vec<(usize, FileBody)>,
    write: impl FnOnce(Vec<FileBody>) -> Result<Vec<Written>>,
) -> Result<Vec<(usize, Written)>> {
    if files.is_empty() {
        return Ok(Vec::new());
    }
    let (numbers, files): (Vec<usize>, Vec<FileBody>) = files.into_iter().unzip();
    Ok(numbers.into_iter().zip(write(files)?).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_item_in_the_extent_of_another_lies_in_the_file_of_that() {
        let id = |key: &str| PieceId {
            key: key.into(),
            offset: None,
        };
        // All of file 0 is one extent. In file 1 each item has its own.
        let items = [
            (id("a"), vec![(0, 0)]),
            (id("b"), Vec::new()),
            (id("c"), vec![(1, 0), (1, 2)]),
            (id("d"), vec![(1, 1)]),
            (id("e"), vec![(2, 0)]),
        ];
        let files = |wanted: &[&str]| {
            let wanted = wanted.iter().map(|key| id(key)).collect();
            files_of(&wanted, &items).into_iter().collect::<Vec<_>>()
        };
        assert_eq!(files(&["b"]), [0]);
        assert_eq!(files(&["a", "d"]), [0, 1]);
        assert_eq!(files(&["e", "b"]), [0, 2]);
        assert_eq!(files(&[]), [0; 0]);
    }
}

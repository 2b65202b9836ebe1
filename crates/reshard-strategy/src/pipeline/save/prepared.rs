//! A planned save: staging, writing and finishing it.

use super::resolve::{Cells, Resolver};
use crate::{
    AsyncStager, FileLayout, FinishCx, PreparedSave, RankTotals, Records, Result, SaveTotals, Saved,
    StorageInfo, StorageWriter, StrategyError, WriteResult, agree, cause, staging::stage_leaves,
};
use async_trait::async_trait;
use reshard_comm::{Cause, Comm};
use reshard_model::{Dialect, Dims, ErrorKind, FlatStateDict};
use reshard_plan::{Entry, Metadata, PieceId, SavePlan, WriteItem};
use reshard_policy::PolicyMetrics;
use reshard_storage::{Durability, Length, Name, Progress, Transaction, Written};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// A save that is planned. It borrows nothing: another thread can write it, and finish it with the group.
pub(super) struct Prepared<W> {
    pub(super) resolver: Resolver<W>,
    pub(super) transaction: Arc<dyn Transaction>,
    pub(super) durability: Durability,
    pub(super) progress: Progress,
    pub(super) rank: u32,
    pub(super) rank_local: bool,
    pub(super) url: String,
    pub(super) dialect: Dialect,
    /// `None` once it is written.
    pub(super) work: Option<Work>,
    /// The step that was begun last.
    pub(super) step: Step,
    /// Where the items lie. Known once they are written.
    pub(super) results: Vec<WriteResult>,
    pub(super) metadata: Metadata,
    pub(super) policy: Option<PolicyMetrics>,
}

/// The local steps of a save.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Staging,
    Layout,
    Write,
}

impl Step {
    fn name(self) -> &'static str {
        match self {
            Self::Staging => "stage",
            Self::Layout => "layout",
            Self::Write => "write",
        }
    }
}

/// What this rank writes.
pub(super) struct Work {
    pub(super) plan: SavePlan,
    pub(super) state: FlatStateDict,
}

/// Checks that the layout has a location for every planned item, and for nothing else.
fn check_layout(plan: &SavePlan, layout: &FileLayout) -> Result<()> {
    let copied = layout.copied.iter().map(|p| &p.id);
    let mut places: BTreeSet<&PieceId> = layout.items.iter().map(|(id, _)| id).chain(copied).collect();
    for item in &plan.items {
        if !places.remove(&item.id()) {
            return Err(StrategyError::Internal(format!("the format gave no place to {}", item.id())));
        }
    }
    match places.first() {
        Some(id) => {
            Err(StrategyError::Internal(format!("the format gave a place to {id}, which was not planned")))
        }
        None => Ok(()),
    }
}

impl<W: StorageWriter> Prepared<W> {
    /// Decides which files this rank writes. Their bytes are pulled later.
    fn lay_out(&mut self) -> Result<FileLayout> {
        let Work { plan, state } = self.work.take().ok_or_else(written_already)?;
        let cells = Cells::of(&state);
        let resolve = |item: &WriteItem| self.resolver.resolve(item, &state, &cells);
        let layout = self.resolver.writer.layout(self.rank, &plan, &resolve)?;
        check_layout(&plan, &layout)?;
        Ok(layout)
    }

    /// The cause for the other ranks if a local step failed. They learn it in the step `write`, whichever step it was.
    fn told(&self, e: &StrategyError) -> Cause {
        let cause = cause(e);
        match self.step {
            Step::Write => cause,
            step => Cause { message: format!("in `{}`: {}", step.name(), cause.message), ..cause },
        }
    }
}

#[async_trait]
impl<W: StorageWriter> PreparedSave for Prepared<W> {
    async fn stage(&mut self, stager: &dyn AsyncStager) -> Result<()> {
        self.step = Step::Staging;
        let Some(Work { plan, state }) = &mut self.work else { return Err(written_already()) };
        // The plan names leaves that tensors come from. Only these are copied.
        let tensors = plan.items.iter().filter(|i| i.tensor().is_some());
        let wanted = tensors.map(|i| i.source).collect();
        stage_leaves(state, self.resolver.own, &wanted, stager).await
    }

    async fn write(&mut self) -> Result<()> {
        self.step = Step::Layout;
        let FileLayout { files, items, copied } = self.lay_out()?;
        self.step = Step::Write;
        let planned: Vec<(Name, Option<Length>)> =
            files.iter().map(|f| (f.name.clone(), f.length())).collect();
        let written = self.transaction.write(files, self.durability, self.progress.clone()).await?;
        // A store that wrote other files, or other lengths, than planned must not lead to a commit.
        check_files(&planned, &written)?;
        self.results = FileLayout::results(items, copied, &written)?;
        Ok(())
    }

    async fn finish(self: Box<Self>, written: Result<()>, comm: &Comm<'_>) -> Result<Saved> {
        let mut me = *self;
        let results = std::mem::take(&mut me.results);
        if me.rank_local {
            return me.finish_alone(written.map(|()| results), comm).await;
        }
        // The coordinator checks all results before the format makes its records of them. It keeps records and totals in
        // `saved`; the other ranks only get the sums.
        let mut saved = Saved::default();
        let (writer, metadata, url, dialect) = (&me.resolver.writer, &me.metadata, &*me.url, me.dialect);
        let part = written.as_ref().map(|()| results).map_err(|e| me.told(e));
        let totals = comm.all_reduce("write", part, |results: Vec<Vec<WriteResult>>| {
            check_written(metadata, &results)?;
            let cx = FinishCx::new(url, dialect, metadata, &results);
            saved.records = writer.finish(&cx).map_err(|e| cause(&e))?;
            saved.ranks = results.iter().map(|p| totals(p)).collect();
            Ok(SaveTotals::of(&saved.ranks))
        });
        saved.totals = totals.await.map_err(|e| agree::theirs(comm, e, written))?;
        if comm.is_coordinator() {
            saved.metadata = Some(Arc::new(me.metadata));
            saved.policy = me.policy;
        }
        Ok(saved)
    }
}

impl<W: StorageWriter> Prepared<W> {
    /// Finishes a rank-local save, in which each rank has a record of its own items.
    async fn finish_alone(self, written: Result<Vec<WriteResult>>, comm: &Comm<'_>) -> Result<Saved> {
        let records = written.as_ref().map_err(|e| self.told(e)).and_then(|results| {
            let own = std::slice::from_ref(results);
            let cx = FinishCx::new(&self.url, self.dialect, &self.metadata, own).of_rank(comm.rank().0);
            let records = self.resolver.writer.finish(&cx).map_err(|e| cause(&e))?;
            Ok((records, totals(results)))
        });
        let (records, mine) = match records {
            Ok((records, totals)) => (records, Ok(totals)),
            Err(cause) => (Records::default(), Err(cause)),
        };
        let mut ranks = Vec::new();
        let summed = comm.all_reduce("write", mine, |all: Vec<RankTotals>| {
            ranks = all;
            Ok(SaveTotals::of(&ranks))
        });
        let totals = summed.await.map_err(|e| agree::theirs(comm, e, written))?;
        let metadata = Some(Arc::new(self.metadata));
        Ok(Saved { records, metadata, ranks, totals, policy: self.policy })
    }
}

fn written_already() -> StrategyError {
    StrategyError::Internal("a prepared save is written once, and staged before".into())
}

fn totals(results: &[WriteResult]) -> RankTotals {
    let parts = || results.iter().flat_map(|p| &p.parts);
    let files: BTreeSet<&str> = parts().map(|p| p.file.as_str()).collect();
    let bytes = parts().map(StorageInfo::length).sum();
    RankTotals { items: results.len() as u64, bytes, files: files.len() as u64 }
}

/// Checks that the store has written the planned files, with the planned lengths.
fn check_files(planned: &[(Name, Option<Length>)], written: &[Written]) -> Result<()> {
    if written.len() != planned.len() {
        let what = format!("{} of {} planned files were written", written.len(), planned.len());
        return Err(StrategyError::Internal(what));
    }
    for ((name, length), w) in planned.iter().zip(written) {
        if w.name != *name {
            let what = format!("{} was written where {name} was planned", w.name);
            return Err(StrategyError::Internal(what));
        }
        if !length.is_some_and(|length| length.allows(w.bytes)) {
            let what = format!("{} bytes were written, not as planned", w.bytes);
            return Err(StrategyError::corrupt(name, None, what));
        }
    }
    Ok(())
}

/// Checks that every planned item was written exactly once. Otherwise a lost writer would leave a checkpoint with holes.
fn check_written(metadata: &Metadata, results: &[Vec<WriteResult>]) -> Result<(), Cause> {
    let wrong = |what: String| Err(Cause::new(ErrorKind::Internal, format!("{what}; nothing is committed")));
    let mut written: BTreeMap<&str, Vec<Option<&Dims>>> = BTreeMap::new();
    for PieceId { key, offset } in results.iter().flatten().map(|r| &r.id) {
        written.entry(key).or_default().push(offset.as_ref());
    }
    for entry in metadata.entries() {
        let mut wanted: Vec<Option<Dims>> = match &entry {
            Entry::Object(..) => vec![None],
            Entry::Tensor(t) => t.chunks().map(|(_, region)| Some(region.offsets)).collect(),
        };
        let mut found = written.remove(entry.key()).unwrap_or_default();
        wanted.sort_unstable();
        found.sort_unstable();
        if !wanted.iter().map(Option::as_ref).eq(found.iter().copied()) {
            let (found, wanted) = (found.len(), wanted.len());
            return wrong(format!("{}: {found} items were written where {wanted} were planned", entry.key()));
        }
    }
    match written.first_key_value() {
        Some((key, _)) => wrong(format!("{key}: an item was written that was not planned")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use reshard_plan::WriteKind;

    fn object(key: &str) -> WriteItem {
        WriteItem { key: key.into(), source: 0, kind: WriteKind::Object { bytes_hint: 1 } }
    }

    fn result(key: &str) -> WriteResult {
        WriteResult { id: object(key).id(), parts: Vec::new() }
    }

    #[test]
    fn a_layout_has_a_place_for_what_was_planned_and_for_nothing_else() {
        let check = |laid_out: &[&str], copied: &[&str]| {
            let plan = SavePlan::new(vec![object("a"), object("b")]);
            let items = laid_out.iter().map(|key| (object(key).id(), Vec::new())).collect();
            let copied = copied.iter().map(|key| result(key)).collect();
            let checked = check_layout(&plan, &FileLayout { files: Vec::new(), items, copied });
            checked.map_err(|e| e.to_string())
        };
        assert_eq!(check(&["b", "a"], &[]), Ok(()));
        assert_eq!(check(&["b"], &["a"]), Ok(()));
        assert!(check(&["a"], &[]).unwrap_err().contains("no place to b"));
        assert!(check(&["a", "b", "c"], &[]).unwrap_err().contains("a place to c, which was not planned"));
        assert!(check(&["a", "b"], &["c"]).unwrap_err().contains("a place to c, which was not planned"));
    }

    #[test]
    fn the_store_has_written_what_it_was_given() {
        let name = |name: &str| Name::new(name).unwrap();
        let check = |length: Option<Length>, written: &[(&str, u64)]| {
            let written: Vec<Written> = written
                .iter()
                .map(|&(file, bytes)| Written { name: name(file), bytes, extents: Vec::new() })
                .collect();
            let planned = [(name("a"), length), (name("b"), Some(Length::Exact(2)))];
            check_files(&planned, &written).map_err(|e| e.to_string())
        };
        let exact = Some(Length::Exact(7));
        assert_eq!(check(exact, &[("a", 7), ("b", 2)]), Ok(()));
        assert_eq!(check(Some(Length::Unknown { at_most: 9 }), &[("a", 7), ("b", 2)]), Ok(()));
        assert!(check(exact, &[("a", 7)]).unwrap_err().contains("1 of 2 planned files"));
        assert!(
            check(exact, &[("b", 7), ("b", 2)]).unwrap_err().contains("b was written where a was planned")
        );
        for (length, bytes) in [(exact, 6), (exact, 8), (Some(Length::Unknown { at_most: 9 }), 10), (None, 7)]
        {
            let e = check(length, &[("a", bytes), ("b", 2)]).unwrap_err();
            assert!(e.contains("a: ") && e.contains(&format!("{bytes} bytes were written")), "{e}");
        }
    }
}

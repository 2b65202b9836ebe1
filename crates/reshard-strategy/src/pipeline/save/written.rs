//! Lays out and writes the files of one rank, and checks that what was planned was written.

use super::limit::SizeLimit;
use crate::{FileLayout, Resolve, Result, StorageWriter, StrategyError, WriteResult};
use reshard_comm::Cause;
use reshard_model::{Dims, ErrorKind};
use reshard_plan::{Entry, Metadata, PieceId, SavePlan};
use reshard_storage::{Durability, FileBody, Length, Name, Progress, Transaction, Written};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// Where the files of a rank go.
#[derive(Clone)]
pub(super) struct Target {
    pub(super) transaction: Arc<dyn Transaction>,
    pub(super) durability: Durability,
    pub(super) progress: Progress,
    /// The folder for data files, if the place keeps versions side by side and the format can have one.
    pub(super) folder: Option<Name>,
    /// The limit of a policy on the length of files.
    pub(super) limit: Option<SizeLimit>,
    /// How many bytes may be copied from devices before they are written.
    pub(super) copy_ahead: u64,
}

impl Target {
    /// A kept plan knows nothing of the folder, so it is added here, where a plan has become files.
    pub(super) async fn write(&self, mut files: Vec<FileBody>) -> Result<Vec<Written>> {
        if let Some(folder) = &self.folder {
            for file in &mut files {
                file.name = folder.join(&file.name);
            }
        }
        let planned: Vec<(Name, Option<Length>)> =
            files.iter().map(|f| (f.name.clone(), f.length())).collect();
        let written = self
            .transaction
            .write(files, self.durability, self.progress.clone())
            .await?;
        // A store that wrote other files, or other lengths, than planned must not lead to a commit.
        check_files(&planned, &written)?;
        Ok(written)
    }
}

/// Decides which files this rank writes. Their bytes are pulled later. A file that exceeds the limit fails here, before any is written.
pub(super) fn lay_out(
    writer: &dyn StorageWriter,
    (rank, limit): (u32, Option<SizeLimit>),
    plan: &SavePlan,
    resolve: &Resolve<'_>,
) -> Result<FileLayout> {
    let layout = writer.layout(rank, plan, resolve)?;
    check_layout(plan, &layout)?;
    if let Some(limit) = limit {
        limit.check(writer, plan, &layout)?;
    }
    Ok(layout)
}

/// Checks that the layout has a location for every planned item, and for nothing else.
fn check_layout(plan: &SavePlan, layout: &FileLayout) -> Result<()> {
    let copied = layout.copied.iter().map(|p| &p.id);
    let mut places: BTreeSet<&PieceId> = layout
        .items
        .iter()
        .map(|(id, _)| id)
        .chain(copied)
        .collect();
    for item in &plan.items {
        if !places.remove(&item.id()) {
            return Err(StrategyError::Internal(format!(
                "the format gave no place to {}",
                item.id()
            )));
        }
    }
    match places.first() {
        Some(id) => Err(StrategyError::Internal(format!(
            "the format gave a place to {id}, which was not planned"
        ))),
        None => Ok(()),
    }
}

/// Checks that the store has written the planned files, with the planned lengths.
fn check_files(planned: &[(Name, Option<Length>)], written: &[Written]) -> Result<()> {
    if written.len() != planned.len() {
        let what = format!(
            "{} of {} planned files were written",
            written.len(),
            planned.len()
        );
        return Err(StrategyError::Internal(what));
    }
    for ((name, length), w) in planned.iter().zip(written) {
        if w.name != *name {
            let what = format!("{} was written where {name} was planned", w.name);
            return Err(StrategyError::Internal(what));
        }
        if !length.is_some_and(|length| length.allows(w.bytes)) {
            let what = format!(
                "{} bytes were written, which is not the planned length",
                w.bytes
            );
            return Err(StrategyError::corrupt(name, None, what));
        }
    }
    Ok(())
}

/// Checks that every planned item was written exactly once. Otherwise a lost writer would leave a checkpoint with holes.
pub(super) fn check_written(
    metadata: &Metadata,
    results: &[Vec<WriteResult>],
) -> Result<(), Cause> {
    let wrong = |what: String| {
        Err(Cause::new(
            ErrorKind::Internal,
            format!("{what}; nothing is committed"),
        ))
    };
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
            return wrong(format!(
                "{}: {found} items were written where {wanted} were planned",
                entry.key()
            ));
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
    use reshard_plan::{WriteItem, WriteKind};

    fn object(key: &str) -> WriteItem {
        WriteItem {
            key: key.into(),
            source: 0,
            kind: WriteKind::Object { bytes_hint: 1 },
        }
    }

    fn result(key: &str) -> WriteResult {
        WriteResult {
            id: object(key).id(),
            parts: Vec::new(),
        }
    }

    #[test]
    fn a_layout_has_a_place_for_what_was_planned_and_for_nothing_else() {
        let check = |laid_out: &[&str], copied: &[&str]| {
            let plan = SavePlan::new(vec![object("a"), object("b")]);
            let items = laid_out
                .iter()
                .map(|key| (object(key).id(), Vec::new()))
                .collect();
            let copied = copied.iter().map(|key| result(key)).collect();
            let checked = check_layout(
                &plan,
                &FileLayout {
                    files: Vec::new(),
                    items,
                    copied,
                },
            );
            checked.map_err(|e| e.to_string())
        };
        assert_eq!(check(&["b", "a"], &[]), Ok(()));
        assert_eq!(check(&["b"], &["a"]), Ok(()));
        assert!(check(&["a"], &[]).unwrap_err().contains("no place to b"));
        assert!(
            check(&["a", "b", "c"], &[])
                .unwrap_err()
                .contains("a place to c, which was not planned")
        );
        assert!(
            check(&["a", "b"], &["c"])
                .unwrap_err()
                .contains("a place to c, which was not planned")
        );
    }

    #[test]
    fn the_store_has_written_what_it_was_given() {
        let name = |name: &str| Name::new(name).unwrap();
        let check = |length: Option<Length>, written: &[(&str, u64)]| {
            let written: Vec<Written> = written
                .iter()
                .map(|&(file, bytes)| Written {
                    name: name(file),
                    bytes,
                    extents: Vec::new(),
                })
                .collect();
            let planned = [(name("a"), length), (name("b"), Some(Length::Exact(2)))];
            check_files(&planned, &written).map_err(|e| e.to_string())
        };
        let exact = Some(Length::Exact(7));
        assert_eq!(check(exact, &[("a", 7), ("b", 2)]), Ok(()));
        assert_eq!(
            check(Some(Length::Unknown { at_most: 9 }), &[("a", 7), ("b", 2)]),
            Ok(())
        );
        assert!(
            check(exact, &[("a", 7)])
                .unwrap_err()
                .contains("1 of 2 planned files")
        );
        assert!(
            check(exact, &[("b", 7), ("b", 2)])
                .unwrap_err()
                .contains("b was written where a was planned")
        );
        for (length, bytes) in [
            (exact, 6),
            (exact, 8),
            (Some(Length::Unknown { at_most: 9 }), 10),
            (None, 7),
        ] {
            let e = check(length, &[("a", bytes), ("b", 2)]).unwrap_err();
            assert!(
                e.contains("a: ") && e.contains(&format!("{bytes} bytes were written")),
                "{e}"
            );
        }
    }
}

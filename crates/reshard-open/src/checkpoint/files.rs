//! The files of a checkpoint, and whether they are sound.

use super::handle::{ACT, Checkpoint};
use crate::{Result, attempt::is_of_a_save, bound, covered, error::Context, integrity};
use reshard_megatron::incomplete_arrays;
use reshard_model::{Dialect, ErrorKind};
use reshard_storage::{Entry, Leftover, Link, Name, Progress, StoreExt};
use reshard_strategy::{CheckedItems, Damage, FileRole, StrategyError, VerifyReport, with_sources};
use std::{collections::BTreeSet, sync::Arc};

impl Checkpoint {
    /// All files of its directory. A web server can't list its files, so of a checkpoint there it has only those that its metadata and its format
    /// name.
    ///
    /// # Errors
    /// What the store says.
    pub async fn files(&self) -> Result<Vec<Entry>> {
        self.opened.files().await.during(ACT, &self.url)
    }

    /// Links in its directory. A link to a file, wherever this file lies, is also one of the [`files`](Self::files). A
    /// link to a directory or to nothing is not followed; files behind it count as missing.
    ///
    /// # Errors
    /// What the store says.
    pub async fn links(&self) -> Result<Vec<Link>> {
        self.opened.store.links().await.during(ACT, &self.url)
    }

    /// What unfinished saves left beside its directory. This includes saves that are still running.
    ///
    /// # Errors
    /// What the store says.
    pub async fn leftovers(&self) -> Result<Vec<Leftover>> {
        let mut all = self.opened.store.leftovers().await.during(ACT, &self.url)?;
        all.retain(is_of_a_save);
        Ok(all)
    }

    /// Names of the files that hold its items.
    pub fn item_files(&self) -> BTreeSet<String> {
        self.opened
            .item_files()
            .into_iter()
            .map(String::from)
            .collect()
    }

    /// All its [`files`](Self::files), each with its role. `prune` of reshard-manager removes the leftovers.
    ///
    /// # Errors
    /// What the store says.
    pub async fn roles(&self) -> Result<Vec<(Entry, FileRole)>> {
        self.opened.roles().await.during(ACT, &self.url)
    }

    /// Files directly in its directory that Megatron Core's `integrity.json` does not list: they came later, or belong to others. Empty if
    /// there is no such file. They are no damage. If nobody can list the place, only those are found that the metadata and their format name.
    ///
    /// # Errors
    /// What the store says.
    pub async fn beside_integrity(&self) -> Result<Vec<Name>> {
        integrity::unlisted(&self.opened)
            .await
            .during(ACT, &self.url)
    }

    /// Looks for damage: it checks structure, coverage and sizes. With `full` it checks every checksum too, counts the items that have none, and lists what no checksum covers ([`VerifyReport::not_covered`]): each byte of the place is checked or listed. If there is Megatron Core's
    /// `integrity.json`, all its files must be there, and with `full` have its digests.
    ///
    /// # Errors
    /// Only errors that stop the whole check. Damage is in the returned report.
    pub async fn verify(&self, full: bool, progress: Progress) -> Result<VerifyReport> {
        self.verify_items(&full.into(), progress).await
    }

    /// The same, but only these items are read, to check their checksums; [`sample`](Self::sample) chooses some. Unless they are all items, files of
    /// `integrity.json` must only be there.
    ///
    /// # Errors
    /// As [`verify`](Self::verify).
    pub async fn verify_items(
        &self,
        items: &CheckedItems,
        progress: Progress,
    ) -> Result<VerifyReport> {
        let full = items.is_all();
        let mut report = self
            .opened
            .reader
            .verify_items(items, &progress)
            .await
            .during("verifying", &self.url)?;
        let other = self.opened.saved_over().await;
        if let Some(opened) = other.during("verifying", &self.url)? {
            // Where requests are expensive, only this check has read the descriptions.
            let opened = Arc::new(opened);
            let other = Self {
                opened,
                ..self.clone()
            };
            return Box::pin(other.verify_items(items, progress)).await;
        }
        bound::check(&self.opened, &mut report).await;
        if self.dialect() == Dialect::Megatron {
            for found in incomplete_arrays(self.metadata().objects().map(|(_, key)| key)) {
                report.add(ErrorKind::Corrupt, found);
            }
        }
        integrity::check(&self.opened, full, &progress, &mut report).await;
        if let Err(e) = self.opened.common().await {
            let damage = Damage::new(with_sources(e.to_string(), &e));
            // All that can be checked of it is right.
            if !matches!(e, StrategyError::Undecoded { .. }) {
                report.add(e.kind(), damage);
            }
        }
        if full {
            covered::check(&self.opened, &mut report)
                .await
                .during("verifying", &self.url)?;
        }
        if !report.damage.is_empty() {
            self.opened
                .not_replaced()
                .await
                .during("verifying", &self.url)?;
        }
        Ok(report)
    }
}

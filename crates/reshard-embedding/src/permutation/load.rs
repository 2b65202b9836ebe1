//! Loads a table that is stored in another order of rows, in the order of ids.

use super::Permutation;
use crate::{EmbeddingError, Result, ShardedVariable, memory::assembled, variable::insert};
use reshard_model::{Region, ShardedTensor, StateDict, Step, Tensor, ValueTree};

impl Permutation {
    /// Puts templates under a key, to load a table that is stored in this order into the order of ids. For each part of `task` there
    /// is one template per run of rows that are stored together. So every process reads only the rows of its own parts, no matter how
    /// many parts were saved.
    ///
    /// # Errors
    /// The table has another number of rows.
    pub fn undo_template_into(
        &self,
        table: &mut ShardedVariable,
        template: &mut StateDict,
        key: impl Into<Step>,
        task: u32,
    ) -> Result<()> {
        if self.is_undone(table)? {
            table.template_into(template, key, task);
            return Ok(());
        }
        let stored = |(stored, _)| {
            ShardedTensor::region_of(table.name(), table.dtype(), table.shape(), stored)
        };
        let parts = table.pieces(task).map(|part| table.parts()[part].region());
        insert(
            template,
            key,
            parts.flat_map(|part| self.runs(part)).map(stored).collect(),
        );
        Ok(())
    }

    /// Takes the loaded rows from the key that was given to [`undo_template_into`](Self::undo_template_into). The parts get new memory.
    ///
    /// # Errors
    /// The rows are not those of the templates, or there is no memory. Then no part has changed.
    pub fn undo_restore_from(
        &self,
        table: &mut ShardedVariable,
        loaded: &mut ValueTree,
        key: &str,
        task: u32,
    ) -> Result<()> {
        if self.is_undone(table)? {
            return table.restore_from(loaded, key, task);
        }
        let mut runs = table.loaded(loaded, key)?.into_iter();
        let part = |part: usize| -> Result<Tensor> {
            let region = table.parts()[part].region();
            let places: Vec<Region> = self.runs(region).map(|(_, place)| place).collect();
            let rows: Vec<Tensor> = runs.by_ref().take(places.len()).collect();
            let fits = |(place, rows): (&Region, &Tensor)| {
                rows.dtype() == table.dtype() && *rows.shape() == place.lengths
            };
            if rows.len() != places.len() || !places.iter().zip(&rows).all(fits) {
                let what =
                    format!("what was loaded as {key} is not the rows of part {part} {region}");
                return Err(EmbeddingError::invalid(table.name(), what));
            }
            let pieces: Vec<(&Region, &Tensor)> = places.iter().zip(&rows).collect();
            assembled(table.name(), table.dtype(), &region.lengths, &pieces)
        };
        let parts = table
            .pieces(task)
            .map(part)
            .collect::<Result<Vec<Tensor>>>()?;
        if runs.next().is_some() {
            let what = format!("what was loaded as {key} has more rows than task {task}");
            return Err(EmbeddingError::invalid(table.name(), what));
        }
        table.fill(task, parts)
    }

    /// Whether the table is stored in the order of ids as well.
    fn is_undone(&self, table: &ShardedVariable) -> Result<bool> {
        self.check_rows(table)?;
        Ok(table.shape().contains(&0) || self.is_identity())
    }

    /// The rows of a part: runs of them as they are stored, and where each lies in the part.
    fn runs(&self, part: &Region) -> impl Iterator<Item = (Region, Region)> {
        let (part, first) = (part.clone(), part.offsets[0] as usize);
        let rows = &self.row_of_id[first..first + part.lengths[0] as usize];
        let mut at = 0;
        rows.chunk_by(|a, b| a + 1 == *b).map(move |run| {
            let (mut stored, mut place) = (part.clone(), part.within(&part));
            (stored.offsets[0], stored.lengths[0]) = (run[0] as u64, run.len() as u64);
            (place.offsets[0], place.lengths[0]) = (at, run.len() as u64);
            at += run.len() as u64;
            (stored, place)
        })
    }
}

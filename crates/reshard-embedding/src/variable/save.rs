//! A variable as pieces of one tensor of a checkpoint.

use super::Variable;
use crate::{EmbeddingError, Result};
use reshard_model::{
    Data, Leaf, ReplicaId, ShardedTensor, StateDict, Step, Tensor, Tree, Value, ValueTree,
};

impl Variable {
    /// The tensors that `task` saves: its parts, as pieces of one tensor whose key is the variable's name. Parts without elements are
    /// left out. If the variable is mirrored, every task has the whole as a replica, and one of them is written.
    ///
    /// # Errors
    /// A part of this task has no data here.
    pub fn sharded_tensors(&self, task: u32) -> Result<Vec<ShardedTensor>> {
        self.pieces(task)
            .map(|i| Ok(self.declared(i).with_data(self.data(i)?.clone())))
            .collect()
    }

    pub(crate) fn templates(&mut self, task: u32) -> Vec<ShardedTensor> {
        let pieces: Vec<usize> = self.pieces(task).collect();
        let template = |i: usize| {
            let declared = self.declared(i);
            match self.parts[i].data.take() {
                Some(data) => declared.with_data(data),
                None => declared,
            }
        };
        pieces.into_iter().map(template).collect()
    }

    pub(crate) fn fill(
        &mut self,
        task: u32,
        loaded: impl IntoIterator<Item = Tensor>,
    ) -> Result<()> {
        let loaded: Vec<Tensor> = loaded.into_iter().collect();
        let pieces: Vec<usize> = self.pieces(task).collect();
        if loaded.len() != pieces.len() {
            let what = format!(
                "{} tensors were given for the {} parts of task {task}",
                loaded.len(),
                pieces.len()
            );
            return Err(EmbeddingError::invalid(&self.name, what));
        }
        for (&i, data) in pieces.iter().zip(&loaded) {
            self.check_part(i, data)?;
        }
        for (i, data) in pieces.into_iter().zip(loaded) {
            self.parts[i].data = Some(data);
        }
        for i in 0..self.parts.len() {
            let part = &mut self.parts[i];
            // A checkpoint has nothing of a part without elements.
            if part.task == task && part.data.is_none() && part.region.is_empty() {
                part.data = Some(Tensor::zeros(&self.name, self.dtype, &part.region.lengths)?);
            }
        }
        Ok(())
    }

    /// Puts the tensors of `task` under a key of a state dict, as a list. A task without parts puts nothing there, because some
    /// dialects would save an empty list as an object.
    ///
    /// # Errors
    /// As [`sharded_tensors`](Self::sharded_tensors).
    pub fn save_into(&self, state: &mut StateDict, key: impl Into<Step>, task: u32) -> Result<()> {
        insert(state, key, self.sharded_tensors(task)?);
        Ok(())
    }

    /// The list of tensors under a key of what was loaded; an empty one, if there is nothing.
    pub(crate) fn loaded(&self, loaded: &mut ValueTree, key: &str) -> Result<Vec<Tensor>> {
        let tensors = match loaded.remove(key) {
            None => Some(Vec::new()),
            Some(Tree::List(items)) => items
                .into_iter()
                .map(|t| t.into_leaf().and_then(Value::into_tensor))
                .collect(),
            Some(_) => None,
        };
        let other = || {
            EmbeddingError::invalid(
                &self.name,
                format!("what was loaded as {key} is not a list of tensors"),
            )
        };
        tensors.ok_or_else(other)
    }

    pub(crate) fn reclaim_from(
        &mut self,
        template: &mut StateDict,
        key: &str,
        task: u32,
    ) -> Result<()> {
        let pieces: Vec<usize> = self.pieces(task).collect();
        let leaves = match template.remove(key) {
            Some(Tree::List(leaves)) => leaves,
            _ => Vec::new(),
        };
        let leaves: Option<Vec<ShardedTensor>> = leaves
            .into_iter()
            .map(|leaf| match leaf.into_leaf()? {
                Leaf::Tensor(t) => Some(t),
                _ => None,
            })
            .collect();
        let Some(leaves) = leaves.filter(|leaves| leaves.len() == pieces.len()) else {
            let what = format!("{key} is not the template that it made for task {task}");
            return Err(EmbeddingError::invalid(&self.name, what));
        };
        for (i, leaf) in pieces.into_iter().zip(leaves) {
            if let Data::Host(data) = leaf.data {
                self.put(i, data)?;
            }
        }
        Ok(())
    }

    /// The parts of a task that a checkpoint has: those with elements. Of a variable without elements the first part stands for
    /// the tensor.
    pub(crate) fn pieces(&self, task: u32) -> impl Iterator<Item = usize> {
        let none = self.shape.contains(&0);
        let stored = move |i: usize| {
            if none {
                i == 0 || self.mirrored
            } else {
                !self.parts[i].region.is_empty()
            }
        };
        (0..self.parts.len()).filter(move |&i| self.parts[i].task == task && stored(i))
    }

    fn declared(&self, part: usize) -> ShardedTensor {
        let region = self.parts[part].region.clone();
        let out = ShardedTensor::region_of(&self.name, self.dtype, &self.shape, region);
        let copy = if self.mirrored { part as u32 } else { 0 };
        out.with_replica_id(ReplicaId::from(copy))
    }
}

pub(crate) fn insert(state: &mut StateDict, key: impl Into<Step>, tensors: Vec<ShardedTensor>) {
    if !tensors.is_empty() {
        let list = tensors
            .into_iter()
            .map(|t| Tree::Leaf(Leaf::from(t)))
            .collect();
        state.insert_tree(key, Tree::List(list));
    }
}

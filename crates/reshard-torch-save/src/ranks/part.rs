//! Tensors of which files hold parts: the pieces of all ranks that are there, and the ranks that are not.

use super::names::ranks;
use reshard_model::{DType, Dims, Region};
use reshard_plan::ChunkId;
use reshard_strategy::Refused;
use reshard_torch_format::{PartRef, TensorRef};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// A piece that another rank holds, too. By their placements the two are equal.
#[derive(Debug)]
pub(crate) struct Replica {
    /// The piece that is read.
    pub(crate) of: ChunkId,
    /// The number of the file.
    pub(crate) file: u32,
    pub(crate) tensor: TensorRef,
}

/// The part of one rank, with the number and the name of its file.
pub(crate) struct OfRank<'n> {
    pub(crate) file: u32,
    pub(crate) name: &'n str,
    /// The rank that the file is of, by its name.
    pub(crate) rank: Option<u32>,
    pub(crate) part: Box<PartRef>,
}

/// The parts of one tensor.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    /// Different boxes, each with all who hold it: the number of the file, and where the elements are.
    pub(crate) pieces: Vec<(Region, Vec<(u32, TensorRef)>)>,
    /// The ranks of all meshes of the tensor of which no file is there.
    pub(crate) missing: Arc<BTreeSet<u32>>,
    /// The ranks whose parts are there.
    held_by: BTreeSet<u32>,
    /// Element type and shape, and whether it requires gradients.
    pub(crate) of: Option<(DType, Dims, bool)>,
}

impl Parts {
    /// Puts the parts of one tensor together. `there` has the ranks whose files are there, and `last` what was found of the last tensor:
    /// very many tensors have the same mesh, which may be large.
    ///
    /// # Errors
    /// The parts are not of one tensor.
    pub(crate) fn of(
        all: Vec<OfRank<'_>>,
        there: &BTreeSet<u32>,
        last: &mut Option<Missing>,
    ) -> Result<Self, Refused> {
        let mut out = Self::default();
        let Some(first) = all.first() else {
            return Ok(out);
        };
        let says = |of: &OfRank<'_>| {
            let part = &of.part;
            format!("{} of {}, {}", part.shape, part.dtype, part.layout)
        };
        let (said, by) = (says(first), first.name.to_owned());
        let of_first = &first.part;
        out.of = Some((
            of_first.dtype,
            of_first.shape.clone(),
            of_first.requires_grad,
        ));
        let mut meshes: Vec<Arc<[u32]>> = Vec::new();
        let mut at: BTreeMap<(Dims, Dims), usize> = BTreeMap::new();
        for of in all {
            let wrong = |what: String| Refused::damaged(what).in_file(of.name);
            let is = says(&of);
            if is != said {
                let what = format!(
                    "it has the shape {is}, but in {by} it has the shape {said}; the files are not of one save"
                );
                return Err(wrong(what));
            }
            let known = meshes
                .iter()
                .any(|known| Arc::ptr_eq(known, &of.part.ranks) || *known == of.part.ranks);
            if !known {
                meshes.push(Arc::clone(&of.part.ranks));
            }
            let part = *of.part;
            // A rank outside of the mesh has nothing of the tensor.
            let Some(rank) = part.rank else { continue };
            if let Some(named) = of.rank.filter(|named| *named != rank) {
                let what = format!(
                    "it is the part of rank {rank}, but the name of the file says rank {named}"
                );
                return Err(wrong(what));
            }
            if !part.ranks.contains(&rank) {
                return Err(wrong(format!(
                    "rank {rank} is not one of those that hold it"
                )));
            }
            if !out.held_by.insert(rank) {
                return Err(wrong(format!(
                    "another file has the part of rank {rank}, too"
                )));
            }
            for (region, tensor) in part.pieces {
                let place = (region.offsets.clone(), region.lengths.clone());
                let next = out.pieces.len();
                match at.entry(place).or_insert(next) {
                    n if *n < next => {
                        if let Some((_, holders)) = out.pieces.get_mut(*n) {
                            holders.push((of.file, tensor));
                        }
                    }
                    _ => out.pieces.push((region, vec![(of.file, tensor)])),
                }
            }
        }
        out.expect(&meshes, there, last)?;
        Ok(out)
    }

    /// Compares the ranks that should hold the tensor with those that do.
    fn expect(
        &mut self,
        meshes: &[Arc<[u32]>],
        there: &BTreeSet<u32>,
        last: &mut Option<Missing>,
    ) -> Result<(), Refused> {
        let [mesh] = meshes else {
            let mut all: BTreeSet<u32> = BTreeSet::new();
            let mut ranks = meshes.iter().flat_map(|mesh| mesh.iter());
            if let Some(rank) = ranks.find(|rank| !all.insert(**rank)) {
                let what =
                    format!("rank {rank} is in two meshes of it; the files are not of one save");
                return Err(Refused::damaged(what));
            }
            self.missing = Arc::new(all.difference(&self.held_by).copied().collect());
            return self.not_lacking(there);
        };
        if let Some(last) = last
            && Arc::ptr_eq(&last.mesh, mesh)
            && last.held_by == self.held_by
        {
            self.missing = Arc::clone(&last.missing);
            return self.not_lacking(there);
        }
        let missing = mesh.iter().filter(|rank| !self.held_by.contains(rank));
        self.missing = Arc::new(missing.copied().collect());
        *last = Some(Missing {
            mesh: Arc::clone(mesh),
            held_by: self.held_by.clone(),
            missing: Arc::clone(&self.missing),
        });
        self.not_lacking(there)
    }

    /// Fails if a file that is there lacks the tensor.
    fn not_lacking(&self, there: &BTreeSet<u32>) -> Result<(), Refused> {
        let lacking = there.iter().filter(|rank| self.missing.contains(rank));
        let lacking: BTreeSet<u32> = lacking.copied().collect();
        match lacking.is_empty() {
            true => Ok(()),
            false => Err(Refused::damaged(format!(
                "the files of {} lack it, although its mesh has them",
                ranks(lacking)
            ))),
        }
    }
}

/// The ranks of a mesh whose files are missing.
#[derive(Debug)]
pub(crate) struct Missing {
    mesh: Arc<[u32]>,
    held_by: BTreeSet<u32>,
    missing: Arc<BTreeSet<u32>>,
}

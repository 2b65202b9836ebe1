//! `metadata.pkl` of `torch_checkpointing`: how the tensors of all ranks are placed.

use super::{
    super::TensorRef,
    mesh::{Mesh, Spread, mesh_in, ranks_of},
    pieces::{PartRef, wrong},
};
use crate::{
    Budget, Error, Limits, Result,
    pickle::{Graph, Id, Node, run},
};
use reshard_model::{DType, Dims, Placement};
use std::{collections::BTreeMap, sync::Arc};

/// What a `metadata.pkl` of `torch_checkpointing` says, in version 1.0 or 2.0: a plain dict, of which nothing is executed.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct SpreadTable {
    /// The number of ranks that wrote the checkpoint.
    pub world_size: u32,
    /// The placements of tensors.
    pub tensors: Vec<SpreadPath>,
    /// The files whose layout is noted. Others have default names.
    pub files: Vec<SpreadFile>,
}

/// The file of an item of one rank.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SpreadFile {
    /// The item.
    pub item: Box<str>,
    /// The rank.
    pub rank: u32,
    /// Its path in the checkpoint.
    pub path: Box<str>,
    /// The name of its serialization: `TorchSerialization`.
    pub serialization: Box<str>,
}

/// The placements of one tensor.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SpreadPath {
    /// The item; `None` if the path begins with it, as in version 1.0.
    pub item: Option<Box<str>>,
    /// The path, as JSON: a list of names and numbers.
    pub path: Box<str>,
    /// For each group of ranks, how it places the tensor.
    pub groups: Vec<SpreadGroup>,
}

/// A group of ranks that place a tensor in the same way.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SpreadGroup {
    /// Its ranks, sorted.
    pub ranks: Arc<[u32]>,
    /// The element type.
    pub dtype: DType,
    /// The placement.
    pub spread: Spread,
}

impl SpreadGroup {
    /// The part of a rank, whose local tensor is this one.
    ///
    /// # Errors
    /// As [`Spread::part_of_rank`]; the local tensor has another element type.
    pub fn part_of_rank(&self, local: &TensorRef, rank: u32) -> Result<PartRef> {
        if local.dtype != self.dtype {
            let what = format!(
                "it is of {}, and its local tensor of {}",
                self.dtype, local.dtype
            );
            return Err(wrong(&what));
        }
        self.spread.part_of_rank(local, rank)
    }
}

impl SpreadTable {
    /// Parses a `metadata.pkl`.
    ///
    /// # Errors
    /// As [`run`]; [`Error::Unsupported`] for another version, and for a placement that is not known; [`Error::Tensor`] for a description
    /// that contradicts itself.
    pub fn parse(pickle: &[u8], limits: &Limits) -> Result<Self> {
        let budget = limits.budget(pickle.len() as u64);
        let mut graph = Graph::within(budget);
        let (root, _) = run(pickle, &mut graph, limits)?;
        let budget = graph.budget().clone();
        let parser = Parser {
            graph: &graph,
            budget,
            meshes: BTreeMap::new(),
            ranks: BTreeMap::new(),
        };
        parser.table(root)
    }
}

struct Parser<'g, 'a> {
    graph: &'g Graph<'a>,
    budget: Budget,
    /// Very many tensors refer to the same meshes and lists of ranks.
    meshes: BTreeMap<Id, Arc<Mesh>>,
    ranks: BTreeMap<Id, Arc<[u32]>>,
}

impl<'g> Parser<'g, '_> {
    fn wrong(&self, id: Id, what: &str) -> Error {
        let what = format!("a metadata.pkl in which {what}");
        self.graph.unsupported(id, what)
    }

    fn pairs(&self, id: Id, what: &str) -> Result<&'g [(Id, Id)]> {
        match self.graph.node(id) {
            Node::Dict(pairs) => Ok(pairs),
            _ => Err(self.wrong(id, &format!("{what} is not a dict"))),
        }
    }

    /// An item of a small dict.
    fn find(&self, dict: Id, name: &str) -> Result<Option<Id>> {
        let pairs = self.pairs(dict, &format!("what has {name:?}"))?;
        if pairs.len() > 100 {
            return Err(self.wrong(dict, "a description has more than 100 items"));
        }
        let mut found = pairs.iter().rev();
        let found = found.find(|(key, _)| self.graph.as_str(*key) == Some(name));
        Ok(found.map(|(_, value)| *value))
    }

    fn get(&self, dict: Id, name: &str) -> Result<Id> {
        let found = self.find(dict, name)?;
        found.ok_or_else(|| self.wrong(dict, &format!("{name:?} is missing")))
    }

    fn text(&self, id: Id) -> Result<&'g str> {
        let text = self.graph.as_str(id).filter(|text| text.len() <= 1 << 16);
        text.ok_or_else(|| self.wrong(id, "a name is not a short str"))
    }

    fn rank(&self, id: Id) -> Result<u32> {
        let number = match self.graph.as_str(id) {
            Some(text) => text.parse().ok(),
            None => self.graph.as_int(id).and_then(|n| u32::try_from(n).ok()),
        };
        number.ok_or_else(|| self.wrong(id, "a rank is not a number"))
    }

    fn table(mut self, root: Id) -> Result<SpreadTable> {
        let version = match self.find(root, "version")? {
            Some(version) => self.text(version)?,
            None => "1.0",
        };
        let metadata = self.get(root, "metadata")?;
        let mut out = SpreadTable {
            world_size: self.rank(self.get(root, "world_size")?)?,
            ..SpreadTable::default()
        };
        match version {
            "1.0" => {
                for (path, groups) in self.pairs(metadata, "\"metadata\"")? {
                    self.tensor(None, *path, *groups, &mut out)?;
                }
                let of_ranks = self.get(root, "rank_to_layout_info_mappings")?;
                for (rank, items) in self.pairs(of_ranks, "\"rank_to_layout_info_mappings\"")? {
                    for (item, layout) in self.pairs(*items, "the layout of a rank")? {
                        self.file(self.text(*item)?, *rank, *layout, &mut out)?;
                    }
                }
            }
            "2.0" => {
                for (item, described) in self.pairs(metadata, "\"metadata\"")? {
                    let item = self.text(*item)?;
                    let paths = self.get(*described, "nested_path_to_metadata")?;
                    for (path, groups) in self.pairs(paths, "\"nested_path_to_metadata\"")? {
                        self.tensor(Some(item), *path, *groups, &mut out)?;
                    }
                    let layouts = self.get(*described, "rank_to_layout_info")?;
                    for (rank, layout) in self.pairs(layouts, "\"rank_to_layout_info\"")? {
                        self.file(item, *rank, *layout, &mut out)?;
                    }
                }
            }
            version => {
                let what = format!("the version is {version:?} (1.0 and 2.0 are known)");
                return Err(self.wrong(root, &what));
            }
        }
        Ok(out)
    }

    fn draw(&mut self, id: Id, bytes: usize) -> Result<()> {
        self.graph.draw(id, bytes as u64, &mut self.budget)
    }

    fn file(&mut self, item: &str, rank: Id, layout: Id, out: &mut SpreadTable) -> Result<()> {
        if matches!(self.graph.node(layout), Node::None) {
            return Ok(());
        }
        let number = self.rank(rank)?;
        let path = self.text(self.get(layout, "file_path")?)?;
        let how = self.text(self.get(self.get(layout, "serialization_format")?, "type")?)?;
        self.draw(layout, 2 * (item.len() + path.len() + how.len() + 128))?;
        out.files.push(SpreadFile {
            item: item.into(),
            rank: number,
            path: path.into(),
            serialization: how.into(),
        });
        Ok(())
    }

    fn tensor(
        &mut self,
        item: Option<&str>,
        path: Id,
        groups: Id,
        out: &mut SpreadTable,
    ) -> Result<()> {
        let text = self.text(path)?;
        let listed = self.graph.as_seq(groups);
        let listed = listed.ok_or_else(|| self.wrong(groups, "a tensor has no list of ranks"))?;
        self.draw(path, 2 * (text.len() + item.map_or(0, str::len) + 128))?;
        let mut all = Vec::new();
        for group in listed {
            let sharding = self.get(*group, "sharding_metadata")?;
            // Other kinds of objects may be sharded in ways of their own.
            match self.text(self.get(sharding, "type")?)? {
                "DTensorShardingMetadata" => {
                    let ranks = self.sorted(self.get(*group, "ranks")?)?;
                    all.push(self.group(ranks, self.get(sharding, "data")?)?);
                }
                kind => return Err(self.wrong(sharding, &format!("{text} is sharded as {kind}"))),
            }
        }
        out.tensors.push(SpreadPath {
            item: item.map(Into::into),
            path: text.into(),
            groups: all,
        });
        Ok(())
    }

    fn sorted(&mut self, id: Id) -> Result<Arc<[u32]>> {
        if let Some(known) = self.ranks.get(&id) {
            return Ok(Arc::clone(known));
        }
        let mut ranks = ranks_of(self.graph, id, &mut self.budget)?;
        ranks.sort_unstable();
        let ranks: Arc<[u32]> = ranks.into();
        self.ranks.insert(id, Arc::clone(&ranks));
        Ok(ranks)
    }

    fn group(&mut self, ranks: Arc<[u32]>, data: Id) -> Result<SpreadGroup> {
        let dtype = self.get(data, "dtype")?;
        let name = self.text(dtype)?;
        let parsed = name
            .strip_prefix("torch.")
            .and_then(|name| name.parse().ok());
        let dtype = parsed.ok_or_else(|| self.wrong(dtype, &format!("the type is {name}")))?;
        let shape = self.get(data, "global_shape")?;
        let shape = self.shape(shape)?;
        let mesh = self.get(data, "mesh_spec")?;
        let mesh = match self.meshes.get(&mesh) {
            Some(known) => Arc::clone(known),
            None => {
                let (shape, ranks) = (self.get(mesh, "mesh_shape")?, self.get(mesh, "mesh_data")?);
                let found = Arc::new(mesh_in(self.graph, shape, ranks, &mut self.budget)?);
                self.meshes.insert(mesh, Arc::clone(&found));
                found
            }
        };
        let listed = self.get(data, "placements")?;
        let listed = self.graph.as_seq(listed).unwrap_or_default();
        self.draw(data, 2 * size_of::<SpreadGroup>() + 32 * listed.len())?;
        let placements = listed.iter().map(|p| self.placement(*p));
        let spread = Spread {
            mesh,
            placements: placements.collect::<Result<_>>()?,
            order: None,
            shape,
        };
        Ok(SpreadGroup {
            ranks,
            dtype,
            spread,
        })
    }

    fn shape(&self, id: Id) -> Result<Dims> {
        let all = self.graph.as_seq(id).filter(|all| all.len() <= 64);
        let size = |id: &Id| u64::try_from(self.graph.as_int(*id)?).ok();
        let shape = all.and_then(|all| all.iter().map(size).collect());
        shape.ok_or_else(|| self.wrong(id, "a shape is not a list of numbers"))
    }

    fn placement(&self, id: Id) -> Result<Placement> {
        let size = |name: &str| -> Result<u64> {
            let value = self.get(id, name)?;
            let size = self.graph.as_int(value).and_then(|n| u64::try_from(n).ok());
            size.ok_or_else(|| self.wrong(value, &format!("{name:?} of a placement is no number")))
        };
        let dim =
            || usize::try_from(size("dim")?).map_err(|_| self.wrong(id, "an axis is too large"));
        match self.text(self.get(id, "type")?)? {
            "Shard" => Ok(Placement::Shard(dim()?)),
            "StridedShard" => Ok(Placement::StridedShard {
                dim: dim()?,
                split_factor: size("split_factor")?,
            }),
            "Replicate" => Ok(Placement::Replicate),
            kind => Err(self.wrong(id, &format!("a tensor has the placement {kind}"))),
        }
    }
}

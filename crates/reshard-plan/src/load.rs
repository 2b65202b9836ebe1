//! The hooks of a load, and what they do by default.

use crate::{Cast, LoadPlan, Metadata, ReadItem, Result};
use reshard_model::{FlatStateDict, Payload, Tensor};
use serde::{Deserialize, Serialize};
use std::{any::Any, fmt::Debug};

/// What the hooks of a load are told.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct LoadContext<'a> {
    /// What is stored.
    pub metadata: &'a Metadata,
    /// This rank.
    pub rank: u32,
    /// Whether this rank makes the global plan.
    pub is_coordinator: bool,
}

impl<'a> LoadContext<'a> {
    /// For a rank.
    pub fn new(metadata: &'a Metadata, rank: u32, is_coordinator: bool) -> Self {
        Self { metadata, rank, is_coordinator }
    }
}

/// Where the elements of a [`ReadItem`] go first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Destination {
    /// Into the leaf's own buffer, directly. [`LoadPlanner::transform_tensor`] is not called.
    #[default]
    Leaf,
    /// Into memory of its own, for [`LoadPlanner::transform_tensor`] to change; what that gives is then copied into the leaf.
    Scratch,
}

/// DCP's protocol of a load.
///
/// # Contract
/// As for [`SavePlanner`](crate::SavePlanner): no hook calls another; the pipeline calls each in the order of this list.
/// All but [`create_global_plan`](Self::create_global_plan) run on every rank.
///
/// # Examples
/// Those of PyTorch's page. What was saved under other keys is read into the leaves that have the old ones:
/// ```
/// # use {reshard_model::*, reshard_plan::{*, Result}};
/// #[derive(Debug)]
/// struct RenamePlanner;
/// impl LoadPlanner for RenamePlanner {
///     fn set_up(&self, template: &mut FlatStateDict, _: &LoadContext<'_>) -> Result<()> {
///         for leaf in template.values_mut() {
///             let (Sharded::Tensor(ShardedTensor { key, .. }) | Sharded::Object(ShardedObject { key, .. })) = leaf;
///             *key = format!("foo_{key}").into();
///         }
///         Ok(())
///     }
/// }
/// # let mut builder = Metadata::builder();
/// # let w = builder.add_tensor("foo_w", DType::Int8, &[2], Default::default()).unwrap();
/// # builder.add_chunk(w, &Region::whole(&[2])).unwrap();
/// # let metadata = builder.finish(None).unwrap();
/// # let mut template: FlatStateDict = [(Path(vec!["w".into()]), Sharded::Tensor(ShardedTensor::template("w", DType::Int8, &[2])))].into();
/// # let cx = LoadContext::new(&metadata, 0, true);
/// # RenamePlanner.set_up(&mut template, &cx).unwrap();
/// # assert_eq!(RenamePlanner.create_local_plan(&template, &cx).unwrap().items[0].piece.to_string(), "foo_w[0]");
/// ```
/// A template without memory (PyTorch's meta tensors) gets it from the planner; without a planner, the load would allocate:
/// ```
/// # use {reshard_model::*, reshard_plan::{*, Result}};
/// #[derive(Debug)]
/// struct MetaModelMaterialize;
/// impl LoadPlanner for MetaModelMaterialize {
///     fn set_up(&self, template: &mut FlatStateDict, cx: &LoadContext<'_>) -> Result<()> {
///         self.base().set_up(template, cx)?;
///         for leaf in template.values_mut() {
///             if let Sharded::Tensor(t) = leaf {
///                 t.data = Tensor::zeros(&t.key, t.dtype, &t.local_shape)?.into();
///             }
///         }
///         Ok(())
///     }
/// }
/// # let metadata = Metadata::default();
/// # let mut template: FlatStateDict = [(Path(vec!["w".into()]), Sharded::Tensor(ShardedTensor::template("w", DType::Int8, &[2])))].into();
/// # MetaModelMaterialize.set_up(&mut template, &LoadContext::new(&metadata, 0, true)).unwrap();
/// # let Sharded::Tensor(t) = &template[0] else { panic!() };
/// # assert!(matches!(t.data, Data::Host(_)));
/// ```
/// Elements change on their way in:
/// ```
/// # use {reshard_model::*, reshard_plan::{*, Result}};
/// #[derive(Debug)]
/// struct Doubled;
/// impl LoadPlanner for Doubled {
///     fn lookup_tensor(&self, _: &ReadItem) -> Result<Destination> {
///         Ok(Destination::Scratch)
///     }
///     fn transform_tensor(&self, _: &ReadItem, elements: Tensor) -> Result<Tensor> {
///         let numbers = elements.to_vec::<f32>().ok_or_else(|| PlanError::planner("not float32"))?;
///         let doubled = numbers.into_iter().map(|x| 2.0 * x).collect();
///         Ok(Tensor::from_vec(elements.shape(), doubled)?)
///     }
/// }
/// # let item = ReadItem {
/// #     dest: 0, dest_region: Region::whole(&[2]), piece: PieceId { key: "w".into(), offset: Some([0].into()) },
/// #     stored: Stored::Chunk(ChunkId(0)), stored_region: Region::whole(&[2]), flat: None,
/// # };
/// # let t = Tensor::from_vec(&[2], vec![1f32, 2.]).unwrap();
/// # assert_eq!(Doubled.transform_tensor(&item, t).unwrap().to_vec::<f32>().unwrap(), [2., 4.]);
/// ```
pub trait LoadPlanner: Any + Debug + Send + Sync {
    /// What the hooks do that are not overridden.
    fn base(&self) -> &dyn LoadPlanner {
        &DefaultLoadPlanner::DEFAULT
    }

    /// DCP's `set_up_planner`: may change the template before anything else. What a leaf's `key` says is what is read; its
    /// path is where it comes back.
    ///
    /// # Errors
    /// Whatever keeps this rank from loading.
    fn set_up(&self, template: &mut FlatStateDict, cx: &LoadContext<'_>) -> Result<()> {
        self.base().set_up(template, cx)
    }

    /// What this rank reads.
    ///
    /// # Errors
    /// [`PlanError::Load`](crate::PlanError::Load) when the checkpoint can't fill the template.
    fn create_local_plan(&self, template: &FlatStateDict, cx: &LoadContext<'_>) -> Result<LoadPlan> {
        self.base().create_local_plan(template, cx)
    }

    /// On the coordinator: the plans of all ranks, by rank, changed with all of them in view.
    ///
    /// # Errors
    /// Whatever keeps all ranks from loading.
    fn create_global_plan(&self, plans: Vec<LoadPlan>, cx: &LoadContext<'_>) -> Result<Vec<LoadPlan>> {
        self.base().create_global_plan(plans, cx)
    }

    /// What this rank reads, after the global plan: the last word.
    ///
    /// # Errors
    /// Whatever keeps this rank from loading.
    fn finish_plan(&self, plan: LoadPlan) -> Result<LoadPlan> {
        self.base().finish_plan(plan)
    }

    /// DCP's `load_bytes`: gets an object that was read, says what goes into the result.
    ///
    /// # Errors
    /// Whatever is wrong with it.
    fn load_object(&self, item: &ReadItem, object: Payload) -> Result<Payload> {
        self.base().load_object(item, object)
    }

    /// Where elements go first: the leaf and region that the item names, or memory on the way there. With
    /// [`transform_tensor`](Self::transform_tensor) this is DCP's `resolve_tensor`.
    ///
    /// # Errors
    /// Whatever keeps the item from being read.
    fn lookup_tensor(&self, item: &ReadItem) -> Result<Destination> {
        self.base().lookup_tensor(item)
    }

    /// Changes elements that went to [`Destination::Scratch`]: they come in the stored type, in the shape of the item's
    /// `dest_region` without the axes that the leaf prepends; what is given back has that shape, and is cast to the leaf's
    /// type where it has another.
    ///
    /// # Errors
    /// Whatever is wrong with them.
    fn transform_tensor(&self, item: &ReadItem, elements: Tensor) -> Result<Tensor> {
        self.base().transform_tensor(item, elements)
    }

    /// Told once the elements of an item are in the leaf.
    ///
    /// # Errors
    /// Whatever shall make the load fail.
    fn commit_tensor(&self, item: &ReadItem) -> Result<()> {
        self.base().commit_tensor(item)
    }
}

/// What DCP's planner of the same name does, and more strictly: every element that is asked for must be stored once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct DefaultLoadPlanner {
    /// Whether leaves whose key is not stored stay as they are.
    pub allow_partial_load: bool,
    /// Whether stored keys that nobody asks for are listed in [`LoadPlan::unexpected`].
    pub strict: bool,
    /// Which changes of element type are allowed.
    pub cast: Cast,
}

impl DefaultLoadPlanner {
    /// Everything must be there, of the type that was asked for.
    pub const DEFAULT: Self = Self { allow_partial_load: false, strict: false, cast: Cast::Never };

    /// Leaves leaves alone whose key is not stored.
    pub fn allow_partial_load(mut self, allow: bool) -> Self {
        self.allow_partial_load = allow;
        self
    }

    /// Lists stored keys that nobody asks for.
    pub fn strict(mut self, strict: bool) -> Self {
        self.strict = strict;
        self
    }

    /// Allows changes of element type.
    pub fn cast(mut self, cast: Cast) -> Self {
        self.cast = cast;
        self
    }
}

#[deny(clippy::missing_trait_methods)] // a new hook must not fall into itself
impl LoadPlanner for DefaultLoadPlanner {
    fn base(&self) -> &dyn LoadPlanner {
        self
    }

    fn set_up(&self, _: &mut FlatStateDict, _: &LoadContext<'_>) -> Result<()> {
        Ok(())
    }

    fn create_local_plan(&self, template: &FlatStateDict, cx: &LoadContext<'_>) -> Result<LoadPlan> {
        crate::read::plan(self, template, cx.metadata)
    }

    fn create_global_plan(&self, mut plans: Vec<LoadPlan>, _: &LoadContext<'_>) -> Result<Vec<LoadPlan>> {
        crate::read::agree_on_unexpected(&mut plans);
        Ok(plans)
    }

    fn finish_plan(&self, plan: LoadPlan) -> Result<LoadPlan> {
        Ok(plan)
    }

    fn load_object(&self, _: &ReadItem, object: Payload) -> Result<Payload> {
        Ok(object)
    }

    fn lookup_tensor(&self, _: &ReadItem) -> Result<Destination> {
        Ok(Destination::Leaf)
    }

    fn transform_tensor(&self, _: &ReadItem, elements: Tensor) -> Result<Tensor> {
        Ok(elements)
    }

    fn commit_tensor(&self, _: &ReadItem) -> Result<()> {
        Ok(())
    }
}

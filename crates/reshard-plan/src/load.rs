//! The hooks of a load, and their defaults.

use crate::{Cast, Elsewhere, LoadPlan, Metadata, ReadItem, Result, StrictHandling};
use reshard_model::{FlatStateDict, Payload, ShardedTensor, Tensor};
use serde::{Deserialize, Serialize};
use std::{any::Any, fmt::Debug};

/// The context of the hooks of a load.
#[derive(Clone, Copy, Debug, derive_setters::Setters)]
#[setters(prefix = "with_", generate = false)]
#[non_exhaustive]
pub struct LoadContext<'a> {
    /// What is stored.
    pub metadata: &'a Metadata,
    /// This rank.
    pub rank: u32,
    /// Whether this rank makes the global plan.
    pub is_coordinator: bool,
    /// What of it this load need not ask for.
    #[setters(generate)]
    pub elsewhere: &'a Elsewhere,
    /// Keys that are stored too, but in a way that this version does not understand. They count as stored.
    #[setters(generate)]
    pub not_understood: &'a [String],
}

impl<'a> LoadContext<'a> {
    /// The context of a rank.
    pub fn new(metadata: &'a Metadata, rank: u32, is_coordinator: bool) -> Self {
        Self {
            metadata,
            rank,
            is_coordinator,
            elsewhere: Elsewhere::NOTHING,
            not_understood: &[],
        }
    }
}

/// Where the elements of a [`ReadItem`] go first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Destination {
    /// Directly into the buffer of the leaf. [`LoadPlanner::transform_tensor`] is not called.
    #[default]
    Leaf,
    /// Into temporary memory, where [`LoadPlanner::transform_tensor`] may change them. Its result is then copied into the leaf.
    Scratch,
}

/// DCP's protocol of a load.
///
/// # Contract
/// As for [`SavePlanner`](crate::SavePlanner): no hook calls another hook; the pipeline calls each, in the order of this trait. All hooks
/// except [`create_global_plan`](Self::create_global_plan) run on every rank.
///
/// # Examples
/// These are the examples of PyTorch's documentation. Tensors that were saved under new keys are read into leaves with the old keys:
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
/// The planner allocates memory for a template without memory (PyTorch's meta tensors). Without this planner, the load would allocate it:
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
/// Elements are changed while they are loaded:
/// ```
/// # use {reshard_model::*, reshard_plan::{*, Result}};
/// #[derive(Debug)]
/// struct Doubled;
/// impl LoadPlanner for Doubled {
///     fn lookup_tensor(&self, _: &ReadItem) -> Result<Destination> {
///         Ok(Destination::Scratch)
///     }
///     fn transform_tensor(&self, _: &ReadItem, elements: Tensor) -> Result<Tensor> {
///         let numbers = elements.to_vec::<f32>()?;
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
    /// The planner whose hooks are used for those that you do not override.
    fn base(&self) -> &dyn LoadPlanner {
        &DefaultLoadPlanner::DEFAULT
    }

    /// The name of its type. Ranks compare it, and it is a part of a kept plan. A planner around another one keeps this default.
    fn name(&self) -> &'static str {
        std::any::type_name::<Self>()
    }

    /// All settings of the planner on which plans depend, as text, as in [`SavePlanner`](crate::SavePlanner::plan_settings). A load whose
    /// template and checkpoint have the structure of the load before it does not plan again, if its planner says so: then
    /// [`create_local_plan`](Self::create_local_plan), [`create_global_plan`](Self::create_global_plan) and
    /// [`finish_plan`](Self::finish_plan) are not called. `None`, the default, means that each load is planned anew.
    fn plan_settings(&self) -> Option<String> {
        None
    }

    /// DCP's `set_up_planner`. It may change the template before anything else happens. The `key` of a leaf says what is read. Its path
    /// says where the result goes.
    ///
    /// # Errors
    /// Any reason why this rank can't load.
    fn set_up(&self, template: &mut FlatStateDict, cx: &LoadContext<'_>) -> Result<()> {
        self.base().set_up(template, cx)
    }

    /// Plans what this rank reads.
    ///
    /// # Errors
    /// [`PlanError::Load`](crate::PlanError::Load) if the checkpoint can't fill the template.
    fn create_local_plan(
        &self,
        template: &FlatStateDict,
        cx: &LoadContext<'_>,
    ) -> Result<LoadPlan> {
        self.base().create_local_plan(template, cx)
    }

    /// Called on the coordinator. It gets the plans of all ranks, by rank, and may change them.
    ///
    /// # Errors
    /// Any reason why the ranks can't load.
    fn create_global_plan(
        &self,
        plans: Vec<LoadPlan>,
        cx: &LoadContext<'_>,
    ) -> Result<Vec<LoadPlan>> {
        self.base().create_global_plan(plans, cx)
    }

    /// The last change of this rank's plan, after the global plan. It must not change an exchange.
    ///
    /// # Errors
    /// Any reason why this rank can't load.
    fn finish_plan(&self, plan: LoadPlan) -> Result<LoadPlan> {
        self.base().finish_plan(plan)
    }

    /// DCP's `load_bytes`. It gets an object that was read, and returns what goes into the result.
    ///
    /// # Errors
    /// Any problem of the object.
    fn load_object(&self, item: &ReadItem, object: Payload) -> Result<Payload> {
        self.base().load_object(item, object)
    }

    /// Chooses where elements go first: into the leaf and region of the item, or into temporary memory. Together with
    /// [`transform_tensor`](Self::transform_tensor) this is DCP's `resolve_tensor`.
    ///
    /// # Errors
    /// Any reason why the item can't be read.
    fn lookup_tensor(&self, item: &ReadItem) -> Result<Destination> {
        self.base().lookup_tensor(item)
    }

    /// Changes elements in [`Destination::Scratch`]. They have the stored type, and the shape of the item's `dest_region` without the axes
    /// that the leaf prepends. The result must have the same shape. If its type is not the leaf's, it is cast.
    ///
    /// # Errors
    /// Any problem of the elements.
    fn transform_tensor(&self, item: &ReadItem, elements: Tensor) -> Result<Tensor> {
        self.base().transform_tensor(item, elements)
    }

    /// Called for each item of a tensor, after this rank has read everything that its plan asks for. `tensor` is the filled leaf of the
    /// template. The hook isn't called if a read of this rank has failed. Another rank may still fail afterwards.
    ///
    /// # Errors
    /// Any error makes the load fail.
    fn commit_tensor(&self, item: &ReadItem, tensor: &ShardedTensor) -> Result<()> {
        self.base().commit_tensor(item, tensor)
    }
}

/// The counterpart of DCP's planner of the same name. It is stricter: every wanted element must be stored exactly once.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, derive_setters::Setters,
)]
#[non_exhaustive]
pub struct DefaultLoadPlanner {
    /// What happens to keys that only the template or only the checkpoint has. DCP's `allow_partial_load` is
    /// [`ReturnUnexpected`](StrictHandling::ReturnUnexpected).
    pub strict: StrictHandling,
    /// Which casts are allowed.
    pub cast: Cast,
}

impl DefaultLoadPlanner {
    /// Everything must be stored, with the type that was asked for.
    pub const DEFAULT: Self = Self {
        strict: StrictHandling::AssumeOkUnexpected,
        cast: Cast::Never,
    };
}

#[deny(clippy::missing_trait_methods)] // a new hook must not fall into itself
impl LoadPlanner for DefaultLoadPlanner {
    fn name(&self) -> &'static str {
        std::any::type_name::<Self>()
    }

    fn base(&self) -> &dyn LoadPlanner {
        self
    }

    fn plan_settings(&self) -> Option<String> {
        Some(format!("{self:?}"))
    }

    fn set_up(&self, _: &mut FlatStateDict, _: &LoadContext<'_>) -> Result<()> {
        Ok(())
    }

    fn create_local_plan(
        &self,
        template: &FlatStateDict,
        cx: &LoadContext<'_>,
    ) -> Result<LoadPlan> {
        crate::read::plan(self, template, cx.metadata)
    }

    fn create_global_plan(
        &self,
        mut plans: Vec<LoadPlan>,
        cx: &LoadContext<'_>,
    ) -> Result<Vec<LoadPlan>> {
        crate::read::find_not_requested(self.strict, &mut plans, cx)?;
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

    fn commit_tensor(&self, _: &ReadItem, _: &ShardedTensor) -> Result<()> {
        Ok(())
    }
}

//! The hooks of a save, and their defaults.

use crate::{
    Declared, Metadata, PlanError, Result, SavePlan, TensorProperties, TensorWrite, WriteItem,
    WriteKind,
    flat::{AsStored, as_stored},
    validate_sharding_integrity,
};
use reshard_model::{Data, FlatStateDict, Payload, Region, Sharded, ShardedTensor, Value};
use serde::{Deserialize, Serialize};
use std::{any::Any, fmt::Debug, sync::Arc};

mod duplicates;

/// The context of the hooks of a save.
#[derive(Clone, Copy, Debug, Default, derive_setters::Setters)]
#[setters(prefix = "with_", generate = false)]
#[non_exhaustive]
pub struct SaveContext<'a> {
    /// This rank.
    pub rank: u32,
    /// Whether this rank makes the global plan. In a rank-local save every rank makes one, for itself alone.
    pub is_coordinator: bool,
    /// What the format says about the place it writes to.
    #[setters(generate)]
    pub storage_meta: Option<&'a Value>,
}

impl<'a> SaveContext<'a> {
    /// The context of a rank, without data of the format.
    pub fn new(rank: u32, is_coordinator: bool) -> Self {
        Self {
            rank,
            is_coordinator,
            storage_meta: None,
        }
    }
}

/// What an item writes.
#[derive(Clone, Debug)]
pub enum WriteData {
    /// The elements of the item's region, in row-major order; leading axes of length 1 may be absent.
    Tensor(Data),
    /// An object.
    Object(Payload),
}

/// DCP's protocol of a save.
///
/// # Contract
/// No hook calls another hook; the pipeline calls each in turn, in the order of this trait. So a default never bypasses an override, and a
/// planner that wraps another one ([`base`](Self::base)) works like a subclass of it. All hooks except
/// [`create_global_plan`](Self::create_global_plan) run on every rank. In a rank-local save that one runs on every rank, too. Plans may
/// depend only on the arguments.
///
/// # Examples
/// These are the examples of PyTorch's documentation. Keys get a prefix:
/// ```
/// # use {reshard_model::*, reshard_plan::{*, Result}};
/// #[derive(Debug)]
/// struct RenamePlanner;
/// impl SavePlanner for RenamePlanner {
///     fn create_local_plan(&self, state: &FlatStateDict, cx: &SaveContext<'_>) -> Result<SavePlan> {
///         let mut plan = self.base().create_local_plan(state, cx)?;
///         plan.items.iter_mut().for_each(|item| item.key = format!("foo_{}", item.key).into());
///         Ok(plan)
///     }
/// }
/// # let mut state = FlatStateDict::new();
/// # state.insert(Path(vec!["w".into()]), Sharded::Tensor(ShardedTensor::template("w", DType::Int8, &[2])));
/// # let plan = RenamePlanner.create_local_plan(&state, &SaveContext::new(0, true)).unwrap();
/// # assert_eq!(RenamePlanner.create_global_plan(vec![plan]).unwrap().1.tensor("foo_w").unwrap().bytes(), 2);
/// ```
/// All tensors are stored as float16. The plan has the type; the elements are cast when they are written, wherever they are:
/// ```
/// # use {reshard_model::*, reshard_plan::{*, Result}};
/// #[derive(Debug)]
/// struct FP16Planner;
/// impl SavePlanner for FP16Planner {
///     fn create_local_plan(&self, state: &FlatStateDict, cx: &SaveContext<'_>) -> Result<SavePlan> {
///         let mut plan = self.base().create_local_plan(state, cx)?;
///         for item in &mut plan.items {
///             if let WriteKind::Tensor(t) = &mut item.kind {
///                 t.dtype = DType::Float16;
///             }
///         }
///         Ok(plan)
///     }
///     fn transform_object(&self, item: &WriteItem, data: WriteData) -> Result<WriteData> {
///         Ok(match self.base().transform_object(item, data)? {
///             WriteData::Tensor(data) => WriteData::Tensor(data.cast(DType::Float16)?),
///             object => object,
///         })
///     }
/// }
/// # let t = ShardedTensor::full("w", Tensor::from_vec(&[2], vec![1f32, 2.]).unwrap());
/// # let state: FlatStateDict = [(Path(vec!["w".into()]), Sharded::Tensor(t))].into();
/// # let plan = FP16Planner.create_local_plan(&state, &SaveContext::new(0, true)).unwrap();
/// # let (plans, metadata) = FP16Planner.create_global_plan(vec![plan]).unwrap();
/// # assert_eq!(metadata.tensor("w").unwrap().dtype(), DType::Float16);
/// # let item = &plans[0].items[0];
/// # let data = FP16Planner.transform_object(item, FP16Planner.lookup_object(item, &state).unwrap()).unwrap();
/// # let WriteData::Tensor(Data::Host(t)) = data else { panic!() };
/// # assert_eq!(t.to_bytes()[..], [0, 0x3c, 0, 0x40]);
/// ```
/// All ranks have the same items (DDP), which are distributed in turns:
/// ```
/// # use {reshard_model::*, reshard_plan::{*, Result}};
/// #[derive(Debug)]
/// struct DDPLoadBalancingPlanner;
/// impl SavePlanner for DDPLoadBalancingPlanner {
///     fn create_global_plan(&self, mut plans: Vec<SavePlan>) -> Result<(Vec<SavePlan>, Metadata)> {
///         let items = std::mem::take(&mut plans[0].items);
///         let ranks = plans.len();
///         plans.iter_mut().for_each(|p| p.items.clear());
///         items.into_iter().enumerate().for_each(|(i, item)| plans[i % ranks].items.push(item));
///         self.base().create_global_plan(plans)
///     }
/// }
/// # let leaf = |k: &str| (Path(vec![k.into()]), Sharded::Tensor(ShardedTensor::template(k, DType::Int8, &[2])));
/// # let state: FlatStateDict = ["a", "b", "c"].map(leaf).into();
/// # let plan = DDPLoadBalancingPlanner.create_local_plan(&state, &SaveContext::new(0, true)).unwrap();
/// # let (plans, _) = DDPLoadBalancingPlanner.create_global_plan(vec![plan.clone(), plan]).unwrap();
/// # assert_eq!(plans.iter().map(|p| p.items.len()).collect::<Vec<_>>(), [2, 1]);
/// ```
/// Every rank adds data of its own, which the checkpoint keeps:
/// ```
/// # use {reshard_model::FlatStateDict, reshard_plan::{*, Result}};
/// #[derive(Debug)]
/// struct SaveExtraDataPlanner;
/// impl SavePlanner for SaveExtraDataPlanner {
///     fn create_local_plan(&self, state: &FlatStateDict, cx: &SaveContext<'_>) -> Result<SavePlan> {
///         let plan = self.base().create_local_plan(state, cx)?;
///         Ok(plan.with_planner_data(PlannerData::Str("per-rank-data".into())))
///     }
///     fn create_global_plan(&self, plans: Vec<SavePlan>) -> Result<(Vec<SavePlan>, Metadata)> {
///         let (plans, metadata) = self.base().create_global_plan(plans)?;
///         let all = plans.iter().filter_map(|p| p.planner_data.clone()).collect();
///         Ok((plans, metadata.with_planner_data(Some(PlannerData::List(all)))))
///     }
/// }
/// # let plan = SaveExtraDataPlanner.create_local_plan(&FlatStateDict::new(), &SaveContext::new(0, true)).unwrap();
/// # let (_, metadata) = SaveExtraDataPlanner.create_global_plan(vec![plan.clone(), plan]).unwrap();
/// # let said = PlannerData::Str("per-rank-data".into());
/// # assert_eq!(metadata.planner_data(), Some(&PlannerData::List(vec![said.clone(), said])));
/// ```
/// One planner wraps another:
/// ```
/// # use {reshard_model::*, reshard_plan::{*, Result}};
/// /// Puts a prefix before the keys of its inner planner.
/// #[derive(Debug)]
/// struct Prefix<P>(&'static str, P);
/// impl<P: SavePlanner> SavePlanner for Prefix<P> {
///     fn base(&self) -> &dyn SavePlanner {
///         &self.1
///     }
///     fn create_local_plan(&self, state: &FlatStateDict, cx: &SaveContext<'_>) -> Result<SavePlan> {
///         let mut plan = self.base().create_local_plan(state, cx)?;
///         plan.items.iter_mut().for_each(|item| item.key = format!("{}{}", self.0, item.key).into());
///         Ok(plan)
///     }
/// }
/// let planner = Prefix("a.", Prefix("b.", DefaultSavePlanner::DCP));
/// # let t = ShardedTensor::template("w", DType::Int8, &[2]).with_replica_id(1); // a replica: only DCP's offers it
/// # let state: FlatStateDict = [(Path(vec!["w".into()]), Sharded::Tensor(t))].into();
/// # let plan = planner.create_local_plan(&state, &SaveContext::new(0, true)).unwrap();
/// # assert_eq!(&*plan.items[0].key, "a.b.w");
/// ```
pub trait SavePlanner: Any + Debug + Send + Sync {
    /// The planner whose hooks are used for those that you do not override. By default it is Megatron Core's, in which only main replicas
    /// are offered. For saves in PyTorch's dialect return `&DefaultSavePlanner::DCP`. For rank-local saves return a planner with
    /// [`allow_holes`](DefaultSavePlanner::with_allow_holes), which you keep in a field.
    fn base(&self) -> &dyn SavePlanner {
        &DefaultSavePlanner::DEFAULT
    }

    /// The name of its type. Ranks compare it, and it is a part of a kept plan. A planner around another one keeps this default.
    fn name(&self) -> &'static str {
        std::any::type_name::<Self>()
    }

    /// All settings of the planner on which plans depend, as text. A save whose structure is known from the save before it does not
    /// plan again, if its planner says so: then of all hooks only [`set_up`](Self::set_up), [`lookup_object`](Self::lookup_object) and
    /// [`transform_object`](Self::transform_object) are called. So two planners of one type with equal settings must make equal plans
    /// of equal leaves, whatever the data of these, and refuse the same. `None`, the default, means that each save is planned anew; it is
    /// not taken from the [`base`](Self::base).
    fn plan_settings(&self) -> Option<String> {
        None
    }

    /// The same planner with another [`Offer`], for formats whose settings choose it. `None`, the default, means that the planner doesn't
    /// support this; it is not taken from the [`base`](Self::base), which would lose the planner around it.
    fn with_offer(&self, _offer: Offer) -> Option<Arc<dyn SavePlanner>> {
        None
    }

    /// DCP's `set_up_planner`. It may change the flat state (rename, drop, add) before anything else happens.
    ///
    /// # Errors
    /// Any reason why this rank can't save.
    fn set_up(&self, state: &mut FlatStateDict, cx: &SaveContext<'_>) -> Result<()> {
        self.base().set_up(state, cx)
    }

    /// Plans what this rank offers to write.
    ///
    /// # Errors
    /// Any reason why this rank can't save.
    fn create_local_plan(&self, state: &FlatStateDict, cx: &SaveContext<'_>) -> Result<SavePlan> {
        self.base().create_local_plan(state, cx)
    }

    /// Whether [`validate`](Self::validate) looks at declarations. If not, ranks send none. All ranks must say the same.
    fn validates(&self) -> bool {
        self.base().validates()
    }

    /// Called on the coordinator before the global plan, with what each rank declares of all its leaves, by rank: of replicas too, which
    /// no plan has. In a rank-local save each rank calls it with its own. It is called only if the planner
    /// [`validates`](Self::validates). If the common strategy stores objects, it is called for these alone, and then for both.
    /// Megatron Core's planner calls [`validate_sharding_integrity`]. PyTorch's does not validate, because any replica is as good as another there.
    ///
    /// # Errors
    /// Any reason why the leaves make no checkpoint.
    fn validate(&self, ranks: &[Arc<Declared>]) -> Result<()> {
        self.base().validate(ranks)
    }

    /// Called on the coordinator. From the plans of all ranks, by rank, it decides what each rank writes and what the checkpoint will hold.
    /// In a rank-local save each rank calls it with its own plan alone.
    ///
    /// # Errors
    /// [`PlanError::Save`] if the pieces don't make up whole tensors.
    fn create_global_plan(&self, plans: Vec<SavePlan>) -> Result<(Vec<SavePlan>, Metadata)> {
        self.base().create_global_plan(plans)
    }

    /// The last change of this rank's plan, after the global plan. It must not change an exchange or the items that other ranks give.
    /// If the save has a sharding policy, it must not add or remove items.
    ///
    /// # Errors
    /// Any reason why this rank can't save.
    fn finish_plan(&self, plan: SavePlan) -> Result<SavePlan> {
        self.base().finish_plan(plan)
    }

    /// Finds the elements or the object of an item. Together with [`transform_object`](Self::transform_object) this is DCP's `resolve_data`.
    /// It is called at least once per item, on any thread.
    ///
    /// # Errors
    /// Any reason why the item can't be written.
    fn lookup_object(&self, item: &WriteItem, state: &FlatStateDict) -> Result<WriteData> {
        self.base().lookup_object(item, state)
    }

    /// The last change of the data that are written. The result must have the type and shape of the item, also if it is lazy; otherwise the
    /// save fails. To change these, change the item too, in the local plan. [`Data::cast`] and [`Data::source`] work on all kinds of data.
    ///
    /// # Errors
    /// Any reason why the item can't be written.
    fn transform_object(&self, item: &WriteItem, data: WriteData) -> Result<WriteData> {
        self.base().transform_object(item, data)
    }
}

/// Which rank writes a piece, if several ranks offer it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Dedup {
    /// The rank with the fewest bytes so far; of equal ones the lowest.
    #[default]
    LeastLoaded,
    /// The lowest rank: DCP's `dedup_save_to_lowest_rank`.
    LowestRank,
}

/// Which ranks offer a piece, if several ranks have it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Offer {
    /// Only the rank with the main replica, as in Megatron Core. A second main replica is an error.
    #[default]
    MainReplica,
    /// Every rank, as in DCP. [`Dedup`] then chooses one.
    AllReplicas,
}

/// The counterpart of DCP's planner of the same name, and of Megatron Core's.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, derive_setters::Setters,
)]
#[setters(prefix = "with_", generate = false)]
#[non_exhaustive]
pub struct DefaultSavePlanner {
    /// Which ranks offer a piece.
    pub offer: Offer,
    /// Which rank writes a piece.
    #[setters(generate)]
    pub dedup: Dedup,
    /// Whether pieces may leave holes in their tensors. A rank of a rank-local save needs this, because other ranks have the rest.
    #[setters(generate)]
    pub allow_holes: bool,
}

impl DefaultSavePlanner {
    /// As in Megatron Core.
    pub const DEFAULT: Self = Self {
        offer: Offer::MainReplica,
        dedup: Dedup::LeastLoaded,
        allow_holes: false,
    };

    /// As in DCP: all replicas are offered.
    pub const DCP: Self = Self {
        offer: Offer::AllReplicas,
        ..Self::DEFAULT
    };
}

#[deny(clippy::missing_trait_methods)] // a new hook must not fall into itself
impl SavePlanner for DefaultSavePlanner {
    fn name(&self) -> &'static str {
        std::any::type_name::<Self>()
    }

    fn with_offer(&self, offer: Offer) -> Option<Arc<dyn SavePlanner>> {
        Some(Arc::new(Self { offer, ..*self }))
    }

    fn base(&self) -> &dyn SavePlanner {
        self
    }

    fn plan_settings(&self) -> Option<String> {
        Some(format!("{self:?}"))
    }

    fn set_up(&self, _: &mut FlatStateDict, _: &SaveContext<'_>) -> Result<()> {
        Ok(())
    }

    fn create_local_plan(&self, state: &FlatStateDict, cx: &SaveContext<'_>) -> Result<SavePlan> {
        let main_only = self.offer == Offer::MainReplica;
        let mut items = Vec::with_capacity(state.len());
        let mut offered = duplicates::Offered::new(cx.rank, self.offer, state);
        for (source, (path, leaf)) in state.iter().enumerate() {
            let source = u32::try_from(source)
                .ok()
                .filter(|source| *source < WriteItem::TAKEN);
            let source = source.ok_or_else(|| {
                PlanError::invalid(leaf.key(), "the state dict has more than 2³¹ leaves")
            })?;
            items.extend(match leaf {
                Sharded::Tensor(t) if main_only && !t.replica_id.is_main() => None,
                Sharded::Object(o) if main_only && !o.replica_id.is_main() => None,
                leaf if !offered.first(path, leaf)? => None,
                Sharded::Tensor(t) => Some(write_tensor(t, source)?),
                Sharded::Object(o) => {
                    let bytes_hint = match &o.data {
                        Payload::Encoded { bytes, .. } => bytes.len() as u64,
                        _ => 0,
                    };
                    let kind = WriteKind::Object { bytes_hint };
                    Some(WriteItem {
                        key: o.unique_key().into(),
                        source,
                        kind,
                    })
                }
            });
        }
        offered.done()?;
        Ok(SavePlan::new(items))
    }

    /// Where only main replicas are offered, each part needs exactly one; a rank that may leave holes has no others to compare with.
    fn validates(&self) -> bool {
        self.offer == Offer::MainReplica && !self.allow_holes
    }

    fn validate(&self, ranks: &[Arc<Declared>]) -> Result<()> {
        validate_sharding_integrity(ranks)
    }

    fn create_global_plan(&self, plans: Vec<SavePlan>) -> Result<(Vec<SavePlan>, Metadata)> {
        crate::global::plan(plans, self)
    }

    fn finish_plan(&self, plan: SavePlan) -> Result<SavePlan> {
        Ok(plan)
    }

    fn lookup_object(&self, item: &WriteItem, state: &FlatStateDict) -> Result<WriteData> {
        match (state.get_index(item.source as usize), &item.kind) {
            (Some((_, Sharded::Object(o))), WriteKind::Object { .. }) => {
                Ok(WriteData::Object(o.data.clone()))
            }
            (Some((_, Sharded::Tensor(t))), WriteKind::Tensor(w)) => {
                part_of(t, &w.region, &item.key).map(WriteData::Tensor)
            }
            (Some(_), _) => Err(PlanError::invalid(
                &item.key,
                "the planner takes a tensor from an object, or an object from a tensor",
            )),
            (None, _) => {
                let what = format!(
                    "there is no leaf {}; the state has {} leaves",
                    item.source,
                    state.len()
                );
                Err(PlanError::invalid(&item.key, what))
            }
        }
    }

    fn transform_object(&self, _: &WriteItem, data: WriteData) -> Result<WriteData> {
        Ok(data)
    }
}

fn write_tensor(t: &ShardedTensor, source: u32) -> Result<WriteItem> {
    let AsStored {
        shape,
        region,
        original,
    } = as_stored(t)?;
    let kind = WriteKind::Tensor(TensorWrite {
        dtype: t.dtype,
        global_shape: shape,
        region,
        properties: TensorProperties::default(),
        original_shape: original,
    });
    Ok(WriteItem {
        key: t.key.clone(),
        source,
        kind,
    })
}

/// The elements of `region` of a leaf, both as they are stored.
fn part_of(t: &ShardedTensor, region: &Region, key: &str) -> Result<Data> {
    let whole = as_stored(t)?.region;
    // Leading axes of length 1, which the data lack.
    let leading = match &t.flattened_range {
        None => t.prepend_axis_num,
        Some(_) => whole.ndim().saturating_sub(1),
    };
    if *region == whole {
        return Ok(t.data.clone());
    }
    if !whole.contains(region) {
        let what = format!("region {region} does not lie in {whole}, the region of the leaf");
        return Err(PlanError::invalid(key, what));
    }
    let inner = region.within(&whole);
    let inner = Region::new(&inner.offsets[leading..], &inner.lengths[leading..]);
    Ok(t.data.narrow(&inner))
}

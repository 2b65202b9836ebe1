//! A planner around a planner, which lets ranks of a group read for each other.

use crate::{
    distribute::{HeldShard, distribute_shards_to_ranks},
    group::Seat,
};
use reshard_model::{Dims, FlatStateDict, Sharded};
use reshard_plan::{
    ChunkId, Demand, ExchangeAlgo, LoadContext, LoadPlan, LoadPlanner, Metadata, PlanError,
    PlannerData, Result, Stored, Wanted, share_reads,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
    sync::{Arc, Mutex, PoisonError},
};

/// Who reads what several ranks of a group want.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Readers {
    /// Megatron Core's distribution.
    Distributed,
    /// The first rank of each group reads everything.
    First,
}

/// What all ranks plan to read, and the shared plans that came of it.
#[derive(Debug, Default)]
pub(crate) struct Kept(Mutex<Option<Arc<Known>>>);

#[derive(Debug)]
struct Known {
    algo: ExchangeAlgo,
    plans: Vec<LoadPlan>,
    members: Vec<Member>,
    shared: Vec<LoadPlan>,
}

impl Kept {
    fn get(
        &self,
        algo: ExchangeAlgo,
        plans: &[LoadPlan],
        members: &[Member],
    ) -> Option<Vec<LoadPlan>> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = kept.clone()?;
        drop(kept);
        (known.algo == algo && known.plans == plans && known.members == members)
            .then(|| known.shared.clone())
    }

    fn put(&self, known: Known) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(known));
    }
}

/// Around the planner of a load.
#[derive(Debug)]
pub(crate) struct Sharing {
    pub(crate) base: Arc<dyn LoadPlanner>,
    pub(crate) seat: Seat,
    pub(crate) readers: Readers,
    pub(crate) algo: ExchangeAlgo,
    pub(crate) kept: Option<Arc<Kept>>,
}

/// What a rank tells the coordinator beside its plan.
#[derive(Debug, PartialEq, Eq)]
struct Member {
    seat: Seat,
    /// Leaves that are no main replicas, by position.
    replicas: BTreeSet<u32>,
}

impl Member {
    fn of(seat: Seat, template: &FlatStateDict) -> Self {
        let replica = |leaf: &Sharded| match leaf {
            Sharded::Tensor(t) => !t.replica_id.is_main(),
            Sharded::Object(_) => false,
        };
        let leaves = (0u32..).zip(template.values());
        Self {
            seat,
            replicas: leaves
                .filter(|(_, leaf)| replica(leaf))
                .map(|(at, _)| at)
                .collect(),
        }
    }

    /// In front of what the base's planner has put there.
    fn pack(&self, base: Option<PlannerData>) -> PlannerData {
        let Seat { first, number } = self.seat;
        let words = [first, number]
            .into_iter()
            .chain(self.replicas.iter().copied());
        let bytes = words.flat_map(u32::to_le_bytes).collect();
        let mut list = vec![PlannerData::Bytes(bytes)];
        list.extend(base);
        PlannerData::List(list)
    }

    /// Takes it out again.
    fn unpack(data: &mut Option<PlannerData>) -> Option<Self> {
        let Some(PlannerData::List(mut list)) = data.take() else {
            return None;
        };
        *data = (list.len() == 2).then(|| list.pop()).flatten();
        let Some(PlannerData::Bytes(bytes)) = list.pop() else {
            return None;
        };
        let (words, _) = bytes.as_chunks::<4>();
        let mut words = words.iter().map(|word| u32::from_le_bytes(*word));
        let (first, number) = (words.next()?, words.next()?);
        Some(Self {
            seat: Seat { first, number },
            replicas: words.collect(),
        })
    }
}

impl LoadPlanner for Sharing {
    fn base(&self) -> &dyn LoadPlanner {
        &*self.base
    }

    fn plan_settings(&self) -> Option<String> {
        let (base, of) = (self.base.plan_settings()?, self.base.name());
        let own = (self.seat, self.readers, self.algo);
        Some(format!("{own:?} around {of} {base}"))
    }

    fn create_local_plan(
        &self,
        template: &FlatStateDict,
        cx: &LoadContext<'_>,
    ) -> Result<LoadPlan> {
        let mut plan = self.base.create_local_plan(template, cx)?;
        let base = plan.planner_data.take();
        plan.planner_data = Some(Member::of(self.seat, template).pack(base));
        Ok(plan)
    }

    fn create_global_plan(
        &self,
        mut plans: Vec<LoadPlan>,
        cx: &LoadContext<'_>,
    ) -> Result<Vec<LoadPlan>> {
        let members: Option<Vec<Member>> = plans
            .iter_mut()
            .map(|plan| Member::unpack(&mut plan.planner_data))
            .collect();
        let lost =
            "a rank of the load has other settings, or a format has changed the planner's data";
        let members = members.ok_or_else(|| PlanError::planner(lost))?;
        let plans = self.base.create_global_plan(plans, cx)?;
        let Some(kept) = &self.kept else {
            return self.share(plans, &members, cx.metadata);
        };
        if let Some(shared) = kept.get(self.algo, &plans, &members) {
            return Ok(shared);
        }
        let shared = self.share(plans.clone(), &members, cx.metadata)?;
        kept.put(Known {
            algo: self.algo,
            plans,
            members,
            shared: shared.clone(),
        });
        Ok(shared)
    }
}

impl Sharing {
    fn share(
        &self,
        plans: Vec<LoadPlan>,
        members: &[Member],
        metadata: &Metadata,
    ) -> Result<Vec<LoadPlan>> {
        let group = |rank: u32| members.get(rank as usize).map(|member| member.seat.first);
        let mains = mains(&plans, members);
        let choose = |all: &[Demand]| match self.readers {
            Readers::First => all.iter().map(|demand| demand.group).collect(),
            Readers::Distributed => distribute(all, members, &mains, metadata),
        };
        let mut plans = share_reads(plans, metadata, group, choose)?;
        for plan in plans.iter_mut().filter(|plan| !plan.exchange.is_empty()) {
            plan.exchange.algo = self.algo;
        }
        Ok(plans)
    }
}

/// The chunks of which a rank of a group wants anything as the main replica.
fn mains(plans: &[LoadPlan], members: &[Member]) -> BTreeSet<(u32, ChunkId)> {
    let mut out = BTreeSet::new();
    for (plan, member) in plans.iter().zip(members) {
        for item in plan.all_items() {
            if let Stored::Chunk(id) = item.stored
                && !member.replicas.contains(&item.dest)
            {
                out.insert((member.seat.first, id));
            }
        }
    }
    out
}

/// A part of a tensor, by key, where it begins, and the position of its demand.
type Shard<'m> = HeldShard<(&'m str, Dims, usize)>;

/// Megatron Core's distribution in each group: the reader of each demand. Objects are as good as equally long.
fn distribute(
    demands: &[Demand],
    members: &[Member],
    mains: &BTreeSet<(u32, ChunkId)>,
    metadata: &Metadata,
) -> Vec<u32> {
    // By number in its group, as Megatron Core counts.
    let number = |rank: u32| members.get(rank as usize).map_or(0, |m| m.seat.number);
    let mut ranks: BTreeMap<(u32, u32), u32> = BTreeMap::new();
    for (rank, member) in (0u32..).zip(members) {
        ranks.insert((member.seat.first, member.seat.number), rank);
    }
    let mut shards: BTreeMap<u32, Vec<Shard<'_>>> = BTreeMap::new();
    let mut readers = vec![0; demands.len()];
    let mut objects: BTreeMap<u32, u64> = BTreeMap::new();
    for (at, demand) in demands.iter().enumerate() {
        let Wanted::Chunk(s) = &demand.what else {
            let few = |rank: &u32| (objects.get(rank).copied().unwrap_or(0), number(*rank));
            let reader = demand.ranks.iter().copied().min_by_key(few);
            readers[at] = reader.unwrap_or(demand.group);
            *objects.entry(readers[at]).or_default() += 1;
            continue;
        };
        let (key, begin) = match metadata.chunk(s.chunk) {
            Some((tensor, chunk)) => (tensor.key(), chunk.offsets),
            None => ("", Dims::default()),
        };
        let offset = begin.iter().zip(&s.region.offsets).map(|(a, b)| a + b);
        shards.entry(demand.group).or_default().push(HeldShard {
            id: (key, offset.collect(), at),
            ranks: demand.ranks.iter().map(|rank| number(*rank)).collect(),
            bytes: demand.what.bytes().unwrap_or(0),
            main_is_elsewhere: !mains.contains(&(demand.group, s.chunk)),
        });
    }
    for (group, shards) in shards {
        for (shard, chosen) in distribute_shards_to_ranks(&shards) {
            if let (Some(shard), Some(rank)) = (shards.get(shard), ranks.get(&(group, chosen))) {
                readers[shard.id.2] = *rank;
            }
        }
    }
    readers
}

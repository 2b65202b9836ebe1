//! What ranks of a save write for each other.

use super::check::{ExchangeGroup, Routes, Ware};
use crate::{PlanError, Result, SavePlan, WriteItem, WriteKind};
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
};

/// A piece that a rank has, and that another rank writes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Give {
    /// The rank that writes it.
    pub to: u32,
    /// What it gives. Its source is a leaf of the rank that gives it.
    pub item: WriteItem,
}

impl Give {
    /// Gives an item to rank `to`.
    pub fn new(to: u32, item: WriteItem) -> Self {
        Self { to, item }
    }
}

/// What a rank of a save gives to the ranks that write it, and gets from others to write it. Ranks are counted in the whole group.
///
/// A planner makes it in [`create_global_plan`](crate::SavePlanner::create_global_plan), which sees all plans. [`share_writes`] is the
/// simplest way. The pipeline carries it out while files are written: planners and strategies handle no buffers for it.
///
/// An item that a rank takes is one of the items of its plan, so that the format lays it out like any other. Its source is
/// [`WriteItem::TAKEN`] plus its position in `takes`.
///
/// # Contract
/// - What one rank gives to another must be exactly what the other takes from it, in the same order. [`save_exchange_groups`] checks it.
/// - [`finish_plan`](crate::SavePlanner::finish_plan) must not change it, nor the items that are taken, because the other ranks rely on it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SaveExchange {
    /// What this rank gives to others, in the order of giving.
    pub gives: Vec<Give>,
    /// From which rank each taken item comes. The entries of each giver are in its order of giving.
    pub takes: Vec<u32>,
}

impl SaveExchange {
    /// Whether this rank takes part in no exchange.
    pub fn is_empty(&self) -> bool {
        self.gives.is_empty() && self.takes.is_empty()
    }
}

impl WriteItem {
    /// Sources from here on are no leaves, but items that another rank gives.
    pub const TAKEN: u32 = 1 << 31;

    /// Its position in [`SaveExchange::takes`], if another rank gives it.
    pub fn taken(&self) -> Option<usize> {
        self.source.checked_sub(Self::TAKEN).map(|n| n as usize)
    }
}

impl SavePlan {
    /// The items that other ranks give, in the order of [`SaveExchange::takes`], and the ranks that give them.
    ///
    /// # Errors
    /// [`PlanError::Invalid`] if not exactly one item has each of them as its source.
    pub fn taken_items(&self) -> Result<Vec<(u32, &WriteItem)>> {
        let mut found: Vec<Option<&WriteItem>> = vec![None; self.exchange.takes.len()];
        for item in &self.items {
            let Some(n) = item.taken() else { continue };
            let says = match found.get_mut(n) {
                None => format!(
                    "its source is item {n} of those that other ranks give, but they give {}",
                    found.len()
                ),
                Some(Some(other)) => format!("its source is also the source of {}", other.id()),
                Some(none) => {
                    *none = Some(item);
                    continue;
                }
            };
            return Err(PlanError::invalid(&item.key, says));
        }
        let given = found.into_iter().zip(&self.exchange.takes);
        let item = |(item, &from): (Option<_>, &u32)| {
            let what = || format!("no item is written with what rank {from} gives");
            item.map(|item| (from, item))
                .ok_or_else(|| PlanError::invalid("an exchange", what()))
        };
        given.map(item).collect()
    }
}

/// The group of each rank; `None` for a rank without an exchange.
///
/// # Errors
/// [`PlanError::Invalid`] with a key and the ranks, if what one rank gives is not what another one takes. Otherwise these ranks would
/// wait forever.
pub fn save_exchange_groups(plans: &[SavePlan]) -> Result<Vec<Option<ExchangeGroup>>> {
    routes(plans)?.groups()
}

fn routes(plans: &[SavePlan]) -> Result<Routes<Written<'_>>> {
    let mut routes = Routes::new(plans.len());
    for (rank, plan) in (0u32..).zip(plans) {
        for Give { to, item } in &plan.exchange.gives {
            if item.taken().is_some() {
                let what =
                    format!("rank {rank} hands it out to rank {to}, but has it from another rank");
                return Err(PlanError::invalid(&item.key, what));
            }
            routes.give(rank, *to, Written(item))?;
        }
        for (from, item) in plan.taken_items()? {
            routes.take(rank, from, Written(item))?;
        }
    }
    Ok(routes)
}

/// Something that is written for another rank. Where it comes from does not matter.
struct Written<'p>(&'p WriteItem);

impl PartialEq for Written<'_> {
    fn eq(&self, other: &Self) -> bool {
        (&self.0.key, &self.0.kind) == (&other.0.key, &other.0.kind)
    }
}

impl fmt::Display for Written<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0.kind {
            WriteKind::Tensor(t) => write!(f, "{} {}", t.dtype, t.region),
            WriteKind::Object { .. } => f.write_str("the object"),
        }
    }
}

impl Ware for Written<'_> {
    fn key(&self) -> Option<&str> {
        Some(&self.0.key)
    }
}

/// An item of a plan, and where its data are.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Held {
    /// The rank that has the data.
    pub from: u32,
    /// What is written. Its source is a leaf of that rank.
    pub item: WriteItem,
}

impl Held {
    /// An item of which rank `from` has the data.
    pub fn new(from: u32, item: WriteItem) -> Self {
        Self { from, item }
    }
}

/// Takes the items out of all plans, by the rank that writes them, together with their exchanges. [`place_item`] puts them back.
///
/// # Errors
/// As [`save_exchange_groups`].
pub fn take_items(plans: &mut [SavePlan]) -> Result<Vec<Vec<Held>>> {
    save_exchange_groups(plans)?;
    // The leaves of what each rank gives to each, in order. The check has found that the other takes just these.
    let mut leaves: BTreeMap<(u32, u32), VecDeque<u32>> = BTreeMap::new();
    for (rank, plan) in (0u32..).zip(&mut *plans) {
        for Give { to, item } in std::mem::take(&mut plan.exchange.gives) {
            leaves.entry((rank, to)).or_default().push_back(item.source);
        }
    }
    let mut out = Vec::with_capacity(plans.len());
    for (rank, plan) in (0u32..).zip(plans) {
        let takes = std::mem::take(&mut plan.exchange.takes).into_iter();
        let takes: Vec<_> = takes
            .map(|from| Some((from, leaves.get_mut(&(from, rank))?.pop_front()?)))
            .collect();
        let held = |item: WriteItem| {
            let giver = item.taken().and_then(|n| takes.get(n).copied()?);
            let (from, source) = giver.unwrap_or((rank, item.source));
            Held {
                from,
                item: WriteItem { source, ..item },
            }
        };
        out.push(
            std::mem::take(&mut plan.items)
                .into_iter()
                .map(held)
                .collect(),
        );
    }
    Ok(out)
}

/// Lets rank `by` write an item, of which rank `from` has the data, after its other items.
///
/// # Errors
/// [`PlanError::Invalid`] if there is no such rank, or the item comes from an exchange already.
pub fn place_item(plans: &mut [SavePlan], by: u32, held: Held) -> Result<()> {
    let Held { from, item } = held;
    let ranks = plans.len();
    let invalid = |what: String| Err(PlanError::invalid(&item.key, what));
    if item.taken().is_some() {
        return invalid(format!(
            "rank {from} has it from another rank; call `take_items` on the plans first"
        ));
    }
    if from as usize >= ranks {
        return invalid(format!(
            "rank {from} is said to have it, but there are only {ranks} ranks"
        ));
    }
    let Some(plan) = plans.get_mut(by as usize) else {
        return invalid(format!(
            "rank {by} was chosen to write it, but there are only {ranks} ranks"
        ));
    };
    if from == by {
        plan.items.push(item);
        return Ok(());
    }
    let n = u32::try_from(plan.exchange.takes.len())
        .ok()
        .filter(|n| *n < WriteItem::TAKEN);
    let Some(n) = n else {
        return invalid(format!("rank {by} takes more than 2³¹ items"));
    };
    plan.exchange.takes.push(from);
    plan.items.push(WriteItem {
        source: WriteItem::TAKEN + n,
        ..item.clone()
    });
    plans[from as usize]
        .exchange
        .gives
        .push(Give::new(by, item));
    Ok(())
}

/// A piece that a rank of a group has to write.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Offered {
    /// The group of the rank.
    pub group: u32,
    /// The rank that has the data.
    pub from: u32,
    /// The rank that writes it as the plans are.
    pub by: u32,
    /// What is written.
    pub item: WriteItem,
}

/// Lets ranks write the pieces of other ranks. Call it in [`create_global_plan`](crate::SavePlanner::create_global_plan), on the plans in
/// which each piece is written once.
///
/// `group` returns the group of each rank. A rank without a group writes its own pieces. `choose` gets all pieces, in the order of the
/// plans and their items, and returns the rank that writes each. It may be any rank, also one of another group or of none. Equal input
/// must give equal ranks. Each rank then writes its pieces in this order.
///
/// ```
/// use reshard_plan::{Metadata, Result, SavePlan, share_writes};
///
/// /// In each group of four ranks the lowest rank writes everything.
/// fn lowest_of_four(plans: Vec<SavePlan>) -> Result<Vec<SavePlan>> {
///     share_writes(plans, |rank| Some(rank / 4), |all| all.iter().map(|offered| offered.group * 4).collect())
/// }
/// # assert_eq!(lowest_of_four(vec![SavePlan::default()]).unwrap().len(), 1);
/// ```
///
/// # Errors
/// [`PlanError::Invalid`] if the plans have exchanges that do not fit together, if files are already decided, or if `choose` does not
/// return exactly one rank per piece.
pub fn share_writes(
    mut plans: Vec<SavePlan>,
    group: impl Fn(u32) -> Option<u32>,
    choose: impl FnOnce(&[Offered]) -> Vec<u32>,
) -> Result<Vec<SavePlan>> {
    if let Some(plan) = plans.iter().find(|plan| !plan.files.is_empty()) {
        let key = plan.items.first().map_or("an exchange", |item| &item.key);
        return Err(PlanError::invalid(
            key,
            "its file is decided already, so it can't go to another rank",
        ));
    }
    // Pieces of ranks without a group stay where they are.
    let (mut offers, mut stays) = (Vec::new(), Vec::new());
    for (by, held) in (0u32..).zip(take_items(&mut plans)?) {
        for Held { from, item } in held {
            match group(by) {
                Some(group) => offers.push(Offered {
                    group,
                    from,
                    by,
                    item,
                }),
                None => stays.push((by, Held { from, item })),
            }
        }
    }
    let writers = choose(&offers);
    if writers.len() != offers.len() {
        let what = format!(
            "{} ranks were chosen to write {} pieces; choose one rank for each piece",
            writers.len(),
            offers.len()
        );
        return Err(PlanError::invalid("an exchange", what));
    }
    for (by, held) in stays {
        place_item(&mut plans, by, held)?;
    }
    for (Offered { from, item, .. }, by) in offers.into_iter().zip(writers) {
        place_item(&mut plans, by, Held { from, item })?;
    }
    Ok(plans)
}

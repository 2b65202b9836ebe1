//! Sub-groups that settings name.

use reshard_comm::{Comm, ProcessGroup, Rank};
use reshard_strategy::{LoadCx, Result, StrategyError, agree};
use std::{collections::BTreeMap, sync::Arc};

/// The sub-group of this name, for these settings, in a save or load.
pub(crate) fn sub_group<'a>(
    (settings, act): (&str, &str),
    name: &str,
    groups: &'a BTreeMap<String, Arc<dyn ProcessGroup>>,
) -> Result<&'a dyn ProcessGroup> {
    let missing = || {
        let names: Vec<&str> = groups.keys().map(String::as_str).collect();
        StrategyError::Invalid(format!(
            "{settings} wants the sub-group {name:?}, but this rank has [{}]; add it to the {act} with `sub_group`",
            names.join(", ")
        ))
    };
    let group = groups.get(name);
    group.map(|group| &**group).ok_or_else(missing)
}

/// A rank's place in its sub-group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seat {
    /// The member of the group with number 0, as a rank of the whole group. It identifies the group.
    pub(crate) first: u32,
    /// This rank's number in the group.
    pub(crate) number: u32,
}

impl Seat {
    /// This rank's place in the sub-group of this name; without a name, all ranks are one group.
    ///
    /// # Collective
    /// Every rank calls it. A rank without the group fails all.
    pub(crate) async fn find(settings: &str, name: Option<&str>, cx: &LoadCx<'_>) -> Result<Self> {
        let rank = cx.comm.rank();
        let Some(name) = name else {
            return Ok(Self {
                first: 0,
                number: rank.0,
            });
        };
        // A rank without the group must not let the others wait in it.
        let group = sub_group((settings, "load"), name, cx.groups);
        let group = agree(&cx.comm, "plan", group).await?;
        let guard = cx.comm.guard("sharing a load");
        let comm = Comm::new(group).with_deadline(cx.comm.deadline());
        let inner = comm.guard("sharing a load");
        let members = comm.all_gather("plan", Ok(rank)).await;
        inner.done();
        // What has failed in one group is told to all.
        let members: Result<Vec<Rank>> = members.map_err(StrategyError::from);
        let members = agree(&cx.comm, "plan", members).await;
        guard.done();
        Ok(Self {
            first: members?.first().map_or(rank.0, |first| first.0),
            number: group.rank().0,
        })
    }
}

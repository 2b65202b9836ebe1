//! Which ranks take part in a save or load.

use reshard_comm::{Comm, ProcessGroup, Rank, SingleProcess};
use std::{collections::BTreeMap, sync::Arc, time::Duration};

#[derive(Debug)]
pub(crate) struct Ranks<'a> {
    pub(crate) group: &'a dyn ProcessGroup,
    /// Sub-groups by name, for strategies whose settings name them.
    pub(crate) groups: BTreeMap<String, Arc<dyn ProcessGroup>>,
    pub(crate) coordinator: Rank,
    pub(crate) deadline: Option<Duration>,
    pub(crate) quiet: Option<Duration>,
}

impl Default for Ranks<'_> {
    fn default() -> Self {
        Self {
            group: &SingleProcess,
            groups: BTreeMap::new(),
            coordinator: Rank(0),
            deadline: None,
            quiet: None,
        }
    }
}

impl<'a> Ranks<'a> {
    pub(crate) fn comm(&self) -> Comm<'a> {
        let comm = Comm::new(self.group).with_coordinator(self.coordinator);
        let comm = match self.deadline {
            Some(deadline) => comm.with_deadline(deadline),
            None => comm,
        };
        match self.quiet {
            Some(quiet) => comm.with_quiet(quiet),
            None => comm,
        }
    }
}

/// The options of a group, for the builders of saves and loads. Each builder has a field `ranks`.
macro_rules! options {
    () => {
        /// The group of all ranks that take part. Without a group there is only this rank.
        pub fn group(mut self, group: &'a dyn ProcessGroup) -> Self {
            self.ranks.group = group;
            self
        }

        /// Adds a sub-group, which a strategy whose settings name it finds here, such as `fully_parallel` of reshard-parallel.
        pub fn sub_group(mut self, name: &str, group: Arc<dyn ProcessGroup>) -> Self {
            self.ranks.groups.insert(name.into(), group);
            self
        }

        /// The rank that decides, and that commits a save (DCP's `coordinator_rank`). It is counted within the group.
        /// The default is 0.
        pub fn coordinator(mut self, rank: Rank) -> Self {
            self.ranks.coordinator = rank;
            self
        }

        /// How long this rank waits in one step for the others. A rank that is still reading or writing counts as late. The
        /// default is 30 minutes. Set more if the times that your ranks need differ by more than that.
        pub fn deadline(mut self, deadline: Duration) -> Self {
            self.ranks.deadline = Some(deadline);
            self
        }

        /// After how long a step warns of the ranks for which it waits, in the log (`tracing`, target [`reshard_comm::WAITING_EVENTS`]). It warns
        /// again when it has waited twice as long, and so on. The default is 30 seconds.
        pub fn warn_after(mut self, quiet: Duration) -> Self {
            self.ranks.quiet = Some(quiet);
            self
        }
    };
}
pub(crate) use options;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_waits_half_an_hour_unless_told_otherwise() {
        assert_eq!(
            Ranks::default().comm().deadline(),
            Duration::from_secs(1800)
        );
        let hasty = Ranks {
            deadline: Some(Duration::from_secs(7)),
            ..Ranks::default()
        };
        assert_eq!(hasty.comm().deadline(), Duration::from_secs(7));
    }
}

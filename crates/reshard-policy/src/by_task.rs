use crate::{
    Piece, Result, ShardingPolicy, Shards,
    tasks::{by_task, groups},
};
use serde::{Deserialize, Serialize};

/// One shard per task. This is TensorFlow's default, and the same as saving without a policy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShardByTask {}

impl ShardByTask {
    /// One shard per task.
    pub fn new() -> Self {
        Self {}
    }
}

#[typetag::serde(name = "shard_by_task")]
impl ShardingPolicy for ShardByTask {
    fn description(&self) -> String {
        "one shard per task".into()
    }

    fn plan_settings(&self) -> Option<String> {
        Some(format!("{self:?}"))
    }

    fn shard(&self, pieces: &[Piece<'_>], out: &mut Shards) -> Result<()> {
        put(pieces, by_task(pieces), out)
    }
}

/// One shard for each device of each task: one for host memory, one for the first GPU, and so on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShardByDevice {}

impl ShardByDevice {
    /// One shard per device.
    pub fn new() -> Self {
        Self {}
    }
}

#[typetag::serde(name = "shard_by_device")]
impl ShardingPolicy for ShardByDevice {
    fn description(&self) -> String {
        "one shard per device".into()
    }

    fn plan_settings(&self) -> Option<String> {
        Some(format!("{self:?}"))
    }

    fn shard(&self, pieces: &[Piece<'_>], out: &mut Shards) -> Result<()> {
        let device = |i: usize| pieces[i].device;
        by_task(pieces)
            .into_iter()
            .try_for_each(|task| put(pieces, groups(task, device), out))
    }
}

/// A shard for each group of whole pieces.
pub(crate) fn put(
    pieces: &[Piece<'_>],
    shards: impl IntoIterator<Item: IntoIterator<Item = usize>>,
    out: &mut Shards,
) -> Result<()> {
    for shard in shards {
        out.start();
        for i in shard {
            out.push(i, pieces[i].region.clone())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Owned, told};

    #[test]
    fn tasks_and_devices_are_told_apart() {
        let state = [
            Owned::f32("a", &[2]),
            Owned::f32("b", &[0]).device("cuda:0"),
            Owned::object("c", 9),
            Owned::f32("d", &[3]).task(4).device("cuda:0"),
        ];
        assert_eq!(told(&ShardByTask::new(), &state), ["a b c", "d"]);
        assert_eq!(told(&ShardByDevice::new(), &state), ["a c", "b", "d"]);
        assert!(told(&ShardByTask::new(), &[]).is_empty());
    }
}

//! Ranks that save with sub-groups.

use futures::executor::block_on;
use reshard::{Checkpoint, LocalGroup, ProcessGroup, Result, SaveReport, StateDict};
use reshard_comm::testkit::on_ranks;
use reshard_parallel::FullyParallelSave;
use std::{collections::BTreeMap, sync::Arc};

pub(crate) type Group = Arc<dyn ProcessGroup>;

pub(crate) fn groups(ranks: usize) -> Vec<Group> {
    LocalGroup::new(ranks as u32)
        .into_iter()
        .map(|group| Arc::new(group) as Group)
        .collect()
}

/// What a rank saves with which settings, and the number of its sub-group, which is called "dp".
pub(crate) struct Saver {
    pub(crate) group: Group,
    pub(crate) color: Option<u32>,
    pub(crate) state: StateDict,
    pub(crate) settings: FullyParallelSave,
}

pub(crate) fn save(savers: Vec<Saver>, url: &str) -> Vec<Result<SaveReport>> {
    let url: Arc<str> = url.into();
    on_ranks(savers, move |saver| {
        let url = Arc::clone(&url);
        async move {
            let Saver {
                group,
                color,
                state,
                settings,
            } = saver;
            let mut save = reshard::save(&state, &url)
                .group(&*group)
                .overwrite(true)
                .strategy(settings);
            if let Some(color) = color {
                let dp = group.split(Some(color), group.rank().0).await.unwrap();
                save = save.sub_group("dp", dp.unwrap());
            }
            save.await
        }
    })
}

/// The rank that wrote each chunk, by key and offset.
pub(crate) fn writers(url: &str) -> BTreeMap<(String, Vec<u64>), u32> {
    let opened = block_on(Checkpoint::open(url)).unwrap();
    let mut out = BTreeMap::new();
    for tensor in opened.metadata().tensors() {
        for chunk in opened.tensor(tensor.key()).unwrap().chunks() {
            let file = chunk.parts[0].file.to_string();
            let rank = file.trim_start_matches("__").split('_').next().unwrap();
            let at = (tensor.key().to_owned(), chunk.region.offsets.to_vec());
            assert!(out.insert(at, rank.parse().unwrap()).is_none());
        }
    }
    out
}

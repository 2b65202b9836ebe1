//! What a checkpoint keeps beside elements.

use super::{Cut, Rank, sample, save_on_ranks};
use crate::{LoadShardedStrategy, OpenCx, SaveShardedStrategy, Saved};
use futures_executor::block_on;
use reshard_model::{ErrorKind, FlatStateDict, Path, PathOfKey, Step, testkit::Rule};
use reshard_plan::{
    DefaultSavePlanner, MemoryFormat, Metadata, PlannerData, Result, SaveContext, SavePlan,
    SavePlanner, WriteKind,
};
use reshard_storage::{IfExists, Store, testkit::MemoryStore};
use std::{collections::BTreeSet, sync::Arc};

/// Gives every tensor properties, and every key a path.
#[derive(Clone, Copy, Debug)]
struct Says {
    /// And says that a tensor is stored flattened.
    flattened: bool,
}

impl SavePlanner for Says {
    fn create_local_plan(&self, state: &FlatStateDict, cx: &SaveContext<'_>) -> Result<SavePlan> {
        let mut plan = DefaultSavePlanner::DEFAULT.create_local_plan(state, cx)?;
        let mut paths = PathOfKey::new();
        for item in &mut plan.items {
            let n = u64::from(item.source);
            if let WriteKind::Tensor(t) = &mut item.kind {
                t.properties.requires_grad = n % 2 == 0;
                t.properties.pin_memory = n % 3 == 0;
                t.properties.memory_format = [
                    MemoryFormat::Contiguous,
                    MemoryFormat::ChannelsLast,
                    MemoryFormat::Preserve,
                ][n as usize % 3];
                t.properties.strides = (n % 2 == 1).then(|| vec![n; t.global_shape.len()].into());
                // Its stored shape is that of 4 × 3 cells with 5 elements each.
                if self.flattened && &*item.key == "cube" {
                    t.original_shape = Some([4, 15].into());
                }
            }
            paths.insert(
                item.key.clone(),
                Path(vec![Step::from("list"), Step::Index(n), Step::from("é.")]),
            );
        }
        Ok(plan.with_planner_data(PlannerData::Paths(paths)))
    }
}

/// Checks that a format keeps all of the metadata: the properties of tensors, and the paths of keys, by which a state in PyTorch's
/// dialect is nested again. A format whose files have no room for them does not pass, and its docs say so.
///
/// # Panics
/// When something is lost. The text has the name of the rule, `metadata.is_kept`, and the item whose documentation has it.
pub fn metadata_contract(
    save: &(impl Clone + Into<SaveShardedStrategy>),
    load: &(impl Clone + Into<LoadShardedStrategy>),
) {
    let save: &SaveShardedStrategy = &save.clone().into();
    let load: &LoadShardedStrategy = &load.clone().into();
    let (of, name, written) = (
        "the strategy",
        "metadata.is_kept",
        "StorageReader::metadata",
    );
    Rule { of, name, written }.check(|| {
        for flattened in [false, true] {
            metadata_is_kept(save, load, Says { flattened });
        }
    });
}

fn metadata_is_kept(save: &SaveShardedStrategy, load: &LoadShardedStrategy, says: Says) {
    // The planner here gives every tensor unusual properties and every key a path that its name does not tell.
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let ranks = (0..2).map(|r| Rank {
        strategy: save.clone().into(),
        planner: Arc::new(says) as Arc<dyn SavePlanner>,
        flat: sample(Cut::Rows, r, 2, false),
    });

    let saved: Vec<_> = save_on_ranks(&store, IfExists::Refuse, ranks.collect());
    // A format may refuse flattened tensors, but not forget their shape.
    let is_refused = |one: &crate::Result<Saved>| {
        let e = one.as_ref().err();
        e.is_some_and(|e| e.kind() == ErrorKind::Unsupported)
    };
    if says.flattened && saved.iter().all(is_refused) {
        return;
    }
    let saved = saved
        .into_iter()
        .map(|one| one.unwrap().metadata)
        .next()
        .flatten();
    let saved = saved.expect("the coordinator knows the metadata");

    // What the coordinator knew when it saved is compared with what a reader finds in the files.
    let reader = block_on(load.clone().open(&OpenCx::new(store))).unwrap();
    let opened = reader.metadata();
    let keys = |metadata: &Metadata| -> BTreeSet<String> {
        metadata.tensors().map(|t| t.key().to_owned()).collect()
    };
    assert_eq!(keys(opened), keys(&saved), "the keys of tensors");
    for tensor in saved.tensors() {
        let key = tensor.key();
        let stored = opened
            .tensor(key)
            .unwrap_or_else(|| panic!("{key} is not told"));
        let (mut properties, strides) = (tensor.properties(), stored.properties().strides);
        // Flavours of .metadata before PyTorch 2.15 have no place for strides.
        if strides.is_none() {
            properties.strides = None;
        }
        assert_eq!(stored.properties(), properties, "the properties of {key}");
        assert_eq!(
            stored.global_shape(),
            tensor.global_shape(),
            "the shape of {key}, however it is stored"
        );
    }
    let Some(PlannerData::Paths(paths)) = saved.planner_data() else {
        panic!("the planner gave paths")
    };
    let Some(kept) = opened.planner_data() else {
        panic!("planner_data is lost")
    };
    for (key, path) in paths {
        assert_eq!(kept.path(key), Some(path), "the path of {key}");
    }
}

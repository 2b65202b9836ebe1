//! Common state of ranks is compared, and a difference is told to the rank that has it.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use futures::executor::block_on;
use reshard::{
    Dialect, LocalGroup, ProcessGroup, Save, SaveReport, StateDict, Tensor, Value, blocking,
    model::Tree,
};
use reshard_comm::testkit::{FaultGroup, on_ranks};
use reshard_model::testkit::Events;
use std::{future::IntoFuture, sync::Arc};

/// The common state of four ranks, of which rank 2 has another learning rate, and rank 3 more and less.
fn state(rank: u32) -> StateDict {
    let mut state = StateDict::new();
    let mut group = StateDict::new();
    group.insert("lr", if rank == 2 { 0.2 } else { 0.1 });
    group.insert("betas", Value::Tuple(vec![0.9.into(), 0.99.into()]));
    state.insert_tree("optimizer", Tree::List(vec![group]));
    state.insert("step", 7);
    state.insert("seed", Tensor::from_vec(&[1], vec![5i64]).unwrap());
    if rank == 3 {
        state.insert("rank", 3);
        state.insert("step", "7");
    } else {
        state.insert("args", Value::None);
    }
    state
}

fn save(
    set: impl for<'a> Fn(u32, Save<'a>) -> Save<'a> + Send + Sync + 'static,
) -> (Vec<SaveReport>, u64) {
    let dir = tempfile::tempdir().unwrap();
    let url: Arc<str> = dir.path().join("ckpt").display().to_string().into();
    let groups: Vec<Arc<FaultGroup>> = LocalGroup::new(4)
        .into_iter()
        .map(|g| Arc::new(FaultGroup::counting(Arc::new(g))))
        .collect();
    let (set, to) = (Arc::new(set), Arc::clone(&url));
    let saved = on_ranks(groups.clone(), move |group| {
        let (set, url) = (Arc::clone(&set), Arc::clone(&to));
        async move {
            let rank = group.rank().0;
            let state = state(rank);
            set(rank, reshard::save(&state, &*url).group(&*group)).await
        }
    });
    let saved = saved.into_iter().map(|saved| saved.unwrap()).collect();
    // The coordinator's is saved.
    let common = blocking::load_common(&*url).unwrap();
    assert!(common.get("rank").is_none() && common.get("args").is_some());
    (saved, groups[1].sent())
}

fn told(saved: &[SaveReport]) -> Vec<Option<String>> {
    let each = saved.iter().map(|s| s.common_differs.as_ref());
    each.map(|d| d.map(ToString::to_string)).collect()
}

const RANK_2: &str = "the common state of rank 2 differs from that of rank 0, which is saved; different values: optimizer.0.lr (float)";
const RANK_3: &str = "the common state of rank 3 differs from that of rank 0, which is saved; only on rank 0: args; only on rank 3: rank; \
                      different values: step (int, but str on rank 3)";

#[test]
fn each_rank_is_told_its_own_difference() {
    let (saved, _) = save(|_, s| s.dialect(Dialect::Megatron));
    let want = [None, None, Some(RANK_2.into()), Some(RANK_3.into())];
    assert_eq!(told(&saved), want);
}

/// A warning where it runs: nobody has to look into the report.
#[test]
fn each_rank_warns_of_its_own_difference() {
    let dir = tempfile::tempdir().unwrap();
    let url = dir.path().join("ckpt").display().to_string();
    let warned: Vec<String> = std::thread::scope(|scope| {
        let rank = |group: LocalGroup| {
            let url = &url;
            scope.spawn(move || {
                let state = state(group.rank().0);
                let save = reshard::save(&state, url)
                    .group(&group)
                    .dialect(Dialect::Megatron);
                let (saved, warned) =
                    Events::only(tracing::Level::WARN).of(|| block_on(save.into_future()));
                saved.unwrap();
                warned
            })
        };
        let ranks: Vec<_> = LocalGroup::new(4).into_iter().map(rank).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    assert!(warned[0].is_empty() && warned[1].is_empty(), "{warned:?}");
    for (rank, want) in [(2, RANK_2), (3, RANK_3)] {
        let warned = &warned[rank];
        assert!(warned.contains(want), "{warned}");
        assert!(warned.contains(&format!("rank={rank}")), "{warned}");
    }
}

#[test]
fn what_may_differ_is_removed_before_and_still_saved() {
    let (saved, _) = save(|_, s| {
        s.preprocess_common_before_consistency_check(|common| {
            common.remove("optimizer");
        })
    });
    assert_eq!(told(&saved), [None, None, None, Some(RANK_3.into())]);
}

#[test]
fn nobody_is_told_where_nothing_is_compared() {
    let (saved, without) = save(|_, s| s.compare_common(false));
    assert_eq!(told(&saved), [const { None }; 4]);
    // Equal common state costs no more than a digest.
    let (saved, with) =
        save(|_, s| s.preprocess_common_before_consistency_check(|common| *common = Tree::new()));
    assert_eq!(told(&saved), [const { None }; 4]);
    assert!(with <= without + 33, "{with} {without}");
}

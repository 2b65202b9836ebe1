//! A rank that fails in a shared load fails all, and nothing waits.

use crate::ranks::layered;
use crate::ranks::{Group, Loader, groups, load, plain, replicated, store};
use reshard::strategy::LoadShardedStrategy;
use reshard::{ErrorKind, comm::Cause};
use reshard_comm::testkit::{Fault, FaultGroup};
use reshard_storage::{
    Store, Stores,
    testkit::{Fault as StoreFault, FaultStore, Op},
};
use serde_json::json;
use std::sync::Arc;

fn all_settings() -> Vec<serde_json::Value> {
    let shared = |exchange| {
        layered(
            json!({ "type": "fully_parallel", "exchange": exchange }),
            &plain(),
        )
    };
    let mut out: Vec<_> = ["broadcast", "gather_rounds", "gather_object"]
        .map(shared)
        .into();
    out.push(layered(
        json!({ "type": "fully_parallel", "group": "dp" }),
        &shared("broadcast"),
    ));
    out.push(layered(json!({ "type": "two_stage" }), &plain()));
    out.push(layered(
        json!({ "type": "two_stage", "data_parallel_group": "dp", "cpu_transfer": false }),
        &plain(),
    ));
    out
}

#[test]
fn a_rank_without_the_group_is_named_on_all() {
    let dir = tempfile::tempdir().unwrap();
    let url = dir.path().join("ckpt").display().to_string();
    store(vec![replicated(0)], &url);
    let settings = layered(json!({ "type": "fully_parallel", "group": "tp" }), &plain());
    let loader = |group: Group| Loader {
        color: Some(0),
        ..Loader::new(group, replicated(0), &settings)
    };
    for loaded in load(groups(3).into_iter().map(loader).collect(), &url) {
        let e = loaded.map(drop).unwrap_err().to_string();
        assert!(
            e.contains("\"tp\"") && e.contains("[dp]") && e.contains("load with"),
            "{e}"
        );
    }
}

/// Wherever the transport of one rank fails, in the group of all or in a sub-group, no rank waits, and all fail.
#[test]
fn a_transport_that_fails_anywhere_fails_all() {
    let dir = tempfile::tempdir().unwrap();
    let url = dir.path().join("ckpt").display().to_string();
    store(vec![replicated(0)], &url);
    for settings in all_settings() {
        let loader = |group: Group| Loader {
            // The first call of a rank splits the group.
            color: Some(0),
            ..Loader::new(group, replicated(0), &settings)
        };
        let counted: Vec<Arc<FaultGroup>> = groups(3)
            .into_iter()
            .map(|g| Arc::new(FaultGroup::counting(g)))
            .collect();
        let loaders = counted.iter().map(|g| loader(Arc::clone(g) as Group));
        for loaded in load(loaders.collect(), &url) {
            loaded.unwrap();
        }
        let calls = counted[1].calls();
        for at in 1..calls {
            let loaders = groups(3).into_iter().enumerate().map(|(rank, group)| {
                let fault = Fault::Fail(Cause::new(ErrorKind::Unavailable, "a broken wire"));
                loader(match rank {
                    1 => Arc::new(FaultGroup::new(group, at, fault)),
                    _ => group,
                })
            });
            let loads = load(loaders.collect(), &url);
            assert!(loads[1].is_err(), "{settings}: call {at} of {calls}");
            // The last step tells only what the others know already.
            let failed = loads.iter().filter(|load| load.is_err()).count();
            assert!(
                failed == 3 || at + 1 == calls,
                "{settings}: call {at} of {calls}: {failed}"
            );
        }
    }
}

/// Whichever rank reads, and whatever it fails to read: all ranks learn which one and why, and have their buffers.
#[test]
fn a_store_that_fails_anywhere_fails_all() {
    let dir = tempfile::tempdir().unwrap();
    let url = dir.path().join("ckpt").display().to_string();
    store(vec![replicated(0)], &url);
    let mut met = 0;
    for settings in all_settings() {
        for bad in 0..3 {
            for (op, nth) in [
                (Op::ReadInto, 0),
                (Op::ReadInto, 1),
                (Op::ReadRanges, 0),
                (Op::ReadRanges, 1),
                (Op::Read, 1),
            ] {
                let loads = reshard_comm::testkit::on_ranks(groups(3), {
                    let (url, settings) = (url.clone(), settings.clone());
                    move |group| {
                        let (url, settings) = (url.clone(), settings.clone());
                        async move {
                            let faulty =
                                FaultStore::new(Stores::linked().unwrap().open(&url).unwrap());
                            if group.rank().0 == bad {
                                faulty.fail(op, nth, StoreFault::Before);
                            }
                            let dp = group.split(Some(0), group.rank().0).await.unwrap();
                            let config: LoadShardedStrategy =
                                serde_json::from_value(settings).unwrap();
                            reshard::load(replicated(0), &url)
                                .group(&*group)
                                .sub_group("dp", dp.unwrap())
                                .store(Arc::new(faulty) as Arc<dyn Store>)
                                .strategy(config)
                                .await
                        }
                    }
                });
                let failed = loads.iter().filter(|load| load.is_err()).count();
                assert!([0, 3].contains(&failed), "{settings} {op:?} {nth} {bad}");
                met += usize::from(failed > 0);
                for failure in loads.into_iter().filter_map(Result::err) {
                    let (e, template) = failure.into_parts();
                    assert!(e.to_string().contains(&format!("rank {bad}")), "{e}");
                    assert!(template.get("d").is_some());
                }
            }
        }
    }
    assert!(met > 20, "{met}");
}

#[test]
fn settings_are_nested_in_json() {
    use reshard::strategy::LoadShardedStrategy;
    let text = r#"{"format":"torch_dist","layers":[{"type":"fully_parallel","group":"dp","cache":true,"exchange":"gather_object"},{"type":"two_stage"}]}"#;
    let settings: LoadShardedStrategy = serde_json::from_str(text).unwrap();
    assert_eq!(settings.key().to_string(), "torch_dist/1");
    for (from, to) in [("group", "grup"), ("gather_object", "gossip")] {
        let unknown = text.replacen(from, to, 1);
        let e = serde_json::from_str::<LoadShardedStrategy>(&unknown).unwrap_err();
        assert!(e.to_string().contains(to), "{e}");
    }
}

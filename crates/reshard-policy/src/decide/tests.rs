use super::*;
use crate::{
    AllInOne, ByFiles, ByItem, ByOwner, Importance, MaxShardSize, ShardByDevice, ShardByTask, Then,
    testing::{Owned, any_state, decided, pieces},
};
use proptest::prelude::*;
use reshard_model::{ErrorKind, Region, testkit::Events};
use std::{collections::BTreeMap, error::Error};

/// A policy that answers what it is told to.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Says {
    shards: Vec<Vec<(usize, Region)>>,
    panics: Option<String>,
    too_many: bool,
    swaps: bool,
    files: u32,
}

#[typetag::serde]
impl ShardingPolicy for Says {
    fn description(&self) -> String {
        assert!(self.panics.as_deref() != Some("early"), "no words");
        "hostile".into()
    }

    fn shard(&self, _: &[Piece<'_>], out: &mut Shards) -> Result<()> {
        if let Some(text) = &self.panics {
            panic!("{text}");
        }
        for shard in &self.shards {
            out.start();
            for (piece, region) in shard {
                out.push(*piece, region.clone())?;
            }
        }
        if self.swaps {
            *out = Shards::with_limit(usize::MAX);
            (0..2_000_000).try_for_each(|_| out.push(0, Region::new([0], [1])))?;
        }
        for _ in 0..if self.too_many { 10_000_000 } else { 0 } {
            // It makes nothing of an error.
            out.push(0, Region::new([0], [1])).ok();
        }
        Ok(())
    }

    fn gathers(&self) -> bool {
        assert!(
            self.panics.as_deref() != Some("gathers"),
            "nowhere to gather"
        );
        false
    }

    fn files_per_task(&self) -> u32 {
        assert!(self.panics.as_deref() != Some("files"), "nothing to count");
        self.files
    }
}

fn all(parts: &[(u64, u64)]) -> Vec<(usize, Region)> {
    parts
        .iter()
        .map(|&(from, to)| (0, Region::new([from], [to - from])))
        .collect()
}

/// The whole story of an error.
fn story(error: &PolicyError) -> String {
    let mut all = error.to_string();
    let mut source = error.source();
    while let Some(e) = source {
        all = format!("{all}: {e}");
        source = e.source();
    }
    all
}

fn refused(policy: &Says, state: &[Owned], words: &[&str]) {
    let error = decided(policy, state).unwrap_err();
    let story = story(&error);
    assert!(
        words.iter().all(|w| story.contains(w)),
        "{story} lacks one of {words:?}"
    );
    assert!(story.contains("hostile"), "{story}");
}

fn says(shards: impl Into<Vec<Vec<(usize, Region)>>>) -> Says {
    Says {
        shards: shards.into(),
        ..Says::default()
    }
}

fn vector() -> [Owned; 1] {
    [Owned::f32("w", &[10])]
}

#[test]
fn a_tensor_that_is_left_out_is_named() {
    refused(
        &says([]),
        &vector(),
        &["w [0:10]", "is in no shard", "not leave anything out"],
    );
    refused(
        &says([]),
        &[Owned::f32("none", &[0])],
        &["none [0:0]", "is in no shard"],
    );
    refused(
        &says([]),
        &[Owned::object("o", 3)],
        &["o []", "is in no shard"],
    );
}

#[test]
fn a_part_that_is_left_out_is_named() {
    refused(
        &says([all(&[(0, 3)]), all(&[(7, 10)])]),
        &vector(),
        &["w [3:7]", "piece [0:10]", "is in no shard"],
    );
    refused(&says([all(&[(0, 9)])]), &vector(), &["w [9:10]"]);
}

#[test]
fn an_overlap_is_named_with_both_slices_and_shards() {
    let answer = says([all(&[(0, 6)]), all(&[(5, 10)])]);
    refused(
        &answer,
        &vector(),
        &["w [5:10]", "overlaps [0:6] of shard 0", "(shard 1)"],
    );
    refused(
        &says([all(&[(0, 10)]), all(&[(0, 10)])]),
        &vector(),
        &["w [0:10]", "overlaps"],
    );
    let twice = |shape: &[u64]| {
        says([
            vec![(0, Region::whole(shape))],
            vec![(0, Region::whole(shape))],
        ])
    };
    refused(
        &twice(&[]),
        &[Owned::object("o", 3)],
        &["o []", "overlaps", "(shard 1)"],
    );
    refused(
        &twice(&[0]),
        &[Owned::f32("none", &[0])],
        &["none [0:0]", "was in shard 0 already (shard 1)"],
    );
}

#[test]
fn a_shard_of_two_tasks_is_named() {
    let state = [Owned::f32("a", &[1]), Owned::f32("b", &[1]).task(3)];
    let region = Region::whole(&[1]);
    let answer = says([vec![(0, region.clone()), (1, region)]]);
    refused(
        &answer,
        &state,
        &["b [0:1]", "is of task 3", "has a of task 0", "(shard 0)"],
    );
}

#[test]
fn slices_that_are_no_part_of_their_piece_are_named() {
    let one = |piece, region| says([all(&[(0, 10)]), vec![(piece, region)]]);
    refused(
        &one(0, Region::new([5], [6])),
        &vector(),
        &["w [5:11]", "does not lie in the piece [0:10]", "(shard 1)"],
    );
    refused(
        &one(0, Region::new([u64::MAX], [2])),
        &vector(),
        &["does not lie in the piece"],
    );
    refused(
        &one(0, Region::new([0, 0], [1, 1])),
        &vector(),
        &["has 2 axes", "has 1"],
    );
    refused(
        &one(0, Region::new([0, 0], [1])),
        &vector(),
        &["has 1 axes"],
    );
    refused(&one(0, Region::default()), &vector(), &["has 0 axes"]);
    refused(
        &one(0, Region::new([4], [0])),
        &vector(),
        &["w [4:4]", "is an empty slice"],
    );
    refused(
        &one(7, Region::new([0], [1])),
        &vector(),
        &["no piece 7", "[0:1]", "(shard 1)", "given 1"],
    );
    refused(
        &one(usize::MAX, Region::default()),
        &vector(),
        &["more than"],
    );
    let outside = [Owned::f32("w", &[10]).part(&[4], &[3])];
    refused(
        &says([all(&[(3, 7)])]),
        &outside,
        &["w [3:7]", "does not lie in the piece [4:7]"],
    );
}

#[test]
fn ten_million_slices_for_ten_pieces_are_stopped() {
    let state: Vec<Owned> = (0..10)
        .map(|i| Owned::f32(&format!("w{i}"), &[1]))
        .collect();
    let answer = Says {
        too_many: true,
        ..Says::default()
    };
    refused(
        &answer,
        &state,
        &["more than 1000040 slices", "raise `max_slices`"],
    );
    let swaps = Says {
        swaps: true,
        ..Says::default()
    };
    refused(&swaps, &state, &["more than 1000040 slices"]);
    let limits = Limits {
        max_slices: Some(5),
        ..Limits::default()
    };
    let error = decide(&answer, &pieces(&state), limits).unwrap_err();
    assert!(story(&error).contains("more than 5 slices"));
    assert_eq!(error.kind(), ErrorKind::Invalid);
}

#[test]
fn more_files_than_anybody_can_want_are_refused_before_memory_is_taken_for_them() {
    let promises = |files| Says {
        files,
        ..says([all(&[(0, 10)])])
    };
    refused(
        &promises(u32::MAX),
        &vector(),
        &["4294967295 files per task for 1 pieces"],
    );
    let seven = decided(&promises(7), &vector()).unwrap();
    assert_eq!(seven.files_per_task, 7);
    let check = |tasks, max| seven.check_files(tasks, at_most(max));
    assert!(check(0..3, 21).is_ok() && check(5..7, 14).is_ok());
    let error = check(0..3, 20).unwrap_err();
    assert!(
        story(&error).contains("21 files, and at most 20") && story(&error).contains("`max_files`"),
        "{}",
        story(&error)
    );
    assert_eq!(error.kind(), ErrorKind::Invalid);
    // Each task may ask for so many, but not all of them.
    let many = decided(&promises(65_536), &vector()).unwrap();
    assert!(many.check_files(0..256, Limits::default()).is_ok());
    let error = many.check_files(0..4096, Limits::default()).unwrap_err();
    assert!(
        story(&error).contains("268435456 files"),
        "{}",
        story(&error)
    );
}

fn at_most(files: u64) -> Limits {
    Limits {
        max_files: Some(files),
        ..Limits::default()
    }
}

#[test]
fn files_are_counted_by_the_task_that_writes_them() {
    let state: Vec<Owned> = [0, 0, 0, 2]
        .iter()
        .enumerate()
        .map(|(i, task)| Owned::f32(&format!("w{i}"), &[1]).task(*task))
        .collect();
    let sharding = decided(&ByItem::new(), &state).unwrap();
    let check = |tasks, max| sharding.check_files(tasks, at_most(max));
    assert!(check(0..3, 4).is_ok() && check(0..3, 3).is_err());
    assert!(check(1..3, 1).is_ok() && check(1..3, 0).is_err());
    // A task of three files has more than it must have, and the two others get two each.
    let two = Sharding {
        files_per_task: 2,
        ..sharding.clone()
    };
    let check = |max| two.check_files(0..3, at_most(max));
    assert!(check(7).is_ok() && check(6).is_err());
}

#[test]
fn a_panic_is_an_error() {
    let panics = |text: &str| Says {
        panics: Some(text.into()),
        ..Says::default()
    };
    refused(
        &panics("out of luck"),
        &vector(),
        &["panicked", "out of luck"],
    );
    let error = decided(&panics("early"), &vector()).unwrap_err();
    assert!(error.to_string().contains("no words"), "{error}");
    assert_eq!(error.kind(), ErrorKind::Internal);
    refused(
        &panics("files"),
        &vector(),
        &["panicked", "nothing to count"],
    );
    let error = gathers(&panics("gathers")).unwrap_err().to_string();
    assert!(
        error.contains("hostile") && error.contains("nowhere to gather"),
        "{error}"
    );
}

#[test]
fn a_hostile_policy_within_another_is_named_too() {
    let state = vector();
    let story = |first: Box<dyn ShardingPolicy>, second: Box<dyn ShardingPolicy>| {
        story(&decided(&Then::new(first, second), &state).unwrap_err())
    };
    let bad = || -> Box<dyn ShardingPolicy> { says([vec![(7, Region::new([0], [1]))]]).into() };
    let good = || -> Box<dyn ShardingPolicy> { ShardByTask::new().into() };
    for text in [story(bad(), good()), story(good(), bad())] {
        assert!(
            text.contains("policy \"hostile\" failed: there is no piece 7"),
            "{text}"
        );
    }
    let outside = || says([vec![(0, Region::new([9], [2]))]]).into();
    assert!(
        story(outside(), good())
            .contains("policy \"hostile\" failed: w: [9:11] does not lie in the piece [0:10]")
    );
    assert!(story(good(), outside()).contains("w [9:11] does not lie in the piece [0:10]"));
    let part = says([all(&[(0, 5)])]);
    assert!(story(good(), part.into()).contains("w [5:10] of the piece [0:10] is in no shard"));
    let many = Says {
        too_many: true,
        ..Says::default()
    };
    assert!(story(good(), many.into()).contains("more than 1000004 slices"));
}

#[test]
fn pieces_that_contradict_themselves_are_refused_before_the_policy_is_asked() {
    let error = decided(
        &ShardByTask::new(),
        &[Owned::f32("w", &[2]).part(&[1], &[2])],
    )
    .unwrap_err();
    assert!(
        error
            .to_string()
            .contains("w [1:3]: the piece does not lie in shape [2]"),
        "{error}"
    );
}

#[test]
fn figures_are_those_of_the_answer() {
    let state = [
        Owned::f32("a", &[10]),
        Owned::f32("b", &[4]).part(&[0], &[2]),
        Owned::f32("b", &[4]).part(&[2], &[2]).task(1),
        Owned::strings("s", &[2], &[9, 9]).task(1),
        Owned::object("o", 5).task(1),
    ];
    let metrics = decided(&MaxShardSize::new(16), &state).unwrap().metrics;
    let wanted = PolicyMetrics {
        description: "shards of at most 16 B".into(),
        duration: metrics.duration,
        shards: 6,
        slices: 8,
        bytes: 40 + 16 + 18 + 5,
        largest: 16,
        smallest: 9,
        split_tensors: 2,
    };
    assert_eq!(metrics, wanted);
    assert_eq!(
        decided(&ShardByTask::new(), &[]).unwrap().metrics.smallest,
        0
    );
}

#[test]
fn figures_and_warnings_are_told_to_tracing() {
    let state = [Owned::f32("a", &[5]), Owned::object("o", 99)];
    let (_, told) = Events::default().of(|| decided(&MaxShardSize::new(12), &state).unwrap());
    let figures = "shards=3 slices=3 bytes=119 largest=99 smallest=8 split_tensors=1";
    assert!(
        told.contains("policy=\"shards of at most 12 B\"") && told.contains(figures),
        "{told}"
    );
    assert!(told.contains("duration_us="), "{told}");
    assert!(
        told.contains("key=\"o\" region=[] bytes=99 limit=12"),
        "{told}"
    );
}

/// Policies that never fail.
fn any_policy() -> impl Strategy<Value = Box<dyn ShardingPolicy>> {
    let leaf = (0u8..8, 1u64..100).prop_map(|(n, size)| -> Box<dyn ShardingPolicy> {
        match n {
            0 => ShardByTask::new().into(),
            1 => ShardByDevice::new().into(),
            2 => MaxShardSize::new(size).into(),
            3 => MaxShardSize::new(size).readable_by_tensorflow().into(),
            4 => ByOwner::each().into(),
            5 => Importance::new(["m1.t1", "m.s0"]).into(),
            6 => ByFiles::new(size as u32).into(),
            _ => ByItem::new().into(),
        }
    });
    leaf.prop_recursive(2, 4, 2, |inner| {
        (inner.clone(), inner).prop_map(|(a, b)| Then::new(a, b).into())
    })
}

proptest! {
    #![proptest_config(reshard_model::testkit::law(256))]
    #[test]
    fn what_a_built_in_policy_answers_is_each_element_once(state in any_state(true), policy in any_policy()) {
        let sharding = decided(&*policy, &state).unwrap();
        let given = pieces(&state);
        let mut seen: BTreeMap<(u32, Vec<u64>), u32> = BTreeMap::new();
        for shard in &sharding.shards {
            for cut in &shard.cuts {
                prop_assert_eq!(given[cut.piece as usize].task, shard.task);
                for element in cut.region.clone().blocks(1) {
                    *seen.entry((cut.piece, element.offsets.to_vec())).or_default() += 1;
                }
            }
        }
        let elements: u64 = given.iter().map(|p| p.region.volume().unwrap()).sum();
        prop_assert_eq!(seen.len() as u64, elements);
        prop_assert!(seen.values().all(|&n| n == 1));
        prop_assert_eq!(sharding.metrics.bytes, given.iter().map(|p| p.bytes).sum::<u64>());
    }

    #[test]
    fn one_task_can_be_all_in_one(state in any_state(true)) {
        let tasks = state.iter().map(|o| o.task).collect::<std::collections::BTreeSet<_>>().len();
        match decided(&AllInOne::new(), &state) {
            Ok(sharding) => prop_assert!(tasks < 2 && sharding.shards.len() == state.len().min(1)),
            Err(e) => prop_assert!(tasks > 1 && story(&e).contains("gather"), "{e}"),
        }
    }

    #[test]
    fn no_answer_makes_the_check_panic(
        answer in prop::collection::vec(prop::collection::vec(
            (0usize..4, prop::collection::vec((0u64..6, prop_oneof![0u64..6, Just(u64::MAX)]), 0..3)), 0..4,
        ), 0..4),
    ) {
        let region = |axes: Vec<(u64, u64)>| {
            Region::new(axes.iter().map(|a| a.0).collect::<Vec<_>>(), axes.iter().map(|a| a.1).collect::<Vec<_>>())
        };
        let shards = answer.into_iter().map(|s| s.into_iter().map(|(piece, axes)| (piece, region(axes))).collect());
        let state = [Owned::f32("w", &[3]), Owned::object("o", 1), Owned::strings("s", &[2, 2], &[1, 2, 3, 4])];
        decided(&says(shards.collect::<Vec<_>>()), &state).ok();
    }
}

#[test]
fn every_policy_comes_from_configuration_and_goes_back() {
    let texts = [
        r#"{"type":"shard_by_task"}"#,
        r#"{"type":"shard_by_device"}"#,
        r#"{"type":"max_shard_size","max_shard_size":500,"mode":"tensorflow","readable_by_tensorflow":true}"#,
        r#"{"type":"by_owner","owners":["a"]}"#,
        r#"{"type":"importance","keys":["a","b"]}"#,
        r#"{"type":"by_files","files":3}"#,
        r#"{"type":"by_item"}"#,
        r#"{"type":"all_in_one","gather":true}"#,
        r#"{"type":"then","first":{"type":"by_item"},"second":{"type":"shard_by_task"}}"#,
    ];
    for text in texts {
        let policy: Box<dyn ShardingPolicy> = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&policy).unwrap(), text);
        let more = format!("{}, \"colour\": 1}}", text.strip_suffix('}').unwrap());
        let error = serde_json::from_str::<Box<dyn ShardingPolicy>>(&more)
            .unwrap_err()
            .to_string();
        assert!(error.contains("colour"), "{error}");
    }
    let sizes = [r#""500 MiB""#, "524288000", r#""524.288MB""#];
    let of = |size: &str| format!(r#"{{"type":"max_shard_size","max_shard_size":{size}}}"#);
    for size in sizes {
        let policy: Box<dyn ShardingPolicy> = serde_json::from_str(&of(size)).unwrap();
        assert_eq!(policy.description(), "shards of at most 500 MiB");
    }
    assert!(serde_json::from_str::<Box<dyn ShardingPolicy>>(&of("\"500 M\"")).is_err());
}

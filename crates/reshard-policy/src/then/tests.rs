use super::*;
use crate::{
    ByItem, ByOwner, MaxShardSize, ShardByTask,
    testing::{Owned, any_state, decided, pieces, told},
};
use proptest::prelude::*;

#[test]
fn the_second_cuts_what_the_first_has_cut() {
    let state = [
        Owned::f32("t", &[10]),
        Owned::strings("s", &[4], &[3, 3, 3, 3]),
    ];
    let both = Then::new(MaxShardSize::new(32), MaxShardSize::new(12));
    assert_eq!(
        told(&MaxShardSize::new(32), &state),
        ["t[0:8]", "t[8:10] s"]
    );
    assert_eq!(
        told(&both, &state),
        ["t[0:3]", "t[3:6]", "t[6:8]", "t[8:10] s[0:1]", "s[1:4]"]
    );
}

#[test]
fn owners_survive_the_first_policy() {
    let state = [
        Owned::f32("a.x", &[2]),
        Owned::f32("b.y", &[2]),
        Owned::f32("a.z", &[2]),
    ];
    assert_eq!(
        told(&Then::new(MaxShardSize::new(100), ByOwner::each()), &state),
        ["a.x a.z", "b.y"]
    );
}

#[test]
fn a_box_out_of_configuration_can_be_composed() {
    let boxed: Box<dyn ShardingPolicy> = serde_json::from_str(r#"{"type": "by_item"}"#).unwrap();
    let both = Then::new(ShardByTask::new(), boxed);
    assert_eq!(
        told(&both, &[Owned::f32("a", &[]), Owned::f32("b", &[])]),
        ["a", "b"]
    );
}

#[test]
fn the_policy_that_fails_is_named() {
    let error = decided(
        &Then::new(ShardByTask::new(), MaxShardSize::new(0)),
        &[Owned::f32("a", &[])],
    )
    .unwrap_err();
    let source = std::error::Error::source(&error).unwrap();
    assert!(
        error
            .to_string()
            .contains("one shard per task, then shards of at most 0 B"),
        "{error}"
    );
    assert!(
        source
            .to_string()
            .contains("policy \"shards of at most 0 B\" failed"),
        "{source}"
    );
}

/// What composition means, said without [`Then`].
fn by_definition(
    first: &dyn ShardingPolicy,
    second: &dyn ShardingPolicy,
    pieces: &[Piece<'_>],
) -> Vec<Vec<Cut>> {
    let mut out = Vec::new();
    let mut shards = Shards::with_limit(100_000);
    first.shard(pieces, &mut shards).unwrap();
    for shard in shards.finish().unwrap() {
        let slices: Vec<Slice<'_>> = shard
            .iter()
            .map(|c| pieces[c.piece as usize].slice(c.region.clone()).unwrap())
            .collect();
        let inner: Vec<Piece<'_>> = slices.iter().map(Slice::piece).collect();
        let mut shards = Shards::with_limit(100_000);
        second.shard(&inner, &mut shards).unwrap();
        let back = |c: Cut| Cut {
            piece: shard[c.piece as usize].piece,
            region: c.region,
        };
        out.extend(
            shards
                .finish()
                .unwrap()
                .into_iter()
                .map(|cuts| cuts.into_iter().map(back).collect()),
        );
    }
    out
}

fn policy(number: u8, limit: u64) -> Box<dyn ShardingPolicy> {
    match number {
        0 => ByOwner::each().into(),
        1 => ByItem::new().into(),
        2 => ShardByTask::new().into(),
        _ => MaxShardSize::new(limit).into(),
    }
}

proptest! {
    #![proptest_config(reshard_model::testkit::law(256))]
    #[test]
    fn composition_equals_its_definition(
        state in any_state(true), (a, b) in (0u8..6, 0u8..6), (x, y) in (1u64..100, 1u64..100),
    ) {
        let both = Then::new(policy(a, x), policy(b, y));
        let pieces = pieces(&state);
        let wanted = by_definition(&*both.first, &*both.second, &pieces);
        let got = decided(&both, &state).unwrap();
        prop_assert_eq!(got.shards.into_iter().map(|s| s.cuts).collect::<Vec<_>>(), wanted);
    }
}

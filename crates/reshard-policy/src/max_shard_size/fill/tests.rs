use crate::{
    Content, Cut, MaxShardSize, Piece, Result, ShardingPolicy, Shards,
    testing::{Owned, any_state, decided, pieces, told},
};
use proptest::prelude::*;
use reshard_model::{DType, Region};
use std::collections::BTreeMap;

fn filled(limit: u64, owned: &[Owned]) -> Vec<String> {
    told(&MaxShardSize::new(limit), owned)
}

#[test]
fn a_vector_fills_shard_after_shard() {
    assert_eq!(filled(39, &[Owned::f32("t", &[10])]), ["t[0:9]", "t[9:10]"]);
    assert_eq!(filled(12, &[Owned::f32("t", &[4])]), ["t[0:3]", "t[3:4]"]);
    assert_eq!(filled(40, &[Owned::f32("t", &[10])]), ["t"]);
}

#[test]
fn forty_gigabytes_in_half_gibibytes_are_77_slices() {
    let table = Owned::f32("t", &[10_000_000_000]);
    let sharding = decided(&MaxShardSize::new(500 << 20), &[table]).unwrap();
    assert_eq!((sharding.metrics.shards, sharding.metrics.slices), (77, 77));
}

#[test]
fn cuts_lie_between_rows_where_there_is_room_for_that() {
    // 1,200 bytes need three shards of 500, which leaves 300 bytes free.
    assert_eq!(
        filled(500, &[Owned::f32("t", &[6, 50])]),
        ["t[0:2, 0:50]", "t[2:4, 0:50]", "t[4:6, 0:50]"]
    );
}

#[test]
fn rows_that_do_not_fit_are_cut_as_well() {
    // Where one axis does not suffice, TensorFlow never returns.
    let shards = filled(399, &[Owned::f32("t", &[100, 100])]);
    assert_eq!(shards.len(), 102);
    assert_eq!(shards[0], "t[0:1, 0:99]");
    assert_eq!(shards[1], "t[0:1, 99:100] t[1:2, 0:98]");
    let cube = Owned::tensor("t", DType::Float64, &[3, 4, 5]);
    let sharding = decided(&MaxShardSize::new(95), &[cube]).unwrap();
    assert!(
        sharding.metrics.largest <= 95 && sharding.metrics.shards == 6,
        "{:?}",
        sharding.metrics
    );
}

#[test]
fn a_tensor_that_need_not_be_cut_is_whole() {
    let state = [
        Owned::f32("a", &[25]),
        Owned::f32("b", &[110]),
        Owned::f32("c", &[10]),
    ];
    assert_eq!(filled(500, &state), ["a", "b c"]);
    // 800 bytes are 2 shards of 500, and the first has to take 300 of them.
    let state = [
        Owned::f32("a", &[25]),
        Owned::f32("b", &[110]),
        Owned::f32("c", &[65]),
    ];
    assert_eq!(filled(500, &state), ["a b[0:100]", "b[100:110] c"]);
}

#[test]
fn tensors_without_elements_are_kept() {
    let state = [
        Owned::f32("none", &[3, 0]),
        Owned::f32("t", &[2]),
        Owned::f32("nothing", &[0]),
    ];
    assert_eq!(filled(4, &state), ["none t[0:1]", "t[1:2] nothing"]);
    assert_eq!(filled(4, &state[..1]), ["none"]);
}

#[test]
fn strings_of_any_shape_are_cut_by_their_real_lengths() {
    assert_eq!(
        filled(7, &[Owned::strings("s", &[3], &[1, 2, 5])]),
        ["s[0:2]", "s[2:3]"]
    );
    assert_eq!(filled(100, &[Owned::strings("s", &[2, 2], &[1; 4])]), ["s"]);
    assert_eq!(
        filled(3, &[Owned::strings("s", &[2, 2], &[1; 4])]),
        ["s[0:1, 0:2]", "s[1:2, 0:2]"]
    );
    assert_eq!(filled(3, &[Owned::strings("s", &[0], &[])]), ["s"]);
    assert_eq!(filled(3, &[Owned::strings("s", &[2], &[0, 0])]), ["s"]);
}

#[test]
fn an_element_above_the_limit_is_a_shard_of_its_own_behind_the_others() {
    let strings = Owned::strings("s", &[4], &[1, 9, 2, 9]);
    let state = [
        Owned::object("o", 30),
        strings,
        Owned::tensor("z", DType::Complex128, &[]),
        Owned::f32("t", &[1]),
    ];
    assert_eq!(
        filled(8, &state),
        ["s[0:1] s[2:3] t", "o", "s[1:2]", "s[3:4]", "z"]
    );
    assert_eq!(
        filled(3, &[Owned::f32("t", &[2, 1])]),
        ["t[0:1, 0:1]", "t[1:2, 0:1]"]
    );
}

#[test]
fn each_slice_takes_its_overhead_from_the_room_of_a_file() {
    // A file of 99 bytes has 89 for slices, each with 10 more than its elements.
    let table = |key| Owned::f32(key, &[5, 4]).overhead(10, 10);
    assert_eq!(
        filled(99, &[table("t")]),
        ["t[0:4, 0:4]", "t[4:5, 0:4]"],
        "the tensor would take 90 bytes"
    );
    let vectors = ["a", "b", "c"].map(|key| Owned::f32(key, &[5]).overhead(15, 10));
    assert_eq!(filled(100, &vectors), ["a b", "c"]);
    // Elements that leave no room for overhead are alone.
    let tight = Owned::f32("t", &[2]).overhead(95, 0);
    assert_eq!(filled(98, &[tight]), ["t[0:1]", "t[1:2]"]);
}

#[test]
fn whole_tensors_are_not_cut() {
    let state = [
        Owned::f32("a", &[10]).whole(),
        Owned::f32("b", &[30]).whole(),
        Owned::f32("c", &[15]),
        Owned::f32("d", &[10]).whole().overhead(61, 0),
    ];
    assert_eq!(filled(100, &state), ["a c", "b", "d"]);
    let cut = |policy: &dyn ShardingPolicy| decided(policy, &state).unwrap_err().to_string();
    let e = cut(&Halves);
    assert!(
        e.contains("a [0:5]") && e.contains("stores this tensor only whole"),
        "{e}"
    );
}

/// Cuts everything into halves.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
struct Halves;

#[typetag::serde(name = "halves_of_whole_tensors")]
impl ShardingPolicy for Halves {
    fn description(&self) -> String {
        "halves".into()
    }

    fn shard(&self, pieces: &[Piece<'_>], out: &mut Shards) -> Result<()> {
        for (number, piece) in pieces.iter().enumerate() {
            let count = piece.region.volume().unwrap();
            for part in [0..count / 2, count / 2..count] {
                for region in piece.region.boxes(part) {
                    out.push(number, region)?;
                }
            }
        }
        Ok(())
    }
}

#[test]
fn objects_come_first_and_elements_fill_what_they_leave_free() {
    let state = [
        Owned::f32("t", &[10]),
        Owned::object("a", 50),
        Owned::object("b", 60),
    ];
    assert_eq!(filled(100, &state), ["a", "b t"]);
    let state = [Owned::f32("t", &[100]), Owned::object("a", 50)];
    assert_eq!(
        filled(100, &state),
        ["a", "t[0:25]", "t[25:50]", "t[50:75]", "t[75:100]"]
    );
    let state = [Owned::f32("t", &[101]), Owned::object("a", 50)];
    assert_eq!(
        filled(100, &state),
        ["a t[0:12]", "t[12:37]", "t[37:62]", "t[62:87]", "t[87:101]"]
    );
}

#[test]
fn each_task_fills_shards_of_its_own() {
    let state = [
        Owned::f32("a", &[2]),
        Owned::f32("b", &[2]).task(1),
        Owned::f32("c", &[4]).task(1),
    ];
    assert_eq!(filled(24, &state), ["a", "b c"]);
    assert_eq!(filled(12, &state), ["a", "b c[0:1]", "c[1:4]"]);
}

#[test]
fn what_is_a_part_already_keeps_its_place() {
    let part = Owned::f32("t", &[10, 10]).part(&[2, 3], &[5, 4]);
    assert_eq!(
        filled(32, &[part]),
        ["t[2:4, 3:7]", "t[4:6, 3:7]", "t[6:7, 3:7]"]
    );
}

#[test]
fn a_limit_of_nothing_is_refused() {
    let error = decided(&MaxShardSize::new(0), &[]).unwrap_err();
    assert!(
        std::error::Error::source(&error)
            .unwrap()
            .to_string()
            .contains("max_shard_size is 0")
    );
}

#[test]
fn types_that_tensorflow_cannot_put_together_are_whole_when_it_is_to_read_them() {
    let half = Owned::tensor("h", DType::Float16, &[6]);
    let state = [
        half,
        Owned::f32("f", &[2]),
        Owned::strings("s", &[2], &[4, 4]),
    ];
    for policy in [MaxShardSize::new(8), MaxShardSize::tensorflow(8)] {
        assert_eq!(
            told(&policy.readable_by_tensorflow(), &state),
            ["f", "s", "h"]
        );
    }
    assert_eq!(
        filled(8, &state),
        ["h[0:4]", "h[4:6] f[0:1]", "f[1:2] s[0:1]", "s[1:2]"]
    );
}

/// Sizes of the elements of one task, objects first, without those above the limit.
fn sizes(owned: &[&Owned], limit: u64) -> Vec<u64> {
    let objects = |of: bool| {
        owned
            .iter()
            .map(|o| o.piece())
            .filter(move |p| (p.content == Content::Object) == of)
    };
    objects(true)
        .chain(objects(false))
        .flat_map(|p| match p.content {
            Content::Tensor(d) => vec![d.size(); p.region.volume().unwrap() as usize],
            Content::Strings(lengths) => lengths.to_vec(),
            Content::Object => vec![p.bytes],
        })
        .filter(|&n| n <= limit)
        .collect()
}

/// What the law says of one task.
fn most_shards(sizes: &[u64], limit: u64) -> u64 {
    let largest = sizes.iter().copied().max().unwrap_or(0);
    sizes.iter().sum::<u64>().div_ceil(limit - largest + 1) + 1
}

/// Shards when each takes element after element as long as they fit.
fn fewest_shards(sizes: &[u64], limit: u64) -> u64 {
    let (mut shards, mut room) = (1, limit);
    for &size in sizes {
        if size > room {
            (shards, room) = (shards + 1, limit);
        }
        room -= size;
    }
    shards
}

/// Cuts of these tensors, in elements, when there are no more shards of so many elements than needed.
fn fewest_cuts(counts: &[u64], each: usize) -> usize {
    let of: Vec<usize> = (0..)
        .zip(counts)
        .flat_map(|(i, &n)| vec![i; n as usize])
        .collect();
    let mut best = vec![None; of.len() + 1];
    best[0] = Some(0);
    for _ in 0..of.len().div_ceil(each) {
        let to = |p: usize| {
            let from = (p.saturating_sub(each)..=p).filter_map(|q| {
                Some(best[q]? + usize::from(q > 0 && q < of.len() && of[q - 1] == of[q]))
            });
            from.min()
        };
        best = (0..=of.len()).map(to).collect();
    }
    best[of.len()].unwrap()
}

proptest! {
    #![proptest_config(reshard_model::testkit::law(1000))]

    #[test]
    fn no_more_is_cut_than_has_to_be(
        counts in prop::collection::vec(0u64..10, 0..9), each in 1u64..16, over in 0u64..4, object in prop::option::of(0u64..30),
    ) {
        let mut state: Vec<Owned> =
            counts.iter().enumerate().map(|(i, &n)| Owned::f32(&format!("t{i}"), &[n])).collect();
        let mut all = counts.clone();
        if let Some(n) = object {
            let n = n.min(each);
            state.push(Owned::object("o", 4 * n));
            // It comes first, and is never worth a cut.
            all.insert(0, n);
        }
        let sharding = decided(&MaxShardSize::new(4 * each + over), &state).unwrap();
        let slices = sharding.shards.iter().flat_map(|s| &s.cuts).filter(|c| !c.region.is_empty() && c.region.ndim() > 0);
        let tensors = counts.iter().filter(|&&n| n > 0).count();
        prop_assert_eq!(slices.count() - tensors, fewest_cuts(&all, each as usize));
    }

    #[test]
    fn no_shard_is_larger_than_the_limit_unless_one_element_is(state in any_state(true), limit in 1u64..200) {
        let sharding = decided(&MaxShardSize::new(limit), &state).unwrap();
        let pieces = pieces(&state);
        for shard in &sharding.shards {
            let bytes: u64 = shard.cuts.iter().map(|c| pieces[c.piece as usize].bytes_of(&c.region).unwrap()).sum();
            let one = shard.cuts.len() == 1 && shard.cuts[0].region.volume() == Some(1);
            prop_assert!(bytes <= limit || one, "{bytes} bytes in {shard:?}");
        }
    }

    #[test]
    fn the_overhead_of_slices_and_files_counts(
        mut state in any_state(true), limit in 1u64..400, wholes in any::<u16>(), slice in 0u64..60, file in 0u64..60,
    ) {
        for (n, owned) in state.iter_mut().enumerate() {
            *owned = owned.clone().overhead(slice * (n as u64 % 3), file);
            if wholes >> n & 1 == 1 {
                *owned = owned.clone().whole();
            }
        }
        let sharding = decided(&MaxShardSize::new(limit), &state).unwrap();
        let pieces = pieces(&state);
        for shard in &sharding.shards {
            let bytes = |c: &Cut| pieces[c.piece as usize].bytes_of(&c.region).unwrap() + state[c.piece as usize].overhead.slice;
            let bytes = file + shard.cuts.iter().map(bytes).sum::<u64>();
            let whole = |c: &Cut| c.region.volume().is_some_and(|n| n <= 1) || pieces[c.piece as usize].whole;
            let one = shard.cuts.len() == 1 && whole(&shard.cuts[0]);
            prop_assert!(bytes <= limit || one, "{bytes} bytes in {shard:?}");
        }
    }

    #[test]
    fn there_are_not_more_shards_than_the_law_says(state in any_state(true), limit in 1u64..200) {
        let sharding = decided(&MaxShardSize::new(limit), &state).unwrap();
        let pieces = pieces(&state);
        let mut tasks: BTreeMap<u32, (u64, Vec<&Owned>)> = BTreeMap::new();
        for owned in &state {
            tasks.entry(owned.task).or_default().1.push(owned);
        }
        for shard in &sharding.shards {
            let bytes: u64 = shard.cuts.iter().map(|c| pieces[c.piece as usize].bytes_of(&c.region).unwrap()).sum();
            tasks.entry(shard.task).or_default().0 += u64::from(bytes <= limit);
        }
        for (task, (shards, owned)) in tasks {
            let sizes = sizes(&owned, limit);
            let (fewest, most) = (fewest_shards(&sizes, limit), most_shards(&sizes, limit));
            prop_assert!(shards <= most, "task {task}: {shards} shards, {most} allowed");
            prop_assert!(shards <= fewest, "task {task}: {shards} shards, {fewest} would do");
        }
    }

    #[test]
    fn elements_of_one_size_take_as_few_shards_as_can_be(shape in prop::collection::vec(1u64..9, 0..4), limit in 4u64..300) {
        let tensor = Owned::f32("t", &shape);
        let bytes = tensor.piece().bytes;
        let sharding = decided(&MaxShardSize::new(limit), std::slice::from_ref(&tensor)).unwrap();
        prop_assert_eq!(sharding.metrics.shards, bytes.div_ceil(limit / 4 * 4));
        let slices = sharding.shards.iter().flat_map(|s| &s.cuts);
        for cut in slices {
            let ragged = |r: &Region| (0..r.ndim()).skip_while(|&a| r.lengths[a] == 1).skip(1).any(|a| r.lengths[a] != shape[a]);
            prop_assert!(!ragged(&cut.region), "{} is not contiguous", cut.region);
        }
    }
}

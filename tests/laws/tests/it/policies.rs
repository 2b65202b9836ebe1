//! Sharding policies in whole saves: whatever a policy answers that holds is loaded back; whatever does not hold is an error on
//! every rank and leaves no checkpoint.

use futures::executor::block_on;
use proptest::prelude::*;
use reshard::{
    Data, Dialect, ErrorKind, OpenOptions, Region, Save, SaveReport, ShardedTensor, StateDict,
    Tensor,
    model::{BoxError, Dims, TensorSource},
    plan::{DefaultSavePlanner, PlanError, SavePlanner, WriteData, WriteItem},
    policy::{
        AllInOne, ByFiles, ByItem, ByOwner, Importance, MaxShardSize, Piece, PolicyError,
        ShardByDevice, ShardingPolicy, Shards, Then,
    },
    safetensors::SafetensorsConfig,
    torch_dist::TorchDistConfig,
};
use reshard_laws::{
    contents::{Choices, Contents, choices, contents},
    law,
    place::{Place, stores},
    ranks::{disagreed, group, load, save, told, try_save},
};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeSet, sync::Arc};

/// Cuts pieces anywhere, and puts the parts into files in any order: a policy of a third party.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Chop {
    numbers: Vec<u32>,
    gather: bool,
}

#[typetag::serde(name = "laws_chop")]
impl ShardingPolicy for Chop {
    fn description(&self) -> String {
        "anything that holds".into()
    }

    fn shard(&self, pieces: &[Piece<'_>], out: &mut Shards) -> reshard::policy::Result<()> {
        let mut choices = Choices::of(self.numbers.clone());
        for of_task in chunks_by_task(pieces) {
            let mut files: Vec<Vec<(usize, Region)>> =
                vec![Vec::new(); 1 + choices.below(4) as usize];
            for i in of_task {
                let mut parts = vec![pieces[i].region.clone()];
                for _ in 0..choices.below(5) {
                    let at = choices.below(parts.len() as u64) as usize;
                    let part = parts.swap_remove(at);
                    parts.extend(halves(&part, &mut choices));
                }
                for part in parts {
                    let file = choices.below(files.len() as u64) as usize;
                    files[file].push((i, part));
                }
            }
            for file in files {
                out.start();
                for (i, part) in file {
                    out.push(i, part)?;
                }
            }
        }
        Ok(())
    }

    fn gathers(&self) -> bool {
        self.gather
    }
}

fn chunks_by_task(pieces: &[Piece<'_>]) -> Vec<std::ops::Range<usize>> {
    let mut at = 0;
    let runs = pieces.chunk_by(|a, b| a.task == b.task).map(|run| {
        at += run.len();
        at - run.len()..at
    });
    runs.collect()
}

fn halves(part: &Region, choices: &mut Choices) -> Vec<Region> {
    let axes: Vec<usize> = (0..part.ndim()).filter(|&a| part.lengths[a] > 1).collect();
    let Some(&axis) = axes.get(choices.below(axes.len() as u64) as usize) else {
        return vec![part.clone()];
    };
    let at = 1 + choices.below(part.lengths[axis] - 1);
    let (mut a, mut b) = (part.clone(), part.clone());
    a.lengths[axis] = at;
    b.offsets[axis] += at;
    b.lengths[axis] -= at;
    vec![a, b]
}

#[derive(Clone, Debug)]
enum Choice {
    Chop(Chop),
    Files(u32),
    Items,
    Devices,
    Size(u64),
    PerOwner(u64),
    All,
    Chosen,
}

impl Choice {
    fn set<'a>(&self, save: Save<'a>) -> Save<'a> {
        match self {
            Self::Chop(p) => save.policy(p.clone()),
            Self::Files(n) => save.policy(ByFiles::new(*n)),
            Self::Items => save.policy(ByItem::new()),
            Self::Devices => save.policy(ShardByDevice::new()),
            Self::Size(n) => save.policy(MaxShardSize::new(*n)),
            Self::PerOwner(n) => save.policy(Then::new(ByOwner::each(), MaxShardSize::new(*n))),
            Self::All => save.policy(AllInOne::new().gather()),
            Self::Chosen => save.policy(Importance::new(["layers.1.weight", "layers.0.weight"])),
        }
    }
}

fn choice() -> impl Strategy<Value = Choice> {
    let chop = (
        prop::collection::vec(any::<u32>(), 24),
        prop::bool::weighted(0.3),
    )
        .prop_map(|(numbers, gather)| Choice::Chop(Chop { numbers, gather }));
    // Worlds have tensors of some KiB, and a file with an element has more than one.
    let size = 1_500u64..8_000;
    prop_oneof![
        4 => chop,
        1 => (1u32..5).prop_map(Choice::Files),
        1 => Just(Choice::Items),
        1 => Just(Choice::Devices),
        3 => size.clone().prop_map(Choice::Size),
        2 => size.prop_map(Choice::PerOwner),
        2 => Just(Choice::All),
        1 => Just(Choice::Chosen),
    ]
}

proptest! {
    #![proptest_config(law(64))]

    #[test]
    fn whatever_a_policy_answers_that_holds_is_loaded_back(
        contents in contents(), n in 1u32..5, m in 1u32..4, mut choices in choices(), choice in choice(),
        dialect in prop_oneof![Just(Dialect::Megatron), Just(Dialect::Dcp)],
    ) {
        let place = Place::new();
        let states = contents.states(&contents.cut(n, &mut choices), &mut choices);
        let chosen = choice.clone();
        let saved = save(group(n), states, place.url(), move |_, save| chosen.set(save).dialect(dialect));
        let saved: Vec<SaveReport> = saved.into_iter().map(|o| o.unwrap()).collect();
        let told = saved[0].policy.clone().unwrap();
        let items: u64 = saved[0].ranks.iter().map(|r| r.items).sum();
        prop_assert_eq!(told.slices, items);
        if matches!(choice, Choice::All | Choice::Chop(Chop { gather: true, .. })) {
            prop_assert!(saved[0].ranks[1..].iter().all(|r| r.items == 0));
        }

        let opened = block_on(OpenOptions::new().stores(stores()).open(place.url())).unwrap();
        let report = block_on(opened.verify(true, Default::default())).unwrap();
        prop_assert!(report.damage.is_empty() && report.unchecked.is_empty(), "{:?}", report);
        let stored = opened.metadata().chunk_count() + opened.metadata().object_count();
        prop_assert_eq!(stored as u64, items);
        prop_assert_eq!(block_on(opened.sidecar()).0.unwrap().policy, Some(told.description));

        let cut = contents.cut(m, &mut choices);
        let (templates, watches): (Vec<_>, Vec<_>) =
            (0..m).map(|r| contents.template(&cut, r, n, dialect, &mut choices)).unzip();
        for (r, outcome) in (0..).zip(load(group(m), templates, place.url(), |_, load| load)) {
            contents.check(&cut, r, n, &outcome.unwrap().0);
        }
        watches.iter().for_each(|w| w.check_filled());
    }
}

/// What a hostile policy does.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum Hostile {
    Drop,
    Hole,
    Crumb,
    Twice,
    Overlap,
    Outside,
    Mix,
    Panic,
    Flood,
    WrongPiece,
    Errs,
    Speechless,
    Hoards,
    Clings,
}

impl Hostile {
    /// With what its error has to say.
    const ALL: [(Self, &str); 14] = [
        (Self::Drop, "table"),
        (Self::Hole, "of the piece"),
        (Self::Crumb, "of the piece"),
        (Self::Twice, "table"),
        (Self::Overlap, "table"),
        (Self::Outside, "table"),
        (Self::Mix, "table"),
        (Self::Panic, "I am hostile"),
        (Self::Flood, "slices"),
        (Self::WrongPiece, "piece"),
        (Self::Errs, "not today"),
        (Self::Speechless, "nothing to say"),
        (Self::Hoards, "4294967295 files per task"),
        (Self::Clings, "mine"),
    ];

    /// What it places of a piece: all, but for those who leave out rows of the first one, or one element.
    fn parts(self, piece: usize, region: &Region) -> Vec<Region> {
        let of = |offsets: [u64; 2], lengths: [u64; 2]| {
            let offsets: Vec<u64> = region
                .offsets
                .iter()
                .zip(offsets)
                .map(|(o, by)| o + by)
                .collect();
            Region::new(offsets, lengths)
        };
        match self {
            Self::Hole if piece == 0 => vec![of([0, 0], [1, 2]), of([3, 0], [1, 2])],
            Self::Crumb if piece == 0 => vec![of([0, 0], [4, 1]), of([0, 1], [3, 1])],
            _ => vec![region.clone()],
        }
    }
}

#[typetag::serde(name = "laws_hostile")]
impl ShardingPolicy for Hostile {
    #[expect(clippy::panic, reason = "that is what it is for")]
    fn description(&self) -> String {
        if matches!(self, Self::Speechless) {
            panic!("nothing to say");
        }
        "of no good will".into()
    }

    #[expect(clippy::panic, reason = "that is what it is for")]
    fn shard(&self, pieces: &[Piece<'_>], out: &mut Shards) -> reshard::policy::Result<()> {
        for (i, p) in pieces
            .iter()
            .enumerate()
            .skip(usize::from(matches!(self, Self::Drop)))
        {
            if i == 0 || !matches!(self, Self::Mix) && pieces[i - 1].task != p.task {
                out.start();
            }
            for part in self.parts(i, p.region) {
                out.push(i, part)?;
            }
        }
        out.start();
        let first: Region = pieces[0].region.clone();
        match self {
            Self::Drop
            | Self::Hole
            | Self::Crumb
            | Self::Mix
            | Self::Speechless
            | Self::Hoards
            | Self::Clings => {}
            Self::Twice => out.push(0, first)?,
            Self::Overlap => out.push(
                0,
                Region {
                    lengths: vec![1; 2].into(),
                    ..first
                },
            )?,
            Self::Outside => out.push(0, Region::new([40, 0], [1, 2]))?,
            Self::Panic => panic!("I am hostile"),
            Self::Flood => (0..10_000_000).try_for_each(|_| out.push(0, first.clone()))?,
            Self::WrongPiece => out.push(pieces.len(), first)?,
            Self::Errs => return Err(PolicyError::invalid("not today")),
        }
        Ok(())
    }

    #[expect(clippy::panic, reason = "that is what it is for")]
    fn gathers(&self) -> bool {
        if matches!(self, Self::Clings) {
            panic!("mine");
        }
        false
    }

    fn files_per_task(&self) -> u32 {
        if matches!(self, Self::Hoards) {
            u32::MAX
        } else {
            0
        }
    }
}

/// A table in rows over `ranks`, and one more tensor a rank.
fn tables(ranks: u64) -> Vec<StateDict> {
    let rank = |r| {
        let rows = Tensor::from_vec(&[4, 2], (0..8).map(|i| (r * 8 + i) as f32).collect()).unwrap();
        let mut state = StateDict::new();
        state.insert(
            "table",
            ShardedTensor::from_rank_offsets("table", rows, &[(0, r, ranks)]).unwrap(),
        );
        let own = Tensor::from_vec(&[3], vec![r as u8; 3]).unwrap();
        state.insert("own", ShardedTensor::full(&format!("own.{r}"), own));
        state
    };
    (0..ranks).map(rank).collect()
}

#[test]
fn a_hostile_policy_is_an_error_on_every_rank_and_leaves_no_checkpoint() {
    for (hostile, says) in Hostile::ALL {
        for coordinator in [0, 2] {
            let place = Place::new();
            let outcomes = try_save(group(3), tables(3), place.url(), move |_, save| {
                save.policy(hostile).coordinator(reshard::Rank(coordinator))
            });
            let outcomes: Vec<_> = outcomes.into_iter().map(|o| o.unwrap()).collect();
            let (step, causes) = told(outcomes.iter().map(|o| o.as_ref().err()));
            // Every rank asks it for its description, only the coordinator for the rest.
            let speechless = matches!(hostile, Hostile::Speechless);
            assert_eq!(
                (step, causes.len()),
                ("plan", if speechless { 3 } else { 1 }),
                "{hostile:?}"
            );
            let cause = &causes[&coordinator];
            assert!(cause.contains(says), "{hostile:?}: {cause}");
            assert!(
                speechless || cause.contains("of no good will"),
                "{hostile:?} is not named: {cause}"
            );
            assert!(
                place.files().is_empty() && place.leftovers() == 0,
                "{hostile:?} left something"
            );
        }
    }
}

#[test]
fn a_policy_says_whether_everything_comes_to_the_coordinator_and_all_ranks_have_the_same() {
    let chop = |gather| Chop {
        numbers: vec![3, 1, 4],
        gather,
    };
    for gathers in [false, true] {
        let place = Place::new();
        let saved = save(group(3), tables(3), place.url(), move |_, s| {
            s.policy(chop(gathers))
        });
        let saved: Vec<SaveReport> = saved.into_iter().map(|o| o.unwrap()).collect();
        assert_eq!(saved[0].ranks[1..].iter().all(|r| r.items == 0), gathers);
        let saved = save(group(3), tables(3), Place::new().url(), move |rank, s| {
            s.policy(chop((rank.0 == 0) == gathers))
        });
        let what = disagreed(saved.iter().map(|o| o.as_ref().err()));
        assert!(what.contains("`policy`: "), "{what}");
    }
}

#[test]
fn ranks_with_different_policies_are_told_so() {
    let place = Place::new();
    let outcomes = try_save(group(3), tables(3), place.url(), |rank, save| {
        match rank.0 {
            2 => save,
            _ => save.policy(ByFiles::new(2)),
        }
    });
    let outcomes: Vec<_> = outcomes.into_iter().map(|o| o.unwrap()).collect();
    let what = disagreed(outcomes.iter().map(|o| o.as_ref().err()));
    let line =
        "`policy`: ranks 0, 1 have {\"type\":\"by_files\",\"files\":2}, rank 2 has the default";
    assert!(what.contains(line), "{what}");
}

#[test]
fn a_policy_and_settings_of_files_exclude_each_other() {
    let place = Place::new();
    let config = || TorchDistConfig::new().with_files_per_rank(2);
    let saved = save(group(1), tables(1), place.url(), move |_, s| {
        s.policy(ByItem::new()).strategy(config())
    });
    let error = saved[0].as_ref().unwrap_err().to_string();
    assert!(
        error.contains("2 files per task") && error.contains("one file for each item"),
        "{error}"
    );
}

#[test]
fn a_format_that_takes_no_policy_says_so() {
    let place = Place::new();
    let saved = save(group(1), tables(1), place.url(), |_, s| {
        let files_of_ranks = SafetensorsConfig::default().with_sharded(true);
        let save = s.policy(ByItem::new()).strategy(files_of_ranks);
        save.dialect(Dialect::TensorsOnly)
    });
    let error = saved[0].as_ref().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("sharding policy"), "{error}");
}

/// The RFC's scenario of changed values: a planner's transform, element by element as parts are written. Policies place, and
/// never see a value.
#[derive(Debug)]
struct Normalize;

impl SavePlanner for Normalize {
    fn transform_object(&self, item: &WriteItem, data: WriteData) -> Result<WriteData, PlanError> {
        let data = match self.base().transform_object(item, data)? {
            WriteData::Tensor(data) => data,
            object => return Ok(object),
        };
        let Some((shape, values)) = data
            .host()
            .and_then(|t| Some((t.shape().clone(), t.to_vec::<f32>().ok()?)))
        else {
            return Ok(WriteData::Tensor(data));
        };
        let halved = Tensor::from_vec(&shape, values.into_iter().map(|x| x / 2.).collect())?;
        Ok(WriteData::Tensor(halved.into()))
    }

    fn base(&self) -> &dyn SavePlanner {
        &DefaultSavePlanner::DEFAULT
    }
}

#[test]
fn values_are_changed_by_a_planner_once_however_they_are_cut_and_moved() {
    for gather in [false, true] {
        let place = Place::new();
        let chop = Chop {
            numbers: vec![3, 1, 4, 1, 5, 9, 2, 6],
            gather,
        };
        let saved = save(group(3), tables(3), place.url(), move |_, save| {
            save.planner(Normalize).policy(chop.clone())
        });
        saved.into_iter().for_each(|o| drop(o.unwrap()));
        let opened = block_on(OpenOptions::new().stores(stores()).open(place.url())).unwrap();
        let table = block_on(opened.tensor("table").unwrap().read(..))
            .unwrap()
            .to_vec::<f32>()
            .unwrap();
        assert_eq!(table, (0..24).map(|i| i as f32 / 2.).collect::<Vec<_>>());
    }
}

#[test]
fn each_rank_of_a_rank_local_save_places_its_own() {
    let place = Place::new();
    let saved = save(group(3), tables(3), place.url(), |_, s| {
        s.rank_local(true).policy(ByItem::new())
    });
    saved
        .into_iter()
        .for_each(|o| assert_eq!(o.unwrap().policy.unwrap().shards, 2));
    let names: BTreeSet<String> = place.files().keys().map(|n| n.to_string()).collect();
    for r in 0..3 {
        assert!(
            names.contains(&format!("__{r}_0.distcp"))
                && names.contains(&format!("__{r}_1.distcp"))
        );
    }
}

#[test]
fn a_state_without_leaves_has_nothing_to_place() {
    let place = Place::new();
    let states = Contents {
        tensors: Vec::new(),
        objects: false,
        extra: reshard::Value::None,
    };
    let cut = states.rows(2);
    let states = states.states(&cut, &mut Choices::of([0]));
    let saved = save(group(2), states, place.url(), |_, s| {
        s.policy(Chop {
            numbers: vec![0],
            gather: true,
        })
    });
    let saved: Vec<_> = saved.into_iter().map(|o| o.unwrap()).collect();
    assert_eq!(saved[0].policy.as_ref().map(|p| p.shards), Some(0));
}

#[test]
fn who_loads_only_the_important_keys_opens_only_their_files() {
    let dir = tempfile::tempdir().unwrap();
    let url = dir.path().join("ckpt").display().to_string();
    let saved = save(group(2), tables(2), &url, |_, s| {
        s.policy(Importance::new(["table"]))
    });
    saved.into_iter().for_each(|o| drop(o.unwrap()));
    let opened = block_on(OpenOptions::new().open(&url)).unwrap();
    let of = |key: &str| -> BTreeSet<String> {
        opened
            .tensor(key)
            .unwrap()
            .chunks()
            .iter()
            .map(|c| c.parts[0].file.to_string())
            .collect()
    };
    assert_eq!(
        of("table"),
        ["__0_0.distcp", "__1_0.distcp"].map(String::from).into()
    );
    assert_eq!(of("own.1"), ["__1_1.distcp"].map(String::from).into());
    for name in ["__0_1.distcp", "__1_1.distcp"] {
        std::fs::remove_file(dir.path().join("ckpt").join(name)).unwrap();
    }
    let mut template = StateDict::new();
    template.insert(
        "table",
        ShardedTensor::template("table", reshard::DType::Float32, &[8, 2]),
    );
    let loaded = load(group(1), vec![template], &url, |_, l| l);
    let (plain, _) = loaded.into_iter().next().unwrap().unwrap();
    let table = plain
        .tensor("table")
        .and_then(Tensor::to_vec::<f32>)
        .unwrap();
    assert_eq!(table, (0..16).map(|i| i as f32).collect::<Vec<_>>());
}

#[test]
fn owners_are_told_by_place_and_by_tag() {
    let leaf = |key: &str| {
        let t = Tensor::from_vec(&[2], vec![1i8, 2]).unwrap();
        ShardedTensor::full(key, t)
    };
    let mut state = StateDict::new();
    let mut critic = StateDict::new();
    critic.insert("w", leaf("critic.w"));
    state.insert_tree("critic", critic);
    state.insert("generator.layers.0.w", leaf("generator.layers.0.w")); // a flat dict
    state.insert("mean", leaf("mean").with_tag("statistics"));
    state.insert("other", leaf("other"));
    let place = Place::new();
    let policy = || ByOwner::new(["statistics", "critic", "generator"]);
    let saved = save(group(1), vec![state], place.url(), move |_, s| {
        s.policy(policy())
    });
    saved.into_iter().for_each(|o| drop(o.unwrap()));
    let opened = block_on(OpenOptions::new().stores(stores()).open(place.url())).unwrap();
    let file = |key: &str| {
        opened.tensor(key).unwrap().chunks()[0].parts[0]
            .file
            .to_string()
    };
    let files = ["mean", "critic.w", "generator.layers.0.w", "other"].map(file);
    assert_eq!(
        files,
        [
            "__0_0.distcp",
            "__0_1.distcp",
            "__0_2.distcp",
            "__0_3.distcp"
        ]
    );
}

#[test]
fn one_file_for_several_ranks_is_refused_unless_gathered() {
    let place = Place::new();
    let outcomes = try_save(group(3), tables(3), place.url(), |_, save| {
        save.policy(AllInOne::new())
    });
    let outcomes: Vec<_> = outcomes.into_iter().map(|o| o.unwrap()).collect();
    let (_, causes) = told(outcomes.iter().map(|o| o.as_ref().err()));
    assert!(causes[&0].contains("gather"), "{causes:?}");
    let policy = || AllInOne::new().gather();
    let saved = save(group(3), tables(3), place.url(), move |_, s| {
        s.policy(policy()).coordinator(reshard::Rank(1))
    });
    saved.into_iter().for_each(|o| drop(o.unwrap()));
    let names: Vec<String> = place
        .files()
        .keys()
        .map(|n| n.to_string())
        .filter(|n| n.ends_with("distcp"))
        .collect();
    assert_eq!(names, ["__1_0.distcp"]);
}

/// Never read.
struct Vast;

impl TensorSource for Vast {
    fn dtype(&self) -> reshard::DType {
        reshard::DType::UInt8
    }

    fn shape(&self) -> Dims {
        [1 << 60].into()
    }

    fn read(&self, _: &Region, _: &mut [u8]) -> Result<(), BoxError> {
        Err("nobody has room for that".into())
    }
}

#[test]
fn what_no_memory_can_hold_is_gathered_piece_by_piece() {
    let place = Place::new();
    let mut states = tables(2);
    let vast = ShardedTensor::template("vast", reshard::DType::UInt8, &[1 << 60]);
    states[1].insert(
        "vast",
        ShardedTensor {
            data: Data::Lazy(Arc::new(Vast)),
            ..vast
        },
    );
    let outcomes = try_save(group(2), states, place.url(), |_, save| {
        save.policy(AllInOne::new().gather())
    });
    let outcomes: Vec<_> = outcomes.into_iter().map(|o| o.unwrap()).collect();
    let (step, causes) = told(outcomes.iter().map(|o| o.as_ref().err()));
    // The coordinator takes no memory for it: what fails is its source, on the rank that has it.
    assert_eq!((step, causes.len()), ("write", 1), "{causes:?}");
    assert!(causes.contains_key(&1), "{causes:?}");
    assert!(
        causes[&1].contains("vast: ") && causes[&1].contains("nobody has room for that"),
        "{causes:?}"
    );
    assert!(place.files().is_empty() && place.leftovers() == 0);
}

#[test]
fn a_limit_of_files_holds_for_all_ranks_together_and_nothing_is_written() {
    let place = Place::new();
    let of = |max| {
        save(group(2), tables(2), place.url(), move |_, s| {
            s.policy(ByFiles::new(3)).max_files(max)
        })
    };
    for outcome in of(5) {
        let error = outcome.unwrap_err();
        let why = std::iter::successors(Some(&error as &dyn std::error::Error), |e| e.source());
        assert!(
            why.map(|e| e.to_string())
                .any(|e| e.contains("6 files, and at most 5")),
            "{error:?}"
        );
    }
    assert!(place.files().is_empty() && place.leftovers() == 0);
    assert!(of(6).iter().all(Result::is_ok));
}

#[test]
fn a_limit_of_slices_can_be_set() {
    let place = Place::new();
    let of = |max| {
        let saved = save(group(1), tables(1), place.url(), move |_, s| {
            // No file has room for two elements and their archives, so each element is a slice.
            s.policy(MaxShardSize::new(100)).max_slices(max)
        });
        saved.into_iter().next().unwrap()
    };
    let error = of(10).unwrap_err();
    let why = std::iter::successors(Some(&error as &dyn std::error::Error), |e| e.source());
    assert!(
        why.map(|e| e.to_string()).any(|e| e.contains("10 slices")),
        "{error:?}"
    );
    assert_eq!(
        of(11)
            .map(|saved| saved.policy.unwrap().slices)
            .unwrap_or(0),
        11
    );
}

//! Tensors that are not declared as pieces: a checkpoint holds each once, so a save does not choose between different ones.

use futures::executor::block_on;
use reshard::{
    DType, Dialect, ErrorKind, LocalGroup, OpenOptions, ProcessGroup, Rank, Region, Save,
    ShardedTensor, StateDict, Tensor, Value, ValueTree,
    model::{
        BoxError, DeviceBuffer, DeviceTensor, Layout, Leaf, ReplicaId, ShardedTensorFactory,
        Swiglu, Tree,
    },
};
use reshard_comm::testkit::on_ranks;
use reshard_laws::{
    place::{Place, stores},
    ranks::{Groups, disagreed, group, load, save, told},
};
use reshard_model::testkit::FakeDevice;
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

const DIALECTS: [Dialect; 2] = [Dialect::Megatron, Dialect::Dcp];

fn floats(v: &[f32]) -> Value {
    Value::Tensor(Tensor::from_vec(&[v.len() as u64], v.to_vec()).unwrap())
}

/// One rank's state with a value under `w`, and what is the same on all ranks.
fn with(w: impl Into<Option<Value>>) -> StateDict {
    let mut state = StateDict::new();
    state.insert("same", floats(&[7.0]));
    if let Some(w) = w.into() {
        state.insert("w", w);
    }
    state
}

/// What every rank was told by a save that fails, after which the same group saves something else.
fn refused(
    states: Vec<StateDict>,
    set: impl for<'a> Fn(Save<'a>) -> Save<'a> + Send + Sync + 'static,
) -> String {
    let (place, groups) = (Place::new(), group(states.len() as u32));
    let n = states.len();
    let set = Arc::new(set);
    let again = Arc::clone(&set);
    let saved = save(groups.clone(), states, place.url(), move |_, s| set(s));
    let errors: Vec<_> = saved.iter().map(|s| s.as_ref().err()).collect();
    let (step, causes) = told(errors.iter().copied());
    assert_eq!(step, "begin");
    assert!(
        errors
            .iter()
            .all(|e| e.unwrap().kind() == ErrorKind::Invalid)
    );
    let saved = save(
        groups,
        vec![with(floats(&[1.0])); n],
        place.url(),
        move |_, s| again(s),
    );
    saved.into_iter().for_each(|s| drop(s.unwrap()));
    let [cause] = causes.into_values().collect::<Vec<_>>().try_into().unwrap();
    cause
}

fn dialect(d: Dialect) -> impl for<'a> Fn(Save<'a>) -> Save<'a> + Send + Sync + Copy + 'static {
    move |s| s.dialect(d)
}

/// What was saved under `w`.
fn stored(place: &Place, d: Dialect) -> Option<Vec<f32>> {
    let mut template = StateDict::new();
    if d == Dialect::Dcp {
        template.insert("w", ShardedTensor::template("w", DType::Float32, &[2]));
    }
    let loaded = load(group(1), vec![template], place.url(), |_, l| l)
        .pop()
        .unwrap()
        .unwrap()
        .0;
    loaded.tensor("w").ok()?.to_vec().ok()
}

#[test]
fn plain_tensors_that_differ_fail_the_save_on_all_ranks() {
    for d in DIALECTS {
        let two = vec![with(floats(&[1.0, 2.0])), with(floats(&[1.0, 3.0]))];
        let cause = refused(two, dialect(d));
        let line = "  w: rank 0 has float32 of shape [2], rank 1 has other elements\n";
        assert!(cause.contains(line), "{cause}");
        assert!(!cause.contains("same:"), "{cause}");
        for way in [
            "`ShardedTensor`",
            "`ShardedTensor::replicated`",
            "`.coordinators_plain_tensors(true)`",
        ] {
            assert!(cause.contains(way), "{cause}");
        }
    }
}

#[test]
fn the_error_names_ranks_with_type_shape_and_content() {
    for d in DIALECTS {
        let ints = Value::Tensor(Tensor::from_vec(&[2], vec![1i64, 2]).unwrap());
        let five = [
            floats(&[1.0, 2.0]),
            floats(&[1.0]),
            floats(&[5.0, 2.0]),
            ints,
            floats(&[9.0, 9.0]),
        ];
        let cause = refused(five.into_iter().map(with).collect(), dialect(d));
        let line = "  w: rank 0 has float32 of shape [2], rank 1 has float32 of shape [1], \
                    ranks 2, 4 have other elements, rank 3 has int64 of shape [2]\n";
        assert!(cause.contains(line), "{cause}");
    }
}

#[test]
fn plain_tensors_that_are_alike_are_saved_once() {
    for (d, n) in DIALECTS.into_iter().flat_map(|d| [(d, 2), (d, 5)]) {
        let place = Place::new();
        // Equal elements, differently laid out.
        let columns = Layout::new(4, 0, [2].into(), [2].into()).unwrap();
        let buffer = Arc::new(bytes::Bytes::from(
            [1f32, 0.0, 2.0].map(f32::to_le_bytes).concat(),
        ));
        let strided = Tensor::with_layout(DType::Float32, columns, buffer).unwrap();
        let mut states = vec![with(floats(&[1.0, 2.0])); n];
        states[1] = with(Value::Tensor(strided));
        let saved = save(group(n as u32), states, place.url(), move |_, s| {
            s.dialect(d)
        });
        saved.into_iter().for_each(|s| drop(s.unwrap()));
        assert_eq!(stored(&place, d).unwrap(), [1.0, 2.0]);
    }
}

#[test]
fn the_coordinators_is_saved_where_the_caller_says_that_it_is_meant() {
    for (d, coordinator) in DIALECTS.into_iter().flat_map(|d| [(d, 0), (d, 3)]) {
        let place = Place::new();
        let states = (0..5).map(|r| with(floats(&[r as f32, 2.0]))).collect();
        let saved = save(group(5), states, place.url(), move |_, s| {
            s.dialect(d)
                .coordinator(Rank(coordinator))
                .coordinators_plain_tensors(true)
        });
        saved.into_iter().for_each(|s| drop(s.unwrap()));
        assert_eq!(
            stored(&place, d).unwrap(),
            [coordinator as f32, 2.0],
            "{d:?}"
        );
    }
}

#[test]
fn ranks_that_do_not_agree_whose_is_meant_are_told() {
    for d in DIALECTS {
        let states = (0..3).map(|r| with(floats(&[r as f32]))).collect();
        let place = Place::new();
        let saved = save(group(3), states, place.url(), move |rank, s| {
            s.dialect(d).coordinators_plain_tensors(rank != Rank(2))
        });
        let what = disagreed(saved.iter().map(|s| s.as_ref().err()));
        let line = "`coordinators_plain_tensors`: ranks 0, 1 have true, rank 2 has false";
        assert!(what.contains(line), "{what}");
    }
}

#[test]
fn a_tensor_that_the_coordinator_lacks_is_saved_by_pytorchs_dialect_and_else_refused() {
    let states = || {
        vec![
            with(None),
            with(floats(&[1.0, 2.0])),
            with(floats(&[1.0, 2.0])),
        ]
    };
    let cause = refused(states(), dialect(Dialect::Megatron));
    assert!(
        cause.contains("  w: rank 0 has none, ranks 1, 2 have float32 of shape [2]\n"),
        "{cause}"
    );
    let place = Place::new();
    let saved = save(group(3), states(), place.url(), |_, s| {
        s.dialect(Dialect::Dcp)
    });
    saved.into_iter().for_each(|s| drop(s.unwrap()));
    assert_eq!(stored(&place, Dialect::Dcp).unwrap(), [1.0, 2.0]);
    // Of two that differ, the coordinator has none that could be meant.
    let states = vec![with(None), with(floats(&[1.0])), with(floats(&[2.0]))];
    let cause = refused(states, |s| {
        s.dialect(Dialect::Dcp).coordinators_plain_tensors(true)
    });
    assert!(
        cause.contains("  w: rank 1 has float32 of shape [1], rank 2 has other elements\n"),
        "{cause}"
    );
    assert!(
        cause.ends_with("the coordinator's tensor can't be saved where the coordinator has none"),
        "{cause}"
    );
}

#[test]
fn a_tensor_that_only_the_coordinator_has_is_saved() {
    for d in DIALECTS {
        let place = Place::new();
        let states = vec![with(floats(&[1.0, 2.0])), with(None)];
        let saved = save(group(2), states, place.url(), move |_, s| s.dialect(d));
        saved.into_iter().for_each(|s| drop(s.unwrap()));
        assert_eq!(stored(&place, d).unwrap(), [1.0, 2.0]);
    }
}

#[test]
fn tensors_in_lists_tuples_and_dicts_are_compared_and_other_values_are_not() {
    let nested = |x: f32, step: i64| {
        let mut state = with(Value::Tuple(vec![
            step.into(),
            Value::Dict(vec![("t".into(), floats(&[x]))]),
        ]));
        let list = ValueTree::List(vec![Tree::Leaf(floats(&[0.0])), Tree::Leaf(floats(&[x]))]);
        state.insert_tree("list", list.map(&mut Leaf::Value));
        state.insert("step", step);
        state
    };
    for d in DIALECTS {
        let cause = refused(vec![nested(1.0, 1), nested(2.0, 1)], dialect(d));
        for path in ["list.1", "w.1.t"] {
            assert!(
                cause.contains(&format!(
                    "  {path}: rank 0 has float32 of shape [1], rank 1 has other"
                )),
                "{cause}"
            );
        }
        assert!(!cause.contains("list.0"), "{cause}");
        let saved = save(
            group(2),
            vec![nested(1.0, 1), nested(1.0, 2)],
            Place::new().url(),
            move |_, s| s.dialect(d),
        );
        saved.into_iter().for_each(|s| drop(s.unwrap()));
    }
}

/// In PyTorch's dialect a tuple is one object, of which one rank's is stored.
#[test]
fn objects_of_which_one_has_more_tensors_are_refused_or_left_to_the_coordinator() {
    let states = || {
        let tuple = |tensors: &[Value]| with(Value::Tuple(tensors.to_vec()));
        vec![
            tuple(&[floats(&[1.0])]),
            tuple(&[floats(&[1.0]), floats(&[2.0])]),
        ]
    };
    let cause = refused(states(), dialect(Dialect::Dcp));
    assert!(
        cause.contains("  w.1: rank 0 has none, rank 1 has float32 of shape [1]\n"),
        "{cause}"
    );
    for coordinator in [0, 1] {
        let place = Place::new();
        let saved = save(group(2), states(), place.url(), move |_, s| {
            s.dialect(Dialect::Dcp)
                .coordinator(Rank(coordinator))
                .coordinators_plain_tensors(true)
        });
        saved.into_iter().for_each(|s| drop(s.unwrap()));
        let opened = block_on(OpenOptions::new().stores(stores()).open(place.url())).unwrap();
        let object = block_on(opened.object("w")).unwrap();
        assert_eq!(
            object.as_seq().map(<[_]>::len),
            Some(coordinator as usize + 1)
        );
    }
}

#[test]
fn declared_tensors_and_those_that_factories_make_are_nobodys_plain_tensors() {
    let states = || {
        (0..2u32).map(|r| {
            let mut state = with(None);
            let row = |n: u32| Tensor::from_vec(&[2, 2], vec![n as f32; 4]).unwrap();
            let rows = [(0, u64::from(r), 2)];
            state.insert(
                "rows",
                ShardedTensor::from_rank_offsets("rows", row(r), &rows).unwrap(),
            );
            state.insert(
                "copy",
                ShardedTensor::replicated("copy", row(r), ReplicaId::from(r)),
            );
            let whole = ShardedTensor::from_rank_offsets("made", row(r), &rows).unwrap();
            state.insert(
                "made",
                ShardedTensorFactory::swiglu(whole, Swiglu::TwoKeys).unwrap(),
            );
            state
        })
    };
    for d in DIALECTS {
        let saved = save(
            group(2),
            states().collect(),
            Place::new().url(),
            move |_, s| s.dialect(d),
        );
        saved.into_iter().for_each(|s| drop(s.unwrap()));
    }
}

/// reshard opens what they wrote as one checkpoint.
#[test]
fn ranks_that_save_without_each_other_have_the_same_plain_tensors_too() {
    let states = || vec![with(floats(&[1.0, 2.0])), with(floats(&[3.0, 4.0]))];
    for d in DIALECTS {
        let cause = refused(states(), move |s| s.dialect(d).rank_local(true));
        assert!(cause.contains("  w: rank 0 has"), "{cause}");
        let place = Place::new();
        let saved = save(group(2), states(), place.url(), move |_, s| {
            s.dialect(d)
                .rank_local(true)
                .coordinator(Rank(1))
                .coordinators_plain_tensors(true)
        });
        saved.into_iter().for_each(|s| drop(s.unwrap()));
        assert_eq!(stored(&place, d).unwrap(), [3.0, 4.0]);
    }
}

#[test]
fn a_sub_group_compares_its_own_ranks_and_counts_them_from_zero() {
    let parts = || -> Groups {
        let parts = on_ranks(LocalGroup::new(4), |group| async move {
            let color = (group.rank().0 % 2 == 1).then_some(0);
            (group.split(color, 0).await.unwrap(), group)
        });
        let (parts, all): (Vec<_>, Vec<_>) = parts.into_iter().unzip();
        std::mem::forget(all);
        parts.into_iter().flatten().collect()
    };
    for d in DIALECTS {
        let saved = save(
            parts(),
            vec![with(floats(&[1.0])); 2],
            Place::new().url(),
            move |_, s| s.dialect(d),
        );
        saved.into_iter().for_each(|s| drop(s.unwrap()));
        let states = vec![with(floats(&[1.0])), with(floats(&[2.0]))];
        let saved = save(parts(), states, Place::new().url(), move |_, s| {
            s.dialect(d)
        });
        let (_, causes) = told(saved.iter().map(|s| s.as_ref().err()));
        assert!(
            causes[&0].contains("rank 0 has float32 of shape [1], rank 1 has other"),
            "{causes:?}"
        );
    }
}

/// Device memory that counts what is read of it.
#[derive(Debug)]
struct Counted {
    memory: Arc<FakeDevice>,
    read: AtomicU64,
}

impl Counted {
    fn of(elements: &[u8]) -> Arc<Self> {
        let memory = FakeDevice::new(elements.len() as u64);
        let all = Layout::contiguous(1, &[elements.len() as u64]).unwrap();
        memory.copy_from_host(&all, elements).unwrap();
        Arc::new(Self {
            memory,
            read: AtomicU64::new(0),
        })
    }

    fn read(&self) -> u64 {
        self.read.load(Ordering::Relaxed)
    }
}

impl DeviceBuffer for Counted {
    fn device(&self) -> &str {
        self.memory.device()
    }

    fn nbytes(&self) -> u64 {
        self.memory.nbytes()
    }

    fn allocate(&self, nbytes: u64) -> Result<Arc<dyn DeviceBuffer>, BoxError> {
        self.memory.allocate(nbytes)
    }

    fn copy_to_host(&self, from: &Layout, out: &mut [u8]) -> Result<(), BoxError> {
        self.read.fetch_add(out.len() as u64, Ordering::Relaxed);
        self.memory.copy_to_host(from, out)
    }

    fn copy_from_host(&self, to: &Layout, elements: &[u8]) -> Result<(), BoxError> {
        self.memory.copy_from_host(to, elements)
    }

    fn synchronise(&self) -> Result<(), BoxError> {
        self.memory.synchronise()
    }
}

/// The tensor under two names, and a part of it.
fn on_device(memory: &Arc<Counted>) -> StateDict {
    let whole = DeviceTensor::new(
        DType::UInt8,
        &[4, 2],
        Arc::clone(memory) as Arc<dyn DeviceBuffer>,
    )
    .unwrap();
    let mut state = with(None);
    state.insert(
        "part",
        Value::Device(whole.narrow(&Region::new([1, 0], [2, 2]))),
    );
    state.insert("tied", Value::Device(whole.clone()));
    state.insert("whole", Value::Device(whole));
    state
}

#[test]
fn a_tensor_is_hashed_once_on_each_rank_and_not_at_all_by_a_rank_that_is_alone() {
    // 8 bytes, and 4 of them once more as a tensor of their own; stored are 20, as both names are items.
    let (hashed, stored) = (12, 20);
    for (n, want) in [(1, stored), (3, stored + 3 * hashed)] {
        let memories: Vec<_> = (0..n)
            .map(|_| Counted::of(&[1, 2, 3, 4, 5, 6, 7, 8]))
            .collect();
        let states = memories.iter().map(on_device).collect();
        let saved = save(group(n), states, Place::new().url(), |_, s| {
            s.dialect(Dialect::Dcp)
        });
        saved.into_iter().for_each(|s| drop(s.unwrap()));
        assert_eq!(
            memories.iter().map(|m| m.read()).sum::<u64>(),
            want,
            "{n} ranks"
        );
    }
}

#[test]
fn tensors_on_devices_are_compared_by_their_elements() {
    let memories = [
        Counted::of(&[1, 2, 3, 4, 5, 6, 7, 8]),
        Counted::of(&[1, 2, 3, 4, 5, 6, 7, 9]),
    ];
    let cause = refused(
        memories.iter().map(on_device).collect(),
        dialect(Dialect::Dcp),
    );
    for path in ["tied", "whole"] {
        assert!(
            cause.contains(&format!(
                "  {path}: rank 0 has uint8 of shape [4, 2], rank 1 has other"
            )),
            "{cause}"
        );
    }
    assert!(!cause.contains("part:"), "{cause}");
}

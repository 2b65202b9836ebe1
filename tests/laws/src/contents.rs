//! The generators: random states, ways to spread them over ranks, memory that they lie in or are loaded into.
//!
//! A [`Contents`] says what is to be saved, whoever holds it. [`Contents::cut`] spreads it over ranks, by numbers of [`Choices`]; zeros
//! make the simplest things, so shrinking a failing case makes it simple.

use bytes::Bytes;
use proptest::prelude::*;
use reshard::{
    DType, Data, Dialect, Region, ShardedObject, ShardedTensor, StateDict, Tensor, Value,
    ValueTree,
    model::{
        DeviceBuffer, DeviceMesh, DeviceTensor, Dims, HostBuffer, Layout, Leaf, LocalNonpersistent,
        Path, Payload, Placement, Segments, Step, Tree,
    },
};
use reshard_model::testkit::FakeDevice;
use std::sync::{Arc, Mutex};

/// A global tensor.
#[derive(Clone, Debug)]
pub struct Global {
    /// Its key.
    pub key: String,
    /// Element type.
    pub dtype: DType,
    /// Elements per axis.
    pub shape: Vec<u64>,
    /// Makes its elements differ from those of others.
    pub salt: u32,
    /// Pieces that are one element thick along the first axis declare it as prepended.
    pub prepended: bool,
}

impl Global {
    /// All of it, row-major.
    pub fn whole(&self) -> Tensor {
        let bytes = self.shape.iter().product::<u64>() * self.dtype.size();
        let mask = if self.dtype == DType::Bool { 1 } else { 0xff };
        let byte = |i: u64| {
            ((i as u32)
                .wrapping_add(self.salt)
                .wrapping_mul(2_654_435_761)
                >> 13) as u8
                & mask
        };
        Tensor::new(
            self.dtype,
            &self.shape,
            (0..bytes).map(byte).collect::<Vec<u8>>(),
        )
        .unwrap()
    }

    /// The elements of a region, row-major.
    pub fn part(&self, region: &Region) -> Bytes {
        self.whole().narrow(region).to_bytes()
    }
}

/// What is to be saved.
#[derive(Clone, Debug)]
pub struct Contents {
    /// Tensors, spread over ranks.
    pub tensors: Vec<Global>,
    /// Whether each rank has an object.
    pub objects: bool,
    /// What all ranks have: a dict.
    pub extra: Value,
}

/// Random numbers, one after the other and then from the start again.
#[derive(Clone)]
pub struct Choices(Vec<u32>, usize);

impl std::fmt::Debug for Choices {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Choices({:?})", self.0) // in one line
    }
}

impl Choices {
    /// Of these numbers.
    pub fn of(numbers: impl Into<Vec<u32>>) -> Self {
        Self(numbers.into(), 0)
    }

    /// A number below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.1 += 1;
        let number = u64::from(self.0[self.1 % self.0.len()]);
        // Later rounds give other numbers, unless all are zero.
        let round = if number == 0 {
            0
        } else {
            (self.1 / self.0.len()) as u64
        };
        (number + round) % n.max(1)
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == n - 1
    }
}

/// Random choices.
pub fn choices() -> impl Strategy<Value = Choices> {
    prop::collection::vec(any::<u32>(), 48).prop_map(|numbers| Choices(numbers, 0))
}

fn shape() -> impl Strategy<Value = Vec<u64>> {
    prop_oneof![
        6 => prop::collection::vec(1u64..6, 0..=3),
        2 => prop::collection::vec(1u64..5, 4..=5),
        1 => prop::collection::vec(0u64..3, 1..=5),
        // More than fits an archive that is read whole.
        3 => prop::collection::vec(30u64..70, 2),
    ]
}

fn global() -> impl Strategy<Value = (DType, Vec<u64>, u32, bool)> {
    (
        prop::sample::select(DType::ALL),
        shape(),
        any::<u32>(),
        prop::bool::weighted(0.2),
    )
}

/// Random contents.
pub fn contents() -> impl Strategy<Value = Contents> {
    let tensors = prop::collection::vec(global(), 0..6);
    (tensors, any::<bool>(), prop::collection::vec(value(), 0..5)).prop_map(
        |(tensors, objects, values)| {
            let tensors =
                tensors
                    .into_iter()
                    .enumerate()
                    .map(|(i, (dtype, shape, salt, prepended))| Global {
                        key: format!("layers.{i}.weight"),
                        dtype,
                        shape,
                        salt,
                        prepended,
                    });
            let names = ["a", "b", "c", "d", "e"].map(Value::from);
            let extra = Value::Dict(names.into_iter().zip(values).collect());
            Contents {
                tensors: tensors.collect(),
                objects,
                extra,
            }
        },
    )
}

/// Random values, as Python keeps them beside tensors.
pub fn value() -> impl Strategy<Value = Value> {
    let big = Value::BigInt([&[0; 8][..], &[0x7f, 0x12]].concat().into());
    let tensor = Tensor::from_vec(&[2, 2], vec![1.5f32, 2., f32::NAN, -0.]).unwrap();
    let leaf = prop_oneof![
        Just(Value::None),
        any::<bool>().prop_map(Value::Bool),
        any::<i64>().prop_map(Value::Int),
        any::<u64>().prop_map(|bits| Value::Float(f64::from_bits(bits))),
        "[a-z é\n]{0,12}".prop_map(|s| Value::Str(s.into())),
        prop::collection::vec(any::<u8>(), 0..9).prop_map(|b| Value::Bytes(b.into())),
        Just(big),
        Just(Value::Tensor(tensor)),
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        let many = prop::collection::vec(inner, 0..3);
        prop_oneof![
            many.clone().prop_map(Value::List),
            many.clone().prop_map(Value::Tuple),
            prop::collection::btree_set(any::<i32>(), 0..3)
                .prop_map(|s| Value::Set(s.into_iter().map(Value::from).collect())),
            many.clone().prop_map(|v| {
                Value::Dict(
                    ["x", "y", "z"]
                        .into_iter()
                        .map(Value::from)
                        .zip(v)
                        .collect(),
                )
            }),
            many.clone()
                .prop_map(|v| Value::Dict((0..).map(Value::Int).zip(v).collect())),
            many.prop_map(|v| Value::Dict(
                [0.5, -1.].map(Value::Float).into_iter().zip(v).collect()
            )),
        ]
    })
}

/// Which rank holds what, and no elements: by rank, by tensor.
#[derive(Clone, Debug)]
pub struct Cut(pub Vec<Vec<Vec<ShardedTensor>>>);

impl Contents {
    /// Spreads the tensors over ranks: in boxes of an irregular grid, over device meshes, replicated, or all on one rank.
    pub fn cut(&self, ranks: u32, choices: &mut Choices) -> Cut {
        let mut out = vec![vec![Vec::new(); self.tensors.len()]; ranks as usize];
        for (i, global) in self.tensors.iter().enumerate() {
            let held = match choices.below(5) {
                0 => alone(global, ranks, choices),
                1 => (0..ranks)
                    .map(|r| vec![leaf(global, Region::whole(&global.shape), r)])
                    .collect(),
                2 | 3 => boxes(global, ranks, choices),
                _ => mesh(global, ranks, choices),
            };
            for (rank, pieces) in held.into_iter().enumerate() {
                out[rank][i] = pieces;
            }
        }
        Cut(out)
    }

    /// Row blocks by torch.chunk's rule.
    pub fn rows(&self, ranks: u32) -> Cut {
        self.chunks(ranks, |_| 0)
    }

    /// Blocks of columns, the last axis, by torch.chunk's rule.
    pub fn columns(&self, ranks: u32) -> Cut {
        self.chunks(ranks, |shape| shape.len() - 1)
    }

    fn chunks(&self, ranks: u32, axis: impl Fn(&[u64]) -> usize) -> Cut {
        let piece = |global: &Global, rank: u32| {
            let mut region = Region::whole(&global.shape);
            if !global.shape.is_empty() {
                let axis = axis(&global.shape);
                (region.offsets[axis], region.lengths[axis]) =
                    reshard::model::local_chunk(global.shape[axis], ranks.into(), rank.into());
            }
            let replica = if global.shape.is_empty() { rank } else { 0 };
            vec![leaf(global, region, replica)]
        };
        Cut((0..ranks)
            .map(|r| self.tensors.iter().map(|g| piece(g, r)).collect())
            .collect())
    }
}

fn leaf(global: &Global, region: Region, replica: u32) -> ShardedTensor {
    let t = ShardedTensor::region_of(&global.key, global.dtype, &global.shape, region);
    prepend(global, t.with_replica_id(replica))
}

fn prepend(global: &Global, mut t: ShardedTensor) -> ShardedTensor {
    if global.prepended && t.local_shape.first() == Some(&1) {
        t.local_shape = Dims::from(&t.local_shape[1..]);
        t.prepend_axis_num = 1;
        t.axis_fragmentations = None;
    }
    t
}

fn alone(global: &Global, ranks: u32, choices: &mut Choices) -> Vec<Vec<ShardedTensor>> {
    let mut out = vec![Vec::new(); ranks as usize];
    out[choices.below(ranks.into()) as usize].push(leaf(global, Region::whole(&global.shape), 0));
    out
}

fn boxes(global: &Global, ranks: u32, choices: &mut Choices) -> Vec<Vec<ShardedTensor>> {
    let mut all = vec![Region::whole(&global.shape)];
    for _ in 0..choices.below(7) {
        let i = choices.below(all.len() as u64) as usize;
        let thick: Vec<usize> = (0..global.shape.len())
            .filter(|&a| all[i].lengths[a] > 1)
            .collect();
        if thick.is_empty() {
            continue;
        }
        let axis = thick[choices.below(thick.len() as u64) as usize];
        let n = 1 + choices.below(all[i].lengths[axis] - 1);
        let mut rest = all[i].clone();
        all[i].lengths[axis] = n;
        rest.offsets[axis] += n;
        rest.lengths[axis] -= n;
        all.push(rest);
    }
    let mut out = vec![Vec::new(); ranks as usize];
    for region in all {
        let owner = choices.below(ranks.into()) as u32;
        let mut copies = 0;
        for rank in 0..ranks {
            if rank == owner {
                out[rank as usize].push(leaf(global, region.clone(), 0));
            } else if choices.one_in(4) {
                copies += 1;
                out[rank as usize].push(leaf(global, region.clone(), copies));
            }
        }
    }
    out
}

fn mesh(global: &Global, ranks: u32, choices: &mut Choices) -> Vec<Vec<ShardedTensor>> {
    let a = 1 + choices.below(ranks.into());
    let b = 1 + choices.below(u64::from(ranks) / a);
    // Some ranks, in some order; the others hold nothing.
    let mut order: Vec<u32> = (0..ranks).collect();
    let turn = choices.below(ranks.into()) as usize;
    order.rotate_left(turn);
    order.truncate((a * b) as usize);
    let mesh = DeviceMesh::new(&[("a", a), ("b", b)], order).unwrap();
    let placements: Vec<Placement> = (0..2)
        .map(|_| match (choices.below(4), global.shape.len() as u64) {
            (0, _) | (_, 0) => Placement::Replicate,
            (1, axes) => Placement::StridedShard {
                dim: choices.below(axes) as usize,
                split_factor: 1 + choices.below(3),
            },
            (_, axes) => Placement::Shard(choices.below(axes) as usize),
        })
        .collect();
    let declare = |r| {
        ShardedTensor::declare_mesh(
            &global.key,
            global.dtype,
            &mesh,
            &placements,
            &global.shape,
            r,
        )
        .unwrap()
    };
    (0..ranks)
        .map(|r| declare(r).into_iter().map(|t| prepend(global, t)).collect())
        .collect()
}

/// A buffer that tells what was in it when the last handle is dropped.
#[derive(Debug)]
struct Telling {
    bytes: Vec<u8>,
    last_words: Arc<Mutex<Option<Vec<u8>>>>,
}

impl HostBuffer for Telling {
    fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }
    fn as_bytes_mut(&mut self) -> Option<&mut [u8]> {
        Some(&mut self.bytes)
    }
}

impl Drop for Telling {
    fn drop(&mut self) {
        *self.last_words.lock().unwrap() = Some(std::mem::take(&mut self.bytes));
    }
}

/// A buffer of a template, and what it must hold after a load: the elements, and all else as it was.
#[derive(Debug)]
struct Watched {
    last_words: Arc<Mutex<Option<Vec<u8>>>>,
    after: Vec<u8>,
}

/// What untouched memory holds.
const UNTOUCHED: u8 = 0xee;

/// What lies where in the buffers of a template; to be checked when the loaded state is gone.
#[derive(Debug, Default)]
pub struct Watch(Vec<Watched>);

impl Watch {
    /// Every buffer was filled in place, and nothing beside the elements has changed.
    ///
    /// # Panics
    /// When a handle on a buffer lives, or one is not as it should be.
    pub fn check_filled(&self) {
        for w in &self.0 {
            let last = w.last_words.lock().unwrap().take();
            assert!(
                last.unwrap_or_else(|| panic!("a buffer was kept")) == w.after,
                "a buffer is not as it should be"
            );
        }
    }

    /// Every buffer came back, whatever is in its elements.
    ///
    /// # Panics
    /// When a handle on a buffer lives.
    pub fn check_back(&self) {
        for w in &self.0 {
            let last = w.last_words.lock().unwrap().take();
            assert_eq!(
                last.unwrap_or_else(|| panic!("a buffer was kept")).len(),
                w.after.len()
            );
        }
    }
}

/// Where elements lie in a buffer, beside their shape.
fn arrange(choices: &mut Choices, item: u64, shape: &[u64], at: u64) -> Layout {
    let mut axes: Vec<usize> = (0..shape.len()).collect();
    if !axes.is_empty() {
        let turn = choices.below(shape.len() as u64) as usize;
        axes.rotate_left(turn);
    }
    let (mut strides, mut step) = (Dims::splat(1, shape.len()), 1);
    for &axis in axes.iter().rev() {
        strides[axis] = step;
        // Now and then with gaps.
        step = step * shape[axis].max(1) + if choices.one_in(3) { 1 } else { 0 };
    }
    Layout::new(item, at, shape.into(), strides).unwrap()
}

fn put(elements: &[u8], layout: &Layout, buffer: &mut [u8]) {
    let flat = Layout::contiguous(layout.item(), layout.shape()).unwrap();
    for (from, to, n) in Segments::row_major(&flat, layout) {
        buffer[to as usize..(to + n) as usize]
            .copy_from_slice(&elements[from as usize..(from + n) as usize]);
    }
}

fn device(dtype: DType, shape: &[u64], elements: Option<&[u8]>, bytes: u64) -> DeviceTensor {
    let memory = FakeDevice::new(bytes);
    let layout = Layout::contiguous(dtype.size(), shape).unwrap();
    if let Some(elements) = elements {
        memory.copy_from_host(&layout, elements).unwrap();
    }
    DeviceTensor::new(dtype, shape, memory).unwrap()
}

/// The pieces of one rank on their way into a state dict.
struct Memory<'d> {
    choices: &'d mut Choices,
    /// For a load: nothing is in the buffers yet.
    template: bool,
    flat: Vec<u8>,
    flat_after: Vec<u8>,
    /// Leaves that lie in the flat buffer, by their position.
    views: Vec<(usize, DType, Layout)>,
    watch: Watch,
}

impl Memory<'_> {
    fn buffer(&mut self, elements: &[u8], layout: &Layout) -> Arc<dyn HostBuffer> {
        let bytes = layout.hull().end as usize + 3;
        let mut before = vec![UNTOUCHED; bytes];
        let mut after = before.clone();
        put(elements, layout, &mut after);
        if !self.template {
            before.clone_from(&after);
        }
        let last_words = Arc::default();
        self.watch.0.push(Watched {
            last_words: Arc::clone(&last_words),
            after,
        });
        Arc::new(Telling {
            bytes: before,
            last_words,
        })
    }

    /// Memory of some kind for piece number `n`; `None` for the flat buffer, which is there only when all pieces are known.
    fn data(&mut self, n: usize, t: &ShardedTensor, elements: &[u8]) -> Option<Data> {
        let (dtype, shape) = (t.dtype, &*t.local_shape);
        let item = dtype.size();
        Some(match self.choices.below(6) {
            0 => {
                let layout = Layout::contiguous(item, shape).unwrap();
                let buffer = self.buffer(elements, &layout);
                Data::Host(Tensor::with_layout(dtype, layout, buffer).unwrap())
            }
            1 | 2 => {
                let at = self.choices.below(3);
                let layout = arrange(self.choices, item, shape, at);
                let buffer = self.buffer(elements, &layout);
                Data::Host(Tensor::with_layout(dtype, layout, buffer).unwrap())
            }
            3 => {
                let at = (self.flat.len() as u64).div_ceil(item) + self.choices.below(2);
                let layout = arrange(self.choices, item, shape, at);
                let end = (layout.hull().end as usize).max(self.flat.len());
                self.flat.resize(end, UNTOUCHED);
                self.flat_after.resize(end, UNTOUCHED);
                put(elements, &layout, &mut self.flat_after);
                self.views.push((n, dtype, layout));
                return None;
            }
            4 => {
                let known = (!self.template).then_some(elements);
                Data::Device(device(dtype, shape, known, elements.len() as u64))
            }
            _ if self.template => Data::None,
            _ => Data::Lazy(Arc::new(
                Tensor::new(dtype, shape, elements.to_vec()).unwrap(),
            )),
        })
    }
}

/// How each piece of a rank is called in the state dict: dicts in dicts, or lists.
fn path_of(tensor: usize, piece: usize) -> Path {
    let (tensor_name, piece_name) = (format!("t{tensor}"), format!("p{piece}"));
    Path(match tensor % 3 {
        0 => vec![tensor_name.into(), piece_name.into()],
        1 => vec![
            "layers".into(),
            Step::Index(tensor as u64),
            piece_name.into(),
        ],
        _ => vec![
            "lists".into(),
            tensor_name.into(),
            Step::Index(piece as u64),
        ],
    })
}

fn insert(tree: &mut StateDict, path: &[Step], leaf: StateDict) {
    match path {
        // Pieces of a list come in order.
        [Step::Key(name), Step::Index(i)] if &**name != "layers" => {
            if tree.get(name).is_none() {
                tree.insert_tree(&**name, Tree::List(Vec::new()));
            }
            let mut list = tree.remove(name).unwrap_or_default();
            if let Tree::List(v) = &mut list {
                assert_eq!(v.len() as u64, *i);
                v.push(leaf);
            }
            tree.insert_tree(&**name, list);
        }
        [last] => drop(tree.insert_tree(last.clone(), leaf)),
        [Step::Key(first), rest @ ..] => {
            let mut below = tree.remove(first).unwrap_or_default();
            insert(&mut below, rest, leaf);
            tree.insert_tree(&**first, below);
        }
        [first, rest @ ..] => {
            let mut below = match tree {
                Tree::Dict(d) => d.shift_remove(first).unwrap_or_default(),
                _ => StateDict::new(),
            };
            insert(&mut below, rest, leaf);
            tree.insert_tree(first.clone(), below);
        }
        [] => {}
    }
}

impl Contents {
    fn pieces<'c>(
        &'c self,
        cut: &'c Cut,
        rank: u32,
    ) -> impl Iterator<Item = (usize, usize, &'c ShardedTensor)> {
        let tensors = cut.0[rank as usize].iter().enumerate();
        tensors.flat_map(|(i, pieces)| pieces.iter().enumerate().map(move |(j, t)| (i, j, t)))
    }

    fn tensors(
        &self,
        cut: &Cut,
        rank: u32,
        choices: &mut Choices,
        template: bool,
    ) -> (StateDict, Watch) {
        let mut memory = Memory {
            choices,
            template,
            flat: Vec::new(),
            flat_after: Vec::new(),
            views: Vec::new(),
            watch: Watch::default(),
        };
        let mut datas = Vec::new();
        for (n, (i, _, t)) in self.pieces(cut, rank).enumerate() {
            let elements = self.tensors[i].part(&t.region());
            datas.push(memory.data(n, t, &elements));
        }
        if !memory.views.is_empty() {
            let Memory {
                flat,
                flat_after,
                views,
                watch,
                ..
            } = &mut memory;
            let bytes = if template {
                flat.clone()
            } else {
                flat_after.clone()
            };
            let last_words = Arc::default();
            watch.0.push(Watched {
                last_words: Arc::clone(&last_words),
                after: flat_after.clone(),
            });
            let buffer: Arc<dyn HostBuffer> = Arc::new(Telling { bytes, last_words });
            for (n, dtype, layout) in views.drain(..) {
                let view = Tensor::with_layout(dtype, layout, Arc::clone(&buffer)).unwrap();
                datas[n] = Some(Data::Host(view));
            }
        }
        let mut state = StateDict::new();
        for ((i, j, t), data) in self.pieces(cut, rank).zip(datas) {
            let leaf = ShardedTensor {
                data: data.unwrap(),
                ..t.clone()
            };
            insert(&mut state, &path_of(i, j).0, leaf.into());
        }
        (state, memory.watch)
    }

    /// What a rank saves.
    pub fn state(&self, cut: &Cut, rank: u32, choices: &mut Choices) -> StateDict {
        let ranks = cut.0.len() as u64;
        let (mut state, _) = self.tensors(cut, rank, choices, false);
        if self.objects {
            let mine = Value::Tuple(vec![Value::Int(rank.into()), "rng".into()]);
            let cell = ShardedObject::new("rng", mine, &[ranks, 1], &[rank.into(), 0], 0).unwrap();
            state.insert("rng", cell);
            let shared = ShardedObject::new("shared", "same", &[1], &[0], rank).unwrap();
            state.insert("shared", shared);
        }
        state.insert("local", LocalNonpersistent::new(rank));
        let extra = ValueTree::from(self.extra.clone()).map(&mut Leaf::Value);
        state.insert_tree("extra", extra);
        state
    }

    /// What all ranks save.
    pub fn states(&self, cut: &Cut, choices: &mut Choices) -> Vec<StateDict> {
        (0..cut.0.len() as u32)
            .map(|r| self.state(cut, r, choices))
            .collect()
    }

    /// What a rank loads into, and what its memory must be after that; `saved` ranks have saved.
    pub fn template(
        &self,
        cut: &Cut,
        rank: u32,
        saved: u32,
        dialect: Dialect,
        choices: &mut Choices,
    ) -> (StateDict, Watch) {
        let (mut template, watch) = self.tensors(cut, rank, choices, true);
        if self.objects {
            for (key, shape, offset) in [
                (
                    "rng",
                    &[saved.into(), 1][..],
                    &[u64::from(rank % saved), 0][..],
                ),
                ("shared", &[1], &[0]),
            ] {
                let mut cell = ShardedObject::new(key, Value::None, shape, offset, 0).unwrap();
                cell.data = Payload::None;
                template.insert(key, cell);
            }
        }
        template.insert("local", LocalNonpersistent::new(1000 + rank));
        if dialect == Dialect::Dcp {
            let extra = ValueTree::from(self.extra.clone());
            template.insert_tree("extra", extra.map(&mut |v| Leaf::Value(blank(v))));
        }
        (template, watch)
    }

    /// Every leaf of a loaded state is what it must be.
    ///
    /// # Panics
    /// When one isn't.
    pub fn check(&self, cut: &Cut, rank: u32, saved: u32, loaded: &ValueTree) {
        for (i, j, t) in self.pieces(cut, rank) {
            let path = path_of(i, j);
            let want = self.tensors[i].part(&t.region());
            let what = || format!("{} {} of rank {rank}", t.key, t.region());
            let got = match loaded.at(&path.0).and_then(ValueTree::leaf) {
                Some(Value::Tensor(got)) => {
                    assert_eq!(
                        (got.dtype(), got.shape()),
                        (t.dtype, &t.local_shape),
                        "{}",
                        what()
                    );
                    got.to_bytes()
                }
                Some(Value::Device(got)) => got.to_host("w").unwrap().to_bytes(),
                other => panic!("{} is {other:?} at {path}", what()),
            };
            assert!(got == want, "{} is {got:?}, saved was {want:?}", what());
        }
        let leaf = |key: &str| loaded.get(key).and_then(ValueTree::leaf);
        if self.objects {
            let theirs = Value::Tuple(vec![Value::Int((rank % saved).into()), "rng".into()]);
            assert_eq!(leaf("rng"), Some(&theirs));
            assert_eq!(leaf("shared"), Some(&Value::from("same")));
        }
        let Some(Value::Local(local)) = leaf("local") else {
            panic!("the local leaf is gone")
        };
        assert_eq!(local.0.downcast_ref::<u32>(), Some(&(1000 + rank)));
        assert_eq!(
            loaded.get("extra"),
            Some(&ValueTree::from(self.extra.clone()))
        );
    }
}

/// The same structure without what is to be loaded.
fn blank(v: Value) -> Value {
    match v {
        Value::Tensor(t) => Value::Tensor(Tensor::zeros("extra", t.dtype(), t.shape()).unwrap()),
        _ => Value::None,
    }
}

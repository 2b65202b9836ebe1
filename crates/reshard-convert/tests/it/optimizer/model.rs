//! A model on two tensor-parallel times two data-parallel ranks, and checkpoints of its optimizer in each form, written from the
//! description of the forms.

use futures::{executor::block_on, future::join_all};
use reshard::{
    CommonForm, DType, Dialect, LocalGroup, Region, ShardedObject, ShardedTensor, StateDict,
    Tensor, Value, ValueTree,
    model::{Leaf, Payload, Step, Tree},
};
use reshard_optim::{BucketLayout, BucketParam, BucketPiece, ShardingType};

pub(crate) const STATES: [&str; 3] = ["param", "exp_avg", "exp_avg_sq"];
const DP: u64 = 2;

/// A parameter of the model: its tensor, and the boxes of it that a tensor-parallel rank has, one after the other.
pub(crate) struct Param {
    pub(crate) key: &'static str,
    pub(crate) shape: &'static [u64],
    pub(crate) boxes: Vec<Region>,
    /// All ranks have the same.
    pub(crate) copied: bool,
}

impl Param {
    fn elements(&self) -> u64 {
        self.boxes.iter().map(|b| b.volume().unwrap()).sum()
    }
}

/// Key, shape, and the boxes of a tensor-parallel rank, in the order in which the model makes them.
pub(crate) fn params(tp: u64) -> Vec<Param> {
    let param = |key, shape, boxes, copied| Param {
        key,
        shape,
        boxes,
        copied,
    };
    let layer = |layer| Region::new([layer, tp * 4, 0], [1, 4, 3]);
    vec![
        // Cut by columns.
        param(
            "embedding.w",
            &[5, 4][..],
            vec![Region::new([0, tp * 2], [5, 2])],
            false,
        ),
        // Two layers, stacked, cut by rows.
        param("layers.w", &[2, 8, 3], vec![layer(0)], false),
        param("layers.w", &[2, 8, 3], vec![layer(1)], false),
        // A gated linear unit: half of the rows are in the first half of the tensor, and half in the second.
        param(
            "fc1",
            &[8, 2],
            vec![
                Region::new([tp * 2, 0], [2, 2]),
                Region::new([4 + tp * 2, 0], [2, 2]),
            ],
            false,
        ),
        param("norm", &[7], vec![Region::new([0], [7])], true),
    ]
}

/// The element of a state's tensor at a flat index, which no other has.
pub(crate) fn element(state: &str, key: &str, index: u64) -> f32 {
    let salt = STATES.iter().position(|s| *s == state).unwrap() * 7 + key.len();
    (salt * 1000) as f32 + index as f32
}

/// The whole tensor of a state.
pub(crate) fn whole(state: &str, key: &str) -> Tensor {
    let all = params(0);
    let shape = all.iter().find(|p| p.key == key).unwrap().shape;
    let n: u64 = shape.iter().product();
    Tensor::from_vec(shape, (0..n).map(|i| element(state, key, i)).collect()).unwrap()
}

/// The elements of a parameter as they lie in a bucket.
fn flat(state: &str, param: &Param) -> Vec<f32> {
    let whole = whole(state, param.key);
    let of = |b: &Region| whole.narrow(b).to_vec::<f32>().unwrap();
    param.boxes.iter().flat_map(of).collect()
}

/// Parameters of a bucket with their first elements, in the reverse order of the model. Each begins at a multiple of 64.
struct Bucket {
    params: Vec<(u64, Param)>,
    unpadded: u64,
}

fn buckets(tp: u64) -> Vec<Bucket> {
    let mut all = params(tp);
    all.reverse();
    let second = all.split_off(2);
    [all, second]
        .into_iter()
        .map(|params| {
            let (mut placed, mut end) = (Vec::new(), 0u64);
            for param in params {
                let start = end.div_ceil(64) * 64;
                end = start + param.elements();
                placed.push((start, param));
            }
            Bucket {
                params: placed,
                unpadded: end,
            }
        })
        .collect()
}

impl Bucket {
    /// Elements with the padding at the end.
    fn padded(&self) -> u64 {
        self.unpadded.div_ceil(128) * 128
    }

    /// All elements of a state. What is padding is not zero, so that it is noticed.
    fn elements(&self, state: &str) -> Vec<f32> {
        let mut out = vec![-1.; self.padded() as usize];
        for (start, param) in &self.params {
            let elements = flat(state, param);
            out[*start as usize..][..elements.len()].copy_from_slice(&elements);
        }
        out
    }

    /// Where a rank's share is cut: at the ends of parameters.
    fn parts(&self, dp: u64, end: u64) -> Vec<(u64, u64)> {
        let local = self.padded() / DP;
        let (from, to) = (dp * local, ((dp + 1) * local).min(end));
        let mut cuts: Vec<u64> = self
            .params
            .iter()
            .flat_map(|(start, p)| [*start, start + p.elements()])
            .chain([from, to])
            .filter(|c| (from..=to).contains(c))
            .collect();
        cuts.sort();
        cuts.dedup();
        cuts.windows(2).map(|w| (w[0], w[1])).collect()
    }
}

/// What a training program would say of its buckets.
pub(crate) fn layout() -> BucketLayout {
    let mut layout = BucketLayout::new();
    for tp in 0..2 {
        for (bucket, of) in (0..).zip(buckets(tp)) {
            for (start, param) in of.params {
                let piece = |b: &Region| BucketPiece {
                    key: param.key.into(),
                    shape: b.lengths.clone(),
                    global_shape: param.shape.into(),
                    global_offset: b.offsets.clone(),
                    main: tp == 0 || !param.copied,
                };
                layout.params.push(BucketParam {
                    chained: None,
                    dp_group: tp,
                    gbuf: 0,
                    bucket,
                    start,
                    pieces: param.boxes.iter().map(piece).collect(),
                });
            }
        }
    }
    layout
}

fn dict(entries: Vec<(Value, Value)>) -> Value {
    Value::Dict(entries)
}

fn groups_of(tp: u64) -> Value {
    dict(vec![(
        "param_groups".into(),
        Value::List(vec![dict(vec![
            ("lr".into(), Value::Float(0.5)),
            ("tp".into(), Value::Int(tp as i64)),
        ])]),
    )])
}

/// The rank's model, for forms that keep it.
fn weights(tp: u64, dp: u64) -> StateDict {
    let mut model = StateDict::new();
    for (i, param) in params(tp).iter().enumerate() {
        for (j, b) in param.boxes.iter().enumerate() {
            let leaf = ShardedTensor::region_of(param.key, DType::Float32, param.shape, b.clone());
            let data = whole("param", param.key).narrow(b);
            let replica = [0, if param.copied { tp as u32 } else { 0 }, dp as u32];
            model.insert(
                format!("{i}.{j}"),
                leaf.with_data(data).with_replica_id(replica),
            );
        }
    }
    model
}

fn bucket_key(tp: u64, bucket: usize, state: &str) -> String {
    format!(
        "optimizer.distributed.dp_group_idx_{tp}.gbuf_idx_0.dtype_(torch.bfloat16, torch.float32).bucket_idx_{bucket}.{state}"
    )
}

fn object(tp: u64, name: &str, value: Value, dp: u64) -> ShardedObject {
    let key = format!("optimizer.distributed.dp_group_idx_{tp}.{name}");
    ShardedObject::new(&key, value, &[1], &[0], [0, 0, dp as u32]).unwrap()
}

/// The optimizer of a rank in a form.
fn optimizer(form: ShardingType, tp: u64, dp: u64) -> StateDict {
    let mut out = StateDict::new();
    if form.is_by_bucket() {
        out.insert("optimizer", object(tp, "optimizer", groups_of(tp), dp));
    } else {
        out.insert_tree(
            "optimizer",
            ValueTree::from(groups_of(0)).map(&mut Leaf::Value),
        );
    }
    out.insert("param_state_sharding_type", form.name());
    let mut state = StateDict::new();
    match form {
        ShardingType::DpReshardable | ShardingType::FullyShardedBucketSpace => {
            for (i, bucket) in buckets(tp).iter().enumerate() {
                by_bucket(&mut state, form, bucket, i, (tp, dp));
            }
            let padded = numels(tp, Bucket::padded);
            state.insert(
                "per_bucket_numel",
                object(tp, "per_bucket_numel", padded, dp),
            );
            let unpadded = numels(tp, |b| b.unpadded);
            state.insert(
                "per_bucket_numel_unpadded",
                object(tp, "per_bucket_numel_unpadded", unpadded, dp),
            );
        }
        ShardingType::DpZeroGatherScatter => {
            if dp == 0 {
                return {
                    out.insert("param_state", object(tp, "param_state", gathered(tp), 0));
                    out
                };
            }
        }
        ShardingType::FullyShardedModelSpace | ShardingType::FullyReshardable => {
            by_param(&mut state, form, tp, dp);
        }
        other => panic!("{other}"),
    }
    out.insert_tree("param_state", state);
    out
}

/// A number of elements of each bucket.
fn numels(tp: u64, of: fn(&Bucket) -> u64) -> Value {
    let numels = buckets(tp).into_iter().map(|b| Value::Int(of(&b) as i64));
    Value::List(numels.collect())
}

/// What a buffer has for its one pair of types.
fn by_types(value: Value) -> Value {
    let types = Value::Tuple(vec!["torch.bfloat16".into(), "torch.float32".into()]);
    dict(vec![(types, value)])
}

/// Joined tensors of all buckets, without the padding between them.
fn gathered(tp: u64) -> Value {
    let joined = |state: &str| {
        let all: Vec<f32> = buckets(tp)
            .iter()
            .flat_map(|b| b.elements(state).into_iter().take(b.unpadded as usize))
            .collect();
        Value::Tensor(Tensor::from_vec(&[all.len() as u64], all).unwrap())
    };
    let total: u64 = buckets(tp).iter().map(|b| b.unpadded).sum();
    let mut states: Vec<(Value, Value)> = STATES.iter().map(|s| ((*s).into(), joined(s))).collect();
    states.push(("numel_unpadded".into(), Value::Int(total as i64)));
    dict(vec![
        ("buckets_coalesced".into(), Value::Bool(true)),
        (Value::Int(0), by_types(dict(states))),
    ])
}

/// The same as Megatron Core 0.6 has it: a tensor for each bucket, with its padding. What the optimizer of a group says of it, changed.
pub(crate) fn not_joined(tp: u64, change: impl Fn(&mut Vec<Tensor>)) -> Value {
    let tensors = |state: &str| {
        let of = |b: &Bucket| Tensor::from_vec(&[b.padded()], b.elements(state)).unwrap();
        let mut tensors = buckets(tp).iter().map(of).collect();
        change(&mut tensors);
        Value::List(tensors.into_iter().map(Value::Tensor).collect())
    };
    let states = STATES.iter().map(|s| ((*s).into(), tensors(s))).collect();
    let of_buffers = |numels| Value::List(vec![by_types(numels)]);
    let padded = of_buffers(numels(tp, Bucket::padded));
    let unpadded = of_buffers(numels(tp, |b| b.unpadded));
    dict(vec![
        ("per_bucket_numel".into(), padded),
        ("per_bucket_numel_unpadded".into(), unpadded),
        (Value::Int(0), by_types(dict(states))),
    ])
}

/// Changes what the data-parallel group of a state has gathered, if it has.
pub(crate) fn change_gathered(state: &mut StateDict, change: impl Fn(u64, &mut Value)) {
    state.visit_mut(&mut |_, leaf| {
        if let Leaf::Object(object) = leaf
            && object.key.ends_with(".param_state")
            && let Payload::Value(value) = &mut object.data
        {
            change(object.key.contains("dp_group_idx_1").into(), value);
        }
    });
}

fn by_bucket(
    out: &mut StateDict,
    form: ShardingType,
    bucket: &Bucket,
    index: usize,
    (tp, dp): (u64, u64),
) {
    for state in STATES {
        let key = bucket_key(tp, index, state);
        let elements = bucket.elements(state);
        let data = |from: u64, to: u64| {
            Tensor::from_vec(&[to - from], elements[from as usize..to as usize].to_vec()).unwrap()
        };
        let local = bucket.padded() / DP;
        let end = match form {
            ShardingType::DpReshardable => bucket.unpadded,
            _ => bucket.padded(),
        };
        for (from, to) in bucket.parts(dp, end) {
            let leaf = match form {
                ShardingType::DpReshardable => {
                    let region = Region::new([from], [to - from]);
                    ShardedTensor::region_of(&key, DType::Float32, &[end], region)
                        .with_data(data(from, to))
                }
                _ => {
                    let range = from - dp * local..to - dp * local;
                    ShardedTensor::from_rank_offsets_flat(
                        &key,
                        data(from, to),
                        &[local],
                        &[(0, dp, DP)],
                        0,
                        range,
                    )
                    .unwrap()
                    .with_shape_mismatch_allowed()
                }
            };
            out.insert(format!("{index}.{state}.{from}"), leaf);
        }
    }
}

fn by_param(out: &mut StateDict, form: ShardingType, tp: u64, dp: u64) {
    for (i, param) in params(tp).iter().enumerate() {
        for state in STATES {
            for (j, b) in param.boxes.iter().enumerate() {
                let stored = match (form, state) {
                    (ShardingType::FullyShardedModelSpace, "param") => "fp32_param",
                    _ => state,
                };
                let key = format!("optimizer.state.{stored}.{}", param.key);
                let data = whole(state, param.key).narrow(b);
                let copy = if param.copied { tp as u32 } else { 0 };
                let mut leaf =
                    ShardedTensor::region_of(&key, DType::Float32, param.shape, b.clone());
                // All boxes of a parameter have one shape, and form a grid.
                leaf.axis_fragmentations = Some(
                    (0..b.ndim())
                        .map(|a| param.shape[a] / b.lengths[a])
                        .collect(),
                );
                let leaf = if form == ShardingType::FullyReshardable {
                    leaf.with_data(data).with_replica_id([0, copy, dp as u32])
                } else {
                    let n = b.volume().unwrap();
                    // Not in the middle.
                    let range = if dp == 0 { 0..n / 3 } else { n / 3..n };
                    let elements = data.to_vec::<f32>().unwrap();
                    let part = elements[range.start as usize..range.end as usize].to_vec();
                    leaf.flattened_range = Some(range);
                    leaf.with_data(Tensor::from_vec(&[part.len() as u64], part).unwrap())
                        .with_replica_id([0, copy, 0])
                };
                out.insert(format!("{i}.{j}.{state}"), leaf);
            }
        }
    }
}

/// The state of each of four ranks, to which `change` may do something.
pub(crate) fn saved(form: ShardingType, url: &str, change: impl Fn(&mut StateDict)) {
    save(&states(form, change), Dialect::Megatron, url);
}

/// The same in zarr.
pub(crate) fn saved_in_zarr(form: ShardingType, url: &str) {
    let states = states(form, |_| ());
    save_with(&states, Dialect::Megatron, CommonForm::File, "zarr", url);
}

fn states(form: ShardingType, change: impl Fn(&mut StateDict)) -> Vec<StateDict> {
    let state = |rank: u64| {
        let (tp, dp) = (rank % 2, rank / 2);
        let mut state = StateDict::new();
        state.insert_tree("model", weights(tp, dp));
        state.insert_tree("optimizer", optimizer(form, tp, dp));
        state.insert("iteration", 5);
        change(&mut state);
        state
    };
    (0..4).map(state).collect()
}

fn save(states: &[StateDict], dialect: Dialect, url: &str) {
    save_with(states, dialect, CommonForm::File, "torch_dist", url);
}

fn save_with(states: &[StateDict], dialect: Dialect, form: CommonForm, format: &str, url: &str) {
    let groups = LocalGroup::new(states.len() as u32);
    let saves = groups.iter().zip(states).map(|(group, state)| {
        let save = reshard::save(state, url).group(group).dialect(dialect);
        let settings = serde_json::json!({ "format": format });
        let save = save.strategy(
            serde_json::from_value::<reshard::strategy::SaveShardedStrategy>(settings).unwrap(),
        );
        let save = save.common_form(form);
        async move { save.await }
    });
    for report in block_on(join_all(saves)) {
        report.unwrap();
    }
}

/// Two optimizers in a chain. The parameters of the second one are called `expert.{key}`.
pub(crate) fn saved_chained(form: ShardingType, url: &str) {
    let state = |rank: u64| {
        let (tp, dp) = (rank % 2, rank / 2);
        let child = |i: u64| {
            let mut state = optimizer(form, tp, dp);
            state.visit_mut(&mut |_, leaf| match leaf {
                Leaf::Tensor(t) if i == 1 && !form.is_by_bucket() => {
                    let (front, name) = t.key.split_at("optimizer.state.".len());
                    let (name, key) = name.split_once('.').unwrap();
                    t.key = format!("{front}{name}.expert.{key}").into();
                }
                _ => {}
            });
            reshard::model::add_prefix_for_sharding(&mut state, &format!("chained_{i}."));
            (Step::Index(i), state)
        };
        let mut state = StateDict::new();
        state.insert_tree("optimizer", Tree::Dict([child(0), child(1)].into()));
        state
    };
    save(
        &(0..4).map(state).collect::<Vec<_>>(),
        Dialect::Megatron,
        url,
    );
}

/// The layout of a chain's buckets.
pub(crate) fn layout_of_chain() -> BucketLayout {
    let mut out = BucketLayout::new();
    for chained in 0..2 {
        for mut param in layout().params {
            param.chained = Some(chained);
            for piece in param.pieces.iter_mut().filter(|_| chained == 1) {
                piece.key = format!("expert.{}", piece.key).into();
            }
            out.params.push(param);
        }
    }
    out
}

/// By buckets, with common state as Megatron Core 0.19 and later keep it.
pub(crate) fn saved_with_common_object(url: &str) {
    let state = |rank: u64| {
        let mut state = StateDict::new();
        let form = ShardingType::DpReshardable;
        state.insert_tree("optimizer", optimizer(form, rank % 2, rank / 2));
        state
    };
    let states: Vec<StateDict> = (0..4).map(state).collect();
    let dialect = Dialect::Megatron;
    save_with(&states, dialect, CommonForm::Object, "torch_dist", url);
}

/// What Megatron-FSDP stores, in PyTorch's dialect: state by parameter and name.
pub(crate) fn saved_by_fsdp(url: &str) {
    let states: Vec<StateDict> = (0..2)
        .map(|rank: u64| {
            let mut state = StateDict::new();
            let mut meta = StateDict::new();
            for key in ["embedding.w", "layers.w", "fc1", "norm"] {
                let mut of_param = StateDict::new();
                for name in ["exp_avg", "exp_avg_sq"] {
                    let whole = whole(name, key);
                    let mut region = Region::whole(whole.shape());
                    let rows = region.lengths[0];
                    let (from, to) = (rows * rank / 2, rows * (rank + 1) / 2);
                    (region.offsets[0], region.lengths[0]) = (from, to - from);
                    let leaf = ShardedTensor::region_of(
                        &format!("optimizer.state.{key}.{name}"),
                        DType::Float32,
                        whole.shape(),
                        region.clone(),
                    );
                    of_param.insert(name, leaf.with_data(whole.narrow(&region)));
                }
                state.insert_tree(key, of_param);
                let mut group = StateDict::new();
                group.insert("lr", 0.5);
                meta.insert_tree(key, group);
            }
            let mut optimizer = StateDict::new();
            optimizer.insert_tree("state", state);
            optimizer.insert_tree("param_to_group_meta", meta);
            let mut out = StateDict::new();
            out.insert_tree("optimizer", optimizer);
            out
        })
        .collect();
    save(&states, Dialect::Dcp, url);
}

/// All leaves of a state for which `f` says so are removed.
pub(crate) fn remove(state: &mut StateDict, f: impl Fn(&Leaf) -> bool) {
    let left = std::mem::take(state)
        .try_map::<Leaf, ()>(&mut |_, leaf| Ok((!f(&leaf)).then_some(Tree::Leaf(leaf))));
    *state = left.unwrap().unwrap_or_default();
}

/// Tensor- and data-parallel rank, by the part of the model that the state has.
pub(crate) fn rank_of(state: &StateDict) -> [u32; 2] {
    let mut found = [0, 0];
    state.visit(&mut |_, leaf| {
        if let Leaf::Tensor(t) = leaf
            && &*t.key == "norm"
        {
            found = [t.replica_id.0[1], t.replica_id.0[2]];
        }
    });
    found
}

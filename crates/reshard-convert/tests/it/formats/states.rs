//! States that a format may have trouble with, each on two ranks.

use futures::{executor::block_on, future::join_all};
use reshard::{
    BackendVersion, Checkpoint, DType, Dialect, LocalGroup, OpenOptions, Region, Registry,
    ShardedObject, ShardedTensor, StateDict, Tensor, Value, ValueTree,
    model::Leaf,
    strategy::{Capabilities, Make, SaveShardedStrategy},
};
use std::{collections::BTreeMap, future::IntoFuture};

/// A state, and the dialect in which it is saved if the format has it.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) dialect: Dialect,
    pub(crate) ranks: [StateDict; 2],
    /// All element types in it.
    pub(crate) dtypes: Vec<DType>,
    pub(crate) objects: bool,
    pub(crate) common: bool,
}

/// A tensor of any type, whose bytes all differ from their neighbours', but are no NaN of floats.
fn tensor(dtype: DType, shape: &[u64]) -> Tensor {
    let bytes = shape.iter().product::<u64>() * dtype.size();
    let byte = |i: u64| match dtype {
        DType::Bool => (i % 2) as u8,
        _ => (i * 7 % 60) as u8,
    };
    Tensor::new(dtype, shape, (0..bytes).map(byte).collect::<Vec<u8>>()).unwrap()
}

/// A tensor: its key, type and shape, and along which axis it is cut, where.
type Of<'a> = (&'a str, DType, &'a [u64], Option<(usize, u64)>);

/// Cuts tensors along an axis at an index; those of which the second rank has nothing lie on the first one alone.
fn cut(tensors: &[Of<'_>]) -> [StateDict; 2] {
    let mut states = [StateDict::new(), StateDict::new()];
    for (key, dtype, shape, at) in tensors {
        let whole = tensor(*dtype, shape);
        let path: Vec<_> = key.split('.').map(reshard::model::Step::from).collect();
        let mut put = |rank: usize, region: Region| {
            let leaf = ShardedTensor::region_of(key, *dtype, shape, region.clone());
            let leaf = leaf.with_data(whole.narrow(&region));
            states[rank].insert_at(&path, leaf.into());
        };
        let (mut low, mut high) = (Region::whole(shape), Region::whole(shape));
        match at {
            None => put(0, low),
            Some((axis, at)) => {
                low.lengths[*axis] = *at;
                high.offsets[*axis] = *at;
                high.lengths[*axis] -= at;
                put(0, low);
                put(1, high);
            }
        }
    }
    states
}

fn tensors(name: &'static str, of: &[Of<'_>]) -> Case {
    Case {
        name,
        dialect: Dialect::Dcp,
        ranks: cut(of),
        dtypes: of.iter().map(|t| t.1).collect(),
        objects: false,
        common: false,
    }
}

/// A tensor of each of these types, all cut unevenly between the ranks.
pub(crate) fn all_of(dtypes: &[DType]) -> Case {
    let of = dtypes
        .iter()
        .map(|d| (d.name(), *d, &[5, 3][..], Some((0, 2))));
    tensors("all types", &of.collect::<Vec<_>>())
}

pub(crate) fn cases() -> Vec<Case> {
    use DType as D;
    let plain: &[Of<'_>] = &[
        ("model.weight", D::Float32, &[8, 3], Some((0, 4))),
        ("model.bias", D::Float32, &[3], None),
        ("model.count", D::Int64, &[5], None),
    ];
    let mut objects = tensors("objects", plain);
    objects.objects = true;
    let more = [
        ("name", Value::from("run 7")),
        ("step", Value::from(7)),
        ("none", Value::None),
        (
            "list",
            Value::List(vec![Value::from(1), "two".into(), 0.5.into()]),
        ),
    ];
    for state in &mut objects.ranks {
        for (key, value) in more.clone() {
            state.insert(key, value);
        }
    }
    let mut strings = tensors("strings", plain);
    strings.objects = true;
    for state in &mut strings.ranks {
        state.insert("name", "run 7");
    }
    let mut megatron = tensors("megatron", plain);
    (megatron.dialect, megatron.objects, megatron.common) = (Dialect::Megatron, true, true);
    for (rank, state) in (0..).zip(&mut megatron.ranks) {
        let rng = Value::List(vec![Value::Int(7 + rank as i64)]);
        let rng = ShardedObject::new("rng_state", rng, &[2], &[rank], 0);
        state.insert("rng", rng.unwrap());
        state.insert("iteration", 1000);
        let betas = Value::List(vec![0.9.into(), 0.95.into()]);
        let args = vec![("betas".into(), betas), ("name".into(), "adam".into())];
        state.insert("args", Value::Dict(args));
    }
    vec![
        tensors("plain", plain),
        tensors(
            "small floats",
            &[
                ("a", D::BFloat16, &[6, 4], Some((0, 3))),
                ("b", D::Float16, &[3], None),
            ],
        ),
        tensors(
            "float8",
            &[
                ("a", D::Float8E4M3Fn, &[6, 4], Some((0, 3))),
                ("b", D::Float8E5M2, &[3], None),
            ],
        ),
        tensors(
            "uneven",
            &[
                ("rows", D::Float32, &[5, 4], Some((0, 3))),
                ("columns", D::Int32, &[4, 7], Some((1, 3))),
                ("deep", D::Float64, &[3, 5, 2], Some((1, 4))),
            ],
        ),
        tensors(
            "scalars",
            &[
                ("a", D::Float64, &[], None),
                ("b", D::Bool, &[], None),
                ("c", D::UInt8, &[1], None),
            ],
        ),
        tensors(
            "empty",
            &[
                ("a", D::UInt8, &[0, 4], None),
                ("b", D::Float32, &[3, 0], None),
                ("c", D::Float32, &[2], None),
            ],
        ),
        tensors("complex", &[("a", D::Complex64, &[4, 2], Some((0, 1)))]),
        objects,
        strings,
        megatron,
    ]
}

/// A key, a type, a shape, and along which axis the tensor is cut, where.
pub(crate) type Random = (String, DType, Vec<u64>, Option<(usize, u64)>);

/// These tensors in PyTorch's dialect, and these values on both ranks.
pub(crate) fn random(of: &[Random], values: Vec<Value>) -> Case {
    let of: Vec<Of<'_>> = of
        .iter()
        .map(|(key, d, shape, cut)| (&**key, *d, &**shape, *cut))
        .collect();
    let mut case = tensors("random", &of);
    case.objects = !values.is_empty();
    for (n, value) in values.into_iter().enumerate() {
        for state in &mut case.ranks {
            state.insert_tree(
                format!("value{n}"),
                ValueTree::from(value.clone()).map(&mut Leaf::Value),
            );
        }
    }
    case
}

/// All linked formats that can both save and load.
pub(crate) fn formats() -> Vec<BackendVersion> {
    let registry = Registry::linked().unwrap();
    let saves = registry
        .iter()
        .filter(|r| matches!(r.make, Make::SaveSharded(_)))
        .map(|r| BackendVersion::new(r.backend, r.version));
    saves.filter(|f| registry.load_sharded(f).is_ok()).collect()
}

pub(crate) fn strategy(format: &BackendVersion) -> SaveShardedStrategy {
    let registry = Registry::linked().unwrap();
    registry.save_sharded(format).unwrap()
}

/// The dialect in which a format gets what is in another one.
pub(crate) fn dialect(of: Dialect, can: &Capabilities) -> Dialect {
    let order = [of, Dialect::Dcp, Dialect::TensorsOnly, Dialect::Megatron];
    order.into_iter().find(|d| can.saves(*d)).unwrap()
}

/// Whether a format has a place for objects, in the dialect in which it gets those of another one.
pub(crate) fn holds_objects(format: &BackendVersion, from: Dialect) -> bool {
    let strategy = strategy(format);
    match dialect(from, &strategy.capabilities()) {
        Dialect::Megatron => true,
        Dialect::TensorsOnly => false,
        _ => strategy.can_handle_sharded_objects(),
    }
}

/// Saves a case in a format from two ranks. `None` if the format has no place for all of it.
pub(crate) fn save(case: &Case, format: &BackendVersion, url: &str) -> Option<()> {
    let can = strategy(format).capabilities();
    let objects = !case.objects || holds_objects(format, case.dialect);
    if !can.saves(case.dialect) || !objects || !case.dtypes.iter().all(|d| can.holds(*d)) {
        return None;
    }
    let registry = Registry::linked().unwrap();
    let groups = LocalGroup::new(2);
    let saves = groups.iter().zip(&case.ranks).map(|(group, state)| {
        let save = reshard::save(state, url).group(group).dialect(case.dialect);
        save.strategy(registry.save_sharded(format).unwrap())
            .into_future()
    });
    for saved in block_on(join_all(saves)) {
        match saved {
            Ok(_) => {}
            // A format may have only objects of some kinds, and says so itself.
            Err(e) if case.objects && e.kind() == reshard::ErrorKind::Unsupported => return None,
            Err(e) => unreachable!("{} in {format}: {e}", case.name),
        }
    }
    Some(())
}

/// By its format, because the name of a place need not tell it.
pub(crate) fn open(url: &str, format: &BackendVersion) -> Checkpoint {
    block_on(OpenOptions::new().format(format.clone()).open(url))
        .unwrap_or_else(|e| unreachable!("{format}: {e}"))
}

pub(crate) type Contents = BTreeMap<String, (DType, Vec<u64>, Vec<u8>)>;

/// All elements of all tensors.
pub(crate) fn contents(c: &Checkpoint) -> Contents {
    let of = |t: reshard::TensorHandle| {
        let bytes = block_on(t.read(..)).unwrap().to_bytes().to_vec();
        (t.key().to_owned(), (t.dtype(), t.shape().to_vec(), bytes))
    };
    c.tensors().map(of).collect()
}

/// Every value that is no tensor of its own, by the path to it: in objects, below their keys, and in common state. Common state becomes items where
/// there is none, so these paths are the same in any dialect.
pub(crate) fn leaves(c: &Checkpoint) -> BTreeMap<String, Value> {
    let mut out = BTreeMap::new();
    let mut add = |prefix: Option<&str>, tree: &ValueTree| {
        tree.visit(&mut |path, value| {
            let steps = path.iter().map(ToString::to_string);
            let steps: Vec<String> = prefix.map(String::from).into_iter().chain(steps).collect();
            assert!(out.insert(steps.join("."), value.clone()).is_none());
        });
    };
    for key in c.objects() {
        let value = unwrapped(c, key, block_on(c.object(key)).unwrap());
        add(Some(key), &ValueTree::from(value));
    }
    add(None, &block_on(c.common()).unwrap());
    out
}

/// Some formats put a list around the value of a cell of an array of objects, which Megatron Core's dialect has.
pub(crate) fn unwrapped(c: &Checkpoint, key: &str, value: Value) -> Value {
    let is_cell = ShardedObject::empty_from_unique_key(key).is_ok();
    if c.dialect() != Dialect::Megatron || !c.object_lists() || !is_cell {
        return value;
    }
    match value {
        Value::List(mut all) if all.len() == 1 => all.remove(0),
        value => unreachable!("{key} is no list of one: {value:?}"),
    }
}

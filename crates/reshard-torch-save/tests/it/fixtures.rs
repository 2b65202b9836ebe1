//! Files that torch 2.1 and 2.15 wrote, in both layouts: each leaf is what reading the whole file gives at its path.

use super::{open, place};
use futures::executor::block_on;
use reshard_model::{Construct, Layout, LentBuffer, Path, Payload, Region, Step, Tensor, Value};
use reshard_plan::{PlannerData, Selection};
use reshard_storage::Progress;
use reshard_strategy::{ReadCx, ReadObject, ReadTensor, StorageReader};
use reshard_torch_format::load;
use std::{fs, path::PathBuf, sync::Arc};

fn data() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../reshard-torch-format/tests/data")
}

/// What lies at a path of a value, through dicts of all kinds.
fn at<'v>(value: &'v Value, path: &[Step]) -> Option<&'v Value> {
    let Some((first, rest)) = path.split_first() else {
        return Some(value);
    };
    let pairs = match (value, first) {
        (Value::List(items), Step::Index(i)) => return at(items.get(*i as usize)?, rest),
        (Value::Dict(pairs), Step::Key(_)) => pairs,
        (Value::Opaque(o), Step::Key(_)) if matches!(o.construct, Construct::Reduce(_)) => &o.pairs,
        _ => return None,
    };
    let text = |key: &Value| match key {
        Value::Str(key) => key.to_string(),
        Value::Int(n) => n.to_string(),
        other => format!("{other:?}"),
    };
    let found = pairs.iter().find(|(key, _)| text(key) == first.to_string());
    at(&found?.1, rest)
}

/// A region of a tensor, which has one chunk.
pub(crate) fn read(reader: &Arc<dyn StorageReader>, key: &str, region: Region) -> Tensor {
    try_read(reader, key, region).unwrap()
}

pub(crate) fn try_read(
    reader: &Arc<dyn StorageReader>,
    key: &str,
    region: Region,
) -> reshard_strategy::Result<Tensor> {
    let metadata = Arc::clone(reader.metadata());
    let tensor = metadata.tensor(key).unwrap();
    let zeros = Tensor::zeros(key, tensor.dtype(), &region.lengths).unwrap();
    let Some((chunk, _)) = tensor.chunks().next() else {
        return Ok(zeros);
    };
    let whole = Region::whole(&region.lengths);
    let (lent, views) = LentBuffer::new(key, vec![zeros])
        .map_err(|(e, _)| e)
        .unwrap();
    let into = lent.regions_mut(&[(&views[0], whole)]).unwrap();
    let selection = Selection::new(chunk, tensor.dtype(), region);
    let reads = into
        .into_iter()
        .map(|into| ReadTensor::new(selection.clone(), into));
    let none = Progress::none();
    reader.permits(key)?;
    block_on(reader.read_tensors(reads.collect(), &ReadCx::new(true, &none)))?;
    Ok(lent.reclaim(views).unwrap().remove(0))
}

pub(crate) fn object(
    reader: &Arc<dyn StorageReader>,
    key: &str,
) -> reshard_strategy::Result<Value> {
    let object = reader.metadata().object(key).unwrap();
    let none = Progress::none();
    let read = block_on(reader.read_objects(&[ReadObject { object }], &ReadCx::new(true, &none)))?;
    match read.into_iter().next() {
        Some(Payload::Value(value)) => Ok(value),
        other => Err(reshard_strategy::StrategyError::Internal(format!(
            "{other:?}"
        ))),
    }
}

fn same(reader: &Arc<dyn StorageReader>, whole: &Value, what: &str) {
    let metadata = Arc::clone(reader.metadata());
    let Some(PlannerData::Paths(paths)) = metadata.planner_data() else {
        unreachable!()
    };
    for (key, path) in paths {
        let found = match &**key {
            "tensor" | "object" if at(whole, &path.0).is_none() => whole,
            _ => at(whole, &path.0).unwrap_or_else(|| unreachable!("{what}: nothing is at {key}")),
        };
        let Some(tensor) = metadata.tensor(key) else {
            assert_eq!(&object(reader, key).unwrap(), found, "{what}: {key}");
            continue;
        };
        // A parameter with attributes is an object to who reads the file, and a tensor here.
        let Value::Tensor(want) = found else { continue };
        assert_eq!(
            (tensor.dtype(), &tensor.shape()),
            (want.dtype(), want.shape())
        );
        let got = read(reader, key, Region::whole(want.shape()));
        assert!(got.to_bytes() == want.to_bytes(), "{what}: {key}");
        // A part of it is the part of the whole.
        let Some(rows) = want.shape().first().filter(|rows| **rows > 1) else {
            continue;
        };
        let mut part = Region::whole(want.shape());
        (part.offsets[0], part.lengths[0]) = (1, rows - 1);
        let got = read(reader, key, part.clone());
        assert!(
            got.to_bytes() == want.narrow(&part).to_bytes(),
            "{what}: rows of {key}"
        );
    }
}

#[test]
fn each_leaf_is_what_lies_at_its_path_in_the_whole_file() {
    let (mut read, mut old) = (0, 0);
    for folder in ["torch-2.1.2", "torch-2.15.0"] {
        let mut files: Vec<PathBuf> = fs::read_dir(data().join(folder))
            .unwrap()
            .map(|e| e.unwrap().path())
            .filter(|path| path.extension().is_some_and(|e| e == "pt"))
            .collect();
        files.sort();
        for path in files {
            let bytes = fs::read(&path).unwrap();
            let name = path.display().to_string();
            let Ok(whole) = load(bytes.clone().into()) else {
                continue;
            };
            old += usize::from(!bytes.starts_with(b"PK"));
            let reader = open(&place([("model.pt", bytes)]));
            same(&reader, &whole, &name);
            let report = block_on(reader.verify(true, &Progress::none())).unwrap();
            assert!(report.damage.is_empty(), "{name}: {report:?}");
            read += 1;
        }
    }
    assert!(
        read > 80 && old >= 8,
        "{read} files were read, {old} of them in the old layout"
    );
}

#[test]
fn a_root_that_is_one_tensor_has_a_name() {
    let bytes = fs::read(data().join("torch-2.15.0/float32.pt")).unwrap();
    let reader = open(&place([("x.pt", bytes)]));
    let keys: Vec<&str> = reader.metadata().entries().map(|e| e.key()).collect();
    assert_eq!(keys, ["tensor"]);
    let Some(PlannerData::Paths(paths)) = reader.metadata().planner_data() else {
        unreachable!()
    };
    assert_eq!(paths["tensor"], Path(vec!["tensor".into()]));
    let whole = reader.metadata().tensor("tensor").unwrap().shape();
    assert!(Layout::contiguous(4, &whole).is_some());
}

/// A storage that a zip program has packed, read row by row, backwards, and as columns.
#[test]
fn packed_storages_are_read_in_parts() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/deflated.pt");
    let reader = open(&place([("x.pt", fs::read(path).unwrap())]));
    let number = |row: u64, column: u64| ((row * 200 + column) / 5) as i32;
    let part = |key: &str, region: Region| read(&reader, key, region).to_vec::<i32>().unwrap();
    for row in [0, 7, 299, 150, 3] {
        let got = part("rows", Region::new([row, 10], [1, 4]));
        assert_eq!(got, [10, 11, 12, 13].map(|c| number(row, c)));
        let got = part("columns", Region::new([10, row], [2, 1]));
        assert_eq!(got, [10, 11].map(|c| number(row, c)));
    }
    let whole = part("rows", Region::whole(&[300, 200]));
    assert!(whole.iter().enumerate().all(|(n, e)| *e == n as i32 / 5));
    let report = block_on(reader.verify(true, &Progress::none())).unwrap();
    assert!(report.damage.is_empty(), "{report:?}");
}

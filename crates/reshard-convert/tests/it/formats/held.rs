//! A format that has no place for much.

use crate::formats::states::{cases, contents, leaves, save};
use futures::executor::block_on;
use reshard::{
    BackendVersion, Checkpoint, DType, Dialect, ErrorKind, ShardedTensor, StateDict, Tensor,
    blocking,
    strategy::{Capabilities, Result, SaveCx, SaveFormat, StorageWriter},
    torch_dist::TorchDistConfig,
};
use reshard_convert::{ConvertError, NotHeld, convert};
use std::sync::Arc;

/// torch_dist, of which only real tensors are left.
#[derive(Clone, Debug, Default)]
struct Narrow {
    items: bool,
}

impl SaveFormat for Narrow {
    fn key(&self) -> BackendVersion {
        TorchDistConfig::new().key()
    }

    fn settings(&self) -> serde_json::Value {
        serde_json::json!({ "items": self.items })
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            dtypes: |dtype| !dtype.is_complex(),
            dialects: match self.items {
                true => &[Dialect::Dcp],
                false => &[Dialect::TensorsOnly],
            },
            ..Capabilities::DEFAULT
        }
    }

    fn writer(&self, cx: &SaveCx<'_>) -> Result<Arc<dyn StorageWriter>> {
        TorchDistConfig::new().writer(cx)
    }
}

fn saved(case: &str, url: &str) -> Checkpoint {
    let case = cases().into_iter().find(|c| c.name == case).unwrap();
    save(&case, &BackendVersion::new("torch_dist", 1), url).unwrap();
    block_on(Checkpoint::open(url)).unwrap()
}

#[test]
fn what_has_no_place_is_refused_by_name_or_left_out() {
    for (case, names) in [
        ("objects", &["name", "step"][..]),
        (
            "megatron",
            &["rng_state/shard_0_2", "rng_state/shard_1_2", "common state"],
        ),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let [src, dst] = ["src", "dst"].map(|name| dir.path().join(name).display().to_string());
        let source = saved(case, &src);
        let error = blocking::run(convert(&source, &dst).strategy(Narrow::default())).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        for name in names {
            assert!(error.to_string().contains(name), "{error}");
        }
        let ConvertError::NotHeld { what, .. } = error else {
            unreachable!("{error}")
        };
        assert!(!std::path::Path::new(&dst).exists());
        let some = convert(&source, &dst)
            .strategy(Narrow::default())
            .drop_objects(true);
        let report = blocking::run(some).unwrap();
        assert_eq!(report.dropped, what);
        let there = block_on(Checkpoint::open(&dst)).unwrap();
        assert_eq!(there.objects().count(), 0);
        assert_eq!(contents(&there), contents(&source));
    }
}

#[test]
fn a_copy_that_would_be_empty_is_refused_and_replaces_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let [src, dst] = ["src", "dst"].map(|name| dir.path().join(name).display().to_string());
    let source = saved("complex", &src);
    let error = blocking::run(convert(&source, &dst).strategy(Narrow::default())).unwrap_err();
    let named = "the tensor a of type complex64";
    assert!(error.to_string().contains(named), "{error}");
    let old = saved("plain", &dst);
    let none = || {
        convert(&source, &dst)
            .strategy(Narrow::default())
            .drop_objects(true)
    };
    let error = blocking::run(none().overwrite(true)).unwrap_err();
    assert!(
        matches!(error, ConvertError::NothingLeft { items: 1, .. }),
        "{error}"
    );
    assert_eq!(error.kind(), ErrorKind::NotFound);
    let why = "no place for complex64";
    assert!(error.to_string().contains(why), "{error}");
    let still = block_on(Checkpoint::open(&dst)).unwrap();
    assert_eq!(contents(&still), contents(&old));
}

/// The value of each object.
fn objects(c: &Checkpoint) -> Vec<(String, reshard::Value)> {
    let keys: Vec<String> = c.objects().map(str::to_owned).collect();
    let read = |key: String| (key.clone(), block_on(c.object(&key)).unwrap());
    keys.into_iter().map(read).collect()
}

#[test]
fn objects_are_kept_beside_tensors_if_asked_to_and_come_back() {
    let safetensors = || BackendVersion::new("safetensors", 1);
    for case in ["objects", "megatron"] {
        for (ranks, setting) in [
            (1, None),
            (3, Some(("max_shard_size", "20B".into()))),
            (2, Some(("sharded", serde_json::Value::Bool(true)))),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let url = |name: &str| dir.path().join(name).display().to_string();
            let source = saved(case, &url("src"));
            let there = url("there");
            let mut to = convert(&source, &there).to(safetensors()).ranks(ranks);
            if let Some((name, value)) = setting {
                to = to.setting(name, value);
            }
            let report = blocking::run(to.keep_objects(true)).unwrap();
            assert!(report.dropped.is_empty(), "{:?}", report.dropped);
            let there = block_on(Checkpoint::open(&there)).unwrap();
            assert_eq!(there.dialect(), Dialect::Dcp);
            assert_eq!(contents(&there), contents(&source));
            assert_eq!(report.objects, there.objects().count() as u64);
            assert_eq!(leaves(&there), leaves(&source));

            let back = url("back");
            blocking::run(convert(&there, &back)).unwrap();
            let back = block_on(Checkpoint::open(&back)).unwrap();
            assert_eq!(contents(&back), contents(&source));
            assert_eq!(objects(&back), objects(&there));
        }
    }
}

#[test]
fn what_has_no_place_even_then_is_refused_or_left_out() {
    let dir = tempfile::tempdir().unwrap();
    let url = |name: &str| dir.path().join(name).display().to_string();
    let source = saved("objects", &url("src"));
    let file = url("model.safetensors");
    let error = blocking::run(convert(&source, &file).keep_objects(true)).unwrap_err();
    assert!(matches!(error, ConvertError::NotHeld { .. }), "{error}");
    let to = convert(&source, &file)
        .keep_objects(true)
        .drop_objects(true);
    assert_eq!(blocking::run(to).unwrap().dropped.len(), 4);

    // Folders of several files of torch.save hold only tensors; a single file has objects.
    let torch_save = |to: &'static str| {
        let to = url(to);
        move |drop: bool, source: &Checkpoint| {
            let to = convert(source, &to)
                .to(BackendVersion::new("torch_save", 1))
                .max_shard_size(20)
                .drop_objects(drop);
            blocking::run(to).map(|report| report.dropped.len())
        }
    };
    let folder = torch_save("bin");
    let error = folder(false, &source).unwrap_err();
    assert!(matches!(error, ConvertError::NotHeld { .. }), "{error}");
    assert_eq!(folder(true, &source).unwrap(), 4);
    let there = block_on(Checkpoint::open(&url("bin"))).unwrap();
    assert_eq!(there.objects().count(), 0);
    assert_eq!(contents(&there), contents(&source));
}

#[test]
fn complex_tensors_have_a_place_nowhere_but_where_the_format_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let [src, dst] = ["src", "dst"].map(|name| dir.path().join(name).display().to_string());
    let source = saved("complex", &src);
    let error = blocking::run(convert(&source, &dst).strategy(Narrow::default())).unwrap_err();
    let ConvertError::NotHeld { what, .. } = error else {
        unreachable!("{error}")
    };
    assert_eq!(what, [NotHeld::Tensor("a".into(), DType::Complex64)]);
}

#[test]
fn common_state_becomes_items_where_there_is_no_common_state() {
    let dir = tempfile::tempdir().unwrap();
    let [src, dst] = ["src", "dst"].map(|name| dir.path().join(name).display().to_string());
    let source = saved("megatron", &src);
    let report = blocking::run(convert(&source, &dst).strategy(Narrow { items: true })).unwrap();
    assert!(report.dropped.is_empty());
    let there = block_on(Checkpoint::open(&dst)).unwrap();
    assert_eq!(there.dialect(), Dialect::Dcp);
    assert_eq!(contents(&there), contents(&source));
    assert_eq!(leaves(&there), leaves(&source));
    assert_eq!(block_on(there.object("iteration")).unwrap(), 1000.into());
    let state = block_on(there.state()).unwrap();
    // Keys of tensors stay what they were; common state keeps its nesting.
    assert!(state.get("model.weight").is_some());
    assert_eq!(
        state.get("iteration").and_then(|v| v.leaf()?.as_int()),
        Some(1000)
    );
}

#[test]
fn floats_are_cast_and_what_is_lost_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let [src, dst] = ["src", "dst"].map(|name| dir.path().join(name).display().to_string());
    let mut state = StateDict::new();
    let floats = Tensor::from_vec(&[2, 2], vec![1f32, 1e9, 0.1, 0.0]).unwrap();
    state.insert("w", ShardedTensor::full("w", floats));
    let ints = Tensor::from_vec(&[2], vec![1i64, i64::MAX]).unwrap();
    state.insert("n", ShardedTensor::full("n", ints.clone()));
    let half = Tensor::from_vec(&[2], vec![1f32, 0.1]).unwrap();
    let half = half.cast(DType::Float16).unwrap();
    state.insert("h", ShardedTensor::full("h", half.clone()));
    blocking::save(&state, &src).unwrap();
    let source = block_on(Checkpoint::open(&src)).unwrap();

    // Also those that no float can be.
    for dtype in [DType::Int8, DType::Float8E8M0Fnu, DType::Complex64] {
        let error = blocking::run(convert(&source, &dst).dtype(dtype)).unwrap_err();
        assert!(
            matches!(error, ConvertError::DType(d) if d == dtype),
            "{error}"
        );
    }
    let report = blocking::run(convert(&source, &dst).dtype(DType::Float16).ranks(2)).unwrap();
    let [cast] = &*report.casts else {
        unreachable!("{:?}", report.casts)
    };
    assert_eq!(
        (&*cast.key, cast.from, cast.to),
        ("w", DType::Float32, DType::Float16)
    );
    assert_eq!(
        (
            cast.elements,
            cast.overflowed,
            cast.underflowed,
            cast.inexact
        ),
        (4, 1, 0, 2)
    );
    let there = block_on(Checkpoint::open(&dst)).unwrap();
    let read = |key: &str| block_on(there.tensor(key).unwrap().read(..)).unwrap();
    let bits = read("w").to_bytes();
    assert_eq!(&bits[..], [0x00, 0x3c, 0x00, 0x7c, 0x66, 0x2e, 0, 0]);
    assert_eq!(read("n").to_bytes(), ints.to_bytes());
    assert_eq!(read("h").to_bytes(), half.to_bytes());
}

/// Only with a prefix it has none: beside such files common state would belong to other checkpoints, too.
#[test]
fn a_folder_of_tensorflows_files_has_megatron_cores_dialect() {
    let dir = tempfile::tempdir().unwrap();
    let [src, dst] = ["src", "dst"].map(|name| dir.path().join(name).display().to_string());
    let source = saved("megatron", &src);
    let to = reshard::tensor_bundle::TensorBundleConfig::default().with_in_folder("ckpt");
    let report = blocking::run(convert(&source, &dst).strategy(to)).unwrap();
    assert!(report.dropped.is_empty());
    let there = block_on(Checkpoint::open(&dst)).unwrap();
    assert_eq!(there.dialect(), Dialect::Megatron);
    assert_eq!(contents(&there), contents(&source));
    assert_eq!(leaves(&there), leaves(&source));
    assert!(block_on(there.common()).unwrap().get("iteration").is_some());
}

#[test]
fn settings_are_those_of_the_format() {
    let dir = tempfile::tempdir().unwrap();
    let [src, dst] = ["src", "dst"].map(|name| dir.path().join(name).display().to_string());
    let source = saved("plain", &src);
    let to = |format: &str| convert(&source, &dst).to(BackendVersion::new(format, 1));
    let error = blocking::run(to("zarr3").files_per_rank(2)).unwrap_err();
    assert!(
        matches!(&error, ConvertError::Setting { setting, .. } if setting == "files_per_rank"),
        "{error}"
    );
    assert_eq!(error.kind(), ErrorKind::Invalid);
    let error = blocking::run(to("nobodys")).unwrap_err();
    assert!(matches!(error, ConvertError::Target(_)), "{error}");
    assert!(!std::path::Path::new(&dst).exists());
    let done = blocking::run(to("zarr3").setting("inner_chunk", "1KiB")).unwrap();
    assert_eq!(done.format, BackendVersion::new("zarr3", 1));
}

#[test]
fn the_name_of_a_file_chooses_its_format() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let source = saved("plain", &path("src"));
    let dst = path("model.pt");
    let done = blocking::run(convert(&source, &dst)).unwrap();
    assert_eq!(done.format, BackendVersion::new("torch_save", 1));
    assert!(std::path::Path::new(&dst).is_file());
    let there = block_on(Checkpoint::open(&dst)).unwrap();
    assert_eq!(contents(&there), contents(&source));
    let again = blocking::run(convert(&source, &dst)).unwrap_err();
    assert_eq!(again.kind(), ErrorKind::Exists, "{again}");
    blocking::run(convert(&source, &dst).overwrite(true)).unwrap();

    let dst = path("model.safetensors");
    let done = blocking::run(convert(&source, &dst)).unwrap();
    assert_eq!(done.format, BackendVersion::new("safetensors", 1));
    assert!(std::path::Path::new(&dst).is_file());
    assert_eq!(
        contents(&block_on(Checkpoint::open(&dst)).unwrap()),
        contents(&source)
    );
    let folder = path("folder");
    let to = BackendVersion::new("safetensors", 1);
    blocking::run(convert(&source, &folder).to(to)).unwrap();
    let file = format!("{folder}/model.safetensors");
    let there = block_on(Checkpoint::open(&file)).unwrap();
    assert_eq!(contents(&there), contents(&source));
    let back = path("back");
    let done = blocking::run(convert(&there, &back)).unwrap();
    assert_eq!(done.format, BackendVersion::new("torch_dist", 1));
    assert_eq!(
        contents(&block_on(Checkpoint::open(&back)).unwrap()),
        contents(&source)
    );
}

#[test]
fn files_of_ranks_become_whole_tensors_of_all_types_and_again_files_of_ranks() {
    let safetensors = BackendVersion::new("safetensors", 1);
    let mut types = std::collections::BTreeSet::new();
    for case in cases().iter().filter(|case| !case.objects) {
        let dir = tempfile::tempdir().unwrap();
        let url = |name: &str| dir.path().join(name).display().to_string();
        let (src, sharded, whole, again) = (url("src"), url("sharded"), url("whole"), url("again"));
        save(case, &BackendVersion::new("torch_dist", 1), &src).unwrap();
        let mut from = block_on(Checkpoint::open(&src)).unwrap();
        let wanted = contents(&from);
        for (to, in_pieces) in [(&sharded, true), (&whole, false), (&again, true)] {
            let conversion = convert(&from, to).to(safetensors.clone()).ranks(2);
            let conversion = conversion.setting("sharded", in_pieces);
            blocking::run(conversion).unwrap_or_else(|e| unreachable!("{}: {e}", case.name));
            from = block_on(Checkpoint::open(to)).unwrap();
            assert_eq!(contents(&from), wanted, "{}", case.name);
            // What has rows is cut by them.
            for tensor in from.tensors() {
                let cut = in_pieces && tensor.shape().first().is_some_and(|rows| *rows > 1);
                let chunks = tensor
                    .chunks()
                    .iter()
                    .filter(|c| !c.region.is_empty())
                    .count();
                let pieces = usize::from(!tensor.shape().contains(&0)) << u32::from(cut);
                assert_eq!(chunks, pieces, "{}: {}", case.name, tensor.key());
            }
        }
        types.extend(wanted.into_values().map(|(dtype, ..)| dtype.name()));
    }
    for dtype in [
        "bool",
        "float8_e4m3fn",
        "float8_e5m2",
        "bfloat16",
        "complex64",
    ] {
        assert!(types.contains(dtype), "{types:?}");
    }
}

//! Element types: each that a format holds is carried over, and floats are cast on the way.

use crate::formats::states::{Contents, all_of, cases, contents, formats, open, save, strategy};
use futures::executor::block_on;
use reshard::{BackendVersion, Checkpoint, DType, blocking};
use reshard_convert::convert;

/// The types that both formats hold.
fn held(formats: [&BackendVersion; 2]) -> Vec<DType> {
    let can = formats.map(|f| strategy(f).capabilities());
    let all = DType::ALL.iter().copied();
    all.filter(|d| can.iter().all(|c| c.holds(*d))).collect()
}

#[test]
fn files_of_ranks_become_whole_tensors_of_every_type_that_the_format_holds() {
    let torch_dist = BackendVersion::new("torch_dist", 1);
    for to in formats() {
        let dtypes = held([&torch_dist, &to]);
        assert!(dtypes.len() >= 14, "{to}: {dtypes:?}");
        let dir = tempfile::tempdir().unwrap();
        let url = |name: &str| dir.path().join(name).display().to_string();
        let (src, there, back) = (url("src"), url("there"), url("back"));
        save(&all_of(&dtypes), &torch_dist, &src).unwrap();
        let source = open(&src, &torch_dist);
        let chunks = |c: &Checkpoint| c.tensors().map(|t| t.chunks().len()).max();
        assert_eq!(chunks(&source), Some(2));
        let wanted = contents(&source);
        assert_eq!(wanted.len(), dtypes.len());

        blocking::run(convert(&source, &there).to(to.clone())).unwrap();
        let there = open(&there, &to);
        assert_eq!(contents(&there), wanted, "{to}");
        blocking::run(convert(&there, &back).to(torch_dist.clone())).unwrap();
        let back = open(&back, &torch_dist);
        assert_eq!((contents(&back), chunks(&back)), (wanted, Some(1)), "{to}");
    }
}

/// Its files of ranks are those of PyTorch's `HuggingFaceStorageWriter`.
#[test]
fn pytorchs_files_of_ranks_become_one_file_with_every_type_of_safetensors() {
    let safetensors = BackendVersion::new("safetensors", 1);
    let dtypes = held([&safetensors, &BackendVersion::new("torch_dist", 1)]);
    let dir = tempfile::tempdir().unwrap();
    let url = |name: &str| dir.path().join(name).display().to_string();
    let (src, sharded, whole) = (url("src"), url("sharded"), url("whole"));
    let torch_dist = BackendVersion::new("torch_dist", 1);
    save(&all_of(&dtypes), &torch_dist, &src).unwrap();
    let source = open(&src, &torch_dist);
    let to = |from, to| convert(from, to).to(safetensors.clone());
    let conversion = to(&source, &sharded).setting("sharded", true).ranks(2);
    blocking::run(conversion).unwrap();
    let sharded = open(&sharded, &safetensors);
    assert!(sharded.tensors().all(|t| t.chunks().len() == 2));
    blocking::run(to(&sharded, &whole)).unwrap();
    let whole = open(&whole, &safetensors);
    assert!(whole.tensors().all(|t| t.chunks().len() == 1));
    assert_eq!(contents(&whole), contents(&source));
}

#[test]
fn floats_in_uneven_pieces_are_cast_between_all_formats() {
    let to_dtype = DType::BFloat16;
    let uneven = cases().into_iter().find(|c| c.name == "uneven").unwrap();
    let mut pairs = 0;
    for from in formats() {
        let dir = tempfile::tempdir().unwrap();
        let url = |name: String| dir.path().join(name).display().to_string();
        let src = url("src".into());
        save(&uneven, &from, &src).unwrap();
        let source = open(&src, &from);
        let cast = |t: reshard::TensorHandle| {
            let mut read = block_on(t.read(..)).unwrap();
            if [DType::Float32, DType::Float64].contains(&t.dtype()) {
                read = read.cast(to_dtype).unwrap();
            }
            let bytes = read.to_bytes().to_vec();
            (
                t.key().to_owned(),
                (read.dtype(), t.shape().to_vec(), bytes),
            )
        };
        let wanted: Contents = source.tensors().map(cast).collect();
        for to in formats() {
            let dst = url(to.backend.to_string());
            let conversion = convert(&source, &dst).to(to.clone()).ranks(3);
            let report = blocking::run(conversion.dtype(to_dtype)).unwrap();
            assert_eq!(report.casts.len(), 2, "{from} to {to}");
            assert_eq!(contents(&open(&dst, &to)), wanted, "{from} to {to}");
            pairs += 1;
        }
    }
    assert!(pairs >= 36, "{pairs}");
}

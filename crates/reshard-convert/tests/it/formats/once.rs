//! What a conversion reads of its source, and how often.

use crate::formats::states::contents;
use futures::executor::block_on;
use reshard::{
    BackendVersion, Checkpoint, DType, Dialect, ErrorKind, OpenOptions, Registry, StateDict,
    Tensor, Value, blocking,
    map::MapFile,
    storage::{LocalStore, Store},
};
use reshard_convert::{ConvertError, convert};
use reshard_storage::CountingStore;
use std::{collections::BTreeMap, error::Error, path::Path, sync::Arc};

/// Bytes of the large tensor.
const BYTES: u64 = 4 << 20;

/// Formats that have a checksum of the elements of each tensor.
const SUMMED: [(&str, u32); 4] = [
    ("torch_dist", 1),
    ("safetensors", 1),
    ("torch_save", 1),
    ("tensor_bundle", 2),
];

fn save(state: &StateDict, (format, version): (&str, u32), url: &str) {
    let config = Registry::linked()
        .unwrap()
        .save_sharded(&BackendVersion::new(format, version))
        .unwrap();
    let save = reshard::save(state, url).dialect(Dialect::TensorsOnly);
    blocking::run(save.strategy(config)).unwrap();
}

/// Opens a folder, and counts what is read of it.
fn counted(url: &str) -> (Checkpoint, CountingStore) {
    let store: Arc<dyn Store> = Arc::new(LocalStore::at(Path::new(url)).unwrap());
    let counting = CountingStore::new(store);
    let options = OpenOptions::new().store(Arc::new(counting.clone()));
    (block_on(options.open(url)).unwrap(), counting)
}

/// Changes a bit of a stored tensor, so many bytes behind its beginning.
fn damage(dir: &Path, source: &Checkpoint, key: &str, at: u64) -> String {
    let part = source.tensor(key).unwrap().chunks()[0].parts[0].clone();
    let name = part.file.to_string();
    // The names of files with a common prefix do not have it.
    let places = [dir.join("src").join(&name), dir.join(format!("src{name}"))];
    let file = places.iter().find(|file| file.is_file());
    let file = file.ok_or(format!("{name} is nowhere")).unwrap();
    let mut bytes = std::fs::read(file).unwrap();
    bytes[(part.range.start + at) as usize] ^= 1;
    std::fs::write(file, bytes).unwrap();
    name
}

/// What an error and its sources say.
fn told(error: &ConvertError) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(e) = source {
        text = format!("{text}: {e}");
        source = e.source();
    }
    text
}

#[test]
fn elements_with_checksums_are_read_once_and_checked_on_the_way() {
    for format in SUMMED {
        let dir = tempfile::tempdir().unwrap();
        let url = |name: &str| dir.path().join(name).display().to_string();
        let (src, dst) = (url("src"), url("dst"));
        let numbers = (0..BYTES / 4).map(|n| n as i32).collect();
        let mut state = StateDict::new();
        state.insert(
            "w",
            Tensor::from_vec(&[1 << 10, BYTES >> 12], numbers).unwrap(),
        );
        state.insert("v", Tensor::from_vec(&[3], vec![1i64, 2, 3]).unwrap());
        save(&state, format, &src);

        let (source, counting) = counted(&src);
        for ranks in [1, 3] {
            counting.take();
            let to = BackendVersion::new("torch_dist", 1);
            let conversion = convert(&source, &dst).to(to).ranks(ranks);
            blocking::run(conversion.overwrite(true)).unwrap();
            let read = counting.take().read();
            assert!(
                (BYTES..BYTES + BYTES / 4).contains(&read),
                "{format:?}: {read}"
            );
            let there = block_on(Checkpoint::open(&dst)).unwrap();
            assert!(contents(&there) == contents(&source), "{format:?}");
        }

        let file = damage(dir.path(), &source, "w", BYTES / 2);
        let (source, _) = counted(&src);
        let to = url("nowhere");
        let error = blocking::run(convert(&source, &to)).unwrap_err();
        assert!(
            matches!(error, ConvertError::Write(_)),
            "{format:?}: {error}"
        );
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{format:?}: {error}");
        let text = told(&error);
        assert!(
            text.contains(&file) && text.contains("w: the CRC-32"),
            "{text}"
        );
        assert!(!Path::new(&to).exists());
    }
}

/// Two layers of `BYTES` together, whose rows are halves by turns.
fn layers() -> StateDict {
    let mut state = StateDict::new();
    for layer in 0..2i32 {
        let numbers = (0..1 << 19).map(|n| n ^ layer).collect();
        let key = format!("layers.{layer}.fc1");
        state.insert(
            key.as_str(),
            Tensor::from_vec(&[256, 2048], numbers).unwrap(),
        );
    }
    state
}

const GATED: &str = "
    [[rule]]
    deinterleave = 'layers.{i#}.fc1'
    groups = 2
    sizes = [64, 64]
    [[rule]]
    split = 'layers.{i#}.fc1'
    to = ['h.{i}.gate', 'h.{i}.up']
    [[rule]]
    stack = 'h.{i#}.{half}'
    to = 'h.{half}'
    index = 'i'
";

/// Reads every other row, and what lies between, twice.
const BY_TURNS: &str = "
    [[rule]]
    deinterleave = 'layers.{i#}.fc1'
    groups = 128
    sizes = [1, 1]
    [[rule]]
    split = 'layers.{i#}.fc1'
    to = ['h.{i}.gate', 'h.{i}.up']
";

/// Cuts off the last rows, and reads the others as they are.
const TRIMMED: &str = "
    [[rule]]
    trim = 'layers.0.fc1'
    from = 256
    to = 200
";

/// Reads columns, which are short.
const TRANSPOSED: &str = "
    [[rule]]
    transpose = 'layers.{i#}.fc1'
    axes = [1, 0]
";

#[test]
fn a_map_reads_elements_once_and_what_it_does_not_read_as_a_whole_is_checked_before_the_commit() {
    for (rules, most) in [
        (GATED, BYTES),
        (BY_TURNS, BYTES * 2),
        (TRIMMED, BYTES * 3 / 2),
        (TRANSPOSED, BYTES * 2),
    ] {
        for format in SUMMED {
            let dir = tempfile::tempdir().unwrap();
            let url = |name: &str| dir.path().join(name).display().to_string();
            let (src, dst) = (url("src"), url("dst"));
            save(&layers(), format, &src);
            let map = MapFile::parse(rules).unwrap();
            let map = map.bind(&BTreeMap::new()).unwrap();
            let (source, counting) = counted(&src);
            for ranks in [1, 3] {
                counting.take();
                let to = BackendVersion::new("torch_dist", 1);
                let conversion = convert(&source, &dst).to(to).ranks(ranks);
                blocking::run(conversion.map(map.clone()).overwrite(true)).unwrap();
                let read = counting.take().read();
                assert!(
                    (BYTES / 2..most + BYTES / 8).contains(&read),
                    "{format:?} {ranks} {rules}: {read}"
                );
            }
            let there = block_on(Checkpoint::open(&dst)).unwrap();
            let mapped = source.mapped(&map).unwrap();
            assert!(
                block_on(there.load_plain_tensors()).unwrap()
                    == block_on(mapped.load_plain_tensors()).unwrap()
            );

            // Among the rows that are trimmed.
            let file = damage(dir.path(), &source, "layers.0.fc1", BYTES / 2 - 9);
            let (source, _) = counted(&src);
            let to = url("nowhere");
            let error = blocking::run(convert(&source, &to).map(map)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{format:?}: {error}");
            let text = told(&error);
            assert!(
                [&*file, "layers.0.fc1", "CRC-32"]
                    .iter()
                    .all(|what| text.contains(what)),
                "{format:?} {rules}: {text}"
            );
            assert!(!Path::new(&to).exists());
        }
    }
}

/// The first stored byte of a tensor.
fn place(checkpoint: &Checkpoint, key: &str) -> u64 {
    checkpoint.tensor(key).unwrap().chunks()[0].parts[0]
        .range
        .start
}

#[test]
fn tied_tensors_of_a_file_of_torch_are_read_once() {
    let dir = tempfile::tempdir().unwrap();
    let url = |name: &str| dir.path().join(name).display().to_string();
    let (src, dst) = (url("src.pt"), url("dst.pt"));
    let numbers = (0..BYTES / 4).map(|n| n as i32).collect();
    let tied = Tensor::from_vec(&[BYTES / 4], numbers).unwrap();
    let mut state = StateDict::new();
    state.insert("embed", Value::Tensor(tied.clone()));
    state.insert("head", Value::Tensor(tied));
    save(&state, ("torch_save", 1), &src);
    let (source, counting) = counted(&src);
    counting.take();
    blocking::run(convert(&source, &dst)).unwrap();
    let read = counting.take().read();
    assert!((BYTES..BYTES + BYTES / 4).contains(&read), "{read}");
}

#[test]
fn tied_tensors_of_a_file_of_torch_stay_tied_and_are_stored_once() {
    let dir = tempfile::tempdir().unwrap();
    let url = |name: &str| dir.path().join(name).display().to_string();
    let (src, dst) = (url("src.pt"), url("dst.pt"));
    let numbers = || Tensor::from_vec(&[64, 32], (0..2048i32).collect()).unwrap();
    let tied = numbers();
    let mut state = StateDict::new();
    state.insert("embed", Value::Tensor(tied.clone()));
    state.insert("head", Value::Tensor(tied.clone()));
    state.insert("copy", Value::Tensor(numbers()));
    save(&state, ("torch_save", 1), &src);

    let source = block_on(Checkpoint::open(&src)).unwrap();
    let report = blocking::run(convert(&source, &dst)).unwrap();
    assert_eq!(report.format, BackendVersion::new("torch_save", 1));
    let there = block_on(Checkpoint::open(&dst)).unwrap();
    assert!(contents(&there) == contents(&source));
    for checkpoint in [&source, &there] {
        let of = |key| place(checkpoint, key);
        assert_eq!(of("embed"), of("head"));
        assert_ne!(
            of("embed"),
            of("copy"),
            "equal numbers are not the same ones"
        );
    }
    let length = |file: &str| std::fs::metadata(file).unwrap().len();
    assert_eq!(length(&dst), length(&src));

    // What is cast, or cut for several ranks, has its own elements each, and the right ones.
    let cast = url("cast.pt");
    blocking::run(convert(&source, &cast).ranks(2)).unwrap();
    let there = block_on(Checkpoint::open(&cast)).unwrap();
    assert!(contents(&there) == contents(&source));
    assert_ne!(place(&there, "embed"), place(&there, "head"));
    let floats = Tensor::from_vec(&[4], vec![1f32, 2., 3., 4.]).unwrap();
    let mut state = StateDict::new();
    state.insert("a", Value::Tensor(floats.clone()));
    state.insert("b", Value::Tensor(floats));
    let src = url("floats.pt");
    save(&state, ("torch_save", 1), &src);
    let source = block_on(Checkpoint::open(&src)).unwrap();
    let to = convert(&source, &cast)
        .dtype(DType::BFloat16)
        .overwrite(true);
    let report = blocking::run(to).unwrap();
    assert_eq!(report.casts.len(), 2);
    let there = block_on(Checkpoint::open(&cast)).unwrap();
    let all = contents(&there);
    assert_eq!(all["a"], all["b"]);
    assert_eq!(all["a"].0, DType::BFloat16);
}

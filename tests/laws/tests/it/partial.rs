//! Only what is wanted is read.

use proptest::prelude::*;
use reshard::storage::{LocalStore, Store};
use reshard::{
    DType, Dialect, OpenOptions, Region, ShardedTensor, StateDict, Tensor,
    safetensors::{SafetensorsConfig, SafetensorsLoadConfig},
    strategy::SaveShardedStrategy,
    tensor_bundle::TensorBundleConfig,
    torch_save::TorchSaveConfig,
};
use reshard_laws::{
    contents::{Choices, Contents, Global, choices},
    law,
    place::{Place, stores},
    ranks::{group, load, save},
};
use reshard_storage::{CountingStore, testkit::MemoryStore};
use std::sync::Arc;

const HEADERS_PER_ITEM: u64 = 4 << 10;

fn matrix(key: &str, dtype: DType, rows: u64, columns: u64) -> Global {
    Global {
        key: key.into(),
        dtype,
        shape: vec![rows, columns],
        salt: 17,
        prepended: false,
    }
}

fn contents(tensors: Vec<Global>) -> Contents {
    Contents {
        tensors,
        objects: false,
        extra: reshard::Value::Dict(Vec::new()),
    }
}

/// A store that counts, on disk or in memory, and its place.
fn counting(dir: Option<&tempfile::TempDir>) -> (CountingStore, Place) {
    let inner: Arc<dyn Store> = match dir {
        Some(dir) => {
            Arc::new(LocalStore::open(&dir.path().join("ckpt").display().to_string()).unwrap())
        }
        None => Arc::new(MemoryStore::new()),
    };
    let counting = CountingStore::new(inner);
    (counting.clone(), Place::of(counting))
}

proptest! {
    #![proptest_config(law(24))]

    #[test]
    fn rows_cost_their_own_bytes_and_a_header_an_item(
        rows in 1u64..400, columns in 1u64..60, n in 1u32..4, dtype in prop::sample::select(DType::ALL),
        from in 0.0..1.0f64, len in 0.0..1.0f64, mut choices in choices(), on_disk in any::<bool>(), verify in any::<bool>(),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let (counts, place) = counting(on_disk.then_some(&dir));
        let contents = contents(vec![matrix("w", dtype, rows, columns)]);
        for outcome in save(group(n), contents.states(&contents.rows(n), &mut choices), place.url(), |_, s| s) {
            outcome.unwrap();
        }
        let opened = OpenOptions::new().stores(stores()).verify(verify).open(place.url());
        let opened = futures::executor::block_on(opened).unwrap();
        counts.take();

        let from = (rows as f64 * from) as u64;
        let len = ((rows - from) as f64 * len) as u64;
        let wanted = Region::new([from, 0], [len, columns]);
        let tensor = opened.tensor("w").unwrap();
        let items = tensor.chunks().iter().filter(|c| c.region.intersect(&wanted).is_some()).count() as u64;
        let got = futures::executor::block_on(tensor.read(&wanted)).unwrap();
        prop_assert!(got.to_bytes() == contents.tensors[0].part(&wanted));

        let counted = counts.take();
        let needed = len * columns * dtype.size();
        prop_assert!(counted.records.needed <= needed);
        prop_assert_eq!(counted.records.bytes, counted.records.needed);
        // Items of a few KiB are read whole, header and elements at once.
        let small = needed - counted.records.needed;
        let headers = counted.range_bytes + counted.records.beside - small.min(counted.range_bytes);
        // Head and tail of an item, and of neighbours, are read at once if little lies between them.
        let each = HEADERS_PER_ITEM + 2 * counts.hints().coalesce_gap;
        prop_assert!(headers <= items * each, "{headers} bytes of headers for {items} items");
    }

    #[test]
    fn a_load_onto_other_row_blocks_reads_what_it_needs(
        n in 1u32..5, m in 1u32..5, rows in 40u64..300, columns in 20u64..80, mut choices in choices(),
    ) {
        let (counts, place) = counting(None);
        let contents = contents(vec![
            matrix("a", DType::Float32, rows, columns), matrix("b", DType::BFloat16, rows + 7, columns),
        ]);
        for outcome in save(group(n), contents.states(&contents.rows(n), &mut choices), place.url(), |_, s| s) {
            outcome.unwrap();
        }
        counts.take();
        let cut = contents.rows(m);
        let templates = (0..m).map(|r| contents.template(&cut, r, n, Default::default(), &mut choices).0).collect();
        let (mut needed, mut read, mut headers) = (0, 0, 0);
        for (r, outcome) in (0..).zip(load(group(m), templates, place.url(), |_, l| l)) {
            let (plain, report) = outcome.unwrap();
            contents.check(&cut, r, n, &plain);
            needed += report.totals.needed;
            read += report.totals.bytes;
            headers += report.totals.beside;
        }
        let all: u64 = contents.tensors.iter().map(|t| t.whole().nbytes()).sum();
        prop_assert_eq!((needed, read), (all, all));
        // Each rank looks at the items that its rows meet: at most one more than ranks saved and load, for each tensor.
        let items = 2 * u64::from(n + m);
        // Head and tail of an item, and of neighbours, are read at once if little lies between them.
        let each = HEADERS_PER_ITEM + 2 * counts.hints().coalesce_gap;
        prop_assert!(headers <= items * each, "{headers} for {items}");
        prop_assert!(counts.take().records.bytes <= all);
    }

    #[test]
    fn no_byte_is_read_twice_for_columns(
        columns in 8u64..64, eighth in 0u64..8, twice in any::<bool>(), on_disk in any::<bool>(), mut choices in choices(),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let (counts, place) = counting(on_disk.then_some(&dir));
        let columns = columns * 8;
        let contents = contents(vec![matrix("w", DType::Float32, 128, columns)]);
        for outcome in save(group(2), contents.states(&contents.rows(2), &mut choices), place.url(), |_, s| s) {
            outcome.unwrap();
        }
        counts.take();
        let wide = columns / 8;
        let mut regions = vec![Region::new([0, eighth * wide], [128, wide])];
        if twice {
            // The same columns and others, on one rank.
            regions.push(Region::new([0, eighth * wide], [128, wide]));
            regions.push(Region::new([0, (eighth + 3) % 8 * wide], [128, wide]));
        }
        let mut template = StateDict::new();
        for (i, region) in regions.iter().enumerate() {
            let leaf = ShardedTensor::region_of("w", DType::Float32, &[128, columns], region.clone());
            template.insert(format!("part{i}"), leaf);
        }
        let (plain, report) = load(group(1), vec![template], place.url(), |_, l| l).remove(0).unwrap();
        for (i, region) in regions.iter().enumerate() {
            let got = plain.get(&format!("part{i}")).unwrap().leaf().unwrap().as_tensor().unwrap();
            prop_assert!(got.to_bytes() == contents.tensors[0].part(region));
        }
        let whole = 128 * columns * 4;
        prop_assert!(report.totals.bytes <= whole, "{} of {whole} bytes", report.totals.bytes);
        prop_assert!(counts.take().records.bytes <= whole);
    }
}

/// Saves rows of a tensor on two ranks in a format, and counts what is read of it. These formats have their tables in memory once they are
/// open, so not one byte more is read than is wanted.
fn counts_exactly(config: impl Into<SaveShardedStrategy> + Clone) {
    let config: SaveShardedStrategy = config.into();
    let name = format!("{config:?}");
    let (rows, columns) = (301, 70);
    let (counts, place) = counting(None);
    let contents = contents(vec![
        matrix("w", DType::BFloat16, rows, columns),
        matrix("v", DType::Float32, 9, columns),
    ]);
    let mut choices = Choices::of([0]);
    let states = contents.states(&contents.rows(2), &mut choices);
    for outcome in save(group(2), states, place.url(), move |_, s| {
        s.dialect(Dialect::Dcp).strategy(config.clone())
    }) {
        outcome.unwrap();
    }
    let opened = OpenOptions::new().stores(stores()).open(place.url());
    let opened = futures::executor::block_on(opened).unwrap();
    let mut tensors = opened.tensors();
    let tensor = tensors.find(|t| t.dtype() == DType::BFloat16).unwrap();
    // In an archive the header before a storage says where it begins. It is read once.
    futures::executor::block_on(tensor.read(Region::rows(0..1))).unwrap();
    for (from, len) in [(0, 1), (10, 57), (140, 20), (300, 1), (0, rows)] {
        counts.take();
        let wanted = Region::new([from, 0], [len, columns]);
        let got = futures::executor::block_on(tensor.read(&wanted)).unwrap();
        assert!(got.to_bytes() == contents.tensors[0].part(&wanted));
        assert_eq!(counts.take().read(), len * columns * 2, "{name}: {wanted}");
    }
    // Short columns lie so close to each other that they are read with what lies between. Nothing outside is read.
    counts.take();
    let wanted = Region::new([20, 7], [3, 5]);
    let got = futures::executor::block_on(tensor.read(&wanted)).unwrap();
    assert!(got.to_bytes() == contents.tensors[0].part(&wanted));
    let counted = counts.take();
    assert_eq!(counted.records.needed, 3 * 5 * 2, "{name}");
    assert!(
        counted.read() <= (2 * columns + 5) * 2,
        "{name}: {counted:?}"
    );
}

#[test]
fn the_neighbours_formats_read_the_bytes_of_a_region_and_no_others() {
    counts_exactly(SafetensorsConfig::default());
    counts_exactly(SafetensorsConfig::default().with_sharded(true));
    counts_exactly(TorchSaveConfig::default());
    counts_exactly(TensorBundleConfig::default().with_in_folder("ckpt"));
}

#[test]
fn a_region_of_a_quantised_tensor_costs_its_elements_and_the_scales_of_its_blocks() {
    let (counts, place) = counting(None);
    let tensor = |dtype: DType, shape: &[u64]| {
        let bytes = shape.iter().product::<u64>() * dtype.size();
        Tensor::new(dtype, shape, vec![0x38; bytes as usize]).unwrap()
    };
    let mut state = StateDict::new();
    for (key, dtype, shape) in [
        ("w.weight", DType::Float8E4M3Fn, &[300, 400][..]),
        ("w.weight_scale_inv", DType::Float32, &[3, 4]),
        ("e_blocks", DType::UInt8, &[6, 10, 16]),
        ("e_scales", DType::UInt8, &[6, 10]),
    ] {
        state.insert(key, ShardedTensor::full(key, tensor(dtype, shape)));
    }
    for outcome in save(group(1), vec![state], place.url(), |_, s| {
        s.dialect(Dialect::TensorsOnly)
            .strategy(SafetensorsConfig::default())
    }) {
        outcome.unwrap();
    }
    let dequantize = SafetensorsLoadConfig::default().with_dequantize(DType::BFloat16);
    let opened = OpenOptions::new().stores(stores()).strategy(dequantize);
    let opened = futures::executor::block_on(opened.open(place.url())).unwrap();
    for (key, region, bytes) in [
        // Rows in one row of blocks, and in two.
        ("w.weight", Region::new([130, 0], [3, 400]), 3 * 400 + 4 * 4),
        (
            "w.weight",
            Region::new([120, 0], [20, 400]),
            20 * 400 + 2 * 4 * 4,
        ),
        // Groups of 16 bytes, 32 numbers each.
        ("e_blocks", Region::new([2, 0], [1, 320]), 160 + 10),
        ("e_blocks", Region::new([2, 40], [1, 30]), 2 * 16 + 2),
    ] {
        counts.take();
        let tensor = opened.tensor(key).unwrap();
        assert_eq!(tensor.dtype(), DType::BFloat16);
        futures::executor::block_on(tensor.read(&region)).unwrap();
        assert_eq!(counts.take().read(), bytes, "{key}: {region}");
    }
}

//! Flattened ranges: leaves that hold a range of the elements of their chunk, as Megatron Core's distributed optimizer has them.

use proptest::prelude::*;
use reshard::{
    DType, ErrorKind, OpenOptions, Region, ShardedTensor, StateDict, Tensor, ValueTree, model::Dims,
};
use reshard_laws::{
    contents::{Choices, Global, choices},
    law,
    place::{Place, stores},
    ranks::{group, load, save},
    zarrs::{Zarr, zarrs},
};
use reshard_storage::{CountingStore, Name, testkit::MemoryStore};
use std::{ops::Range, sync::Arc};

/// A regular grid over a tensor.
#[derive(Clone, Debug)]
struct Grid {
    fragments: Dims,
    cell: Dims,
}

impl Grid {
    /// Any grid whose cells make up the shape.
    fn any(shape: &[u64], choices: &mut Choices) -> Self {
        let fragments: Dims = shape
            .iter()
            .map(|n| {
                let divisors: Vec<u64> = (1..=*n).filter(|d| n % d == 0).collect();
                divisors[choices.below(divisors.len() as u64) as usize]
            })
            .collect();
        let cell = shape.iter().zip(&fragments).map(|(n, f)| n / f).collect();
        Self { fragments, cell }
    }

    fn elements(&self) -> u64 {
        self.cell.volume().unwrap()
    }

    /// The cell of this number, as a leaf that holds a range of it. Its first axis may be prepended if its length there is 1.
    fn leaf(&self, g: &Global, number: u64, range: Range<u64>) -> ShardedTensor {
        let cells = Region::whole(&self.fragments);
        let at = cells.boxes(number..number + 1).next().unwrap().offsets;
        let prepend = usize::from(g.prepended && self.cell.first() == Some(&1));
        let offsets: Vec<_> = (0..at.len())
            .map(|axis| (axis, at[axis], self.fragments[axis]))
            .collect();
        let local = &self.cell[prepend..];
        let leaf = ShardedTensor::declare(&g.key, g.dtype, local, &offsets, prepend).unwrap();
        ShardedTensor {
            flattened_range: Some(range),
            ..leaf
        }
    }
}

/// The elements of a leaf.
fn elements(g: &Global, leaf: &ShardedTensor) -> Tensor {
    let part = g.part(&leaf.region());
    let range = leaf.flattened_range.clone().unwrap();
    let size = g.dtype.size();
    let bytes = part.slice((range.start * size) as usize..(range.end * size) as usize);
    Tensor::new(g.dtype, &[range.end - range.start], bytes.to_vec()).unwrap()
}

/// Cuts all cells of a grid into ranges, empty ones too, and spreads them over ranks.
fn flattened(g: &Global, ranks: u32, choices: &mut Choices) -> Vec<StateDict> {
    let grid = Grid::any(&g.shape, choices);
    let mut states = vec![StateDict::new(); ranks as usize];
    for number in 0..grid.fragments.volume().unwrap() {
        let all = grid.elements();
        let mut cuts: Vec<u64> = (0..choices.below(4))
            .map(|_| choices.below(all + 1))
            .collect();
        cuts.extend([0, all]);
        cuts.sort_unstable();
        for cut in cuts.windows(2) {
            let leaf = grid.leaf(g, number, cut[0]..cut[1]);
            let data = elements(g, &leaf);
            let state = &mut states[choices.below(ranks.into()) as usize];
            let name = format!("{}.{number}.{}.{}", g.key, cut[0], cut[1]);
            state.insert(name, leaf.with_data(data));
        }
    }
    states
}

/// A range of a cell of any grid, or an unflattened box.
fn wanted(g: &Global, choices: &mut Choices) -> (ShardedTensor, Tensor) {
    if choices.below(3) == 0 {
        let (mut offsets, mut lengths) = (Dims::default(), Dims::default());
        for n in &g.shape {
            let from = choices.below(n + 1);
            offsets.push(from);
            lengths.push(choices.below(n - from + 1));
        }
        let region = Region::new(offsets, lengths);
        let part = Tensor::new(g.dtype, &region.lengths, g.part(&region).to_vec()).unwrap();
        let leaf = ShardedTensor::region_of(&g.key, g.dtype, &g.shape, region);
        return (leaf, part);
    }
    let grid = Grid::any(&g.shape, choices);
    let number = choices.below(grid.fragments.volume().unwrap());
    let from = choices.below(grid.elements() + 1);
    let to = from + choices.below(grid.elements() - from + 1);
    let leaf = grid.leaf(g, number, from..to);
    let part = elements(g, &leaf);
    (leaf, part)
}

fn tensors() -> impl Strategy<Value = Vec<Global>> {
    let shape = prop::collection::vec(1u64..13, 0..4);
    let one = (
        shape,
        prop::sample::select(DType::ALL),
        any::<u32>(),
        any::<bool>(),
    );
    prop::collection::vec(one, 1..4).prop_map(|all| {
        let named = all.into_iter().enumerate();
        named
            .map(|(i, (shape, dtype, salt, prepended))| Global {
                key: format!("t{i}"),
                dtype,
                shape,
                salt,
                prepended,
            })
            .collect()
    })
}

fn leaf<'s>(loaded: &'s ValueTree, name: &str) -> &'s Tensor {
    loaded
        .get(name)
        .unwrap()
        .leaf()
        .unwrap()
        .as_tensor()
        .unwrap()
}

proptest! {
    #![proptest_config(law(96))]

    /// Saved flattened on N ranks, or as rows, and loaded on M ranks in any grid, flattened or not.
    #[test]
    fn flattened_ranges_load_in_any_grid_and_unflattened(
        tensors in tensors(), n in 1u32..5, m in 1u32..4, plain in any::<bool>(), mut choices in choices(),
        zarr in prop::option::of(zarrs()),
    ) {
        let mut tensors = tensors;
        for g in tensors.iter_mut().filter(|_| zarr.is_some()) {
            g.dtype = Zarr::named(g.dtype);
        }
        let place = Place::new();
        let mut states = vec![StateDict::new(); n as usize];
        for g in &tensors {
            if plain && choices.below(3) == 0 {
                states[0].insert(g.key.clone(), ShardedTensor::full(&g.key, g.whole()));
                continue;
            }
            for (state, more) in states.iter_mut().zip(flattened(g, n, &mut choices)) {
                state.merge(more).unwrap();
            }
        }
        let saved = save(group(n), states, place.url(), move |_, s| match zarr {
            Some(zarr) => s.strategy(zarr.config()),
            None => s,
        });
        for outcome in saved {
            outcome.unwrap();
        }

        // All of it, as nobody has saved it.
        let opened = OpenOptions::new().stores(stores()).open(place.url());
        let opened = futures::executor::block_on(opened).unwrap();
        let report = futures::executor::block_on(opened.verify(true, Default::default())).unwrap();
        prop_assert!(report.damage.is_empty(), "{:?}", report.damage);
        for g in &tensors {
            let tensor = opened.tensor(&g.key).unwrap();
            prop_assert_eq!(&tensor.shape()[..], &g.shape[..]);
            let all = futures::executor::block_on(tensor.read(..)).unwrap();
            prop_assert_eq!(all.to_bytes(), g.whole().to_bytes());
        }

        let mut templates = vec![StateDict::new(); m as usize];
        let mut expected = Vec::new();
        for (rank, template) in templates.iter_mut().enumerate() {
            for (i, g) in tensors.iter().enumerate().flat_map(|t| [t, t]) {
                let (mut leaf, part) = wanted(g, &mut choices);
                if choices.below(2) == 0 {
                    leaf.init_data().unwrap();
                }
                let name = format!("{i}.{}", expected.len());
                template.insert(name.clone(), leaf);
                expected.push((rank, name, part));
            }
        }
        let loaded: Vec<_> = load(group(m), templates, place.url(), |_, l| l)
            .into_iter()
            .map(|l| l.unwrap().0)
            .collect();
        for (rank, name, part) in expected {
            let got = leaf(&loaded[rank], &name);
            prop_assert_eq!(got.shape(), part.shape());
            prop_assert_eq!(got.to_bytes(), part.to_bytes());
        }
    }
}

/// 4 cells of 16 x 4,096 elements, each in two ranges. The second range of the third cell lacks its first `gap` elements.
fn two_halves(gap: u64) -> (Global, Vec<StateDict>) {
    let g = Global {
        key: "w".into(),
        dtype: DType::Float32,
        shape: vec![64, 4096],
        salt: 3,
        prepended: false,
    };
    let grid = Grid {
        fragments: [4, 1].into(),
        cell: [16, 4096].into(),
    };
    let half = grid.elements() / 2;
    let mut states = vec![StateDict::new(); 2];
    for number in 0..4 {
        for (state, from) in states.iter_mut().zip([0, half]) {
            let gap = if (number, from) == (2, half) { gap } else { 0 };
            let leaf = grid.leaf(&g, number, from + gap..from + half);
            let data = elements(&g, &leaf);
            state.insert(number.to_string(), leaf.with_data(data));
        }
    }
    (g, states)
}

/// Of arrays, too: inner chunks of a shard are a row here.
#[test]
fn only_the_wanted_elements_are_read() {
    for format in [None, Some(Zarr::V2), Some(Zarr::V3(16 << 10))] {
        reads_only_what_is_wanted(format);
    }
}

fn reads_only_what_is_wanted(format: Option<Zarr>) {
    let (g, states) = two_halves(0);
    let counts = CountingStore::new(Arc::new(MemoryStore::new()));
    let place = Place::of(counts.clone());
    for outcome in save(group(2), states, place.url(), move |_, s| match format {
        None => s,
        Some(zarr) => s.strategy(zarr.config()),
    }) {
        outcome.unwrap();
    }
    counts.take();
    // Rows of another grid: a part of one stored range, and of a second one.
    let other = Grid {
        fragments: [2, 1].into(),
        cell: [32, 4096].into(),
    };
    let wanted = other.leaf(&g, 1, 4096 * 5..4096 * 11);
    let part = elements(&g, &wanted);
    let mut template = StateDict::new();
    template.insert("t", wanted);
    let (loaded, report) = load(group(1), vec![template], place.url(), |_, l| l)
        .remove(0)
        .unwrap();
    assert_eq!(leaf(&loaded, "t").to_bytes(), part.to_bytes());
    let bytes = 6 * 4096 * 4;
    let read = report.totals.bytes;
    assert!(
        read >= bytes && read < bytes + (32 << 10),
        "{format:?}: {read} for {bytes}"
    );
}

/// Until Megatron Core 0.10 a flattened tensor of one axis was stored as if it were not: a chunk for each range, in the global tensor.
/// `mcore_data` has an empty dict for it.
#[test]
fn ranges_of_one_axis_in_the_form_of_megatron_core_0_10_are_loaded_by_flattened_leaves() {
    let place = Place::new();
    let numbers = |range: Range<u64>| {
        let numbers = range.clone().map(|i| i as f32).collect();
        Tensor::from_vec(&[range.end - range.start], numbers).unwrap()
    };
    let rank = |ranges: [Range<u64>; 2]| {
        let mut state = StateDict::new();
        for (i, range) in ranges.into_iter().enumerate() {
            let region = Region::new([range.start], [range.end - range.start]);
            let leaf = ShardedTensor::region_of("bucket", DType::Float32, &[40], region);
            let leaf = ShardedTensor {
                axis_fragmentations: None,
                ..leaf
            };
            state.insert(i.to_string(), leaf.with_data(numbers(range)));
        }
        state
    };
    let states = vec![rank([0..7, 7..20]), rank([20..33, 33..40])];
    for outcome in save(group(2), states, place.url(), |_, s| s) {
        outcome.unwrap();
    }
    let name = Name::new(".metadata").unwrap();
    let metadata = &place.files()[&name];
    assert!(metadata.windows(10).any(|w| w == b"mcore_data"));
    for (cells, range) in [(2, 5..15), (4, 0..10), (1, 3..39), (5, 2..2)] {
        let of_cell = 40 / cells;
        let templates = (0..cells).map(|cell| {
            let cut = [(0, cell, cells)];
            let leaf = ShardedTensor::declare("bucket", DType::Float32, &[of_cell], &cut, 0);
            let mut template = StateDict::new();
            let leaf = ShardedTensor {
                flattened_range: Some(range.clone()),
                ..leaf.unwrap()
            };
            template.insert("t", leaf);
            template
        });
        let loaded = load(
            group(cells as u32),
            templates.collect(),
            place.url(),
            |_, l| l,
        );
        for (cell, loaded) in (0..).zip(loaded) {
            let (loaded, _) = loaded.unwrap();
            let want = numbers(cell * of_cell + range.start..cell * of_cell + range.end);
            assert_eq!(leaf(&loaded, "t").to_bytes(), want.to_bytes(), "{cells}");
        }
    }
}

/// As a program leaves them that has lost elements, or has written some twice: the first of two ranges, 0:5 and 5:12, is another one.
#[test]
fn stored_ranges_that_leave_a_hole_or_overlap_are_found() {
    for (end, said) in [
        (4, "no chunk covers [0:1, 0:1, 4:5]"),
        (6, "[0:1, 0:1, 0:6] and [0:1, 0:1, 5:12] overlap"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        for (name, bytes) in of_another_shape(true, None).files() {
            let mut bytes = bytes.to_vec();
            if name.as_str() == ".metadata" {
                // The lengths of the chunk, (1, 1, 5): three ints, and the end of a tuple of three.
                let lengths = [b'K', 1, b'K', 1, b'K', 5, 0x87];
                let at = bytes.windows(7).position(|w| w == lengths).unwrap();
                bytes[at + 5] = end;
            }
            std::fs::write(dir.path().join(name.as_str()), bytes).unwrap();
        }
        let url = dir.path().display().to_string();
        let opened = futures::executor::block_on(OpenOptions::new().open(&url)).unwrap();
        let report = futures::executor::block_on(opened.verify(true, Default::default())).unwrap();
        let found: Vec<String> = report.damage.iter().map(ToString::to_string).collect();
        let found = found.join("; ");
        assert!(found.contains("w: ") && found.contains(said), "{found}");

        // A load of the elements in question fails, too.
        let leaf = asks([3, 4], 0..3, Some(0..12));
        let mut template = StateDict::new();
        template.insert("w", leaf);
        let loaded = load(group(1), vec![template], &url, |_, l| l).remove(0);
        assert_eq!(loaded.map(drop).unwrap_err().kind(), ErrorKind::Corrupt);
    }
}

#[test]
fn ranges_that_do_not_cover_their_cell_fail_the_save() {
    for format in [None, Some(Zarr::V2), Some(Zarr::V3(16 << 10))] {
        let (_, states) = two_halves(5);
        let place = Place::new();
        for outcome in save(group(2), states, place.url(), move |_, s| match format {
            None => s,
            Some(zarr) => s.strategy(zarr.config()),
        }) {
            let e = outcome.unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Invalid, "{format:?}");
            let said = format!("{e:?}");
            let what = "w: the flattened ranges of chunk [32:48, 0:4096] leave out its elements 32768:32773";
            assert!(said.contains(what), "{format:?}: {said}");
        }
        assert!(place.files().is_empty(), "{format:?}");
    }
}

/// Element (row, column) of the stored tensor of shape [3, 4]; zero outside.
fn stored(row: u64, column: u64) -> f32 {
    match row < 3 && column < 4 {
        true => (1 + row * 4 + column) as f32,
        false => 0.0,
    }
}

/// Saved flattened or not, by two ranks, in torch_dist or in arrays.
fn of_another_shape(flat: bool, zarr: Option<Zarr>) -> Place {
    let place = Place::new();
    let rank = |rank: u64| {
        let mut state = StateDict::new();
        let all: Vec<f32> = (0..12).map(|i| stored(i / 4, i % 4)).collect();
        let leaf = match (flat, rank) {
            (true, _) => {
                let range = if rank == 0 { 0..5 } else { 5..12 };
                let data = all[range.start as usize..range.end as usize].to_vec();
                let data = Tensor::from_vec(&[range.end - range.start], data).unwrap();
                ShardedTensor::from_rank_offsets_flat("w", data, &[3, 4], &[], 0, range).unwrap()
            }
            (false, _) => {
                let data = Tensor::from_vec(&[3, 4], all).unwrap();
                ShardedTensor::full("w", data).with_replica_id(rank as u32)
            }
        };
        state.insert("w", leaf);
        state
    };
    let states = vec![rank(0), rank(1)];
    for saved in save(group(2), states, place.url(), move |_, s| match zarr {
        None => s,
        Some(zarr) => s.strategy(zarr.config()),
    }) {
        saved.unwrap();
    }
    place
}

/// A leaf of nines that asks for a part of a tensor of another shape.
fn asks(shape: [u64; 2], rows: Range<u64>, range: Option<Range<u64>>) -> ShardedTensor {
    let lengths = [rows.end - rows.start, shape[1]];
    let region = Region::new([rows.start, 0], lengths);
    let mut t = ShardedTensor::region_of("w", DType::Float32, &shape, region);
    let elements = match &range {
        Some(range) => vec![range.end - range.start],
        None => lengths.to_vec(),
    };
    let count: u64 = elements.iter().product();
    t.flattened_range = range;
    let nines = Tensor::from_vec(&elements, vec![9f32; count as usize]).unwrap();
    t.with_data(nines)
}

/// Also where shapes may differ, the number of axes may not.
#[test]
fn with_allow_shape_mismatch_another_number_of_axes_is_refused() {
    let formats = [None, Some(Zarr::V2), Some(Zarr::V3(16))];
    for (flat, format) in formats.into_iter().flat_map(|f| [(true, f), (false, f)]) {
        let place = of_another_shape(flat, format);
        for shape in [&[12][..], &[3, 4, 1]] {
            let whole = ShardedTensor::region_of("w", DType::Float32, shape, Region::whole(shape));
            let nines = Tensor::from_vec(shape, vec![9f32; 12]).unwrap();
            let mut template = StateDict::new();
            template.insert("w", whole.with_data(nines).with_shape_mismatch_allowed());
            let loaded = load(group(1), vec![template], place.url(), |_, l| l).remove(0);
            let said = loaded.map(drop).unwrap_err().to_string();
            let told = [
                "w has shape [3, 4] in the checkpoint",
                &format!("but {shape:?} was asked for"),
                "the number of axes differs",
            ];
            assert!(told.iter().all(|part| said.contains(part)), "{said}");
        }
    }
}

/// For any overlap, and for none; flattened or not on either side; in torch_dist, zarr and zarr3. Megatron Core leaves memory of a flattened
/// leaf as it was.
#[test]
fn with_allow_shape_mismatch_there_are_zeros_outside_and_surplus_is_stripped() {
    let cases = [
        ([5, 6], 0..5, Some(3..25)),
        ([5, 6], 0..5, None),
        ([2, 3], 0..2, Some(1..6)),
        ([2, 3], 0..2, None),
        ([5, 2], 1..4, Some(0..5)),
        // Completely outside.
        ([6, 4], 3..6, Some(2..9)),
        ([6, 4], 3..6, None),
    ];
    let formats = [None, Some(Zarr::V2), Some(Zarr::V3(16))];
    for (flat, format) in formats.into_iter().flat_map(|f| [(true, f), (false, f)]) {
        let place = of_another_shape(flat, format);
        for (shape, rows, range) in &cases {
            let asked = asks(*shape, rows.clone(), range.clone()).with_shape_mismatch_allowed();
            let mut template = StateDict::new();
            template.insert("w", asked);
            let loaded = load(group(1), vec![template], place.url(), |_, l| l).remove(0);
            let (loaded, _) = loaded.unwrap_or_else(|e| panic!("{shape:?} {rows:?}: {e}"));
            let columns = shape[1];
            let elements = range
                .clone()
                .unwrap_or(0..(rows.end - rows.start) * columns);
            let want: Vec<f32> = elements
                .map(|i| stored(rows.start + i / columns, i % columns))
                .collect();
            let got = leaf(&loaded, "w").to_vec::<f32>().unwrap();
            assert_eq!(got, want, "{format:?} {flat} {shape:?} {rows:?} {range:?}");

            // Without the permission both shapes are told, with what differs, and how both sides are cut.
            let mut template = StateDict::new();
            template.insert("w", asks(*shape, rows.clone(), range.clone()));
            let loaded = load(group(1), vec![template], place.url(), |_, l| l).remove(0);
            let e = loaded.map(drop).unwrap_err();
            let said = format!("{e}");
            let told = [
                "w has shape [3, 4] in the checkpoint, in ",
                &format!("but [{}, {}] was asked for", shape[0], shape[1]),
                "differ",
            ];
            assert!(told.iter().all(|part| said.contains(part)), "{said}");
        }
    }
}

//! A checkpoint that is open, read part after part: what was unpacked once is not unpacked again.

use crate::{
    handmade::{Item, pickle, view, zip, zstd},
    limits::made,
};
use futures::executor::block_on;
use reshard::{
    DType, ReadLimits, Region, Stores, Tensor,
    model::LentBuffer,
    plan::Selection,
    storage::Progress,
    strategy::{LoadShardedStrategy, OpenCx, ReadCx, ReadTensor, StorageReader},
    torch_dist::TorchDistLoadConfig,
};
use std::sync::Arc;

/// Rows of 2 KiB, eight blocks of 256 KiB.
const ROWS: u64 = 1024;
const COLUMNS: u64 = 512;

fn elements() -> Vec<u8> {
    (0..ROWS * COLUMNS)
        .flat_map(|i| ((i / 7) as f32).to_le_bytes())
        .collect()
}

/// The tensor in an archive whose storage is packed, with how its elements lie in it.
fn archive(strides: &[u64]) -> Vec<u8> {
    let pickle = pickle(view(&[ROWS, COLUMNS], strides, ROWS * COLUMNS));
    zip(&[
        ("data.pkl", &pickle[..], false),
        ("version", b"3\n", false),
        ("data/0", &elements(), true),
    ])
}

struct Open {
    reader: Arc<dyn StorageReader>,
    row_major: bool,
    _made: crate::limits::Made,
}

fn open_with(item: Item, row_major: bool, limits: ReadLimits) -> Open {
    let made = made(&[item]);
    let store = Stores::linked().unwrap().open(&made.url).unwrap();
    let strategy = LoadShardedStrategy::new(TorchDistLoadConfig::default());
    let reader = block_on(strategy.open(&OpenCx::new(store).with_limits(limits))).unwrap();
    Open {
        reader,
        row_major,
        _made: made,
    }
}

fn open(item: Item) -> Open {
    open_with(item, true, ReadLimits::default())
}

impl Open {
    /// Reads ranges of rows, each into a tensor of its own; headers, requests and checked items.
    fn try_rows(&self, rows: &[(u64, u64)], verify: bool) -> Result<[u64; 3], String> {
        let metadata = self.reader.metadata();
        let (chunk, _) = metadata.tensor("w").unwrap().chunks().next().unwrap();
        let (mut reads, mut lent) = (Vec::new(), Vec::new());
        for &(from, to) in rows {
            let region = Region::new([from, 0], [to - from, COLUMNS]);
            let tensor = Tensor::zeros("part", DType::Float32, &region.lengths).unwrap();
            let (buffer, views) = LentBuffer::new("part", vec![tensor])
                .map_err(|(e, _)| e)
                .unwrap();
            let whole = Region::whole(&region.lengths);
            let into = buffer
                .regions_mut(&[(&views[0], whole)])
                .unwrap()
                .pop()
                .unwrap();
            reads.push(ReadTensor::new(
                Selection::new(chunk, DType::Float32, region),
                into,
            ));
            lent.push((buffer, views));
        }
        let none = Progress::none();
        let read = block_on(self.reader.read_tensors(reads, &ReadCx::new(verify, &none)));
        let totals = read.map_err(|e| e.to_string())?;
        let mut wanted = 0;
        for ((buffer, views), &(from, to)) in lent.into_iter().zip(rows) {
            let got = buffer
                .reclaim(views)
                .map_err(|_| "in use")
                .unwrap()
                .pop()
                .unwrap()
                .to_bytes();
            wanted += got.len() as u64;
            let all = elements();
            let at = |row: u64, column: u64| {
                let element = if self.row_major {
                    row * COLUMNS + column
                } else {
                    column * ROWS + row
                };
                &all[element as usize * 4..][..4]
            };
            let want: Vec<u8> = (from..to)
                .flat_map(|row| (0..COLUMNS).flat_map(move |column| [(row, column)]))
                .flat_map(|(r, c)| at(r, c).to_vec())
                .collect();
            assert!(got == want, "rows {from} to {to}");
        }
        assert_eq!((totals.needed, totals.bytes), (wanted, wanted));
        Ok([totals.beside, totals.requests, totals.verified])
    }

    fn rows(&self, rows: &[(u64, u64)]) -> [u64; 3] {
        self.try_rows(rows, true).unwrap()
    }
}

#[test]
fn a_deflated_tensor_is_read_on_where_it_was_left() {
    let archive = archive(&[COLUMNS, 1]);
    let all = archive.len() as u64;
    let open = open(Item::tensor("w", &[ROWS, COLUMNS], archive));
    // Two ends of the archive are read each time; the packed storage only if it is not there.
    let [first, ..] = open.rows(&[(0, 128)]);
    let heads = 2048;
    let packed = first - heads;
    assert!(
        packed > 0 && packed < all && all - packed < 1024,
        "{packed} of {all}"
    );
    assert_eq!(
        open.rows(&[(128, 256)]),
        [heads, 2, 0],
        "where the first left off"
    );
    assert_eq!(
        open.rows(&[(300, 310), (400, 401)]),
        [heads, 2, 0],
        "further on"
    );
    // To the end: it is checked, and not kept.
    assert_eq!(open.rows(&[(512, 1024)]), [heads, 2, 1]);
    assert_eq!(
        open.rows(&[(512, 1024)]),
        [heads + packed, 3, 1],
        "from the start again"
    );
    assert_eq!(open.rows(&[(512, 1024)]), [heads + packed, 3, 1]);
    // Half of it, in two parts at its ends: the other half will be wanted as well.
    assert_eq!(open.rows(&[(0, 256), (768, 1024)])[1..], [3, 1]);
    assert_eq!(open.rows(&[(0, 1024)])[1..], [3, 1]);
}

#[test]
fn a_deflated_tensor_that_is_read_backwards_is_unpacked_as_a_whole() {
    let archive = archive(&[COLUMNS, 1]);
    let all = archive.len() as u64;
    let open = open(Item::tensor("w", &[ROWS, COLUMNS], archive));
    let part = |rows: u64| rows * COLUMNS * 4;
    open.rows(&[(256, 300)]);
    // The archive as a whole, of which that was wanted; the elements are no headers.
    assert_eq!(
        open.rows(&[(0, 10)]),
        [(2048 + all).saturating_sub(part(10)), 3, 1]
    );
    assert_eq!(open.rows(&[(700, 710)]), [0, 2, 0], "it is there now");
    assert_eq!(open.rows(&[(0, 1024)]), [0, 2, 0]);
    assert_eq!(
        open.rows(&[(0, 10)])[1..],
        [3, 0],
        "who has had all of it has no need of the rest"
    );
    // Little of much, up to its end: the rest is expected to be wanted, too.
    let open = open_with(
        Item::tensor("w", &[ROWS, COLUMNS], self::archive(&[COLUMNS, 1])),
        true,
        ReadLimits::default(),
    );
    assert_eq!(open.rows(&[(0, 1), (1023, 1024)])[2], 1);
    assert_eq!(open.rows(&[(5, 6)])[1..], [3, 1], "unpacked as a whole");
    assert_eq!(open.rows(&[(6, 7)])[1..], [2, 0]);
    // What was not checked is not taken for what was.
    assert_eq!(open.try_rows(&[(6, 7)], false).unwrap()[1..], [3, 0]);
}

#[test]
fn a_deflated_tensor_may_lie_in_any_order() {
    let columns_first = Item::tensor("w", &[ROWS, COLUMNS], archive(&[1, ROWS]));
    let open = open_with(columns_first, false, ReadLimits::default());
    assert_eq!(open.rows(&[(0, 1024)])[1..], [3, 1]);
    assert_eq!(open.rows(&[(7, 9)])[2], 1);
    assert_eq!(open.rows(&[(3, 5)])[2], 1);
}

#[test]
fn a_transformed_tensor_is_unpacked_once_while_parts_of_it_are_wanted() {
    let item = || {
        Item::tensor("w", &[ROWS, COLUMNS], zstd(&archive(&[COLUMNS, 1]), 0))
            .transformed("stream.zstd/1")
    };
    let open = open(item());
    assert_eq!(open.rows(&[(0, 10)])[1..], [1, 1]);
    assert_eq!(open.rows(&[(10, 20), (3, 4)]), [0, 0, 0]);
    assert_eq!(open.rows(&[(0, 1024)]), [0, 0, 0]);
    assert_eq!(
        open.rows(&[(0, 1024)])[1..],
        [1, 1],
        "all of it was wanted, so it is gone"
    );
    assert_eq!(open.rows(&[(0, 1024)])[1..], [1, 1]);
    let small = ReadLimits::default().with_max_whole(1 << 20);
    let e = open_with(item(), true, small)
        .try_rows(&[(0, 1)], true)
        .unwrap_err();
    assert!(e.contains("max_whole"), "{e}");
}

#[test]
fn records_unpack_to_the_elements_and_a_description_and_no_more() {
    let pickle = pickle(view(&[64], &[1], 64));
    let data = vec![1; 256];
    let archive = |more: usize| {
        let filler = vec![0; more];
        let (filler, data) = (("a", &filler[..], true), ("data/0", &data[..], true));
        zip(&[
            ("data.pkl", &pickle[..], false),
            ("version", b"3\n", false),
            data,
            filler,
        ])
    };
    // What a description may have beside the elements depends on what is stored.
    let most = |archive: &[u8]| (16 << 10) + 16 * archive.len();
    let more = (0..100).fold(0, |more, _| most(&archive(more)));
    assert_eq!(more, most(&archive(more)));
    for (more, fits) in [(more, true), (more + 1, false)] {
        let archive = archive(more);
        let made = made(&[Item::tensor("w", &[64], archive)]);
        let read = reshard::blocking::Checkpoint::open(&made.url)
            .unwrap()
            .tensor("w")
            .unwrap()
            .read(..);
        assert_eq!(read.is_ok(), fits, "{more}");
        let (code, _) = made.verified(&[]);
        assert_eq!(code, if fits { 0 } else { 2 }, "{more}");
    }
}

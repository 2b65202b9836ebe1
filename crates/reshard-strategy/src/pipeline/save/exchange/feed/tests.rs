use super::*;
use crate::pipeline::exchange::Meeting;
use futures_executor::block_on;
use reshard_comm::{Comm, Rank};
use reshard_plan::{TensorProperties, WriteItem, WriteKind};
use std::{collections::BTreeMap, thread};

const MEMORY: u64 = 4 << 10;

fn table(memory: u64) -> Table {
    let meeting = Meeting {
        comm: Comm::single(),
        rank: Rank(0),
        most_peers: 1,
        memory,
        lends: None,
    };
    block_on(Table::meet(meeting)).unwrap()
}

fn item(n: u32, kind: WriteKind) -> WriteItem {
    WriteItem {
        key: format!("item {n}").into(),
        source: WriteItem::TAKEN + n,
        kind,
    }
}

fn tensor(n: u32, shape: &[u64]) -> WriteItem {
    let (global_shape, region) = (shape.into(), Region::whole(shape));
    let properties = TensorProperties::default();
    item(
        n,
        WriteKind::Tensor(TensorWrite {
            dtype: DType::UInt8,
            global_shape,
            region,
            properties,
            original_shape: None,
        }),
    )
}

fn bytes(n: u32, length: u64) -> Bytes {
    (0..length)
        .map(|i| (i * 7 + u64::from(n) * 31 + (i >> 8)) as u8)
        .collect::<Vec<u8>>()
        .into()
}

/// Gives what the feed of these items asks for, while `reader` reads from it on a thread of its own. Returns how many bytes were
/// sent, and the most that waited.
fn fed(
    items: Vec<WriteItem>,
    lengths: &[u64],
    memory: u64,
    reader: impl FnOnce(&Arc<Feed>, &[WriteItem]) + Send + 'static,
) -> (u64, u64) {
    let table = table(memory);
    let mut plan = SavePlan::new(items.clone());
    plan.exchange.takes = vec![0; items.len()];
    let feed = Feed::new(&plan, &table).unwrap();
    let shared = Arc::clone(&feed);
    let thread = thread::spawn(move || {
        reader(&shared, &items);
        shared.ended(Ok(Vec::new()));
    });
    let mut at: BTreeMap<(u32, u32), u64> = BTreeMap::new();
    let (mut sent, mut most) = (0, 0);
    loop {
        block_on(feed.ready());
        let (asks, more) = feed.asks().unwrap();
        assert!(asks[0].credit <= table.quota());
        let mut left = asks[0].credit;
        let mut part = Vec::new();
        for stream in &asks[0].items {
            let whole = bytes(stream.item, lengths[stream.item as usize]);
            let at = at.entry((stream.item, stream.attempt)).or_default();
            let n = left.saturating_sub(HEAD).min(whole.len() as u64 - *at);
            let piece = whole.slice(*at as usize..(*at + n) as usize);
            *at += n;
            left = left.saturating_sub(HEAD + n);
            sent += n;
            Piece {
                stream: *stream,
                last: *at == whole.len() as u64,
                bytes: piece,
            }
            .push(&mut part);
        }
        feed.take(&table, 0, part.concat().into()).unwrap();
        most = most.max(feed.lock().held);
        if !more {
            break;
        }
    }
    thread.join().unwrap();
    (sent, most)
}

fn source(feed: &Arc<Feed>, n: usize, item: &WriteItem) -> Arc<dyn TensorSource> {
    let Data::Lazy(source) = feed.tensor(n, item.tensor().unwrap()) else {
        panic!("not a source")
    };
    source
}

fn read(source: &dyn TensorSource, region: &Region) -> Vec<u8> {
    let mut out = vec![0; region.volume().unwrap() as usize];
    source.read(region, &mut out).unwrap();
    out
}

#[test]
fn what_is_read_in_order_goes_through_in_bounded_memory_and_once() {
    let items = vec![tensor(0, &[100, 300]), tensor(1, &[0, 5]), tensor(2, &[7])];
    let (sent, most) = fed(items, &[30_000, 0, 7], MEMORY, |feed, items| {
        let sources: Vec<_> = (0..3).map(|n| source(feed, n, &items[n])).collect();
        feed.laid_out();
        let blocks = Region::whole(&[100, 300])
            .blocks(1000)
            .map(|block| read(&*sources[0], &block));
        assert!(blocks.flatten().eq(bytes(0, 30_000)));
        assert!(read(&*sources[1], &Region::whole(&[0, 5])).is_empty());
        assert_eq!(read(&*sources[2], &Region::whole(&[7])), bytes(2, 7));
    });
    assert_eq!(sent, 30_007);
    assert!(most <= MEMORY / 2, "{most} bytes waited");
}

#[test]
fn items_may_be_read_in_any_order_and_beside_each_other() {
    let items: Vec<_> = (0..6).map(|n| tensor(n, &[3000])).collect();
    let (sent, most) = fed(items, &[3000; 6], MEMORY, |feed, items| {
        let mut sources: Vec<_> = (0..6).map(|n| Some(source(feed, n, &items[n]))).collect();
        feed.laid_out();
        // The last one first, and two at a time.
        for pair in [[5, 2], [4, 0], [3, 1]] {
            for at in [0, 1500] {
                for n in pair {
                    let part = read(&**sources[n].as_ref().unwrap(), &Region::new([at], [1500]));
                    assert_eq!(part, bytes(n as u32, 3000)[at as usize..at as usize + 1500]);
                }
            }
            pair.into_iter().for_each(|n| sources[n] = None);
        }
    });
    assert_eq!(sent, 6 * 3000, "each byte once");
    assert!(most <= MEMORY / 2 + LEAST, "{most} bytes waited");
}

#[test]
fn an_item_may_be_read_twice_or_not_row_by_row() {
    let items = vec![tensor(0, &[1, 40, 50]), tensor(1, &[40, 50])];
    let (sent, _) = fed(items, &[2000; 2], MEMORY, |feed, items| {
        let sources: Vec<_> = (0..2).map(|n| source(feed, n, &items[n])).collect();
        // Once more from the start.
        for _ in 0..2 {
            assert_eq!(
                read(&*sources[0], &Region::whole(&[1, 40, 50])),
                bytes(0, 2000)
            );
        }
        // Columns: all is collected at the first.
        let whole = Tensor::new(DType::UInt8, &[40, 50], bytes(1, 2000)).unwrap();
        for column in [
            Region::new([0, 7], [40, 3]),
            Region::new([0, 0], [40, 7]),
            Region::whole(&[40, 50]),
        ] {
            assert_eq!(
                read(&*sources[1], &column),
                whole.narrow(&column).to_bytes()
            );
        }
        let mut short = [0; 3];
        assert!(
            sources[1]
                .read(&Region::new([39, 0], [2, 50]), &mut [0; 100])
                .is_err(),
            "beyond its end"
        );
        assert!(
            sources[1]
                .read(&Region::new([0, 0], [1, 4]), &mut short)
                .is_err(),
            "4 elements into 3"
        );
        feed.laid_out();
    });
    assert!(sent >= 3 * 2000, "{sent}");
}

#[test]
fn objects_come_whole_and_who_waits_in_vain_gets_an_error() {
    let items = vec![
        item(0, WriteKind::Object { bytes_hint: 1 }),
        item(1, WriteKind::Object { bytes_hint: 1 }),
    ];
    fed(items.clone(), &[9000, 0], MEMORY, |feed, _| {
        assert_eq!(feed.whole(0).unwrap(), bytes(0, 9000));
        assert_eq!(feed.whole(1).unwrap(), Bytes::new());
    });
    let mut plan = SavePlan::new(items);
    plan.exchange.takes = vec![0; 2];
    let feed = Feed::new(&plan, &table(MEMORY)).unwrap();
    let waits = Arc::clone(&feed);
    let thread = thread::spawn(move || waits.whole(1).unwrap_err().to_string());
    block_on(feed.ready());
    feed.stop();
    let said = thread.join().unwrap();
    assert!(
        said.contains("item 1") && said.contains("interrupted"),
        "{said}"
    );
}

#[test]
fn bytes_that_were_not_planned_are_an_error() {
    let table = table(MEMORY);
    let mut plan = SavePlan::new(vec![tensor(0, &[4])]);
    plan.exchange.takes = vec![0];
    let given = |item, last, n: usize| {
        let feed = Feed::new(&plan, &table).unwrap();
        let mut part = Vec::new();
        let stream = Stream { item, attempt: 0 };
        Piece {
            stream,
            last,
            bytes: vec![0; n].into(),
        }
        .push(&mut part);
        let mut part = part.concat();
        if n == 3 {
            part.pop();
        }
        feed.take(&table, 0, part.into()).map_err(|e| e.to_string())
    };
    assert_eq!(given(0, false, 4), Ok(()));
    assert!(
        given(0, false, 5)
            .unwrap_err()
            .contains("item 0: rank 0 has sent more of it")
    );
    assert!(
        given(0, true, 2)
            .unwrap_err()
            .contains("item 0: rank 0 has sent less of it")
    );
    assert!(
        given(1, false, 1)
            .unwrap_err()
            .contains("more than was planned")
    );
    assert!(
        given(0, false, 3)
            .unwrap_err()
            .contains("more than was planned"),
        "cut off"
    );
}

#[test]
fn bytes_of_a_reading_that_has_ended_are_not_those_of_the_next() {
    let table = table(MEMORY);
    let mut plan = SavePlan::new(vec![tensor(0, &[4])]);
    plan.exchange.takes = vec![0];
    let feed = Feed::new(&plan, &table).unwrap();
    let give = |attempt, bytes: &'static [u8]| {
        let mut part = Vec::new();
        let stream = Stream { item: 0, attempt };
        Piece {
            stream,
            last: false,
            bytes: Bytes::from_static(bytes),
        }
        .push(&mut part);
        feed.take(&table, 0, part.concat().into()).unwrap();
    };
    give(0, b"ab");
    assert_eq!(feed.next(0, 9).unwrap(), "ab");
    feed.rewind(0);
    give(0, b"cd");
    assert_eq!(feed.lock().held, 0);
    give(1, b"abcd");
    assert_eq!(feed.whole(0).unwrap(), "abcd");
}

//! Brings the items of all ranks to the coordinator, for policies that put everything into one place.

use crate::{Blocks, Elements, Result, StorageWriter, StrategyError, agree, cause, encode_object};
use bytes::Bytes;
use reshard_comm::Comm;
use reshard_model::{FlatStateDict, Path, Payload, Sharded, ShardedObject, ShardedTensor, Step, Tensor};
use reshard_plan::{WriteData, WriteItem, WriteKind};
use serde::{Deserialize, Serialize};

/// Bytes that all ranks together send in one round.
const ROUND: usize = 256 << 20;
/// The least number of bytes that one rank may send in a round, however many ranks there are.
const LEAST: usize = 64 << 10;

/// Blocks of one rank's items. An item is named by its position in the list that this rank gives.
#[derive(Serialize, Deserialize)]
struct Round {
    blocks: Vec<(u32, Bytes)>,
    more: bool,
}

/// Sends the items that this rank gives. On the coordinator, adds the items of all other ranks to `state`, as leaves in the
/// order of ranks. The coordinator needs memory for all of them.
///
/// # Collective
/// Every rank calls it.
pub(super) async fn bring<W: StorageWriter>(
    comm: &Comm<'_>,
    writer: &W,
    give: &[WriteItem],
    resolve: &(dyn Fn(&WriteItem) -> Result<WriteData> + Sync),
    taken: &[Vec<WriteItem>],
    state: &mut FlatStateDict,
) -> Result<()> {
    // Opens this rank's items and reserves the coordinator's memory first, so that the most likely errors come before any
    // transfer.
    let opened: Result<Vec<Blocks>> = give.iter().map(|item| blocks(writer, item, resolve(item)?)).collect();
    let whole: Result<Vec<Vec<Vec<u8>>>> =
        taken.iter().map(|items| items.iter().map(room).collect()).collect();
    let ready = agree(comm, "gather", opened.and_then(|opened| Ok((opened, whole?)))).await?;
    let (mut sources, mut whole) = (ready.0.into_iter().enumerate().peekable(), ready.1);
    // Rounds of bounded size: the messages that are in memory at a time do not grow with the state. Each round ends in the
    // coordinator's decision whether any rank has more, so all ranks stop in the same round.
    let budget = (ROUND / comm.size().max(1) as usize).max(LEAST);
    loop {
        let mut round = Round { blocks: Vec::new(), more: false };
        let filled = fill(&mut round, &mut sources, budget).map_err(|e| cause(&e));
        let more = comm.all_reduce("gather", filled.map(|()| round), |rounds: Vec<Round>| {
            let more = rounds.iter().any(|r| r.more);
            for (rank, round) in rounds.into_iter().enumerate() {
                for (item, block) in round.blocks {
                    if let Some(out) = whole.get_mut(rank).and_then(|r| r.get_mut(item as usize)) {
                        out.extend_from_slice(&block);
                    }
                }
            }
            Ok(more)
        });
        if !more.await? {
            break;
        }
    }
    // Only the coordinator has anything to add, but all ranks must learn whether it could.
    let added = add(state, writer, taken, whole);
    agree(comm, "gather", added).await
}

/// Reserves memory for an item. The length of an object is not known beforehand, so it gets none here.
fn room(item: &WriteItem) -> Result<Vec<u8>> {
    let bytes = item.tensor().map_or(0, |t| t.bytes());
    let mut out = Vec::new();
    let reserved = usize::try_from(bytes).ok().and_then(|n| out.try_reserve_exact(n).ok());
    let none = || {
        let what = format!("{}: no memory on the coordinator for {bytes} bytes that are gathered", item.key);
        StrategyError::Invalid(what)
    };
    reserved.map(|()| out).ok_or_else(none)
}

fn blocks<W: StorageWriter>(writer: &W, item: &WriteItem, data: WriteData) -> Result<Blocks> {
    match (&item.kind, data) {
        (WriteKind::Tensor(t), WriteData::Tensor(data)) => Ok(Elements::of(item, t, data)?.blocks()),
        (WriteKind::Object { .. }, WriteData::Object(payload)) => {
            let codec = writer.codec().ok_or_else(|| StrategyError::Unsupported {
                strategy: writer.key().to_string(),
                what: "bringing objects to one rank".into(),
            })?;
            let bytes = encode_object(&*codec, &item.key, payload)?;
            Ok(Box::new(std::iter::once(Ok(bytes))))
        }
        _ => {
            let what = format!("{}: an object was given for a tensor, or a tensor for an object", item.key);
            Err(StrategyError::Invalid(what))
        }
    }
}

type Sources = std::iter::Peekable<std::iter::Enumerate<std::vec::IntoIter<Blocks>>>;

fn fill(round: &mut Round, sources: &mut Sources, budget: usize) -> Result<()> {
    let mut sent = 0;
    while let Some((item, blocks)) = sources.peek_mut() {
        if sent >= budget {
            round.more = true;
            return Ok(());
        }
        match blocks.next() {
            Some(Ok(block)) => {
                sent += block.len();
                round.blocks.push((*item as u32, block));
            }
            Some(Err(e)) => {
                return Err(StrategyError::Invalid(format!("what is to be gathered can't be read: {e}")));
            }
            None => {
                sources.next();
            }
        }
    }
    Ok(())
}

fn add<W: StorageWriter>(
    state: &mut FlatStateDict,
    writer: &W,
    taken: &[Vec<WriteItem>],
    whole: Vec<Vec<Vec<u8>>>,
) -> Result<()> {
    // A top-level name with which no path of the caller begins.
    let mut top = String::from("gathered");
    while state.keys().any(|p| p.0.first() == Some(&Step::from(top.as_str()))) {
        top.push('_');
    }
    let mut at = 0;
    for (item, bytes) in taken.iter().flatten().zip(whole.into_iter().flatten()) {
        let leaf = match (&item.kind, writer.codec()) {
            (WriteKind::Tensor(t), _) => {
                let tensor = Tensor::new(t.dtype, &t.region.lengths, Bytes::from(bytes))?;
                let leaf = ShardedTensor::region_of(&item.key, t.dtype, &t.global_shape, t.region.clone());
                Sharded::Tensor(leaf.with_data(tensor))
            }
            (WriteKind::Object { .. }, Some(codec)) => {
                let payload = Payload::Encoded { codec: codec.name(), bytes: bytes.into() };
                Sharded::Object(ShardedObject::item(&item.key, payload))
            }
            (WriteKind::Object { .. }, None) => continue,
        };
        state.insert(Path(vec![Step::from(top.as_str()), Step::Index(at)]), leaf);
        at += 1;
    }
    Ok(())
}

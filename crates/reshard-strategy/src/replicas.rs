//! Finds replicas of a piece that differ between ranks, before all but one of them are dropped.
//!
//! Each rank sends 20 bytes for each of its pieces: a hash of what the piece is, and a CRC-32 of its elements. Names follow only if something differs.

mod crc;

pub use crc::crc32_of_all;

use crate::{Result, StrategyError, cause};
use reshard_comm::{Comm, Rank};
use reshard_model::{Dialect, FlatStateDict, Path, PlainTensor, Sharded, ShardedTensor};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

/// A message names at most so many pieces.
const SHOWN: usize = 20;

/// What a piece is: the hash of its key and of its place in the tensor.
type Id = [u8; 16];

#[derive(Debug, Serialize, Deserialize)]
struct Print {
    piece: Id,
    crc: u32,
    is_main: bool,
}

/// A piece whose replicas differ.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Different {
    piece: Id,
    /// The rank with the main replica, or the lowest one.
    meant: u32,
    /// Ranks with other elements.
    others: Vec<Rank>,
}

/// Compares the replicas of all pieces. Pieces that are not in memory are left out.
///
/// # Collective
/// Every rank of the group calls it.
///
/// # Errors
/// On every rank, when replicas differ, with keys, regions and ranks.
pub async fn check_replicas(
    comm: &Comm<'_>,
    flat: &FlatStateDict,
    plain: &[PlainTensor],
    dialect: Dialect,
) -> Result<()> {
    let plain: BTreeSet<&Path> = match dialect {
        // They are common state there, and no leaves.
        Dialect::Megatron => BTreeSet::new(),
        _ => plain.iter().map(|tensor| &tensor.path).collect(),
    };
    let sharded: Vec<&ShardedTensor> = sharded(flat, &plain).collect();
    let mine = prints(&sharded).await;
    let mine = mine.map_err(|e| cause(&e));
    let compare = |all: Vec<Vec<Print>>| Ok(compare(&all));
    let (different, count) = comm.all_reduce("check replicas", mine, compare).await?;
    if count == 0 {
        return Ok(());
    }

    // Whoever has such a piece says what it is called.
    let names = Ok(names(&sharded, &different));
    let told: BTreeMap<Id, String> = comm
        .all_reduce("name replicas", names, |all: Vec<BTreeMap<Id, String>>| {
            Ok(all.into_iter().flatten().collect())
        })
        .await?;
    let mut what = format!(
        "replicas of pieces have other elements ({count}), and only one of them would be saved:"
    );
    for Different {
        piece,
        meant,
        others,
    } in &different
    {
        let name = told.get(piece).map_or("a piece", String::as_str);
        let told = match &**others {
            _ if others.contains(&Rank(*meant)) => format!("rank {meant} has two that differ"),
            [one] => format!("rank {one} differs from rank {meant}"),
            many => format!("{} differ from rank {meant}", Rank::list(many)),
        };
        what = format!("{what}\n  {name}: {told}");
    }
    if count > different.len() {
        what = format!("{what}\n  and {} more", count - different.len());
    }
    what += "\nfind out since when the ranks have diverged; without `.check_replicas(true)` they are not compared";
    Err(StrategyError::Invalid(what))
}

/// The leaves that are declared as pieces. Plain tensors have a rule of their own.
fn sharded<'a>(
    flat: &'a FlatStateDict,
    plain: &'a BTreeSet<&Path>,
) -> impl Iterator<Item = &'a ShardedTensor> {
    // Their paths are the keys under which they are saved.
    let is_plain = |tensor: &ShardedTensor| plain.contains(&Path(vec![(&*tensor.key).into()]));
    flat.values().filter_map(move |leaf| match leaf {
        Sharded::Tensor(tensor) if !is_plain(tensor) => Some(tensor),
        Sharded::Tensor(_) | Sharded::Object(_) => None,
    })
}

async fn prints(tensors: &[&ShardedTensor]) -> Result<Vec<Print>> {
    let sums = crc32_of_all(tensors.iter().map(|t| (t.key.to_string(), &t.data))).await?;
    let print = |(tensor, sum): (&&ShardedTensor, Option<u32>)| {
        Some(Print {
            piece: id(tensor),
            crc: sum?,
            is_main: tensor.replica_id.is_main(),
        })
    };
    Ok(tensors.iter().zip(sums).filter_map(print).collect())
}

fn id(tensor: &ShardedTensor) -> Id {
    let hash = Sha256::digest(Name(tensor).to_string());
    let mut id = Id::default();
    id.copy_from_slice(&hash[..16]);
    id
}

/// The key and the place of a piece.
struct Name<'a>(&'a ShardedTensor);

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.0.key, self.0.region())?;
        match &self.0.flattened_range {
            Some(range) => write!(f, ", its elements {}:{}", range.start, range.end),
            None => Ok(()),
        }
    }
}

fn names(tensors: &[&ShardedTensor], different: &[Different]) -> BTreeMap<Id, String> {
    let wanted: BTreeSet<Id> = different.iter().map(|d| d.piece).collect();
    let all = tensors.iter().map(|tensor| (id(tensor), Name(tensor)));
    all.filter(|(id, _)| wanted.contains(id))
        .map(|(id, name)| (id, name.to_string()))
        .collect()
}

/// The first pieces that differ, and how many do.
fn compare(all: &[Vec<Print>]) -> (Vec<Different>, usize) {
    let ranks = (0..).map(Rank).zip(all);
    let mut holders: BTreeMap<Id, Vec<(Rank, &Print)>> = BTreeMap::new();
    for (rank, prints) in ranks {
        for print in prints {
            holders.entry(print.piece).or_default().push((rank, print));
        }
    }
    let differ = |(piece, of): (Id, Vec<(Rank, &Print)>)| {
        let main = of.iter().find(|(_, print)| print.is_main);
        let (meant, is) = *main.or(of.first())?;
        let others = of.iter().filter(|(_, print)| print.crc != is.crc);
        let mut others: Vec<Rank> = others.map(|(rank, _)| *rank).collect();
        others.dedup();
        (!others.is_empty()).then_some(Different {
            piece,
            meant: meant.0,
            others,
        })
    };
    let mut different: Vec<Different> = holders.into_iter().filter_map(differ).collect();
    let count = different.len();
    different.truncate(SHOWN);
    (different, count)
}

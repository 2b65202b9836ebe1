//! Is a policy's answer what was given to it, in other files?

use crate::{Cut, Piece, PolicyError, Result};
use reshard_model::{BoxFault, Region, first_fault};

/// Walks the slices, then the pieces.
pub(super) fn check(policy: &str, pieces: &[Piece<'_>], answer: &[Vec<Cut>]) -> Result<()> {
    let wrong = |key: &str, region: &Region, shard: Option<usize>, what: String| {
        Err(PolicyError::Wrong {
            policy: policy.into(),
            key: key.into(),
            region: region.clone(),
            shard,
            what,
        })
    };

    // Each slice by itself: it names a piece, lies in it, and shares its shard with no other task.
    for (number, cuts) in answer.iter().enumerate() {
        let mut first: Option<&Piece<'_>> = None;
        for Cut { piece, region } in cuts {
            let Some(of) = pieces.get(*piece as usize) else {
                let (piece, region) = (*piece, region.clone());
                let source = PolicyError::NoPiece {
                    piece,
                    pieces: pieces.len(),
                    region,
                    shard: number,
                };
                return Err(PolicyError::failed(policy, source));
            };
            let first = *first.get_or_insert(of);
            if first.task != of.task {
                let (task, other, their) = (of.task, first.key, first.task);
                let what = format!(
                    "is of task {task}, but the shard has {other} of task {their}; a shard is a file of one task"
                );
                return wrong(of.key, region, Some(number), what);
            }
            let axes = of.region.ndim();
            if region.ndim() != axes || region.offsets.len() != axes {
                let what = format!(
                    "has {} axes, but the piece {} has {axes}",
                    region.ndim(),
                    of.region
                );
                return wrong(of.key, region, Some(number), what);
            }
            if !fits(region) || !of.region.contains(region) {
                return wrong(
                    of.key,
                    region,
                    Some(number),
                    format!("does not lie in the piece {}", of.region),
                );
            }
            if of.is_whole() && region != of.region {
                return wrong(of.key, region, Some(number), cut_whole(of.region));
            }
            if region.is_empty() && region != of.region {
                let what = format!("is an empty slice of the piece {}", of.region);
                return wrong(of.key, region, Some(number), what);
            }
        }
    }

    // Each piece by itself: its slices cover it exactly once. Most pieces are one slice, which needs no geometry.
    let slices = Slices::of(pieces.len(), answer);
    for (piece, of) in pieces.iter().enumerate() {
        let found = slices.of_piece(piece);
        match found {
            [] => {
                let what = "is in no shard; a policy must not leave anything out".into();
                return wrong(of.key, of.region, None, what);
            }
            [one] if region(answer, *one) == of.region => continue,
            _ if of.region.is_empty() => {
                return wrong(
                    of.key,
                    of.region,
                    Some(found[1].0 as usize),
                    format!("was in shard {} already", found[0].0),
                );
            }
            _ => {}
        }
        let regions: Vec<&Region> = found.iter().map(|&at| region(answer, at)).collect();
        let range = |i: usize, axis: usize| regions[i].offsets[axis]..regions[i].end(axis);
        match first_fault(of.region, regions.len(), range) {
            None => {}
            Some(BoxFault::Overlap(a, b)) => {
                let what = format!("overlaps {} of shard {}", regions[a], found[a].0);
                return wrong(of.key, regions[b], Some(found[b].0 as usize), what);
            }
            Some(BoxFault::Hole(hole)) => {
                let what = format!(
                    "of the piece {} is in no shard; a policy must not leave anything out",
                    of.region
                );
                return wrong(of.key, &hole, None, what);
            }
        }
    }
    Ok(())
}

/// What is wrong with a part of a whole piece.
fn cut_whole(piece: &Region) -> String {
    format!(
        "is a part of the piece {piece}, but the format stores this tensor only whole; don't cut pieces that are `whole`"
    )
}

/// Whether its ends are numbers of 64 bits.
fn fits(region: &Region) -> bool {
    region
        .offsets
        .iter()
        .zip(&region.lengths)
        .all(|(o, l)| o.checked_add(*l).is_some())
}

fn region(answer: &[Vec<Cut>], (shard, at): (u32, u32)) -> &Region {
    &answer[shard as usize][at as usize].region
}

/// Slices by their pieces, as columns: shard and place in it.
struct Slices {
    /// Where the slices of each piece end.
    ends: Vec<u32>,
    places: Vec<(u32, u32)>,
}

impl Slices {
    /// Sorts by counting.
    fn of(pieces: usize, answer: &[Vec<Cut>]) -> Self {
        let cuts = || answer.iter().flatten().map(|c| c.piece as usize);
        let mut ends = vec![0u32; pieces];
        cuts().for_each(|piece| ends[piece] += 1);
        let mut sum = 0;
        for end in &mut ends {
            // First where they begin; every place that is filled moves that on.
            (sum, *end) = (sum + *end, sum);
        }
        let mut places = vec![(0, 0); sum as usize];
        for (shard, cuts) in answer.iter().enumerate() {
            for (at, cut) in cuts.iter().enumerate() {
                let next = &mut ends[cut.piece as usize];
                places[*next as usize] = (shard as u32, at as u32);
                *next += 1;
            }
        }
        Self { ends, places }
    }

    fn of_piece(&self, piece: usize) -> &[(u32, u32)] {
        let start = piece.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.places[start as usize..self.ends[piece] as usize]
    }
}

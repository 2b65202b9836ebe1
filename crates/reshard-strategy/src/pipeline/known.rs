//! All ranks take what they have kept of the last save or load, or decide anew.

use crate::{Result, StrategyError, agree::decide as decide_in, declared::Digest};
use reshard_comm::Comm;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use sha2::{Digest as _, Sha256};

/// What a rank tells first.
#[derive(Serialize, Deserialize)]
enum Part<T> {
    /// It has kept its share of what was decided for these structures of all ranks.
    Known(Digest),
    Offer(T),
}

#[derive(Serialize, Deserialize)]
enum Answer<U> {
    /// All ranks have kept their shares of one decision.
    Known,
    /// Only some have: these tell their offers, too.
    Again,
    New(U),
}

/// The coordinator decides from the offers of all ranks. It returns `None` if all ranks have kept their shares of one decision, which
/// `known` names. Offers are made only where they are needed.
///
/// # Collective
/// Every rank calls it. If one rank fails, all ranks get an error.
pub(super) async fn known_or_decided<T, U>(
    comm: &Comm<'_>,
    known: Result<Option<Digest>>,
    mut offer: impl FnMut() -> Result<T> + Send,
    mut decide: impl FnMut(Vec<T>) -> Result<Vec<U>> + Send,
) -> Result<Option<U>>
where
    T: Serialize + DeserializeOwned + Send,
    U: Serialize + DeserializeOwned + Send,
{
    let knows = matches!(known, Ok(Some(_)));
    let told = known.and_then(|known| match known {
        Some(digest) => Ok(Part::Known(digest)),
        None => offer().map(Part::Offer),
    });
    let mut waiting: Vec<Option<T>> = Vec::new();
    let first = decide_in(comm, "plan", told, |parts: Vec<Part<T>>| {
        let each = |answer: fn() -> Answer<U>| parts.iter().map(|_| answer()).collect();
        if all_know_the_same(&parts) {
            return Ok(each(|| Answer::Known));
        }
        let again = each(|| Answer::Again);
        waiting = parts
            .into_iter()
            .map(|part| match part {
                Part::Known(_) => None,
                Part::Offer(offer) => Some(offer),
            })
            .collect();
        if waiting.iter().any(Option::is_none) {
            return Ok(again);
        }
        let offers = std::mem::take(&mut waiting).into_iter().flatten();
        let shares = decide(offers.collect())?;
        Ok(shares.into_iter().map(Answer::New).collect())
    });
    match first.await? {
        Answer::Known => return Ok(None),
        Answer::New(share) => return Ok(Some(share)),
        Answer::Again => {}
    }
    let again = knows.then(offer).transpose();
    let second = decide_in(comm, "plan", again, |again: Vec<Option<T>>| {
        let offers = std::mem::take(&mut waiting).into_iter().zip(again);
        let offers: Option<Vec<T>> = offers.map(|(first, again)| first.or(again)).collect();
        let lost = || StrategyError::Internal("a plan has lost its offers".into());
        decide(offers.ok_or_else(lost)?)
    });
    second.await.map(Some)
}

/// A rank that has kept its share of another decision must not take it for this one.
fn all_know_the_same<T>(parts: &[Part<T>]) -> bool {
    let mut known = parts.iter().map(|part| match part {
        Part::Known(of_all) => Some(of_all),
        Part::Offer(_) => None,
    });
    let first = known.next().flatten();
    first.is_some() && known.all(|other| other == first)
}

/// The digest of the structures of all ranks, if all ranks keep what is decided.
pub(super) fn of_all(structures: impl IntoIterator<Item = Option<Digest>>) -> Option<Digest> {
    let mut hash = Sha256::new();
    for structure in structures {
        hash.update(structure?);
    }
    Some(hash.finalize().into())
}

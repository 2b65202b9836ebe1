//! How ranks find each other: through keys of a store.
//!
//! All keys begin with the name of the group. Below that, `job` is the record of the job that uses the store ([`claims`](crate::claims)). All other keys
//! continue with the id of the job, the run and the attempt. Below that, `claim/R` says which process is rank R, and `joined/R` counts the groups that
//! rank R has made, so that the n-th groups of all ranks meet. The keys of the n-th group begin with `n/`:
//!
//! | key | value |
//! | --- | --- |
//! | `token` | the number of ranks, the width of trees, and 32 random bytes of rank 0; removed when all ranks have it |
//! | `address/R` | where rank R listens |
//! | `present` | how many ranks have a token and an address |
//! | `all` | all addresses; the rank that came last writes it |
//! | `over` | how many ranks have read `all` |
//! | `ended` | exists when all have |
//! | `broken/G` | why group G is broken |
//!
//! If another process claims a rank during the meeting, that rank writes into `token`, `all` and `ended` that it was taken.

use crate::{Result, TcpError, gate::Gate, handshake::Token, store::StoreClient};
use reshard_comm::Rank;
use reshard_comm::mesh::Limit;
use std::{io, net::SocketAddr, time::Duration};

/// What a rank brings to the meeting.
#[derive(Debug)]
pub(crate) struct Guest<'a> {
    pub(crate) rank: u32,
    pub(crate) size: u32,
    /// Where this rank listens.
    pub(crate) address: SocketAddr,
    pub(crate) job_id: Option<&'a str>,
    /// Begins the keys of all jobs.
    pub(crate) base: &'a str,
    /// Begins the keys of this job and attempt.
    pub(crate) prefix: &'a str,
    /// Whether the store is of this process, so that it must not leave before all.
    pub(crate) serves: bool,
    /// The width of trees. That of rank 0 counts.
    pub(crate) fan: u32,
    pub(crate) deadline: Duration,
    pub(crate) limit: Limit,
    pub(crate) gate: &'a Gate,
}

/// Begins the values that say which rank was taken during the meeting.
const TAKEN: &[u8] = b"taken:";

/// What a rank takes home.
#[derive(Debug)]
pub(crate) struct Met {
    pub(crate) token: Token,
    pub(crate) fan: u32,
    pub(crate) addresses: Vec<SocketAddr>,
    /// What the keys of this group begin with.
    pub(crate) prefix: String,
}

/// Meets all ranks at the store. `again` makes another connection to it.
///
/// # Errors
/// [`TcpError::Missing`] if ranks don't come, [`TcpError::Setting`] if `WORLD_SIZE` differs, [`TcpError::RankTaken`], [`TcpError::Store`].
pub(crate) fn meet(
    store: &mut StoreClient,
    guest: &Guest<'_>,
    again: impl Fn(Limit) -> Result<StoreClient>,
) -> Result<Met> {
    let joined = format!("{}/joined/{}", guest.prefix, guest.rank);
    let prefix = format!("{}/{}", guest.prefix, store.add(&joined, 1, guest.limit)?);
    guest.gate.ends(store.handle()?);
    let met = meet_at(store, guest, prefix.clone(), &again);
    match met {
        Err(_) if guest.gate.is_taken() => {
            tell_taken(guest, &prefix, &again);
            Err(guest.taken(guest.rank))
        }
        met => met,
    }
}

impl Guest<'_> {
    /// Another process has claimed a rank.
    pub(crate) fn taken(&self, rank: u32) -> TcpError {
        TcpError::RankTaken {
            address: self.gate.store.clone(),
            rank: Rank(rank),
        }
    }

    /// A value that this rank has waited for.
    ///
    /// # Errors
    /// It says that a rank was taken.
    fn untaken(&self, value: Vec<u8>) -> Result<Vec<u8>> {
        let Some(rank) = value.strip_prefix(TAKEN) else {
            return Ok(value);
        };
        let rank = std::str::from_utf8(rank).ok();
        let rank = rank.and_then(|rank| rank.parse().ok());
        Err(self.taken(rank.unwrap_or(self.rank)))
    }
}

/// Ends the waiting of the others. It is best effort: without it they wait until their deadline.
fn tell_taken(guest: &Guest<'_>, prefix: &str, again: impl Fn(Limit) -> Result<StoreClient>) {
    const TELL: Duration = Duration::from_secs(5);
    let limit = Limit::after(TELL);
    let value = [TAKEN, guest.rank.to_string().as_bytes()].concat();
    let told = again(limit).and_then(|mut store| {
        for name in ["token", "all", "ended"] {
            store.set(&format!("{prefix}/{name}"), &value, limit)?;
        }
        // Nothing answers a `set`.
        store.has(&format!("{prefix}/all"), limit)
    });
    tracing::debug!(?told, "told the others that this rank was taken");
}

fn meet_at(
    store: &mut StoreClient,
    guest: &Guest<'_>,
    prefix: String,
    again: impl Fn(Limit) -> Result<StoreClient>,
) -> Result<Met> {
    let (limit, me) = (guest.limit, guest.rank);
    let key = |name: &str| format!("{prefix}/{name}");
    let missing = |error| who_is_missing(error, guest, &prefix, &again);

    store.set(
        &key(&format!("address/{me}")),
        guest.address.to_string().as_bytes(),
        limit,
    )?;
    if me == 0 {
        let token = Token::new().map_err(TcpError::io("making a random token"))?;
        let numbers = [guest.size.to_le_bytes(), guest.fan.to_le_bytes()].concat();
        let value = [&numbers[..], token.as_bytes()].concat();
        store.set(&key("token"), &value, limit)?;
    }
    let (token, fan) = match store.get(&key("token"), limit) {
        Ok(value) => read_token(&guest.untaken(value)?, guest.size)?,
        Err(e) => return Err(missing(e)),
    };

    // The last one gathers all.
    if store.add(&key("present"), 1, limit)? == i64::from(guest.size) {
        store.delete(&key("token"), limit)?;
        let mut all = Vec::new();
        for rank in 0..guest.size {
            all.extend(store.get(&key(&format!("address/{rank}")), limit)?);
            all.push(b'\n');
        }
        store.set(&key("all"), &all, limit)?;
    }
    let addresses = match store.get(&key("all"), limit) {
        Ok(all) => read_addresses(&guest.untaken(all)?, guest.size),
        Err(e) => return Err(missing(e)),
    };
    let addresses = addresses.ok_or_else(|| TcpError::Store {
        address: guest.prefix.to_owned(),
        doing: "read the addresses of all ranks".to_owned(),
        source: io::ErrorKind::InvalidData.into(),
    })?;

    if store.add(&key("over"), 1, limit)? == i64::from(guest.size) {
        store.set(&key("ended"), b"", limit)?;
    }
    // If this process ended now, its store would end before others have read from it.
    if guest.serves {
        guest.untaken(store.get(&key("ended"), limit)?)?;
    }
    Ok(Met {
        token,
        fan,
        addresses,
        prefix,
    })
}

fn read_token(value: &[u8], size: u32) -> Result<(Token, u32)> {
    let parts = value.split_first_chunk::<4>().and_then(|(theirs, rest)| {
        let (fan, token) = rest.split_first_chunk::<4>()?;
        Some((theirs, fan, token.try_into().ok()?))
    });
    let Some((theirs, fan, token)) = parts else {
        return Err(TcpError::Setting(
            "the token that rank 0 put into the store is not readable; another version of reshard may run there"
                .to_owned(),
        ));
    };
    let theirs = u32::from_le_bytes(*theirs);
    if theirs != size {
        return Err(TcpError::Setting(format!(
            "this process has WORLD_SIZE {size}, but rank 0 has {theirs}; all processes need the same"
        )));
    }
    Ok((Token::from_bytes(token), u32::from_le_bytes(*fan)))
}

fn read_addresses(all: &[u8], size: u32) -> Option<Vec<SocketAddr>> {
    let lines = std::str::from_utf8(all).ok()?.lines();
    let addresses: Option<Vec<SocketAddr>> = lines.map(|line| line.parse().ok()).collect();
    addresses.filter(|addresses| addresses.len() == size as usize)
}

/// Why nobody wrote a key that this rank waited for.
fn who_is_missing(
    error: TcpError,
    guest: &Guest<'_>,
    prefix: &str,
    again: impl Fn(Limit) -> Result<StoreClient>,
) -> TcpError {
    if guest.gate.is_taken() {
        return error;
    }
    const LOOK: Duration = Duration::from_secs(10);
    let TcpError::Store { address, .. } = &error else {
        return error;
    };
    let limit = Limit::after(LOOK);
    // The old connection still waits for an answer.
    let Ok(mut store) = again(limit) else {
        return error;
    };
    let mut ranks = Vec::new();
    for rank in 0..guest.size {
        match store.has(&format!("{prefix}/address/{rank}"), limit) {
            Ok(true) => {}
            Ok(false) => ranks.push(Rank(rank)),
            Err(_) => return error,
        }
    }
    if ranks.is_empty() {
        return error;
    }
    TcpError::Missing {
        address: address.clone(),
        ranks,
        seconds: guest.deadline.as_secs_f64(),
    }
}

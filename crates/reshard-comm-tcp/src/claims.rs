//! Keeps jobs apart that were given the same store by accident.
//!
//! The first rank of a job leaves a record of it in the store, and each rank claims its number there. A record says where its rank listens, and has a token
//! with which another process can [knock](crate::handshake::knock) there. So a newcomer tells a running job from one that has ended and left its keys in a
//! store that lives on.
//!
//! Two running jobs with different ids: the newcomer fails, and the other job notices nothing. Two running processes with one rank: both groups fail, because
//! ranks of both jobs may have met already.

use crate::{
    Result, TcpError,
    clock::Timed,
    handshake::{self, Knock, Token},
    meet::Guest,
    store::StoreClient,
};
use serde::{Deserialize, Serialize};
use std::{
    io,
    net::{SocketAddr, TcpStream},
    time::Duration,
};

/// How long one knock may take.
const KNOCK: Duration = Duration::from_secs(5);

impl Guest<'_> {
    /// Claims the store for this job, and the rank for this process.
    ///
    /// # Errors
    /// [`TcpError::OtherJob`], [`TcpError::RankTaken`]; else those of the store.
    pub(crate) fn settle(&self, store: &mut StoreClient) -> Result<()> {
        let mine = Record {
            job_id: self.job_id.map(str::to_owned),
            size: self.size,
            prefix: self.prefix.to_owned(),
            address: self.address,
            knocking: self.gate.knocking.clone(),
        };
        self.claim_store(store, &mine)?;
        self.claim_rank(store, &mine)
    }

    /// Sets the record of the job, unless a rank of this job has set it, or that of a job which has ended is there.
    fn claim_store(&self, store: &mut StoreClient, mine: &Record) -> Result<()> {
        let (key, new) = (format!("{}/job", self.base), mine.encode()?);
        let mut old = Vec::new();
        loop {
            let found = store.compare_set(&key, &old, &new, self.limit)?;
            if found == new {
                return Ok(());
            }
            let theirs = self.read_record(&found)?;
            if theirs.job_id == mine.job_id {
                return Ok(());
            }
            if self.runs(store, &theirs)? {
                return Err(TcpError::OtherJob {
                    address: self.gate.store.clone(),
                    theirs: theirs.job_id,
                    own: mine.job_id.clone(),
                });
            }
            old = found;
        }
    }

    /// Claims the rank, unless an earlier group of this process has it. What a process has left that ended is replaced.
    fn claim_rank(&self, store: &mut StoreClient, mine: &Record) -> Result<()> {
        let (key, new) = (claim(self.prefix, self.rank), mine.encode()?);
        let mut old = Vec::new();
        loop {
            let found = store.compare_set(&key, &old, &new, self.limit)?;
            if found == new {
                return Ok(());
            }
            let theirs = self.read_record(&found)?;
            match self.knock(&theirs, Knock::RankClaim(self.gate.process)) {
                Ok(true) => return Err(self.taken(self.rank)),
                Ok(false) => return Ok(()),
                Err(e) => tracing::debug!("a rank that has ended left its claim: {e}"),
            }
            old = found;
        }
    }

    /// Whether any rank of another job still runs: first the one that left the record.
    fn runs(&self, store: &mut StoreClient, theirs: &Record) -> Result<bool> {
        if self.knock(theirs, Knock::Look).is_ok() {
            return Ok(true);
        }
        for rank in 0..theirs.size {
            let key = claim(&theirs.prefix, rank);
            if !store.has(&key, self.limit)? {
                continue;
            }
            let record = self.read_record(&store.get(&key, self.limit)?)?;
            if self.knock(&record, Knock::Look).is_ok() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn knock(&self, at: &Record, knock: Knock) -> io::Result<bool> {
        let limit = self.limit.at_most(KNOCK);
        let stream = TcpStream::connect_timeout(&at.address, limit.left()?)?;
        let mut timed = Timed {
            stream: &stream,
            limit,
        };
        handshake::knock(&mut timed, &at.knocking, knock)
    }

    fn read_record(&self, bytes: &[u8]) -> Result<Record> {
        Record::decode(bytes).ok_or_else(|| TcpError::Store {
            address: self.gate.store.clone(),
            doing: "read the record of a job, which another version of reshard may have written"
                .to_owned(),
            source: io::ErrorKind::InvalidData.into(),
        })
    }
}

/// The key at which a rank is claimed.
fn claim(prefix: &str, rank: u32) -> String {
    format!("{prefix}/claim/{rank}")
}

/// A job or a rank, in the store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    job_id: Option<String>,
    size: u32,
    prefix: String,
    address: SocketAddr,
    knocking: Token,
}

impl Record {
    fn encode(&self) -> Result<Vec<u8>> {
        let encoded = postcard::to_allocvec(self).map_err(io::Error::other);
        encoded.map_err(TcpError::io("encoding the record of a job"))
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (record, rest) = postcard::take_from_bytes(bytes).ok()?;
        rest.is_empty().then_some(record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_again_and_half_of_it_is_not() {
        for job_id in [None, Some(String::new()), Some("a\n\0b".to_owned())] {
            let record = Record {
                job_id,
                size: 3,
                prefix: "reshard/x".to_owned(),
                address: "127.0.0.1:9".parse().unwrap(),
                knocking: Token::new().unwrap(),
            };
            let bytes = record.encode().unwrap();
            assert_eq!(Record::decode(&bytes), Some(record));
            for end in 0..bytes.len() {
                assert_eq!(Record::decode(&bytes[..end]), None);
            }
            assert_eq!(Record::decode(&[&bytes[..], &[0]].concat()), None);
        }
    }
}

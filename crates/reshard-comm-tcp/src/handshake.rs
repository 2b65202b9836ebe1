//! How two ranks prove to each other that they know the token of the job.
//!
//! The rank that was called speaks first, so that it never acts on words that somebody recorded:
//!
//! 1. It sends a greeting: 8 fixed bytes and a fresh nonce of 16.
//! 2. The caller answers with its claim: its rank, the rank it wants, a fresh nonce of 16, and a MAC over all before.
//! 3. The called rank sends a verdict of 1 byte (1 yes, 2 already connected), and a MAC over all before.
//!
//! A process that is no member may *knock*, with a claim whose MAC has the rank's knocking token as its key. It gets an answer of the same form. Only those who
//! reach the store know that token. It lets nobody in.
//!
//! The MAC is HMAC-SHA256 with the token as its key. Each side's MAC begins with a different label, so that neither can
//! be sent back. No byte of the claim is looked at before its MAC is right.

use crate::clock::Timed;
use hmac::{Hmac, Mac};
use reshard_comm::mesh::Limit;
use sha2::Sha256;
use std::{
    io::{self, Read, Write},
    net::TcpStream,
    sync::OnceLock,
};

const GREETING: &[u8; 8] = b"reshard1";
const NONCE: usize = 16;
const MAC: usize = 32;
const CLAIM: usize = 4 + 4 + NONCE;
/// The rank that a knock has in its claim. It has the process in place of the nonce.
const KNOCK: u32 = u32::MAX;

/// What only members of the job know.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Token([u8; 32]);

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(..)")
    }
}

impl Token {
    /// A new random token.
    pub(crate) fn new() -> io::Result<Self> {
        random().map(Self)
    }

    pub(crate) fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    pub(crate) fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    fn mac(&self, label: &[u8], parts: &[&[u8]]) -> io::Result<Hmac<Sha256>> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).map_err(io::Error::other)?;
        mac.update(label);
        parts.iter().for_each(|part| mac.update(part));
        Ok(mac)
    }
}

fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(io::Error::other)?;
    Ok(bytes)
}

/// What the called rank says to a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The connection is used from now on.
    Yes,
    /// Another connection is used, which exists or which the called rank is about to open.
    Declined,
}

impl Verdict {
    fn code(self) -> u8 {
        match self {
            Self::Yes => 1,
            Self::Declined => 2,
        }
    }
}

/// A caller that has proved that it is a member. It waits for a verdict.
#[derive(Debug)]
pub(crate) struct Caller {
    stream: TcpStream,
    said: Vec<u8>,
}

/// Greets a caller and checks its claim. It takes at most as long as `limit` says.
///
/// # Errors
/// `PermissionDenied` if the caller does not know the token; else those of the connection.
#[cfg(test)]
pub(crate) fn receive(
    stream: TcpStream,
    token: &Token,
    me: u32,
    size: u32,
    limit: Limit,
) -> io::Result<(u32, Caller)> {
    let mut timed = Timed {
        stream: &stream,
        limit,
    };
    let words = Words::hear(&mut timed)?;
    let rank = words.member(token, me, size)?;
    Ok((rank, words.caller(stream)))
}

/// Greets a caller and checks its claim.
///
/// # Errors
/// Those of [`receive`].
#[cfg(feature = "testkit")]
pub(crate) fn hear(
    stream: &mut (impl Read + Write),
    token: &Token,
    me: u32,
    size: u32,
) -> io::Result<u32> {
    Words::hear(stream)?.member(token, me, size)
}

/// What a called rank and its caller have said before the verdict.
#[derive(Debug)]
pub(crate) struct Words {
    greeting: Vec<u8>,
    claim: [u8; CLAIM],
    proof: [u8; MAC],
}

impl Words {
    /// Greets a caller and reads its claim, unchecked.
    ///
    /// # Errors
    /// Those of the connection.
    pub(crate) fn hear(stream: &mut (impl Read + Write)) -> io::Result<Self> {
        let greeting = [&GREETING[..], &random::<NONCE>()?].concat();
        stream.write_all(&greeting)?;
        let (claim, proof) = (read(stream)?, read(stream)?);
        Ok(Self {
            greeting,
            claim,
            proof,
        })
    }

    fn all(&self) -> Vec<u8> {
        [&self.greeting[..], &self.claim, &self.proof].concat()
    }

    fn is_of(&self, token: &Token, label: &[u8]) -> io::Result<bool> {
        let mac = token.mac(label, &[&self.greeting, &self.claim])?;
        Ok(mac.verify_slice(&self.proof).is_ok())
    }

    /// The rank of the caller, if it is a member that wants rank `me` of `size`.
    ///
    /// # Errors
    /// `PermissionDenied`.
    pub(crate) fn member(&self, token: &Token, me: u32, size: u32) -> io::Result<u32> {
        if !self.is_of(token, b"caller")? {
            return Err(denied("the caller does not know the token of the job"));
        }
        let (from, to) = self.numbers();
        if to != me || from >= size || from == me {
            return Err(denied("the caller wants another rank"));
        }
        Ok(from)
    }

    /// The knock, if the caller knows the knocking token.
    ///
    /// # Errors
    /// The token can't be used.
    pub(crate) fn knock(&self, knocking: &Token) -> io::Result<Option<Knock>> {
        let (from, to) = self.numbers();
        if from != KNOCK || !self.is_of(knocking, b"knock")? {
            return Ok(None);
        }
        let process = self.claim.last_chunk::<NONCE>();
        Ok(Some(match process {
            Some(process) if to != 0 => Knock::RankClaim(Process(*process)),
            _ => Knock::Look,
        }))
    }

    fn numbers(&self) -> (u32, u32) {
        let [f0, f1, f2, f3, t0, t1, t2, t3, ..] = self.claim;
        (
            u32::from_le_bytes([f0, f1, f2, f3]),
            u32::from_le_bytes([t0, t1, t2, t3]),
        )
    }

    /// Takes a caller that is a member.
    pub(crate) fn caller(&self, stream: TcpStream) -> Caller {
        let said = self.all();
        Caller { stream, said }
    }

    /// Answers a knock.
    ///
    /// # Errors
    /// Those of the connection.
    pub(crate) fn answer_knock(
        &self,
        stream: &mut impl Write,
        knocking: &Token,
        both_fail: bool,
    ) -> io::Result<()> {
        let code = [u8::from(both_fail)];
        let proof = knocking.mac(b"knocked", &[&self.all(), &code])?.finalize();
        stream.write_all(&[&code[..], &proof.into_bytes()].concat())
    }
}

/// A process, among all that may meet at a store. Its groups share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process(pub(crate) [u8; NONCE]);

impl Process {
    /// This one.
    ///
    /// # Errors
    /// The system has no random bytes.
    pub(crate) fn this() -> io::Result<Self> {
        static THIS: OnceLock<[u8; NONCE]> = OnceLock::new();
        if let Some(this) = THIS.get() {
            return Ok(Self(*this));
        }
        let new = random()?;
        Ok(Self(*THIS.get_or_init(|| new)))
    }
}

/// Why a process that is no member calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Knock {
    /// It looks whether the rank still runs.
    Look,
    /// This process claims the same rank.
    RankClaim(Process),
}

/// Knocks at a rank. Returns whether both fail, if the rank still runs there.
///
/// # Errors
/// Nobody answers there who knows the token.
pub(crate) fn knock(
    stream: &mut (impl Read + Write),
    knocking: &Token,
    knock: Knock,
) -> io::Result<bool> {
    let greeting: [u8; GREETING.len() + NONCE] = read(stream)?;
    if !greeting.starts_with(GREETING) {
        return Err(denied("another program listens there"));
    }
    let (kind, process) = match knock {
        Knock::Look => (0_u32, [0; NONCE]),
        Knock::RankClaim(Process(process)) => (1, process),
    };
    let claim = [&KNOCK.to_le_bytes()[..], &kind.to_le_bytes(), &process].concat();
    let proof = knocking.mac(b"knock", &[&greeting, &claim])?.finalize();
    let proof = proof.into_bytes();
    stream.write_all(&[&claim[..], &proof].concat())?;
    let code: [u8; 1] = read(stream)?;
    let theirs: [u8; MAC] = read(stream)?;
    knocking
        .mac(b"knocked", &[&greeting, &claim, &proof, &code])?
        .verify_slice(&theirs)
        .map_err(|_| denied("another rank listens there"))?;
    Ok(code == [1])
}

impl Caller {
    /// Tells the caller the verdict, and proves with it that this rank is a member, too.
    ///
    /// # Errors
    /// Those of the connection.
    pub(crate) fn answer(
        self,
        token: &Token,
        verdict: Verdict,
        limit: Limit,
    ) -> io::Result<TcpStream> {
        let code = [verdict.code()];
        let proof = token.mac(b"called", &[&self.said, &code])?.finalize();
        let mut timed = Timed {
            stream: &self.stream,
            limit,
        };
        timed.write_all(&[&code[..], &proof.into_bytes()].concat())?;
        Ok(self.stream)
    }
}

/// The caller's side: proves that `from` is a member, and checks that the other side is rank `to`.
///
/// # Errors
/// `PermissionDenied` if the other side does not know the token, `InvalidData` if it is no rank at all; else those of
/// the connection.
pub(crate) fn call(
    stream: &TcpStream,
    token: &Token,
    from: u32,
    to: u32,
    limit: Limit,
) -> io::Result<Verdict> {
    claim(&mut Timed { stream, limit }, token, from, to)
}

/// The same over any stream.
///
/// # Errors
/// Those of [`call`].
pub(crate) fn claim(
    stream: &mut (impl Read + Write),
    token: &Token,
    from: u32,
    to: u32,
) -> io::Result<Verdict> {
    let greeting: [u8; GREETING.len() + NONCE] = read(stream)?;
    if !greeting.starts_with(GREETING) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "another program listens there, or another version of reshard",
        ));
    }
    let claim = [
        &from.to_le_bytes()[..],
        &to.to_le_bytes(),
        &random::<NONCE>()?,
    ]
    .concat();
    let proof = token.mac(b"caller", &[&greeting, &claim])?.finalize();
    let proof = proof.into_bytes();
    stream.write_all(&[&claim[..], &proof].concat())?;
    let code: [u8; 1] = read(stream)?;
    let theirs: [u8; MAC] = read(stream)?;
    token
        .mac(b"called", &[&greeting, &claim, &proof, &code])?
        .verify_slice(&theirs)
        .map_err(|_| denied("the rank that was called does not know the token of the job"))?;
    let verdicts = [Verdict::Yes, Verdict::Declined];
    let verdict = verdicts.into_iter().find(|v| [v.code()] == code);
    verdict.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "an unknown verdict"))
}

fn denied(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, why)
}

/// Reads `N` bytes.
fn read<const N: usize>(stream: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// What a member said to another rank, which greeted it with zeros.
#[cfg(feature = "testkit")]
pub(crate) fn recorded_claim(token: &Token) -> Vec<u8> {
    let greeting = [&GREETING[..], &[0; NONCE]].concat();
    let claim = [&2_u32.to_le_bytes()[..], &1_u32.to_le_bytes(), &[0; NONCE]].concat();
    let proof = token
        .mac(b"caller", &[&greeting, &claim])
        .map(Mac::finalize);
    let proof = proof.map(|proof| proof.into_bytes().to_vec());
    [claim, proof.unwrap_or_default()].concat()
}

/// What a rank that was called said to a member, which had claimed zeros.
#[cfg(feature = "testkit")]
pub(crate) fn recorded_greeting(token: &Token) -> Vec<u8> {
    let greeting = [&GREETING[..], &[0; NONCE]].concat();
    let said = [&greeting[..], &[0; CLAIM + MAC], &[1]];
    let proof = token.mac(b"called", &said).map(Mac::finalize);
    let proof = proof.map(|proof| proof.into_bytes().to_vec());
    [greeting, vec![1], proof.unwrap_or_default()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{net::TcpListener, thread, time::Duration};

    fn limit() -> Limit {
        Limit::after(Duration::from_secs(20))
    }

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let caller = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (caller, listener.accept().unwrap().0)
    }

    /// Rank 2 calls rank 1 of 3 with these tokens.
    fn meet(
        callers: Token,
        calleds: Token,
        verdict: Verdict,
    ) -> (io::Result<Verdict>, io::Result<u32>) {
        let (caller, called) = pair();
        let called = thread::spawn(move || {
            let (rank, got) = receive(called, &calleds, 1, 3, limit())?;
            got.answer(&calleds, verdict, limit()).map(|_| rank)
        });
        let call = call(&caller, &callers, 2, 1, limit());
        (call, called.join().unwrap())
    }

    #[test]
    fn members_know_each_other() {
        let token = Token::new().unwrap();
        for verdict in [Verdict::Yes, Verdict::Declined] {
            let (call, called) = meet(token.clone(), token.clone(), verdict);
            assert_eq!(call.unwrap(), verdict);
            assert_eq!(called.unwrap(), 2);
        }
    }

    #[test]
    fn another_token_is_denied() {
        let (call, called) = meet(Token::new().unwrap(), Token::new().unwrap(), Verdict::Yes);
        assert_eq!(called.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        assert!(call.is_err());
    }

    #[test]
    fn only_those_who_know_the_knocking_token_are_answered() {
        let (member, knocking) = (Token::new().unwrap(), Token::new().unwrap());
        let claim = Knock::RankClaim(Process::this().unwrap());
        for (said, both_fail) in [(Knock::Look, false), (claim, true)] {
            for known in [&knocking, &member] {
                let (caller, called) = pair();
                let (listens, knows) = (knocking.clone(), known == &knocking);
                let called = thread::spawn(move || {
                    let mut timed = Timed {
                        stream: &called,
                        limit: limit(),
                    };
                    let words = Words::hear(&mut timed).unwrap();
                    let heard = words.knock(&listens).unwrap();
                    if heard.is_some() {
                        words.answer_knock(&mut timed, &listens, both_fail).unwrap();
                    }
                    // A knock lets nobody in.
                    assert!(words.member(&listens, 1, 3).is_err());
                    heard
                });
                let mut timed = Timed {
                    stream: &caller,
                    limit: limit(),
                };
                let answer = knock(&mut timed, known, said);
                assert_eq!(called.join().unwrap(), knows.then_some(said));
                assert_eq!(answer.ok(), knows.then_some(both_fail));
            }
        }
    }

    #[test]
    fn a_recorded_claim_is_denied() {
        let token = Token::new().unwrap();
        // A middleman hands everything on, and keeps the claim.
        let (caller, mut middle) = pair();
        let (mut onward, called) = pair();
        let known = token.clone();
        let called =
            thread::spawn(move || receive(called, &known, 1, 3, limit()).map(|(rank, _)| rank));
        let known = token.clone();
        let caller = thread::spawn(move || call(&caller, &known, 2, 1, limit()));
        let mut greeting = [0; GREETING.len() + NONCE];
        onward.read_exact(&mut greeting).unwrap();
        middle.write_all(&greeting).unwrap();
        let mut claim = [0; CLAIM + MAC];
        middle.read_exact(&mut claim).unwrap();
        onward.write_all(&claim).unwrap();
        assert_eq!(
            called.join().unwrap().unwrap(),
            2,
            "the first time it is right"
        );
        drop((middle, onward));
        assert!(
            caller.join().unwrap().is_err(),
            "the called rank said nothing"
        );

        let (mut again, called) = pair();
        again.write_all(&claim).unwrap();
        let error = receive(called, &token, 1, 3, limit()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
    }

    #[test]
    fn a_member_that_wants_another_rank_is_denied() {
        let token = Token::new().unwrap();
        for (from, to) in [(2, 0), (3, 1), (1, 1)] {
            let (caller, called) = pair();
            let known = token.clone();
            let caller = thread::spawn(move || call(&caller, &known, from, to, limit()));
            let error = receive(called, &token, 1, 3, limit()).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
            assert!(caller.join().unwrap().is_err());
        }
    }

    #[test]
    fn half_a_claim_ends_at_the_limit() {
        let (mut caller, called) = pair();
        caller.write_all(&[0; 10]).unwrap();
        let token = Token::new().unwrap();
        let limit = Limit::after(Duration::from_millis(50));
        assert!(receive(called, &token, 1, 3, limit).is_err());
    }
}

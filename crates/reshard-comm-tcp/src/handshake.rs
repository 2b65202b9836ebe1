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

use hmac::{Hmac, Mac};
use serde::{Deserialize, Serialize};
use sha2::Sha256;
use std::{
    io::{self, Read, Write},
    sync::OnceLock,
};

const GREETING: &[u8; 8] = b"reshard1";
const NONCE: usize = 16;
const MAC: usize = 32;
const CLAIM: usize = 4 + 4 + NONCE;
/// The rank that a knock has in its claim. It has the process in place of the nonce.
const KNOCK: u32 = u32::MAX;

/// What only members of the job know.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
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
    Yes = 1,
    /// Another connection is used, which exists or which the called rank is about to open.
    Declined = 2,
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

    /// Tells a member the verdict, and proves with it that this rank is a member, too.
    ///
    /// # Errors
    /// Those of the connection.
    pub(crate) fn answer(
        &self,
        stream: &mut impl Write,
        token: &Token,
        verdict: Verdict,
    ) -> io::Result<()> {
        self.say(stream, token, b"called", verdict as u8)
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
        self.say(stream, knocking, b"knocked", both_fail.into())
    }

    /// Sends a code, with a proof that this rank knows the token.
    fn say(
        &self,
        stream: &mut impl Write,
        token: &Token,
        label: &[u8],
        code: u8,
    ) -> io::Result<()> {
        let said = [&self.greeting[..], &self.claim, &self.proof, &[code]];
        let proof = token.mac(label, &said)?.finalize().into_bytes();
        stream.write_all(&[&[code][..], &proof].concat())
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
    let greeting = read(stream)?;
    if !greeting.starts_with(GREETING) {
        return Err(denied("another program listens there"));
    }
    let (kind, process) = match knock {
        Knock::Look => (0_u32, [0; NONCE]),
        Knock::RankClaim(Process(process)) => (1, process),
    };
    let claim = [&KNOCK.to_le_bytes()[..], &kind.to_le_bytes(), &process].concat();
    let code = prove(stream, knocking, &greeting, [b"knock", &claim], b"knocked")?;
    let code = code.ok_or_else(|| denied("another rank listens there"))?;
    Ok(code == 1)
}

/// The caller's side: proves that `from` is a member, and checks that the other side is rank `to`.
///
/// # Errors
/// `PermissionDenied` if the other side does not know the token, `InvalidData` if it is no rank at all; else those of
/// the connection.
pub(crate) fn claim(
    stream: &mut (impl Read + Write),
    token: &Token,
    from: u32,
    to: u32,
) -> io::Result<Verdict> {
    let invalid = |why| io::Error::new(io::ErrorKind::InvalidData, why);
    let greeting = read(stream)?;
    if !greeting.starts_with(GREETING) {
        let why = "another program listens there, or another version of reshard";
        return Err(invalid(why));
    }
    let nonce = random::<NONCE>()?;
    let claim = [&from.to_le_bytes()[..], &to.to_le_bytes(), &nonce].concat();
    let code = prove(stream, token, &greeting, [b"caller", &claim], b"called")?;
    let stranger = || denied("the rank that was called does not know the token of the job");
    let code = code.ok_or_else(stranger)?;
    let verdicts = [Verdict::Yes, Verdict::Declined];
    let verdict = verdicts.into_iter().find(|v| *v as u8 == code);
    verdict.ok_or_else(|| invalid("an unknown verdict"))
}

/// Sends a claim with a proof that this side knows the token. Returns the code of the answer, or `None` if the other side
/// does not know the token. `label` and `answers` are what the two proofs begin with.
fn prove(
    stream: &mut (impl Read + Write),
    token: &Token,
    greeting: &[u8; GREETING.len() + NONCE],
    [label, claim]: [&[u8]; 2],
    answers: &[u8],
) -> io::Result<Option<u8>> {
    let proof = token.mac(label, &[greeting, claim])?.finalize();
    let proof = proof.into_bytes();
    stream.write_all(&[claim, &proof].concat())?;
    let [code] = read(stream)?;
    let theirs: [u8; MAC] = read(stream)?;
    let mac = token.mac(answers, &[greeting, claim, &proof, &[code]])?;
    Ok(mac.verify_slice(&theirs).is_ok().then_some(code))
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
    use crate::clock::Timed;
    use reshard_comm::mesh::Limit;
    use std::{
        net::{TcpListener, TcpStream},
        thread,
        time::Duration,
    };

    fn limit() -> Limit {
        Limit::after(Duration::from_secs(20))
    }

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let caller = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (caller, listener.accept().unwrap().0)
    }

    /// Greets a caller and checks its claim to rank 1 of 3.
    fn receive(stream: &TcpStream, token: &Token, limit: Limit) -> io::Result<(u32, Words)> {
        let words = Words::hear(&mut Timed { stream, limit })?;
        Ok((words.member(token, 1, 3)?, words))
    }

    fn call(stream: &TcpStream, token: &Token, from: u32, to: u32) -> io::Result<Verdict> {
        let limit = limit();
        claim(&mut Timed { stream, limit }, token, from, to)
    }

    /// Rank 2 calls rank 1 of 3 with these tokens.
    fn meet(
        callers: Token,
        calleds: Token,
        verdict: Verdict,
    ) -> (io::Result<Verdict>, io::Result<u32>) {
        let (caller, called) = pair();
        let called = thread::spawn(move || {
            let (rank, words) = receive(&called, &calleds, limit())?;
            let mut timed = Timed {
                stream: &called,
                limit: limit(),
            };
            words.answer(&mut timed, &calleds, verdict).map(|()| rank)
        });
        let call = call(&caller, &callers, 2, 1);
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
        let called = thread::spawn(move || receive(&called, &known, limit()).map(|(rank, _)| rank));
        let known = token.clone();
        let caller = thread::spawn(move || call(&caller, &known, 2, 1));
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
        let error = receive(&called, &token, limit()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
    }

    #[test]
    fn a_member_that_wants_another_rank_is_denied() {
        let token = Token::new().unwrap();
        for (from, to) in [(2, 0), (3, 1), (1, 1)] {
            let (caller, called) = pair();
            let known = token.clone();
            let caller = thread::spawn(move || call(&caller, &known, from, to));
            let error = receive(&called, &token, limit()).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
            drop(called);
            assert!(caller.join().unwrap().is_err());
        }
    }

    #[test]
    fn half_a_claim_ends_at_the_limit() {
        let (mut caller, called) = pair();
        caller.write_all(&[0; 10]).unwrap();
        let token = Token::new().unwrap();
        let limit = Limit::after(Duration::from_millis(50));
        assert!(receive(&called, &token, limit).is_err());
    }
}

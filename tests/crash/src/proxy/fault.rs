//! What may happen to a request, and to its answer.

use super::message::Message;

/// One way in which a request goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// For messages.
    pub name: &'static str,
    pub(super) carried: Carried,
    pub(super) answer: Answer,
    pub(super) then: Then,
    /// Whether a client that tries again gets what it wants.
    pub passes: bool,
}

/// Whether the server does what it was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Carried {
    Not,
    Once,
    /// Two times at once, as after a retry of something between client and server.
    Twice,
    /// A second time when the client has gone on.
    AgainLater,
    /// Only when the client has given up waiting.
    Late,
}

/// What the client hears.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    AsItIs,
    Status(Status),
    /// Half of the body, and then the end of the stream.
    CutOff,
    /// Half of the body, and then nothing.
    StallInBody,
    Range(OddRange),
    /// The stream ends.
    End,
    /// The connection is reset.
    Reset,
    /// Nothing.
    Stall,
}

/// What happens to later requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Then {
    Nothing,
    /// None of them is carried out; this is the answer.
    Ever(Answer),
}

/// Answers of services that do not do what they were asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    Internal,
    SlowDown,
    TooMany,
    Expired,
}

impl Status {
    pub(super) fn message(self, request: &Message) -> Message {
        let (first, code) = match self {
            Self::Internal => ("HTTP/1.1 500 Internal Server Error", "InternalError"),
            Self::SlowDown => ("HTTP/1.1 503 Slow Down", "SlowDown"),
            Self::TooMany => ("HTTP/1.1 429 Too Many Requests", "TooManyRequests"),
            Self::Expired => ("HTTP/1.1 403 Forbidden", "ExpiredToken"),
        };
        let body = format!("<Error><Code>{code}</Code><Message>by the proxy</Message></Error>");
        let body = if request.is("HEAD") { "" } else { &body };
        let mut headers = vec![("content-type", "application/xml")];
        if self == Self::TooMany {
            // A longer pause would only make the tests longer.
            headers.push(("retry-after", "0"));
        }
        Message::new(first, &headers, body)
    }
}

/// An answer to another range than was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OddRange {
    /// It says that it has other bytes.
    Shifted,
    /// It says that it has fewer bytes.
    Shorter,
    /// It says that it is the whole object.
    Whole,
    /// It says what was asked for, and has fewer bytes.
    LessThanSaid,
    /// It says what was asked for, and has more bytes.
    MoreThanSaid,
}

impl OddRange {
    /// Answers that have no range stay as they are.
    pub(super) fn of(self, mut answer: Message) -> Message {
        if answer.status() != "206" || answer.body.is_empty() {
            return answer;
        }
        let said = answer.take("content-range").unwrap_or_default();
        let numbers = said.trim_start_matches("bytes ").split_once('/');
        let Some((Some((from, to)), all)) =
            numbers.map(|(range, all)| (range.split_once('-'), all))
        else {
            return answer;
        };
        let (Ok(from), Ok(to)) = (from.parse::<u64>(), to.parse::<u64>()) else {
            return answer;
        };
        let half = answer.body.len() / 2;
        let range = match self {
            Self::Shifted => format!("bytes {}-{}/{all}", from + 1, to + 1),
            Self::Shorter => {
                answer.body.truncate(half.max(1));
                format!("bytes {from}-{}/{all}", from + half.max(1) as u64 - 1)
            }
            Self::Whole => {
                answer.first = "HTTP/1.1 200 OK".into();
                return answer;
            }
            Self::LessThanSaid => {
                answer.body.truncate(half);
                said
            }
            Self::MoreThanSaid => {
                answer.body.extend_from_slice(b"more");
                said
            }
        };
        answer.headers.push(("content-range".into(), range));
        answer
    }
}

const fn fault(name: &'static str, carried: Carried, answer: Answer) -> Fault {
    Fault {
        name,
        carried,
        answer,
        then: Then::Nothing,
        passes: false,
    }
}

impl Fault {
    const fn passes(self) -> Self {
        Self {
            passes: true,
            ..self
        }
    }

    const fn then(self, answer: Answer) -> Self {
        Self {
            then: Then::Ever(answer),
            ..self
        }
    }

    pub(super) fn lasting(answer: Answer) -> Self {
        fault("from here on", Carried::Not, answer)
    }

    pub(super) fn is_late(&self) -> bool {
        matches!(self.carried, Carried::Late | Carried::AgainLater)
    }

    /// Whether no later request is carried out.
    pub fn lasts(&self) -> bool {
        self.then != Then::Nothing
    }
}

const EXPIRED: Answer = Answer::Status(Status::Expired);
const INTERNAL: Answer = Answer::Status(Status::Internal);
const SLOW_DOWN: Answer = Answer::Status(Status::SlowDown);
const TOO_MANY: Answer = Answer::Status(Status::TooMany);

/// All ways.
pub const FAULTS: &[Fault] = &[
    fault("500", Carried::Not, INTERNAL).passes(),
    fault("500 after it was carried out", Carried::Once, INTERNAL).passes(),
    fault("503", Carried::Not, SLOW_DOWN).passes(),
    fault("429 with Retry-After", Carried::Not, TOO_MANY).passes(),
    fault("the stream ends", Carried::Not, Answer::End).passes(),
    fault("lost answer", Carried::Once, Answer::End).passes(),
    fault("reset", Carried::Not, Answer::Reset),
    fault(
        "reset after it was carried out",
        Carried::Once,
        Answer::Reset,
    ),
    fault("cut off", Carried::Once, Answer::CutOff),
    fault(
        "other range",
        Carried::Once,
        Answer::Range(OddRange::Shifted),
    ),
    fault(
        "shorter range",
        Carried::Once,
        Answer::Range(OddRange::Shorter),
    ),
    fault(
        "whole object",
        Carried::Once,
        Answer::Range(OddRange::Whole),
    ),
    fault(
        "less than said",
        Carried::Once,
        Answer::Range(OddRange::LessThanSaid),
    ),
    fault(
        "more than said",
        Carried::Once,
        Answer::Range(OddRange::MoreThanSaid),
    ),
    fault("stall", Carried::Not, Answer::Stall),
    fault(
        "stall after it was carried out",
        Carried::Once,
        Answer::Stall,
    ),
    fault("stall in the body", Carried::Once, Answer::StallInBody),
    fault("carried out late", Carried::Late, Answer::Stall),
    fault("twice", Carried::Twice, Answer::AsItIs),
    fault("twice, lost answer", Carried::Twice, Answer::End),
    fault("again later", Carried::AgainLater, Answer::AsItIs),
    fault("again later, lost answer", Carried::AgainLater, Answer::End),
    fault("expired token", Carried::Not, EXPIRED),
    fault("expired token from here on", Carried::Not, EXPIRED).then(EXPIRED),
    fault(
        "lost answer, then an expired token",
        Carried::Once,
        Answer::End,
    )
    .then(EXPIRED),
    fault(
        "500 after it was carried out, then an expired token",
        Carried::Once,
        INTERNAL,
    )
    .then(EXPIRED),
    fault(
        "carried out late, then an expired token",
        Carried::Late,
        Answer::Stall,
    )
    .then(EXPIRED),
    fault("503 from here on", Carried::Not, SLOW_DOWN).then(SLOW_DOWN),
    fault("lost answer, then 503", Carried::Once, Answer::End).then(SLOW_DOWN),
    fault("no service from here on", Carried::Not, Answer::End).then(Answer::End),
    fault("lost answer, then no service", Carried::Once, Answer::End).then(Answer::End),
];

//! What the errors of the clients mean.

use crate::scheme::Service;
use reshard_model::with_sources;
use reshard_storage::{ServiceFault, StorageError, without_secrets};
use std::{error::Error, fmt, iter::successors, time::Duration};

/// How long a request is tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Budget {
    /// How often it is tried again.
    pub(crate) retries: usize,
    /// After this time it is not tried again.
    pub(crate) time: Duration,
}

impl Default for Budget {
    fn default() -> Self {
        Self {
            retries: 10,
            time: Duration::from_secs(180),
        }
    }
}

impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { retries, time } = self;
        write!(
            f,
            "A request is tried again at most {retries} times and for {} s",
            time.as_secs()
        )
    }
}

/// What an error says if a service wants more time before the next try than there is.
pub(crate) const ASKS_FOR_PAUSE: &str = "asks for a pause";

/// A redirect that was not followed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("A redirect to {to} is not followed: {why}")]
pub(crate) struct RedirectRefused {
    /// The target, without secrets.
    pub(crate) to: String,
    pub(crate) why: &'static str,
}

/// The redirect that was not followed, if that is among the causes of an error.
pub(crate) fn refused_redirect<'e>(e: &'e (dyn Error + 'static)) -> Option<&'e RedirectRefused> {
    successors(Some(e), |&e| e.source()).find_map(|e| e.downcast_ref())
}

/// The messages of a client, whose URLs may have a password or a signature.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct ClientMessage(String);

/// The messages of an error and its causes, without the secrets of URLs, as an error that an error of a store may have.
pub(crate) fn without_secrets_of(e: &object_store::Error) -> Box<dyn Error + Send + Sync> {
    Box::new(ClientMessage(with_sources(e.to_string(), e)))
}

/// All that an error and its causes say. The client has no other way to tell, for example, a missing bucket from a missing
/// object.
fn said(e: &object_store::Error) -> String {
    let all = successors(Some(e as &dyn Error), |&e| e.source());
    all.map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

/// Whether it means that there is no such object, in a bucket that exists as far as this is known.
pub(crate) fn is_missing_object(e: &object_store::Error) -> bool {
    matches!(e, object_store::Error::NotFound { .. }) && !is_missing_bucket(&said(e))
}

/// Whether a condition of a put was not met, or the object is there already. The request may still have been ours: an
/// earlier try may have been answered too late.
pub(crate) fn is_refused(e: &object_store::Error) -> bool {
    matches!(
        e,
        object_store::Error::AlreadyExists { .. } | object_store::Error::Precondition { .. }
    )
}

/// How errors of the clients begin that have the answer of a service.
const ANSWERED: &str = "Server returned non-2xx status code: ";

/// Whether the service has refused it with a status alone, as it does if it was asked for no body.
pub(crate) fn has_no_reason(e: &object_store::Error) -> bool {
    if is_refused(e) {
        return false;
    }
    let said = said(e);
    let last = said
        .rsplit(ANSWERED)
        .next()
        .filter(|last| last.len() < said.len());
    last.is_some_and(|last| last.starts_with('4') && last.trim_end().ends_with(':'))
}

/// Whether a range was asked for that the object does not have, or the answer was not of a range.
pub(crate) fn is_no_range(e: &object_store::Error) -> bool {
    let said = said(e);
    let found_here = "Wanted range starting at|non-partial response when range requested";
    said.contains(&format!("{ANSWERED}416")) || has(&said, found_here)
}

/// Whether the service can't do it at all.
pub(crate) fn is_unsupported(e: &object_store::Error) -> bool {
    use object_store::Error as E;
    matches!(e, E::NotImplemented { .. } | E::NotSupported { .. })
        || has(&said(e), " 501 |NotImplemented")
}

/// Whether the client has asked more than once. An earlier request may have been carried out without an answer.
fn was_tried_again(e: &object_store::Error) -> bool {
    said(e).contains("retries, max_retries:")
}

/// Whether a request that was refused, or an earlier one for the same, may have been carried out all the same.
pub(crate) fn may_be_done(e: &object_store::Error) -> bool {
    was_tried_again(e) || !(is_refused(e) || is_certain(e))
}

/// Whether the service has certainly not done what it was asked.
pub(crate) fn is_certain(e: &object_store::Error) -> bool {
    use object_store::Error as E;
    match e {
        e if was_tried_again(e) => false,
        E::InvalidPath { .. }
        | E::NotSupported { .. }
        | E::NotImplemented { .. }
        | E::PermissionDenied { .. }
        | E::Unauthenticated { .. }
        | E::UnknownConfigurationKey { .. }
        | E::NotFound { .. } => true,
        e => is_unsupported(e),
    }
}

/// What services and clients say of each fault.
const EXPIRED: &str = "ExpiredToken|TokenRefreshRequired|RequestExpired|Signature not valid in the specified time frame";
const WRONG_REGION: &str = "PermanentRedirect|AuthorizationHeaderMalformed|IllegalLocationConstraint|incorrectly configured region";
const UNAUTHENTICATED: &str = "InvalidAccessKeyId|SignatureDoesNotMatch|InvalidToken|AuthenticationFailed|169.254.169.254|metadata.google.internal|\
    missing credentials";
const THROTTLED: &str = "SlowDown|429 Too Many|TooManyRequests|ServerBusy";
const UNREACHABLE: &str =
    "error sending request|connect error|Connect|timed out|dns error|connection closed";

fn is_missing_bucket(said: &str) -> bool {
    has(said, "NoSuchBucket|ContainerNotFound|bucket does not exist")
}

/// Whether it says one of these, which `|` separates.
fn has(said: &str, any: &str) -> bool {
    any.split('|').any(|words| said.contains(words))
}

fn fault(e: &object_store::Error, said: &str) -> ServiceFault {
    use ServiceFault as F;
    use object_store::Error as E;
    if is_missing_bucket(said) {
        return F::NoBucket;
    }
    // S3 answers some of these with 400, and some with 403.
    if has(said, EXPIRED) {
        return F::Expired;
    }
    if has(said, WRONG_REGION) {
        return F::WrongRegion;
    }
    if has(said, UNAUTHENTICATED) {
        return F::Unauthenticated;
    }
    match e {
        E::PermissionDenied { .. } => F::Denied,
        E::Unauthenticated { .. } => F::Unauthenticated,
        _ if has(said, THROTTLED) || said.contains(ASKS_FOR_PAUSE) => F::Throttled,
        _ if has(said, UNREACHABLE) => F::Unreachable,
        _ => F::Failed,
    }
}

/// Makes the error of a request one of a store.
pub(crate) fn explain(
    action: &'static str,
    url: String,
    e: object_store::Error,
    service: Service,
    budget: &Budget,
) -> StorageError {
    let said = said(&e);
    if is_missing_object(&e) {
        return StorageError::NotFound { path: url };
    }
    if is_unsupported(&e) {
        return StorageError::unsupported(
            format!("to {action} {url}"),
            without_secrets(&said).into_owned(),
        );
    }
    let refused = refused_redirect(&e);
    let fault = match refused {
        Some(_) => ServiceFault::Redirected,
        None => fault(&e, &said),
    };
    let hint = match fault {
        ServiceFault::Throttled | ServiceFault::Failed => format!("{budget}. Try again later"),
        ServiceFault::Unreachable => format!("{budget}. {}", service.address_hint()),
        fault => {
            let hint = service.hint(fault);
            refused.map_or_else(|| hint.to_owned(), |refused| format!("{refused}. {hint}"))
        }
    };
    StorageError::Service {
        action,
        url,
        fault,
        hint,
        source: without_secrets_of(&e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use object_store::Error as E;
    use reshard_model::ErrorKind;

    fn explained(e: E) -> StorageError {
        explain(
            "read",
            "s3://bucket/a".into(),
            e,
            Service::S3,
            &Budget::default(),
        )
    }

    fn generic(said: &str) -> E {
        E::Generic {
            store: "S3",
            source: said.into(),
        }
    }

    fn missing(said: &str) -> E {
        E::NotFound {
            path: "a".into(),
            source: said.into(),
        }
    }

    fn denied(said: &str) -> E {
        E::PermissionDenied {
            path: "a".into(),
            source: said.into(),
        }
    }

    #[test]
    fn what_the_caller_can_do_about_a_fault_is_told_apart() {
        use ServiceFault as F;
        let cases = [
            (
                missing("404: <Code>NoSuchBucket</Code>"),
                F::NoBucket,
                "Create it first",
            ),
            (
                missing("<Code>ContainerNotFound</Code>"),
                F::NoBucket,
                "correct the URL",
            ),
            (
                denied("<Code>AccessDenied</Code>"),
                F::Denied,
                "AWS_ACCESS_KEY_ID",
            ),
            (
                denied("<Code>InvalidAccessKeyId</Code>"),
                F::Unauthenticated,
                "AWS_ACCESS_KEY_ID",
            ),
            (
                generic("400 Bad Request: <Code>ExpiredToken</Code>"),
                F::Expired,
                "AWS_SESSION_TOKEN",
            ),
            (
                generic(
                    "Received redirect without LOCATION, this normally indicates an incorrectly configured region",
                ),
                F::WrongRegion,
                "AWS_REGION",
            ),
            (
                generic("<Code>PermanentRedirect</Code>"),
                F::WrongRegion,
                "AWS_REGION",
            ),
            (
                generic("503: <Code>SlowDown</Code>"),
                F::Throttled,
                "at most 10 times and for 180 s",
            ),
            (
                generic("status code: 429 Too Many Requests"),
                F::Throttled,
                "Try again later",
            ),
            (
                generic("HTTP error: the service asks for a pause of 9 s before the next try"),
                F::Throttled,
                "for 180 s",
            ),
            (
                generic("HTTP error: error sending request"),
                F::Unreachable,
                "AWS_ENDPOINT_URL",
            ),
            (
                generic("500 Internal Server Error"),
                F::Failed,
                "at most 10 times",
            ),
        ];
        for (e, want, hint) in cases {
            let said = e.to_string();
            let e = explained(e);
            let StorageError::Service { fault, .. } = &e else {
                panic!("{e}")
            };
            assert_eq!(*fault, want, "{said}");
            assert!(e.to_string().contains(hint), "{e}");
            let kind = match want {
                F::Throttled | F::Unreachable | F::Failed => ErrorKind::Unavailable,
                _ => ErrorKind::Invalid,
            };
            assert_eq!(e.kind(), kind, "{e}");
        }
        assert_eq!(
            explained(missing("<Code>NoSuchKey</Code>")).kind(),
            ErrorKind::NotFound
        );
        assert_eq!(
            explained(generic(
                "Server returned non-2xx status code: 501 Not Implemented: "
            ))
            .kind(),
            ErrorKind::Unsupported
        );
    }
}

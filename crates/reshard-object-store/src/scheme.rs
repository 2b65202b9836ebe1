//! The services, their URLs, and the settings they need.

use reshard_storage::{Result, ServiceFault, StorageError, without_secrets};

/// A kind of service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Service {
    S3,
    Google,
    Azure,
    Http,
    Memory,
    /// A client that the caller made.
    Given,
}

impl Service {
    /// The service of a scheme.
    pub(crate) fn of(scheme: &str) -> Option<Self> {
        match scheme {
            "s3" | "s3a" => Some(Self::S3),
            "gs" => Some(Self::Google),
            "az" | "abfs" | "abfss" => Some(Self::Azure),
            "http" | "https" => Some(Self::Http),
            "memory" => Some(Self::Memory),
            _ => None,
        }
    }

    /// The feature of this crate that serves it.
    pub(crate) fn feature(self) -> &'static str {
        match self {
            Self::S3 => "aws",
            Self::Google => "gcp",
            Self::Azure => "azure",
            Self::Http => "http",
            Self::Memory | Self::Given => "memory",
        }
    }

    /// What to do about a fault that settings can mend.
    pub(crate) fn hint(self, fault: ServiceFault) -> &'static str {
        match (fault, self) {
            (ServiceFault::NoBucket, _) => "Create it first, or correct the URL",
            (ServiceFault::Redirected, Self::S3) => {
                "Set AWS_REGION to the region of the bucket, or AWS_ENDPOINT_URL to the right address of the service"
            }
            (ServiceFault::Redirected, Self::Google) => {
                "Check GOOGLE_BASE_URL, and the proxies between here and the service"
            }
            (ServiceFault::Redirected, Self::Azure) => {
                "Check AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ENDPOINT"
            }
            (ServiceFault::Redirected, _) => {
                "If you trust that address, open it by its own URL, or download the files"
            }
            (ServiceFault::WrongRegion, Self::S3) => "Set AWS_REGION to the region of the bucket",
            (ServiceFault::WrongRegion, _) => "Set the region of the bucket",
            (ServiceFault::Denied, Self::S3) => {
                "Ask for the right to do it, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY of somebody who has it. \
                 Without the right to list the bucket (s3:ListBucket), S3 also denies files that are not there"
            }
            (ServiceFault::Denied, Self::Google) => {
                "Ask for the right to do it, or set GOOGLE_SERVICE_ACCOUNT to the key file of an account that has it"
            }
            (ServiceFault::Denied, Self::Azure) => {
                "Ask for the right to do it, or set AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_KEY of somebody who has it"
            }
            (ServiceFault::Denied, _) => "Ask for the right to do it",
            (ServiceFault::Expired, Self::S3) => {
                "Renew AWS_SESSION_TOKEN, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            }
            (ServiceFault::Expired, Self::Azure) => {
                "Renew AZURE_STORAGE_SAS_KEY or AZURE_STORAGE_TOKEN"
            }
            (ServiceFault::Expired, _) => "Renew them",
            (_, Self::S3) => {
                "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_SKIP_SIGNATURE=true for a public bucket"
            }
            (_, Self::Google) => {
                "Set GOOGLE_SERVICE_ACCOUNT or GOOGLE_APPLICATION_CREDENTIALS to a key file, or GOOGLE_SKIP_SIGNATURE=true for a public bucket"
            }
            (_, Self::Azure) => {
                "Set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, or AZURE_STORAGE_SAS_KEY"
            }
            _ => "Give the client valid credentials",
        }
    }

    /// What to check if the service can't be reached.
    pub(crate) fn address_hint(self) -> &'static str {
        match self {
            Self::S3 => "Check the network, AWS_REGION and AWS_ENDPOINT_URL",
            Self::Azure => "Check the network, AZURE_STORAGE_ACCOUNT_NAME and AZURE_ENDPOINT",
            _ => "Check the network and the URL",
        }
    }
}

/// A URL, taken apart. Paths in buckets are taken as they are, as the programs of the services do; those of `http` are not decoded
/// either, because they are sent as they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Parsed<'u> {
    pub(crate) service: Service,
    /// Scheme, and bucket or host.
    pub(crate) root: &'u str,
    /// Without slashes at its ends.
    pub(crate) path: &'u str,
}

/// Takes a URL apart.
pub(crate) fn parse(url: &str) -> Result<Parsed<'_>> {
    let wrong = |why: &str| {
        StorageError::invalid(format!("{:?} names no place: {why}", without_secrets(url)))
    };
    let (scheme, rest) = url.split_once("://").ok_or_else(|| wrong("no scheme"))?;
    let service = Service::of(scheme).ok_or_else(|| wrong("an unknown scheme"))?;
    let (bucket, path) = rest.split_once('/').unwrap_or((rest, ""));
    if bucket.is_empty() {
        return Err(wrong("it has no bucket or host"));
    }
    if service != Service::Azure && bucket.contains('@') {
        return Err(wrong(
            "it has a user's name, and perhaps a password; they are not used, and messages would show them, so give the settings of the service what it needs",
        ));
    }
    let root = url.get(..scheme.len() + 3 + bucket.len()).unwrap_or(url);
    let path = path.trim_matches('/');
    if service != Service::Http && object_store::path::Path::parse(path).is_err() {
        return Err(wrong(
            "its path has an empty part, a part `.` or `..`, or a control character",
        ));
    }
    Ok(Parsed {
        service,
        root,
        path,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use reshard_model::ErrorKind;

    #[test]
    fn paths_in_buckets_are_taken_as_they_are() {
        for (url, service, root, path) in [
            ("s3://bucket", Service::S3, "s3://bucket", ""),
            ("s3a://bucket/", Service::S3, "s3a://bucket", ""),
            (
                "s3://b/a b/50%25/\u{30c7}/",
                Service::S3,
                "s3://b",
                "a b/50%25/\u{30c7}",
            ),
            ("gs://b/a?b#c", Service::Google, "gs://b", "a?b#c"),
            (
                "abfss://c@acc.dfs.core.windows.net/a/b",
                Service::Azure,
                "abfss://c@acc.dfs.core.windows.net",
                "a/b",
            ),
            (
                "http://host:80/a%20b",
                Service::Http,
                "http://host:80",
                "a%20b",
            ),
        ] {
            let parsed = parse(url).unwrap();
            assert_eq!(
                parsed,
                Parsed {
                    service,
                    root,
                    path
                },
                "{url}"
            );
        }
        for url in ["http://me:1234@host/a", "s3://me:1234@bucket"] {
            let e = parse(url).unwrap_err().to_string();
            assert!(e.contains("a user's name") && !e.contains("1234"), "{e}");
        }
        for wrong in [
            "s3://",
            "s3:///a",
            "nothing",
            "ftp://a/b",
            "s3://b/a//b",
            "s3://b/../c",
        ] {
            let e = parse(wrong).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Invalid, "{e}");
            assert!(e.to_string().contains(wrong), "{e}");
        }
    }
}

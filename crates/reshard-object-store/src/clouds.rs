//! Makes the clients of services in the network. Settings of the environment come first, so that options go before them.

#[cfg(any(feature = "aws", feature = "gcp", feature = "azure"))]
use crate::client::Pages;
use crate::{
    client::Bucket,
    fault::{Budget, without_secrets_of},
    pause::Connector,
    web::Redirects,
};
#[cfg(any(feature = "aws", feature = "gcp", feature = "azure"))]
use object_store::ClientConfigKey;
#[cfg(any(feature = "gcp", feature = "azure", feature = "http"))]
use object_store::ObjectStore;
#[cfg(any(feature = "gcp", feature = "azure"))]
use object_store::list::PaginatedListStore;
use object_store::{BackoffConfig, ClientOptions, RetryConfig};
#[cfg(any(feature = "aws", feature = "gcp", feature = "azure"))]
use reshard_storage::without_secrets;
use reshard_storage::{Result, ServiceFault, StorageError};
use std::{str::FromStr, sync::Arc, time::Duration};

/// A part of 8 MiB must get through beside 31 others, on a line of 4 Mbit/s.
const TIMEOUT: Duration = Duration::from_secs(600);
/// A service that is silent for so long is asked again. Requests that send much have more time.
const SILENCE: Duration = Duration::from_secs(60);

/// Options that the caller has set, by their keys.
type Options = [(String, String)];

fn client_options() -> ClientOptions {
    ClientOptions::new()
        .with_timeout(TIMEOUT)
        .with_read_timeout(SILENCE)
}

fn retries(budget: &Budget) -> RetryConfig {
    RetryConfig {
        backoff: BackoffConfig::default(),
        max_retries: budget.retries,
        retry_timeout: budget.time,
    }
}

/// The options whose keys this client knows.
fn known<K: FromStr>(options: &Options) -> impl Iterator<Item = (K, String)> {
    options.iter().filter_map(|(key, value)| {
        let key = key.to_ascii_lowercase().parse().ok()?;
        Some((key, value.clone()))
    })
}

/// A client could not be made: a setting is wrong.
fn setting(url: &str, hint: &str, e: object_store::Error) -> StorageError {
    StorageError::Service {
        action: "open",
        url: url.into(),
        fault: ServiceFault::Unauthenticated,
        hint: hint.into(),
        source: without_secrets_of(&e),
    }
}

/// What settings say of the place where a bucket is.
#[cfg(any(feature = "aws", feature = "gcp", feature = "azure"))]
fn site<const N: usize>(settings: [Option<String>; N]) -> String {
    let said = settings.map(|value| {
        value.map_or_else(
            || "the usual".into(),
            |v| format!("{:?}", without_secrets(&v)),
        )
    });
    said.join(", ")
}

/// A bucket whose unfinished uploads nobody lists.
#[cfg(any(feature = "gcp", feature = "azure"))]
fn bucket(store: impl ObjectStore + PaginatedListStore, site: String) -> Bucket {
    let store = Arc::new(store);
    Bucket {
        pages: Some(Pages(Arc::clone(&store) as _)),
        store,
        site,
        uploads: None,
    }
}

/// Refuses an endpoint without encryption before the first request, because the client's own error names no setting. `allowed` is the value of `variable`.
#[cfg(any(feature = "aws", feature = "gcp", feature = "azure"))]
fn is_encrypted(
    url: &str,
    endpoint: Option<String>,
    allowed: Option<String>,
    variable: &str,
) -> Result<()> {
    let is_plain = |endpoint: &String| endpoint.starts_with("http://");
    let yes = ["true", "1", "on", "yes", "y"];
    let allowed = allowed.is_some_and(|value| yes.contains(&&*value.to_ascii_lowercase()));
    match endpoint.filter(is_plain).filter(|_| !allowed) {
        None => Ok(()),
        Some(endpoint) => Err(StorageError::invalid(format!(
            "{url} can't be opened: its endpoint {} has no encryption, which you have to allow with {variable}=true",
            without_secrets(&endpoint)
        ))),
    }
}

#[cfg(feature = "aws")]
pub(crate) fn s3(options: &Options, budget: &Budget, url: &str) -> Result<Bucket> {
    use crate::unfinished::{Uploads, s3::S3Uploads};
    use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey as Key, S3CopyIfNotExists};
    let connector = Connector::new(budget, Redirects::None);
    let mut builder = AmazonS3Builder::from_env()
        .with_url(url)
        .with_client_options(client_options())
        // Large files outside of the folder of their version are created by a copy on the server.
        .with_copy_if_not_exists(S3CopyIfNotExists::Multipart)
        .with_http_connector(connector.clone())
        .with_retry(retries(budget));
    for (key, value) in from_env("AWS_").chain(known(options)) {
        builder = builder.with_config(key, value);
    }
    let of = |key| builder.get_config_value(&key);
    let endpoint = of(Key::S3Endpoint).or(of(Key::Endpoint));
    let allowed = of(Key::Client(ClientConfigKey::AllowHttp));
    is_encrypted(url, endpoint.clone(), allowed, "AWS_ALLOW_HTTP")?;
    let site = site([endpoint, of(Key::Region)]);
    // Without a signature nobody may list uploads. The keys of a bucket of the other kind are not those that sign URLs.
    let is_off = |key| of(key).is_none_or(|value| value == "false");
    let is_usual = is_off(Key::S3Express);
    let can_list = is_off(Key::SkipSignature) && is_usual;
    let hint = "Check the variables AWS_*";
    let s3 = builder.build().map_err(|e| setting(url, hint, e))?;
    let http = connector.last().filter(|_| can_list);
    let uploads = http.map(|http| {
        let (s3, budget) = (s3.clone(), budget.clone());
        Arc::new(S3Uploads { s3, http, budget }) as Arc<dyn Uploads>
    });
    let s3 = Arc::new(s3);
    Ok(Bucket {
        // A bucket of the other kind lists whole folders alone.
        pages: is_usual.then(|| Pages(Arc::clone(&s3) as _)),
        store: s3,
        site,
        uploads,
    })
}

#[cfg(feature = "gcp")]
pub(crate) fn google(options: &Options, budget: &Budget, url: &str) -> Result<Bucket> {
    use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey as Key};
    let mut builder = GoogleCloudStorageBuilder::from_env()
        .with_url(url)
        .with_client_options(client_options())
        .with_http_connector(Connector::new(budget, Redirects::None))
        .with_retry(retries(budget));
    for (key, value) in from_env("GOOGLE_").chain(known(options)) {
        builder = builder.with_config(key, value);
    }
    let endpoint = builder.get_config_value(&Key::BaseUrl);
    let allowed = builder.get_config_value(&Key::Client(ClientConfigKey::AllowHttp));
    is_encrypted(url, endpoint.clone(), allowed, "GOOGLE_ALLOW_HTTP")?;
    let site = site([endpoint]);
    let hint = "Check the variables GOOGLE_*";
    let store = builder.build().map_err(|e| setting(url, hint, e))?;
    Ok(bucket(store, site))
}

#[cfg(feature = "azure")]
pub(crate) fn azure(options: &Options, budget: &Budget, url: &str) -> Result<Bucket> {
    use object_store::azure::{AzureConfigKey as Key, MicrosoftAzureBuilder};
    let mut builder = MicrosoftAzureBuilder::from_env()
        .with_url(url)
        .with_client_options(client_options())
        .with_http_connector(Connector::new(budget, Redirects::None))
        .with_retry(retries(budget));
    for (key, value) in from_env("AZURE_").chain(known(options)) {
        builder = builder.with_config(key, value);
    }
    let of = |key| builder.get_config_value(&key);
    // The emulator is on this machine.
    let is_emulator = of(Key::UseEmulator).is_some_and(|value| value == "true");
    let endpoint = of(Key::Endpoint).filter(|_| !is_emulator);
    let allowed = of(Key::Client(ClientConfigKey::AllowHttp));
    is_encrypted(url, endpoint, allowed, "AZURE_ALLOW_HTTP")?;
    let keys = [Key::AccountName, Key::Endpoint, Key::UseEmulator];
    let site = site(keys.map(|key| builder.get_config_value(&key)));
    let hint = "Set AZURE_STORAGE_ACCOUNT_NAME, and check the other variables AZURE_*";
    let store = builder.build().map_err(|e| setting(url, hint, e))?;
    Ok(bucket(store, site))
}

/// Settings of the environment once more: options for the client as a whole would otherwise be those of this crate.
#[cfg(any(feature = "aws", feature = "gcp", feature = "azure"))]
fn from_env<K: FromStr>(prefix: &'static str) -> impl Iterator<Item = (K, String)> {
    std::env::vars_os().filter_map(move |(key, value)| {
        let key = key.to_str().filter(|key| key.starts_with(prefix))?;
        let key = key.to_ascii_lowercase().parse().ok()?;
        Some((key, value.into_string().ok()?))
    })
}

#[cfg(feature = "http")]
pub(crate) fn http(options: &Options, budget: &Budget, url: &str) -> Result<Bucket> {
    use object_store::http::HttpBuilder;
    // Whoever writes `http://` asks for it.
    let options_of_client = client_options().with_allow_http(url.starts_with("http://"));
    let mut builder = HttpBuilder::new()
        .with_url(url)
        .with_client_options(options_of_client)
        .with_http_connector(Connector::new(budget, Redirects::Web))
        .with_retry(retries(budget));
    for (key, value) in known(options) {
        builder = builder.with_config(key, value);
    }
    let hint = "Check the URL";
    let store = builder.build().map_err(|e| setting(url, hint, e))?;
    // The URL says all.
    Ok((Arc::new(store) as Arc<dyn ObjectStore>).into())
}

//! HTTP clients with the settings of [`ClientOptions`] and a rule for redirects, which these options don't have.

mod addresses;
mod redirects;

pub(crate) use redirects::Redirects;

use crate::fault::refused_redirect;
use async_trait::async_trait;
use object_store::{
    ClientConfigKey as Key, ClientOptions, Error,
    client::{HttpClient, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService},
};
use redirects::Hosts;
use reqwest::{ClientBuilder, NoProxy, Proxy, tls::Certificate};
use std::{str::FromStr, sync::Arc, time::Duration};

fn wrong(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::Generic {
        store: "HTTP",
        source: source.into(),
    }
}

/// The settings of a client, by key.
struct Settings<'o>(&'o ClientOptions);

impl Settings<'_> {
    fn text(&self, key: Key) -> Option<String> {
        self.0.get_config_value(&key)
    }

    fn is_on(&self, key: Key) -> object_store::Result<bool> {
        let Some(text) = self.text(key) else {
            return Ok(false);
        };
        match &*text.to_ascii_lowercase() {
            "1" | "true" | "on" | "yes" | "y" => Ok(true),
            "0" | "false" | "off" | "no" | "n" => Ok(false),
            _ => Err(wrong(format!("{}: {text:?} is not a bool", key.as_ref()))),
        }
    }

    fn number<T: FromStr>(&self, key: Key) -> object_store::Result<Option<T>> {
        let parsed = self.text(key).map(|text| {
            let not = |_| wrong(format!("{}: {text:?} is not a number", key.as_ref()));
            text.parse().map_err(not)
        });
        parsed.transpose()
    }

    /// Sets a duration, if there is one.
    fn time(
        &self,
        key: Key,
        builder: ClientBuilder,
        set: impl FnOnce(ClientBuilder, Duration) -> ClientBuilder,
    ) -> object_store::Result<ClientBuilder> {
        let Some(text) = self.text(key) else {
            return Ok(builder);
        };
        let not = |e| wrong(format!("{}: {text:?} is not a duration: {e}", key.as_ref()));
        Ok(set(builder, humantime::parse_duration(&text).map_err(not)?))
    }
}

/// Makes a client. Its settings mean what they mean to the clients that `object_store` makes itself.
pub(crate) fn connect(
    options: &ClientOptions,
    redirects: Redirects,
) -> object_store::Result<HttpClient> {
    let hosts = Arc::new(Hosts::new(
        Settings(options).is_on(Key::RandomizeAddresses)?,
    ));
    connect_with(options, redirects, hosts)
}

fn connect_with(
    options: &ClientOptions,
    redirects: Redirects,
    hosts: Arc<Hosts>,
) -> object_store::Result<HttpClient> {
    let client = builder(options)?
        // A referrer would carry the query of a signed URL to another host.
        .referer(false)
        .redirect(redirects.policy(Arc::clone(&hosts)))
        .dns_resolver(hosts)
        .build();
    let inner = HttpClient::new(client.map_err(wrong)?);
    Ok(HttpClient::new(Guarded { inner, redirects }))
}

/// A client that fails with the target of a redirect that is not followed, once.
#[derive(Debug)]
struct Guarded {
    inner: HttpClient,
    redirects: Redirects,
}

#[async_trait]
impl HttpService for Guarded {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let refused = |refused| HttpError::new(HttpErrorKind::Unknown, refused);
        let from = request.uri().to_string();
        let answer = match self.inner.execute(request).await {
            Ok(answer) => answer,
            // A client takes a name without addresses for a connection that failed, and tries again.
            Err(e) => return Err(refused_redirect(&e).cloned().map_or(e, refused)),
        };
        let location = match answer.status().as_u16() {
            301..=303 | 307 | 308 => answer.headers().get("location"),
            _ => None,
        };
        match location {
            Some(to) => Err(refused(self.redirects.refused(&from, to.as_bytes()))),
            None => Ok(answer),
        }
    }
}

fn builder(options: &ClientOptions) -> object_store::Result<ClientBuilder> {
    let of = Settings(options);
    let agent = concat!(env!("CARGO_PKG_NAME"), "/", env!("CARGO_PKG_VERSION"));
    let agent = of.text(Key::UserAgent).unwrap_or_else(|| agent.into());
    let mut builder = ClientBuilder::new()
        .user_agent(agent)
        .https_only(!of.is_on(Key::AllowHttp)?)
        .http2_keep_alive_while_idle(of.is_on(Key::Http2KeepAliveWhileIdle)?)
        .tls_danger_accept_invalid_certs(of.is_on(Key::AllowInvalidCertificates)?)
        // A length that counts packed bytes would not be that of the object.
        .no_gzip()
        .no_brotli()
        .no_zstd()
        .no_deflate();
    if let Some(headers) = options.get_default_headers() {
        builder = builder.default_headers(headers.clone());
    }
    if let Some(url) = of.text(Key::ProxyUrl) {
        let mut proxy = Proxy::all(url).map_err(wrong)?;
        if let Some(pem) = of.text(Key::ProxyCaCertificate) {
            let certificate = Certificate::from_pem(pem.as_bytes()).map_err(wrong)?;
            builder = builder.tls_certs_merge([certificate]);
        }
        if let Some(excludes) = of.text(Key::ProxyExcludes) {
            proxy = proxy.no_proxy(NoProxy::from_string(&excludes));
        }
        builder = builder.proxy(proxy);
    }
    if of.is_on(Key::NoSystemCertificates)? {
        builder = builder.tls_certs_only([]);
    }
    type B = ClientBuilder;
    builder = of.time(Key::Timeout, builder, B::timeout)?;
    builder = of.time(Key::ConnectTimeout, builder, B::connect_timeout)?;
    builder = of.time(Key::ReadTimeout, builder, B::read_timeout)?;
    builder = of.time(Key::PoolIdleTimeout, builder, B::pool_idle_timeout)?;
    let (interval, timeout) = (Key::Http2KeepAliveInterval, Key::Http2KeepAliveTimeout);
    builder = of.time(interval, builder, B::http2_keep_alive_interval)?;
    builder = of.time(timeout, builder, B::http2_keep_alive_timeout)?;
    if let Some(most) = of.number(Key::PoolMaxIdlePerHost)? {
        builder = builder.pool_max_idle_per_host(most);
    }
    if let Some(bytes) = of.number::<u32>(Key::Http2MaxFrameSize)? {
        builder = builder.http2_max_frame_size(bytes);
    }
    if of.is_on(Key::Http1Only)? {
        builder = builder.http1_only();
    }
    if of.is_on(Key::Http2Only)? {
        builder = builder.http2_prior_knowledge();
    }
    Ok(builder)
}

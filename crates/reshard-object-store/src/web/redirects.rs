//! Rules for redirects: services of clouds have none, and a plain web server leads nobody from the public internet into a private network.

use super::addresses::is_public;
use crate::fault::RedirectRefused;
use reqwest::{
    Url,
    dns::{Addrs, Name, Resolve, Resolving},
    redirect::Policy,
};
use reshard_model::BoxError;
use reshard_storage::without_secrets;
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    hash::{BuildHasher as _, RandomState},
    io,
    net::{IpAddr, SocketAddr, ToSocketAddrs as _},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

/// The most redirects that a request follows.
#[cfg(any(feature = "http", test))]
const MOST: usize = 10;

/// The redirects that a client follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Redirects {
    /// None. The requests of clouds carry credentials in headers and queries that no HTTP client knows as such.
    #[cfg(any(feature = "aws", feature = "gcp", feature = "azure"))]
    None,
    /// At most 10, also to other hosts, as model hubs redirect to the servers that have their files.
    #[cfg(any(feature = "http", test))]
    Web,
}

impl Redirects {
    pub(super) fn policy(self, hosts: Arc<Hosts>) -> Policy {
        match self {
            #[cfg(any(feature = "aws", feature = "gcp", feature = "azure"))]
            Self::None => {
                drop(hosts);
                Policy::none()
            }
            #[cfg(any(feature = "http", test))]
            Self::Web => Policy::custom(move |attempt: reqwest::redirect::Attempt<'_>| {
                let Some(why) = hosts.refusal(attempt.previous(), attempt.url()) else {
                    return attempt.follow();
                };
                let to = without_secrets(attempt.url().as_str()).into_owned();
                attempt.error(RedirectRefused { to, why })
            }),
        }
    }

    /// The error for a redirect that the client has not followed.
    pub(super) fn refused(self, from: &str, location: &[u8]) -> RedirectRefused {
        let location = String::from_utf8_lossy(location);
        let to = Url::parse(from).and_then(|from| from.join(&location));
        let to = to.map_or_else(
            |e| format!("what is no URL ({e})"),
            |to| without_secrets(to.as_str()).into_owned(),
        );
        let why = match self {
            #[cfg(any(feature = "aws", feature = "gcp", feature = "azure"))]
            Self::None => {
                "requests to the service of a cloud carry credentials, which another host would get"
            }
            #[cfg(any(feature = "http", test))]
            Self::Web => NO_ADDRESS,
        };
        RedirectRefused { to, why }
    }
}

#[cfg(any(feature = "http", test))]
const NO_ADDRESS: &str = "it is no address of the web";

/// The addresses of a host that were used.
#[derive(Clone, Copy, Debug, Default)]
struct Used {
    public: bool,
    private: bool,
}

#[derive(Debug, Default)]
struct Known {
    used: BTreeMap<String, Used>,
    /// Hosts to which a public host has redirected. Only their public addresses are used.
    guarded: BTreeSet<String>,
}

type Lookup = fn(&str) -> io::Result<Vec<SocketAddr>>;

/// The hosts of a client: resolves their names, and remembers whether their addresses are public.
///
/// The connection goes to the addresses that were checked, so a name that resolves to another address the next time leads nowhere else.
pub(super) struct Hosts {
    known: Arc<Mutex<Known>>,
    lookup: Lookup,
    is_public: fn(IpAddr) -> bool,
    /// The address that comes first, so that connections spread over all of them. `None` leaves their order.
    turn: Option<AtomicUsize>,
}

impl fmt::Debug for Hosts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Hosts").field(&self.known).finish()
    }
}

impl Hosts {
    pub(super) fn new(spreads: bool) -> Self {
        let seed = || RandomState::new().hash_one(0) as u16;
        Self {
            known: Arc::default(),
            lookup: |host| Ok((host, 0).to_socket_addrs()?.collect()),
            is_public,
            turn: spreads.then(|| AtomicUsize::new(seed().into())),
        }
    }

    /// Why a redirect of a web server is not followed. `previous` are the URLs so far, the one that redirects last.
    #[cfg(any(feature = "http", test))]
    fn refusal(&self, previous: &[Url], to: &Url) -> Option<&'static str> {
        let from = previous.last()?;
        if previous.len() > MOST {
            return Some("10 redirects came before it");
        }
        if !["http", "https"].contains(&to.scheme()) {
            return Some(NO_ADDRESS);
        }
        if from.scheme() == "https" && to.scheme() != "https" {
            return Some("it leads from https to http");
        }
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let is_from_public = match address(from) {
            Some(address) => (self.is_public)(address),
            // A proxy resolves names itself, and then none is known here.
            None => from
                .host_str()
                .and_then(|host| known.used.get(host))
                .is_none_or(|used| used.public),
        };
        if !is_from_public {
            return None;
        }
        let is_private = match (address(to), to.host_str()) {
            (Some(address), _) => !(self.is_public)(address),
            (None, Some(host)) => {
                known.guarded.insert(host.to_owned());
                known.used.get(host).is_some_and(|used| used.private)
            }
            (None, None) => true,
        };
        is_private.then_some(PRIVATE)
    }

    /// The addresses of a host that may be used.
    fn usable(
        known: &Mutex<Known>,
        host: &str,
        mut found: Vec<SocketAddr>,
        is_public: fn(IpAddr) -> bool,
    ) -> Result<Vec<SocketAddr>, BoxError> {
        let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.guarded.contains(host) {
            let before = found.len();
            found.retain(|address| is_public(address.ip()));
            if found.is_empty() && before > 0 {
                let to = host.to_owned();
                return Err(RedirectRefused { to, why: PRIVATE }.into());
            }
        }
        let used = known.used.entry(host.to_owned()).or_default();
        for address in &found {
            match is_public(address.ip()) {
                true => used.public = true,
                false => used.private = true,
            }
        }
        Ok(found)
    }
}

const PRIVATE: &str =
    "it leads from a public host to an address of this machine or of a private network";

#[cfg(any(feature = "http", test))]
/// The address of a URL that has one instead of a host's name.
fn address(url: &Url) -> Option<IpAddr> {
    let host = url.host_str()?;
    let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
    bare.unwrap_or(host).parse().ok()
}

impl Resolve for Hosts {
    fn resolve(&self, name: Name) -> Resolving {
        let (known, lookup, is_public) = (Arc::clone(&self.known), self.lookup, self.is_public);
        let turn = self
            .turn
            .as_ref()
            .map_or(0, |turn| turn.fetch_add(1, Ordering::Relaxed));
        Box::pin(async move {
            let host = name.as_str().to_owned();
            let found = tokio::task::spawn_blocking(move || {
                Self::usable(&known, &host, lookup(&host)?, is_public)
            });
            let mut found = found.await??;
            let first = turn.checked_rem(found.len()).unwrap_or(0);
            found.rotate_left(first);
            Ok(Box::new(found.into_iter()) as Addrs)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::web::connect_with;
    use object_store::{
        ClientOptions, HeaderMap,
        client::{HttpClient, HttpRequest, HttpRequestBody},
    };
    use std::{
        io::{BufRead as _, BufReader, Write as _},
        net::{Ipv4Addr, TcpListener, TcpStream},
        thread,
    };

    /// Stands for the public internet. All of 127.0.0.0/8 is this machine.
    const PUBLIC: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
    const PRIVATE_TOO: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 3);

    /// Names as a resolver knows them: those that end with `public` have a public address, all others a private one.
    fn look_up(host: &str) -> io::Result<Vec<SocketAddr>> {
        Ok(match host {
            "mixed" => vec![(PRIVATE_TOO, 0).into(), (PUBLIC, 0).into()],
            host if host.ends_with("public") => vec![(PUBLIC, 0).into()],
            _ => vec![(Ipv4Addr::LOCALHOST, 0).into()],
        })
    }

    fn hosts() -> Hosts {
        Hosts {
            lookup: look_up,
            is_public: |address| address == IpAddr::from(PUBLIC),
            ..Hosts::new(true)
        }
    }

    /// The requests that a server gets: the target, and the headers in small letters.
    type Seen = Arc<Mutex<Vec<(String, Vec<String>)>>>;

    /// A server on all addresses of this machine. A request for `/to?URL` is redirected to that URL, any other one is answered.
    fn serve() -> (u16, Seen) {
        let listener = TcpListener::bind("0.0.0.0:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let seen = Seen::default();
        let of_server = Arc::clone(&seen);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                answer(&stream, &of_server);
            }
        });
        (port, seen)
    }

    fn answer(mut stream: &TcpStream, seen: &Seen) {
        let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
        let Some(first) = lines.next() else { return };
        let headers = lines.take_while(|line| !line.is_empty());
        let headers = headers.map(|line| line.to_ascii_lowercase()).collect();
        let target = first.split(' ').nth(1).unwrap_or_default().to_owned();
        let head = match target.strip_prefix("/to?") {
            Some(to) => format!("HTTP/1.1 302 Found\r\nLocation: {to}\r\n"),
            None => "HTTP/1.1 200 OK\r\n".into(),
        };
        seen.lock().unwrap().push((target, headers));
        let rest = "Content-Length: 0\r\nConnection: close\r\n\r\n";
        stream
            .write_all(format!("{head}{rest}").as_bytes())
            .unwrap_or(());
    }

    /// Asks for a URL with credentials in the headers. Returns the error.
    fn ask(client: &HttpClient, url: &str) -> Option<String> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
            .unwrap();
        let mut request = HttpRequest::new(HttpRequestBody::empty());
        *request.uri_mut() = url.parse().unwrap();
        for header in ["authorization", "cookie"] {
            let value = "SECRET".parse().unwrap();
            request.headers_mut().insert(header, value);
        }
        let e = runtime.block_on(client.execute(request)).err()?;
        Some(format!("{e:?} {e}"))
    }

    fn web() -> HttpClient {
        let options = ClientOptions::new().with_allow_http(true);
        connect_with(&options, Redirects::Web, Arc::new(hosts())).unwrap()
    }

    #[test]
    fn headers_stay_within_an_origin_and_no_other_origin_gets_them_or_the_query() {
        let (port, seen) = serve();
        let (other, of_other) = serve();
        let url = format!("http://a:{port}/to?http://a:{port}/to?http://a:{other}/b?signed=1");
        assert_eq!(ask(&web(), &url), None);
        let seen = std::mem::take(&mut *seen.lock().unwrap());
        let secrets = |headers: &[String]| {
            let all = headers.iter().filter(|header| header.contains("secret"));
            all.count()
        };
        // The first one, and the redirect to the same origin.
        assert_eq!(seen.len(), 2);
        assert!(
            seen.iter().all(|(_, headers)| secrets(headers) == 2),
            "{seen:?}"
        );
        let of_other = std::mem::take(&mut *of_other.lock().unwrap());
        let [(target, headers)] = &of_other[..] else {
            panic!("{of_other:?}")
        };
        assert_eq!(target, "/b?signed=1", "the query of a location stays");
        assert_eq!(secrets(headers), 0, "{headers:?}");
        for (_, headers) in seen.iter().chain(&of_other) {
            assert!(
                !headers.iter().any(|h| h.starts_with("referer")),
                "{headers:?}"
            );
        }
    }

    #[test]
    fn ten_redirects_are_followed_and_no_more() {
        let (port, seen) = serve();
        for (redirects, is_followed) in [(10, true), (11, false)] {
            let url =
                format!("http://a:{port}/to?").repeat(redirects) + &format!("http://a:{port}/");
            let e = ask(&web(), &url);
            assert_eq!(e.is_none(), is_followed, "{redirects}: {e:?}");
            assert!(e.is_none_or(|e| e.contains("10 redirects came before it")));
            assert_eq!(std::mem::take(&mut *seen.lock().unwrap()).len(), 11);
        }
    }

    #[test]
    fn no_redirect_leads_from_a_public_host_into_a_private_network() {
        let (port, seen) = serve();
        let private = [
            "127.0.0.1",
            "127.0.0.3",
            "2130706433",
            "0x7f.1",
            "[::1]",
            "[::ffff:127.0.0.1]",
            "localhost",
            "localhost.",
            "intranet",
        ];
        for from in ["first.public", "127.0.0.2"] {
            for to in private {
                let e = ask(
                    &web(),
                    &format!("http://{from}:{port}/to?http://{to}:{port}/x?sig=SECRET"),
                );
                let e = e.unwrap_or_else(|| panic!("{from} led to {to}"));
                assert!(
                    e.contains("RedirectRefused") && e.contains("private network"),
                    "{e}"
                );
                assert!(!e.contains("SECRET"), "{e}");
                assert_eq!(std::mem::take(&mut *seen.lock().unwrap()).len(), 1, "{to}");
            }
            for to in ["second.public", "127.0.0.2", "mixed"] {
                let e = ask(
                    &web(),
                    &format!("http://{from}:{port}/to?http://{to}:{port}/"),
                );
                assert_eq!(e, None, "{from} to {to}");
                seen.lock().unwrap().clear();
            }
        }
        // Within private networks anything goes, and what comes from there may go out, but not back in.
        let chain = |hosts: &[&str]| {
            let parts: Vec<String> = hosts
                .iter()
                .map(|h| format!("http://{h}:{port}/"))
                .collect();
            ask(&web(), &parts.join("to?"))
        };
        assert_eq!(chain(&["a", "b", "127.0.0.1"]), None);
        assert_eq!(chain(&["a", "b.public"]), None);
        assert!(chain(&["a", "b.public", "a"]).is_some());
        assert!(chain(&["a", "b.public", "c"]).is_some());
    }

    #[test]
    fn no_redirect_leads_from_https_to_http_or_out_of_the_web() {
        let hosts = hosts();
        let refusal = |from: &str, to: &str| {
            let [from, to] = [from, to].map(|url| url.parse::<Url>().unwrap());
            hosts.refusal(&[from], &to)
        };
        assert!(refusal("https://a.public/", "http://a.public/").is_some());
        assert!(refusal("https://127.0.0.1/", "http://127.0.0.1/").is_some());
        assert_eq!(refusal("http://127.0.0.2/", "https://127.0.0.2/"), None);
        for to in [
            "file:///etc/passwd",
            "gopher://127.0.0.2/",
            "ftp://127.0.0.2/",
        ] {
            assert!(refusal("http://127.0.0.1/", to).is_some(), "{to}");
        }
        // Behind a proxy no name is resolved here, so any may be public.
        assert!(refusal("https://unknown/", "https://127.0.0.1/").is_some());
    }

    #[test]
    fn connections_spread_over_the_addresses_of_a_host() {
        let runtime = tokio::runtime::Builder::new_multi_thread().build().unwrap();
        let first = |hosts: &Hosts| {
            let found = runtime.block_on(hosts.resolve("mixed".parse().unwrap()));
            found.unwrap_or_else(|e| panic!("{e}")).next().unwrap().ip()
        };
        let spread = hosts();
        assert_ne!(first(&spread), first(&spread));
        let in_order = Hosts {
            turn: None,
            ..hosts()
        };
        assert_eq!(first(&in_order), IpAddr::from(PRIVATE_TOO));
        assert_eq!(first(&in_order), IpAddr::from(PRIVATE_TOO));
    }

    #[test]
    fn no_service_of_a_cloud_is_followed_anywhere() {
        let (port, seen) = serve();
        let options = ClientOptions::new().with_allow_http(true);
        let mut headers = HeaderMap::new();
        headers.insert("x-amz-security-token", "SECRET".parse().unwrap());
        let options = options.with_default_headers(headers);
        let client = connect_with(&options, Redirects::None, Arc::new(hosts())).unwrap();
        for (to, shown) in [
            (format!("http://a:{port}/b"), format!("http://a:{port}/b")),
            (
                format!("http://b:{port}/?sig=SECRET"),
                format!("http://b:{port}/ "),
            ),
            ("/b?sig=SECRET".into(), format!("http://a:{port}/b ")),
            ("file:///etc/passwd".into(), "file:///etc/passwd".into()),
            ("http://[".into(), "no URL".into()),
        ] {
            let e = ask(&client, &format!("http://a:{port}/to?{to}")).unwrap();
            assert!(e.contains(&*shown) && !e.contains("SECRET"), "{e}");
            let seen = std::mem::take(&mut *seen.lock().unwrap());
            assert_eq!(seen.len(), 1, "{seen:?}");
        }
    }
}

//! `file://` URLs of paths, and back.

use std::{
    ffi::OsString,
    fmt::Write as _,
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::{Path, PathBuf},
};

/// The URL of an absolute path. Bytes that a URL can't have are written as `%XX`.
pub(super) fn url(path: &Path) -> String {
    let mut out = String::from("file://");
    for &b in path.as_os_str().as_bytes() {
        if b.is_ascii_alphanumeric() || b"/-._~=,:@+!$&'()*;".contains(&b) {
            out.push(char::from(b));
        } else if write!(out, "%{b:02X}").is_err() {
            break; // a String takes all
        }
    }
    out
}

/// The path of what follows `file://`; `None` when it is not absolute or names another host.
pub(super) fn path(rest: &str) -> Option<PathBuf> {
    let rest = rest
        .strip_prefix("localhost")
        .filter(|r| r.starts_with('/'))
        .unwrap_or(rest);
    if !rest.starts_with('/') {
        return None;
    }
    let mut out = Vec::with_capacity(rest.len());
    let mut bytes = rest.as_bytes();
    while let Some((&b, tail)) = bytes.split_first() {
        let code = tail
            .get(..2)
            .filter(|hex| b == b'%' && hex.iter().all(u8::is_ascii_hexdigit));
        let code = code.and_then(|hex| u8::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok());
        // A `%` that starts no code is itself: people write paths, too.
        out.push(code.unwrap_or(b));
        bytes = if code.is_some() { &tail[2..] } else { tail };
    }
    Some(OsString::from_vec(out).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_comes_back_from_its_url() {
        let odd = OsString::from_vec(b"/a b/\xff%25/\xe3\x83\x87?#".to_vec());
        let url = url(Path::new(&odd));
        assert_eq!(url, "file:///a%20b/%FF%2525/%E3%83%87%3F%23");
        assert_eq!(
            path(url.strip_prefix("file://").unwrap())
                .unwrap()
                .as_os_str(),
            odd
        );
    }

    #[test]
    fn another_host_is_refused() {
        assert_eq!(path("host/a"), None);
        assert_eq!(path("localhost/a").unwrap(), Path::new("/a"));
        assert_eq!(path("/100%").unwrap(), Path::new("/100%"));
    }
}

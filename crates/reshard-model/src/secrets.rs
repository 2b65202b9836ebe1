//! Secrets in URLs, which nothing that leaves the process may contain.

use std::borrow::Cow;

/// Parts of the names of parameters that hold credentials, in small letters.
const NAMES: [&str; 7] = [
    "sig",
    "token",
    "secret",
    "password",
    "credential",
    "accesskey",
    "apikey",
];

/// A text as messages may show it: its URLs have no user's name and password, and those of the web no query and fragment, such as a
/// signature. A text may be a single URL.
///
/// ```
/// use reshard_model::without_secrets;
/// assert_eq!(without_secrets("https://me:word@host/ckpt?sig=1234"), "https://host/ckpt");
/// assert_eq!(without_secrets("could not read http://host/a?b: no answer"), "could not read http://host/a: no answer");
/// assert_eq!(without_secrets("s3://bucket/what?"), "s3://bucket/what?"); // a key may have any character
/// ```
pub fn without_secrets(text: &str) -> Cow<'_, str> {
    if !text.contains("://") {
        return text.into();
    }
    // Messages put URLs between blanks, quotes and angle brackets. None of these may be in a URL.
    let ends = |c: char| c.is_whitespace() || c.is_control() || "\"<>`".contains(c);
    let mut out = String::with_capacity(text.len());
    for word in text.split_inclusive(ends) {
        out.push_str(&without_query(without_users(word)));
    }
    out.into()
}

/// The places after each `://` of a word, with the schemes before them.
fn urls(word: &str) -> impl Iterator<Item = (&str, usize)> {
    word.match_indices("://").filter_map(|(at, mark)| {
        let is_of_scheme = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
        let scheme = &word[word[..at].trim_end_matches(is_of_scheme).len()..at];
        // The last part of schemes such as `git+https`.
        let scheme = scheme.rsplit(['+', '-', '.']).next()?;
        (!scheme.is_empty()).then_some((scheme, at + mark.len()))
    })
}

fn is_one_of(scheme: &str, names: &[&str]) -> bool {
    names.iter().any(|name| scheme.eq_ignore_ascii_case(name))
}

/// Takes out the names and passwords of users.
fn without_users(word: &str) -> Cow<'_, str> {
    let last = word.rfind('@');
    let (mut out, mut kept) = (String::new(), 0);
    for (scheme, start) in urls(word) {
        if start < kept {
            continue;
        }
        let Some(host) = host(
            &word[start..],
            last.filter(|last| *last >= start).map(|l| l - start),
        ) else {
            continue;
        };
        // In `abfss://container@account` it is no user.
        if is_one_of(scheme, &["az", "abfs", "abfss"]) && !word[start..start + host].contains(':') {
            continue;
        }
        out.push_str(&word[kept..start]);
        kept = start + host;
    }
    match kept {
        0 => word.into(),
        _ => (out + &word[kept..]).into(),
    }
}

/// Where the host begins, if something is before it. A password that is not encoded may have slashes, like the keys of S3, so the `last`
/// `@` of the word counts where a name has a password.
fn host(url: &str, last: Option<usize>) -> Option<usize> {
    let authority = &url[..url.find(['/', '?', '#']).unwrap_or(url.len())];
    let is_port = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    let has_password = authority
        .split_once(':')
        .is_some_and(|(_, after)| !authority.starts_with('[') && !is_port(after));
    let at = authority.rfind('@').or(last.filter(|_| has_password));
    at.map(|at| at + 1)
}

/// Takes out the query and the fragment, if they belong to a URL of the web or have a parameter that is named like a credential.
fn without_query(word: Cow<'_, str>) -> Cow<'_, str> {
    let Some((_, first)) = urls(&word).next() else {
        return word;
    };
    let Some(query) = word[first..].find(['?', '#']).map(|at| first + at) else {
        return word;
    };
    let is_web = urls(&word[..query]).any(|(scheme, _)| is_one_of(scheme, &["http", "https"]));
    if !is_web && !has_credentials(&word[query..]) {
        return word;
    }
    // The blanks and marks of the sentence after it stay.
    let mark = |c: char| c.is_whitespace() || "\"<>`:;,.)]}'".contains(c);
    let end = word.trim_end_matches(mark).len().max(query);
    [&word[..query], &word[end..]].concat().into()
}

/// Whether a query has a parameter that is named like a credential.
fn has_credentials(query: &str) -> bool {
    query.split(['?', '#', '&', ';']).any(|pair| {
        let name = pair.split_once('=').map_or("", |(name, _)| name);
        let letters = name.chars().filter(|c| c.is_alphanumeric());
        let name = letters.collect::<String>().to_ascii_lowercase();
        name == "key" || NAMES.iter().any(|secret| name.contains(secret))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn messages_show_no_secrets_of_urls() {
        for (text, shown) in [
            ("https://h/a?X-Amz-Signature=1", "https://h/a"),
            ("HTTPS://h/a?X-Amz-Signature=1", "HTTPS://h/a"),
            ("https://h/a#b", "https://h/a"),
            ("http://u:p@h:80/a@b", "http://h:80/a@b"),
            ("http://h:80/a@b", "http://h:80/a@b"),
            ("http://[::1]:80/a@b", "http://[::1]:80/a@b"),
            ("http://u@h", "http://h"),
            ("http://u:p@ss@h?q@r", "http://h"),
            ("http://u:p/w@h/a", "http://h/a"),
            ("http://u:p?w#@h/a", "http://h/a"),
            ("git+https://u:p@h/a?b", "git+https://h/a"),
            ("file://u:p@/a", "file:///a"),
            ("file://u:p@h/a", "file://h/a"),
            ("file:///a@b?c", "file:///a@b?c"),
            ("s3://key:secret@bucket/a", "s3://bucket/a"),
            ("s3://key:sec/ret@bucket/a", "s3://bucket/a"),
            ("s3://bucket/a?b@c", "s3://bucket/a?b@c"),
            ("s3://bucket/a?X-Amz-Security-Token=1", "s3://bucket/a"),
            ("az://c/a?sv=2023&sig=1", "az://c/a"),
            (
                "abfss://c@acc.dfs.core.windows.net/a",
                "abfss://c@acc.dfs.core.windows.net/a",
            ),
            ("/a?b", "/a?b"),
            ("", ""),
            ("a://b", "a://b"),
            ("://u:p@h", "://u:p@h"),
            (
                "could not read http://u:p@h/a?b=c: no answer (http://u:p@h); see `https://x/?y`.",
                "could not read http://h/a: no answer (http://h); see `https://x/`.",
            ),
            (
                r#"{"url":"http://u:p@h/a?b","other":"s3://b/c"}"#,
                r#"{"url":"http://h/a","other":"s3://b/c"}"#,
            ),
            ("http://a,http://u:p@b/c", "http://a,http://b/c"),
        ] {
            assert_eq!(without_secrets(text), shown, "{text}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        /// Whatever surrounds a URL, and however it is written.
        #[test]
        fn no_text_with_a_url_keeps_its_password_or_its_signature(
            scheme in "https?|HTTP|s3|gs|file|ftp|x\\+https",
            user in "[a-z]{0,3}",
            host in "[a-z0-9.]{1,5}(:[0-9]{1,4})?",
            path in "(/[a-z@=.:]{0,4}){0,3}",
            before in "[ -~]{0,10}[ (\"'`]",
            after in "([ )\"'`:,.][ -~]{0,10})?",
            odd in "[!$&'()*+,;=%/?#@-]{0,3}",
        ) {
            let url = format!("{scheme}://{user}:PASSWORD{odd}@{host}{path}?a=b&sig=SIGNATURE{after}");
            let text = without_secrets(&format!("{before}{url}")).into_owned();
            prop_assert!(!text.contains("PASSWORD") && !text.contains("SIGNATURE"), "{url} became {text}");
            // A clean text stays as it is.
            prop_assert_eq!(without_secrets(&text), &*text);
        }
    }
}

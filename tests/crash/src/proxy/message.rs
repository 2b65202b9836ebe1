//! Requests and answers of HTTP 1.1.

use std::io::{self, BufRead, Read};

/// Longer ones are refused.
const LONGEST: u64 = 64 << 20;

/// One request or answer, whole.
#[derive(Clone, Debug, Default)]
pub(super) struct Message {
    /// The line of the request or of the status.
    pub(super) first: String,
    /// Without those of the connection. The length comes from the body, unless the answer is to `HEAD`.
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
    /// Its length is that of what was not asked for.
    is_head: bool,
}

fn odd(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

impl Message {
    pub(super) fn new(first: &str, headers: &[(&str, &str)], body: &str) -> Self {
        let header = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        Self {
            first: first.into(),
            headers: headers.iter().map(header).collect(),
            body: body.into(),
            is_head: false,
        }
    }

    /// The next request of a connection; `None` at its end.
    pub(super) fn request(from: &mut impl BufRead) -> io::Result<Option<Self>> {
        let Some(mut message) = Self::head(from)? else {
            return Ok(None);
        };
        let length = message
            .take("content-length")
            .map_or(Ok(0), |text| text.parse::<u64>());
        let length = length.map_err(|_| odd("no length"))?;
        message.take_body(from, Some(length))?;
        Ok(Some(message))
    }

    pub(super) fn response(from: &mut impl BufRead, is_head: bool) -> io::Result<Self> {
        let mut message = Self::head(from)?.ok_or(io::ErrorKind::UnexpectedEof)?;
        message.is_head = is_head;
        if is_head || message.is_empty() {
            return Ok(message);
        }
        let chunked = message.take("transfer-encoding").is_some();
        let length = message.take("content-length");
        if chunked {
            message.take_chunks(from)?;
            return Ok(message);
        }
        let length = length.map(|text| text.parse::<u64>().map_err(|_| odd("no length")));
        message.take_body(from, length.transpose()?)?;
        Ok(message)
    }

    fn head(from: &mut impl BufRead) -> io::Result<Option<Self>> {
        let Some(first) = line(from)? else {
            return Ok(None);
        };
        let mut message = Self {
            first,
            ..Self::default()
        };
        loop {
            let text = line(from)?.ok_or(io::ErrorKind::UnexpectedEof)?;
            if text.is_empty() {
                break;
            }
            let (name, value) = text.split_once(':').ok_or_else(|| odd("no header"))?;
            let (name, value) = (name.trim().to_ascii_lowercase(), value.trim().to_owned());
            if name != "connection" && name != "keep-alive" {
                message.headers.push((name, value));
            }
        }
        Ok(Some(message))
    }

    fn take_body(&mut self, from: &mut impl BufRead, length: Option<u64>) -> io::Result<()> {
        let limit = length.unwrap_or(LONGEST).min(LONGEST);
        from.take(limit).read_to_end(&mut self.body)?;
        if length.is_some_and(|length| length != self.body.len() as u64) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(())
    }

    fn take_chunks(&mut self, from: &mut impl BufRead) -> io::Result<()> {
        loop {
            let size = line(from)?.ok_or(io::ErrorKind::UnexpectedEof)?;
            let size = size.split(';').next().unwrap_or_default().trim();
            let size = u64::from_str_radix(size, 16).map_err(|_| odd("no chunk"))?;
            if size > LONGEST {
                return Err(odd("a chunk is too long"));
            }
            from.take(size).read_to_end(&mut self.body)?;
            line(from)?;
            if size == 0 {
                return Ok(());
            }
        }
    }

    /// Removes a header.
    pub(super) fn take(&mut self, name: &str) -> Option<String> {
        let at = self.headers.iter().position(|(is, _)| is == name)?;
        Some(self.headers.remove(at).1)
    }

    /// Whether it is a request of this method.
    pub(super) fn is(&self, method: &str) -> bool {
        self.first.split(' ').next() == Some(method)
    }

    /// The number of its status.
    pub(super) fn status(&self) -> &str {
        self.first.split(' ').nth(1).unwrap_or_default()
    }

    /// Whether an answer of this status has no body.
    fn is_empty(&self) -> bool {
        matches!(self.status(), "204" | "304")
    }

    /// What goes over the line, with further headers.
    pub(super) fn bytes(&self, more: &[String]) -> Vec<u8> {
        let mut text = format!("{}\r\n", self.first);
        for (name, value) in &self.headers {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        if !self.is_head && !self.is_empty() {
            text.push_str(&format!("content-length: {}\r\n", self.body.len()));
        }
        for header in more {
            text.push_str(&format!("{header}\r\n"));
        }
        text.push_str("\r\n");
        let mut bytes = text.into_bytes();
        bytes.extend_from_slice(&self.body);
        bytes
    }
}

/// A line without its end; `None` at the end of the stream.
fn line(from: &mut impl BufRead) -> io::Result<Option<String>> {
    let mut text = String::new();
    let read = from.take(LONGEST).read_line(&mut text)?;
    Ok((read > 0).then(|| text.trim_end().to_owned()))
}

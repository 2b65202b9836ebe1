use reshard_storage::StorageError;
use std::{error::Error, fmt};

/// An error of the store about a file that the message around it names already.
#[derive(Debug)]
pub(crate) struct Lost(pub(crate) StorageError);

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            StorageError::NotFound { .. } => f.write_str("the file is not there"),
            StorageError::NoFile { what, .. } => f.write_str(what),
            StorageError::LinkedDirectory { directory, .. } => {
                write!(
                    f,
                    "{directory} is a link to a directory, which is not followed"
                )
            }
            StorageError::Short { range, size, .. } => {
                write!(
                    f,
                    "the file has {size} bytes, but bytes {}..{} are needed",
                    range.start, range.end
                )
            }
            StorageError::Record { range, need, .. } => {
                let len = range.end.saturating_sub(range.start);
                write!(
                    f,
                    "the record of {len} bytes at {} can't hold elements up to its byte {need}",
                    range.start
                )
            }
            StorageError::Check { range, source, .. } => {
                write!(f, "bytes {}..{}: {source}", range.start, range.end)
            }
            other => other.fmt(f),
        }
    }
}

impl Error for Lost {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{METADATA, reader::TorchDistReader, table::Table};
    use reshard_model::ErrorKind;
    use reshard_storage::{Name, testkit::MemoryStore};
    use reshard_strategy::{OpenCx, StrategyError};
    use std::sync::Arc;

    #[test]
    fn what_is_lost_is_said_once() {
        let cx = OpenCx::new(Arc::new(MemoryStore::new()));
        let reader = TorchDistReader::new(&cx, Table::default(), None);
        let (path, name) = ("/place/__0_0.distcp", Name::new("__0_0.distcp").unwrap());
        let range = 100..200;
        for (e, said) in [
            (
                StorageError::NotFound { path: path.into() },
                "the file is not there",
            ),
            (
                StorageError::Short {
                    path: path.into(),
                    range: range.clone(),
                    size: 150,
                },
                "the file has 150 bytes, but bytes 100..200 are needed",
            ),
            (
                StorageError::Record {
                    name: name.clone(),
                    range: range.clone(),
                    need: 104,
                },
                "the record of 100 bytes at 100 can't hold elements up to its byte 104",
            ),
            (
                StorageError::Check {
                    name,
                    range,
                    source: "the CRC-32 is another".into(),
                },
                "bytes 100..200: the CRC-32 is another",
            ),
        ] {
            let lost = reader.lost(e, Some("tensor w".into()));
            assert_eq!(lost.kind(), ErrorKind::Corrupt);
            let StrategyError::Corrupt {
                source: Some(source),
                ..
            } = &lost
            else {
                panic!("{lost}")
            };
            assert_eq!(source.to_string(), said);
            let text = format!("{lost}: {source}");
            assert_eq!(text.matches("__0_0.distcp").count(), 1, "{text}");
            assert!(text.contains("tensor w is missing or damaged"), "{text}");
        }
        let io = StorageError::io("read", METADATA, std::io::Error::other("cable"));
        assert_eq!(reader.lost(io, None).kind(), ErrorKind::Unavailable);
    }
}

//! What lies where no checkpoint does.

#[cfg(feature = "local")]
mod look;

use crate::{Error, identify::identify, opened::OpenOptions};
use reshard_model::ErrorKind;
use reshard_storage::StorageError;
use reshard_strategy::StrategyError;
#[cfg(feature = "local")]
use reshard_strategy::{BackendVersion, FormatInfo};

/// What lies at a place that is no checkpoint, and what to open instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Whereabouts {
    what: String,
    hint: String,
    instead: Option<String>,
    holds_some: bool,
    is_latest: bool,
    /// Whether it says more than the content of a file or folder can.
    is_sure: bool,
}

impl Whereabouts {
    pub(crate) fn new(what: String, hint: impl Into<String>) -> Self {
        Self {
            what,
            hint: hint.into(),
            instead: None,
            holds_some: false,
            is_latest: false,
            is_sure: true,
        }
    }

    /// Of something that its content may tell better.
    #[cfg(feature = "local")]
    fn unsure(self) -> Self {
        let is_sure = false;
        Self { is_sure, ..self }
    }

    /// Of a folder of checkpoints, with one of them.
    #[cfg(feature = "local")]
    fn of_folder(what: String, first: impl AsRef<std::path::Path>, is_latest: bool) -> Self {
        Self {
            holds_some: true,
            is_latest,
            ..Self::new(what, look::ONE_OF_THEM).with_instead(first)
        }
    }

    #[cfg(feature = "local")]
    fn with_instead(mut self, path: impl AsRef<std::path::Path>) -> Self {
        self.instead = Some(crate::place_text(path));
        self
    }

    /// What lies there: `/runs/one is not a checkpoint, but holds some: iter_0000020, iter_0000010`.
    pub fn what(&self) -> &str {
        &self.what
    }

    /// What to do.
    pub fn hint(&self) -> &str {
        &self.hint
    }

    /// A place that is a checkpoint, and that may have been meant.
    pub fn instead(&self) -> Option<&str> {
        self.instead.as_deref()
    }

    /// Whether it is a folder that holds checkpoints.
    pub fn holds_some(&self) -> bool {
        self.holds_some
    }

    /// Whether Megatron goes on with the checkpoint of [`instead`](Self::instead): its `latest_checkpointed_iteration.txt` names it.
    pub fn is_latest(&self) -> bool {
        self.is_latest
    }
}

/// Adds to an error of opening what lies at the place instead of a checkpoint: a checkpoint near it, if it is on this machine, or data of another program.
pub async fn explained(how: &OpenOptions, url: &str, e: Error) -> Error {
    let found = match e.kind() {
        // The format was recognised, perhaps by a name alone.
        ErrorKind::Corrupt => return explained_by(identify(how, url, &e).await, e),
        ErrorKind::Unavailable => beside(how, url, &e).await,
        _ if e.is_no_checkpoint() => {
            let beside = beside(how, url, &e).await;
            match beside {
                Some(beside) if beside.is_sure => Some(beside),
                // Nothing is there to look at.
                beside if is_missing(&e) => beside,
                beside => identify(how, url, &e).await.or(beside),
            }
        }
        _ => None,
    };
    explained_by(found, e)
}

fn is_missing(e: &Error) -> bool {
    matches!(
        e.strategy_error(),
        StrategyError::Storage(StorageError::NotFound { .. })
    )
}

fn explained_by(found: Option<Whereabouts>, e: Error) -> Error {
    match found {
        Some(_) => e.with_whereabouts(found),
        None => e,
    }
}

/// What lies at a place on this machine.
#[cfg(feature = "local")]
async fn beside(how: &OpenOptions, url: &str, e: &Error) -> Option<Whereabouts> {
    let is_unavailable = e.kind() == ErrorKind::Unavailable;
    let path = local_path(how, url)?;
    let named = url.to_owned();
    let torch_dist = how.strategies().ok();
    let torch_dist =
        torch_dist.and_then(|all| all.load_sharded(&BackendVersion::new("torch_dist", 1)).ok());
    let of = torch_dist.map_or(FormatInfo::NEW, |format| *format.info());
    // What the system refuses to give of a directory or a file may be a checkpoint. A pipe is none.
    let may_be_one = |path: &std::path::Path| {
        let has_text = path.file_name().is_some_and(|name| name.to_str().is_some());
        path.is_dir() || (path.is_file() && has_text)
    };
    let look = move || match is_unavailable && may_be_one(&path) {
        true => None,
        false => look::explain(&named, &path, &of),
    };
    let found = reshard_storage::run_blocking([look]).await.ok()?;
    let mut found = found.into_iter().flatten().next();
    let StrategyError::NotACheckpoint { why, .. } = e.strategy_error() else {
        return found;
    };
    // A format that looked into an archive knows more than its first bytes tell.
    if let Some(why) = why.strip_prefix("it is a zip archive ") {
        let hint = "open it with the program that wrote it";
        let what = format!("{url} is a zip archive {why}");
        found = Some(Whereabouts::new(what, hint).unsure());
    }
    // Of a file that may be anything the formats say more: which names they know.
    if let Some(found) = &mut found
        && let Some(named) = found.what.strip_suffix(look::PLAIN_FILE)
        && let Some(why) = why.strip_prefix("it is a file, and ")
    {
        found.what = format!("{named} is a file, and {why}");
    }
    found
}

/// Without the feature `local`, nothing is known of this machine.
#[cfg(not(feature = "local"))]
async fn beside(_: &OpenOptions, _: &str, _: &Error) -> Option<Whereabouts> {
    None
}

/// Where a URL lies on this machine's file systems, if it does.
#[cfg(feature = "local")]
fn local_path(how: &OpenOptions, url: &str) -> Option<std::path::PathBuf> {
    let url = how.store_at(url).ok()?.url();
    let is_local = url.starts_with("file://");
    let store = is_local.then(|| reshard_storage::LocalStore::open(&url).ok())??;
    Some(store.path().to_path_buf())
}

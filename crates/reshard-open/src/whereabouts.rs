//! What lies where no checkpoint does.

#[cfg(feature = "local")]
mod look;

use crate::{Error, opened::OpenOptions};
#[cfg(feature = "local")]
use reshard_strategy::{BackendVersion, FormatInfo, StrategyError};

/// What lies at a place on this machine that is no checkpoint, and what to open instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Whereabouts {
    what: String,
    hint: String,
    instead: Option<String>,
    holds_some: bool,
    is_latest: bool,
}

impl Whereabouts {
    #[cfg(feature = "local")]
    fn new(what: String, hint: impl Into<String>) -> Self {
        Self {
            what,
            hint: hint.into(),
            instead: None,
            holds_some: false,
            is_latest: false,
        }
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
        self.instead = Some(path.as_ref().display().to_string());
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

/// Adds to an error of opening what lies at the place instead of a checkpoint, if it is on this machine.
#[cfg(feature = "local")]
pub async fn explained(how: &OpenOptions, url: &str, e: Error) -> Error {
    let is_unavailable = e.kind() == reshard_model::ErrorKind::Unavailable;
    if !e.is_no_checkpoint() && !is_unavailable {
        return e;
    }
    let Some(path) = local_path(how, url) else {
        return e;
    };
    let named = url.to_owned();
    let torch_dist = how.strategies().ok();
    let torch_dist =
        torch_dist.and_then(|all| all.load_sharded(&BackendVersion::new("torch_dist", 1)).ok());
    let of = torch_dist.map_or(FormatInfo::NEW, |format| *format.info());
    // What the system refuses to give of a directory or a file may be a checkpoint. A pipe is none.
    let look = move || match is_unavailable && (path.is_dir() || path.is_file()) {
        true => None,
        false => look::explain(&named, &path, &of),
    };
    let Ok(found) = reshard_storage::run_blocking([look]).await else {
        return e;
    };
    let mut found = found.into_iter().flatten().next();
    // A format that looked into an archive knows more than its first bytes tell.
    if let StrategyError::NotACheckpoint { why, .. } = e.strategy_error()
        && let Some(why) = why.strip_prefix("it is a zip archive ")
    {
        let hint = "open it with the program that wrote it";
        found = Some(Whereabouts::new(
            format!("{url} is a zip archive {why}"),
            hint,
        ));
    }
    // Of a file that may be anything the formats say more: which names they know.
    if let (Some(found), StrategyError::NotACheckpoint { why, .. }) =
        (&mut found, e.strategy_error())
        && let (Some(named), Some(why)) = (
            found.what.strip_suffix(look::PLAIN_FILE),
            why.strip_prefix("it is a file, and "),
        )
    {
        found.what = format!("{named} is a file, and {why}");
    }
    e.with_whereabouts(found)
}

/// Adds nothing: without the feature `local`, nobody can look.
#[cfg(not(feature = "local"))]
pub async fn explained(_: &OpenOptions, _: &str, e: Error) -> Error {
    e
}

/// Where a URL lies on this machine's file systems, if it does.
#[cfg(feature = "local")]
fn local_path(how: &OpenOptions, url: &str) -> Option<std::path::PathBuf> {
    let url = how.store_at(url).ok()?.url();
    let is_local = url.starts_with("file://");
    let store = is_local.then(|| reshard_storage::LocalStore::open(&url).ok())??;
    Some(store.path().to_path_buf())
}

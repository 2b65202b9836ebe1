//! Identifies files and folders of other programs at places that can't be opened.

use crate::{Error, opened::OpenOptions, whereabouts::Whereabouts};
use reshard_storage::{Depth, Entry, Name, PlaceKind, Store, StoreExt as _};
use reshard_strategy::{Detection, Foreign, Formats, HEAD, StrategyError, TAIL};
use std::{collections::VecDeque, sync::Arc};

/// Folders that are listed, and files in them that are looked at. A place may be anything, such as a home directory.
const FOLDERS: usize = 64;
const FILES: usize = 100_000;

/// Identifies what another program has stored at a place, or the damaged file that the error names. `None` if it is of no known kind or can't
/// be read: then the error itself says what is wrong.
pub(crate) async fn identify(how: &OpenOptions, url: &str, e: &Error) -> Option<Whereabouts> {
    let place = how.store_at(url).ok()?;
    let shown = url.trim_end_matches('/');
    let part = place.of_kind(PlaceKind::File);
    if let StrategyError::Corrupt { file, .. } = e.strategy_error() {
        let name = Name::new(&**file).ok()?;
        let others = |found: &&Foreign| !is_read(how, &name, found);
        let is_part = |part: &Arc<dyn Store>| part.url().ends_with(&format!("/{file}"));
        return match part.filter(is_part) {
            Some(part) => {
                let found = of_file(&part, &name).await.filter(others)?;
                Some(told(shown, found))
            }
            None => {
                let found = of_file(&place, &name).await.filter(others)?;
                Some(told(&format!("{shown}/{file}"), found))
            }
        };
    }
    if let Some(part) = part
        && let Ok(top) = part.top().await
        && let [file] = &*top.files
    {
        let found = of_file(&part, &file.name).await;
        return found.map(|found| told(shown, found));
    }
    of_folder(&place).await.map(|found| told(shown, found))
}

/// Whether a linked format reads files of this kind, and of this name. Then its error says more than what the file is.
fn is_read(how: &OpenOptions, name: &Name, found: &Foreign) -> bool {
    let file = Entry {
        name: name.clone(),
        bytes: 0,
    };
    let formats = how.strategies().and_then(|linked| Formats::of(&linked));
    let claims = |formats: Formats| {
        let all = formats.of_kind(PlaceKind::File).all;
        let mut answers = all.iter().map(|format| format.info().detect_file(&file));
        answers.any(|answer| answer == Detection::Yes)
    };
    Foreign::of_name(name.as_str()).is_some_and(|named| named.what == found.what)
        && formats.is_ok_and(claims)
}

fn told(place: &str, found: &Foreign) -> Whereabouts {
    Whereabouts::new(format!("{place} is {}", found.what), found.next)
}

/// By the content of a file, or else by its name.
async fn of_file(store: &Arc<dyn Store>, name: &Name) -> Option<&'static Foreign> {
    let bytes = store.len(name).await.ok()??;
    let head = store.read(name, 0..bytes.min(HEAD)).await.ok()?;
    let tail = match bytes {
        ..=HEAD => head.clone(),
        _ => store.read(name, bytes - TAIL..bytes).await.ok()?,
    };
    // The index of a TensorFlow checkpoint ends as a V1 checkpoint does.
    let tail = match name.as_str().ends_with(".index") {
        true => &[],
        false => &*tail,
    };
    Foreign::of_file(&head, tail).or_else(|| Foreign::of_name(name.as_str()))
}

/// By the names of files in a folder and in those folders in it that may tell.
async fn of_folder(store: &Arc<dyn Store>) -> Option<&'static Foreign> {
    let mut files: Vec<Entry> = Vec::new();
    let mut folders = VecDeque::from([None]);
    for _ in 0..FOLDERS {
        let Some(folder) = folders.pop_front() else {
            break;
        };
        let listed = store.list(folder.as_ref(), Depth::One).await.ok()?;
        files.extend(listed.files);
        if files.len() > FILES {
            break;
        }
        let inside = listed.folders.into_iter();
        let inside = inside.filter(|folder| Foreign::may_be_in(folder.as_str()));
        folders.extend(inside.map(Some));
    }
    Foreign::of_folder(files.iter().map(|file| file.name.as_str()))
}

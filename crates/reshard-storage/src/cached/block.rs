//! Blocks of files in a local directory. Whatever lies there, a block is what was stored, or it is not found.

use sha2::{Digest, Sha256};
use std::{
    fs::{self, DirBuilder, File, OpenOptions, TryLockError},
    io::{self, Read, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    process,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

/// So many bytes of a file are one block. To read so many more takes about as long as a request.
pub(super) const BLOCK: u64 = 256 << 10;

const MAGIC: [u8; 8] = *b"reshard1";
/// Before the bytes of a block: the magic, and a checksum of the key and the bytes.
const HEADER: usize = 12;

/// The end of the names of files that are being written.
const UNFINISHED: &str = "tmp";
/// What is not finished and younger may have no lock yet.
const BEGUN: Duration = Duration::from_secs(10);
/// What is not finished for so long was left by a process that was killed, in a file system without locks.
const ABANDONED: Duration = Duration::from_secs(3_600);
/// The time of the last use of a block is noted again after so long.
const FRESH: Duration = Duration::from_secs(60);

/// Which block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key([u8; 32]);

impl Key {
    /// A block of the version of a file that has this length and tag.
    pub(super) fn new(place: &str, name: &str, (bytes, tag): (u64, &str), number: u64) -> Self {
        let mut hasher = Sha256::new();
        for text in [place, name, tag] {
            hasher.update((text.len() as u64).to_le_bytes());
            hasher.update(text);
        }
        for number in [bytes, BLOCK, number] {
            hasher.update(number.to_le_bytes());
        }
        Self(hasher.finalize().into())
    }

    fn path(&self, dir: &Path) -> PathBuf {
        let hex: String = self.0.iter().map(|b| format!("{b:02x}")).collect();
        dir.join(hex.get(..2).unwrap_or_default()).join(hex)
    }

    fn checksum(&self, bytes: &[u8]) -> [u8; 4] {
        let mut crc = crc32fast::Hasher::new();
        crc.update(&self.0);
        crc.update(bytes);
        crc.finalize().to_le_bytes()
    }
}

/// A directory with blocks, which processes share.
#[derive(Debug)]
pub(super) struct Blocks {
    dir: PathBuf,
    most: u64,
    /// Bytes that this process has written since it last looked how many there are; `None` if it has not looked yet.
    written: Mutex<Option<u64>>,
}

impl Blocks {
    pub(super) fn new(dir: PathBuf, most: u64) -> Self {
        Self {
            dir,
            most,
            written: Mutex::default(),
        }
    }

    /// The bytes of a block, if they are there and sound.
    pub(super) fn get(&self, key: &Key, len: u64) -> Option<Vec<u8>> {
        let path = key.path(&self.dir);
        if !is_private(&self.dir) || !is_private(path.parent()?) {
            return None;
        }
        let whole = usize::try_from(len).ok()?.checked_add(HEADER)?;
        // Something else, such as a named pipe, could block.
        let meta = fs::symlink_metadata(&path).ok()?;
        if !meta.is_file() || meta.len() != whole as u64 {
            return None;
        }
        let mut stored = vec![0; whole];
        let mut file = File::open(&path).ok()?;
        file.read_exact(&mut stored).ok()?;
        let (magic, rest) = stored.split_at_checked(MAGIC.len())?;
        let (crc, bytes) = rest.split_at_checked(HEADER - MAGIC.len())?;
        if magic != MAGIC || crc != key.checksum(bytes) {
            return None;
        }
        let now = SystemTime::now();
        let used = meta.modified().ok()?;
        if now.duration_since(used).is_ok_and(|age| age > FRESH) {
            // What can't be noted is removed a little earlier.
            File::options()
                .append(true)
                .open(&path)
                .and_then(|file| file.set_modified(now))
                .unwrap_or(());
        }
        stored.drain(..HEADER);
        Some(stored)
    }

    /// Keeps a block, if it can be kept. A cache that is full or can't be written is no reason to fail.
    pub(super) fn put(&self, key: &Key, bytes: &[u8]) {
        if bytes.len() as u64 > self.most {
            return;
        }
        if !is_private(&self.dir) {
            tracing::debug!(dir = %self.dir.display(), "others can write into the cache, so it is not used");
            return;
        }
        match self.write(key, bytes) {
            Ok(()) => self.count((bytes.len() + HEADER) as u64),
            Err(e) => {
                tracing::debug!(dir = %self.dir.display(), error = %e, "a block is not kept");
            }
        }
    }

    fn write(&self, key: &Key, bytes: &[u8]) -> io::Result<()> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let path = key.path(&self.dir);
        if let Some(folder) = path.parent() {
            // Others have no business in what may be private.
            DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(folder)?;
        }
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let unfinished = path.with_extension(format!("{}-{number}.{UNFINISHED}", process::id()));
        let mut stored = Vec::with_capacity(HEADER + bytes.len());
        stored.extend_from_slice(&MAGIC);
        stored.extend_from_slice(&key.checksum(bytes));
        stored.extend_from_slice(bytes);
        let written = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&unfinished)
            .and_then(|mut file| {
                // The lock ends with the process. Without one the age tells.
                file.try_lock().unwrap_or_default();
                file.write_all(&stored)?;
                fs::rename(&unfinished, &path)
            });
        if written.is_err() {
            // It may never have been there.
            fs::remove_file(&unfinished).unwrap_or(());
        }
        written
    }

    /// Counts what was written, and makes room if there may be too much.
    fn count(&self, bytes: u64) {
        {
            let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
            let sum = written.map_or(u64::MAX, |sum| sum.saturating_add(bytes));
            if sum <= self.most / 16 {
                *written = Some(sum);
                return;
            }
            *written = Some(0);
        }
        self.make_room();
    }

    /// Removes the blocks that were not used for the longest time, until an eighth is free. So a few processes that each write a sixteenth
    /// before they look again stay below the bound.
    fn make_room(&self) {
        let mut all = Vec::new();
        let now = SystemTime::now();
        for folder in entries(&self.dir).filter(is_folder) {
            for entry in entries(&folder.path()) {
                let Ok(meta) = entry.metadata() else { continue };
                let Ok(used) = meta.modified() else { continue };
                if !meta.is_file() || !is_ours(&entry) {
                    continue;
                }
                let path = entry.path();
                if path.extension().is_none_or(|end| end != UNFINISHED) {
                    all.push((used, meta.len(), path));
                } else if is_abandoned(&path, now.duration_since(used).unwrap_or_default()) {
                    fs::remove_file(path).unwrap_or(());
                }
            }
        }
        all.sort();
        let mut sum = all
            .iter()
            .fold(0u64, |sum, (_, bytes, _)| sum.saturating_add(*bytes));
        let wanted = self.most - self.most / 8;
        for (_, bytes, path) in all {
            if sum <= wanted {
                break;
            }
            // Another process may have removed it.
            fs::remove_file(path).unwrap_or(());
            sum = sum.saturating_sub(bytes);
        }
    }
}

/// Whether the process is gone that was writing a file.
fn is_abandoned(path: &Path, age: Duration) -> bool {
    if age < BEGUN {
        return false;
    }
    match File::open(path).map(|file| file.try_lock()) {
        Ok(Ok(())) => true,
        Ok(Err(TryLockError::WouldBlock)) => false,
        _ => age > ABANDONED,
    }
}

/// Whether nobody else can put files there, as far as its owner and its mode tell. What is not there yet is private.
fn is_private(dir: &Path) -> bool {
    match fs::metadata(dir) {
        Ok(meta) => meta.mode() & 0o022 == 0 && is_mine(&meta),
        Err(e) => e.kind() == io::ErrorKind::NotFound,
    }
}

fn is_mine(meta: &fs::Metadata) -> bool {
    #[cfg(feature = "local")]
    return meta.uid() == rustix::process::geteuid().as_raw();
    // Nothing tells whose this process is.
    #[cfg(not(feature = "local"))]
    return meta.uid() != u32::MAX;
}

/// Whether it is one of the folders that blocks lie in: the first two digits of their names.
fn is_folder(entry: &fs::DirEntry) -> bool {
    let name = entry.file_name();
    let is_hex = name.len() == 2 && name.as_encoded_bytes().iter().all(u8::is_ascii_hexdigit);
    is_hex && entry.file_type().is_ok_and(|t| t.is_dir())
}

/// What lies in a directory; nothing, if it can't be read.
fn entries(dir: &Path) -> impl Iterator<Item = fs::DirEntry> + use<> {
    fs::read_dir(dir).into_iter().flatten().flatten()
}

/// Whether a file has such a name as blocks have. Others are not touched.
fn is_ours(entry: &fs::DirEntry) -> bool {
    let name = entry.file_name();
    let stem = name.to_str().and_then(|name| name.split('.').next());
    stem.is_some_and(|stem| stem.len() == 64 && stem.bytes().all(|b| b.is_ascii_hexdigit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u64) -> Key {
        Key::new("s3://b", "a", (100, "t"), number)
    }

    fn files(dir: &Path) -> Vec<PathBuf> {
        let mut all: Vec<PathBuf> = entries(dir)
            .flat_map(|d| entries(&d.path()))
            .map(|e| e.path())
            .collect();
        all.sort();
        all
    }

    #[test]
    fn a_block_is_what_was_stored_or_it_is_not_found() {
        let dir = tempfile::tempdir().unwrap();
        let blocks = Blocks::new(dir.path().join("deep/er"), 1 << 20);
        let bytes: Vec<u8> = (0..100).collect();
        assert_eq!(blocks.get(&key(0), 100), None);
        blocks.put(&key(0), &bytes);
        assert_eq!(blocks.get(&key(0), 100), Some(bytes.clone()));
        assert_eq!(
            (blocks.get(&key(0), 99), blocks.get(&key(1), 100)),
            (None, None)
        );
        // Whatever becomes of the file.
        let [path] = &files(&dir.path().join("deep/er"))[..] else {
            panic!()
        };
        let whole = fs::read(path).unwrap();
        for at in 0..whole.len() {
            let mut bad = whole.clone();
            bad[at] ^= 1;
            fs::write(path, bad).unwrap();
            assert_eq!(blocks.get(&key(0), 100), None, "{at}");
            fs::write(path, &whole[..at]).unwrap();
            assert_eq!(blocks.get(&key(0), 100), None, "{at}");
        }
        fs::write(path, [&whole[..], &[0]].concat()).unwrap();
        assert_eq!(blocks.get(&key(0), 100), None);
        // The file of another block.
        fs::write(path, &whole).unwrap();
        let other = key(1).path(&dir.path().join("deep/er"));
        fs::create_dir_all(other.parent().unwrap()).unwrap();
        fs::copy(path, other).unwrap();
        assert_eq!(blocks.get(&key(1), 100), None);
        fs::remove_file(path).unwrap();
        fs::create_dir(path).unwrap();
        assert_eq!(blocks.get(&key(0), 100), None);
        blocks.put(&key(0), &bytes);
        assert_eq!(blocks.get(&key(0), 100), None);
        assert_eq!(files(&dir.path().join("deep/er")).len(), 2);
    }

    #[test]
    fn all_that_says_which_block_it_is_is_in_the_key() {
        let all = [
            Key::new("s3://b", "a", (100, "t"), 0),
            Key::new("s3://b", "a", (100, "t"), 1),
            Key::new("s3://b", "a", (101, "t"), 0),
            Key::new("s3://b", "a", (100, "u"), 0),
            Key::new("s3://b", "b", (100, "t"), 0),
            Key::new("s3://c", "a", (100, "t"), 0),
            Key::new("s3://ba", "", (100, "t"), 0),
        ];
        for (n, one) in all.iter().enumerate() {
            assert!(all[n + 1..].iter().all(|other| one != other), "{n}");
        }
    }

    #[test]
    fn the_blocks_that_were_not_used_for_the_longest_time_go_first_and_nothing_else_does() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path();
        let most = 100 * 1_000;
        let blocks = Blocks::new(at.into(), most);
        let bytes = vec![7; 1_000 - HEADER];
        fs::create_dir_all(at.join("aa")).unwrap();
        fs::write(at.join("aa/notes.txt"), vec![0; 1_000_000]).unwrap();
        let ago = |secs| SystemTime::now() - Duration::from_secs(secs);
        let touch = |path: &Path, when| {
            File::options()
                .append(true)
                .open(path)
                .unwrap()
                .set_modified(when)
                .unwrap();
        };
        // What is not finished: one is still written, and the other was left by a process that was killed.
        let left = ["1-1.tmp", "1-2.tmp"]
            .map(|end| at.join("aa").join(format!("{}.{end}", "0".repeat(64))));
        for path in &left {
            fs::write(path, "x").unwrap();
            touch(path, ago(BEGUN.as_secs()));
        }
        let written = File::open(&left[1]).unwrap();
        written.lock().unwrap();
        for number in 0..80 {
            blocks.put(&key(number), &bytes);
            touch(&key(number).path(at), ago(10_000 - number));
        }
        // Reading one makes it the youngest.
        assert!(blocks.get(&key(3), 988).is_some());
        for number in 80..300 {
            blocks.put(&key(number), &bytes);
            let sizes = files(at)
                .iter()
                .map(|p| p.metadata().unwrap().len())
                .sum::<u64>();
            assert!(sizes <= most + 1_000_000 + 2, "{sizes}");
        }
        let there = |number| blocks.get(&key(number), 988).is_some();
        assert!(there(299) && there(250) && !there(0) && !there(79));
        assert!((0..100).filter(|n| there(*n)).eq([3]) || !there(3));
        assert!(at.join("aa/notes.txt").exists());
        assert_eq!(left.each_ref().map(|path| path.exists()), [false, true]);
        assert!(is_abandoned(&left[0], ABANDONED * 2) && !is_abandoned(&left[0], FRESH));
        assert!(!is_abandoned(&left[1], ABANDONED * 2));
        drop(written);
        assert!(is_abandoned(&left[1], BEGUN));
        // A process that has only just made its file takes the lock a little later.
        assert!(!is_abandoned(&left[1], Duration::ZERO));
    }
}

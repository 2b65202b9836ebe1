//! Plain reads and writes of as many bytes as a checkpoint has, in as many files: what the machine itself can do. Two threads do them.

use crate::{measured::Measured, ranks::on_ranks};
use anyhow::{Context, Result, ensure};
use rustix::fs::{Advice, OFlags};
use std::{
    cmp::Reverse,
    fs::{self, File},
    ops::Range,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

/// What one call of the system reads or writes.
const BLOCK: u64 = 1 << 20;
/// The same without the page cache, where each call waits for the disk.
const DIRECT_BLOCK: u64 = 4 << 20;
/// A page; what the memory and the length of a direct read are multiples of.
const ALIGNED: usize = 4096;

/// All files of a folder and of the folders in it, with their lengths, sorted by their paths.
fn files(dir: &Path) -> Result<Vec<(PathBuf, u64)>> {
    let (mut out, mut left) = (Vec::new(), vec![dir.to_path_buf()]);
    while let Some(dir) = left.pop() {
        for entry in fs::read_dir(&dir).with_context(|| format!("reading {}", dir.display()))? {
            let entry = entry?;
            let found = entry.metadata()?;
            if found.is_dir() {
                left.push(entry.path());
            } else {
                out.push((entry.path(), found.len()));
            }
        }
    }
    out.sort();
    Ok(out)
}

/// The bytes of all files of folders together.
fn total(files: &[(PathBuf, u64)]) -> u64 {
    files.iter().map(|(_, bytes)| bytes).sum()
}

/// The parts of files that lie in a range of all their bytes.
fn parts(files: &[(PathBuf, u64)], wanted: &Range<u64>) -> Vec<(PathBuf, Range<u64>)> {
    let (mut out, mut start) = (Vec::new(), 0);
    for (path, bytes) in files {
        let end = start + bytes;
        let (from, to) = (wanted.start.max(start), wanted.end.min(end));
        if from < to {
            out.push((path.clone(), from - start..to - start));
        }
        start = end;
    }
    out
}

/// Touched memory for so many bytes in so many parts, each of which can begin anywhere in a page.
fn touched(bytes: u64, parts: usize) -> Vec<u8> {
    vec![1; bytes as usize + (parts + 1) * ALIGNED]
}

/// What to skip, so that memory begins where byte `at` of a file does in its page. Otherwise processors copy slower.
fn before_page(memory: &[u8], at: u64) -> usize {
    (at as usize).wrapping_sub(memory.as_ptr().addr()) % ALIGNED
}

/// Reads all files of folders, or their first bytes, into touched memory. Each thread reads a half of the bytes.
pub(crate) fn read(dirs: &[PathBuf], first: Option<u64>, iterations: usize) -> Result<Measured> {
    let mut all = Vec::new();
    for dir in dirs {
        all.extend(files(dir)?);
    }
    let bytes = first.map_or(total(&all), |first| first.min(total(&all)));
    let build = move |rank| {
        let mine = parts(&all, &(bytes * rank / 2..bytes * (rank + 1) / 2));
        let length: u64 = mine.iter().map(|(_, range)| range.end - range.start).sum();
        Ok((mine.clone(), touched(length, mine.len())))
    };
    let work = |(mine, mut memory): (Vec<(PathBuf, Range<u64>)>, Vec<u8>), _: &_| {
        let mut rest = &mut memory[..];
        for (path, range) in &mine {
            let file = File::open(path)?;
            let skip = before_page(rest, range.start);
            let (own, others) = rest[skip..].split_at_mut((range.end - range.start) as usize);
            rest = others;
            for (at, block) in (range.start..)
                .step_by(BLOCK as usize)
                .zip(own.chunks_mut(BLOCK as usize))
            {
                file.read_exact_at(block, at)?;
            }
        }
        Ok((mine, memory))
    };
    let (runs, _) = on_ranks(2, iterations, build, || (), work, Ok)?;
    Ok(runs.measured(bytes))
}

/// Reads all files of folders past the page cache, into a block of each thread.
pub(crate) fn read_cold(dirs: &[PathBuf], iterations: usize) -> Result<Measured> {
    let mut all = Vec::new();
    for dir in dirs {
        all.extend(files(dir)?);
    }
    let bytes = total(&all);
    // Direct reads begin at whole blocks, so blocks are dealt out, and not halves of all bytes.
    let blocks = all.iter().flat_map(|(path, bytes)| {
        let starts = (0..*bytes).step_by(DIRECT_BLOCK as usize);
        starts.map(move |at| (path.clone(), at))
    });
    let blocks: Vec<(PathBuf, u64)> = blocks.collect();
    let build = move |rank| {
        let half = blocks.len() / 2;
        let mine = match rank {
            0 => blocks[..half].to_vec(),
            _ => blocks[half..].to_vec(),
        };
        Ok((mine, vec![1u8; DIRECT_BLOCK as usize + ALIGNED]))
    };
    let work = |(mine, mut memory): (Vec<(PathBuf, u64)>, Vec<u8>), _: &_| {
        let from = memory.as_ptr().align_offset(ALIGNED);
        let block = &mut memory[from..from + DIRECT_BLOCK as usize];
        let mut open: Option<(&Path, File)> = None;
        for (path, at) in &mine {
            let file = match &open {
                Some((same, file)) if *same == path.as_path() => file,
                _ => &open.insert((path, direct(path)?)).1,
            };
            read_up_to_end(file, block, *at)?;
        }
        Ok((mine, memory))
    };
    let (runs, _) = on_ranks(2, iterations, build, || (), work, Ok)?;
    Ok(runs.measured(bytes))
}

fn direct(path: &Path) -> Result<File> {
    let mut options = File::options();
    options.read(true);
    options.custom_flags(OFlags::DIRECT.bits().cast_signed());
    let file = options.open(path);
    file.with_context(|| format!("{} can't be read past the page cache", path.display()))
}

/// The last block of a file is shorter.
fn read_up_to_end(file: &File, block: &mut [u8], at: u64) -> Result<()> {
    let mut got = 0;
    while got < block.len() {
        match file.read_at(&mut block[got..], at + got as u64)? {
            0 => break,
            n => got += n,
        }
        if !got.is_multiple_of(ALIGNED) {
            break;
        }
    }
    ensure!(got > 0, "a file became shorter");
    Ok(())
}

/// Writes files as long as those of a folder from touched memory. Each file has one thread.
pub(crate) fn write(like: &Path, dir: &Path, iterations: usize) -> Result<Measured> {
    let mut lengths: Vec<u64> = files(like)?.into_iter().map(|(_, bytes)| bytes).collect();
    let bytes = lengths.iter().sum();
    lengths.sort_by_key(|bytes| Reverse(*bytes));
    let (build, to, fresh) = (deal(&lengths), dir.to_path_buf(), dir.to_path_buf());
    let (runs, _) = on_ranks(
        2,
        iterations,
        move |rank| {
            let mine = build[usize::from(rank > 0)].clone();
            let memory = touched(mine.iter().sum(), mine.len());
            Ok((rank, mine, memory))
        },
        move || {
            drop(fs::remove_dir_all(&fresh));
            drop(fs::create_dir_all(&fresh));
        },
        move |(rank, mine, memory), _| {
            let mut rest = &memory[..];
            for (number, bytes) in mine.iter().enumerate() {
                let file = File::create(to.join(format!("plain{rank}-{number}")))?;
                let (own, others) = rest[before_page(rest, 0)..].split_at(*bytes as usize);
                rest = others;
                for (at, block) in (0..)
                    .step_by(BLOCK as usize)
                    .zip(own.chunks(BLOCK as usize))
                {
                    file.write_all_at(block, at)?;
                }
            }
            Ok((rank, mine, memory))
        },
        Ok,
    )?;
    fs::remove_dir_all(dir)?;
    Ok(runs.measured(bytes))
}

/// Lengths, the longest first, dealt to two threads so that both have about as much.
fn deal(lengths: &[u64]) -> [Vec<u64>; 2] {
    let mut out = [Vec::new(), Vec::new()];
    let mut sums = [0, 0];
    for bytes in lengths {
        let to = usize::from(sums[1] < sums[0]);
        out[to].push(*bytes);
        sums[to] += bytes;
    }
    out
}

/// Takes the files of a folder out of the page cache.
pub(crate) fn evict(dir: &Path) -> Result<()> {
    for (path, _) in files(dir)? {
        let file = File::open(&path)?;
        // What the disk doesn't have yet can't be dropped.
        file.sync_all()?;
        rustix::fs::fadvise(&file, 0, None, Advice::DontNeed)?;
    }
    Ok(())
}

/// Bytes that this process has read from disks.
pub(crate) fn read_from_disk() -> u64 {
    let io = fs::read_to_string("/proc/self/io").unwrap_or_default();
    let line = io.lines().find_map(|l| l.strip_prefix("read_bytes: "));
    line.and_then(|n| n.trim().parse().ok()).unwrap_or(0)
}

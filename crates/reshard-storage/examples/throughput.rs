//! How fast a local store is, beside plain `pwrite` and `pread` of as many bytes by as many threads.
//!
//! `cargo run --release -p reshard-storage --example throughput -- [DIR]... [--mib N] [--rounds N] [--only CASE]`
//! (default: `/dev/shm` and the working directory, 768 MiB, 7 rounds; medians of rounds that take turns).

use bytes::Bytes;
use reshard_model::{BoxError, DType, Layout, LentBuffer, LentView, Region, RegionMut, Tensor};
use reshard_storage::{
    Checksum, Durability, Extent, FileBody, IfExists, Length, LocalStore, Name, Part, Progress,
    RecordRead, Store, StoreExt, Traffic, wait,
};
use rustix::time::{ClockId, clock_gettime};
use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::FileExt,
    path::Path,
    sync::Arc,
    time::Instant,
};

type Result<T = ()> = std::result::Result<T, BoxError>;

const BLOCK: usize = 512 << 10;

/// A slice of memory, hashed block by block while it passes.
struct Hashed {
    rest: Bytes,
    hash: Option<crc32fast::Hasher>,
}

impl Extent for Hashed {
    fn length(&self) -> Length {
        Length::Exact(self.rest.len() as u64)
    }

    fn next_block(&mut self) -> Option<io::Result<Bytes>> {
        let block = self.rest.split_to(self.rest.len().min(BLOCK));
        if let Some(hash) = &mut self.hash {
            hash.update(&block);
        }
        (!block.is_empty()).then_some(Ok(block))
    }
}

struct Crc(crc32fast::Hasher);

impl Checksum for Crc {
    fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    fn finish(self: Box<Self>) -> Result {
        // The sums are not what is measured; that they are made is.
        if self.0.finalize() == 1 {
            Err("unlucky".into())
        } else {
            Ok(())
        }
    }
}

struct Case {
    name: &'static str,
    /// Bytes of each item; between items lie `GAP` bytes, as a header would.
    item: usize,
    files: usize,
}

const GAP: usize = 1088;

struct Buffer {
    lent: Arc<LentBuffer>,
    views: Vec<LentView>,
}

fn take(tensor: Tensor, regions: &[Region]) -> Result<(Buffer, Vec<RegionMut>)> {
    let (lent, views) = LentBuffer::new("x", vec![tensor]).map_err(|(e, _)| e)?;
    let view = views.first().ok_or("no view")?;
    let wants: Vec<_> = regions.iter().map(|r| (view, r.clone())).collect();
    let lent_regions = lent.regions_mut(&wants)?;
    Ok((Buffer { lent, views }, lent_regions))
}

fn give(b: Buffer) -> Result<Tensor> {
    let all = b.lent.reclaim(b.views).map_err(|_| "regions are alive")?;
    Ok(all.into_iter().next().ok_or("no tensor")?)
}

/// GB by second and by CPU second of each round.
type Speeds = Vec<(f64, f64)>;

struct Table(Vec<(String, Speeds)>);

fn cpu() -> f64 {
    let t = clock_gettime(ClockId::ProcessCPUTime);
    t.tv_sec as f64 + t.tv_nsec as f64 * 1e-9
}

fn median(all: impl Iterator<Item = f64>) -> (f64, f64, f64) {
    let mut all: Vec<f64> = all.collect();
    all.sort_by(f64::total_cmp);
    (all[all.len() / 2], all[0], all[all.len() - 1])
}

impl Table {
    fn time(&mut self, what: &str, bytes: usize, f: impl FnOnce() -> Result) -> Result {
        let (start, used) = (Instant::now(), cpu());
        f()?;
        let gb = bytes as f64 / 1e9;
        let speed = (gb / start.elapsed().as_secs_f64(), gb / (cpu() - used));
        match self.0.iter_mut().find(|(w, _)| w == what) {
            Some((_, all)) => all.push(speed),
            None => self.0.push((what.into(), vec![speed])),
        }
        Ok(())
    }

    fn print(&self) -> Result {
        let mut out = io::stdout().lock();
        let mut plain = (1.0, 1.0);
        for (what, all) in &self.0 {
            let (wall, low, high) = median(all.iter().map(|s| s.0));
            let (cpu, ..) = median(all.iter().map(|s| s.1));
            if what.starts_with("plain") {
                plain = (wall, cpu);
            }
            let range = format!("{low:.2}..{high:.2}");
            let (w, c) = (wall / plain.0, cpu / plain.1);
            writeln!(
                out,
                "  {what:44} {wall:6.2} GB/s ({range:12}) {w:5.2} of plain; {cpu:5.2} GB/CPU s {c:5.2} of plain"
            )?;
        }
        Ok(())
    }
}

fn main() -> Result {
    let (mut dirs, mut mib, mut rounds, mut only) = (Vec::new(), 768, 7, String::new());
    let mut args = std::env::args().skip(1);
    while let Some(a) = args.next() {
        match a.as_str() {
            "--mib" => mib = args.next().ok_or("--mib N")?.parse()?,
            "--only" => only = args.next().ok_or("--only PART-OF-A-CASE'S-NAME")?,
            "--rounds" => rounds = args.next().ok_or("--rounds N")?.parse()?,
            _ => dirs.push(a),
        }
    }
    if dirs.is_empty() {
        dirs = vec!["/dev/shm".into(), ".".into()];
    }
    let total: usize = mib << 20;
    let memory = Bytes::from(
        (0..total)
            .map(|i| (i.wrapping_mul(2_654_435_761) >> 15) as u8)
            .collect::<Vec<u8>>(),
    );
    let cases = [
        Case {
            name: "items of 64 MiB, 2 files",
            item: 64 << 20,
            files: 2,
        },
        Case {
            name: "items of 64 MiB, 1 file",
            item: 64 << 20,
            files: 1,
        },
        Case {
            name: "items of 64 KiB, 2 files",
            item: 64 << 10,
            files: 2,
        },
        Case {
            name: "items of 1 KiB, 2 files",
            item: 1 << 10,
            files: 2,
        },
    ];
    for dir in &dirs {
        for case in cases.iter().filter(|c| c.name.contains(&only)) {
            // Many tiny items take long, so there are fewer of them.
            let total = if case.item < 2048 { total / 16 } else { total };
            writeln!(
                io::stdout(),
                "{dir}: {}, {} MiB in all",
                case.name,
                total >> 20
            )?;
            run(Path::new(dir), case, &memory.slice(..total), rounds)?;
        }
    }
    Ok(())
}

fn run(dir: &Path, case: &Case, memory: &Bytes, rounds: usize) -> Result {
    let total = memory.len();
    let place = dir.join(format!("reshard-throughput-{}", std::process::id()));
    let plain = dir.join(format!("reshard-throughput-plain-{}", std::process::id()));
    let store = LocalStore::at(&place)?;
    let mut table = Table(Vec::new());
    let mut tensor = Tensor::from_vec(&[total as u64], vec![1u8; total])?;
    let mut rows = Tensor::from_vec(&[(total / 8192) as u64, 4096], vec![1u8; total / 2])?;
    let mut slow: Vec<u8> = vec![1; total];
    for _ in 0..rounds {
        plain_write(&plain, memory, case, &mut table)?;
        for hashed in [false, true] {
            let what = if hashed { "write, hashed" } else { "write" };
            if place.exists() {
                fs::remove_dir_all(&place)?;
            }
            table.time(what, total, || save(&store, memory, case, hashed))?;
        }
        plain_read(&plain, &mut slow, &mut table)?;
        for checked in [false, true] {
            let what = if checked { "read, checked" } else { "read" };
            let regions: Vec<Region> = (0..total / case.item)
                .map(|i| Region::new([(i * case.item) as u64], [case.item as u64]))
                .collect();
            let (buffer, lent_regions) = take(tensor, &regions)?;
            let parts = lent_regions
                .into_iter()
                .map(|c| vec![(Layout::contiguous(1, c.shape()), c)])
                .collect();
            table.time(what, total, || load(&store, case, parts, checked).map(drop))?;
            tensor = give(buffer)?;
            if tensor.to_bytes() != *memory {
                return Err("other bytes were read".into());
            }
        }
        if case.item >= 8192 {
            // The left half of every row of 8 KiB, as a load with another split wants it.
            let per = (case.item / 8192) as u64;
            let regions: Vec<Region> = (0..(total / case.item) as u64)
                .map(|i| Region::new([i * per, 0], [per, 4096]))
                .collect();
            let (buffer, lent_regions) = take(rows, &regions)?;
            let source = Layout::new(1, 0, [per, 4096].into(), [8192, 1].into());
            let parts = lent_regions
                .into_iter()
                .map(|c| vec![(source.clone(), c)])
                .collect();
            table.time(
                "read half of each 8 KiB row (bytes needed)",
                total / 2,
                || load(&store, case, parts, false).map(drop),
            )?;
            rows = give(buffer)?;
            // Rows of 4 KiB that land in the left half of rows of 8 KiB.
            let wide = Tensor::new(
                DType::UInt8,
                &[(total / 8192) as u64, 8192],
                tensor.into_vec::<u8>().map_err(|_| "shared")?,
            )?;
            let per = (case.item / 4096) as u64;
            let regions: Vec<Region> = (0..(total / case.item / 2) as u64)
                .map(|i| Region::new([i * per, 0], [per, 4096]))
                .collect();
            let (buffer, lent_regions) = take(wide, &regions)?;
            let parts = lent_regions
                .into_iter()
                .map(|c| vec![(Layout::contiguous(1, c.shape()), c)])
                .collect();
            table.time("read 4 KiB rows into columns", total / 2, || {
                load(&store, case, parts, false).map(drop)
            })?;
            tensor = Tensor::from_vec(
                &[total as u64],
                give(buffer)?.into_vec::<u8>().map_err(|_| "shared")?,
            )?;
        }
    }
    fs::remove_dir_all(&place)?;
    fs::remove_dir_all(&plain)?;
    table.print()
}

fn each_file(total: usize, case: &Case) -> usize {
    (total / case.item).div_ceil(case.files)
}

fn name(i: usize) -> Result<Name> {
    Ok(Name::new(format!("__0_{i}.distcp"))?)
}

fn save(store: &LocalStore, memory: &Bytes, case: &Case, hashed: bool) -> Result {
    wait(async {
        let transaction = store.begin("x", IfExists::Refuse).await?;
        let header = Bytes::from(vec![7; GAP]);
        let mut files = Vec::new();
        for f in 0..case.files {
            let each = each_file(memory.len(), case) * case.item;
            let mut rest =
                memory.slice((f * each).min(memory.len())..((f + 1) * each).min(memory.len()));
            let mut extents: Vec<Box<dyn Extent>> = Vec::new();
            while !rest.is_empty() {
                extents.push(Box::new(header.clone()));
                let hash = hashed.then(crc32fast::Hasher::new);
                extents.push(Box::new(Hashed {
                    rest: rest.split_to(case.item),
                    hash,
                }));
            }
            files.push(FileBody::new(name(f)?, extents));
        }
        transaction
            .write(files, Durability::Process, Progress::none())
            .await?;
        transaction
            .commit(
                Some((Name::new(".metadata")?, Bytes::from_static(b"done"))),
                &[],
                Durability::Process,
            )
            .await?;
        Ok(())
    })
}

fn load(
    store: &LocalStore,
    case: &Case,
    items: Vec<Vec<(Option<Layout>, RegionMut)>>,
    checked: bool,
) -> Result<Traffic> {
    // Records lie in the files as `save` wrote them: each behind a header of `GAP` bytes.
    let per = {
        let entries = wait(store.files())?;
        let bytes: u64 = entries
            .iter()
            .filter(|e| e.name.as_str().starts_with("__"))
            .map(|e| e.bytes)
            .sum();
        (bytes as usize / (case.item + GAP)).div_ceil(case.files)
    };
    let mut reads = Vec::new();
    for (i, parts) in items.into_iter().enumerate() {
        let start = ((i % per) * (case.item + GAP) + GAP) as u64;
        let parts = parts
            .into_iter()
            .map(|(source, into)| {
                Ok(Part {
                    source: source.ok_or("too large")?,
                    into,
                })
            })
            .collect::<Result<_>>()?;
        let check = checked.then(|| Box::new(Crc(crc32fast::Hasher::new())) as Box<dyn Checksum>);
        reads.push(RecordRead {
            name: name(i / per)?,
            record: start..start + case.item as u64,
            parts,
            check,
        });
    }
    Ok(wait(store.read_into(reads, Progress::none()))?)
}

fn plain_write(dir: &Path, memory: &Bytes, case: &Case, table: &mut Table) -> Result {
    if dir.exists() {
        fs::remove_dir_all(dir)?;
    }
    fs::create_dir(dir)?;
    let half = memory.len() / 2;
    // A single file is written by one thread, as anybody would.
    let parts: Vec<(usize, Bytes)> = match case.files {
        1 => vec![(0, memory.clone())],
        _ => vec![(0, memory.slice(..half)), (1, memory.slice(half..))],
    };
    table.time("plain pwrite", memory.len(), || {
        std::thread::scope(|s| {
            let threads: Vec<_> = parts
                .iter()
                .map(|(i, bytes)| {
                    s.spawn(move || -> io::Result<()> {
                        let f = OpenOptions::new()
                            .create_new(true)
                            .write(true)
                            .open(dir.join(i.to_string()))?;
                        bytes
                            .chunks(1 << 20)
                            .enumerate()
                            .try_for_each(|(k, c)| f.write_all_at(c, (k << 20) as u64))
                    })
                })
                .collect();
            threads
                .into_iter()
                .try_for_each(|t| Ok(t.join().map_err(|_| "panic")??))
        })
    })
}

fn plain_read(dir: &Path, memory: &mut [u8], table: &mut Table) -> Result {
    let files: Vec<File> = fs::read_dir(dir)?
        .map(|e| File::open(e?.path()))
        .collect::<io::Result<_>>()?;
    let (total, half) = (memory.len(), memory.len() / 2);
    table.time("plain pread", total, || {
        std::thread::scope(|s| {
            let threads: Vec<_> = memory
                .chunks_mut(half)
                .enumerate()
                .map(|(i, part)| {
                    let one = files.len() == 1;
                    let file = if one { &files[0] } else { &files[i] };
                    s.spawn(move || -> io::Result<()> {
                        let base = if one { i * half } else { 0 };
                        part.chunks_mut(1 << 20)
                            .enumerate()
                            .try_for_each(|(k, c)| file.read_exact_at(c, (base + (k << 20)) as u64))
                    })
                })
                .collect();
            threads
                .into_iter()
                .try_for_each(|t| Ok(t.join().map_err(|_| "panic")??))
        })
    })
}

//! What it costs to read a checkpoint: bytes and requests, from its metadata alone.

use crate::{
    args::Reading,
    error::{OK, Result},
    findings::has_integrity,
    glob::Keys,
    io::Io,
    json, units,
};
use reshard::{
    Region,
    blocking::{Checkpoint, TensorHandle},
    model::Layout,
    storage::{Hints, Name, joined_reads, wait},
    strategy::{CheckedItems, StorageInfo},
    torch_dist,
};
use serde::Serialize;
use serde_json::json;
use std::{collections::BTreeSet, fmt, iter::Sum, ops::Range};

/// What is read, and with how many requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cost {
    pub(crate) bytes: u64,
    pub(crate) requests: u64,
}

impl Cost {
    fn new(bytes: u64, requests: u64) -> Self {
        Self { bytes, requests }
    }

    fn times(self, n: u64) -> Self {
        Self::new(
            self.bytes.saturating_mul(n),
            self.requests.saturating_mul(n),
        )
    }

    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_add(other.bytes),
            requests: self.requests.saturating_add(other.requests),
        }
    }
}

impl Sum for Cost {
    fn sum<I: Iterator<Item = Self>>(costs: I) -> Self {
        costs.fold(Self::default(), Self::and)
    }
}

/// Less than this is not worth a note.
const BYTES: u64 = 256 << 20;
const REQUESTS: u64 = 1_000;

/// The cost of a command, from how its checkpoint is read.
type Computed<'f> = &'f dyn Fn(&Reads<'_>) -> Cost;

/// The cost of reading one checkpoint.
#[derive(Serialize)]
pub(crate) struct ReadCost<'c> {
    url: &'c str,
    bytes: u64,
    requests: u64,
}

impl<'c> ReadCost<'c> {
    pub(crate) fn of(c: &'c Checkpoint, cost: Computed<'_>) -> Self {
        let Cost { bytes, requests } = cost(&Reads::of(c));
        Self {
            url: c.url(),
            bytes,
            requests,
        }
    }

    fn is_large(&self) -> bool {
        self.bytes >= BYTES || self.requests >= REQUESTS
    }

    /// Prints the line of a dry run.
    pub(crate) fn print(&self, io: &mut Io<'_>) -> Result<()> {
        let text = self.to_string();
        writeln!(io.out, "would read  {}", crate::table::shown(&text))?;
        Ok(())
    }
}

impl fmt::Display for ReadCost<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let requests = units::some(self.requests, "request");
        let bytes = units::bytes(self.bytes);
        write!(f, "{bytes} with about {requests} from {}", self.url)
    }
}

/// Notes the cost of reading a checkpoint, before anything is read, if it is large and requests are expensive. Elsewhere it is not computed.
pub(crate) fn note(c: &Checkpoint, cost: Computed<'_>, io: &mut Io<'_>) {
    if c.store().hints().requests_are_dear() {
        let cost = ReadCost::of(c, cost);
        if cost.is_large() {
            io.note(format!("reads {cost}"));
        }
    }
}

/// Reports the cost of reading checkpoints, before anything is read: on stdout for a dry run, of which this is all, or else as a [`note`]. Returns the exit
/// code of a dry run.
pub(crate) fn tell(
    costs: &[(&Checkpoint, Computed<'_>)],
    (dry_run, reading): (bool, &Reading),
    io: &mut Io<'_>,
) -> Result<Option<u8>> {
    if !dry_run {
        costs.iter().for_each(|(c, cost)| note(c, cost, io));
        return Ok(None);
    }
    let reads: Vec<_> = costs
        .iter()
        .map(|(c, cost)| ReadCost::of(c, cost))
        .collect();
    if reading.json {
        let about: Vec<&Checkpoint> = costs.iter().map(|(c, _)| *c).collect();
        let report = json!({ "schema": 1, "dry_run": true, "reads": reads });
        json::write_about(io.out, &about, &report)?;
    } else {
        for read in reads {
            read.print(io)?;
        }
    }
    Ok(Some(OK))
}

/// So many pairs of blocks and chunks of a tensor are looked at. Of more the sum is estimated.
const PAIRS: u64 = 1_000_000;

/// Archives of torch_dist: what is read at each end, what is read whole at most where requests are dear, and where they are not.
const END: u64 = 1 << 10;
const SMALL_IF_DEAR: u64 = 1 << 20;
const SMALL: u64 = 4 << 10;
/// A check reads archives up to this size with one request. Of larger ones it reads the directory and the small records apart.
const WHOLE: u64 = 4 << 20;
const APART: Cost = Cost {
    bytes: 17 << 10,
    requests: 10,
};

/// The beginning and the end of an archive, in which its pickles are.
const SCAN: Cost = Cost {
    bytes: 20_000,
    requests: 2,
};

/// For each record of a file of `torch_save` its header is read, once. A check reads all headers of a file together, with what lies between
/// records that are small. So many records are no tensors.
const HEADER: Cost = Cost {
    bytes: 64,
    requests: 2,
};
const HEADERS: Cost = Cost {
    bytes: 72 << 10,
    requests: 3,
};
const NO_TENSORS: u64 = 4;

/// A conversion reads blocks of so many bytes for each chunk of a tensor, but no fewer and no more than these.
const PER_CHUNK: u64 = 512;
const LEAST_BLOCK: u64 = 1 << 20;
const LARGEST_BLOCK: u64 = 16 << 20;

/// When a conversion checks the elements of its source.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Checks {
    Not,
    /// While they are read, if that is possible.
    OnTheWay,
    Before,
}

/// The ends of an archive, or all of a small one.
type Ends = Vec<(Name, Range<u64>)>;

/// How the readers of a checkpoint ask for what they read.
pub(crate) struct Reads<'c> {
    checkpoint: &'c Checkpoint,
    hints: Hints,
    /// Each item is an archive.
    archives: bool,
    /// Each file is an archive.
    zips: bool,
}

/// The bytes of a description of an array, of the index of a shard, and of a header of safetensors, roughly.
const DESCRIPTION: u64 = 1 << 10;
const INDEX: u64 = 64;
const HEADER_OF_FILE: u64 = 1 << 10;

impl<'c> Reads<'c> {
    pub(crate) fn of(checkpoint: &'c Checkpoint) -> Self {
        Self {
            checkpoint,
            hints: checkpoint.store().hints(),
            archives: *checkpoint.backend().backend == *torch_dist::NAME,
            zips: &*checkpoint.backend().backend == "torch_save",
        }
    }

    /// A check of these items.
    pub(crate) fn check(&self, items: &CheckedItems) -> Cost {
        let metadata = self.checkpoint.metadata();
        let mut cost = self.unread(Keys::ALL);
        if self.zips {
            let files = self.checkpoint.item_files().len() as u64;
            let records = if items.is_all() { NO_TENSORS } else { 0 };
            cost = HEADERS.and(Cost::new(0, records)).times(files);
        }
        if *items == CheckedItems::None {
            return cost;
        }
        for (t, handle) in metadata.tensors().zip(self.checkpoint.tensors()) {
            for ((id, _), chunk) in t.chunks().zip(handle.chunks()) {
                if items.has_chunk(id) {
                    cost = cost.and(chunk.parts.iter().map(|p| self.checked(p)).sum());
                }
            }
        }
        for (id, key) in metadata.objects() {
            if items.has_object(id) {
                cost = cost.and(self.object(key));
            }
        }
        // Its files are read once more.
        if items.is_all() && has_integrity(self.checkpoint) {
            let bytes = cost.bytes;
            cost = cost.and(Cost::new(bytes, bytes.div_ceil(WHOLE)));
        }
        cost
    }

    /// A scan of the pickles in archives.
    pub(crate) fn pickles(&self) -> Cost {
        let files = match self.zips {
            true => self.checkpoint.item_files().len() as u64,
            false => 0,
        };
        SCAN.times(files)
    }

    /// Headers, descriptions and indexes that opening took from the record of reshard. They are read by a check, and before reads that nothing else checks.
    fn unread(&self, keys: Keys<'_>) -> Cost {
        let (dear, by) = (self.hints.requests_are_dear(), self.checkpoint.producer());
        if !by.written_by.iter().any(|by| by == "reshard") {
            return Cost::default();
        }
        let (mut arrays, mut files) = (0, BTreeSet::new());
        for tensor in keys.tensors(self.checkpoint) {
            arrays += 1;
            let parts = tensor.chunks().into_iter().flat_map(|chunk| chunk.parts);
            files.extend(parts.map(|part| part.file));
        }
        let files = files.len() as u64;
        let descriptions = match dear {
            true => Cost::new(DESCRIPTION, 1).times(arrays),
            false => Cost::default(),
        };
        match &*self.checkpoint.backend().backend {
            "zarr" => descriptions,
            "zarr3" => descriptions.and(Cost::new(INDEX, 1).times(files)),
            "safetensors" if dear => Cost::new(HEADER_OF_FILE, 1).times(files),
            _ => Cost::default(),
        }
    }

    fn checked(&self, part: &StorageInfo) -> Cost {
        let len = part.length();
        let step = match self.hints.requests_are_dear() {
            true => self.hints.part_size.max(1),
            false if self.archives => WHOLE,
            false => 1 << 20,
        };
        let read = Cost::new(len, len.div_ceil(step));
        match self.archives {
            true if len <= WHOLE => Cost::new(len, 1),
            true => read.and(APART),
            false => read,
        }
    }

    /// Tensors that are read in blocks of so many bytes, of a checkpoint that was only opened.
    pub(crate) fn blocks(&self, keys: Keys<'_>, block: impl Fn(&TensorHandle) -> u64) -> Cost {
        let cost = self.blocks_after_check(keys, block);
        if !self.zips {
            return cost;
        }
        let chosen = keys.tensors(self.checkpoint);
        let headers = chosen.map(|t| t.chunks().len() as u64).sum();
        cost.and(HEADER.times(headers))
    }

    /// The same after a [check](Self::check) of these items, or of a checkpoint whose checksums nobody checks.
    pub(crate) fn blocks_after(
        &self,
        checked: Option<&CheckedItems>,
        keys: Keys<'_>,
        block: impl Fn(&TensorHandle) -> u64,
    ) -> Cost {
        match checked {
            None => self.blocks(keys, block).and(self.unread(keys)),
            Some(items) => self.blocks_after_check(keys, block).and(self.check(items)),
        }
    }

    /// The same after a check, which has read the headers.
    fn blocks_after_check(&self, keys: Keys<'_>, block: impl Fn(&TensorHandle) -> u64) -> Cost {
        let chosen = keys.tensors(self.checkpoint);
        chosen.map(|t| self.tensor(&t, block(&t))).sum()
    }

    /// Objects that are read one by one.
    pub(crate) fn objects(&self, keys: Keys<'_>) -> Cost {
        let chosen = self.checkpoint.objects().filter(|key| keys.has(key));
        chosen.map(|key| self.object(key)).sum()
    }

    fn object(&self, key: &str) -> Cost {
        // Those of a file of `torch_save` are in its pickle, which opening has read.
        let parts = match self.zips {
            true => Vec::new(),
            false => self.checkpoint.object_parts(key),
        };
        parts.iter().map(|p| Cost::new(p.length(), 1)).sum()
    }

    /// A conversion of these keys.
    pub(crate) fn conversion(&self, keys: Keys<'_>, checks: Checks) -> Cost {
        let dear = self.hints.requests_are_dear();
        let block = |t: &TensorHandle| {
            let bytes = (t.chunks().len() as u64).saturating_mul(PER_CHUNK);
            let part = if dear { self.hints.part_size } else { 0 };
            bytes.max(part).clamp(LEAST_BLOCK, LARGEST_BLOCK)
        };
        let check = match checks {
            Checks::Not => return self.blocks(keys, block).and(self.objects(keys)),
            Checks::OnTheWay if self.checks_on_the_way(keys) => {
                self.ends(keys).and(self.check(&CheckedItems::None))
            }
            _ => self.check(&CheckedItems::All),
        };
        let cost = self.blocks_after_check(keys, block);
        cost.and(self.objects(keys)).and(check)
    }

    fn checks_on_the_way(&self, keys: Keys<'_>) -> bool {
        let mut chosen = keys.tensors(self.checkpoint);
        if has_integrity(self.checkpoint) {
            return false;
        }
        // Other formats have the checksums in memory, if they have any.
        self.archives
            || chosen.next().is_none_or(|t| {
                let sums = wait(self.checkpoint.element_checksums(t.key()));
                matches!(sums, Ok(Some(_)))
            })
    }

    /// The ends of archives, with the checksums.
    fn ends(&self, keys: Keys<'_>) -> Cost {
        if !self.archives {
            return Cost::default();
        }
        let costs = keys.tensors(self.checkpoint).map(|t| {
            let chunks = t.chunks();
            let ends = chunks
                .iter()
                .flat_map(|c| self.ranges(c, &c.region, t.dtype().size()))
                .flat_map(|(ends, _)| ends);
            let joined = joined_reads(ends.collect(), &self.hints);
            Cost::new(joined.bytes + joined.beside, joined.requests)
        });
        costs.sum()
    }

    fn tensor(&self, t: &TensorHandle, block: u64) -> Cost {
        let chunks = t.chunks();
        let count = chunks.len() as u64;
        if count == 0 {
            return Cost::default();
        }
        let blocks = t.nbytes().div_ceil(block.max(1)).max(1);
        let simple = t.flattened_shape().is_none() && count.saturating_mul(blocks) <= PAIRS;
        if !simple {
            let parts = chunks.iter().flat_map(|c| &c.parts);
            let bytes = units::sum(parts.map(StorageInfo::length));
            let each = if self.archives { 3 } else { 1 };
            return Cost::new(bytes, (count + blocks).saturating_mul(each));
        }
        let mut unpacked = vec![false; chunks.len()];
        let mut cost = Cost::default();
        for region in t.blocks(block) {
            let (mut ends, mut data) = (Vec::new(), Vec::new());
            for (chunk, unpacked) in chunks.iter().zip(&mut unpacked) {
                let Some(wanted) = chunk.region.intersect(&region).filter(|r| !r.is_empty()) else {
                    continue;
                };
                let size = t.dtype().size();
                match self.ranges(chunk, &wanted, size) {
                    Some((both, part)) => {
                        ends.extend(both);
                        data.extend(part);
                    }
                    // It stays in memory for the next block.
                    None if *unpacked => {}
                    None => {
                        *unpacked = true;
                        data.extend(chunk.parts.iter().map(StorageInfo::length));
                    }
                }
            }
            let joined = joined_reads(ends, &self.hints);
            cost = cost.and(Cost::new(joined.bytes + joined.beside, joined.requests));
            let part = self.hints.part_size.max(1);
            let reads = data.iter().map(|len| Cost::new(*len, len.div_ceil(part)));
            cost = cost.and(reads.sum());
        }
        cost
    }

    /// What is read of a chunk for a region of it: the ends of its archive, and how many bytes of its elements. `None` if the chunk is
    /// packed, so that all of it is read.
    fn ranges(
        &self,
        chunk: &reshard::StoredChunk,
        wanted: &Region,
        size: u64,
    ) -> Option<(Ends, Option<u64>)> {
        let [part] = &chunk.parts[..] else {
            return None;
        };
        let (start, end) = (part.range.start, part.range.end);
        let at = |from: u64, to: u64| (part.file.clone(), from..to);
        let small = match self.hints.requests_are_dear() {
            true => self.hints.coalesce_gap.min(SMALL_IF_DEAR),
            false => SMALL,
        };
        if self.archives && part.length() <= small {
            return Some((vec![at(start, end)], None));
        }
        let layout = Layout::contiguous(size, &chunk.region.lengths);
        let layout = layout.filter(|l| l.bytes() <= part.length())?;
        let hull = layout.narrow(&wanted.within(&chunk.region)).hull();
        let ends = match self.archives {
            true => vec![at(start, start + END), at(end.saturating_sub(END), end)],
            false => Vec::new(),
        };
        Some((ends, Some(hull.end - hull.start)))
    }
}

//! Saves that are killed at any moment: what they leave is the old checkpoint, or the new one, or (where there was none)
//! nothing; and tensors and common state are always of one save.

mod acts;
mod form;
mod job;
mod proxy;
mod remote;
mod run;
mod shared;

pub use acts::{ACTS, Act};
pub use form::Form;
pub use job::{DIES_AT_CALL, FAN_OUT, Job, run_in_processes};
pub use proxy::{FAULTS, Fault, Proxy, Seen};
pub use remote::{load_from, look_at, remove_all, save_to, saved_to, small_parts};
pub use run::{Run, train};
pub use shared::{MOST_CACHED, Shared};

use anyhow::{Context, Result, anyhow, bail};
use reshard::{
    DType, LocalGroup, ProcessGroup, ShardedTensor, StateDict, Tensor, Value, ValueTree, blocking,
};
use reshard_model::testkit::{is_thorough, one_in};
use reshard_storage::failpoint;
use std::path::Path;

const TENSORS: u64 = 12;
const ROWS: u64 = 64;
const COLUMNS: u64 = 256;
/// Free bytes in memory from which on tests put their files there: enough for all that run at the same time.
const LEAST_MEMORY: u64 = 1 << 30;
/// How many ranks save.
pub const RANKS: u32 = 4;

fn key(i: u64) -> String {
    format!("layers.{i}.weight")
}

/// Returns a new folder in memory where the system has files there and room for these, else in the folder for temporary files.
///
/// A killed process loses nothing that it has written, on a disk or in memory. On a disk most of the time would be waiting for fsync.
///
/// # Errors
/// The folder can't be made.
pub fn scratch() -> std::io::Result<tempfile::TempDir> {
    let memory = Path::new("/dev/shm");
    let free = rustix::fs::statvfs(memory).map_or(0, |fs| fs.f_bavail * fs.f_frsize);
    match free >= LEAST_MEMORY && !is_thorough() {
        true => tempfile::tempdir_in(memory).or_else(|_| tempfile::tempdir()),
        false => tempfile::tempdir(),
    }
}

/// Returns the named steps at which the `n`-th of several savers is killed: all if tests are thorough, else one in three. Three
/// savers in a row meet all of them.
pub fn steps(n: usize) -> impl Iterator<Item = &'static str> {
    let each = one_in(3);
    failpoint::STEPS
        .iter()
        .copied()
        .skip(n % each)
        .step_by(each)
}

/// Returns `true` if a saver that is killed at this step has committed.
pub fn is_committed(step: &str) -> bool {
    step.starts_with("commit.")
        && !["commit.record", "commit.synced", "commit.ready"].contains(&step)
}

/// The part of one of four ranks.
fn state(step: u64, rank: u64) -> Result<StateDict> {
    part(step, rank, RANKS.into())
}

/// Every element and the common step say which save they are of.
fn part(step: u64, rank: u64, ranks: u64) -> Result<StateDict> {
    let mut out = StateDict::new();
    let rows = ROWS / ranks;
    for i in 0..TENSORS {
        let data = Tensor::from_vec(
            &[rows, COLUMNS],
            vec![(step * 100 + i) as f32; (rows * COLUMNS) as usize],
        )?;
        out.insert(
            key(i),
            ShardedTensor::from_rank_offsets(&key(i), data, &[(0, rank, ranks)])?,
        );
    }
    out.insert("step", i64::try_from(step)?);
    Ok(out)
}

/// Saves step `step` from four in-process ranks.
///
/// # Errors
/// What the save says.
pub fn save(dir: &Path, step: u64, overwrite: bool, form: impl Into<Form>) -> Result<()> {
    let form = form.into();
    std::thread::scope(|scope| {
        let threads: Vec<_> = LocalGroup::new(RANKS)
            .into_iter()
            .map(|group| scope.spawn(move || save_on_rank(&group, dir, step, overwrite, form)))
            .collect();
        threads
            .into_iter()
            .try_for_each(|t| t.join().map_err(|_| anyhow!("a rank panicked"))?)
    })
}

/// One rank's part in saving step `step`. The number of ranks in the group must divide 64.
///
/// # Errors
/// What the save says.
pub fn save_on_rank(
    group: &dyn ProcessGroup,
    dir: &Path,
    step: u64,
    overwrite: bool,
    form: impl Into<Form>,
) -> Result<()> {
    let url = dir.display().to_string();
    let state = part(step, group.rank().0.into(), group.size().into())?;
    let save = reshard::save(&state, &url)
        .group(group)
        .overwrite(overwrite);
    let save = form.into().of(save);
    // A killed process leaves the page cache as it is; fsync would only make the test slow.
    blocking::run(save.durability(reshard::Durability::Process))?;
    Ok(())
}

/// Which save lies at a place: `None` when no checkpoint does.
///
/// # Errors
/// When what lies there is not wholly of one save.
pub fn look(dir: &Path) -> Result<Option<u64>> {
    let url = dir.display().to_string();
    if !dir.exists() {
        return Ok(None);
    }
    let checkpoint =
        blocking::Checkpoint::open(&url).context("something lies there that is no checkpoint")?;
    let damage = checkpoint
        .verify(true, reshard::storage::Progress::default())?
        .damage;
    if !damage.is_empty() {
        bail!("damaged: {damage:?}");
    }
    let loaded = blocking::load(template(), &url).map_err(|e| e.into_parts().0)?;
    step_of(&loaded).map(Some)
}

/// For all of what a save wrote.
fn template() -> StateDict {
    let mut template = StateDict::new();
    for i in 0..TENSORS {
        template.insert(
            key(i),
            ShardedTensor::template(&key(i), DType::Float32, &[ROWS, COLUMNS]),
        );
    }
    template.insert("step", Value::None);
    template
}

/// Which save was loaded.
///
/// # Errors
/// When it is not wholly of one save.
fn step_of(loaded: &ValueTree) -> Result<u64> {
    let step = loaded
        .get("step")
        .and_then(ValueTree::leaf)
        .and_then(Value::as_int)
        .context("no step")?;
    let step = u64::try_from(step)?;
    for i in 0..TENSORS {
        let elements = loaded.tensor(&key(i))?.to_vec::<f32>()?;
        if elements.iter().any(|e| *e != (step * 100 + i) as f32) {
            bail!("{} is not of step {step}, as the common state is", key(i));
        }
    }
    Ok(step)
}

/// A number from 0 to 1 that is as good as random, and the same in each run.
pub fn scattered(i: u64) -> f64 {
    let mut x = i.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0x5851_F42D_4C95_7F2D;
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    ((x ^ (x >> 31)) >> 11) as f64 / (1u64 << 53) as f64
}

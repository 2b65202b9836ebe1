//! Copies the data that the caller may change while a save is being written.

use crate::{Result, StrategyError};
use async_trait::async_trait;
use indexmap::IndexMap;
use reshard_model::{
    DType, Data, DeviceTensor, Dims, FlatStateDict, HostBuffer, Layout, ModelError, Payload,
    Sharded, Tensor, Value,
};
use reshard_storage::run_blocking;
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    ops::Range,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

/// DCP's `AsyncStager`: it copies the data that the caller may change while a save is being written. You can use one stager for one
/// save after the other.
///
/// # Contract
/// - The result has the same number of leaves, in the same order, with the same types and shapes. No leaf shares memory with its original.
/// - Several handles on one buffer become handles on one copy.
/// - [`Data::Lazy`] and [`Data::None`] stay as they are.
#[async_trait]
pub trait AsyncStager: fmt::Debug + Send + Sync {
    /// Copies the data of leaves. When it returns, the caller may change the originals.
    ///
    /// # Errors
    /// No memory, or a device that fails.
    async fn stage(&self, leaves: Vec<Data>) -> Result<Vec<Data>>;
}

/// DCP's stager of the same name. When [`stage`](AsyncStager::stage) returns, all data are copied to host memory. The stager keeps its
/// memory, so a second save with the same structure allocates nothing.
///
/// For each leaf it copies the bytes of the buffer from the first to the last byte of the leaf, each byte once. So for a column of a large
/// matrix it copies nearly the whole matrix. It frees memory that four calls in a row did not use. A save that is still being written
/// keeps its copies, and the next save gets other memory.
///
/// ```
/// use reshard_model::{Data, Tensor};
/// use reshard_strategy::{AsyncStager, BlockingAsyncStager};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let stager = BlockingAsyncStager::new();
/// let weight = Tensor::from_vec(&[2], vec![1f32, 2.])?;
/// let staged = futures::executor::block_on(stager.stage(vec![Data::Host(weight.clone())]))?;
/// // Nobody else holds the caller's vector: it can be changed.
/// weight.into_vec::<f32>().unwrap().fill(0.);
/// assert_eq!(staged[0].host().unwrap().to_vec::<f32>().unwrap(), [1., 2.]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Default)]
pub struct BlockingAsyncStager {
    pool: Mutex<Pool>,
    allocations: AtomicU64,
}

impl BlockingAsyncStager {
    /// Makes a stager without memory.
    pub fn new() -> Self {
        Self::default()
    }

    /// The number of buffers that it has allocated so far.
    pub fn allocations(&self) -> u64 {
        self.allocations.load(Ordering::Relaxed)
    }
}

#[async_trait]
impl AsyncStager for BlockingAsyncStager {
    async fn stage(&self, mut leaves: Vec<Data>) -> Result<Vec<Data>> {
        // All views of one buffer share one copy.
        let mut copies: IndexMap<usize, Copied> = IndexMap::new();
        for (i, leaf) in leaves.iter().enumerate() {
            if let Some((buffer, from)) = Origin::of(leaf) {
                copies
                    .entry(buffer)
                    .or_insert_with(|| Copied::new(from))
                    .add(i, leaf);
            }
        }
        // First all memory is allocated. Then I/O threads copy.
        let mut tasks = Vec::with_capacity(copies.len());
        for copied in copies.values_mut() {
            let bytes = copied.lay_out();
            let kept = lock(&self.pool).take(bytes);
            let memory = match kept {
                Some(memory) => memory,
                None => {
                    self.allocations.fetch_add(1, Ordering::Relaxed);
                    Memory::new(bytes)?
                }
            };
            let (from, spans) = (copied.from.clone(), copied.spans());
            tasks.push(move || from.copy(&spans, memory));
        }
        let filled = run_blocking(tasks)
            .await?
            .into_iter()
            .collect::<Result<Vec<Arc<Memory>>>>()?;
        for (copied, memory) in copies.values().zip(&filled) {
            for &i in &copied.leaves {
                leaves[i] = copied.view(&leaves[i], memory)?;
            }
        }
        lock(&self.pool).put(filled);
        Ok(leaves)
    }
}

/// Copies begin and end at multiples of this many bytes of their buffer, so elements of every size keep their alignment.
const GRAIN: u64 = 64;
/// Memory that this many calls in a row did not use is freed.
const IDLE: u64 = 4;

/// One buffer, and the parts of it that are copied.
struct Copied {
    from: Origin,
    /// By position.
    leaves: Vec<usize>,
    /// The ranges of bytes that leaves use, each with its position in the copy.
    parts: Vec<(Range<u64>, u64)>,
}

impl Copied {
    fn new(from: Origin) -> Self {
        Self {
            from,
            leaves: Vec::new(),
            parts: Vec::new(),
        }
    }

    fn add(&mut self, i: usize, leaf: &Data) {
        self.leaves.push(i);
        let hull = layout(leaf).map(Layout::hull).unwrap_or_default();
        if !hull.is_empty() {
            let end = hull.end.next_multiple_of(GRAIN).min(self.from.bytes());
            self.parts.push((hull.start / GRAIN * GRAIN..end, 0));
        }
    }

    /// Puts the parts one after the other, without the gaps between them. Returns the total number of bytes.
    fn lay_out(&mut self) -> u64 {
        self.parts
            .sort_unstable_by_key(|(span, _)| (span.start, span.end));
        let mut parts: Vec<(Range<u64>, u64)> = Vec::new();
        let mut end = 0;
        for (span, _) in self.parts.drain(..) {
            match parts.last_mut().filter(|(last, _)| last.end >= span.start) {
                Some((last, at)) => {
                    last.end = last.end.max(span.end);
                    end = *at + (last.end - last.start);
                }
                None => {
                    parts.push((span.clone(), end));
                    end += span.end - span.start;
                }
            }
        }
        self.parts = parts;
        end
    }

    fn spans(&self) -> Vec<Range<u64>> {
        self.parts.iter().map(|(span, _)| span.clone()).collect()
    }

    /// A leaf's view of the copy.
    fn view(&self, leaf: &Data, memory: &Arc<Memory>) -> Result<Data> {
        let fault = || StrategyError::Internal("a staged leaf does not lie in its copy".into());
        let (Some((dtype, _)), Some(old)) = (leaf.spec(), layout(leaf)) else {
            return Err(fault());
        };
        let from = old.hull().start;
        let at = match self
            .parts
            .partition_point(|(span, _)| span.start <= from)
            .checked_sub(1)
        {
            Some(part) if !old.hull().is_empty() => {
                let (span, at) = self.parts.get(part).ok_or_else(fault)?;
                at + (from - span.start)
            }
            _ => 0,
        };
        let start = at / old.item().max(1);
        let layout = Layout::new(
            old.item(),
            start,
            old.shape().clone(),
            old.strides().clone(),
        );
        let memory = Arc::clone(memory) as Arc<dyn HostBuffer>;
        Ok(Data::Host(Tensor::with_layout(
            dtype,
            layout.ok_or_else(fault)?,
            memory,
        )?))
    }
}

fn layout(leaf: &Data) -> Option<&Layout> {
    match leaf {
        Data::Host(t) => Some(t.layout()),
        Data::Device(t) => Some(t.layout()),
        Data::None | Data::Lazy(_) => None,
    }
}

/// Where bytes are copied from: any handle on the buffer.
#[derive(Clone)]
enum Origin {
    Host(Tensor),
    Device(DeviceTensor),
}

impl Origin {
    /// With a number that is equal for handles on one buffer.
    fn of(leaf: &Data) -> Option<(usize, Self)> {
        match leaf {
            Data::Host(t) => Some((t.buffer_id(), Self::Host(t.clone()))),
            Data::Device(t) => Some((
                Arc::as_ptr(t.buffer()).cast::<u8>() as usize,
                Self::Device(t.clone()),
            )),
            Data::None | Data::Lazy(_) => None,
        }
    }

    /// Of the whole buffer.
    fn bytes(&self) -> u64 {
        match self {
            Self::Host(t) => t.buffer_bytes().len() as u64,
            Self::Device(t) => t.buffer().nbytes(),
        }
    }

    /// Copies spans of the buffer, one behind the other.
    fn copy(&self, spans: &[Range<u64>], mut memory: Arc<Memory>) -> Result<Arc<Memory>> {
        let fault = || {
            StrategyError::Internal(
                "memory for a copy is in use, or a leaf leaves its buffer".into(),
            )
        };
        let out = &mut Arc::get_mut(&mut memory).ok_or_else(fault)?.0;
        out.clear();
        for span in spans {
            let (start, end) = (span.start as usize, span.end as usize);
            match self {
                Self::Host(t) => {
                    out.extend_from_slice(t.buffer_bytes().get(start..end).ok_or_else(fault)?)
                }
                Self::Device(t) => {
                    let at = out.len();
                    out.resize(at + (end - start), 0);
                    let bytes =
                        Layout::new(1, span.start, [span.end - span.start].into(), [1].into());
                    let copied = t
                        .buffer()
                        .copy_to_host(&bytes.ok_or_else(fault)?, &mut out[at..]);
                    copied.map_err(|source| ModelError::Source {
                        key: "staging".into(),
                        what: format!("copying from {}", t.buffer().device()),
                        source,
                    })?;
                }
            }
        }
        Ok(memory)
    }
}

/// Memory of a stager. It is written when nobody else has a handle on it.
struct Memory(Vec<u8>);

impl Memory {
    fn new(bytes: u64) -> Result<Arc<Self>> {
        let mut out = Vec::new();
        let reserved = usize::try_from(bytes)
            .ok()
            .and_then(|n| out.try_reserve_exact(n).ok());
        let none = || {
            StrategyError::Invalid(format!(
                "no memory for the {bytes} bytes that are to be staged"
            ))
        };
        reserved.map(|()| Arc::new(Self(out))).ok_or_else(none)
    }
}

impl HostBuffer for Memory {
    fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Memory that is kept for the next save.
#[derive(Default)]
struct Pool {
    /// By bytes; each with the number of the last call that took it.
    kept: BTreeMap<u64, Vec<(Arc<Memory>, u64)>>,
    /// Calls so far.
    calls: u64,
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map()
            .entries(self.kept.iter().map(|(bytes, kept)| (bytes, kept.len())))
            .finish()
    }
}

impl Pool {
    /// Memory of so many bytes that no save is using.
    fn take(&mut self, bytes: u64) -> Option<Arc<Memory>> {
        let kept = self.kept.get_mut(&bytes)?;
        let free = kept
            .iter()
            .rposition(|(memory, _)| Arc::strong_count(memory) == 1)?;
        Some(kept.swap_remove(free).0)
    }

    /// Keeps what a call has used, and gives back what has been of no use for long.
    fn put(&mut self, used: Vec<Arc<Memory>>) {
        self.calls += 1;
        let now = self.calls;
        for memory in used {
            self.kept
                .entry(memory.0.len() as u64)
                .or_default()
                .push((memory, now));
        }
        self.kept.retain(|_, kept| {
            kept.retain(|(_, last)| now - last < IDLE);
            !kept.is_empty()
        });
    }
}

/// Nothing that can panic half-way is done under the lock.
fn lock<T>(m: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Replaces the data of leaves by copies: all objects, and the tensors that are `wanted`, by position. Other tensors lose their data,
/// so nothing of the caller's is held.
///
/// # Errors
/// Those of the stager.
pub(crate) async fn stage_leaves(
    state: &mut FlatStateDict,
    wanted: &BTreeSet<u32>,
    stager: &dyn AsyncStager,
) -> Result<()> {
    // Tensors that are not wanted lose their data here, so none of the caller's handles stays behind.
    let mut originals = Vec::new();
    visit(state, &mut |i, data| {
        if i.is_none_or(|i| wanted.contains(&i)) {
            originals.push(std::mem::take(data));
        } else {
            *data = Data::None;
        }
    });

    // A stager may be the user's code. A leaf of another type or shape would only fail later, in the files.
    let expected: Vec<Described> = originals.iter().map(described).collect();
    let staged = stager.stage(originals).await?;
    if staged.len() != expected.len() {
        let what = format!(
            "{stager:?} gave back {} of {} leaves",
            staged.len(),
            expected.len()
        );
        return Err(StrategyError::Internal(what));
    }
    let on_device = staged.iter().any(|leaf| matches!(leaf, Data::Device(_)));
    if on_device || !staged.iter().map(described).eq(expected) {
        let what = format!(
            "{stager:?} gave back leaves of other types or shapes, or left some on a device"
        );
        return Err(StrategyError::Internal(what));
    }

    // The second visit meets the same leaves in the same order, so each copy gets back to its own leaf.
    let mut staged = staged.into_iter();
    visit(state, &mut |i, data| {
        if i.is_none_or(|i| wanted.contains(&i)) {
            *data = staged.next().unwrap_or_default();
        }
    });
    Ok(())
}

/// What a staged leaf has in common with its original: element type and shape, if it is staged at all.
type Described = Result<(DType, Dims), bool>;

fn described(leaf: &Data) -> Described {
    match leaf {
        Data::Host(t) => Ok((t.dtype(), t.shape().clone())),
        Data::Device(t) => Ok((t.dtype(), t.shape().clone())),
        Data::Lazy(_) => Err(true),
        Data::None => Err(false),
    }
}

/// Calls `f` with the data of each leaf, and the position of those that are tensors; with the tensors in objects,
/// too.
fn visit(state: &mut FlatStateDict, f: &mut dyn FnMut(Option<u32>, &mut Data)) {
    for (i, leaf) in (0..).zip(state.values_mut()) {
        match leaf {
            Sharded::Tensor(t) => f(Some(i), &mut t.data),
            Sharded::Object(o) => {
                let Payload::Value(value) = &mut o.data else {
                    continue;
                };
                value.visit_mut(&mut |v| {
                    if let Value::Tensor(t) = v {
                        let mut data = Data::Host(t.clone());
                        f(None, &mut data);
                        if let Data::Host(t) = data {
                            *v = Value::Tensor(t);
                        }
                    }
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_executor::block_on;
    use reshard_model::{
        Path, Region, ShardedObject, ShardedTensor, TensorSource,
        testkit::{FakeDevice, LostDevice},
    };

    fn stage(stager: &BlockingAsyncStager, leaves: Vec<Data>) -> Vec<Data> {
        block_on(stager.stage(leaves)).unwrap()
    }

    fn host(leaf: &Data) -> &Tensor {
        leaf.host().unwrap()
    }

    /// Elements 0, 1, … as bytes.
    fn numbers(shape: &[u64]) -> Tensor {
        let n: u64 = shape.iter().product();
        Tensor::from_vec(shape, (0..n).map(|i| i as u16).collect()).unwrap()
    }

    #[test]
    fn views_of_one_buffer_are_views_of_one_copy_that_lacks_what_no_leaf_reaches() {
        let whole = numbers(&[1000, 8]);
        let regions = [
            Region::new([10, 3], [4, 2]),
            Region::new([12, 0], [3, 8]),
            Region::new([900, 7], [1, 1]),
            Region::new([0, 0], [0, 8]),
            Region::new([999, 0], [1, 8]),
        ];
        let leaves: Vec<Data> = regions
            .iter()
            .map(|r| Data::Host(whole.narrow(r)))
            .collect();
        let stager = BlockingAsyncStager::new();
        let staged = stage(&stager, leaves.clone());
        assert_eq!(stager.allocations(), 1);
        for (copy, leaf) in staged.iter().zip(&leaves) {
            assert!(host(copy) == host(leaf) && !host(copy).same_buffer(&whole));
            assert!(host(copy).same_buffer(host(&staged[0])));
            assert_eq!(host(copy).layout().strides(), host(leaf).layout().strides());
        }
        // Two neighbours in one part, two apart from them: each begins and ends at a multiple of 64 bytes.
        assert!(
            host(&staged[0]).buffer_bytes().len() <= 128 + 64 + 64,
            "gaps are copied"
        );
        // What was one element stays one.
        let [a, b] = [&staged[0], &staged[1]].map(|t| host(t).layout().clone());
        let first = |l: &Layout, r: Region| l.narrow(&r).start();
        assert_eq!(
            first(&a, Region::new([2, 0], [1, 1])),
            first(&b, Region::new([0, 3], [1, 1]))
        );
    }

    #[test]
    fn the_second_save_of_a_structure_allocates_nothing_and_the_memory_of_a_save_at_work_is_left_alone()
     {
        let stager = BlockingAsyncStager::new();
        let leaves = |salt: u64| {
            vec![
                Data::Host(numbers(&[300 + salt])),
                numbers(&[7]).into(),
                numbers(&[7]).into(),
            ]
        };
        let first = stage(&stager, leaves(0));
        assert_eq!(stager.allocations(), 3);
        let address = |leaf: &Data| host(leaf).buffer_bytes().as_ptr() as usize;
        let mut before: Vec<usize> = first.iter().map(address).collect();
        drop(first);
        let second = stage(&stager, leaves(0));
        assert_eq!(stager.allocations(), 3);
        let mut after: Vec<usize> = second.iter().map(address).collect();
        before.sort_unstable();
        after.sort_unstable();
        assert_eq!(before, after);
        // While that is written, another one begins.
        let third = stage(&stager, leaves(0));
        assert_eq!(stager.allocations(), 6);
        assert!(third.iter().all(|leaf| !after.contains(&address(leaf))));
        assert_eq!(host(&second[0]), &numbers(&[300]));
        drop((second, third));
        // What is of no use for long goes.
        for _ in 0..IDLE {
            stage(&stager, leaves(9));
        }
        assert_eq!(stager.allocations(), 7);
        stage(&stager, leaves(0));
        assert_eq!(stager.allocations(), 8);
    }

    #[test]
    fn devices_are_copied_to_the_host_and_lazy_data_stay_as_they_are() {
        let memory = FakeDevice::new(256);
        let device = DeviceTensor::new(DType::UInt8, &[16, 16], memory).unwrap();
        let old = Tensor::from_vec(&[16, 16], (0..=255u8).collect()).unwrap();
        device.fill("k", &old).unwrap();
        let lazy: Arc<dyn TensorSource> = Arc::new(device.clone());
        let column = Region::new([0, 5], [16, 2]);
        let leaves = vec![
            Data::Device(device.narrow(&column)),
            Data::Lazy(Arc::clone(&lazy)),
            Data::None,
            Data::Device(device.clone()),
        ];
        let stager = BlockingAsyncStager::new();
        let staged = stage(&stager, leaves);
        device
            .fill("k", &Tensor::zeros("k", DType::UInt8, &[16, 16]).unwrap())
            .unwrap();
        assert_eq!(host(&staged[0]), &old.narrow(&column));
        assert_eq!(host(&staged[3]), &old);
        assert!(host(&staged[0]).same_buffer(host(&staged[3])));
        assert!(
            matches!(&staged[1], Data::Lazy(l) if Arc::ptr_eq(l, &lazy))
                && matches!(staged[2], Data::None)
        );
        assert_eq!(stager.allocations(), 1);
    }

    #[test]
    fn a_device_that_fails_fails_the_staging() {
        let lost = DeviceTensor::new(DType::UInt8, &[8], Arc::new(LostDevice)).unwrap();
        let e = block_on(BlockingAsyncStager::new().stage(vec![lost.into()])).unwrap_err();
        assert_eq!(e.to_string(), "staging: copying from lost:0");
    }

    #[test]
    fn expanded_and_odd_views_are_copied_as_they_are() {
        // One row shown three times, elements of 16 bytes behind one of a byte, and all of a buffer of odd length.
        let bytes = numbers(&[4096]);
        let buffer = || Arc::new(bytes.buffer_bytes().to_vec()) as Arc<dyn HostBuffer>;
        let views = [
            (
                DType::Int16,
                Layout::new(2, 33, [3, 4].into(), [0, 1].into()),
            ),
            (DType::UInt8, Layout::new(1, 129, [1].into(), [1].into())),
            (
                DType::Complex128,
                Layout::new(16, 500, [2, 2].into(), [3, 1].into()),
            ),
            (DType::Float32, Layout::new(4, 2040, [8].into(), [1].into())),
        ];
        let shared = buffer();
        let leaves = views.map(|(dtype, layout)| {
            Data::Host(Tensor::with_layout(dtype, layout.unwrap(), Arc::clone(&shared)).unwrap())
        });
        for (copy, leaf) in stage(&BlockingAsyncStager::new(), leaves.to_vec())
            .iter()
            .zip(&leaves)
        {
            assert_eq!(host(copy), host(leaf));
        }
    }

    /// Does this to leaves instead of copying them.
    struct Does(fn(&mut Vec<Data>));

    impl fmt::Debug for Does {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("Does")
        }
    }

    #[async_trait]
    impl AsyncStager for Does {
        async fn stage(&self, mut leaves: Vec<Data>) -> Result<Vec<Data>> {
            (self.0)(&mut leaves);
            Ok(leaves)
        }
    }

    #[test]
    fn tensors_of_a_plan_and_those_in_objects_are_staged_and_nothing_else_is_kept() {
        let path = |k: &str| Path(vec![k.into()]);
        let tensor = |k: &str, t: &Tensor| Sharded::Tensor(ShardedTensor::full(k, t.clone()));
        let (wanted, other, inner) = (numbers(&[3]), numbers(&[4]), numbers(&[5]));
        let object = Value::Dict(vec![(
            "t".into(),
            Value::List(vec![Value::Tensor(inner.clone())]),
        )]);
        let object = ShardedObject::new("o", object, &[1], &[0], 0).unwrap();
        let mut state: FlatStateDict = [
            (path("wanted"), tensor("wanted", &wanted)),
            (path("other"), tensor("other", &other)),
            (path("o"), Sharded::Object(object)),
        ]
        .into();
        let plan: BTreeSet<u32> = [0].into();
        block_on(stage_leaves(&mut state, &plan, &BlockingAsyncStager::new())).unwrap();
        let data = |k: &str| match &state[&path(k)] {
            Sharded::Tensor(t) => t.data.host(),
            Sharded::Object(_) => None,
        };
        assert!(data("wanted") == Some(&wanted) && !data("wanted").unwrap().same_buffer(&wanted));
        assert!(data("other").is_none());
        let Sharded::Object(ShardedObject {
            data: Payload::Value(v),
            ..
        }) = &state[&path("o")]
        else {
            panic!("no object")
        };
        let staged = v
            .get("t")
            .and_then(|l| l.as_seq())
            .and_then(|l| l[0].as_tensor())
            .unwrap();
        assert!(*staged == inner && !staged.same_buffer(&inner));
        for t in [wanted, other, inner] {
            assert!(t.into_vec::<u16>().is_ok(), "nobody else holds it");
        }
        let wrong: [fn(&mut Vec<Data>); 4] = [
            |leaves| drop(leaves.pop()),
            |leaves| leaves[0] = Data::None,
            |leaves| leaves[0] = Data::Host(numbers(&[9])),
            |leaves| {
                leaves[0] = DeviceTensor::new(DType::Int16, &[3], FakeDevice::new(6))
                    .unwrap()
                    .into()
            },
        ];
        for wrong in wrong {
            let e = block_on(stage_leaves(&mut state.clone(), &plan, &Does(wrong))).unwrap_err();
            assert_eq!(e.kind(), reshard_model::ErrorKind::Internal);
        }
        block_on(stage_leaves(&mut state, &plan, &Does(|_| {}))).unwrap();
    }

    #[test]
    fn what_can_not_be_allocated_is_an_error() {
        assert!(
            Memory::new(u64::MAX)
                .is_err_and(|e| e.to_string().contains("18446744073709551615 bytes"))
        );
    }
}

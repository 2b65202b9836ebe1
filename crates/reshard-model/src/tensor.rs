use crate::{
    DType, Dims, Element, HostBuffer, Layout, ModelError, Region, Result, Segments, buffer::Shared,
    element::zeroed,
};
use bytes::Bytes;
use std::{fmt, sync::Arc};

/// A tensor in host memory: element type, shape and strides over a buffer that may be yours. `Clone` copies only this handle,
/// no elements.
#[derive(Clone)]
pub struct Tensor {
    dtype: DType,
    layout: Layout,
    buffer: Arc<dyn HostBuffer>,
}

impl Tensor {
    /// A row-major tensor over any buffer, whose bytes are little-endian elements.
    ///
    /// # Errors
    /// [`ModelError::Invalid`] when the buffer has fewer bytes than the shape needs.
    pub fn new(dtype: DType, shape: &[u64], buffer: impl HostBuffer) -> Result<Self> {
        Self::with_layout(dtype, row_major("", dtype, shape)?, Arc::new(buffer))
    }

    /// A tensor of any strides over any buffer.
    ///
    /// # Errors
    /// [`ModelError::Invalid`] when the layout reaches past the buffer's end or has another element size.
    pub fn with_layout(dtype: DType, layout: Layout, buffer: Arc<dyn HostBuffer>) -> Result<Self> {
        let (need, have) = (layout.hull().end, buffer.as_bytes().len() as u64);
        if layout.item() != dtype.size() || (layout.elements() > 0 && need > have) {
            let shape = layout.shape();
            let what =
                format!("shape {shape} of {dtype} needs {need} bytes, but the buffer has {have}");
            return Err(ModelError::invalid("", what));
        }
        Ok(Self::from_parts(dtype, layout, buffer))
    }

    pub(crate) fn from_parts(dtype: DType, layout: Layout, buffer: Arc<dyn HostBuffer>) -> Self {
        Self {
            dtype,
            layout,
            buffer,
        }
    }

    /// A row-major tensor over the caller's vector, without a copy.
    ///
    /// # Errors
    /// [`ModelError::Invalid`] when the vector's length is not the shape's volume.
    ///
    /// ```
    /// use reshard_model::{DType, Tensor};
    /// # fn main() -> Result<(), reshard_model::ModelError> {
    /// let t = Tensor::from_vec(&[2, 2], vec![1i64, 2, 3, 4])?;
    /// assert_eq!((t.dtype(), t.nbytes()), (DType::Int64, 32));
    /// assert_eq!(t.into_vec::<i64>().unwrap(), [1, 2, 3, 4]); // the same vector, not a copy
    /// # Ok(())
    /// # }
    /// ```
    pub fn from_vec<T: Element>(shape: &[u64], v: Vec<T>) -> Result<Self> {
        let shape = Dims::from(shape);
        if shape.volume() != Some(v.len() as u64) {
            return Err(ModelError::invalid(
                "",
                format!("{} elements given for shape {shape}", v.len()),
            ));
        }
        let layout = row_major("", T::DTYPE, &shape)?;
        Self::with_layout(T::DTYPE, layout, T::into_buffer(v))
    }

    /// A row-major tensor of zeros in memory of its own.
    ///
    /// # Errors
    /// [`ModelError::Invalid`] when there is no memory for it; `key` is for the message.
    pub fn zeros(key: &str, dtype: DType, shape: &[u64]) -> Result<Self> {
        let layout = row_major(key, dtype, shape)?;
        let buffer = zeroed(key, dtype, layout.elements())?;
        Self::with_layout(dtype, layout, buffer)
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Elements per axis.
    pub fn shape(&self) -> &Dims {
        self.layout.shape()
    }

    /// Where the elements lie in the buffer.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Bytes of all elements.
    pub fn nbytes(&self) -> u64 {
        self.layout.bytes()
    }

    /// A view of a part of it; `region` must lie in the shape.
    pub fn narrow(&self, region: &Region) -> Self {
        self.at(self.layout.narrow(region))
    }

    /// Elements of the same buffer, in which they must lie.
    fn at(&self, layout: Layout) -> Self {
        Self::from_parts(self.dtype, layout, self.buffer())
    }

    /// The same elements under another shape.
    ///
    /// # Errors
    /// [`ModelError::Invalid`] when the volumes differ or the tensor is not contiguous.
    pub fn view(&self, shape: &[u64]) -> Result<Self> {
        let to = Dims::from(shape);
        if !self.layout.is_contiguous() || to.volume() != self.layout.shape().volume() {
            let what = format!(
                "a tensor of shape {} can't be viewed as {to}",
                self.layout.shape()
            );
            return Err(ModelError::invalid("", what));
        }
        let flat = Layout::contiguous(self.dtype.size(), shape)
            .and_then(|l| Layout::new(l.item(), self.layout.start(), to, l.strides().clone()));
        match flat {
            Some(layout) => Ok(self.at(layout)),
            None => Err(ModelError::invalid("", "a view too large")),
        }
    }

    /// Joins parts along the first axis, as `torch.cat`. If they are neighbours in one buffer, as [`narrow`](Self::narrow)
    /// makes them, nothing is copied.
    ///
    /// # Errors
    /// [`ModelError::Invalid`] if there is no part, the parts have no axis, element types or other axes differ, or there is no
    /// memory.
    pub fn concat(key: &str, parts: &[Self]) -> Result<Self> {
        let fail = |what: String| Err(ModelError::invalid(key, what));
        let Some(first) = parts.first() else {
            return fail("there are no parts to concatenate".into());
        };

        // Every axis but the first must agree. `get(1..)` is `None` for a tensor without axes, which has no rows.
        for p in parts {
            let rows = p.shape().get(1..);
            if p.dtype != first.dtype || rows.is_none() || rows != first.shape().get(1..) {
                return fail(format!(
                    "{} of shape {} and {} of shape {} can't be concatenated",
                    first.dtype,
                    first.shape(),
                    p.dtype,
                    p.shape()
                ));
            }
        }

        // Neighbours in one buffer form a larger view of it.
        if parts.iter().all(|p| p.same_buffer(first))
            && let Some(layout) = Layout::stacked(parts.iter().map(|p| &p.layout))
        {
            return Self::with_layout(first.dtype, layout, first.buffer());
        }

        // Otherwise the parts are copied into new memory, one behind the other.
        let mut shape = first.shape().clone();
        let rows = parts
            .iter()
            .try_fold(0u64, |n, p| n.checked_add(p.shape()[0]));
        shape[0] =
            rows.ok_or_else(|| ModelError::invalid(key, "the parts are too large together"))?;
        let mut out = Self::zeros(key, first.dtype, &shape)?;
        let mut to = out.new_bytes(key)?;

        // Blocks bound the memory for parts that are not contiguous.
        for block in parts.iter().flat_map(|p| p.blocks(1 << 20)) {
            let (now, rest) = to.split_at_mut(block.len());
            now.copy_from_slice(&block);
            to = rest;
        }
        Ok(out)
    }

    /// The bytes of a tensor that has only just been made, and that nobody else has.
    pub(crate) fn new_bytes(&mut self, key: &str) -> Result<&mut [u8]> {
        let bytes = Arc::get_mut(&mut self.buffer).and_then(|b| b.as_bytes_mut());
        bytes.ok_or_else(|| ModelError::invalid(key, "new memory can't be written"))
    }

    /// All elements in memory order, as a tensor with one axis. `None` if there are gaps between them, or if they share memory.
    pub fn in_memory_order(&self) -> Option<Self> {
        let hull = self.layout.hull();
        let dense = self.layout.is_injective() && hull.end - hull.start == self.layout.bytes();
        let shape = [self.layout.elements()];
        let layout = Layout::new(
            self.dtype.size(),
            self.layout.start(),
            shape.into(),
            [1].into(),
        )?;
        dense.then(|| self.at(layout))
    }

    /// Whether two handles belong to the same buffer.
    pub fn same_buffer(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.buffer, &other.buffer)
    }

    /// All bytes of the buffer, including those of other views. [`Layout::hull`] says which of them contain the elements.
    pub fn buffer_bytes(&self) -> &[u8] {
        self.buffer.as_bytes()
    }

    /// A number that is equal for handles on the same buffer. Use it to group handles.
    pub fn buffer_id(&self) -> usize {
        Arc::as_ptr(&self.buffer).cast::<u8>() as usize
    }

    /// Whether nobody can change its elements while another handle on them exists, as
    /// [`HostBuffer::frozen_while_shared`] tells.
    pub fn frozen_while_shared(&self) -> bool {
        self.buffer.frozen_while_shared()
    }

    /// Other elements of the same buffer, or the same ones as another type.
    ///
    /// # Errors
    /// As [`with_layout`](Self::with_layout).
    pub fn view_as(&self, dtype: DType, layout: Layout) -> Result<Self> {
        Self::with_layout(dtype, layout, self.buffer())
    }

    pub(crate) fn buffer(&self) -> Arc<dyn HostBuffer> {
        Arc::clone(&self.buffer)
    }

    /// Returns the vector that the tensor was made from, without a copy.
    ///
    /// # Errors
    /// Returns the tensor if its element type differs, if it is only a part of its buffer, if the buffer was not made from such
    /// a vector, or if another handle on it exists. In these cases [`to_vec`](Self::to_vec) makes a copy.
    pub fn into_vec<T: Element>(self) -> Result<Vec<T>, Self> {
        let whole = self.layout.is_contiguous()
            && self.layout.start() == 0
            && self.layout.bytes() == self.buffer.as_bytes().len() as u64;
        if self.dtype != T::DTYPE || !whole {
            return Err(self);
        }
        let Self {
            dtype,
            layout,
            buffer,
        } = self;
        T::from_buffer(buffer).map_err(|buffer| Self::from_parts(dtype, layout, buffer))
    }

    /// A copy of the elements in row-major order.
    ///
    /// # Errors
    /// [`ModelError::Invalid`] if the element type differs. [`cast`](Self::cast) gives the tensor another one.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        if self.dtype != T::DTYPE {
            let what = format!(
                "the elements are {}, not {}; `cast` converts them",
                self.dtype,
                T::DTYPE
            );
            return Err(ModelError::invalid("", what));
        }
        Ok(T::from_bytes(&self.to_bytes()))
    }

    /// The elements in row-major order. If they are already contiguous, nothing is copied.
    pub fn to_bytes(&self) -> Bytes {
        let mut blocks = self.blocks(u64::MAX);
        match (blocks.next(), blocks.next()) {
            (None, _) => Bytes::new(),
            (Some(only), _) => only,
        }
    }

    /// The elements in row-major order, in blocks of at most `max` bytes, but at least one element. If they are already
    /// contiguous, nothing is copied. A writer pulls these blocks.
    pub fn blocks(&self, max: u64) -> impl Iterator<Item = Bytes> + Send + 'static {
        let item = self.dtype.size();

        // A block ends between elements, so it holds at least one.
        let max = (max / item).max(1).saturating_mul(item);
        let hull = self.layout.hull();

        // Each block of a contiguous tensor is a slice of this handle, which keeps the buffer alive.
        let whole = Bytes::from_owner(Shared(Arc::clone(&self.buffer)));
        let contiguous = self.layout.is_contiguous();
        let mut at = hull.start;
        let mut left = self.layout.bytes();

        // Only a tensor with gaps or another order of axes needs the walk over its runs.
        let mut segments = (!contiguous).then(|| {
            (
                Segments::row_major(&self.layout, &self.layout),
                0u64, /* taken of the next run */
            )
        });
        std::iter::from_fn(move || {
            let len = left.min(max);
            if len == 0 {
                return None;
            }
            left -= len;
            let Some((segments, taken)) = &mut segments else {
                let block = whole.slice(at as usize..(at + len) as usize);
                at += len;
                return Some(block);
            };

            // A block may begin or end inside a run, so `taken` says how much of the next run was already given out.
            let mut block = Vec::with_capacity(len as usize);
            while (block.len() as u64) < len {
                let (s, _, n) = segments.peek()?;
                let part = (n - *taken).min(len - block.len() as u64);
                let from = (s + *taken) as usize;
                block.extend_from_slice(&whole[from..from + part as usize]);
                *taken += part;
                if *taken == n {
                    *taken = 0;
                    segments.next();
                }
            }
            Some(block.into())
        })
    }
}

/// The layout of a row-major tensor.
fn row_major(key: &str, dtype: DType, shape: &[u64]) -> Result<Layout> {
    Layout::contiguous(dtype.size(), shape).ok_or_else(|| {
        let what = format!("a tensor of shape {} is too large", Dims::from(shape));
        ModelError::invalid(key, what)
    })
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor({}, {})", self.dtype, self.layout.shape())
    }
}

/// Equal type, shape and bytes.
impl PartialEq for Tensor {
    fn eq(&self, other: &Self) -> bool {
        self.dtype == other.dtype
            && self.shape() == other.shape()
            && self.to_bytes() == other.to_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_a_transposed_view_are_row_major() {
        let t = Tensor::from_vec(&[2, 3], vec![0u16, 1, 2, 3, 4, 5]).unwrap();
        let l = Layout::new(2, 0, [3, 2].into(), [1, 3].into()).unwrap();
        let v = Tensor::with_layout(DType::UInt16, l, t.buffer()).unwrap();
        assert_eq!(v.to_vec::<u16>().unwrap(), [0, 3, 1, 4, 2, 5]);
        for max in 1..14 {
            let joined: Vec<u8> = v.blocks(max).flat_map(|b| b.to_vec()).collect();
            assert_eq!(joined, v.to_bytes());
        }
    }

    #[test]
    fn a_vector_comes_back_at_the_same_address_and_only_to_its_last_owner() {
        let v = vec![1.5f32; 6];
        let p = v.as_ptr();
        let t = Tensor::from_vec(&[6], v).unwrap();
        let other = t.clone();
        let t = t.into_vec::<f32>().unwrap_err();
        drop(other);
        let t = t.into_vec::<f64>().unwrap_err();
        let v = t.into_vec::<f32>().unwrap();
        assert_eq!(v.as_ptr(), p);
    }

    #[test]
    fn parts_are_put_together_without_a_copy_where_they_are_neighbours() {
        let t = Tensor::from_vec(&[4, 3], (0u16..12).collect()).unwrap();
        let rows = |from, n| t.narrow(&Region::new([from, 0], [n, 3]));
        let columns = |from, n| t.narrow(&Region::new([0, from], [4, n]));
        let joined = Tensor::concat("k", &[rows(0, 1), rows(1, 0), rows(1, 3)]).unwrap();
        assert!(joined.same_buffer(&t) && joined == t);
        let inner = [rows(1, 1), rows(2, 1)].map(|r| r.narrow(&Region::new([0, 1], [1, 2])));
        let joined = Tensor::concat("k", &inner).unwrap();
        assert!(joined.same_buffer(&t));
        assert_eq!(joined.to_vec::<u16>().unwrap(), [4, 5, 7, 8]);
        // another order, a gap, other memory, columns: a copy, typed so that it can be taken out
        for parts in [
            vec![rows(2, 2), rows(0, 2)],
            vec![rows(0, 1), rows(2, 1)],
            vec![
                rows(0, 2),
                Tensor::from_vec(&[1, 3], vec![7u16; 3]).unwrap(),
            ],
            vec![columns(0, 2), columns(1, 2)],
        ] {
            let want: Vec<u16> = parts
                .iter()
                .flat_map(|p| p.to_vec::<u16>().unwrap())
                .collect();
            let joined = Tensor::concat("k", &parts).unwrap();
            assert!(!joined.same_buffer(&t));
            assert_eq!(joined.into_vec::<u16>().unwrap(), want);
        }
    }

    #[test]
    fn parts_that_do_not_fit_together_are_refused() {
        let t = |shape: &[u64]| Tensor::zeros("k", DType::UInt8, shape).unwrap();
        assert!(
            Tensor::concat("k", &[])
                .unwrap_err()
                .to_string()
                .starts_with("k: there are no parts")
        );
        assert!(Tensor::concat("k", &[t(&[2, 3]), t(&[2, 2])]).is_err());
        assert!(Tensor::concat("k", &[t(&[2]), t(&[])]).is_err());
        assert!(
            Tensor::concat(
                "k",
                &[t(&[2]), Tensor::zeros("k", DType::Int8, &[2]).unwrap()]
            )
            .is_err()
        );
        assert!(Tensor::concat("k", &[t(&[u64::MAX, 0]), t(&[1, 0])]).is_err());
    }

    #[test]
    fn every_dtype_has_zeros_and_too_large_ones_are_an_error() {
        for &d in DType::ALL {
            assert_eq!(
                Tensor::zeros("k", d, &[2, 3]).unwrap().nbytes(),
                6 * d.size()
            );
        }
        assert_eq!(
            Tensor::zeros("k", DType::BFloat16, &[2])
                .unwrap()
                .into_vec::<half::bf16>()
                .unwrap()
                .len(),
            2
        );
        let e = Tensor::zeros("huge", DType::Float32, &[1 << 59]).unwrap_err();
        assert!(e.to_string().starts_with("huge: no memory"), "{e}");
        assert!(Tensor::zeros("huge", DType::Float32, &[u64::MAX, 2]).is_err());
    }

    #[test]
    fn bools_go_in_and_out() {
        let t = Tensor::from_vec(&[3], vec![true, false, true]).unwrap();
        assert_eq!(t.into_vec::<bool>().unwrap(), [true, false, true]);
    }
}

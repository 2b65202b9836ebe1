use crate::{DType, HostBuffer, ModelError, Result, buffer::prefer_huge_pages};
use half::{bf16, f16};
use std::{any::Any, sync::Arc};

mod sealed {
    pub trait Sealed {}
}

/// A Rust type that can be the element type of a tensor. A complex number is a pair: `[f32; 2]` is complex64.
///
/// For types that Rust does not have (the float8 types) use `Vec<u8>` with [`Tensor::new`](crate::Tensor::new).
pub trait Element: sealed::Sealed + Sized + Copy + Send + Sync + 'static {
    /// The element type.
    const DTYPE: DType;
    /// Makes the vector a buffer, without a copy.
    fn into_buffer(v: Vec<Self>) -> Arc<dyn HostBuffer>;
    /// Returns the vector of a buffer that was made by [`into_buffer`](Self::into_buffer) or
    /// [`Tensor::zeros`](crate::Tensor::zeros), if this is the last handle on it. The elements of a large buffer of zeros are
    /// moved by up to 2 MiB.
    ///
    /// # Errors
    /// Returns the buffer.
    fn from_buffer(buffer: Arc<dyn HostBuffer>) -> Result<Vec<Self>, Arc<dyn HostBuffer>>;
    /// Elements from their bytes, whose number is a multiple of the element size.
    fn from_bytes(bytes: &[u8]) -> Vec<Self>;
}

/// Takes the `T` out of a buffer when nobody else holds it.
fn unwrap<T: HostBuffer>(buffer: Arc<dyn HostBuffer>) -> Result<T, Arc<dyn HostBuffer>> {
    if Arc::strong_count(&buffer) != 1 || !(&*buffer as &dyn Any).is::<T>() {
        return Err(buffer);
    }
    let any: Arc<dyn Any + Send + Sync> = Arc::clone(&buffer) as _;
    match any.downcast::<T>() {
        Ok(typed) => {
            drop(buffer);
            Arc::try_unwrap(typed).map_err(|t| t as Arc<dyn HostBuffer>)
        }
        Err(_) => Err(buffer),
    }
}

/// Smaller buffers gain nothing by an alignment.
const LARGE: usize = 4 << 20;

/// Where the first element of a buffer of so many bytes lies. Rows of a large table then share no line of the processor's cache
/// with others, and lines are what memory is read and written in. A very large one begins with a huge page.
fn alignment(bytes: usize) -> usize {
    if bytes < 8 * LARGE { 64 } else { 2 << 20 }
}

/// A vector that has room for its elements to begin at an aligned address.
struct Aligned<T> {
    memory: Vec<T>,
    from: usize,
    len: usize,
}

impl<T: bytemuck::Pod> Aligned<T> {
    /// `len` zeros.
    fn zeros(len: usize) -> Result<Self, ()> {
        let alignment = alignment(len.checked_mul(size_of::<T>()).ok_or(())?);
        let room = alignment / size_of::<T>();
        let memory = bytemuck::allocation::try_zeroed_vec::<T>(len.checked_add(room).ok_or(())?)?;
        let from = memory.as_ptr().align_offset(alignment).min(room);
        Ok(Self { memory, from, len })
    }

    /// The elements as a vector of nothing else, which moves them by some bytes.
    fn into_vec(self) -> Vec<T> {
        let Self {
            mut memory,
            from,
            len,
        } = self;
        memory.truncate(from + len);
        memory.drain(..from);
        memory
    }
}

impl<T: bytemuck::Pod + Send + Sync> HostBuffer for Aligned<T> {
    fn as_bytes(&self) -> &[u8] {
        bytemuck::cast_slice(&self.memory[self.from..self.from + self.len])
    }

    fn as_bytes_mut(&mut self) -> Option<&mut [u8]> {
        Some(bytemuck::cast_slice_mut(
            &mut self.memory[self.from..self.from + self.len],
        ))
    }

    fn frozen_while_shared(&self) -> bool {
        true
    }
}

/// The vector of a buffer, if nobody else holds that, and if it is one of such elements.
fn take<T: bytemuck::Pod + Send + Sync>(
    buffer: Arc<dyn HostBuffer>,
) -> Result<Vec<T>, Arc<dyn HostBuffer>>
where
    Vec<T>: HostBuffer,
{
    unwrap::<Vec<T>>(buffer).or_else(|buffer| unwrap::<Aligned<T>>(buffer).map(Aligned::into_vec))
}

/// `n` zeros in memory that can be taken out as a vector.
fn make<T: bytemuck::Pod + Send + Sync>(n: usize) -> Result<Arc<dyn HostBuffer>, ()>
where
    Vec<T>: HostBuffer,
{
    // The typed vector itself is the buffer, so it can be taken out without moving elements.
    if n < LARGE / size_of::<T>() {
        return Ok(Arc::new(bytemuck::allocation::try_zeroed_vec::<T>(n)?));
    }
    let mut memory = Aligned::<T>::zeros(n)?;
    prefer_huge_pages(bytemuck::cast_slice_mut(&mut memory.memory));
    Ok(Arc::new(memory))
}

macro_rules! elements {
    ($($t:ty => $dtype:ident,)*) => {$(
        impl HostBuffer for Vec<$t> {
            fn as_bytes(&self) -> &[u8] { bytemuck::cast_slice(self) }
            fn as_bytes_mut(&mut self) -> Option<&mut [u8]> { Some(bytemuck::cast_slice_mut(self)) }
            fn frozen_while_shared(&self) -> bool { true }
        }
        impl sealed::Sealed for $t {}
        impl Element for $t {
            const DTYPE: DType = DType::$dtype;
            fn into_buffer(v: Vec<Self>) -> Arc<dyn HostBuffer> { Arc::new(v) }
            fn from_buffer(buffer: Arc<dyn HostBuffer>) -> Result<Vec<Self>, Arc<dyn HostBuffer>> { take(buffer) }
            fn from_bytes(bytes: &[u8]) -> Vec<Self> { bytemuck::pod_collect_to_vec(bytes) }
        }
    )*
        /// `n` zeros. The vector has the type of the elements, by which `from_buffer` finds it again. Types that Rust lacks are bytes.
        fn zeros(dtype: DType, n: usize) -> Result<Arc<dyn HostBuffer>, ()> {
            match dtype {
                $(DType::$dtype => make::<$t>(n),)*
                _ => make::<u8>(n),
            }
        }
    };
}

elements! {
    u8 => UInt8, u16 => UInt16, u32 => UInt32, u64 => UInt64,
    i8 => Int8, i16 => Int16, i32 => Int32, i64 => Int64,
    f16 => Float16, bf16 => BFloat16, f32 => Float32, f64 => Float64,
    [f16; 2] => Complex32, [bf16; 2] => BComplex32, [f32; 2] => Complex64, [f64; 2] => Complex128,
}

impl sealed::Sealed for bool {}
/// Bools lie in memory as bytes, since a checkpoint may hold bytes other than 0 and 1; taking them out makes those true.
impl Element for bool {
    const DTYPE: DType = DType::Bool;
    fn into_buffer(v: Vec<Self>) -> Arc<dyn HostBuffer> {
        Arc::new(v.into_iter().map(u8::from).collect::<Vec<u8>>())
    }
    fn from_buffer(buffer: Arc<dyn HostBuffer>) -> Result<Vec<Self>, Arc<dyn HostBuffer>> {
        take::<u8>(buffer).map(|v| v.into_iter().map(|b| b != 0).collect())
    }
    fn from_bytes(bytes: &[u8]) -> Vec<Self> {
        bytes.iter().map(|&b| b != 0).collect()
    }
}

/// A zeroed buffer of `elements`, typed so that it can be taken out as the vector of its element type. Pages are touched
/// only when they are written.
pub(crate) fn zeroed(key: &str, dtype: DType, elements: u64) -> Result<Arc<dyn HostBuffer>> {
    // The size may come from a file, so a size that fits no memory is an error and never a panic.
    let too_big =
        || ModelError::invalid(key, format!("no memory for {elements} elements of {dtype}"));
    let n = usize::try_from(elements).map_err(|_| too_big())?;
    n.checked_mul(dtype.size() as usize)
        .filter(|b| *b <= isize::MAX as usize)
        .ok_or_else(too_big)?;

    zeros(dtype, n).map_err(|()| too_big())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_buffer_is_aligned_and_can_be_taken_out() {
        const VERY_LARGE: usize = 8 * LARGE;
        for (dtype, size) in [
            (DType::UInt8, 1),
            (DType::BFloat16, 2),
            (DType::Complex128, 16),
        ] {
            for n in [
                1,
                LARGE as u64 / size - 1,
                LARGE as u64 / size,
                LARGE as u64 / size + 3,
                8 * LARGE as u64 / size,
            ] {
                let buffer = zeroed("t", dtype, n).unwrap();
                assert_eq!(buffer.as_bytes().len() as u64, n * size);
                let at = buffer.as_bytes().as_ptr().addr();
                let wanted = match (n * size) as usize {
                    ..LARGE => 1,
                    LARGE..VERY_LARGE => 64,
                    _ => 2 << 20,
                };
                assert_eq!(at % wanted, 0, "{dtype} {n}");
            }
        }
        let mut buffer = zeroed("t", DType::Float32, LARGE as u64).unwrap();
        let memory = Arc::get_mut(&mut buffer)
            .and_then(|b| b.as_bytes_mut())
            .unwrap();
        memory[..4].copy_from_slice(&1f32.to_le_bytes());
        memory[4 * LARGE - 4..].copy_from_slice(&2f32.to_le_bytes());
        let vector = f32::from_buffer(buffer).ok().unwrap();
        assert_eq!(
            (vector.len(), vector[0], vector[1], vector[LARGE - 1]),
            (LARGE, 1.0, 0.0, 2.0)
        );
    }
}

use crate::{
    BoxError, DType, Dims, HostBuffer, Layout, ModelError, Region, Result, Tensor, TensorSource,
};
use std::{fmt, sync::Arc};

/// Memory of a device that the host can't reach by pointers.
///
/// # Contract
/// A copy moves exactly the elements that the layout selects, in row-major order of its shape. A copy to the host is complete
/// when the call returns. A copy to the device is complete when [`synchronise`](Self::synchronise) returns.
pub trait DeviceBuffer: fmt::Debug + Send + Sync {
    /// PyTorch's name of the device, such as `cuda:0`.
    fn device(&self) -> &str;
    /// Size in bytes.
    fn nbytes(&self) -> u64;
    /// New memory on the same device.
    ///
    /// # Errors
    /// What the device says.
    fn allocate(&self, nbytes: u64) -> Result<Arc<dyn DeviceBuffer>, BoxError>;
    /// Host memory into which the device copies faster than into other memory, such as pinned memory. `None` means that there is no such
    /// memory. A stager keeps it for the next save.
    ///
    /// # Errors
    /// What the device says.
    fn staging(&self, _nbytes: u64) -> Result<Option<Arc<dyn HostBuffer>>, BoxError> {
        Ok(None)
    }
    /// Copies elements to `out`, which has exactly their length in bytes.
    ///
    /// # Errors
    /// What the device says.
    fn copy_to_host(&self, from: &Layout, out: &mut [u8]) -> Result<(), BoxError>;
    /// Copies `elements` to the device.
    ///
    /// # Errors
    /// What the device says.
    fn copy_from_host(&self, to: &Layout, elements: &[u8]) -> Result<(), BoxError>;
    /// Waits until all copies to the device are done.
    ///
    /// # Errors
    /// What the device says.
    fn synchronise(&self) -> Result<(), BoxError>;
}

/// A tensor over device memory. `Clone` copies a handle.
#[derive(Clone, Debug)]
pub struct DeviceTensor {
    dtype: DType,
    layout: Layout,
    buffer: Arc<dyn DeviceBuffer>,
}

impl DeviceTensor {
    /// A row-major tensor over a device buffer.
    ///
    /// # Errors
    /// [`ModelError::Invalid`] when the buffer is too small.
    pub fn new(dtype: DType, shape: &[u64], buffer: Arc<dyn DeviceBuffer>) -> Result<Self> {
        let layout =
            Layout::contiguous(dtype.size(), shape).filter(|l| l.hull().end <= buffer.nbytes());
        let layout = layout.ok_or_else(|| {
            let (shape, have) = (Dims::from(shape), buffer.nbytes());
            ModelError::invalid(
                "",
                format!("shape {shape} of {dtype} does not fit a device buffer of {have} bytes"),
            )
        })?;
        Ok(Self {
            dtype,
            layout,
            buffer,
        })
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Elements per axis.
    pub fn shape(&self) -> &Dims {
        self.layout.shape()
    }

    /// The memory.
    pub fn buffer(&self) -> &Arc<dyn DeviceBuffer> {
        &self.buffer
    }

    /// Where the elements lie in the buffer.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// A view of a part of it; `region` must lie in the shape.
    pub fn narrow(&self, region: &Region) -> Self {
        Self {
            dtype: self.dtype,
            layout: self.layout.narrow(region),
            buffer: Arc::clone(&self.buffer),
        }
    }

    /// Joins parts into one tensor, without a copy. They must be neighbours along the first axis in one buffer, as
    /// [`narrow`](Self::narrow) makes them.
    ///
    /// # Errors
    /// [`ModelError::Invalid`] when they aren't.
    pub fn concat(key: &str, parts: &[Self]) -> Result<Self> {
        let fail = || {
            ModelError::invalid(
                key,
                "parts in device memory can only be put together if they follow each other in one buffer",
            )
        };
        let first = parts.first().ok_or_else(fail)?;
        if parts
            .iter()
            .any(|p| p.dtype != first.dtype || !Arc::ptr_eq(&p.buffer, &first.buffer))
        {
            return Err(fail());
        }
        let layout = Layout::stacked(parts.iter().map(|p| &p.layout)).ok_or_else(fail)?;
        Ok(Self {
            dtype: first.dtype,
            layout,
            buffer: Arc::clone(&first.buffer),
        })
    }

    /// A copy in host memory.
    ///
    /// # Errors
    /// [`ModelError::Source`] with what the device says.
    pub fn to_host(&self, key: &str) -> Result<Tensor> {
        let mut host = bytemuck::allocation::try_zeroed_vec(self.layout.bytes() as usize)
            .map_err(|()| ModelError::invalid(key, "no host memory for a copy from the device"))?;
        let copied = self.buffer.copy_to_host(&self.layout, &mut host);
        copied.map_err(|source| self.failed(key, "copying from", source))?;
        Tensor::new(self.dtype, self.shape(), host)
    }

    /// Copies a host tensor of equal type and shape to the device, and waits for it.
    ///
    /// # Errors
    /// [`ModelError::Source`] with what the device says, [`ModelError::Invalid`] when type or shape differ.
    pub fn fill(&self, key: &str, host: &Tensor) -> Result<()> {
        if (host.dtype(), host.shape()) != (self.dtype, self.shape()) {
            let what = format!(
                "a device tensor of shape {} and type {} can't be filled from a tensor of shape {} and type {}",
                self.shape(),
                self.dtype,
                host.shape(),
                host.dtype()
            );
            return Err(ModelError::invalid(key, what));
        }
        let copied = self.buffer.copy_from_host(&self.layout, &host.to_bytes());
        copied
            .and_then(|()| self.buffer.synchronise())
            .map_err(|source| self.failed(key, "copying to", source))
    }

    fn failed(&self, key: &str, what: &str, source: BoxError) -> ModelError {
        ModelError::Source {
            key: key.into(),
            what: format!("{what} {}", self.buffer.device()),
            source,
        }
    }
}

impl TensorSource for DeviceTensor {
    fn dtype(&self) -> DType {
        self.dtype
    }

    fn shape(&self) -> Dims {
        self.layout.shape().clone()
    }

    fn ahead(&self) -> u64 {
        u64::MAX
    }

    fn read(&self, region: &Region, out: &mut [u8]) -> Result<(), BoxError> {
        self.buffer.copy_to_host(&self.layout.narrow(region), out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testkit::{FakeDevice, LostDevice};

    fn tensor(shape: &[u64]) -> (Arc<FakeDevice>, DeviceTensor) {
        let device = FakeDevice::new(Dims::from(shape).volume().unwrap());
        (
            Arc::clone(&device),
            DeviceTensor::new(DType::UInt8, shape, device).unwrap(),
        )
    }

    #[test]
    fn elements_go_to_the_device_and_come_back() {
        let (memory, t) = tensor(&[2, 3]);
        let host = Tensor::from_vec(&[2, 3], vec![1u8, 2, 3, 4, 5, 6]).unwrap();
        t.fill("k", &host).unwrap();
        assert_eq!(memory.bytes(), [1, 2, 3, 4, 5, 6]);
        assert_eq!(t.to_host("k").unwrap(), host);
        assert_eq!(
            (t.dtype(), &**t.shape(), t.buffer().device()),
            (DType::UInt8, &[2, 3][..], "fake:0")
        );
        let other = t.buffer().allocate(4).unwrap();
        assert_eq!((other.nbytes(), other.device()), (4, "fake:0"));
    }

    #[test]
    fn a_view_reads_and_writes_its_part_only() {
        let (memory, t) = tensor(&[3, 4]);
        let part = t.narrow(&Region::new([1, 1], [2, 2]));
        part.fill("k", &Tensor::from_vec(&[2, 2], vec![1u8, 2, 3, 4]).unwrap())
            .unwrap();
        assert_eq!(memory.bytes(), [0, 0, 0, 0, 0, 1, 2, 0, 0, 3, 4, 0]);
        assert_eq!(
            part.to_host("k").unwrap().to_vec::<u8>().unwrap(),
            [1, 2, 3, 4]
        );
        let mut out = [0; 2];
        part.read(&Region::new([0, 1], [2, 1]), &mut out).unwrap();
        assert_eq!(out, [2, 4]);
    }

    #[test]
    fn neighbours_are_put_together_and_strangers_are_not() {
        let (_, t) = tensor(&[4, 2]);
        let rows = |from, n| t.narrow(&Region::new([from, 0], [n, 2]));
        let joined = DeviceTensor::concat("k", &[rows(1, 1), rows(2, 2)]).unwrap();
        assert_eq!(
            (joined.layout().clone(), &**joined.shape()),
            (rows(1, 3).layout().clone(), &[3, 2][..])
        );
        let (_, other) = tensor(&[1, 2]);
        for bad in [
            vec![],
            vec![rows(2, 1), rows(0, 1)],
            vec![rows(0, 1), other],
        ] {
            assert!(
                DeviceTensor::concat("k", &bad)
                    .unwrap_err()
                    .to_string()
                    .contains("follow each other")
            );
        }
    }

    #[test]
    fn what_does_not_fit_the_device_is_refused() {
        let e = DeviceTensor::new(DType::Float32, &[3], FakeDevice::new(11)).unwrap_err();
        assert_eq!(
            e.to_string(),
            "shape [3] of float32 does not fit a device buffer of 11 bytes"
        );
        let (memory, t) = tensor(&[2]);
        for host in [
            Tensor::from_vec(&[3], vec![1u8; 3]).unwrap(),
            Tensor::from_vec(&[2], vec![1i8; 2]).unwrap(),
        ] {
            let e = t.fill("k", &host).unwrap_err();
            assert!(
                e.to_string().starts_with("k: a device tensor of shape [2]"),
                "{e}"
            );
        }
        assert_eq!(memory.bytes(), [0, 0]);
    }

    #[test]
    fn an_error_of_the_device_is_kept_with_key_and_device() {
        let t = DeviceTensor::new(DType::UInt8, &[8], Arc::new(LostDevice)).unwrap();
        let source = |e: &ModelError| std::error::Error::source(e).map(ToString::to_string);
        let e = t.to_host("w").unwrap_err();
        assert_eq!(
            (e.to_string(), source(&e)),
            ("w: copying from lost:0".into(), Some("gone".into()))
        );
        assert_eq!(e.kind(), crate::ErrorKind::Unavailable);
        let host = Tensor::from_vec(&[8], vec![0u8; 8]).unwrap();
        assert_eq!(
            t.fill("w", &host).unwrap_err().to_string(),
            "w: copying to lost:0",
            "an error that comes late"
        );
    }
}

//! A checkpoint in memory.

use reshard_map::{Elements, Limits, Map, MapFile, Mapping, Source};
use reshard_model::{BoxError, DType, Layout, Region, Segments};
use std::{cell::Cell, collections::BTreeMap};

/// Tensors in memory, and how many bytes were read of them.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    pub(crate) tensors: BTreeMap<String, (Source, Vec<u8>)>,
    pub(crate) read: Cell<u64>,
}

impl Memory {
    /// Tensors of type float32, whose elements are numbers that no other has.
    pub(crate) fn numbered(shapes: &[(&str, &[u64])]) -> Self {
        let mut out = Self::default();
        let mut next = 0f32;
        for (key, shape) in shapes {
            let count: u64 = shape.iter().product();
            let mut bytes = Vec::new();
            for _ in 0..count {
                bytes.extend(next.to_le_bytes());
                next += 1.0;
            }
            out.put(Source::new(key, DType::Float32, *shape), bytes);
        }
        out
    }

    pub(crate) fn put(&mut self, source: Source, bytes: Vec<u8>) {
        self.tensors.insert(source.key.to_string(), (source, bytes));
    }

    pub(crate) fn listing(&self) -> Vec<Source> {
        self.tensors.values().map(|(s, _)| s.clone()).collect()
    }

    pub(crate) fn apply(&self, map: &Map) -> reshard_map::Result<Mapping> {
        map.apply(self.listing(), [], Limits::default())
    }

    pub(crate) fn limited(&self, rules: &str, limits: Limits) -> reshard_map::Result<Mapping> {
        map(rules).apply(self.listing(), [], limits)
    }

    /// All that a mapping of it makes.
    pub(crate) fn mapped(&self, mapping: &Mapping) -> Self {
        let mut out = Self::default();
        for (key, tensor) in mapping.tensors() {
            let whole = Region::whole(tensor.shape());
            let bytes = self.region(mapping, key, &whole);
            out.put(
                Source::new(key, tensor.dtype(), tensor.shape().clone()),
                bytes,
            );
        }
        out
    }

    pub(crate) fn region(&self, mapping: &Mapping, key: &str, region: &Region) -> Vec<u8> {
        let tensor = mapping.tensor(key).unwrap();
        let len = region.volume().unwrap() * tensor.dtype().size();
        // What is not filled is seen.
        let mut out = vec![0xa5; len as usize];
        mapping.read(tensor, region, self, &mut out).unwrap();
        out
    }

    pub(crate) fn numbers(&self, key: &str) -> Vec<f32> {
        let chunks = self.tensors[key].1.chunks(4);
        chunks
            .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
            .collect()
    }

    /// The shape and the elements of a tensor.
    pub(crate) fn tensor(&self, key: &str) -> (Vec<u64>, Vec<f32>) {
        (self.tensors[key].0.shape.to_vec(), self.numbers(key))
    }
}

/// A region of row-major bytes.
pub(crate) fn cut(bytes: &[u8], item: u64, shape: &[u64], region: &Region) -> Vec<u8> {
    let mut out = vec![0; (region.volume().unwrap() * item) as usize];
    let from = Layout::contiguous(item, shape).unwrap().narrow(region);
    let to = Layout::contiguous(item, &region.lengths).unwrap();
    for (from, to, len) in Segments::row_major(&from, &to) {
        let (from, to, len) = (from as usize, to as usize, len as usize);
        out[to..to + len].copy_from_slice(&bytes[from..from + len]);
    }
    out
}

impl Elements for Memory {
    fn read(&self, source: &Source, region: &Region, out: &mut [u8]) -> Result<(), BoxError> {
        let (stored, bytes) = &self.tensors[&*source.key];
        assert_eq!(stored, source);
        assert!(region.fits(&source.shape));
        self.read.set(self.read.get() + out.len() as u64);
        out.copy_from_slice(&cut(bytes, source.dtype.size(), &source.shape, region));
        Ok(())
    }

    fn cast(
        &self,
        from: DType,
        elements: &[u8],
        to: DType,
        out: &mut [u8],
    ) -> Result<(), BoxError> {
        match (from, to) {
            (DType::Float32, DType::Float64) => {
                for (a, b) in elements.chunks(4).zip(out.chunks_mut(8)) {
                    let wide = f64::from(f32::from_le_bytes(a.try_into()?));
                    b.copy_from_slice(&wide.to_le_bytes());
                }
            }
            (DType::Float64, DType::Float32) => {
                for (a, b) in elements.chunks(8).zip(out.chunks_mut(4)) {
                    let narrow = f64::from_le_bytes(a.try_into()?) as f32;
                    b.copy_from_slice(&narrow.to_le_bytes());
                }
            }
            _ => return Err(format!("{from} to {to}").into()),
        }
        Ok(())
    }
}

/// A map of rules without parameters.
pub(crate) fn map(rules: &str) -> Map {
    let file = MapFile::parse(rules).unwrap_or_else(|e| panic!("{e}\n{rules}"));
    file.bind(&BTreeMap::new()).unwrap()
}

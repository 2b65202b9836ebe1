//! Pieces for tests, and answers as text.

use crate::{Content, Limits, Overhead, Piece, Result, Sharding, ShardingPolicy, decide};
use proptest::prelude::*;
use reshard_model::{DType, Dims, Region};

/// What a [`Piece`] borrows.
#[derive(Clone, Debug)]
pub(crate) struct Owned {
    pub(crate) key: String,
    pub(crate) owner: String,
    pub(crate) tag: Option<String>,
    pub(crate) device: String,
    pub(crate) task: u32,
    shape: Dims,
    region: Region,
    content: OwnedContent,
    whole: bool,
    pub(crate) overhead: Overhead,
}

#[derive(Clone, Debug)]
enum OwnedContent {
    Tensor(DType),
    Strings(Vec<u64>),
    Object(u64),
}

impl Owned {
    fn new(key: &str, shape: &[u64], content: OwnedContent) -> Self {
        let owner = key.rsplit_once('.').map_or("", |(owner, _)| owner);
        Self {
            key: key.into(),
            owner: owner.into(),
            tag: None,
            device: "cpu".into(),
            task: 0,
            shape: shape.into(),
            region: Region::whole(shape),
            content,
            whole: false,
            overhead: Overhead::default(),
        }
    }

    pub(crate) fn tensor(key: &str, dtype: DType, shape: &[u64]) -> Self {
        Self::new(key, shape, OwnedContent::Tensor(dtype))
    }

    pub(crate) fn f32(key: &str, shape: &[u64]) -> Self {
        Self::tensor(key, DType::Float32, shape)
    }

    pub(crate) fn strings(key: &str, shape: &[u64], lengths: &[u64]) -> Self {
        Self::new(key, shape, OwnedContent::Strings(lengths.to_vec()))
    }

    pub(crate) fn object(key: &str, bytes: u64) -> Self {
        Self::new(key, &[], OwnedContent::Object(bytes))
    }

    pub(crate) fn task(self, task: u32) -> Self {
        Self { task, ..self }
    }

    pub(crate) fn device(self, device: &str) -> Self {
        Self {
            device: device.into(),
            ..self
        }
    }

    pub(crate) fn tag(self, tag: &str) -> Self {
        Self {
            tag: Some(tag.into()),
            ..self
        }
    }

    pub(crate) fn whole(self) -> Self {
        Self {
            whole: true,
            ..self
        }
    }

    pub(crate) fn overhead(self, slice: u64, file: u64) -> Self {
        Self {
            overhead: Overhead { slice, file },
            ..self
        }
    }

    /// Only a part, of which a piece of strings has the lengths.
    pub(crate) fn part(self, offsets: &[u64], lengths: &[u64]) -> Self {
        Self {
            region: Region::new(offsets, lengths),
            ..self
        }
    }

    pub(crate) fn piece(&self) -> Piece<'_> {
        let (content, bytes) = match &self.content {
            OwnedContent::Tensor(dtype) => (
                Content::Tensor(*dtype),
                self.region.volume().unwrap() * dtype.size(),
            ),
            OwnedContent::Strings(lengths) => (Content::Strings(lengths), lengths.iter().sum()),
            OwnedContent::Object(bytes) => (Content::Object, *bytes),
        };
        Piece {
            key: &self.key,
            name: &self.key,
            content,
            global_shape: &self.shape,
            region: &self.region,
            task: self.task,
            device: &self.device,
            owner: &self.owner,
            tag: self.tag.as_deref(),
            bytes,
            whole: self.whole,
            overhead: self.overhead,
        }
    }
}

pub(crate) fn pieces(owned: &[Owned]) -> Vec<Piece<'_>> {
    owned.iter().map(Owned::piece).collect()
}

/// Checked.
pub(crate) fn decided(policy: &dyn ShardingPolicy, owned: &[Owned]) -> Result<Sharding> {
    decide(policy, &pieces(owned), Limits::default())
}

/// A line a shard: keys, with regions unless they are whole.
pub(crate) fn told(policy: &dyn ShardingPolicy, owned: &[Owned]) -> Vec<String> {
    let line = |cuts: Vec<crate::Cut>| {
        let word = |c: crate::Cut| {
            let owned = &owned[c.piece as usize];
            if c.region == owned.region {
                owned.key.clone()
            } else {
                format!("{}{}", owned.key, c.region)
            }
        };
        cuts.into_iter().map(word).collect::<Vec<_>>().join(" ")
    };
    decided(policy, owned)
        .unwrap()
        .shards
        .into_iter()
        .map(|s| line(s.cuts))
        .collect()
}

fn element() -> impl Strategy<Value = DType> {
    prop::sample::select(vec![
        DType::UInt8,
        DType::BFloat16,
        DType::Float32,
        DType::Float64,
        DType::Complex128,
    ])
}

/// A piece that lies anywhere in its tensor.
pub(crate) fn any_tensor(key: String) -> impl Strategy<Value = Owned> {
    let axes = prop::collection::vec((0u64..3, 0u64..7, 0u64..3), 0..4);
    (element(), axes).prop_map(move |(dtype, axes)| {
        let shape: Vec<u64> = axes
            .iter()
            .map(|&(before, n, behind)| before + n + behind)
            .collect();
        let offsets: Vec<u64> = axes.iter().map(|a| a.0).collect();
        let lengths: Vec<u64> = axes.iter().map(|a| a.1).collect();
        Owned::tensor(&key, dtype, &shape).part(&offsets, &lengths)
    })
}

fn any_strings(key: String) -> impl Strategy<Value = Owned> {
    prop::collection::vec(0u64..4, 0..3).prop_flat_map(move |shape| {
        let (key, n) = (key.clone(), shape.iter().product::<u64>() as usize);
        prop::collection::vec(0u64..30, n)
            .prop_map(move |lengths| Owned::strings(&key, &shape, &lengths))
    })
}

/// Pieces of up to three tasks, task by task.
pub(crate) fn any_state(objects: bool) -> impl Strategy<Value = Vec<Owned>> {
    let one = (0..if objects { 5 } else { 4 }).prop_flat_map(|kind| match kind {
        0 => any_strings("m.s".into()).boxed(),
        4 => (0u64..200)
            .prop_map(|bytes| Owned::object("m.o", bytes))
            .boxed(),
        n => any_tensor(format!("m{n}.t")).boxed(),
    });
    let one = (one, 0u32..3, 0u8..3, any::<bool>());
    prop::collection::vec(one, 0..12).prop_map(|mut all| {
        all.sort_by_key(|p| p.1);
        let number = |(i, (mut owned, task, device, tag)): (usize, (Owned, u32, u8, bool))| {
            owned.key = format!("{}{i}", owned.key);
            owned.tag = tag.then(|| format!("tag{device}"));
            owned
                .task(task)
                .device(["cpu", "cuda:0", "cuda:1"][usize::from(device)])
        };
        all.into_iter().enumerate().map(number).collect()
    })
}

//! The state of a small transformer. Each element is a function of its tensor and its index.

use crate::{
    error::{CliError, Result},
    units,
};
use indicatif::ProgressBar;
use reshard::{
    DType, Region, ShardedTensor, StateDict, Tensor, Value, ValueTree, model::ModelError,
};

/// Bytes of a parameter: a bf16 weight, and two fp32 moments.
const PER_PARAMETER: u64 = 2 + 4 + 4;
/// Fills memory before a load, so that a byte that was not loaded is noticed.
const STALE: u8 = 0xA5;
/// Distance between the start of a row and the start of the next one in a tensor's sequence of
/// numbers. It is more than 1, so that a transposed matrix has other elements.
const NEXT_ROW: u64 = 3;

/// One rank's share of all tensors.
#[derive(Clone, Copy)]
pub(super) struct Share {
    rank: u32,
    ranks: u32,
    /// Whether matrices are cut along the other axis than in tensor parallelism. Each rank then
    /// needs a part of each share that was cut in the usual way.
    is_flipped: bool,
}

impl Share {
    /// Returns the shares of all ranks, which make up the state.
    pub(super) fn all(ranks: u32, is_flipped: bool) -> impl Iterator<Item = Self> {
        (0..ranks).map(move |rank| Self {
            rank,
            ranks,
            is_flipped,
        })
    }
}

/// A weight, or one of its moments.
struct Entry {
    key: String,
    dtype: DType,
    shape: Vec<u64>,
    /// The axis that tensor parallelism cuts; `None` if each rank has the whole tensor.
    axis: Option<usize>,
    /// Position in the model. It makes the elements differ from those of other tensors.
    number: u64,
    /// The bits of a float32 in which elements may differ.
    random: u32,
}

pub(super) struct Model {
    hidden: u64,
    layers: u64,
    entries: Vec<Entry>,
}

impl Model {
    /// Returns a model whose state has at most this size, if it has more than one layer.
    pub(super) fn of_size(bytes: u64) -> Self {
        let layers = |hidden| {
            let [none, one] = [0, 1].map(|layers| Self::new(hidden, layers).bytes());
            bytes.saturating_sub(none) / (one - none)
        };
        // The widest model that still has some depth.
        let mut widths = (5..14).rev().map(|power| 1 << power);
        let hidden = widths.find(|hidden| layers(*hidden) >= 4).unwrap_or(32);
        Self::new(hidden, layers(hidden).max(1))
    }

    fn new(hidden: u64, layers: u64) -> Self {
        let mut out = Self {
            hidden,
            layers,
            entries: Vec::new(),
        };
        // The feed-forward width of Llama. Its first matrix is two in one.
        let (h, f) = (hidden, hidden * 11 / 4);
        let words = out.vocabulary();
        out.add("embedding.word_embeddings.weight", &[words, h], Some(0));
        for layer in 0..layers {
            for (name, shape, axis) in [
                ("input_layernorm", &[h][..], None),
                ("self_attention.linear_qkv", &[3 * h, h], Some(0)),
                ("self_attention.linear_proj", &[h, h], Some(1)),
                ("pre_mlp_layernorm", &[h], None),
                ("mlp.linear_fc1", &[2 * f, h], Some(0)),
                ("mlp.linear_fc2", &[h, f], Some(1)),
            ] {
                let name = format!("decoder.layers.{layer}.{name}.weight");
                out.add(&name, shape, axis);
            }
        }
        out.add("decoder.final_layernorm.weight", &[h], None);
        out
    }

    /// Adds a weight with its moments.
    fn add(&mut self, name: &str, shape: &[u64], axis: Option<usize>) {
        let moment = |of: &str| format!("optimizer.state.{of}.{name}");
        // Sign, two bits of the exponent, and all of the mantissa. Second moments are positive.
        let (random, positive) = (0x81ff_ffff, 0x01ff_ffff);
        for (key, dtype, random) in [
            (name.to_owned(), DType::BFloat16, random),
            (moment("exp_avg"), DType::Float32, random),
            (moment("exp_avg_sq"), DType::Float32, positive),
        ] {
            let (shape, number) = (shape.to_vec(), self.entries.len() as u64);
            self.entries.push(Entry {
                key,
                dtype,
                shape,
                axis,
                number,
                random,
            });
        }
    }

    fn vocabulary(&self) -> u64 {
        8 * self.hidden
    }

    pub(super) fn describe(&self) -> String {
        format!(
            "A transformer of {} layers, hidden size {}: {:.1} million parameters, {} tensors, {}",
            self.layers,
            self.hidden,
            (self.bytes() / PER_PARAMETER) as f64 / 1e6,
            units::count(self.entries.len() as u64),
            units::bytes(self.bytes())
        )
    }

    /// Returns the size of all tensors.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes_on(1)
    }

    /// Returns the size of all ranks' shares. Replicated tensors count once for each rank.
    pub(super) fn bytes_on(&self, ranks: u32) -> u64 {
        let copies = |e: &Entry| e.axis.map_or(u64::from(ranks), |_| 1);
        let size = |e: &Entry| copies(e) * e.size(&Region::whole(&e.shape));
        self.entries.iter().map(size).sum()
    }

    /// Returns the state that a rank saves.
    pub(super) fn state(&self, share: Share, bar: &ProgressBar) -> Result<StateDict> {
        let mut state = self.declare(share, bar, Entry::elements)?;
        for (key, value) in self.common() {
            state.insert(key, value);
        }
        Ok(state)
    }

    /// Returns the template that a rank loads into. Its buffers hold other bytes.
    pub(super) fn template(&self, share: Share, bar: &ProgressBar) -> Result<StateDict> {
        let stale = |e: &Entry, region: &Region| vec![STALE; e.size(region) as usize];
        self.declare(share, bar, stale)
    }

    fn declare(
        &self,
        share: Share,
        bar: &ProgressBar,
        bytes: impl Fn(&Entry, &Region) -> Vec<u8>,
    ) -> Result<StateDict> {
        let broken = |e: ModelError| CliError::told(e.to_string(), "please report this");
        let mut state = StateDict::new();
        for e in &self.entries {
            let region = e.region(share);
            let data = bytes(e, &region);
            bar.inc(data.len() as u64);
            let data = Tensor::new(e.dtype, &region.lengths, data).map_err(broken)?;
            let leaf = ShardedTensor::region_of(&e.key, e.dtype, &e.shape, region).with_data(data);
            let replica = e.axis.map_or(share.rank, |_| 0);
            state.insert(e.key.as_str(), leaf.with_replica_id(replica));
        }
        Ok(state)
    }

    /// Returns the common state. Its `args` are the numbers that maps such as `hf-llama` need.
    fn common(&self) -> [(&'static str, Value); 2] {
        let args = [
            ("num_layers", self.layers),
            ("hidden_size", self.hidden),
            // Heads of 64 numbers, if they fit.
            ("num_attention_heads", (self.hidden / 64).max(1)),
            ("padded_vocab_size", self.vocabulary()),
        ];
        let args = args.map(|(key, n)| (key.into(), Value::Int(n as i64)));
        [
            ("iteration", Value::Int(1000)),
            ("args", Value::Dict(args.into())),
        ]
    }

    /// Compares what a rank loaded with what was saved. Returns the number of compared bytes.
    pub(super) fn check(&self, share: Share, loaded: &ValueTree, bar: &ProgressBar) -> Result<u64> {
        let mut checked = 0;
        for e in &self.entries {
            let found = loaded.tensor(&e.key).map_err(|e| wrong(e.to_string()))?;
            let (found, expected) = (found.to_bytes(), e.elements(&e.region(share)));
            if found != expected {
                let same = found.iter().zip(&expected).take_while(|(a, b)| a == b);
                return Err(wrong(format!(
                    "{} on rank {} of {}: bytes differ from byte {} on",
                    e.key,
                    share.rank,
                    share.ranks,
                    same.count()
                )));
            }
            checked += found.len() as u64;
            bar.inc(found.len() as u64);
        }
        for (key, value) in self.common() {
            if loaded.get(key).cloned().map(Value::from) != Some(value) {
                return Err(wrong(format!("{key} of the common state differs")));
            }
        }
        Ok(checked)
    }
}

impl Entry {
    /// Returns a rank's region. All ranks' regions are as even as possible.
    fn region(&self, share: Share) -> Region {
        let mut region = Region::whole(&self.shape);
        if let Some(axis) = self.axis {
            let axis = if share.is_flipped { 1 - axis } else { axis };
            let end = |ranks: u32| self.shape[axis] * u64::from(ranks) / u64::from(share.ranks);
            region.offsets[axis] = end(share.rank);
            region.lengths[axis] = end(share.rank + 1) - end(share.rank);
        }
        region
    }

    fn size(&self, region: &Region) -> u64 {
        region.volume().unwrap_or(0) * self.dtype.size()
    }

    /// Returns the bytes of a region, row by row.
    fn elements(&self, region: &Region) -> Vec<u8> {
        if region.is_empty() {
            return Vec::new();
        }
        // A tensor with one axis is a single row.
        let axis = region.ndim() - 1;
        let (first, last) = match axis {
            0 => (0, 0),
            _ => (region.offsets[0], region.end(0) - 1),
        };
        let item = self.dtype.size() as usize;
        let places = NEXT_ROW * first + region.offsets[axis]..NEXT_ROW * last + region.end(axis);
        // A bf16 is the upper half of a float32.
        let bytes = |place| self.bits(place).to_le_bytes().into_iter().skip(4 - item);
        let numbers: Vec<u8> = places.flat_map(bytes).collect();
        // Rows are overlapping windows of one sequence: copying is fast in an unoptimised build, and
        // computing each element is not.
        let rows = numbers.windows(region.lengths[axis] as usize * item);
        let rows: Vec<&[u8]> = rows.step_by(NEXT_ROW as usize * item).collect();
        rows.concat()
    }

    /// Returns the bits of a float32 as a model has it, from 1/128 to 1/8.
    fn bits(&self, place: u64) -> u32 {
        let hash = (self.number << 40 | place).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        hash as u32 & self.random | 0x3c00_0000
    }
}

fn wrong(what: String) -> CliError {
    CliError::damaged(
        what,
        "this must not happen: check the disk and the memory of this machine, and report it",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARES: [(u32, bool); 4] = [(1, false), (3, false), (2, true), (40, true)];

    #[test]
    fn elements_depend_on_their_tensor_and_index_alone() {
        let model = Model::new(32, 1);
        for (ranks, is_flipped) in SHARES {
            for e in &model.entries {
                let whole = e.elements(&Region::whole(&e.shape));
                let whole = Tensor::new(e.dtype, &e.shape, whole).unwrap();
                for share in Share::all(ranks, is_flipped) {
                    let region = e.region(share);
                    assert_eq!(whole.narrow(&region).to_bytes(), e.elements(&region));
                }
            }
        }
        // First moments, which have the same random bits.
        let [words, qkv] = [&model.entries[1], &model.entries[7]];
        assert_eq!(words.random, qkv.random);
        let row = |e: &Entry, row| e.elements(&Region::new([row, 0], [1, 32]));
        assert_ne!(row(words, 0), row(words, 1));
        assert_ne!(row(words, 0), row(qkv, 0));
    }

    #[test]
    fn shares_make_up_the_state() {
        let model = Model::new(32, 1);
        for (ranks, is_flipped) in SHARES {
            let sizes = model.entries.iter().map(|e| {
                let shares = Share::all(ranks, is_flipped);
                shares.map(|share| e.size(&e.region(share))).sum::<u64>()
            });
            assert_eq!(sizes.sum::<u64>(), model.bytes_on(ranks));
        }
    }

    /// A share as a load returns it.
    fn loaded(model: &Model, share: Share) -> ValueTree {
        let mut tree = ValueTree::new();
        for e in &model.entries {
            let region = e.region(share);
            let tensor = Tensor::new(e.dtype, &region.lengths, e.elements(&region));
            tree.insert(e.key.as_str(), tensor.unwrap());
        }
        for (key, value) in model.common() {
            tree.insert(key, value);
        }
        tree
    }

    #[test]
    fn a_load_that_went_wrong_is_noticed() {
        let model = Model::new(32, 1);
        let share = Share::all(3, true).nth(1).unwrap();
        let good = loaded(&model, share);
        let check = |tree: &ValueTree| model.check(share, tree, &ProgressBar::hidden());
        let own: u64 = model.entries.iter().map(|e| e.size(&e.region(share))).sum();
        assert_eq!(check(&good).unwrap(), own);

        let last = model.entries.last().unwrap();
        let changed = |at: usize, byte: u8| {
            let mut bytes = last.elements(&last.region(share));
            bytes[at] = byte;
            let mut tree = good.clone();
            let tensor = Tensor::new(last.dtype, &last.shape, bytes).unwrap();
            tree.insert(last.key.as_str(), tensor);
            check(&tree).map_err(|e| e.to_string())
        };
        assert!(
            changed(127, STALE)
                .unwrap_err()
                .contains("from byte 127 on")
        );
        assert!(changed(0, STALE).unwrap_err().contains("rank 1 of 3"));

        let other = Share::all(3, true).next().unwrap();
        assert!(
            check(&loaded(&model, other)).is_err(),
            "another rank's share"
        );
        for key in [last.key.as_str(), "args", "iteration"] {
            let mut tree = good.clone();
            tree.remove(key).unwrap();
            assert!(check(&tree).is_err(), "{key}");
        }
        let mut tree = good.clone();
        tree.insert("iteration", 1001);
        assert!(check(&tree).is_err());
    }

    #[test]
    fn models_have_about_the_size_asked_for() {
        for size in [64 << 20, 256 << 20, 1_000_000_000, 10_000_000_000] {
            let is = Model::of_size(size).bytes();
            assert!(is <= size && is > size * 3 / 4, "{is} of {size}");
        }
        assert!(Model::of_size(0).bytes() > 0);
    }
}

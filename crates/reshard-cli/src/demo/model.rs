//! A transformer's sharded state, whose bytes are a function of where they stand.

use crate::{
    error::{CliError, Result},
    units,
};
use indicatif::ProgressBar;
use reshard::{
    DType, Region, ShardedObject, ShardedTensor, StateDict, Tensor, Value, ValueTree,
    model::{Leaf, ModelError},
};

/// Bytes a parameter takes: a bf16 weight, and two fp32 moments.
const PER_PARAMETER: u64 = 2 + 4 + 4;
/// What buffers hold before a load, so that a byte that was not loaded shows.
const STALE: u8 = 0xA5;

/// Along which axis a matrix is cut.
#[derive(Clone, Copy)]
pub(super) struct Cut {
    flipped: bool,
}

impl Cut {
    /// As tensor parallelism does it: column-parallel matrices by rows of their storage, row-parallel ones by columns.
    pub(super) const SAVED: Self = Self { flipped: false };
    /// The other way round, so that every rank needs a part of what every rank wrote.
    pub(super) const LOADED: Self = Self { flipped: true };
}

struct Parameter {
    name: String,
    shape: Vec<u64>,
    /// The axis that tensor parallelism cuts; none for what every rank has.
    axis: Option<usize>,
}

pub(super) struct Model {
    hidden: u64,
    layers: u64,
    parameters: Vec<Parameter>,
}

/// One of three tensors of a parameter.
struct Part {
    key: String,
    dtype: DType,
    values: Values,
}

/// Eight bytes at a time: those that look random, with bits that make them numbers as a model has them, from 1/128 to 1/8.
#[derive(Clone, Copy)]
struct Values {
    seed: u64,
    random: u64,
    fixed: u64,
}

impl Model {
    /// One whose state has about so many bytes.
    pub(super) fn of_size(bytes: u64) -> Self {
        let layers_of = |h: u64| {
            let layer = PER_PARAMETER * parameters_of_layer(h);
            bytes.saturating_sub(PER_PARAMETER * vocabulary(h) * h) / layer
        };
        // The widest that still has some depth.
        let hidden = (5..14)
            .rev()
            .map(|p| 1u64 << p)
            .find(|h| layers_of(*h) >= 4)
            .unwrap_or(32);
        let layers = layers_of(hidden).max(1);
        let mut out = Self {
            hidden,
            layers,
            parameters: Vec::new(),
        };
        let (h, f) = (hidden, feed_forward(hidden));
        out.add(
            "embedding.word_embeddings.weight".into(),
            &[vocabulary(h), h],
            Some(0),
        );
        for l in 0..layers {
            let layer = |name: &str| format!("decoder.layers.{l}.{name}");
            out.add(layer("input_layernorm.weight"), &[h], None);
            out.add(
                layer("self_attention.linear_qkv.weight"),
                &[3 * h, h],
                Some(0),
            );
            out.add(layer("self_attention.linear_proj.weight"), &[h, h], Some(1));
            out.add(layer("pre_mlp_layernorm.weight"), &[h], None);
            out.add(layer("mlp.linear_fc1.weight"), &[2 * f, h], Some(0));
            out.add(layer("mlp.linear_fc2.weight"), &[h, f], Some(1));
        }
        out.add("decoder.final_layernorm.weight".into(), &[h], None);
        out
    }

    fn add(&mut self, name: String, shape: &[u64], axis: Option<usize>) {
        self.parameters.push(Parameter {
            name,
            shape: shape.into(),
            axis,
        });
    }

    pub(super) fn describe(&self) -> String {
        let parameters = self
            .parameters
            .iter()
            .map(|p| p.shape.iter().product::<u64>())
            .sum::<u64>();
        format!(
            "A transformer of {} layers, hidden size {}: {:.1} million parameters, {} tensors, {}",
            self.layers,
            self.hidden,
            parameters as f64 / 1e6,
            units::count(3 * self.parameters.len() as u64),
            units::bytes(self.bytes())
        )
    }

    /// Of all tensors, once.
    pub(super) fn bytes(&self) -> u64 {
        self.parameters
            .iter()
            .map(|p| PER_PARAMETER * p.shape.iter().product::<u64>())
            .sum()
    }

    /// On so many ranks together: what is not cut is on each.
    pub(super) fn bytes_on(&self, ranks: u32) -> u64 {
        let copies = |p: &Parameter| {
            if p.axis.is_some() {
                1
            } else {
                u64::from(ranks)
            }
        };
        self.parameters
            .iter()
            .map(|p| copies(p) * PER_PARAMETER * p.shape.iter().product::<u64>())
            .sum()
    }

    /// What a rank saves.
    pub(super) fn state(
        &self,
        cut: Cut,
        rank: u32,
        ranks: u32,
        bar: &ProgressBar,
    ) -> Result<StateDict> {
        let mut state = self.tree(cut, (rank, ranks), bar, |part, shape, region| {
            let mut bytes = vec![0; size(part, region)];
            runs(shape, region, part.dtype.size(), |at, out| {
                fill(part.values, at, &mut bytes[out])
            });
            bytes
        })?;
        let rng = ShardedObject::new("rng_state", rng(rank), &[ranks.into()], &[rank.into()], 0);
        state.insert("rng_state", rng.map_err(broken)?);
        state.insert("iteration", 1000);
        state.insert("args", arguments(self, ranks));
        Ok(state)
    }

    /// What a rank loads into: memory that is there, with other bytes in it.
    pub(super) fn template(
        &self,
        cut: Cut,
        rank: u32,
        ranks: u32,
        bar: &ProgressBar,
    ) -> Result<StateDict> {
        self.tree(cut, (rank, ranks), bar, |part, _, region| {
            vec![STALE; size(part, region)]
        })
    }

    fn tree(
        &self,
        cut: Cut,
        (rank, ranks): (u32, u32),
        bar: &ProgressBar,
        mut bytes: impl FnMut(&Part, &[u64], &Region) -> Vec<u8>,
    ) -> Result<StateDict> {
        let mut state = StateDict::new();
        for p in &self.parameters {
            let region = p.region(cut, rank, ranks);
            for part in p.parts() {
                let data = bytes(&part, &p.shape, &region);
                bar.inc(data.len() as u64);
                let data = Tensor::new(part.dtype, &region.lengths, data).map_err(broken)?;
                let leaf =
                    ShardedTensor::region_of(&part.key, part.dtype, &p.shape, region.clone())
                        .with_data(data);
                let copy = if p.axis.is_some() { 0 } else { rank };
                state.insert(part.key.as_str(), leaf.with_replica_id(copy));
            }
        }
        Ok(state)
    }

    /// Compares what a rank loaded with what must be there; returns the number of bytes.
    pub(super) fn check(
        &self,
        cut: Cut,
        rank: u32,
        ranks: u32,
        saved_by: u32,
        loaded: &ValueTree,
        bar: &ProgressBar,
    ) -> Result<u64> {
        let mut seen = 0;
        let mut want = Vec::new();
        for p in &self.parameters {
            let region = p.region(cut, rank, ranks);
            for part in p.parts() {
                let found = loaded.get(&part.key).and_then(|l| l.leaf()?.as_tensor());
                let Some(found) =
                    found.filter(|t| t.dtype() == part.dtype && *t.shape() == region.lengths)
                else {
                    return Err(wrong(format!("{} was not loaded", part.key)));
                };
                let found = found.to_bytes();

                // Wanted bytes are made run by run, so they never need the memory of a second model.
                let mut bad = None;
                runs(&p.shape, &region, part.dtype.size(), |at, here| {
                    want.resize(here.len(), 0);
                    fill(part.values, at, &mut want);
                    if found[here.clone()] != want[..] {
                        bad = bad.or(Some(here.start));
                    }
                });
                if let Some(at) = bad {
                    return Err(wrong(format!(
                        "{} on rank {rank} of {ranks}: bytes differ from byte {at} on",
                        part.key
                    )));
                }
                seen += found.len() as u64;
                bar.inc(found.len() as u64);
            }
        }

        let common = |key: &str| loaded.get(key).cloned().map(Value::from);
        if common("iteration") != Some(Value::Int(1000))
            || common("args") != Some(arguments(self, saved_by))
        {
            return Err(wrong("the common state differs".into()));
        }
        Ok(seen)
    }
}

/// Bytes of the tensors that a rank saves.
pub(super) fn held_by(state: &StateDict) -> u64 {
    let mut bytes = 0;
    state.visit(&mut |_, leaf| {
        if let Leaf::Tensor(t) = leaf
            && t.replica_id.is_main()
        {
            bytes += t.data.host().map_or(0, Tensor::nbytes);
        }
    });
    bytes
}

fn vocabulary(hidden: u64) -> u64 {
    8 * hidden
}

/// Heads of 64 numbers, if they fit.
fn heads(hidden: u64) -> u64 {
    match hidden % 64 {
        0 => hidden / 64,
        _ => 1,
    }
}

/// As Llama has it: 2.75 times, of which two matrices go in and one comes out.
fn feed_forward(hidden: u64) -> u64 {
    hidden * 11 / 4
}

fn parameters_of_layer(hidden: u64) -> u64 {
    4 * hidden * hidden + 3 * feed_forward(hidden) * hidden + 2 * hidden
}

fn broken(e: ModelError) -> CliError {
    CliError::told(e.to_string(), "please report this")
}

fn wrong(what: String) -> CliError {
    CliError::damaged(
        what,
        "this must not happen: check the disk and the memory of this machine, and report it",
    )
}

fn rng(rank: u32) -> Value {
    Value::Tuple(vec![
        (1234 + rank).into(),
        Value::Bytes(vec![rank as u8; 16].into()),
    ])
}

/// A few of the settings that Megatron keeps.
fn arguments(model: &Model, ranks: u32) -> Value {
    let settings = [
        ("num_layers", Value::Int(model.layers as i64)),
        ("hidden_size", Value::Int(model.hidden as i64)),
        (
            "num_attention_heads",
            Value::Int(heads(model.hidden) as i64),
        ),
        (
            "padded_vocab_size",
            Value::Int(vocabulary(model.hidden) as i64),
        ),
        ("tensor_model_parallel_size", ranks.into()),
        ("pipeline_model_parallel_size", 1.into()),
        ("iteration", 1000.into()),
    ];
    Value::Dict(settings.into_iter().map(|(k, v)| (k.into(), v)).collect())
}

impl Parameter {
    fn parts(&self) -> [Part; 3] {
        let part = |key: String, dtype, random, fixed| {
            let seed = seed(&key);
            let values = Values {
                seed,
                random,
                fixed,
            };
            Part { key, dtype, values }
        };
        // Sign, two bits of the exponent, and all of the mantissa.
        let random = 0x81ff_ffff_81ff_ffff;
        let (positive, fixed) = (random & !(1 << 63 | 1 << 31), 0x3c00_0000_3c00_0000);
        let moment = |of: &str| format!("optimizer.state.{of}.{}", self.name);
        [
            part(
                self.name.clone(),
                DType::BFloat16,
                0x81ff_81ff_81ff_81ff,
                0x3c00_3c00_3c00_3c00,
            ),
            part(moment("exp_avg"), DType::Float32, random, fixed),
            part(moment("exp_avg_sq"), DType::Float32, positive, fixed),
        ]
    }

    /// What a rank has of it: as even as can be.
    fn region(&self, cut: Cut, rank: u32, ranks: u32) -> Region {
        let mut region = Region::whole(&self.shape);
        if let Some(axis) = self.axis {
            let axis = if cut.flipped { 1 - axis } else { axis };
            let at = |r: u32| self.shape[axis] * u64::from(r) / u64::from(ranks);
            (region.offsets[axis], region.lengths[axis]) = (at(rank), at(rank + 1) - at(rank));
        }
        region
    }
}

fn size(part: &Part, region: &Region) -> usize {
    (region.volume().unwrap_or(0) * part.dtype.size()) as usize
}

/// Calls `f` with each run of neighbouring bytes of a region: its first byte in the whole tensor, and where it lies in the
/// region's own bytes.
fn runs(shape: &[u64], region: &Region, item: u64, mut f: impl FnMut(u64, std::ops::Range<usize>)) {
    // One axis or two; whole rows follow each other.
    let columns = if shape.len() == 2 { shape[1] } else { 1 };
    let (first, width) = if shape.len() == 2 {
        (region.offsets[1], region.lengths[1])
    } else {
        (0, 1)
    };
    let (rows, step) = if width == columns {
        (1, region.lengths[0] * columns)
    } else {
        (region.lengths[0], width)
    };
    let mut here = 0;
    for row in 0..rows {
        let at = (region.offsets[0] + row) * columns + first;
        let len = (step * item) as usize;
        if len > 0 {
            f(at * item, here..here + len);
        }
        here += len;
    }
}

/// A number for a name.
fn seed(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |h, b| {
        (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3)
    })
}

impl Values {
    /// Eight bytes that depend on nothing but their place.
    fn word(self, index: u64) -> [u8; 8] {
        let mut x = self.seed ^ index.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        x = (x ^ x >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
        ((x ^ x >> 32) & self.random | self.fixed).to_le_bytes()
    }
}

/// The bytes of a tensor from byte `at` on.
fn fill(values: Values, at: u64, out: &mut [u8]) {
    let (mut index, skip) = (at / 8, (at % 8) as usize);
    let head = out.len().min((8 - skip) % 8);
    let (first, rest) = out.split_at_mut(head);
    if head > 0 {
        first.copy_from_slice(&values.word(index)[skip..skip + head]);
        index += 1;
    }
    for chunk in rest.chunks_mut(8) {
        let w = values.word(index);
        chunk.copy_from_slice(&w[..chunk.len()]);
        index += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_depend_on_their_place_alone() {
        let mut whole = vec![0; 100];
        let of = |seed| Values {
            seed,
            random: u64::MAX,
            fixed: 0,
        };
        fill(of(7), 0, &mut whole);
        for at in 0..40 {
            for len in 0..30 {
                let mut part = vec![0; len];
                fill(of(7), at as u64, &mut part);
                assert_eq!(part, whole[at..at + len], "{at} {len}");
            }
        }
        let mut other = vec![0; 100];
        fill(of(8), 0, &mut other);
        assert_ne!(whole, other);
    }

    #[test]
    fn runs_cover_a_region_in_order() {
        for (shape, region) in [
            (vec![4, 6], Region::new([1, 2], [2, 3])),
            (vec![4, 6], Region::new([1, 0], [2, 6])),
            (vec![5], Region::new([0], [5])),
            (vec![4, 6], Region::new([1, 2], [2, 0])),
        ] {
            let mut end = 0;
            runs(&shape, &region, 2, |_, here| {
                assert_eq!(here.start, end);
                end = here.end;
            });
            assert_eq!(end as u64, region.volume().unwrap() * 2);
        }
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

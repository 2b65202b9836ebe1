//! A model and its Adam, sharded by FSDP over 4 ranks, train and save. They go on, sharded over 2 ranks.
//!
//! `cargo run -p reshard --example fsdp_4_to_2`
//!
//! FSDP cuts each parameter along its first axis, by `torch.chunk`'s rule: the last ranks have fewer rows, or none. The moments are cut as their parameters
//! are. In the checkpoint each of them is one tensor under PyTorch's key, so any number of ranks loads it, and so does `dcp.load`.

#![expect(
    clippy::print_stdout,
    clippy::expect_used,
    reason = "an example, which a test runs"
)]

use reshard::{
    model::{DeviceMesh, Placement, local_chunk},
    prelude::*,
};
use std::path::Path;

type Error = Box<dyn std::error::Error + Send + Sync>;

/// Names and shapes. 10 rows over 4 ranks are 3, 3, 3 and 1; 2 rows are 1, 1, 0 and 0.
const PARAMS: [(&str, &[u64]); 4] = [
    ("embed.weight", &[10, 4]),
    ("fc.weight", &[6, 4]),
    ("fc.bias", &[6]),
    ("out.weight", &[2, 6]),
];

/// This rank's rows of a parameter and of its moments.
struct Shard {
    name: &'static str,
    shape: &'static [u64],
    weight: Vec<f32>,
    exp_avg: Vec<f32>,
    exp_avg_sq: Vec<f32>,
}

/// What a rank has of a training job.
struct Job {
    rank: u32,
    mesh: DeviceMesh,
    shards: Vec<Shard>,
    step: i64,
}

impl Job {
    /// Rank `rank` of `ranks`, before the first step.
    fn new(rank: u32, ranks: u32) -> Result<Self, Error> {
        let mesh = DeviceMesh::of(&[("fsdp", ranks.into())])?;
        let shards = PARAMS.map(|(name, shape)| {
            let width: u64 = shape[1..].iter().product();
            let (first, rows) = local_chunk(shape[0], ranks.into(), rank.into());
            let elements = first * width..(first + rows) * width;
            let zeros = vec![0.; elements.clone().count()];
            let weight = elements.map(|i| i as f32 / 8.).collect();
            Shard {
                name,
                shape,
                weight,
                exp_avg: zeros.clone(),
                exp_avg_sq: zeros,
            }
        });
        Ok(Self {
            rank,
            mesh,
            shards: shards.into(),
            step: 0,
        })
    }

    /// Adam, element by element. The gradient is the weight, so each rank needs its own elements only.
    fn train(&mut self, steps: i64) {
        for _ in 0..steps {
            self.step += 1;
            for shard in &mut self.shards {
                let moments = shard.exp_avg.iter_mut().zip(&mut shard.exp_avg_sq);
                for (weight, (first, second)) in shard.weight.iter_mut().zip(moments) {
                    let grad = *weight;
                    *first = 0.9 * *first + 0.1 * grad;
                    *second = 0.999 * *second + 0.001 * grad * grad;
                    *weight -= 0.01 * *first / (second.sqrt() + 1e-8);
                }
            }
        }
    }

    /// Each tensor of this rank with its key. Without elements it is what a load is asked for.
    fn state(&self, with_data: bool) -> Result<StateDict, Error> {
        let mut state = StateDict::new();
        let cut = [Placement::Shard(0)];
        for shard in &self.shards {
            let name = shard.name;
            let tensors = [
                (format!("model.{name}"), &shard.weight),
                (format!("optim.state.{name}.exp_avg"), &shard.exp_avg),
                (format!("optim.state.{name}.exp_avg_sq"), &shard.exp_avg_sq),
            ];
            for (key, elements) in tensors {
                let (mesh, rank) = (&self.mesh, self.rank);
                let pieces = if with_data {
                    let rows =
                        local_chunk(shard.shape[0], mesh.ranks().len() as u64, rank.into()).1;
                    let local = [&[rows], &shard.shape[1..]].concat();
                    let tensor = Tensor::from_vec(&local, elements.clone())?;
                    ShardedTensor::from_mesh(&key, tensor, mesh, &cut, shard.shape, rank)?
                } else {
                    ShardedTensor::declare_mesh(
                        &key,
                        DType::Float32,
                        mesh,
                        &cut,
                        shard.shape,
                        rank,
                    )?
                };
                state.insert_pieces(pieces);
            }
        }
        state.insert("step", self.step);
        Ok(state)
    }

    fn save(&self, group: &LocalGroup, place: &Path) -> Result<(), Error> {
        let state = self.state(true)?;
        let saved = blocking::run(save(&state, place).group(group).dialect(Dialect::Dcp))?;
        if self.rank == 0 {
            println!("{saved}");
        }
        Ok(())
    }

    /// Rank `rank` of a job with another number of ranks, where a checkpoint was saved.
    fn resume(rank: u32, group: &LocalGroup, place: &Path) -> Result<Self, Error> {
        let mut job = Self::new(rank, group.size())?;
        let template = job.state(false)?;
        let mut loaded = blocking::run(load(template, place).group(group))?;
        for shard in &mut job.shards {
            let name = shard.name;
            for (key, elements) in [
                (format!("model.{name}"), &mut shard.weight),
                (format!("optim.state.{name}.exp_avg"), &mut shard.exp_avg),
                (
                    format!("optim.state.{name}.exp_avg_sq"),
                    &mut shard.exp_avg_sq,
                ),
            ] {
                // A rank without rows has asked for nothing.
                if !elements.is_empty() {
                    *elements = loaded.take_tensor(&key)?.to_vec()?;
                }
            }
        }
        job.step = loaded.int("step")?;
        Ok(job)
    }

    /// The bits of this rank's elements, to compare them.
    fn bits(&self) -> Vec<Vec<u32>> {
        let tensors = self
            .shards
            .iter()
            .flat_map(|s| [&s.weight, &s.exp_avg, &s.exp_avg_sq]);
        tensors
            .map(|t| t.iter().map(|x| x.to_bits()).collect())
            .collect()
    }
}

pub(crate) fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = tempfile::tempdir()?;
    let place = dir.path().join("step-5");
    on_ranks(4, |group| {
        let mut job = Job::new(group.rank().0, 4)?;
        job.train(5);
        job.save(&group, &place)
    })?;

    on_ranks(2, |group| {
        let mut job = Job::resume(group.rank().0, &group, &place)?;
        job.train(5);
        // A job of 2 ranks that was never stopped has the same bits.
        let mut whole = Job::new(group.rank().0, 2)?;
        whole.train(10);
        assert_eq!((job.step, job.bits()), (whole.step, whole.bits()));
        Ok(())
    })?;
    println!("saved by 4 ranks after step 5, resumed by 2: after step 10 every bit is right");
    Ok(())
}

/// Runs ranks on threads of this process.
fn on_ranks(
    ranks: u32,
    rank: impl Fn(LocalGroup) -> Result<(), Error> + Sync,
) -> Result<(), Box<dyn std::error::Error>> {
    std::thread::scope(|scope| {
        let all: Vec<_> = LocalGroup::new(ranks)
            .into_iter()
            .map(|group| scope.spawn(|| rank(group)))
            .collect();
        all.into_iter()
            .try_for_each(|rank| rank.join().expect("a rank panicked"))
    })
    .map_err(|e| e as Box<dyn std::error::Error>)
}

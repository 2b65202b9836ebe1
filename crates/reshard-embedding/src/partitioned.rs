use crate::{Cut, EmbeddingError, Result, ShardedVariable, Tasks, Variable};
use reshard_model::{
    BoxFault, DType, Dims, Region, ShardedTensor, StateDict, Step, Tensor, ValueTree, first_fault,
};
use reshard_policy::partition::Grid;

/// A variable in parts along any axes, so that several tasks share its bytes. `to_tensor` joins the parts.
///
/// ```
/// use reshard_embedding::{PartitionedVariable, ShardedVariable};
/// use reshard_model::{DType, Tensor};
/// use reshard_policy::partition::PartitionSpec;
/// let spec = PartitionSpec::partitions([2, 2]);
/// let w = PartitionedVariable::create("w", &[2, 3], DType::Int64, &spec, 4, |full, offset, shape| {
///     let at = |i: u64| (offset[0] * full[1] + offset[1] + i) as i64;
///     Tensor::from_vec(shape, (0..shape[1]).map(at).collect())
/// })?;
/// assert_eq!(w.to_tensor()?.to_vec::<i64>().unwrap(), [0, 1, 2, 3, 4, 5]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct PartitionedVariable {
    variable: Variable,
}

impl PartitionedVariable {
    /// Makes a variable of existing parts, each with its offsets, all on task 0. The parts may come in any order; they are sorted by
    /// their offsets. Their memory becomes the variable's.
    ///
    /// # Errors
    /// There is no part, the parts differ in element type, don't lie in the shape, overlap or leave a hole, or one is a view with
    /// gaps.
    pub fn from_parts(
        name: &str,
        shape: &[u64],
        parts: impl IntoIterator<Item = (Dims, Tensor)>,
    ) -> Result<Self> {
        let fail = |what: String| Err(EmbeddingError::invalid(name, what));
        let mut parts: Vec<(Region, Tensor)> = parts
            .into_iter()
            .map(|(at, t)| (Region::new(at, t.shape().clone()), t))
            .collect();

        // The order of the offsets is that of a grid that was cut here, so both give the parts the same numbers.
        parts.sort_by(|(a, _), (b, _)| a.cmp(b));
        let Some((_, first)) = parts.first() else {
            return fail("a variable has at least one part".into());
        };
        let dtype = first.dtype();
        if let Some((region, _)) = parts.iter().find(|(region, _)| !region.fits(shape)) {
            return fail(format!(
                "part {region} does not lie in shape {}",
                Dims::from(shape)
            ));
        }

        // The parts come from outside, so nothing yet says that they cover the shape exactly once.
        let regions: Vec<Region> = parts.iter().map(|(region, _)| region.clone()).collect();
        let range = |i: usize, a: usize| regions[i].offsets[a]..regions[i].end(a);
        match first_fault(&Region::whole(shape), regions.len(), range) {
            None => {}
            Some(BoxFault::Overlap(i, j)) => {
                return fail(format!("parts {} and {} overlap", regions[i], regions[j]));
            }
            Some(BoxFault::Hole(hole)) => return fail(format!("no part covers {hole}")),
        }
        let variable = Variable::of_parts(name, dtype, shape, parts)?;
        Ok(Self { variable })
    }

    /// The parts of a grid, on the tasks that come.
    pub(crate) fn on(
        name: &str,
        dtype: DType,
        grid: &Grid,
        tasks: impl IntoIterator<Item = u32>,
    ) -> Result<Self> {
        let parts = grid.regions().zip(tasks);
        let variable = Variable::declare(name, dtype, grid.shape(), parts)?;
        Ok(Self { variable })
    }
}

impl From<ShardedVariable> for PartitionedVariable {
    fn from(sharded: ShardedVariable) -> Self {
        Self {
            variable: sharded.variable,
        }
    }
}

hold_variable!(PartitionedVariable);
make_by_cut!(PartitionedVariable);

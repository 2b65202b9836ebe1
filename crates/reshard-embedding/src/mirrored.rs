use crate::{
    EmbeddingError, Result, Tasks, Variable,
    memory::assembled,
    rows::Rows,
    table::{TableView, View},
};
use reshard_model::{DType, Region, ShardedTensor, StateDict, Step, Tensor, ValueTree};

/// A variable of which every task has a copy. All copies change together, and one of them is saved.
///
/// ```
/// use reshard_embedding::Mirrored;
/// use reshard_model::{DType, Tensor};
/// let mut bias = Mirrored::create("bias", &[2], DType::Float32, 3, |shape| Tensor::from_vec(shape, vec![0f32, 1.]))?;
/// bias.assign_add(&Tensor::from_vec(&[2], vec![1f32, 1.])?)?;
/// let copies: Vec<Vec<f32>> = bias.parts().iter().map(|p| p.data().unwrap().to_vec().unwrap()).collect();
/// assert_eq!(copies, vec![vec![1., 2.]; 3]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Mirrored {
    variable: Variable,
    /// `None` without axes.
    rows: Option<Rows>,
}

impl Mirrored {
    /// Makes a copy on every task. `initializer` is called once with the shape, and its result is copied.
    ///
    /// If each task is a process, each process calls the initializer, so it must return the same in all of them.
    ///
    /// # Errors
    /// There is no task, the initializer fails, or its result has another shape or element type.
    pub fn create(
        name: &str,
        shape: &[u64],
        dtype: DType,
        tasks: impl Into<Tasks>,
        initializer: impl FnOnce(&[u64]) -> reshard_model::Result<Tensor>,
    ) -> Result<Self> {
        let tasks = tasks.into();
        let mut out = Self::declare(name, shape, dtype, tasks)?;
        let made = initializer(shape)?;
        out.variable.check_part(0, &made)?;
        let whole = Region::whole(shape);
        for task in (0..tasks.count()).filter(|&task| tasks.is_here(task)) {
            let copy = assembled(name, dtype, out.shape(), &[(&whole, &made)])?;
            out.variable.put(task as usize, copy)?;
        }
        Ok(out)
    }

    /// As [`create`](Self::create), but without data, for a load.
    ///
    /// # Errors
    /// When there is no task, or the shape is too large.
    pub fn declare(
        name: &str,
        shape: &[u64],
        dtype: DType,
        tasks: impl Into<Tasks>,
    ) -> Result<Self> {
        let tasks = tasks.into().check(name)?;
        let copies = (0..tasks.count()).map(|task| (Region::whole(shape), task));
        let mut variable = Variable::declare(name, dtype, shape, copies)?;
        variable.mirrored = true;
        let rows = shape.first().map(|rows| Rows::new([*rows]));
        Ok(Self { variable, rows })
    }
}

impl View for Mirrored {
    fn view(&self) -> Result<TableView<'_>> {
        let no_rows =
            || EmbeddingError::invalid(self.name(), "a variable without axes has no rows");
        let rows = self.rows.as_ref().ok_or_else(no_rows)?;
        // All copies are equal, so one that lies here will do.
        let copy = self.parts().iter().find_map(|p| p.data());
        Ok(TableView {
            variable: self,
            rows,
            parts: vec![copy],
        })
    }
}

hold_variable!(Mirrored);

//! Tables: variables whose rows can be looked up.

use crate::{EmbeddingError, Result, Variable, rows::Rows};
use reshard_model::{Dims, Tensor};
use std::ops::Deref;

/// A variable whose rows can be looked up: a [`ShardedVariable`](crate::ShardedVariable), a [`Mirrored`](crate::Mirrored) variable, or
/// either of them as a [`VariableScope`](crate::VariableScope) has made it.
///
/// Only this crate implements it.
pub trait Table: View {}

/// How lookups see a table.
pub trait View {
    /// Its rows, and the parts that lie in this process.
    fn view(&self) -> Result<TableView<'_>>;
}

impl<T: View> Table for T {}

/// The rows of a table, and the parts that lie in this process. A mirrored variable has one part, which every task may have.
#[derive(Clone, Debug)]
pub struct TableView<'a> {
    pub(crate) variable: &'a Variable,
    pub(crate) rows: &'a Rows,
    /// The data of each part; `None` for those that do not lie here.
    pub(crate) parts: Vec<Option<&'a Tensor>>,
}

/// Name, shape and element type.
impl Deref for TableView<'_> {
    type Target = Variable;
    fn deref(&self) -> &Variable {
        self.variable
    }
}

impl<'a> TableView<'a> {
    /// Shape of a row: the axes after the first.
    pub(crate) fn row_shape(&self) -> &'a [u64] {
        self.variable.shape().get(1..).unwrap_or_default()
    }

    /// Bytes of a row.
    pub(crate) fn row_bytes(&self) -> usize {
        // The shape with 1 in place of the rows fits the memory, as was checked when the variable was declared.
        (self.row_shape().iter().product::<u64>() * self.dtype().size()) as usize
    }

    /// These axes, followed by those of a row.
    pub(crate) fn shape_of_rows(&self, axes: &[u64]) -> Dims {
        axes.iter().chain(self.row_shape()).copied().collect()
    }

    /// Shape of a part.
    pub(crate) fn shape_of(&self, part: usize) -> Dims {
        self.shape_of_rows(&[self.rows.len(part)])
    }

    /// The error for an id without a row.
    pub(crate) fn out_of_range(&self, id: i64, at: usize) -> EmbeddingError {
        let why = match self.rows.total() {
            0 => "there are no rows".into(),
            n => format!("rows are 0 to {}", n - 1),
        };
        EmbeddingError::IdOutOfRange {
            name: self.name().into(),
            id,
            at,
            why,
        }
    }
}

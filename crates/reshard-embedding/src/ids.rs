use crate::{EmbeddingError, Result};
use reshard_model::{DType, Dims, Element, Tensor};
use std::borrow::Cow;

/// Ids of rows, in a tensor of any shape. The result of a lookup has this shape, followed by the axes of a row.
///
/// ```
/// use reshard_embedding::Ids;
/// use reshard_model::Tensor;
/// let list: Ids<'_> = (&[3, 1, 3]).into();
/// assert_eq!(list.shape(), &[3]);
/// let matrix = Ids::of(&Tensor::from_vec(&[2, 2], vec![3i32, 1, 3, 0])?)?;
/// assert_eq!((matrix.shape(), matrix.values()), ([2, 2].as_slice(), [3, 1, 3, 0].as_slice()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ids<'a> {
    values: Cow<'a, [i64]>,
    shape: Dims,
}

impl<'a> Ids<'a> {
    /// Ids in this shape, row-major.
    ///
    /// # Errors
    /// The number of ids is not the volume of the shape.
    pub fn shaped(values: impl Into<Cow<'a, [i64]>>, shape: &[u64]) -> Result<Self> {
        let (values, shape) = (values.into(), Dims::from(shape));
        if shape.volume() != Some(values.len() as u64) {
            let what = format!("{} given for shape {shape}", values.len());
            return Err(EmbeddingError::invalid("ids", what));
        }
        Ok(Self { values, shape })
    }

    /// The ids in a tensor of integers: of up to 32 bits, or signed 64-bit ones.
    ///
    /// # Errors
    /// When its elements are something else.
    pub fn of(tensor: &Tensor) -> Result<Self> {
        let values = match tensor.dtype() {
            DType::Int64 => tensor.to_vec().ok(),
            DType::Int32 => widened::<i32>(tensor),
            DType::Int16 => widened::<i16>(tensor),
            DType::Int8 => widened::<i8>(tensor),
            DType::UInt32 => widened::<u32>(tensor),
            DType::UInt16 => widened::<u16>(tensor),
            DType::UInt8 => widened::<u8>(tensor),
            _ => None,
        };
        let Some(values) = values else {
            let what = format!(
                "elements are {}, but ids must be int64, or integers of fewer bits",
                tensor.dtype()
            );
            return Err(EmbeddingError::invalid("ids", what));
        };
        Ok(Self {
            values: values.into(),
            shape: tensor.shape().clone(),
        })
    }

    /// The ids, row-major.
    pub fn values(&self) -> &[i64] {
        &self.values
    }

    /// Their shape.
    pub fn shape(&self) -> &[u64] {
        &self.shape
    }
}

fn widened<T: Element + Into<i64>>(tensor: &Tensor) -> Option<Vec<i64>> {
    let values = tensor.to_vec::<T>().ok()?;
    Some(values.into_iter().map(Into::into).collect())
}

impl<'a> From<&'a [i64]> for Ids<'a> {
    fn from(values: &'a [i64]) -> Self {
        Self {
            values: values.into(),
            shape: [values.len() as u64].into(),
        }
    }
}

impl<'a, const N: usize> From<&'a [i64; N]> for Ids<'a> {
    fn from(values: &'a [i64; N]) -> Self {
        values.as_slice().into()
    }
}

impl<'a> From<&'a Vec<i64>> for Ids<'a> {
    fn from(values: &'a Vec<i64>) -> Self {
        values.as_slice().into()
    }
}

impl From<Vec<i64>> for Ids<'_> {
    fn from(values: Vec<i64>) -> Self {
        let shape = [values.len() as u64].into();
        Self {
            values: values.into(),
            shape,
        }
    }
}

impl<'a> From<&'a Ids<'_>> for Ids<'a> {
    fn from(ids: &'a Ids<'_>) -> Self {
        Self {
            values: Cow::Borrowed(&ids.values),
            shape: ids.shape.clone(),
        }
    }
}

//! Arrays and scalars of numpy, as far as they appear in checkpoints.

use super::{args, float};
use reshard::{Value, model::Opaque};

/// An array: its dtype's name, its shape, and each element as text, in row-major order.
pub(super) struct Array {
    pub(super) dtype: &'static str,
    pub(super) shape: Vec<usize>,
    pub(super) elements: Vec<String>,
}

impl Array {
    /// Of what `numpy.ndarray.__reduce__` gives; `None` when it is not understood.
    pub(super) fn of(o: &Opaque) -> Option<Self> {
        let [_, shape, dtype, fortran, Value::Bytes(data)] = o.state.as_ref()?.as_seq()? else {
            return None;
        };
        let shape: Option<Vec<usize>> = shape
            .as_seq()?
            .iter()
            .map(|v| usize::try_from(v.as_int()?).ok())
            .collect();
        let shape = shape?;
        let (dtype, elements) = elements(dtype, data)?;
        if elements.len() != shape.iter().product::<usize>() {
            return None;
        }
        let elements = if *fortran == Value::Bool(true) {
            row_major(&shape, &elements)
        } else {
            elements
        };
        Some(Self {
            dtype,
            shape,
            elements,
        })
    }
}

/// A scalar, of what `numpy.generic.__reduce__` gives.
pub(super) fn scalar(o: &Opaque) -> Option<(&'static str, String)> {
    let [dtype, Value::Bytes(data)] = args(o) else {
        return None;
    };
    let (dtype, mut elements) = elements(dtype, data)?;
    (elements.len() == 1).then(|| (dtype, elements.remove(0)))
}

fn elements(dtype: &Value, data: &[u8]) -> Option<(&'static str, Vec<String>)> {
    let Value::Opaque(dtype) = dtype else {
        return None;
    };
    // The order of bytes, and whatever else `__setstate__` gets; '|' where there is none.
    let order = dtype
        .state
        .as_ref()
        .and_then(|s| s.as_seq()?.get(1)?.as_str());
    if order == Some(">") {
        return None;
    }
    macro_rules! ints {
        ($name:literal, $t:ty) => {{
            let (all, []) = data.as_chunks::<{ size_of::<$t>() }>() else {
                return None;
            };
            (
                $name,
                all.iter()
                    .map(|c| <$t>::from_le_bytes(*c).to_string())
                    .collect(),
            )
        }};
    }
    macro_rules! floats {
        ($name:literal, $t:ty) => {{
            let (all, []) = data.as_chunks::<{ size_of::<$t>() }>() else {
                return None;
            };
            // The shortest digits of the element's own type, not of the f64.
            (
                $name,
                all.iter()
                    .map(|c| short(&<$t>::from_le_bytes(*c).to_string()))
                    .collect(),
            )
        }};
    }
    Some(match args(dtype).first()?.as_str()? {
        "b1" => (
            "bool",
            data.iter()
                .map(|b| if *b == 0 { "False" } else { "True" }.to_owned())
                .collect(),
        ),
        "u1" => ints!("uint8", u8),
        "u2" => ints!("uint16", u16),
        "u4" => ints!("uint32", u32),
        "u8" => ints!("uint64", u64),
        "i1" => ints!("int8", i8),
        "i2" => ints!("int16", i16),
        "i4" => ints!("int32", i32),
        "i8" => ints!("int64", i64),
        "f4" => floats!("float32", f32),
        "f8" => floats!("float64", f64),
        _ => return None,
    })
}

/// A float as numpy writes it in arrays: `1.` for one.
fn short(text: &str) -> String {
    match text.parse::<f64>() {
        Ok(v) if !v.is_finite() => float(v),
        _ if text.contains('.') => text.into(),
        _ => format!("{text}."),
    }
}

fn row_major(shape: &[usize], elements: &[String]) -> Vec<String> {
    let at = |mut n: usize| {
        let mut index = vec![0; shape.len()];
        for (i, extent) in index.iter_mut().zip(shape).rev() {
            (*i, n) = (n % extent, n / extent);
        }
        index
            .iter()
            .zip(shape)
            .rev()
            .fold(0, |at, (i, extent)| at * extent + i)
    };
    (0..elements.len())
        .map(|n| elements[at(n)].clone())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_first_becomes_rows_first() {
        let stored: Vec<String> = [0, 3, 1, 4, 2, 5].iter().map(ToString::to_string).collect();
        assert_eq!(row_major(&[2, 3], &stored).concat(), "012345");
    }
}

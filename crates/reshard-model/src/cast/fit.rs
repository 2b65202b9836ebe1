//! Whether an int type holds the values that it is to get.

use super::{
    part, range,
    wide::{BLOCK, Wide},
};
use crate::{DType, ModelError, Result, Tensor};

/// Checks that [`Tensor::cast`] to an int type changes no element of a tensor, except that floats lose their fraction, and complex numbers their
/// imaginary part. Other types than ints have room for every value, so nothing is checked for these.
///
/// ```
/// use reshard_model::{DType, Tensor, cast::check_fit};
/// let t = Tensor::from_vec(&[2], vec![1.5f32, 300.])?;
/// assert!(check_fit("w", &t, DType::Int16).is_ok());
/// let e = check_fit("w", &t, DType::UInt8).unwrap_err();
/// assert!(e.to_string().starts_with("w: element [1] is 300, which uint8 can't hold"));
/// # Ok::<(), reshard_model::ModelError>(())
/// ```
///
/// # Errors
/// [`ModelError::Invalid`] names the first element that does not fit, by its index: its value is too large or too small, or no number.
pub fn check_fit(key: &str, tensor: &Tensor, to: DType) -> Result<()> {
    let Some(bounds) = range::bounds(to) else {
        return Ok(());
    };
    let (mut before, from) = (0u64, tensor.dtype());
    for block in tensor.blocks((BLOCK as u64) * from.size()) {
        if let Some((at, value)) = outside(from, &block, bounds) {
            let index = tensor.shape().index_of(before.saturating_add(at as u64));
            let what = format!(
                "element {index} is {value}, which {to} can't hold; choose a type that holds it, or read the elements as {from} and let `Tensor::cast` \
                 convert them"
            );
            return Err(ModelError::invalid(key, what));
        }
        before = before.saturating_add(block.len() as u64 / from.size());
    }
    Ok(())
}

/// The first of at most [`BLOCK`] elements that lies outside, and its value.
fn outside(from: DType, src: &[u8], (min, max): (i128, i128)) -> Option<(usize, String)> {
    let count = src.len() / from.size() as usize;
    if let Some(half) = part(from) {
        let real = half.size() as usize;
        let reals: Vec<u8> =
            (src.chunks_exact(2 * real).flat_map(|z| &z[..real]).copied()).collect();
        return outside(half, &reals, (min, max));
    }
    let mut ints = [0i128; BLOCK];
    let ints = &mut ints[..count.min(BLOCK)];
    if i128::decode(from, src, ints) {
        let at = ints.iter().position(|v| *v < min || *v > max)?;
        return Some((at, ints[at].to_string()));
    }
    let mut floats = [0f64; BLOCK];
    let floats = &mut floats[..count.min(BLOCK)];
    // What is not known is refused by the cast.
    if !f64::decode(from, src, floats) {
        return None;
    }
    // The bound above is a power of two, so a float holds it. NaN is in no range.
    let (min, end) = (min as f64, (max + 1) as f64);
    let at = floats
        .iter()
        .position(|v| !(min..end).contains(&v.trunc()))?;
    Some((at, floats[at].to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(t: &Tensor, to: DType) -> Option<String> {
        check_fit("w", t, to).err().map(|e| e.to_string())
    }

    #[test]
    fn a_value_that_an_int_type_does_not_hold_is_named_with_its_index() {
        let ints = Tensor::from_vec(&[2, 2], vec![0i64, 255, -128, 7]).unwrap();
        let e = text(&ints, DType::UInt8).unwrap();
        assert!(
            e.starts_with("w: element [1, 0] is -128, which uint8 can't hold; "),
            "{e}"
        );
        assert!(
            e.ends_with("read the elements as int64 and let `Tensor::cast` convert them"),
            "{e}"
        );
        assert!(text(&ints, DType::Int8).unwrap().contains("[0, 1] is 255"));
        assert_eq!(text(&ints, DType::Int16), None);
        // Of the same width.
        let signed = Tensor::from_vec(&[1], vec![-1i32]).unwrap();
        assert!(text(&signed, DType::UInt32).is_some());
        assert!(text(&signed, DType::UInt64).is_some());
        let unsigned = Tensor::from_vec(&[1], vec![u64::MAX]).unwrap();
        assert!(text(&unsigned, DType::Int64).is_some());
        assert_eq!(text(&unsigned, DType::UInt64), None);
    }

    #[test]
    fn a_float_may_lose_its_fraction_and_nothing_else() {
        let one = |v: f64| Tensor::from_vec(&[1], vec![v]).unwrap();
        for (v, fits) in [
            (255.9, true),
            (256., false),
            (-0.9, true),
            (-1., false),
            (f64::NAN, false),
            (f64::INFINITY, false),
        ] {
            assert_eq!(text(&one(v), DType::UInt8).is_none(), fits, "{v}");
        }
        // The largest int64 is no float64; the next one is too large.
        assert_eq!(text(&one(9_223_372_036_854_774_784.), DType::Int64), None);
        assert!(text(&one(9_223_372_036_854_775_808.), DType::Int64).is_some());
        assert_eq!(text(&one(-9_223_372_036_854_775_808.), DType::Int64), None);
        let complex = Tensor::from_vec(&[2], vec![[1f32, 900.], [300., 0.]]).unwrap();
        assert!(text(&complex, DType::UInt8).unwrap().contains("[1] is 300"));
        // Other types take what they get.
        assert_eq!(text(&one(1e300), DType::Float16), None);
        assert_eq!(text(&one(7.), DType::Bool), None);
    }

    #[test]
    fn blocks_count_their_elements() {
        let mut all = vec![0u16; 3 * BLOCK];
        all[2 * BLOCK + 5] = 256;
        let t = Tensor::from_vec(&[3 * BLOCK as u64], all).unwrap();
        let at = format!("element [{}] is 256", 2 * BLOCK + 5);
        assert!(text(&t, DType::UInt8).unwrap().contains(&at));
    }
}

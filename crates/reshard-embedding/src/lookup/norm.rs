use super::Clip;
use crate::{
    EmbeddingError, Result, Variable,
    number::{Float, Real, elements, map, with_float},
};
use reshard_model::DType;

/// How rows of this element type are clipped; `None` for types without norms.
pub(super) fn clip(dtype: DType) -> Option<Clip> {
    with_float!(dtype, T => clip_row::<T> as Clip)
}

/// Whether rows can be multiplied by it: infinity would make each of them NaN.
pub(super) fn check(bound: f64, table: &Variable) -> Result<()> {
    let most = if table.dtype() == DType::Float64 {
        f64::MAX
    } else {
        f32::MAX.into()
    };
    if bound.abs() <= most {
        return Ok(());
    }
    let what = if bound.is_nan() {
        "not a number"
    } else {
        "more than can be computed with; leave it out"
    };
    Err(EmbeddingError::invalid(
        table.name(),
        format!("max_norm {bound} is {what}"),
    ))
}

fn clip_row<T: Float>(row: &mut [u8], bound: f64) {
    let bound = T::Wide::of(bound.max(0.0));
    let squares = sum_of_squares::<T>(row);
    let norm = if squares > T::Wide::ZERO {
        squares.sqrt()
    } else {
        squares
    };
    // Written so that a norm that is NaN stays one.
    let divisor = if norm < bound { bound } else { norm };
    map(row, |x: T| T::narrow(x.widen() * bound / divisor));
}

/// In eight sums, which are then added pairwise: fast, and more exact than one.
fn sum_of_squares<T: Float>(row: &[u8]) -> T::Wide {
    let mut sums = [T::Wide::ZERO; 8];
    for block in row.chunks(8 * size_of::<T>()) {
        for (sum, x) in sums.iter_mut().zip(elements::<T>(block)) {
            let x = x.widen();
            *sum = *sum + x * x;
        }
    }
    let [a, b, c, d, e, f, g, h] = sums;
    ((a + e) + (c + g)) + ((b + f) + (d + h))
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::{bf16, f16};

    fn clipped<T: Float>(row: &[T], bound: f64, dtype: DType) -> Vec<T> {
        let mut bytes = bytemuck::cast_slice::<T, u8>(row).to_vec();
        clip(dtype).unwrap()(&mut bytes, bound);
        bytemuck::pod_collect_to_vec(&bytes)
    }

    #[test]
    fn multiplication_comes_before_division() {
        let x = 0.1f32;
        // 0.1 * 3 / 3 is not 0.1
        assert_eq!(clipped(&[x], 3.0, DType::Float32), [x * 3.0 / 3.0]);
        assert_eq!(clipped(&[3f64, 4.0], 2.5, DType::Float64), [1.5, 2.0]);
    }

    #[test]
    fn rows_that_have_no_norm_become_what_tensorflow_makes_of_them() {
        let f = |row: &[f32], bound| clipped(row, bound, DType::Float32);
        assert!(f(&[f32::NAN, 1.0], 1.0).iter().all(|x| x.is_nan()));
        let inf = f(&[f32::INFINITY, 1.0], 1.0);
        assert!(inf[0].is_nan() && inf[1] == 0.0);
        assert_eq!(f(&[1e30, 1e30], 1.0), [0.0, 0.0]); // the sum of squares overflows
        assert!(f(&[0.0], 0.0)[0].is_nan());
        assert_eq!(f(&[2.0, 0.0], 0.0), [0.0, 0.0]);
        assert_eq!(f(&[2.0], -1.0), [0.0]);
        assert_eq!(f(&[], 1.0), [0f32; 0]);
    }

    #[test]
    fn sixteen_bit_rows_are_computed_in_float32() {
        let h = clipped(&[f16::from_f32(300.0); 2], 1.0, DType::Float16); // 300 squared is no float16
        assert_eq!(h, [f16::from_f32(0.5f32.sqrt()); 2]);
        let b = clipped(
            &[bf16::from_f32(3.0), bf16::from_f32(4.0)],
            1.0,
            DType::BFloat16,
        );
        assert_eq!(b, [bf16::from_f32(0.6), bf16::from_f32(0.8)]);
        assert!(clip(DType::Int32).is_none() && clip(DType::Float8E5M2).is_none());
    }
}

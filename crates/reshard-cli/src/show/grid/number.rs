//! Elements as text.

use crate::{
    error::{CliError, Result},
    json::{are_ints, elements},
};
use half::{bf16, f16};
use reshard::{DType, Tensor, model::Element};
use std::fmt::Display;

/// The elements in row-major order, as short as their type allows.
pub(in crate::show) fn texts(t: &Tensor) -> Result<Vec<String>> {
    match t.dtype() {
        DType::Bool => of(t, |is: bool| if is { "True" } else { "False" }.into()),
        DType::UInt64 => of(t, |n: u64| n.to_string()),
        int if are_ints(int) => of(t, |n: i64| n.to_string()),
        DType::Float64 => of(t, |x: f64| float(x, x)),
        DType::Complex128 => of(t, |[re, im]: [f64; 2]| {
            complex(&float(re, re), &float(im, im))
        }),
        DType::BFloat16 => of(t, |x: bf16| {
            short(x.to_f32(), |x| bf16::from_f32(x).to_f32())
        }),
        DType::Float16 => of(t, |x: f16| short(x.to_f32(), |x| f16::from_f32(x).to_f32())),
        narrow if narrow.is_complex() => {
            of(t, |[re, im]: [f32; 2]| complex(&single(re), &single(im)))
        }
        _ => of(t, single),
    }
}

/// The error for elements that are no numbers here.
pub(in crate::show) fn unknown(t: &Tensor) -> CliError {
    CliError::told(
        format!("elements of type {} can't be shown", t.dtype()),
        "`reshard digest` prints their SHA-256",
    )
}

fn of<T: Element>(t: &Tensor, text: impl Fn(T) -> String) -> Result<Vec<String>> {
    let all = elements(t).ok_or_else(|| unknown(t))?;
    Ok(all.into_iter().map(text).collect())
}

fn single(x: f32) -> String {
    float(x, x.into())
}

/// The shortest number that is rounded to this one.
fn short(x: f32, rounded: impl Fn(f32) -> f32) -> String {
    let candidates = (0..9).filter_map(|digits| format!("{x:.digits$e}").parse().ok());
    let found = candidates
        .into_iter()
        .find(|candidate| rounded(*candidate) == x);
    single(found.unwrap_or(x))
}

/// With an exponent if it is very large or very small.
fn float(x: impl Display + std::fmt::LowerExp, size: f64) -> String {
    match size.abs() {
        s if s.is_nan() => "nan".into(),
        s if s.is_finite() && s != 0.0 && !(1e-4..1e16).contains(&s) => format!("{x:e}"),
        _ => format!("{x}"),
    }
}

fn complex(re: &str, im: &str) -> String {
    let sign = if im.starts_with('-') { "" } else { "+" };
    format!("{re}{sign}{im}j")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_as_short_as_their_type_allows() {
        let t = Tensor::from_vec(&[5], vec![0.1f32, -2.0, 1e-7, f32::NAN, f32::NEG_INFINITY]);
        assert_eq!(
            texts(&t.unwrap()).unwrap(),
            ["0.1", "-2", "1e-7", "nan", "-inf"]
        );
        let t = Tensor::from_vec(&[2], vec![0.1f32, 3.0]).unwrap();
        let half = texts(&t.cast(DType::BFloat16).unwrap()).unwrap();
        assert_eq!(half, ["0.1", "3"]);
        let t = Tensor::from_vec(&[3], vec![0.1f32, 65504.0, 1e-6]).unwrap();
        let half = texts(&t.cast(DType::Float16).unwrap()).unwrap();
        assert_eq!(half, ["0.1", "65500", "1e-6"]);
        let t = Tensor::from_vec(&[1], vec![[1.5f32, -2.0]]).unwrap();
        assert_eq!(texts(&t).unwrap(), ["1.5-2j"]);
        let half = t.cast(DType::Complex32).unwrap();
        assert_eq!(texts(&half).unwrap(), ["1.5-2j"]);
        let t = Tensor::from_vec(&[2], vec![true, false]).unwrap();
        assert_eq!(texts(&t).unwrap(), ["True", "False"]);
    }
}

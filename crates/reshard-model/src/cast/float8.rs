//! The float8 kinds of OCP and of Graphcore/AMD (`fnuz`), bit by bit, as PyTorch has them.

use crate::DType;

/// One kind with sign, exponent and mantissa.
#[derive(Clone, Copy)]
pub(super) struct Kind {
    /// Bits of the mantissa.
    mantissa: u32,
    bias: i32,
    /// No negative zero; its bits are the one NaN. No infinities.
    fnuz: bool,
    /// Has infinities.
    infinite: bool,
}

impl Kind {
    pub(super) fn of(d: DType) -> Option<Self> {
        let kind = |mantissa, bias, fnuz, infinite| {
            Some(Self {
                mantissa,
                bias,
                fnuz,
                infinite,
            })
        };
        match d {
            DType::Float8E4M3Fn => kind(3, 7, false, false),
            DType::Float8E4M3FnUz => kind(3, 8, true, false),
            DType::Float8E5M2 => kind(2, 15, false, true),
            DType::Float8E5M2FnUz => kind(2, 16, true, false),
            _ => None,
        }
    }

    pub(super) fn decode(self, byte: u8) -> f32 {
        let magnitude = i32::from(byte & 0x7f);
        let sign = if byte & 0x80 == 0 { 1.0 } else { -1.0 };
        let (mantissa, exponent) = (
            magnitude & ((1 << self.mantissa) - 1),
            magnitude >> self.mantissa,
        );
        let top = (0x7f >> self.mantissa) == exponent;
        if self.fnuz && byte == 0x80 || !self.fnuz && !self.infinite && magnitude == 0x7f {
            return f32::NAN;
        }
        if self.infinite && top {
            return if mantissa == 0 {
                sign * f32::INFINITY
            } else {
                f32::NAN
            };
        }
        let unit = 1 - self.bias - self.mantissa as i32;
        if exponent == 0 {
            return sign * mantissa as f32 * power(unit);
        }
        sign * (mantissa + (1 << self.mantissa)) as f32 * power(unit + exponent - 1)
    }

    /// To nearest even. What is too large becomes infinity; where there is none, NaN in the `fnuz` kinds, the largest number
    /// in e4m3fn (as in PyTorch 2.15; before, it was NaN there too).
    pub(super) fn encode(self, value: f32) -> u8 {
        let bits = value.to_bits();
        let (sign, magnitude) = ((bits >> 24 & 0x80) as u8, bits & 0x7fff_ffff);
        if magnitude > f32::INFINITY.to_bits() {
            return if self.fnuz { 0x80 } else { sign | 0x7f };
        }
        let shift = 23 - self.mantissa;
        let least_normal = (128 - self.bias as u32) << 23;
        let rounded = if magnitude < least_normal {
            // Adding this number leaves the wanted bits at the end of the sum, rounded by the processor.
            let anchor = power(1 - self.bias - self.mantissa as i32 + 23);
            (f32::from_bits(magnitude) + anchor).to_bits() - anchor.to_bits()
        } else {
            let even = (magnitude >> shift) & 1;
            (magnitude - least_normal + (1 << 23) + (1 << (shift - 1)) - 1 + even) >> shift
        };
        let overflow = match (self.fnuz, self.infinite) {
            (true, _) => 0x80,
            (false, true) => 0x7c,
            (false, false) => 0x7e,
        };
        match rounded.min(overflow) as u8 {
            0 if self.fnuz => 0,
            byte => sign | byte,
        }
    }
}

/// Two to the power of `e`, which is a normal number.
fn power(e: i32) -> f32 {
    f32::from_bits(((e + 127) as u32) << 23)
}

/// float8_e8m0fnu: powers of two from 2^-127; 255 is NaN.
pub(super) fn decode_e8m0(byte: u8) -> f32 {
    match byte {
        0 => f32::from_bits(0x0040_0000),
        255 => f32::NAN,
        e => f32::from_bits(u32::from(e) << 23),
    }
}

/// The nearest power of two; of two equally near the larger one, but the smaller one for the least. Signs are dropped, and
/// zero becomes 2^-127, as in PyTorch.
pub(super) fn encode_e8m0(value: f32) -> u8 {
    let bits = value.to_bits();
    let (exponent, mantissa) = (bits >> 23 & 0xff, bits & 0x007f_ffff);
    let up = exponent < 255 && (mantissa > 0x0040_0000 || mantissa == 0x0040_0000 && exponent > 0);
    (exponent + u32::from(up)) as u8
}

//! Reads and writes the instructions of a pickle, one by one.

use std::fmt;

/// Declares every opcode once: its byte, its name, and how its argument is encoded.
macro_rules! ops {
    ($($(#[$doc:meta])* $code:literal $name:ident $(($arg:ty))? = $kind:ident;)*) => {
        /// One instruction of a pickle, protocols 0 to 5, with its argument as it stands in the input.
        ///
        /// Text arguments of the old protocols are raw lines, without their newline.
        #[derive(Clone, Copy, Debug, PartialEq)]
        #[non_exhaustive]
        #[expect(missing_docs, reason = "the names are those of Python's pickletools")]
        pub enum Op<'a> { $($(#[$doc])* $name $(($arg))?,)* }

        impl<'a> Op<'a> {
            /// The opcode's byte.
            pub fn code(&self) -> u8 {
                match self { $(ops!(@pat $name $(($arg))?) => $code,)* }
            }

            /// Appends the instruction to `out`. An argument must fit the length field of its opcode; the caller
            /// sees to it, as [`Emitter`](super::Emitter) does.
            pub fn write(&self, out: &mut Vec<u8>) {
                out.push(self.code());
                match self { $(ops!(@bind $name $(($arg))? arg) => { ops!(@write $kind, out $(, arg as $arg)?); })* }
            }
        }

        impl<'a> Reader<'a> {
            #[inline(always)]
            fn decode(&mut self, code: u8) -> Result<Op<'a>, Trouble> {
                Ok(match code { $($code => ops!(@read $kind self $name $(($arg))?),)* _ => return Err(Trouble::Opcode(code)) })
            }
        }
    };
    (@pat $name:ident) => { Self::$name };
    (@pat $name:ident ($arg:ty)) => { Self::$name(_) };
    (@bind $name:ident $a:ident) => { Self::$name };
    (@bind $name:ident ($arg:ty) $a:ident) => { Self::$name($a) };
    (@write none, $out:ident) => {};
    (@write $kind:ident, $out:ident, $a:ident as $t:ty) => { put::$kind($out, *$a) };
    (@read none $r:ident $name:ident) => { Op::$name };
    (@read $kind:ident $r:ident $name:ident ($arg:ty)) => { Op::$name(get::$kind($r)?) };
}

ops! {
    b'(' Mark = none;
    b'.' Stop = none;
    b'0' Pop = none;
    b'1' PopMark = none;
    b'2' Dup = none;
    b'F' Float(&'a [u8]) = line;
    b'I' Int(&'a [u8]) = line;
    b'J' BinInt(i32) = i32;
    b'K' BinInt1(u8) = u8;
    b'L' Long(&'a [u8]) = line;
    b'M' BinInt2(u16) = u16;
    b'N' None = none;
    b'P' PersId(&'a [u8]) = line;
    b'Q' BinPersId = none;
    b'R' Reduce = none;
    b'S' String(&'a [u8]) = line;
    b'T' BinString(&'a [u8]) = bytes_i32;
    b'U' ShortBinString(&'a [u8]) = bytes_u8;
    b'V' Unicode(&'a [u8]) = line;
    b'X' BinUnicode(&'a [u8]) = bytes_u32;
    b'a' Append = none;
    b'b' Build = none;
    b'c' Global((&'a [u8], &'a [u8])) = two_lines;
    b'd' Dict = none;
    b'}' EmptyDict = none;
    b'e' Appends = none;
    b'g' Get(&'a [u8]) = line;
    b'h' BinGet(u8) = u8;
    b'i' Inst((&'a [u8], &'a [u8])) = two_lines;
    b'j' LongBinGet(u32) = u32;
    b'l' List = none;
    b']' EmptyList = none;
    b'o' Obj = none;
    b'p' Put(&'a [u8]) = line;
    b'q' BinPut(u8) = u8;
    b'r' LongBinPut(u32) = u32;
    b's' SetItem = none;
    b't' Tuple = none;
    b')' EmptyTuple = none;
    b'u' SetItems = none;
    b'G' BinFloat(f64) = f64;
    b'B' BinBytes(&'a [u8]) = bytes_u32;
    b'C' ShortBinBytes(&'a [u8]) = bytes_u8;
    0x80 Proto(u8) = u8;
    0x81 NewObj = none;
    0x82 Ext1(u8) = u8;
    0x83 Ext2(u16) = u16;
    0x84 Ext4(i32) = i32;
    0x85 Tuple1 = none;
    0x86 Tuple2 = none;
    0x87 Tuple3 = none;
    0x88 NewTrue = none;
    0x89 NewFalse = none;
    0x8a Long1(&'a [u8]) = bytes_u8;
    0x8b Long4(&'a [u8]) = bytes_i32;
    0x8c ShortBinUnicode(&'a [u8]) = bytes_u8;
    0x8d BinUnicode8(&'a [u8]) = bytes_u64;
    0x8e BinBytes8(&'a [u8]) = bytes_u64;
    0x8f EmptySet = none;
    0x90 AddItems = none;
    0x91 FrozenSet = none;
    0x92 NewObjEx = none;
    0x93 StackGlobal = none;
    0x94 Memoize = none;
    0x95 Frame(u64) = u64;
    0x96 ByteArray8(&'a [u8]) = bytes_u64;
    0x97 NextBuffer = none;
    0x98 ReadOnlyBuffer = none;
}

/// The reason why the next instruction can't be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Trouble {
    /// The input ends before the instruction does.
    Truncated,
    /// A text argument without its newline.
    NoNewline,
    /// A length below zero.
    Negative,
    /// A byte that is no opcode.
    Opcode(u8),
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truncated => f.write_str("the input ends inside an instruction"),
            Self::NoNewline => f.write_str("a line of text has no end"),
            Self::Negative => f.write_str("a length is negative"),
            Self::Opcode(c) => write!(f, "{c:#04x} is not a pickle opcode"),
        }
    }
}

/// Reads instructions from bytes. It checks every length against the input before it uses the length.
///
/// ```
/// use reshard_torch_format::pickle::{Op, Reader};
/// let mut reader = Reader::new(b"\x80\x02K\x07.");
/// assert_eq!(reader.next_op(), Ok(Op::Proto(2)));
/// assert_eq!(reader.next_op(), Ok(Op::BinInt1(7)));
/// assert_eq!((reader.next_op(), reader.offset()), (Ok(Op::Stop), 5));
/// ```
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Starts at the first byte.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, rest: bytes }
    }

    /// Where the next instruction starts, in bytes.
    #[inline(always)]
    pub fn offset(&self) -> usize {
        self.bytes.len() - self.rest.len()
    }

    /// The next instruction.
    ///
    /// # Errors
    /// [`Trouble`]. The position is then somewhere inside the instruction.
    #[inline(always)]
    pub fn next_op(&mut self) -> Result<Op<'a>, Trouble> {
        let (&code, rest) = self.rest.split_first().ok_or(Trouble::Truncated)?;
        self.rest = rest;
        self.decode(code)
    }

    #[inline(always)]
    fn take(&mut self, len: usize) -> Result<&'a [u8], Trouble> {
        let (head, rest) = self.rest.split_at_checked(len).ok_or(Trouble::Truncated)?;
        self.rest = rest;
        Ok(head)
    }

    #[inline(always)]
    fn array<const N: usize>(&mut self) -> Result<[u8; N], Trouble> {
        let (head, rest) = self
            .rest
            .split_first_chunk::<N>()
            .ok_or(Trouble::Truncated)?;
        self.rest = rest;
        Ok(*head)
    }
}

/// Arguments, read.
mod get {
    use super::{Reader, Trouble};
    type R<T> = Result<T, Trouble>;

    #[inline(always)]
    pub(super) fn u8(r: &mut Reader<'_>) -> R<u8> {
        r.array::<1>().map(|[b]| b)
    }
    #[inline(always)]
    pub(super) fn u16(r: &mut Reader<'_>) -> R<u16> {
        r.array().map(u16::from_le_bytes)
    }
    #[inline(always)]
    pub(super) fn u32(r: &mut Reader<'_>) -> R<u32> {
        r.array().map(u32::from_le_bytes)
    }
    #[inline(always)]
    pub(super) fn i32(r: &mut Reader<'_>) -> R<i32> {
        r.array().map(i32::from_le_bytes)
    }
    #[inline(always)]
    pub(super) fn u64(r: &mut Reader<'_>) -> R<u64> {
        r.array().map(u64::from_le_bytes)
    }
    #[inline(always)]
    pub(super) fn f64(r: &mut Reader<'_>) -> R<f64> {
        r.array().map(f64::from_be_bytes)
    }
    #[inline(always)]
    pub(super) fn bytes_u8<'a>(r: &mut Reader<'a>) -> R<&'a [u8]> {
        let n = u8(r)?;
        r.take(usize::from(n))
    }
    #[inline(always)]
    pub(super) fn bytes_u32<'a>(r: &mut Reader<'a>) -> R<&'a [u8]> {
        let n = u32(r)?;
        r.take(usize::try_from(n).map_err(|_| Trouble::Truncated)?)
    }
    pub(super) fn bytes_i32<'a>(r: &mut Reader<'a>) -> R<&'a [u8]> {
        let n = i32(r)?;
        r.take(usize::try_from(n).map_err(|_| Trouble::Negative)?)
    }
    pub(super) fn bytes_u64<'a>(r: &mut Reader<'a>) -> R<&'a [u8]> {
        let n = u64(r)?;
        r.take(usize::try_from(n).map_err(|_| Trouble::Truncated)?)
    }
    pub(super) fn line<'a>(r: &mut Reader<'a>) -> R<&'a [u8]> {
        let end = r
            .rest
            .iter()
            .position(|&b| b == b'\n')
            .ok_or(Trouble::NoNewline)?;
        let text = r.take(end)?;
        r.take(1)?;
        Ok(text)
    }
    pub(super) fn two_lines<'a>(r: &mut Reader<'a>) -> R<(&'a [u8], &'a [u8])> {
        Ok((line(r)?, line(r)?))
    }
}

/// Arguments, written.
mod put {
    type Out = Vec<u8>;

    pub(super) fn u8(out: &mut Out, v: u8) {
        out.push(v);
    }
    pub(super) fn u16(out: &mut Out, v: u16) {
        out.extend_from_slice(&v.to_le_bytes());
    }
    pub(super) fn u32(out: &mut Out, v: u32) {
        out.extend_from_slice(&v.to_le_bytes());
    }
    pub(super) fn i32(out: &mut Out, v: i32) {
        out.extend_from_slice(&v.to_le_bytes());
    }
    pub(super) fn u64(out: &mut Out, v: u64) {
        out.extend_from_slice(&v.to_le_bytes());
    }
    pub(super) fn f64(out: &mut Out, v: f64) {
        out.extend_from_slice(&v.to_be_bytes());
    }
    pub(super) fn bytes_u8(out: &mut Out, v: &[u8]) {
        out.push(v.len() as u8);
        out.extend_from_slice(v);
    }
    pub(super) fn bytes_u32(out: &mut Out, v: &[u8]) {
        u32(out, v.len() as u32);
        out.extend_from_slice(v);
    }
    pub(super) fn bytes_i32(out: &mut Out, v: &[u8]) {
        bytes_u32(out, v);
    }
    pub(super) fn bytes_u64(out: &mut Out, v: &[u8]) {
        u64(out, v.len() as u64);
        out.extend_from_slice(v);
    }
    pub(super) fn line(out: &mut Out, v: &[u8]) {
        out.extend_from_slice(v);
        out.push(b'\n');
    }
    pub(super) fn two_lines(out: &mut Out, v: (&[u8], &[u8])) {
        line(out, v.0);
        line(out, v.1);
    }
}

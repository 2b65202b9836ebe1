//! Reads and writes the instructions of a pickle, one by one.

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
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Trouble {
    /// The input ends before the instruction does.
    #[error("the input ends inside an instruction")]
    Truncated,
    /// A text argument without its newline.
    #[error("a line of text has no end")]
    NoNewline,
    /// A length below zero.
    #[error("a length is negative")]
    Negative,
    /// A byte that is no opcode.
    #[error("{0:#04x} is not a pickle opcode")]
    Opcode(u8),
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

/// The frame that a pickle has announced last.
///
/// Python reads a file by frames. An instruction that crosses the end of its frame makes the reader in C continue at another byte
/// than the one in Python, and than a reader that ignores frames: the first runs instructions that the others take for data.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FrameEnd(usize);

impl FrameEnd {
    /// Whether the instruction `op`, which starts at `at` and ends at `end`, crosses the end of its frame, or opens a frame in a frame.
    #[inline(always)]
    pub(super) fn is_crossed(&mut self, op: &Op<'_>, at: usize, end: usize) -> bool {
        let inside = at < self.0;
        let crossed = inside && end > self.0;
        if let Op::Frame(len) = op {
            self.0 = end.saturating_add(usize::try_from(*len).unwrap_or(usize::MAX));
            return inside;
        }
        crossed
    }
}

/// Declares how arguments are read and written: numbers with the order of their bytes, and bytes behind their length.
macro_rules! arguments {
    (numbers { $($number:ident $from:ident $to:ident,)* } bytes { $($bytes:ident $len:ident $wrong:ident,)* }) => {
        /// Arguments, read.
        mod get {
            use super::{Reader, Trouble};
            type R<T> = Result<T, Trouble>;

            $(#[inline(always)]
            pub(super) fn $number(r: &mut Reader<'_>) -> R<$number> {
                r.array().map($number::$from)
            })*
            $(#[inline(always)]
            pub(super) fn $bytes<'a>(r: &mut Reader<'a>) -> R<&'a [u8]> {
                let n = $len(r)?;
                r.take(usize::try_from(n).map_err(|_| Trouble::$wrong)?)
            })*
            pub(super) fn line<'a>(r: &mut Reader<'a>) -> R<&'a [u8]> {
                let end = r.rest.iter().position(|&b| b == b'\n');
                let text = r.take(end.ok_or(Trouble::NoNewline)?)?;
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

            $(pub(super) fn $number(out: &mut Out, v: $number) {
                out.extend_from_slice(&v.$to());
            })*
            $(pub(super) fn $bytes(out: &mut Out, v: &[u8]) {
                $len(out, v.len() as $len);
                out.extend_from_slice(v);
            })*
            pub(super) fn line(out: &mut Out, v: &[u8]) {
                out.extend_from_slice(v);
                out.push(b'\n');
            }
            pub(super) fn two_lines(out: &mut Out, v: (&[u8], &[u8])) {
                line(out, v.0);
                line(out, v.1);
            }
        }
    };
}

arguments! {
    numbers {
        u8 from_le_bytes to_le_bytes,
        u16 from_le_bytes to_le_bytes,
        u32 from_le_bytes to_le_bytes,
        i32 from_le_bytes to_le_bytes,
        u64 from_le_bytes to_le_bytes,
        f64 from_be_bytes to_be_bytes,
    }
    bytes {
        bytes_u8 u8 Truncated,
        bytes_u32 u32 Truncated,
        bytes_i32 i32 Negative,
        bytes_u64 u64 Truncated,
    }
}

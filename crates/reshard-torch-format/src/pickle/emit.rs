use super::{Op, names};
use crate::{Error, Result};
use std::collections::BTreeMap;

/// Writes a pickle with the same opcodes as CPython.
///
/// Values that Python would hold only once (equal strings, classes) are written once. After that, their memo number refers to them.
/// `torch.save` uses protocol 2, and `pickle.dump` uses protocol 4. Frames are not written; no reader needs them.
///
/// ```
/// use reshard_torch_format::pickle::{Emitter, Op};
/// let mut e = Emitter::new(2);
/// e.str("lr");
/// e.float(0.5);
/// e.tuple(2);
/// e.memoize();
/// assert_eq!(e.finish(), b"\x80\x02X\x02\x00\x00\x00lrq\x00G\x3f\xe0\0\0\0\0\0\0\x86q\x01.");
/// ```
#[derive(Clone, Debug)]
pub struct Emitter {
    out: Vec<u8>,
    protocol: u8,
    next: u32,
    texts: BTreeMap<Box<str>, u32>,
    globals: BTreeMap<(Box<str>, Box<str>), u32>,
}

impl Emitter {
    /// Starts a pickle of protocol 2 to 5.
    pub fn new(protocol: u8) -> Self {
        let protocol = protocol.clamp(2, 5);
        let out = vec![0x80, protocol];
        Self {
            out,
            protocol,
            next: 0,
            texts: BTreeMap::new(),
            globals: BTreeMap::new(),
        }
    }

    /// Writes an instruction as it is.
    pub fn op(&mut self, op: Op<'_>) {
        op.write(&mut self.out);
    }

    /// Gives the last written value the next memo number, and returns this number.
    pub fn memoize(&mut self) -> u32 {
        let id = self.next;
        self.next += 1;
        match u8::try_from(id) {
            _ if self.protocol >= 4 => self.op(Op::Memoize),
            Ok(id) => self.op(Op::BinPut(id)),
            Err(_) => self.op(Op::LongBinPut(id)),
        }
        id
    }

    /// Refers to the value with memo number `id`.
    pub fn get(&mut self, id: u32) {
        match u8::try_from(id) {
            Ok(id) => self.op(Op::BinGet(id)),
            Err(_) => self.op(Op::LongBinGet(id)),
        }
    }

    /// `None`.
    pub fn none(&mut self) {
        self.op(Op::None);
    }

    /// `True` or `False`.
    pub fn bool(&mut self, v: bool) {
        self.op(if v { Op::NewTrue } else { Op::NewFalse });
    }

    /// An int.
    pub fn int(&mut self, v: i64) {
        if let Ok(v) = u8::try_from(v) {
            self.op(Op::BinInt1(v));
        } else if let Ok(v) = u16::try_from(v) {
            self.op(Op::BinInt2(v));
        } else if let Ok(v) = i32::try_from(v) {
            self.op(Op::BinInt(v));
        } else {
            self.long(&v.to_le_bytes());
        }
    }

    /// An unsigned int.
    pub fn uint(&mut self, v: u64) {
        match i64::try_from(v) {
            Ok(v) => self.int(v),
            Err(_) => {
                let mut bytes = [0; 9];
                bytes[..8].copy_from_slice(&v.to_le_bytes());
                self.long(&bytes);
            }
        }
    }

    /// An int of any size, two's complement, least significant byte first.
    pub fn long(&mut self, le: &[u8]) {
        let bytes = super::text::shortest(le);
        self.op(if bytes.len() < 256 {
            Op::Long1(bytes)
        } else {
            Op::Long4(bytes)
        });
    }

    /// A float.
    pub fn float(&mut self, v: f64) {
        self.op(Op::BinFloat(v));
    }

    /// A str. A second str with the same text becomes a reference to the first.
    pub fn str(&mut self, v: &str) {
        if let Some(&id) = self.texts.get(v) {
            return self.get(id);
        }
        self.raw_str(v.as_bytes());
        let id = self.memoize();
        self.texts.insert(v.into(), id);
    }

    /// A str in Python's UTF-8 (`surrogatepass`), written in full and not memoized.
    pub fn raw_str(&mut self, v: &[u8]) {
        let op = match v.len() {
            0..256 if self.protocol >= 4 => Op::ShortBinUnicode(v),
            n if n as u64 > u64::from(u32::MAX) => Op::BinUnicode8(v),
            _ => Op::BinUnicode(v),
        };
        self.op(op);
    }

    /// Bytes. Before protocol 3 they are written as a call that Python 2 understands.
    ///
    /// # Errors
    /// [`Error::Encode`] if they are too long for such a pickle.
    pub fn bytes(&mut self, v: &[u8]) -> Result<()> {
        if self.protocol >= 3 {
            self.op(match v.len() {
                0..256 => Op::ShortBinBytes(v),
                n if n as u64 > u64::from(u32::MAX) => Op::BinBytes8(v),
                _ => Op::BinBytes(v),
            });
            self.memoize();
        } else if v.is_empty() {
            self.global("builtins", "bytes")?;
            self.op(Op::EmptyTuple);
            self.op(Op::Reduce);
            self.memoize();
        } else {
            self.global("_codecs", "encode")?;
            let text: String = v.iter().map(|&b| char::from(b)).collect();
            if text.len() as u64 > u64::from(u32::MAX) {
                return Err(Error::encode("a byte string of more than 4 GiB"));
            }
            // CPython makes this text for the purpose, so it is no other one's memo entry.
            self.raw_str(text.as_bytes());
            self.memoize();
            self.str("latin1");
            self.memoized_tuple(2);
            self.op(Op::Reduce);
            self.memoize();
        }
        Ok(())
    }

    /// Begins a tuple of `n` values. [`tuple`](Self::tuple) ends it.
    pub fn begin_tuple(&mut self, n: usize) {
        if n > 3 {
            self.op(Op::Mark);
        }
    }

    /// Makes a tuple of the last `n` written values. If there are more than 3, call [`begin_tuple`](Self::begin_tuple) before the first.
    pub fn tuple(&mut self, n: usize) {
        self.op(match n {
            0 => Op::EmptyTuple,
            1 => Op::Tuple1,
            2 => Op::Tuple2,
            3 => Op::Tuple3,
            _ => Op::Tuple,
        });
    }

    /// Makes a tuple as [`tuple`](Self::tuple) does, and gives it the next memo number, which the empty one has not.
    pub fn memoized_tuple(&mut self, n: usize) {
        self.tuple(n);
        if n > 0 {
            self.memoize();
        }
    }

    /// A tuple of ints.
    pub fn ints(&mut self, v: &[u64]) {
        self.begin_tuple(v.len());
        v.iter().for_each(|&d| self.uint(d));
        self.tuple(v.len());
    }

    /// A class or function by its module and qualified name.
    ///
    /// # Errors
    /// [`Error::Encode`] when a name holds a line break.
    pub fn global(&mut self, module: &str, name: &str) -> Result<()> {
        let key = (Box::from(module), Box::from(name));
        if let Some(&id) = self.globals.get(&key) {
            self.get(id);
            return Ok(());
        }
        // The old opcode ends names at a line break.
        let has_break = [module, name].iter().any(|s| s.contains(['\n', '\r']));
        let nested = name.matches('.').count();
        if module.is_empty() || name.split('.').any(str::is_empty) || nested > 30 || has_break {
            return Err(Error::encode(format!(
                "{module:?}.{name:?} as the name of a class"
            )));
        }
        if self.protocol >= 4 {
            self.str(module);
            self.str(name);
            self.op(Op::StackGlobal);
        } else if let Some((outer, inner)) = name.rsplit_once('.') {
            // The old opcode knows no nested names; CPython writes `getattr(outer, inner)`.
            self.global("builtins", "getattr")?;
            self.global(module, outer)?;
            self.str(inner);
            self.memoized_tuple(2);
            self.op(Op::Reduce);
        } else {
            let old = if self.protocol < 3 {
                names::ancient(module, name)
            } else {
                (module, name)
            };
            // A name of Python 2 that a newer protocol has spelled out stands for another one here.
            if self.protocol < 3 && old == (module, name) {
                let (read_module, read_name) = names::modern(module, name);
                if (&*read_module, &*read_name) != old {
                    return Err(Error::encode(format!(
                        "{module}.{name}: protocol {} reads this name as {read_module}.{read_name}",
                        self.protocol
                    )));
                }
            }
            let (old_module, old_name) = old;
            self.op(Op::Global((old_module.as_bytes(), old_name.as_bytes())));
        }
        let id = self.memoize();
        self.globals.insert(key, id);
        Ok(())
    }

    /// Ends the pickle.
    pub fn finish(mut self) -> Vec<u8> {
        self.op(Op::Stop);
        self.out
    }
}

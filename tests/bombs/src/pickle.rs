//! Pickles, one instruction after the other.

/// A class or function: its module and its name.
pub type Name<'a> = (&'a str, &'a str);

/// A pickle that grows. Methods are named after what they leave on the stack; those with a closure put around what it writes.
#[derive(Clone, Debug, Default)]
pub struct Pickle {
    bytes: Vec<u8>,
}

/// Ends a chain of methods where a closure gives nothing.
pub fn done(_: &mut Pickle) {}

impl Pickle {
    /// Begins one of protocol 4.
    pub fn new() -> Self {
        Self {
            bytes: b"\x80\x04".to_vec(),
        }
    }

    /// Ends it.
    pub fn end(mut self) -> Vec<u8> {
        self.bytes.push(b'.');
        self.bytes
    }

    /// Any bytes.
    pub fn raw(&mut self, bytes: &[u8]) -> &mut Self {
        self.bytes.extend_from_slice(bytes);
        self
    }

    /// The same bytes many times.
    pub fn times(&mut self, n: usize, bytes: &[u8]) -> &mut Self {
        self.bytes.reserve(n * bytes.len());
        for _ in 0..n {
            self.bytes.extend_from_slice(bytes);
        }
        self
    }

    /// What a closure writes.
    pub fn with(&mut self, write: impl FnOnce(&mut Self)) -> &mut Self {
        write(self);
        self
    }

    /// What a closure writes for each number below `n`.
    pub fn each(&mut self, n: usize, mut write: impl FnMut(&mut Self, usize)) -> &mut Self {
        (0..n).for_each(|k| write(self, k));
        self
    }

    /// A str, of bytes that need not be UTF-8.
    pub fn text(&mut self, text: impl AsRef<[u8]>) -> &mut Self {
        let text = text.as_ref();
        self.raw(b"X")
            .raw(&(text.len() as u32).to_le_bytes())
            .raw(text)
    }

    /// Bytes.
    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.raw(b"B")
            .raw(&(bytes.len() as u32).to_le_bytes())
            .raw(bytes)
    }

    /// An int, in the shortest form.
    pub fn int(&mut self, n: i64) -> &mut Self {
        match n {
            0..=0xff => self.raw(&[b'K', n as u8]),
            0x100..=0xffff => self.raw(b"M").raw(&(n as u16).to_le_bytes()),
            _ => match i32::try_from(n) {
                Ok(n) => self.raw(b"J").raw(&n.to_le_bytes()),
                Err(_) => self.raw(&[0x8a, 8]).raw(&n.to_le_bytes()),
            },
        }
    }

    /// A positive int of so many bytes.
    pub fn long(&mut self, bytes: usize) -> &mut Self {
        self.raw(b"\x8b")
            .raw(&(bytes as u32).to_le_bytes())
            .times(bytes, b"\x7f")
    }

    /// None.
    pub fn none(&mut self) -> &mut Self {
        self.raw(b"N")
    }

    /// A class.
    pub fn global(&mut self, (module, name): Name<'_>) -> &mut Self {
        self.raw(b"c")
            .raw(module.as_bytes())
            .raw(b"\n")
            .raw(name.as_bytes())
            .raw(b"\n")
    }

    /// Remembers the top of the stack under a number.
    pub fn put(&mut self, at: u32) -> &mut Self {
        self.raw(b"r").raw(&at.to_le_bytes())
    }

    /// Remembers it and takes it off.
    pub fn keep(&mut self, at: u32) -> &mut Self {
        self.put(at).raw(b"0")
    }

    /// What was remembered.
    pub fn get(&mut self, at: u32) -> &mut Self {
        match u8::try_from(at) {
            Ok(at) => self.raw(&[b'h', at]),
            Err(_) => self.raw(b"j").raw(&at.to_le_bytes()),
        }
    }

    /// A tuple of what is written.
    pub fn tuple(&mut self, write: impl FnOnce(&mut Self)) -> &mut Self {
        self.raw(b"(").with(write).raw(b"t")
    }

    /// A list of what is written.
    pub fn list(&mut self, write: impl FnOnce(&mut Self)) -> &mut Self {
        self.raw(b"](").with(write).raw(b"e")
    }

    /// A dict of keys and values that are written in turn.
    pub fn dict(&mut self, write: impl FnOnce(&mut Self)) -> &mut Self {
        self.raw(b"}(").with(write).raw(b"u")
    }

    /// What a function gives for arguments that are written.
    pub fn call(&mut self, function: Name<'_>, args: impl FnOnce(&mut Self)) -> &mut Self {
        self.global(function).tuple(args).raw(b"R")
    }

    /// An object of a class, with a state that is written.
    pub fn object(&mut self, class: Name<'_>, state: impl FnOnce(&mut Self)) -> &mut Self {
        self.global(class).raw(b")\x81").with(state).raw(b"b")
    }

    /// A list that holds the last remembered value `width` times, remembered under the next number; so many levels of it. The
    /// values begin at memo number 0, and what is left on the stack is the last list.
    pub fn laugh(&mut self, levels: u32, width: usize) -> &mut Self {
        self.levels(levels, |p, below| {
            p.list(|p| done(p.each(width, |p, _| done(p.get(below)))));
        })
    }

    /// Levels of which each is written from the number of the one below, from 0 on.
    pub fn levels(&mut self, levels: u32, mut write: impl FnMut(&mut Self, u32)) -> &mut Self {
        self.keep(0);
        for level in 0..levels {
            write(self, level);
            self.keep(level + 1);
        }
        self.get(levels)
    }

    /// `torch.Size`.
    pub fn size(&mut self, dims: &[i64]) -> &mut Self {
        self.call(("torch", "Size"), |p| {
            p.tuple(|p| dims.iter().for_each(|d| done(p.int(*d))));
        })
    }
}

/// `torch.float32` and its like, with the class of their storages and their length in bytes.
#[derive(Clone, Copy, Debug)]
pub enum Type {
    /// float32.
    F32,
    /// uint8.
    U8,
}

impl Type {
    /// Its name in `torch`.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "float32",
            Self::U8 => "uint8",
        }
    }

    fn storage(self) -> &'static str {
        match self {
            Self::F32 => "FloatStorage",
            Self::U8 => "ByteStorage",
        }
    }
}

/// A tensor over a storage, as `torch.save` describes it.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// Of elements.
    pub of: Type,
    /// Its shape.
    pub shape: &'a [i64],
    /// In elements.
    pub strides: &'a [i64],
    /// Elements of the storage.
    pub numel: i64,
    /// Name of the storage's record.
    pub record: &'a str,
}

impl Pickle {
    /// A storage.
    pub fn storage(&mut self, of: Type, record: &str, numel: i64) -> &mut Self {
        self.tuple(|p| {
            done(
                p.text("storage")
                    .global(("torch", of.storage()))
                    .text(record)
                    .text("cpu")
                    .int(numel),
            )
        })
        .raw(b"Q")
    }

    /// A tensor, with shape, strides and further arguments that are written.
    pub fn tensor_of(
        &mut self,
        v: View<'_>,
        form: impl FnOnce(&mut Self),
        more: impl FnOnce(&mut Self),
    ) -> &mut Self {
        self.call(("torch._utils", "_rebuild_tensor_v2"), |p| {
            p.storage(v.of, v.record, v.numel)
                .int(0)
                .with(form)
                .raw(b"\x89");
            p.call(("collections", "OrderedDict"), |_| ()).with(more);
        })
    }

    /// A tensor.
    pub fn tensor(&mut self, v: View<'_>) -> &mut Self {
        let ints =
            |p: &mut Self, all: &[i64]| done(p.tuple(|p| all.iter().for_each(|n| done(p.int(*n)))));
        let form = |p: &mut Self| {
            ints(p, v.shape);
            ints(p, v.strides);
        };
        self.tensor_of(v, form, |_| ())
    }
}

use super::{
    Build, Built, Items, Op, Reader, Refusal,
    memo::{Memo, Plan, number},
    names,
    op::FrameEnd,
    text,
};
use crate::{Error, Limits, Result};
use std::borrow::Cow;

/// Interprets a pickle. Returns the built value, and the length of the pickle in bytes. Bytes after its end are not read.
///
/// # Errors
/// [`Error::Pickle`], [`Error::Limit`] and [`Error::Unsupported`], with the offset of the instruction. For any input, working memory is a
/// small multiple of the input's length, plus what the builder keeps.
///
/// ```
/// use reshard_torch_format::pickle::{Graph, run};
/// # fn main() -> Result<(), reshard_torch_format::Error> {
/// let mut graph = Graph::default();
/// let (root, len) = run(b"(I1\nI2\ntp0\n. and more", &mut graph, &Default::default())?;
/// let ints: Vec<_> = graph.as_seq(root).unwrap().iter().map(|&id| graph.as_int(id).unwrap()).collect();
/// assert_eq!((ints, len), (vec![1, 2], 12));
/// # Ok(())
/// # }
/// ```
pub fn run<'a, B: Build<'a>>(
    bytes: &'a [u8],
    builder: &mut B,
    limits: &Limits,
) -> Result<(B::Value, usize)> {
    // A first pass checks the opcodes, and finds which memo entries are fetched at all.
    let plan = Plan::scan(bytes, limits)?;
    let end = plan.end;
    builder.begin(limits.budget(bytes.len() as u64));
    let mut machine = Machine {
        builder,
        stack: Vec::new(),
        marks: Vec::new(),
        base: 0,
        memo: Memo::new(plan),
        protocol: 0,
    };
    let (mut reader, mut frame) = (Reader::new(bytes), FrameEnd::default());
    loop {
        let at = reader.offset();
        let op = reader
            .next_op()
            .map_err(|t| Error::pickle(at, t.to_string()))?;

        // Nothing may be left, or two readers could disagree about what the value is.
        if let Op::Stop = op {
            let value = machine.pop().map_err(|r| r.at(at))?;
            if !machine.stack.is_empty() || !machine.marks.is_empty() {
                return Err(Error::pickle(at, "the pickle ends with values left over"));
            }
            return Ok((value, end));
        }

        // Frames only help a reader that streams. One that is too long is a sign of a cut file.
        if let Op::Frame(len) = op
            && len > (bytes.len() - reader.offset()) as u64
        {
            return Err(Error::pickle(
                at,
                "a frame is longer than the rest of the pickle",
            ));
        }
        if frame.is_crossed(&op, at, reader.offset()) {
            return Err(Error::pickle(at, "a frame ends inside an instruction"));
        }
        machine.builder.at(at);
        machine.step(op).map_err(|r| r.at(at))?;
    }
}

struct Machine<'b, B, V> {
    builder: &'b mut B,
    stack: Vec<V>,
    /// Heights of the stack at each mark.
    marks: Vec<usize>,
    /// The height at the last mark. Values below it are out of reach.
    base: usize,
    memo: Memo<V>,
    protocol: u8,
}

/// Doubles the capacity. If there is no memory, this is an error, and the process does not abort.
#[cold]
fn grow<T>(v: &mut Vec<T>) -> Built<()> {
    v.try_reserve_exact(v.len().max(64))
        .map_err(|_| Refusal::unsupported("holding more values at a time than fit into memory"))
}

#[cold]
fn underflow() -> Refusal {
    Refusal::damaged("an instruction finds too few values")
}

impl<'a, B: Build<'a>> Machine<'_, B, B::Value> {
    #[inline(always)]
    fn pop(&mut self) -> Built<B::Value> {
        if self.stack.len() > self.base
            && let Some(v) = self.stack.pop()
        {
            Ok(v)
        } else {
            Err(underflow())
        }
    }

    #[inline(always)]
    fn push(&mut self, v: Built<B::Value>) -> Built<()> {
        let v = v?;
        if self.stack.len() == self.stack.capacity() {
            grow(&mut self.stack)?;
        }
        self.stack.push(v);
        Ok(())
    }

    /// Pushes what the builder makes.
    #[inline(always)]
    fn make(&mut self, make: impl FnOnce(&mut B) -> Built<B::Value>) -> Built<()> {
        let v = make(self.builder);
        self.push(v)
    }

    /// Removes the last mark, and returns the height of the stack at it.
    #[inline(always)]
    fn mark(&mut self) -> Built<usize> {
        let at = self
            .marks
            .pop()
            .ok_or_else(|| Refusal::damaged("a mark is missing"))?;
        self.base = self.marks.last().copied().unwrap_or(0);
        Ok(at)
    }

    /// Checks that the values from `from` on are pairs.
    #[inline(always)]
    fn check_pairs(&self, from: usize) -> Built<()> {
        match (self.stack.len() - from).is_multiple_of(2) {
            true => Ok(()),
            false => Err(Refusal::damaged("a key has no value")),
        }
    }

    /// Passes all values from `from` on to `add`, together with the value below them, which stays on the stack.
    #[inline(always)]
    fn fill(
        &mut self,
        from: usize,
        add: impl FnOnce(&mut B, &mut B::Value, Items<'_, B::Value>) -> Built<()>,
    ) -> Built<()> {
        if from <= self.base || from > self.stack.len() {
            return Err(underflow());
        }
        let mut items = self.stack.drain(from - 1..);
        let mut target = items.next().ok_or_else(underflow)?;
        add(self.builder, &mut target, items)?;
        self.stack.push(target);
        Ok(())
    }

    #[inline(always)]
    fn put(&mut self, number: Option<usize>) -> Built<()> {
        if self.stack.len() <= self.base {
            return Err(underflow());
        }
        if let Some(top) = self.stack.last()
            && let Some(place) = self.memo.place(number)
        {
            *place = Some(self.builder.share(top)?);
        }
        Ok(())
    }

    #[inline(always)]
    fn get(&mut self, number: usize) -> Built<()> {
        let v = match self.memo.fetch(number) {
            Some(v) => self.builder.share(v)?,
            None => return Err(Refusal::damaged("it names a memo entry that is not there")),
        };
        self.push(Ok(v))
    }

    #[inline(always)]
    fn text(&mut self, raw: &'a [u8]) -> Built<()> {
        self.make(|b| match std::str::from_utf8(raw) {
            Ok(s) => b.str(Cow::Borrowed(s)),
            Err(_) => b.odd_str(raw),
        })
    }

    /// A str of Python 2, which is text where it can be.
    fn old_text(&mut self, raw: Cow<'a, [u8]>) -> Built<()> {
        let v = match raw {
            Cow::Borrowed(raw) => match std::str::from_utf8(raw) {
                Ok(s) => self.builder.str(Cow::Borrowed(s)),
                Err(_) => self.builder.bytes(Cow::Borrowed(raw)),
            },
            Cow::Owned(raw) => match String::from_utf8(raw) {
                Ok(s) => self.builder.str(Cow::Owned(s)),
                Err(e) => self.builder.bytes(Cow::Owned(e.into_bytes())),
            },
        };
        self.push(v)
    }

    fn long(&mut self, le: &'a [u8]) -> Built<()> {
        self.make(|b| match text::small(le) {
            Some(v) => b.int(v),
            None => b.long(Cow::Borrowed(text::shortest(le))),
        })
    }

    fn number(&mut self, line: &'a [u8]) -> Built<()> {
        let bad = || Refusal::damaged("an int is not a number");
        let text = std::str::from_utf8(line).map_err(|_| bad())?.trim();
        let text = text.strip_suffix('L').unwrap_or(text);
        let v = match text.parse::<i64>() {
            Ok(v) => self.builder.int(v),
            Err(_) if text.len() > text::MAX_DIGITS => {
                return Err(Refusal::limit(
                    "decimal digits of an int",
                    text::MAX_DIGITS as u64,
                ));
            }
            Err(_) => self
                .builder
                .long(Cow::Owned(text::decimal(text).ok_or_else(bad)?)),
        };
        self.push(v)
    }

    fn global(&mut self, module: &[u8], name: &[u8]) -> Built<()> {
        let (Ok(module), Ok(name)) = (std::str::from_utf8(module), std::str::from_utf8(name))
        else {
            return Err(Refusal::damaged("the name of a class is not UTF-8"));
        };
        if self.protocol >= 3 {
            return self.make(|b| b.global(module, name));
        }
        let (module, name) = names::modern(module, name);
        self.make(|b| b.global(&module, &name))
    }

    /// INST and OBJ: a call, or a bare object if there are no arguments.
    fn instance(&mut self, class: B::Value, from: usize) -> Built<()> {
        let items = self.stack.drain(from..);
        let bare = items.len() == 0;
        let args = self.builder.tuple(items)?;
        self.make(|b| match bare {
            true => b.new_object(class, args),
            false => b.call(class, args),
        })
    }

    #[inline(always)]
    fn step(&mut self, op: Op<'a>) -> Built<()> {
        // These are the instructions of current programs. All others are in `rare`, so that this function stays small.
        match op {
            Op::Mark => {
                self.base = self.stack.len();
                if self.marks.len() == self.marks.capacity() {
                    grow(&mut self.marks)?;
                }
                self.marks.push(self.base);
                Ok(())
            }
            Op::BinInt1(v) => self.make(|b| b.int(v.into())),
            Op::BinGet(i) => self.get(i.into()),
            Op::LongBinGet(i) => self.get(i as usize),
            Op::Memoize => self.put(None),
            Op::BinPut(i) => self.put(Some(i.into())),
            Op::LongBinPut(i) => self.put(Some(i as usize)),
            Op::ShortBinUnicode(raw) | Op::BinUnicode(raw) | Op::BinUnicode8(raw) => self.text(raw),
            Op::EmptyTuple => {
                let top = self.stack.len();
                let v = self.builder.tuple(self.stack.drain(top..));
                self.push(v)
            }
            Op::Tuple1 => self.small_tuple(1),
            Op::Tuple2 => self.small_tuple(2),
            Op::Tuple3 => self.small_tuple(3),
            Op::Tuple => {
                let from = self.mark()?;
                let v = self.builder.tuple(self.stack.drain(from..));
                self.push(v)
            }
            Op::EmptyDict => self.make(B::dict),
            Op::EmptyList => self.make(B::list),
            Op::SetItems => {
                let from = self.mark()?;
                self.check_pairs(from)?;
                self.fill(from, |b, dict, pairs| b.set_items(dict, pairs))
            }
            Op::Appends => {
                let from = self.mark()?;
                self.fill(from, |b, list, items| b.append(list, items))
            }
            Op::Append => {
                let from = self.stack.len().saturating_sub(1);
                self.fill(from, |b, list, items| b.append(list, items))
            }
            Op::SetItem => {
                let from = self.stack.len().saturating_sub(2);
                self.fill(from, |b, dict, pairs| b.set_items(dict, pairs))
            }
            Op::NewObj => {
                let (args, class) = (self.pop()?, self.pop()?);
                self.make(|b| b.new_object(class, args))
            }
            Op::Reduce => {
                let (args, callable) = (self.pop()?, self.pop()?);
                self.make(|b| b.call(callable, args))
            }
            Op::Build => {
                let (state, mut object) = (self.pop()?, self.pop()?);
                self.builder.build(&mut object, state)?;
                self.stack.push(object);
                Ok(())
            }
            Op::StackGlobal => {
                let (name, module) = (self.pop()?, self.pop()?);
                self.make(|b| b.stack_global(module, name))
            }
            Op::None => self.make(B::none),
            Op::NewTrue => self.make(|b| b.bool(true)),
            Op::NewFalse => self.make(|b| b.bool(false)),
            Op::BinInt2(v) => self.make(|b| b.int(v.into())),
            Op::BinInt(v) => self.make(|b| b.int(v.into())),
            Op::Long1(le) | Op::Long4(le) => self.long(le),
            Op::BinFloat(v) => self.make(|b| b.float(v)),
            Op::Frame(_) => Ok(()),
            other => self.rare(other),
        }
    }

    #[inline(always)]
    fn small_tuple(&mut self, n: usize) -> Built<()> {
        let v = match self.stack.len().checked_sub(n) {
            Some(from) if from >= self.base => self.builder.tuple(self.stack.drain(from..)),
            _ => Err(underflow()),
        };
        self.push(v)
    }

    /// Instructions that current programs rarely write. They are kept out of the hot loop.
    #[inline(never)]
    fn rare(&mut self, op: Op<'a>) -> Built<()> {
        match op {
            Op::Proto(v) => {
                if v > 5 {
                    return Err(Refusal::unsupported(format!("pickle protocol {v}")));
                }
                self.protocol = v;
                Ok(())
            }
            Op::Pop => {
                // Popping at a mark takes the mark, as in Python.
                if self.stack.len() == self.base && !self.marks.is_empty() {
                    return self.mark().map(|_| ());
                }
                self.pop().map(drop)
            }
            Op::PopMark => {
                let from = self.mark()?;
                self.stack.truncate(from);
                Ok(())
            }
            Op::Dup => {
                let top = self.stack.last().filter(|_| self.stack.len() > self.base);
                let v = self.builder.share(top.ok_or_else(underflow)?);
                self.push(v)
            }
            Op::BinString(raw) | Op::ShortBinString(raw) => self.old_text(Cow::Borrowed(raw)),
            Op::BinBytes(raw) | Op::ShortBinBytes(raw) | Op::BinBytes8(raw) => {
                self.make(|b| b.bytes(Cow::Borrowed(raw)))
            }
            Op::ByteArray8(raw) => self.make(|b| b.bytearray(raw)),
            Op::List => {
                let from = self.mark()?;
                let mut list = self.builder.list()?;
                self.builder.append(&mut list, self.stack.drain(from..))?;
                self.push(Ok(list))
            }
            Op::Dict => {
                let from = self.mark()?;
                self.check_pairs(from)?;
                let mut dict = self.builder.dict()?;
                self.builder
                    .set_items(&mut dict, self.stack.drain(from..))?;
                self.push(Ok(dict))
            }
            Op::EmptySet => self.make(B::set),
            Op::FrozenSet => {
                let from = self.mark()?;
                let v = self.builder.frozenset(self.stack.drain(from..));
                self.push(v)
            }
            Op::AddItems => {
                let from = self.mark()?;
                self.fill(from, |b, set, items| b.add_items(set, items))
            }
            Op::Obj => {
                let from = self.mark()?;
                if self.stack.len() <= from {
                    return Err(underflow());
                }
                let class = self.stack.remove(from);
                self.instance(class, from)
            }
            Op::NewObjEx => {
                let (kwargs, args, class) = (self.pop()?, self.pop()?, self.pop()?);
                self.make(|b| b.new_object_ex(class, args, kwargs))
            }
            Op::BinPersId => {
                let id = self.pop()?;
                self.make(|b| b.persistent(id))
            }
            Op::Ext1(_) | Op::Ext2(_) | Op::Ext4(_) => Err(Refusal::unsupported(
                "a class by its number in Python's extension registry",
            )),
            Op::NextBuffer | Op::ReadOnlyBuffer => {
                Err(Refusal::unsupported("a buffer outside of the pickle"))
            }
            other => self.by_text(other),
        }
    }

    /// Instructions of protocol 0, whose arguments are lines of text.
    fn by_text(&mut self, op: Op<'a>) -> Built<()> {
        let no_number = || Refusal::damaged("the name of a memo entry is not a number");
        // Protocol 0 has no bools of its own. It writes them as the ints `00` and `01`.
        match op {
            Op::Int(b"00") => self.make(|b| b.bool(false)),
            Op::Int(b"01") => self.make(|b| b.bool(true)),
            Op::Int(line) | Op::Long(line) => self.number(line),
            Op::Float(line) => {
                let text = std::str::from_utf8(line).ok();
                let v = text.and_then(|t| t.trim().parse().ok());
                let v = v.ok_or_else(|| Refusal::damaged("a float is not a number"))?;
                self.make(|b| b.float(v))
            }
            Op::String(raw) => {
                let raw =
                    text::quoted(raw).ok_or_else(|| Refusal::damaged("a string is not quoted"))?;
                self.old_text(raw)
            }
            Op::Unicode(raw) => {
                let s = text::raw_unicode(raw)
                    .ok_or_else(|| Refusal::damaged("a text has a wrong escape"))?;
                self.make(|b| b.str(s))
            }
            Op::Get(line) => self.get(number(line).ok_or_else(no_number)?),
            Op::Put(line) => self.put(Some(number(line).ok_or_else(no_number)?)),
            Op::Global((module, name)) => self.global(module, name),
            Op::Inst((module, name)) => {
                let from = self.mark()?;
                self.global(module, name)?;
                let class = self.pop()?;
                self.instance(class, from)
            }
            Op::PersId(line) => {
                let id = std::str::from_utf8(line)
                    .map_err(|_| Refusal::damaged("a persistent id is not UTF-8"))?;
                let id = self.builder.str(Cow::Borrowed(id))?;
                self.make(|b| b.persistent(id))
            }
            other => Err(Refusal::damaged(format!("{other:?} is out of place"))),
        }
    }
}

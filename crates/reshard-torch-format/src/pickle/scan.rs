//! Lists the globals of pickles that nobody trusts, without building anything.

use super::{
    Op, Reader,
    globals::{Verdict, verdict},
    memo::number,
    names,
    op::FrameEnd,
    text,
};
use crate::Limits;
use std::{borrow::Cow, collections::BTreeMap, rc::Rc};

/// A global that a pickle names.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ScannedGlobal {
    /// Its full name, such as `os.system`; a description in brackets if the pickle computes the name.
    pub name: Box<str>,
    /// What loading it may do.
    pub verdict: Verdict,
    /// The instruction that names it first, in bytes.
    pub offset: u64,
}

/// What [`scan`] found.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Scan {
    /// The globals, each once, sorted by name.
    pub globals: Vec<ScannedGlobal>,
    /// The number of complete pickles.
    pub pickles: usize,
    /// Where the last complete pickle ends.
    pub end: usize,
    /// Why the scan stopped before the end, if it did: Python stops there too, and has run everything before.
    pub stopped: Option<Box<str>>,
}

/// Lists the globals of a pickle, and of all pickles that follow it. It follows the stack and the memo as Python does, and goes on where
/// [`run`](super::run) would refuse the pickle, because Python runs each instruction before it meets the next one.
///
/// ```
/// use reshard_torch_format::pickle::{Verdict, scan};
/// let found = scan(b"\x80\x04\x8c\x05posix\x94\x8c\x06system\x94\x93\x8c\x02ls\x85R.", &Default::default());
/// assert_eq!((&*found.globals[0].name, found.globals[0].verdict), ("posix.system", Verdict::RunsCode));
/// ```
pub fn scan(bytes: &[u8], limits: &Limits) -> Scan {
    let memory = limits.budget(bytes.len() as u64).left();
    let memory = usize::try_from(memory).unwrap_or(usize::MAX);
    // An entry of the memo has its number, and room in a tree.
    let most = memory / (4 * size_of::<Known<'_>>());
    let mut found = Globals::new(memory / 4);
    let (mut at, mut out) = (0, Scan::default());
    while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
        let mut machine = Machine::new(rest, at, &mut found, most);
        match machine.run() {
            Ok(len) => {
                (at, out.pickles) = (at + len, out.pickles + 1);
                out.end = at;
            }
            Err(why) => {
                out.stopped = Some(why);
                break;
            }
        }
    }
    found.follow(NESTED, most);
    let all = found.all.into_iter();
    out.globals = all
        .map(|(name, (verdict, offset))| ScannedGlobal {
            name,
            verdict,
            offset,
        })
        .collect();
    out
}

/// So deep pickles in byte strings of pickles are looked at.
const NESTED: usize = 4;
/// The longest name that is kept, with its module.
const LONGEST: usize = 255;

struct Globals<'a> {
    all: BTreeMap<Box<str>, (Verdict, u64)>,
    /// Memory for more names.
    left: usize,
    /// Pickles in byte strings, which some functions load. Each by its address, because it may be loaded many times.
    nested: BTreeMap<usize, (Nested<'a>, usize)>,
}

/// A byte string as it is stored, or as text, whose characters are its bytes.
enum Nested<'a> {
    Bytes(&'a [u8]),
    Text(Rc<Cow<'a, str>>),
}

impl<'a> Globals<'a> {
    fn new(left: usize) -> Self {
        Self {
            all: BTreeMap::new(),
            left,
            nested: BTreeMap::new(),
        }
    }

    fn add(&mut self, name: String, verdict: Verdict, offset: u64) {
        if let Some(found) = self.all.get_mut(&*name) {
            found.0 = found.0.max(verdict);
        } else if let Some(left) = self.left.checked_sub(name.len() + ENTRY) {
            self.left = left;
            self.all.insert(name.into(), (verdict, offset));
        } else {
            // The scan stops at the next instruction.
            self.left = 0;
        }
    }

    fn is_full(&self) -> bool {
        self.left == 0
    }

    /// Scans the pickles in byte strings, those in them, and so on.
    fn follow(&mut self, depth: usize, most: usize) {
        for (_, (inner, offset)) in std::mem::take(&mut self.nested) {
            if depth == 0 {
                let name = format!("(a pickle in more than {NESTED} byte strings)");
                self.add(name, Verdict::RunsCode, offset as u64);
                continue;
            }
            let text = match &inner {
                Nested::Text(text) => latin1(text),
                Nested::Bytes(_) => None,
            };
            let bytes = match (&inner, &text) {
                (Nested::Bytes(bytes), _) => bytes,
                (_, Some(bytes)) => &**bytes,
                // Python refuses it, too.
                (_, None) => continue,
            };
            let mut found = Globals::new(self.left);
            drop(Machine::new(bytes, offset, &mut found, most).run());
            found.follow(depth - 1, most);
            for (name, (verdict, offset)) in found.all {
                self.add(name.into(), verdict, offset);
            }
        }
    }
}

/// The memory for an entry of the list of globals, besides its name.
const ENTRY: usize = 64;

/// Text in bytes, a byte for each character.
fn latin1(text: &str) -> Option<Vec<u8>> {
    text.chars().map(|c| u8::try_from(c).ok()).collect()
}

/// What is known of a value.
#[derive(Clone)]
enum Known<'a> {
    Text(Rc<Cow<'a, str>>),
    /// Bytes that `_codecs.encode` makes of this text, as protocols before 3 write them.
    Encoded(Rc<Cow<'a, str>>),
    Bytes(&'a [u8]),
    Global(Rc<(String, String)>),
    /// Of up to three values that are no tuples.
    Tuple(Rc<[Known<'a>]>),
    Other,
}

struct Machine<'a, 'f> {
    reader: Reader<'a>,
    /// Where the pickle starts in the file.
    start: usize,
    at: usize,
    found: &'f mut Globals<'a>,
    /// The most values that are kept at a time.
    most: usize,
    stack: Vec<Known<'a>>,
    marks: Vec<usize>,
    memo: BTreeMap<u64, Known<'a>>,
    protocol: u8,
    frame: FrameEnd,
}

impl<'a, 'f> Machine<'a, 'f> {
    fn new(bytes: &'a [u8], start: usize, found: &'f mut Globals<'a>, most: usize) -> Self {
        Self {
            reader: Reader::new(bytes),
            start,
            at: 0,
            found,
            most,
            stack: Vec::new(),
            marks: Vec::new(),
            memo: BTreeMap::new(),
            protocol: 0,
            frame: FrameEnd::default(),
        }
    }

    /// Follows the pickle to its end, and returns its length.
    fn run(&mut self) -> Result<usize, Box<str>> {
        loop {
            self.at = self.reader.offset();
            let op = self
                .reader
                .next_op()
                .map_err(|e| self.stopped(&e.to_string()))?;
            if let Op::Stop = op {
                return Ok(self.reader.offset());
            }
            if self.frame.is_crossed(&op, self.at, self.reader.offset()) {
                let hidden = "(instructions that a frame hides)";
                self.note(hidden.into(), Verdict::RunsCode);
            }
            if self.memo.len() + self.stack.len() > self.most {
                return Err(self.stopped("it has more values than the limits allow"));
            }
            if self.found.is_full() {
                return Err(self.stopped("it names more globals than the limits allow"));
            }
            self.step(op);
        }
    }

    fn stopped(&self, why: &str) -> Box<str> {
        format!("byte {}: {why}", self.start + self.at).into()
    }

    fn note(&mut self, name: String, verdict: Verdict) {
        let offset = (self.start + self.at) as u64;
        self.found.add(name, verdict, offset);
    }

    fn pop(&mut self) -> Known<'a> {
        self.stack.pop().unwrap_or(Known::Other)
    }

    /// Takes the values since the last mark.
    fn since_mark(&mut self) -> Vec<Known<'a>> {
        let from = self.marks.pop().unwrap_or(0).min(self.stack.len());
        self.stack.split_off(from)
    }

    /// A function that becomes a part of something may be called later, with arguments that nobody knows.
    fn escapes(&mut self, values: &[Known<'a>]) {
        for value in values {
            if let Known::Global(of) = value
                && (is_getattr(of) || loads_bytes(of))
            {
                self.note(format!("{}.{}", of.0, of.1), Verdict::RunsCode);
            }
        }
    }

    fn put(&mut self, n: u64) {
        let top = self.stack.last().cloned().unwrap_or(Known::Other);
        self.memo.insert(n, top);
    }

    fn get(&mut self, n: u64) {
        let value = self.memo.get(&n).cloned().unwrap_or(Known::Other);
        self.stack.push(value);
    }

    fn tuple(&mut self, items: Vec<Known<'a>>) {
        self.escapes(&items);
        // Tuples in tuples are not followed, so that none is deep.
        let flat = |item| match item {
            Known::Tuple(_) => Known::Other,
            item => item,
        };
        let tuple = match items.len() {
            0..=3 => Known::Tuple(items.into_iter().map(flat).collect()),
            _ => Known::Other,
        };
        self.stack.push(tuple);
    }

    fn global(&mut self, module: &[u8], name: &[u8]) {
        let (module, name) = (
            String::from_utf8_lossy(module),
            String::from_utf8_lossy(name),
        );
        self.named(&module, &name);
    }

    fn named(&mut self, module: &str, name: &str) {
        let (module, name) = match self.protocol {
            0..=2 => names::modern(module, name),
            _ => (module.into(), name.into()),
        };
        if module.len() + name.len() > LONGEST {
            let name = format!("(a name longer than {LONGEST} bytes)");
            self.note(name, Verdict::RunsCode);
            return self.stack.push(Known::Other);
        }
        let of = (module.into_owned(), name.into_owned());
        // What it is asked for is judged instead.
        if !is_getattr(&of) {
            self.note(format!("{}.{}", of.0, of.1), verdict(&of.0, &of.1));
        }
        self.stack.push(Known::Global(Rc::new(of)));
    }

    fn reduce(&mut self) {
        let (args, callable) = (self.pop(), self.pop());
        let Known::Global(of) = callable else {
            return self.stack.push(Known::Other);
        };
        let args = match &args {
            Known::Tuple(args) => &**args,
            _ => &[],
        };
        if is_getattr(&of) {
            return self.attribute(args);
        }
        let loads = matches!(
            &*of.0,
            "torch.storage" | "pickle" | "_pickle" | "dill" | "cloudpickle"
        );
        let made = match args {
            [Known::Text(text), ..] if is(&of, "_codecs", "encode") => Known::Encoded(text.clone()),
            _ => Known::Other,
        };
        let inner = match args {
            [Known::Bytes(bytes), ..] => Some((bytes.as_ptr().addr(), Nested::Bytes(bytes))),
            [Known::Encoded(text), ..] => Some((text.as_ptr().addr(), Nested::Text(text.clone()))),
            _ => None,
        };
        if let (true, Some((address, inner))) = (loads, inner) {
            let offset = self.start + self.at;
            self.found.nested.entry(address).or_insert((inner, offset));
        } else if loads_bytes(&of) {
            let name = "(a pickle that can't be determined)";
            self.note(name.into(), Verdict::RunsCode);
        }
        self.stack.push(made);
    }

    /// `getattr(object, name)`.
    fn attribute(&mut self, args: &[Known<'a>]) {
        match args {
            [Known::Global(of), Known::Text(name), ..]
                if of.0.len() + of.1.len() + name.len() < LONGEST =>
            {
                let name = format!("{}.{name}", of.1);
                self.note(format!("{}.{name}", of.0), verdict(&of.0, &name));
                self.stack
                    .push(Known::Global(Rc::new((of.0.clone(), name))));
            }
            [_, Known::Text(name), ..] if name.len() < LONGEST => {
                // The name of the attribute alone may be enough.
                self.note(
                    format!("(attribute {name} of a computed value)"),
                    verdict("?", name),
                );
                self.stack.push(Known::Other);
            }
            _ => {
                self.note(
                    "(attribute with a name that can't be determined)".into(),
                    Verdict::Unknown,
                );
                self.stack.push(Known::Other);
            }
        }
    }

    fn step(&mut self, op: Op<'a>) {
        match op {
            Op::Proto(v) => self.protocol = v,
            Op::Mark => self.marks.push(self.stack.len()),
            Op::Pop => match self.marks.last() == Some(&self.stack.len()) {
                true => drop(self.marks.pop()),
                false => drop(self.stack.pop()),
            },
            Op::PopMark => drop(self.since_mark()),
            Op::Dup => {
                let top = self.stack.last().cloned().unwrap_or(Known::Other);
                self.stack.push(top);
            }
            Op::BinUnicode(v) | Op::ShortBinUnicode(v) | Op::BinUnicode8(v) => {
                self.text(String::from_utf8_lossy(v));
            }
            Op::BinString(v) | Op::ShortBinString(v) => self.old_text(v.into()),
            Op::String(v) => match text::quoted(v) {
                Some(v) => self.old_text(v),
                None => self.stack.push(Known::Other),
            },
            Op::Unicode(v) => match text::raw_unicode(v) {
                Some(v) => self.text(v),
                None => self.stack.push(Known::Other),
            },
            Op::BinBytes(v) | Op::ShortBinBytes(v) | Op::BinBytes8(v) | Op::ByteArray8(v) => {
                self.stack.push(Known::Bytes(v));
            }
            Op::BinGet(n) => self.get(n.into()),
            Op::LongBinGet(n) => self.get(n.into()),
            Op::Get(line) => self.get(number(line).map_or(u64::MAX, |n| n as u64)),
            Op::BinPut(n) => self.put(n.into()),
            Op::LongBinPut(n) => self.put(n.into()),
            Op::Put(line) => self.put(number(line).map_or(u64::MAX, |n| n as u64)),
            Op::Memoize => self.put(self.memo.len() as u64),
            Op::Global((module, name)) => self.global(module, name),
            Op::StackGlobal => match (self.pop(), self.pop()) {
                (Known::Text(name), Known::Text(module)) => self.named(&module, &name),
                _ => {
                    self.note("(a name that can't be determined)".into(), Verdict::Unknown);
                    self.stack.push(Known::Other);
                }
            },
            Op::Ext1(_) | Op::Ext2(_) | Op::Ext4(_) => {
                self.note(
                    "(a class by its number in the extension registry)".into(),
                    Verdict::Unknown,
                );
                self.stack.push(Known::Other);
            }
            Op::Inst((module, name)) => {
                let args = self.since_mark();
                self.global(module, name);
                self.tuple(args);
                self.reduce();
            }
            Op::Obj => {
                let mut args = self.since_mark();
                let class = match args.is_empty() {
                    true => Known::Other,
                    false => args.remove(0),
                };
                self.stack.push(class);
                self.tuple(args);
                self.reduce();
            }
            Op::Reduce => self.reduce(),
            other => self.containers(other),
        }
    }

    /// A str of Python 2, which may stand for bytes.
    fn old_text(&mut self, v: Cow<'a, [u8]>) {
        match v {
            Cow::Borrowed(raw) if std::str::from_utf8(raw).is_err() => {
                self.stack.push(Known::Bytes(raw));
            }
            Cow::Borrowed(raw) => self.text(String::from_utf8_lossy(raw)),
            Cow::Owned(raw) => self.text(String::from_utf8_lossy(&raw).into_owned().into()),
        }
    }

    fn text(&mut self, v: Cow<'a, str>) {
        self.stack.push(Known::Text(Rc::new(v)));
    }

    /// Instructions that make or fill something of which only the number of values matters.
    fn containers(&mut self, op: Op<'a>) {
        match op {
            Op::EmptyTuple => self.tuple(Vec::new()),
            Op::Tuple1 | Op::Tuple2 | Op::Tuple3 => {
                let n = match op {
                    Op::Tuple1 => 1,
                    Op::Tuple2 => 2,
                    _ => 3,
                };
                let from = self.stack.len().saturating_sub(n);
                let items = self.stack.split_off(from);
                self.tuple(items);
            }
            Op::Tuple => {
                let items = self.since_mark();
                self.tuple(items);
            }
            Op::List | Op::Dict | Op::FrozenSet => {
                let items = self.since_mark();
                self.escapes(&items);
                self.stack.push(Known::Other);
            }
            Op::Appends | Op::SetItems | Op::AddItems => {
                let items = self.since_mark();
                self.escapes(&items);
            }
            Op::Build => {
                let state = self.pop();
                self.escapes(&[state]);
                // Attributes of a class or module itself replace its code for everybody.
                if let Some(Known::Global(of)) = self.stack.last() {
                    let name = format!("(attributes of {}.{} are set)", of.0, of.1);
                    self.note(name, Verdict::RunsCode);
                }
            }
            Op::Append => {
                let item = self.pop();
                self.escapes(&[item]);
            }
            Op::SetItem => {
                let pair = [self.pop(), self.pop()];
                self.escapes(&pair);
            }
            Op::NewObj => {
                let made = [self.pop(), self.pop()];
                self.escapes(&made);
                self.stack.push(Known::Other);
            }
            Op::NewObjEx => {
                let made = [self.pop(), self.pop(), self.pop()];
                self.escapes(&made);
                self.stack.push(Known::Other);
            }
            Op::BinPersId => {
                self.pop();
                self.stack.push(Known::Other);
            }
            Op::Frame(_) | Op::Stop | Op::ReadOnlyBuffer => {}
            // Every other instruction pushes a value.
            _ => self.stack.push(Known::Other),
        }
    }
}

fn is(of: &(String, String), module: &str, name: &str) -> bool {
    (&*of.0, &*of.1) == (module, name)
}

/// The one function that torch's own pickles call with pickles in byte strings.
fn loads_bytes(of: &(String, String)) -> bool {
    is(of, "torch.storage", "_load_from_bytes")
}

fn is_getattr(of: &(String, String)) -> bool {
    matches!((&*of.0, &*of.1), ("builtins" | "__builtin__", "getattr"))
}

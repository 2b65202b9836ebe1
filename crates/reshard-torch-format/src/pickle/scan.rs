//! Lists the globals of pickles that nobody trusts, without building anything.

use super::{
    Op, Reader,
    globals::{Verdict, verdict},
    memo::number,
    names, text,
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
    let mut found = Globals::default();
    let memory = limits.budget(bytes.len() as u64).left();
    // An entry of the memo has its number, and room in a tree.
    let most = memory / (4 * size_of::<Known<'_>>() as u64);
    let most = usize::try_from(most).unwrap_or(usize::MAX);
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
    // Pickles in byte strings, which some functions load.
    let mut depth = 0;
    while depth < NESTED && !found.nested.is_empty() {
        depth += 1;
        for (inner, offset) in std::mem::take(&mut found.nested) {
            drop(Machine::new(inner, offset, &mut found, most).run());
        }
    }
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
/// The longest name that is followed through attributes.
const LONGEST: usize = 1000;

#[derive(Default)]
struct Globals<'a> {
    all: BTreeMap<Box<str>, (Verdict, u64)>,
    nested: Vec<(&'a [u8], usize)>,
}

impl Globals<'_> {
    fn add(&mut self, name: String, verdict: Verdict, offset: u64) {
        let found = self.all.entry(name.into()).or_insert((verdict, offset));
        found.0 = found.0.max(verdict);
    }
}

/// What is known of a value.
#[derive(Clone)]
enum Known<'a> {
    Text(Cow<'a, str>),
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
            if self.memo.len() + self.stack.len() > self.most {
                return Err(self.stopped("it has more values than the limits allow"));
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
                && is_getattr(of)
            {
                self.note("builtins.getattr".into(), Verdict::RunsCode);
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
        if let (true, [Known::Bytes(inner), ..]) = (loads, args) {
            self.found.nested.push((inner, self.start + self.at));
        }
        self.stack.push(Known::Other);
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
                self.stack.push(Known::Text(String::from_utf8_lossy(v)));
            }
            Op::BinString(v) | Op::ShortBinString(v) => self.old_text(v.into()),
            Op::String(v) => match text::quoted(v) {
                Some(v) => self.old_text(v),
                None => self.stack.push(Known::Other),
            },
            Op::Unicode(v) => {
                let v = text::raw_unicode(v).map_or(Known::Other, Known::Text);
                self.stack.push(v);
            }
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
        let v = match v {
            Cow::Borrowed(raw) if std::str::from_utf8(raw).is_err() => Known::Bytes(raw),
            raw => Known::Text(String::from_utf8_lossy(&raw).into_owned().into()),
        };
        self.stack.push(v);
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

fn is_getattr(of: &(String, String)) -> bool {
    matches!((&*of.0, &*of.1), ("builtins" | "__builtin__", "getattr"))
}

use crate::{Budget, Error};
use std::borrow::Cow;

/// Why a [`Build`] refused an instruction. The interpreter adds the offset.
#[derive(Debug)]
pub struct Refusal(Box<Error>);

impl Refusal {
    /// The pickle is damaged: it says something impossible.
    #[cold]
    pub fn damaged(what: impl Into<Box<str>>) -> Self {
        Self(Box::new(Error::pickle(0, what)))
    }

    /// The pickle says something that this builder does not read.
    #[cold]
    pub fn unsupported(what: impl Into<Box<str>>) -> Self {
        Self(Box::new(Error::unsupported(0, what)))
    }

    /// The pickle exceeds a limit.
    #[cold]
    pub fn limit(of: &'static str, max: u64) -> Self {
        Self(Box::new(Error::Limit {
            offset: 0,
            limit: of,
            max,
        }))
    }

    #[cold]
    pub(crate) fn at(self, offset: usize) -> Error {
        self.0.shifted(offset as u64)
    }
}

/// The result of a builder's hook.
pub type Built<T> = Result<T, Refusal>;

/// Values that go from the interpreter's stack to a builder.
pub type Items<'m, V> = std::vec::Drain<'m, V>;

/// Decides what the interpreter builds from a pickle: trees of values, columns of metadata, or nothing at all.
///
/// # Contract
/// A value has one owner, until [`share`](Self::share) makes a second handle on it. Lists, dicts, sets and objects are filled after they
/// are made, and may be shared by then. So handles on them must see later additions: use indices into an arena for them. `share` is called
/// only for values to which the pickle refers again. A value that was never shared, and that a hook gets by value, has no other owner and
/// can be taken apart.
///
/// Hooks are called in the order of the pickle. Nothing is ever executed: [`call`](Self::call) and similar hooks only learn what Python
/// *would* do.
pub trait Build<'a> {
    /// A handle on a built value. It should be small.
    type Value;

    /// Called at the beginning of a pickle, with the memory that the builder may keep, as [`Limits`](crate::Limits) allow for a pickle of
    /// this length. The default does nothing.
    fn begin(&mut self, budget: Budget) {
        let _ = budget;
    }
    /// Called before the hooks of each instruction, with the position of the instruction in bytes. The default does nothing.
    #[inline(always)]
    fn at(&mut self, offset: usize) {
        let _ = offset;
    }
    /// Makes a second handle on the same value.
    fn share(&mut self, value: &Self::Value) -> Built<Self::Value>;
    /// `None`.
    fn none(&mut self) -> Built<Self::Value>;
    /// `True` or `False`.
    fn bool(&mut self, v: bool) -> Built<Self::Value>;
    /// An int of up to 64 bits.
    fn int(&mut self, v: i64) -> Built<Self::Value>;
    /// A larger int: two's complement, least significant byte first, in as few bytes as possible.
    fn long(&mut self, le: Cow<'a, [u8]>) -> Built<Self::Value>;
    /// A float.
    fn float(&mut self, v: f64) -> Built<Self::Value>;
    /// A str. It is borrowed from the pickle unless it was escaped there.
    fn str(&mut self, v: Cow<'a, str>) -> Built<Self::Value>;
    /// A str with lone surrogates, in Python's UTF-8 (`surrogatepass`). The default refuses it.
    fn odd_str(&mut self, utf8: &'a [u8]) -> Built<Self::Value> {
        let _ = utf8;
        Err(Refusal::damaged("a text is not UTF-8"))
    }
    /// Bytes.
    fn bytes(&mut self, v: Cow<'a, [u8]>) -> Built<Self::Value>;
    /// A bytearray.
    fn bytearray(&mut self, v: &'a [u8]) -> Built<Self::Value>;
    /// A tuple.
    fn tuple(&mut self, items: Items<'_, Self::Value>) -> Built<Self::Value>;
    /// An empty list.
    fn list(&mut self) -> Built<Self::Value>;
    /// An empty dict.
    fn dict(&mut self) -> Built<Self::Value>;
    /// An empty set.
    fn set(&mut self) -> Built<Self::Value>;
    /// A frozenset.
    fn frozenset(&mut self, items: Items<'_, Self::Value>) -> Built<Self::Value>;
    /// Appends to a list, or to an object that has `append` or `extend`.
    fn append(&mut self, list: &mut Self::Value, items: Items<'_, Self::Value>) -> Built<()>;
    /// Sets items of a dict or of an object like one: key, value, key, value, …
    fn set_items(&mut self, dict: &mut Self::Value, pairs: Items<'_, Self::Value>) -> Built<()>;
    /// Adds to a set, or to an object like one.
    fn add_items(&mut self, set: &mut Self::Value, items: Items<'_, Self::Value>) -> Built<()>;
    /// A class or function by its name in Python 3.
    fn global(&mut self, module: &str, name: &str) -> Built<Self::Value>;
    /// The same, named by two values that must be strs.
    fn stack_global(&mut self, module: Self::Value, name: Self::Value) -> Built<Self::Value>;
    /// `callable(*args)`.
    fn call(&mut self, callable: Self::Value, args: Self::Value) -> Built<Self::Value>;
    /// `class.__new__(class, *args)`.
    fn new_object(&mut self, class: Self::Value, args: Self::Value) -> Built<Self::Value>;
    /// `class.__new__(class, *args, **kwargs)`. The default refuses it.
    fn new_object_ex(
        &mut self,
        class: Self::Value,
        args: Self::Value,
        kwargs: Self::Value,
    ) -> Built<Self::Value> {
        let _ = (class, args, kwargs);
        Err(Refusal::unsupported(
            "an object made with keyword arguments",
        ))
    }
    /// `object.__setstate__(state)`, or an update of its `__dict__`.
    fn build(&mut self, object: &mut Self::Value, state: Self::Value) -> Built<()>;
    /// An object outside the pickle, such as a storage. The default refuses it.
    fn persistent(&mut self, id: Self::Value) -> Built<Self::Value> {
        let _ = id;
        Err(Refusal::unsupported("an object outside of the pickle"))
    }
}

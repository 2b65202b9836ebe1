use crate::{Budget, Error};
use reshard_model::BoxError;
use std::borrow::Cow;

/// Why a [`Build`] did not take what a pickle says. The machine adds the offset.
#[derive(Debug)]
pub struct Refusal(Box<Reason>);

#[derive(Debug)]
enum Reason {
    Damaged(Cow<'static, str>),
    Unsupported(Cow<'static, str>),
    Limit(&'static str, u64),
    Other(BoxError),
}

impl Refusal {
    /// The pickle says something that can't be.
    #[cold]
    pub fn damaged(what: impl Into<Cow<'static, str>>) -> Self {
        Self(Box::new(Reason::Damaged(what.into())))
    }

    /// The pickle says something that is not read.
    #[cold]
    pub fn unsupported(what: impl Into<Cow<'static, str>>) -> Self {
        Self(Box::new(Reason::Unsupported(what.into())))
    }

    /// The pickle exceeds a limit of so many of something.
    #[cold]
    pub fn limit(of: &'static str, max: u64) -> Self {
        Self(Box::new(Reason::Limit(of, max)))
    }

    /// The builder has an error of its own, which is kept.
    #[cold]
    pub fn because(source: impl Into<BoxError>) -> Self {
        Self(Box::new(Reason::Other(source.into())))
    }

    #[cold]
    pub(crate) fn at(self, offset: usize) -> Error {
        let offset = offset as u64;
        match *self.0 {
            Reason::Damaged(what) => Error::Pickle { offset, what: what.into() },
            Reason::Unsupported(what) => Error::Unsupported { offset, what: what.into() },
            Reason::Limit(limit, max) => Error::Limit { offset, limit, max },
            Reason::Other(source) => Error::Refused { offset, source },
        }
    }
}

/// What a builder's hook gives.
pub type Built<T> = Result<T, Refusal>;

/// Values handed from the machine's stack to a builder.
pub type Items<'m, V> = std::vec::Drain<'m, V>;

/// What the machine makes of a pickle. One machine builds trees of values, columns of metadata, or nothing at all.
///
/// # Contract
/// A value belongs to one owner, until [`share`](Self::share) makes a second handle on it. Lists, dicts, sets and objects
/// are filled after they were made, and may have been shared by then, so handles on them must see what is added later: use
/// indices into an arena for those. `share` is called only for values that the pickle names again; whatever was never
/// shared and is given to a hook by value has no other owner and can be taken apart.
///
/// Hooks come in the order of the pickle. Nothing is ever executed: [`call`](Self::call) and its like are told what Python
/// *would* do.
pub trait Build<'a> {
    /// A handle on something built; better small.
    type Value;

    /// A pickle begins; what the builder keeps may take this much memory, as [`Limits`](crate::Limits) say for a pickle of this
    /// length. Does nothing unless overridden.
    fn begin(&mut self, budget: Budget) {
        let _ = budget;
    }
    /// The hooks that follow are those of the instruction at this byte. Does nothing unless overridden.
    #[inline(always)]
    fn at(&mut self, offset: usize) {
        let _ = offset;
    }
    /// A second handle on the same thing.
    fn share(&mut self, value: &Self::Value) -> Built<Self::Value>;
    /// `None`.
    fn none(&mut self) -> Built<Self::Value>;
    /// `True` or `False`.
    fn bool(&mut self, v: bool) -> Built<Self::Value>;
    /// An int of up to 64 bits.
    fn int(&mut self, v: i64) -> Built<Self::Value>;
    /// A larger int: two's complement, least significant byte first, as short as it can be.
    fn long(&mut self, le: Cow<'a, [u8]>) -> Built<Self::Value>;
    /// A float.
    fn float(&mut self, v: f64) -> Built<Self::Value>;
    /// A str; borrowed from the pickle unless it was escaped there.
    fn str(&mut self, v: Cow<'a, str>) -> Built<Self::Value>;
    /// A str with lone surrogates, in the UTF-8 that Python makes of them. Refused unless overridden.
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
    /// `class.__new__(class, *args, **kwargs)`. Refused unless overridden.
    fn new_object_ex(
        &mut self,
        class: Self::Value,
        args: Self::Value,
        kwargs: Self::Value,
    ) -> Built<Self::Value> {
        let _ = (class, args, kwargs);
        Err(Refusal::unsupported("an object made with keyword arguments"))
    }
    /// `object.__setstate__(state)`, or an update of its `__dict__`.
    fn build(&mut self, object: &mut Self::Value, state: Self::Value) -> Built<()>;
    /// An object that lies outside of the pickle, such as a storage. Refused unless overridden.
    fn persistent(&mut self, id: Self::Value) -> Built<Self::Value> {
        let _ = id;
        Err(Refusal::unsupported("an object outside of the pickle"))
    }
    /// A value that the pickle throws away.
    fn discard(&mut self, value: Self::Value) {
        drop(value);
    }
}

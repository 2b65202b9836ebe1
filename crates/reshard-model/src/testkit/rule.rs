//! Rules of contracts, by their names.

use std::{
    any::Any,
    future::{Future, poll_fn},
    panic::{AssertUnwindSafe, catch_unwind},
    pin::pin,
};

/// One rule of a contract. If what checks it panics, the panic goes on with a text that names the rule and the place where it is written.
///
/// ```
/// use reshard_model::testkit::Rule;
/// let rule = Rule { of: "a store", name: "reads.ranges_are_exact", written: "Store::read" };
/// let broken = std::panic::catch_unwind(|| rule.check(|| assert_eq!(1, 2, "bytes")));
/// let text = *broken.unwrap_err().downcast::<String>().unwrap();
/// assert!(text.starts_with("a store breaks the rule `reads.ranges_are_exact`, which is written at `Store::read`: "));
/// assert!(text.contains("bytes"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// What has to keep it: `a store`.
    pub of: &'static str,
    /// Its name, which does not change: `reads.ranges_are_exact`.
    pub name: &'static str,
    /// The item whose documentation has it: `Store::read`.
    pub written: &'static str,
}

impl Rule {
    /// Checks it.
    ///
    /// # Panics
    /// If the check panics.
    pub fn check<T>(self, check: impl FnOnce() -> T) -> T {
        catch_unwind(AssertUnwindSafe(check)).unwrap_or_else(|panic| self.broken(&*panic))
    }

    /// The same, for a check that waits.
    ///
    /// # Panics
    /// If the check panics.
    pub async fn check_async<T>(self, check: impl Future<Output = T>) -> T {
        let mut check = pin!(check);
        poll_fn(|cx| {
            let polled = catch_unwind(AssertUnwindSafe(|| check.as_mut().poll(cx)));
            polled.unwrap_or_else(|panic| self.broken(&*panic))
        })
        .await
    }

    #[expect(clippy::panic, reason = "tests fail by panicking")]
    fn broken(self, panic: &(dyn Any + Send)) -> ! {
        let Self { of, name, written } = self;
        let said = panic.downcast_ref::<&str>().copied();
        let said = said.or_else(|| panic.downcast_ref::<String>().map(|s| &**s));
        let said = said.unwrap_or("the check panicked");
        panic!("{of} breaks the rule `{name}`, which is written at `{written}`: {said}")
    }
}

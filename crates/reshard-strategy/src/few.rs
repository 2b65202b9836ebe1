//! Lists of names in messages.

use std::borrow::Borrow;

/// Names at most.
const FEW: usize = 3;

/// The first of some names, and the number of the others: `a, b, c and 4 more`.
pub fn few<'n>(names: impl ExactSizeIterator<Item = &'n str>) -> String {
    first(FEW, names)
}

/// The same with so many names at most.
pub fn first<S: Borrow<str>>(most: usize, names: impl ExactSizeIterator<Item = S>) -> String {
    let more = names.len().saturating_sub(most);
    let first = names.take(most).collect::<Vec<_>>().join(", ");
    match more {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_beyond_three_are_counted() {
        assert_eq!(few(["a", "b", "c"].into_iter()), "a, b, c");
        assert_eq!(few(["a", "b", "c", "d"].into_iter()), "a, b, c and 1 more");
    }
}

//! The line of `verify` that says which bytes it can't confirm.

use crate::{table::shown, units};
use reshard::strategy::NotCovered;

/// So many files are named of those that have bytes of one kind.
const FEW: usize = 5;

/// What is said of them, if there are any.
pub(crate) fn line(of: &NotCovered) -> Option<String> {
    let parts = of.by_reason().into_iter().map(|(why, (bytes, files))| {
        let named = files.get(..FEW).unwrap_or(&files).join(", ");
        let more = match files.len().saturating_sub(FEW) {
            0 => String::new(),
            n => format!(" and {}", units::some(n as u64, "more file")),
        };
        format!("{} {why} ({named}{more})", units::bytes(bytes))
    });
    let parts: Vec<String> = parts.collect();
    (!parts.is_empty()).then(|| shown(&parts.join("; ")).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use reshard::strategy::Uncovered;

    #[test]
    fn files_are_named_up_to_a_number_and_the_rest_is_counted() {
        let mut all = NotCovered::default();
        assert_eq!(line(&all), None);
        all.add("reshard.json", Uncovered::NoChecksum, 300);
        for n in 0..7 {
            all.add(&format!("f{n}"), Uncovered::Between, 2);
        }
        assert_eq!(
            line(&all).unwrap(),
            "300 B without a checksum (reshard.json); 14 B between items (f0, f1, f2, f3, f4 and 2 more files)"
        );
    }
}

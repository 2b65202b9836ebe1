//! A crate that names only the facade has all built-in strategies and stores.

/// What is linked into a program that depends on `reshard` and on nothing else: strategies as `action of backend/version`,
/// stores as `scheme://`.
///
/// # Errors
/// When two crates claim one name.
pub fn linked() -> reshard::strategy::Result<Vec<String>> {
    let registry = reshard::Registry::linked()?;
    let stores = reshard::Stores::linked()?;
    let strategies = registry.iter().map(|r| r.key().to_string());
    Ok(strategies
        .chain(stores.schemes().map(|s| format!("{}://", s.scheme)))
        .collect())
}

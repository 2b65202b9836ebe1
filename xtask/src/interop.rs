//! placeholder
use anyhow::Result;
#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) keep: bool,
    pub(crate) only_drivers: bool,
}
pub(crate) fn run(o: &Options) -> Result<()> {
    crate::venv::TORCH_21.python()?;
    crate::venv::MCORE_012.python()?;
    crate::shell::say(format!("{o:?}"));
    let _x = (o.keep, o.only_drivers, crate::venv::TORCH_21.name);
    Ok(())
}

//! `reshard-saver DIR STEP new|overwrite FORM` saves once, `reshard-saver DIR prune` prunes once,
//! `reshard-saver DIR remove PREFIX` removes keys once, `reshard-saver DIR convert SRC FORMAT new|overwrite|resume [SETTING=JSON]` converts once, to
//! be killed. A DIR with a scheme is a URL of an object store.

use anyhow::{Context, Result};
use reshard::storage::OpenStore as _;
use reshard_object_store::ObjectStores;
use std::{io::Write as _, path::PathBuf, time::Duration};

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let dir = PathBuf::from(args.next().context("DIR is missing")?);
    let step = args.next().context("STEP is missing")?;
    if step == "prune" {
        let url = dir.display().to_string();
        reshard::blocking::run(reshard_manager::prune(&url).older_than(Duration::ZERO))?;
        return Ok(());
    }
    if step == "remove" {
        let prefix = args.next().context("PREFIX is missing")?;
        let url = dir.display().to_string();
        let removal = reshard_manager::remove_sharded_tensors(&url, &prefix);
        reshard::blocking::run(removal.durability(reshard::Durability::Process))?;
        return Ok(());
    }
    if step == "convert" {
        let src = args.next().context("SRC is missing")?;
        let format = args.next().context("FORMAT is missing")?.parse()?;
        let how = args.next();
        let (overwrite, resume) = (
            how.as_deref() == Some("overwrite"),
            how.as_deref() == Some("resume"),
        );
        let source = reshard::blocking::Checkpoint::open(&src)?;
        let dst = dir.display().to_string();
        let mut conversion = reshard_convert::convert(&source, &dst).to(format);
        if let Some(setting) = args.next() {
            let (name, value) = setting.split_once('=').context("a setting has no value")?;
            conversion = match name {
                // Of a format without this setting, a policy does it.
                "max_shard_size" => conversion.max_shard_size(value.parse()?),
                _ => conversion.setting(name, serde_json::from_str::<serde_json::Value>(value)?),
            };
        }
        let conversion = conversion.ranks(3).drop_objects(true).overwrite(overwrite);
        if !resume {
            reshard::blocking::run(conversion)?;
            return Ok(());
        }
        // After each file, so that it may be killed after each.
        let conversion = conversion.journal("test").journal_every(0).resume(true);
        let done = reshard::blocking::run(conversion)?;
        writeln!(std::io::stdout(), "{}", done.resumed.files)?;
        return Ok(());
    }
    let step = step.parse()?;
    let overwrite = args.next().as_deref() == Some("overwrite");
    if let Some(url) = dir.to_str().filter(|dir| dir.contains("://")) {
        let stores = ObjectStores::new().with_hints(reshard_crash::small_parts());
        let dialect = args.next().context("FORM is missing")?.parse()?;
        return reshard_crash::saved_to(&stores.open(url)?, step, overwrite, dialect);
    }
    let form: reshard_crash::Form = args.next().context("FORM is missing")?.parse()?;
    reshard_crash::save(&dir, step, overwrite, form)
}

//! Dry runs of saves: a dry run reports what the save then writes, reads no tensor and changes nothing.

use proptest::prelude::*;
use reshard::{
    BackendVersion, DType, Data, ErrorKind, Region, Registry, SaveReport, ShardedObject,
    ShardedTensor, StateDict, Tensor, Value,
    model::{BoxError, Dims, TensorSource},
    policy::AllInOne,
};
use reshard_laws::{
    formats::linked,
    law,
    ranks::{group, save},
};
use std::{collections::BTreeSet, fs, path::Path, sync::Arc};

/// Rows that can't be read.
struct Unreadable(Tensor);

impl TensorSource for Unreadable {
    fn dtype(&self) -> DType {
        self.0.dtype()
    }

    fn shape(&self) -> Dims {
        self.0.shape().clone()
    }

    fn read(&self, _: &Region, _: &mut [u8]) -> Result<(), BoxError> {
        Err("a dry run reads no tensor".into())
    }
}

/// Each rank's rows of one tensor, and perhaps an object of each rank.
fn states(ranks: u32, can_be_read: bool, has_objects: bool) -> Vec<StateDict> {
    let state = |rank: u32| {
        let rows = Tensor::from_vec(&[2, 5], vec![rank as f32; 10]).unwrap();
        let unreadable = Data::Lazy(Arc::new(Unreadable(rows.clone())));
        let mut rows =
            ShardedTensor::from_rank_offsets("w", rows, &[(0, rank.into(), ranks.into())]).unwrap();
        if !can_be_read {
            rows.data = unreadable;
        }
        let mut state = StateDict::new();
        state.insert("w", rows);
        if has_objects {
            let text = Value::from("text of a rank".repeat(rank as usize + 1).as_str());
            let object = ShardedObject::new("o", text, &[ranks.into()], &[rank.into()], 0);
            state.insert("o", object.unwrap());
        }
        state
    };
    (0..ranks).map(state).collect()
}

#[derive(Clone, Copy, Debug)]
struct Options {
    dry_run: bool,
    overwrite: bool,
    one_file: bool,
}

/// Saves with all ranks, and returns the coordinator's report.
fn saved(
    place: &Path,
    format: &BackendVersion,
    states: Vec<StateDict>,
    options: Options,
) -> Result<SaveReport, reshard::Error> {
    let (format, url) = (format.clone(), place.display().to_string());
    let ranks = states.len() as u32;
    let outcomes = save(group(ranks), states, &url, move |_, save| {
        let registry = Registry::linked().unwrap();
        let save = save
            .strategy(registry.save_sharded(&format).unwrap())
            .dry_run(options.dry_run)
            .overwrite(options.overwrite);
        match options.one_file {
            true => save.policy(AllInOne { gather: true }),
            false => save,
        }
    });
    let mut reports = outcomes.into_iter().collect::<Result<Vec<_>, _>>()?;
    Ok(reports.swap_remove(0))
}

/// Names, lengths and times of everything below a folder.
fn listing(folder: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let metadata = fs::metadata(&path).unwrap();
        found.insert(format!(
            "{} {} {:?}",
            path.display(),
            metadata.len(),
            metadata.modified().unwrap()
        ));
        if metadata.is_dir() {
            found.extend(listing(&path));
        }
    }
    found
}

proptest! {
    #![proptest_config(law(24))]

    #[test]
    fn a_dry_run_reports_what_is_written_and_changes_nothing(
        format in prop::sample::select(linked()), ranks in 1u32..4, one_file in any::<bool>(), below in any::<bool>(),
        has_objects in any::<bool>(),
    ) {
        let home = tempfile::tempdir().unwrap();
        // Folders above the place are made by a save only.
        let place = home.path().join(if below { "a/b/ckpt" } else { "ckpt" });
        let options = Options { dry_run: true, overwrite: false, one_file };
        let planned = saved(&place, &format, states(ranks, false, has_objects), options);
        prop_assert_eq!(listing(home.path()), BTreeSet::new(), "{:?}", format);
        let real = saved(&place, &format, states(ranks, true, has_objects), Options { dry_run: false, ..options });
        let (planned, real) = match (planned, real) {
            (Ok(planned), Ok(real)) => (planned, real),
            // Such as a policy for a format that takes none.
            (Err(planned), Err(real)) => {
                prop_assert_eq!(planned.to_string(), real.to_string());
                return Ok(());
            }
            (planned, real) => return Err(TestCaseError::fail(format!("{format:?}: {planned:?}, but {real:?}"))),
        };
        prop_assert_eq!(planned.files(), real.files(), "{:?}", format);
        prop_assert_eq!(planned.totals.all.items, real.totals.all.items, "{:?}", format);
        // The length of an object that another rank brings to a file is an estimate.
        let objects = if has_objects { 1_000 * u64::from(ranks - 1) } else { 0 };
        prop_assert!(planned.bytes().abs_diff(real.bytes()) <= objects, "{:?}: {} of {}", format, planned.bytes(), real.bytes());
        prop_assert_eq!(&planned.common, &real.common, "{:?}", format);

        // What stands there is in the way, and stays as it is.
        let before = listing(home.path());
        let e = saved(&place, &format, states(ranks, false, has_objects), options).err();
        prop_assert_eq!(e.map(|e| e.kind()), Some(ErrorKind::Exists), "{:?}", format);
        let again = saved(&place, &format, states(ranks, false, has_objects), Options { overwrite: true, ..options });
        let real = saved(&place, &format, states(ranks, true, has_objects), Options { dry_run: false, overwrite: true, ..options });
        prop_assert_eq!(again.is_ok(), real.is_ok(), "{:?}, but {:?}", again, real);
        if real.is_err() {
            prop_assert_eq!(listing(home.path()), before);
        }
    }
}

#[test]
fn a_dry_run_needs_permission_to_write_and_leaves_the_old_version() {
    let home = tempfile::tempdir().unwrap();
    let place = home.path().join("ckpt");
    let format = BackendVersion::new("torch_dist", 1);
    let options = Options {
        dry_run: false,
        overwrite: true,
        one_file: false,
    };
    saved(&place, &format, states(2, true, false), options).unwrap();
    let before = listing(home.path());
    let dry = Options {
        dry_run: true,
        ..options
    };
    let report = saved(&place, &format, states(3, false, false), dry).unwrap();
    assert_eq!(report.files(), 3);
    assert_eq!(listing(home.path()), before);
    // A file where a folder has to be.
    fs::write(home.path().join("file"), "").unwrap();
    let below = home.path().join("file/ckpt");
    let planned = saved(&below, &format, states(1, false, false), dry).unwrap_err();
    let real = saved(&below, &format, states(1, true, false), options).unwrap_err();
    assert_eq!(planned.kind(), real.kind(), "{planned}, but {real}");
}

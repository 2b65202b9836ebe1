//! Runs in an object store, where nothing can be renamed.

use crate::states::{state, stride};
use futures::{TryStreamExt as _, executor::block_on};
use reshard::{
    CommonForm, DType, Dialect, OpenOptions, Save, ShardedTensor, StateDict, Stores,
    object_store::{
        ObjectStores,
        object_store::{ObjectStore, memory::InMemory},
    },
    storage::Progress,
    zarr::ZarrConfig,
};
use reshard_manager::{Saver, Verify};
use reshard_storage::{
    LocalStore, Store,
    testkit::{Fault, FaultStore},
};
use std::sync::Arc;

const RUN: &str = "s3://bucket/run";

/// What a checkpoint looks like.
#[derive(Clone, Copy, Debug)]
enum Form {
    Dcp,
    /// Common state is a file.
    File,
    /// Common state is an object.
    Object,
}

impl Form {
    const ALL: [Self; 3] = [Self::Dcp, Self::File, Self::Object];

    fn of(self, save: Save<'_>) -> Save<'_> {
        match self {
            Self::Dcp => save.dialect(Dialect::Dcp),
            Self::File => save,
            Self::Object => save.common_form(CommonForm::Object),
        }
    }
}

struct Bucket {
    objects: Arc<InMemory>,
    stores: Stores,
}

impl Bucket {
    fn new() -> Self {
        let objects = Arc::new(InMemory::new());
        let client = Arc::clone(&objects) as Arc<dyn ObjectStore>;
        let open = ObjectStores::new().with_client("s3://bucket", client);
        let stores = Stores::linked().unwrap().with("s3", open);
        Self { objects, stores }
    }

    /// A saver, and the faults of its stores.
    fn saver(&self, verify: Verify) -> (Saver, FaultStore) {
        // The store that it is made around is never used.
        let faults = FaultStore::new(Arc::new(LocalStore::at("/").unwrap()));
        let around = faults.clone();
        let stores = self
            .stores
            .clone()
            .around(move |store: Arc<dyn Store>| Arc::new(around.around(store)) as Arc<dyn Store>);
        let saver = Saver::new(RUN).keep(1).verify(verify).stores(stores);
        (saver, faults)
    }

    /// The names of all objects below a folder of the run.
    fn below(&self, folder: &str) -> Vec<String> {
        let all: Vec<_> = block_on(self.objects.list(None).try_collect()).unwrap();
        let names = all.into_iter().map(|meta| meta.location.to_string());
        let prefix = format!("run/{folder}");
        names.filter(|name| name.starts_with(&prefix)).collect()
    }

    fn steps(&self) -> Vec<u64> {
        let steps = block_on(
            reshard_manager::steps(RUN)
                .stores(self.stores.clone())
                .into_future(),
        );
        steps.unwrap().iter().map(|step| step.number).collect()
    }

    /// That what is listed is whole: a removal that was broken off leaves nothing that is taken for a checkpoint.
    fn all_are_whole(&self, how: &str) {
        for step in self.steps() {
            let open = OpenOptions::new().stores(self.stores.clone());
            let checkpoint = block_on(open.open(format!("{RUN}/step-{step}"))).unwrap();
            let found = block_on(checkpoint.verify(true, Progress::default())).unwrap();
            assert_eq!(found.damage, [], "{how}, step {step}");
        }
    }

    /// That the newest checkpoint is of this step, whole, and has the right values.
    fn newest_is(&self, want: u64) {
        let newest = block_on(
            reshard_manager::steps(RUN)
                .stores(self.stores.clone())
                .latest(),
        );
        let newest = newest.unwrap().unwrap();
        assert_eq!(newest.number, want);
        let open = OpenOptions::new().stores(self.stores.clone());
        let checkpoint = block_on(open.open(&newest)).unwrap();
        let found = block_on(checkpoint.verify(true, Progress::default())).unwrap();
        assert_eq!(found.damage, []);
        let mut template = StateDict::new();
        template.insert_piece(ShardedTensor::template("w", DType::Float32, &[2, 3]));
        template.insert("step", 0);
        let load = reshard::load(template, &newest).stores(self.stores.clone());
        let loaded = block_on(load.into_future()).unwrap();
        let elements = loaded.tensor("w").unwrap().to_vec::<f32>().unwrap();
        assert!(elements.iter().all(|e| *e == want as f32), "{elements:?}");
        assert_eq!(loaded.int("step").unwrap(), i64::try_from(want).unwrap());
    }
}

fn save(saver: &Saver, step: u64, form: Form) -> Result<Vec<String>, String> {
    let state = state(step);
    let saved = block_on(saver.save(step, &state, |save| form.of(save)));
    saved.map(|saved| saved.warnings).map_err(|e| e.to_string())
}

#[test]
fn old_checkpoints_are_removed_from_a_bucket() {
    for form in Form::ALL {
        let bucket = Bucket::new();
        let (saver, _) = bucket.saver(Verify::Full);
        let saver = saver.keep(2);
        assert_eq!(block_on(saver.latest()).unwrap(), None);
        for step in 1..5 {
            assert_eq!(save(&saver, step, form), Ok(vec![]), "{form:?}");
        }
        assert_eq!(bucket.steps(), [3, 4]);
        bucket.newest_is(4);
        for gone in ["step-1/", "step-2/"] {
            assert_eq!(bucket.below(gone), [""; 0], "{form:?}");
        }
    }
}

#[test]
fn a_bucket_keeps_what_the_saver_did_not_write() {
    let bucket = Bucket::new();
    let stores = || bucket.stores.clone();
    let state = state(1);
    let others = reshard::save(&state, format!("{RUN}/step-1")).stores(stores());
    block_on(others.into_future()).unwrap();
    let other = Saver::new(RUN).owner("b").stores(stores());
    assert_eq!(save(&other, 2, Form::Dcp), Ok(vec![]));
    let (saver, _) = bucket.saver(Verify::No);
    for step in 3..5 {
        assert_eq!(save(&saver, step, Form::Dcp), Ok(vec![]));
    }
    assert_eq!(bucket.steps(), [1, 2, 4]);
}

#[test]
fn a_format_without_a_commit_record_stays_in_a_bucket_with_a_warning() {
    let bucket = Bucket::new();
    let (saver, _) = bucket.saver(Verify::No);
    let state = state(1);
    let saved = |step| {
        let saved = saver.save(step, &state, |save| save.strategy(ZarrConfig::default()));
        block_on(saved).unwrap().warnings
    };
    assert_eq!(saved(1), [""; 0]);
    let warnings = saved(2);
    let [warning] = &*warnings else {
        panic!("{warnings:?}")
    };
    assert!(
        warning.contains("step 1 stays") && warning.contains("no one file completes"),
        "{warning}"
    );
    assert_eq!(bucket.steps(), [1, 2]);
}

#[test]
fn a_bucket_that_fails_at_any_call_keeps_the_newest_good_checkpoint() {
    for form in Form::ALL {
        for fault in [Fault::Before, Fault::After] {
            at_every_call(form, fault);
        }
    }
}

fn at_every_call(form: Form, fault: Fault) {
    // Runs begin at different calls.
    let (mut at, mut goes_on) = (form as u64 % stride(), true);
    let (mut failed, mut warned) = (0, 0);
    while goes_on {
        let how = format!("{form:?}, {fault:?}, call {at}");
        let bucket = Bucket::new();
        let (saver, faults) = bucket.saver(Verify::Quick);
        for step in [1, 2] {
            assert_eq!(save(&saver, step, form), Ok(vec![]), "{how}");
        }
        let before = faults.calls();
        faults.die(before + at, fault);
        let saved = save(&saver, 3, form);
        goes_on = faults.calls() > before + at;
        let newest = *bucket.steps().last().unwrap();
        match &saved {
            Ok(warnings) => {
                assert_eq!(newest, 3, "{how}");
                warned += usize::from(!warnings.is_empty());
            }
            Err(_) => failed += 1,
        }
        bucket.newest_is(newest);
        bucket.all_are_whole(&how);

        // The network is well again.
        let (saver, _) = bucket.saver(Verify::Quick);
        assert_eq!(save(&saver, 4, form), Ok(vec![]), "{how}, {saved:?}");
        bucket.newest_is(4);
        assert_eq!(bucket.steps(), [4], "{how}, {saved:?}");
        assert_eq!(bucket.below("step-2/"), [""; 0], "{how}, {saved:?}");
        if newest == 3 {
            assert_eq!(bucket.below("step-3/"), [""; 0], "{how}, {saved:?}");
        }
        at += stride();
    }
    assert!(
        at > 10 && failed > 1 && warned > 1,
        "{at} calls, {failed} failed, {warned} warned"
    );
}

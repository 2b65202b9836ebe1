//! What a format says of itself holds: element types, objects, the files that are its own, and sharding policies.

use super::{
    Cut, Rank, check_sample,
    drive::{Seat, save_on_seats},
    left::files,
    sample, sample_template,
    strategies::{Pair, store},
};
use crate::{FileRole, OpenCx, Saved, StorageReader, item_files};
use futures_executor::block_on;
use reshard_comm::LocalGroup;
use reshard_model::{
    DType, Data, ErrorKind, FlatStateDict, Path, Payload, Sharded, ShardedObject, ShardedTensor,
    Tensor, Value,
};
use reshard_plan::{DefaultSavePlanner, SavePlanner};
use reshard_policy::ByItem;
use reshard_storage::{Entry, IfExists, Name, Store};
use std::sync::Arc;

impl Pair<'_> {
    fn load_alone(&self, store: &Arc<dyn Store>, template: FlatStateDict) -> FlatStateDict {
        let loaded = self.load_flats(store, vec![template]).pop();
        let loaded = loaded.expect("one rank");
        loaded.map_err(|failure| failure.error).unwrap().state
    }

    fn open(&self, store: &Arc<dyn Store>) -> Arc<dyn StorageReader> {
        block_on(self.load.open(&OpenCx::new(Arc::clone(store)))).unwrap()
    }

    /// Elements of each type that the format says it stores.
    pub(super) fn every_type_comes_back(&self) {
        let holds = self.save.capabilities().dtypes;
        for dtype in DType::ALL.iter().copied().filter(|dtype| holds(*dtype)) {
            let store = store();
            let bytes: Vec<u8> = (0..6 * dtype.size()).map(|n| n as u8 & 1).collect();
            let tensor = Tensor::new(dtype, &[3, 2], bytes.clone()).unwrap();
            let leaf = ShardedTensor::full("typed", tensor);
            for saved in self.save_flats(&store, IfExists::Refuse, vec![one(leaf)]) {
                saved.unwrap();
            }
            let template = ShardedTensor::template("typed", dtype, &[3, 2]);
            let loaded = self.load_alone(&store, one(template));
            let Some(Sharded::Tensor(leaf)) = loaded.into_values().next() else {
                panic!("{dtype} is lost");
            };
            let Data::Host(tensor) = leaf.data else {
                panic!("{dtype} was not loaded");
            };
            assert_eq!(tensor.to_bytes(), bytes, "{dtype}");
        }
    }

    /// Several objects of one rank, each under its key.
    pub(super) fn objects_keep_their_keys(&self) {
        if !self.objects() {
            return;
        }
        let store = store();
        let objects = |value: fn(i64) -> Payload| -> FlatStateDict {
            let object = |n: i64| {
                let key = format!("object.{n}");
                let object = ShardedObject::new(&key, Value::None, &[1], &[0], 0).unwrap();
                let data = value(n);
                let leaf = Sharded::Object(ShardedObject { data, ..object });
                (Path(vec![key.into()]), leaf)
            };
            (0..5).map(object).collect()
        };
        let saved = objects(|n| Payload::Value(Value::Int(n)));
        for outcome in self.save_flats(&store, IfExists::Refuse, vec![saved]) {
            outcome.unwrap();
        }
        let loaded = self.load_alone(&store, objects(|_| Payload::None));
        for (n, (path, leaf)) in (0..).zip(loaded) {
            let Sharded::Object(object) = leaf else {
                panic!("{path} is no object");
            };
            assert_eq!(object.data, Payload::Value(Value::Int(n)), "{path}");
        }
    }

    /// The reader owns all files that a save has written, and says what each of them without items is. Of other files it owns none.
    pub(super) fn files_are_its_own(&self) {
        let store = store();
        let flats = (0..2).map(|r| sample(Cut::Rows, r, 2, self.objects()));
        for saved in self.save_flats(&store, IfExists::Refuse, flats.collect()) {
            saved.unwrap();
        }
        let reader = self.open(&store);
        let with_items = item_files(&*reader);
        for (name, bytes) in files(&store) {
            assert!(reader.owns(&name), "{name} is not its own");
            let entry = Entry {
                bytes: bytes.len() as u64,
                name,
            };
            let role = reader.role(&entry);
            let is_needed = matches!(role, FileRole::Part | FileRole::Record | FileRole::Items);
            assert!(
                with_items.contains(&entry.name) || is_needed,
                "{}, which a save has just written, is {role:?}",
                entry.name
            );
        }
        for foreign in ["notes of somebody.txt", "folder of somebody/notes"] {
            let name = Name::new(foreign).unwrap();
            assert!(!reader.owns(&name), "{name} is somebody's file");
            let role = reader.role(&Entry { name, bytes: 7 });
            assert_eq!(role, FileRole::Foreign, "{foreign}");
        }
    }

    /// A save with a policy is refused, or its files are those of the policy.
    pub(super) fn policies_decide_on_files(&self) {
        let store = store();
        let groups = (0..2).zip(LocalGroup::new(2));
        let ranks = groups.map(|(r, group)| {
            let seat = Seat {
                policy: Some(Arc::new(ByItem::new())),
                ..Seat::new(Arc::new(group), Arc::clone(&store))
            };
            let rank = Rank {
                strategy: self.saver(),
                planner: Arc::new(DefaultSavePlanner::DEFAULT) as Arc<dyn SavePlanner>,
                flat: sample(Cut::Rows, r, 2, self.objects()),
            };
            (seat, rank)
        });
        let saved = save_on_seats(ranks.collect(), IfExists::Refuse, None);
        // Settings may have a policy of their own, beside which there is no place for another.
        let is_refused = |one: &crate::Result<Saved>| {
            let e = one.as_ref().err();
            e.is_some_and(|e| match e.kind() {
                ErrorKind::Unsupported => true,
                kind => kind == ErrorKind::Invalid && e.to_string().contains("policy"),
            })
        };
        if saved.iter().all(is_refused) {
            return;
        }
        for one in saved {
            one.unwrap();
        }
        let files = item_files(&*self.open(&store));
        assert!(
            files.len() > 2,
            "each item has a file of its own, and items lie in {files:?}"
        );
        let saved_by = self.objects().then_some(2);
        check_sample(&self.load_alone(&store, sample_template(Cut::Columns, 0, 1, saved_by)));
    }
}

fn one(leaf: ShardedTensor) -> FlatStateDict {
    let path = Path(vec![(&*leaf.key).into()]);
    [(path, Sharded::Tensor(leaf))].into_iter().collect()
}

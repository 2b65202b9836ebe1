//! Checkpoints in an object store.

use crate::stores::{RANKS, contents, states, templates};
use reshard::CommonForm;
use reshard_laws::{
    contents::{Contents, Watch},
    place::Place,
    ranks::{group, load, save},
};
use reshard_object_store::ObjectStorePlace;

const NONE: [&str; 0] = [];

/// Saves on all ranks. What a rank says of a failure is returned.
fn saved(contents: &Contents, place: &Place, form: CommonForm, overwrite: bool) -> Vec<String> {
    let results = save(group(RANKS), states(contents), place.url(), move |_, s| {
        s.common_form(form).overwrite(overwrite)
    });
    let errors = results.into_iter().filter_map(|saved| saved.err());
    errors.map(|e| e.to_string()).collect()
}

fn loads(contents: &Contents, place: &Place) {
    let cut = contents.columns(RANKS);
    let (wanted, watches) = templates(contents);
    for (rank, loaded) in (0..).zip(load(group(RANKS), wanted, place.url(), |_, l| l)) {
        contents.check(&cut, rank, RANKS, &loaded.unwrap().0);
    }
    watches.iter().for_each(Watch::check_filled);
}

/// Contents with other values.
fn others() -> Contents {
    let mut others = contents();
    others.tensors[0].salt += 1;
    others
}

#[test]
fn a_checkpoint_in_an_object_store_is_replaced_in_one_step_and_the_old_files_stay_until_prune() {
    let place = Place::of(ObjectStorePlace::in_memory());
    assert_eq!(saved(&contents(), &place, CommonForm::Object, false), NONE);
    let before = place.files();
    assert!(before.len() > RANKS as usize);
    loads(&contents(), &place);

    assert_eq!(saved(&others(), &place, CommonForm::Object, true), NONE);
    let after = place.files();
    let changed: Vec<_> = before
        .iter()
        .filter(|(name, bytes)| after.get(*name) != Some(*bytes))
        .map(|(name, _)| name.as_str())
        .collect();
    assert_eq!(changed, [".metadata"]);
    loads(&others(), &place);
}

#[test]
fn what_can_not_change_in_one_step_in_an_object_store_is_refused_with_the_way_out() {
    let place = Place::of(ObjectStorePlace::in_memory());
    assert_eq!(saved(&contents(), &place, CommonForm::File, false), NONE);
    let before = place.files();
    let errors = saved(&others(), &place, CommonForm::File, true);
    assert_eq!(errors.len(), RANKS as usize);
    for error in errors {
        assert!(error.contains("CommonForm::Object"), "{error}");
    }
    assert!(place.files() == before);
    loads(&contents(), &place);
}

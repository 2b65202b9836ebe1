use crate::cuts::*;
use reshard_model::{DType, ErrorKind, FlatStateDict, Region, ShardedTensor};
use reshard_plan::*;

const PLAIN: DefaultLoadPlanner = DefaultLoadPlanner::DEFAULT;

/// Rank `rank` of `world` of a vector of `n` elements.
fn part(n: u64, rank: u64, world: u64) -> FlatStateDict {
    let each = n / world;
    flat([leaf("st", &[n], Region::new([rank * each], [each]))])
}

fn vector(n: u64, world: u64) -> Metadata {
    stored(&(0..world).map(|r| part(n, r, world)).collect::<Vec<_>>())
}

/// (stored offset, offset in the chunk, offset in the leaf, length) of each item.
fn spans(plan: &LoadPlan) -> Vec<[u64; 4]> {
    let span = |i: &ReadItem| {
        let offset = i.piece.offset.as_ref().unwrap()[0];
        assert_eq!(i.dest_region.lengths, i.stored_region.lengths);
        [
            offset,
            i.stored_region.offsets[0],
            i.dest_region.offsets[0],
            i.dest_region.lengths[0],
        ]
    };
    plan.items.iter().map(span).collect()
}

#[test]
fn eight_ranks_to_four_and_back_and_four_to_three() {
    let four_of_eight = load(PLAIN, &part(128, 1, 4), &vector(128, 8)).unwrap();
    assert_eq!(spans(&four_of_eight), [[32, 0, 0, 16], [48, 0, 16, 16]]);
    let eight_of_four = load(PLAIN, &part(128, 1, 8), &vector(128, 4)).unwrap();
    assert_eq!(spans(&eight_of_four), [[0, 16, 0, 16]]);
    let three_of_four = load(PLAIN, &part(120, 1, 3), &vector(120, 4)).unwrap();
    assert_eq!(spans(&three_of_four), [[30, 10, 0, 20], [60, 0, 20, 20]]);
}

#[test]
fn a_chunk_that_straddles_two_is_read_in_two_parts() {
    let metadata = table(&[16], &[Region::new([0], [8]), Region::new([8], [8])]);
    let plan = load(
        PLAIN,
        &flat([leaf("w", &[16], Region::new([4], [7]))]),
        &metadata,
    )
    .unwrap();
    assert_eq!(spans(&plan), [[0, 4, 0, 4], [8, 0, 4, 3]]);
}

#[test]
fn everything_that_does_not_fit_is_said_at_once() {
    let mut ranks = [
        flat(
            ["layer.weight", "layer.bias", "shape", "type"]
                .map(|k| leaf(k, &[4], Region::whole(&[4]))),
        ),
        objects(&["optimizer.step"]),
    ];
    ranks[0].sort_keys();
    let metadata = stored(&ranks);
    let mut template = flat([
        leaf("module.layer.weight", &[4], Region::whole(&[4])),
        leaf("layer.bais", &[4], Region::whole(&[4])),
        leaf("nothing", &[4], Region::whole(&[4])),
        leaf("shape", &[5], Region::whole(&[5])),
        ShardedTensor {
            dtype: DType::BFloat16,
            ..leaf("type", &[4], Region::whole(&[4]))
        },
        leaf("optimizer.step", &[4], Region::whole(&[4])),
    ]);
    template.extend(objects(&["layer.bias"]));
    let e = load(PLAIN, &template, &metadata).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Invalid);
    insta::assert_snapshot!(e, @r"
    the checkpoint can't fill the template: 7 problems
      layer.bais is not in the checkpoint; did you mean layer.bias
      layer.bias is stored as a tensor, but asked for as an object
      module.layer.weight is not in the checkpoint; did you mean layer.weight
      nothing is not in the checkpoint
      optimizer.step is stored as an object, but asked for as a tensor
      shape has shape [4] in the checkpoint, in [1] fragments, but [5] was asked for in [1] fragments; axis 0 differs
      type is stored as float32, but asked for as bfloat16; declare it as float32, or allow the cast: `.cast(Cast::Lossless)` or another `Cast`
    ");
}

#[test]
fn missing_keys_alone_are_not_found_and_may_be_left_alone() {
    let metadata = vector(8, 2);
    let mut template = part(8, 0, 2);
    template.extend(objects(&["step"]));
    assert_eq!(
        load(PLAIN, &template, &metadata).unwrap_err().kind(),
        ErrorKind::NotFound
    );
    let plan = load(
        PLAIN.strict(StrictHandling::ReturnUnexpected),
        &template,
        &metadata,
    )
    .unwrap();
    assert_eq!((plan.not_stored, plan.items.len()), (vec![1], 1));
}

#[test]
fn damage_is_corrupt_and_names_boxes() {
    let cases = [
        (
            vec![Region::new([0], [3]), Region::new([4], [4])],
            "the checkpoint can't fill the template: w: no chunk covers [3:4] of shape [8]",
        ),
        (
            vec![Region::new([0], [5]), Region::new([4], [4])],
            "the checkpoint can't fill the template: w: chunks [0:5] and [4:8] overlap",
        ),
        (
            vec![Region::new([0], [4]), Region::new([4], [5])],
            "the checkpoint can't fill the template: w: chunk [4:9] does not lie in shape [8]",
        ),
        (
            vec![Region::new([0], [4]), Region::new([4], [u64::MAX])],
            "the checkpoint can't fill the template: w: chunk [4:18446744073709551615] does not lie in shape [8]",
        ),
        (
            vec![],
            "the checkpoint can't fill the template: w: no chunk covers [0:8] of shape [8]",
        ),
    ];
    for (chunks, text) in cases {
        let metadata = table(&[8], &chunks);
        let e = load(
            PLAIN,
            &flat([leaf("w", &[8], Region::whole(&[8]))]),
            &metadata,
        )
        .unwrap_err();
        assert_eq!((e.kind(), e.to_string()), (ErrorKind::Corrupt, text.into()));
        assert_eq!(metadata.problems().len(), 1);
        // what doesn't want the damaged part loads
        assert_eq!(
            load(
                PLAIN,
                &flat([leaf("w", &[8], Region::new([0], [2]))]),
                &metadata
            )
            .is_ok(),
            !chunks.is_empty()
        );
    }
}

#[test]
fn a_cast_is_reported_where_it_is_allowed() {
    let metadata = vector(8, 1);
    let template = flat([ShardedTensor {
        dtype: DType::BFloat16,
        ..leaf("st", &[8], Region::whole(&[8]))
    }]);
    for cast in [Cast::Never, Cast::Lossless] {
        assert!(load(PLAIN.cast(cast), &template, &metadata).is_err());
    }
    for cast in [Cast::Float, Cast::Any] {
        let plan = load(PLAIN.cast(cast), &template, &metadata).unwrap();
        assert_eq!(
            plan.recasts,
            [Recast {
                dest: 0,
                from: DType::Float32,
                to: DType::BFloat16
            }]
        );
    }
}

/// Whatever casts are allowed: the elements mean nothing without their scale.
#[test]
fn a_quantised_tensor_is_not_cast() {
    let shape = reshard_model::Dims::from([8]);
    let load = |key: &str, dtype| {
        let mut builder = Metadata::builder();
        for (key, dtype) in [
            (key, DType::Float8E4M3Fn),
            ("a.weight_scale", DType::Float32),
        ] {
            let tensor = builder.add_tensor(key, dtype, &shape, Default::default());
            builder
                .add_chunk(tensor.unwrap(), &Region::whole(&shape))
                .unwrap();
        }
        let metadata = builder.finish(None).unwrap();
        let template = flat([ShardedTensor {
            dtype,
            ..leaf(key, &[8], Region::whole(&[8]))
        }]);
        load(PLAIN.cast(Cast::Any), &template, &metadata)
    };
    let e = load("a.weight", DType::BFloat16).unwrap_err();
    assert!(
        e.kind() == ErrorKind::Unsupported && e.to_string().contains("a.weight_scale"),
        "{e}"
    );
    assert!(load("a.weight", DType::Float8E4M3Fn).is_ok());
    assert!(load("b.weight", DType::BFloat16).is_ok());
}

#[test]
fn prepended_axes_of_any_number_read_the_same_chunks() {
    // (4, 5, 80) stored plain, read as (5, 80) with one axis in front, and as (80) with two
    let metadata = table(
        &[4, 5, 80],
        &[
            Region::new([0, 0, 0], [2, 5, 80]),
            Region::new([2, 0, 0], [2, 5, 80]),
        ],
    );
    let one = ShardedTensor::declare("w", DType::Float32, &[5, 80], &[(0, 3, 4)], 1).unwrap();
    let two =
        ShardedTensor::declare("w", DType::Float32, &[80], &[(0, 1, 4), (1, 2, 5)], 2).unwrap();
    let plan = load(PLAIN, &flat([one, two]), &metadata).unwrap();
    let seen: Vec<_> = plan
        .items
        .iter()
        .map(|i| {
            (
                i.dest,
                i.dest_region.to_string(),
                i.stored_region.to_string(),
            )
        })
        .collect();
    assert_eq!(
        seen,
        [
            (0, "[0:1, 0:5, 0:80]".into(), "[1:2, 0:5, 0:80]".into()),
            (1, "[0:1, 0:1, 0:80]".into(), "[1:2, 2:3, 0:80]".into())
        ]
    );
}

#[test]
fn with_allow_shape_mismatch_what_is_missing_becomes_zeros() {
    let metadata = table(&[4, 3], &[Region::whole(&[4, 3])]);
    let ask = |region: Region| {
        let t = ShardedTensor {
            allow_shape_mismatch: true,
            ..leaf("w", &[6, 5], region)
        };
        load(PLAIN, &flat([t]), &metadata).unwrap()
    };
    let seen = |plan: &LoadPlan| {
        let items: Vec<String> = plan
            .items
            .iter()
            .map(|i| format!("{} from {}", i.dest_region, i.stored_region))
            .collect();
        (
            items,
            plan.fills
                .iter()
                .map(|f| f.dest_region.to_string())
                .collect::<Vec<_>>(),
        )
    };
    let strings = |v: &[&str]| v.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(
        seen(&ask(Region::whole(&[6, 5]))),
        (
            strings(&["[0:4, 0:3] from [0:4, 0:3]"]),
            strings(&["[4:6, 0:5]", "[0:4, 3:5]"])
        )
    );
    assert_eq!(
        seen(&ask(Region::new([3, 2], [2, 2]))),
        (
            strings(&["[0:1, 0:1] from [3:4, 2:3]"]),
            strings(&["[1:2, 0:2]", "[0:1, 1:2]"])
        )
    );
    assert_eq!(
        seen(&ask(Region::new([4, 0], [2, 5]))),
        (vec![], strings(&["[0:2, 0:5]"]))
    );
    // a smaller one leaves the surplus out
    let small = ShardedTensor {
        allow_shape_mismatch: true,
        ..leaf("w", &[2, 2], Region::whole(&[2, 2]))
    };
    let plan = load(PLAIN, &flat([small]), &metadata).unwrap();
    assert_eq!(
        seen(&plan),
        (strings(&["[0:2, 0:2] from [0:2, 0:2]"]), vec![])
    );
    // another number of axes never fits
    let other = ShardedTensor {
        allow_shape_mismatch: true,
        ..leaf("w", &[12], Region::whole(&[12]))
    };
    let e = load(PLAIN, &flat([other]), &metadata).unwrap_err();
    assert!(e.to_string().ends_with("the number of axes differs"), "{e}");
}

#[test]
fn a_leaf_that_contradicts_itself_is_refused() {
    let e = load(
        PLAIN,
        &flat([leaf("st", &[8], Region::new([4], [5]))]),
        &vector(8, 1),
    )
    .unwrap_err();
    assert_eq!(
        (e.kind(), e.to_string().as_str()),
        (
            ErrorKind::Invalid,
            "st: region [4:9] does not lie in the global shape [8]"
        )
    );
}

/// Keys of what nobody asks for.
fn named<'m>(plan: &LoadPlan, metadata: &'m Metadata) -> Vec<&'m str> {
    let keys: Vec<&str> = metadata.entries().map(|e| e.key()).collect();
    plan.not_requested
        .iter()
        .map(|at| keys[*at as usize])
        .collect()
}

/// Megatron's table: what a template lacks, and what it has too much, for each strictness.
#[test]
fn strictness_decides_about_keys_that_one_side_lacks() {
    use StrictHandling::*;
    let metadata = stored(&[objects(&["d", "c", "b", "a"])]);
    let plan = |strict, asked: [&[&str]; 2]| -> Result<Vec<LoadPlan>, PlanError> {
        let planner = PLAIN.strict(strict);
        let plans: Result<Vec<_>, _> = asked
            .iter()
            .map(|keys| load(planner, &objects(keys), &metadata))
            .collect();
        planner.create_global_plan(plans?, &LoadContext::new(&metadata, 0, true))
    };
    for strict in StrictHandling::ALL {
        let exact = plan(strict, [&["a", "b"], &["b", "c", "d"]]).unwrap();
        assert!(
            (exact.iter()).all(|p| p.not_stored.is_empty() && p.not_requested.is_empty()),
            "{strict}"
        );
        let less = plan(strict, [&["a", "b"], &["b", "c"]]);
        match strict {
            RaiseAll => assert_eq!(
                less.unwrap_err().to_string(),
                "the templates leave out parts of the checkpoint: d is in the checkpoint, but no rank asks for it; add it to a template, or don't choose `raise_all`"
            ),
            LogAll | ReturnAll => {
                assert!(less.unwrap().iter().all(|p| named(p, &metadata) == ["d"]));
            }
            _ => assert!(less.unwrap().iter().all(|p| p.not_requested.is_empty())),
        }
        let more = plan(strict, [&["a", "b"], &["b", "c", "d", "e"]]);
        match strict {
            AssumeOkUnexpected | RaiseUnexpected | RaiseAll => {
                let e = more.unwrap_err();
                assert!(e.to_string().contains("e is not in the checkpoint"), "{e}");
            }
            _ => {
                let lost: Vec<_> = more.unwrap().into_iter().map(|p| p.not_stored).collect();
                assert_eq!(lost, [vec![], vec![3]], "{strict}");
            }
        }
    }
}

/// An empty region of a tensor is asked for, although nothing of it is read.
#[test]
fn a_key_of_an_empty_region_is_requested() {
    let metadata = vector(8, 2);
    let empty = flat([leaf("st", &[8], Region::new([0], [0]))]);
    let planner = PLAIN.strict(StrictHandling::RaiseAll);
    let cx = LoadContext::new(&metadata, 0, true);
    let plan = load(planner, &empty, &metadata).unwrap();
    assert!(plan.items.is_empty());
    assert!(planner.create_global_plan(vec![plan], &cx).is_ok());
    let nothing = || vec![load(planner, &FlatStateDict::new(), &metadata).unwrap()];
    assert!(planner.create_global_plan(nothing(), &cx).is_err());
    let mut elsewhere = Elsewhere::default();
    elsewhere.tensors = true;
    let cx_elsewhere = cx.with_elsewhere(&elsewhere);
    assert!(planner.create_global_plan(nothing(), &cx_elsewhere).is_ok());
    (elsewhere.tensors, elsewhere.objects) = (false, true);
    let cx_elsewhere = cx.with_elsewhere(&elsewhere);
    assert!(
        planner
            .create_global_plan(nothing(), &cx_elsewhere)
            .is_err()
    );
    elsewhere.keys = vec!["st".into()];
    let cx_elsewhere = cx.with_elsewhere(&elsewhere);
    assert!(planner.create_global_plan(nothing(), &cx_elsewhere).is_ok());
}

/// What one rank reads for others is requested, though it wants nothing itself.
#[test]
fn a_key_that_is_read_for_others_is_requested() {
    let metadata = vector(8, 2);
    let planner = PLAIN.strict(StrictHandling::RaiseAll);
    let cx = LoadContext::new(&metadata, 0, true);
    let mut plans = vec![load(planner, &FlatStateDict::new(), &metadata).unwrap()];
    plans.extend((0..2).map(|_| load(planner, &part(8, 0, 1), &metadata).unwrap()));
    let plans = share_reads(plans, &metadata, |_| Some(0), |all| vec![0; all.len()]).unwrap();
    assert!(plans.iter().all(|plan| plan.items.is_empty()));
    assert!(planner.create_global_plan(plans, &cx).is_ok());
}

#[test]
fn a_query_among_very_many_chunks_is_quick() {
    let n = 200_000u64;
    let metadata = table(
        &[n],
        &(0..n).map(|i| Region::new([i], [1])).collect::<Vec<_>>(),
    );
    let template = flat((0..2000).map(|i| leaf("w", &[n], Region::new([i * 100], [100]))));
    // one by one these would be 400 million comparisons
    assert_eq!(
        load(PLAIN, &template, &metadata).unwrap().items.len() as u64,
        n
    );
}

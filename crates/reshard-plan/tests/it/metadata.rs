use proptest::prelude::*;
use reshard_model::{DType, ErrorKind, Region};
use reshard_plan::*;

proptest! {
    #![proptest_config(reshard_model::testkit::law(256))]
    #[test]
    fn ids_stay_what_they_were_however_chunks_are_mixed(
        ndims in prop::collection::vec(0usize..4, 1..6),
        chunks in prop::collection::vec((any::<prop::sample::Index>(), 0u64..5, prop::bool::weighted(0.02)), 0..60),
    ) {
        let mut b = Metadata::builder();
        let mut tensors: Vec<(TensorId, usize)> = Vec::new();
        let mut added: Vec<(usize, Region)> = Vec::new();
        for (i, (which, at, wide)) in chunks.iter().enumerate() {
            // tensors come in between
            if i % 3 == 0 && tensors.len() < ndims.len() {
                let n = tensors.len();
                let id = b.add_tensor(&format!("w{}", 9 - n), DType::Int8, &vec![7; ndims[n]], Default::default()).unwrap();
                tensors.push((id, ndims[n]));
            }
            let which = which.index(tensors.len());
            let offset = if *wide { 1 << 40 } else { *at };
            let region = Region::new(vec![offset; tensors[which].1], vec![1; tensors[which].1]);
            prop_assert_eq!(b.add_chunk(tensors[which].0, &region).unwrap(), ChunkId(i as u32));
            added.push((which, region));
        }
        let m = b.finish(None).unwrap();
        for key in m.tensors().map(|t| t.key()).take(1) {
            prop_assert_eq!(m.with_objects([key]).unwrap_err().kind(), ErrorKind::Corrupt);
        }
        let m = m.with_objects(["o"]).and_then(|m| m.with_objects(["p"])).unwrap();
        prop_assert_eq!((m.object("o"), m.object("p")), (Some(ObjectId(0)), Some(ObjectId(1))));
        prop_assert_eq!(m.chunk_count(), added.len());
        for (i, (which, region)) in added.iter().enumerate() {
            let (tensor, got) = m.chunk(ChunkId(i as u32)).unwrap();
            prop_assert_eq!((tensor.id(), &got), (tensors[*which].0, region));
        }
        for (t, (id, _)) in tensors.iter().enumerate() {
            let tensor = m.tensor_by_id(*id).unwrap();
            let want: Vec<(ChunkId, Region)> = added.iter().enumerate().filter(|(_, a)| a.0 == t).map(|(i, a)| (ChunkId(i as u32), a.1.clone())).collect();
            for (index, (id, region)) in want.iter().enumerate() {
                prop_assert_eq!(tensor.chunk_at(&region.offsets, Some(index)), Some(*id));
                let first = want.iter().find(|(_, r)| r.offsets == region.offsets).unwrap().0;
                for bad_hint in [None, Some(usize::MAX)] {
                    prop_assert_eq!(tensor.chunk_at(&region.offsets, bad_hint), Some(first));
                }
            }
            prop_assert_eq!(tensor.chunks().collect::<Vec<_>>(), want);
        }
        prop_assert!(m.chunk(ChunkId(added.len() as u32)).is_none());
    }
}

#[test]
fn keys_are_found_by_name_and_listed_as_they_came() {
    let mut b = Metadata::builder();
    b.add_object("z").unwrap();
    let strided = TensorProperties {
        requires_grad: true,
        pin_memory: true,
        memory_format: MemoryFormat::Preserve,
        strides: Some([1, 4].into()),
    };
    b.add_tensor("m", DType::Float16, &[4, 1 << 40], strided.clone())
        .unwrap();
    b.add_object("a").unwrap();
    b.add_tensor("", DType::Bool, &[], Default::default())
        .unwrap();
    let m = b.finish(Some(PlannerData::Str("mine".into()))).unwrap();
    assert_eq!(
        m.entries().map(|e| e.key()).collect::<Vec<_>>(),
        ["z", "m", "a", ""]
    );
    assert_eq!(
        m.objects().collect::<Vec<_>>(),
        [(ObjectId(1), "a"), (ObjectId(0), "z")]
    );
    assert_eq!(
        (m.object("z"), m.object("m"), m.object_key(ObjectId(1))),
        (Some(ObjectId(0)), None, Some("a"))
    );
    let t = m.tensor("m").unwrap();
    assert_eq!(
        (t.properties(), t.shape().to_vec(), t.bytes()),
        (strided, vec![4, 1 << 40], 8 << 40)
    );
    assert_eq!(
        m.tensor("").unwrap().properties(),
        TensorProperties::default()
    );
    assert_eq!(m.total_bytes(), (8 << 40) + 1);
    assert!(m.tensor("a").is_none() && m.tensor("n").is_none());
    assert_eq!(m.planner_data(), Some(&PlannerData::Str("mine".into())));
}

#[test]
fn what_contradicts_itself_is_refused() {
    let mut b = Metadata::builder();
    let w = b
        .add_tensor("w", DType::Float16, &[4], Default::default())
        .unwrap();
    b.add_object("o").unwrap();
    let strided = TensorProperties {
        strides: Some([1].into()),
        ..Default::default()
    };
    let errors = [
        b.add_object("w").unwrap_err(),
        b.add_tensor("o", DType::Int8, &[], Default::default())
            .unwrap_err(),
        b.add_chunk(w, &Region::whole(&[1, 1])).unwrap_err(),
        b.add_chunk(w, &Region::new([0], [])).unwrap_err(),
        b.add_tensor("s", DType::Int8, &[2, 2], strided)
            .unwrap_err(),
        b.add_tensor("d", DType::Int8, &[1; 256], Default::default())
            .unwrap_err(),
    ];
    assert!(errors.iter().all(|e| e.kind() == ErrorKind::Corrupt));
    assert_eq!(
        errors[0].to_string(),
        "w: it is stored twice, once as a tensor"
    );
    assert_eq!(
        errors[2].to_string(),
        "w: its chunk at [0, 0] with lengths [1, 1] does not fit a tensor of 1 axes"
    );
    // nothing of it is left behind
    let m = b.finish(None).unwrap();
    assert_eq!(
        (m.tensor_count(), m.object_count(), m.chunk_count()),
        (1, 1, 0)
    );
}

//! Calls of torch's functions `_rebuild_*`, which make tensors.

pub(crate) mod pickles;

use crate::hostile::read_all;
use crate::samples::folder;
use bytes::Bytes;
use pickles::{FUNCTIONS, KINDS, call, pickles};
use proptest::{prelude::*, sample::select};
use reshard_model::{Value, testkit::law};
use reshard_torch_format::{Leaf, Limits, Outline, TensorRef, load};

#[test]
fn every_rebuild_in_every_arity_is_an_error_or_a_value() {
    let mut read = Vec::new();
    for (name, pickle) in pickles() {
        read_all(&pickle);
        match TensorRef::parse(&pickle, &Limits::default()) {
            Ok(_) => read.push(name),
            Err(e) => assert!(!e.to_string().is_empty(), "{name}"),
        }
    }
    // As many arguments as torch 0.4 to 2.15 gives them. A parameter is what its first argument is.
    let parameters = ["_rebuild_parameter", "_rebuild_parameter_with_state"];
    read.retain(|name| {
        !parameters
            .iter()
            .any(|p| name.starts_with(&format!("{p}-")))
    });
    assert_eq!(
        read,
        [
            "_rebuild_tensor-4",
            "_rebuild_tensor_v2-6",
            "_rebuild_tensor_v2-7",
            "_rebuild_tensor_v3-7",
            "_rebuild_tensor_v3-8",
            "_rebuild_device_tensor_from_cpu_tensor-4",
            "_rebuild_from_type-4",
            "_rebuild_from_type_v2-4",
        ]
    );
}

/// With the arguments that torch gives it, each function makes a dense tensor, or an object that says its name.
#[test]
fn every_rebuild_is_a_tensor_or_an_object_of_its_name() {
    let dense = [
        "_rebuild_tensor",
        "_rebuild_tensor_v2",
        "_rebuild_tensor_v3",
        "_rebuild_parameter",
        "_rebuild_parameter_with_state",
        "_rebuild_device_tensor_from_cpu_tensor",
        "_rebuild_from_type",
        "_rebuild_from_type_v2",
    ];
    for &(module, name, args) in FUNCTIONS {
        let pickle = Bytes::from(call(module, name, args.iter().copied()));
        let limits = Limits::default();
        let outline = Outline::parse(&pickle, 1000, &limits).unwrap();
        let contents = outline.contents(Default::default()).unwrap();
        let [only] = &contents.leaves[..] else {
            panic!("{name}")
        };
        match &only.leaf {
            Leaf::Tensor(Ok(tensor)) => {
                assert!(dense.contains(&name), "{name}");
                assert_eq!(tensor.shape.len(), 2, "{name}");
            }
            Leaf::Tensor(Err(e)) => panic!("{name}: {e}"),
            Leaf::Part(part) => panic!("{name}: {part:?}"),
            Leaf::Object(at) => {
                assert!(!dense.contains(&name), "{name}");
                let fetch = |_: &_, _: &mut _| Ok(vec![0; 16].into());
                let values = outline.values(&[*at], Default::default(), fetch).unwrap();
                let Value::Opaque(object) = &values[0] else {
                    panic!("{name}: {values:?}")
                };
                assert_eq!(object.class(), format!("{module}.{name}"));
            }
        }
    }
}

/// A tensor that is cast while it is loaded is refused: what is stored is not its elements.
#[test]
fn a_tensor_that_changes_its_type_on_its_way_to_a_device_is_refused() {
    let (module, name, args) = FUNCTIONS[10];
    assert_eq!(name, "_rebuild_device_tensor_from_cpu_tensor");
    let args = [args[0], "ctorch\nbfloat16\n", args[2], args[3]];
    let pickle = call(module, name, args.into_iter());
    let e = TensorRef::parse(&pickle, &Limits::default()).unwrap_err();
    let want = "it is stored as float32 and made as bfloat16";
    assert!(e.to_string().contains(want), "{e}");
}

proptest! {
    #![proptest_config(law(300))]

    #[test]
    fn a_rebuild_of_any_arguments_never_panics(
        function in select(FUNCTIONS),
        args in prop::collection::vec(select(KINDS), 0..11),
    ) {
        let (module, name, _) = function;
        read_all(&call(module, name, args.iter().copied()));
        // The same call by way of a subclass.
        let inner = format!("c{module}\n{name}\n");
        let packed = format!("({}t", args.concat());
        let outer = [&inner, "ctorch\nTensor\n", &packed, "N"];
        read_all(&call("torch._tensor", "_rebuild_from_type_v2", outer.into_iter()));
    }

    /// Tensors of torchao, with attributes of every kind and one of torchao in another.
    #[test]
    fn a_tensor_of_torchao_never_panics(
        args in prop::collection::vec(select(KINDS), 0..9),
        state in prop::collection::vec(select(KINDS), 0..4),
        is_dict in any::<bool>(),
    ) {
        let wrapper = "ctorch._utils\n_rebuild_wrapper_subclass\n";
        let packed = format!("({}t", args.concat());
        let pairs: String = (0..).zip(&state).map(|(n, kind)| format!("Va{n}\n{kind}s")).collect();
        let state = if is_dict { format!("(d{pairs}") } else { format!("({}t", state.concat()) };
        let of = ["(", wrapper, "ctorchao.x\nT\n", &packed, &state, "t"].concat();
        let inner = format!("ctorch._tensor\n_rebuild_from_type_v2\n{of}R");
        let nested = format!("(dVa\n{inner}s");
        for state in [&state, &nested] {
            let tensor = call("torch._tensor", "_rebuild_from_type_v2",
                [wrapper, "ctorchao.x\nT\n", &packed, state].into_iter());
            read_all(&tensor);
            let tensor = tensor.strip_suffix(b".").unwrap();
            let dict: Bytes = [b"(dVlayer.weight\n", tensor, b"s."].concat().into();
            read_all(&dict);
            let limits = Limits::default();
            let outline = Outline::parse(&dict, 1000, &limits);
            let contents = outline.and_then(|outline| outline.contents(Default::default()));
            for found in contents.iter().flat_map(|contents| &contents.subclasses) {
                let inner = found.value.as_ref().map_or(0, |value| value.inner().len());
                prop_assert!(inner == found.inner.len() || found.value.is_none());
            }
        }
    }

    /// Right arguments with one that is wrong get further.
    #[test]
    fn a_rebuild_with_one_wrong_argument_never_panics(
        function in select(FUNCTIONS), n in 0..12usize, at in 0..12usize, wrong in select(KINDS),
    ) {
        let (module, name, args) = function;
        let mut args: Vec<&str> = args.iter().copied().chain(std::iter::repeat("N")).take(n).collect();
        if let Some(arg) = args.get_mut(at) {
            *arg = wrong;
        }
        read_all(&call(module, name, args.into_iter()));
    }
}

/// Files of torch before 0.4, whose tensors know nothing of gradients, in both layouts.
#[test]
fn a_tensor_of_four_arguments_is_read() {
    for name in ["v1_dict_zip.pt", "v1_dict_legacy.pt"] {
        let bytes: Bytes = std::fs::read(folder("old").join(name)).unwrap().into();
        let Value::Dict(state) = load(bytes).expect(name) else {
            panic!("{name} is a dict")
        };
        let w = state[0].1.as_tensor().expect(name);
        assert_eq!(w.shape()[..], [2, 2], "{name}");
        let bytes = [1f32, 2.0, 3.0, 4.0].map(f32::to_le_bytes).concat();
        assert_eq!(w.to_bytes(), bytes, "{name}");
    }
    // This one has its dict from Python 2. Whether or not that is understood, the tensor in it is no reason to panic.
    let bytes = std::fs::read(folder("old").join("v1_py2od_zip.pt")).unwrap();
    read_all(&bytes);
}

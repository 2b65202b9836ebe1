//! Files and folders of other programs: how each kind is recognised, and what to do with it.
//!
//! [`FOREIGN`] is the only list of them. It is consulted after no linked format has recognised a place, or when a file
//! doesn't begin as its format requires.

mod signs;

use signs::Content::{self, At, Check, End, FirstInZip};
use signs::{is_keras, is_msgpack, is_onnx};

/// A kind of file or folder that reshard doesn't open, because another program wrote it.
#[derive(Clone, Copy, Debug)]
pub struct Foreign {
    /// Completes the sentence "This is …": `a GGUF file (llama.cpp)`.
    pub what: &'static str,
    /// The next step, as an imperative.
    pub next: &'static str,
    /// Endings of its file names, without the dot, in lower case.
    pub endings: &'static [&'static str],
    /// Content of a file. One of these is enough.
    content: &'static [Content],
    /// Paths in a folder, where `*` stands for any text between slashes. One of these is enough.
    pub folder: &'static [&'static str],
}

const NEW: Foreign = Foreign {
    what: "",
    next: "",
    endings: &[],
    content: &[],
    folder: &[],
};

/// All kinds, the more specific ones first.
pub const FOREIGN: &[Foreign] = &[
    Foreign {
        what: "a Git LFS pointer, so the file itself was not downloaded",
        next: "fetch the file with `git lfs pull` in its repository, or download it again",
        content: &[
            At(0, b"version https://git-lfs.github.com/spec/"),
            At(0, b"version https://hawser.github.com/spec/"),
        ],
        ..NEW
    },
    Foreign {
        what: "an HDF5 file (h5py or Keras), which reshard does not read",
        next: "load it with h5py or Keras, and save its arrays with safetensors",
        endings: &["h5", "hdf5"],
        content: &[At(0, b"\x89HDF\r\n\x1a\n"), At(512, b"\x89HDF\r\n\x1a\n")],
        ..NEW
    },
    Foreign {
        what: "a Keras archive, which reshard does not read",
        next: "load it with Keras, and save its weights with safetensors",
        endings: &["keras"],
        content: &[Check(is_keras)],
        ..NEW
    },
    Foreign {
        what: "a GGUF file (llama.cpp), which reshard does not read",
        next: "use the safetensors files that it was made from; most of its types are quantised, and gguf-py reads the others",
        endings: &["gguf"],
        content: &[At(0, b"GGUF")],
        ..NEW
    },
    Foreign {
        what: "a TensorFlow Lite model, which reshard does not read",
        next: "convert the model that it was made from",
        endings: &["tflite"],
        content: &[At(4, b"TFL3")],
        ..NEW
    },
    Foreign {
        what: "a Core ML model, which reshard does not read",
        next: "convert the model that it was made from",
        endings: &["mlmodel"],
        folder: &["Data/*/*.mlmodel"],
        ..NEW
    },
    Foreign {
        what: "a NumPy archive (npz), which reshard does not read",
        next: "load it with numpy.load, and save its arrays with safetensors.numpy.save_file",
        endings: &["npz"],
        content: &[FirstInZip(&["*.npy"])],
        ..NEW
    },
    Foreign {
        what: "a NumPy array (npy), which reshard does not read",
        next: "load it with numpy.load, and save it with safetensors.numpy.save_file",
        endings: &["npy"],
        content: &[At(0, b"\x93NUMPY")],
        ..NEW
    },
    Foreign {
        what: "a zip archive of Zarr arrays",
        next: "unpack it into a folder, and open that folder",
        content: &[FirstInZip(&[
            "*zarr.json",
            "*.zgroup",
            "*.zarray",
            "*.zattrs",
            "*.zmetadata",
        ])],
        ..NEW
    },
    Foreign {
        what: "a tar archive",
        next: "unpack it with `tar -xf`, and open what it contains; PyTorch before 0.1.10 also saved such files, which torch.load reads",
        endings: &["tar", "nemo"],
        content: &[At(257, b"ustar")],
        ..NEW
    },
    Foreign {
        what: "a file compressed with gzip",
        next: "unpack it, and open what it contains",
        endings: &["gz", "tgz"],
        content: &[At(0, b"\x1f\x8b\x08")],
        ..NEW
    },
    Foreign {
        what: "a TensorFlow V1 checkpoint, which reshard does not read",
        next: "restore it with tf.compat.v1.train.Saver, and save it with tf.train.Checkpoint or with Saver's write_version V2",
        content: &[End(b"\x57\xfb\x80\x8b\x24\x75\x47\xdb")],
        ..NEW
    },
    Foreign {
        what: "the graph of a TensorFlow SavedModel",
        next: "open its weights, whose prefix is variables/variables in the same folder",
        endings: &["pb"],
        content: &[At(0, b"\x08\x01\x12")],
        folder: &["saved_model.pb"],
    },
    Foreign {
        what: "an ONNX model, which reshard does not read",
        next: "load it with onnx.load, and save its initializers with safetensors",
        endings: &["onnx"],
        content: &[Check(is_onnx)],
        ..NEW
    },
    Foreign {
        what: "a file of Flax (msgpack), which reshard does not read",
        next: "load it with flax.serialization.msgpack_restore, and save it with safetensors.flax.save_file",
        endings: &["msgpack"],
        content: &[Check(is_msgpack)],
        ..NEW
    },
    Foreign {
        what: "an OCDBT database (Orbax or TensorStore), which reshard does not read",
        next: "restore it with Orbax, and save it again with use_ocdbt=False, as Zarr arrays",
        content: &[At(0, b"\x0c\xdb\x3a\x2a")],
        folder: &["manifest.ocdbt", "*/manifest.ocdbt"],
        ..NEW
    },
    Foreign {
        what: "a folder of N5 arrays, which reshard does not read",
        next: "read it with TensorStore's driver n5, and write it with its driver zarr3",
        folder: &["attributes.json", "*/attributes.json"],
        ..NEW
    },
    Foreign {
        what: "a checkpoint of DeepSpeed ZeRO, with files of each rank",
        next: "merge it with its own program: `python zero_to_fp32.py . OUTPUT` in the folder that holds zero_to_fp32.py; each file can be opened alone",
        folder: &[
            "zero_to_fp32.py",
            "*_optim_states.pt",
            "*/*_optim_states.pt",
            "mp_rank_*_model_states.pt",
            "*/mp_rank_*_model_states.pt",
            "checkpoint-*/zero_to_fp32.py",
        ],
        ..NEW
    },
    Foreign {
        what: "a checkpoint in Megatron's legacy format `torch`, with files of each rank",
        next: "convert it with Megatron-LM: tools/checkpoint/convert.py, or training with --ckpt-convert-format torch_dist; each file can be opened alone",
        folder: &[
            "model_optim_rng.pt",
            "mp_rank_*/model_optim_rng.pt",
            "mp_rank_*/model_rng.pt",
            "iter_*/mp_rank_*/model_optim_rng.pt",
            "iter_*/mp_rank_*/model_rng.pt",
            "release/mp_rank_*/model_optim_rng.pt",
        ],
        ..NEW
    },
    Foreign {
        what: "a folder of the Trainer of transformers, whose checkpoints are the folders in it",
        next: "open the newest folder checkpoint-STEP in it",
        folder: &["checkpoint-*/trainer_state.json"],
        ..NEW
    },
    Foreign {
        what: "a checkpoint of the Trainer of transformers without a file of weights that reshard reads",
        next: "open optimizer.pt or another file in it, or save the model with save_pretrained",
        folder: &["trainer_state.json"],
        ..NEW
    },
];

/// The bytes of the start of a file that [`Foreign::of_file`] looks at.
pub const HEAD: u64 = 1024;
/// The bytes of its end.
pub const TAIL: u64 = 8;

impl Foreign {
    /// Identifies a file by its first [`HEAD`] bytes and its last [`TAIL`] bytes; either may be shorter or empty.
    pub fn of_file(head: &[u8], tail: &[u8]) -> Option<&'static Self> {
        let has = |foreign: &&Self| foreign.content.iter().any(|sign| sign.is_in(head, tail));
        FOREIGN.iter().find(has)
    }

    /// Whether files of this kind are recognised by their content.
    pub fn has_content(&self) -> bool {
        !self.content.is_empty()
    }

    /// Identifies a file by its name.
    pub fn of_name(name: &str) -> Option<&'static Self> {
        let (_, ending) = name.rsplit_once('.')?;
        let same = |known: &&str| known.eq_ignore_ascii_case(ending);
        FOREIGN
            .iter()
            .find(|foreign| foreign.endings.iter().any(&same))
    }

    /// Identifies a folder by the paths of files in it.
    pub fn of_folder<'p>(paths: impl Iterator<Item = &'p str> + Clone) -> Option<&'static Self> {
        let is_of = |foreign: &&Self| {
            let mut signs = foreign.folder.iter();
            signs.any(|sign| paths.clone().any(|path| signs::matches(sign, path)))
        };
        FOREIGN.iter().find(is_of)
    }

    /// Whether a folder at this path may contain a file by which [`of_folder`](Self::of_folder) identifies the folder above it.
    pub fn may_be_in(folder: &str) -> bool {
        let mut signs = FOREIGN.iter().flat_map(|foreign| foreign.folder);
        signs.any(|sign| signs::leads_through(sign, folder))
    }
}

//! [`Container`]: the file format that a model was read from.

use std::fmt;

use crate::AnamnesisError;

/// File format of a model. The content of a file decides it, not the file's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Container {
    /// safetensors, in one file or several.
    Safetensors,
    /// GGUF, in one file or several.
    Gguf,
    /// A ZIP archive of NumPy arrays.
    Npz,
    /// One NumPy array.
    Npy,
    /// PyTorch checkpoint: a ZIP archive, a stream of pickles, or a tar file.
    Pth,
    /// The native format of qlora-rs.
    Qnat,
    /// ONNX: the weights of a graph, in one file or several.
    Onnx,
    /// MessagePack, as Flax writes it.
    Msgpack,
    /// HDF5, also in an archive of Keras.
    Hdf5,
    /// LiteRT, before called TensorFlow Lite: the weights of a graph.
    Tflite,
    /// OpenVINO's intermediate representation: a graph, and the data of its constants.
    #[serde(rename = "openvino")]
    OpenVino,
    /// A checkpoint of TensorFlow, or the variables of a SavedModel: an index and files of data.
    #[serde(rename = "tensorflow")]
    TensorFlow,
    /// Burnpack, the container of Burn.
    Burnpack,
    /// Core ML: the weights of a network or a program, in one file or in a package.
    #[serde(rename = "coreml")]
    CoreMl,
    /// ExecuTorch: a program with its constants, or a file of tensors beside it.
    #[serde(rename = "executorch")]
    ExecuTorch,
    /// ggml, from before GGUF: files of whisper.cpp, and old ones of llama.cpp.
    Ggml,
    /// A checkpoint of MindSpore.
    #[serde(rename = "mindspore")]
    MindSpore,
    /// An inference model of Paddle: a program, and its parameters in another file.
    Paddle,
    /// A model of MLC: a list of tensors, and files of data.
    Mlc,
    /// Zarr, also in a database of OCDBT, as Orbax writes it.
    Zarr,
}

impl Container {
    /// The error for a file of this format where only `expected` is read.
    pub(crate) fn refused_as(self, expected: Self) -> AnamnesisError {
        let detail = format!("this is no {expected}; `parse` reads any container");
        AnamnesisError::unsupported(self.to_string(), detail)
    }
}

impl fmt::Display for Container {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Safetensors => "safetensors",
            Self::Gguf => "GGUF",
            Self::Npz => "NPZ archive",
            Self::Npy => "NumPy array (.npy)",
            Self::Pth => "PyTorch checkpoint",
            Self::Qnat => "QNAT",
            Self::Onnx => "ONNX",
            Self::Msgpack => "Flax (MessagePack)",
            Self::Hdf5 => "HDF5",
            Self::Tflite => "LiteRT",
            Self::OpenVino => "OpenVINO",
            Self::TensorFlow => "TensorFlow checkpoint",
            Self::Burnpack => "Burnpack",
            Self::CoreMl => "Core ML",
            Self::ExecuTorch => "ExecuTorch",
            Self::Ggml => "GGML",
            Self::MindSpore => "MindSpore checkpoint",
            Self::Mlc => "MLC",
            Self::Paddle => "Paddle",
            Self::Zarr => "Zarr (Orbax)",
        })
    }
}

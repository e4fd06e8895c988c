//! The allow-list of globals. Every other global is refused.
//!
//! List: torch `torch/_weights_only_unpickler.py`, `_get_allowed_globals`.

use super::records::Record;
use super::risk::{PickleRisk, risk_of};
use crate::Dtype;

/// The element type of a typed storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StorageElement {
    /// `None` for types that are not read.
    pub dtype: Option<Dtype>,
    /// Bytes of an element.
    pub size: usize,
}

/// An allowed global.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Global {
    /// `collections.OrderedDict`, `collections.Counter`.
    Dict,
    /// `set`.
    Set,
    /// `torch.Size`.
    Sizes,
    /// A storage class; `None` if it is untyped.
    Storage(Option<StorageElement>),
    /// A dtype such as `torch.float32`; `None` if it is one that is not read.
    Dtype(Option<Dtype>),
    /// `_rebuild_tensor` and `_rebuild_tensor_v2`.
    RebuildTensor,
    /// `_rebuild_tensor_v3`, which takes the dtype as an argument because its storage is untyped.
    RebuildTensorUntyped,
    /// A function that wraps its first argument and leaves its data alone, such as
    /// `torch.nn.parameter.Parameter`.
    FirstArgument,
    /// A function that returns its first argument, a list or a dict.
    FirstValue,
    /// `_rebuild_from_type_v2(function, type, arguments, state)`: calls `function` and sets
    /// attributes on the result.
    RebuildFromType,
    /// A class of tensors that names the dtype, such as `torch.FloatTensor`.
    TensorClass(Dtype),
    /// A subclass of `Tensor`, by its name.
    Subclass(&'static str),
    /// A function that makes a tensor of a kind that is not read; the text says which.
    Refused(&'static str),
    /// `_codecs.encode`: text to bytes.
    Encode,
    /// A class of the metadata of distributed checkpoints.
    Record(Record),
    /// A class that is not known. Its objects are their states; a function counts as one.
    Class,
    /// A class whose objects are numbers, made of a number.
    Number,
    /// `joblib.numpy_pickle.NumpyArrayWrapper`, in a lenient run.
    JoblibArray,
    /// `numpy.dtype`.
    NumpyDtype,
    /// `_reconstruct`, which makes an array of NumPy without its data.
    Array,
    /// `_frombuffer`, which makes one with its data.
    ArrayOfBuffer,
    /// `tuple`, of which Paddle makes the name and the array of a tensor.
    NamedArray,
    /// `bytes` without arguments.
    NoBytes,
    /// One that is not on the list, in a lenient run.
    Unlisted,
    /// Allowed, and holds no tensor.
    Opaque,
}

/// Storage classes of `torch` and `torch.cuda`: name, dtype, bytes of an element.
const STORAGES: &[(&str, Option<Dtype>, usize)] = &[
    ("FloatStorage", Some(Dtype::F32), 4),
    ("DoubleStorage", Some(Dtype::F64), 8),
    ("HalfStorage", Some(Dtype::F16), 2),
    ("BFloat16Storage", Some(Dtype::BF16), 2),
    ("LongStorage", Some(Dtype::I64), 8),
    ("IntStorage", Some(Dtype::I32), 4),
    ("ShortStorage", Some(Dtype::I16), 2),
    ("CharStorage", Some(Dtype::I8), 1),
    ("ByteStorage", Some(Dtype::U8), 1),
    ("BoolStorage", Some(Dtype::Bool), 1),
    ("ComplexFloatStorage", Some(Dtype::C64), 8),
    ("ComplexDoubleStorage", None, 16),
    ("QInt8Storage", None, 1),
    ("QUInt8Storage", None, 1),
    ("QInt32Storage", None, 4),
    ("QUInt4x2Storage", None, 1),
    ("QUInt2x4Storage", None, 1),
];

/// Dtypes by the names that torch has for them.
const DTYPES: &[(&str, Option<Dtype>)] = &[
    ("float32", Some(Dtype::F32)),
    ("float", Some(Dtype::F32)),
    ("float64", Some(Dtype::F64)),
    ("double", Some(Dtype::F64)),
    ("float16", Some(Dtype::F16)),
    ("half", Some(Dtype::F16)),
    ("bfloat16", Some(Dtype::BF16)),
    ("int64", Some(Dtype::I64)),
    ("long", Some(Dtype::I64)),
    ("int32", Some(Dtype::I32)),
    ("int", Some(Dtype::I32)),
    ("int16", Some(Dtype::I16)),
    ("short", Some(Dtype::I16)),
    ("int8", Some(Dtype::I8)),
    ("uint8", Some(Dtype::U8)),
    ("uint16", Some(Dtype::U16)),
    ("uint32", Some(Dtype::U32)),
    ("uint64", Some(Dtype::U64)),
    ("bool", Some(Dtype::Bool)),
    ("complex64", Some(Dtype::C64)),
    ("cfloat", Some(Dtype::C64)),
    ("float8_e4m3fn", Some(Dtype::F8E4M3)),
    ("float8_e5m2", Some(Dtype::F8E5M2)),
    ("float8_e4m3fnuz", Some(Dtype::F8E4M3Fnuz)),
    ("float8_e5m2fnuz", Some(Dtype::F8E5M2Fnuz)),
    ("float8_e8m0fnu", Some(Dtype::F8E8M0)),
    ("complex32", None),
    ("chalf", None),
    ("complex128", None),
    ("cdouble", None),
    ("float4_e2m1fn_x2", Some(Dtype::F4)),
    ("bcomplex32", None),
    ("qint8", None),
    ("quint8", None),
    ("qint32", None),
    ("quint4x2", None),
    ("quint2x4", None),
    ("bits8", None),
    ("bits16", None),
    ("bits1x8", None),
    ("bits2x4", None),
    ("bits4x2", None),
    ("int1", None),
    ("int2", None),
    ("int3", None),
    ("int4", None),
    ("int5", None),
    ("int6", None),
    ("int7", None),
    ("uint1", None),
    ("uint2", None),
    ("uint3", None),
    ("uint4", None),
    ("uint5", None),
    ("uint6", None),
    ("uint7", None),
];

/// Legacy tensor classes of `torch` and `torch.cuda`, without the suffix `Tensor`.
const TENSORS: &[(&str, Dtype)] = &[
    ("Byte", Dtype::U8),
    ("Char", Dtype::I8),
    ("Short", Dtype::I16),
    ("Int", Dtype::I32),
    ("Long", Dtype::I64),
    ("Half", Dtype::F16),
    ("Float", Dtype::F32),
    ("Double", Dtype::F64),
    ("BFloat16", Dtype::BF16),
    ("Bool", Dtype::Bool),
];

/// Functions of `torch._utils`.
const UTILS: &[(&str, Global)] = &[
    ("_rebuild_tensor", Global::RebuildTensor),
    ("_rebuild_tensor_v2", Global::RebuildTensor),
    ("_rebuild_tensor_v3", Global::RebuildTensorUntyped),
    ("_rebuild_parameter", Global::FirstArgument),
    ("_rebuild_parameter_with_state", Global::FirstArgument),
    ("_rebuild_qtensor", Global::Refused("quantized tensor (torch.quantize_per_tensor)")),
    ("_rebuild_sparse_tensor", Global::Refused("sparse tensor")),
    ("_rebuild_sparse_csr_tensor", Global::Refused("sparse tensor")),
    ("_rebuild_meta_tensor_no_storage", Global::Refused("meta tensor, which has no data")),
    ("_rebuild_wrapper_subclass", Global::Refused("tensor subclass")),
    (
        "_rebuild_device_tensor_from_numpy",
        Global::Refused("tensor of another device, stored as a NumPy array"),
    ),
    ("_rebuild_device_tensor_from_cpu_tensor", Global::FirstArgument),
];

/// All other allowed globals: module, name.
const OTHERS: &[(&str, &str, Global)] = &[
    ("collections", "OrderedDict", Global::Dict),
    ("collections", "Counter", Global::Dict),
    ("builtins", "set", Global::Set),
    ("__builtin__", "set", Global::Set),
    ("builtins", "bytearray", Global::Opaque),
    ("__builtin__", "bytearray", Global::Opaque),
    ("builtins", "complex", Global::Opaque),
    ("__builtin__", "complex", Global::Opaque),
    ("torch", "Size", Global::Sizes),
    ("torch", "device", Global::Opaque),
    ("torch", "Tensor", Global::FirstArgument),
    ("torch.nn.parameter", "Parameter", Global::FirstArgument),
    ("torch._tensor", "_rebuild_from_type_v2", Global::RebuildFromType),
    ("torch", "per_tensor_affine", Global::Opaque),
    ("torch", "per_channel_affine", Global::Opaque),
    ("torch", "per_channel_affine_float_qparams", Global::Opaque),
    ("torch", "per_tensor_symmetric", Global::Opaque),
    ("torch", "per_channel_symmetric", Global::Opaque),
    ("torch.serialization", "_get_layout", Global::Opaque),
    ("torch.storage", "UntypedStorage", Global::Storage(None)),
    ("torch.storage", "TypedStorage", Global::Storage(None)),
    ("_codecs", "encode", Global::Encode),
    // Distributed checkpoints keep the path that they were written to.
    ("pathlib", "PosixPath", Global::Opaque),
    ("pathlib", "WindowsPath", Global::Opaque),
    ("pathlib._local", "PosixPath", Global::Opaque),
    ("pathlib._local", "WindowsPath", Global::Opaque),
];

/// Classes of torchao whose objects are tensors, in whatever module of it a version has them.
const TORCHAO_TENSORS: &[&str] = &[
    "AffineQuantizedTensor",
    "Float8AQTTensorImpl",
    "Float8Tensor",
    "Int4CPUAQTTensorImpl",
    "Int4PlainInt32Tensor",
    "Int4Tensor",
    "Int4TilePackedTo4dTensor",
    "Int8Tensor",
    "IntxUnpackedToInt8Tensor",
    "LinearActivationQuantizedTensor",
    "MXTensor",
    "NVFP4Tensor",
    "PlainAQTTensorImpl",
    "QDQTensorImpl",
    "TensorCoreTiledAQTTensorImpl",
    "UintxAQTTensorImpl",
    "UintxTensor",
    "WeightTensorWithLinearActivationQuantizationMetadata",
];

/// Classes and functions of torchao that are settings of such a tensor.
const TORCHAO_SETTINGS: &[&str] = &[
    "Float8Layout",
    "Float8MMConfig",
    "Int4CPULayout",
    "KernelPreference",
    "MappingType",
    "PerAxis",
    "PerBlock",
    "PerGroup",
    "PerRow",
    "PerTensor",
    "PerToken",
    "PlainLayout",
    "QDQLayout",
    "QuantizeTensorToFloat8Kwargs",
    "QuantizeTensorToInt8Kwargs",
    "QuantizeTensorToMXKwargs",
    "QuantizeTensorToNVFP4Kwargs",
    "ScaleCalculationMode",
    "TensorCoreTiledLayout",
    "UintxLayout",
    "_input_activation_quant_func_fp8",
    "_int8_asymm_per_token_quant",
    "_int8_symm_per_token_quant",
    "_int8_symm_per_token_reduced_range_quant",
    "_int8_symm_per_token_reduced_range_quant_noop_decode",
];

/// A global of torchao.
fn of_torchao(module: &str, name: &str) -> Option<Global> {
    if module != "torchao" && !module.starts_with("torchao.") {
        return None;
    }
    let is_number = name == "ZeroPointDomain";
    let listed = |list: &[&'static str]| list.iter().find(|known| **known == name).copied();
    listed(TORCHAO_TENSORS)
        .map(Global::Subclass)
        .or_else(|| is_number.then_some(Global::Number))
        .or_else(|| listed(TORCHAO_SETTINGS).map(|_| Global::Opaque))
}

impl Global {
    /// The global, if it is one that checkpoints may name.
    pub(super) fn find(module: &str, name: &str) -> Option<Self> {
        if module == "torch" || module == "torch.cuda" {
            if let Some(&(_, dtype, size)) = STORAGES.iter().find(|(n, ..)| *n == name) {
                return Some(Self::Storage(Some(StorageElement { dtype, size })));
            }
            if let Some(&(_, dtype)) = DTYPES
                .iter()
                .find(|(n, _)| *n == name)
                .filter(|_| module == "torch")
            {
                return Some(Self::Dtype(dtype));
            }
            if let Some(name) = name.strip_suffix("Tensor")
                && let Some(&(_, dtype)) = TENSORS.iter().find(|(n, _)| *n == name)
            {
                return Some(Self::TensorClass(dtype));
            }
        }
        if module == "torch._utils" {
            return UTILS
                .iter()
                .find(|(n, _)| *n == name)
                .map(|&(_, global)| global);
        }
        OTHERS
            .iter()
            .find(|(m, n, _)| (*m, *n) == (module, name))
            .map(|&(_, _, global)| global)
            .or_else(|| Record::find(module, name).map(Self::Record))
            .or_else(|| of_torchao(module, name))
    }

    /// The name that torch has for the dtype.
    pub(super) fn name_of(dtype: Dtype) -> Option<&'static str> {
        let found = DTYPES.iter().find(|(_, known)| *known == Some(dtype));
        found.map(|(name, _)| *name)
    }

    /// The global that stands for one that is not on the list, in a lenient run.
    pub(super) fn unlisted(module: &str, name: &str) -> Self {
        match (module, name) {
            ("joblib.numpy_pickle", "NumpyArrayWrapper") => Self::JoblibArray,
            ("numpy", "dtype") => Self::NumpyDtype,
            _ if risk_of(module, name) == PickleRisk::Safe => Self::Opaque,
            _ => Self::Unlisted,
        }
    }
}

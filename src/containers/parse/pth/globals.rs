//! The globals that a checkpoint may name, and what calling them would give. Everything else is refused.
//!
//! List: torch `torch/_weights_only_unpickler.py`, `_get_allowed_globals`; arguments: `torch/_utils.py`.

use super::value::{Id, Node, Values, View};
use crate::{AnamnesisError, Dtype, Result};

/// What a typed storage is made of: a dtype, if we have such, and the bytes of an element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Element {
    pub dtype: Option<Dtype>,
    pub size: usize,
}

/// What a global stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Global {
    /// `collections.OrderedDict` and its like.
    Dict,
    /// `set`, `frozenset`.
    Set,
    /// `torch.Size`, `list`, `tuple`.
    Sizes,
    /// A storage class, with its element type; untyped storages have none.
    Storage(Option<Element>),
    /// A dtype such as `torch.float32`.
    Dtype(Option<Dtype>),
    /// `_rebuild_tensor` and `_rebuild_tensor_v2`.
    Rebuild,
    /// `_rebuild_tensor_v3`, whose storage is untyped.
    RebuildUntyped,
    /// What returns its first argument: parameters, buffers.
    First,
    /// `_rebuild_from_type_v2(function, type, arguments, state)`: a tensor with attributes.
    Typed,
    /// What makes a tensor that is not read.
    Refused(&'static str),
    /// `_codecs.encode`: text as bytes.
    Encode,
    /// What is allowed and holds no tensor.
    Opaque,
}

/// Storage classes of `torch` and `torch.cuda`, with the bytes of an element.
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

/// Element types by torch's names.
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

/// Classes of tensors, less the end of their names.
const TENSORS: &[&str] = &[
    "Byte", "Char", "Short", "Int", "Long", "Half", "Float", "Double", "BFloat16", "Bool",
];

/// Functions of `torch._utils`.
const UTILS: &[(&str, Global)] = &[
    ("_rebuild_tensor", Global::Rebuild),
    ("_rebuild_tensor_v2", Global::Rebuild),
    ("_rebuild_tensor_v3", Global::RebuildUntyped),
    ("_rebuild_parameter", Global::First),
    ("_rebuild_parameter_with_state", Global::First),
    (
        "_rebuild_qtensor",
        Global::Refused("quantized tensor (torch.quantize_per_tensor)"),
    ),
    ("_rebuild_sparse_tensor", Global::Refused("sparse tensor")),
    (
        "_rebuild_sparse_csr_tensor",
        Global::Refused("sparse tensor"),
    ),
    (
        "_rebuild_meta_tensor_no_storage",
        Global::Refused("meta tensor, which has no data"),
    ),
    (
        "_rebuild_wrapper_subclass",
        Global::Refused("tensor subclass"),
    ),
    (
        "_rebuild_device_tensor_from_numpy",
        Global::Refused("tensor of another device, stored as a NumPy array"),
    ),
    ("_rebuild_device_tensor_from_cpu_tensor", Global::First),
];

/// Others, by module and name.
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
    ("torch", "Tensor", Global::First),
    ("torch.nn.parameter", "Parameter", Global::First),
    ("torch._tensor", "_rebuild_from_type_v2", Global::Typed),
    ("torch", "per_tensor_affine", Global::Opaque),
    ("torch", "per_channel_affine", Global::Opaque),
    ("torch", "per_channel_affine_float_qparams", Global::Opaque),
    ("torch", "per_tensor_symmetric", Global::Opaque),
    ("torch", "per_channel_symmetric", Global::Opaque),
    ("torch.serialization", "_get_layout", Global::Opaque),
    ("torch.storage", "UntypedStorage", Global::Storage(None)),
    ("torch.storage", "TypedStorage", Global::Storage(None)),
    ("_codecs", "encode", Global::Encode),
];

fn wrong(what: &str) -> AnamnesisError {
    AnamnesisError::parse(format!("pickle: {what}"))
}

impl Global {
    /// The global, if it is one that checkpoints may name.
    pub(super) fn find(module: &str, name: &str) -> Option<Self> {
        if module == "torch" || module == "torch.cuda" {
            if let Some(&(_, dtype, size)) = STORAGES.iter().find(|(n, ..)| *n == name) {
                return Some(Self::Storage(Some(Element { dtype, size })));
            }
            if let Some(&(_, dtype)) = DTYPES
                .iter()
                .find(|(n, _)| *n == name)
                .filter(|_| module == "torch")
            {
                return Some(Self::Dtype(dtype));
            }
            let tensor = name
                .strip_suffix("Tensor")
                .is_some_and(|name| TENSORS.contains(&name));
            if tensor {
                return Some(Self::Opaque);
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
    }

    /// What calling the global would give.
    pub(super) fn call(self, args: &[Id], values: &Values) -> Result<Node> {
        Ok(match self {
            Self::Dict => Node::Dict(self::entries(args, values)?),
            Self::Set => Node::Set,
            Self::Sizes => match args.first().map(|&id| values.node(id)) {
                Some(Node::Tuple(items) | Node::List(items)) => Node::Tuple(items.clone()),
                _ => Node::Tuple(vec![]),
            },
            Self::Rebuild if is_lazy(args.get(6), values)? => Node::Refused(LAZY),
            Self::RebuildUntyped if is_lazy(args.get(7), values)? => Node::Refused(LAZY),
            Self::Rebuild => Node::Tensor(Box::new(view(args, None, values)?)),
            Self::RebuildUntyped => {
                let dtype = match args.get(6).map(|&id| values.node(id)) {
                    Some(Node::Global(Self::Dtype(dtype))) => *dtype,
                    _ => return Err(wrong("a tensor whose dtype is none")),
                };
                Node::Tensor(Box::new(view(args, Some(dtype), values)?))
            }
            Self::First => match args.first().map(|&id| values.node(id)) {
                Some(Node::Tensor(view)) => Node::Tensor(view.clone()),
                Some(Node::Refused(what)) => Node::Refused(what),
                _ => return Err(wrong("a parameter without its tensor")),
            },
            Self::Typed => {
                let (function, inner) = (args.first().map(|&id| values.node(id)), args.get(2));
                let class = args.get(1).map(|&id| values.node(id));
                match (function, inner.and_then(|&id| values.tuple(id))) {
                    (Some(Node::Global(function)), Some(inner)) if *function != Self::Typed => {
                        match class {
                            Some(Node::Global(Self::First)) => function.call(inner, values)?,
                            _ => Node::Refused("tensor subclass"),
                        }
                    }
                    _ => return Err(wrong("a tensor with attributes but no function")),
                }
            }
            Self::Refused(what) => Node::Refused(what),
            Self::Encode => match args.first().map(|&id| values.node(id)) {
                Some(Node::Str(range)) => Node::Bytes(range.clone()),
                _ => return Err(wrong("an encoding of what is no text")),
            },
            Self::Opaque => Node::Opaque,
            Self::Storage(_) | Self::Dtype(_) => {
                return Err(wrong("a call of what is no function"));
            }
        })
    }
}

/// The entries of a dict that is made from a list of pairs.
fn entries(args: &[Id], values: &Values) -> Result<Vec<(Id, Id)>> {
    let items = match args.first().map(|&id| values.node(id)) {
        Some(Node::List(items) | Node::Tuple(items)) => items.as_slice(),
        Some(Node::Dict(entries)) => return Ok(entries.clone()),
        _ => &[],
    };
    let pair = |&id: &Id| match values.node(id) {
        Node::Tuple(pair) | Node::List(pair) => pair
            .as_slice()
            .try_into()
            .ok()
            .map(|[k, v]: [Id; 2]| (k, v)),
        _ => None,
    };
    // Items that are passed over would be looked at again by every call, and take nothing that is accounted for.
    items
        .iter()
        .map(|id| pair(id).ok_or_else(|| wrong("a dict made from what is no pair")))
        .collect()
}

const LAZY: &str = "tensor whose conjugate or negative is meant, not what is stored";

/// Entries of a tensor's metadata: torch has a handful. They are looked at for each tensor that has them.
const MAX_METADATA: usize = 64;

/// Whether a tensor's metadata say that its values are to be conjugated or negated.
fn is_lazy(metadata: Option<&Id>, values: &Values) -> Result<bool> {
    let entries = match metadata.map(|&id| values.node(id)) {
        Some(Node::Dict(entries)) => entries.as_slice(),
        _ => &[],
    };
    if entries.len() > MAX_METADATA {
        return Err(wrong(&format!(
            "a tensor with {} entries of metadata, at most {MAX_METADATA} are read",
            entries.len()
        )));
    }
    Ok(entries
        .iter()
        .any(|&(_, value)| matches!(values.node(value), Node::Bool(true))))
}

/// A view from storage, offset, size and stride.
fn view(args: &[Id], dtype: Option<Option<Dtype>>, values: &Values) -> Result<View> {
    let [storage, offset, shape, strides, ..] = *args else {
        return Err(wrong("a tensor with too few arguments"));
    };
    if !matches!(values.node(storage), Node::Persistent(_)) {
        return Err(wrong("a tensor whose storage is none"));
    }
    let (offset, shape, strides) = (
        values.size(offset),
        values.sizes(shape),
        values.sizes(strides),
    );
    let (Some(offset), Some(shape), Some(strides)) = (offset, shape, strides) else {
        return Err(wrong(
            "a tensor whose offset, shape or strides are no sizes",
        ));
    };
    if shape.len() != strides.len() || shape.len() > 64 {
        return Err(wrong("a tensor whose shape and strides do not go together"));
    }
    Ok(View {
        storage,
        dtype,
        offset,
        shape,
        strides,
    })
}

//! The value that stands for a call of an allowed global.
//!
//! A call is never made. [`Global::call`] is a `match` over a closed enum: it builds a [`Node`]
//! from the arguments, and nothing that a pickle holds decides which code runs.
//!
//! Arguments: torch `torch/_utils.py`.

use super::globals::Global;
use super::records::Record;
use super::value::{Node, NodeId, PickleValues, TensorView};
use crate::{AnamnesisError, Dtype, Result};

fn wrong(what: &str) -> AnamnesisError {
    AnamnesisError::parse(format!("pickle: {what}"))
}

impl Global {
    /// The value that stands for a call of this global with `args`.
    ///
    /// # Errors
    /// `Parse` if the global cannot be called, or if the arguments are not those that torch writes.
    pub(super) fn call(self, args: &[NodeId], values: &PickleValues) -> Result<Node> {
        Ok(match self {
            Self::Dict => Node::Dict(self::entries(args, values)?),
            Self::Set => match args.first().map(|&id| values.node(id)) {
                Some(Node::List(items) | Node::Tuple(items) | Node::Set(items)) => {
                    Node::Set(items.clone())
                }
                _ => Node::Set(vec![]),
            },
            Self::Sizes => match args.first().map(|&id| values.node(id)) {
                Some(Node::Tuple(items) | Node::List(items)) => Node::Tuple(items.clone()),
                None => Node::Tuple(vec![]),
                Some(_) => return Err(wrong("a size made of what is no list")),
            },
            Self::RebuildTensor if is_lazy(args.get(6), values)? => Node::Refused(LAZY),
            Self::RebuildTensorUntyped if is_lazy(args.get(7), values)? => Node::Refused(LAZY),
            Self::RebuildTensor => Node::Tensor(Box::new(view(args, None, values)?)),
            Self::RebuildTensorUntyped => {
                let dtype = match args.get(6).map(|&id| values.node(id)) {
                    Some(Node::Global(Self::Dtype(dtype))) => *dtype,
                    _ => return Err(wrong("a tensor whose dtype is none")),
                };
                Node::Tensor(Box::new(view(args, Some(dtype), values)?))
            }
            Self::TensorClass(dtype) if args.is_empty() => Node::NewTensor(dtype),
            Self::TensorClass(_) => Node::Refused("tensor made of the arguments of its class"),
            Self::FirstArgument => match args.first().map(|&id| values.node(id)) {
                Some(Node::Tensor(view)) => Node::Tensor(view.clone()),
                Some(Node::Refused(what)) => Node::Refused(what),
                _ => return Err(wrong("a parameter without its tensor")),
            },
            Self::FirstValue => match args.first().map(|&id| values.node(id)) {
                Some(Node::List(items)) => Node::List(items.clone()),
                Some(Node::Dict(entries)) => Node::Dict(entries.clone()),
                _ => return Err(wrong("a list or a dict made of none")),
            },
            // The one case that calls another global. That one must not be of this kind, so
            // recursion ends here.
            Self::RebuildFromType => {
                let (function, inner) = (args.first().map(|&id| values.node(id)), args.get(2));
                let class = args.get(1).map(|&id| values.node(id));
                match (function, inner.and_then(|&id| values.tuple(id))) {
                    (Some(Node::Global(function)), Some(inner))
                        if *function != Self::RebuildFromType =>
                    {
                        match class {
                            Some(Node::Global(Self::FirstArgument)) => {
                                function.call(inner, values)?
                            }
                            Some(Node::Global(Self::Record(Record::Sharded))) => {
                                Node::Record(Record::Sharded, args.get(3).copied())
                            }
                            Some(&Node::Global(Self::Subclass(class))) => {
                                Node::Record(Record::Subclass(class), args.get(3).copied())
                            }
                            _ => Node::Refused("tensor subclass"),
                        }
                    }
                    _ => return Err(wrong("a tensor with attributes but no function")),
                }
            }
            Self::Refused(what) => Node::Refused(what),
            Self::Encode => match args.first().map(|&id| values.node(id)) {
                Some(Node::Str(_) | Node::StoredText(_)) => Node::Encoded(args[0]),
                _ => return Err(wrong("an encoding of what is no text")),
            },
            Self::Class => Node::Record(Record::Object, None),
            Self::Record(record) => Node::Record(record, None),
            Self::Number => match args.first().map(|&id| values.node(id)) {
                Some(&Node::Int(n)) => Node::Int(n),
                _ => return Err(wrong("a number made of none")),
            },
            Self::NumpyDtype => match args.first().map(|&id| values.node(id)) {
                Some(Node::Str(code)) => Node::NumpyDtype(code.clone()),
                _ => Node::Opaque,
            },
            Self::Array => Node::Record(Record::Array, None),
            Self::ArrayOfBuffer => return Err(wrong("an array of a buffer outside of its run")),
            Self::NamedArray => match args.first().map(|&id| values.node(id)) {
                Some(Node::Tuple(items)) => named_array(items, values),
                _ => return Err(wrong("a tuple made of what is none")),
            },
            Self::NoBytes if args.is_empty() => Node::Bytes(0..0),
            Self::NoBytes => return Err(wrong("bytes made of what is no text")),
            Self::Opaque | Self::JoblibArray | Self::Unlisted => Node::Opaque,
            Self::Storage(_) | Self::Dtype(_) | Self::Subclass(_) => {
                return Err(wrong("a call of what is no function"));
            }
        })
    }
}

/// The array of a name and an array; of other items, their tuple.
fn named_array(items: &[NodeId], values: &PickleValues) -> Node {
    if let &[name, array] = items
        && let (Node::Str(_), Node::Tensor(view)) = (values.node(name), values.node(array))
    {
        return Node::Tensor(view.clone());
    }
    Node::Tuple(items.to_vec())
}

/// The entries of a dict made from an iterable of pairs, or copied from a dict.
fn entries(args: &[NodeId], values: &PickleValues) -> Result<Vec<(NodeId, NodeId)>> {
    let items = match args.first().map(|&id| values.node(id)) {
        Some(Node::List(items) | Node::Tuple(items)) => items.as_slice(),
        Some(Node::Dict(entries)) => return Ok(entries.clone()),
        _ => &[],
    };
    let pair = |&id: &NodeId| match values.node(id) {
        Node::Tuple(pair) | Node::List(pair) => pair
            .as_slice()
            .try_into()
            .ok()
            .map(|[k, v]: [NodeId; 2]| (k, v)),
        _ => None,
    };
    // An item that is no pair is an error rather than left out: otherwise repeated calls could walk
    // a long list without adding values, at no charge.
    items
        .iter()
        .map(|id| pair(id).ok_or_else(|| wrong("a dict made from what is no pair")))
        .collect()
}

/// Kind of a tensor with torch's conjugate or negative bit: its values differ from the stored ones.
const LAZY: &str = "tensor whose conjugate or negative is meant, not what is stored";

/// Most entries of a tensor's metadata; torch writes a handful. Many tensors may share one dict,
/// which is walked for each, so its length is bounded.
const MAX_METADATA: usize = 64;

/// Whether a tensor's metadata set the conjugate or the negative bit: `{"conj": True}`, `{"neg":
/// True}`.
fn is_lazy(metadata: Option<&NodeId>, values: &PickleValues) -> Result<bool> {
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

/// The view that a tensor of a class with the dtype `dtype` becomes by its state: a storage, an
/// offset, a size and strides.
///
/// # Errors
/// `Parse` if the state is not that, or the storage has another dtype.
pub(super) fn view_of_state(
    dtype: Dtype,
    state: NodeId,
    values: &PickleValues,
) -> Result<TensorView> {
    let items = values.tuple(state).filter(|items| items.len() == 4);
    let items = items.ok_or_else(|| wrong("a tensor with a state of its own"))?;
    let view = view(items, None, values)?;
    let id = match values.node(view.storage) {
        &Node::Persistent(id) => values.tuple(id),
        _ => None,
    };
    let class = id.and_then(|id| id.get(1)).map(|&id| values.node(id));
    match class {
        Some(Node::Global(Global::Storage(None))) => {
            Ok(TensorView { dtype: Some(Some(dtype)), ..view })
        }
        Some(Node::Global(Global::Storage(Some(element)))) if element.dtype == Some(dtype) => {
            Ok(view)
        }
        _ => Err(wrong(&format!("a tensor of {dtype} whose storage is not of that type"))),
    }
}

/// The view that `_rebuild_tensor*(storage, offset, size, stride, …)` would return. Only the form
/// of the arguments is checked here. Whether the view lies within its storage is checked when the
/// storage is found, for every view and before any byte of it is read (`views::tensor_of`).
fn view(
    args: &[NodeId],
    dtype: Option<Option<Dtype>>,
    values: &PickleValues,
) -> Result<TensorView> {
    let [storage, offset, shape, strides, ..] = *args else {
        return Err(wrong("a tensor with too few arguments"));
    };
    if !matches!(values.node(storage), Node::Persistent(_)) {
        return Err(wrong("a tensor whose storage is none"));
    }
    let (offset, shape, strides) =
        (values.size(offset), values.sizes(shape), values.sizes(strides));
    let (Some(offset), Some(shape), Some(strides)) = (offset, shape, strides) else {
        return Err(wrong("a tensor whose offset, shape or strides are no sizes"));
    };
    if shape.len() != strides.len() || shape.len() > 64 {
        return Err(wrong("a tensor whose shape and strides do not go together"));
    }
    Ok(TensorView { storage, dtype, offset, shape, strides, big_endian: false })
}

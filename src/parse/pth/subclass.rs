//! Tensors of torchao's subclasses of `Tensor`, which `torch.save` stores as a dict of tensors and
//! settings. They become what torchao itself stores in safetensors: the parts of `M.P` are
//! `M._P_qdata`, `M._P_scale` and so on, and a description in JSON says what they are parts of
//! (torchao `prototype/safetensors`, `flatten_tensor_state_dict`).
//!
//! - torchao 0.16 and later: the state of a class has these names already.
//! - before: `AffineQuantizedTensor` has its parts in `tensor_impl`, a subclass for each layout.
//! - `LinearActivationQuantizedTensor` and others say how activations are quantized, and have the
//!   weight in `original_weight_tensor`.

use serde_json::{Map, Value, json};

use super::globals::Global;
use super::pickle::{PickleMachine, wrong};
use super::records::Record;
use super::value::{Node, NodeId, TensorView};
use crate::Result;
use crate::model::strided::row_major_strides;

/// Most fields of a state.
pub(super) const MAX_FIELDS: usize = 64;

/// Tensors around the one that has the weight.
const MAX_DEPTH: usize = 4;

/// The parts of a tensor, and the text in JSON that describes them.
pub(super) struct PartsOfTensor {
    pub parts: Vec<(String, TensorView)>,
    pub description: String,
}

/// A subclass: its value, its class, its state.
type Subclass = (NodeId, &'static str, NodeId);

/// What is wrong with a tensor that is not read.
type Refusal = &'static str;

/// The class of torchao up to 0.15.
const AFFINE: &str = "AffineQuantizedTensor";

/// Classes that say how activations are quantized.
const AROUND: &[&str] =
    &["LinearActivationQuantizedTensor", "WeightTensorWithLinearActivationQuantizationMetadata"];

/// The parts of a tensor; or why it is not read.
///
/// # Errors
/// `Parse` if the state is no dict of fields.
pub(super) fn parts(
    mut tensor: Subclass,
    machine: &PickleMachine<'_>,
) -> Result<std::result::Result<PartsOfTensor, Refusal>> {
    let mut depth = 0;
    while AROUND.contains(&tensor.1) && depth < MAX_DEPTH {
        let inner = Fields::new(tensor.2, machine)?.subclass("original_weight_tensor", machine);
        tensor = inner.ok_or_else(|| wrong("a tensor of torchao without its weight"))?;
        depth += 1;
    }
    let (id, class, state) = tensor;
    let fields = Fields::new(state, machine)?;
    let whole =
        Whole::of(id, machine).ok_or_else(|| wrong("a tensor of torchao without a size"))?;
    if class == AFFINE {
        return affine(&fields, &whole, machine);
    }
    let names = fields
        .0
        .iter()
        .filter(|(_, value)| is_tensor(*value, machine));
    let names: Vec<(&str, &str)> = names.map(|&(name, _)| (name, name)).collect();
    if !names.iter().any(|(name, _)| *name == "qdata") {
        return Ok(Err("tensor of torchao without `qdata`"));
    }
    Ok(described(class, &names, &fields, &fields, &whole, machine))
}

/// `ZeroPointDomain.FLOAT` and `NONE`.
const FLOAT: i64 = 2;
const NONE: i64 = 3;

/// The parts of an `AffineQuantizedTensor`.
fn affine(
    fields: &Fields<'_>,
    whole: &Whole,
    machine: &PickleMachine<'_>,
) -> Result<std::result::Result<PartsOfTensor, Refusal>> {
    let Some((_, class, state)) = fields.subclass("tensor_impl", machine) else {
        return Ok(Err("AffineQuantizedTensor of a layout that is not known"));
    };
    let stored = Fields::new(state, machine)?;
    if stored.is_set("transposed", machine) {
        return Ok(Err("AffineQuantizedTensor that is transposed"));
    }
    let domain = fields.int("zero_point_domain", machine);
    let (class, names): (_, &[(&str, &str)]) = match class {
        "PlainAQTTensorImpl" | "QDQTensorImpl" => match domain {
            Some(FLOAT) => {
                return Ok(Err("AffineQuantizedTensor with zero points that are floats"));
            }
            Some(NONE) => (AFFINE, &[("int_data", "qdata"), ("scale", "scale")]),
            _ => {
                (AFFINE, &[("int_data", "qdata"), ("scale", "scale"), ("zero_point", "zero_point")])
            }
        },
        "Float8AQTTensorImpl" => ("Float8Tensor", &[("float8_data", "qdata"), ("scale", "scale")]),
        "TensorCoreTiledAQTTensorImpl" => (
            "Int4TilePackedTo4dTensor",
            &[("packed_weight", "qdata"), ("scale_and_zero", "scale_and_zero")],
        ),
        "Int4CPUAQTTensorImpl" => {
            return Ok(Err(
                "AffineQuantizedTensor in Int4CPULayout, whose order depends on the processor that packed it",
            ));
        }
        "UintxAQTTensorImpl" => return Ok(Err("AffineQuantizedTensor in UintxLayout")),
        _ => return Ok(Err("AffineQuantizedTensor of a layout that is not known")),
    };
    Ok(described(class, names, &stored, fields, whole, machine))
}

/// The parts of `stored` by their names there and in safetensors, and the description of `class`
/// with the settings of `fields`.
fn described(
    class: &str,
    names: &[(&str, &str)],
    stored: &Fields<'_>,
    fields: &Fields<'_>,
    whole: &Whole,
    machine: &PickleMachine<'_>,
) -> std::result::Result<PartsOfTensor, Refusal> {
    let mut data: Map<String, Value> = Map::new();
    if let Some(dtype) = whole.dtype {
        data.insert("dtype".to_owned(), json!({"_type": "torch.dtype", "_data": dtype}));
    }
    data.insert("shape".to_owned(), json!(whole.shape));
    for &(name, value) in &fields.0 {
        if let Some(setting) = setting(value, machine) {
            data.insert(name.to_owned(), setting);
        }
    }
    let blocks = fields
        .find("block_size")
        .and_then(|id| machine.values.sizes(id));
    let mut parts = vec![];
    for &(name, part) in names {
        let view = match stored.find(name).map(|id| machine.values.node(id)) {
            Some(Node::Tensor(view)) => (**view).clone(),
            Some(Node::None) | None => continue,
            Some(_) => return Err("tensor of torchao with a part that is not read"),
        };
        let view = match class {
            AFFINE | "Float8Tensor" if part != "qdata" => {
                with_dimensions(view, &whole.shape, blocks.as_deref())
            }
            _ => view,
        };
        parts.push((part.to_owned(), view));
    }
    let listed: Vec<&str> = parts.iter().map(|(part, _)| part.as_str()).collect();
    let description = json!({"_type": class, "_data": data, "_tensor_data_names": listed});
    Ok(PartsOfTensor { description: description.to_string(), parts })
}

/// Scales with a number for each block in each dimension of the weight. Older versions drop
/// dimensions of one block.
fn with_dimensions(view: TensorView, shape: &[usize], blocks: Option<&[usize]>) -> TensorView {
    let Some(blocks) = blocks.filter(|blocks| blocks.len() == shape.len()) else {
        return view;
    };
    let count = |(&dim, &block): (&usize, &usize)| dim.checked_div(block);
    let counts: Option<Vec<usize>> = shape.iter().zip(blocks).map(count).collect();
    let product = |sizes: &[usize]| {
        sizes
            .iter()
            .try_fold(1usize, |n, &size| n.checked_mul(size))
    };
    match counts {
        Some(counts)
            if view.strides == row_major_strides(&view.shape)
                && product(&counts).is_some()
                && product(&counts) == product(&view.shape) =>
        {
            TensorView { strides: row_major_strides(&counts), shape: counts, ..view }
        }
        _ => view,
    }
}

fn is_tensor(id: NodeId, machine: &PickleMachine<'_>) -> bool {
    matches!(machine.values.node(id), Node::Tensor(_) | Node::Refused(_))
}

/// A setting as torchao's JSON has it; `None` if it is of another kind.
fn setting(value: NodeId, machine: &PickleMachine<'_>) -> Option<Value> {
    match machine.values.node(value) {
        Node::Bool(flag) => Some(json!(flag)),
        Node::Int(n) => Some(json!(n)),
        &Node::Global(Global::Dtype(Some(dtype))) => {
            Some(json!({"_type": "torch.dtype", "_data": Global::name_of(dtype)?}))
        }
        Node::Tuple(items) | Node::List(items) if items.len() <= MAX_FIELDS => {
            machine.values.sizes(value).map(|sizes| json!(sizes))
        }
        _ => None,
    }
}

/// The whole tensor, as the arguments say that torch makes the subclass with.
struct Whole {
    shape: Vec<usize>,
    dtype: Option<&'static str>,
}

impl Whole {
    /// From the arguments `(class, dtype, size, …)`.
    fn of(id: NodeId, machine: &PickleMachine<'_>) -> Option<Self> {
        let arguments = machine.values.attached(id).first()?;
        let &[_, dtype, size, ..] = machine.values.tuple(*arguments)? else {
            return None;
        };
        let dtype = match machine.values.node(dtype) {
            &Node::Global(Global::Dtype(Some(dtype))) => Global::name_of(dtype),
            _ => None,
        };
        let shape = machine
            .values
            .sizes(size)
            .filter(|shape| shape.len() <= MAX_FIELDS)?;
        Some(Self { shape, dtype })
    }
}

/// The fields of a state.
struct Fields<'a>(Vec<(&'a str, NodeId)>);

impl<'a> Fields<'a> {
    fn new(state: NodeId, machine: &'a PickleMachine<'_>) -> Result<Self> {
        let entries = match machine.values.node(state) {
            Node::Dict(entries) if entries.len() <= MAX_FIELDS => entries,
            _ => return Err(wrong("a tensor of torchao whose state is no dict of fields")),
        };
        let field = |&(key, value): &(NodeId, NodeId)| match machine.values.node(key) {
            Node::Str(range) => machine.input.text(range).map(|name| (name, value)),
            _ => Err(wrong("a tensor of torchao with a field without a name")),
        };
        let fields: Vec<_> = entries.iter().map(field).collect::<Result<_>>()?;
        // Python takes the last of a name.
        let is_twice = |at: usize| fields[..at].iter().any(|(name, _)| *name == fields[at].0);
        match (0..fields.len()).any(is_twice) {
            true => Err(wrong("a tensor of torchao with a field twice")),
            false => Ok(Self(fields)),
        }
    }

    fn find(&self, name: &str) -> Option<NodeId> {
        let found = self.0.iter().find(|(other, _)| *other == name);
        found.map(|&(_, value)| value)
    }

    fn subclass(&self, name: &str, machine: &PickleMachine<'_>) -> Option<Subclass> {
        let id = self.find(name)?;
        match *machine.values.node(id) {
            Node::Record(Record::Subclass(class), Some(state)) => Some((id, class, state)),
            _ => None,
        }
    }

    fn is_set(&self, name: &str, machine: &PickleMachine<'_>) -> bool {
        let value = self.find(name).map(|id| machine.values.node(id));
        matches!(value, Some(Node::Bool(true)))
    }

    fn int(&self, name: &str, machine: &PickleMachine<'_>) -> Option<i64> {
        match *machine.values.node(self.find(name)?) {
            Node::Int(n) => Some(n),
            _ => None,
        }
    }
}

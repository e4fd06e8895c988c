//! Arrays of NumPy in pickles: the globals that make them, and their states.
//!
//! Format: NumPy `numpy/_core/src/multiarray/methods.c`, `array_reduce` and `array_setstate`, and
//! `numpy/_core/numeric.py`, `_frombuffer`.

use super::globals::Global;
use super::input::PickleInput;
use super::value::{Node, NodeId, PickleValues, TensorView};
use crate::model::strided::row_major_strides;
use crate::{AnamnesisError, Dtype, Result};

/// Globals of pickles of arrays besides those of all checkpoints: module, name.
const GLOBALS: &[(&str, &str, Global)] = &[
    ("numpy.core.multiarray", "_reconstruct", Global::Array),
    ("numpy._core.multiarray", "_reconstruct", Global::Array),
    ("numpy.core.numeric", "_frombuffer", Global::ArrayOfBuffer),
    ("numpy._core.numeric", "_frombuffer", Global::ArrayOfBuffer),
    ("numpy", "dtype", Global::NumpyDtype),
    ("numpy", "ndarray", Global::Opaque),
    ("numpy.core.multiarray", "scalar", Global::Opaque),
    ("numpy._core.multiarray", "scalar", Global::Opaque),
    ("builtins", "tuple", Global::NamedArray),
    ("__builtin__", "tuple", Global::NamedArray),
    ("builtins", "bytes", Global::NoBytes),
    ("__builtin__", "bytes", Global::NoBytes),
];

/// What is said of an array of objects that are not in a list.
const OBJECTS: &str = "array of objects";

/// A global that pickles of arrays may name besides those of all checkpoints.
pub(super) fn array_global(module: &str, name: &str) -> Option<Global> {
    let found = GLOBALS.iter().find(|(m, n, _)| (*m, *n) == (module, name));
    found.map(|&(_, _, global)| global)
}

/// Element types by NumPy's code.
const TYPES: &[(&[u8], Dtype)] = &[
    (b"b1", Dtype::Bool),
    (b"u1", Dtype::U8),
    (b"i1", Dtype::I8),
    (b"u2", Dtype::U16),
    (b"i2", Dtype::I16),
    (b"u4", Dtype::U32),
    (b"i4", Dtype::I32),
    (b"u8", Dtype::U64),
    (b"i8", Dtype::I64),
    (b"f2", Dtype::F16),
    (b"f4", Dtype::F32),
    (b"f8", Dtype::F64),
    (b"c8", Dtype::C64),
];

/// The array that the state `(version, shape, dtype, is Fortran's order, data)` makes, or one
/// without the version.
///
/// # Errors
/// `Parse` if it is another state.
pub(super) fn of_state(
    state: NodeId,
    values: &PickleValues,
    input: &PickleInput<'_>,
) -> Result<Node> {
    let parts = values.tuple(state).map(|items| match items {
        [_, rest @ ..] if rest.len() == 4 => rest,
        all => all,
    });
    let Some(&[shape, dtype, fortran, data]) = parts else {
        return Err(wrong("an array with another state"));
    };
    let is_fortran = match values.node(fortran) {
        Node::Bool(is_fortran) => *is_fortran,
        Node::Int(n) => *n != 0,
        _ => return Err(wrong("an array with another state")),
    };
    array(shape, dtype, is_fortran, data, (values, input))
}

/// The array that `_frombuffer(data, dtype, shape, order, axes)` makes: order `K` has the dimensions as
/// they are stored, and where each dimension of the array is among them.
///
/// # Errors
/// `Parse` if the arguments are others.
pub(super) fn of_buffer(
    args: &[NodeId],
    values: &PickleValues,
    input: &PickleInput<'_>,
) -> Result<Node> {
    let (&[data, dtype, shape, order], axes) = (match args {
        [first @ .., axes] if first.len() == 4 => (first, values.sizes(*axes)),
        all => (all, None),
    }) else {
        return Err(wrong("an array of a buffer with other arguments"));
    };
    let (is_fortran, axes) = match (values.node(order), axes) {
        (Node::Str(order), None) if input.bytes(order) == b"C" => (false, None),
        (Node::Str(order), None) if input.bytes(order) == b"F" => (true, None),
        (Node::Str(order), Some(axes)) if input.bytes(order) == b"K" => (false, Some(axes)),
        _ => return Err(wrong("an array of a buffer in an order that is none")),
    };
    let mut made = array(shape, dtype, is_fortran, data, (values, input))?;
    if let (Node::Tensor(view), Some(axes)) = (&mut made, axes) {
        let mut sorted = axes.clone();
        sorted.sort_unstable();
        if !sorted.iter().copied().eq(0..view.shape.len()) {
            return Err(wrong("an array of a buffer in an order that is none"));
        }
        view.strides = axes.iter().map(|&axis| view.strides[axis]).collect();
        view.shape = axes.iter().map(|&axis| view.shape[axis]).collect();
    }
    Ok(made)
}

fn array(
    shape: NodeId,
    dtype: NodeId,
    is_fortran: bool,
    data: NodeId,
    (values, input): (&PickleValues, &PickleInput<'_>),
) -> Result<Node> {
    let shape = values.sizes(shape).filter(|shape| shape.len() <= 64);
    let shape = shape.ok_or_else(|| wrong("an array whose shape is none"))?;
    let (dtype, big_endian) = match element(dtype, values, input)? {
        Ok(element) => element,
        Err(OBJECTS) => return objects(&shape, data, values),
        Err(what) => return Ok(Node::Refused(what)),
    };
    let strides = match is_fortran {
        false => row_major_strides(&shape),
        true => {
            let reversed: Vec<usize> = shape.iter().rev().copied().collect();
            row_major_strides(&reversed).into_iter().rev().collect()
        }
    };
    let dtype = Some(Some(dtype));
    let view = TensorView { storage: data, dtype, offset: 0, shape, strides, big_endian };
    Ok(Node::Tensor(Box::new(view)))
}

/// An array of objects: a list of them.
fn objects(shape: &[usize], data: NodeId, values: &PickleValues) -> Result<Node> {
    let Node::List(items) = values.node(data) else {
        return Ok(Node::Refused(OBJECTS));
    };
    let len = shape.iter().try_fold(1, |n: usize, &d| n.checked_mul(d));
    if len != Some(items.len()) {
        return Err(wrong("an array of another number of objects"));
    }
    Ok(Node::List(items.clone()))
}

/// The element type of a dtype and whether it is big-endian, or what the elements are if no tensor can hold them. The byte order
/// is in the state that the dtype was given: `(version, order, …)`.
fn element(
    dtype: NodeId,
    values: &PickleValues,
    input: &PickleInput<'_>,
) -> Result<std::result::Result<(Dtype, bool), &'static str>> {
    let Node::NumpyDtype(code) = values.node(dtype) else {
        return Ok(Err("array of a dtype that is not read"));
    };
    let code = input.bytes(code);
    let Some(&(_, found)) = TYPES.iter().find(|(known, _)| *known == code) else {
        return Ok(Err(match code.first() {
            Some(b'O') => OBJECTS,
            Some(b'U' | b'S') => "array of text",
            _ => "array of a dtype that is not read",
        }));
    };
    let state = values.attached(dtype).first();
    let order = state.and_then(|&state| values.tuple(state)?.get(1).copied());
    let order = order.map(|order| values.node(order));
    match order {
        _ if found.bits() <= 8 => Ok(Ok((found, false))),
        Some(Node::Str(order)) => Ok(Ok((found, input.bytes(order) == b">"))),
        _ => Err(wrong("a dtype without a byte order")),
    }
}

fn wrong(what: &str) -> AnamnesisError {
    AnamnesisError::parse(format!("pickle: {what}"))
}

//! Quantized weights of ONNX models. The graph tells which tensors are codes, which have their scales,
//! and the operator that decodes them (`parse::onnx`); names tell nothing.

use crate::model::{OnnxCodes, OnnxRole, Tensor};
use crate::remember::seam::{Group, Identity, Index, QuantScheme, Scheme, refused};
use crate::{Container, Result};

pub(super) struct Onnx;

static IDENTITY: Identity = Identity {
    name: "ONNX",
    over: &[],
    methods: &[],
    codes: &[],
    companions: &[],
    optional: &[],
    activations: &[],
    markers: &[],
    sidecars: &[],
    container: Some(|model| model.container == Container::Onnx),
};

/// What the graph says of `t`.
fn role<'m>(t: &Tensor<'m>) -> &'m OnnxRole {
    t.model.onnx.get(t.index).unwrap_or(&OnnxRole::Plain)
}

impl Scheme for Onnx {
    fn identity(&self) -> &'static Identity {
        &IDENTITY
    }

    fn claim<'m>(&self, t: &Tensor<'m>, _all: &Index<'m>) -> Result<Option<Group<'m>>> {
        let OnnxRole::Codes(codes) = role(t) else {
            return Ok(None);
        };
        let OnnxCodes { op, .. } = &**codes;
        Err(refused(t, "ONNX", format!("its operator {op} is not decoded by this version")))
    }

    fn is_activation(&self, t: &Tensor<'_>, _all: &Index<'_>) -> bool {
        matches!(role(t), OnnxRole::Activation | OnnxRole::Companion { .. })
    }
}

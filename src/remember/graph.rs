//! Quantized weights of models that are graphs. The graph tells which tensors are codes, which have
//! their scales, and the operator that decodes them (`parse::onnx`, `parse::tflite`, `parse::openvino`, `parse::coreml`);
//! names tell nothing. Containers without such an operator have what ONNX's `DequantizeLinear` does.
//!
//! Sources: ONNX `docs/Operators.md`, onnxruntime `docs/ContribOperators.md`.

mod bnb4;
mod broadcast;
mod gather;
mod linear;
mod n_bits;
mod palette;
mod stored;
mod transposed;

use std::collections::HashMap;

use crate::model::{GraphCodes, GraphRole, Tensor};
use crate::remember::seam::decode::Decode;
use crate::remember::seam::grouped::{GroupFormula, GroupOffsets};
use crate::remember::seam::scale_matrix::ScaleMatrix;
use crate::remember::seam::{
    CodeType, Granularity, Group, Identity, Index, QuantScheme, Scheme, TensorRole, refused, wrong,
};
use crate::{Container, ParsedModel, Result};

use self::stored::StoredInts;

/// The scheme of a container whose graph tells what codes are.
pub(super) struct GraphScheme(&'static Identity);

pub(super) static ONNX: GraphScheme =
    GraphScheme(&identity("ONNX", |model| model.container == Container::Onnx));

pub(super) static TFLITE: GraphScheme =
    GraphScheme(&identity("LiteRT", |model| model.container == Container::Tflite));

pub(super) static EXECUTORCH: GraphScheme =
    GraphScheme(&identity("ExecuTorch", |model| model.container == Container::ExecuTorch));

pub(super) static KERAS: GraphScheme =
    GraphScheme(&identity("Keras", |model| model.container == Container::Hdf5));

pub(super) static OPENVINO: GraphScheme =
    GraphScheme(&identity("OpenVINO", |model| model.container == Container::OpenVino));

pub(super) static CORE_ML: GraphScheme =
    GraphScheme(&identity("Core ML", |model| model.container == Container::CoreMl));

pub(super) static PADDLE: GraphScheme =
    GraphScheme(&identity("Paddle", |model| model.container == Container::Paddle));

const fn identity(name: &'static str, is_container: fn(&ParsedModel) -> bool) -> Identity {
    Identity {
        name,
        over: &[],
        methods: &[],
        codes: &[],
        companions: &[],
        optional: &[],
        activations: &[],
        markers: &[],
        sidecars: &[],
        container: Some(is_container),
    }
}

/// The operator of codes whose scales' dimensions divide those of the weight (Core ML).
const BLOCKS: &str = "constexpr_blockwise_shift_scale";

/// What has codes without gaps in bytes (Core ML).
const PALETTE: &str = "Palette";

/// What the graph says of `t`.
fn role<'m>(t: &Tensor<'m>) -> &'m GraphRole {
    t.model.graph.get(t.index).unwrap_or(&GraphRole::Plain)
}

impl Scheme for GraphScheme {
    fn identity(&self) -> &'static Identity {
        self.0
    }

    fn claim<'m>(&self, t: &Tensor<'m>, all: &Index<'m>) -> Result<Option<Group<'m>>> {
        let GraphRole::Codes(codes) = role(t) else {
            return Ok(None);
        };
        let weight = GraphWeight::new(self.0.name, t, codes, all)?;
        let decode = match codes.op.as_str() {
            "MatMulNBits" => n_bits::decoder,
            "GatherBlockQuantized" => gather::decoder,
            "MatMulBnb4" => bnb4::decoder,
            "Multiply" | "NF4" | BLOCKS => broadcast::decoder,
            PALETTE => palette::decoder,
            GraphCodes::INDEXED => transposed::decoder,
            _ if linear::axis(codes).is_some() => linear::decoder,
            "" => {
                let what = "no operator tells what it is in a quantized graph";
                return Err(weight.refused(what));
            }
            op => return Err(weight.refused(format!("its operator is {op}"))),
        };
        weight.check_uses()?;
        let decoded = decode(&weight)?;
        Ok(Some(weight.group(decoded, all)))
    }

    fn descriptions(&self, metadata: &HashMap<String, String>) -> Vec<String> {
        // What the tools of onnxruntime say of a model that they have quantized.
        let key = "onnx.infer";
        let is_there = metadata.contains_key(key);
        is_there.then(|| key.to_owned()).into_iter().collect()
    }

    fn is_proved_by_file(&self) -> bool {
        true
    }

    fn is_activation(&self, t: &Tensor<'_>, _all: &Index<'_>) -> bool {
        matches!(role(t), GraphRole::Activation | GraphRole::Companion { .. })
    }
}

/// Codes with their companions.
struct GraphWeight<'m> {
    /// What listings and errors call the scheme.
    family: &'static str,
    t: Tensor<'m>,
    codes: &'m GraphCodes,
    scale: Option<Tensor<'m>>,
    zero_point: Option<Tensor<'m>>,
    /// Another scale, by which the first is multiplied.
    factor: Option<Tensor<'m>>,
    /// The values that codes pick.
    codebook: Option<Tensor<'m>>,
    /// The group of each row.
    index: Option<Tensor<'m>>,
}

/// How a weight is decoded.
struct GraphDecoder<'m> {
    shape: Vec<usize>,
    scheme: QuantScheme,
    decoder: Box<dyn Decode + 'm>,
}

impl<'m> GraphWeight<'m> {
    fn new(
        family: &'static str,
        t: &Tensor<'m>,
        codes: &'m GraphCodes,
        all: &Index<'m>,
    ) -> Result<Self> {
        let find = |name: &Option<Box<str>>| match name {
            None => Ok(None),
            Some(name) => {
                let found = all.model.tensor(name);
                found
                    .map(Some)
                    .ok_or_else(|| wrong(t, format!("its `{name}` is missing")))
            }
        };
        let (scale, zero_point) = (find(&codes.scale)?, find(&codes.zero_point)?);
        let (factor, codebook) = (find(&codes.factor)?, find(&codes.codebook)?);
        let index = find(&codes.index)?;
        Ok(Self { family, t: *t, codes, scale, zero_point, factor, codebook, index })
    }

    fn refused(&self, what: impl std::fmt::Display) -> crate::AnamnesisError {
        refused(&self.t, self.family, format!("{what}, which this version does not decode"))
    }

    /// What listings show of codes with scales.
    fn scheme(&self, codes: CodeType, scales: Granularity) -> QuantScheme {
        QuantScheme::Grouped { family: self.family, codes, scales }
    }

    /// # Errors
    /// `Unsupported` if the graph does not tell all that makes values of the codes.
    fn check_uses(&self) -> Result<()> {
        let codes = self.codes;
        if codes.codebook.is_some() && self.scale.is_none() {
            return Ok(());
        }
        let scale = self.need_scale()?;
        let what = match () {
            () if codes.is_moved && scale.elements() != 1 => {
                "its operator takes it in another order or shape than it is stored in"
            }
            () if codes.has_more => {
                "its operators take more than codes, scales and zero points, or do not agree"
            }
            () => return Ok(()),
        };
        Err(self.refused(format!("{what} ({})", codes.op)))
    }

    /// The scale.
    ///
    /// # Errors
    /// There is none among the stored tensors.
    fn need_scale(&self) -> Result<Tensor<'m>> {
        self.scale
            .ok_or_else(|| self.refused("its scale is made by another operator"))
    }

    /// The integer attribute `name`, which is at least 1.
    ///
    /// # Errors
    /// It is missing, zero or negative.
    fn need_integer(&self, name: &str) -> Result<usize> {
        let value = usize::try_from(self.codes.integer(name, 0));
        let value = value.ok().filter(|&value| value > 0);
        value.ok_or_else(|| wrong(&self.t, format!("its operator has no {name} above 0")))
    }

    /// The formula, with `zero_points` if there are any.
    fn formula(zero_points: Option<Box<dyn ScaleMatrix + 'm>>) -> GroupFormula<'m> {
        match zero_points {
            None => GroupFormula::Scale,
            Some(matrix) => GroupFormula::ShiftScale(GroupOffsets::new(matrix)),
        }
    }

    /// The group that `decoded` decodes. Companions of several weights are no parts of it: they are in
    /// no output, and each of the weights would own them.
    fn group(&self, decoded: GraphDecoder<'m>, all: &Index<'m>) -> Group<'m> {
        let mut parts = vec![(TensorRole::Quantized, self.t)];
        let companions = [
            (TensorRole::Scale, self.scale),
            (TensorRole::ZeroPoint, self.zero_point),
            (TensorRole::GroupIndex, self.index),
        ];
        for (part, companion) in companions {
            let Some(companion) = companion else {
                continue;
            };
            if *role(&companion) == (GraphRole::Companion { is_shared: false }) {
                parts.push((part, companion));
            }
        }
        let name = self.name(all);
        Group::new(name, decoded.shape, decoded.scheme, parts, decoded.decoder)
    }

    /// The name of the weight before onnxruntime's tools have quantized it, if they have added
    /// something to it and no other tensor has the name.
    fn name(&self, all: &Index<'m>) -> &'m str {
        let name = self.t.name();
        let added = ["_quantized", "_Q2", "_Q4", "_Q8", "_Q4G32", "_Bnb4"];
        let before = added.iter().find_map(|end| name.strip_suffix(end));
        let is_free = |before: &&str| {
            let mut others = added.iter().map(|end| format!("{before}{end}"));
            !before.is_empty()
                && all.model.tensor(before).is_none()
                && !others.any(|other| other != name && all.model.tensor(&other).is_some())
        };
        before.filter(is_free).unwrap_or(name)
    }
}

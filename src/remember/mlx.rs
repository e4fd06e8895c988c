//! MLX: `P.weight` U32 `[…, out, in * bits / 32]`, whose rows are bit streams, with `P.scales` `[…,
//! out, in / group]`. Affine: float `P.scales` and `P.biases`, of the groups; the bias of the layer
//! is `P.bias`. Floating point: U8 `P.scales`, exponents for MXFP4 and MXFP8 or E4M3 for NVFP4,
//! which may have `P.global_scale`. Ollama's layers of tensors have other names of companions and
//! say in metadata what a weight is ([`ollama`]).
//!
//! Formulas: MLX `mx.dequantize` on CPU: `T(T(q * scale) + bias)` in the type T of the scales.
//! transformers' `metal` names the biases `P.qbiases` and computes in F32.

mod bits;
pub(super) mod experts;
mod finish;
mod mflux;
mod ollama;

use std::collections::HashMap;

use self::experts::{count_experts, expert_names, unquantized_stack};
use self::ollama::OllamaQuant;
use crate::config::{MFLUX_LEVEL, QuantMethod};
use crate::model::Tensor;
use crate::remember::kernels::grouped::{E2M1, Int};
use crate::remember::seam::NamePattern::{Ends, EndsIfQuantized};
use crate::remember::seam::grouped::{
    CodeFormat, Codes, GroupFormula, GroupOffsets, Grouped, row_groups,
};
use crate::remember::seam::scale_layout::rows_and_cols;
use crate::remember::seam::scale_matrix::{Matrix, NestedOp, NestedScales, ScaleMatrix};
use crate::remember::seam::{
    CodeFamily, CodeType, Floats, Granularity, Group, Identity, Index, Prepared, QuantScheme,
    Scheme, Sibling, TensorRole, TopExponent, base_of, module_of, refused, wrong,
};
use crate::{Dtype, Result, TargetDtype};

pub(super) struct Mlx;

/// Largest E4M3 times largest E2M1. `P.global_scale` is the largest magnitude of the tensor, and
/// the scale is its quotient by this.
const MAX_NVFP4: f32 = 448.0 * 6.0;

static IDENTITY: Identity = Identity {
    name: "MLX",
    over: &["not decoded"],
    methods: &[QuantMethod::Metal],
    codes: &[],
    companions: &[
        (Ends(".global_scale"), TensorRole::Scale),
        (EndsIfQuantized(".scales"), TensorRole::Scale),
        (Ends(".qbiases"), TensorRole::Offset),
        (Ends(".weight.scale"), TensorRole::Scale),
        (Ends(".weight.bias"), TensorRole::Offset),
    ],
    optional: &[
        Sibling::OfModule("global_scale"),
        Sibling::OfWeight(".global_scale"),
        Sibling::OfModule("signs"),
        Sibling::OfModule("weight_scale_2"),
        Sibling::OfModule("weight_global_scale"),
    ],
    activations: &[],
    markers: &[],
    sidecars: &[],
    container: None,
};

impl Scheme for Mlx {
    fn identity(&self) -> &'static Identity {
        &IDENTITY
    }

    fn prepare(&self, all: &Index<'_>) -> Option<Prepared> {
        count_experts(all.model)
    }

    /// Inkling's blocks have a factor of the same name as the second scale of a matrix: for what their
    /// feed-forward layers give together, or their router, whose weight is of floats.
    fn is_parameter(&self, t: &Tensor<'_>, all: &Index<'_>) -> bool {
        let Some(module) = base_of(t.name(), "global_scale") else {
            return false;
        };
        let is_plain = |weight: Tensor<'_>| weight.dtype().is_floating_point();
        module.ends_with(".mlp.")
            || module.ends_with(".mlp.gate.") && all.at(module, "weight").is_none_or(is_plain)
    }

    fn descriptions(&self, metadata: &HashMap<String, String>) -> Vec<String> {
        let mut keys = ollama::description_keys(metadata);
        keys.extend(
            metadata
                .get_key_value(MFLUX_LEVEL)
                .map(|(key, _)| key.clone()),
        );
        keys
    }

    fn claim<'m>(&self, t: &Tensor<'m>, all: &Index<'m>) -> Result<Option<Group<'m>>> {
        if let Some(group) = mflux::fp8(t, all)? {
            return Ok(Some(group));
        }
        let Some(layer) = MlxLayer::find(t, all)? else {
            return unquantized_stack(t, all);
        };
        let scales = layer.scales;
        // The mode is not asked of the config: floating-point modes have bytes as scales, and
        // affine ones floats.
        let (bits, codes, mut decoder, companions) = match scales.dtype() {
            Dtype::U8 => layer.float_decoder(all)?,
            _ => layer.affine_decoder(all)?,
        };
        if let Some(stated) = &layer.stated {
            stated.check_mode(t, codes)?;
        }
        let mut parts = vec![(TensorRole::Quantized, *t), (TensorRole::Scale, scales)];
        parts.extend(companions);
        let group = layer.bits_per_group / bits;
        // The mode has settled the bits, and hence which of the pairs the proved product means.
        decoder.grid = row_groups(decoder.cols, group);
        let shape: Vec<usize> = t.shape()[..t.shape().len() - 1]
            .iter()
            .copied()
            .chain([decoder.cols])
            .collect();
        let scheme =
            QuantScheme::Grouped { family: "MLX", codes, scales: Granularity::Group(group) };
        let names = match shape.len() {
            3 => expert_names(t, &shape, all)?,
            _ => Vec::new(),
        };
        let decoder = layer.finish(decoder, codes, all, &mut parts)?;
        let group = Group::new(t.name(), shape, scheme, parts, decoder);
        Ok(Some(group.with_matrices(names)))
    }
}

/// Bits of all codes that share a scale. The shapes prove this product of bits and group size, but
/// neither of the two.
fn bits_per_group(t: &Tensor<'_>, scales: &Tensor<'_>) -> Result<usize> {
    let misfit =
        || wrong(t, format!("its scales `{}` {:?} do not fit", scales.name(), scales.shape()));
    let (Some((&words, rows)), Some((&groups, scale_rows))) =
        (t.shape().split_last(), scales.shape().split_last())
    else {
        return Err(misfit());
    };
    // `groups > 0` first: the remainder by zero would panic.
    let bits = words
        .checked_mul(32)
        .filter(|bits| groups > 0 && bits.is_multiple_of(groups));
    // Stored words and scales have the same rows; a matrix without leading dimensions is no weight
    // of MLX.
    bits.filter(|_| rows == scale_rows && !rows.is_empty())
        .map(|bits| bits / groups)
        .ok_or_else(misfit)
}

/// Ends of the names of a weight's companions, which follow [`MlxLayer::base`].
struct CompanionNames {
    scales: &'static str,
    biases: &'static str,
    global: &'static str,
    is_of_ollama: bool,
}

/// Names of mlx-lm, behind the name of the module.
const OF_MODULE: &CompanionNames = &CompanionNames {
    scales: "scales",
    biases: "biases",
    global: "global_scale",
    is_of_ollama: false,
};

/// A weight that is being claimed.
struct MlxLayer<'a, 'm> {
    t: Tensor<'m>,
    base: &'a str,
    names: &'static CompanionNames,
    scales: Tensor<'m>,
    /// Bits of all codes of a group.
    bits_per_group: usize,
    /// What Ollama's metadata say of the weight.
    stated: Option<OllamaQuant>,
}

/// Bits of a code, kind of the codes, decoder, and companions besides the scales.
type MlxDecoder<'m> = (usize, CodeType, Grouped<'m>, Vec<(TensorRole, Tensor<'m>)>);

impl<'m> MlxLayer<'m, 'm> {
    /// The weight whose codes `t` is; `None` if it is not MLX's.
    ///
    /// # Errors
    /// The scales or the metadata do not fit.
    fn find(t: &Tensor<'m>, all: &Index<'m>) -> Result<Option<Self>> {
        // GPTQ and AWQ store words as I32, and their codes are `qweight`; U32 under `weight` is
        // MLX's alone.
        if t.dtype() != Dtype::U32 {
            return Ok(None);
        }
        let of_module = base_of(t.name(), "weight").and_then(|base| {
            let scales = all.at(base, OF_MODULE.scales)?;
            Some((base, OF_MODULE, scales))
        });
        let of_weight = || Some((t.name(), ollama::NAMES, all.at(t.name(), ollama::NAMES.scales)?));
        let stated = OllamaQuant::of(t, all)?;
        let Some((base, names, scales)) = of_module.or_else(of_weight) else {
            return match stated {
                // Without its scale it would pass for a plain tensor.
                Some(_) => all.need(t, t.name(), ollama::NAMES.scales).map(|_| None),
                None => Ok(None),
            };
        };
        let layer = Self {
            t: *t,
            base,
            names,
            scales,
            bits_per_group: bits_per_group(t, &scales)?,
            // A file of mlx-lm may have metadata of these names for purposes of its own.
            stated: stated.filter(|_| names.is_of_ollama),
        };
        if let Some(stated) = &layer.stated {
            stated.check_size(t, layer.bits_per_group)?;
        }
        Ok(Some(layer))
    }
}

impl<'m> MlxLayer<'_, 'm> {
    fn row_words(&self) -> usize {
        self.t.shape().last().copied().unwrap_or(0)
    }

    /// Columns of the weight if a code has `bits` bits.
    fn cols(&self, bits: usize) -> usize {
        self.row_words() * 32 / bits
    }

    fn decoder(
        &self,
        bits: usize,
        code_format: CodeFormat,
        scales: Box<dyn ScaleMatrix + 'm>,
    ) -> Grouped<'m> {
        let cols = self.cols(bits);
        let (rows, _) = rows_and_cols(self.t.shape());
        let codes = Codes::Rows { part: self.t.part(), row_bytes: self.row_words() * 4 };
        Grouped::scaled(
            codes,
            bits,
            code_format,
            [rows, cols],
            row_groups(cols, self.bits_per_group / bits),
            scales,
        )
    }

    fn matrix(&self, floats: Floats<'m>) -> Box<dyn ScaleMatrix + 'm> {
        Box::new(Matrix { floats, cols: rows_and_cols(self.scales.shape()).1 })
    }

    fn affine_decoder(&self, all: &Index<'m>) -> Result<MlxDecoder<'m>> {
        let metal = all.config.quant_method() == Some(&QuantMethod::Metal);
        let end = if metal { "qbiases" } else { self.names.biases };
        let biases = all.need(&self.t, self.base, end)?;
        if biases.shape() != self.scales.shape() {
            return Err(wrong(&biases, format!("its scales are {:?}", self.scales.shape())));
        }
        let bits = self.bits(all)?;
        let scales = self.matrix(Floats::ieee(&self.scales)?);
        let mut decoder = self.decoder(bits, CodeFormat::Int(Int::UNSIGNED), scales);
        // MLX computes in the dtype of its scales. An output of that dtype has its bits only with
        // both roundings.
        let compute_dtype = TargetDtype::of(self.scales.dtype()).filter(|_| !metal);
        let offsets = self.matrix(Floats::ieee(&biases)?);
        decoder.formula =
            GroupFormula::ScaleShift(GroupOffsets::new(offsets).computed_in(compute_dtype));
        Ok((bits, CodeType::Int(bits as u8), decoder, vec![(TensorRole::Offset, biases)]))
    }

    /// Decoder of MXFP4, MXFP8 or NVFP4. Bits and group size are fixed in each (4 × 32, 8 × 32, 4 ×
    /// 16), and the products differ.
    fn float_decoder(&self, all: &Index<'m>) -> Result<MlxDecoder<'m>> {
        let global = all.at(self.base, self.names.global);
        let fp4 = CodeFormat::E2M1(E2M1 { factor: 1.0, plain_zero: false });
        let exponents = || Floats::new(&self.scales).map(|floats| self.matrix(floats));
        let (bits, codes, mut decoder) = match self.bits_per_group {
            128 => (4, CodeType::Mxfp4, self.decoder(4, fp4, exponents()?)),
            256 => (8, CodeType::Mxfp8, self.decoder(8, CodeFormat::E4M3, exponents()?)),
            64 => {
                let inner = self.matrix(Floats::fp8(&self.scales)?);
                let decoder = match &global {
                    Some(global) if self.names.is_of_ollama => {
                        let mut decoder = self.decoder(4, fp4, inner);
                        decoder.columns = Some(ollama::global_factor(global)?);
                        decoder
                    }
                    Some(global) => self.decoder(4, fp4, self.globally_scaled(inner, global)?),
                    None => self.decoder(4, fp4, inner),
                };
                (4, CodeType::Nvfp4, decoder)
            }
            other => {
                let what = format!(
                    "U8 scales, each for {other} bits of codes, belong to no mode that is known"
                );
                return Err(refused(&self.t, "MLX", what));
            }
        };
        let pair = (bits, self.bits_per_group / bits);
        let configured = self.configured(all);
        if configured.is_some_and(|configured| configured != pair)
            && !self.has_known_cols(bits, all)
        {
            return Err(self.contradiction(configured, &[pair]));
        }
        let module = all.config.at(module_of(self.t.name()));
        if global.is_none() && module.flag("global_scale") == Some(true) {
            let what = format!("the config says that it has `{}global_scale`", self.base);
            return Err(wrong(&self.t, what));
        }
        decoder.family =
            (codes == CodeType::Mxfp4).then_some(CodeFamily::Mxfp4 { top: TopExponent::Infinity });
        match global {
            Some(global) if codes != CodeType::Nvfp4 => {
                Err(wrong(&global, format!("a layer of {codes} has none")))
            }
            global => Ok((
                bits,
                codes,
                decoder,
                global.into_iter().map(|g| (TensorRole::Scale, g)).collect(),
            )),
        }
    }

    fn globally_scaled(
        &self,
        inner: Box<dyn ScaleMatrix + 'm>,
        global: &Tensor<'m>,
    ) -> Result<Box<dyn ScaleMatrix + 'm>> {
        let (rows, _) = rows_and_cols(self.t.shape());
        // The stack is all dimensions but the last two, and each of its matrices may have a global
        // scale.
        let stack = rows
            / self
                .t
                .shape()
                .iter()
                .nth_back(1)
                .copied()
                .unwrap_or(1)
                .max(1);
        // A stack has one for each matrix; a number without dimensions is for all.
        let count = global.elements();
        if count == 0 || count != stack && !global.shape().is_empty() {
            return Err(wrong(global, format!("`{}` has {stack} matrices", self.t.name())));
        }
        let outer = Floats::ieee(global)?;
        let rows_each = rows.div_ceil(count).max(1);
        Ok(Box::new(NestedScales {
            inner,
            outer,
            count,
            rows_each,
            op: NestedOp::Multiply,
            unit: MAX_NVFP4,
        }))
    }
}

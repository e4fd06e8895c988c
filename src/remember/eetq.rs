//! EETQ: `X.weight` I8 `[in, out]` and `X.weight_scales` F16 `[out]`; in its own models
//! `X.qweight`. The weight is `X.weight` `[out, in]`: `(byte - 128) * s`.
//!
//! The shape is that of the matrix before it was brought into the order of the kernel: columns of
//! two outputs, in which runs of 64 inputs of either alternate, and of each 16 inputs the second
//! eight lie between the first.
//!
//! EETQ's own models are quantized with q, k and v as one matrix, and gate and up as another.
//! Columns of `[in, out]` are cut out of that afterwards, which in the order of the kernel are no
//! outputs: such a `qweight` alone does not tell its weight.
//!
//! Plain INT8 has the same shapes, so only a config tells the two apart. Volta GPUs have another
//! order of columns, and no file says on which GPU it was made: files from Volta are decoded wrongly
//! here, as they are by EETQ on every other GPU.
//!
//! Layout: EETQ `csrc/cutlass_kernels/cutlass_preprocessors.cc`
//! (`preprocess_weights_for_mixed_gemm`); own models: `python/eetq/models/llama.py`,
//! `python/eetq/utils/base.py` (`replace_split_qkv`).

use crate::config::QuantMethod;
use crate::model::{Part, Tensor};
use crate::remember::kernels::grouped::Int;
use crate::remember::seam::NamePattern::Ends;
use crate::remember::seam::grouped::{CodeFormat, Codes, Grouped, Unpack, row_groups};
use crate::remember::seam::scale_matrix::Matrix;
use crate::remember::seam::{
    CodeType, Floats, Granularity, Group, Identity, Index, QuantScheme, Scheme, TensorRole, Tile,
    base_of, read, refused, require_shape, wrong,
};
use crate::simd::zip;
use crate::{Dtype, Result};

pub(super) struct Eetq;

/// Name in messages.
const FAMILY: &str = "EETQ";

static IDENTITY: Identity = Identity {
    name: FAMILY,
    over: &["GPTQ", "not decoded"],
    methods: &[QuantMethod::Eetq],
    codes: &[],
    companions: &[(Ends(".weight_scales"), TensorRole::Scale)],
    optional: &[],
    activations: &[],
    markers: &[],
    sidecars: &[],
    container: None,
};

impl Scheme for Eetq {
    fn identity(&self) -> &'static Identity {
        &IDENTITY
    }

    fn claim<'m>(&self, t: &Tensor<'m>, all: &Index<'m>) -> Result<Option<Group<'m>>> {
        let base = base_of(t.name(), "weight").or_else(|| base_of(t.name(), "qweight"));
        let Some(base) = base.filter(|_| all.config.quant_method() == Some(&QuantMethod::Eetq))
        else {
            return Ok(None);
        };
        if t.dtype() != Dtype::I8 {
            return Ok(None);
        }
        let scales = all.need(t, base, "weight_scales")?;
        check_config(t, base, all)?;
        check_is_whole(t)?;
        let &[k, n] = t.shape() else {
            return Err(wrong(t, "codes of EETQ are I8 [in, out]"));
        };
        let fits = |size: usize| size > 0 && size.is_multiple_of(RUN);
        if !fits(k) || !fits(n) {
            let what = format!("inputs and outputs of EETQ are multiples of {RUN}");
            return Err(wrong(t, what));
        }
        require_shape(t, &scales, &[n])?;
        if scales.dtype() != Dtype::F16 {
            return Err(wrong(&scales, "scales of EETQ are F16"));
        }
        let floats = Floats::ieee(&scales)?;
        let codes = Codes::Unpacked(Box::new(EetqCodes { part: t.part(), k }));
        let format = CodeFormat::Int(Int::offset_binary(8));
        let scale = Box::new(Matrix { floats, cols: 1 });
        let decoder = Grouped::scaled(codes, 8, format, [n, k], row_groups(k, k), scale);
        let scheme = QuantScheme::Grouped {
            family: FAMILY,
            codes: CodeType::Int(8),
            scales: Granularity::Channel,
        };
        let parts = vec![(TensorRole::Quantized, *t), (TensorRole::Scale, scales)];
        let (name, shape) = (format!("{base}weight"), vec![n, k]);
        Ok(Some(Group::new(name, shape, scheme, parts, Box::new(decoder))))
    }
}

/// # Errors
/// The config describes other codes than integers of eight bits without zero points.
fn check_config(t: &Tensor<'_>, base: &str, all: &Index<'_>) -> Result<()> {
    let module = all.config.at(base.trim_end_matches('.'));
    if let Some((codes, place)) = module
        .text(&["weights"])
        .filter(|(text, _)| *text != "int8")
    {
        return Err(refused(
            t,
            FAMILY,
            format!("{place} says weights of `{codes}`; int8 is decoded"),
        ));
    }
    let bits = module.int(&["bits", "w_bit"]);
    if let Some((bits, place)) = bits.filter(|(bits, _)| *bits != 8) {
        return Err(refused(t, FAMILY, format!("{place} says {bits} bits; 8 are decoded")));
    }
    if module.flag("zero_point") == Some(true) {
        let what = "the config says `zero_point: true`, and EETQ has none";
        return Err(wrong(t, what));
    }
    Ok(())
}

/// # Errors
/// EETQ's own models have only a part of a matrix under this name.
fn check_is_whole(t: &Tensor<'_>) -> Result<()> {
    let module = t.name().strip_suffix(".qweight").unwrap_or_default();
    let layer = module.rsplit('.').next().unwrap_or_default();
    if PARTS.contains(&layer) {
        let what = format!(
            "EETQ's own models cut `{layer}` out of a matrix of several layers in the order of its kernel, so that these codes \
             are no whole weight; models that transformers quantized are decoded"
        );
        return Err(refused(t, FAMILY, what));
    }
    Ok(())
}

/// Layers that EETQ quantizes as one matrix with others.
const PARTS: [&str; 5] = ["q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"];

/// Inputs of a run: adjacent bytes that belong to one output.
const RUN: usize = 64;

/// Inputs of a run that are shuffled.
const SHUFFLED: usize = 16;

/// Codes in the order of the kernel.
struct EetqCodes<'m> {
    part: Part<'m>,
    /// Inputs.
    k: usize,
}

impl Unpack for EetqCodes<'_> {
    fn unpack(&self, tile: &Tile, staging: &mut Vec<u8>, out: &mut Vec<u8>) -> Result<()> {
        let width = tile.cols.len();
        out.resize(tile.rows.len() * width, 0);
        let pairs = tile.rows.start / 2..tile.rows.end.div_ceil(2);
        let bytes = tile.cols.start * 2..tile.cols.end * 2;
        read(&self.part, self.k * 2, pairs, bytes, staging)?;
        let rows = out.chunks_exact_mut(2 * width.max(1));
        for (stored, rows) in zip(staging.chunks_exact(2 * width.max(1)), rows) {
            let (even, odd) = rows.split_at_mut(width);
            let runs = zip(even.as_chunks_mut().0, odd.as_chunks_mut().0);
            let stored = stored.as_chunks::<RUN>().0.as_chunks().0;
            for ([first, second], (even, odd)) in zip(stored.iter(), runs) {
                unshuffle(first, even);
                unshuffle(second, odd);
            }
        }
        Ok(())
    }

    fn align(&self) -> (usize, usize) {
        (2, RUN)
    }
}

/// Brings the inputs of a run into their order.
fn unshuffle(stored: &[u8; RUN], run: &mut [u8; RUN]) {
    let stored = stored.as_chunks::<SHUFFLED>().0;
    for (stored, inputs) in zip(stored.iter(), run.as_chunks_mut::<SHUFFLED>().0) {
        for i in 0..SHUFFLED / 2 {
            inputs[i] = stored[2 * i];
            inputs[SHUFFLED / 2 + i] = stored[2 * i + 1];
        }
    }
}

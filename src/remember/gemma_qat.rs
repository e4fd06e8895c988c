//! Gemma QAT (quantization-aware training): `X.weight` U8 or I8, rows of codes of two, four or
//! eight bits, low bits first, with `X.weight_scale` F32 `[out, 1]`. Embeddings are
//! `X.embedding_quantized` with `X.embedding_scale` `[rows, blocks]`. The config has the bits of
//! each module. The last byte of a row is padded.
//!
//! Formula: transformers `integrations/gemma_quant.py` (`QuantizedLinear._dequantize_weights`,
//! `QuantizedEmbedding`).

use crate::config::QuantMethod;
use crate::model::Tensor;
use crate::remember::kernels::grouped::Int;
use crate::remember::seam::NamePattern::Ends;
use crate::remember::seam::grouped::{CodeFormat, Codes, Grouped, row_groups};
use crate::remember::seam::scale_layout::granularity;
use crate::remember::seam::scale_matrix::Matrix;
use crate::remember::seam::{
    CodeType, Floats, Group, Identity, Index, QuantScheme, Scheme, TensorRole, base_of, module_of,
    refused, wrong,
};
use crate::{Dtype, Result};

pub(super) struct GemmaQat;

/// Name in listings.
const FAMILY: &str = "Gemma QAT";

/// Bits of a module that the config does not mention.
const BITS: usize = 4;

static IDENTITY: Identity = Identity {
    name: FAMILY,
    over: &["INT8", "not decoded"],
    methods: &[QuantMethod::Gemma],
    codes: &[".embedding_quantized"],
    companions: &[
        (Ends("weight_scale"), TensorRole::Scale),
        (Ends(".embedding_scale"), TensorRole::Scale),
    ],
    optional: &[],
    activations: &["input_activation_scale", "output_activation_scale"],
    markers: &[],
    sidecars: &[],
    container: None,
};

impl Scheme for GemmaQat {
    fn identity(&self) -> &'static Identity {
        &IDENTITY
    }

    fn claim<'m>(&self, t: &Tensor<'m>, all: &Index<'m>) -> Result<Option<Group<'m>>> {
        let is_gemma = all.config.quant_method() == Some(&QuantMethod::Gemma);
        let ours = is_gemma && matches!(t.dtype(), Dtype::U8 | Dtype::I8);
        let scaled = || {
            let base = base_of(t.name(), "weight");
            base.is_some_and(|base| all.at(base, "weight_scale").is_some())
        };
        if is_gemma && !ours && (t.dtype().is_quantized() || t.dtype().is_integer()) && scaled() {
            return Err(wrong(t, "the config's method is gemma, whose codes are U8 or I8"));
        }
        let embedding = base_of(t.name(), "embedding_quantized");
        // Embeddings have a name of their own, and so are recognised without a config; but only the
        // config has their bits.
        let (base, scale) = match (embedding, base_of(t.name(), "weight").filter(|_| ours)) {
            (Some(base), _) if ours => (base, all.need(t, base, "embedding_scale")?),
            (Some(base), _) if all.at(base, "embedding_scale").is_some() => {
                let what =
                    "the config does not say that its method is gemma, nor how many bits it has";
                return Err(refused(t, FAMILY, what));
            }
            (None, Some(base)) => match all.at(base, "weight_scale") {
                Some(scale) => (base, scale),
                None => return Ok(None),
            },
            _ => return Ok(None),
        };
        let (shape, bits, decoder) = decoder(t, &scale, embedding.is_some(), all)?;
        let codes = CodeType::Int(bits as u8);
        let scheme = QuantScheme::Grouped {
            family: FAMILY,
            codes,
            scales: granularity(&decoder.grid, decoder.cols),
        };
        let parts = vec![(TensorRole::Quantized, *t), (TensorRole::Scale, scale)];
        let name = format!("{base}weight");
        Ok(Some(Group::new(name, shape, scheme, parts, Box::new(decoder))))
    }
}

/// Logical shape, bits and decoder of `t`.
fn decoder<'m>(
    t: &Tensor<'m>,
    scale: &Tensor<'m>,
    is_embedding: bool,
    all: &Index<'m>,
) -> Result<(Vec<usize>, usize, Grouped<'m>)> {
    let &[rows, bytes] = t.shape() else {
        return Err(wrong(t, "packed weights have two dimensions"));
    };
    let module = module_of(t.name());
    // transformers quantizes to 4 bits where the config names no number.
    let bits = all
        .config
        .int_by_pattern(module, "num_bits")?
        .unwrap_or(BITS as i64);
    let bits = usize::try_from(bits)
        .ok()
        .filter(|bits| matches!(bits, 2 | 4 | 8));
    let bits =
        bits.ok_or_else(|| wrong(t, "the config says a number of bits other than 2, 4 and 8"))?;
    // Only 8-bit codes are signed bytes: I8 with fewer bits, or U8 with 8, contradicts the config.
    if (bits == 8) != (t.dtype() == Dtype::I8) {
        return Err(wrong(t, format!("the config says that it has {bits} bits")));
    }
    let full = bytes
        .checked_mul(8 / bits)
        .ok_or_else(|| wrong(t, "its size overflows"))?;
    // Padding makes the bytes of a row fit several widths. Where the config tells the inputs of the
    // layer, they have to fit the bits, and cut the padding off.
    let [_, inputs] = all.config.layer_sizes(module);
    let bytes_at = |inputs: usize, bits: usize| inputs.checked_mul(bits).map(|n| n.div_ceil(8));
    let contrary = |inputs: &usize| {
        let other = [2, 4]
            .into_iter()
            .any(|other| other != bits && bytes_at(*inputs, other) == Some(bytes));
        bits != 8 && bytes_at(*inputs, bits) != Some(bytes) && other
    };
    // An embedding is as wide as the hidden states, whatever else is unusual about the model.
    let is_other = |inputs: &usize| is_embedding && bytes_at(*inputs, bits) != Some(bytes);
    if let Some(inputs) = inputs.filter(|inputs| contrary(inputs) || is_other(inputs)) {
        return Err(wrong(
            t,
            format!("the config says {bits} bits, and rows of {inputs} values have others"),
        ));
    }
    // A layer whose size is known has its padding cut off. Others keep it, as nothing in the file
    // tells how much there is.
    let cols = inputs
        .filter(|&inputs| inputs <= full && (inputs * bits).div_ceil(8) == bytes)
        .unwrap_or(full);
    let blocks = match scale.shape() {
        // Only embeddings have several blocks in a row.
        &[n, blocks]
            if n == rows
                && blocks > 0
                && cols.is_multiple_of(blocks)
                && (blocks == 1 || is_embedding) =>
        {
            blocks
        }
        _ => {
            return Err(wrong(
                t,
                format!("its scale `{}` {:?} does not fit", scale.name(), scale.shape()),
            ));
        }
    };
    let code_format = CodeFormat::Int(if bits == 8 {
        Int::signed(8)
    } else {
        Int::offset_binary(bits)
    });
    let codes = Codes::Rows { part: t.part(), row_bytes: bytes };
    let scales = Box::new(Matrix { floats: Floats::ieee(scale)?, cols: blocks });
    let mut grid = row_groups(cols, cols / blocks);
    grid.cols = blocks;
    Ok((
        vec![rows, cols],
        bits,
        Grouped::scaled(codes, bits, code_format, [rows, cols], grid, scales),
    ))
}

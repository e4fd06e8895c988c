//! How GPTQ's codes lie in words: told from the shapes of a layer's tensors, and from the config
//! where those do not tell.

use crate::config::{Module, QuantMethod};
use crate::model::Tensor;
use crate::remember::kernels::gptq::GptqPacking;
use crate::remember::kernels::packed::CHUNK;
use crate::remember::packed::PackedLayer;
use crate::remember::seam::{Index, wrong};
use crate::{Dtype, Result};

/// Bits of a stored word. Codes and zero points have the same.
pub(super) fn word_bits(packed: &PackedLayer<'_>) -> Result<usize> {
    let dtype = packed.qweight.dtype();
    match dtype {
        Dtype::I16 | Dtype::I8 => packed.check_words(&[dtype])?,
        _ => packed.check_words(&[Dtype::I32, Dtype::U32])?,
    }
    Ok(dtype.bits())
}

/// Bits of a code, and input features. The width must fit the shapes of all tensors at once; the
/// config decides where several do, and must be among them.
pub(super) fn bits_and_inputs(
    packed: &PackedLayer<'_>,
    word_bits: usize,
    g_idx: Option<&Tensor<'_>>,
    module: &Module<'_>,
) -> Result<(usize, usize)> {
    let t = &packed.qweight;
    let rows = packed.words[0];
    let inputs = |bits: usize| match g_idx {
        // An index has an entry for each input, and so proves K even where the last word is partly
        // filled.
        Some(g) => (words_of(g.elements(), bits, word_bits) == Some(rows)).then(|| g.elements()),
        // Without an index the words are taken as full: a remainder of bits would mean another
        // width.
        None => rows
            .checked_mul(word_bits)
            .filter(|all| all.is_multiple_of(bits))
            .map(|all| all / bits),
    };
    let zeros_fit = |bits: usize| {
        let shape = packed.qzeros.as_ref().map(Tensor::shape);
        let words = words_of(packed.n, bits, word_bits);
        shape.is_none_or(|shape| words.is_some_and(|words| shape == [packed.groups, words]))
    };
    // Checked before `inputs` uses its length.
    if let Some(g) = g_idx.filter(|g| g.dtype() != Dtype::I32 || g.shape().len() != 1) {
        return Err(wrong(g, "a g_idx is I32 and has one dimension"));
    }
    // Narrow words hold whole codes only.
    // gptqmodel packs I8 and I16 words only with widths that divide them.
    let widths = (2..=8usize).filter(|&bits| word_bits == 32 || word_bits.is_multiple_of(bits));
    let fitting: Vec<(usize, usize)> = widths
        .filter(|&bits| zeros_fit(bits))
        .filter_map(|bits| Some((bits, inputs(bits)?)))
        .collect();
    // Rules that are not understood may outrank the general figure; then only the shapes speak, if
    // they can.
    let configured = module.int(&["bits"]).filter(|_| !module.uncertain);
    // Without zero points and index only `qweight` speaks, and its rows fit every width that
    // divides them.
    let proved = packed.qzeros.is_some() || g_idx.is_some();
    match (configured, fitting.as_slice()) {
        (Some((bits, place)), fitting) => match fitting.iter().find(|(b, _)| *b as i64 == bits) {
            Some(found) => Ok(*found),
            None => Err(wrong(
                t,
                format!("{place} says {bits} bits; {}", packed.shapes(g_idx, fitting)),
            )),
        },
        (None, [only]) if proved => Ok(*only),
        (None, fitting) => Err(wrong(
            t,
            format!("{}, and no config tells the bits", packed.shapes(g_idx, fitting)),
        )),
    }
}

/// The number of words that `codes` codes take.
fn words_of(codes: usize, bits: usize, word_bits: usize) -> Option<usize> {
    Some(codes.checked_mul(bits)?.div_ceil(word_bits))
}

/// Checks that a last word which `k` inputs fill in part holds nothing else. An index that is too
/// short would cut off inputs, and nothing else proves their number.
pub(super) fn check_last_words(
    packed: &PackedLayer<'_>,
    packing: GptqPacking,
    k: usize,
) -> Result<()> {
    let t = &packed.qweight;
    let GptqPacking { bits, word_bits, .. } = packing;
    let used = (k * bits) % word_bits;
    if used == 0 || !t.part().is_readable() {
        return Ok(());
    }
    let (stride, size) = (packed.words[1] * word_bits / 8, word_bits / 8);
    let mut last = vec![0; stride.min(SAMPLE * size)];
    let row = (packed.words[0] - 1) as u64 * stride as u64;
    t.part().read_at(row, &mut last)?;
    let has_more = |word: &[u8]| {
        let mut padded = [0; 4];
        padded[..size].copy_from_slice(word);
        u32::from_le_bytes(padded) >> used != 0
    };
    if last.chunks_exact(size).any(has_more) {
        let what = format!("its last words hold codes beyond the {k} inputs that its index has");
        return Err(wrong(t, what));
    }
    Ok(())
}

/// Words of the last row that are looked at: codes are random, so that few of them tell.
const SAMPLE: usize = 4096;

/// Config keys for the format of zero points.
pub(super) const FORMAT: &[&str] = &["checkpoint_format", "format", "packing_format"];

/// How the codes are packed: planes and streams have the same shapes, so that only the config can
/// tell.
pub(super) fn packing(
    packed: &PackedLayer<'_>,
    word_bits: usize,
    bits: usize,
    k: usize,
    module: &Module<'_>,
    all: &Index<'_>,
) -> Result<GptqPacking> {
    let t = &packed.qweight;
    let format = module.text(FORMAT).map(|(format, _)| format);
    let auto_round = all.config.is_auto_round();
    let has_planes = match (bits, format) {
        (2 | 4 | 8, _) => false,
        (_, Some("gptq_p")) => true,
        // 3 bits are a stream in every format but `gptq_p`.
        (3, _) => false,
        _ if auto_round => false,
        _ if all.config.quant_method() == Some(&QuantMethod::Gptq) || format.is_some() => true,
        _ => {
            let what = format!(
                "{bits} bits can be planes (gptqmodel) or a stream (AutoRound), and no config tells"
            );
            return Err(wrong(t, what));
        }
    };
    if has_planes && !(word_bits == 32 && k.is_multiple_of(CHUNK) && packed.n.is_multiple_of(CHUNK))
    {
        return Err(wrong(
            t,
            format!(
                "planes of {bits} bits hold 32 codes of inputs and of outputs, in words of 32 bits"
            ),
        ));
    }
    Ok(GptqPacking { bits, word_bits, has_planes })
}

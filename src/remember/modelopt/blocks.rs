//! ggml's blocks in models of ModelOpt's config: `X.weight` U8 `[…, out, blocks, bytes of a
//! block]`. The config alone says so: `quant_algo` of the module names ggml's type, with `packing:
//! ggml`.
//!
//! Layout: vLLM `quantization/modelopt_block_quant.py`, `utils/b12x.py` (`B12X_BLOCK_CODECS`).

use crate::Result;
use crate::config::Module;
use crate::model::Tensor;
use crate::remember::ggml_blocks::ggml_blocks;
use crate::remember::seam::{Group, QuantScheme, TensorRole, refused, wrong};

/// A type of ggml's that vLLM has here.
struct BlockCodec {
    name: &'static str,
    /// Its number in ggml.
    id: u32,
    values: usize,
    bytes: usize,
}

const CODECS: &[BlockCodec] = &[
    BlockCodec { name: "IQ2_XS", id: 17, values: 256, bytes: 74 },
    BlockCodec { name: "IQ2_XXS", id: 16, values: 256, bytes: 66 },
    BlockCodec { name: "Q8_0", id: 8, values: 32, bytes: 34 },
];

/// Claims the blocks `t`, whose config is `module`. `None` if these are no blocks.
///
/// # Errors
/// `Unsupported` if the shape is that of blocks, and no config says so; or if ggml's types are left
/// out of this build. `Parse` if the config says something else than the shape.
pub(super) fn claim<'m>(t: &Tensor<'m>, module: &Module<'_>) -> Result<Option<Group<'m>>> {
    let stated = module.text(&["quant_algo"]);
    let is_stated =
        |codec: &&BlockCodec| stated.is_some_and(|(name, _)| name.eq_ignore_ascii_case(codec.name));
    let Some(codec) = CODECS.iter().find(is_stated) else {
        return refuse_blocks(t).map(|()| None);
    };
    let misfit = |what: String| wrong(t, format!("the config says `{}`, {what}", codec.name));
    let ([lead @ .., blocks, bytes], true) = (t.shape(), t.shape().len() >= 3) else {
        return Err(misfit("whose blocks are [out, blocks, bytes]".into()));
    };
    if *bytes != codec.bytes {
        return Err(misfit(format!("whose blocks have {} bytes", codec.bytes)));
    }
    let sizes = [("group_size", codec.values), ("block_payload_bytes", codec.bytes)];
    for (key, size) in sizes {
        let found = module.own_int(key);
        if let Some(found) = found.filter(|&n| usize::try_from(n) != Ok(size)) {
            return Err(misfit(format!("whose `{key}` is {size}, and {found}")));
        }
    }
    if let Some((packing, _)) = module
        .text(&["packing"])
        .filter(|(name, _)| *name != "ggml")
    {
        return Err(refused(t, codec.name, format!("its packing is `{packing}`")));
    }
    let cols = blocks.checked_mul(codec.values);
    let cols = cols.ok_or_else(|| wrong(t, "its size overflows"))?;
    let shape: Vec<usize> = lead.iter().copied().chain([cols]).collect();
    let (dtype, decoder) = ggml_blocks(t, codec.id, &shape)?;
    let parts = vec![(TensorRole::Quantized, *t)];
    let (name, scheme) = (t.name(), QuantScheme::Ggml { dtype });
    Ok(Some(Group::new(name, shape, scheme, parts, decoder)))
}

/// # Errors
/// `Unsupported` if `t` has the name and the shape of blocks: as a plain tensor it would be copied
/// as if bytes were weights.
fn refuse_blocks(t: &Tensor<'_>) -> Result<()> {
    let codec = match t.shape() {
        [_, .., _, bytes] if t.shape().len() >= 3 && t.name().ends_with(".weight") => {
            CODECS.iter().find(|codec| codec.bytes == *bytes)
        }
        _ => None,
    };
    codec.map_or(Ok(()), |codec| {
        let what = format!(
            "it has the shape of ggml's blocks of {}, and no config says so (`quantized_layers`, `quant_algo`)",
            codec.name
        );
        Err(refused(t, "ggml's blocks in U8", what))
    })
}

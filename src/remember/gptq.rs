//! GPTQ: `X.qweight` I32 `[in * bits / 32, out]`, `X.scales` `[groups, out]`, and mostly `X.qzeros`
//! I32 `[groups, out * bits / 32]`; `X.g_idx` I32 `[in]` maps inputs to groups. Divisions round up.
//! The weight is `X.weight` `[out, in]`. gptqmodel's words can be I16 or I8; with 5, 6 or 7 bits,
//! and as `gptq_p` with 3, it packs each 32 codes in planes. AutoRound has all widths as one stream
//! of bits. GPTQModel's method `gguf` has its blocks.
//!
//! Layout: gptqmodel `nn_modules/qlinear/__init__.py` (`PackableQuantLinear`),
//! `utils/planar_packing.py`; auto-round `export/export_to_autoround`.
//!
//! The kernel is the shared one, but the decoder is GPTQ's own: only when a tile is loaded is it
//! known whether `g_idx` names runs of columns or scatters the columns of a group (act-order).

mod blocks;
mod weight;
mod words;

use self::weight::GptqWeight;
use self::words::{FORMAT, bits_and_inputs, check_last_words, packing, word_bits};
pub use crate::compat::dequantize::dequantize_gptq_to_bf16;
use crate::config::{Module, QuantMethod, version_numbers};
use crate::model::{Part, Tensor};
use crate::remember::kernels::gptq::GptqPacking;
use crate::remember::kernels::packed::CHUNK;
use crate::remember::layout::group_size::{ShortGroup, group_size};
use crate::remember::packed::{PackedLayer, PackedLayout, for_each_zeros};
use crate::remember::seam::NamePattern::{Ends, EndsIfQuantized, Is};
use crate::remember::seam::Sibling;
use crate::remember::seam::{
    Floats, Group, Identity, Index, MethodFacts, QuantScheme, Scheme, StatedCodes, TensorRole,
    base_of, refused, wrong,
};
use crate::{Dtype, Result};

pub(super) struct Gptq;

/// The first version of AutoRound whose `model_free` layers have zero points by their own symmetry.
const BY_SYMMETRY: [u32; 3] = [0, 16, 0];

static IDENTITY: Identity = Identity {
    name: "GPTQ",
    over: &["AWQ"],
    methods: &[QuantMethod::Gptq, QuantMethod::AutoRound, QuantMethod::Gguf],
    codes: &[],
    companions: &[
        (EndsIfQuantized(".scales"), TensorRole::Scale),
        (Ends(".qzeros"), TensorRole::ZeroPoint),
        (Ends(".g_idx"), TensorRole::GroupIndex),
    ],
    optional: &[Sibling::OfModule("qzeros"), Sibling::OfModule("g_idx")],
    activations: &[],
    markers: &[],
    sidecars: &[
        Is("quantize_config.json"),
        // Written by AutoRound.
        Is("quantization_config.json"),
    ],
    container: None,
};

const METHODS: &[MethodFacts] = &[MethodFacts::new(&QuantMethod::Gptq, StatedCodes::Words)];

impl Scheme for Gptq {
    fn identity(&self) -> &'static Identity {
        &IDENTITY
    }

    fn kind(&self, _t: &Tensor<'_>, _all: &Index<'_>) -> QuantScheme {
        QuantScheme::Gptq
    }

    fn methods(&self) -> &'static [MethodFacts] {
        METHODS
    }

    fn claim<'m>(&self, t: &Tensor<'m>, all: &Index<'m>) -> Result<Option<Group<'m>>> {
        if let Some(base) = base_of(t.name(), "qweight").filter(|_| t.dtype() == Dtype::U8)
            && let Some(group) = blocks::claim(t, base, all)?
        {
            return Ok(Some(group));
        }
        let Some(packed) = PackedLayer::find(t, all)? else {
            return Ok(None);
        };
        if packed.layout(all)? != PackedLayout::Gptq {
            return Ok(None);
        }
        if all.config.quant_method() == Some(&QuantMethod::Awq) {
            return Err(wrong(t, "the config says AWQ, and the shapes say GPTQ"));
        }
        let word_bits = word_bits(&packed)?;
        let module = all.config.at(packed.module());
        // Some files have an empty index for layers without act-order; it means the same as none.
        let g_idx = all.at(packed.base, "g_idx").filter(|g| g.elements() > 0);
        let (bits, k) = bits_and_inputs(&packed, word_bits, g_idx.as_ref(), &module)?;
        let rest = match g_idx {
            Some(_) => ShortGroup::Indexed,
            None => ShortGroup::Possible,
        };
        let group_size = group_size(t, packed.groups, k, rest, &module)?;
        // With act-order, columns of a group lie apart. Taken as runs they would get the scales of
        // other groups.
        if g_idx.is_none() && packed.groups > 1 && module.flag("desc_act") == Some(true) {
            return Err(wrong(
                t,
                format!("the config says desc_act, and its `{}g_idx` is missing", packed.base),
            ));
        }
        let packing = packing(&packed, word_bits, bits, k, &module, all)?;
        check_last_words(&packed, packing, k)?;
        let zeros = zeros(&packed, packing, &module, all)?;
        let mut parts = vec![(TensorRole::Quantized, *t), (TensorRole::Scale, packed.scales)];
        parts.extend(packed.qzeros.map(|z| (TensorRole::ZeroPoint, z)));
        parts.extend(
            // An empty index belongs to the layer, too, or it would be left over.
            all.at(packed.base, "g_idx")
                .map(|g| (TensorRole::GroupIndex, g)),
        );
        let decoder = Box::new(GptqWeight {
            qweight: t.part(),
            scales: Floats::ieee(&packed.scales)?,
            zeros,
            symmetric: module.flag("sym") == Some(true),
            g_idx: g_idx.map(|g| g.part()),
            packing,
            k,
            n: packed.n,
            groups: packed.groups,
            group_size,
        });
        Ok(Some(Group::new(packed.weight(), vec![packed.n, k], QuantScheme::Gptq, parts, decoder)))
    }

    fn assumption(&self, group: &Group<'_>, all: &Index<'_>) -> Option<&'static str> {
        let mut roles = group.parts.iter().map(|(role, _)| *role);
        let is_open = group.scheme == QuantScheme::Gptq
            && roles.any(|role| role == TensorRole::ZeroPoint)
            && !all.config.is_quantized();
        is_open.then_some("nothing says the version of GPTQ's zero points: read as version 1, which stores them one too low, while version 2 does not")
    }
}

/// The source of a layer's zero points.
#[derive(Clone, Copy)]
enum Zeros<'m> {
    /// Packed in `qzeros`; version 1 stores them one too low.
    Packed { part: Part<'m>, version_1: bool },
    /// None are stored, or they mean this: all are the middle of the range.
    Symmetric,
}

fn zeros<'m>(
    packed: &PackedLayer<'m>,
    packing: GptqPacking,
    module: &Module<'_>,
    all: &Index<'_>,
) -> Result<Zeros<'m>> {
    let t = &packed.qweight;
    let format = module.text(FORMAT);
    let symmetric = module.flag("sym");
    let Some(qzeros) = packed.qzeros else {
        return match symmetric {
            Some(true) => Ok(Zeros::Symmetric),
            _ => Err(wrong(
                t,
                format!("its `{}qzeros` is missing, and no config says `sym: true`", packed.base),
            )),
        };
    };
    let part = qzeros.part();
    // Conventions by label. Without one it is version 1, the older of the two.
    let version_1 = match format {
        Some(("auto_round:auto_gptq" | "auto_round", _)) if is_model_free(all) => {
            is_model_free_version_1(t, module, all)?
        }
        Some(("gptq_v2" | "gptq_p" | "auto_round:gptqmodel" | "auto_round", _)) => false,
        // What is in planes is version 2 whatever it is called. Of Marlin these are the words
        // before repacking.
        Some(("gptq" | "marlin" | "auto_round:auto_gptq" | "auto_round:gptq", _)) | None => {
            !packing.has_planes
        }
        Some((other, place)) => {
            return Err(refused(t, "GPTQ", format!("{place} says its format is `{other}`")));
        }
    };
    // The middle of the range, stored as it is: nonsense in version 1, where it would read as one
    // more.
    let suspect = version_1 && (symmetric == Some(true) || format.is_none() && symmetric.is_none());
    // The data is read last: only a layer labelled version 1 that may be version 2 needs it.
    if suspect && part.is_readable() && is_middle(&part, packed, packing)? {
        return match symmetric {
            // gptqmodel's transformers path writes version 2 under the name of version 1.
            Some(true) => Ok(Zeros::Symmetric),
            _ => {
                let what = "every zero point is stored as the middle of the range: symmetric in version 2, nonsense in version 1";
                Err(wrong(
                    &qzeros,
                    format!("{what}; `checkpoint_format` in a quantize_config.json would tell"),
                ))
            }
        };
    }
    Ok(Zeros::Packed { part, version_1 })
}

/// Whether AutoRound wrote the model from its files alone (`model_free`).
fn is_model_free(all: &Index<'_>) -> bool {
    all.config.is_auto_round() && all.config.flag("model_free") == Some(true)
}

/// Whether the zero points of a `model_free` layer are version 1, whatever the config calls them.
/// Up to 0.15 AutoRound subtracts one in all layers (`quantize_weight_rtn`), and names version 2
/// for asymmetric models; later the symmetry of each layer decides, and the name is that of the
/// model (`_declared_int_packing`).
///
/// # Errors
/// The config does not say which version wrote the model.
fn is_model_free_version_1(t: &Tensor<'_>, module: &Module<'_>, all: &Index<'_>) -> Result<bool> {
    let version = all.config.text(&["autoround_version"]);
    let version = version.filter(|(text, _)| text.starts_with(|c: char| c.is_ascii_digit()));
    let Some((version, _)) = version else {
        let what = "the config has no `autoround_version`, which tells how `model_free` models store zero points";
        return Err(refused(t, IDENTITY.name, what));
    };
    Ok(version_numbers(version) < BY_SYMMETRY || module.flag("sym") != Some(false))
}

/// Whether the packed zero points are 2^(bits - 1). Those of a symmetric layer are all alike, so
/// 1024 of each of four groups tell.
fn is_middle(qzeros: &Part<'_>, packed: &PackedLayer<'_>, packing: GptqPacking) -> Result<bool> {
    // The bytes of all `n` zero points are the distance between two groups; at most 1024 of them
    // are read.
    let (stride, n) = (packing.bytes(&(0..packed.n)).end, packed.n.min(1024));
    let (mut staging, mut words, mut middle) = (Vec::new(), Vec::new(), true);
    let groups: Vec<usize> = (0..packed.groups.min(4)).collect();
    for_each_zeros(
        qzeros,
        stride,
        &groups,
        packing.bytes(&(0..n)),
        &mut staging,
        &mut words,
        |_, words| {
            let mut stored = (0..n.div_ceil(CHUNK))
                .flat_map(|i| packing.unpack(words, i))
                .take(n);
            middle &= stored.all(|code| code == 1 << (packing.bits - 1));
        },
    )?;
    Ok(middle)
}

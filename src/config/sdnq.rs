//! [`SdnqConfig`]: what a config of SDNQ says of a parameter's codes. Stored tensors do not tell
//! their dtype.
//!
//! Source: sdnq `quantizer.py` (`SDNQConfig`), `utils.py` (`get_quant_kwargs`,
//! `get_minimum_dtype`).

mod dtype;
mod names;

use std::collections::BTreeSet;

use serde_json::{Map, Value};

pub(crate) use self::dtype::{NativeFloat, SdnqDtype};
use self::names::NameRules;
use super::QuantConfig;
use super::place::{ConfigPlace, flag, integer};
use super::values::version_numbers;

/// Keys that do not say how codes are decoded: how they were made, how the model computes, what the
/// library does when it loads them, and lists of modules that have no codes.
const OTHER_KEYS: &[&str] = &[
    "quant_method",
    "sdnq_version",
    "is_integer",
    "is_unsigned",
    "svd_steps",
    "codebook_steps",
    "dynamic_loss_threshold",
    "use_grad_ckpt",
    "quant_embedding",
    "use_static_quantization",
    "use_dynamic_quantization",
    "use_stochastic_rounding",
    "dequantize_fp32",
    "non_blocking",
    "add_skip_keys",
    "minimum_allowed_numel",
    "minimum_allowed_channel_size",
    "modules_to_not_convert",
    "modules_to_not_use_matmul",
    "modules_dtype_dict",
    "modules_quant_config",
    "quantization_device",
    "return_device",
    "is_training",
];

/// The first version that rotates.
const HAS_HADAMARD: [u32; 3] = [0, 2, 0];

/// Most keys of `modules_dtype_dict`. All may have to be tried for a parameter; there are 176
/// dtypes.
const MAX_DTYPE_RULES: usize = 500;

/// What a config says of the codes of a parameter.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SdnqSettings {
    pub weights: SdnqDtype,
    /// The dtype of scales and of zero points that are quantized themselves.
    pub scales: Option<SdnqDtype>,
    pub zero_points: Option<SdnqDtype>,
    /// Whether no dtype is stated for zero points, so that they have that of scales.
    zero_points_follow: bool,
    /// The dtype that the model multiplies in, where the config names one.
    pub matmul: Option<SdnqDtype>,
    /// Most columns that are rotated together, if any are.
    pub hadamard: Option<usize>,
    /// Most inputs of a group; 0: the library chooses; -1: rows are not divided; -2: one scale is
    /// for all values.
    pub group_size: i64,
    /// Rank of the product that is added, if one is.
    pub svd_rank: Option<usize>,
    pub has_codebook: bool,
    pub has_scale_codebook: bool,
    /// Whether the model may multiply codes, whose matrix is then stored transposed.
    pub multiplies_codes: bool,
    pub has_convolutions: bool,
    /// Whether the model may multiply codes of convolutions, which are then stored as matrices.
    pub multiplies_convolutions: bool,
}

impl SdnqSettings {
    /// Whether the codes of a matrix of `rows` × `cols` are stored transposed, so that the model
    /// can multiply them (`sdnq_quantize_layer_weight`).
    pub(crate) fn transposes(&self, rows: usize, cols: usize) -> bool {
        let is_float = |dtype| matches!(dtype, SdnqDtype::Native(_));
        let (of_int, of_uint) = (SdnqDtype::Int(8), SdnqDtype::Uint(8));
        let is_multiplied = match self.weights {
            weights if weights == of_int || weights == of_uint => {
                self.matmul.is_none_or(|dtype| dtype.is_integer())
            }
            weights => {
                // Codes that are wider than the dtype of the product are not multiplied as they are
                // stored.
                let is_multiplied_in =
                    |dtype: SdnqDtype| is_float(dtype) && weights.bits() <= dtype.bits();
                is_float(weights) && self.matmul.is_none_or(is_multiplied_in)
            }
        };
        let is_whole = |n: usize| n >= 32 && n.is_multiple_of(16);
        let is_nested = self.scales.is_some() || self.zero_points.is_some();
        self.multiplies_codes
            && is_multiplied
            && !self.has_codebook
            && !is_nested
            && [rows, cols].into_iter().all(is_whole)
    }

    /// Whether a scale is for all values, rather than for those of a row or of a group.
    pub(crate) fn has_one_scale(&self) -> bool {
        self.group_size == -2
    }

    /// Fewest inputs of a group, if the library may have divided rows into groups at all.
    pub(crate) fn least_group(&self) -> Option<usize> {
        match self.group_size {
            0 => Some(2 << self.weights.bits()),
            size => usize::try_from(size).ok(),
        }
    }

    const DEFAULT: Self = Self {
        weights: SdnqDtype::Int(8),
        scales: None,
        zero_points: None,
        zero_points_follow: true,
        matmul: None,
        hadamard: None,
        group_size: 0,
        svd_rank: None,
        has_codebook: false,
        has_scale_codebook: false,
        multiplies_codes: false,
        has_convolutions: false,
        multiplies_convolutions: false,
    };
}

/// A dtype for some parameters: the named one, or the least number of bits.
#[derive(Debug, Clone)]
enum DtypeRule {
    Is(SdnqDtype),
    AtLeast { bits: u8, dtype: SdnqDtype },
}

/// SDNQ's config.
#[derive(Debug, Clone)]
pub(crate) struct SdnqConfig {
    settings: SdnqSettings,
    /// `[major, minor, patch]` of the library that wrote the model; zeros if it is not known.
    pub version: [u32; 3],
    /// Settings of some parameters, in place of those of all.
    modules: NameRules<SdnqSettings>,
    dtypes: NameRules<DtypeRule>,
    /// Parameters whose codes the model does not multiply.
    no_matmul: NameRules<()>,
}

impl QuantConfig {
    /// SDNQ's config.
    ///
    /// # Errors
    /// Why there is none, or what of it is not understood.
    pub(crate) fn sdnq(&self) -> Result<&SdnqConfig, &str> {
        let read = || {
            let is_its = |place: &&ConfigPlace| {
                place
                    .text(&["quant_method"])
                    .is_some_and(|method| method.eq_ignore_ascii_case("sdnq"))
            };
            let mut places = self.places.iter().filter(is_its).map(|place| {
                let config = SdnqConfig::new(place);
                let config = config.map_err(|e| format!("{}: {e}", place.name))?;
                Ok::<_, String>((place, config))
            });
            let (place, config) = places.next().ok_or_else(|| {
                "no config of quant_method `sdnq` says which dtype its codes have".to_owned()
            })??;
            for other in places {
                let (other_place, other) = other?;
                let is_same = (&config.settings, config.version)
                    == (&other.settings, other.version)
                    && RuleTexts::of(place) == RuleTexts::of(other_place);
                if !is_same {
                    let (one, other) = (&place.name, &other_place.name);
                    return Err(format!("{one} and {other} contradict each other"));
                }
            }
            Ok(config)
        };
        self.sdnq.get_or_init(read).as_ref().map_err(String::as_str)
    }
}

/// The rules of a config for some parameters, for a comparison: keys in their order, for the first
/// that fits holds.
#[derive(PartialEq)]
struct RuleTexts<'c> {
    modules: Vec<(&'c str, &'c Value)>,
    dtypes: Vec<(&'c str, BTreeSet<&'c str>)>,
    no_matmul: BTreeSet<&'c str>,
}

impl<'c> RuleTexts<'c> {
    fn of(place: &'c ConfigPlace) -> Self {
        let dtypes = place.entries("modules_dtype_dict").into_iter();
        let no_matmul = place.get("modules_to_not_use_matmul").into_iter();
        Self {
            modules: place.entries("modules_quant_config"),
            dtypes: dtypes
                .map(|(key, list)| (key, texts(list).collect()))
                .collect(),
            no_matmul: no_matmul.flat_map(texts).collect(),
        }
    }
}

impl SdnqConfig {
    fn new(place: &ConfigPlace) -> Result<Self, String> {
        let version = place
            .text(&["sdnq_version"])
            .map_or([0; 3], version_numbers);
        // The library writes every key that it knows. Without these, codes would be taken for
        // others.
        let needed = ["weights_dtype", "use_hadamard"];
        let needed = needed.iter().take(1 + usize::from(version >= HAS_HADAMARD));
        if let Some(missing) = needed.into_iter().find(|key| place.get(key).is_none()) {
            return Err(format!("it has no `{missing}`"));
        }
        let settings = read_settings(&place.values, SdnqSettings::DEFAULT)?;
        let mut modules = NameRules::new();
        for (key, value) in place.entries("modules_quant_config") {
            let Value::Object(values) = value else {
                return Err(format!("`modules_quant_config` has no settings for `{key}`"));
            };
            let of_module = read_settings(values, settings.clone())?;
            modules.push(std::iter::once(key), of_module)?;
        }
        let mut dtypes = NameRules::new();
        let rules = place.entries("modules_dtype_dict");
        if rules.len() > MAX_DTYPE_RULES {
            return Err(format!("`modules_dtype_dict` has more than {MAX_DTYPE_RULES} keys"));
        }
        for (name, value) in rules {
            dtypes.push(texts(value), dtype_rule(name)?)?;
        }
        let mut no_matmul = NameRules::new();
        let list = place.get("modules_to_not_use_matmul");
        no_matmul.push(list.into_iter().flat_map(texts), ())?;
        Ok(Self { settings, version, modules, dtypes, no_matmul })
    }

    /// What the config says of the parameter `name`.
    ///
    /// # Errors
    /// Matching a pattern takes too many steps.
    pub(crate) fn of(&self, name: &str) -> Result<SdnqSettings, String> {
        let mut found = self.modules.of(name)?.unwrap_or(&self.settings).clone();
        // A least number of bits that the dtype has already leaves the choice to later rules.
        let own = found.weights.bits();
        let is_taken = |rule: &DtypeRule| match rule {
            DtypeRule::Is(_) => true,
            DtypeRule::AtLeast { bits, .. } => own < *bits,
        };
        if let Some(DtypeRule::Is(dtype) | DtypeRule::AtLeast { dtype, .. }) =
            self.dtypes.first(name, is_taken)?
        {
            found.weights = *dtype;
        }
        if self.no_matmul.of(name)?.is_some() {
            (found.multiplies_codes, found.multiplies_convolutions) = (false, false);
        }
        Ok(found)
    }
}

/// The texts of a list, or a text alone.
fn texts(value: &Value) -> impl Iterator<Item = &str> {
    let list = value.as_array().map_or(&[][..], Vec::as_slice);
    value
        .as_str()
        .into_iter()
        .chain(list.iter().filter_map(Value::as_str))
}

/// The settings in `values`; what they lack is as in `base`.
///
/// # Errors
/// A key is unknown, or its value is. An unknown key may change what codes mean.
fn read_settings(values: &Map<String, Value>, base: SdnqSettings) -> Result<SdnqSettings, String> {
    let mut out = base;
    // Whether codes are rotated, or have a product added, and by how much, are keys of their own.
    let (mut rotates, mut size) = (out.hadamard.is_some(), out.hadamard);
    let (mut has_svd, mut rank) = (out.svd_rank.is_some(), out.svd_rank.or(Some(32)));
    for (key, value) in values {
        let wrong = || format!("`{key}`: {value} is not understood");
        let dtype = || match value {
            Value::Null => Ok(None),
            Value::String(name) if name == "none" => Ok(None),
            Value::String(name) => SdnqDtype::parse(name).map(Some).ok_or_else(wrong),
            _ => Err(wrong()),
        };
        let count = || integer(value).and_then(|n| usize::try_from(n).ok());
        let is_set = || flag(value).ok_or_else(wrong);
        match key.as_str() {
            "weights_dtype" => out.weights = dtype()?.ok_or_else(wrong)?,
            "scale_dtype" => out.scales = dtype()?,
            "zero_point_dtype" => {
                out.zero_points_follow = value.is_null();
                out.zero_points = dtype()?;
            }
            "quantized_matmul_dtype" => out.matmul = dtype()?,
            // Shapes tell the groups, but not always whether there are any.
            "group_size" => out.group_size = integer(value).ok_or_else(wrong)?,
            "hadamard_group_size" => size = Some(count().ok_or_else(wrong)?),
            "svd_rank" => rank = Some(count().ok_or_else(wrong)?),
            "use_hadamard" => rotates = is_set()?,
            "use_svd" => has_svd = is_set()?,
            "use_codebook" => out.has_codebook = is_set()?,
            "use_codebook_scale" => out.has_scale_codebook = is_set()?,
            "use_quantized_matmul" => out.multiplies_codes = is_set()?,
            "quant_conv" => out.has_convolutions = is_set()?,
            "use_quantized_matmul_conv" => out.multiplies_convolutions = is_set()?,
            key if OTHER_KEYS.contains(&key) => {}
            _ => return Err(format!("its key `{key}` is unknown")),
        }
    }
    if rotates && size.is_none() {
        return Err("it has no `hadamard_group_size`, and weights are rotated".to_owned());
    }
    out.hadamard = size.filter(|_| rotates);
    out.svd_rank = rank.filter(|_| has_svd);
    if out.zero_points_follow {
        out.zero_points = out.scales;
    }
    Ok(out)
}

/// A key of `modules_dtype_dict`: a dtype, or a number of bits such as `minimum_6bit` and
/// `uint5bits`.
fn dtype_rule(name: &str) -> Result<DtypeRule, String> {
    let wrong = || format!("the dtype `{name}` of `modules_dtype_dict` is not understood");
    let lower = name.to_lowercase();
    let is_minimum =
        lower.starts_with("minimum") || lower.ends_with("bit") || lower.ends_with("bits");
    if !is_minimum {
        return SdnqDtype::parse(&lower)
            .map(DtypeRule::Is)
            .ok_or_else(wrong);
    }
    let mut rest = lower.as_str();
    for prefix in ["minimum", "-", "_"] {
        rest = rest.strip_prefix(prefix).unwrap_or(rest);
    }
    for suffix in ["bits", "bit", "-", "_"] {
        rest = rest.strip_suffix(suffix).unwrap_or(rest);
    }
    let (is_unsigned, bits) = match rest.strip_prefix("uint") {
        Some(bits) => (true, bits),
        None => (false, rest.strip_prefix("int").unwrap_or(rest)),
    };
    let bits: u8 = bits.parse().map_err(|_| wrong())?;
    let kind = if is_unsigned || bits <= 4 {
        "uint"
    } else {
        "int"
    };
    let dtype = SdnqDtype::parse(&format!("{kind}{bits}")).ok_or_else(wrong)?;
    Ok(DtypeRule::AtLeast { bits, dtype })
}

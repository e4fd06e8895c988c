//! What configs of AutoRound, Quark and GPTQModel say of rotated inputs.

use serde_json::{Map, Value};

use crate::config::{QuantConfig, QuantMethod};

/// Rows of the matrices of AutoRound's `rotation_config` that does not say how many.
const DEFAULT_BLOCK: usize = 32;

/// Layers whose inputs AutoRound's SpinQuant rotates (R1), by the last part of their names.
const R1_LAYERS: &[&str] = &["q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"];

/// Last part of the names of layers that R4 is of.
const R4_LAYER: &str = "down_proj";

/// The last version of GPTQModel whose `rotation` is all in the weights, and the first that rotates
/// the inputs of `mlp.down_proj`. The version between them was not published.
const FUSED_AND_ONLINE: [[u64; 3]; 2] = [[7, 3, 2], [7, 3, 4]];

/// A rotation whose matrix is not stored with the layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AppliedToAll {
    /// Sylvester's, of blocks of so many inputs.
    Block(usize),
    /// Sylvester's, of all inputs at once.
    Inputs,
    /// Stored with another layer.
    Stored,
}

/// What a config says of rotations.
#[derive(Debug, Clone, Default)]
pub(super) struct RotationSettings {
    /// Rows of AutoRound's matrices, of all quantized layers but `lm_head`; and whether they are
    /// stored.
    auto_round: Option<(usize, bool)>,
    /// Whether GPTQModel rotates the inputs of `mlp.down_proj`.
    is_gptqmodel: bool,
    /// Whether the layers of R1 and of R4 have to have a rotation.
    needs: [bool; 2],
    /// Whether any layer has to have one.
    pub needs_any: bool,
}

impl RotationSettings {
    /// # Errors
    /// A rotation is of a kind that is not known.
    pub(super) fn read(config: &QuantConfig) -> Result<Self, String> {
        let mut settings = Self::default();
        // The second is the name of older versions.
        for key in ["rotation_config", "hadamard_config"] {
            if !config.has(key) {
                continue;
            }
            let rotation = config.section(key);
            let read = |rotation| auto_round(rotation, config);
            let found = rotation.ok_or_else(|| "it is no object".to_owned());
            let found = found
                .and_then(read)
                .map_err(|what| format!("`{key}`: {what}"))?;
            if settings.auto_round.replace(found).is_some() {
                return Err("`rotation_config` and `hadamard_config` are both there".to_owned());
            }
        }
        if config.has("spinquant_config") {
            let section = config.section("spinquant_config");
            let spin = section.ok_or("`spinquant_config` is no object")?;
            let flag = |key, default| spin.get(key).and_then(Value::as_bool).unwrap_or(default);
            let is_online = flag("r1", true) && flag("online_r1_rotation", true);
            settings.needs = [is_online, flag("r4", false)];
        }
        settings.read_quark(config);
        let method = config.quant_method();
        if matches!(method, Some(QuantMethod::Gptq | QuantMethod::Awq | QuantMethod::Qqq)) {
            settings.is_gptqmodel = match config.text(&["rotation"]) {
                None => false,
                Some(("hadamard" | "random", _)) => is_online_of_gptqmodel(config)?,
                Some((other, place)) => {
                    return Err(format!("{place} says rotation `{other}`, which is not known"));
                }
            };
        }
        Ok(settings)
    }

    /// `algo_config` of Quark: R1 may be left to the running model, and R4 always is.
    fn read_quark(&mut self, config: &QuantConfig) {
        let rotations = config
            .list("algo_config")
            .iter()
            .filter_map(Value::as_object);
        for algo in rotations.filter(|algo| {
            algo.get("name")
                .is_some_and(|name| name == "rotation" || name == "quarot")
        }) {
            let flag = |key| algo.get(key).and_then(Value::as_bool) == Some(true);
            self.needs[1] |= flag("r4");
            // Which layers R1 is of, only patterns for Quark's code tell.
            self.needs_any |= flag("r4") || flag("r1") && flag("online_r1_rotation");
        }
    }

    /// Whether a layer may be rotated whose file has no rotation.
    pub(super) fn has_any(&self) -> bool {
        self.auto_round.is_some() || self.is_gptqmodel || self.needs_any || self.needs != [false; 2]
    }

    /// Whether every quantized layer is rotated.
    pub(super) fn is_applied_to_all(&self) -> bool {
        self.auto_round.is_some()
    }

    /// Whether a layer that is not quantized is rotated.
    pub(super) fn is_applied_to_plain(&self, module: &str) -> bool {
        self.is_gptqmodel && module.ends_with("mlp.down_proj")
    }

    /// The rotation of a quantized layer that the config has, beside the one that is stored.
    ///
    /// # Errors
    /// The layer should have a stored one and has none, or whether it is rotated is not known.
    pub(super) fn of_module(
        &self,
        module: &str,
        is_stored: bool,
    ) -> Result<Option<AppliedToAll>, String> {
        let last = module.rsplit('.').next().unwrap_or_default();
        let is_needed =
            self.needs[0] && R1_LAYERS.contains(&last) || self.needs[1] && last == R4_LAYER;
        if is_needed && !is_stored {
            return Err("the config says that its inputs are rotated, and its rotation is missing"
                .to_owned());
        }
        if self.is_gptqmodel && module.ends_with("mlp.down_proj") {
            return Ok(Some(AppliedToAll::Inputs));
        }
        let Some((block, is_random)) = self.auto_round else {
            return Ok(None);
        };
        // AutoRound rotates the weight of an output layer, and does not rotate its inputs.
        if module.contains("lm_head") {
            return Err("it is an output layer in a model of rotated inputs".to_owned());
        }
        Ok(match (is_random, is_stored) {
            (false, _) => Some(AppliedToAll::Block(block)),
            (true, true) => None,
            (true, false) => Some(AppliedToAll::Stored),
        })
    }
}

/// Whether the GPTQModel that wrote the model leaves a rotation to the running model. Older
/// versions fuse all of them.
///
/// # Errors
/// The config does not say which version it was.
fn is_online_of_gptqmodel(config: &QuantConfig) -> Result<bool, String> {
    let writers = config
        .section("meta")
        .and_then(|meta| meta.get("quantizer"));
    let writers = match writers {
        Some(Value::Array(writers)) => writers.as_slice(),
        Some(writer) => std::slice::from_ref(writer),
        None => &[],
    };
    let version = |writer: &Value| {
        let version = writer.as_str()?.strip_prefix("gptqmodel:")?;
        let mut numbers = version.splitn(3, '.').map(|part| {
            let digits = part.find(|c: char| !c.is_ascii_digit());
            part[..digits.unwrap_or(part.len())].parse::<u64>().ok()
        });
        Some([numbers.next()??, numbers.next()??, numbers.next()??])
    };
    let [fused, online] = FUSED_AND_ONLINE;
    match writers.iter().find_map(version) {
        Some(version) if version <= fused => Ok(false),
        Some(version) if version >= online => Ok(true),
        _ => Err(
            "`rotation` without the version of gptqmodel (`meta.quantizer`), which tells whether inputs are rotated"
                .to_owned(),
        ),
    }
}

/// Rows of the matrices of AutoRound's `rotation_config`, and whether they are stored.
fn auto_round(
    rotation: &Map<String, Value>,
    config: &QuantConfig,
) -> Result<(usize, bool), String> {
    let text = |key| rotation.get(key).and_then(Value::as_str);
    // AutoRound rotates layers by themselves for the types of groups that fit the blocks; the
    // others it rotates as QuaRot does.
    let data_type = config.text(&["data_type"]).map_or("", |(found, _)| found);
    let is_by_layer = data_type.starts_with("mx_fp") || data_type.starts_with("nv_fp");
    let is_fused = rotation.get("fuse_online_to_weight") == Some(&Value::Bool(true));
    if !matches!(text("backend"), None | Some("auto" | "transform")) || is_fused || !is_by_layer {
        return Err(format!("rotations of `{data_type}` beyond single layers are not known"));
    }
    let block = match rotation.get("block_size") {
        None | Some(Value::Null) => DEFAULT_BLOCK,
        Some(size) => {
            let size = size.as_u64().and_then(|n| usize::try_from(n).ok());
            size.filter(|&n| n > 0).ok_or("`block_size` is no size")?
        }
    };
    match text("hadamard_type") {
        Some("hadamard") => Ok((block, false)),
        Some("random_hadamard") => Ok((block, true)),
        other => Err(format!("the type `{}` is not known", other.unwrap_or_default())),
    }
}

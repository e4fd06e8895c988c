//! MLX's stacks of experts, which become single experts in the output: mlx-lm stacks them when it
//! loads a model, and the architecture says from which names. An architecture without single
//! experts, or one that is unknown, keeps its stacks.

use crate::model::Tensor;
use crate::remember::seam::{
    Group, Index, PlainFloats, Prepared, QuantScheme, TensorRole, refused,
};
use crate::{ParsedModel, Result, TargetDtype};

/// Most experts of a stack. Models have some hundreds.
pub(crate) const MAX_EXPERTS: usize = 4096;

/// Experts of all stacks together that may be of any size. The largest models have some 70 000, of
/// megabytes each.
const FREE_EXPERTS: u64 = 65_536;

/// Least bytes of an expert on average, if a model has more than [`FREE_EXPERTS`]. Each becomes a
/// tensor of the output, and takes about 1000 bytes of memory while it is planned.
const EXPERT_BYTES: u64 = 128;

/// Component of the names of stacks, below the module that chooses among the experts.
const STACK: &str = ".switch_mlp.";

/// How an architecture names its experts.
struct ExpertNames {
    /// `model_type` of the configs.
    model_types: &'static [&'static str],
    /// What replaces the module `.switch_mlp`, and a last component before it.
    parent: (&'static str, &'static str),
    /// The projections: name in the stack, name in an expert.
    projections: &'static [(&'static str, &'static str)],
}

const SAME: &[(&str, &str)] =
    &[("gate_proj", "gate_proj"), ("down_proj", "down_proj"), ("up_proj", "up_proj")];

const NUMBERED: &[(&str, &str)] = &[("gate_proj", "w1"), ("down_proj", "w2"), ("up_proj", "w3")];

/// The names from which mlx-lm stacks experts (`sanitize`), which are those of the published
/// models.
///
/// Source: mlx-lm, `mlx_lm/models`, a file for each `model_type`, such as
/// <https://github.com/ml-explore/mlx-lm/blob/d78bf58e217c904ec282ed8da9b947491f78c022/mlx_lm/models/qwen3_moe.py#L235-L245>;
/// `MODEL_REMAPPING` in `mlx_lm/utils.py` has further names of the same architectures. Not here,
/// because they store experts as stacks: granitemoe and granitemoehybrid (`input_linear`,
/// `granitemoe.py#L205-L219`), qwen3_5_moe and qwen3_vl_moe (`experts.gate_up_proj`,
/// `qwen3_5_moe.py#L38-L48`), step3p5 (`moe.gate_proj`, `step3p5.py#L408-L411`).
const ARCHITECTURES: &[ExpertNames] = &[
    ExpertNames {
        // bailing_moe.py#L364, bailing_moe_linear.py#L549, deepseek.py#L249, deepseek_v2.py#L435,
        // deepseek_v3.py#L430, deepseek_v32.py#L540, ernie4_5_moe.py#L282, exaone_moe.py#L347,
        // glm4_moe.py#L325, glm4_moe_lite.py#L406, hunyuan.py#L324, jamba.py#L363, kimi_vl.py#L98,
        // longcat_flash.py#L396, mellum.py#L236, mimo_v2_flash.py#L356, olmoe.py#L204,
        // qwen2_moe.py#L228, qwen3_moe.py#L240, qwen3_next.py#L464
        model_types: &[
            "bailing_moe",
            "bailing_moe_linear",
            "deepseek",
            "deepseek_v2",
            "deepseek_v3",
            "deepseek_v32",
            "ernie4_5_moe",
            "exaone_moe",
            "glm4_moe",
            "glm4_moe_lite",
            "glm_moe_dsa",
            "hunyuan",
            "jamba",
            "joyai_llm_flash",
            "kimi_k2",
            "kimi_k25",
            "kimi_vl",
            "longcat_flash",
            "longcat_flash_ngram",
            "mellum",
            "mimo_v2_flash",
            "olmoe",
            "qwen2_moe",
            "qwen3_moe",
            "qwen3_next",
            "solar_open",
        ],
        parent: ("", ".experts"),
        projections: SAME,
    },
    ExpertNames {
        // lfm2_moe.py#L344-L367, minimax.py#L314-L325, mixtral.py#L212-L222, phimoe.py#L193-L203
        model_types: &["lfm2_moe", "minimax", "minimax_m2", "mixtral", "phimoe"],
        parent: ("", ".experts"),
        projections: NUMBERED,
    },
    ExpertNames {
        // kimi_linear.py#L502-L517
        model_types: &["kimi_linear"],
        parent: (".mlp", ".block_sparse_moe.experts"),
        projections: NUMBERED,
    },
    ExpertNames {
        // nemotron_h.py#L545-L553
        model_types: &["nemotron_h"],
        parent: ("", ".experts"),
        projections: &[("fc1", "up_proj"), ("fc2", "down_proj")],
    },
    ExpertNames {
        // phixtral.py#L186-L197
        model_types: &["phixtral", "phi-msft"],
        parent: ("", ".mlp"),
        projections: &[("fc1", "fc1"), ("fc2", "fc2")],
    },
];

/// Experts of several stacks, each of which becomes a tensor.
#[derive(Default)]
pub(crate) struct ExpertCount {
    pub experts: u64,
    bytes: u64,
}

impl ExpertCount {
    /// Adds those of a stack of `shape` that has `bytes`. Returns whether there are more than are
    /// in proportion to their bytes.
    pub(crate) fn add(&mut self, shape: &[usize], bytes: u64) -> bool {
        let experts = shape.first().map_or(0, |&n| n as u64);
        self.experts = self.experts.saturating_add(experts);
        self.bytes = self.bytes.saturating_add(bytes);
        self.experts > FREE_EXPERTS && self.experts.saturating_mul(EXPERT_BYTES) > self.bytes
    }
}

/// More experts than their bytes pay for.
struct TooManyExperts(u64);

/// Counts the experts of all stacks. `None` if they are in proportion to the file.
pub(super) fn count_experts(model: &ParsedModel) -> Option<Prepared> {
    let (mut all, mut is_too_many) = (ExpertCount::default(), false);
    for t in model.tensors().filter(|t| t.name().contains(STACK)) {
        is_too_many = all.add(t.shape(), t.info().len);
    }
    is_too_many.then(|| Box::new(TooManyExperts(all.experts)) as Prepared)
}

/// Names of the tensors that the stack `t` of `shape` becomes, one for each expert; empty if it
/// stays a stack.
///
/// # Errors
/// `Unsupported` for more than 4096 experts, or for many small ones: each becomes a tensor, and a
/// small file could otherwise fill any memory.
pub(super) fn expert_names(
    t: &Tensor<'_>,
    shape: &[usize],
    all: &Index<'_>,
) -> Result<Vec<String>> {
    let Some((expert, experts)) = single_expert(t.name(), all).zip(shape.first()) else {
        return Ok(Vec::new());
    };
    if shape.contains(&0) {
        return Ok(Vec::new());
    }
    if *experts > MAX_EXPERTS {
        let what = format!("a stack of {experts} experts, of at most {MAX_EXPERTS}");
        return Err(refused(t, "MLX", what));
    }
    if let Some(TooManyExperts(count)) = all.prepared::<TooManyExperts>() {
        let what = format!("{count} experts in all, of less than {EXPERT_BYTES} bytes each");
        return Err(refused(t, "MLX", what));
    }
    let (before, after) = expert;
    Ok((0..*experts)
        .map(|e| format!("{before}.{e}.{after}"))
        .collect())
}

/// What stands before and behind an expert's number in the name of its part of the stack `name`.
/// `None` if the architecture has no single experts, or the stack is none of the projections.
fn single_expert(name: &str, all: &Index<'_>) -> Option<(String, String)> {
    let model_type = all.config.model_type()?;
    let names = ARCHITECTURES
        .iter()
        .find(|names| names.model_types.contains(&model_type))?;
    names.single_expert(name)
}

/// What may stand before and behind an expert's number in the names of the experts of the stack
/// `name`, whatever the architecture.
pub(crate) fn names_of_experts(name: &str) -> impl Iterator<Item = (String, String)> {
    let all = ARCHITECTURES.iter();
    all.filter_map(move |names| names.single_expert(name))
}

impl ExpertNames {
    fn single_expert(&self, name: &str) -> Option<(String, String)> {
        let (parent, projection) = name.split_once(STACK)?;
        let (module, parameter) = projection.rsplit_once('.')?;
        let (_, theirs) = self.projections.iter().find(|(ours, _)| *ours == module)?;
        let (replaced, experts) = self.parent;
        let parent = parent.strip_suffix(replaced)?;
        Some((format!("{parent}{experts}"), format!("{theirs}.{parameter}")))
    }
}

/// Claims a stack of experts that is not quantized, in a model in which others are: their names
/// belong to MLX alone, and loaders expect all experts in one way.
///
/// # Errors
/// Those of [`expert_names`].
pub(super) fn unquantized_stack<'m>(t: &Tensor<'m>, all: &Index<'m>) -> Result<Option<Group<'m>>> {
    if !t.name().contains(STACK) || !all.config.is_quantized() || !t.dtype().is_floating_point() {
        return Ok(None);
    }
    let is_parameter = match t.shape().len() {
        3 => t.name().ends_with(".weight"),
        2 => t.name().ends_with(".bias"),
        _ => false,
    };
    let (Some(keeps), Some(decoder)) = (TargetDtype::of(t.dtype()), PlainFloats::of(t)) else {
        return Ok(None);
    };
    if !is_parameter {
        return Ok(None);
    }
    let names = expert_names(t, t.shape(), all)?;
    if names.is_empty() {
        return Ok(None);
    }
    let parts = vec![(TensorRole::Passthrough, *t)];
    let scheme = QuantScheme::Unquantized;
    let group = Group {
        keeps: Some(keeps),
        ..Group::new(t.name(), t.shape(), scheme, parts, Box::new(decoder))
    };
    Ok(Some(group.with_matrices(names)))
}

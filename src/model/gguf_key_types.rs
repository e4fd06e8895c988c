//! The types of GGUF metadata keys as llama.cpp reads them: a key of another type is an error there.
//!
//! Source: the methods of gguf-py's `GGUFWriter`
//! 0.19.0, which write lists of Python's integers as `i32`.

/// The type of a key's value. Types have the names of
/// [`GgufMetadataValue::type_name`](super::gguf::GgufMetadataValue::type_name).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GgufKeyType {
    /// Type of a single value; `None`: the key has an array.
    pub scalar: Option<&'static str>,
    /// Type of the elements of an array; `None`: the key has a single value.
    pub items: Option<&'static str>,
}

const fn one(scalar: &'static str) -> GgufKeyType {
    GgufKeyType { scalar: Some(scalar), items: None }
}

const fn list(items: &'static str) -> GgufKeyType {
    GgufKeyType { scalar: None, items: Some(items) }
}

const fn either(scalar: &'static str, items: &'static str) -> GgufKeyType {
    GgufKeyType { scalar: Some(scalar), items: Some(items) }
}

/// What precedes the keys of the model's architecture, in place of its name.
const ARCH: &str = "*.";

/// Keys by their type. `*.` stands for the name of the architecture.
const KEYS: &[(GgufKeyType, &[&str])] = &[
    (
        one("string"),
        &[
            "adapter.lora.prompt_prefix",
            "adapter.lora.task_name",
            "adapter.type",
            "general.architecture",
            "general.author",
            "general.basename",
            "general.description",
            "general.doi",
            "general.finetune",
            "general.license",
            "general.license.link",
            "general.license.name",
            "general.name",
            "general.organization",
            "general.quantized_by",
            "general.repo_url",
            "general.sampling.sequence",
            "general.size_label",
            "general.source.doi",
            "general.source.repo_url",
            "general.source.url",
            "general.source.uuid",
            "general.type",
            "general.url",
            "general.uuid",
            "general.version",
            "tokenizer.chat_template",
            "tokenizer.ggml.model",
            "tokenizer.ggml.pre",
            "tokenizer.huggingface.json",
            "tokenizer.rwkv.world",
            "clip.projector_type",
            "clip.audio.projector_type",
            "clip.vision.projector_type",
            "clip.gen.audio.model_variant",
            "clip.gen.audio.projector_type",
            "*.hidden_activation",
            "*.rope.scaling.type",
            "*.tensor_data_layout",
        ],
    ),
    (
        one("bool"),
        &[
            "clip.has_audio_encoder",
            "clip.has_gen_audio_encoder",
            "clip.has_llava_projector",
            "clip.has_vision_encoder",
            "clip.use_gelu",
            "clip.use_silu",
            "diffusion.shift_logits",
            "tokenizer.ggml.add_bos_token",
            "tokenizer.ggml.add_eos_token",
            "tokenizer.ggml.add_sep_token",
            "tokenizer.ggml.add_space_prefix",
            "tokenizer.ggml.normalizer.lowercase",
            "tokenizer.ggml.normalizer.strip_accents",
            "tokenizer.ggml.remove_extra_whitespaces",
            "*.attention.causal",
            "*.attention.indexer.kpool_select_tail",
            "*.expert_weights_norm",
            "*.has_confidence_head",
            "*.hrm.prefix_lm",
            "*.kda.safe_gate",
            "*.norm_before_fc",
            "*.norm_before_residual",
            "*.rope.scaling.finetuned",
            "*.sample_from_anchor",
            "*.skip_loop_final_norm",
            "*.ssm.dt_b_c_rms",
            "*.swin_norm",
            "*.use_parallel_residual",
        ],
    ),
    (
        one("f32"),
        &[
            "adapter.lora.alpha",
            "clip.audio.attention.layer_norm_epsilon",
            "clip.gen.audio.attention.layer_norm_epsilon",
            "clip.vision.attention.layer_norm_epsilon",
            "clip.vision.swiglu_clamp",
            "general.sampling.min_p",
            "general.sampling.mirostat_eta",
            "general.sampling.mirostat_tau",
            "general.sampling.penalty_repeat",
            "general.sampling.temp",
            "general.sampling.top_p",
            "general.sampling.xtc_probability",
            "general.sampling.xtc_threshold",
            "*.activation.situ_beta",
            "*.activation.situ_linear_beta",
            "*.adapters.router_gain",
            "*.attention.clamp_kqv",
            "*.attention.compress_rope_freq_base",
            "*.attention.group_norm_epsilon",
            "*.attention.layer_norm_epsilon",
            "*.attention.layer_norm_rms_epsilon",
            "*.attention.max_alibi_bias",
            "*.attention.output_scale",
            "*.attention.scale",
            "*.attention.temperature_scale",
            "*.attention.value_scale",
            "*.attn_logit_softcapping",
            "*.embedding_scale",
            "*.expert_group_scale",
            "*.expert_weights_scale",
            "*.final_logit_softcapping",
            "*.hyper_connection.epsilon",
            "*.hyper_connection.magnitude",
            "*.kda.gate_lower_bound",
            "*.logit_scale",
            "*.residual_scale",
            "*.rope.freq_base",
            "*.rope.freq_base_swa",
            "*.rope.scaling.alpha",
            "*.rope.scaling.attn_factor",
            "*.rope.scaling.factor",
            "*.rope.scaling.yarn_attn_factor",
            "*.rope.scaling.yarn_beta_fast",
            "*.rope.scaling.yarn_beta_slow",
            "*.rope.scaling.yarn_ext_factor",
            "*.rope.scaling.yarn_log_multiplier",
            "*.router_logit_softcapping",
        ],
    ),
    (
        one("i32"),
        &["general.sampling.mirostat", "general.sampling.penalty_last_n", "general.sampling.top_k"],
    ),
    (
        one("u32"),
        &[
            "general.alignment",
            "general.base_model.count",
            "general.dataset.count",
            "general.file_type",
            "general.quantization_version",
            "tokenizer.ggml.bos_token_id",
            "tokenizer.ggml.eom_token_id",
            "tokenizer.ggml.eos_token_id",
            "tokenizer.ggml.eot_token_id",
            "tokenizer.ggml.fim_mid_token_id",
            "tokenizer.ggml.fim_pad_token_id",
            "tokenizer.ggml.fim_pre_token_id",
            "tokenizer.ggml.fim_rep_token_id",
            "tokenizer.ggml.fim_sep_token_id",
            "tokenizer.ggml.fim_suf_token_id",
            "tokenizer.ggml.mask_token_id",
            "tokenizer.ggml.middle_token_id",
            "tokenizer.ggml.padding_token_id",
            "tokenizer.ggml.prefix_token_id",
            "tokenizer.ggml.seperator_token_id",
            "tokenizer.ggml.suffix_token_id",
            "tokenizer.ggml.token_type_count",
            "tokenizer.ggml.unknown_token_id",
            "clip.audio.attention.head_count",
            "clip.audio.local_block_count",
            "clip.audio.local_group_size",
            "clip.audio.projector.downsample_rate",
            "clip.audio.projector.head_count",
            "clip.audio.projector.window_size",
            "clip.audio.rvq.num_quantizers",
            "clip.audio.subsampling_factor",
            "clip.gen.audio.attention.head_count",
            "clip.gen.audio.attention.head_count_kv",
            "clip.gen.audio.block_count",
            "clip.gen.audio.embedding_length",
            "clip.gen.audio.feed_forward_length",
            "clip.gen.audio.projection_dim",
            "clip.vision.sam.block_count",
            "clip.vision.sam.embedding_length",
            "clip.vision.sam.head_count",
            "*.dense_2_feat_in",
            "*.dense_2_feat_out",
            "*.dense_3_feat_in",
            "*.dense_3_feat_out",
            "clip.audio.block_count",
            "clip.audio.chunk_size",
            "clip.audio.conv_kernel_size",
            "clip.audio.embedding_length",
            "clip.audio.feed_forward_length",
            "clip.audio.max_pos_emb",
            "clip.audio.num_mel_bins",
            "clip.audio.projection_dim",
            "clip.audio.projector.stack_factor",
            "clip.audio.window_size",
            "clip.vision.attention.head_count",
            "clip.vision.attention.head_count_kv",
            "clip.vision.attention.head_dim",
            "clip.vision.block_count",
            "clip.vision.embedding_length",
            "clip.vision.expert_used_count",
            "clip.vision.feed_forward_length",
            "clip.vision.image_max_pixels",
            "clip.vision.image_min_pixels",
            "clip.vision.image_size",
            "clip.vision.n_wa_pattern",
            "clip.vision.patch_size",
            "clip.vision.preproc_image_size",
            "clip.vision.preproc_max_tiles",
            "clip.vision.preproc_min_tiles",
            "clip.vision.projection_dim",
            "clip.vision.projector.query_side",
            "clip.vision.projector.scale_factor",
            "clip.vision.projector.window_side",
            "clip.vision.spatial_merge_size",
            "clip.vision.window_size",
            "*.adapters.count",
            "*.adapters.lora_rank",
            "*.altup.active_idx",
            "*.altup.num_inputs",
            "*.attention.decay_lora_rank",
            "*.attention.gate_lora_rank",
            "*.attention.group_norm_groups",
            "*.attention.iclr_lora_rank",
            "*.attention.indexer.block_size",
            "*.attention.indexer.head_count",
            "*.attention.indexer.key_length",
            "*.attention.indexer.kpool",
            "*.attention.indexer.local_blocks",
            "*.attention.indexer.top_k",
            "*.attention.key_length",
            "*.attention.key_length_mla",
            "*.attention.key_length_mla_swa",
            "*.attention.key_length_swa",
            "*.attention.kv_lora_rank",
            "*.attention.kv_lora_rank_swa",
            "*.attention.output_group_count",
            "*.attention.output_lora_rank",
            "*.attention.q_lora_rank",
            "*.attention.relative_buckets_count",
            "*.attention.shared_kv_layers",
            "*.attention.sliding_window",
            "*.attention.temperature_length",
            "*.attention.value_length",
            "*.attention.value_length_mla",
            "*.attention.value_length_mla_swa",
            "*.attention.value_length_swa",
            "*.attention.value_residual_mix_lora_rank",
            "*.attn_res.block_size",
            "*.block_count",
            "*.block_size",
            "*.classifier.pooling_type",
            "*.context_length",
            "*.conv_group_size",
            "*.conv_kernel_size",
            "*.convnext.block_count",
            "*.convnext.embedding_length",
            "*.decoder_block_count",
            "*.decoder_start_token_id",
            "*.embedding_length",
            "*.embedding_length_out",
            "*.embedding_length_per_layer_input",
            "*.expert_chunk_feed_forward_length",
            "*.expert_count",
            "*.expert_gating_func",
            "*.expert_group_count",
            "*.expert_group_used_count",
            "*.expert_latent_length",
            "*.expert_shared_count",
            "*.expert_shared_feed_forward_length",
            "*.experts_per_group",
            "*.features_length",
            "*.full_attention_interval",
            "*.hash_layer_count",
            "*.hrm.h_cycles",
            "*.hrm.l_cycles",
            "*.hrm.layers_per_stack",
            "*.hyper_connection.count",
            "*.hyper_connection.low_rank",
            "*.hyper_connection.sinkhorn_iterations",
            "*.interleave_moe_layer_step",
            "*.kda.head_dim",
            "*.leading_dense_block_count",
            "*.moe_every_n_layers",
            "*.moe_latent_size",
            "*.n_deepstack_layers",
            "*.nextn_predict_layers",
            "*.num_loops",
            "*.ple.conv_kernel",
            "*.ple.eos_token_id",
            "*.ple.heads_per_ngram",
            "*.ple.image_token_id",
            "*.ple.ngram_size",
            "*.pooling_type",
            "*.posnet.block_count",
            "*.posnet.embedding_length",
            "*.rescale_every_n_layers",
            "*.rope.dimension_count",
            "*.rope.dimension_count_swa",
            "*.rope.scaling.original_context_length",
            "*.selector_rank",
            "*.selector_top_k",
            "*.shortconv.l_cache",
            "*.ssm.conv_kernel",
            "*.ssm.group_count",
            "*.ssm.inner_size",
            "*.ssm.state_size",
            "*.ssm.time_step_rank",
            "*.target_hidden_size",
            "*.time_decay_extra_dim",
            "*.time_mix_extra_dim",
            "*.token_shift_count",
            "*.vocab_size",
            "*.wkv.head_size",
        ],
    ),
    (
        either("u32", "i32"),
        &[
            "*.attention.head_count",
            "*.attention.head_count_kv",
            "*.expert_feed_forward_length",
            "*.expert_used_count",
            "*.feed_forward_length",
        ],
    ),
    (either("u32", "bool"), &["*.attention.sliding_window_pattern"]),
    (
        list("string"),
        &[
            "general.languages",
            "general.tags",
            "imatrix.datasets",
            "tokenizer.chat_templates",
            "tokenizer.ggml.merges",
            "tokenizer.ggml.tokens",
            "*.classifier.output_labels",
        ],
    ),
    (
        list("f32"),
        &[
            "clip.vision.image_mean",
            "clip.vision.image_std",
            "tokenizer.ggml.scores",
            "xielu.alpha_n",
            "xielu.alpha_p",
            "xielu.beta",
            "xielu.eps",
            "*.activation_sparsity_scale",
            "*.swiglu_clamp_exp",
            "*.swiglu_clamp_shexp",
        ],
    ),
    (
        list("i32"),
        &[
            "clip.audio.feature_layer",
            "clip.vision.feature_layer",
            "clip.vision.image_grid_pinpoints",
            "clip.vision.wa_layer_indexes",
            "tokenizer.ggml.suppress_tokens",
            "tokenizer.ggml.token_type",
            "*.deepstack_mapping",
            "*.rope.dimension_sections",
            "*.target_layers",
        ],
    ),
    (list("bool"), &["clip.vision.is_deepstack_layers", "*.attention.recurrent_layers"]),
    (list("u8"), &["tokenizer.ggml.precompiled_charsmap"]),
];

/// Keys that are repeated with a number or a name in them, by what precedes that. All are texts.
const NUMBERED: &[&str] = &["general.base_model.", "general.dataset.", "tokenizer.chat_template."];

/// Namespaces that are no architecture.
const NAMESPACES: &[&str] =
    &["adapter", "clip", "diffusion", "general", "imatrix", "split", "tokenizer", "xielu"];

/// The type that llama.cpp reads the value of `key` as; `None` if it is not among the known keys.
pub(crate) fn known_type(key: &str) -> Option<GgufKeyType> {
    let (namespace, rest) = key.split_once('.')?;
    let of_architecture = (!NAMESPACES.contains(&namespace)).then_some(rest);
    let is_key = |known: &&str| match known.strip_prefix(ARCH) {
        Some(known) => of_architecture == Some(known),
        None => *known == key,
    };
    let found = KEYS.iter().find(|(_, keys)| keys.iter().any(&is_key));
    let is_numbered = || NUMBERED.iter().any(|beginning| key.starts_with(beginning));
    match found {
        Some((kind, _)) => Some(*kind),
        None => is_numbered().then_some(one("string")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The types that gguf-py's writer gives, for keys of any architecture. Lists of unknown keys
    /// have the type that they suggest.
    #[test]
    fn types_are_those_of_gguf_py() {
        let rows = include_str!("../../tests/data/gguf_key_types.json");
        let rows: Vec<(String, Vec<String>)> = serde_json::from_str(rows).unwrap();
        assert!(rows.len() > 300);
        for (key, types) in rows {
            let dense = key.replace("{dense}", "dense_2");
            let key = dense.replace("{arch}", "new-arch").replace("{id}", "3");
            let key = key.replace("{name}", "tool_use");
            let found = known_type(&key);
            for kind in types {
                let expected = match kind.as_str() {
                    "array" => {
                        assert!(found.is_none_or(|kind| kind.items.is_some()), "{key}");
                        continue;
                    }
                    "uint32" => "u32",
                    "int32" => "i32",
                    "float32" => "f32",
                    kind => kind,
                };
                let scalar = found.and_then(|kind| kind.scalar);
                assert_eq!(scalar, Some(expected), "{key}");
            }
        }
        for key in ["my.key", "general.unknown", "general", "tokenizer.ggml.unknown"] {
            assert_eq!(known_type(key), None, "{key}");
        }
    }
}

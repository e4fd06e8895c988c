//! Decoders whose layers are all alike, without experts.

use super::attention::{
    ALL_HEAD_NORMS, ATTN_NORM, ATTN_NORM_BIAS, BARE_NORMS, EMBEDDING, FREE_HEADS, FUSED_QKV,
    FUSED_QKV_BIAS, HEAD_NORMS, LAYER_NORM, LONG_FACTORS, LONGROPE, MAYBE_OUT_BIAS, MAYBE_OUTPUT,
    NARROW_OUT, NARROW_QKV, OUT, OUT_BIAS, OUTPUT, OUTPUT_NORM_BIAS, POST_ATTENTION_NORM,
    PREDICTION, QKV, RANKS, RMS, ROPE_FREQS, ROTATING_HEADS, SAME_HEADS, SECTIONS, VALUE_GATE,
    WINDOW,
};
use super::feed_forward::{
    FFN_NORM, FFN_NORM_BIAS, FUSED_MLP, MAYBE_MLP_BIASES, MAYBE_UNGATED_BIASES, MLP, POST_FFW_NORM,
    UNGATED, UNGATED_BIASES,
};
use super::sizes::When::{Above0, Always, AtLeast, Not, Predicting};
use super::sizes::{CONTEXT, EMBD, FF, HEAD, HEADS, KEYS, QUERIES, Size, VALUES, VOCAB, When};
use super::{Row, graphs, rows};

/// An embedding that is the output if it is missing.
const MAYBE_EMBEDDING: &[Row] = rows! {
    "token_embd.weight" [EMBD, VOCAB] optional;
    "output_norm.weight" [EMBD];
};

const OUTPUT_BIAS: &[Row] = rows! {
    "output.bias" [VOCAB] optional;
};

/// Modules of sentence-transformers.
const MODULES: &[Row] = rows! {
    "dense_2.weight" [EMBD, Size::Key("dense_2_feat_out")] optional;
    "dense_3.weight" [Size::Key("dense_3_feat_in"), EMBD] optional;
};

/// Copies of the state. llama.cpp has four of them and the published widths (256 for the input of a
/// layer, a rank of 64), and no keys for others.
const COPIES: Size = Size::N(4);

const GEMMA3N_ENDS: &[Row] = rows! {
    "altup_proj.weight" [EMBD, EMBD, Size::N(3)];
    "altup_unembd_proj.weight" [EMBD, EMBD, Size::N(3)];
    "per_layer_token_embd.weight" [Size::Free, VOCAB];
    "per_layer_model_proj.weight" [EMBD, Size::Free];
    "per_layer_proj_norm.weight" [Size::Free];
};

const GEMMA3N_LAYERS: &[Row] = rows! {
    "blk.{i}.inp_gate.weight" [EMBD, Size::Free];
    "blk.{i}.proj.weight" [Size::Free, EMBD];
    "blk.{i}.post_norm.weight" [EMBD];
    "blk.{i}.altup_correct_coef.weight" [COPIES, COPIES];
    "blk.{i}.altup_correct_scale.weight" [EMBD];
    "blk.{i}.altup_predict_coef.weight" [COPIES, Size::N(16)];
    "blk.{i}.altup_router.weight" [EMBD, COPIES];
    "blk.{i}.altup_router_norm.weight" [EMBD];
    "blk.{i}.laurel_l.weight" [EMBD, Size::Free];
    "blk.{i}.laurel_r.weight" [Size::Free, EMBD];
    "blk.{i}.laurel_post_norm.weight" [EMBD];
};

const NEEDED_OUTPUT_BIAS: &[Row] = rows! {
    "output.bias" [VOCAB];
};

const ONLY_EMBEDDING: &[Row] = rows! {
    "token_embd.weight" [EMBD, VOCAB];
};

/// Norms of all queries and of all keys, whose heads have hidden size / heads.
const WIDE_NORMS: &[Row] = rows! {
    "blk.{i}.attn_q_norm.weight" [EMBD];
    "blk.{i}.attn_k_norm.weight" [KEYS];
};

const POSITIONS: &[Row] = rows! {
    "position_embd.weight" [EMBD, CONTEXT];
};

const TOKEN_NORM: &[Row] = rows! {
    "token_embd_norm.weight" [EMBD];
    "token_embd_norm.bias" [EMBD];
};

/// Norms of queries and keys, and the norm of a model without a parallel residual.
const STABLE_NORMS: &[Row] = rows! {
    "blk.{i}.attn_q_norm.weight" [HEAD, HEADS] optional;
    "blk.{i}.attn_k_norm.weight" [HEAD, Size::KvHeads] optional;
    "blk.{i}.ffn_norm.weight" [EMBD] optional;
    "blk.{i}.ffn_norm.bias" [EMBD] optional;
};

const HEAD_NORM_BIASES: &[Row] = rows! {
    "blk.{i}.attn_q_norm.bias" [HEAD] optional;
    "blk.{i}.attn_k_norm.bias" [HEAD] optional;
};

/// What MPT may have, and no model of transformers has.
const MPT_REST: &[Row] = rows! {
    "position_embd.weight" [EMBD, CONTEXT] optional;
    "output_norm.bias" [EMBD] optional;
    "blk.{i}.attn_norm.bias" [EMBD] optional;
    "blk.{i}.attn_qkv.bias" [Size::Sum(&[EMBD, VALUES, VALUES])] optional;
    "blk.{i}.attn_q_norm.weight" [EMBD] optional;
    "blk.{i}.attn_q_norm.bias" [EMBD] optional;
    "blk.{i}.attn_k_norm.weight" [EMBD] optional;
    "blk.{i}.attn_k_norm.bias" [EMBD] optional;
    "blk.{i}.ffn_norm.bias" [EMBD] optional;
    "blk.{i}.ffn_act.scales" [FF] optional;
};

const SECOND_NORM: &[Row] = rows! {
    "blk.{i}.attn_norm_2.weight" [EMBD] optional;
    "blk.{i}.attn_norm_2.bias" [EMBD] optional;
};

/// A gate for each head.
const HEAD_GATE: &[Row] = rows! {
    "blk.{i}.attn_gate.weight" [EMBD, HEADS];
};

const WHOLE_QKV: &[Row] = rows! {
    "blk.{i}.attn_qkv.weight" [EMBD, Size::Sum(&[QUERIES, KEYS, VALUES])];
};

/// The key of the width has that of gate and projection together.
const HALF_MLP: &[Row] = rows! {
    "blk.{i}.ffn_gate.weight" [EMBD, Size::Quotient(&[FF, Size::N(2)])];
    "blk.{i}.ffn_down.weight" [Size::Quotient(&[FF, Size::N(2)]), EMBD];
    "blk.{i}.ffn_up.weight" [EMBD, Size::Quotient(&[FF, Size::N(2)])];
};

const THREE_QKV: &[Row] = rows! {
    "blk.{i}.attn_qkv.weight" [EMBD, Size::Product(&[EMBD, Size::N(3)])];
    "blk.{i}.attn_qkv.bias" [Size::Product(&[EMBD, Size::N(3)])];
};

const SWITCH_KEYS: (When, &[&str]) = (
    Always,
    &[
        "logit_scale",
        "adapters.count",
        "adapters.lora_rank",
        "adapters.token_ids_activate",
        "adapters.token_ids_substitute",
    ],
);
/// Adapters, and one of zeros.
const SLOTS: Size = Size::Sum(&[Size::Key("adapters.count"), Size::N(1)]);
const LOW_RANK: Size = Size::Key("adapters.lora_rank");

const SWITCHED: &[Row] = rows! {
    "blk.{i}.attn_q.lora_a" [EMBD, LOW_RANK, SLOTS];
    "blk.{i}.attn_q.lora_b" [LOW_RANK, QUERIES, SLOTS];
    "blk.{i}.attn_k.lora_a" [EMBD, LOW_RANK, SLOTS];
    "blk.{i}.attn_k.lora_b" [LOW_RANK, KEYS, SLOTS];
    "blk.{i}.attn_v.lora_a" [EMBD, LOW_RANK, SLOTS];
    "blk.{i}.attn_v.lora_b" [LOW_RANK, KEYS, SLOTS];
    "blk.{i}.attn_output.lora_a" [QUERIES, LOW_RANK, SLOTS];
    "blk.{i}.attn_output.lora_b" [LOW_RANK, EMBD, SLOTS];
    "blk.{i}.ffn_gate.lora_a" [EMBD, LOW_RANK, SLOTS];
    "blk.{i}.ffn_gate.lora_b" [LOW_RANK, FF, SLOTS];
    "blk.{i}.ffn_up.lora_a" [EMBD, LOW_RANK, SLOTS];
    "blk.{i}.ffn_up.lora_b" [LOW_RANK, FF, SLOTS];
    "blk.{i}.ffn_down.lora_a" [FF, LOW_RANK, SLOTS];
    "blk.{i}.ffn_down.lora_b" [LOW_RANK, EMBD, SLOTS];
};

const ALL_HEAD_NORM_BIASES: &[Row] = rows! {
    "blk.{i}.attn_q_norm.bias" [HEAD, HEADS] optional;
    "blk.{i}.attn_k_norm.bias" [HEAD, Size::KvHeads] optional;
};

const TALKIE: &[Row] = rows! {
    "blk.{i}.attn_q_norm.weight" [Size::N(1), HEADS];
    "blk.{i}.layer_output_scale.weight" [Size::N(1)];
    "blk.{i}.attn_output.scale" [Size::N(1)] optional;
    "blk.{i}.ffn_down.scale" [Size::N(1)] optional;
};

const ALL_QKV: Size = Size::Product(&[QUERIES, Size::N(3)]);

/// What CogVLM has for images, and the same for tokens as far as it is one matrix.
const COGVLM: &[Row] = rows! {
    "blk.{i}.attn_qkv.weight" [EMBD, ALL_QKV];
    "blk.{i}.vis_attn_qkv.weight" [EMBD, ALL_QKV];
    "blk.{i}.vis_attn_output.weight" [QUERIES, EMBD];
    "blk.{i}.vis_gate.weight" [EMBD, FF];
    "blk.{i}.vis_down.weight" [FF, EMBD];
    "blk.{i}.vis_up.weight" [EMBD, FF];
};

const OUT_OF_VALUES: &[Row] = rows! {
    "blk.{i}.attn_output.weight" [Size::Product(&[Size::HeadV, HEADS]), EMBD];
};

/// Layers without queries may have a projection in place of attention.
const NO_KEYS: When = When::Is(Size::KvHeads, 0);
const PLAIN_OUT: When = When::All(&[NO_KEYS, Above0(HEADS)]);
const HAS_FF: When = Above0(FF);

graphs! {
    "qwen2" [RMS] ROTATING_HEADS {
        Always => EMBEDDING MAYBE_OUTPUT OUTPUT_BIAS ATTN_NORM NARROW_QKV NARROW_OUT FFN_NORM MLP;
    }
    "qwen2vl" [RMS, SECTIONS] ROTATING_HEADS {
        Always => EMBEDDING MAYBE_OUTPUT OUTPUT_BIAS ATTN_NORM NARROW_QKV NARROW_OUT FFN_NORM MLP;
    }
    "qwen3" [RMS] ROTATING_HEADS {
        Always => EMBEDDING MAYBE_OUTPUT RANKS ATTN_NORM QKV OUT HEAD_NORMS FFN_NORM MLP;
    }
    "qwen3vl" [RMS, SECTIONS] ROTATING_HEADS {
        Always => EMBEDDING MAYBE_OUTPUT RANKS ATTN_NORM QKV OUT HEAD_NORMS FFN_NORM MLP;
    }
    "gemma" [RMS] FREE_HEADS {
        Always => EMBEDDING ATTN_NORM QKV OUT FFN_NORM MLP;
    }
    "gemma2" [RMS] FREE_HEADS {
        Always => EMBEDDING ATTN_NORM QKV OUT POST_ATTENTION_NORM FFN_NORM MLP POST_FFW_NORM;
    }
    "gemma3" [RMS] FREE_HEADS {
        Always => EMBEDDING MAYBE_OUTPUT MODULES ATTN_NORM QKV OUT POST_ATTENTION_NORM HEAD_NORMS
            FFN_NORM MLP POST_FFW_NORM;
    }
    "gemma-embedding" [RMS, WINDOW] FREE_HEADS {
        Always => EMBEDDING MAYBE_OUTPUT MODULES ATTN_NORM QKV OUT POST_ATTENTION_NORM HEAD_NORMS
            FFN_NORM MLP POST_FFW_NORM;
    }
    "gemma3n" [RMS, WINDOW] FREE_HEADS {
        Always => EMBEDDING MAYBE_OUTPUT GEMMA3N_ENDS ATTN_NORM QKV OUT HEAD_NORMS
            POST_ATTENTION_NORM FFN_NORM MLP POST_FFW_NORM GEMMA3N_LAYERS;
    }
    "glm4" [RMS] SAME_HEADS {
        Always => EMBEDDING MAYBE_OUTPUT ATTN_NORM QKV OUT POST_ATTENTION_NORM FFN_NORM FUSED_MLP
            POST_FFW_NORM;
        Predicting => PREDICTION;
    }
    "chatglm" [RMS] SAME_HEADS {
        Always => EMBEDDING MAYBE_OUTPUT ATTN_NORM QKV NARROW_OUT FFN_NORM FUSED_MLP;
    }
    "phi2" [LAYER_NORM] SAME_HEADS {
        Always => EMBEDDING OUTPUT_NORM_BIAS OUTPUT NEEDED_OUTPUT_BIAS ATTN_NORM ATTN_NORM_BIAS
            NARROW_QKV NARROW_OUT OUT_BIAS UNGATED UNGATED_BIASES;
    }
    "phi3" [RMS] SAME_HEADS {
        Always => EMBEDDING MAYBE_OUTPUT ATTN_NORM NARROW_QKV NARROW_OUT FFN_NORM FUSED_MLP
            LONG_FACTORS;
    }
    "smollm3" [RMS] ROTATING_HEADS {
        Always => EMBEDDING MAYBE_OUTPUT ATTN_NORM QKV OUT FFN_NORM MLP;
    }
    "arcee" [RMS] ROTATING_HEADS {
        Always => EMBEDDING MAYBE_OUTPUT ATTN_NORM QKV OUT FFN_NORM ROPE_FREQS UNGATED;
    }
    "olmo" [LAYER_NORM] ROTATING_HEADS {
        Always => ONLY_EMBEDDING MAYBE_OUTPUT NARROW_QKV NARROW_OUT MLP;
    }
    "olmo2" [RMS] ROTATING_HEADS {
        Always => EMBEDDING OUTPUT NARROW_QKV NARROW_OUT WIDE_NORMS POST_ATTENTION_NORM MLP
            POST_FFW_NORM;
    }
    "gpt2" | "starcoder" [LAYER_NORM] SAME_HEADS {
        Always => EMBEDDING POSITIONS OUTPUT_NORM_BIAS MAYBE_OUTPUT ATTN_NORM ATTN_NORM_BIAS
            FUSED_QKV FUSED_QKV_BIAS NARROW_OUT OUT_BIAS FFN_NORM FFN_NORM_BIAS UNGATED
            UNGATED_BIASES;
    }
    "bloom" [LAYER_NORM] SAME_HEADS {
        Always => EMBEDDING TOKEN_NORM OUTPUT_NORM_BIAS MAYBE_OUTPUT ATTN_NORM ATTN_NORM_BIAS
            FUSED_QKV FUSED_QKV_BIAS NARROW_OUT OUT_BIAS FFN_NORM FFN_NORM_BIAS UNGATED
            UNGATED_BIASES;
    }
    "mpt" [LAYER_NORM] SAME_HEADS {
        Always => EMBEDDING MAYBE_OUTPUT ATTN_NORM FUSED_QKV NARROW_OUT MAYBE_OUT_BIAS FFN_NORM UNGATED
            MAYBE_UNGATED_BIASES MPT_REST;
    }
    "gptneox" [LAYER_NORM, (Always, &["use_parallel_residual"])] SAME_HEADS {
        Always => EMBEDDING OUTPUT_NORM_BIAS OUTPUT ATTN_NORM ATTN_NORM_BIAS FUSED_QKV
            FUSED_QKV_BIAS NARROW_OUT OUT_BIAS FFN_NORM FFN_NORM_BIAS UNGATED UNGATED_BIASES;
    }
    "starcoder2" [LAYER_NORM] ROTATING_HEADS {
        Always => EMBEDDING OUTPUT_NORM_BIAS MAYBE_OUTPUT ATTN_NORM ATTN_NORM_BIAS NARROW_QKV
            NARROW_OUT OUT_BIAS FFN_NORM FFN_NORM_BIAS UNGATED UNGATED_BIASES;
    }
    "stablelm" [LAYER_NORM] SAME_HEADS {
        Always => EMBEDDING OUTPUT_NORM_BIAS OUTPUT ATTN_NORM ATTN_NORM_BIAS NARROW_QKV NARROW_OUT
            STABLE_NORMS MLP;
    }
    "exaone4" [RMS] ROTATING_HEADS {
        Always => EMBEDDING MAYBE_OUTPUT QKV NARROW_OUT ROPE_FREQS POST_ATTENTION_NORM HEAD_NORMS
            MLP POST_FFW_NORM;
        Predicting => PREDICTION;
    }
    "seed_oss" [RMS] ROTATING_HEADS {
        Always => EMBEDDING MAYBE_OUTPUT QKV OUT ATTN_NORM POST_ATTENTION_NORM MLP;
    }
    "ernie4_5" | "paddleocr" [RMS] ROTATING_HEADS {
        Always => EMBEDDING MAYBE_OUTPUT ATTN_NORM QKV OUT MAYBE_OUT_BIAS FFN_NORM MLP;
    }
    "command-r" [LAYER_NORM] SAME_HEADS {
        Always => EMBEDDING ATTN_NORM NARROW_QKV NARROW_OUT MLP;
        AtLeast(Size::Layers, 64) => ALL_HEAD_NORMS;
    }
    "cohere2" [LAYER_NORM, WINDOW, (Always, &["logit_scale"])] SAME_HEADS {
        Always => EMBEDDING ATTN_NORM NARROW_QKV NARROW_OUT MLP;
    }
    "nemotron" [LAYER_NORM] SAME_HEADS {
        Always => EMBEDDING OUTPUT_NORM_BIAS OUTPUT ATTN_NORM ATTN_NORM_BIAS NARROW_QKV NARROW_OUT
            MAYBE_OUT_BIAS FFN_NORM FFN_NORM_BIAS UNGATED MAYBE_UNGATED_BIASES;
    }
    "apertus" [RMS, (Always, &["xielu.alpha_n", "xielu.alpha_p", "xielu.beta", "xielu.eps"])] ROTATING_HEADS {
        Always => EMBEDDING OUTPUT ATTN_NORM QKV OUT MAYBE_OUT_BIAS FFN_NORM UNGATED HEAD_NORMS
            HEAD_NORM_BIASES;
        LONGROPE => LONG_FACTORS;
        Not(&LONGROPE) => ROPE_FREQS;
    }
    "falcon" [LAYER_NORM] ROTATING_HEADS {
        Always => EMBEDDING OUTPUT_NORM_BIAS MAYBE_OUTPUT ATTN_NORM ATTN_NORM_BIAS SECOND_NORM
            FUSED_QKV NARROW_OUT UNGATED;
    }
    "hunyuan-dense" | "hunyuan_vl" [RMS] ROTATING_HEADS {
        Always => EMBEDDING MAYBE_OUTPUT ATTN_NORM QKV OUT HEAD_NORMS FFN_NORM MLP;
    }
    "exaone" [RMS] ROTATING_HEADS {
        Always => EMBEDDING MAYBE_OUTPUT ATTN_NORM QKV OUT FFN_NORM ROPE_FREQS MLP;
    }
    "orion" [LAYER_NORM] ROTATING_HEADS {
        Always => EMBEDDING OUTPUT_NORM_BIAS OUTPUT ATTN_NORM ATTN_NORM_BIAS NARROW_QKV NARROW_OUT FFN_NORM
            FFN_NORM_BIAS MLP;
    }
    "jais2" [LAYER_NORM] ROTATING_HEADS {
        Always => EMBEDDING OUTPUT_NORM_BIAS MAYBE_OUTPUT ATTN_NORM ATTN_NORM_BIAS QKV OUT OUT_BIAS FFN_NORM
            FFN_NORM_BIAS UNGATED UNGATED_BIASES;
    }
    "pangu-embedded" [RMS] ROTATING_HEADS {
        Always => EMBEDDING MAYBE_OUTPUT ATTN_NORM QKV OUT OUT_BIAS FFN_NORM MLP;
        LONGROPE => LONG_FACTORS;
        Not(&LONGROPE) => ROPE_FREQS;
    }
    "maincoder" [RMS] ROTATING_HEADS {
        Always => EMBEDDING MAYBE_OUTPUT ATTN_NORM QKV OUT HEAD_NORMS FFN_NORM MLP;
    }
    "internlm2" [RMS] ROTATING_HEADS {
        Always => EMBEDDING OUTPUT ATTN_NORM NARROW_QKV NARROW_OUT FFN_NORM MLP;
    }
    "dream" [RMS] ROTATING_HEADS {
        Always => EMBEDDING MAYBE_OUTPUT OUTPUT_BIAS ATTN_NORM NARROW_QKV NARROW_OUT FFN_NORM MLP;
    }
    "nanbeige" [RMS] ROTATING_HEADS {
        Always => EMBEDDING MAYBE_OUTPUT ATTN_NORM QKV OUT ROPE_FREQS FFN_NORM MLP;
    }
    "spark2_5" [RMS, WINDOW, (Always, &["attention.sliding_window_pattern"])] SAME_HEADS {
        Always => EMBEDDING MAYBE_OUTPUT ATTN_NORM QKV HEAD_GATE OUT FFN_NORM MLP;
    }
    "llada" [RMS] ROTATING_HEADS {
        Always => EMBEDDING MAYBE_OUTPUT ATTN_NORM QKV OUT MAYBE_OUT_BIAS FFN_NORM ROPE_FREQS MLP MAYBE_MLP_BIASES;
    }
    "xverse" [RMS] ROTATING_HEADS {
        Always => EMBEDDING OUTPUT ATTN_NORM NARROW_QKV NARROW_OUT FFN_NORM MLP;
    }
    "graniteswitch" [RMS, SWITCH_KEYS] FREE_HEADS {
        Always => EMBEDDING MAYBE_OUTPUT ATTN_NORM WHOLE_QKV OUT FFN_NORM MLP SWITCHED;
    }
    "chameleon" [RMS] ROTATING_HEADS {
        Always => EMBEDDING MAYBE_OUTPUT ATTN_NORM ALL_HEAD_NORMS ALL_HEAD_NORM_BIASES NARROW_QKV NARROW_OUT
            FFN_NORM MLP;
    }
    "talkie" [RMS, (Always, &["logit_scale"])] ROTATING_HEADS {
        Always => ONLY_EMBEDDING OUTPUT QKV OUT TALKIE MLP;
    }
    "cogvlm" [RMS] ROTATING_HEADS {
        Always => EMBEDDING MAYBE_OUTPUT ATTN_NORM OUT COGVLM ROPE_FREQS FFN_NORM MLP;
    }
    "plamo" [RMS] ROTATING_HEADS {
        Always => EMBEDDING OUTPUT ATTN_NORM NARROW_QKV NARROW_OUT MLP;
    }
    "plamo3" [RMS] FREE_HEADS {
        Always => EMBEDDING MAYBE_OUTPUT ATTN_NORM WHOLE_QKV OUT_OF_VALUES HEAD_NORMS BARE_NORMS FFN_NORM
            FUSED_MLP;
    }
    "deci" [RMS] ROTATING_HEADS {
        Always => EMBEDDING MAYBE_OUTPUT MAYBE_OUT_BIAS MAYBE_MLP_BIASES;
        Above0(HEADS) => ATTN_NORM;
        PLAIN_OUT => NARROW_OUT;
        Above0(Size::KvHeads) => QKV OUT;
        HAS_FF => FFN_NORM MLP;
        LONGROPE => LONG_FACTORS;
        Not(&LONGROPE) => ROPE_FREQS;
    }
    "openelm" [RMS] SAME_HEADS {
        Always => EMBEDDING ATTN_NORM WHOLE_QKV HEAD_NORMS OUT FFN_NORM MLP;
    }
    "qwen" [RMS] SAME_HEADS {
        Always => EMBEDDING OUTPUT ATTN_NORM THREE_QKV NARROW_OUT FFN_NORM HALF_MLP;
    }
    "muse-glimmer" [RMS, WINDOW, (Always, &["logit_scale"])] SAME_HEADS {
        Always => EMBEDDING OUTPUT ATTN_NORM QKV OUT POST_ATTENTION_NORM HEAD_NORMS VALUE_GATE FFN_NORM MLP
            POST_FFW_NORM;
    }
    "codeshell" [LAYER_NORM] ROTATING_HEADS {
        Always => MAYBE_EMBEDDING OUTPUT_NORM_BIAS OUTPUT ATTN_NORM ATTN_NORM_BIAS NARROW_QKV NARROW_OUT
            OUT_BIAS FFN_NORM FFN_NORM_BIAS UNGATED UNGATED_BIASES;
    }
    "baichuan" [RMS] ROTATING_HEADS {
        Always => EMBEDDING OUTPUT ATTN_NORM NARROW_QKV NARROW_OUT FFN_NORM MLP;
    }
}

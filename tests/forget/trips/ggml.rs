//! GGUF block types.

use super::{Case, Columns, FP4, Importance, Near, Nothing, Refused, Values, Whole};

pub const TABLE: &[Case] = &[
    // Types with one scale, whose largest code occurs in every block.
    ("gguf", "q1_0", "gguf:q1_0", 0, Columns(128), Values),
    ("gguf", "tq1_0", "gguf:tq1_0", 0, Columns(256), Values),
    ("gguf", "mxfp4", "gguf:mxfp4", 0, Columns(32), Values),
    // Half a step; a whole step opposite the extreme, where the last code is missing.
    ("gguf", "q4_0", "gguf:q4_0", 0, Columns(32), Near(1.01 / 8.0)),
    ("gguf", "q5_0", "gguf:q5_0", 0, Columns(32), Near(1.01 / 16.0)),
    ("gguf", "q4_1", "gguf:q4_1", 0, Columns(32), Near(1.03 / 15.0)),
    ("gguf", "q5_1", "gguf:q5_1", 0, Columns(32), Near(1.06 / 31.0)),
    ("gguf", "q8_0", "gguf:q8_0", 0, Columns(32), Near(0.5 / 127.0 + 1.0 / 2048.0)),
    ("gguf", "q8_1", "gguf:q8_1", 0, Columns(32), Near(0.5 / 127.0 + 1.0 / 2048.0)),
    ("gguf", "q8_k", "gguf:q8_k", 0, Columns(256), Near(0.501 / 127.0)),
    ("gguf", "q2_0", "gguf:q2_0", 0, Columns(64), Near(0.51)),
    ("gguf", "tq2_0", "gguf:tq2_0", 0, Columns(256), Near(0.51)),
    ("gguf", "nvfp4", "gguf:nvfp4", 0, Columns(16), FP4),
    // Half of the largest step of the codebook, 24 of 127.
    ("gguf", "iq4_nl", "gguf:iq4_nl", 0, Columns(32), Near(13.0 / 127.0)),
    ("gguf", "iq4_xs", "gguf:iq4_xs", 0, Columns(256), Near(13.0 / 127.0)),
    // One step of the sub-block with the largest scale.
    ("gguf", "q2_k", "gguf:q2_k", 0, Columns(256), Near(2.0 / 3.0)),
    ("gguf", "q3_k", "gguf:q3_k_s", 0, Columns(256), Near(1.0 / 4.0)),
    ("gguf", "q4_k", "gguf:q4_k_s", 0, Columns(256), Near(2.0 / 15.0)),
    ("gguf", "q5_k", "gguf:q5_k_s", 0, Columns(256), Near(2.0 / 31.0)),
    ("gguf", "q6_k", "gguf:q6_k", 0, Columns(256), Near(1.0 / 32.0)),
    ("gguf", "iq3_s", "gguf:iq3_s", 0, Columns(256), Near(1.0 / 4.0)),
    ("gguf", "iq3_xxs", "gguf:iq3_xxs", 0, Whole, Importance),
    ("gguf", "iq2_s", "gguf:iq2_m", 0, Whole, Importance),
    ("gguf", "iq2_xs", "gguf:iq2_xs", 0, Whole, Importance),
    ("gguf", "iq2_xxs", "gguf:iq2_xxs", 0, Whole, Importance),
    ("gguf", "iq1_s", "gguf:iq1_s", 0, Whole, Importance),
    ("gguf", "iq1_m", "gguf:iq1_m", 0, Whole, Importance),
    ("gguf", "nvfp4_scale", "gguf:nvfp4", 0, Whole, Refused),
    ("gguf", "unquantized", "gguf:q8_0", 0, Whole, Nothing),
];

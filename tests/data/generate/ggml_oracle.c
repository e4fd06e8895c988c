// ggml's scalar reference dequantizers as a shared library for ggml.py, which compiles this file itself:
//
//   cc -shared -fPIC -O1 -ffp-contract=off -fno-fast-math -I$GGML_SRC/include -I$GGML_SRC/src \
//      -o libggml_oracle.so ggml_oracle.c -lm
//
// GGML_SRC is a checkout of ggml. No -march: without FMA and F16C there is nothing that could contract, and the F16
// conversion is ggml_compute_fp16_to_fp32 in plain C.

#include "ggml-quants.c"

#include <stdarg.h>

// What the rest of ggml-quants.c (quantizing, validation) wants from ggml.c. Never reached.
void ggml_abort(const char * file, int line, const char * fmt, ...) {
    (void) fmt;
    fprintf(stderr, "%s:%d\n", file, line);
    abort();
}
size_t ggml_row_size(enum ggml_type type, int64_t ne) { (void) type; (void) ne; abort(); }
size_t ggml_type_size(enum ggml_type type) { (void) type; abort(); }
const char * ggml_type_name(enum ggml_type type) { (void) type; abort(); }

float oracle_f16(uint16_t h) { return GGML_FP16_TO_FP32(h); }

// Elements and bytes of a block; false for a type without blocks.
int oracle_block(int type, int64_t * elements, int64_t * bytes) {
    switch (type) {
#define TYPE(id, name, qk) case id: *elements = qk; *bytes = sizeof(block_##name); return 1;
#define TYPES \
    TYPE(GGML_TYPE_Q4_0, q4_0, QK4_0) TYPE(GGML_TYPE_Q4_1, q4_1, QK4_1) TYPE(GGML_TYPE_Q5_0, q5_0, QK5_0) \
    TYPE(GGML_TYPE_Q5_1, q5_1, QK5_1) TYPE(GGML_TYPE_Q8_0, q8_0, QK8_0) TYPE(GGML_TYPE_Q2_K, q2_K, QK_K) \
    TYPE(GGML_TYPE_Q3_K, q3_K, QK_K) TYPE(GGML_TYPE_Q4_K, q4_K, QK_K) TYPE(GGML_TYPE_Q5_K, q5_K, QK_K) \
    TYPE(GGML_TYPE_Q6_K, q6_K, QK_K) TYPE(GGML_TYPE_Q8_K, q8_K, QK_K) TYPE(GGML_TYPE_IQ2_XXS, iq2_xxs, QK_K) \
    TYPE(GGML_TYPE_IQ2_XS, iq2_xs, QK_K) TYPE(GGML_TYPE_IQ2_S, iq2_s, QK_K) TYPE(GGML_TYPE_IQ3_XXS, iq3_xxs, QK_K) \
    TYPE(GGML_TYPE_IQ3_S, iq3_s, QK_K) TYPE(GGML_TYPE_IQ1_S, iq1_s, QK_K) TYPE(GGML_TYPE_IQ1_M, iq1_m, QK_K) \
    TYPE(GGML_TYPE_IQ4_NL, iq4_nl, QK4_NL) TYPE(GGML_TYPE_IQ4_XS, iq4_xs, QK_K) TYPE(GGML_TYPE_TQ1_0, tq1_0, QK_K) \
    TYPE(GGML_TYPE_TQ2_0, tq2_0, QK_K) TYPE(GGML_TYPE_MXFP4, mxfp4, QK_MXFP4) TYPE(GGML_TYPE_NVFP4, nvfp4, QK_NVFP4) \
    TYPE(GGML_TYPE_Q1_0, q1_0, QK1_0) TYPE(GGML_TYPE_Q2_0, q2_0, QK2_0)
    TYPES
#undef TYPE
    // No dequantizer in ggml: see oracle_dequantize.
    case GGML_TYPE_Q8_1: *elements = QK8_1; *bytes = sizeof(block_q8_1); return 1;
    default: return 0;
    }
}

int oracle_dequantize(int type, const void * x, float * y, int64_t k) {
    switch (type) {
#define TYPE(id, name, qk) case id: dequantize_row_##name(x, y, k); return 1;
    TYPES
#undef TYPE
    // The block is a block_q8_0 with the field `s` (for dot products) behind `d`; y = d * qs as quantize_row_q8_1_ref
    // has it. So s is cut out.
    case GGML_TYPE_Q8_1:
        for (int64_t i = 0; i < k / QK8_1; ++i) {
            const block_q8_1 * b = (const block_q8_1 *) x + i;
            block_q8_0 c;
            c.d = b->d;
            memcpy(c.qs, b->qs, sizeof(c.qs));
            dequantize_row_q8_0(&c, y + i * QK8_1, QK8_0);
        }
        return 1;
    default: return 0;
    }
}

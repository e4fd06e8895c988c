// ggml's quantizers as a shared library for ggml_encode.py, which compiles this file itself:
//
//   cc -shared -fPIC -O2 -DNDEBUG -ffp-contract=off -fno-fast-math -I$GGML_SRC/include -I$GGML_SRC/src \
//      -o libggml_encode.so ggml_encode.c -lm
//
// GGML_SRC is a checkout of ggml. No -march, as ggml-base has none on x86-64: there is no FMA that could contract. NDEBUG as in
// its release builds.

#include "ggml-quants.c"

#include <stdarg.h>

// Types that ggml_quantize_chunk takes: name, values of a block.
#define TYPES \
    TYPE(GGML_TYPE_Q4_0, q4_0, QK4_0) TYPE(GGML_TYPE_Q4_1, q4_1, QK4_1) TYPE(GGML_TYPE_Q5_0, q5_0, QK5_0) \
    TYPE(GGML_TYPE_Q5_1, q5_1, QK5_1) TYPE(GGML_TYPE_Q8_0, q8_0, QK8_0) TYPE(GGML_TYPE_Q2_K, q2_K, QK_K) \
    TYPE(GGML_TYPE_Q3_K, q3_K, QK_K) TYPE(GGML_TYPE_Q4_K, q4_K, QK_K) TYPE(GGML_TYPE_Q5_K, q5_K, QK_K) \
    TYPE(GGML_TYPE_Q6_K, q6_K, QK_K) TYPE(GGML_TYPE_IQ2_XXS, iq2_xxs, QK_K) TYPE(GGML_TYPE_IQ2_XS, iq2_xs, QK_K) \
    TYPE(GGML_TYPE_IQ2_S, iq2_s, QK_K) TYPE(GGML_TYPE_IQ3_XXS, iq3_xxs, QK_K) TYPE(GGML_TYPE_IQ3_S, iq3_s, QK_K) \
    TYPE(GGML_TYPE_IQ1_S, iq1_s, QK_K) TYPE(GGML_TYPE_IQ1_M, iq1_m, QK_K) TYPE(GGML_TYPE_IQ4_NL, iq4_nl, QK4_NL) \
    TYPE(GGML_TYPE_IQ4_XS, iq4_xs, QK_K) TYPE(GGML_TYPE_TQ1_0, tq1_0, QK_K) TYPE(GGML_TYPE_TQ2_0, tq2_0, QK_K) \
    TYPE(GGML_TYPE_MXFP4, mxfp4, QK_MXFP4) TYPE(GGML_TYPE_NVFP4, nvfp4, QK_NVFP4) TYPE(GGML_TYPE_Q1_0, q1_0, QK1_0) \
    TYPE(GGML_TYPE_Q2_0, q2_0, QK2_0)
// Types of activations, which have a reference only.
#define REFERENCES TYPE(GGML_TYPE_Q8_1, q8_1, QK8_1) TYPE(GGML_TYPE_Q8_K, q8_K, QK_K)

// What ggml-quants.c wants from ggml.c.
void ggml_abort(const char * file, int line, const char * fmt, ...) {
    (void) fmt;
    fprintf(stderr, "%s:%d\n", file, line);
    abort();
}
size_t ggml_type_size(enum ggml_type type) {
    switch (type) {
#define TYPE(id, name, qk) case id: return sizeof(block_##name);
    TYPES REFERENCES
#undef TYPE
    default: abort();
    }
}
size_t ggml_row_size(enum ggml_type type, int64_t ne) {
    switch (type) {
#define TYPE(id, name, qk) case id: return ne / qk * sizeof(block_##name);
    TYPES REFERENCES
#undef TYPE
    default: abort();
    }
}
const char * ggml_type_name(enum ggml_type type) { (void) type; abort(); }

int64_t encode_row_size(int type, int64_t cols) { return ggml_row_size(type, cols); }

// As ggml_quantize_init.
static void init(int type) {
    switch (type) {
        case GGML_TYPE_IQ2_XXS:
        case GGML_TYPE_IQ2_XS:
        case GGML_TYPE_IQ2_S:
        case GGML_TYPE_IQ1_S:
        case GGML_TYPE_IQ1_M:   iq2xs_init_impl(type); break;
        case GGML_TYPE_IQ3_XXS: iq3xs_init_impl(256); break;
        case GGML_TYPE_IQ3_S:   iq3xs_init_impl(512); break;
        default: break;
    }
}

// As ggml_quantize_chunk: whole rows, and the importance of each column or NULL. Returns the bytes written.
int64_t encode_rows(int type, const float * src, void * dst, int64_t rows, int64_t cols, const float * importance) {
    init(type);
    switch (type) {
#define TYPE(id, name, qk) case id: return quantize_##name(src, dst, rows, cols, importance);
    TYPES
#undef TYPE
#define TYPE(id, name, qk) case id: quantize_row_##name##_ref(src, dst, rows * cols); return rows * ggml_row_size(id, cols);
    REFERENCES
#undef TYPE
    default: return -1;
    }
}

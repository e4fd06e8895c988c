// ik_llama.cpp's scalar dequantizers and its quantizers as a shared library for ik_llama.py, which compiles this file
// itself, together with ggml/src/ggml-quants.c:
//
//   cc  -c -fPIC -w -O1 -march=x86-64-v3 -ffp-contract=off -I$IK/include -I$IK/src $IK/src/ggml-quants.c
//   c++ -shared -fPIC -w -std=c++17 -O1 -march=x86-64-v3 -ffp-contract=off -I$IK/include -I$IK/src -I$IK/src/iqk \
//       -DGGML_USE_IQK_MULMAT=1 -o libik_oracle.so ik_oracle.cpp ggml-quants.o
//
// $IK is the directory `ggml` of a checkout. iqk_quantize.cpp takes AVX2 for granted on x86-64; the dequantizers are plain
// C++ all the same, and nothing contracts their products and sums.

#include "iqk/iqk_quantize.cpp"

#include <cstdarg>

// What the rest of the sources wants from ggml.c.
extern "C" {
float ggml_table_f32_f16[1 << 16];

void ggml_abort(const char * file, int line, const char * fmt, ...) {
    (void) fmt;
    fprintf(stderr, "%s:%d\n", file, line);
    abort();
}
float ggml_bf16_to_fp32(ggml_bf16_t) { abort(); }
bool ggml_is_contiguous(const struct ggml_tensor *) { abort(); }
int64_t ggml_nrows(const struct ggml_tensor *) { abort(); }
const char * ggml_type_name(enum ggml_type) { abort(); }
bool iqk_mul_mat(long, long, long, int, const void *, long, int, const void *, long, float *, long, int, int) { abort(); }
}

struct Type {
    int64_t values, bytes, header;
};

// `F`: a row's header is skipped by the caller. Its size is that of `row_meta_size` in ggml.c, which ik_llama.py checks.
#define TYPES(X) \
    X(Q6_0, q6_0, QK6_0, 0, block) X(IQ1_BN, iq1_bn, QK_IQ1BN, 2, half) X(IQ2_BN, iq2_bn, QK_IQ1BN, 4, single) \
    X(IQ2_K, iq2_k, QK_K, 0, block) X(IQ3_K, iq3_k, QK_K, 0, block) X(IQ4_K, iq4_k, QK_K, 0, block) \
    X(IQ5_K, iq5_k, QK_K, 0, block) X(IQ6_K, iq6_k, QK_K, 0, block) X(IQ4_KS, iq4_ks, QK_K, 4, block) \
    X(IQ2_KS, iq2_ks, QK_K, 2, block) X(IQ4_KSS, iq4_kss, QK_K, 4, block) X(IQ5_KS, iq5_ks, QK_K, 4, block) \
    X(IQ2_KT, iq2_kt, QK_K, 4, block) X(IQ3_KT, iq3_kt, QK_K, 4, block) X(IQ4_KT, iq4_kt, QK_K, 4, block) \
    X(IQ3_KS, iq3_ks, QK_K, 2, block) X(IQ2_KL, iq2_kl, QK_K, 2, block) X(IQ1_KT, iq1_kt, QK_K, 4, block)

// Types whose rows are interleaved, with the type of the rows. `repack_*` of iqk_quantize.cpp interleaves them.
#define REPACKED(X) \
    X(Q4_0_R8, q4_0_r8, block_iq4_nl_r8, 8, Q4_0, q4_0, QK4_0) X(Q5_0_R4, q5_0_r4, block_q5_0_r4, 4, Q5_0, q5_0, QK5_0) \
    X(Q8_0_R8, q8_0_r8, block_q8_0_r8, 8, Q8_0, q8_0, QK8_0) X(Q2_K_R4, q2_k_r4, block_q2_k_r4, 4, Q2_K, q2_K, QK_K) \
    X(Q3_K_R4, q3_k_r4, block_q3_k_r4, 4, Q3_K, q3_K, QK_K) X(Q4_K_R4, q4_k_r4, block_q4_k_r4, 4, Q4_K, q4_K, QK_K) \
    X(Q5_K_R4, q5_k_r4, block_q5_k_r4, 4, Q5_K, q5_K, QK_K) X(Q6_K_R4, q6_k_r4, block_q6_k_r4, 4, Q6_K, q6_K, QK_K) \
    X(IQ2_XXS_R4, iq2_xxs_r4, block_iq2_xxs_r4, 4, IQ2_XXS, iq2_xxs, QK_K) \
    X(IQ2_XS_R4, iq2_xs_r4, block_iq2_xs_r4, 4, IQ2_XS, iq2_xs, QK_K) \
    X(IQ3_XXS_R4, iq3_xxs_r4, block_iq3_xxs_r4, 4, IQ3_XXS, iq3_xxs, QK_K) \
    X(IQ4_NL_R4, iq4_nl_r4, block_iq4_nl_r4, 4, IQ4_NL, iq4_nl, QK4_NL) \
    X(IQ3_S_R4, iq3_s_r4, block_iq3_s_r4, 4, IQ3_S, iq3_s, QK_K) X(IQ2_S_R4, iq2_s_r4, block_iq2_s_r4, 4, IQ2_S, iq2_s, QK_K) \
    X(IQ4_XS_R8, iq4_xs_r8, block_iq4_xs_r8, 8, IQ4_XS, iq4_xs, QK_K) X(Q6_0_R4, q6_0_r4, block_q6_0_r4, 4, Q6_0, q6_0, QK6_0) \
    X(IQ2_K_R4, iq2_k_r4, block_iq2_k_r4, 4, IQ2_K, iq2_k, QK_K) X(IQ3_K_R4, iq3_k_r4, block_iq3_k_r4, 4, IQ3_K, iq3_k, QK_K) \
    X(IQ4_K_R4, iq4_k_r4, block_iq4_k_r4, 4, IQ4_K, iq4_k, QK_K) X(IQ5_K_R4, iq5_k_r4, block_iq5_k_r4, 4, IQ5_K, iq5_k, QK_K) \
    X(IQ4_KS_R4, iq4_ks_r4, block_iq4_ks_r4, 4, IQ4_KS, iq4_ks, QK_K) \
    X(IQ5_KS_R4, iq5_ks_r4, block_iq5_ks_r4, 4, IQ5_KS, iq5_ks, QK_K) X(MXFP4_R8, mxfp4_r8, block_mxfp4_r8, 8, MXFP4, mxfp4, QK_MXFP4) \
    X(Q8_K_R8, q8_k_r8, block_q8_k_r8, 8, Q8_K, q8_K, QK_K) X(IQ2_BN_R4, iq2_bn_r4, block_iq2_bn, 4, IQ2_BN, iq2_bn, QK_IQ1BN)

// Types of rows that are interleaved which the list above has not, with the header.
#define BASES(X) X(Q4_0, q4_0, QK4_0) X(Q5_0, q5_0, QK5_0) X(Q8_0, q8_0, QK8_0) X(Q2_K, q2_K, QK_K) X(Q3_K, q3_K, QK_K) \
    X(Q4_K, q4_K, QK_K) X(Q5_K, q5_K, QK_K) X(Q6_K, q6_K, QK_K) X(IQ2_XXS, iq2_xxs, QK_K) X(IQ2_XS, iq2_xs, QK_K) \
    X(IQ3_XXS, iq3_xxs, QK_K) X(IQ4_NL, iq4_nl, QK4_NL) X(IQ3_S, iq3_s, QK_K) X(IQ2_S, iq2_s, QK_K) X(IQ4_XS, iq4_xs, QK_K) \
    X(MXFP4, mxfp4, QK_MXFP4) X(Q8_K, q8_K, QK_K)

static Type type_of(int id) {
    switch (id) {
#define BASE(ID, name, qk) case GGML_TYPE_##ID: return { qk, sizeof(block_##name), 0 };
        BASES(BASE)
#undef BASE
#define TYPE(ID, name, block, rows, base, base_name, qk) \
    case GGML_TYPE_##ID: return { qk, (int64_t) (GGML_TYPE_##ID == GGML_TYPE_IQ2_BN_R4 ? sizeof(block) : sizeof(block) / rows), \
        type_of(GGML_TYPE_##base).header };
        REPACKED(TYPE)
#undef TYPE
#define TYPE(ID, name, qk, header, scale) case GGML_TYPE_##ID: return { qk, sizeof(block_##name), header };
        TYPES(TYPE)
#undef TYPE
        case GGML_TYPE_Q8_KV: return { 32, 32, 8 };
        default: return { 0, 0, 0 };
    }
}

extern "C" size_t ggml_row_size(enum ggml_type type, int64_t ne) {
    Type t = type_of(type);
    if (!t.values) abort();
    return t.header + ne / t.values * t.bytes;
}
extern "C" size_t ggml_type_size(enum ggml_type type) { return type_of(type).bytes; }

// Of IQ1_BN and IQ2_BN the dequantizers begin with the blocks, and know nothing of the scale of the row. Products of
// matrices multiply by it.
template <typename Block> static void scaled(void (*rows)(const Block *, float *, int64_t), float d, const char * blocks,
                                             float * y, int64_t k) {
    rows((const Block *) blocks, y, k);
    for (int64_t i = 0; i < k; ++i) y[i] = d * y[i];
}

extern "C" int oracle_number(const char * name) {
#define TYPE(ID, lower, qk, header, scale) if (!strcmp(name, #ID)) return GGML_TYPE_##ID;
    TYPES(TYPE)
#undef TYPE
    return strcmp(name, "Q8_KV") ? -1 : GGML_TYPE_Q8_KV;
}

extern "C" void oracle_type(int id, int64_t * sizes) {
    Type t = type_of(id);
    sizes[0] = t.values, sizes[1] = t.bytes, sizes[2] = t.header;
}

// One row of `k` values.
extern "C" int oracle_dequantize(int id, const char * x, float * y, int64_t k) {
    switch (id) {
#define row_block(name) dequantize_row_##name((const block_##name *) x, y, k)
#define row_half(name) scaled(dequantize_row_##name, GGML_FP16_TO_FP32(*(const ggml_half *) x), x + 2, y, k)
#define row_single(name) scaled(dequantize_row_##name, *(const float *) x, x + 4, y, k)
#define TYPE(ID, name, qk, header, scale) case GGML_TYPE_##ID: row_##scale(name); return 1;
        TYPES(TYPE)
#undef TYPE
        case GGML_TYPE_Q8_KV: dequantize_row_q8_KV(x, y, k); return 1;
#define BASE(ID, name, qk) case GGML_TYPE_##ID: dequantize_row_##name((const block_##name *) x, y, k); return 1;
        BASES(BASE)
#undef BASE
        default: return 0;
    }
}

// The type of the rows that are interleaved in type `id`, and how many.
extern "C" int oracle_repacked(const char * name, int * numbers) {
#define TYPE(ID, lower, block, rows, base, base_name, qk) \
    if (!strcmp(name, #ID)) { numbers[0] = GGML_TYPE_##ID, numbers[1] = GGML_TYPE_##base, numbers[2] = rows; return 1; }
    REPACKED(TYPE)
#undef TYPE
    return 0;
}

// Interleaves `rows` rows of type `base`.
extern "C" void oracle_repack(int base, int rows, int k, const char * x, char * y) {
    get_repack_info((ggml_type) base)->repack(rows, k, x, y, false);
}

// As many rows of `k` values as are interleaved, decoded as they are.
extern "C" int oracle_dequantize_repacked(int id, const char * x, float * y, int64_t k) {
    switch (id) {
#define TYPE(ID, lower, block, rows, base, base_name, qk) \
    case GGML_TYPE_##ID: dequantize_row_##lower((const block *) x, y, rows * k); return 1;
        REPACKED(TYPE)
#undef TYPE
        // No other type has rows of these, or rows with such a header.
        case GGML_TYPE_IQ1_S_R4: dequantize_row_iq1_s_r4((const block_iq1_s_r4 *) x, y, 4 * k); return 1;
        case GGML_TYPE_IQ1_M_R4: dequantize_row_iq1_m_r4((const block_iq1_m_r4 *) x, y, 4 * k); return 1;
        case GGML_TYPE_Q8_KV_R8: dequantize_row_q8_KV_r8(x, y, 8 * k); return 1;
        default: return 0;
    }
}

extern "C" int oracle_quantize(int id, const float * x, void * y, int64_t rows, int64_t k) {
    switch (id) {
        case GGML_TYPE_Q6_0: quantize_q6_0(x, y, rows, k, nullptr, nullptr); return 1;
        case GGML_TYPE_Q8_KV: quantize_q8_KV(x, y, rows, k, nullptr, nullptr); return 1;
#define TYPE(name, lower) case GGML_TYPE_##name: quantize_##lower(x, y, rows, k, nullptr, nullptr); return 1;
        TYPE(IQ1_BN, iq1_bn) TYPE(IQ2_BN, iq2_bn) TYPE(IQ2_K, iq2_k) TYPE(IQ3_K, iq3_k) TYPE(IQ4_K, iq4_k)
        TYPE(IQ5_K, iq5_k) TYPE(IQ6_K, iq6_k) TYPE(IQ4_KS, iq4_ks) TYPE(IQ2_KS, iq2_ks) TYPE(IQ4_KSS, iq4_kss)
        TYPE(IQ5_KS, iq5_ks) TYPE(IQ2_KT, iq2_kt) TYPE(IQ3_KT, iq3_kt) TYPE(IQ4_KT, iq4_kt) TYPE(IQ3_KS, iq3_ks)
        TYPE(IQ2_KL, iq2_kl) TYPE(IQ1_KT, iq1_kt)
#undef TYPE
        default: return 0;
    }
}

// The table is what ggml_init fills.
__attribute__((constructor)) static void fill_table() {
    for (int i = 0; i < 1 << 16; ++i) ggml_table_f32_f16[i] = GGML_COMPUTE_FP16_TO_FP32((ggml_fp16_t) i);
}

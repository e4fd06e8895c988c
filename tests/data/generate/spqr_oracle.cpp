// SpQR's own decoder and packer for the CPU as a shared library for spqr_cases.py, which copies them out of the library's sources
// into spqr_host.inc and compiles this file itself:
//
//   c++ -shared -fPIC -w -std=c++20 -O1 -mf16c -o libspqr.so spqr_oracle.cpp
//
// What they take from CUDA and torch is below: halves whose operations are rounded to nearest, and tensors that are pointers.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <type_traits>
#include <vector>

#define __host__
#define __device__
#define __forceinline__ inline
#define TORCH_CHECK(...)

struct half {
    _Float16 v;
    explicit operator int() const { return (int) (float) v; }
};
typedef half __half;
struct half2 {
    half x, y;
};
static half __float2half_rn(float x) { return { (_Float16) x }; }
// Only of small integers, which are halves.
static half __float2half_rd(float x) { return { (_Float16) x }; }
static float __half2float(half x) { return (float) x.v; }
static half operator-(half a, half b) { return __float2half_rn(__half2float(a) - __half2float(b)); }
static half operator*(half a, half b) { return __float2half_rn(__half2float(a) * __half2float(b)); }

namespace torch {
struct Tensor {
    void * data = nullptr;
    long count = 0;
    void * data_ptr() const { return data; }
    template <typename T> T * data_ptr() const { return (T *) data; }
    std::vector<long> sizes() const { return { count }; }
};
}

#include "spqr_host.inc"

// `codes`: W, W_s, W_z; `numbers`: W_s_s, W_s_z, W_z_s, W_z_z.
extern "C" void oracle_compress(int m, int n, void ** codes, void ** numbers, void * row_offsets, void * offsets_out,
                                void * col_vals, void * col_vals_out, int is_ptcsr, void * out) {
    auto t = [](void * data) { return torch::Tensor { data }; };
    tensor_compress_interleaved(m, n, 3, t(codes[0]), 16, 16, t(codes[1]), t(codes[2]), t(numbers[0]), t(numbers[1]), t(numbers[2]),
                                t(numbers[3]), t(row_offsets), t(offsets_out), t(col_vals), t(col_vals_out), is_ptcsr, t(out));
}

extern "C" void oracle_dequantize(int m, int n, void * words, void * offsets, long offset_count, void * col_vals, int nnz, void * out) {
    dequantize_compressed(m, n, 3, 16, 16, { words }, { offsets, offset_count }, { col_vals }, nnz, { out });
}

// exllamav2's own kernels for exl2_cases.py, run on the CPU. The script copies them out of the installed package into exl2_host.inc
// and compiles this file itself:
//
//   c++ -shared -fPIC -w -std=c++20 -O1 -ffp-contract=off -mf16c -I <directory of exl2_host.inc> -o libexl2.so exl2_oracle.cpp
//
// What the kernels take from CUDA is below: halves, of which each operation is rounded once to nearest, and threads that run one
// after the other.

#include <algorithm>
#include <cstdint>

using std::min;

#define __global__
#define __device__
#define __forceinline__ inline
#define __restrict__
// A thread of the first pass ends here, when it has written its part of the block's shared memory.
#define __shared__ static
#define __syncthreads() if (is_first_pass) return

static bool is_first_pass;
struct Index { int x, y; };
static Index blockIdx, threadIdx;

struct half { _Float16 v; };
struct half2 { half x, y; };

// The F64 of a product of two halves is exact, and so is its sum with a third, but where the terms are 2^40 apart: there is no such
// sum here.
static half rounded(double v) { return { (_Float16) v }; }
static half __float2half_rn(float v) { return { (_Float16) v }; }
static half __int2half_rn(int v) { return rounded(v); }
static half __hmul(half a, half b) { return rounded((double) a.v * (double) b.v); }
static half __hsub(half a, half b) { return rounded((double) a.v - (double) b.v); }
static float __half2float(half a) { return (float) a.v; }
static half __low2half(half2 a) { return a.x; }
static half __high2half(half2 a) { return a.y; }
static half2 __halves2half2(half x, half y) { return { x, y }; }
static half2 __half2half2(half a) { return { a, a }; }
static half2 __hmul2(half2 a, half2 b) { return { __hmul(a.x, b.x), __hmul(a.y, b.y) }; }
static half2 __hadd2(half2 a, half2 b) {
    return { rounded((double) a.x.v + (double) b.x.v), rounded((double) a.y.v + (double) b.y.v) };
}
static half2 __hfma2(half2 a, half2 b, half2 c) {
    return { rounded((double) a.x.v * (double) b.x.v + (double) c.x.v), rounded((double) a.y.v * (double) b.y.v + (double) c.y.v) };
}
static uint32_t __funnelshift_rc(uint32_t low, uint32_t high, uint32_t shift) {
    return (uint32_t) (((uint64_t) high << 32 | low) >> min(shift, 32u));
}

#include "exl2_host.inc"

// Shuffles `words` in place, and writes `out` `[in, out]`. `rows`: the ends of the rows of 8, 6, 5, 4, 3 and 2 bits.
extern "C" void oracle_reconstruct(uint32_t * words, const uint16_t * perm, const uint32_t * scales, const half * maxima,
                                   const uint16_t * group_map, int k, int n, int groups, const int * rows, half * out) {
    for (blockIdx = { 0, 0 }; blockIdx.x * THREADS_X < n; blockIdx.x++)
        for (threadIdx = { 0, 0 }; threadIdx.x < THREADS_X; threadIdx.x++)
            shuffle_kernel(words, k, n, rows[0], rows[1], rows[2], rows[3], rows[4], rows[5]);
    for (blockIdx.y = 0; blockIdx.y * BLOCK_KN_SIZE < k; blockIdx.y++)
        for (blockIdx.x = 0; blockIdx.x * BLOCK_KN_SIZE < n; blockIdx.x++)
            for (bool first : { true, false }) {
                is_first_pass = first;
                for (threadIdx = { 0, 0 }; threadIdx.x < BLOCK_KN_SIZE; threadIdx.x++)
                    reconstruct_kernel(words, perm, scales, maxima, group_map, k, n, groups, out, rows[0], rows[1], rows[2], rows[3],
                                       rows[4], rows[5], 0, k);
            }
}

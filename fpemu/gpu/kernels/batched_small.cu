// magma-small: a thread for each element of D, a chain of fused multiply-adds in k, the sizes known to the compiler. No
// matrix instruction. Half-complex elements go through the four real products at every k, in the paper's order.
//
// Config, besides what batched_sizes.cuh needs:
//   THREADS    of a thread block
//   M, N, K    of the products
#include "batched_warp.cuh"

#if FPEMU_HALF_SUMS
typedef u32 Entry;  // an fp16 code
FPEMU_FUNCTION Entry number_of(u32 half) { return half; }
FPEMU_FUNCTION float value_of(Entry x) { return value_of_half(x); }
FPEMU_FUNCTION Entry multiply_add(Entry a, Entry b, Entry c) {
#ifdef __CUDACC__
  unsigned short d;
  asm("fma.rn.f16 %0, %1, %2, %3;" : "=h"(d) : "h"((unsigned short)a), "h"((unsigned short)b), "h"((unsigned short)c));
  return d;
#else
  const __float128 exact = (__float128)value_of_half(a) * value_of_half(b) + value_of_half(c);
  const _Float16 d = (_Float16)exact;
  u16 code;
  return __builtin_memcpy(&code, &d, 2), d != d ? 0x7FFF : code;
#endif
}
#else
typedef float Entry;
FPEMU_FUNCTION Entry number_of(u32 half) { return value_of_half(half); }
FPEMU_FUNCTION float value_of(Entry x) { return x; }
FPEMU_FUNCTION Entry multiply_add(Entry a, Entry b, Entry c) {
#ifdef __CUDACC__
  return __fmaf_rn(a, b, c);
#else
  return __builtin_fmaf(a, b, c);
#endif
}
#endif

extern "C" __global__ void __launch_bounds__(Config::THREADS) batched_small(Problem p) {
  constexpr int M = Config::M, N = Config::N, K = Config::K;
  const int id = blockIdx.x * Config::THREADS + threadIdx.x, product = id / (M * N), m = id % (M * N) / N, n = id % N;
  wait_for_previous_grid();
  if (product >= p.batch) return;
  const Place a = place_of_a(p.a, product), b = place_of_b(p.b, product), d = place_of_d(p, product);
  const u64 row = a.at + m * a.row, column = b.at + n * b.column;
  Entry sum[TERMS] = {};
  FPEMU_UNROLL
  for (int k = 0; k < K; k++) {
    u32 x[PARTS], y[PARTS], u[TERMS], v[TERMS];
    load_one(x, row + k * a.column, p.a.plane, true), load_one(y, column + k * b.row, p.b.plane, true);
    terms_of(u, x, SIGNS_A & 0xFFFF), terms_of(v, y, SIGNS_B & 0xFFFF);
    constexpr int LAST = TERMS - 1;
    sum[0] = multiply_add(number_of(u[0]), number_of(v[0]), sum[0]);
    if (TERMS == 3) {
      sum[1 % TERMS] = multiply_add(number_of(u[1 % TERMS]), number_of(v[1 % TERMS]), sum[1 % TERMS]);
      sum[LAST] = multiply_add(number_of(u[LAST] & 0xFFFF), number_of(v[LAST] & 0xFFFF), sum[LAST]);
    } else if (TERMS == 2) {
      sum[LAST] = multiply_add(number_of(u[0]), number_of(v[LAST]), sum[LAST]);
      sum[LAST] = multiply_add(number_of(u[LAST]), number_of(v[0]), sum[LAST]);
      sum[0] = multiply_add(number_of(u[LAST] ^ 0x8000), number_of(v[LAST]), sum[0]);
    }
  }
  Sums s;
  FPEMU_UNROLL
  for (int t = 0; t < TERMS; t++) s.part[t] = value_of(sum[t]);
  const u64 c = Config::PLAIN ? 0 : matrix_of(p.c, product);
  store_one(p, d.at + m * d.row + (s64)n * ELEMENT, finished(p, s, place_in_c(p, c, m, n)));
}

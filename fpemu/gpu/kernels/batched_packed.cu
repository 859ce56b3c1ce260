// Several tiny products in one instruction (section 8.1 of the paper): blocks of A on the diagonal of its left operand,
// the blocks of B below each other, so that every block row of D is a product of its own. Zeros stand beside the blocks
// of A, and an infinity or NaN of one product would meet those of the others: where there is one, each product takes an
// instruction of its own.
//
// Config, besides what batched_sizes.cuh needs:
//   WARPS      of a thread block
//   M, N, K    of the products, 8 at most
#include "batched_warp.cuh"

constexpr int COUNT = smaller(16 / Config::M, 16 / Config::K);  // products in an instruction
constexpr int SUM_WORDS = sizeof(Sum) / 4;                      // the first half of row g, the others of row g + 8
static_assert(Config::M <= 8 && Config::N <= 8 && Config::K <= 8, "products are not tiny");

FPEMU_FUNCTION u32 not_finite(u32 halves) {
  return ((halves & 0x7C00) == 0x7C00) | ((halves >> 16 & 0x7C00) == 0x7C00);
}
#ifdef __CUDACC__
FPEMU_FUNCTION bool any_of_warp(bool in_range) { return __any_sync(0xFFFFFFFF, in_range); }
#else
bool any_of_warp(bool in_range);
#endif

extern "C" __global__ void __launch_bounds__(32 * Config::WARPS) batched_packed(Problem p) {
  constexpr int M = Config::M, N = Config::N, K = Config::K;
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int first = (blockIdx.x * Config::WARPS + threadIdx.x / 32) * COUNT;
  wait_for_previous_grid();
  const auto exists = [&](int product) { return product < COUNT && first + product < p.batch; };
  u32 x[TERMS][4], y[TERMS][2], special = 0;
  FPEMU_UNROLL
  for (int r = 0; r < 4; r++) {
    const int row = g + r % 2 * 8, product = row / M;
    u32 pair[PARTS], term[TERMS];
    FPEMU_UNROLL
    for (int e = 0; e < 2; e++) {
      const int k = 2 * t + r / 2 * 8 + e - product * K;
      const bool own = exists(product) && k >= 0 && k < K;
      u32 one[PARTS];
      const Place a = place_of_a(p.a, own ? first + product : 0);
      load_one(one, a.at + row % M * a.row + k * a.column, p.a.plane, own);
      FPEMU_UNROLL
      for (int i = 0; i < PARTS; i++) pair[i] = e ? pair[i] | one[i] << 16 : one[i];
    }
    FPEMU_UNROLL
    for (int i = 0; i < PARTS; i++) special |= not_finite(pair[i]);
    terms_of(term, pair, SIGNS_A);
    FPEMU_UNROLL
    for (int i = 0; i < TERMS; i++) x[i][r] = term[i], special |= not_finite(term[i]);
  }
  FPEMU_UNROLL
  for (int r = 0; r < 2; r++) {
    u32 pair[PARTS], term[TERMS];
    FPEMU_UNROLL
    for (int e = 0; e < 2; e++) {
      const int step = 2 * t + r * 8 + e, product = step / K;
      const bool own = exists(product) && g < N;
      u32 one[PARTS];
      const Place b = place_of_b(p.b, own ? first + product : 0);
      load_one(one, b.at + g * b.column + step % K * b.row, p.b.plane, own);
      FPEMU_UNROLL
      for (int i = 0; i < PARTS; i++) pair[i] = e ? pair[i] | one[i] << 16 : one[i];
    }
    FPEMU_UNROLL
    for (int i = 0; i < PARTS; i++) special |= not_finite(pair[i]);
    terms_of(term, pair, SIGNS_B);
    FPEMU_UNROLL
    for (int i = 0; i < TERMS; i++) y[i][r] = term[i], special |= not_finite(term[i]);
  }

  Sum sums[TERMS];
  FPEMU_UNROLL
  for (auto& s : sums) s = zero();
  if (!any_of_warp(special)) multiply_step<false>(sums, x, y);
  else {
    for (int product = 0; product < COUNT; product++) {
      u32 own_x[TERMS][4], own_y[TERMS][2];
      Sum own[TERMS];
      FPEMU_UNROLL
      for (int i = 0; i < TERMS; i++) {
        own[i] = zero();
        FPEMU_UNROLL
        for (int r = 0; r < 4; r++) own_x[i][r] = (g + r % 2 * 8) / M == product ? x[i][r] : 0;
        FPEMU_UNROLL
        for (int r = 0; r < 2; r++) {
          const int step = 2 * t + r * 8;
          own_y[i][r] =
              (step / K == product ? y[i][r] & 0xFFFF : 0) | ((step + 1) / K == product ? y[i][r] & 0xFFFF0000 : 0);
        }
      }
      multiply_step<false>(own, own_x, own_y);
      FPEMU_UNROLL
      for (int i = 0; i < TERMS; i++) FPEMU_UNROLL
      for (int w = 0; w < SUM_WORDS; w++)
        if ((g + w / (SUM_WORDS / 2) * 8) / M == product) sums[i].word[w] = own[i].word[w];
    }
  }

  FPEMU_UNROLL
  for (int half = 0; half < 2; half++) {
    const int row = g + 8 * half, product = row / M, m = row % M, n = 2 * t;
    if (!exists(product) || n >= N) continue;
    const u64 c = Config::PLAIN ? 0 : matrix_of(p.c, first + product);
    const Place d = place_of_d(p, first + product);
    const bool both = n + 1 < N;
    u32 v[2] = {0, 0};
    FPEMU_UNROLL
    for (int e = 0; e < 2; e++) {
      Sums s;
      FPEMU_UNROLL
      for (int i = 0; i < TERMS; i++) s.part[i] = entry(sums[i], 2 * half + e);
      if (!e || both) v[e] = finished(p, s, place_in_c(p, c, m, n + e));
    }
    store_two(p, d.at + m * d.row + (s64)n * ELEMENT, v[0], v[1], both);
  }
}

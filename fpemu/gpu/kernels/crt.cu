// Ozaki scheme II: integers from their residues by the Chinese remainder theorem, all in integers.
//
// Before this file come, for N moduli: MODULUS[N], MAGIC[N] = floor(2^32 / p), LIFT[N] (the multiple of p next below
// 2^31), INVERSE[N] (of P / p modulo p); for GROUPS of three moduli: OTHERS[N] (the product of the other two of its
// group), SHARE[GROUPS] = 1 / G as a double, G the product of a group; LIMBS and WEIGHT[LIMBS][GROUPS] (32 bits each of
// P / G), PRODUCT[LIMBS] (of P); struct Epilogue with ONCE (one rounding, after alpha and beta · C), PLAIN (alpha is a
// power of two and nothing is added) and NARROW (D is fp32, else fp64).
//
// C = sum of t_i P / p_i - z P with 0 <= t_i <= p_i congruent to r_i q_i, z the integer nearest to the sum of t_i /
// p_i. The numbers of a group are put together first: v = sum of t_i OTHERS_i <= 3 G < 2^26, C = sum of v P / G - z P.
// The sum of v / G <= N <= 48 in fp64 errs by less than 2^-44, so that z is right if 2|C| < P (1 - 2^-40). Sums of v
// times a limb stay below 16 · 2^58.
#include "exact_sums.cuh"
#include "modular.cuh"
#include "block_reduce.cuh"

// Products of parts of K, `parts` a modulus one after another: the first gets a number congruent to their sum.
extern "C" __global__ void __launch_bounds__(256) fold(int* T, s64 stride, int parts) {
  for (s64 at = (s64)blockIdx.x * blockDim.x + threadIdx.x; at < stride; at += (s64)gridDim.x * blockDim.x) FPEMU_UNROLL
  for (int i = 0; i < N; i++) {
    int* own = T + (s64)i * parts * stride + at;
    u32 sum = 0;
    for (int part = 0; part < parts; part++)
      sum = reduce(sum + reduce((u32)own[part * stride] + LIFT[i], MODULUS[i], MAGIC[i]), MODULUS[i], MAGIC[i]);
    *own = (int)sum;
  }
}

// The digits of C from an entry's products, one a modulus.
FPEMU_FUNCTION void combine(s64 (&limb)[LIMBS], const int* T, s64 stride) {
  u64 sums[LIMBS];
  double share = 0;
  FPEMU_UNROLL
  for (int l = 0; l < LIMBS; l++) sums[l] = 0;
  FPEMU_UNROLL
  for (int g = 0; g < GROUPS; g++) {
    u32 v = 0;
    FPEMU_UNROLL
    for (int i = 3 * g; i < smaller(3 * g + 3, N); i++) {
      const u32 r = reduce((u32)T[i * stride] + LIFT[i], MODULUS[i], MAGIC[i]);
      v += reduce(r * INVERSE[i], MODULUS[i], MAGIC[i]) * OTHERS[i];
    }
    share += (fp64_of(0x4330000000000000ull | v) - 4503599627370496.0) * SHARE[g];  // 2^52 + v - 2^52
    FPEMU_UNROLL
    for (int l = 0; l < LIMBS; l++) sums[l] += (u64)v * WEIGHT[l][g];
  }
  const u32 z = (u32)fp64_code(share + 6755399441055744.0);  // 1.5 · 2^52: the nearest integer in the low bits
  FPEMU_UNROLL
  for (int l = 0; l < LIMBS; l++) limb[l] = (s64)sums[l] - (s64)((u64)z * PRODUCT[l]);
}

struct Limbs {  // the same, one after another
  s64 limb[LIMBS];
  int index;
  FPEMU_FUNCTION void reset() { index = 0; }
  FPEMU_FUNCTION s64 next() { return limb[index++]; }
};

template <bool NARROW> struct Result {
  typedef Binary64 Format;
};
template <> struct Result<true> {
  typedef Binary32 Format;
};

// D from the products of residues, rounded once, before or after alpha and beta · C (Epilogue::ONCE).
template <class T>
__device__ void rebuild(const int* products, s64 stride, s64 pitch, int M, int columns, const int* row_shifts,
                        const int* column_shifts, int sign, int more, int first_row, const End& end) {
  const s64 j = (s64)blockIdx.x * blockDim.x + threadIdx.x, steps = (s64)gridDim.x * blockDim.x;
  for (s64 i = blockIdx.y; i < M; i += gridDim.y)
    for (s64 c = j; c < columns; c += steps) {
      const s64 row = first_row + i;
      s64 limb[LIMBS];
      combine(limb, products + i * pitch + c, stride);
      int exponent = -(sign * (row_shifts[row] + column_shifts[c]) + more);
      const bool odd = is_reached(end, row, c);
      if (Epilogue::ONCE && odd) {
        write(end.D, row, c, finished_special(end, reached(end, row, c), end.has_c ? read(end.C, row, c) : 0));
        continue;
      }
      if (Epilogue::ONCE && !Epilogue::PLAIN) {
        Limbs x;
        for (int l = 0; l < LIMBS; l++) x.limb[l] = limb[l];
        round_entry(end, row, c, x, LIMBS, exponent, false);
        continue;
      }
      if (Epilogue::ONCE) exponent += significand(end.alpha).e + 52;
      const u64 code = round_digits<T>(limb, exponent);
      if (Epilogue::ONCE) {
        write(end.D, row, c, code);
        continue;
      }
      double value = T::WIDTH == 32 ? (double)fp32_of((u32)code) : fp64_of(code);
      if (odd) value = reached(end, row, c);
      write(end.D, row, c, finished(end, value, end.has_c ? read(end.C, row, c) : 0));
    }
}

extern "C" __global__ void __launch_bounds__(256)
    rebuild(const int* T, s64 stride, s64 pitch, int M, int columns, const int* row_shifts, const int* column_shifts,
            int sign, int more, int first_row, End end) {
  rebuild<Result<Epilogue::NARROW>::Format>(T, stride, pitch, M, columns, row_shifts, column_shifts, sign, more,
                                            first_row, end);
}

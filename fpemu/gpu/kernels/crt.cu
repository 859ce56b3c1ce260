// Ozaki scheme II: integers from their residues by the Chinese remainder theorem, all in integers.
//
// Before this file come, for N moduli: MODULUS[N], MAGIC[N] = floor(2^32 / p), LIFT[N] (the multiple of p next below
// 2^31), INVERSE[N] (of P / p modulo p); for GROUPS of three moduli: OTHERS[N] (the product of the other two of its
// group), SHARE[GROUPS] = 1 / G as a double, G the product of a group; LIMBS and WEIGHT[LIMBS][GROUPS] (32 bits each of
// P / G), PRODUCT[LIMBS] (of P); struct Epilogue with ONCE (one rounding, after alpha and beta · C), PLAIN (alpha is a
// power of two and nothing is added) and NARROW (D is fp32, else fp64).
#include "crt.cuh"
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
  combine(limb, [&](int i) {
    const u32 r = reduce((u32)T[i * stride] + LIFT[i], MODULUS[i], MAGIC[i]);
    return reduce(r * INVERSE[i], MODULUS[i], MAGIC[i]);
  });
}

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
        write(end.D, row, c, round_entry(end, row, c, x, LIMBS, exponent, false));
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

// The bound on the error of a product for its operands, and operands scaled along k by powers of two: to the numbers of
// `fpemu.schemes.errorfree.target` and of `inside` in `fpemu.schemes.errorfree.split`.
//
// "Row" is a row of A or a column of B. NaN and infinities count as zero.
#include "block_reduce.cuh"
#include "powers_of_two.cuh"

#ifndef __CUDACC__
#define rint __builtin_rint
#define trunc __builtin_trunc
#endif

constexpr int MOST = 19;  // numbers of moduli: 2 ... 20
constexpr u64 SIGN = 1ull << 63;

FPEMU_FUNCTION u64 size_code(double x) {
  const u64 code = fp64_code(x) & ~SIGN;
  return is_special(code) ? 0 : code;
}
// frexp's exponent; 0 for a zero.
FPEMU_FUNCTION int exponent_of(u64 code) {
  const Element x = element(code);
  return x.m ? x.e + bit_length((u64)x.m) : 0;
}

// Of every row the exponent `top` of its largest number, the sum of |x| 2^-top, and for each of `count` powers of two mu
// the largest part of a number that is cut off, times 2^-top. out: |x| 2^-top, not below `least` unless x is zero.
extern "C" __global__ void __launch_bounds__(256)
    magnitudes(const double* X, s64 pitch, int rows, int K, const int* mu, int count, int nearest, double least,
               double* out, s64 width, int* tops, double* sums, double* cuts) {
  for (int row = blockIdx.x; row < rows; row += gridDim.x) {
    u64 largest = 0;
    for (int k = threadIdx.x; k < K; k += blockDim.x) {
      const u64 code = size_code(X[row * pitch + k]);
      if (code > largest) largest = code;
    }
    const int top = exponent_of(block_max_code(largest));
    const Power to_one = Power::of(-top);
    Power scale[MOST];
    u64 rest[MOST];
    FPEMU_UNROLL
    for (int n = 0; n < MOST; n++) scale[n] = Power::of(n < count ? mu[n * rows + row] : 0), rest[n] = 0;
    double sum = 0;
    for (int k = threadIdx.x; k < width; k += blockDim.x) {
      const double x = k < K ? fp64_of(size_code(X[row * pitch + k])) : 0, size = to_one.times(x);
      sum += size;
      out[row * width + k] = x != 0 && size < least ? least : size;
      FPEMU_UNROLL
      for (int n = 0; n < MOST; n++) {
        if (n >= count) break;
        const double y = scale[n].times(x);
        const u64 cut = fp64_code(y - (nearest ? rint(y) : trunc(y))) & ~SIGN;
        if (cut > rest[n]) rest[n] = cut;
      }
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) tops[row] = top, sums[row] = sum;
    FPEMU_UNROLL
    for (int n = 0; n < MOST; n++) {
      if (n >= count) break;
      const double cut = fp64_of(block_max_code(rest[n]));
      __syncthreads();
      if (threadIdx.x == 0) cuts[n * rows + row] = finite_code(cut) ? scaled(cut, -mu[n * rows + row] - top) : cut;
    }
  }
}

FPEMU_FUNCTION double half_value(u16 code) {  // of a digit's: a normal number or zero
  const double size = code & 0x7fff ? weighted((code & 0x3ff) | 0x400, (code >> 10 & 31) - 25) : 0;
  return code >> 15 ? -size : size;
}
FPEMU_FUNCTION double digit_at(const void* digits, s64 at, int carrier) {
  return carrier == INT8_DIGITS   ? (double)((const signed char*)digits)[at]
         : carrier == FP16_DIGITS ? half_value(((const u16*)digits)[at])
         : carrier == BF16_DIGITS ? (double)fp32_of((u32)((const u16*)digits)[at] << 16)
         : carrier == FP32_DIGITS ? (double)((const float*)digits)[at]
                                  : ((const double*)digits)[at];
}

// Factors of the bound on what slices omit, times 2^-top, side by side along k, `width` apart. With x_p the magnitudes of
// the slices and r the magnitude of the residual, they are r, |a| and the `terms` slices x_p for A, and |b| + r, r, and for
// each p the sum of x_q with q >= d - p for B. terms = 0: no products of slices are left out. X has `count` slices of
// `pitch_of` numbers each, of which `slices` are used.
extern "C" __global__ void __launch_bounds__(256)
    omitted(const double* X, s64 pitch, int rows, int K, const int* tops, const void* digits, int carrier,
            const int* exponents, int all_rows, int count, int slices, s64 pitch_of, int second, int terms, int d,
            double* out, s64 width) {
  for (int row = blockIdx.x; row < rows; row += gridDim.x)
    for (int k = threadIdx.x; k < width; k += blockDim.x) {
      const double x = k < K && finite_code(X[row * pitch + k]) ? X[row * pitch + k] : 0;
      auto part = [&](int p) {  // of slice p
        const s64 at = ((s64)row * count + (second ? count - 1 - p : p)) * pitch_of + k;
        return k < K ? digit_at(digits, at, carrier) : 0;
      };
      auto unit = [&](int p) { return exponents[(s64)p * all_rows + row]; };
      auto size = [&](double y, int exponent) { return scaled(y < 0 ? -y : y, exponent - tops[row]); };
      double rest = x;
      for (int p = 0; p < slices; p++) rest -= scaled(part(p), unit(p));
      const double left = size(rest, 0), all = size(x, 0);
      double* to = out + row * ((2 + terms) * width) + k;
      to[0] = second ? all + left : left, to[width] = second ? left : all;
      for (int p = 0; p < terms; p++) {
        double sum = 0;
        if (!second) sum = size(part(p), unit(p));
        else
          for (int q = larger(0, d - p); q < slices; q++) sum += size(part(q), unit(q));
        to[(2 + p) * width] = sum;
      }
    }
}

// What is known of the rows of an operand.
struct Known {
  const int* tops;
  const double *sums, *cuts;
};

// For each of `count` numbers of moduli the largest ratio of the bound to |A||B|, as a code, or with its places the first
// entry that has it, counted from the end and 1. T: |A||B| times 2^-(tops). omitted: of slices, the bound on what they omit,
// to which `units` T is added; null: the bound of moduli, from the parts that are cut off and the unit roundoff `units`.
extern "C" __global__ void __launch_bounds__(256)
    ratios(const double* T, const double* omitted, int M, int N, int K, Known a, Known b, int count, int nearest,
           double units, double tiny, double least, u64* most, u64* places) {
  u64 largest[MOST], place[MOST];
  FPEMU_UNROLL
  for (int n = 0; n < MOST; n++) largest[n] = place[n] = 0;
  const s64 entries = (s64)M * N;
  const double ulp = 2.220446049250313e-16, far = weighted(K, -1060);
  for (s64 at = (s64)blockIdx.x * blockDim.x + threadIdx.x; at < entries; at += (s64)gridDim.x * blockDim.x) {
    const int i = (int)(at / N), j = (int)(at % N);
    const Power back = Power::of(a.tops[i] + b.tops[j]);
    const double t = T[at], size = t * (1 - (K + 8) * ulp) - 2 * K * least;
    FPEMU_UNROLL
    for (int n = 0; n < MOST; n++) {
      if (n >= count) break;
      double bound = 0;
      if (omitted) bound = back.times((omitted[at] + units * t) * (1 + 9.5367431640625e-07)) + tiny;  // 2^-20
      else {
        const double x = a.cuts[n * (s64)M + i], y = b.cuts[n * (s64)N + j];
        double lost = x * b.sums[j] + a.sums[i] * y + (nearest ? K * x * y : 0);
        lost = lost + units * (t + lost);
        bound = back.times(lost * (1 + (K + 8) * 2 * ulp) + far) * (1 + ulp) + tiny;
      }
      const u64 code = t == 0 ? 0 : fp64_code(bound / back.times(size > 0 ? size : 0)) & ~SIGN;
      if (code > largest[n]) largest[n] = code;
      if (places && code == most[n] && !place[n]) place[n] = (u64)(entries - at);
    }
  }
  FPEMU_UNROLL
  for (int n = 0; n < MOST; n++) {
    if (n >= count) break;
    if (places && place[n] > places[n]) atomicMax(places + n, place[n]);
    if (!places && largest[n] > most[n]) atomicMax(most + n, largest[n]);
  }
}

// --- inside scaling
// An operand, real or complex (parts = 2), whose rows have K numbers; steps in real numbers, of which one is `parts`.
struct Operand {
  const void* X;
  s64 k_step, row_step;
  int narrow, parts, K, rows, by_k, unused;  // by_k: neighbours in memory have neighbouring k
  FPEMU_FUNCTION double at(int k, int row, int part) const {
    const s64 at = k * k_step + row * row_step + part;
    return narrow ? (double)((const float*)X)[at] : ((const double*)X)[at];
  }
};
// use(k, first row, step of rows): neighbours in memory belong to neighbouring threads.
template <class F> FPEMU_FUNCTION void for_columns(const Operand& X, const F& use) {
  const int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
  const int along = gridDim.x * blockDim.x, across = gridDim.y * blockDim.y;
  for (int k = X.by_k ? x : y; k < X.K; k += X.by_k ? along : across) use(k, X.by_k ? y : x, X.by_k ? across : along);
}

// The largest code of every column k, and the complement of the least one; both at first zero.
extern "C" __global__ void __launch_bounds__(256) ends(Operand X, u64* largest, u64* least) {
  for_columns(X, [&](int k, int first, int step) {
    u64 most = 0, low = 0;
    for (int row = first; row < X.rows; row += step)
      for (int part = 0; part < X.parts; part++) {
        const u64 code = size_code(X.at(k, row, part));
        if (code > most) most = code;
        if (code && ~code > low) low = ~code;
      }
    if (most) atomicMax(largest + k, most), atomicMax(least + k, low);
  });
}

// A S (sign = 1) or S^-1 B (sign = -1), with neighbours in memory as in X.
extern "C" __global__ void __launch_bounds__(256)
    balance(Operand X, const u64* a_largest, const u64* a_least, const u64* b_largest, const u64* b_least, int sign,
            double* out) {
  for_columns(X, [&](int k, int first, int step) {
    int exponent = 0;
    if (a_largest[k] && b_largest[k]) {
      exponent = (exponent_of(b_largest[k]) - exponent_of(a_largest[k])) >> 1;
      exponent = larger(exponent, smaller(0, -1021 - exponent_of(~a_least[k])));
      exponent = smaller(exponent, larger(0, exponent_of(~b_least[k]) + 1021));
    }
    for (int row = first; row < X.rows; row += step)
      for (int part = 0; part < X.parts; part++) {
        const double x = X.at(k, row, part);
        const s64 at = X.by_k ? (s64)row * X.K + k : (s64)k * X.rows + row;
        out[at * X.parts + part] = finite_code(x) ? scaled(x, sign * exponent) : x;
      }
  });
}

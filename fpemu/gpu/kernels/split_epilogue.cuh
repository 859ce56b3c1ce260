// From the sums of a scheme's accumulators to an entry of D, as fpemu.schemes has it: words._join, ranges.undo,
// base.scaled, and the code of every NaN. Each operation is rounded once; nothing is contracted.
//
// fpemu.gpu.gemm.mma_sync.source defines the Plan before this file.
#pragma once
#include "carrier.cuh"

struct Problem {
  const float *A, *B, *C;  // C: null if there is none
  float* D;
  s64 a_row, a_k, b_column, b_k, c_row, c_column, d_row;  // strides in elements; D's columns are side by side
  const int *a_exponents, *b_exponents;                   // powers of two in rows of A, columns of B; null: none
  const u8 *a_special, *b_special;                        // rows with NaN or Inf, which count as zero; null: none
  const s64*
      batches;  // for each product: where A, B, C, D begin, and its rows among all rows of A, columns of B; null: 0
  int M, N, K;
  float alpha, beta;
  u32 nan;
};

enum { AT_A, AT_B, AT_C, AT_D, AT_ROWS, AT_COLUMNS, OFFSETS };

FPEMU_FUNCTION s64 offset(const s64* at, int which) { return at ? at[which] : 0; }
FPEMU_FUNCTION int row_exponent(const Problem& p, const s64* at, int row) {
  return p.a_exponents ? p.a_exponents[offset(at, AT_ROWS) + row] : 0;
}
FPEMU_FUNCTION int column_exponent(const Problem& p, const s64* at, int column) {
  return p.b_exponents ? p.b_exponents[offset(at, AT_COLUMNS) + column] : 0;
}
FPEMU_FUNCTION bool row_special(const Problem& p, const s64* at, int row) {
  return p.a_special && p.a_special[offset(at, AT_ROWS) + row];
}
FPEMU_FUNCTION bool column_special(const Problem& p, const s64* at, int column) {
  return p.b_special && p.b_special[offset(at, AT_COLUMNS) + column];
}

// x · 2^e rounded once. In fp32 the power must be a normal number; float64 holds every product that can occur.
FPEMU_FUNCTION float times_power(float x, int e) {
  if (e == 0) return x;
  return e >= -126 && e <= 127 ? x * float_of((127 + e) << 23) : (float)((double)x * power(e));
}
FPEMU_FUNCTION double times_power(double x, int e) { return e == 0 ? x : x * power(e); }

// The joined sum; T is the arithmetic of the join.
template <class T> FPEMU_FUNCTION float join(const float (&sums)[Plan::GROUPS]) {
  T total = 0;
  if (Plan::JOIN_AS_RUN) {
    FPEMU_UNROLL
    for (int g = 0; g < Plan::GROUPS; g++) {
      const T part = times_power((T)sums[g], -Plan::EXPONENT * Plan::band(g));
      total = g == 0 ? part : total + part;
    }
    return (float)total;
  }
  int last = 0;
  bool any = false;
  FPEMU_UNROLL
  for (int band = Plan::BANDS - 1; band >= 0; band--) {  // smallest first
    T inside = 0;
    bool result = false;
    FPEMU_UNROLL
    for (int g = 0; g < Plan::GROUPS; g++)
      if (Plan::band(g) == band) inside = result ? inside + (T)sums[g] : (T)sums[g], result = true;
    if (!result) continue;
    total = any ? times_power(total, -Plan::EXPONENT * (last - band)) + inside : inside;
    any = true, last = band;
  }
  return (float)times_power(total, -Plan::EXPONENT * last);
}

FPEMU_FUNCTION float joined(const float (&sums)[Plan::GROUPS]) {
  if (Plan::ELEMENT_WISE) return sums[0];  // the one total that all products were added to
  return Plan::JOIN_IN_DOUBLE ? join<double>(sums) : join<float>(sums);
}

// Write an entry of D from the joined sum; `exponent` is the power of two that its row and its column bear.
FPEMU_FUNCTION void finish(const Problem& p, const s64* at, int row, int column, float sum, int exponent) {
  float x = p.alpha * (exponent ? (float)((double)sum * power(-exponent)) : sum);
  if (p.C) x = x + p.beta * p.C[offset(at, AT_C) + row * p.c_row + column * p.c_column];
  p.D[offset(at, AT_D) + row * p.d_row + column] = x == x ? x : float_of((int)p.nan);
}

// The words of an operand in the layout of an accumulator: position p along K holds word[p] of the entry at source[p],
// zero where source[p] is negative. Before this file come split.cuh, the rules "Rules" and the words' format "Low".
//
// X is (outer, K, inner) and out (outer, length, inner): inner = 1 for A, outer = 1 for B. found: set to 1 if one of the
// conditions `refused` of split_number holds anywhere.
#include "block_reduce.cuh"

FPEMU_FUNCTION float value_of(u32 code) {
  const Number x = decode<Low>(code & (u32)(~0ull >> (64 - Low::WIDTH)));
  if (x.special) return x.special == NOT_A_NUMBER ? fp32_of(0x7FFFFFFF) : fp32_of(x.negative ? 0xFF800000 : 0x7F800000);
  const double size = x.significand ? (double)(s64)x.significand * power_of_two(x.exponent - Low::FRACTION) : 0;
  return (float)(x.negative ? -size : size);
}

extern "C" __global__ void __launch_bounds__(256)
    lay_out(const float* X, float* out, const int* source, const int* word, s64 outer, s64 K, s64 length, s64 inner,
            int refused, int* found) {
  const s64 count = outer * length * inner;
  for (s64 at = (s64)blockIdx.x * blockDim.x + threadIdx.x; at < count; at += (s64)gridDim.x * blockDim.x) {
    const s64 line = at / inner, p = line % length;
    u32 code[Rules::COUNT], taken = 0;
    float value = 0;
    if (source[p] >= 0) {
      const u32 report = split_number<Rules>(X[(line / length * K + source[p]) * inner + at % inner], 0, code);
      if (report & (u32)refused) *found = 1;
      FPEMU_UNROLL
      for (int i = 0; i < Rules::COUNT; i++) taken = i == word[p] ? code[i] : taken;
      value = value_of(taken);
    }
    out[at] = value;
  }
}

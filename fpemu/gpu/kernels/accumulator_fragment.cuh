// What mma.sync adds to, of a lane: four entries of a sum of 16 rows and 8 columns, rows g and g + 8 and columns 2t and
// 2t + 1 with g = lane / 4 and t = lane % 4.
//
// Before this file: FPEMU_HALF_SUMS, 1 where sums are fp16 and lie in pairs, 0 where they are fp32; u32; and, for fp16,
// float value_of_half(u32).
#pragma once
#include "integers.cuh"

#if FPEMU_HALF_SUMS
struct Sum {
  u32 word[2];
};
FPEMU_FUNCTION float entry(const Sum& s, int i) { return value_of_half(s.word[i / 2] >> 16 * (i % 2) & 0xFFFF); }
#else
struct Sum {
  float word[4];
};
FPEMU_FUNCTION float entry(const Sum& s, int i) { return s.word[i]; }
#endif
FPEMU_FUNCTION Sum zero() {
  Sum s;
  for (auto& x : s.word) x = 0;
  return s;
}

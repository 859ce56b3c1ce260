// One entry of fp32 to one or two words of fp16: h = RNE16(x s) and r = RNE16((x s - h) 2^shift), s a power of two. With
// Config::BALANCED, h is rounded as high_words.cuh says; entries must then be scaled, since no rounding toward zero
// overflows.
//
// fp32 is enough: x s is exact or below 2^-126, where both words are zeros of x's sign whatever it is rounded to;
// x s - h is a multiple of the last place of x s and no larger; the scales are powers of two.
#pragma once
#include "hopper_split.cuh"
#include "high_words.cuh"

constexpr int TOP = 14;  // the largest entry of a scaled row is brought to [2^13, 2^14)

// TOP minus the binary exponent e of 2^(e-1) <= x < 2^e.
FPEMU_FUNCTION int scaling(u32 bits) {
  return bits == 0 ? 0 : bits < 1u << 23 ? TOP + 149 - bit_length(bits) : TOP + 126 - (int)(bits >> 23);
}
FPEMU_FUNCTION float scale(int e) { return __int_as_float((e + 127) << 23); }

// How a row is split: by its scale 2^e, which may be beyond fp32, and whether nothing can go wrong on the way: all
// entries finite, none scaled down, no word that overflows.
struct RowScale {
  float first, second;
  u32 plain;
};

// Two entries, where something may go wrong; bit i is set if a word of entry i overflows.
FPEMU_FUNCTION int split_checked(float x, float y, const Operand& op, const RowScale& way, u32& high, u32& low) {
  float v[2] = {x, y}, w[2], h[2];
  FPEMU_UNROLL
  for (int i = 0; i < 2; i++) {
    if (is_special(v[i])) v[i] = 0;
    w[i] = v[i] * way.first * way.second;
  }
  high = high_words<Config::BALANCED>(w[0], w[1], op.second);
  of_halves(high, h[0], h[1]);
  low = to_halves((w[0] - h[0]) * op.shift, (w[1] - h[1]) * op.shift);
  int over = 0;
  FPEMU_UNROLL
  for (int i = 0; i < 2; i++) {
    // too small for fp32: both words are zeros of its sign
    if (w[i] == 0 && v[i] != 0) low |= (__float_as_uint(v[i]) >> 31 ? 0x8000 : 0) << 16 * i;
    const u32 top = 0x7c00u << 16 * i;
    over |= ((high & top) == top || (low & top) == top) << i;
  }
  return over;
}

// Counts the entries with a word that overflows, bits of `over`; `to`: where the words of the first of them begin.
FPEMU_FUNCTION void report_overflow(const Operand& op, u32 over, s64 to) {
  const u32 line = (u32)(to / 128), chunk = line / op.rows, matrix = chunk / op.chunks;
  const int k = (chunk - matrix * op.chunks) * 64 + (int)(to % 128) / 2 + bit_length(over & -over) - 1;
  int count = 0;
#pragma unroll 1
  for (u32 left = over; left; left &= left - 1) count++;
  atomicAdd(op.faults + 1, (u64)count);
  report_first(op.faults, OVERFLOWING_ENTRY, op.index_of(matrix, line - chunk * op.rows, k));
}

struct Fp16Words {
  typedef RowScale Row;
  FPEMU_FUNCTION static RowScale row(const Operand& op, u32 largest, bool special, int& exponent) {
    const int e = exponent = op.exponents ? scaling(largest) : 0;
    const float first = scale(min(e, 100)), top = __uint_as_float(largest) * first;
    // |x - h| is at most 2^-11 |x| to nearest and below 2^-10 |x| in a balanced split. Where h is subnormal it is at
    // most 2^-25 to nearest, in range for shifts up to 2^40; balanced rows are scaled, so that `top` exceeds 2^-14.
    constexpr float most = 65504.f * (Config::BALANCED ? 1024 : 2048);
    const bool plain = !special && e >= 0 && e <= 100 && top < 65504.f && top * op.shift < most;
    return {first, scale(max(e - 100, 0)), plain};
  }
  FPEMU_FUNCTION static void split_eight(const Operand& op, const RowScale& way, const float (&x)[8], int, int octet,
                                         s64 to) {
    split(op, way, x, to + 16 * octet);
  }
  // Writes the words of four or eight neighbours along k; `to`: where they begin. SAFE: the row is plain.
  template <bool SAFE = false, int COUNT>
  FPEMU_FUNCTION static void split(const Operand& op, const RowScale& way, const float (&x)[COUNT], s64 to) {
    u32 high[COUNT / 2], low[COUNT / 2];
    FPEMU_UNROLL
    for (int i = 0; i < COUNT / 2; i++) {
      const float u = x[2 * i] * way.first, v = x[2 * i + 1] * way.first;
      float h, g;
      high[i] = high_words<Config::BALANCED>(u, v, op.second);
      of_halves(high[i], h, g);
      low[i] = to_halves((u - h) * op.shift, (v - g) * op.shift);
    }
    if (!SAFE && !way.plain) {
      u32 over = 0;  // a bit for each entry
      FPEMU_UNROLL
      for (int i = 0; i < COUNT / 2; i++)
        over |= split_checked(x[2 * i], x[2 * i + 1], op, way, high[i], low[i]) << 2 * i;
      if (over) report_overflow(op, over, to);
    }
    write(op.high + to, high);
    if (op.low) write(op.low + to, low);
  }
  FPEMU_FUNCTION static void write(u8* to, const u32 (&x)[4]) { *(uint4*)to = make_uint4(x[0], x[1], x[2], x[3]); }
  FPEMU_FUNCTION static void write(u8* to, const u32 (&x)[2]) { *(uint2*)to = make_uint2(x[0], x[1]); }
};

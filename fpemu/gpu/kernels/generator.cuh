// Operands as a function of (seed, class, test, element): a counter-based generator, the same stream as
// fpemu.mma.operand_streams makes with NumPy. Any one operand of any test can be made again without those before it.
#pragma once
#include "arithmetic.cuh"

struct Words {
  u32 x[4];
};

// Philox4x32-10 of Salmon, Moraes, Dror and Shaw 2011 ("Parallel random numbers: as easy as 1, 2, 3").
FPEMU_FUNCTION Words philox(Words counter, u64 key) {
  u32 k0 = (u32)key, k1 = (u32)(key >> 32);
  u32* x = counter.x;
  FPEMU_UNROLL
  for (int round = 0; round < 10; round++) {
    const u32 h0 = high_product(0xD2511F53u, x[0]), l0 = 0xD2511F53u * x[0];
    const u32 h1 = high_product(0xCD9E8D57u, x[2]), l1 = 0xCD9E8D57u * x[2];
    x[0] = h1 ^ x[1] ^ k0, x[1] = l1, x[2] = h0 ^ x[3] ^ k1, x[3] = l0;
    k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
  }
  return counter;
}

// The distribution of one operand's codes in a class: the fields of fpemu.mma.operand_streams.Recipe in their order.
struct Recipe {
  s64 low, high;              // range of the exponent field, uniform
  s64 other_low, other_high;  // a second range, used with probability other_in_16 / 16
  s64 other_in_16;
  s64 zero_in_16;       // zeros of both signs
  s64 special_in_4096;  // the top exponent field: Inf and NaN where the format has them; 0: none at all
  s64 fall;             // the exponent field falls by this much with every k
  s64 lift;             // and is this much higher for k = 0 and 1
  s64 geometric;        // 1: the field is high minus the number of trailing zeros of a random word
  s64 mirror;           // 1: the second half of k repeats the first, except the last k; 2: k = 1 repeats k = 0
  s64 opposite;         // 1: repeated elements have the opposite sign
  s64 keep;             // bits of the fraction that are drawn
  s64 fill;             // bits of the fraction that are set
};

// Return the k that element k of K repeats, or k itself.
FPEMU_FUNCTION int source_of(const Recipe& r, int k, int K) {
  if (r.mirror == 1 && k >= K / 2 && k < K - 1 && K > 1) return k - K / 2;
  return r.mirror == 2 && k == 1 ? 0 : k;
}

// A code of format T from 128 random bits. k falls and lifts; flip: the other sign.
template <class T> FPEMU_FUNCTION u64 draw(const Recipe& r, const Words& w, int k, bool flip) {
  const u32 coins = w.x[2];
  const bool special = (coins >> 16 & 4095) < (u32)r.special_in_4096,
             zero = !special && (coins >> 4 & 15) < (u32)r.zero_in_16;
  const bool other = (coins >> 8 & 15) < (u32)r.other_in_16;
  const s64 low = other ? r.other_low : r.low, high = other ? r.other_high : r.high;
  s64 field =
      r.geometric && !other ? high - trailing_zeros(w.x[1]) : low + (s64)high_product(w.x[1], (u32)(high - low + 1));
  field += (k < 2 ? r.lift : 0) - r.fall * k;
  u64 fraction = (((u64)w.x[3] << 32 | w.x[0]) & (u64)r.keep) | (u64)r.fill;
  const bool negative = ((coins >> 31) != 0) != flip;
  const s64 most = T::NAN_RULE == NAN_IEEE && !r.special_in_4096 ? T::TOP - 1 : T::TOP;
  field = field < 0 ? 0 : field > most ? most : field;
  if (!r.keep && !r.fill && !field) fraction = 1;  // powers of two: the smallest subnormal
  if (special) field = T::TOP, fraction = coins & 4096 ? 0 : fraction;
  if (zero) field = 0, fraction = 0;
  fraction &= T::FRACTION_MASK;
  if (T::NAN_RULE == NAN_TOP && !r.special_in_4096 && field == T::TOP && fraction == T::FRACTION_MASK) fraction ^= 1;
  u64 raw = (u64)negative << T::SIGN | (u64)field << T::FRACTION | fraction;
  if (T::NAN_RULE == NAN_NEGATIVE_ZERO && !r.special_in_4096 && raw == 1ull << T::SIGN) raw = 0;
  return raw << T::PADDING | (w.x[3] & ((1ull << T::PADDING) - 1));
}

template <class T> struct Draw {
  FPEMU_FUNCTION static u64 code(const Recipe& r, const Words& w, int k, bool flip) { return draw<T>(r, w, k, flip); }
};
template <int BITS> struct Draw<Integer<BITS>> {  // any bits, the extremes made frequent
  FPEMU_FUNCTION static u64 code(const Recipe&, const Words& w, int, bool) {
    const u64 mask = (1ull << BITS) - 1, coin = w.x[2] & 15;
    return coin == 0 ? mask >> 1 : coin == 1 ? (mask >> 1) + 1 : coin == 2 ? 0 : w.x[0] & mask;
  }
};

// The element (row, k) of an operand whose rows have K elements; operand 0 is A, 1 is B stored by columns, 2 is C.
template <class T>
FPEMU_FUNCTION u64 element(const Recipe& r, u64 seed, int kind, int operand, u64 test, int row, int k, int K) {
  const int from = operand == 2 ? k : source_of(r, k, K);
  Words counter;
  counter.x[0] = (u32)(row * K + from), counter.x[1] = (u32)test, counter.x[2] = (u32)(test >> 32);
  counter.x[3] = (u32)(kind << 2 | operand);
  return Draw<T>::code(r, philox(counter, seed), operand == 2 ? 2 : from, from != k && r.opposite);
}

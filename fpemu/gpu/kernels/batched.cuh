// What the batched kernels share: the problem, eight neighbours from memory and back whatever their alignment, matrix
// instructions, and what follows a product (alpha, beta, C and the rounding to fp16, as fpemu.batched has them).
//
// A stack of matrices is a pointer and a step, or a table of offsets. A line of a matrix is what lies side by side in
// memory: a row, or a column where it is stored transposed. All distances are in bytes.
//
// fpemu.gpu.batched.source defines the struct Config before this file:
//   PARTS           1 real numbers, 2 half-complex ones
//   PLANAR          the parts lie apart, Stack::plane; else beside each other
//   HALF_SUMS       sums are fp16, else fp32
//   THREE           half-complex by three real products, else by four
//   CONJUGATE_A, _B   the imaginary parts, or real numbers, enter with the other sign
//   PLAIN           alpha is 1 and beta is 0
//   WHOLE           every line is a multiple of eight elements long
//   WIDTH           alignment of all lines of A, B and D in bytes, 16 at most
//   OVERLAP         the launch may begin before the one queued before it has ended
#pragma once
#include "bit_patterns.cuh"
#ifdef __CUDACC__
#include "hopper.cuh"
#endif

struct Stack {
  u64 first;         // address of matrix 0
  s64 step;          // from one matrix to the next
  const u64* table;  // or from matrix 0 to each; null: by the step
  s64 line;          // from one line to the next
  s64 plane;         // from the real parts to the imaginary ones
};
struct Problem {
  Stack a, b, c, d;
  s64 c_entry;  // from one entry of a line of C to the next
  float alpha[2], beta[2];
  int M, N, K, batch;
  int tiles_m, tiles_n;  // blocks of D
  int added, unused;     // beta is not 0
};

FPEMU_FUNCTION u64 matrix_of(const Stack& s, int i) { return s.first + (s.table ? s.table[i] : i * s.step); }

constexpr int PARTS = Config::PARTS;
constexpr bool SPLIT = PARTS == 2 && !Config::PLANAR;          // interleaved
constexpr int ELEMENT = SPLIT ? 4 : 2;                         // bytes of what lies side by side
constexpr int WORDS = 4 * PARTS;                               // that eight elements take
constexpr int TERMS = PARTS == 1 ? 1 : Config::THREE ? 3 : 2;  // sums that an element has

// ---- fp16

#ifdef __CUDACC__
FPEMU_FUNCTION u32 half_of(float x) {
  unsigned short h;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x));
  return h;
}
FPEMU_FUNCTION float value_of_half(u32 code) {
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"((unsigned short)code));
  return x;
}
FPEMU_FUNCTION u32 pick(u32 low, u32 high, u32 selector) { return __byte_perm(low, high, selector); }
#else
inline u32 half_of(float x) {
  if (x != x) return 0x7FFF;
  const _Float16 h = (_Float16)x;
  u16 code;
  return __builtin_memcpy(&code, &h, 2), code;
}
inline float value_of_half(u32 code) {
  const u16 given = (u16)code;
  _Float16 h;
  return __builtin_memcpy(&h, &given, 2), (float)h;
}
inline u32 to_halves(float x, float y) { return half_of(x) | half_of(y) << 16; }
inline u32 pick(u32 low, u32 high, u32 selector) {
  const u64 both = (u64)high << 32 | low;
  u32 made = 0;
  for (int i = 0; i < 4; i++) made |= (u32)(both >> 8 * (selector >> 4 * i & 7) & 255) << 8 * i;
  return made;
}
#endif
FPEMU_FUNCTION u32 add_halves(u32 x, u32 y) {
#ifdef __CUDACC__
  u32 sum;
  asm("add.f16x2 %0, %1, %2;" : "=r"(sum) : "r"(x), "r"(y));
  return sum;
#else
  return half_of(value_of_half(x & 0xFFFF) + value_of_half(y & 0xFFFF)) |
         half_of(value_of_half(x >> 16) + value_of_half(y >> 16)) << 16;
#endif
}
constexpr u32 LOWS = 0x5410, HIGHS = 0x7632,
              NEXT = 0x5432;  // of two words: both low halves, both high ones, the inner two
constexpr u32 SIGNS = 0x80008000;
constexpr u32 SIGNS_A = Config::CONJUGATE_A ? SIGNS : 0, SIGNS_B = Config::CONJUGATE_B ? SIGNS : 0;

// In the sums' format after an operation in fp32: for fp16 that is the operation rounded once.
FPEMU_FUNCTION float rounded(float x) { return Config::HALF_SUMS ? value_of_half(half_of(x)) : x; }

#include "batched_memory.cuh"

// ---- launches

// The kernel queued next may begin; this one waits until the one before it has written what it writes.
FPEMU_FUNCTION void wait_for_previous_grid() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  if (Config::OVERLAP) grid_release(), grid_wait();
#endif
}

// ---- what follows a product

struct Sums {  // of an element
  float part[TERMS];
};

// The parts of a product from its sums, alpha, beta and C, each operation rounded once; fp16 at last.
FPEMU_FUNCTION u32 finished(const Problem& p, const Sums& s, u64 c) {
  float x[2] = {s.part[0], 0};
  if (PARTS == 2) x[1] = s.part[TERMS == 1 ? 0 : 1];
  if (TERMS == 3) {
    x[0] = rounded(s.part[0] - s.part[1]);
    x[1] = rounded(rounded(s.part[TERMS - 1] - s.part[0]) - s.part[1]);
  }
  if (!Config::PLAIN) {
    float y[2] = {0, 0};
    FPEMU_UNROLL
    for (int turn = 0; turn < 2; turn++) {  // alpha times the product, beta times C
      const float* factor = turn ? p.beta : p.alpha;
      if (turn && !p.added) break;
      if (turn) {
        y[0] = x[0], y[1] = x[1];
        FPEMU_UNROLL
        for (int i = 0; i < PARTS; i++) x[i] = value_of_half(load2(c + i * (SPLIT ? 2 : p.c.plane)));
      }
      float z[2] = {rounded(factor[0] * x[0]), rounded(factor[0] * x[1])};
      if (PARTS == 2 && factor[1] != 0) {
        z[0] = rounded(z[0] - rounded(factor[1] * x[1]));
        z[1] = rounded(z[1] + rounded(factor[1] * x[0]));
      }
      x[0] = z[0], x[1] = z[1];
    }
    if (p.added) x[0] = rounded(y[0] + x[0]), x[1] = rounded(y[1] + x[1]);
  }
  return PARTS == 2 ? half_of(x[0]) | half_of(x[1]) << 16 : half_of(x[0]);
}

FPEMU_FUNCTION u64 place_in_c(const Problem& p, u64 c, int m, int n) { return c + m * p.c.line + n * p.c_entry; }

// One finished element to D.
FPEMU_FUNCTION void store_one(const Problem& p, u64 at, u32 value) {
  if (SPLIT) *(u32*)at = value;
  else *(u16*)at = (u16)value;
  if (PARTS == 2 && Config::PLANAR) *(u16*)(at + p.d.plane) = (u16)(value >> 16);
}

// Two finished neighbours in a row of D, of which the second may not be there. `at`: where the first goes.
FPEMU_FUNCTION void store_two(const Problem& p, u64 at, u32 first, u32 second, bool both) {
  if (both && SPLIT && Config::WIDTH >= 8) *(uint2*)at = make_uint2(first, second);
  else if (both && PARTS == 1 && Config::WIDTH >= 4) *(u32*)at = pick(first, second, LOWS);
  else {
    store_one(p, at, first);
    if (both) store_one(p, at + ELEMENT, second);
  }
}

// ---- matrix instructions, of a warp

#include "accumulator_fragment.cuh"

#ifdef __CUDACC__
FPEMU_FUNCTION void multiply_add(Sum& c, const u32 (&a)[4], const u32 (&b)[2]) {
#if FPEMU_HALF_SUMS
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0, %1}, {%2, %3, %4, %5}, {%6, %7}, {%0, %1};"
               : "+r"(c.word[0]), "+r"(c.word[1])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c.word[0]), "+f"(c.word[1]), "+f"(c.word[2]), "+f"(c.word[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}
#else
void multiply_add(Sum& c, const u32 (&a)[4], const u32 (&b)[2]);
#endif

// The products of one step of k for a fragment of D, in the paper's order: parts of x and y are those of the left and
// the right operand of the instruction, which are A and B, or B and A of the transposed product.
template <bool TURNED>
FPEMU_FUNCTION void multiply_step(Sum (&c)[TERMS], const u32 (&x)[TERMS][4], const u32 (&y)[TERMS][2]) {
  multiply_add(c[0], x[0], y[0]);
  if (TERMS == 1) return;
  constexpr int LAST = TERMS - 1;
  if (TERMS == 3) {
    multiply_add(c[1 % TERMS], x[1 % TERMS], y[1 % TERMS]), multiply_add(c[LAST], x[LAST], y[LAST]);
    return;
  }
  multiply_add(c[LAST], x[TURNED ? LAST : 0], y[TURNED ? 0 : LAST]);  // Ar Bi
  multiply_add(c[LAST], x[TURNED ? 0 : LAST], y[TURNED ? LAST : 0]);  // Ai Br
  u32 negative[2] = {y[LAST][0] ^ SIGNS, y[LAST][1] ^ SIGNS};
  multiply_add(c[0], x[LAST], negative);
}

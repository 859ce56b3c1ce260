// D from the residue bytes of byte_gemm.cu: integers by the Chinese remainder theorem, rounded once; alpha, beta and C.
//
// Before this text: the constants of crt.cuh; of a bilinear algorithm (fpemu.gpu.errorfree.hopper.Bilinear), PARTS,
// HALVES, TERMS, and of each block of D as bits of the terms PLUS[] and MINUS[]; struct Tiles with TILE_M and TILE_N of
// byte_gemm.cu, NARROW (D is fp32, else fp64), ONCE (one rounding, after alpha and beta · C) and, of ONCE, PLAIN (alpha is
// a power of two and nothing is added); the constants of struct Total (fpemu.gpu.errorfree.residues), and OTHERS of the
// first two moduli of a group as PAIR. The sums of bytes are the numbers t_i of crt.cuh: A has the inverses.
//
// blockIdx.y: row of tiles; blockIdx.x: 256 units of a tile, one tile after another.
// A thread has 4 bytes of each term and modulus: of chunk c of a tile's block r, of rows g = 0, 8 and two columns 8 j.
// The threads of a warp write 32 columns of a row of each block of D.
#include "crt.cuh"
#include "dependent_launch.cuh"
#include "epilogue.cuh"
#include "exact_sums.cuh"
#include "powers_of_two.cuh"
#include "block_reduce.cuh"

constexpr int WARPGROUPS = 2, ROW_BLOCKS = Tiles::TILE_M / (64 * WARPGROUPS), CHUNKS = Tiles::TILE_N / 32;
constexpr int UNITS = Tiles::TILE_M * Tiles::TILE_N / 4;  // of 4 bytes in a tile

#ifdef __CUDACC__
#define FPEMU_SELDOM __device__ __noinline__
constexpr int THREADS = 256;
#else
#define FPEMU_SELDOM inline
#define __grid_constant__
#define rint __builtin_rint
#define fabs __builtin_fabs
constexpr int THREADS = 1;
#endif

FPEMU_FUNCTION u32 load(const u32* from) {
#ifdef __CUDACC__
  return HALVES == 1 ? __ldcs(from) : *from;  // several blocks of D have a term
#else
  return *from;
#endif
}
// sum + two numbers of 16 bits times the bytes 2 half and 2 half + 1.
FPEMU_FUNCTION u32 pair_sum(u32 numbers, u32 bytes, int half, u32 sum) {
#ifdef __CUDACC__
  if (half) asm("dp2a.hi.u32.u32 %0, %1, %2, %0;" : "+r"(sum) : "r"(numbers), "r"(bytes));
  else asm("dp2a.lo.u32.u32 %0, %1, %2, %0;" : "+r"(sum) : "r"(numbers), "r"(bytes));
#else
  for (int i = 0; i < 2; i++) sum += (numbers >> 16 * i & 0xffff) * (bytes >> (16 * half + 8 * i) & 255);
#endif
  return sum;
}
// Bytes 2 half and 2 half + 1 of x, each followed by the one of y.
FPEMU_FUNCTION u32 mixed(u32 x, u32 y, int half) {
#ifdef __CUDACC__
  return __byte_perm(x, y, half ? 0x7362 : 0x5140);
#else
  x >>= 16 * half, y >>= 16 * half;
  return (x & 255) | (y & 255) << 8 | (x & 0xff00) << 8 | (y & 0xff00) << 16;
#endif
}

// v of crt.cuh for group g and the four entries in the words of its moduli.
FPEMU_FUNCTION void group_sums(u32 (&v)[4], const u32 (&words)[3], int g) {
  const int members = smaller(N - 3 * g, 3), last = 3 * g + members - 1;
  FPEMU_UNROLL
  for (int e = 0; e < 4; e++) {
    v[e] = 0;
    if (members > 1) v[e] = pair_sum(PAIR[g], mixed(words[0], words[1], e / 2), e % 2, 0);
    if (members != 2) v[e] = pair_sum(OTHERS[last] << 16 * (e % 2), words[members - 1], e / 2, v[e]);
  }
}

// C 2^exponent from the sums of crt.cuh, one group after another.
//
// z is the integer nearest to an approximate quotient. As 2|C| < P, a wrong z makes the computed number P / 2 or more.
//   WHOLE   all sums are below 2^63, and are integers.
//   else    each weight has parts: sums of v HIGH, of v MIDDLE and, of ONCE, of v THIRD and v FOURTH are exact, the error
//           of the sum of v LOW and of later operations is less than ERROR and, of ONCE, 2^-106 |C|. Each part is a
//           multiple of a unit of which the next one is less than 2^53, so that the errors of sums of two are exact in
//           either order (Fast2Sum).
//   NEAR    the error is less than 1/8: C is the nearest integer. Otherwise, if the numbers on both sides of C, as far
//           away as the error, round to one number, so does C.
// Mode CR has one number of moduli for all rows, so that C may be far smaller than P.
struct Total {
  u64 whole = 0;
  double high = 0, middle = 0, third = 0, fourth = 0, low = 0;
  u32 any = 0;
  // v = sum + a multiple of the product of group g, in [0, 12 times it].
  FPEMU_FUNCTION void add(u32 v, u32 sum, int g) {
    if (WHOLE) {
      whole += v * WEIGHT_64[g];
      return;
    }
    const double x = fp64_of(0x4330000000000000ull | v) - 4503599627370496.0;  // 2^52 + v - 2^52
    any |= sum, high = fused(x, HIGH[g], high), middle = fused(x, MIDDLE[g], middle), low = fused(x, LOW[g], low);
    if (Tiles::ONCE) third = fused(x, THIRD[g], third), fourth = fused(x, FOURTH[g], fourth);
  }
  // Whether the code is that of a zero or a normal number, rounded once.
  FPEMU_FUNCTION bool round(int exponent, u64& code) const {
    constexpr int FRACTION = Tiles::NARROW ? 23 : 52, LARGEST = Tiles::NARROW ? 254 : 2046;
    bool decided;
    u64 x;
    if (WHOLE) {
      const float z = (float)(u32)(whole >> SHIFT) * SHARE_32 + 12582912.0f;  // 1.5 · 2^23: an integer in the low bits
      const s64 C = (s64)(whole - (fp32_code(z) & 0x3fffff) * WEIGHT_64[GROUPS]);
      decided = C < (s64)(WEIGHT_64[GROUPS] / 2) && C > -(s64)(WEIGHT_64[GROUPS] / 2);
      x = Tiles::NARROW ? (u64)fp32_code((float)C) : fp64_code((double)C);
    } else {
      const double z = fused(high, INVERSE_P, 6755399441055744.0) - 6755399441055744.0;  // 1.5 · 2^52
      const double h = fused(-z, HIGH[GROUPS], high), m = fused(-z, MIDDLE[GROUPS], middle);
      double sum = h + m;
      const double of_sum = m - (sum - h), l = fused(-z, LOW[GROUPS], low);
      double rest = of_sum + (Tiles::ONCE ? fused(-z, THIRD[GROUPS], third) : l);  // of ONCE exact
      double C = sum + rest, left = rest - (C - sum);                              // C + left = sum + rest
      if (Tiles::ONCE) {
        const double f = fused(-z, FOURTH[GROUPS], fourth), more = left + f, of_more = f - (more - left);
        sum = C + more, rest = (more - (sum - C)) + (of_more + l);
        C = sum + rest, left = rest - (C - sum);
      }
      decided = fabs(C) < MOST;
      if (NEAR) {
        const double nearest = rint(C);
        C = nearest + rint((C - nearest) + left);
      } else {
        // beside a tie |left| is at least 2^-55 |C|, so that 2^-50 |left| is more than 2^-106 |C|
        const double off = fused(fabs(left), 1 + 0x1p-50, ERROR);
        decided = (decided && C + off == C && C - off == C) || !any;
        C = any ? C : 0;
      }
      x = fp64_code(C);
      if (Tiles::NARROW) {  // once more, to 24 bits; a tie may stand for its neighbourhood
        decided = decided && ((u32)x & 0x1fffffff) != 1u << 28;
        x = ((x & ~(1ull << 63)) + (1u << 28)) >> 29 | x >> 63 << 34;  // with 11 bits of exponent
      }
    }
    constexpr int EXPONENT = Tiles::NARROW && WHOLE ? 8 : 11, MORE = Tiles::NARROW && !WHOLE ? 127 - 1023 : 0;
    const u64 size = x & ((1ull << (FRACTION + EXPONENT)) - 1), sign = x >> (FRACTION + EXPONENT);
    const int field = (int)(size >> FRACTION) + exponent + MORE;
    code = size + ((u64)(s64)(exponent + MORE) << FRACTION);
    if (Tiles::NARROW) code = (u32)code | sign << 31;
    else code |= sign << 63;
    code = size ? code : 0;
    return decided && (size ? field >= 1 && field <= LARGEST : exponent > -SPECIAL / 2);
  }
};

typedef Result<Tiles::NARROW>::Format Rounded;
typedef Result<Tiles::NARROW>::Real Real;

FPEMU_FUNCTION double value_of(u64 code) { return Tiles::NARROW ? (double)fp32_of((u32)code) : fp64_of(code); }

// An entry of D from the codes of the product, in real or in complex arithmetic.
template <class Real> FPEMU_FUNCTION void finish(const End& end, s64 row, s64 column, u64 (&codes)[PARTS]) {
  if (PARTS == 1 || (end.alpha_imaginary == 0 && end.beta_imaginary == 0)) {
    FPEMU_UNROLL
    for (int c = 0; c < PARTS; c++)
      codes[c] = finished(end, value_of(codes[c]), end.has_c ? read(end.C, row, column + c) : 0);
    return;
  }
  Real t[2] = {(Real)value_of(codes[0]), (Real)value_of(codes[PARTS - 1])};
  const Real alpha[2] = {(Real)end.alpha, (Real)end.alpha_imaginary},
             beta[2] = {(Real)end.beta, (Real)end.beta_imaginary};
  Real c[2];
  if (end.has_c) c[0] = (Real)read(end.C, row, column), c[1] = (Real)read(end.C, row, column + 1);
  combine(t, alpha, beta, end.has_c ? c : nullptr);
  FPEMU_UNROLL
  for (int c = 0; c < PARTS; c++)
    codes[c] = t[c] != t[c] ? end.nan : Tiles::NARROW ? fp32_code((float)t[c]) : fp64_code((double)t[c]);
}

// The numbers of crt.cuh of a modulus for four entries. A term that is subtracted is p less its byte, so that the sums of
// four terms are at most 4 p: the sums of crt.cuh stay below 2^63, and the error of its quotient is below 2^-42.
struct Four {
  u32 pair[TERMS == 1 ? 1 : 2];
  FPEMU_FUNCTION Four() {}
  FPEMU_FUNCTION Four(const u32* from, s64 plane, int i, u32 plus, u32 minus) {
    if (TERMS == 1) {
      pair[0] = load(from + i * plane);
      return;
    }
    u32 even = 0, odd = 0;
    FPEMU_UNROLL
    for (int t = 0; t < TERMS; t++) {
      if (!((plus | minus) >> t & 1)) continue;
      u32 x = load(from + (i * TERMS + t) * plane), all = 0;
      if (minus >> t & 1) x = ~x, all = 0x10001 * (MODULUS[i] - 255);  // 255 - x is the complement of a byte
      even += (x & 0xff00ff) + all, odd += (x >> 8 & 0xff00ff) + all;
    }
    pair[0] = even, pair[TERMS > 1] = odd;
  }
  FPEMU_FUNCTION u32 entry(int e) const {
    return TERMS == 1 ? pair[0] >> 8 * e & 255 : pair[e % 2 * (TERMS > 1)] >> 16 * (e / 2) & 0xffff;
  }
};

// The code of any product, and of entries that NaN or infinities reach; `e` is the entry's number of four.
FPEMU_SELDOM u64 any_code(const u32* from, s64 plane, u32 plus, u32 minus, int e, int exponent, const End& end, s64 row,
                          s64 column) {
  Limbs x;
  combine(x.limb, [&](int i) { return Four(from, plane, i, plus, minus).entry(e); });
  if (Tiles::ONCE) return round_entry(end, row, column, x, LIMBS, exponent, Tiles::PLAIN);
  if (is_reached(end, row, column)) {
    const double value = reached(end, row, column);
    return value != value ? end.nan : Tiles::NARROW ? fp32_code((float)value) : fp64_code(value);
  }
  return round_digits<Rounded>(x.limb, exponent);
}

struct Panel {  // of D, whose blocks have M rows and `columns` columns
  int tile_columns, M, columns, first_row, first_column, rows, all_columns, unused;
};

// Thread blocks of a multiprocessor, by the registers that the sums of a thread need; more of them hide the loads.
constexpr int RESIDENT = TERMS == 1 && !Tiles::ONCE ? 4 : WHOLE ? 3 : 2;
extern "C" __global__ void __launch_bounds__(256, RESIDENT)
    residue_sum(const u32* residues, s64 plane, const Panel p, const int* row_exponents, const int* column_exponents,
                const __grid_constant__ End end) {
  wait_for_previous_grid();
  const int more = Tiles::ONCE && Tiles::PLAIN ? significand(end.alpha).e + 52 : 0;
  const bool plain = Tiles::ONCE || (end.alpha == 1 && end.alpha_imaginary == 0 && !end.has_c);
  const int tile_column = blockIdx.x / (UNITS / 256), tile_row = blockIdx.y;
  for (int of = threadIdx.x; of < 256; of += THREADS) {
    const int in = blockIdx.x % (UNITS / 256) * 256 + of, j = in % 4, lane = in / 4 % 32, warp = in / 128 % 4;
    const int warpgroup = in / 512 % WARPGROUPS, chunk = in / (512 * WARPGROUPS), r = chunk / CHUNKS,
              c = chunk % CHUNKS;
    const int in_tile = (warpgroup * ROW_BLOCKS + r) * 64 + warp * 16 + lane / 4;
    const int block_row = tile_row * Tiles::TILE_M + in_tile;
    const int block_column = tile_column * Tiles::TILE_N + 32 * c + 8 * j + 2 * (lane % 4);
    if (block_row >= p.M || block_column >= p.columns) continue;
    const u32* from = residues + (s64)(tile_row * p.tile_columns + tile_column) * UNITS + in;
    FPEMU_UNROLL
    for (int q = 0; q < HALVES * HALVES; q++) {
      const int row = block_row + q / HALVES * p.M, column = block_column + q % HALVES * p.columns;
      const int rows = smaller(p.M - block_row, p.rows - row);  // of this block and D, from `row` on
      const int width = smaller(smaller(p.columns - block_column, p.all_columns - column), 2);
      if (rows <= 0 || width <= 0) continue;
      const int* scale = column_exponents + p.first_column + column;
      const int of_column[2] = {scale[0], scale[width - 1]};
      const s64 i = p.first_row + row, k = p.first_column + column;
      Total totals[PARTS][4];
      FPEMU_UNROLL
      for (int g = 0; g < GROUPS; g++) {
        u32 v[TERMS][4];
        FPEMU_UNROLL
        for (int t = 0; t < TERMS; t++) {
          if (!((PLUS[q * PARTS] | MINUS[q * PARTS] | PLUS[q * PARTS + PARTS - 1] | MINUS[q * PARTS + PARTS - 1]) >> t &
                1))
            continue;
          u32 words[3];
          FPEMU_UNROLL
          for (int i = 0; i < 3; i++) words[i] = 3 * g + i < N ? load(from + ((3 * g + i) * TERMS + t) * plane) : 0;
          group_sums(v[t], words, g);
        }
        FPEMU_UNROLL
        for (int part = 0; part < PARTS; part++) FPEMU_UNROLL
        for (int e = 0; e < 4; e++) {
          u32 sum = 0, multiple = 0;
          FPEMU_UNROLL
          for (int t = 0; t < TERMS; t++) {
            if (PLUS[q * PARTS + part] >> t & 1) sum += v[t][e];
            if (MINUS[q * PARTS + part] >> t & 1) sum -= v[t][e], multiple += 3 * OTHERS[3 * g] * MODULUS[3 * g];
          }
          totals[part][e].add(sum + multiple, sum, g);
        }
      }
      u64 codes[2][2][PARTS];
      int exponents[4], open = 0;  // entries that are not decided
      FPEMU_UNROLL
      for (int e = 0; e < 4; e++)
        exponents[e] = -(row_exponents[i + smaller(8 * (e / 2), rows - 1)] + of_column[e % 2]);
      FPEMU_UNROLL
      for (int part = 0; part < PARTS; part++) FPEMU_UNROLL
      for (int e = 0; e < 4; e++)
        if ((Tiles::ONCE && !Tiles::PLAIN) || !totals[part][e].round(exponents[e] + more, codes[e / 2][e % 2][part]))
          open |= 1 << (4 * part + e);
      if (open) FPEMU_UNROLL
      for (int part = 0; part < PARTS; part++) FPEMU_UNROLL
      for (int e = 0; e < 4; e++) {
        const int g = e / 2, n = e % 2, block = q * PARTS + part;
        if (open >> (4 * part + e) & 1 && 8 * g < rows && n < width)
          codes[g][n][part] =
              any_code(from, plane, PLUS[block], MINUS[block], e, exponents[e], end, i + 8 * g, PARTS * (k + n) + part);
      }
      FPEMU_UNROLL
      for (int g = 0; g < 2; g++) {
        if (8 * g >= rows) break;
        if (!plain) FPEMU_UNROLL
        for (int n = 0; n < 2; n++)
          if (n < width) finish<Real>(end, i + 8 * g, PARTS * (k + n), codes[g][n]);
#ifdef __CUDACC__
        typedef Result<Tiles::NARROW>::Real Real;
        Real* to = (Real*)end.D.at + (i + 8 * g) * end.D.row + PARTS * k;
        if (width == 2 && ((u64)to & (Tiles::NARROW ? 8 * PARTS - 1 : 15)) == 0) {
          const u64* code = &codes[g][0][0];
          FPEMU_UNROLL
          for (int c = 0; c < PARTS; c++) {
            if (Tiles::NARROW) ((uint2*)to)[c] = make_uint2((u32)code[2 * c], (u32)code[2 * c + 1]);
            else ((ulonglong2*)to)[c] = make_ulonglong2(code[2 * c], code[2 * c + 1]);
          }
          continue;
        }
#endif
        FPEMU_UNROLL
        for (int c = 0; c < 2 * PARTS; c++)
          if (c < PARTS * width) write(end.D, i + 8 * g, PARTS * k + c, codes[g][c / PARTS][c % PARTS]);
      }
    }
  }
}

// D from the residue bytes of byte_gemm.cu: integers by the Chinese remainder theorem, rounded once; alpha, beta and C.
//
// Before this text: the constants of crt.cuh; of a bilinear algorithm (fpemu.gpu.errorfree.hopper.Bilinear), PARTS,
// HALVES, TERMS, and of each block of D as bits of the terms PLUS[] and MINUS[]; struct Tiles with TILE_M and TILE_N of
// byte_gemm.cu, NARROW (D is fp32, else fp64), ONCE (one rounding, after alpha and beta · C) and, of ONCE, PLAIN (alpha is
// a power of two and nothing is added). The sums of bytes are the numbers t_i of crt.cuh: A has the inverses.
//
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

FPEMU_FUNCTION u32 load(const u32* from) {
#ifdef __CUDACC__
  return TERMS == 1 ? __ldcs(from) : *from;  // several blocks of D have a term
#else
  return *from;
#endif
}
#ifdef __CUDACC__
#define FPEMU_SELDOM __device__ __noinline__
#else
#define FPEMU_SELDOM inline
#define __grid_constant__
#endif

// The code of C 2^exponent rounded once, a zero or a normal number, from the numbers t of the moduli; else false.
//
// C is the sum of crt.cuh with each weight in three parts: sums of v HIGH and of v MIDDLE are exact, and the error of the
// sum of v LOW and of the later operations is less than ERROR. If C - ERROR and C + ERROR round to one number, so does C.
// Where |C| < 2^63 its digits of 64 bits are all of C.
template <class F> FPEMU_FUNCTION bool round_sum(const F& t, int exponent, u64& code) {
  constexpr double INTEGERS = 6755399441055744.0;  // 1.5 · 2^52, which makes a sum an integer
  double share = 0, high = 0, middle = 0, low = 0;
  u32 any = 0, v[GROUPS];
  FPEMU_UNROLL
  for (int g = 0; g < GROUPS; g++) {
    v[g] = 0;
    FPEMU_UNROLL
    for (int i = 3 * g; i < smaller(3 * g + 3, N); i++) v[g] += t(i) * OTHERS[i];
    const double x = fp64_of(0x4330000000000000ull | v[g]) - 4503599627370496.0;  // 2^52 + v - 2^52
    any |= v[g], share = fused(x, SHARE[g], share);
    high = fused(x, HIGH[g], high), middle = fused(x, MIDDLE[g], middle), low = fused(x, LOW[g], low);
  }
  const double z = share + INTEGERS - INTEGERS;
  high = fused(-z, HIGH[GROUPS], high), middle = fused(-z, MIDDLE[GROUPS], middle), low = fused(-z, LOW[GROUPS], low);
  const double sum = high + middle, part = sum - high, rest = (high - (sum - part)) + (middle - part) + low;
  const double C = sum + rest, left = rest - (C - sum), size = C < 0 ? -C : C;  // C + left = sum + rest
  double least = C + (left - ERROR), most = C + (left + ERROR);
  bool decided = (sum < 0 ? -sum : sum) >= (rest < 0 ? -rest : rest);
  if (ERROR < 1e18 && size < 4e18) {  // |C| < 2^63
    u64 exact = 0;
    for (int g = 0; g < GROUPS; g++) exact += v[g] * WEIGHT_64[g];
    exact -= (u32)fp64_code(share + INTEGERS) * WEIGHT_64[GROUPS];
    least = most = (double)(s64)exact, decided = true;
  }
  u64 x = fp64_code(least), y = fp64_code(most);
  if (!any) x = y = 0, decided = true;
  if (Tiles::NARROW) {  // once more, to 24 bits; a tie may stand for its neighbourhood
    constexpr u64 PLACES = (1ull << 29) - 1;
    decided = decided && (x & PLACES) != 1ull << 28 && (y & PLACES) != 1ull << 28;
    x = (x + (PLACES >> 1) + (x >> 29 & 1)) >> 29, y = (y + (PLACES >> 1) + (y >> 29 & 1)) >> 29;
  }
  constexpr int FRACTION = Tiles::NARROW ? 23 : 52, LARGEST = Tiles::NARROW ? 254 : 2046;
  const int field = (int)(x >> FRACTION & 0x7ff) + exponent - (Tiles::NARROW ? 1023 - 127 : 0);
  const u64 sign = x >> (FRACTION + 11) & 1;
  code = sign << (Tiles::NARROW ? 31 : 63) | (u64)(u32)field << FRACTION | (x & ((1ull << FRACTION) - 1));
  if (!decided || x != y) return false;
  if (!(x & ((1ull << (FRACTION + 11)) - 1))) return code = 0, exponent > -SPECIAL / 2;
  return field >= 1 && field <= LARGEST;
}

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

extern "C" __global__ void __launch_bounds__(256, TERMS == 1 ? 3 : 2)
    residue_sum(const u32* residues, s64 plane, const Panel p, const int* row_exponents, const int* column_exponents,
                const __grid_constant__ End end) {
  wait_for_previous_grid();
  const s64 tiles = (s64)((p.M + Tiles::TILE_M - 1) / Tiles::TILE_M) * p.tile_columns;
  const int more = Tiles::ONCE && Tiles::PLAIN ? significand(end.alpha).e + 52 : 0;
  const bool plain = Tiles::ONCE || (end.alpha == 1 && end.alpha_imaginary == 0 && !end.has_c);
  for (s64 at = (s64)blockIdx.x * blockDim.x + threadIdx.x; at < tiles * UNITS; at += (s64)gridDim.x * blockDim.x) {
    const int tile = (int)(at / UNITS), in = (int)(at % UNITS), j = in % 4, lane = in / 4 % 32, warp = in / 128 % 4;
    const int warpgroup = in / 512 % WARPGROUPS, chunk = in / (512 * WARPGROUPS), r = chunk / CHUNKS,
              c = chunk % CHUNKS;
    const int in_tile = (warpgroup * ROW_BLOCKS + r) * 64 + warp * 16 + lane / 4;
    const int block_row = tile / p.tile_columns * Tiles::TILE_M + in_tile;
    const int block_column = tile % p.tile_columns * Tiles::TILE_N + 32 * c + 8 * j + 2 * (lane % 4);
    if (block_row >= p.M || block_column >= p.columns) continue;
    const u32* from = residues + at;
    FPEMU_UNROLL
    for (int q = 0; q < HALVES * HALVES; q++) {
      const int row = block_row + q / HALVES * p.M, column = block_column + q % HALVES * p.columns;
      const int rows = smaller(p.M - block_row, p.rows - row);  // of this block and D, from `row` on
      const int width = smaller(smaller(p.columns - block_column, p.all_columns - column), 2);
      if (rows <= 0 || width <= 0) continue;
      const int* scale = column_exponents + p.first_column + column;
      const int of_column[2] = {scale[0], scale[width - 1]};
      const s64 i = p.first_row + row, k = p.first_column + column;
      u64 codes[2][2][PARTS];
      FPEMU_UNROLL
      for (int part = 0; part < PARTS; part++) {
        const int block = q * PARTS + part;
        Four fours[N];
        FPEMU_UNROLL
        for (int m = 0; m < N; m++) fours[m] = Four(from, plane, m, PLUS[block], MINUS[block]);
        FPEMU_UNROLL
        for (int e = 0; e < 4; e++) {
          const int g = e / 2, n = e % 2;
          const int exponent = -(row_exponents[i + smaller(8 * g, rows - 1)] + of_column[n]);
          const auto number = [&](int m) { return fours[m].entry(e); };
          const bool rounded = (!Tiles::ONCE || Tiles::PLAIN) && round_sum(number, exponent + more, codes[g][n][part]);
          if (!rounded && 8 * g < rows && n < width)
            codes[g][n][part] =
                any_code(from, plane, PLUS[block], MINUS[block], e, exponent, end, i + 8 * g, PARTS * (k + n) + part);
        }
      }
      FPEMU_UNROLL
      for (int g = 0; g < 2; g++) {
        if (8 * g >= rows) break;
        if (!plain) FPEMU_UNROLL
        for (int n = 0; n < 2; n++)
          if (n < width) finish<Real>(end, i + 8 * g, PARTS * (k + n), codes[g][n]);
#ifdef __CUDACC__
        u64* to = (u64*)end.D.at + (i + 8 * g) * end.D.row + PARTS * k;
        if (width == 2 && !Tiles::NARROW && ((u64)to & 15) == 0) {
          const u64* code = &codes[g][0][0];
          FPEMU_UNROLL
          for (int c = 0; c < PARTS; c++) ((ulonglong2*)to)[c] = make_ulonglong2(code[2 * c], code[2 * c + 1]);
          continue;
        }
#endif
        for (int c = 0; c < PARTS * width; c++) write(end.D, i + 8 * g, PARTS * k + c, codes[g][c / PARTS][c % PARTS]);
      }
    }
  }
}

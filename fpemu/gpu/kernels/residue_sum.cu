// D from the residue bytes of byte_gemm.cu: integers by the Chinese remainder theorem, rounded once; alpha, beta and C.
//
// Before this text: the constants of crt.cuh; struct Tiles with TILE_M and TILE_N of byte_gemm.cu, and NARROW (D is
// fp32, else fp64). The bytes are the numbers t_i of crt.cuh: A has the inverses.
//
// A thread has 4 bytes of each modulus: of chunk c of a tile's block r, of rows g = 0, 8 and two columns 8 j. The threads
// of a warp write 32 columns of a row.
#include "crt.cuh"
#include "dependent_launch.cuh"
#include "exact_sums.cuh"
#include "powers_of_two.cuh"
#include "block_reduce.cuh"

constexpr int WARPGROUPS = 2, BLOCKS = Tiles::TILE_M / (64 * WARPGROUPS), CHUNKS = Tiles::TILE_N / 32;
constexpr int UNITS = Tiles::TILE_M * Tiles::TILE_N / 4;  // of 4 bytes in a tile

FPEMU_FUNCTION u32 load_once(const u32* from) {
#ifdef __CUDACC__
  return __ldcs(from);
#else
  return *from;
#endif
}
#ifdef __CUDACC__
#define FPEMU_SELDOM __device__ __noinline__
FPEMU_FUNCTION double to_fp64(u64 x) { return __ull2double_rn(x); }
FPEMU_FUNCTION float to_fp32(u64 x) { return __ull2float_rn(x); }
#else
#define FPEMU_SELDOM inline
#define __grid_constant__
FPEMU_FUNCTION double to_fp64(u64 x) { return (double)x; }
FPEMU_FUNCTION float to_fp32(u64 x) { return (float)x; }
#endif

// The code of limb · 2^exponent rounded to nearest even, a zero or a normal number; else false. The digits, with
// carries, are those of an integer.
FPEMU_FUNCTION bool round_normal(const s64 (&limb)[LIMBS], int exponent, u64& code) {
  if (LIMBS > 4) return false;
  unsigned __int128 sum = 0;
  FPEMU_UNROLL
  for (int l = LIMBS - 1; l >= 0; l--) sum = (sum << 32) + (unsigned __int128)(__int128)limb[l];
  const u64 minus = (u64)(sum >> 64) >> 63;
  if (minus) sum = -sum;
  // the leading 64 bits; those below are one sticky bit
  const u64 high = (u64)(sum >> 64), low = (u64)sum;
  const int places = bit_length(high);  // at most 63
  const u64 lead = places ? high << (64 - places) | low >> places : low, lost = places ? low << (64 - places) : 0;
  constexpr int FRACTION = Tiles::NARROW ? 23 : 52, LARGEST = Tiles::NARROW ? 254 : 2046;
  const u64 size = Tiles::NARROW ? fp32_code(to_fp32(lead | (lost != 0))) : fp64_code(to_fp64(lead | (lost != 0)));
  const int field = (int)(size >> FRACTION) + places + exponent;
  const bool zero = !lead && exponent > -SPECIAL / 2;
  code = minus << (Tiles::NARROW ? 31 : 63) | (size & ((1ull << FRACTION) - 1)) | (u64)(u32)field << FRACTION;
  if (zero) code = 0;
  return zero || (field >= 1 && field <= LARGEST);
}

typedef Result<Tiles::NARROW>::Format Rounded;

FPEMU_FUNCTION u64 finished_code(const End& end, s64 row, s64 column, u64 code) {
  const double value = Tiles::NARROW ? (double)fp32_of((u32)code) : fp64_of(code);
  return finished(end, value, end.has_c ? read(end.C, row, column) : 0);
}

// The same for any number, and for entries that NaN or infinities reach; `shift` selects the byte of each modulus.
FPEMU_SELDOM u64 any_code(const u32* from, s64 plane, int shift, int exponent, const End& end, s64 row, s64 column) {
  if (is_reached(end, row, column))
    return finished(end, reached(end, row, column), end.has_c ? read(end.C, row, column) : 0);
  s64 limb[LIMBS];
  combine(limb, [&](int i) { return from[i * plane] >> shift & 255; });
  return finished_code(end, row, column, round_digits<Rounded>(limb, exponent));
}

extern "C" __global__ void __launch_bounds__(256, 3)
    residue_sum(const u32* residues, s64 plane, int tile_columns, int M, int columns, int first_row, int first_column,
                const int* row_exponents, const int* column_exponents, const __grid_constant__ End end) {
  wait_for_previous_grid();
  const s64 tiles = (s64)((M + Tiles::TILE_M - 1) / Tiles::TILE_M) * tile_columns;
  const bool plain = end.alpha == 1 && !end.has_c;
  for (s64 at = (s64)blockIdx.x * blockDim.x + threadIdx.x; at < tiles * UNITS; at += (s64)gridDim.x * blockDim.x) {
    const int tile = (int)(at / UNITS), in = (int)(at % UNITS), j = in % 4, lane = in / 4 % 32, warp = in / 128 % 4;
    const int warpgroup = in / 512 % WARPGROUPS, chunk = in / (512 * WARPGROUPS), r = chunk / CHUNKS,
              c = chunk % CHUNKS;
    const int block = (warpgroup * BLOCKS + r) * 64 + warp * 16 + lane / 4;
    const int row = tile / tile_columns * Tiles::TILE_M + block;
    const int column = tile % tile_columns * Tiles::TILE_N + 32 * c + 8 * j + 2 * (lane % 4);
    if (row >= M || column >= columns) continue;
    const int width = smaller(columns - column, 2);
    const u32* from = residues + at;
    u32 units[N];
    FPEMU_UNROLL
    for (int i = 0; i < N; i++) units[i] = load_once(from + i * plane);
    const int* scale = column_exponents + first_column + column;
    const int of_column[2] = {scale[0], scale[width - 1]};
    u64 codes[2][2];
    u32 left = 0;  // entries that are not normal numbers
    FPEMU_UNROLL
    for (int g = 0; g < 2; g++) {
      const int of_row = row_exponents[first_row + smaller(row + 8 * g, M - 1)];
      FPEMU_UNROLL
      for (int n = 0; n < 2; n++) {
        s64 limb[LIMBS];
        combine(limb, [&](int i) { return units[i] >> 8 * (2 * g + n) & 255; });
        if (!round_normal(limb, -(of_row + of_column[n]), codes[g][n])) left |= 1u << (2 * g + n);
      }
    }
    FPEMU_UNROLL
    for (int g = 0; g < 2; g++) {
      const s64 i = first_row + row + 8 * g, k = first_column + column;
      if (row + 8 * g >= M) break;
      if (!plain) FPEMU_UNROLL
      for (int n = 0; n < 2; n++)
        if (n < width) codes[g][n] = finished_code(end, i, k + n, codes[g][n]);
#ifdef __CUDACC__
      u64* to = (u64*)end.D.at + i * end.D.row + k;
      if (width == 2 && !Tiles::NARROW && ((u64)to & 15) == 0) {
        *(ulonglong2*)to = make_ulonglong2(codes[g][0], codes[g][1]);
        continue;
      }
#endif
      for (int n = 0; n < width; n++) write(end.D, i, k + n, codes[g][n]);
    }
    for (int e = 0; left >> e; e++) {
      const int g = e / 2, n = e % 2;
      const s64 i = first_row + row + 8 * g, k = first_column + column + n;
      if (!(left >> e & 1) || row + 8 * g >= M || n >= width) continue;
      const int exponent = -(row_exponents[i] + column_exponents[k]);
      write(end.D, i, k, any_code(from, plane, 8 * e, exponent, end, i, k));
    }
  }
}

// Integers modulo small numbers p, as int8: the operands of Ozaki scheme II.
//
// Before this file come, for N moduli: MODULUS[N], MAGIC[N] = floor(2^32 / p), W18[N], W36[N] (2^18 and 2^36 modulo p);
// PIECES and FACTOR[PIECES][N] (2^(15 j) modulo p, in [-p/2, p/2]).
#include "modular.cuh"
#include "block_reduce.cuh"
#include "slices.cuh"

// Flags that `residues` sets.
struct Cutting {
  int incomplete;  // a number that is not an integer in its row's units
  int vanished;    // the number of nonzero rows whose integers are all zero
};

// Residues of trunc(x 2^shift[row]), |x| 2^shift < 2^512, as int8: plane i (rows of `width`) for modulus i. `powers`
// (longest, N rounded up to 4) holds 2^s mod p_i.
extern "C" __global__ void __launch_bounds__(256)
    residues(const double* X, s64 pitch, int rows, int all_rows, int K, const int* shifts, int sign, int more,
             const u8* powers, int longest, signed char* out, s64 width, s64 plane, Cutting* found) {
  FPEMU_SHARED_BYTES(memory);
  constexpr int ROW = (N + 3) / 4 * 4;
  for (int i = threadIdx.x; i < longest * ROW / 4; i += blockDim.x) ((u32*)memory)[i] = ((const u32*)powers)[i];
  __syncthreads();
  for (int row = blockIdx.x; row < all_rows; row += gridDim.x) {
    const int shift = row < rows ? sign * shifts[row] + more : 0;
    int cut = 0, some = 0, kept = 0;
    for (int start = 4 * threadIdx.x; start < width; start += 4 * blockDim.x) {
      u32 low[4], mid[4], top[4], at[4];
      bool minus[4];
      u64 codes[4];
      read_four(codes, X + row * pitch, start, row < rows ? K : 0);
      FPEMU_UNROLL
      for (int v = 0; v < 4; v++) {
        const Element x = element(codes[v]);
        u64 m = size_of(x.m);
        const int s = x.e + shift;
        some |= m != 0;
        if (s < 0) {
          const u64 whole = s <= -64 ? 0 : m >> -s;
          cut |= s <= -64 ? m != 0 : (whole << -s) != m;
          m = whole;
        }
        kept |= m != 0;
        low[v] = (u32)m & 0x3ffff;
        mid[v] = (u32)(m >> 18) & 0x3ffff;
        top[v] = (u32)(m >> 36);
        at[v] = (u32)(m ? smaller(larger(s, 0), longest - 1) : 0);
        minus[v] = x.m < 0;
      }
      FPEMU_UNROLL
      for (int i = 0; i < N; i++) {
        const u32 p = MODULUS[i];
        u32 packed = 0;
        for (int v = 0; v < 4; v++) {
          u32 r = reduce(low[v] + mid[v] * W18[i] + top[v] * W36[i], p, MAGIC[i]);
          r = reduce(r * memory[at[v] * ROW + i], p, MAGIC[i]);
          if (r >= p) r -= p;
          if (minus[v]) r = p - r;
          if (r >= 128) r -= p;
          packed |= (r & 0xff) << (8 * v);
        }
        *(u32*)(out + i * plane + (s64)row * width + start) = packed;
      }
    }
    cut = block_max(cut);
    some = block_max(some);
    kept = block_max(kept);
    if (threadIdx.x == 0) {
      if (cut) atomicMax(&found->incomplete, 1);
      if (some && !kept) atomicAdd(&found->vanished, 1);
    }
  }
}

// The same in fp32, for |x| 2^shift < 2^(15 PIECES - 2), PIECES <= 8: x is a sum of PIECES integers of magnitude up to
// 2^14, times powers of 2^15. With the residues of these powers, FACTOR, of magnitude up to 128, all sums stay
// below 2^24 and are exact. The quotient by p is the nearest integer to sum / p, or where that is near a tie its
// neighbour; so the remainder, exact too, is p / 2 + 1 at most, a signed byte for p <= 253. For 255 the factors are
// powers of two and the sum below 2^22, which leaves ties alone; for 256 the quotient has no error, and 128 is the byte
// of -128.
#ifdef __CUDACC__
FPEMU_FUNCTION float fused(float x, float y, float z) { return __fmaf_rn(x, y, z); }
#else
FPEMU_FUNCTION float fused(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
#endif
constexpr float FLOAT_CENTER = 12582912.0f;  // 1.5 · 2^23

// Adding 2^14 to every 15-bit word makes all of them positive.
FPEMU_FUNCTION constexpr u64 bias(int word) {
  u64 bits = 0;
  for (int place = 14; place < 15 * PIECES; place += 15)
    if (place / 64 == word) bits |= 1ull << place % 64;
  return bits;
}
constexpr u64 BIAS_LOW = bias(0), BIAS_HIGH = bias(1);

extern "C" __global__ void __launch_bounds__(256)
    residues_by_pieces(const double* X, s64 pitch, int rows, int all_rows, int K, const int* shifts, int sign, int more,
                       signed char* out, s64 width, s64 plane, Cutting* found) {
  for (int row = blockIdx.x; row < all_rows; row += gridDim.x) {
    const int shift = row < rows ? sign * shifts[row] + more : 0;
    u64 cut = 0, some = 0, kept = 0;
    for (int start = 4 * threadIdx.x; start < width; start += 4 * blockDim.x) {
      float piece[4][PIECES];
      u64 codes[4];
      read_four(codes, X + row * pitch, start, row < rows ? K : 0);
      FPEMU_UNROLL
      for (int v = 0; v < 4; v++) {
        // m 2^(e + shift) = H 2^(64 - right), cut to an integer in two words
        const u64 H = size_of(element(codes[v]).m) << 11;
        const int field = (int)(codes[v] >> 52) & 0x7ff;
        const int right = larger(smaller(1150 - shift - larger(field, 1), 128), 1);
        u64 low = right <= 64 ? H << (64 - right) : H >> 1 >> (right - 65), high = right < 64 ? H >> right : 0;
        some |= H;
        cut |= right > 64 ? H << (128 - right) : 0;
        kept |= low | high;
        low += BIAS_LOW;
        high += BIAS_HIGH + (low < BIAS_LOW);
        const u32 sign = (u32)(codes[v] >> 32) & 0x80000000u;
        FPEMU_UNROLL
        for (int i = 0; i < PIECES; i++) {
          const int place = 15 * i;
          const u64 bits = place + 15 <= 64 ? low >> place
                           : place < 64     ? low >> place | high << (64 - place)
                                            : high >> (place - 64);
          const float size = fp32_of(0x4b000000u | ((u32)bits & 0x7fff)) - 8404992.0f;  // 2^23 + 2^14
          piece[v][i] = fp32_of(fp32_code(size) ^ sign);
        }
      }
      FPEMU_UNROLL
      for (int i = 0; i < N; i++) {
        const float p = (float)MODULUS[i], q = 1.0f / p;
        u32 bytes[4];
        FPEMU_UNROLL
        for (int v = 0; v < 4; v++) {
          float sum = piece[v][0];
          FPEMU_UNROLL
          for (int j = 1; j < PIECES; j++) sum = fused(piece[v][j], FACTOR[j][i], sum);
          const float quotient = fused(sum, q, FLOAT_CENTER) - FLOAT_CENTER;
          const float rest = fused(-p, quotient, sum);
          bytes[v] = fp32_code(rest + FLOAT_CENTER);
        }
#ifdef __CUDACC__
        const u32 left = __byte_perm(bytes[0], bytes[1], 0x0040), right = __byte_perm(bytes[2], bytes[3], 0x0040);
        const u32 packed = __byte_perm(left, right, 0x5410);
#else
        const u32 packed = (bytes[0] & 255) | (bytes[1] & 255) << 8 | (bytes[2] & 255) << 16 | bytes[3] << 24;
#endif
        *(u32*)(out + i * plane + (s64)row * width + start) = packed;
      }
    }
    const int what = block_or((cut != 0) | (some != 0) << 1 | (kept != 0) << 2);
    if (threadIdx.x == 0) {
      if (what & 1) atomicMax(&found->incomplete, 1);
      if ((what & 6) == 2) atomicAdd(&found->vanished, 1);
    }
  }
}

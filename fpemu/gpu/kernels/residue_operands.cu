// The operands of Ozaki scheme II as residue bytes for byte_gemm.cu: powers of two of rows of A and columns of B, and the
// residues of A' and B'.
//
// Before this text: byte_residues.cuh, N, REDUCTION[2][N] for A and B, which have the offset 2^(32 WORDS - 2) in their
// starts and, for A, the inverses of the remainder theorem in their weights; and struct Operands:
//   WORDS     of 32 bits of an integer with its offset
//   NEAREST   integers are rounded to nearest, ties to even, else truncated
//   ACCURATE  powers of two from a product of leading bits, else from sums of squares
//
// "Row" is a row of A or a column of B. A thread block reads SIDE rows by 128 k at a time; where k is not the contiguous
// axis, the tile is turned in shared memory. blockIdx.z: A or B. Sums and maxima are of integers, in any order.
#include "block_reduce.cuh"
#include "dependent_launch.cuh"
#include "powers_of_two.cuh"

#ifndef __CUDACC__
#define rint __builtin_rint
#define trunc __builtin_trunc
#define floor __builtin_floor
#endif

constexpr int SIDE = 32, CHUNK = 128, FOURS = CHUNK / 4, WORDS = Operands::WORDS;

struct Side {
  const void* X;
  s64 row_step, step;          // elements from one row, and one k, to the next
  u64 *tops, *sums;            // of each row: the code of max|x|; two sums of squares. At first zero
  int *special, *maxima, *mu;  // whether there is a NaN or an Inf; largest sum of leading bits, at first zero; exponent
  u8 *leading, *residues;      // (chunk, row, 128) and, for each modulus `plane` bytes apart, (chunk, row, 128)
  s64 plane;
  int rows, narrow;  // narrow: float, else double
  int first, count;  // the rows of `residues`
  int K, h;
  double g;  // the limit of sums is g 4^h
};
FPEMU_FUNCTION double number(const Side& s, s64 row, int k) {
  const s64 at = row * s.row_step + k * s.step;
  return s.narrow ? (double)((const float*)s.X)[at] : ((const double*)s.X)[at];
}

// One tile for all instances of `for_fours`.
FPEMU_FUNCTION double (*turned_tile()) [SIDE + 1] {
  __shared__ double tile[CHUNK][SIDE + 1];
  return tile;
}

// Call use(row, k, x) for rows from `first` to `last` and k of a chunk: x are four numbers from k on, zeros outside of
// the operand. In a warp all rows are the same.
template <class F> __device__ void for_fours(const Side& s, int first, int last, int chunk, const F& use) {
  double (*tile)[SIDE + 1] = turned_tile();
  const int start = chunk * CHUNK;
  const bool turned = s.step != 1;
  if (turned) {
    for (int i = threadIdx.x; i < CHUNK * SIDE; i += blockDim.x) {
      const int k = i / SIDE, row = i % SIDE;
      tile[k][row] = first + row < last && start + k < s.K ? number(s, first + row, start + k) : 0;
    }
    __syncthreads();
  }
  for (int i = threadIdx.x; i < SIDE * FOURS; i += blockDim.x) {
    const int row = i / FOURS, k = i % FOURS * 4;
    if (first + row >= last) break;
    double x[4];
    if (turned) {
      for (int v = 0; v < 4; v++) x[v] = tile[k + v][row];
    } else if (s.narrow) {
      for (int v = 0; v < 4; v++) x[v] = start + k + v < s.K ? number(s, first + row, start + k + v) : 0;
    } else {
      u64 codes[4];
      read_four(codes, (const double*)s.X + (first + row) * s.row_step, start + k, s.K);
      for (int v = 0; v < 4; v++) x[v] = fp64_of(codes[v]);
    }
    use(first + row, k, x);
  }
  if (turned) __syncthreads();
}
// The largest value, and the sum, of a warp in its first lane; without a GPU a thread is a warp.
FPEMU_FUNCTION u64 warp_most(u64 x) {
#ifdef __CUDACC__
  for (int step = 16; step; step >>= 1) {
    const u64 other = __shfl_xor_sync(~0u, x, step);
    x = other > x ? other : x;
  }
#endif
  return x;
}
FPEMU_FUNCTION u64 warp_sum(u64 x) {
#ifdef __CUDACC__
  for (int step = 16; step; step >>= 1) x += __shfl_xor_sync(~0u, x, step);
#endif
  return x;
}
#ifdef __CUDACC__
FPEMU_FUNCTION bool is_first_lane() { return threadIdx.x % 32 == 0; }
#else
FPEMU_FUNCTION bool is_first_lane() { return true; }
#endif

template <class F> __device__ void for_chunks(const Side& s, const F& use) {
  const int chunks = (s.K + CHUNK - 1) / CHUNK;
  for (int first = blockIdx.x * SIDE; first < s.rows; first += gridDim.x * SIDE)
    for (int chunk = blockIdx.y; chunk < chunks; chunk += gridDim.y)
      for_fours(s, first, s.rows, chunk, [&](int row, int k, const double (&x)[4]) { use(row, chunk, k, x); });
}

// floor(log2 max|x|), 0 for a row of zeros.
FPEMU_FUNCTION int top_of(const Side& s, int row) {
  const Element x = element(s.tops[row]);
  return x.m ? x.e + bit_length((u64)x.m) - 1 : 0;
}

// A row's part of `tops`, in the registers of a thread.
struct Largest {
  u64 most = 0, odd = 0;
  FPEMU_FUNCTION Largest(const Side&, int) {}
  FPEMU_FUNCTION void add(double x) {
    const u64 code = fp64_code(x) & ~(1ull << 63);
    if (is_special(code)) odd = 1;
    else if (code > most) most = code;
  }
  FPEMU_FUNCTION void merge_warp() { most = warp_most(most), odd = warp_most(odd); }
  FPEMU_FUNCTION void publish(const Side& s, int row) const {
    if (most) atomicMax(s.tops + row, most);
    if (odd) s.special[row] = 1;
  }
};
// And of `squares`: of |x| 2^(30 - top) rounded up, the sums of the bits from 31 on and of those below.
struct Squares {
  u64 high = 0, low = 0;
  Power scale;
  FPEMU_FUNCTION Squares(const Side& s, int row) : scale(Power::of(30 - top_of(s, row))) {}
  FPEMU_FUNCTION void add(double x) {
    const double size = fp64_of(fp64_code(x) & ~(1ull << 63));
    const u64 units = finite_code(size) ? ceiling(scale.times(size)) : 0, square = units * units;
    high += square >> 31, low += square & 0x7fffffff;
  }
  FPEMU_FUNCTION void merge_warp() { high = warp_sum(high), low = warp_sum(low); }
  FPEMU_FUNCTION void publish(const Side& s, int row) const {
    atomicAdd(s.sums + 2 * row, high), atomicAdd(s.sums + 2 * row + 1, low);
  }
};

// The part of every row, in any order: a thread has numbers of one row where rows are contiguous, else a warp has.
template <class Part> __device__ void reduce_rows(const Side& s) {
  if (s.step == 1) {
    for_chunks(s, [&](int row, int, int, const double (&x)[4]) {
      Part part(s, row);
      for (int v = 0; v < 4; v++) part.add(x[v]);
      part.merge_warp();
      if (is_first_lane()) part.publish(s, row);
    });
    return;
  }
  constexpr int SLICES = 8, THREADS = SIDE * SLICES;  // of k; in a thread block
  const int chunks = (s.K + CHUNK - 1) / CHUNK;
  for (int first = blockIdx.x * SIDE; first < s.rows; first += gridDim.x * SIDE)
    for (int i = threadIdx.x; i < THREADS; i += blockDim.x) {
      const int row = first + i % SIDE;
      if (row >= s.rows || (int)blockIdx.y >= chunks) continue;
      Part part(s, row);
      for (int chunk = blockIdx.y; chunk < chunks; chunk += gridDim.y) {
        const int start = chunk * CHUNK + i / SIDE, stop = smaller(chunk * CHUNK + CHUNK, s.K);
        FPEMU_UNROLL
        for (int j = 0; j < CHUNK / SLICES; j++)
          if (start + SLICES * j < stop) part.add(number(s, row, start + SLICES * j));
      }
      part.publish(s, row);
    }
}

extern "C" __global__ void __launch_bounds__(256) tops(Side a, Side b) {
  wait_for_previous_grid();
  if (blockIdx.z) reduce_rows<Largest>(b);
  else reduce_rows<Largest>(a);
}
extern "C" __global__ void __launch_bounds__(256) squares(Side a, Side b) {
  wait_for_previous_grid();
  if (blockIdx.z) reduce_rows<Squares>(b);
  else reduce_rows<Squares>(a);
}

// |x| 2^(5 - top) rounded up, at least 1 where x is not zero: at most 64.
extern "C" __global__ void __launch_bounds__(256) leading_bits(Side a, Side b) {
  wait_for_previous_grid();
  const Side s = blockIdx.z ? b : a;
  for_chunks(s, [&](int row, int chunk, int k, const double (&x)[4]) {
    const Power scale = Power::of(5 - top_of(s, row));
    u32 packed = 0;
    for (int v = 0; v < 4; v++) {
      const double size = fp64_of(fp64_code(x[v]) & ~(1ull << 63));
      if (!finite_code(size)) continue;
      const u32 bits = ceiling(scale.times(size));
      packed |= (bits ? bits : size != 0) << 8 * v;
    }
    *(u32*)(s.leading + ((s64)chunk * s.rows + row) * CHUNK + k) = packed;
  });
}

// mu of a row.
FPEMU_FUNCTION int exponent_of(const Side& s, int row) {
  if (!s.tops[row]) return 0;
  const int top = top_of(s, row);
  if (Operands::ACCURATE) return 5 - top + room((double)s.maxima[row], s.h, s.g);
  const double S = sum_of_squares((s64)s.sums[2 * row], (s64)s.sums[2 * row + 1]);
  return S == 0 ? 0 : room(S, s.h, s.g) - top;
}

// X + 2^(32 WORDS - 2) in words, for an integer |X| < 2^(32 WORDS - 2); a larger X meets only zeros of the other
// operand (scaling="accurate"), so that its residues have no effect.
FPEMU_FUNCTION void integer_words(double x, u32 (&words)[WORDS]) {
  const double X = Operands::NEAREST ? rint(x) : trunc(x);
  if (WORDS == 2) {
    const u64 y = (X < 4e18 && X > -4e18 ? (u64)(s64)X : 0) + (1ull << 62);
    words[0] = (u32)y, words[1] = (u32)(y >> 32);
  } else {
    const double high = floor(X * 2.3283064365386963e-10);  // 2^-32
    const u64 y = (high < 4e18 && high > -4e18 ? (u64)(s64)high : 0) + (1ull << 62);
    words[0] = (u32)(u64)(X - high * 4294967296.0), words[1] = (u32)y, words[WORDS - 1] = (u32)(y >> 32);
  }
}

template <int OPERAND> __device__ void write_residues(const Side& s) {
  __shared__ int exponents[SIDE];
  const int chunks = (s.K + CHUNK - 1) / CHUNK, last = s.first + s.count;
  for (int first = s.first + blockIdx.x * SIDE; first < last; first += gridDim.x * SIDE) {
    for (int i = threadIdx.x; i < SIDE; i += blockDim.x)
      if (first + i < last) {
        exponents[i] = exponent_of(s, first + i);
        if (blockIdx.y == 0) s.mu[first + i] = s.special[first + i] ? SPECIAL : exponents[i];
      }
    __syncthreads();
    for (int chunk = blockIdx.y; chunk < chunks; chunk += gridDim.y)
      for_fours(s, first, last, chunk, [&](int row, int k, const double (&x)[4]) {
        const Power scale = Power::of(exponents[row - first]);
        u32 words[4][WORDS];
        FPEMU_UNROLL
        for (int v = 0; v < 4; v++) integer_words(finite_code(x[v]) ? scale.times(x[v]) : 0, words[v]);
        u8* to = s.residues + ((s64)chunk * s.count + row - s.first) * CHUNK + k;
        FPEMU_UNROLL
        for (int i = 0; i < N; i++) {
          int rest[4];
          FPEMU_UNROLL
          for (int v = 0; v < 4; v++) {
            int sum = REDUCTION[OPERAND][i].start;
            FPEMU_UNROLL
            for (int w = 0; w < WORDS; w++) sum = byte_sum(words[v][w], REDUCTION[OPERAND][i].weights[w], sum);
            rest[v] = rest_of(sum, REDUCTION[OPERAND][i]);
          }
          *(u32*)(to + i * s.plane) = pack_bytes(rest[0], rest[1], rest[2], rest[3]);
        }
      });
    __syncthreads();
  }
}
extern "C" __global__ void __launch_bounds__(256) residue_bytes(Side a, Side b) {
  wait_for_previous_grid();
  if (blockIdx.z) write_residues<1>(b);
  else write_residues<0>(a);
}

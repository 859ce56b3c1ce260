// The operands of Ozaki scheme II as residue bytes for byte_gemm.cu: powers of two of rows of A and columns of B, and the
// residues of the terms' combinations of blocks of A' and B'.
//
// Before this text: byte_residues.cuh, N, REDUCTION[2][N] for A and B, which have the offset 2^(32 WORDS - 1) in their
// starts and, for A, the inverses of the remainder theorem in their weights; of a bilinear algorithm
// (fpemu.gpu.errorfree.hopper.Bilinear), PARTS, HALVES, TERMS and FACTOR[2][TERMS][BLOCKS]; and struct Operands:
//   WORDS     of 32 bits of an integer with its offset
//   LARGEST   larger integers meet only zeros of the other operand
//   NEAREST   integers are rounded to nearest, ties to even, else truncated
//   ACCURATE  powers of two from a product of leading bits, else from sums of squares
//   EXACT     powers of two from the least exponents of rows, so that all numbers are integers
//
// "Row" is a row of A or a column of B, and a complex number is two numbers along k: its real and its imaginary part.
// A thread block reads SIDE rows by 128 k at a time; where k is not the contiguous axis, the tile is turned in shared
// memory. blockIdx.z: A or B. Sums and maxima are of integers, in any order.
#include "block_reduce.cuh"
#include "dependent_launch.cuh"
#include "powers_of_two.cuh"

#ifndef __CUDACC__
#define rint __builtin_rint
#define trunc __builtin_trunc
#define floor __builtin_floor
#endif

constexpr int SIDE = 32, CHUNK = 128, WORDS = Operands::WORDS, BIAS = 2048;

struct Side {
  const void* X;
  s64 row_step, step;  // numbers from one row, and one (complex) k, to the next
  u64 *tops, *sums;    // of each row: the code of max|x|; two sums of squares. At first zero
  int *special, *maxima,
      *mu;                 // whether there is a NaN or an Inf; largest sum of leading bits, or (EXACT) BIAS less the
                           // least exponent of a last place, at first zero; exponent
  u8 *leading, *residues;  // (chunk, row, 128) and, for each plane `plane` bytes apart, (chunk, row, 128)
  int* extents;            // EXACT: of all rows the largest bits of an integer, and of a sum of squares. At first zero
  s64 plane;
  int rows, narrow;  // narrow: float, else double
  int first, count;  // the rows of `residues`
  int K, half_k;     // numbers of a row, and those of its first half
  int h, unused;
  double g;  // the limit of sums is g 4^h
};
FPEMU_FUNCTION double number(const Side& s, s64 row, int k) {
  const s64 at = row * s.row_step + k / PARTS * s.step + k % PARTS;
  return s.narrow ? (double)((const float*)s.X)[at] : ((const double*)s.X)[at];
}

// One tile for all instances of `for_numbers` with so many rows.
template <int ROWS> FPEMU_FUNCTION double (*turned_tile()) [ROWS + 1] {
  __shared__ double tile[CHUNK * SIDE / ROWS][ROWS + 1];
  return tile;
}

// Call use(row, k, x) for ROWS rows from `first` to `last` and 32 COUNT numbers from `start` on: x[Q h + q] are COUNT
// numbers from k on of row + h `half`, q `half_k` numbers further, zeros outside of the operand and from `stop` on. In a
// warp all rows are the same, so that it writes whole lines of 128 residues.
template <int Q, int COUNT, class F>
__device__ void for_numbers(const Side& s, int first, int last, int half, int stop, int start, const F& use) {
  constexpr int BOTH = Q * Q, ITEMS = 32, WIDTH = ITEMS * COUNT, ROWS = CHUNK * SIDE / (BOTH * WIDTH);
  double (*tile)[ROWS + 1] = turned_tile<ROWS>();
  const bool turned = s.step != PARTS;
  if (turned) {
    for (int i = threadIdx.x; i < CHUNK * SIDE; i += blockDim.x) {
      const int row = first + i % ROWS, block = i / (ROWS * WIDTH), k = start + block % Q * s.half_k + i / ROWS % WIDTH;
      const int at = row + block / Q * half;
      tile[i / ROWS][i % ROWS] = row < last && at < stop && k < s.K ? number(s, at, k) : 0;
    }
    __syncthreads();
  }
  for (int i = threadIdx.x; i < ROWS * ITEMS; i += blockDim.x) {
    const int row = i / ITEMS, k = i % ITEMS * COUNT;
    if (first + row >= last) break;
    double x[BOTH][COUNT];
    FPEMU_UNROLL
    for (int b = 0; b < BOTH; b++) {
      const int at = first + row + b / Q * half, from = start + b % Q * s.half_k + k;
      if (turned) {
        for (int v = 0; v < COUNT; v++) x[b][v] = tile[b * WIDTH + k + v][row];
      } else if (s.narrow || at >= stop) {
        for (int v = 0; v < COUNT; v++) x[b][v] = at < stop && from + v < s.K ? number(s, at, from + v) : 0;
      } else {
        FPEMU_UNROLL
        for (int f = 0; f < COUNT; f += 4) {
          u64 codes[4];
          read_four(codes, (const double*)s.X + at * s.row_step, from + f, s.K);
          for (int v = 0; v < 4; v++) x[b][f + v] = fp64_of(codes[v]);
        }
      }
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
      for_numbers<1, 4>(s, first, s.rows, 0, s.rows, chunk * CHUNK,
                        [&](int row, int k, const double (&x)[1][4]) { use(row, chunk, k, x[0]); });
}

// floor(log2 max|x|), 0 for a row of zeros.
FPEMU_FUNCTION int top_of(const Side& s, int row) {
  const Element x = element(s.tops[row]);
  return x.m ? x.e + bit_length((u64)x.m) - 1 : 0;
}

// A row's part of `tops`, in the registers of a thread.
struct Largest {
  u64 most = 0, odd = 0, low = 0;
  FPEMU_FUNCTION Largest(const Side&, int) {}
  FPEMU_FUNCTION void add(double x) {
    const u64 code = fp64_code(x) & ~(1ull << 63);
    if (is_special(code)) odd = 1;
    else if (code > most) most = code;
    if (Operands::EXACT && !is_special(code) && code) {
      const Element exact = element(code);
      const u64 place = BIAS - (exact.e + trailing_zeros_64((u64)exact.m));
      if (place > low) low = place;
    }
  }
  FPEMU_FUNCTION void merge_warp() {
    most = warp_most(most), odd = warp_most(odd);
    if (Operands::EXACT) low = warp_most(low);
  }
  FPEMU_FUNCTION void publish(const Side& s, int row) const {
    if (most) atomicMax(s.tops + row, most);
    if (odd) s.special[row] = 1;
    if (low) atomicMax(s.maxima + row, (int)low);
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
  if (s.step == PARTS) {
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

// |x| 2^(5 - top) rounded up, at least 1 where x is not zero: at most 64. Columns of complex B are two rows: in the
// second one real and imaginary parts are exchanged.
extern "C" __global__ void __launch_bounds__(256) leading_bits(Side a, Side b) {
  wait_for_previous_grid();
  const int copies = blockIdx.z ? PARTS : 1;
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
    for (int copy = 0; copy < copies; copy++) {
      *(u32*)(s.leading + (((s64)chunk * s.rows + row) * copies + copy) * CHUNK + k) = packed;
      packed = (packed & 0xff00ff) << 8 | (packed >> 8 & 0xff00ff);
    }
  });
}

// mu of a row.
template <int OPERAND> FPEMU_FUNCTION int exponent_of(const Side& s, int row) {
  if (!s.tops[row]) return 0;
  if (Operands::EXACT) return s.maxima[row] - BIAS;
  const int top = top_of(s, row), copies = OPERAND ? PARTS : 1;
  if (Operands::ACCURATE) {
    const int largest = larger(s.maxima[row * copies], s.maxima[row * copies + copies - 1]);
    return 5 - top + room((double)largest, s.h, s.g);
  }
  const double S = sum_of_squares((s64)s.sums[2 * row], (s64)s.sums[2 * row + 1]);
  return S == 0 ? 0 : room(S, s.h, s.g) - top;
}

// Of all rows: bits of the largest integer, and of the largest sum of squares of a row's integers.
extern "C" __global__ void __launch_bounds__(256) extents(Side a, Side b) {
  wait_for_previous_grid();
  const Side s = blockIdx.z ? b : a;
  int bits = 0, squares = 0;
  for (int row = blockIdx.x * blockDim.x + threadIdx.x; row < s.rows; row += gridDim.x * blockDim.x) {
    if (!s.tops[row]) continue;
    const Element sum = element(fp64_code(sum_of_squares((s64)s.sums[2 * row], (s64)s.sums[2 * row + 1])));
    const int width = top_of(s, row) + s.maxima[row] - BIAS;  // from the least place to the highest one
    bits = larger(bits, width + 1), squares = larger(squares, sum.e + bit_length((u64)sum.m) + 2 * width);
  }
  bits = block_max(bits), squares = block_max(squares);
  if (threadIdx.x == 0) atomicMax(s.extents, bits), atomicMax(s.extents + 1, squares);
}

template <int COUNT> struct WordsInteger {
  typedef __int128 Type;
};
template <> struct WordsInteger<2> {
  typedef s64 Type;
};
typedef WordsInteger<WORDS>::Type Wide;

// The numbers of a row as integers.
struct Scaling {
  Power power;
  int exponent;
  FPEMU_FUNCTION Scaling(int exponent) : power(Power::of(Operands::EXACT ? 0 : exponent)), exponent(exponent) {}
  // A number beyond LARGEST meets only zeros of the other operand, so that any integer may stand for it.
  FPEMU_FUNCTION Wide integer(double x) const {
    if (!finite_code(x)) return 0;
    if (Operands::EXACT) {
      const Element exact = element(fp64_code(x));
      const int places = exact.e + exponent;
      return places < 0 ? (Wide)(exact.m >> -places) : (Wide)exact.m << places;
    }
    const double y = power.times(x), X = Operands::NEAREST ? rint(y) : trunc(y);
    if (!(X < Operands::LARGEST && X > -Operands::LARGEST)) return 0;
    if (WORDS == 2) return (Wide)(s64)X;
    const double high = floor(X * 2.3283064365386963e-10);  // 2^-32
    return (Wide)(s64)high * (1ll << 32) + (Wide)(s64)(X - high * 4294967296.0);
  }
};

template <int OPERAND> __device__ void write_residues(const Side& s) {
  constexpr int ROWS = SIDE / BLOCKS;
  __shared__ int exponents[HALVES][ROWS];
  const int half = (s.count + HALVES - 1) / HALVES, last = s.first + half, stop = s.first + s.count;
  const int columns = HALVES == 1 ? s.K : s.half_k, chunks = (columns + PARTS * CHUNK - 1) / (PARTS * CHUNK);
  for (int first = s.first + blockIdx.x * ROWS; first < last; first += gridDim.x * ROWS) {
    for (int i = threadIdx.x; i < HALVES * ROWS; i += blockDim.x) {
      const int row = first + i % ROWS + i / ROWS * half;
      if (first + i % ROWS >= last || row >= stop) continue;
      const int exponent = exponent_of<OPERAND>(s, row);
      exponents[i / ROWS][i % ROWS] = exponent;
      if (blockIdx.y == 0) s.mu[row] = s.special[row] ? SPECIAL : exponent;
    }
    __syncthreads();
    for (int chunk = blockIdx.y; chunk < chunks; chunk += gridDim.y) {
      auto write = [&](int row, int k, const double (&x)[HALVES* HALVES][4 * PARTS]) {
        Wide X[BLOCKS][4];
        FPEMU_UNROLL
        for (int b = 0; b < BLOCKS; b++) {
          const int h = b / (HALVES * PARTS);
          const Scaling scaling(row + h * half < stop ? exponents[h][row - first] : 0);
          FPEMU_UNROLL
          for (int v = 0; v < 4; v++) X[b][v] = scaling.integer(x[b / PARTS][PARTS * v + b % PARTS]);
        }
        u8* to = s.residues + ((s64)chunk * half + row - s.first) * CHUNK + k / PARTS;
        FPEMU_UNROLL
        for (int t = 0; t < TERMS; t++) {
          u32 words[4][WORDS];
          FPEMU_UNROLL
          for (int v = 0; v < 4; v++) {
            Wide sum = 0;
            FPEMU_UNROLL
            for (int b = 0; b < BLOCKS; b++)
              if (FACTOR[OPERAND][t][b]) sum += FACTOR[OPERAND][t][b] * X[b][v];
            FPEMU_UNROLL
            for (int w = 0; w < WORDS; w++) words[v][w] = (u32)(sum >> 32 * w);
            words[v][WORDS - 1] ^= 1u << 31;  // the offset
          }
          FPEMU_UNROLL
          for (int i = 0; i < N; i++) {
            const Reduction of = REDUCTION[OPERAND][i];
            int rest[4];
            FPEMU_UNROLL
            for (int v = 0; v < 4; v++) {
              int sum = of.start;
              FPEMU_UNROLL
              for (int w = 0; w < WORDS; w++) sum = byte_sum(words[v][w], of.weights[w], sum);
              rest[v] = rest_of(sum, of);
            }
            *(u32*)(to + (i * TERMS + t) * s.plane) = pack_bytes(rest[0], rest[1], rest[2], rest[3]);
          }
        }
      };
      for_numbers<HALVES, 4 * PARTS>(s, first, last, half, stop, chunk * CHUNK * PARTS, write);
    }
    __syncthreads();
  }
}
extern "C" __global__ void __launch_bounds__(256) residue_bytes(Side a, Side b) {
  wait_for_previous_grid();
  if (blockIdx.z) write_residues<1>(b);
  else write_residues<0>(a);
}

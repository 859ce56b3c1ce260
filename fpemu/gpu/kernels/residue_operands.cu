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
// memory. blockIdx.z: A or B. Maxima are of integers, in any order; of sums of squares in any order see `exponents`.
#include "block_reduce.cuh"
#include "dependent_launch.cuh"
#include "powers_of_two.cuh"

#ifndef __CUDACC__
#define rint __builtin_rint
#define trunc __builtin_trunc
#define floor __builtin_floor
#define __double2ll_rn __builtin_llrint
#define __double2ll_rz (s64)
#define __double2int_rn (int)__builtin_rint
#define __double2int_rz (int)
#endif

constexpr int SIDE = 32, CHUNK = 128, WORDS = Operands::WORDS, BIAS = 2048;
constexpr int SLICES = 8;  // of a chunk, by the threads of a block
constexpr bool SQUARES = !Operands::ACCURATE;
#ifdef __CUDACC__
#define FPEMU_ROLLED _Pragma("unroll 1")
constexpr int THREADS = 256, LANES = 32;
#else
#define FPEMU_ROLLED
constexpr int THREADS = 1, LANES = 1;
#endif

struct Side {
  const void* X;
  s64 row_step, step;  // numbers from one row, and one (complex) k, to the next
  u64* tops;           // of each row: the code of max|x|, at first zero
  double* sums;        // sum of squares, at first zero
  int *special, *maxima,
      *mu;                 // whether there is a NaN or an Inf; largest sum of leading bits, or (EXACT) BIAS less the
                           // least exponent of a last place, at first zero; exponent, not yet known (ACCURATE, EXACT)
  u8 *leading, *residues;  // (chunk, row, 128) and, for each plane `plane` bytes apart, (chunk, row, 128)
  int *extents,            // EXACT: of all rows the largest bits of an integer, and of a sum of squares. At first zero
      *arrivals;           // thread blocks that have read SIDE rows, at first zero
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

template <bool B> struct Flag {
  static constexpr bool value = B;
};
// PARTS numbers that follow each other, or zeros. WHOLE: their addresses are multiples of their size.
template <class T> struct Unit {
  T x[PARTS];
};
template <bool WHOLE, class T> FPEMU_FUNCTION Unit<T> unit(const T* from, bool valid) {
  Unit<T> u;
#ifdef __CUDACC__
  if constexpr (PARTS == 2 && WHOLE && sizeof(T) == 4) {
    const float2 both = valid ? *(const float2*)from : make_float2(0, 0);
    u.x[0] = both.x, u.x[PARTS - 1] = both.y;
    return u;
  } else if constexpr (PARTS == 2 && WHOLE) {
    const double2 both = valid ? *(const double2*)from : make_double2(0, 0);
    u.x[0] = both.x, u.x[PARTS - 1] = both.y;
    return u;
  }
#endif
  FPEMU_UNROLL
  for (int part = 0; part < PARTS; part++) u.x[part] = valid ? from[part] : 0;
  return u;
}
// Call f<T, WHOLE> for the numbers of an operand.
template <class F> FPEMU_FUNCTION void for_type(const Side& s, const F& f) {
  const bool whole = PARTS == 1 || (u64)s.X % ((s.narrow ? 4 : 8) * PARTS) == 0;
  if (s.narrow && whole) f((const float*)s.X, Flag<true>());
  else if (s.narrow) f((const float*)s.X, Flag<false>());
  else if (whole) f((const double*)s.X, Flag<true>());
  else f((const double*)s.X, Flag<false>());
}

// COUNT numbers of a row from k on, a multiple of COUNT; zeros beyond K.
template <int COUNT, class T> FPEMU_FUNCTION void read_row(T (&x)[COUNT], const T* row, int k, int K) {
#ifdef __CUDACC__
  if (k + COUNT <= K && ((u64)row & 15) == 0) {
    FPEMU_UNROLL
    for (int v = 0; v < COUNT; v += 16 / (int)sizeof(T)) {
      if constexpr (sizeof(T) == 4) {
        const float4 four = *(const float4*)(row + k + v);
        x[v] = four.x, x[v + 1] = four.y, x[v + 2] = four.z, x[v + 3] = four.w;
      } else {
        const double2 two = *(const double2*)(row + k + v);
        x[v] = two.x, x[v + 1] = two.y;
      }
    }
    return;
  }
#endif
  FPEMU_UNROLL
  for (int v = 0; v < COUNT; v++) x[v] = k + v < K ? row[k + v] : 0;
}

// One tile for all instances of `for_numbers` with so many rows.
template <int ROWS> FPEMU_FUNCTION double (*turned_tile()) [ROWS + 1] {
  __shared__ double tile[CHUNK * SIDE / ROWS][ROWS + 1];
  return tile;
}

// Fill a tile: lines of number k of a row in the order of k % COUNT, then k / COUNT, so that the lanes that read numbers
// COUNT apart have different banks.
template <bool WHOLE, int Q, int COUNT, int ROWS, class T, class P>
__device__ void fill_tile(double (*tile)[ROWS + 1], const T* X, const Side& s, int first, int last, int half, int stop,
                          int start, const P& prepare) {
  constexpr int ITEMS = 32, IN_ROW = ITEMS * COUNT / PARTS, EACH = CHUNK * SIDE / (PARTS * THREADS);  // units
  constexpr int BATCH = smaller(EACH, 8);
  const int column = threadIdx.x / ROWS;
  FPEMU_ROLLED
  for (int of = 0; of < EACH; of += BATCH) {
    Unit<T> units[BATCH];
    const T* next = X + (first + (int)threadIdx.x % ROWS) * s.row_step;  // of Q = 1, by additions alone
    next += (start / PARTS + column + of * THREADS / ROWS) * s.step;
    FPEMU_UNROLL
    for (int j = 0; j < BATCH; j++) {
      const int row = THREADS < ROWS ? (of + j) % ROWS : threadIdx.x % ROWS, line = (of + j) * THREADS / ROWS;
      const int b = line / IN_ROW, at = first + row + b / Q * half, k = start + b % Q * s.half_k;
      const int of_b = line % IN_ROW + column;
      const T* from = Q == 1 && THREADS >= ROWS ? next : X + at * s.row_step + (k / PARTS + of_b) * s.step;
      next += THREADS / ROWS * s.step;
      units[j] = unit<WHOLE>(from, first + row < last && at < stop && k + of_b * PARTS < s.K);
    }
    if (of == 0) prepare();
    FPEMU_UNROLL
    for (int j = 0; j < BATCH; j++) {
      const int row = THREADS < ROWS ? (of + j) % ROWS : threadIdx.x % ROWS, line = (of + j) * THREADS / ROWS;
      const int k = (line % IN_ROW + column) * PARTS;
      FPEMU_UNROLL
      for (int part = 0; part < PARTS; part++)
        tile[(line / IN_ROW * COUNT + (k + part) % COUNT) * ITEMS + (k + part) / COUNT][row] = units[j].x[part];
    }
  }
}

// Call use(row, k, x) for ROWS rows from `first` to `last` and 32 COUNT numbers from `start` on: x[Q h + q] are COUNT
// numbers from k on of row + h `half`, q `half_k` numbers further, zeros outside of the operand and from `stop` on. In a
// warp all rows are the same, so that it writes whole lines of 128 residues. prepare() is called before, by all threads.
template <int Q, int COUNT, class P, class F>
__device__ void for_numbers(const Side& s, int first, int last, int half, int stop, int start, const P& prepare,
                            const F& use) {
  constexpr int BOTH = Q * Q, ITEMS = 32, ROWS = CHUNK * SIDE / (BOTH * ITEMS * COUNT);
  double (*tile)[ROWS + 1] = turned_tile<ROWS>();
  const bool turned = s.step != PARTS;
  if (!turned) prepare();
  else
    for_type(s, [&](auto X, auto whole) {
      fill_tile<decltype(whole)::value, Q, COUNT, ROWS>(tile, X, s, first, last, half, stop, start, prepare);
    });
  __syncthreads();
  for (int i = threadIdx.x; i < ROWS * ITEMS; i += blockDim.x) {
    const int row = i / ITEMS, item = i % ITEMS, k = item * COUNT;
    if (first + row >= last) break;
    double x[BOTH][COUNT];
    FPEMU_UNROLL
    for (int b = 0; b < BOTH; b++) {
      const int at = first + row + b / Q * half, from = start + b % Q * s.half_k + k, K = at < stop ? s.K : 0;
      if (turned) {
        FPEMU_UNROLL
        for (int v = 0; v < COUNT; v++) x[b][v] = tile[(b * COUNT + v) * ITEMS + item][row];
      } else if (s.narrow) {
        float raw[COUNT];
        read_row(raw, (const float*)s.X + at * s.row_step, from, K);
        FPEMU_UNROLL
        for (int v = 0; v < COUNT; v++) x[b][v] = raw[v];
      } else read_row(x[b], (const double*)s.X + at * s.row_step, from, K);
    }
    use(first + row, k, x);
  }
  __syncthreads();
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
FPEMU_FUNCTION double warp_sum(double x) {
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
      for_numbers<1, 4>(
          s, first, s.rows, 0, s.rows, chunk * CHUNK, [] {},
          [&](int row, int k, const double (&x)[1][4]) { use(row, chunk, k, x[0]); });
}

// floor(log2 max|x|), 0 for a row of zeros.
FPEMU_FUNCTION int top_of(const Side& s, int row) {
  const Element x = element(s.tops[row]);
  return x.m ? x.e + bit_length((u64)x.m) - 1 : 0;
}

// A row's numbers of a thread: the largest size, whether one is special, the sum of squares.
struct Summary {
  u64 most = 0, odd = 0, low = 0;
  double squares = 0;
  FPEMU_FUNCTION void add(double x) {
    const u64 code = fp64_code(x) & ~(1ull << 63);
    if (is_special(code)) {
      odd = 1;
      return;
    }
    if (code > most) most = code;
    if (SQUARES) squares = fused(x, x, squares);
    if (Operands::EXACT && code) {
      const Element exact = element(code);
      const u64 place = BIAS - (exact.e + trailing_zeros_64((u64)exact.m));
      if (place > low) low = place;
    }
  }
  FPEMU_FUNCTION void merge_warp() {
    most = warp_most(most), odd = warp_most(odd);
    if (SQUARES) squares = warp_sum(squares);
    if (Operands::EXACT) low = warp_most(low);
  }
  FPEMU_FUNCTION void publish(const Side& s, int row) const {
    if (most) atomicMax(s.tops + row, most);
    if (odd) s.special[row] = 1;
    if (SQUARES && most) atomicAdd(s.sums + row, squares);
    if (low) atomicMax(s.maxima + row, (int)low);
  }
  // The same for threads with SLICES parts of SIDE rows; all threads of a block call it.
  FPEMU_FUNCTION void publish_merged(const Side& s, int row, int slice) {
#ifdef __CUDACC__
    __shared__ u64 tops[SLICES][SIDE], lows[Operands::EXACT ? SLICES : 1][SIDE];
    __shared__ double sums[SQUARES ? SLICES : 1][SIDE];
    const int at = threadIdx.x % SIDE;
    if (odd) s.special[row] = 1;
    odd = 0, tops[slice][at] = most;
    if (SQUARES) sums[slice][at] = squares;
    if (Operands::EXACT) lows[slice][at] = low;
    __syncthreads();
    if (slice > 0) return;
    FPEMU_UNROLL
    for (int i = 1; i < SLICES; i++) {
      if (tops[i][at] > most) most = tops[i][at];
      if (SQUARES) squares += sums[i][at];
      if (Operands::EXACT && lows[i][at] > low) low = lows[i][at];
    }
#endif
    publish(s, row);
  }
};

// Whether this is the last of the thread blocks that have come here; it then sees what the others have published.
__device__ inline bool is_last(int* arrivals, int blocks) {
#ifdef __CUDACC__
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) last = atomicAdd(arrivals, 1) == blocks - 1;
  __syncthreads();
  if (last) __threadfence();
  return last;
#else
  return ++*arrivals == blocks;
#endif
}
template <class T> FPEMU_FUNCTION T published(const T* at) {
#ifdef __CUDACC__
  return __ldcg(at);
#else
  return *at;
#endif
}

// The sum of squares of fpemu.schemes.errorfree.crt: of |x| 2^(30 - top) rounded up, in two halves, by a thread block.
__device__ inline double exact_sum(const Side& s, int row, int top) {
  const Power scale = Power::of(30 - top);
  s64 high = 0, low = 0;
  for (int k = threadIdx.x; k < s.K; k += blockDim.x) {
    const double size = fp64_of(fp64_code(number(s, row, k)) & ~(1ull << 63));
    const u64 units = finite_code(size) ? ceiling(scale.times(size)) : 0, square = units * units;
    high += square >> 31, low += square & 0x7fffffff;
  }
  return sum_of_squares(block_sum(high), block_sum(low));
}

// Exponents of SIDE rows from their sums of squares, T: the stated sum S, whose terms are rounded up, is in
// [T - d, T + d + e T] with d from the roundings of T and e = 2 sqrt(K) 2^-30 + K 2^-60, divided by 4^top. If both ends
// give one exponent, it is that of S, whatever the order of T. Otherwise, and where T may overflow or underflow, S itself
// is computed.
__device__ inline void exponents(const Side& s, int first) {
  __shared__ int tops[SIDE], open[SIDE];
  const double more = power((bit_length((u64)s.K) + 1) / 2 - 28), roundings = 9.313225746154785e-10;  // 2^-30
  int bits = 0, squares = 0;
  auto extend = [&](int row, int top, double S) {  // EXACT: S is not below the sum
    const Element sum = element(fp64_code(S));
    const int width = top + published(s.maxima + row) - BIAS;  // from the least place to the highest one
    bits = larger(bits, width + 1), squares = larger(squares, sum.e + bit_length((u64)sum.m) + 2 * width);
  };
  for (int i = threadIdx.x; i < SIDE; i += blockDim.x) {
    const int row = first + i;
    open[i] = 0;
    if (row >= s.rows) continue;
    const Element largest = element(published(s.tops + row));
    const int top = tops[i] = largest.m ? largest.e + bit_length((u64)largest.m) - 1 : 0;
    const double T = weighted(published(s.sums + row), -2 * top);
    const double least = T * (1 - roundings), most = T * (1 + more + roundings);
    open[i] = largest.m && !(top < 400 && top > -400);
    if (Operands::EXACT) {
      if (largest.m && !open[i]) extend(row, top, most);
      continue;
    }
    const int exponent = room(most, s.h, s.g);
    if (largest.m && room(least, s.h, s.g) != exponent) open[i] = 1;
    s.mu[row] = published(s.special + row) ? SPECIAL : largest.m ? exponent - top : 0;
  }
  __syncthreads();
  for (int i = 0; i < SIDE; i++) {
    if (!open[i]) continue;
    const double S = exact_sum(s, first + i, tops[i]);
    if (threadIdx.x > 0) continue;
    if (Operands::EXACT) extend(first + i, tops[i], S);
    else if (!published(s.special + first + i)) s.mu[first + i] = room(S, s.h, s.g) - tops[i];
  }
  if (!Operands::EXACT) return;
  bits = block_max(bits), squares = block_max(squares);
  if (threadIdx.x == 0) atomicMax(s.extents, bits), atomicMax(s.extents + 1, squares);
}

// The summary of every row: a warp has numbers of one row where rows are contiguous, else a thread has.
template <bool WHOLE, class T> __device__ void summarise(const T* X, const Side& s) {
  constexpr int UNITS = CHUNK / PARTS;  // of a chunk
  const int chunks = (s.K + CHUNK - 1) / CHUNK;
  for (int first = blockIdx.x * SIDE; first < s.rows; first += gridDim.x * SIDE) {
    if (s.step == PARTS) {
      for (int row = first + threadIdx.x / LANES; row < smaller(first + SIDE, s.rows); row += THREADS / LANES) {
        Summary part;
        for (int chunk = blockIdx.y; chunk < chunks; chunk += gridDim.y)
          for (int k = threadIdx.x % LANES * 4; k < CHUNK; k += LANES * 4) {
            T x[4];
            read_row(x, X + row * s.row_step, chunk * CHUNK + k, s.K);
            for (int v = 0; v < 4; v++) part.add(x[v]);
          }
        part.merge_warp();
        if (is_first_lane()) part.publish(s, row);
      }
    } else {
      for (int i = threadIdx.x; i < SIDE * SLICES; i += blockDim.x) {
        const int row = first + i % SIDE;
        Summary part;
        for (int chunk = blockIdx.y; chunk < chunks && row < s.rows; chunk += gridDim.y) {
          const int start = chunk * UNITS + i / SIDE;
          const T* from = X + row * s.row_step + start * s.step;
          FPEMU_UNROLL
          for (int j = 0; j < UNITS / SLICES; j++) {
            const Unit<T> u = unit<WHOLE>(from, (start + SLICES * j) * PARTS < s.K);
            for (int v = 0; v < PARTS; v++) part.add(u.x[v]);
            from += SLICES * s.step;
          }
        }
        part.publish_merged(s, row, i / SIDE);
      }
    }
    if (SQUARES && is_last(s.arrivals + first / SIDE, gridDim.y)) exponents(s, first);
  }
}

extern "C" __global__ void __launch_bounds__(256) summaries(Side a, Side b) {
  wait_for_previous_grid();
  const Side s = blockIdx.z ? b : a;
  for_type(s, [&](auto X, auto whole) { summarise<decltype(whole)::value>(X, s); });
}

// |x| 2^(5 - top) rounded up, at least 1 where x is not zero: at most 64. Columns of complex B are two rows: in the
// second one real and imaginary parts are exchanged.
extern "C" __global__ void __launch_bounds__(256, 5) leading_bits(Side a, Side b) {
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

// The power of two of a row.
template <int OPERAND> FPEMU_FUNCTION int exponent_of(const Side& s, int row) {
  if (!Operands::EXACT && !Operands::ACCURATE) return s.mu[row];
  if (!s.tops[row]) return 0;
  if (Operands::EXACT) return s.maxima[row] - BIAS;
  const int copies = OPERAND ? PARTS : 1;
  const int largest = larger(s.maxima[row * copies], s.maxima[row * copies + copies - 1]);
  return 5 - top_of(s, row) + room((double)largest, s.h, s.g);
}

template <int COUNT> struct WordsInteger {
  typedef __int128 Type;
};
template <> struct WordsInteger<2> {
  typedef s64 Type;
};
template <> struct WordsInteger<1> {
  typedef int Type;
};
typedef WordsInteger<WORDS>::Type Wide;

// The numbers of a row as integers.
struct Scaling {
  Power power;
  int exponent;
  FPEMU_FUNCTION Scaling(int exponent) : power(Power::of(Operands::EXACT ? 0 : exponent)), exponent(exponent) {}
  // A number beyond LARGEST meets only zeros of the other operand (ACCURATE), or is in a row with NaN or infinities, on
  // whose integers no result depends: any integer may stand for it if no sum with the block of another row overflows.
  FPEMU_FUNCTION Wide integer(double x) const {
    if (Operands::EXACT) {
      if (!finite_code(x)) return 0;
      const Element exact = element(fp64_code(x));
      const int places = exact.e + exponent;
      return places < 0 ? (Wide)(exact.m >> -places) : (Wide)exact.m << places;
    }
    const double y = power.times(x);
    if ((Operands::ACCURATE || HALVES == 2) && !(y < Operands::LARGEST && y > -Operands::LARGEST)) return 0;
    if (WORDS == 1) return Operands::NEAREST ? __double2int_rn(y) : __double2int_rz(y);
    if (WORDS == 2) return (Wide)(Operands::NEAREST ? __double2ll_rn(y) : __double2ll_rz(y));
    const double X = Operands::NEAREST ? rint(y) : trunc(y);
    const double high = floor(X * 2.3283064365386963e-10);  // 2^-32
    return (Wide)((Wide)(s64)high * (1ll << 32) + (Wide)(s64)(X - high * 4294967296.0));
  }
};

template <int OPERAND> __device__ void write_residues(const Side& s) {
  constexpr int ROWS = SIDE / BLOCKS;
  __shared__ int exponents[HALVES][ROWS];
  const int half = (s.count + HALVES - 1) / HALVES, last = s.first + half, stop = s.first + s.count;
  const int columns = HALVES == 1 ? s.K : s.half_k, chunks = (columns + PARTS * CHUNK - 1) / (PARTS * CHUNK);
  for (int first = s.first + blockIdx.x * ROWS; first < last; first += gridDim.x * ROWS) {
    bool ready = false;
    auto prepare = [&] {
      if (ready) return;
      ready = true;
      for (int i = threadIdx.x; i < HALVES * ROWS; i += blockDim.x) {
        const int row = first + i % ROWS + i / ROWS * half;
        if (first + i % ROWS >= last || row >= stop) continue;
        const int exponent = exponent_of<OPERAND>(s, row);
        exponents[i / ROWS][i % ROWS] = exponent;
        if ((Operands::ACCURATE || Operands::EXACT) && blockIdx.y == 0) s.mu[row] = s.special[row] ? SPECIAL : exponent;
      }
    };
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
      for_numbers<HALVES, 4 * PARTS>(s, first, last, half, stop, chunk * CHUNK * PARTS, prepare, write);
    }
    __syncthreads();
  }
}
// Thread blocks of a multiprocessor, by the registers that the integers of a thread need.
constexpr int RESIDENT = HALVES == 2 ? 2 : PARTS == 2 ? 3 + (WORDS == 1) : WORDS < 3 ? 5 : 4;
extern "C" __global__ void __launch_bounds__(256, RESIDENT) residue_bytes(Side a, Side b) {
  wait_for_previous_grid();
  if (blockIdx.z) write_residues<1>(b);
  else write_residues<0>(a);
}

// A GEMM as chains of one emulated instruction, tile by tile: D (products, M, N) = A (stack, M, K) B (stack, K, N) + C,
// on the carriers of carrier_arithmetic.cuh. Before this file comes a Spec. K is whole instructions; `cuts` has a byte
// for each: 1 where, if `promote`, the accumulator goes to an outer sum and starts again from zero. Product p takes A
// number a_of[p] and B number b_of[p].
//
// A block of threads does a square of D. What a thread does between two barriers is a function here, so that the host
// can run all threads of a block one after another.
#include "carrier_arithmetic.cuh"

typedef Carrier<Spec> Kind;
typedef Kind::Element Element;
typedef Kind::Total Total;
constexpr int THREADS = THREADS_A_SIDE * THREADS_A_SIDE;
constexpr int EXPONENTS = Kind::ALIGNED ? Kind::CHUNK * Kind::ROW : SIDE;

struct Shared {  // a stretch of K of both operands
  alignas(32) Element a[Kind::CHUNK * Kind::ROW];
  alignas(32) Element b[Kind::CHUNK * Kind::ROW];
  alignas(32) s16 ea[EXPONENTS];
  alignas(32) s16 eb[EXPONENTS];
};

struct Task {
  const Element *A, *B;  // of this product
  int M, N, K, row, column;
  const u8* cuts;
  bool promote;
};

struct State {  // of a thread
  Total acc[SIDE][SIDE], outer[SIDE][SIDE];
};

// An operand as the block takes it, and its exponent.
template <int EMIN, class E> FPEMU_FUNCTION E prepared(E x, s16* e, bool& nonfinite) {
  if constexpr (Spec::ARITHMETIC == FLUSHED) x = magnitude(x) < (float)power(EMIN) ? 0 : x;
  if constexpr (Kind::ALIGNED) *e = (s16)(x == 0 ? NO_EXPONENT : larger(EMIN, exponent_of(x)));
  if constexpr (Kind::NARROW) nonfinite = nonfinite || exponent_of(x) == 128;
  return x;
}

template <class T> FPEMU_FUNCTION bool too_large(T x) {
  if constexpr (Kind::NARROW) return exponent_of(x) >= 120;
  else return false;
}

// An accumulator as an instruction takes it.
template <class T> FPEMU_FUNCTION T entered(T x) {
  if constexpr (Spec::ARITHMETIC == FLUSHED) return magnitude(x) < float_of(1 << 23) ? 0 : x;  // no sign either
  else return x;
}

// Bring k .. k + CHUNK of the operands into shared memory; true if this thread has seen one that is not finite, or has
// a large accumulator.
FPEMU_FUNCTION bool load(Shared& s, int thread, const Task& t, int k, const State& own) {
  bool nonfinite = false;
  for (int i = thread; i < TILE * Kind::CHUNK; i += THREADS) {
    const int q = i % Kind::CHUNK, row = i / Kind::CHUNK, at = q * Kind::ROW + row;
    const bool inside = t.row + row < t.M && k + q < t.K;
    const Element x = inside ? t.A[(s64)(t.row + row) * t.K + k + q] : Element(0);
    s.a[at] = prepared<Kind::EMIN_A>(x, s.ea + (Kind::ALIGNED ? at : 0), nonfinite);
  }
  for (int i = thread; i < TILE * Kind::CHUNK; i += THREADS) {
    const int q = i / TILE, column = i % TILE, at = q * Kind::ROW + column;
    const bool inside = t.column + column < t.N && k + q < t.K;
    const Element x = inside ? t.B[(s64)(k + q) * t.N + t.column + column] : Element(0);
    s.b[at] = prepared<Kind::EMIN_B>(x, s.eb + (Kind::ALIGNED ? at : 0), nonfinite);
  }
  FPEMU_EACH(r, c) nonfinite = nonfinite || too_large(own.acc[r][c]);
  return nonfinite;
}

// The blocks of this stretch.
FPEMU_FUNCTION void work(const Shared& s, int thread, const Task& t, int k, bool nonfinite, State& own) {
  const int row = thread / THREADS_A_SIDE * SIDE, column = thread % THREADS_A_SIDE * SIDE;
  const int end = smaller(Kind::CHUNK, t.K - k);
  int number = k / Kind::BLOCK;  // of the block, over all of K
  FPEMU_SOME(unroll 1)
  for (int q = 0; q < end; q += Kind::BLOCK, number++) {
    const int at = q * Kind::ROW, exponents = Kind::ALIGNED ? at : 0;
    if (number % Kind::BLOCKS == 0) FPEMU_EACH(r, c) own.acc[r][c] = entered(own.acc[r][c]);
    block<Spec>(s.a + at + row, s.b + at + column, s.ea + exponents + (Kind::ALIGNED ? row : 0),
                s.eb + exponents + (Kind::ALIGNED ? column : 0), own.acc, nonfinite);
    if constexpr (!Kind::INTEGERS)  // whose sums are the same in any order
      if (t.promote && number % Kind::BLOCKS == Kind::BLOCKS - 1 && t.cuts[number / Kind::BLOCKS])
        FPEMU_EACH(r, c) own.outer[r][c] += own.acc[r][c], own.acc[r][c] = 0;
  }
}

FPEMU_FUNCTION void begin(int thread, const Task& t, const Total* C, State& own) {
  const int row = t.row + thread / THREADS_A_SIDE * SIDE, column = t.column + thread % THREADS_A_SIDE * SIDE;
  FPEMU_EACH(r, c) {
    const Total start = row + r < t.M && column + c < t.N ? C[(s64)(row + r) * t.N + column + c] : Total(0);
    own.acc[r][c] = t.promote && !Kind::INTEGERS ? Total(0) : start;
    own.outer[r][c] = start;
  }
}

// The result of a chain: if it is NaN and keeps payloads, by the chain once more. Numbers pay nothing for it.
template <class S> FPEMU_FUNCTION double completed(double d, const double* a, const double* b, double c, int K, int N) {
  typedef typename S::D T;
  if (!S::PAYLOADS || d == d) return d;
  FPEMU_SOME(unroll 1)
  for (int k = 0; k < K; k++, a++, b += N) {
    d = fused(*a, *b, c);
    c = d == d ? d : double_of((s64)first_nan<T>((u64)bits_of(*a), (u64)bits_of(*b), (u64)bits_of(c), S::NAN_CODE));
  }
  return c;
}
template <class S, class E, class T> FPEMU_FUNCTION T completed(T d, const E*, const E*, T, int, int) { return d; }

FPEMU_FUNCTION void finish(int thread, const Task& t, const Total* C, Total* D, const State& own) {
  const int row = t.row + thread / THREADS_A_SIDE * SIDE, column = t.column + thread % THREADS_A_SIDE * SIDE;
  FPEMU_EACH(r, c)
  if (row + r < t.M && column + c < t.N) {
    const s64 at = (s64)(row + r) * t.N + column + c;
    const Element *a = t.A + (s64)(row + r) * t.K, *b = t.B + column + c;
    D[at] = t.promote && !Kind::INTEGERS ? own.outer[r][c] : completed<Spec>(own.acc[r][c], a, b, C[at], t.K, t.N);
  }
}

FPEMU_FUNCTION s64 tiles_along(int n) { return (n + TILE - 1) / TILE; }

FPEMU_FUNCTION Task task_of(s64 tile, const Element* A, const Element* B, const int* a_of, const int* b_of,
                            const u8* cuts, int M, int N, int K, bool promote) {
  const s64 m = tiles_along(M), n = tiles_along(N), product = tile / (m * n);
  Task t;
  t.A = A + (s64)a_of[product] * M * K, t.B = B + (s64)b_of[product] * K * N;
  t.M = M, t.N = N, t.K = K, t.cuts = cuts, t.promote = promote;
  t.row = (int)(tile / n % m) * TILE, t.column = (int)(tile % n) * TILE;
  return t;
}

#ifdef __CUDACC__
constexpr int BLOCKS_PER_MULTIPROCESSOR = 2;
static_assert(THREADS * BLOCKS_PER_MULTIPROCESSOR <= 2048, "threads of a multiprocessor");
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_MULTIPROCESSOR)
    gemm(const Element* A, const Element* B, const Total* C, Total* D, const int* a_of, const int* b_of, const u8* cuts,
         int M, int N, int K, int promote) {
  __shared__ Shared s;
  const Task t = task_of(blockIdx.x, A, B, a_of, b_of, cuts, M, N, K, promote);
  const s64 from = blockIdx.x / (tiles_along(M) * tiles_along(N)) * M * N;
  const int thread = threadIdx.x;
  State own;
  begin(thread, t, C + from, own);
  for (int k = 0; k < K; k += Kind::CHUNK) {
    const bool nonfinite = load(s, thread, t, k, own);
    const bool any = __syncthreads_or(nonfinite);
    work(s, thread, t, k, any, own);
    __syncthreads();
  }
  finish(thread, t, C + from, D + from, own);
}
#else
extern "C" void gemm(const Element* A, const Element* B, const Total* C, Total* D, const int* a_of, const int* b_of,
                     const u8* cuts, int M, int N, int K, int promote, s64 products) {
  static Shared s;
  static State own[THREADS];
  for (s64 tile = 0; tile < products * tiles_along(M) * tiles_along(N); tile++) {
    const Task t = task_of(tile, A, B, a_of, b_of, cuts, M, N, K, promote);
    const s64 from = tile / (tiles_along(M) * tiles_along(N)) * M * N;
    for (int i = 0; i < THREADS; i++) begin(i, t, C + from, own[i]);
    for (int k = 0; k < K; k += Kind::CHUNK) {
      bool any = false;
      for (int i = 0; i < THREADS; i++) any = load(s, i, t, k, own[i]) || any;
      for (int i = 0; i < THREADS; i++) work(s, i, t, k, any, own[i]);
    }
    for (int i = 0; i < THREADS; i++) finish(i, t, C + from, D + from, own[i]);
  }
}
#endif

// D = alpha · (A·B) + beta · C by a scheme that multiplies words, in one kernel: fp32 operands are read, split on their
// way into shared memory, and multiplied by mma.sync. A block of threads makes a Tile of D, a warp a part of it.
//
// While the words of one stretch of K are multiplied out of one buffer, the numbers of the next are fetched into
// registers, split and stored into the other, some of them at a time (PIECES): the pipeline of LE-GEMM's section 4.3.
#include "split_gemm.cuh"
#include "dependent_launch.cuh"

struct Loads {  // of a thread
  Source<Tile::LAYOUT_A, Tile::M> a;
  Source<Tile::LAYOUT_B, Tile::N> b;
  const s64* at;  // where this product of the batch begins; null: at 0
};

// Some of the eights that a thread brings in of a stretch, which begins at k and lies `steps` stretches ahead.
template <int FIRST, int LAST>
FPEMU_FUNCTION void fetch_some(const Loads& load, const Problem& p, int k, int steps, float (&x)[FETCHES][8]) {
  FPEMU_UNROLL
  for (int f = FIRST; f < LAST; f++) {
    if (f < FETCHES_A) load.a.fetch(f, k, steps, p.a_k, p.K, x[f]);
    else load.b.fetch(f - FETCHES_A, k, steps, p.b_k, p.K, x[f]);
  }
}

template <int PASS, int FIRST, int LAST>
FPEMU_FUNCTION void store_some(const Loads& load, const Problem& p, const Place& begin, float (&x)[FETCHES][8],
                               u8* buffer) {
  typedef Steps<Tile::LAYOUT_A, Tile::M> StepsA;
  typedef Steps<Tile::LAYOUT_B, Tile::N> StepsB;
  FPEMU_UNROLL
  for (int f = FIRST; f < LAST; f++) {
    const bool of_a = f < FETCHES_A;
    const int number = of_a ? f : f - FETCHES_A;
    const int row = of_a ? load.a.row + number * StepsA::IN_ROWS : load.b.row + number * StepsB::IN_ROWS;
    const bool there = row < (of_a ? p.M : p.N);
    int exponent = 0;
    bool special = false;
    if (Tile::SCALED && there) exponent = of_a ? row_exponent(p, load.at, row) : column_exponent(p, load.at, row);
    if (Tile::SPECIAL && there) special = of_a ? row_special(p, load.at, row) : column_special(p, load.at, row);
    if (of_a) store<PASS, true>(x[f], exponent, special, buffer, load.a.place(number, begin.row));
    else store<PASS, false>(x[f], exponent, special, buffer, load.b.place(number, begin.column));
  }
}

// Multiply from `buffer`; with the pipeline, fetch the K block at `next` into `other` meanwhile, in PIECES chunks: each is
// stored after a part of the products.
constexpr int PIECES = smaller(SLICES * ROW_FRAGMENTS, smaller(FETCHES, Tile::PIECES));
constexpr int piece_begin(int piece) { return piece * FETCHES / PIECES; }

template <int PASS, int PIECE>
FPEMU_FUNCTION void stretch(Sums& own, const Loads& load, const Problem& p, const u8* buffer, u8* other, int next,
                            const Place& begin, float (&x)[FETCHES][8], FragmentsB& b) {
  constexpr int UNITS = Units<PASS>::COUNT;
  if (Tile::PIPELINE) fetch_some<piece_begin(PIECE), piece_begin(PIECE + 1)>(load, p, next, 0, x);
  FPEMU_UNROLL
  for (int unit = PIECE * UNITS / PIECES; unit < (PIECE + 1) * UNITS / PIECES; unit++)
    multiply_unit<PASS>(own, unit, buffer, begin.warp_row, begin.warp_column, b);
  if (Tile::PIPELINE && next < p.K)
    store_some<PASS, piece_begin(PIECE), piece_begin(PIECE + 1)>(load, p, begin, x, other);
  if constexpr (PIECE + 1 < PIECES) stretch<PASS, PIECE + 1>(own, load, p, buffer, other, next, begin, x, b);
}

// On to the next stretch.
FPEMU_FUNCTION void go_on(Loads& load, const Problem& p) {
  if (Tile::LAYOUT_A == ALONG_ROWS) load.a.data[0] += Tile::K * p.a_k;
  if (Tile::LAYOUT_B == ALONG_ROWS) load.b.data[0] += Tile::K * p.b_k;
}

// A pass over K, and those after it.
template <int PASS> FPEMU_FUNCTION void run(Sums& own, const Problem& p, u8* memory, const Place& begin) {
  Loads load;
  float x[FETCHES][8];
  FragmentsB b;
  load.at = begin.at;
  load.a.begin(p.A + offset(begin.at, AT_A), p.a_row, p.a_k, begin.row, p.M);
  load.b.begin(p.B + offset(begin.at, AT_B), p.b_column, p.b_k, begin.column, p.N);
  fetch_some<0, FETCHES>(load, p, 0, 0, x);
  store_some<PASS, 0, FETCHES>(load, p, begin, x, memory);
  __syncthreads();
  FPEMU_SOME(unroll 1)
  for (int k = 0, number = 0; k < p.K; k += Tile::K, number++) {
    u8 *buffer = memory, *other = memory;
    if (Tile::PIPELINE) (number % 2 ? buffer : other) += BUFFER_BYTES;
    go_on(load, p);
    stretch<PASS, 0>(own, load, p, buffer, other, k + Tile::K, begin, x, b);
    promote_long(own, number, k + Tile::K >= p.K);
    __syncthreads();
    if (!Tile::PIPELINE) {
      fetch_some<0, FETCHES>(load, p, k + Tile::K, 0, x);
      store_some<PASS, 0, FETCHES>(load, p, begin, x, memory);
      __syncthreads();
    }
  }
  if constexpr (PASS + 1 < Plan::PASSES) run<PASS + 1>(own, p, memory, begin);
}

extern __shared__ __align__(16) u8 memory[];  // one buffer, or two

extern "C" __global__ void __launch_bounds__(THREADS, 1) split_gemm(const Problem p) {
  wait_for_previous_grid();
  Sums own;
  clear(own);
  const Place begin(p);
  run<0>(own, p, memory, begin);
  store_outputs(p, own);
}

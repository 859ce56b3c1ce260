// D = alpha · (A·B) + beta · C by a scheme that multiplies words, in one kernel: fp32 operands are read, split on their
// way into shared memory, and multiplied by mma.sync. A block of threads makes a Tile of D, a warp a part of it.
//
// While the words of one stretch of K are multiplied out of one buffer, the numbers of the next are fetched into
// registers, split and stored into the other, some of them at a time (PIECES): the pipeline of LE-GEMM's section 4.3.
//
// What is multiplied when is in the Plan. A stretch of Tile::K is run through in turns of Plan::TURN; in each turn every
// product of words runs over all instructions of the turn before the next, into the accumulator of its group. Groups
// are promoted (added to a total in fp32, and begun again from zero) every Plan::promote(group) of k. A scheme whose
// products run over all of K one after another takes several passes over K. The order is fpemu.mma.order's: k beyond
// the end is zero, and zeros leave an accumulator and a total as they are.
#include "split_gemm.cuh"

constexpr int SLICES = Tile::K / Plan::MMA_K, TURN_SLICES = Plan::TURN / Plan::MMA_K;  // instructions along k
static_assert(SLICES % TURN_SLICES == 0, "a stretch is whole turns");

struct State {  // of a thread
  Sum sums[Plan::GROUPS][ROW_FRAGMENTS][COLUMN_FRAGMENTS];
  float totals[Plan::TOTALS + 1][ROW_FRAGMENTS][COLUMN_FRAGMENTS][4];  // + 1: an array has one element or more
  Source<Tile::LAYOUT_A, Tile::M> a;
  Source<Tile::LAYOUT_B, Tile::N> b;
  const s64* at;  // where this product of the batch begins; null: at 0
};

// The products of a pass, and what they need.
constexpr int products_in(int pass) {
  int count = 0;
  for (int p = 0; p < Plan::PRODUCTS; p++) count += Plan::pass(p) == pass;
  return count;
}
constexpr int product_of(int pass, int number) {
  int p = 0;
  for (; p < Plan::PRODUCTS; p++)
    if (Plan::pass(p) == pass && number-- == 0) break;
  return p;
}
constexpr unsigned wanted(int pass, bool of_a) {
  unsigned words = 0;
  for (int p = 0; p < Plan::PRODUCTS; p++)
    if (Plan::pass(p) == pass) words |= 1u << (of_a ? Plan::word_a(p) : Plan::word_b(p));
  return words;
}
// Whether some products of a pass, by number, need a word.
template <int PASS> FPEMU_FUNCTION constexpr bool needs(int word, int first, int count, bool of_a) {
  for (int number = first; number < first + count; number++) {
    const int p = product_of(PASS, number);
    if ((of_a ? Plan::word_a(p) : Plan::word_b(p)) == word) return true;
  }
  return false;
}
constexpr bool first_of_group(int product) {
  for (int p = 0; p < product; p++)
    if (Plan::group(p) == Plan::group(product)) return false;
  return true;
}
constexpr bool last_of_group(int product) {
  for (int p = product + 1; p < Plan::PRODUCTS; p++)
    if (Plan::group(p) == Plan::group(product)) return false;
  return true;
}

#define FPEMU_FRAGMENTS(i, j) \
  FPEMU_UNROLL for (int i = 0; i < ROW_FRAGMENTS; i++) FPEMU_UNROLL for (int j = 0; j < COLUMN_FRAGMENTS; j++)

FPEMU_FUNCTION void promote(State& own, int group, int i, int j, const Sum& sum) {
  const int shift = Plan::ELEMENT_WISE ? -Plan::EXPONENT * Plan::band(group) : 0;
  FPEMU_UNROLL
  for (int e = 0; e < 4; e++) own.totals[Plan::total(group)][i][j][e] += times_power(entry(sum, e), shift);
}

// One product of words over the k of one instruction, for sixteen rows (number i) of a warp.
FPEMU_FUNCTION void multiply(State& own, int product, int slice, int i, const u32 (&a)[A_WORDS],
                             const u32 (&b)[COLUMN_FRAGMENTS][B_WORDS]) {
  const int group = Plan::group(product), interval = Plan::promote(group);
  const bool within = interval && interval <= Tile::K;  // else it goes on from one stretch to the next
  const bool begins = within && first_of_group(product) && slice * Plan::MMA_K % interval == 0;
  const bool ends = within && last_of_group(product) && (slice + 1) * Plan::MMA_K % interval == 0;
  FPEMU_UNROLL
  for (int j = 0; j < COLUMN_FRAGMENTS; j++) {
    Sum sum = begins ? zero() : own.sums[group][i][j];
    multiply_add(sum, a, b[j]);
    if (ends) promote(own, group, i, j, sum);
    own.sums[group][i][j] = sum;
  }
}

// After a stretch: groups whose interval is several stretches.
FPEMU_FUNCTION void promote_long(State& own, int stretch, bool last) {
  FPEMU_UNROLL
  for (int group = 0; group < Plan::GROUPS; group++) {
    const int stretches = Plan::promote(group) / Tile::K;
    if (Plan::promote(group) <= Tile::K || ((stretch + 1) % stretches && !last)) continue;
    FPEMU_FRAGMENTS(i, j) {
      promote(own, group, i, j, own.sums[group][i][j]);
      own.sums[group][i][j] = zero();
    }
  }
}

// Some of the eights that a thread brings in of a stretch, which begins at k and lies `steps` stretches ahead.
template <int FIRST, int LAST>
FPEMU_FUNCTION void fetch_some(const State& own, const Problem& p, int k, int steps, float (&x)[FETCHES][8]) {
  FPEMU_UNROLL
  for (int f = FIRST; f < LAST; f++) {
    if (f < FETCHES_A) own.a.fetch(f, k, steps, p.a_k, p.K, x[f]);
    else own.b.fetch(f - FETCHES_A, k, steps, p.b_k, p.K, x[f]);
  }
}

template <int PASS, int FIRST, int LAST>
FPEMU_FUNCTION void store_some(const State& own, const Problem& p, float (&x)[FETCHES][8], u8* buffer) {
  typedef Steps<Tile::LAYOUT_A, Tile::M> StepsA;
  typedef Steps<Tile::LAYOUT_B, Tile::N> StepsB;
  FPEMU_UNROLL
  for (int f = FIRST; f < LAST; f++) {
    const bool of_a = f < FETCHES_A;
    const int number = of_a ? f : f - FETCHES_A;
    const int row = of_a ? own.a.row + number * StepsA::IN_ROWS : own.b.row + number * StepsB::IN_ROWS;
    const int place = of_a ? own.a.place + number * StepsA::IN_BYTES
                           : Tile::M * PITCH + own.b.place + number * StepsB::IN_BYTES;
    const bool there = row < (of_a ? p.M : p.N);
    int exponent = 0;
    bool special = false;
    if (Tile::SCALED && there) exponent = of_a ? row_exponent(p, own.at, row) : column_exponent(p, own.at, row);
    if (Tile::SPECIAL && there) special = of_a ? row_special(p, own.at, row) : column_special(p, own.at, row);
    store(x[f], exponent, special, buffer + place, wanted(PASS, of_a));
  }
}

// A stretch is multiplied in units: the k of one instruction, for one product or for all, sixteen rows of a warp and all
// its columns.
template <int PASS> struct Units {
  static constexpr int PRODUCTS = products_in(PASS);
  // All products of an instruction's k follow one another if a turn is that short: then words are loaded once for all.
  static constexpr int TOGETHER = TURN_SLICES == 1 ? PRODUCTS : 1;
  static constexpr int COUNT = PRODUCTS * SLICES / TOGETHER * ROW_FRAGMENTS;
};

template <int PASS>
FPEMU_FUNCTION void multiply_unit(State& own, int unit, const u8* buffer, int row, int column,
                                  u32 (&b)[Plan::WORDS][COLUMN_FRAGMENTS][B_WORDS]) {
  typedef Units<PASS> Of;
  const int i = unit % ROW_FRAGMENTS, step = unit / ROW_FRAGMENTS;
  const int slice = Of::TOGETHER > 1 ? step : step / (TURN_SLICES * Of::PRODUCTS) * TURN_SLICES + step % TURN_SLICES;
  const int begin = Of::TOGETHER > 1 ? 0 : step / TURN_SLICES % Of::PRODUCTS;  // number of the product in this pass
  u32 a[Plan::WORDS][A_WORDS];
  FPEMU_UNROLL
  for (int w = 0; w < Plan::WORDS; w++) {
    const u8* words = buffer + w * WORD_BYTES;
    if (i == 0 && needs<PASS>(w, begin, Of::TOGETHER, false)) load_b(b[w], words + Tile::M * PITCH, column, slice);
    if (needs<PASS>(w, begin, Of::TOGETHER, true)) load_a(a[w], words, row + 16 * i, slice);
  }
  FPEMU_UNROLL
  for (int number = begin; number < begin + Of::TOGETHER; number++) {
    const int product = product_of(PASS, number);
    multiply(own, product, slice, i, a[Plan::word_a(product)], b[Plan::word_b(product)]);
  }
}

// Multiply out of `buffer`; meanwhile, with the pipeline, bring the stretch from `next` on into `other`, piece by piece:
// while a part is multiplied, a piece of the next stretch is stored that was fetched AHEAD pieces before.
constexpr int PIECES = smaller(SLICES * ROW_FRAGMENTS, smaller(FETCHES, Tile::PIECES));
constexpr int AHEAD = smaller(PIECES - 1, Tile::AHEAD);
constexpr int piece_begin(int piece) { return piece * FETCHES / PIECES; }

template <int PASS, int PIECE>
FPEMU_FUNCTION void stretch(State& own, const Problem& p, const u8* buffer, u8* other, int next, int row, int column,
                            float (&x)[FETCHES][8], u32 (&b)[Plan::WORDS][COLUMN_FRAGMENTS][B_WORDS]) {
  constexpr int FETCHED = (PIECE + AHEAD) % PIECES, STEPS = (PIECE + AHEAD) / PIECES, UNITS = Units<PASS>::COUNT;
  if (Tile::PIPELINE)
    fetch_some<piece_begin(FETCHED), piece_begin(FETCHED + 1)>(own, p, next + STEPS * Tile::K, STEPS, x);
  FPEMU_UNROLL
  for (int unit = PIECE * UNITS / PIECES; unit < (PIECE + 1) * UNITS / PIECES; unit++)
    multiply_unit<PASS>(own, unit, buffer, row, column, b);
  if (Tile::PIPELINE) store_some<PASS, piece_begin(PIECE), piece_begin(PIECE + 1)>(own, p, x, other);
  if constexpr (PIECE + 1 < PIECES) stretch<PASS, PIECE + 1>(own, p, buffer, other, next, row, column, x, b);
}

// On to the next stretch.
FPEMU_FUNCTION void go_on(State& own, const Problem& p) {
  if (Tile::LAYOUT_A == ALONG_ROWS) own.a.data[0] += Tile::K * p.a_k;
  if (Tile::LAYOUT_B == ALONG_ROWS) own.b.data[0] += Tile::K * p.b_k;
}

// A pass over K for the rows and columns of D from first_row and first_column on; a warp's from row and column in these.
template <int PASS>
FPEMU_FUNCTION void run(State& own, const Problem& p, u8* memory, int first_row, int first_column, int row, int column) {
  float x[FETCHES][8];
  own.a.begin(p.A + offset(own.at, AT_A), p.a_row, p.a_k, first_row, p.M);
  own.b.begin(p.B + offset(own.at, AT_B), p.b_column, p.b_k, first_column, p.N);
  u32 b[Plan::WORDS][COLUMN_FRAGMENTS][B_WORDS];
  fetch_some<0, FETCHES>(own, p, 0, 0, x);
  store_some<PASS, 0, FETCHES>(own, p, x, memory);
  if (Tile::PIPELINE) fetch_some<0, piece_begin(AHEAD)>(own, p, Tile::K, 1, x);
  __syncthreads();
  FPEMU_SOME(unroll 1)
  for (int k = 0, number = 0; k < p.K; k += Tile::K, number++) {
    u8 *buffer = memory, *other = memory;
    if (Tile::PIPELINE) (number % 2 ? buffer : other) += BUFFER_BYTES;
    go_on(own, p);
    stretch<PASS, 0>(own, p, buffer, other, k + Tile::K, row, column, x, b);
    promote_long(own, number, k + Tile::K >= p.K);
    __syncthreads();
    if (!Tile::PIPELINE) {
      fetch_some<0, FETCHES>(own, p, k + Tile::K, 0, x);
      store_some<PASS, 0, FETCHES>(own, p, x, memory);
      __syncthreads();
    }
  }
  if constexpr (PASS + 1 < Plan::PASSES) run<PASS + 1>(own, p, memory, first_row, first_column, row, column);
}

// The number of this block, or thread, as a fresh read: what follows from it at the end need not wait in registers.
#ifdef __CUDACC__
FPEMU_FUNCTION int own_block() {
  int number;
  asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(number));
  return number;
}
FPEMU_FUNCTION int own_thread() {
  int number;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(number));
  return number;
}
#else
FPEMU_FUNCTION int own_block() { return blockIdx.x; }
FPEMU_FUNCTION int own_thread() { return threadIdx.x; }
#endif

// Which tile of D a block makes: eight rows of tiles at a time, so that neighbours in time share operands in the cache.
struct Place {
  int row, column;            // of the tile in D
  int warp_row, warp_column;  // of the warp in the tile
  const s64* at;              // where this product of the batch begins; null: at 0

  FPEMU_FUNCTION explicit Place(const Problem& p) {
    constexpr int HIGH = 8, ACROSS = Tile::N / Tile::WARP_N;
    const int rows = (p.M + Tile::M - 1) / Tile::M, columns = (p.N + Tile::N - 1) / Tile::N;
    const int block = own_block(), warp = own_thread() / 32, number = block % (rows * columns);
    const int band = number / (HIGH * columns), within = number - band * HIGH * columns;
    const int height = smaller(HIGH, rows - band * HIGH);
    row = (band * HIGH + within % height) * Tile::M, column = within / height * Tile::N;
    warp_row = warp / ACROSS * Tile::WARP_M, warp_column = warp % ACROSS * Tile::WARP_N;
    at = p.batches ? p.batches + (s64)(block / (rows * columns)) * OFFSETS : nullptr;
  }
};

extern __shared__ __align__(16) u8 memory[];  // one buffer, or two

extern "C" __global__ void __launch_bounds__(THREADS, Tile::BLOCKS) split_gemm(const Problem p) {
  State own;
  FPEMU_FRAGMENTS(i, j) {
    FPEMU_UNROLL
    for (int g = 0; g < Plan::GROUPS; g++) own.sums[g][i][j] = zero();
    FPEMU_UNROLL
    for (int t = 0; t < Plan::TOTALS; t++) FPEMU_UNROLL for (int e = 0; e < 4; e++) own.totals[t][i][j][e] = 0;
  }
  const Place begin(p);
  own.at = begin.at;
  run<0>(own, p, memory, begin.row, begin.column, begin.warp_row, begin.warp_column);

  const Place end(p);
  const int lane = own_thread() % 32;
  FPEMU_FRAGMENTS(i, j) FPEMU_UNROLL for (int e = 0; e < 4; e++) {
    const int row = end.row + end.warp_row + 16 * i + lane / 4 + 8 * (e / 2);
    const int column = end.column + end.warp_column + 8 * j + 2 * (lane % 4) + e % 2;
    if (row >= p.M || column >= p.N) continue;
    float sums[Plan::GROUPS];
    FPEMU_UNROLL
    for (int g = 0; g < Plan::GROUPS; g++) {
      sums[g] = Plan::promote(g) ? own.totals[Plan::total(g)][i][j][e] : entry(own.sums[g][i][j], e);
      if (FPEMU_HALF_SUMS && Plan::promote(g)) sums[g] = value_of_half(half_of<false>(sums[g]));
    }
    const int exponent = Tile::SCALED ? row_exponent(p, end.at, row) + column_exponent(p, end.at, column) : 0;
    finish(p, end.at, row, column, joined(sums), exponent);
  }
}

// A tile of D by mma.sync from words in shared memory: fragments, the instruction, the order of the products, and the
// store of the tile. For split_gemm.cu, which splits in its loads, and split_gemm_async.cu, which loads words.
//
// The fragments of mma.sync have one layout in 32-bit words, whatever the format: with g = lane / 4 and t = lane % 4 a
// lane holds of A the words t and t + 4 of rows g and g + 8, of B those of column g, and of a sum the columns 2t and
// 2t + 1 of rows g and g + 8.
//
// The Plan is the order of the products. A block of Tile::K is processed in turns of Plan::TURN; in each turn
// every product of words runs over all instructions of the turn before the next, into the accumulator of its group.
// Groups are promoted (added to a total in fp32, and begun again from zero) every Plan::promote(group) of k. A scheme
// whose products run over all of K one after another takes several passes over K. The order is fpemu.mma.order's: k
// beyond the end is zero, and zeros leave an accumulator and a total as they are.
//
// fpemu.gpu.gemm.mma_sync.source defines the Plan, the Tile, the Rules of the split and MMA_SYNC, the instruction as
// PTX.
#pragma once
#include "split_vectorized.cuh"
#include "split_epilogue.cuh"
#include "accumulator_fragment.cuh"

constexpr int THREADS = Tile::M / Tile::WARP_M * (Tile::N / Tile::WARP_N) * 32;
constexpr int ROW_FRAGMENTS = Tile::WARP_M / 16, COLUMN_FRAGMENTS = Tile::WARP_N / 8;  // of a warp
constexpr int A_WORDS = Plan::MMA_BYTES / 8, B_WORDS = Plan::MMA_BYTES / 16;           // registers of a fragment
constexpr int ROW_BYTES = Tile::K * Plan::ELEMENT;  // of a stretch of a word, in shared memory
constexpr int SLICES = Tile::K / Plan::MMA_K, TURN_SLICES = Plan::TURN / Plan::MMA_K;  // instructions along k
static_assert(SLICES % TURN_SLICES == 0, "a stretch is whole turns");
static_assert(Tile::WARP_M % 16 == 0 && Tile::WARP_N % 16 == 0, "fragments");

// ---- the instruction

#ifdef __CUDACC__
FPEMU_FUNCTION void multiply_add(Sum& c, const u32 (&a)[A_WORDS], const u32 (&b)[B_WORDS]) { MMA_SYNC; }

// Eight rows of 16 bytes for each register, from the addresses that the lanes give: lane l those of register l / 8.
FPEMU_FUNCTION void load_rows(u32 (&r)[4], const u8* row) {
  const u32 at = (u32)__cvta_generic_to_shared(row);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(at)
               : "memory");
}
FPEMU_FUNCTION void load_rows(u32 (&r)[2], const u8* row) {
  const u32 at = (u32)__cvta_generic_to_shared(row);
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(at)
               : "memory");
}
#else  // of a simulation
void multiply_add(Sum& c, const u32 (&a)[A_WORDS], const u32 (&b)[B_WORDS]);
void load_rows(u32 (&r)[4], const u8* row);
void load_rows(u32 (&r)[2], const u8* row);
#endif

// Return the offset of a byte of a row within a word's part of a buffer. Chunks of 16 bytes are permuted by the row, so
// that the chunks of eight rows that ldmatrix reads, or a copy writes, are in different banks.
FPEMU_FUNCTION constexpr int spot(int row, int byte) {
  const int turn = ROW_BYTES % 128 == 0 ? row % 8 : ROW_BYTES % 64 == 0 ? row / 2 % 4 : 0;
  return row * ROW_BYTES + (byte ^ turn * 16);
}

// ---- fragments: the k of one instruction, of sixteen rows of A, and of all columns of B that a warp has

FPEMU_FUNCTION void load_a(u32 (&a)[A_WORDS], const u8* word, int row, int slice) {
  const int lane = threadIdx.x % 32;
  const int byte = slice * Plan::MMA_BYTES + (A_WORDS == 4 ? lane / 16 * 16 : 0);
  load_rows(a, word + row * ROW_BYTES + spot(lane % 16, byte));  // row: a multiple of 16
}

FPEMU_FUNCTION void load_b(u32 (&b)[COLUMN_FRAGMENTS][B_WORDS], const u8* word, int column, int slice) {
  const int lane = threadIdx.x % 32;
  const int own = B_WORDS == 2 ? lane % 8 + lane / 16 * 8 : lane % 16;  // two fragments at a time
  const int byte = slice * Plan::MMA_BYTES + (B_WORDS == 2 ? lane / 8 % 2 * 16 : 0);
  const u8* at = word + column * ROW_BYTES + spot(own, byte);  // column: a multiple of 16
  FPEMU_UNROLL
  for (int i = 0; i < COLUMN_FRAGMENTS; i += 2) {
    u32 two[2 * B_WORDS];
    load_rows(two, at + i * 8 * ROW_BYTES);
    FPEMU_UNROLL
    for (int j = 0; j < 2 * B_WORDS; j++) b[i + j / B_WORDS][j % B_WORDS] = two[j];
  }
}

// ---- the products of a pass, and what they need

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
constexpr unsigned needed_words(int pass, bool of_a) {  // a bit for each word
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

// ---- where words lie in a buffer of shared memory: A's words of a pass, then B's

constexpr int count_words(unsigned words) { return words ? (int)(words & 1) + count_words(words >> 1) : 0; }
constexpr int most_words(bool of_a) {  // of any pass
  int most = 0;
  for (int pass = 0; pass < Plan::PASSES; pass++) most = larger(most, count_words(needed_words(pass, of_a)));
  return most;
}
constexpr int BUFFER_BYTES = (most_words(true) * Tile::M + most_words(false) * Tile::N) * ROW_BYTES;

template <int PASS> FPEMU_FUNCTION constexpr int place(int word, bool of_a) {
  const int before = count_words(needed_words(PASS, of_a) & ((1u << word) - 1));
  return (of_a ? before * Tile::M : most_words(true) * Tile::M + before * Tile::N) * ROW_BYTES;
}

// ---- sums and totals

struct Sums {  // of a thread
  Sum sums[Plan::GROUPS][ROW_FRAGMENTS][COLUMN_FRAGMENTS];
  float totals[Plan::TOTALS + 1][ROW_FRAGMENTS][COLUMN_FRAGMENTS][4];  // + 1: an array has one element or more
};

#define FPEMU_FRAGMENTS(i, j)                          \
  FPEMU_UNROLL                                         \
  for (int i = 0; i < ROW_FRAGMENTS; i++) FPEMU_UNROLL \
  for (int j = 0; j < COLUMN_FRAGMENTS; j++)

FPEMU_FUNCTION void clear(Sums& own) {
  FPEMU_FRAGMENTS(i, j) {
    FPEMU_UNROLL
    for (int g = 0; g < Plan::GROUPS; g++) own.sums[g][i][j] = zero();
    FPEMU_UNROLL
    for (int t = 0; t < Plan::TOTALS; t++) FPEMU_UNROLL
    for (int e = 0; e < 4; e++) own.totals[t][i][j][e] = 0;
  }
}

FPEMU_FUNCTION void promote(Sums& own, int group, int i, int j, const Sum& sum) {
  const int shift = Plan::ELEMENT_WISE ? -Plan::EXPONENT * Plan::band(group) : 0;
  FPEMU_UNROLL
  for (int e = 0; e < 4; e++) own.totals[Plan::total(group)][i][j][e] += times_power(entry(sum, e), shift);
}

// After a stretch: groups whose interval is several stretches.
FPEMU_FUNCTION void promote_long(Sums& own, int stretch, bool last) {
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

// ---- products

// One product of words over the k of one instruction, for sixteen rows (number i) of a warp.
FPEMU_FUNCTION void multiply(Sums& own, int product, int slice, int i, const u32 (&a)[A_WORDS],
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

// A stretch is multiplied in units: the k of one instruction, for one product or for all, sixteen rows of a warp and
// all its columns.
template <int PASS> struct Units {
  static constexpr int PRODUCTS = products_in(PASS);
  static constexpr int TOGETHER = TURN_SLICES == 1 ? PRODUCTS : 1;
  static constexpr int COUNT = PRODUCTS * SLICES / TOGETHER * ROW_FRAGMENTS;
};

typedef u32 FragmentsB[Plan::WORDS][COLUMN_FRAGMENTS][B_WORDS];

template <int PASS>
FPEMU_FUNCTION void multiply_unit(Sums& own, int unit, const u8* buffer, int row, int column, FragmentsB& b) {
  typedef Units<PASS> Of;
  const int i = unit % ROW_FRAGMENTS, step = unit / ROW_FRAGMENTS;
  const int slice = Of::TOGETHER > 1 ? step : step / (TURN_SLICES * Of::PRODUCTS) * TURN_SLICES + step % TURN_SLICES;
  const int begin = Of::TOGETHER > 1 ? 0 : step / TURN_SLICES % Of::PRODUCTS;  // number of the product in this pass
  u32 a[Plan::WORDS][A_WORDS];
  FPEMU_UNROLL
  for (int w = 0; w < Plan::WORDS; w++) {
    const bool of_a = needs<PASS>(w, begin, Of::TOGETHER, true), of_b = needs<PASS>(w, begin, Of::TOGETHER, false);
    if (i == 0 && of_b) load_b(b[w], buffer + place<PASS>(w, false), column, slice);
    if (of_a) load_a(a[w], buffer + place<PASS>(w, true), row + 16 * i, slice);
  }
  FPEMU_UNROLL
  for (int number = begin; number < begin + Of::TOGETHER; number++) {
    const int product = product_of(PASS, number);
    multiply(own, product, slice, i, a[Plan::word_a(product)], b[Plan::word_b(product)]);
  }
}

// ---- the tile in D

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

FPEMU_FUNCTION void store_outputs(const Problem& p, const Sums& own) {
  const Place end(p);
  const int lane = own_thread() % 32;
  FPEMU_FRAGMENTS(i, j) FPEMU_UNROLL
  for (int e = 0; e < 4; e++) {
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

// fp32 operands to words of 8 or 16 bits: both operands of a product in one launch, one pass over each.
//
// A "row" runs along K: a row of A, a column of B. Rows are scaled by their largest entry, so a whole row must be read
// before its first word can be written. A panel is SIDE rows, a tile SPAN of k in a panel. Thread
// blocks process the tiles round-robin: each loads one into shared memory, merges its rows' largest entries into the
// panel's counters in global memory, and writes the words of the tile that it loaded LAG tiles before. By then the
// other blocks have read the rest of that panel, or will without blocking: the host ensures that no panel has more tiles
// than LAG - 1 rounds of blocks, and all blocks are resident at once, unless other work occupies the GPU. A block that
// has waited for PATIENCE reads of a counter finds the largest entries itself: no launch waits for a block that cannot
// start. For longer panels there are two launches, which read the operand twice.
//
// Words are stored as the product kernels load them, a chunk of 64 k after another: (matrix and sum, chunk, row, 128
// bytes), so that whatever rows a tile takes, it is contiguous.
//
// Before this text, struct Config: STAGES, tiles in shared memory at a time, LAG, and BLOCKS on a multiprocessor; SIDE
// and SPAN; PARTS, blocks of the operand that are read together, and SUMS that are split of them (one of one, except in
// strassen_split.cu); BALANCED, which high_words.cuh explains. A kernel gives `run` a Job: `Job::Row`, made from an operand and the statistics of a row;
// `load_tile`, `find_largest`, `read_whole_row` and `write_words`, as Rows has them below.
#pragma once
#include "hopper.cuh"
#include "range_faults.cuh"

constexpr int STAGES = Config::STAGES, LAG = Config::LAG, BLOCKS = Config::BLOCKS;
constexpr int SIDE = Config::SIDE, SPAN = Config::SPAN, PARTS = Config::PARTS, SUMS = Config::SUMS;
constexpr int THREADS = 256, WARPS = THREADS / 32;
constexpr int NUMBERS = SIDE * SUMS;        // rows of a panel, those of all sums
constexpr int PREFETCH = STAGES - LAG - 1;  // tiles on their way
constexpr int RING = 8;                     // descriptors of tiles, more than STAGES
constexpr int PATIENCE = 1 << 14;           // reads of a counter, about 10 ms
static_assert(PREFETCH >= 1 && RING > STAGES, "a tile is loaded, its largest entries found, and LAG tiles later split");
static_assert(SIDE * SPAN * PARTS % (4 * THREADS) == 0, "each thread copies whole groups of four entries");
static_assert(64 % SPAN == 0, "whole tiles in a chunk of 64 k");
static_assert(NUMBERS <= THREADS, "one thread for each row of a panel");
static_assert(BLOCKS * 4 * PARTS * SIDE * SPAN * STAGES <= 227 * 1024, "shared memory of a multiprocessor");
constexpr int LOOK = 1, MAKE = 2;  // phases

struct Panel {                             // zero before and after a launch
  u32 largest[NUMBERS], special[NUMBERS];  // of each row: bits of the largest finite magnitude; whether NaN or Inf
  u32 seen, used;                          // tiles looked at, tiles that have read the numbers above
};

struct Operand {  // fpemu.gpu.gemm.wgmma.splits.OPERAND
  const float* X;
  const s64* offsets;  // of each matrix in X, in elements; null: one matrix
  u8 *high, *low;      // words; low may be null
  int* exponents;      // (matrices, SUMS, rows): what the rule scales a row by, or null: no scaling
  u8* special;         // (matrices, all_rows)
  u64* faults;         // range_faults.cuh
  u64* next_faults;    // those of the launch after this one, to be made zero
  Panel* panels;
  u32* largest;              // of each matrix, as bits of fp32, if one exponent is for all of its rows; else null
  s64 row_stride, k_stride;  // in elements
  float shift, limit;        // of fp16 words: 2^shift; of strassen_split.cu: entries are smaller
  int rows, K, chunks, matrices;
  int all_rows, all_k;     // rows and K, or all of which these are a half, rounded up
  int wide;                // 16 bytes may be loaded at once
  int second, exact, per;  // B; and of fpemu.gpu.gemm.wgmma.staged_int8
  FPEMU_FUNCTION int panels_each() const { return (rows + SIDE - 1) / SIDE; }
  FPEMU_FUNCTION int spans() const { return chunks * (64 / SPAN); }
  FPEMU_FUNCTION int tiles() const { return panels_each() * spans() * matrices; }
  FPEMU_FUNCTION s64 words_each() const { return (s64)rows * chunks * 128; }  // bytes of a sum
  FPEMU_FUNCTION s64 words_of(int matrix, int row, int chunk) const {         // where those of a row begin
    return matrix * (SUMS * words_each()) + ((s64)chunk * rows + row) * 128;
  }
  FPEMU_FUNCTION u64 index_of(int matrix, int row, int k) const {  // of an entry in the operand
    return entry_index(matrix, row, k, all_rows, all_k, second);
  }
  FPEMU_FUNCTION bool along() const { return k_stride == 1; }  // k is what lies contiguous
};

struct Operands {
  Operand of[2];  // one, and one without rows, if there is one
  int phases;
  int evict_first;  // of hopper_split_rows.cu: entries leave the L2 first
};

// The position of a tile.
struct Tile {
  int operand, panel, matrix, row, span;
  FPEMU_FUNCTION void locate(const Operands& all, int number) {
    operand = number >= all.of[0].tiles();
    const Operand& op = all.of[operand];
    number -= operand * all.of[0].tiles();
    panel = number / op.spans(), span = number - panel * op.spans();
    matrix = panel / op.panels_each(), row = (panel - matrix * op.panels_each()) * SIDE;
  }
};

// Merges a tile's statistics of row n into its panel's.
FPEMU_FUNCTION void update_panel(const Operand& op, const Tile& at, int n, u32 largest, u32 special) {
  Panel& panel = op.panels[at.panel];
  if (largest) atomicMax(&panel.largest[n], largest);
  if (special) atomicOr(&panel.special[n], 1u);
  if (op.largest && largest) atomicMax(&op.largest[at.matrix], largest);
}

constexpr u32 INFINITE = 0x7f800000;
FPEMU_FUNCTION bool is_special(float x) { return (__float_as_uint(x) & INFINITE) == INFINITE; }

// Four entries that lie next to each other to shared memory, `here` of them; zeros for the others.
FPEMU_FUNCTION void copy_four(const Operand& op, u32 to, const float* from, s64 step, int here) {
  if (op.wide) {
    copy_16(to, here ? from : op.X, 4 * here);
  } else {
    FPEMU_UNROLL
    for (int j = 0; j < 4; j++) copy_4(to + 4 * j, j < here ? from + j * step : op.X, j < here ? 4 : 0);
  }
}

// What splits one block: SIDE = SPAN = 64. A Rule gives its Row and `row`, and `split_eight`, which makes words of
// eight neighbours along k.
template <class Rule> struct Rows {
  typedef typename Rule::Row Row;

  FPEMU_FUNCTION static Row row(const Operand& op, u32 largest, bool special, int& exponent) {
    return Rule::row(op, largest, special, exponent);
  }

  // A tile in shared memory: 64 lines of what lies contiguous, rows or k, in groups of four whose places within a
  // line are exchanged so that all reads below go to different banks.
  template <bool ALONG> FPEMU_FUNCTION static int place(int line, int group) {
    return line * SIDE + 4 * (ALONG ? group ^ group >> 3 : group ^ (line >> 3 & 7));
  }

  // Issues the copies of a tile; elements outside of the operand become zero.
  template <bool ALONG> FPEMU_FUNCTION static void load_tile(const Operand& op, const Tile& at, u32 to) {
    const int rows = op.rows - at.row, ks = op.K - at.span * SPAN, group = threadIdx.x % 16;
    const int lines = ALONG ? rows : ks, entries = min(max((ALONG ? ks : rows) - 4 * group, 0), 4);
    const s64 line_stride = ALONG ? op.row_stride : op.k_stride, step = ALONG ? op.k_stride : op.row_stride;
    const float* X = op.X + (op.offsets ? op.offsets[at.matrix] : 0);
    const float* from = X + at.row * op.row_stride + at.span * SPAN * op.k_stride + 4 * group * step;
    FPEMU_UNROLL
    for (int i = 0; i < SIDE * 16 / THREADS; i++) {
      const int line = threadIdx.x / 16 + i * (THREADS / 16), here = line < lines ? entries : 0;
      copy_four(op, to + 4 * place<ALONG>(line, group), from + line * line_stride, step, here);
    }
  }

  // The largest finite magnitudes of a tile's rows to the panel's counters. A lane sees 16 entries and shares its
  // rows, four, or four neighbours' quarters, with 15 others.
  template <bool ALONG> FPEMU_FUNCTION static void find_largest(const Operand& op, const Tile& at, const float* held) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, quad = warp % 4 + warp / 4 * 8 + 4 * (lane & 1);
    float4 x[4];
    FPEMU_UNROLL
    for (int i = 0; i < 4; i++) {
      const int line = (ALONG ? 8 * warp : lane / 2 % 8 * 8) + lane / 16 + 2 * i;
      x[i] = *(const float4*)(held + place<ALONG>(line, ALONG ? lane % 16 : quad));
    }
    float most[4] = {0, 0, 0, 0};
    FPEMU_UNROLL
    for (int i = 0; i < 4; i++) {
      const float v[4] = {x[i].x, x[i].y, x[i].z, x[i].w};
      FPEMU_UNROLL
      for (int j = 0; j < 4; j++) most[ALONG ? i : j] = larger_or_nan(most[ALONG ? i : j], v[j]);
    }
    u32 special = 0;  // a bit for each of the four rows
    if (__any_sync(~0u, is_special(most[0]) || is_special(most[1]) || is_special(most[2]) || is_special(most[3]))) {
      u32 found = 0;  // a bit for each of the 16 entries
      FPEMU_UNROLL
      for (int j = 0; j < 4; j++) most[j] = 0;
      FPEMU_UNROLL
      for (int i = 0; i < 4; i++) {
        const float v[4] = {x[i].x, x[i].y, x[i].z, x[i].w};
        FPEMU_UNROLL
        for (int j = 0; j < 4; j++) {
          const int r = ALONG ? i : j;
          if (is_special(v[j])) special |= 1 << r, found |= 1 << (4 * i + j);
          else most[r] = fmaxf(most[r], fabsf(v[j]));
        }
      }
      int count = 0;
#pragma unroll 1
      for (u32 left = found; left; left &= left - 1, count++) {
        const int n = bit_length(left & -left) - 1,
                  line = (ALONG ? 8 * warp : lane / 2 % 8 * 8) + lane / 16 + n / 4 * 2;
        const int row = ALONG ? line : 4 * quad + n % 4, k = ALONG ? 4 * (lane % 16) + n % 4 : line;
        report_first(op.faults, NONFINITE_ENTRY, op.index_of(at.matrix, at.row + row, at.span * SPAN + k));
      }
      count = __reduce_add_sync(~0u, count);
      if (lane == 0) atomicAdd(op.faults, (u64)count);
    }
    FPEMU_UNROLL
    for (int i = 0; i < 4; i++) {
      const int other = ALONG ? 1 << i : 2 << i;
      FPEMU_UNROLL
      for (int j = 0; j < 4; j++) most[j] = fmaxf(most[j], __shfl_xor_sync(~0u, most[j], other));
      special |= __shfl_xor_sync(~0u, special, other);
    }
    const int own = ALONG ? lane % 16 : lane / 2;  // of the lanes with the same rows the first four report a row each
    if (own >= 4) return;
    const u32 magnitude = __float_as_uint(own < 2 ? own == 0 ? most[0] : most[1] : own == 2 ? most[2] : most[3]);
    const int row = ALONG ? 8 * warp + lane / 16 + 2 * own : 4 * quad + own;
    update_panel(op, at, row, magnitude, special >> own & 1);
  }

  // The statistics of row n of a tile's panel, from the operand. Loads are issued together: other blocks wait meanwhile.
  FPEMU_FUNCTION static void read_whole_row(const Operand& op, const Tile& at, int n, u32& largest, u32& special) {
    const float* from = op.X + (op.offsets ? op.offsets[at.matrix] : 0) + (at.row + n) * op.row_stride;
    const int K = at.row + n < op.rows ? op.K : 0;
#pragma unroll 16
    for (int k = 0; k < K; k++) {
      const float x = from[k * op.k_stride];
      if (is_special(x)) special = 1;
      else largest = max(largest, __float_as_uint(fabsf(x)));
    }
  }

  // Writes the words of a tile.
  template <bool ALONG>
  FPEMU_FUNCTION static void write_words(const Operand& op, const Tile& at, const float* held, const Row* rows) {
    FPEMU_UNROLL
    for (int i = 0; i < SIDE * 8 / THREADS; i++) {
      const int r = threadIdx.x / 8 + i * (THREADS / 8), octet = threadIdx.x % 8;
      float x[8];
      if (ALONG) {
        const float4 u = *(const float4*)(held + place<ALONG>(r, 2 * octet));
        const float4 v = *(const float4*)(held + place<ALONG>(r, 2 * octet + 1));
        x[0] = u.x, x[1] = u.y, x[2] = u.z, x[3] = u.w, x[4] = v.x, x[5] = v.y, x[6] = v.z, x[7] = v.w;
      } else {
        FPEMU_UNROLL
        for (int j = 0; j < 8; j++) x[j] = held[place<ALONG>(8 * octet + j, r / 4) + r % 4];
      }
      if (at.row + r >= op.rows) continue;
      Rule::split_eight(op, rows[r], x, at.span, octet, op.words_of(at.matrix, at.row + r, at.span));
    }
  }
};

// Stores the special flag and the exponent of a row of a sum.
FPEMU_FUNCTION void store_row(const Operand& op, int matrix, int sum, int row, bool special, int exponent) {
  const int half = sum * op.rows + row;
  if (sum < (SUMS > 1 ? 2 : 1) && half < op.all_rows) op.special[(s64)matrix * op.all_rows + half] = special;
  if (op.exponents) op.exponents[((s64)matrix * SUMS + sum) * op.rows + row] = exponent;
}

// Whether all tiles of a panel were read before this thread had read the counter `patience` times. After a failure the
// next wait is short: the missing blocks may not start before this one ends.
FPEMU_FUNCTION bool wait_for_panel(const Panel& panel, int spans, int& patience) {
#pragma unroll 1
  for (int reads = 0; load_acquire(&panel.seen) < spans; reads++)
    if (reads == patience) return patience = 16, false;
  return true;
}

// The statistics of a row of a tile's panel, once all of the panel's tiles have been read. The thread block with the
// first tile of a panel stores the exponents and special flags of its rows.
template <class Job>
FPEMU_FUNCTION typename Job::Row read_row(const Operand& op, const Tile& at, int n, bool waits, int& patience) {
  const Panel& panel = op.panels[at.panel];
  u32 most = 0, special = 0;
  if (waits && !wait_for_panel(panel, op.spans(), patience)) Job::read_whole_row(op, at, n, most, special);
  else most = __ldcg(&panel.largest[n]), special = __ldcg(&panel.special[n]);
  const int sum = n / SIDE, row = at.row + n % SIDE;
  int exponent = 0;
  const typename Job::Row made = Job::row(op, op.largest ? __ldcg(&op.largest[at.matrix]) : most, special, exponent);
  if (at.span == 0 && row < op.rows) store_row(op, at.matrix, sum, row, special != 0, exponent);
  return made;
}

// Called when the block has read a panel's statistics; the last one of `readers` blocks resets them to zero. If it has
// not seen all tiles counted, it waits for the counts, which are under way: a count that arrived after the zeros would
// remain for the next launch.
FPEMU_FUNCTION void reset_panel(const Operand& op, const Tile& at, int lane, int readers, bool timed_out = false) {
  Panel& panel = op.panels[at.panel];
  int last = 0;
  if (lane == 0) last = atomicAdd(&panel.used, 1u) == readers - 1;
  if (!uniform(last)) return;
  if (__any_sync(~0u, timed_out)) {
    while (load_acquire(&panel.seen) < readers) {}
    __syncwarp();
  }
  u32* all = (u32*)&panel;
  for (int i = lane; i < sizeof(Panel) / 4; i += 32) all[i] = 0;
}

FPEMU_FUNCTION void reset_next_faults(const Operands& all) {
  const int operand = threadIdx.x / FAULT_WORDS;
  if (operand < 2 && all.of[operand].next_faults) all.of[operand].next_faults[threadIdx.x % FAULT_WORDS] = 0;
}

template <class Job> FPEMU_FUNCTION void run(const Operands& all) {
  extern __shared__ float4 held[];
  __shared__ Tile tiles[RING];
  __shared__ typename Job::Row rows[NUMBERS];
  const int thread = threadIdx.x, warp = uniform(thread / 32), lane = thread % 32, own = thread - (THREADS - NUMBERS);
  const int everything = all.of[0].tiles() + all.of[1].tiles(), rest = everything - 1 - (int)blockIdx.x;
  const int count = rest >= 0 ? rest / (int)gridDim.x + 1 : 0;
  const bool looks = all.phases & LOOK, makes = all.phases & MAKE;
  int patience = PATIENCE;
  auto locate = [&](int n) {
    if (n < count) tiles[n % RING].locate(all, blockIdx.x + n * gridDim.x);
  };
  auto slab = [&](int n) { return (float*)(held + n % STAGES * (PARTS * SIDE * SPAN / 4)); };
  auto start = [&](int n) {
    if (n < count) {
      const Tile& at = tiles[n % RING];
      const Operand& op = all.of[at.operand];
      const u32 to = shared_address(slab(n));
      if (op.along()) Job::template load_tile<true>(op, at, to);
      else Job::template load_tile<false>(op, at, to);
    }
    copies_commit();
  };
  grid_release();
  grid_wait();
  if (blockIdx.x == 0 && looks) reset_next_faults(all);
  if (thread <= PREFETCH) locate(thread);
  __syncthreads();
  for (int n = 0; n < PREFETCH; n++) start(n);
  for (int n = 0; n < count + LAG; n++) {
    copies_wait<PREFETCH - 1>();
    __syncthreads();  // tile n has arrived, and the buffer of the next one has been read
    start(n + PREFETCH);
    const Tile& now = tiles[n % RING];
    const bool looked = looks && n < count;
    if (looked) {
      const Operand& op = all.of[now.operand];
      if (op.along()) Job::template find_largest<true>(op, now, slab(n));
      else Job::template find_largest<false>(op, now, slab(n));
    }
    __syncthreads();
    if (thread == 0) {
      if (looked) add_release(&all.of[now.operand].panels[now.panel].seen, 1);
      locate(n + PREFETCH + 1);
    }
    if (!makes || n < LAG) continue;
    const Tile& at = tiles[(n - LAG) % RING];
    const Operand& op = all.of[at.operand];
    if (own >= 0) rows[own] = read_row<Job>(op, at, own, looks, patience);
    __syncthreads();
    if (warp == WARPS - 1) reset_panel(op, at, lane, op.spans(), looks && patience < PATIENCE);
    if (op.along()) Job::template write_words<true>(op, at, slab(n - LAG), rows);
    else Job::template write_words<false>(op, at, slab(n - LAG), rows);
  }
}

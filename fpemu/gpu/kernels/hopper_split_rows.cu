// As hopper_split.cu, for exponents of rows: a thread block keeps a segment of ROWS rows in its registers, SEGMENT along
// k. Where this is all of K, it finds the largest entry of each row without other thread blocks. Otherwise one launch
// merges the largest entries of all segments into the panels' counters, and a second one writes the words.
//
// Where k is contiguous, a warp has one row, and a thread 4 k of every 128. Otherwise a thread has four rows, since these
// lie next to each other, and 8 k of every 1024. Rows where something may go wrong are read again, four entries or eight
// at a time, since registers cannot be indexed by a variable.
//
// Before this text, struct Config has ROWS, LOADS, the thread blocks RESIDENT on a multiprocessor, and the constants of
// hopper_split.cuh, whose tiles are not used here.
#include "hopper_split_fp16.cuh"

constexpr int ROWS = Config::ROWS, LOADS = Config::LOADS, ROW_THREADS = 32 * ROWS;
constexpr int FOURS = ROWS / 4;  // threads beside each other along rows, where rows are contiguous
constexpr int SEGMENT = 128 * LOADS;
static_assert(ROWS == 8 || ROWS == 16, "a warp reads whole sectors of 32 bytes");
static_assert(LOADS % 8 == 0, "a thread has whole groups of 8 k");

// The segment of a thread block.
struct Group {
  int matrix, row, k;
  FPEMU_FUNCTION static int segments(const Operand& op) { return (op.K + SEGMENT - 1) / SEGMENT; }
  FPEMU_FUNCTION static int each(const Operand& op) { return (op.rows + ROWS - 1) / ROWS; }  // groups of a matrix
  FPEMU_FUNCTION static int count(const Operand& op) { return each(op) * segments(op) * op.matrices; }
  FPEMU_FUNCTION Group(const Operand& op, int number) {
    const int group = number / segments(op);
    k = (number - group * segments(op)) * SEGMENT;
    matrix = group / each(op), row = (group - matrix * each(op)) * ROWS;
  }
  FPEMU_FUNCTION Tile panel(const Operand& op) const {  // as a tile of the panel
    Tile at;
    at.matrix = matrix, at.panel = matrix * op.panels_each() + row / SIDE;
    return at;
  }
  FPEMU_FUNCTION int in_panel(const Operand& op) const {  // thread blocks of the panel
    return min(SIDE / ROWS, each(op) - row / SIDE * (SIDE / ROWS)) * segments(op);
  }
};

// Entries of an operand: the rows from `row` on, along k from `k` on.
struct Entries {
  const Operand& op;
  u64 policy;  // of the L2
  const float* from;
  int matrix, row, k;
  FPEMU_FUNCTION Entries(const Operands& all, const Operand& op, int matrix, int row, int k)
      : op(op),
        policy(l2_policy(all.evict_first)),
        from(op.X + (op.offsets ? op.offsets[matrix] : 0) + row * op.row_stride + k * op.k_stride),
        matrix(matrix),
        row(row),
        k(k) {}
  // Four entries that lie next to each other, `after` k later; zeros beyond the operand.
  template <bool ALONG> FPEMU_FUNCTION void load(int after, float (&x)[4]) const {
    const float* four = from + after * op.k_stride;
    const s64 step = ALONG ? op.k_stride : op.row_stride;
    const int rows = op.rows - row, ks = op.K - k - after, here = ALONG ? (rows > 0 ? ks : 0) : ks > 0 ? rows : 0;
    if (op.wide && here >= 4) {
      const float4 v = load_by_policy((const float4*)four, policy);
      x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
    } else {
      FPEMU_UNROLL
      for (int j = 0; j < 4; j++) x[j] = j < here ? four[j * step] : 0;
    }
  }
  // The largest finite magnitude of COUNT entries of a row, RUN of them every STEP k; all others are reported.
  template <int COUNT, int RUN, int STEP> FPEMU_FUNCTION float finite_largest(int r) const {
    float most = 0;
    u64 others = 0;
#pragma unroll 1
    for (int i = 0; i < COUNT; i++) {
      const int after = i / RUN * STEP + i % RUN;
      if (k + after >= op.K) break;
      const float x = at(r, after);
      if (!is_special(x)) {
        most = fmaxf(most, fabsf(x));
        continue;
      }
      others++;
      report_first(op.faults, NONFINITE_ENTRY, op.index_of(matrix, row + r, k + after));
    }
    atomicAdd(op.faults, others);
    return most;
  }
  FPEMU_FUNCTION float at(int r, int after) const { return from[r * op.row_stride + after * op.k_stride]; }
  FPEMU_FUNCTION s64 words(int r, int after) const {  // where those of an entry begin
    return op.words_of(matrix, row + r, (k + after) / 64) + (k + after) % 64 * 2;
  }
};

// The statistics of the rows of a thread block, and how they are split.
struct Shared {
  u32 most[ROWS], special[ROWS];
  RowScale ways[ROWS];
};

// Reads the statistics of a panel's rows, which a launch before has found; the last block to do so resets them to zero.
FPEMU_FUNCTION void read_statistics(const Operand& op, const Group& group, Shared& shared) {
  const Tile at = group.panel(op);
  Panel& panel = op.panels[at.panel];
  const int thread = threadIdx.x, n = group.row % SIDE + thread;
  if (thread < ROWS)
    shared.most[thread] = __ldcg(&panel.largest[n]), shared.special[thread] = __ldcg(&panel.special[n]);
  __syncthreads();
  if (thread < 32) reset_panel(op, at, thread, group.in_panel(op));
}

// Looks at a segment, writes its words, or both.
template <bool ALONG>
FPEMU_FUNCTION void split_segment(const Operands& all, const Operand& op, const Group& group, Shared& shared) {
  constexpr int EACH = ALONG ? 1 : 4, COUNT = 4 * LOADS / EACH;  // rows of a thread, entries of each
  constexpr int STEP = ALONG ? 128 : 1024, RUN = ALONG ? 4 : 8;  // RUN of them every STEP k
  const int thread = threadIdx.x, own = ALONG ? uniform(thread / 32) : thread % FOURS * 4;
  const int k = group.k + (ALONG ? thread % 32 * 4 : thread / FOURS * 8);
  const bool looks = all.phases & LOOK, whole = looks && (all.phases & MAKE);
  const Entries entries(all, op, group.matrix, group.row + own, k);
  float x[LOADS][4];
  FPEMU_UNROLL
  for (int i = 0; i < LOADS; i++) entries.load<ALONG>(ALONG ? 128 * i : i / 8 * 1024 + i % 8, x[i]);
  if (!looks) read_statistics(op, group, shared);
  else if (ALONG && whole) {  // the warp has its row for itself
    if (thread % 32 == 0) shared.most[own] = shared.special[own] = 0;
    __syncwarp();
  } else {
    if (thread < ROWS) shared.most[thread] = shared.special[thread] = 0;
    __syncthreads();
  }
  if (looks) {
    FPEMU_UNROLL
    for (int r = 0; r < EACH; r++) {
      float most = 0;
      FPEMU_UNROLL
      for (int i = 0; i < COUNT; i++) most = larger_or_nan(most, ALONG ? x[i / 4][i % 4] : x[i][r]);
      if (is_special(most)) {
        most = entries.finite_largest<COUNT, RUN, STEP>(r);
        atomicOr(&shared.special[own + r], 1u);
      }
      u32 largest = __float_as_uint(most);
      FPEMU_UNROLL
      for (int other = ALONG ? 1 : FOURS; other < 32; other *= 2)
        largest = max(largest, __shfl_xor_sync(~0u, largest, other));
      if (thread % 32 < (ALONG ? 1 : FOURS) && largest) atomicMax(&shared.most[own + r], largest);
    }
  }
  if (ALONG && whole) __syncwarp();
  else __syncthreads();
  if (!whole && looks) {
    if (thread < ROWS)
      update_panel(op, group.panel(op), group.row % SIDE + thread, shared.most[thread], shared.special[thread]);
    return;
  }
  const int mine = ALONG && whole ? own : thread;
  if (ALONG && whole ? thread % 32 == 0 : thread < ROWS) {
    int exponent;
    const bool found = shared.special[mine] != 0;
    shared.ways[mine] = Fp16Words::row(op, shared.most[mine], found, exponent);
    if (group.k == 0 && group.row + mine < op.rows) store_row(op, group.matrix, 0, group.row + mine, found, exponent);
  }
  if (ALONG && whole) __syncwarp();
  else __syncthreads();
  const int end = min(op.chunks * 64 - k, SEGMENT), rows = op.rows - entries.row;
  FPEMU_UNROLL
  for (int r = 0; r < EACH; r++) {
    if (r >= rows) break;
    const RowScale way = shared.ways[own + r];
    if (way.plain) {
      FPEMU_UNROLL
      for (int i = 0; i < COUNT / RUN; i++) {
        float run[RUN];
        FPEMU_UNROLL
        for (int j = 0; j < RUN; j++) run[j] = ALONG ? x[i][j % 4] : x[(8 * i + j) % LOADS][r];
        if (i * STEP < end) Fp16Words::split<true>(op, way, run, entries.words(r, i * STEP));
      }
    } else {
#pragma unroll 1
      for (int after = 0; after < end; after += STEP) {
        float run[RUN];
        FPEMU_UNROLL
        for (int j = 0; j < RUN; j++) run[j] = k + after + j < op.K ? entries.at(r, after + j) : 0;
        Fp16Words::split(op, way, run, entries.words(r, after));
      }
    }
  }
}

extern "C" __global__ void __launch_bounds__(ROW_THREADS, Config::RESIDENT)
    split_rows(const __grid_constant__ Operands all) {
  __shared__ Shared shared;
  grid_release();
  grid_wait();
  if (blockIdx.x == 0 && (all.phases & LOOK)) reset_next_faults(all);
  const int before = Group::count(all.of[0]), second = (int)blockIdx.x >= before;
  const Operand& op = all.of[second];
  const Group group(op, blockIdx.x - second * before);
  if (op.along()) split_segment<true>(all, op, group, shared);
  else split_segment<false>(all, op, group, shared);
}

// As hopper_split.cu, for K up to 128 LOADS: a thread block keeps ROWS whole rows in its registers, so that it finds the
// largest entry of each row without other thread blocks. Exponents are those of rows.
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
static_assert(ROWS == 8 || ROWS == 16, "a warp reads whole sectors of 32 bytes");
static_assert(LOADS % 8 == 0, "a thread has whole groups of 8 k");

// The rows of a thread block.
struct Group {
  int matrix, row;
  FPEMU_FUNCTION static int count(const Operand& op) { return (op.rows + ROWS - 1) / ROWS * op.matrices; }
  FPEMU_FUNCTION Group(const Operand& op, int number) {
    const int each = (op.rows + ROWS - 1) / ROWS;
    matrix = number / each, row = (number - matrix * each) * ROWS;
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
    const int here = ALONG ? op.K - k - after : k + after < op.K ? op.rows - row : 0;
    if (op.wide && here >= 4) {
      const float4 v = load_by_policy((const float4*)four, policy);
      x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
    } else {
      FPEMU_UNROLL
      for (int j = 0; j < 4; j++) x[j] = j < here ? four[j * step] : 0;
    }
  }
  // The largest finite magnitude of the entries of a row, in `count` groups of eight every 1024 k, or of four every 128;
  // all others are reported.
  template <int EACH, int STEP> FPEMU_FUNCTION float finite_largest(int r) const {
    float most = 0;
#pragma unroll 1
    for (int i = 0; i < LOADS * 4; i++) {
      const int after = i / EACH * STEP + i % EACH;
      if (k + after >= op.K) break;
      const float x = from[r * op.row_stride + after * op.k_stride];
      if (!is_special(x)) {
        most = fmaxf(most, fabsf(x));
        continue;
      }
      atomicAdd(op.faults, (u64)1);
      report_first(op.faults, NONFINITE_ENTRY, op.index_of(matrix, row + r, k + after));
    }
    return most;
  }
  FPEMU_FUNCTION s64 words(int r, int after) const {  // where those of an entry begin
    return op.words_of(matrix, row + r, (k + after) / 64) + (k + after) % 64 * 2;
  }
};

// Splits a row, of which a warp's threads have 4 k of every 128.
FPEMU_FUNCTION void split_along(const Operands& all, const Operand& op, const Group& group) {
  const int row = group.row + uniform(threadIdx.x / 32);
  if (row >= op.rows) return;
  const Entries entries(all, op, group.matrix, row, threadIdx.x % 32 * 4);
  float x[LOADS][4], most = 0;
  FPEMU_UNROLL
  for (int i = 0; i < LOADS; i++) entries.load<true>(128 * i, x[i]);
  FPEMU_UNROLL
  for (int i = 0; i < 4 * LOADS; i++) most = larger_or_nan(most, x[i / 4][i % 4]);
  bool special = is_special(most);
  if (special) most = entries.finite_largest<4, 128>(0);
  u32 largest = __float_as_uint(most);
  FPEMU_UNROLL
  for (int other = 1; other < 32; other *= 2) largest = max(largest, __shfl_xor_sync(~0u, largest, other));
  special = __any_sync(~0u, special);
  int exponent;
  const RowScale way = Fp16Words::row(op, largest, special, exponent);
  if (threadIdx.x % 32 == 0) store_row(op, group.matrix, 0, row, special, exponent);
  const int end = op.chunks * 64 - entries.k;
  if (way.plain) {
    FPEMU_UNROLL
    for (int i = 0; i < LOADS; i++)
      if (128 * i < end) Fp16Words::split<true>(op, way, x[i], entries.words(0, 128 * i));
  } else {
#pragma unroll 1
    for (int after = 0; after < end; after += 128) {
      float four[4];
      entries.load<true>(after, four);
      Fp16Words::split(op, way, four, entries.words(0, after));
    }
  }
}

// Splits ROWS rows, of which a thread has four, and 8 k of every 1024.
FPEMU_FUNCTION void split_across(const Operands& all, const Operand& op, const Group& group) {
  __shared__ u32 most[ROWS];
  __shared__ u32 special[ROWS];
  __shared__ RowScale ways[ROWS];
  const int thread = threadIdx.x, own = thread % FOURS * 4;
  const Entries entries(all, op, group.matrix, group.row + own, thread / FOURS * 8);
  const int rows = op.rows - entries.row;
  if (thread < ROWS) most[thread] = special[thread] = 0;
  __syncthreads();
  float x[LOADS][4];
  FPEMU_UNROLL
  for (int i = 0; i < LOADS; i++) entries.load<false>(i / 8 * 1024 + i % 8, x[i]);
  FPEMU_UNROLL
  for (int r = 0; r < 4; r++) {
    float own_most = 0;
    FPEMU_UNROLL
    for (int i = 0; i < LOADS; i++) own_most = larger_or_nan(own_most, x[i][r]);
    if (is_special(own_most)) {
      own_most = entries.finite_largest<8, 1024>(r);
      atomicOr(&special[own + r], 1u);
    }
    u32 largest = __float_as_uint(own_most);
    FPEMU_UNROLL
    for (int other = FOURS; other < 32; other *= 2) largest = max(largest, __shfl_xor_sync(~0u, largest, other));
    if (thread % 32 < FOURS && largest) atomicMax(&most[own + r], largest);
  }
  __syncthreads();
  if (thread < ROWS) {
    int exponent;
    const bool found = special[thread] != 0;
    ways[thread] = Fp16Words::row(op, most[thread], found, exponent);
    if (group.row + thread < op.rows) store_row(op, group.matrix, 0, group.row + thread, found, exponent);
  }
  __syncthreads();
  const int end = op.chunks * 64 - entries.k;
  FPEMU_UNROLL
  for (int r = 0; r < 4; r++) {
    if (r >= rows) break;
    const RowScale way = ways[own + r];
    if (way.plain) {
      FPEMU_UNROLL
      for (int i = 0; i < LOADS; i += 8) {
        float eight[8];
        FPEMU_UNROLL
        for (int j = 0; j < 8; j++) eight[j] = x[i + j][r];
        if (i * 128 < end) Fp16Words::split<true>(op, way, eight, entries.words(r, i * 128));
      }
    } else {
#pragma unroll 1
      for (int after = 0; after < end; after += 1024) {
        float eight[8];
        FPEMU_UNROLL
        for (int j = 0; j < 8; j++) {
          const int k = entries.k + after + j;
          eight[j] = k < op.K ? entries.from[r * op.row_stride + (after + j) * op.k_stride] : 0;
        }
        Fp16Words::split(op, way, eight, entries.words(r, after));
      }
    }
  }
}

extern "C" __global__ void __launch_bounds__(ROW_THREADS, Config::RESIDENT)
    split_rows(const __grid_constant__ Operands all) {
  grid_release();
  grid_wait();
  if (blockIdx.x == 0) reset_next_faults(all);
  const int before = Group::count(all.of[0]), second = (int)blockIdx.x >= before;
  const Operand& op = all.of[second];
  const Group group(op, blockIdx.x - second * before);
  if (op.along()) split_along(all, op, group);
  else split_across(all, op, group);
}

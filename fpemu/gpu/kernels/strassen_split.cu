// Operands of Strassen's algorithm in Winograd's form, one level: sums of the blocks of a matrix, split into words of
// the scheme `staged`. fpemu/schemes/strassen.py has the formulas.
//
// A job of hopper_split.cuh: a tile is 32 rows by 32 k of each of the four blocks, seen as rows along k, rows of A or
// columns of B. NaN and infinities count as zero.
#include "hopper_split_fp16.cuh"
#include "strassen_winograd.cuh"

struct BlockSums {
  struct Row {
    float first, second;  // their product is what a row is scaled by
  };
  FPEMU_FUNCTION static Row row(const Operand&, u32 largest, bool, int& exponent) {
    exponent = scaling(largest);
    return {scale(min(exponent, 100)), scale(max(exponent - 100, 0))};
  }

  // Four neighbours of a line of a block: lines of 32 are rows or k, their groups of four exchanged against conflicts
  // of banks.
  template <bool ALONG> FPEMU_FUNCTION static int place(int block, int line, int group) {
    return block * (SIDE * SPAN) + line * 32 + 4 * (ALONG ? group : group ^ (line >> 2 & 7));
  }

  template <bool ALONG> FPEMU_FUNCTION static void load_tile(const Operand& op, const Tile& at, u32 to) {
    const int line = threadIdx.x / 8, group = threadIdx.x % 8, half_k = (op.all_k + 1) / 2;
    const int r = at.row + (ALONG ? line : 4 * group), k = at.span * SPAN + (ALONG ? 4 * group : line);
    const s64 step = ALONG ? op.k_stride : op.row_stride;
    const float* X = op.X + (op.offsets ? op.offsets[at.matrix] : 0);
    FPEMU_UNROLL
    for (int b = 0; b < PARTS; b++) {
      const int row = b / 2 * op.rows + r, at_k = b % 2 * half_k + k;
      const int rows = min(op.rows - r, op.all_rows - row), ks = min(half_k - k, op.all_k - at_k);
      const int lines = ALONG ? rows : ks, here = lines > 0 ? min(max(ALONG ? ks : rows, 0), 4) : 0;
      const float* from = X + row * op.row_stride + at_k * op.k_stride;
      copy_four(op, to + 4 * place<ALONG>(b, line, group), from, step, here);
    }
  }

  // Four k of a row, as brought: those of every block.
  template <bool ALONG> FPEMU_FUNCTION static void read(const float* held, int row, int four, float (&x)[PARTS][4]) {
    FPEMU_UNROLL
    for (int b = 0; b < PARTS; b++) {
      if (ALONG) {
        const float4 v = *(const float4*)(held + place<ALONG>(b, row, four));
        x[b][0] = v.x, x[b][1] = v.y, x[b][2] = v.z, x[b][3] = v.w;
      } else {
        FPEMU_UNROLL
        for (int j = 0; j < 4; j++) x[b][j] = held[place<ALONG>(b, 4 * four + j, row / 4) + row % 4];
      }
    }
  }

  // Eight lanes have a row of a tile.
  template <bool ALONG> FPEMU_FUNCTION static void find_largest(const Operand& op, const Tile& at, const float* held) {
    const int r = threadIdx.x / 8, lane = threadIdx.x % 8;
    float x[PARTS][4], most[SUMS] = {};
    read<ALONG>(held, r, lane, x);
    float all = 0;
    FPEMU_UNROLL
    for (int b = 0; b < PARTS; b++) FPEMU_UNROLL
    for (int j = 0; j < 4; j++) all = larger_or_nan(all, x[b][j]);
    const u32 bad = all < op.limit ? 0 : refuse(op, at, r, lane, x);
    FPEMU_UNROLL
    for (int j = 0; j < 4; j++) {
      float s[SUMS];
      winograd_operands(x[0][j], x[1][j], x[2][j], x[3][j], op.second, s);
      FPEMU_UNROLL
      for (int i = 0; i < SUMS; i++) most[i] = larger_or_nan(most[i], s[i]);
    }
    float magnitude = 0;
    u32 special = bad;
    FPEMU_UNROLL
    for (int i = 0; i < SUMS; i++) {
      FPEMU_UNROLL
      for (int other = 1; other < 8; other *= 2) most[i] = larger_or_nan(most[i], __shfl_xor_sync(~0u, most[i], other));
      if (lane == i) magnitude = most[i];
    }
    FPEMU_UNROLL
    for (int other = 1; other < 8; other *= 2) special |= __shfl_xor_sync(~0u, special, other);
    // of the first two sums, whether the rows of that half have NaN or Inf; a sum that overflows is counted above
    if (lane < SUMS)
      update_panel(op, at, lane * SIDE + r, min(__float_as_uint(magnitude), INFINITE - 1), special >> lane & 1);
  }

  // The statistics of row n % SIDE of sum n / SIDE of a tile's panel, from the operand: 16 loads at a time.
  FPEMU_FUNCTION static void read_whole_row(const Operand& op, const Tile& at, int n, u32& largest, u32& special) {
    const int sum = n / SIDE, r = at.row + n % SIDE;
    const float* X = op.X + (op.offsets ? op.offsets[at.matrix] : 0);
    float most = 0;
#pragma unroll 1
    for (int k = 0; k < op.K && r < op.rows; k += 4) {
      float x[4][PARTS], s[SUMS];
      FPEMU_UNROLL
      for (int j = 0; j < 4; j++) FPEMU_UNROLL
      for (int b = 0; b < PARTS; b++) {
        const int row = b / 2 * op.rows + r, at_k = b % 2 * op.K + k + j;
        const bool exists = k + j < op.K && row < op.all_rows && at_k < op.all_k;
        const float entry = X[exists ? row * op.row_stride + at_k * op.k_stride : 0];
        x[j][b] = exists ? entry : 0;
      }
      FPEMU_UNROLL
      for (int j = 0; j < 4; j++) {
        FPEMU_UNROLL
        for (int b = 0; b < PARTS; b++)
          if (is_special(x[j][b])) x[j][b] = 0, special |= b / 2 == sum;
        winograd_operands(x[j][0], x[j][1], x[j][2], x[j][3], op.second, s);
        FPEMU_UNROLL
        for (int i = 0; i < SUMS; i++)
          if (i == sum) most = larger_or_nan(most, s[i]);
      }
    }
    largest = min(__float_as_uint(most), INFINITE - 1);
  }

  // Counts NaN and infinities, which become zero, and entries whose sums may overflow. The result has a bit for each
  // half of the rows: whether there was anything that is not finite.
  FPEMU_FUNCTION static u32 refuse(const Operand& op, const Tile& at, int row, int four, float (&x)[PARTS][4]) {
    u32 halves = 0, bad = 0, over = 0;  // the last two: a bit for each entry
    FPEMU_UNROLL
    for (int b = 0; b < PARTS; b++) FPEMU_UNROLL
    for (int j = 0; j < 4; j++) {
      if (is_special(x[b][j])) x[b][j] = 0, bad |= 1 << (4 * b + j), halves |= 1 << b / 2;
      over |= (fabsf(x[b][j]) >= op.limit) << (4 * b + j);
    }
    if (bad) report(op, NONFINITE_ENTRY, at, row, four, bad);
    if (over) report(op, OVERFLOWING_ENTRY, at, row, four, over);
    return halves;
  }

  FPEMU_FUNCTION static void report(const Operand& op, Fault fault, const Tile& at, int row, int four, u32 entries) {
    const int half_k = (op.all_k + 1) / 2;
    u64 count = 0;
#pragma unroll 1
    for (; entries; entries &= entries - 1, count++) {
      const int n = bit_length(entries & -entries) - 1, b = n / 4,
                k = b % 2 * half_k + at.span * SPAN + 4 * four + n % 4;
      report_first(op.faults, fault, op.index_of(at.matrix, b / 2 * op.rows + at.row + row, k));
    }
    atomicAdd(op.faults + fault, count);
  }

  template <bool ALONG>
  FPEMU_FUNCTION static void write_words(const Operand& op, const Tile& at, const float* held, const Row* rows) {
    const int r = threadIdx.x / 8, lane = threadIdx.x % 8;
    float x[PARTS][4], s[4][SUMS];
    read<ALONG>(held, r, lane, x);
    if (at.row + r >= op.rows) return;
    FPEMU_UNROLL
    for (int j = 0; j < 4; j++) {
      FPEMU_UNROLL
      for (int b = 0; b < PARTS; b++)
        if (is_special(x[b][j])) x[b][j] = 0;
      winograd_operands(x[0][j], x[1][j], x[2][j], x[3][j], op.second, s[j]);
    }
    const s64 each = op.words_each();
    s64 to = op.words_of(at.matrix, at.row + r, at.span / 2) + at.span % 2 * 64 + 8 * lane;
    FPEMU_UNROLL
    for (int i = 0; i < SUMS; i++, to += each) {
      const Row up = rows[i * SIDE + r];
      u32 high[2], low[2];
      FPEMU_UNROLL
      for (int j = 0; j < 4; j += 2) {
        const float u = s[j][i] * up.first * up.second, v = s[j + 1][i] * up.first * up.second;
        float h, g;
        high[j / 2] = high_words<Config::BALANCED>(u, v, op.second);
        of_halves(high[j / 2], h, g);
        low[j / 2] = to_halves(u - h, v - g);
      }
      *(uint2*)(op.high + to) = make_uint2(high[0], high[1]);
      *(uint2*)(op.low + to) = make_uint2(low[0], low[1]);
    }
  }
};

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) split_sums(const __grid_constant__ Operands all) {
  run<BlockSums>(all);
}

// The outputs of a math warpgroup's 64 rows that depend on a NaN or an Inf, written after its sums.
//
// Operands without a NaN or an Inf cost one load of their counts. Otherwise a thread computes each of its outputs alone:
// the shared memory of the kernel is full.
#pragma once
#include "hopper_epilogue.cuh"
#include "nonfinite.cuh"

struct NonfiniteOperand {  // fpemu.gpu.gemm.wgmma.words.NONFINITE
  const float* x;
  const s64* of;         // where each matrix begins; null: one matrix
  s64 row_step, k_step;  // rows are those of A, columns of B
  const u8* special;     // (matrices, rows): whether a row has a NaN or an Inf; null: the outputs are not patched
  const u64* faults;     // the first counts the entries that are NaN or infinite
  FPEMU_FUNCTION const float* row(s64 matrix, int r) const { return x + (of ? of[matrix] : 0) + r * row_step; }
};

struct Nonfinite {
  NonfiniteOperand a, b;
  FPEMU_FUNCTION bool any() const { return a.special && (__ldcg(a.faults) || __ldcg(b.faults)); }
};

// Whether an output depends on a NaN or an Inf; it is then `sum`.
FPEMU_FUNCTION bool nonfinite_sum(const Task& task, const Nonfinite& from, const Where& where, int row, int column,
                                  float& sum) {
  if (!from.a.special[where.a * task.M + row] && !from.b.special[where.b * task.N + column]) return false;
  const float *x = from.a.row(where.a, row), *y = from.b.row(where.b, column);
  int outcome = 0;
  for (int k = 0; k < task.K && !is_nan(outcome); k++)
    outcome |= product_of(x[k * from.a.k_step], y[k * from.b.k_step]);
  sum = fp32_of(code_of(outcome));
  return true;
}

// An output from its sum, which bears no power of two.
FPEMU_FUNCTION void store_output(const Task& task, const Where& where, int row, int column, float sum) {
  const Result& to = task.out;
  const float* c = to.c ? to.c + where.c + row * to.c_row + column * to.c_column : nullptr;
  to.d[where.d + row * to.d_row + column] = finished(sum, to.scaling, c);
}

// Thread `thread` of a warpgroup, whose threads have stored the sums of `tile` before a barrier.
template <int COLUMNS>
FPEMU_FUNCTION void store_nonfinite(const Task& task, const Nonfinite& from, const WarpgroupTile& tile, int thread) {
  for (int output = thread; output < 64 * COLUMNS; output += 128) {
    const int row = tile.row + output / COLUMNS, column = tile.column + output % COLUMNS;
    float sum;
    if (row < task.M && column < task.N && nonfinite_sum(task, from, tile.where, row, column, sum))
      store_output(task, tile.where, row, column, sum);
  }
}

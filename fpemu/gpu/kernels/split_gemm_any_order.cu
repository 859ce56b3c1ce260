// A scheme's product step by step, for any order over K: words laid out as the chains take them (gather), chains of one
// instruction (chain), slices added (add), sums joined (finish). The reference implementation of split_gemm.cu;
// every intermediate result passes through memory. fpemu.gpu.gemm.mma_sync.general runs it, and defines the
// instruction, the Plan, and the Rules of A and RulesB of B before this file.
#include "instruction.cuh"
#include "split_epilogue.cuh"

typedef Rules::code Code;
static_assert(ROW_WORDS * 4 == Plan::MMA_BYTES, "the instruction's rows");

// Words of some rows of an operand, from first_row on, in the order of a chain: out[i][row][k] is for instruction i the
// word word[i · k + ...] of the entry source[i · k + ...], zero where that is negative and where there is no row.
template <class R>
FPEMU_FUNCTION void gather(const float* x, s64 row_stride, s64 k_stride, const int* exponents, int first_row, int rows,
                           int height, s64 count, const int* source, const u8* word, Code* out) {
  const s64 step = (s64)gridDim.x * blockDim.x;
  for (s64 i = (s64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
    const s64 at = i / ((s64)height * Plan::MMA_K) * Plan::MMA_K + i % Plan::MMA_K;
    const int row = first_row + (int)(i / Plan::MMA_K % height), k = source[at];
    u32 code[Plan::WORDS];
    for (auto& c : code) c = 0;
    if (k >= 0 && row < rows) {
      const float given = x[row * row_stride + k * k_stride];
      split_number<R>(given, exponents ? exponents[row] : 0, code);  // NaN and Inf count as zero
    }
    u32 own = 0;
    for (int w = 0; w < Plan::WORDS; w++) own = w == word[at] ? code[w] : own;
    out[i] = (Code)own;
  }
}
extern "C" __global__ void gather_a(const float* x, s64 row_stride, s64 k_stride, const int* exponents, int first_row,
                                    int rows, int height, s64 count, const int* source, const u8* word, Code* out) {
  gather<Rules>(x, row_stride, k_stride, exponents, first_row, rows, height, count, source, word, out);
}
extern "C" __global__ void gather_b(const float* x, s64 row_stride, s64 k_stride, const int* exponents, int first_row,
                                    int rows, int height, s64 count, const int* source, const u8* word, Code* out) {
  gather<RulesB>(x, row_stride, k_stride, exponents, first_row, rows, height, count, source, word, out);
}

FPEMU_FUNCTION float sum_entry(const CD_WORD* tile, int i) {
#if FPEMU_HALF_SUMS
  return value_of_half(tile[i / 2] >> 16 * (i % 2) & 0xFFFF);
#else
  return tile[i];
#endif
}

// sums (height, width) of chains of `count` instructions, a block of threads for a tile. cuts: where the accumulator
// goes to the total, times 2^shifts, and begins again from zero; null: nowhere.
extern "C" __global__ void chain(const Code* A, const Code* B, float* sums, int height, int width, int count,
                                 const u8* cuts, const int* shifts) {
  __shared__ CD_WORD tile[CD_TILE];
  __shared__ float total[TILE_M * TILE_N];
  const int across = width / TILE_N;
  const int row = (int)(blockIdx.x / across) * TILE_M, column = (int)(blockIdx.x % across) * TILE_N;
  for (int i = threadIdx.x; i < CD_TILE; i += THREADS) tile[i] = 0;
  for (int i = threadIdx.x; i < TILE_M * TILE_N; i += THREADS) total[i] = 0;
  __syncthreads();
  for (int at = 0; at < count; at++) {
    const AB_WORD* a = (const AB_WORD*)A + ((s64)at * height + row) * ROW_WORDS;
    const AB_WORD* b = (const AB_WORD*)B + ((s64)at * width + column) * ROW_WORDS;
    instruction(a, b, tile, tile);
    __syncthreads();
    if (!cuts || !cuts[at]) continue;
    for (int i = threadIdx.x; i < TILE_M * TILE_N; i += THREADS)
      total[i] += times_power(sum_entry(tile, i), shifts[at]);
    __syncthreads();
    for (int i = threadIdx.x; i < CD_TILE; i += THREADS) tile[i] = 0;
    __syncthreads();
  }
  for (int i = threadIdx.x; i < TILE_M * TILE_N; i += THREADS)
    sums[(s64)(row + i / TILE_N) * width + column + i % TILE_N] = cuts ? total[i] : sum_entry(tile, i);
}

// x = x + y, or y + x: the same.
extern "C" __global__ void add(float* x, const float* y, s64 count) {
  const s64 step = (s64)gridDim.x * blockDim.x;
  for (s64 i = (s64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) x[i] = x[i] + y[i];
}

struct Sums {
  const float* of[Plan::GROUPS];
};

// D from the sums of all groups, each (height, width), for the rows and columns from first_row and first_column on.
extern "C" __global__ void finish_all(const Problem p, const Sums sums, int first_row, int first_column, int height,
                                      int width) {
  const s64 step = (s64)gridDim.x * blockDim.x, count = (s64)height * width;
  for (s64 i = (s64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
    const int row = first_row + (int)(i / width), column = first_column + (int)(i % width);
    if (row >= p.M || column >= p.N) continue;
    float own[Plan::GROUPS];
    for (int g = 0; g < Plan::GROUPS; g++) {
      own[g] = sums.of[Plan::ELEMENT_WISE ? 0 : g][i];
      if (FPEMU_HALF_SUMS) own[g] = value_of_half(half_of<false>(own[g]));
    }
    finish(p, nullptr, row, column, joined(own), row_exponent(p, nullptr, row) + column_exponent(p, nullptr, column));
  }
}

// Operands into words: what the rows have at most (survey), the powers of two that follow (settle), the words (split).
// The file that includes this one has split.cuh and has defined Rules.
//
// A row is one of A, or a column of B: its K entries lie k_step apart, row_step from those of the next. `of` says where
// each matrix of a stack begins. Tiles are read along whichever of the two is the shorter step, and the words written
// along K. faults: see range_faults.cuh.
#include "range_faults.cuh"
#include "split_vectorized.cuh"
#include "dependent_launch.cuh"

#ifndef __CUDACC__
#define __grid_constant__
#endif

constexpr int ROWS = 32, LENGTH = 64, THREADS = 256, EACH = ROWS * LENGTH / THREADS;
constexpr int SURVEYED = 1024;  // of K by one thread block

struct Stack {  // the rows of one operand
  const float* x;
  const s64* of;
  s64 rows, K, row_step, k_step, second;  // second: B
};
struct Survey {  // largest, special: null if they are not needed
  u32* largest;
  u8* special;
  u64* faults;
  u32 bound;  // code of a magnitude from which on words may overflow; with that of Inf, the most, none is counted
};
struct Words {  // exponents, special: null if there are none to take, or to tell; word[0]: if words are only counted
  const int* exponents;
  Rules::code* word[4];
  s64 pitch;  // from row to row, a multiple of 64
  u8* special;
  u64* faults;
};

FPEMU_FUNCTION const float* matrix_of(const Stack& s, s64 number) { return s.x + (s.of ? s.of[number] : 0); }

FPEMU_FUNCTION s64 magnitude_of(s64 step) { return step < 0 ? -step : step; }

FPEMU_FUNCTION u64 index_of(const Stack& s, s64 matrix, s64 row, s64 k) {
  return entry_index(matrix, row, k, s.rows, s.K, s.second);
}

// What a survey has seen of a row: its largest finite magnitude as a code, which is ordered as the numbers are; and how
// many of its entries are out of range, with the smallest k of these.
struct Seen {
  u32 most;
  u64 nonfinite, beyond;
  s64 first_nonfinite, first_beyond;
};

// Entries k, k + apart ... of a row, in which k's neighbours are `step` apart. Those of `bound` and more are looked at
// one by one; below, no word can overflow.
template <int COUNT>
FPEMU_FUNCTION void look(const float* row, s64 step, s64 k, int apart, u32 bound, Seen& seen) {
  const float* const x = row + k * step;
  step *= apart;
  u32 code[COUNT], most = 0;
  FPEMU_UNROLL
  for (int i = 0; i < COUNT; i++) code[i] = fp32_code(x[i * step]) & 0x7FFFFFFF;
  FPEMU_UNROLL
  for (int i = 0; i < COUNT; i++) most = code[i] > most ? code[i] : most;
  if (most < bound) {
    seen.most = most > seen.most ? most : seen.most;
    return;
  }
  for (int i = 0; i < COUNT; i++) {
    u32 words[Rules::COUNT];
    const u32 one = fp32_code(x[i * step]) & 0x7FFFFFFF;
    if (one >= 0x7F800000) {
      if (!seen.nonfinite++) seen.first_nonfinite = k + i * apart;
    } else if (one > seen.most) seen.most = one;
    if (one >= bound && (split_number<Rules>(x[i * step], 0, words) & ~NOT_FINITE))
      if (!seen.beyond++) seen.first_beyond = k + i * apart;
  }
}

// A thread block's share: some rows, and a range of their k.
FPEMU_FUNCTION void look_at(const Stack& s, const Survey& to, u32 number) {
  __shared__ u32 most[ROWS];
  const u32 along = (u32)((s.rows + ROWS - 1) / ROWS), parts = (u32)((s.K + SURVEYED - 1) / SURVEYED);
  const u32 part = number % parts, tile = number / parts;
  const s64 matrix = tile / along, first = tile % along * ROWS;
  const bool by_k = magnitude_of(s.k_step) <= magnitude_of(s.row_step);
  const int apart = by_k ? 32 : 8;  // k between a thread's entries
  if (threadIdx.x < ROWS) most[threadIdx.x] = 0;
  __syncthreads();
  u64 nonfinite = 0, beyond = 0;
  for (int i = 0; i < (by_k ? ROWS / 8 : 1); i++) {
    const s64 row = first + (by_k ? threadIdx.x / 32 + 8 * i : threadIdx.x % 32);
    s64 k = (s64)part * SURVEYED + (by_k ? threadIdx.x % 32 : threadIdx.x / 32);
    const s64 end = s.K < (s64)(part + 1) * SURVEYED ? s.K : (s64)(part + 1) * SURVEYED;
    if (row >= s.rows) break;
    const float* from = matrix_of(s, matrix) + row * s.row_step;
    Seen seen = {0, 0, 0, 0, 0};
    for (; k + 7 * apart < end; k += 8 * apart) look<8>(from, s.k_step, k, apart, to.bound, seen);
    for (; k < end; k += apart) look<1>(from, s.k_step, k, apart, to.bound, seen);
    if (seen.most) atomicMax(&most[row - first], seen.most);
    if (seen.nonfinite && to.special) to.special[matrix * s.rows + row] = 1;
    if (seen.nonfinite) report_first(to.faults, NONFINITE_ENTRY, index_of(s, matrix, row, seen.first_nonfinite));
    if (seen.beyond) report_first(to.faults, OVERFLOWING_ENTRY, index_of(s, matrix, row, seen.first_beyond));
    nonfinite += seen.nonfinite, beyond += seen.beyond;
  }
  if (nonfinite) atomicAdd(to.faults, nonfinite);
  if (beyond) atomicAdd(to.faults + 1, beyond);
  __syncthreads();
  if (to.largest && threadIdx.x < ROWS && first + threadIdx.x < s.rows && most[threadIdx.x])
    atomicMax(&to.largest[matrix * s.rows + first + threadIdx.x], most[threadIdx.x]);
}

FPEMU_FUNCTION int exponent_for(u32 largest, int top) {  // x · 2^this lies in [2^(top-1), 2^top)
  if (!largest) return 0;
  const int field = (int)(largest >> 23);
  return top - (field ? field - 126 : bit_length(largest) - 149);
}

// One thread block a matrix.
extern "C" __global__ void __launch_bounds__(256)
    settle(const u32* largest, int* exponents, s64 rows, int whole, int top) {
  __shared__ u32 most;
  largest += blockIdx.x * rows, exponents += blockIdx.x * rows;
  if (threadIdx.x == 0) most = 0;
  __syncthreads();
  if (whole) {
    u32 own = 0;
    for (s64 i = threadIdx.x; i < rows; i += 256) own = largest[i] > own ? largest[i] : own;
    atomicMax(&most, own);
  }
  __syncthreads();
  for (s64 i = threadIdx.x; i < rows; i += 256) exponents[i] = exponent_for(whole ? most : largest[i], top);
}

constexpr int PER = 32 / Rules::WIDTH, PACKED = EACH / PER;  // codes in a 32-bit word, words of a thread's codes
struct alignas(16) Four {                                    // read at once
  float x[4];
};

// Write two words, or four, at once: of a store to their type the compiler makes several.
FPEMU_FUNCTION void write(u32* to, const u32* x) {
#ifdef __CUDACC__
  if constexpr (PACKED < 4) asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(to), "r"(x[0]), "r"(x[1]) : "memory");
  else
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3])
                 : "memory");
#else
  for (int i = 0; i < smaller(PACKED, 4); i++) to[i] = x[i];
#endif
}

// The codes of eight entries, which x · 2^e scales, all at once; false if some are not for that, or may overflow.
FPEMU_FUNCTION bool split_plain(const float (&x)[EACH], int e, u32 (&packed)[Rules::COUNT][PACKED]) {
  const float first = small_power_of_two(e / 2), second = small_power_of_two(e - e / 2);
  float scaled[EACH];
  u32 most = 0;
  bool tiny = false;
  FPEMU_UNROLL
  for (int i = 0; i < EACH; i++) {
    scaled[i] = x[i] * first * second;
    const u32 size = fp32_code(scaled[i]) & 0x7FFFFFFF;
    most = size > most ? size : most;
    tiny |= !ALWAYS_FAST<Rules> && x[i] != 0 && size < fp32_code(FAST_LEAST);
  }
  if (tiny || most >= fp32_code((float)SAFE<Rules>)) return false;
  split_eight<Rules>(scaled, packed);
  return true;
}

// What one thread block splits: some rows, and some of their k.
FPEMU_FUNCTION void split_tile(const Stack& s, const Words& to, u32 block) {
  __shared__ float tile[ROWS][LENGTH + 1];
  const u32 parts = (u32)(to.pitch / LENGTH), along = (u32)((s.rows + ROWS - 1) / ROWS), number = block / parts;
  const s64 matrix = number / along, first = number % along * ROWS, from = block % parts * LENGTH;
  const float* const x = matrix_of(s, matrix);
  const int row = (int)threadIdx.x * EACH / LENGTH, k = (int)threadIdx.x * EACH % LENGTH;
  float own[EACH];
  if (s.k_step == 1 && s.row_step % 4 == 0 && (u64)x % 16 == 0 && from + LENGTH <= s.K) {  // the same for all threads
    if (first + row >= s.rows) return;
    FPEMU_UNROLL
    for (int i = 0; i < EACH; i += 4) {
      const Four four = *(const Four*)(x + (first + row) * s.row_step + from + k + i);
      FPEMU_UNROLL
      for (int j = 0; j < 4; j++) own[i + j] = four.x[j];
    }
  } else {
    const bool by_k = magnitude_of(s.k_step) <= magnitude_of(s.row_step);
    FPEMU_UNROLL
    for (int i = 0; i < EACH; i++) {
      const int n = (int)threadIdx.x + THREADS * i, r = by_k ? n / LENGTH : n % ROWS, c = by_k ? n % LENGTH : n / ROWS;
      const bool there = first + r < s.rows && from + c < s.K;
      tile[r][c] = there ? x[(first + r) * s.row_step + (from + c) * s.k_step] : 0.0f;
    }
    __syncthreads();
    if (first + row >= s.rows) return;
    FPEMU_UNROLL
    for (int i = 0; i < EACH; i++) own[i] = tile[row][k + i];
  }
  const s64 line = matrix * s.rows + first + row;
  const int e = to.exponents ? to.exponents[line] : 0;
  u32 packed[Rules::COUNT][PACKED];
  u64 nonfinite = 0, beyond = 0;
  int first_nonfinite = 0, first_beyond = 0;
  if (!split_plain(own, e, packed)) {
    FPEMU_UNROLL
    for (int w = 0; w < Rules::COUNT; w++) FPEMU_UNROLL
    for (int i = 0; i < PACKED; i++) packed[w][i] = 0;
    FPEMU_UNROLL
    for (int i = 0; i < EACH; i++) {
      u32 codes[Rules::COUNT];
      const u32 result = split_number<Rules>(own[i], e, codes);
      if (result & NOT_FINITE && !nonfinite++) first_nonfinite = i;
      if (result & ~NOT_FINITE && !beyond++) first_beyond = i;
      FPEMU_UNROLL
      for (int w = 0; w < Rules::COUNT; w++) packed[w][i / PER] |= codes[w] << (i % PER * Rules::WIDTH);
    }
  }
  if (to.word[0]) {
    FPEMU_UNROLL
    for (int w = 0; w < Rules::COUNT; w++) {
      u32* const at = (u32*)(to.word[w] + line * to.pitch + from + k);
      FPEMU_UNROLL
      for (int i = 0; i < PACKED; i += 4) write(at + i, &packed[w][i]);
    }
  }
  if (nonfinite) {
    if (to.special) to.special[line] = 1;
    atomicAdd(to.faults, nonfinite);
    report_first(to.faults, NONFINITE_ENTRY, index_of(s, matrix, first + row, from + k + first_nonfinite));
  }
  if (beyond) {
    atomicAdd(to.faults + 1, beyond);
    report_first(to.faults, OVERFLOWING_ENTRY, index_of(s, matrix, first + row, from + k + first_beyond));
  }
}

// ---- Both operands of a product in one launch, which fpemu.gpu.gemm.splitting prepares once for repeated operands. The
// blocks of the second operand follow those of the first. The kernel also sets the next call's fault counts to zero,
// which saves a launch.

struct Operand {
  Stack stack;
  Words words;
  u32* largest;
  u64* next_faults;   // null: none
  s64 bound, blocks;  // as in Survey; blocks of threads
};
struct Operands {
  Operand of[2];
};

// The operand that a block works on; `own`: its number among the blocks of that operand.
FPEMU_FUNCTION const Operand& operand_of(const Operands& all, u32& own) {
  const u32 before = (u32)all.of[0].blocks;
  const bool second = own >= before;
  own -= second ? before : 0;
  const Operand& o = all.of[second];
  if (o.next_faults && own == 0 && threadIdx.x < FAULT_WORDS) o.next_faults[threadIdx.x] = 0;
  return o;
}

extern "C" __global__ void __launch_bounds__(256) survey_operands(const __grid_constant__ Operands all) {
  wait_for_previous_grid();
  u32 own = blockIdx.x;
  const Operand& o = operand_of(all, own);
  look_at(o.stack, Survey{o.largest, o.words.special, o.words.faults, (u32)o.bound}, own);
}

extern "C" __global__ void __launch_bounds__(256) split_operands(const __grid_constant__ Operands all) {
  wait_for_previous_grid();
  u32 own = blockIdx.x;
  const Operand& o = operand_of(all, own);
  split_tile(o.stack, o.words, own);
}

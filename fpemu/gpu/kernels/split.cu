// Operands into words: what the rows have at most (survey), the powers of two that follow (settle), the words (split).
// The file that includes this one has split.cuh and has defined Rules.
//
// A row is one of A, or a column of B: its K entries lie k_step apart, row_step from those of the next. `of` says where
// each matrix of a stack begins. Tiles are read along whichever of the two is the shorter step, and the words written
// along K. faults: how many entries are NaN or infinite, and how many have a word that overflows.
#include "split_pairs.cuh"

constexpr int ROWS = 32, LENGTH = 64, THREADS = 256, EACH = ROWS * LENGTH / THREADS;
constexpr int SURVEYED = 1024;  // of K by one thread block

struct Rows {  // of one matrix
  const float* x;
  s64 rows, K, row_step, k_step;
};

FPEMU_FUNCTION float entry_of(const Rows& s, s64 row, s64 k) {
  return row < s.rows && k < s.K ? s.x[row * s.row_step + k * s.k_step] : 0.0f;
}

FPEMU_FUNCTION s64 magnitude_of(s64 step) { return step < 0 ? -step : step; }

// What a survey has seen of a row: its largest finite magnitude as a code, which is ordered as the numbers are.
struct Seen {
  u32 most;
  u64 wild, beyond;
};

// Some entries, all there. Those of `bound` and more are looked at one by one; below, no word can overflow.
template <int COUNT> FPEMU_FUNCTION void look(const float* x, s64 step, u32 bound, Seen& seen) {
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
    if (one >= 0x7F800000) seen.wild++;
    else if (one > seen.most) seen.most = one;
    if (one >= bound) seen.beyond += (split_number<Rules>(x[i * step], 0, words) & ~NOT_FINITE) != 0;
  }
}

// largest, special: null if nobody asks. bound: code of a magnitude from which on words may overflow, at most that of
// Inf; with that of Inf none is counted.
extern "C" __global__ void __launch_bounds__(256) survey(const float* x, const s64* of, s64 rows, s64 K, s64 row_step,
                                                         s64 k_step, u32* largest, u8* special, u64* faults, u32 bound) {
  __shared__ u32 most[ROWS];
  const s64 along = (rows + ROWS - 1) / ROWS, parts = (K + SURVEYED - 1) / SURVEYED;
  const s64 part = blockIdx.x % parts, tile = blockIdx.x / parts, matrix = tile / along, first = tile % along * ROWS;
  const bool by_k = magnitude_of(k_step) <= magnitude_of(row_step);
  const int apart = by_k ? 32 : 8;  // k between a thread's entries
  if (threadIdx.x < ROWS) most[threadIdx.x] = 0;
  __syncthreads();
  u64 wild = 0, beyond = 0;
  for (int i = 0; i < (by_k ? ROWS / 8 : 1); i++) {
    const s64 row = first + (by_k ? threadIdx.x / 32 + 8 * i : threadIdx.x % 32);
    s64 k = part * SURVEYED + (by_k ? threadIdx.x % 32 : threadIdx.x / 32);
    const s64 end = K < (part + 1) * SURVEYED ? K : (part + 1) * SURVEYED;
    if (row >= rows) break;
    const float* from = x + of[matrix] + row * row_step;
    Seen seen = {0, 0, 0};
    for (; k + 7 * apart < end; k += 8 * apart) look<8>(from + k * k_step, apart * k_step, bound, seen);
    for (; k < end; k += apart) look<1>(from + k * k_step, 0, bound, seen);
    if (seen.most) atomicMax(&most[row - first], seen.most);
    if (seen.wild && special) special[matrix * rows + row] = 1;
    wild += seen.wild, beyond += seen.beyond;
  }
  if (wild) atomicAdd(faults, wild);
  if (beyond) atomicAdd(faults + 1, beyond);
  __syncthreads();
  if (largest && threadIdx.x < ROWS && first + threadIdx.x < rows && most[threadIdx.x])
    atomicMax(&largest[matrix * rows + first + threadIdx.x], most[threadIdx.x]);
}

FPEMU_FUNCTION int exponent_for(u32 largest, int top) {  // x · 2^this lies in [2^(top-1), 2^top)
  if (!largest) return 0;
  const int field = (int)(largest >> 23);
  return top - (field ? field - 126 : bit_length(largest) - 149);
}

// One thread block a matrix.
extern "C" __global__ void __launch_bounds__(256) settle(const u32* largest, int* exponents, s64 rows, int whole, int top) {
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
struct alignas(16) Four {  // read at once
  float x[4];
};

// Write two words, or four, at once: of a store to their type the compiler makes several.
FPEMU_FUNCTION void write(u32* to, const u32* x) {
#ifdef __CUDACC__
  if constexpr (PACKED < 4) asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(to), "r"(x[0]), "r"(x[1]) : "memory");
  else
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};"
                 ::"l"(to), "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]) : "memory");
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

// exponents, special: null if there are none to take, or to tell; word0: if words are only counted. The words' rows are
// `pitch` apart, a multiple of 64.
extern "C" __global__ void __launch_bounds__(256) split(const float* x, const s64* of, s64 rows, s64 K, s64 row_step,
                                                        s64 k_step, const int* exponents, Rules::code* word0,
                                                        Rules::code* word1, Rules::code* word2, Rules::code* word3,
                                                        s64 pitch, u8* special, u64* faults) {
  __shared__ float tile[ROWS][LENGTH + 1];
  const s64 parts = pitch / LENGTH, along = (rows + ROWS - 1) / ROWS, number = blockIdx.x / parts;
  const s64 matrix = number / along, first = number % along * ROWS, from = blockIdx.x % parts * LENGTH;
  const Rows s = {x + of[matrix], rows, K, row_step, k_step};
  const int row = (int)threadIdx.x * EACH / LENGTH, k = (int)threadIdx.x * EACH % LENGTH;
  float own[EACH];
  if (k_step == 1 && row_step % 4 == 0 && (u64)s.x % 16 == 0 && from + LENGTH <= K) {  // the same for all threads
    if (first + row >= rows) return;
    FPEMU_UNROLL
    for (int i = 0; i < EACH; i += 4) {
      const Four four = *(const Four*)(s.x + (first + row) * row_step + from + k + i);
      FPEMU_UNROLL
      for (int j = 0; j < 4; j++) own[i + j] = four.x[j];
    }
  } else {
    const bool by_k = magnitude_of(k_step) <= magnitude_of(row_step);
    FPEMU_UNROLL
    for (int i = 0; i < EACH; i++) {
      const int n = (int)threadIdx.x + THREADS * i, r = by_k ? n / LENGTH : n % ROWS, c = by_k ? n % LENGTH : n / ROWS;
      tile[r][c] = entry_of(s, first + r, from + c);
    }
    __syncthreads();
    if (first + row >= rows) return;
    FPEMU_UNROLL
    for (int i = 0; i < EACH; i++) own[i] = tile[row][k + i];
  }
  const s64 line = matrix * rows + first + row;
  const int e = exponents ? exponents[line] : 0;
  u32 packed[Rules::COUNT][PACKED];
  u64 wild = 0, beyond = 0;
  if (!split_plain(own, e, packed)) {
    FPEMU_UNROLL
    for (int w = 0; w < Rules::COUNT; w++) FPEMU_UNROLL for (int i = 0; i < PACKED; i++) packed[w][i] = 0;
    FPEMU_UNROLL
    for (int i = 0; i < EACH; i++) {
      u32 codes[Rules::COUNT];
      const u32 found = split_number<Rules>(own[i], e, codes);
      wild += (found & NOT_FINITE) != 0, beyond += (found & ~NOT_FINITE) != 0;
      FPEMU_UNROLL
      for (int w = 0; w < Rules::COUNT; w++) packed[w][i / PER] |= codes[w] << (i % PER * Rules::WIDTH);
    }
  }
  Rules::code* const words[4] = {word0, word1, word2, word3};
  if (word0) {
    FPEMU_UNROLL
    for (int w = 0; w < Rules::COUNT; w++) {
      u32* const to = (u32*)(words[w] + line * pitch + from + k);
      FPEMU_UNROLL
      for (int i = 0; i < PACKED; i += 4) write(to + i, &packed[w][i]);
    }
  }
  if (wild && special) special[line] = 1;
  if (wild) atomicAdd(faults, wild);
  if (beyond) atomicAdd(faults + 1, beyond);
}

// The loads of split_gemm.cu: fp32 operands from memory into registers, split there, and their words into shared
// memory.
//
// fpemu.gpu.gemm.mma_sync.source defines the Plan, the Tile and the Rules of the split before this file.
#pragma once
#include "split_tile.cuh"

constexpr int EIGHTS = Tile::K / 8;  // a thread fetches eight neighbours in k of a row at a time
constexpr int FETCHES_A = Tile::M * EIGHTS / THREADS, FETCHES_B = Tile::N * EIGHTS / THREADS;
constexpr int FETCHES = FETCHES_A + FETCHES_B;  // of a thread, for a stretch of K
static_assert(FETCHES_A * THREADS == Tile::M * EIGHTS && FETCHES_B * THREADS == Tile::N * EIGHTS, "threads");

// How a thread goes through its part of a stretch, eight entries of a row at a time: neighbours in memory are read by
// neighbouring threads.
template <Layout LAYOUT, int ROWS> struct Steps {
  static constexpr int COUNT = ROWS * EIGHTS / THREADS;
  static constexpr int IN_ROWS = LAYOUT == ALONG_ROWS ? 0 : THREADS / EIGHTS;
  static constexpr int IN_K = LAYOUT == ALONG_ROWS ? THREADS / ROWS * 8 : 0;
  static constexpr int POINTERS = LAYOUT == ALONG_ROWS ? 1 : COUNT;
  static_assert(LAYOUT == ALONG_ROWS ? THREADS % ROWS == 0 : THREADS % EIGHTS == 0, "a thread keeps its row, or its k");
};

// Where in an operand a thread reads; rows are those of A, or the columns of B.
template <Layout LAYOUT_, int ROWS_> struct Source {
  static constexpr Layout LAYOUT = LAYOUT_;
  typedef Steps<LAYOUT_, ROWS_> Step;
  const float* data[Step::POINTERS];  // at its first k; of a stretch further on if along rows
  int row, k;                         // of the first eight entries, in D and in a stretch

  // Rows beyond the last are read from it: what is made of them is not written.
  FPEMU_FUNCTION void begin(const float* first, s64 row_stride, s64 k_stride, int first_row, int rows) {
    const int thread = threadIdx.x, own = LAYOUT == ALONG_ROWS ? thread % ROWS_ : thread / EIGHTS;
    row = first_row + own, k = 8 * (LAYOUT == ALONG_ROWS ? thread / ROWS_ : thread % EIGHTS);
    FPEMU_UNROLL
    for (int i = 0; i < Step::POINTERS; i++)
      data[i] = first + smaller(row + i * Step::IN_ROWS, rows - 1) * row_stride + k * k_stride;
  }

  // Where the words of eight entries, number `number` of this thread, go in a part of shared memory; first_row as
  // above.
  FPEMU_FUNCTION int place(int number, int first_row) const {
    return spot(row - first_row + number * Step::IN_ROWS, (k + number * Step::IN_K) * Plan::ELEMENT);
  }

  // Eight entries, number `number` of this thread, of the stretch from `from` on, `steps` stretches further than where
  // data stands if along rows; zeros beyond K.
  FPEMU_FUNCTION void fetch(int number, int from, int steps, s64 k_stride, int K, float (&x)[8]) const {
    const s64 stride = LAYOUT == ALONG_ROWS ? k_stride : 1;
    const float* at =
        LAYOUT == ALONG_ROWS ? data[0] + (number * Step::IN_K + steps * Tile::K) * stride : data[number] + from;
    if (from + Tile::K <= K) {  // the same for all threads
      FPEMU_UNROLL
      for (int i = 0; i < 8; i += LAYOUT == ALONG_K_BY_FOUR ? 4 : 1) {
        if (LAYOUT == ALONG_K_BY_FOUR) {
          const float4 four = *(const float4*)(at + i);
          x[i] = four.x, x[i + 1] = four.y, x[i + 2] = four.z, x[i + 3] = four.w;
        } else {
          x[i] = *at;
          at += stride;
        }
      }
    } else {
      const int left = K - (from + k + number * Step::IN_K);
      FPEMU_UNROLL
      for (int i = 0; i < 8; i++) x[i] = i < left ? at[i * stride] : 0;
    }
  }
};

// Split eight entries, which x · 2^exponent scales, and store the words that a pass needs; `at`: the first one's spot.
template <int PASS, bool OF_A>
FPEMU_FUNCTION void store(float (&x)[8], int exponent, bool special, u8* buffer, int at) {
  typedef Rules::code Code;
  constexpr int EACH = 2 * Plan::ELEMENT;  // 32-bit words that eight codes take
  const float first = small_power_of_two(exponent / 2), second = small_power_of_two(exponent - exponent / 2);
  u32 slow = 0;  // a bit for each number that the fast way is not for
  float given[8];
  if (Tile::SPECIAL && special) FPEMU_UNROLL
  for (int i = 0; i < 8; i++) x[i] = exponent_of(x[i]) == 128 ? 0 : x[i];
  FPEMU_UNROLL
  for (int i = 0; i < 8; i++) {
    given[i] = x[i];
    if (Tile::SCALED) x[i] = x[i] * first * second;
    if (!ALWAYS_FAST<Rules> && !(given[i] == 0 || takes_fast_way<Rules>(x[i]))) slow |= 1u << i;
  }
  u32 codes[Plan::WORDS][EACH];
  split_eight<Rules>(x, codes);
  FPEMU_UNROLL
  for (int w = 0; w < Plan::WORDS; w++)
    if (needed_words(PASS, OF_A) >> w & 1) {
      u8* part = buffer + place<PASS>(w, OF_A);
      if (EACH == 2) *(uint2*)(part + at) = make_uint2(codes[w][0], codes[w][1]);
      FPEMU_UNROLL
      for (int i = 0; i + 4 <= EACH; i += 4)
        *(uint4*)(part + (at ^ 4 * i)) = make_uint4(codes[w][i], codes[w][i + 1], codes[w][i + 2], codes[w][i + 3]);
    }
  if (ALWAYS_FAST<Rules>) return;
  FPEMU_SOME(unroll 1)
  for (; slow; slow &= slow - 1) {  // rare, so once in the text
    const int i = trailing_zeros(slow);
    float one = 0;
    FPEMU_UNROLL
    for (int j = 0; j < 8; j++) one = i == j ? given[j] : one;
    u32 code[Plan::WORDS];
    split_exactly<Rules>(one, exponent, code);
    FPEMU_UNROLL
    for (int w = 0; w < Plan::WORDS; w++)
      if (needed_words(PASS, OF_A) >> w & 1)
        *(Code*)(buffer + place<PASS>(w, OF_A) + (at ^ i * (int)sizeof(Code))) = (Code)code[w];
  }
}

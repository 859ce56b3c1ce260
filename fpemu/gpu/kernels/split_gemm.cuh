// The parts of split_gemm.cu: words of a stretch of K into shared memory, fragments of them into registers, and the
// instruction on fragments. All by mma.sync, whose fragments have one layout in 32-bit words, whatever the format: with
// g = lane / 4 and t = lane % 4 a lane holds of A the words t and t + 4 of rows g and g + 8, of B those of column g, and
// of a sum the columns 2t and 2t + 1 of rows g and g + 8.
//
// fpemu.gpu.tensorcores.source defines the Plan, the Tile, the Rules of the split and MMA_SYNC, the instruction as PTX.
#pragma once
#include "split_pairs.cuh"
#include "split_sums.cuh"

constexpr int THREADS = Tile::M / Tile::WARP_M * (Tile::N / Tile::WARP_N) * 32;
constexpr int ROW_FRAGMENTS = Tile::WARP_M / 16, COLUMN_FRAGMENTS = Tile::WARP_N / 8;  // of a warp
constexpr int A_WORDS = Plan::MMA_BYTES / 8, B_WORDS = Plan::MMA_BYTES / 16;  // registers of a fragment
constexpr int PITCH = Tile::K * Plan::ELEMENT + 16;  // bytes of a row in shared memory: eight rows are in different banks
constexpr int WORD_BYTES = (Tile::M + Tile::N) * PITCH;     // of one word of both operands
constexpr int BUFFER_BYTES = Plan::WORDS * WORD_BYTES;
constexpr int EIGHTS = Tile::K / 8;  // a thread fetches eight neighbours in k of a row at a time
constexpr int FETCHES_A = Tile::M * EIGHTS / THREADS, FETCHES_B = Tile::N * EIGHTS / THREADS;
constexpr int FETCHES = FETCHES_A + FETCHES_B;  // of a thread, for a stretch of K
static_assert(FETCHES_A * THREADS == Tile::M * EIGHTS && FETCHES_B * THREADS == Tile::N * EIGHTS, "threads");
static_assert(Tile::WARP_M % 16 == 0 && Tile::WARP_N % 16 == 0, "fragments");

// ---- the instruction

#if FPEMU_HALF_SUMS
struct Sum {  // of four entries of a fragment, as the instruction has it
  u32 word[2];
};
FPEMU_FUNCTION float entry(const Sum& s, int i) { return value_of_half(s.word[i / 2] >> 16 * (i % 2) & 0xFFFF); }
#else
struct Sum {
  float word[4];
};
FPEMU_FUNCTION float entry(const Sum& s, int i) { return s.word[i]; }
#endif
FPEMU_FUNCTION Sum zero() {
  Sum s;
  for (auto& x : s.word) x = 0;
  return s;
}

#ifdef __CUDACC__
FPEMU_FUNCTION void multiply_add(Sum& c, const u32 (&a)[A_WORDS], const u32 (&b)[B_WORDS]) { MMA_SYNC; }

// Eight rows of 16 bytes for each register, from the addresses that the lanes give: lane l those of register l / 8.
FPEMU_FUNCTION void load_rows(u32 (&r)[4], const u8* row) {
  const u32 at = (u32)__cvta_generic_to_shared(row);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}
FPEMU_FUNCTION void load_rows(u32 (&r)[2], const u8* row) {
  const u32 at = (u32)__cvta_generic_to_shared(row);
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];" : "=r"(r[0]), "=r"(r[1]) : "r"(at) : "memory");
}
#else  // of a simulation
void multiply_add(Sum& c, const u32 (&a)[A_WORDS], const u32 (&b)[B_WORDS]);
void load_rows(u32 (&r)[4], const u8* row);
void load_rows(u32 (&r)[2], const u8* row);
#endif

// ---- fragments: the k of one instruction, of sixteen rows of A, and of all columns of B that a warp has

FPEMU_FUNCTION void load_a(u32 (&a)[A_WORDS], const u8* word, int row, int slice) {
  const int lane = threadIdx.x % 32;
  const u8* at = word + (row + lane % 16) * PITCH + slice * Plan::MMA_BYTES + (A_WORDS == 4 ? lane / 16 * 16 : 0);
  load_rows(a, at);
}

FPEMU_FUNCTION void load_b(u32 (&b)[COLUMN_FRAGMENTS][B_WORDS], const u8* word, int column, int slice) {
  const int lane = threadIdx.x % 32;
  const int own = B_WORDS == 2 ? lane % 8 + lane / 16 * 8 : lane % 16;  // two fragments at a time
  const u8* at = word + (column + own) * PITCH + slice * Plan::MMA_BYTES + (B_WORDS == 2 ? lane / 8 % 2 * 16 : 0);
  FPEMU_UNROLL
  for (int i = 0; i < COLUMN_FRAGMENTS; i += 2) {
    u32 two[2 * B_WORDS];
    load_rows(two, at + i * 8 * PITCH);
    FPEMU_UNROLL
    for (int j = 0; j < 2 * B_WORDS; j++) b[i + j / B_WORDS][j % B_WORDS] = two[j];
  }
}

// ---- from fp32 operands to words in shared memory



// How a thread goes through its part of a stretch, eight entries of a row at a time: neighbours in memory are read by
// neighbouring threads.
template <Layout LAYOUT, int ROWS> struct Steps {
  static constexpr int COUNT = ROWS * EIGHTS / THREADS;
  static constexpr int IN_ROWS = LAYOUT == ALONG_ROWS ? 0 : THREADS / EIGHTS;
  static constexpr int IN_K = LAYOUT == ALONG_ROWS ? THREADS / ROWS * 8 : 0;
  static constexpr int IN_BYTES = IN_ROWS * PITCH + IN_K * Plan::ELEMENT;
  static constexpr int POINTERS = LAYOUT == ALONG_ROWS ? 1 : COUNT;
  static_assert(LAYOUT == ALONG_ROWS ? THREADS % ROWS == 0 : THREADS % EIGHTS == 0, "a thread keeps its row, or its k");
};

// Where in an operand a thread reads; rows are those of A, or the columns of B.
template <Layout LAYOUT_, int ROWS_> struct Source {
  static constexpr Layout LAYOUT = LAYOUT_;
  typedef Steps<LAYOUT_, ROWS_> Step;
  const float* data[Step::POINTERS];  // at its first k; of a stretch further on if along rows
  int row, k;  // of the first eight entries, in D and in a stretch
  int place;   // of these in a word's part of shared memory, in bytes

  // Rows beyond the last are read from it: what is made of them is not written.
  FPEMU_FUNCTION void begin(const float* first, s64 row_stride, s64 k_stride, int first_row, int rows) {
    const int thread = threadIdx.x, own = LAYOUT == ALONG_ROWS ? thread % ROWS_ : thread / EIGHTS;
    row = first_row + own, k = 8 * (LAYOUT == ALONG_ROWS ? thread / ROWS_ : thread % EIGHTS);
    place = own * PITCH + k * Plan::ELEMENT;
    FPEMU_UNROLL
    for (int i = 0; i < Step::POINTERS; i++)
      data[i] = first + smaller(row + i * Step::IN_ROWS, rows - 1) * row_stride + k * k_stride;
  }

  // Eight entries, number `number` of this thread, of the stretch from `from` on, `steps` stretches further than where
  // data stands if along rows; zeros beyond K.
  FPEMU_FUNCTION void fetch(int number, int from, int steps, s64 k_stride, int K, float (&x)[8]) const {
    const s64 stride = LAYOUT == ALONG_ROWS ? k_stride : 1;
    const float* at = LAYOUT == ALONG_ROWS ? data[0] + (number * Step::IN_K + steps * Tile::K) * stride
                                           : data[number] + from;
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

// Split eight entries, which x · 2^exponent scales, and store their words; `wanted` has a bit for each word.
FPEMU_FUNCTION void store(float (&x)[8], int exponent, bool special, u8* part, unsigned wanted) {
  typedef Rules::code Code;
  constexpr int EACH = 2 * Plan::ELEMENT;  // 32-bit words that eight codes take
  const float first = small_power_of_two(exponent / 2), second = small_power_of_two(exponent - exponent / 2);
  u32 slow = 0;  // a bit for each number that the fast way is not for
  float given[8];
  if (Tile::SPECIAL && special)
    FPEMU_UNROLL for (int i = 0; i < 8; i++) x[i] = exponent_of(x[i]) == 128 ? 0 : x[i];
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
    if (wanted >> w & 1) {
      u8* at = part + w * WORD_BYTES;
      if (EACH == 2) *(uint2*)at = make_uint2(codes[w][0], codes[w][1]);
      FPEMU_UNROLL
      for (int i = 0; i + 4 <= EACH; i += 4)
        *(uint4*)(at + 4 * i) = make_uint4(codes[w][i], codes[w][i + 1], codes[w][i + 2], codes[w][i + 3]);
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
      if (wanted >> w & 1) ((Code*)(part + w * WORD_BYTES))[i] = (Code)code[w];
  }
}

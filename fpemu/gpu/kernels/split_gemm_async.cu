// D = alpha · (A·B) + beta · C by a scheme that multiplies words, of words that lie in memory: split.cu has made them.
// The same sums in the same order as split_gemm.cu, whose loads split.
//
// Words go from memory to shared memory by asynchronous copies, which need no register and no thread that waits:
// Tile::STAGES buffers are filled in turn, so that one is multiplied while the others are under way.
#include "dependent_launch.cuh"
#include "split_tile.cuh"

constexpr int CHUNKS = Tile::K * Plan::ELEMENT / 16;  // copies of 16 bytes that a row of a stretch takes
constexpr int ROWS_AT_ONCE = THREADS / CHUNKS;        // that the block copies
constexpr bool WHOLE = 64 % Tile::K == 0;             // no stretch that begins in a row ends beyond its pitch
static_assert(THREADS % CHUNKS == 0 && Tile::M % ROWS_AT_ONCE == 0 && Tile::N % ROWS_AT_ONCE == 0, "threads");

struct Words {  // of A and of B: word i of their rows, the k of a row side by side, zeros from K to the pitch
  const u8 *a[4], *b[4];
  s64 a_pitch, b_pitch;  // bytes from row to row
};

#ifdef __CUDACC__
FPEMU_FUNCTION void copy(u8* to, const u8* from, bool there) {  // zeros if it is not there
  const u32 at = (u32)__cvta_generic_to_shared(to);
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(there ? 16 : 0)
               : "memory");
}
FPEMU_FUNCTION void end_of_stage() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int LEFT> FPEMU_FUNCTION void wait_for_stages() {  // until all but so many are there
  asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}
#else  // of a simulation
inline void copy(u8* to, const u8* from, bool there) {
  for (int i = 0; i < 16; i++) to[i] = there ? from[i] : 0;
}
inline void end_of_stage() {}
template <int LEFT> inline void wait_for_stages() {}
#endif

struct First {  // where a block's rows of A and columns of B begin among all of a stack
  s64 row, column;

  FPEMU_FUNCTION explicit First(const Place& begin)
      : row(offset(begin.at, AT_ROWS)), column(offset(begin.at, AT_COLUMNS)) {}
};

// Queue the copies of a stretch of some rows of a word, from its k'th column on.
template <int ROWS>
FPEMU_FUNCTION void load_rows_async(u8* to, const u8* word, s64 pitch, s64 before, int first, int rows, int k) {
  const int own = threadIdx.x / CHUNKS, chunk = threadIdx.x % CHUNKS;
  const s64 column = (s64)k * Plan::ELEMENT + chunk * 16;
  const bool there = WHOLE || column < pitch;
  FPEMU_UNROLL
  for (int i = 0; i < ROWS; i += ROWS_AT_ONCE) {
    const s64 row = before + smaller(first + i + own, rows - 1);  // beyond the last: what is made of it is not written
    // rows 8 apart are permuted alike: the offsets of multiples of 8 are constants
    const int at = ROWS_AT_ONCE % 8 ? spot(own + i, chunk * 16) : spot(own, chunk * 16) + i * ROW_BYTES;
    copy(to + at, word + row * pitch + (there ? column : 0), there);
  }
}

template <int PASS>
FPEMU_FUNCTION void bring(const Problem& p, const Words& words, const Place& begin, const First& first, int k,
                          u8* buffer) {
  FPEMU_UNROLL
  for (int w = 0; w < Plan::WORDS; w++) {
    u8 *const a = buffer + place<PASS>(w, true), *const b = buffer + place<PASS>(w, false);
    if (needed_words(PASS, true) >> w & 1)
      load_rows_async<Tile::M>(a, words.a[w], words.a_pitch, first.row, begin.row, p.M, k);
    if (needed_words(PASS, false) >> w & 1)
      load_rows_async<Tile::N>(b, words.b[w], words.b_pitch, first.column, begin.column, p.N, k);
  }
}

// A pass over K, and those after it.
template <int PASS>
FPEMU_FUNCTION void run(Sums& own, const Problem& p, const Words& words, u8* memory, const Place& begin) {
  FragmentsB b;
  const First first(begin);
  for (int stage = 0; stage + 1 < Tile::STAGES; stage++) {
    if (stage * Tile::K < p.K) bring<PASS>(p, words, begin, first, stage * Tile::K, memory + stage * BUFFER_BYTES);
    end_of_stage();
  }
  u8 *buffer = memory, *last = memory + (Tile::STAGES - 1) * BUFFER_BYTES;
  FPEMU_SOME(unroll 1)
  for (int k = 0, number = 0; k < p.K; k += Tile::K, number++) {
    wait_for_stages<Tile::STAGES - 2>();
    __syncthreads();  // this stretch is there for all, and the buffer of the one before it is free
    const int next = k + (Tile::STAGES - 1) * Tile::K;
    if (next < p.K) bring<PASS>(p, words, begin, first, next, last);
    end_of_stage();
    FPEMU_UNROLL
    for (int unit = 0; unit < Units<PASS>::COUNT; unit++)
      multiply_unit<PASS>(own, unit, buffer, begin.warp_row, begin.warp_column, b);
    promote_long(own, number, k + Tile::K >= p.K);
    last = buffer;
    buffer = buffer == memory + (Tile::STAGES - 1) * BUFFER_BYTES ? memory : buffer + BUFFER_BYTES;
  }
  if constexpr (PASS + 1 < Plan::PASSES) {
    __syncthreads();
    run<PASS + 1>(own, p, words, memory, begin);
  }
}

extern __shared__ __align__(16) u8 memory[];  // the stages' buffers

extern "C" __global__ void __launch_bounds__(THREADS, 1) split_gemm(const Problem p, const Words words) {
  wait_for_previous_grid();
  Sums own;
  clear(own);
  const Place begin(p);
  run<0>(own, p, words, memory, begin);
  store_outputs(p, own);
}

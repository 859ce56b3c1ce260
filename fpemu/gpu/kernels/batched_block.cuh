// The parts of batched_block.cu: its parameters, an operand in shared memory, and fragments of it into registers.
//
// Config, besides what batched_sizes.cuh needs, has the paper's parameters and what follows from them:
//   BLK_M, BLK_N, BLK_K
//   TC_X, TC_Y         the tile of one call in units of the instruction: 16 rows, 8 columns. (16, 16, 16) is 1 by 2,
//                      (32, 8, 16) 2 by 1, and (8, 32, 16) 2 by 1 of the transposed product
//   TURNED             the instruction's left operand is B transposed
//   DIM_X, DIM_Y       threads of a group: DIM_X side by side along a line, eight elements each
//   WARPS_X, WARPS_Y   warps over the tiles, which they take in turns; others only load and store
//   PRODUCTS           groups of a thread block
//   STAGES             blocks of A and B that are under way; 1 where K is not longer than BLK_K; PERSISTENT: products
//                      under way besides the one that is multiplied
//   ASYNC              from memory into shared memory without registers
//   STAGED             D by way of shared memory
//   ONE_TILE           a product is one block
//   FLAT               products without gaps, one block each: matrices are copied as they are, 16 bytes by 16 bytes
//   APART              FLAT: what was copied and the tiles have memory of their own; else they share it
//   PERSISTENT         a thread block computes one product after the other, and loads the next ones while it multiplies
//   BULK               FLAT and PERSISTENT: bulk copies load the matrices, see batched_bulk.cuh
//   D_APART            BULK: D has a separate buffer, else it reuses the buffer of the tiles
//   AHEAD              the first matrices are prefetched before the previous kernel has completed
//   RESIDENT           thread blocks that a multiprocessor is to hold: registers are spared for it
#pragma once
#include "batched_sizes.cuh"

constexpr int GROUP = Config::DIM_X * Config::DIM_Y;
constexpr int THREADS = GROUP * Config::PRODUCTS;

constexpr int power_of_two(int n) { return n <= 1 ? 1 : 2 * power_of_two((n + 1) / 2); }  // the least from n on
constexpr int power_in(int n) { return n % 2 || n >= 32 ? 1 : 2 * power_in(n / 2); }      // that divides n

// An operand in shared memory, line by line; a line has its parts one after the other. Before it is settled, a line is
// as it is in memory, from the last multiple of four bytes on.
template <bool OF_A> struct Tile {
  static constexpr bool IS_A = OF_A;
  static constexpr bool ALONG_K = OF_A ? Config::A_ALONG_K : Config::B_ALONG_K;
  static constexpr int ROWS = OF_A ? Config::BLK_M : Config::BLK_N;
  static constexpr int WIDTH = Config::WIDTH;
  static constexpr int LINES = ALONG_K ? ROWS : Config::BLK_K, LENGTH = ALONG_K ? Config::BLK_K : ROWS;
  static constexpr int EIGHTS = LENGTH / 8,
                       MORE = WIDTH == 2 && Config::ASYNC && !Config::FLAT;  // before it is settled
  static constexpr int PART = 16 * (EIGHTS + MORE);                          // bytes from part to part
  static constexpr int PITCH = 16 * (PARTS * (EIGHTS + MORE) | 1);           // other banks each line
  static constexpr int BYTES = LINES * PITCH;
  static constexpr bool SETTLES = SPLIT || WIDTH == 2;
  static constexpr int ALONG = smaller(power_in(Config::DIM_X), power_of_two(EIGHTS)), AT_ONCE = GROUP / ALONG;
  static constexpr int DOWN = (LINES + AT_ONCE - 1) / AT_ONCE, ACROSS = (EIGHTS + ALONG - 1) / ALONG;
};
typedef Tile<true> TileA;
typedef Tile<false> TileB;
typedef Tile<!Config::TURNED> TileX;
typedef Tile<Config::TURNED> TileY;
constexpr int FLAT_A =
    Config::FLAT ? 16 * ((Config::M * Config::K * ELEMENT + 15) / 16 + 1) : 0;  // A, B, D as they are
constexpr int FLAT_B = Config::FLAT ? 16 * ((Config::K * Config::N * ELEMENT + 15) / 16 + 1) : 0;
constexpr int FLAT_D = Config::FLAT ? 16 * ((Config::M * Config::N * ELEMENT + 15) / 16 + 1) : 0;
constexpr int TILES = TileA::BYTES + TileB::BYTES;
constexpr int RAW = Config::FLAT ? larger(FLAT_A + FLAT_B + 48, FLAT_D) : 0;
constexpr int D_PITCH = (Config::BLK_N / 8 | 1) * 16, D_BYTES = Config::BLK_M * D_PITCH;
constexpr int D_STAGE = Config::FLAT ? FLAT_D : Config::STAGED ? PARTS * D_BYTES : 0;
// D has a separate buffer, else it reuses the buffer of A and B after their last read.
constexpr bool STAGE_APART =
    Config::BULK ? Config::D_APART : Config::PERSISTENT && Config::STAGES == 1 && !(Config::FLAT && Config::APART);
constexpr int BUFFERS = Config::STAGES + (Config::PERSISTENT && !Config::BULK);
constexpr int BUFFER = Config::BULK                               ? FLAT_A + FLAT_B + 48
                       : Config::FLAT && Config::APART            ? RAW
                       : Config::FLAT                             ? larger(TILES, RAW)
                       : Config::PERSISTENT && Config::STAGES > 1 ? larger(TILES, D_STAGE)
                                                                  : TILES;
constexpr int SHARED = Config::BULK ? BUFFERS * (BUFFER + 16) + (STAGE_APART ? TILES + D_STAGE : larger(TILES, D_STAGE))
                       : Config::FLAT && Config::APART ? BUFFERS * BUFFER + TILES
                       : STAGE_APART                   ? BUFFERS * BUFFER + D_STAGE
                                                       : larger(BUFFERS * BUFFER, D_STAGE);

constexpr int TILES_X = TileX::ROWS / 16 / Config::TC_X, TILES_Y = TileY::ROWS / 8 / Config::TC_Y;
constexpr int UNITS_X = TILES_X / Config::WARPS_X * Config::TC_X, UNITS_Y = TILES_Y / Config::WARPS_Y * Config::TC_Y;
static_assert(TILES_X % Config::WARPS_X == 0 && TILES_Y % Config::WARPS_Y == 0, "warps take the same number of tiles");
constexpr int COMPUTING = Config::WARPS_X * Config::WARPS_Y;  // warps
static_assert(COMPUTING * 32 <= GROUP, "warps");

// ---- what machines have and simulations are given

#ifdef __CUDACC__
template <bool TRANSPOSED> FPEMU_FUNCTION void load_rows(u32 (&r)[4], const u8* row) {
  if (TRANSPOSED)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}
template <bool TRANSPOSED> FPEMU_FUNCTION void load_rows(u32 (&r)[2], const u8* row) {
  if (TRANSPOSED)
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(shared_address(row))
                 : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(shared_address(row))
                 : "memory");
}
// Copy SIZE bytes from a multiple of SIZE into shared memory without registers; zeros if not `exists`, no copy if not
// `requested`. A copy is never partial: its length would be coded in the last bits of the address, which memory
// checkers take for bytes that are read.
template <int SIZE> FPEMU_FUNCTION void copy_later(u8* to, u64 from, bool exists, bool requested = true) {
  const int read = exists ? SIZE : 0;
  if (SIZE == 16)
    asm volatile("{ .reg .pred p; setp.ne.s32 p, %3, 0; @p cp.async.cg.shared.global [%0], [%1], 16, %2; }" ::"r"(
                     shared_address(to)),
                 "l"(from), "r"(read), "r"((int)requested)
                 : "memory");
  else
    asm volatile("{ .reg .pred p; setp.ne.s32 p, %3, 0; @p cp.async.ca.shared.global [%0], [%1], %4, %2; }" ::"r"(
                     shared_address(to)),
                 "l"(from), "r"(read), "r"((int)requested), "n"(SIZE)
                 : "memory");
}
FPEMU_FUNCTION void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int LEFT> FPEMU_FUNCTION void wait_for_copies_of() {
  asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}
FPEMU_FUNCTION void sync_warp() { __syncwarp(); }
FPEMU_FUNCTION void sync_group(int group) {
  if (GROUP == 32) __syncwarp();
  else if (Config::PRODUCTS > 1) asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "n"(GROUP) : "memory");
  else __syncthreads();
}
#else
template <bool TRANSPOSED> void load_rows(u32 (&r)[4], const u8* row);
template <bool TRANSPOSED> void load_rows(u32 (&r)[2], const u8* row);
template <int SIZE> inline void copy_later(u8* to, u64 from, bool exists, bool requested = true) {
  if (!requested) return;
  __builtin_memset(to, 0, SIZE);
  if (exists) reads(from, SIZE), __builtin_memcpy(to, (const void*)from, SIZE);
}
void sync_warp();
inline void commit_copies() {}
template <int LEFT> inline void wait_for_copies_of() {}
inline void sync_group(int) { __syncthreads(); }
#endif

// ---- from shared memory to fragments

// The left operand's, 16 rows by 16 of k from row and k on.
FPEMU_FUNCTION void load_x(u32 (&x)[TERMS][4], const u8* tile, int row, int k, u32 signs) {
  const int lane = threadIdx.x % 32;
  const int line = TileX::ALONG_K ? row + lane % 16 : k + lane % 8 + lane / 16 * 8;
  const int at = TileX::ALONG_K ? k + lane / 16 * 8 : row + lane / 8 % 2 * 8;
  FPEMU_UNROLL
  for (int part = 0; part < PARTS; part++)
    load_rows<!TileX::ALONG_K>(x[part], tile + part * TileX::PART + line * TileX::PITCH + 2 * at);
  FPEMU_UNROLL
  for (int i = 0; i < 4; i++) {
    x[PARTS - 1][i] ^= signs;
    if (TERMS == 3) x[TERMS - 1][i] = add_halves(x[0][i], x[1 % TERMS][i]);
  }
}

// The right operand's, TC_Y times 8 columns.
FPEMU_FUNCTION void load_y(u32 (&y)[Config::TC_Y][TERMS][2], const u8* tile, int column, int k, u32 signs) {
  const int lane = threadIdx.x % 32;
  const int line = TileY::ALONG_K ? column + lane % 8 + lane / 16 * 8 : k + lane % 8 + lane / 8 % 2 * 8;
  const int at = TileY::ALONG_K ? k + lane / 8 % 2 * 8 : column + lane / 16 * 8;
  FPEMU_UNROLL
  for (int part = 0; part < PARTS; part++) {
    u32 r[2 * Config::TC_Y];
    load_rows<!TileY::ALONG_K>(r, tile + part * TileY::PART + line * TileY::PITCH + 2 * at);
    FPEMU_UNROLL
    for (int i = 0; i < 2 * Config::TC_Y; i++) y[i / 2][part][i % 2] = part == PARTS - 1 ? r[i] ^ signs : r[i];
  }
  if (TERMS == 3) FPEMU_UNROLL
  for (int i = 0; i < 2 * Config::TC_Y; i++)
    y[i / 2][TERMS - 1][i % 2] = add_halves(y[i / 2][0][i % 2], y[i / 2][1 % TERMS][i % 2]);
}

typedef Sum Accumulators[UNITS_X][UNITS_Y][TERMS];

FPEMU_FUNCTION int row_of(int warp, int unit) {
  return ((warp % Config::WARPS_X + Config::WARPS_X * (unit / Config::TC_X)) * Config::TC_X + unit % Config::TC_X) * 16;
}
FPEMU_FUNCTION int column_of(int warp, int unit) {
  return ((warp / Config::WARPS_X + Config::WARPS_Y * (unit / Config::TC_Y)) * Config::TC_Y + unit % Config::TC_Y) * 8;
}

// `left`: of k in this block.
FPEMU_FUNCTION void multiply(Accumulators& sums, const u8* buffer, int warp, int left) {
  const u8 *a = buffer, *b = buffer + TileA::BYTES;
  FPEMU_UNROLL
  for (int k = 0; k < Config::BLK_K; k += 16) {
    if (k && k >= left) break;
    u32 x[UNITS_X][TERMS][4];
    FPEMU_UNROLL
    for (int i = 0; i < UNITS_X; i++)
      load_x(x[i], Config::TURNED ? b : a, row_of(warp, i), k, Config::TURNED ? SIGNS_B : SIGNS_A);
    FPEMU_UNROLL
    for (int j = 0; j < UNITS_Y; j += Config::TC_Y) {
      u32 y[Config::TC_Y][TERMS][2];
      load_y(y, Config::TURNED ? a : b, column_of(warp, j), k, Config::TURNED ? SIGNS_A : SIGNS_B);
      FPEMU_UNROLL
      for (int i = 0; i < UNITS_X; i++) FPEMU_UNROLL
      for (int c = 0; c < Config::TC_Y; c++) multiply_step<Config::TURNED>(sums[i][j + c], x[i], y[c]);
    }
  }
}

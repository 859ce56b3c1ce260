// The parts of batched_block.cu: what a thread brings into shared memory and how, and fragments of it into registers.
//
// Config, besides what batched_sizes.cuh needs, has the paper's parameters and what follows from them:
//   BLK_M, BLK_N, BLK_K
//   TC_X, TC_Y         the tile of one call in units of the instruction: 16 rows, 8 columns. (16, 16, 16) is 1 by 2,
//                      (32, 8, 16) 2 by 1, and (8, 32, 16) 2 by 1 of the transposed product
//   TURNED             the instruction's left operand is B transposed
//   DIM_X, DIM_Y       threads of a group: DIM_X side by side along a line, eight elements each
//   WARPS_X, WARPS_Y   warps over the tiles, which they take in turns; others only load and store
//   PRODUCTS           groups of a thread block
//   STAGES             blocks of A and B that are under way; 1 where K is not longer than BLK_K
//   ASYNC              from memory into shared memory without registers
//   STAGED             D by way of shared memory
//   ONE_TILE           a product is one block
//   FLAT               products without gaps, one block each: matrices are copied as they are, 16 bytes by 16 bytes
//   APART              FLAT: what was copied and the tiles have memory of their own; else they share it
//   PERSISTENT         a thread block takes one product after the other, and brings the next while it multiplies one
//   RESIDENT           thread blocks that a multiprocessor is to hold: registers are spared for it
#pragma once
#include "batched_sizes.cuh"

constexpr int GROUP = Config::DIM_X * Config::DIM_Y;
constexpr int THREADS = GROUP * Config::PRODUCTS;

constexpr int power_of_two(int n) { return n <= 1 ? 1 : 2 * power_of_two((n + 1) / 2); }  // the least from n on
constexpr int power_in(int n) { return n % 2 || n >= 32 ? 1 : 2 * power_in(n / 2); }          // that divides n

// An operand in shared memory, line by line; a line has its parts one after the other. Before it is settled, a line is as
// it is in memory from the last multiple of 16 bytes on.
template <bool OF_A> struct Tile {
  static constexpr bool IS_A = OF_A;
  static constexpr bool ALONG_K = OF_A ? Config::A_ALONG_K : Config::B_ALONG_K;
  static constexpr int ROWS = OF_A ? Config::BLK_M : Config::BLK_N;
  static constexpr int WIDTH = Config::WIDTH;
  static constexpr int LINES = ALONG_K ? ROWS : Config::BLK_K, LENGTH = ALONG_K ? Config::BLK_K : ROWS;
  static constexpr int EIGHTS = LENGTH / 8, MORE = WIDTH < 16 && !Config::FLAT;  // an unaligned line takes 16 bytes more
  static constexpr int PART = 16 * (EIGHTS + (SPLIT ? 0 : MORE));  // bytes from part to part
  static constexpr int PITCH = 16 * ((SPLIT ? 2 * EIGHTS + MORE : PARTS * (EIGHTS + MORE)) | 1);  // other banks each line
  static constexpr int BYTES = LINES * PITCH;
  static constexpr bool SETTLES = SPLIT || WIDTH < 16;
  static constexpr int ALONG = smaller(power_in(Config::DIM_X), power_of_two(EIGHTS)), AT_ONCE = GROUP / ALONG;
  static constexpr int DOWN = (LINES + AT_ONCE - 1) / AT_ONCE, ACROSS = (EIGHTS + ALONG - 1) / ALONG;
};
typedef Tile<true> TileA;
typedef Tile<false> TileB;
typedef Tile<!Config::TURNED> TileX;
typedef Tile<Config::TURNED> TileY;
constexpr int FLAT_A = Config::FLAT ? 16 * ((Config::M * Config::K * ELEMENT + 15) / 16 + 1) : 0;  // A, B, D as they are
constexpr int FLAT_B = Config::FLAT ? 16 * ((Config::K * Config::N * ELEMENT + 15) / 16 + 1) : 0;
constexpr int FLAT_D = Config::FLAT ? 16 * ((Config::M * Config::N * ELEMENT + 15) / 16 + 1) : 0;
constexpr int TILES = TileA::BYTES + TileB::BYTES;
constexpr int RAW = Config::FLAT ? larger(FLAT_A + FLAT_B + 48, FLAT_D) : 0;
constexpr int BUFFER = !Config::FLAT ? TILES : Config::APART ? RAW : larger(TILES, RAW);
constexpr int D_PITCH = (Config::BLK_N / 8 | 1) * 16, D_BYTES = Config::BLK_M * D_PITCH;
constexpr int D_STAGE = Config::FLAT ? FLAT_D : Config::STAGED ? PARTS * D_BYTES : 0;
constexpr int BUFFERS = Config::PERSISTENT ? 2 : Config::STAGES;
constexpr int SHARED = Config::FLAT && Config::APART ? BUFFERS * BUFFER + TILES
                       : Config::PERSISTENT          ? 2 * BUFFER + D_STAGE
                                                     : larger(Config::STAGES * BUFFER, D_STAGE);

constexpr int TILES_X = TileX::ROWS / 16 / Config::TC_X, TILES_Y = TileY::ROWS / 8 / Config::TC_Y;
constexpr int UNITS_X = TILES_X / Config::WARPS_X * Config::TC_X, UNITS_Y = TILES_Y / Config::WARPS_Y * Config::TC_Y;
static_assert(TILES_X % Config::WARPS_X == 0 && TILES_Y % Config::WARPS_Y == 0, "warps take the same number of tiles");
constexpr int COMPUTING = Config::WARPS_X * Config::WARPS_Y;  // warps
static_assert(COMPUTING * 32 <= GROUP, "warps");

// ---- what machines have and simulations are given

#ifdef __CUDACC__
FPEMU_FUNCTION u32 shared_address(const u8* at) { return (u32)__cvta_generic_to_shared(at); }
template <bool TRANSPOSED> FPEMU_FUNCTION void load_rows(u32 (&r)[4], const u8* row) {
  if (TRANSPOSED)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(row)) : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(row)) : "memory");
}
template <bool TRANSPOSED> FPEMU_FUNCTION void load_rows(u32 (&r)[2], const u8* row) {
  if (TRANSPOSED)
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1]) : "r"(shared_address(row)) : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1]) : "r"(shared_address(row)) : "memory");
}
// 16 bytes into shared memory, of which the first `valid` come from memory and the others are zero.
FPEMU_FUNCTION void copy_later(u8* to, u64 from, int valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(valid) : "memory");
}
FPEMU_FUNCTION void end_of_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int LEFT> FPEMU_FUNCTION void await_copies() { asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory"); }
FPEMU_FUNCTION void together_in_warp() { __syncwarp(); }
FPEMU_FUNCTION void together(int group) {
  if (GROUP == 32) __syncwarp();
  else if (Config::PRODUCTS > 1) asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "n"(GROUP) : "memory");
  else __syncthreads();
}
#else
template <bool TRANSPOSED> void load_rows(u32 (&r)[4], const u8* row);
template <bool TRANSPOSED> void load_rows(u32 (&r)[2], const u8* row);
inline void copy_later(u8* to, u64 from, int valid) {
  __builtin_memset(to, 0, 16), __builtin_memcpy(to, (const void*)from, valid);
}
void together_in_warp();
inline void end_of_copies() {}
template <int LEFT> inline void await_copies() {}
inline void together(int) { __syncthreads(); }
#endif

// ---- from memory to shared memory

struct Source {  // a block of an operand: its matrix, its first line and element, and how many the matrix has
  u64 matrix, end;
  s64 line, plane;
  int first_line, first, lines, length;
};

constexpr int PLANES = SPLIT ? 1 : PARTS;        // in memory
constexpr int EACH = WORDS / PLANES;             // words of eight elements in a plane
template <class T> struct Fetched {
  Eight<EACH, T::WIDTH> eight[T::DOWN][T::ACROSS][PLANES];
};

// What a thread brings in: calls `each(down, across, place, address, left)`, left: elements that are there. Threads that
// share a line are of one warp.
template <class T, class F> FPEMU_FUNCTION void for_eights(const Source& s, int thread, F each) {
  const int own_line = thread / T::ALONG, own = thread % T::ALONG;
  FPEMU_UNROLL
  for (int i = 0; i < T::DOWN; i++) {
    const int line = own_line + i * T::AT_ONCE;
    if (T::LINES % T::AT_ONCE && line >= T::LINES) continue;
    const bool there = s.first_line + line < s.lines;
    const u64 from = s.matrix + (s.first_line + line) * s.line;
    FPEMU_UNROLL
    for (int j = 0; j < T::ACROSS; j++) {
      const int eight = own + j * T::ALONG;
      if (T::EIGHTS % T::ALONG && eight >= T::EIGHTS) continue;
      const int at = s.first + 8 * eight;
      each(i, j, line * T::PITCH + 16 * eight, from + (s64)at * ELEMENT, there ? s.length - at : 0);
    }
  }
}

template <class T> FPEMU_FUNCTION void fetch(Fetched<T>& f, const Source& s, int thread) {
  for_eights<T>(s, thread, [&](int i, int j, int, u64 from, int left) {
    FPEMU_UNROLL
    for (int part = 0; part < PLANES; part++) {
      const s64 off = part * s.plane;
      f.eight[i][j][part].load(from + off, left * ELEMENT, s.matrix + off, s.end + off);
    }
  });
}

// Eight elements of a line to their place, parts told apart.
template <class T> FPEMU_FUNCTION void put(const u32 (&w)[PLANES][EACH], u8* place) {
  FPEMU_UNROLL
  for (int part = 0; part < PARTS; part++) {
    const u32(&v)[EACH] = w[part % PLANES];
    u32 r[4];
    FPEMU_UNROLL
    for (int n = 0; n < 4; n++) r[n] = SPLIT ? pick(v[2 * n % EACH], v[(2 * n + 1) % EACH], part ? HIGHS : LOWS) : v[n];
    *(uint4*)(place + part * T::PART) = make_uint4(r[0], r[1], r[2], r[3]);
  }
}

template <class T> FPEMU_FUNCTION void store(Fetched<T>& f, const Source& s, int thread, u8* tile) {
  for_eights<T>(s, thread, [&](int i, int j, int place, u64 from, int left) {
    u32 w[PLANES][EACH];
    FPEMU_UNROLL
    for (int part = 0; part < PLANES; part++) {
      const s64 off = part * s.plane;
      if (!(T::WIDTH == 16 && Config::WHOLE))
        f.eight[i][j][part].load_edges(from + off, left * ELEMENT, s.matrix + off, s.end + off);
      f.eight[i][j][part].place(w[part], (u32)(from + off), left * ELEMENT);
    }
    put<T>(w, tile + place);
  });
}

// Without registers: lines as they are in memory, to be settled unless they are aligned.
template <class T> FPEMU_FUNCTION void bring(const Source& s, int thread, u8* tile) {
  constexpr int PIECES = EACH / 4 * T::EIGHTS + T::MORE;  // of 16 bytes, in a line of a plane
  const int own_line = thread / T::ALONG, own = thread % T::ALONG;
  FPEMU_UNROLL
  for (int i = 0; i < T::DOWN; i++) {
    const int line = own_line + i * T::AT_ONCE;
    if (T::LINES % T::AT_ONCE && line >= T::LINES) continue;
    const bool there = s.first_line + line < s.lines;
    const int bytes = there ? smaller(s.length - s.first, T::LENGTH) * ELEMENT : 0;
    FPEMU_UNROLL
    for (int part = 0; part < PLANES; part++) {
      const u64 begin = s.matrix + part * s.plane, end = s.end + part * s.plane;
      const u64 at = begin + (s.first_line + line) * s.line + (s64)s.first * ELEMENT;
      const int before = T::WIDTH == 16 ? 0 : (int)(at & 15);
      FPEMU_UNROLL
      for (int j = 0; j < (PIECES + T::ALONG - 1) / T::ALONG; j++) {
        const int piece = own + j * T::ALONG;
        if (PIECES % T::ALONG && piece >= PIECES) continue;
        const u64 from = at - before + 16 * piece;
        u8* to = tile + line * T::PITCH + part * T::PART + 16 * piece;
        if (T::WIDTH == 16) {
          const int valid = bytes - 16 * piece;
          copy_later(to, valid > 0 ? from : s.matrix, valid < 0 ? 0 : smaller(valid, 16));
        } else if (bytes > 0 && 16 * piece - before < bytes) {
          if (from >= begin) copy_later(to, from, end - from < 16 ? (int)(end - from) : 16);
          else
            for (int b = before; b < 16 && from + b < end; b += 2) *(u16*)(to + b) = (u16)load2(from + b);
        }
      }
    }
  }
}

// After `bring`: each line to its own beginning, zeros where nothing is there, parts told apart.
template <class T> FPEMU_FUNCTION void settle(const Source& s, int thread, u8* tile) {
  const int own_line = thread / T::ALONG, own = thread % T::ALONG;
  FPEMU_UNROLL
  for (int i = 0; i < T::DOWN; i++) {
    const int line = own_line + i * T::AT_ONCE;
    const bool mine = !(T::LINES % T::AT_ONCE) || line < T::LINES;
    const int bytes = mine && s.first_line + line < s.lines ? (s.length - s.first) * ELEMENT : 0;
    const u32 low = (u32)s.matrix + (u32)(s.first_line + line) * (u32)s.line + (u32)s.first * ELEMENT;
    Eight<EACH, T::WIDTH> eight[T::ACROSS][PLANES];
    FPEMU_UNROLL
    for (int j = 0; j < T::ACROSS; j++)
      FPEMU_UNROLL
      for (int part = 0; part < PLANES; part++)
        FPEMU_UNROLL
        for (int n = 0; n < eight[j][part].GIVEN; n += 4)
          if (mine && own + j * T::ALONG < T::EIGHTS)
            load_shared(eight[j][part].word + n,
                        tile + line * T::PITCH + part * T::PART + 4 * EACH * (own + j * T::ALONG) + 4 * n);
    together_in_warp();
    FPEMU_UNROLL
    for (int j = 0; j < T::ACROSS; j++) {
      const int number = own + j * T::ALONG;
      if (!mine || number >= T::EIGHTS) continue;
      u32 w[PLANES][EACH];
      FPEMU_UNROLL
      for (int part = 0; part < PLANES; part++)
        eight[j][part].place(w[part], low + part * (u32)s.plane, bytes - 8 * number * ELEMENT);
      put<T>(w, tile + line * T::PITCH + 16 * number);
    }
  }
}

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
  if (TERMS == 3)
    FPEMU_UNROLL
    for (int i = 0; i < 2 * Config::TC_Y; i++)
      y[i / 2][TERMS - 1][i % 2] = add_halves(y[i / 2][0][i % 2], y[i / 2][1 % TERMS][i % 2]);
}

typedef Sum Sums_[UNITS_X][UNITS_Y][TERMS];

FPEMU_FUNCTION int row_of(int warp, int unit) {
  return ((warp % Config::WARPS_X + Config::WARPS_X * (unit / Config::TC_X)) * Config::TC_X + unit % Config::TC_X) * 16;
}
FPEMU_FUNCTION int column_of(int warp, int unit) {
  return ((warp / Config::WARPS_X + Config::WARPS_Y * (unit / Config::TC_Y)) * Config::TC_Y + unit % Config::TC_Y) * 8;
}

// `left`: of k in this block.
FPEMU_FUNCTION void multiply(Sums_& sums, const u8* buffer, int warp, int left) {
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
      for (int i = 0; i < UNITS_X; i++)
        FPEMU_UNROLL
        for (int c = 0; c < Config::TC_Y; c++) multiply_step<Config::TURNED>(sums[i][j + c], x[i], y[c]);
    }
  }
}

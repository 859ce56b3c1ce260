// Matrices without gaps, copied as they are: sixteen bytes by sixteen from the multiple of 16 before the first element
// on. From there each thread takes eight neighbours of a line at a time to their place in a tile. D goes the other way:
// a warp stores eight rows of it at a time, so rows of A are put in an order in which those lie in different banks.
#pragma once
#include "batched_loads.cuh"

#ifdef __CUDACC__
#define FPEMU_FEW _Pragma("unroll 4")  // loops whose text would not fit the instruction cache
#else
#define FPEMU_FEW
#endif

template <bool OF_A> struct Flat {
  typedef Tile<OF_A> T;
  static constexpr int LINES = (OF_A == T::ALONG_K) ? (OF_A ? Config::M : Config::K) : (OF_A ? Config::K : Config::N);
  static constexpr int LENGTH = T::ALONG_K ? Config::K : OF_A ? Config::M : Config::N;
  static constexpr int BYTES = LINES * LENGTH * ELEMENT, PIECES = (BYTES + 15) / 16 + (Config::WIDTH < 16);
  static constexpr int TURNS = (T::LINES * T::EIGHTS + GROUP - 1) / GROUP;  // of a thread, eight elements each
};

// Where rows of a large D have an odd length, those that a warp stores at once are eight, four or two apart, in spans
// of 64, of 32 and of 16 rows; else they are neighbours.
constexpr bool APART_ROWS = Config::FLAT && !Config::TURNED && Config::A_ALONG_K && Config::N % 2 && Config::BLK_M > 32;
constexpr int IN_64 = Config::BLK_M / 64 * 64, IN_32 = Config::BLK_M / 32 * 32;
FPEMU_FUNCTION constexpr int span_of(int row) { return row < IN_64 ? row / 64 * 64 : row < IN_32 ? IN_64 : IN_32; }
FPEMU_FUNCTION constexpr int distance_in(int row) { return row < IN_64 ? 8 : row < IN_32 ? 4 : 2; }
FPEMU_FUNCTION int row_of_line(int line) {
  const int span = span_of(line), in = line - span;
  return APART_ROWS ? span + in % 8 * distance_in(line) + in / 8 : line;
}
FPEMU_FUNCTION int line_of_row(int row) {
  const int span = span_of(row), in = row - span, distance = distance_in(row);
  return APART_ROWS ? span + in / distance + in % distance * 8 : row;
}

// Copy a matrix into shared memory in chunks of 16 bytes. The first chunk may begin in the preceding matrix, and the
// last may end in the following one.
template <bool OF_A> FPEMU_FUNCTION void copy_contiguous_async(u64 matrix, u64 first, int batch, int thread, u8* to) {
  typedef Flat<OF_A> F;
  const u64 aligned = matrix & ~(u64)15, end = matrix + F::BYTES, last = first + (u64)batch * F::BYTES;
  FPEMU_FEW
  for (int i = 0; i < (F::PIECES + GROUP - 1) / GROUP; i++) {
    const int piece = thread + i * GROUP;
    if (F::PIECES % GROUP && piece >= F::PIECES) continue;
    const u64 from = aligned + 16 * piece;
    if (from >= end) continue;
    if (from >= first && from + 16 <= last) copy_later<16>(to + 16 * piece, from, true);
    else
      for (int b = 0; b < 16; b += 2)
        if (from + b >= first && from + b < last) *(u16*)(to + 16 * piece + b) = (u16)load2(from + b);
  }
}

template <bool OF_A> struct Settled {
  u32 word[Flat<OF_A>::TURNS][PLANES][EACH];
};

// Eight elements of what was copied: turn number `turn`, of all threads.
template <bool OF_A> FPEMU_FUNCTION void take_eight(u32 (&w)[EACH], int before, int turn, const u8* from) {
  typedef Flat<OF_A> F;
  const int line = turn / F::T::EIGHTS, number = turn % F::T::EIGHTS;
  const int bytes = line < F::LINES ? (F::LENGTH - 8 * number) * ELEMENT : 0;
  const int at = before + line * (F::LENGTH * ELEMENT) + 8 * ELEMENT * number;
  Eight<EACH, Config::WIDTH> eight;
  FPEMU_UNROLL
  for (int n = 0; n < eight.GIVEN; n += 4) {
    eight.word[n] = eight.word[n + 1] = eight.word[n + 2] = eight.word[n + 3] = 0;
    if (bytes > 0) load_shared(eight.word + n, from + (at & ~15) + 4 * n);
  }
  eight.place(w, (u32)at, bytes);
}
template <bool OF_A> FPEMU_FUNCTION void put_eight(const u32 (&w)[PLANES][EACH], int turn, u8* tile) {
  typedef typename Flat<OF_A>::T T;
  const int line = turn / T::EIGHTS, number = turn % T::EIGHTS;
  if (T::LINES * T::EIGHTS % GROUP && line >= T::LINES) return;
  put<T>(w, tile + (OF_A ? line_of_row(line) : line) * T::PITCH + 16 * number);
}

// Lines that are eight apart begin at the same place between two multiples of 16 bytes. A thread takes such ones, and
// those of a warp are the same ones where there are eight warps, so that how far words move is decided once.
template <bool OF_A> struct Together {
  typedef Flat<OF_A> F;
  typedef typename F::T T;
  static constexpr int LANES = smaller(32, power_of_two(T::EIGHTS)), LINES = 32 / LANES;  // of a line; of a warp
  static constexpr int WARPS = GROUP / 32, AT_ONCE = WARPS * LINES, TURNS = (T::LINES + AT_ONCE - 1) / AT_ONCE;
  static constexpr int SETS = larger(8 / WARPS, 1);  // of lines of a warp that do not begin alike
  static constexpr bool SUITS = T::EIGHTS <= LANES && SETS <= 2 && (AT_ONCE == 8 || AT_ONCE == 16 || AT_ONCE == 32);
  FPEMU_FUNCTION static int first_line(int thread) {
    const int warp = thread / 32, own = thread % 32 / LANES;
    return warp % 8 + WARPS * (own % SETS) % 8 + 8 * (own / SETS + LINES / SETS * (warp / 8));
  }
};
// Eight elements of each of a thread's lines by way of registers: `from` the multiple of 16 before those of the first,
// SHIFT words after which they begin, `mask` for what follows the line.
template <bool OF_A, int SHIFT>
FPEMU_FUNCTION void distribute_lines(const u8* from, u32 selector, const u32 (&mask)[EACH], int first, int number,
                                     u8* tile) {
  typedef Together<OF_A> W;
  typedef typename W::T T;
  constexpr int LINES = Flat<OF_A>::LINES, LENGTH = Flat<OF_A>::LENGTH, GIVEN = EACH + SHIFT + (Config::WIDTH == 2);
  constexpr bool MORE = LENGTH < T::LENGTH;  // the tile's lines are longer
  FPEMU_UNROLL
  for (int i = 0; i < W::TURNS; i++) {
    const int begin = i * W::AT_ONCE, line = begin + first;
    if (begin + W::AT_ONCE > LINES && line >= (T::ALONG_K ? LINES : T::LINES)) continue;  // beside rows may be anything
    u32 word[(GIVEN + 3) / 4 * 4], w[PLANES][EACH];
    const bool exists = begin + W::AT_ONCE <= LINES || line < LINES;
    FPEMU_UNROLL
    for (int n = 0; n < GIVEN; n += 4)
      if (exists) load_shared(word + n, from + begin * (LENGTH * ELEMENT) + 4 * n);
    FPEMU_UNROLL
    for (int n = 0; n < EACH; n++) {
      const u32 x =
          Config::WIDTH == 2 ? pick(word[n + SHIFT], word[(n + SHIFT + 1) % GIVEN], selector) : word[n + SHIFT];
      w[0][n] = exists ? MORE ? x & mask[n] : x : 0;
    }
    const int span = span_of(begin), distance = distance_in(begin);
    const int place =
        OF_A && APART_ROWS ? first / distance + first % distance * 8 + span + (begin - span) / distance : line;
    put<T>(w, tile + place * T::PITCH + 16 * number);
  }
}
template <bool OF_A> FPEMU_FUNCTION void distribute_tile(u64 matrix, int thread, const u8* from, u8* tile) {
  typedef Flat<OF_A> F;
  typedef Together<OF_A> W;
  const int before = Config::WIDTH == 16 ? 0 : (int)(matrix & 15);
  if (!W::SUITS) {
    FPEMU_FEW
    for (int i = 0; i < F::TURNS; i++) {
      u32 w[PLANES][EACH];
      take_eight<OF_A>(w[0], before, thread + i * GROUP, from);
      put_eight<OF_A>(w, thread + i * GROUP, tile);
    }
    return;
  }
  const int number = thread % W::LANES, first = W::first_line(thread), left = (F::LENGTH - 8 * number) * ELEMENT;
  if (number >= F::T::EIGHTS) return;
  u32 mask[EACH];
  FPEMU_UNROLL
  for (int n = 0; n < EACH; n++) mask[n] = left >= 4 * n + 4 ? ~0u : left == 4 * n + 2 ? 0xFFFF : 0;
  const int at = before + first * (F::LENGTH * ELEMENT), shift = at & 15;
  const u8* own = from + (at & ~15) + 8 * ELEMENT * number;
  const u32 selector = shift & 2 ? NEXT : 0x3210;
  if (Config::WIDTH == 16 || shift < 4) distribute_lines<OF_A, 0>(own, selector, mask, first, number, tile);
  else if (Config::WIDTH < 8 && shift < 8) distribute_lines<OF_A, 1>(own, selector, mask, first, number, tile);
  else if (shift < 12) distribute_lines<OF_A, 2>(own, selector, mask, first, number, tile);
  else distribute_lines<OF_A, 3>(own, selector, mask, first, number, tile);
}
template <bool OF_A> FPEMU_FUNCTION void take_flat(Settled<OF_A>& taken, u64 matrix, int thread, const u8* from) {
  const int before = Config::WIDTH == 16 ? 0 : (int)(matrix & 15);
  FPEMU_UNROLL
  for (int i = 0; i < Flat<OF_A>::TURNS; i++) take_eight<OF_A>(taken.word[i][0], before, thread + i * GROUP, from);
}
template <bool OF_A> FPEMU_FUNCTION void put_flat(const Settled<OF_A>& taken, int thread, u8* tile) {
  FPEMU_UNROLL
  for (int i = 0; i < Flat<OF_A>::TURNS; i++) put_eight<OF_A>(taken.word[i], thread + i * GROUP, tile);
}

// Both operands from where they were brought to to their tiles, which may be the same memory.
FPEMU_FUNCTION void distribute_tiles(u64 a, u64 b, int thread, int group, const u8* buffer, u8* tiles) {
  sync_group(group);
  if (Config::APART) {
    distribute_tile<true>(a, thread, buffer, tiles),
        distribute_tile<false>(b, thread, buffer + FLAT_A, tiles + TileA::BYTES);
    return;
  }
  Settled<true> of_a;
  Settled<false> of_b;
  take_flat<true>(of_a, a, thread, buffer), take_flat<false>(of_b, b, thread, buffer + FLAT_A);
  sync_group(group);
  put_flat<true>(of_a, thread, tiles), put_flat<false>(of_b, thread, tiles + TileA::BYTES);
}

// Store D from shared memory, where it has the layout of memory: whole chunks, and single elements at both ends.
FPEMU_FUNCTION void store_flat(u64 matrix, int thread, const u8* from) {
  constexpr int BYTES = Config::M * Config::N * ELEMENT;
  const u64 aligned = matrix & ~(u64)15;
  const int before = (int)(matrix & 15), end = before + BYTES;  // offsets from the first chunk
  const int whole = Config::WIDTH < 16 && before ? 16 : 0, last = larger(end & ~15, whole);
  FPEMU_FEW
  for (int at = whole + 16 * thread; at < last; at += 16 * GROUP) store16(aligned + at, from + at);
  if ((Config::WIDTH == 16 && BYTES % 16 == 0) || thread >= 16) return;
  const int at = thread < 8 ? before + 2 * thread : last + 2 * (thread - 8);
  if (at < (thread < 8 ? smaller(whole, end) : end)) *(u16*)(aligned + at) = *(const u16*)(from + at);
}

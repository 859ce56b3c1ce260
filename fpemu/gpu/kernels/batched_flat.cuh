// Matrices without gaps, copied as they are: sixteen bytes by sixteen from the multiple of 16 before the first element on.
// From there each thread takes eight neighbours of a line at a time to their place in a tile.
#pragma once
#include "batched_bring.cuh"

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

// The pieces of a matrix into shared memory. The first may begin in the matrix before, the last may end in the one after.
template <bool OF_A> FPEMU_FUNCTION void bring_flat(u64 matrix, u64 first, int batch, int thread, u8* to) {
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
  if (T::LINES * T::EIGHTS % GROUP == 0 || line < T::LINES) put<T>(w, tile + line * T::PITCH + 16 * number);
}

template <bool OF_A> FPEMU_FUNCTION void settle_apart(u64 matrix, int thread, const u8* from, u8* tile) {
  const int before = Config::WIDTH == 16 ? 0 : (int)(matrix & 15);
  FPEMU_FEW
  for (int i = 0; i < Flat<OF_A>::TURNS; i++) {
    u32 w[PLANES][EACH];
    take_eight<OF_A>(w[0], before, thread + i * GROUP, from);
    put_eight<OF_A>(w, thread + i * GROUP, tile);
  }
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
FPEMU_FUNCTION void settle_flat(u64 a, u64 b, int thread, int group, const u8* buffer, u8* tiles) {
  together(group);
  if (Config::APART) {
    settle_apart<true>(a, thread, buffer, tiles), settle_apart<false>(b, thread, buffer + FLAT_A, tiles + TileA::BYTES);
    return;
  }
  Settled<true> of_a;
  Settled<false> of_b;
  take_flat<true>(of_a, a, thread, buffer), take_flat<false>(of_b, b, thread, buffer + FLAT_A);
  together(group);
  put_flat<true>(of_a, thread, tiles), put_flat<false>(of_b, thread, tiles + TileA::BYTES);
}

// D from shared memory, where it lies as in memory.
FPEMU_FUNCTION void store_flat(u64 matrix, int thread, const u8* from) {
  constexpr int BYTES = Config::M * Config::N * ELEMENT, PIECES = (BYTES + 15) / 16 + (Config::WIDTH < 16);
  const u64 aligned = matrix & ~(u64)15;
  const int before = (int)(matrix & 15);
  FPEMU_FEW
  for (int i = 0; i < (PIECES + GROUP - 1) / GROUP; i++) {
    const int piece = thread + i * GROUP, first = 16 * piece - before;
    if (first >= BYTES) continue;
    if (first >= 0 && first + 16 <= BYTES) *(uint4*)(aligned + 16 * piece) = *(const uint4*)(from + 16 * piece);
    else
      for (int b = first < 0 ? -first : 0; b < 16 && first + b < BYTES; b += 2)
        *(u16*)(aligned + 16 * piece + b) = *(const u16*)(from + 16 * piece + b);
  }
}

// Loads and stores of the batched kernels: eight adjacent elements of any alignment, rows of D in whole chunks.
#pragma once
#include "bit_patterns.cuh"

#ifdef __CUDACC__
FPEMU_FUNCTION void reads(u64, int) {}
#else
void reads(u64 at, int bytes);  // a simulation looks whether they are an operand's
#endif
FPEMU_FUNCTION u32 load2(u64 at) { return reads(at, 2), *(const u16*)at; }
FPEMU_FUNCTION u32 load4(u64 at) { return reads(at, 4), *(const u32*)at; }
FPEMU_FUNCTION uint2 load8(u64 at) { return reads(at, 8), *(const uint2*)at; }

FPEMU_FUNCTION void load_shared(u32* w, const u8* at) {
  const uint4 four = *(const uint4*)at;
  w[0] = four.x, w[1] = four.y, w[2] = four.z, w[3] = four.w;
}

// Sixteen bytes of an aligned address.
FPEMU_FUNCTION void load16(u32* w, u64 at) {
  reads(at, 16);
  const uint4 four = *(const uint4*)at;
  w[0] = four.x, w[1] = four.y, w[2] = four.z, w[3] = four.w;
}

// Sixteen bytes of a result to an aligned address: they leave the L2 cache before operands do.
FPEMU_FUNCTION void store16(u64 at, const u8* from) {
#ifdef __CUDACC__
  u32 w[4];
  load_shared(w, from);
  asm volatile("st.global.cs.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3])
               : "memory");
#else
  __builtin_memcpy((void*)at, from, 16);
#endif
}

// Eight elements that lie side by side come from aligned words of 16 bytes, whatever their own alignment: COUNT words
// from `at` on are in the GIVEN words from the multiple of 16 before it. Bytes before `begin` and from `end` on are not
// read.
template <int COUNT, int WIDTH> struct Eight {
  static constexpr int GIVEN = WIDTH == 16 ? COUNT : COUNT + 4;
  u32 word[GIVEN];

  // `bytes`: of the elements that are there.
  FPEMU_FUNCTION void load(u64 at, int bytes, u64 begin, u64 end) {
    const int before = WIDTH == 16 ? 0 : (int)(at & 15);
    const u64 from = at - before;
    FPEMU_UNROLL
    for (int i = 0; i < GIVEN; i += 4) {
      word[i] = word[i + 1] = word[i + 2] = word[i + 3] = 0;
      const u64 own = from + 4 * i;
      if (4 * i - before < bytes && own >= begin && own + 16 <= end) load16(word + i, own);
    }
  }
  // What `load` left out: at the first and the last bytes of a matrix.
  FPEMU_FUNCTION void load_edges(u64 at, int bytes, u64 begin, u64 end) {
    const int before = WIDTH == 16 ? 0 : (int)(at & 15);
    const u64 from = at - before;
    FPEMU_UNROLL
    for (int i = 0; i < GIVEN; i += 4) {
      const u64 own = from + 4 * i;
      if (4 * i - before >= bytes || (own >= begin && own + 16 <= end)) continue;
      FPEMU_UNROLL
      for (int j = 0; j < 8; j++) {
        const u64 place = own + 2 * j;
        if (place >= begin && place < end) word[i + j / 2] |= load2(place) << 16 * (j % 2);
      }
    }
  }
  // The elements in place, zero where they are not there; `at`: its last four bits count.
  FPEMU_FUNCTION void place(u32 (&w)[COUNT], u32 at, int bytes) {
    if (WIDTH < 16) {
      FPEMU_UNROLL
      for (int step = 2; step >= (WIDTH == 8 ? 2 : 1); step--) {  // by two words, by one
        const bool moves = at & 4 * step;
        FPEMU_UNROLL
        for (int i = 0; i + step < GIVEN; i++) word[i] = moves ? word[i + step] : word[i];
      }
      const u32 selector = WIDTH == 2 && (at & 2) ? NEXT : 0x3210;
      FPEMU_UNROLL
      for (int i = 0; i < COUNT; i++)
        w[i] = WIDTH == 2 ? pick(word[i], word[i + 1 < GIVEN ? i + 1 : i], selector) : word[i];
    } else {
      FPEMU_UNROLL
      for (int i = 0; i < COUNT; i++) w[i] = word[i];
    }
    if (bytes < 4 * COUNT) FPEMU_UNROLL
    for (int i = 0; i < COUNT; i++) w[i] = bytes >= 4 * i + 4 ? w[i] : bytes == 4 * i + 2 ? w[i] & 0xFFFF : 0;
  }
};

// Store chunk `number` (below pieces_of_row) of a row of halves from shared memory; the chunks are as long as the row's
// alignment permits. If the row begins between two multiples of four bytes, its first chunk contains one element.
FPEMU_FUNCTION constexpr int pieces_of_row(int width, int length) {
  return 2 * length / larger(width, 4) + (width == 2);
}
template <int WIDTH> FPEMU_FUNCTION void store_piece(u64 to, const u8* row, int number, int length) {
  constexpr int SIZE = larger(WIDTH, 4), HALVES = SIZE / 2;
  const int before = WIDTH == 2 ? (int)(to & 2) / 2 : 0, first = HALVES * number - before;  // of the row's elements
  if (first >= length) return;
  const u64 at = to + 2 * first;
  const u8* from = row + SIZE * number;
  if (WIDTH == 2) {
    const u64 word = to - 2 * before + SIZE * number;
    const u32 next = 2 * number < length ? *(const u32*)from : 0, last = *(const u32*)(from - (number ? 4 : 0));
    const u32 x = pick(last, next, before ? NEXT : 0x7654);
    const bool begins = first < 0, ends = first + 1 == length;
    if (!begins && !ends) *(u32*)word = x;
    if (begins) *(u16*)(word + 2) = (u16)(x >> 16);
    if (ends) *(u16*)word = (u16)x;
    return;
  }
  if (first + HALVES <= length) {
    if (WIDTH == 16) store16(at, from);
    else if (WIDTH == 8) *(uint2*)at = *(const uint2*)from;
    else *(u32*)at = *(const u32*)from;
    return;
  }
  FPEMU_UNROLL
  for (int i = 0; i < HALVES; i++)
    if (first + i < length) *(u16*)(at + 2 * i) = *(const u16*)(from + 2 * i);
}

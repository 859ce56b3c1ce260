// A block of an operand from memory to shared memory: by way of registers, or by copies that run by themselves, of as
// many bytes at a time as the alignment of its lines allows.
#pragma once
#include "batched_block.cuh"

struct Source {  // a block of an operand: its matrix, its first line and element, and how many the matrix has
  u64 matrix, end;
  s64 line, plane;
  int first_line, first, lines, length;
};

constexpr int PLANES = SPLIT ? 1 : PARTS;  // in memory
constexpr int EACH = WORDS / PLANES;       // words of eight elements in a plane
template <class T> struct Fetched {
  Eight<EACH, T::WIDTH> eight[T::DOWN][T::ACROSS][PLANES];
};

// What a thread brings in: calls `each(down, across, place, address, left)`, left: elements that are there, at most
// eight, since their bytes are an int. Threads that share a line are of one warp.
template <class T, class F> FPEMU_FUNCTION void for_eights(const Source& s, int thread, F each) {
  const int own_line = thread / T::ALONG, own = thread % T::ALONG;
  FPEMU_UNROLL
  for (int i = 0; i < T::DOWN; i++) {
    const int line = own_line + i * T::AT_ONCE;
    if (T::LINES % T::AT_ONCE && line >= T::LINES) continue;
    const bool exists = s.first_line + line < s.lines;
    const u64 from = s.matrix + (s.first_line + line) * s.line;
    FPEMU_UNROLL
    for (int j = 0; j < T::ACROSS; j++) {
      const int eight = own + j * T::ALONG;
      if (T::EIGHTS % T::ALONG && eight >= T::EIGHTS) continue;
      const int at = s.first + 8 * eight;
      each(i, j, line * T::PITCH + 16 * eight, from + (s64)at * ELEMENT, exists ? smaller(s.length - at, 8) : 0);
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

// Stores eight elements of a line at their place, real and imaginary parts separated.
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

// Asynchronous copies, without registers. `copy_tile_async` copies in chunks of SIZE bytes to their final position in
// the tile if lines are aligned to four bytes or more; otherwise a line is copied from two bytes before it, and
// `shift_lines` moves it. A line belongs to one warp: no other warp reads it before the shift.
template <class T> struct Pieces {
  static constexpr int SIZE = T::WIDTH == 2 ? 4 : T::WIDTH;
  static constexpr int IN_MATRIX = !Config::EXACT ? T::LENGTH
                                   : T::ALONG_K   ? Config::K
                                   : T::IS_A      ? Config::M
                                                  : Config::N;
  static constexpr int BYTES = T::LENGTH * EACH / 4 * 2;  // of a line of a plane
  static constexpr int COUNT = BYTES / SIZE + (T::WIDTH == 2 && IN_MATRIX >= T::LENGTH);
  static constexpr int LANES = smaller(32, larger(T::ALONG, power_of_two(BYTES / SIZE)));  // that share a line
  static constexpr int LINES = 32 / T::ALONG, TURNS = LINES * LANES / 32;                  // of a warp at a time
  // The last chunk of a line contains bytes that follow the line in memory; along k they must become zeros.
  static constexpr bool RAGGED =
      T::ALONG_K && !T::SETTLES && (Config::EXACT ? IN_MATRIX * ELEMENT % SIZE : !Config::WHOLE);
};

// Calls `each(line, lane)` for a thread's lines; `lane`: of those that share it.
template <class T, class F> FPEMU_FUNCTION void for_lines(int thread, F each) {
  typedef Pieces<T> P;
  FPEMU_UNROLL
  for (int i = 0; i < T::DOWN; i++) FPEMU_UNROLL
  for (int turn = 0; turn < P::TURNS; turn++) {
    const int line = i * T::AT_ONCE + thread / 32 * P::LINES + turn * (32 / P::LANES) + thread % 32 / P::LANES;
    if (T::LINES % T::AT_ONCE == 0 || line < T::LINES) each(line, thread % P::LANES);
  }
}

// Bytes of a line that are there.
template <class T> FPEMU_FUNCTION int present(const Source& s, int line) {
  return s.first_line + line < s.lines ? smaller(s.length - s.first, T::LENGTH) * ELEMENT : 0;
}

// Bytes from the beginning of a matrix.
template <bool SHORT> struct DistanceOf {
  typedef s64 type;
};
template <> struct DistanceOf<true> {
  typedef int type;
};
typedef DistanceOf<Config::CONTIGUOUS>::type Distance;

// A line of a tile in memory: its first byte's distance, how many bytes of it are there, and which may be read.
struct Line {
  Distance offset;
  int bytes, begin, end;
};
template <class T> FPEMU_FUNCTION Line line_of(const Source& s, int line) {
  Line result;
  result.offset = (Distance)(s.first_line + line) * (Distance)s.line + (Distance)s.first * ELEMENT;
  result.bytes = present<T>(s, line);
  const Distance left = (Distance)(s.end - s.matrix) - result.offset;
  const int most = result.bytes + Pieces<T>::SIZE;
  result.begin = result.offset > 0 ? -2 : 0, result.end = left < most ? (int)left : most;
  return result;
}
FPEMU_FUNCTION int before_of(u64 at, int width) { return width == 2 ? (int)(at & 2) : 0; }

// Copy the whole chunks of lines, and write zeros for lines beyond the matrix.
template <class T> FPEMU_FUNCTION void copy_chunks_async(const Source& s, int thread, u8* tile) {
  typedef Pieces<T> P;
  for_lines<T>(thread, [&](int number, int lane) {
    const Line line = line_of<T>(s, number);
    FPEMU_UNROLL
    for (int part = 0; part < PLANES; part++) {
      const u64 at = s.matrix + part * s.plane + line.offset;
      const int before = before_of(at, T::WIDTH), end = line.end + before - P::SIZE;
      const int bytes = line.bytes > 0 ? line.bytes + before : 0;
      const u64 from = at - before + P::SIZE * lane;
      u8* to = tile + number * T::PITCH + part * T::PART + P::SIZE * lane;
      FPEMU_UNROLL
      for (int j = 0; j < (P::COUNT + P::LANES - 1) / P::LANES; j++) {
        constexpr int STEP = P::SIZE * P::LANES;
        const int own = P::SIZE * lane + j * STEP;
        if (P::COUNT % P::LANES && lane + j * P::LANES >= P::COUNT) continue;
        const bool exists = own < bytes, whole = own <= end && (T::WIDTH > 2 || j || own - before >= line.begin);
        copy_later<P::SIZE>(to + j * STEP, from + j * STEP, exists, whole || !exists);
      }
    }
  });
}

// Copy the partial chunks of a line by one thread of its warp, without reading beyond the matrix.
template <class T> FPEMU_FUNCTION void copy_edges(const Source& s, int number, u8* tile) {
  typedef Pieces<T> P;
  const Line line = line_of<T>(s, number);
  if (line.bytes <= 0) return;
  FPEMU_UNROLL
  for (int part = 0; part < PLANES; part++) {
    const u64 at = s.matrix + part * s.plane + line.offset;
    const int before = before_of(at, T::WIDTH), last = (line.end + before) / P::SIZE * P::SIZE;  // of the tile's line
    u8* to = tile + number * T::PITCH + part * T::PART;
    if (before > -line.begin) *(u16*)(to + 2) = (u16)load2(at);
    if (last - before >= line.bytes) continue;
    FPEMU_UNROLL
    for (int b = 0; b < P::SIZE; b += 2) {
      const int own = last - before + b;
      if (own >= 0) *(u16*)(to + last + b) = own < line.end ? (u16)load2(at + own) : 0;
    }
  }
}

template <class T> FPEMU_FUNCTION void copy_all_edges(const Source& s, int thread, u8* tile) {
  typedef Pieces<T> P;
  if (T::WIDTH > 2 && (Config::EXACT ? P::IN_MATRIX * ELEMENT % P::SIZE == 0 : Config::WHOLE)) return;
  if (!Config::CONTIGUOUS) {
    for_lines<T>(thread, [&](int line, int lane) {
      if (lane == 0) copy_edges<T>(s, line, tile);
    });
    return;
  }
  const int last = s.lines - 1 - s.first_line, warp = last % T::AT_ONCE / P::LINES;
  if (last >= 0 && last < T::LINES && thread == 32 * warp) copy_edges<T>(s, last, tile);
  if (T::WIDTH == 2 && s.first_line == 0 && last != 0 && thread == 0) copy_edges<T>(s, 0, tile);
}

// Blocks of A and B into a buffer.
FPEMU_FUNCTION void copy_tile_async(const Source& a, const Source& b, int thread, u8* buffer) {
  copy_chunks_async<TileA>(a, thread, buffer), copy_chunks_async<TileB>(b, thread, buffer + TileA::BYTES);
  copy_all_edges<TileA>(a, thread, buffer), copy_all_edges<TileB>(b, thread, buffer + TileA::BYTES);
}

// After `copy_tile_async`: zeros for what followed a line.
template <class T> FPEMU_FUNCTION void clean(const Source& s, int thread, u8* tile) {
  typedef Pieces<T> P;
  for_lines<T>(thread, [&](int line, int lane) {
    const int bytes = present<T>(s, line), piece = bytes / P::SIZE;
    if (bytes % P::SIZE == 0 || piece % P::LANES != lane) return;
    FPEMU_UNROLL
    for (int part = 0; part < PLANES; part++) FPEMU_UNROLL
    for (int b = 2; b < P::SIZE; b += 2)
      if (b >= bytes % P::SIZE) *(u16*)(tile + line * T::PITCH + part * T::PART + P::SIZE * piece + b) = 0;
  });
}

// After `copy_tile_async`: shifts each line to the beginning of its row, fills the rest with zeros and separates real
// and imaginary parts.
template <class T> FPEMU_FUNCTION void shift_lines(const Source& s, int thread, u8* tile) {
  typedef Pieces<T> P;
  const int own_line = thread / T::ALONG, own = thread % T::ALONG;
  FPEMU_UNROLL
  for (int i = 0; i < T::DOWN; i++) {
    const int line = own_line + i * T::AT_ONCE;
    const bool in_range = !(T::LINES % T::AT_ONCE) || line < T::LINES;
    const int bytes = in_range ? present<T>(s, line) : 0;
    const u32 low = (u32)s.matrix + (u32)(s.first_line + line) * (u32)s.line + (u32)s.first * ELEMENT;
    u32 word[T::ACROSS][PLANES][EACH + 1];
    FPEMU_UNROLL
    for (int j = 0; j < T::ACROSS; j++) FPEMU_UNROLL
    for (int part = 0; part < PLANES; part++) {
      const int number = own + j * T::ALONG;
      if (!in_range || number >= T::EIGHTS) continue;
      const u8* from = tile + line * T::PITCH + part * T::PART + 4 * EACH * number;
      FPEMU_UNROLL
      for (int n = 0; n < EACH; n += 4) load_shared(word[j][part] + n, from + 4 * n);
      word[j][part][EACH] = SPLIT ? 0 : *(const u32*)(from + 16);
    }
    sync_warp();
    FPEMU_UNROLL
    for (int j = 0; j < T::ACROSS; j++) {
      const int number = own + j * T::ALONG;
      if (!in_range || number >= T::EIGHTS) continue;
      // A line that is not there is zeros already.
      const int left =
          (Config::EXACT && P::IN_MATRIX <= T::LENGTH ? P::IN_MATRIX * ELEMENT : bytes) - 8 * number * ELEMENT;
      u32 w[PLANES][EACH];
      bool changes = SPLIT;
      FPEMU_UNROLL
      for (int part = 0; part < PLANES; part++) {
        const bool moves = !SPLIT && ((low + part * (u32)s.plane) & 2);
        FPEMU_UNROLL
        for (int n = 0; n < EACH; n++) {
          const u32 x = SPLIT ? word[j][part][n] : pick(word[j][part][n], word[j][part][n + 1], moves ? NEXT : 0x3210);
          w[part][n] = left >= 4 * n + 4 ? x : left == 4 * n + 2 ? x & 0xFFFF : 0;
        }
        changes |= moves || left < 4 * EACH;
      }
      if (changes) put<T>(w, tile + line * T::PITCH + 16 * number);
    }
  }
}

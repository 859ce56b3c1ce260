// Stand-ins for the batched kernels on a processor. The file is included twice: before a kernel's text for the functions
// of warps over the lanes of cuda_on_cpu.h, and after it, with the kernel's name defined, for functions that it declares.
#ifndef BATCHED_ON_CPU
#define BATCHED_ON_CPU
#include "mma_on_cpu.h"
template <class F> inline u32 pair_of(F half) { return half(0) | half(1) << 16; }
template <bool TRANSPOSED, int R> inline void rows_either(u32 (&r)[R], const unsigned char* row) {
  if (!TRANSPOSED) return rows_of_lanes(r, row);
  simulation::exchange(row, [&](auto given) {
    const int lane = threadIdx.x % 32;
    for (int i = 0; i < R; i++)
      r[i] = pair_of([&](int e) -> u32 {
        const unsigned char* from = given(8 * i + 2 * (lane % 4) + e);
        if ((uintptr_t)from % 16) std::abort();
        unsigned short h;
        return std::memcpy(&h, from + 2 * (lane / 4), 2), h;
      });
  });
}
#else
// No byte besides those of the operands may be read: fences detect other pages, `reads` other bytes.
static unsigned long long bounds[16];
static int operands;
extern "C" void only(const unsigned long long* given, int count) {
  std::memcpy(bounds, given, 16 * count), operands = count;
  std::memset(memory, 0x7E, sizeof memory);  // NaN, where a kernel reads what it has not written
}
void reads(u64 at, int bytes) {
  bool found = operands == 0;
  for (int i = 0; i < operands; i++) found |= at >= bounds[2 * i] && at + bytes <= bounds[2 * i + 1];
  if (!found) std::fprintf(stderr, "%d bytes at %llx are no operand's\n", bytes, at), std::abort();
}
void multiply_add(Sum& c, const u32 (&a)[4], const u32 (&b)[2]) { simulated_mma(c.word, a, b); }

#ifdef BATCHED_BLOCK
void sync_warp() { simulation::meet(); }
void arrival_init(u8* barrier) { *(int*)barrier = 0; }
void arrival_of(u8* barrier, int) { ++*(int*)barrier; }
void wait_for_arrival(u8* barrier, int phase) {
  while ((*(volatile int*)barrier & 1) == phase) simulation::give_way();
}
template <bool T> void load_rows(u32 (&r)[4], const u8* row) { rows_either<T>(r, row); }
template <bool T> void load_rows(u32 (&r)[2], const u8* row) { rows_either<T>(r, row); }
extern "C" void run_ends(unsigned grid, unsigned threads, void** args) {  // the first and the last thread block
  using namespace simulation;
  argument = args;
  body = [](void* args) { batched_block(*(Problem*)*(void**)args); };
  blockDim = {threads, 1, 1}, gridDim = {grid, 1, 1};
  for (unsigned number : {0u, grid - 1}) blockIdx = {number, 0, 0}, block(threads);
}
#elif defined BATCHED_WARP
u32 transposed(u32 x) {
  u32 made = 0;
  simulation::exchange(x, [&](auto given) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = 2 * (lane % 4);
    made = pair_of([&](int e) -> u32 { return given(4 * (t + e) + g / 2) >> 16 * (g % 2) & 0xFFFF; });
  });
  return made;
}
#elif defined BATCHED_PACKED
bool any_of_warp(bool mine) {
  bool any = false;
  simulation::exchange(mine, [&](auto given) {
    for (int lane = 0; lane < 32; lane++) any |= given(lane);
  });
  return any;
}
#endif
#endif

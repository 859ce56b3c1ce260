// In the place of hopper.cuh in split_gemm_tma.cu: copies complete at once, and barriers count them like TMA's.
#pragma once

template <class T> u32 shared_address(const T* p) { return (u32)((const u8*)p - memory); }
struct Barrier {
  u8 count, left, phase;
  int bytes;
};
Barrier& barrier_at(u32 at) { return *(Barrier*)(memory + at); }
void barrier_init(u32 at, int count) { barrier_at(at) = {(u8)count, (u8)count, 0, 0}; }
void barrier_inits_done() {}
void settle(Barrier& b) {
  if (!b.left && !b.bytes) b.left = b.count, b.phase ^= 1;
}
void barrier_arrive(u32 at) { barrier_at(at).left--, settle(barrier_at(at)); }
void barrier_expect(u32 at, u32 bytes) { barrier_at(at).bytes += bytes, barrier_arrive(at); }
void barrier_wait(u32 at, u32 phase) {
  while (barrier_at(at).phase == phase) simulation::give_way();
}
void __syncwarp() { simulation::meet(); }
struct TensorMap {
  u64 word, size, lines, pitch, height, more[11];
};
void tma_load(u32 to, const TensorMap* m, u32 barrier, int k, int row, int) {
  for (int r = 0; r < (int)m->height; r++)
    for (int byte = 0; byte < 128; byte++) {
      const bool inside = row + r < (int)m->lines && k + byte / m->size < m->pitch;
      const u8* from = (const u8*)m->word + ((row + r) * m->pitch + k) * m->size + byte;
      memory[to + 128 * r + (byte / 16 ^ r % 8) * 16 + byte % 16] = inside ? *from : 0;
    }
  barrier_at(barrier).bytes -= 128 * (int)m->height, settle(barrier_at(barrier));
}

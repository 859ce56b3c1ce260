// FLAT with Hopper's bulk copies: one thread issues the copies of whole matrices, and an mbarrier completes on arrival.
#pragma once
#include "batched_contiguous.cuh"

#ifdef __CUDACC__
#if __CUDA_ARCH__ >= 900
#define FPEMU_HOPPER(...) __VA_ARGS__
#else
#define FPEMU_HOPPER(...)
#endif
FPEMU_FUNCTION void arrival_init(u8* barrier) {
  FPEMU_HOPPER(barrier_init(shared_address(barrier), 1), barrier_inits_done());
}
// The barrier's only arrival, and the bytes that the copies will transfer.
FPEMU_FUNCTION void arrival_of(u8* barrier, int bytes) {
  FPEMU_HOPPER(asm volatile("fence.proxy.async.shared::cta;" :: : "memory");
               barrier_expect(shared_address(barrier), bytes));
}
FPEMU_FUNCTION void copy_in_bulk(u8* to, u64 from, int bytes, u8* barrier) {
  FPEMU_HOPPER(
      asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                       shared_address(to)),
                   "l"(from), "r"(bytes), "r"(shared_address(barrier)) : "memory"));
}
FPEMU_FUNCTION void wait_for_arrival(u8* barrier, int phase) {
  FPEMU_HOPPER(barrier_wait(shared_address(barrier), phase));
}
#else
void arrival_init(u8* barrier);
void arrival_of(u8* barrier, int bytes);
void wait_for_arrival(u8* barrier, int phase);
inline void copy_in_bulk(u8* to, u64 from, int bytes, u8*) {
  reads(from, bytes), __builtin_memcpy(to, (const void*)from, bytes);
}
#endif

// The part of a matrix that a bulk copy can transfer: units of 16 bytes, of which the first may begin in the previous
// matrix and the last may end in the next one, but not outside of the stack.
struct Whole {
  u64 from;
  int bytes;
};
template <bool OF_A> FPEMU_FUNCTION Whole whole_pieces(u64 matrix, u64 first, int batch) {
  typedef Flat<OF_A> F;
  u64 from = matrix & ~(u64)15, end = (matrix + F::BYTES + 15) & ~(u64)15;
  if (from < first) from += 16;
  if (end > first + (u64)batch * F::BYTES) end -= 16;
  return {from, end > from ? (int)(end - from) : 0};
}
// Copies the remaining elements, at the ends of the stack.
template <bool OF_A> FPEMU_FUNCTION void copy_ends(const Whole& w, u64 matrix, u8* to) {
  const u64 begin = matrix & ~(u64)15, end = matrix + Flat<OF_A>::BYTES;
  u64 at = matrix;
  for (; at < w.from && at < end; at += 2) *(u16*)(to + (at - begin)) = (u16)load2(at);
  for (at = at > w.from + w.bytes ? at : w.from + w.bytes; at < end; at += 2)
    *(u16*)(to + (at - begin)) = (u16)load2(at);
}

// Issues the copies of a product's A and B; called by one thread.
FPEMU_FUNCTION void issue_bulk_copies(const Problem& p, int product, u8* buffer, u8* barrier) {
  const u64 a = place_of_a(p.a, product).at, b = place_of_b(p.b, product).at;
  const Whole of_a = whole_pieces<true>(a, p.a.first, p.batch), of_b = whole_pieces<false>(b, p.b.first, p.batch);
  copy_ends<true>(of_a, a, buffer), copy_ends<false>(of_b, b, buffer + FLAT_A);
  arrival_of(barrier, of_a.bytes + of_b.bytes);
  if (of_a.bytes) copy_in_bulk(buffer + (of_a.from - (a & ~(u64)15)), of_a.from, of_a.bytes, barrier);
  if (of_b.bytes) copy_in_bulk(buffer + FLAT_A + (of_b.from - (b & ~(u64)15)), of_b.from, of_b.bytes, barrier);
}

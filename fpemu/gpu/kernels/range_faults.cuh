// Counters of an operand's entries out of range, which fpemu.gpu.runtime.counters reads: the entries that are NaN or
// infinite, those with a word that overflows, and of either the complement of the smallest index, 0 if there is none.
#pragma once
#include "integers.cuh"

constexpr int FAULT_WORDS = 4;
enum Fault { NONFINITE_ENTRY, OVERFLOWING_ENTRY };

// The index of an entry in A (matrices, rows, K), or in B (matrices, K, rows) if `second`.
FPEMU_FUNCTION u64 entry_index(s64 matrix, s64 row, s64 k, s64 rows, s64 K, bool second) {
  return (u64)(second ? (matrix * K + k) * rows + row : (matrix * rows + row) * K + k);
}

// Lowers the smallest index of a fault, if `index` is smaller.
FPEMU_FUNCTION void report_first(u64* faults, Fault fault, u64 index) {
  u64* const first = faults + 2 + fault;
  if (~index > *(const volatile u64*)first) atomicMax(first, ~index);  // most reports need no atomic
}

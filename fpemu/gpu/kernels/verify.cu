// Verification on the GPU, with operands that never leave it: `generate` draws tests of a class, the instruction runs
// on them (instruction.cu), `compare` emulates every output and counts mismatches. A Spec and the tile (TILE_ROWS,
// TILE_COLUMNS) precede this file. A is (tests, rows, K), B, stored by its columns, (tests, columns,
// K), C and D (tests, rows, columns), all codes of their formats, packed.
#include "generator.cuh"

typedef Spec S;
constexpr int OUTPUTS = TILE_ROWS * TILE_COLUMNS;

struct Recipes {
  Recipe of[3];
};

// What `compare` found, summed over launches; words of fpemu.verification.instructions.COUNTS, in that order.
struct Counts {
  u64 outputs, mismatches;
  u64 nan_codes;  // those of the mismatches where both are NaN
  u64 first;      // the least index of an output that differs
  u64 digest;     // of the codes of D and their places: the sum modulo 2^64 of a mix of both, whatever the order
  u64 nan, infinite, zero, subnormal;
};

template <class T, int OPERAND, int ROWS, int COLUMNS>
__device__ void fill(typename T::code* out, const Recipe& r, u64 seed, int kind, u64 test) {
  for (int i = threadIdx.x; i < ROWS * COLUMNS; i += blockDim.x)
    out[i] = (typename T::code)element<T>(r, seed, kind, OPERAND, test, i / COLUMNS, i % COLUMNS, COLUMNS);
}

extern "C" __global__ void __launch_bounds__(128)
    generate(S::A::code* A, S::B::code* B, S::C::code* C, Recipes recipes, u64 seed, s64 kind, u64 first, s64 tests) {
  for (s64 t = blockIdx.x; t < tests; t += gridDim.x) {
    fill<S::A, 0, TILE_ROWS, S::K>(A + t * (TILE_ROWS * S::K), recipes.of[0], seed, (int)kind, first + t);
    fill<S::B, 1, TILE_COLUMNS, S::K>(B + t * (TILE_COLUMNS * S::K), recipes.of[1], seed, (int)kind, first + t);
    fill<S::C, 2, TILE_ROWS, TILE_COLUMNS>(C + t * OUTPUTS, recipes.of[2], seed, (int)kind, first + t);
  }
}

// Steele, Lea and Flood 2014: the finaliser of SplitMix64.
__device__ u64 mix(u64 x) {
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ x >> 27) * 0x94D049BB133111EBull;
  return x ^ x >> 31;
}

struct Example {  // an output that differs: its index and what the hardware returned
  u64 index, hardware;
};

template <class T> struct Kind {
  static __device__ bool nan(u64 code) { return is_nan<T>(code); }
  static __device__ void count(u64 code, Counts& n) {
    const u64 magnitude = code & ((1ull << T::SIGN) - 1), top = (u64)T::TOP << T::FRACTION;
    n.nan += magnitude > top, n.infinite += magnitude == top, n.zero += magnitude == 0;
    n.subnormal += magnitude != 0 && magnitude <= T::FRACTION_MASK;
  }
};
template <int BITS> struct Kind<Integer<BITS>> {
  static __device__ bool nan(u64) { return false; }
  static __device__ void count(u64 code, Counts& n) { n.zero += code == 0; }
};

__device__ void add_up(u64 value, u64* total) {
  for (int step = 16; step; step /= 2) value += __shfl_xor_sync(0xFFFFFFFFu, value, step);
  if (threadIdx.x % 32 == 0 && value) atomicAdd(total, value);
}

extern "C" __global__ void __launch_bounds__(128)
    compare(const S::A::code* A, const S::B::code* B, const S::C::code* C, const S::D::code* D, u64 first, s64 tests,
            Counts* counts, Example* examples, u64* found, s64 room) {
  Counts n = {};
  n.first = ~0ull;
  for (s64 t = blockIdx.x; t < tests; t += gridDim.x)
    for (int i = threadIdx.x; i < OUTPUTS; i += blockDim.x) {
      const S::A::code* a = A + (t * TILE_ROWS + i / TILE_COLUMNS) * S::K;
      const S::B::code* b = B + (t * TILE_COLUMNS + i % TILE_COLUMNS) * S::K;
      const u64 index = (first + t) * OUTPUTS + i, hardware = D[t * OUTPUTS + i];
      const u64 emulated = emulate<S>(a, b, C[t * OUTPUTS + i]);
      n.outputs++;
      n.digest += mix(mix(index) + hardware);
      Kind<S::D>::count(hardware, n);
      if (hardware != emulated) {
        n.mismatches++;
        n.nan_codes += Kind<S::D>::nan(hardware) && Kind<S::D>::nan(emulated);
        if (index < n.first) n.first = index;
        const u64 place = atomicAdd(found, 1ull);
        if (place < (u64)room) examples[place].index = index, examples[place].hardware = hardware;
      }
    }
  if (n.first != ~0ull) atomicMin(&counts->first, n.first);
  add_up(n.outputs, &counts->outputs), add_up(n.mismatches, &counts->mismatches), add_up(n.digest, &counts->digest);
  add_up(n.nan_codes, &counts->nan_codes);
  add_up(n.nan, &counts->nan), add_up(n.infinite, &counts->infinite);
  add_up(n.zero, &counts->zero), add_up(n.subnormal, &counts->subnormal);
}

// Change one output: `compare` has to notice.
extern "C" __global__ void spoil(S::D::code* D, s64 index) { D[index] ^= 1; }

// What a measurement of speed needs around the products: operands, words, errors, a digest, a pause.
// Matrices are contiguous; sums are taken in a fixed order, so that the same D gives the same numbers.

typedef unsigned long long u64;
typedef unsigned int u32;

// --- operands: a function of (seed, index)
__device__ u64 mixed(u64 x) {  // splitmix64's finalizer
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

__device__ double uniform(u64 seed, u64 index, u64 stream) {  // a multiple of 2^-53 in [0, 1)
  return (double)(mixed(mixed(index * 4 + stream) + seed * 0x9E3779B97F4A7C15ull) >> 11) * 0x1p-53;
}

__device__ double normal(u64 seed, u64 index) {  // Box and Muller
  return sqrt(-2.0 * log(1.0 - uniform(seed, index, 1))) * cospi(2.0 * uniform(seed, index, 2));
}

// phi = -1: uniform in [low, high); -2: normal, of mean low and deviation high; else (uniform - 1/2) exp(phi normal),
// the inputs of DGEMM-TC.
template <class T> __device__ void draw(T* out, u64 count, u64 seed, double low, double high, double phi) {
  for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < count; i += (u64)gridDim.x * blockDim.x) {
    const double u = uniform(seed, i, 0);
    if (phi == -1) out[i] = (T)(low + (high - low) * u);
    else if (phi == -2) out[i] = (T)(low + high * normal(seed, i));
    else out[i] = (T)((u - 0.5) * exp(phi * normal(seed, i)));
  }
}
extern "C" __global__ void draw_fp32(float* out, u64 count, u64 seed, double low, double high, double phi) {
  draw(out, count, seed, low, high, phi);
}
extern "C" __global__ void draw_fp64(double* out, u64 count, u64 seed, double low, double high, double phi) {
  draw(out, count, seed, low, high, phi);
}

extern "C" __global__ void widen(double* out, const float* x, u64 count) {
  for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < count; i += (u64)gridDim.x * blockDim.x) out[i] = x[i];
}

// --- words for a library's products: h = x in fp16, r = (x - h) 2^11 in fp16 (null: only h), both with K contiguous
__device__ unsigned short half_of(float x) {
  unsigned short h;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x));
  return h;
}
__device__ float float_of(unsigned short h) {
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(h));
  return x;
}
__device__ void split(float x, unsigned short* h, unsigned short* r, u64 at) {
  const unsigned short high = half_of(x);
  h[at] = high;
  if (r) r[at] = half_of((x - float_of(high)) * 2048.0f);
}
extern "C" __global__ void words_rows(unsigned short* h, unsigned short* r, const float* x, u64 count) {
  for (u64 i = 4 * (blockIdx.x * (u64)blockDim.x + threadIdx.x); i < count; i += 4ull * gridDim.x * blockDim.x)
    for (u64 j = i; j < i + 4 && j < count; j++) split(x[j], h, r, j);
}
extern "C" __global__ void words_columns(unsigned short* h, unsigned short* r, const float* x, long long rows,
                                         long long columns) {
  __shared__ float tile[32][33];  // x is rows × columns, the words columns × rows
  const long long row = blockIdx.y * 32ll, column = blockIdx.x * 32ll;
  for (int y = threadIdx.y; y < 32; y += blockDim.y)
    if (row + y < rows && column + threadIdx.x < columns)
      tile[y][threadIdx.x] = x[(row + y) * columns + column + threadIdx.x];
  __syncthreads();
  for (int y = threadIdx.y; y < 32; y += blockDim.y)
    if (column + y < columns && row + threadIdx.x < rows)
      split(tile[threadIdx.x][y], h, r, (u64)(column + y) * rows + row + threadIdx.x);
}

// --- errors of D against R: for every block sum (D-R)^2, sum R^2, sum |D-R|/|R|, max |D-R|, max |D-R|/|R|,
// max |D-R|/(|D|+|R|), and how many D are not finite
const int PARTS = 7;
template <class T> __device__ void compare(double* out, const T* D, const double* R, u64 count) {
  double sum[3] = {0, 0, 0}, most[3] = {0, 0, 0}, lost = 0;
  for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < count; i += (u64)gridDim.x * blockDim.x) {
    const double d = (double)D[i], r = R[i], e = fabs(d - r);
    if (!(fabs(d) < 1e308)) {
      lost += 1;
      continue;
    }
    sum[0] += e * e, sum[1] += r * r;
    most[0] = fmax(most[0], e);
    if (r != 0) sum[2] += e / fabs(r), most[1] = fmax(most[1], e / fabs(r));
    if (fabs(d) + fabs(r) > 0) most[2] = fmax(most[2], e / (fabs(d) + fabs(r)));
  }
  __shared__ double all[PARTS][256];
  const double mine[PARTS] = {sum[0], sum[1], sum[2], most[0], most[1], most[2], lost};
  for (int p = 0; p < PARTS; p++) all[p][threadIdx.x] = mine[p];
  for (int half = 128; half; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half)
      for (int p = 0; p < PARTS; p++) {
        const double x = all[p][threadIdx.x], y = all[p][threadIdx.x + half];
        all[p][threadIdx.x] = p < 3 || p == 6 ? x + y : fmax(x, y);
      }
  }
  if (threadIdx.x < PARTS) out[blockIdx.x * PARTS + threadIdx.x] = all[threadIdx.x][0];
}
extern "C" __global__ void compare_fp32(double* out, const float* D, const double* R, u64 count) {
  compare(out, D, R, count);
}
extern "C" __global__ void compare_fp64(double* out, const double* D, const double* R, u64 count) {
  compare(out, D, R, count);
}

// --- fpemu._system.digest of 32- or 64-bit codes; each block's sum
template <class T> __device__ void digest(u64* out, const T* D, u64 count) {
  u64 sum = 0;
  for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < count; i += (u64)gridDim.x * blockDim.x)
    sum += mixed(mixed(i) + (u64)D[i]);
  __shared__ u64 all[256];
  all[threadIdx.x] = sum;
  for (int half = 128; half; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) all[threadIdx.x] += all[threadIdx.x + half];
  }
  if (threadIdx.x == 0) out[blockIdx.x] = all[0];
}
extern "C" __global__ void digest_32(u64* out, const u32* D, u64 count) { digest(out, D, count); }
extern "C" __global__ void digest_64(u64* out, const u64* D, u64 count) { digest(out, D, count); }

// --- one thread that waits, while launches queue up behind it; and the longest time in which it was not run at all
extern "C" __global__ void hold(long long nanoseconds, u64* longest) {
  u64 begin, before, now, most = *longest;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  before = begin;
  do {
    __nanosleep(500);
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    if (now - before > most) most = now - before;
    before = now;
  } while ((long long)(now - begin) < nanoseconds);
  *longest = most;
}

extern "C" __global__ void nothing() {}

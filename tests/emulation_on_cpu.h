// The emulation as plain C++: what the tests compare with NumPy where there is no GPU.
// The file that includes this one has defined the Specs.
template <class S>
static void emulate_all(const void* A, const void* B, const void* C, void* D, long long tests, int M, int N) {
  const typename S::A::code* a = (const typename S::A::code*)A;  // (tests, M, WORDS)
  const typename S::B::code* b = (const typename S::B::code*)B;  // (tests, N, WORDS)
  const typename S::C::code* c = (const typename S::C::code*)C;  // (tests, M, N)
  typename S::D::code* d = (typename S::D::code*)D;
  for (long long t = 0; t < tests; t++, a += M * S::WORDS, b += N * S::WORDS)
    for (int i = 0; i < M; i++)
      for (int j = 0; j < N; j++, c++, d++)
        *d = (typename S::D::code)emulate<S>(a + i * S::WORDS, b + j * S::WORDS, *c);
}

template <class T>
static void generate_all(int operand, const Recipe& r, u64 seed, int kind, u64 first, s64 tests, int rows, int columns,
                         void* out) {
  typename T::code* x = (typename T::code*)out;
  for (s64 t = 0; t < tests; t++)
    for (int i = 0; i < rows; i++)
      for (int k = 0; k < columns; k++)
        *x++ = (typename T::code)element<T>(r, seed, kind, operand, first + (u64)t, i, k, columns);
}

#define FPEMU_EXPORT(NUMBER, S)                                                                                       \
  extern "C" void emulate_##NUMBER(const void* A, const void* B, const void* C, void* D, s64 tests, int M, int N) {   \
    emulate_all<S>(A, B, C, D, tests, M, N);                                                                          \
  }                                                                                                                   \
  extern "C" void generate_##NUMBER(int operand, const Recipe* r, u64 seed, int kind, u64 first, s64 tests, int rows, \
                                    int columns, void* out) {                                                         \
    if (operand == 0) generate_all<S::A>(0, *r, seed, kind, first, tests, rows, columns, out);                        \
    if (operand == 1) generate_all<S::B>(1, *r, seed, kind, first, tests, rows, columns, out);                        \
    if (operand == 2) generate_all<S::C>(2, *r, seed, kind, first, tests, rows, columns, out);                        \
  }

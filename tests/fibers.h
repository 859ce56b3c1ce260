// Fibers: functions with stacks that take turns in one thread. swapcontext would call the system at every turn.
#pragma once
// The longjmp of _FORTIFY_SOURCE, which some compilers define by default, allows no other stack: include this file first.
#undef _FORTIFY_SOURCE
#include <setjmp.h>
#include <ucontext.h>

#include <memory>

struct Fiber {
  ucontext_t first;
  jmp_buf place;
  bool begun = false, done = false;
  std::unique_ptr<double[]> stack;

  // The function that the first turn calls; it must not return.
  void prepare(void (*body)()) {
    constexpr int BYTES = 1 << 18;  // frames without optimisation have up to 100 KB
    if (!stack) stack.reset(new double[BYTES / sizeof(double)]);
    begun = done = false;
    getcontext(&first);
    first.uc_stack.ss_sp = stack.get(), first.uc_stack.ss_size = BYTES;
    makecontext(&first, body, 0);
  }
};

// Continue another fiber until it continues this one.
inline void continue_fiber(Fiber& running, Fiber& next) {
  running.begun = true;
  if (_setjmp(running.place)) return;
  if (next.begun) _longjmp(next.place, 1);
  next.begun = true;
  setcontext(&next.first);
}

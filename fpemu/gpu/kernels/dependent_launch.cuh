// Small products are over before the next launch has begun: on Hopper and later a kernel may be launched while the one
// before it still runs, and waits by itself.
#pragma once
#include "formats.cuh"

// Until all that was queued before is done; what comes next may be launched from now on. First in every such kernel.
FPEMU_FUNCTION void wait_for_previous_grid() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

#include "tests/emulation/cuda_emulation.h"

#include <ucontext.h>

#include <memory>
#include <stdexcept>
#include <vector>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#endif

namespace emulation {
namespace {

constexpr std::size_t kStack = 128 * 1024;

enum class State { ready, at_barrier, at_shuffle, done };

struct Fiber {
  ucontext_t context{};
  std::unique_ptr<std::byte[]> stack = std::make_unique_for_overwrite<std::byte[]>(kStack);
  State state = State::done;
  double given[2] = {};  // to shuffles, in turn: a lane is at most one shuffle ahead of its warp
  unsigned shuffles = 0;
};

std::vector<std::unique_ptr<Fiber>> fibers;  // kept from block to block
ucontext_t scheduler;
const std::function<void()>* kernel = nullptr;
#ifdef __SANITIZE_ADDRESS__
const void* scheduler_stack = nullptr;
std::size_t scheduler_stack_size = 0;
#endif

// Leaves the running fiber. ASan is told of each change of stacks.
void give_way(State state) {
  Fiber& self = *fibers[threadIdx.x];
  self.state = state;
#ifdef __SANITIZE_ADDRESS__
  void* fake = nullptr;
  __sanitizer_start_switch_fiber(state == State::done ? nullptr : &fake, scheduler_stack,
                                 scheduler_stack_size);
#endif
  swapcontext(&self.context, &scheduler);
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
}

void fiber_main() {
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(nullptr, &scheduler_stack, &scheduler_stack_size);
#endif
  (*kernel)();
  give_way(State::done);
}

void resume(unsigned thread) {
  threadIdx.x = thread;
  Fiber& fiber = *fibers[thread];
#ifdef __SANITIZE_ADDRESS__
  void* fake = nullptr;
  __sanitizer_start_switch_fiber(&fake, fiber.stack.get(), kStack);
#endif
  swapcontext(&scheduler, &fiber.context);
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
}

// Makes the threads [begin, end) ready if all of them are in this state.
bool release(unsigned begin, unsigned end, State state) {
  for (unsigned t = begin; t < end; ++t)
    if (fibers[t]->state != state) return false;
  for (unsigned t = begin; t < end; ++t) fibers[t]->state = State::ready;
  return true;
}

void run_block(unsigned threads) {
  for (unsigned t = 0; t < threads; ++t) {
    Fiber& fiber = *fibers[t];
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.get();
    fiber.context.uc_stack.ss_size = kStack;
    makecontext(&fiber.context, fiber_main, 0);
    fiber.state = State::ready;
    fiber.shuffles = 0;
  }
  for (;;) {
    for (unsigned t = 0; t < threads; ++t)
      if (fibers[t]->state == State::ready) resume(t);
    bool released = release(0, threads, State::at_barrier);
    for (unsigned warp = 0; warp < threads; warp += 32)
      released = release(warp, warp + 32, State::at_shuffle) || released;
    if (released) continue;
    for (unsigned t = 0; t < threads; ++t)
      if (fibers[t]->state != State::done)
        throw std::logic_error("threads wait at a barrier or shuffle that others never reach");
    return;
  }
}

}  // namespace

void run(unsigned blocks, unsigned threads, const std::function<void()>& body) {
  if (threads % 32 != 0) throw std::logic_error("a block is not made of whole warps");
  while (fibers.size() < threads) fibers.push_back(std::make_unique<Fiber>());
  kernel = &body;
  gridDim.x = blocks;
  blockDim.x = threads;
  for (unsigned b = 0; b < blocks; ++b) {
    blockIdx.x = b;
    run_block(threads);
  }
}

void barrier() { give_way(State::at_barrier); }

double shuffle_down(double value, int offset) {
  const unsigned self = threadIdx.x, turn = fibers[self]->shuffles++ % 2;
  fibers[self]->given[turn] = value;
  give_way(State::at_shuffle);
  const unsigned lane = self % 32 + static_cast<unsigned>(offset);
  return lane < 32 ? fibers[self - self % 32 + lane]->given[turn] : value;
}

}  // namespace emulation

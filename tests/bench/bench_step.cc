// bench_step [THREADS [STEPS [DTYPE [RECOMPUTE]]]]: the training step of `shardwright bench train`, and where
// its time goes when run under a profiler.
#include <fmt/format.h>

#include <cstdlib>

#include "trainer/bench.h"

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 2;
  const int steps = argc > 2 ? std::atoi(argv[2]) : 5;
  const auto r = shardwright::trainer::bench_train(threads, steps, argc > 3 ? argv[3] : "fp32",
                                                   argc > 4 ? argv[4] : "none");
  fmt::print("{} {} {}: {:.1f} ms a step, {:.0f} tokens/s, {:.1f} of {:.1f} GFLOP/s: {:.1f} %\n", r.model,
             r.dtype, r.layout, r.step_ms, r.tokens_per_s, r.gflops, r.peak_gflops, 100 * r.share_of_peak);
}

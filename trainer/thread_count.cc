#include "trainer/thread_count.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>

#include "ckpt/error.h"

namespace shardwright::trainer {

int threads_asked() {
  constexpr int kMost = 1024;
  const char* const asked = std::getenv("OMP_NUM_THREADS");
  if (asked == nullptr) return 0;
  // A list is one number for each level of nesting: the first counts here.
  int threads = 0;
  const auto [end, error] = std::from_chars(asked, asked + std::strlen(asked), threads);
  if (error == std::errc::result_out_of_range || threads > kMost)
    throw Error(
        ErrorCode::usage,
        fmt::format("OMP_NUM_THREADS: '{}' is not possible; give a whole number from 1 to {}, or unset it",
                    asked, kMost));
  return std::max(threads, 0);
}

int cores_of_process() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  return sched_getaffinity(0, sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) : 1;
}

int threads_per_rank(int local_ranks) {
  if (const int asked = threads_asked(); asked > 0) return asked;
  return std::max(1, cores_of_process() / local_ranks);
}

}  // namespace shardwright::trainer

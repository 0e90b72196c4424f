// bench_plan: time and memory of planning a reshard of a preset against the number of copies, each size in a
// process of its own so that peaks do not add up.
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "reshard/presets.h"
#include "reshard/reshard.h"

namespace {

namespace reshard = shardwright::reshard;

struct Case {
  const char* preset;
  std::string from, to;
};

void plan(const Case& c) {
  const reshard::ModelSpec model = reshard::build_model(reshard::find_preset(c.preset)->model);
  reshard::ReshardOptions options;
  options.layout = reshard::parse_layout(c.to);
  std::vector<double> seconds;
  reshard::ReshardReport report;
  for (int round = 0; round < 5; ++round) {
    report = reshard::plan_reshard(model, reshard::parse_layout(c.from), options);
    seconds.push_back(report.seconds);
  }
  std::sort(seconds.begin(), seconds.end());
  const double median = seconds[seconds.size() / 2];
  fmt::print(
      "{:<12} {:>12} -> {:<12} {:>7} ranks {:>8} copies {:>8.4f} s ({:.4f} to {:.4f}) {:>6.0f} ns a copy "
      "{:>5} MiB\n",
      c.preset, c.from, c.to, report.ranks.size(), report.copies, median, seconds.front(), seconds.back(),
      1e9 * median / static_cast<double>(report.copies), report.peak_rss_bytes >> 20);
  std::fflush(stdout);
}

}  // namespace

int main() {
  std::vector<Case> cases = {{"bloom-176b", "t4p12d8z1", "t4p12d4z1"},
                             {"megatron-1t", "t8p64d6z1", "t8p32d9z1"}};
  for (const int dp : {3, 6, 12, 24, 48, 96, 195})
    cases.push_back({"megatron-1t", fmt::format("t8p64d{}z1", dp), fmt::format("t8p32d{}z1", 2 * dp)});
  cases.push_back({"megatron-1t", "t8p64d195z1", "t4p64d390z1"});
  for (const Case& c : cases) {
    const pid_t child = ::fork();
    if (child < 0) return std::perror("fork"), 1;
    if (child == 0) {
      try {
        plan(c);
      } catch (const std::exception& e) {
        fmt::print(stderr, "{} -> {}: {}\n", c.from, c.to, e.what());
        ::_exit(1);
      }
      ::_exit(0);
    }
    int status = 0;
    if (::waitpid(child, &status, 0) != child || status != 0) return 1;
  }
}

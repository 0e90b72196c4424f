#include <fmt/format.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <sstream>

#include "ckpt/size_text.h"
#include "trainer/doctor.h"
#include "trainer/memory_need.h"
#include "trainer/mpirun_process.h"
#include "trainer/thread_count.h"

namespace shardwright::trainer {
namespace {

/// The value of the first line "<key> : <value>" of a file of the kernel's; empty if there is none.
std::string line_of(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(key)) continue;
    const std::size_t at = line.find_first_not_of(" \t", std::min(line.find(':') + 1, line.size()));
    return at == std::string::npos ? "" : line.substr(at);
  }
  return "";
}

/// Cores' worth of time that the control group allows; nothing if it sets no limit.
std::optional<double> allowed_cores() {
  double quota = 0, period = 0;  // "max 100000" is no number
  if (std::ifstream("/sys/fs/cgroup/cpu.max") >> quota >> period && quota > 0 && period > 0)
    return quota / period;
  return std::nullopt;
}

Finding cores(int ranks) {
  const int available = cores_of_process();
  const std::string model = line_of("/proc/cpuinfo", "model name");
  Finding finding{"cores", fmt::format("{}{}", available, model.empty() ? "" : ", " + model), {}, {}};
  const std::optional<double> allowed = allowed_cores();
  if (allowed && *allowed < available) {
    finding.found += fmt::format("; the control group allows the time of {:.1f}", *allowed);
    finding.concern = Concern::warning;
    finding.advice =
        "threads are stopped while others wait for them; set OMP_NUM_THREADS so that ranks × threads stay "
        "below that";
  } else if (const int threads = std::max(1, threads_asked()); ranks * threads > available) {
    finding.concern = Concern::warning;
    finding.advice = fmt::format("{} ranks with {} thread{} each take turns on {} cores; fewer are as fast",
                                 ranks, threads, threads == 1 ? "" : "s", available);
  }
  return finding;
}

Finding memory() {
  const double all = machine_memory();
  Finding finding{"memory", ckpt::size_text(static_cast<std::uint64_t>(all)) + " with swap", {}, {}};
  std::uint64_t free_kib = 0;
  if (std::istringstream(line_of("/proc/meminfo", "MemAvailable")) >> free_kib)
    finding.found += fmt::format(", {} available now", ckpt::size_text(free_kib << 10));
  for (const auto& [resource, name] : {std::pair{RLIMIT_AS, "ulimit -v"}, {RLIMIT_DATA, "ulimit -d"}}) {
    rlimit limit{};
    if (::getrlimit(static_cast<__rlimit_resource>(resource), &limit) != 0 ||
        static_cast<double>(limit.rlim_cur) >= all)
      continue;
    finding.concern = Concern::warning;
    finding.advice =
        fmt::format("a process may have only {} of it ({})", ckpt::size_text(limit.rlim_cur), name);
  }
  return finding;
}

Finding open_files(int ranks) {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  const std::uint64_t needed = descriptors_of_mpirun(ranks);
  const auto text = [](rlim_t files) {
    return files == RLIM_INFINITY ? std::string("no limit") : std::to_string(files);
  };
  Finding finding{
      "open files", fmt::format("{} (at most {})", text(limit.rlim_cur), text(limit.rlim_max)), {}, {}};
  if (limit.rlim_max < needed) {
    finding.concern = Concern::error;
    finding.advice = fmt::format(
        "mpirun needs up to {} for {} ranks; raise the limit (ulimit -n), or start fewer", needed, ranks);
  }
  return finding;
}

Finding shared_memory(int ranks) {
  // Open MPI 4.1.4 asks for so much a rank, and sends through sockets what finds no room.
  constexpr std::uint64_t kOfRank = (std::uint64_t{4} << 20) + 8;
  struct statvfs info {};
  if (::statvfs("/dev/shm", &info) != 0)
    return {"shared memory", "no /dev/shm", Concern::warning,
            "ranks exchange data through files of the temporary directory; mount a tmpfs on /dev/shm"};
  const std::uint64_t all = info.f_blocks * info.f_frsize, free = info.f_bavail * info.f_frsize;
  Finding finding{"shared memory",
                  fmt::format("/dev/shm has {} free of {}", ckpt::size_text(free), ckpt::size_text(all)),
                  {},
                  {}};
  const std::uint64_t needed = kOfRank * static_cast<std::uint64_t>(ranks);
  if (free < needed) {
    finding.concern = Concern::warning;
    finding.advice = fmt::format(
        "{} ranks want {}, else they exchange data through sockets, which is slower; free some, or "
        "mount it larger (docker run --shm-size)",
        ranks, ckpt::size_text(needed));
  }
  return finding;
}

}  // namespace

std::vector<Finding> examine_machine(int ranks) {
  return {cores(ranks), memory(), open_files(ranks), shared_memory(ranks)};
}

}  // namespace shardwright::trainer

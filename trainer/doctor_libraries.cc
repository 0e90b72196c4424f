#include <dlfcn.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <memory>

#include "ckpt/error.h"
#include "ckpt/libraries.h"
#include "trainer/communicator.h"
#include "trainer/doctor.h"
#include "trainer/mpirun_process.h"

namespace shardwright::trainer {
namespace {

/// The first line that a program prints when it is asked for its version; empty if it says nothing within ten
/// seconds, after which it is killed.
std::string version_said_by(const std::string& program) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw_errno(errno, "cannot make a pipe", program);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
  std::string name = program, flag = "--version";
  const std::array<char*, 3> arguments{name.data(), flag.data(), nullptr};
  pid_t child = -1;
  const int failed = ::posix_spawn(&child, program.c_str(), &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  ::close(ends[1]);
  std::string said;
  if (failed == 0) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (said.find('\n') == std::string::npos) {
      const auto left =
          std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
      pollfd ready{ends[0], POLLIN, 0};
      if (left.count() <= 0 || ::poll(&ready, 1, static_cast<int>(left.count())) <= 0) break;
      std::array<char, 256> buffer{};
      const ssize_t got = ::read(ends[0], buffer.data(), buffer.size());
      if (got <= 0) break;
      said.append(buffer.data(), static_cast<std::size_t>(got));
    }
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
  }
  ::close(ends[0]);
  return said.substr(0, said.find('\n'));
}

/// "4.1.4" in "Open MPI v4.1.4" and in "mpirun (Open MPI) 4.1.4".
std::string number_in(const std::string& text) {
  for (std::size_t at = text.find_first_of("0123456789"); at != std::string::npos;) {
    const std::size_t end = std::min(text.find_first_not_of("0123456789.", at), text.size());
    if (text.substr(at, end - at).find('.') != std::string::npos) return text.substr(at, end - at);
    at = text.find_first_of("0123456789", end);
  }
  return "";
}

Finding mpi() {
  const std::string library = mpi_library();
  std::string mpirun;
  try {
    mpirun = find_mpirun();
  } catch (const Error& error) {
    return {"MPI", library + ", no mpirun", Concern::error, error.what()};
  }
  const std::string said = version_said_by(mpirun);
  Finding finding{"MPI", fmt::format("{}, {}", library, mpirun), {}, {}};
  if (number_in(said).empty()) {
    finding.concern = Concern::error;
    finding.advice = fmt::format("{} does not tell its version within 10 s: '{}'", mpirun, said);
  } else if (number_in(said) != number_in(library)) {
    finding.concern = Concern::error;
    finding.advice = fmt::format(
        "{} says '{}', and this program was built with {}: ranks would not find each other; put the "
        "mpirun of that library first in PATH",
        mpirun, said, library);
  }
  return finding;
}

Finding checkpoint_libraries() {
  std::string all;
  for (const ckpt::Library& library : ckpt::linked_libraries())
    all += fmt::format("{}{} {}", all.empty() ? "" : ", ", library.name, library.version);
  return {"checkpoints", all, {}, {}};
}

/// A library opened for as long as the object lives.
using Opened = std::unique_ptr<void, decltype([](void* handle) { ::dlclose(handle); })>;

template <typename Function>
Function* symbol(const Opened& library, const char* name) {
  return reinterpret_cast<Function*>(::dlsym(library.get(), name));  // NOLINT: what dlsym is for
}

Finding gpu() {
  const Opened driver(::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL));
  if (!driver) return {"GPU", "no NVIDIA driver (libcuda.so.1): training computes on the CPU", {}, {}};
  auto* const init = symbol<int(unsigned)>(driver, "cuInit");
  auto* const version = symbol<int(int*)>(driver, "cuDriverGetVersion");
  auto* const count = symbol<int(int*)>(driver, "cuDeviceGetCount");
  int number = 0, devices = 0;
  if (init == nullptr || version == nullptr || count == nullptr || version(&number) != 0)
    return {"GPU", "libcuda.so.1 is no driver that can be asked", Concern::warning,
            "reinstall the NVIDIA driver"};
  const std::string cuda = fmt::format("driver for CUDA {}.{}", number / 1000, number % 1000 / 10);
  if (const int failed = init(0); failed != 0 || count(&devices) != 0)
    return {"GPU", fmt::format("{}, which does not start (error {})", cuda, failed), Concern::warning,
            "nvidia-smi says more; training computes on the CPU"};
  return {"GPU", fmt::format("{}, {} device{}", cuda, devices, devices == 1 ? "" : "s"), {}, {}};
}

Finding nccl() {
  const Opened library(::dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL));
  int number = 0;
  auto* const version = library ? symbol<int(int*)>(library, "ncclGetVersion") : nullptr;
  if (version == nullptr || version(&number) != 0) return {"NCCL", "not there (libnccl.so.2)", {}, {}};
  return {"NCCL", fmt::format("{}.{}.{}", number / 10000, number / 100 % 100, number % 100), {}, {}};
}

}  // namespace

std::vector<Finding> examine_libraries() { return {mpi(), checkpoint_libraries(), gpu(), nccl()}; }

}  // namespace shardwright::trainer

#include "trainer/launcher.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <string_view>

#include "ckpt/env.h"
#include "ckpt/error.h"
#include "trainer/train.h"

namespace shardwright::trainer {
namespace {

std::optional<std::string> variable(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return value;
}

std::uint64_t number(const char* name, const std::string& text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size())
    throw Error(ErrorCode::usage,
                fmt::format("{}: \"{}\" is not a number; only a launcher sets it", name, text));
  return value;
}

}  // namespace

bool is_worker() {
  if (variable("OMPI_COMM_WORLD_SIZE")) return true;
  if (variable("SLURM_STEP_ID") && variable("PMIX_RANK")) return true;
  if (variable("RANK") && variable("WORLD_SIZE"))
    throw Error(
        ErrorCode::usage,
        "RANK and WORLD_SIZE are set: ranks started by torchrun need NCCL, and this run is on CPUs; start it "
        "with --nproc N, mpirun or srun");
  return false;
}

std::optional<Supervised> supervised() {
  const auto run = variable(kRunVariable);
  const auto generation = variable(kGenerationVariable);
  const auto heartbeat = variable(kHeartbeatVariable);
  if (!run && !generation && !heartbeat) return std::nullopt;
  if (!run || !generation || !heartbeat)
    throw Error(ErrorCode::usage,
                fmt::format("{}, {} and {}: some are set and some are not; only the supervisor sets "
                            "them, unset them all",
                            kRunVariable, kGenerationVariable, kHeartbeatVariable));
  return Supervised{*run, number(kGenerationVariable, *generation), *heartbeat};
}

int launcher_rank() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK"})
    if (const auto rank = variable(name)) return static_cast<int>(number(name, *rank));
  return 0;
}

std::string log_path(const std::string& run_dir, std::uint64_t generation, int rank) {
  return fmt::format("{}/logs/gen-{:04}/rank-{:05}.log", run_dir, generation, rank);
}

void redirect_to_log(const std::string& run_dir, std::uint64_t generation, int rank) {
  // mpirun may be killed before it could end its ranks. It starts them from its main thread, so this is about
  // its process.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const std::string path = log_path(run_dir, generation, rank);
  ckpt::posix_env().create_dirs(std::filesystem::path(path).parent_path().string());
  const int fd = ::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) throw_errno(errno, "cannot open log", path);
  ::dup2(fd, STDERR_FILENO);
  if (rank != 0) ::dup2(fd, STDOUT_FILENO);
  ::close(fd);
}

}  // namespace shardwright::trainer

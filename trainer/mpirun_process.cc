#include "trainer/mpirun_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <regex>
#include <sstream>
#include <string_view>
#include <system_error>

#include "ckpt/error.h"

namespace shardwright::trainer {
namespace {

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> all;
  for (std::string& s : strings) all.push_back(s.data());
  all.push_back(nullptr);
  return all;
}

/// In the child, between fork and exec: system calls only.
[[noreturn]] void become_mpirun(pid_t parent, int output, int log, char* const* arguments,
                                char* const* environment) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(127);  // the supervisor died before the line above
  ::setpgid(0, 0);
  ::signal(SIGPIPE, SIG_DFL);
  // On TERM, INT or HUP mpirun would kill its ranks in the middle of their last save. Those signals can reach
  // it when a whole job is ended (systemd, scancel); blocked here, they stay blocked there, while it unblocks
  // everything for the ranks it starts.
  sigset_t blocked;
  ::sigemptyset(&blocked);
  ::sigaddset(&blocked, SIGTERM);
  ::sigaddset(&blocked, SIGINT);
  ::sigaddset(&blocked, SIGHUP);
  ::sigprocmask(SIG_SETMASK, &blocked, nullptr);
  const int null = ::open("/dev/null", O_RDONLY);
  if (null < 0 || ::dup2(null, STDIN_FILENO) < 0 || ::dup2(output, STDOUT_FILENO) < 0 ||
      ::dup2(log, STDERR_FILENO) < 0)
    ::_exit(127);
  ::execve(arguments[0], arguments, environment);
  ::_exit(127);
}

}  // namespace

std::string find_mpirun() {
  const char* path = std::getenv("PATH");
  std::istringstream directories(path == nullptr ? "" : path);
  for (std::string directory; std::getline(directories, directory, ':');) {
    const std::string candidate = (directory.empty() ? "." : directory) + "/mpirun";
    struct stat info {};
    if (::stat(candidate.c_str(), &info) == 0 && S_ISREG(info.st_mode) &&
        ::access(candidate.c_str(), X_OK) == 0)
      return candidate;
  }
  throw Error(ErrorCode::missing,
              "mpirun: not found in PATH; install Open MPI (Debian: openmpi-bin), or add its bin directory");
}

std::vector<std::string> mpirun_arguments(const std::string& mpirun, const MpirunOptions& options,
                                          bool root) {
  std::vector<std::string> all{
      mpirun,
      // More ranks than cores are allowed, and none is pinned to one, which would starve its other threads.
      "--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1",
      // After the first death the others can only wait for it: end them at once, and say who was first.
      "--mca", "odls_base_sigkill_timeout", "0",
      // Ranks are started from the main thread: they ask to die with the thread that started them.
      "--mca", "odls_base_num_threads", "0",
      // Killed processes leave files; these can be removed.
      "--mca", "orte_tmpdir_base", options.session_dir, "--mca", "btl_vader_backing_directory",
      options.shared_memory_dir};
  if (root) all.push_back("--allow-run-as-root");
  all.insert(all.end(), {"-n", std::to_string(options.ranks)});
  all.insert(all.end(), options.command.begin(), options.command.end());
  return all;
}

std::vector<std::string> clean_environment(
    const std::vector<std::string>& environment,
    const std::vector<std::pair<std::string, std::string>>& additions) {
  std::vector<std::string> clean;
  for (const std::string& entry : environment) {
    const std::string name = entry.substr(0, entry.find('='));
    const bool launcher =
        name.starts_with("SLURM_") || name.starts_with("PMIX_") || name.starts_with("OMPI_");
    const bool replaced =
        std::any_of(additions.begin(), additions.end(), [&](const auto& a) { return a.first == name; });
    if (!launcher && !replaced) clean.push_back(entry);
  }
  for (const auto& [name, value] : additions) clean.push_back(name + "=" + value);
  return clean;
}

std::optional<FirstDeath> parse_first_death(const std::string& text) {
  std::smatch found;
  static const std::regex by_signal(R"(process rank (\d+) with PID \d+ on node \S+ exited on signal (\d+))");
  if (std::regex_search(text, found, by_signal))
    return FirstDeath{std::stoi(found[1]), std::stoi(found[2]), {}};
  static const std::regex by_status(R"(Process name: \[\[\d+,\d+\],(\d+)\]\s+Exit code:\s+(\d+))");
  if (std::regex_search(text, found, by_status))
    return FirstDeath{std::stoi(found[1]), {}, std::stoi(found[2])};
  return std::nullopt;
}

std::uint64_t descriptors_of_mpirun(int ranks) {
  // Open MPI 4.1.4 started two ranks with 40 and hung with 32; it holds a few pipes and a socket for each
  // rank.
  return 48 + 8 * static_cast<std::uint64_t>(ranks);
}

void allow_descriptors(int ranks) {
  const rlim_t needed = descriptors_of_mpirun(ranks);
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= needed) return;
  limit.rlim_cur = std::min(needed, limit.rlim_max);
  if (limit.rlim_cur < needed || ::setrlimit(RLIMIT_NOFILE, &limit) != 0)
    throw Error(ErrorCode::io,
                fmt::format("open files: {} are allowed, and mpirun needs up to {} for {} ranks; a higher "
                            "limit (ulimit -n), or fewer ranks",
                            limit.rlim_cur, needed, ranks));
}

void check_file_size_limit() {
  // Ranks of Open MPI 4.1.4 share memory through files: it hung where they could have 1 MiB, and started four
  // ranks where they could have 4.
  constexpr rlim_t kNeeded = rlim_t{16} << 20;
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < kNeeded)
    throw Error(
        ErrorCode::io,
        fmt::format("file size: {} bytes are allowed, and mpirun needs {}; a higher limit (ulimit -f)",
                    limit.rlim_cur, kNeeded));
}

MpirunProcess::MpirunProcess(const MpirunOptions& options) : log_(options.log) {
  std::vector<std::string> arguments = mpirun_arguments(find_mpirun(), options, ::geteuid() == 0);
  std::vector<std::string> inherited;
  for (char** entry = environ; *entry != nullptr; ++entry) inherited.emplace_back(*entry);
  std::vector<std::string> environment = clean_environment(inherited, options.environment);
  const std::vector<char*> argument_pointers = pointers(arguments);
  const std::vector<char*> environment_pointers = pointers(environment);

  const int log = ::open(log_.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
  if (log < 0) throw_errno(errno, "cannot open log", log_);
  log_start_ = ::lseek(log, 0, SEEK_END);
  std::array<int, 2> pipe{};
  if (::pipe2(pipe.data(), O_CLOEXEC) != 0) {
    const int error = errno;
    ::close(log);
    throw_errno(error, "cannot make a pipe", "mpirun");
  }
  const pid_t self = ::getpid();
  pid_ = ::fork();
  if (pid_ == 0) become_mpirun(self, pipe[1], log, argument_pointers.data(), environment_pointers.data());
  const int error = errno;
  ::close(log);
  ::close(pipe[1]);
  output_ = pipe[0];
  if (pid_ < 0) {
    ::close(output_);
    throw_errno(error, "cannot start a process", arguments.front());
  }
  ::setpgid(pid_, pid_);  // as the child does: whoever comes first
  ::fcntl(output_, F_SETFL, O_NONBLOCK);
  process_ = ProcessHandle(pid_);
}

MpirunProcess::~MpirunProcess() {
  if (!ended_) {
    ::kill(-pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  ::close(output_);
}

void MpirunProcess::pump(int patience_ms) {
  std::array<char, PIPE_BUF> text{};  // as much as a pipe takes without waiting once poll() lets us write
  for (;;) {
    pollfd ours{STDOUT_FILENO, POLLOUT, 0};
    blocked_ = !output_failed_ && ::poll(&ours, 1, patience_ms) == 0;
    if (blocked_) return;
    const ssize_t got = ::read(output_, text.data(), text.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return;
    pass_on({text.data(), static_cast<std::size_t>(got)});
  }
}

void MpirunProcess::pass_on(std::string_view text) {
  while (!text.empty() && !output_failed_) {
    const ssize_t put = ::write(STDOUT_FILENO, text.data(), text.size());
    if (put >= 0) {
      text.remove_prefix(static_cast<std::size_t>(put));
    } else if (errno != EINTR) {
      // The run is worth more than being watched (train | head); what it says is in metrics.jsonl as well.
      output_failed_ = true;
      if (errno != EPIPE)
        std::fputs(
            fmt::format("shardwright: warning: standard output: cannot be written: {}; the run goes on, "
                        "metrics.jsonl and events.jsonl tell about it\n",
                        std::system_category().message(errno))
                .c_str(),
            stderr);
    }
  }
}

void MpirunProcess::signal(int number) { process_.signal(number); }

bool MpirunProcess::ended() {
  int status = 0;
  if (!ended_ && ::waitpid(pid_, &status, WNOHANG) == pid_) {
    ended_ = true;
    status_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  return ended_;
}

std::string MpirunProcess::text() const {
  std::ifstream in(log_, std::ios::binary);
  in.seekg(log_start_);
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace shardwright::trainer

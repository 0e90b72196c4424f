#include "trainer/process_mark.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "ckpt/error.h"
#include "trainer/process_handle.h"

namespace shardwright::trainer {
namespace {

std::string contents(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// State letter of /proc/<pid>/stat, which follows the name in parentheses; 0 if the process is gone.
char state_of(int pid) {
  const std::string stat = contents(fmt::format("/proc/{}/stat", pid));
  const std::size_t after_name = stat.rfind(')');
  return after_name == std::string::npos || after_name + 2 >= stat.size() ? '\0' : stat[after_name + 2];
}

bool is_marked(int pid, const std::string& entry) {
  const std::string environment = '\0' + contents(fmt::format("/proc/{}/environ", pid));
  return environment.find('\0' + entry + '\0') != std::string::npos;
}

bool is_alive(int pid) {
  const char state = state_of(pid);
  return state != '\0' && state != 'Z' && state != 'X';
}

}  // namespace

std::vector<int> processes_marked(const std::string& entry) {
  std::vector<int> found;
  std::error_code ignored;
  for (const auto& directory : std::filesystem::directory_iterator("/proc", ignored)) {
    const std::string name = directory.path().filename().string();
    int pid = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), pid);
    if (error != std::errc{} || end != name.data() + name.size() || pid == ::getpid()) continue;
    if (is_marked(pid, entry) && is_alive(pid)) found.push_back(pid);
  }
  return found;
}

void end_processes_marked(const std::string& entry, double seconds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  for (;;) {
    const std::vector<int> left = processes_marked(entry);
    for (const int pid : left) {
      // Held, and looked at again, because the number may be another process's by now.
      const ProcessHandle process(pid);
      if (process.holds() && is_marked(pid, entry)) process.signal(SIGKILL);
    }
    while (::waitpid(-1, nullptr, WNOHANG) > 0) {
    }
    if (left.empty()) return;
    if (std::chrono::steady_clock::now() > end)
      throw Error(ErrorCode::deadline,
                  fmt::format("processes {}: still there {} s after SIGKILL; end them before the run goes on",
                              fmt::join(left, ", "), seconds));
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

bool is_stopped(int pid) {
  const char state = state_of(pid);
  return state == 'T' || state == 't';
}

}  // namespace shardwright::trainer

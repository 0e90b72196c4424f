#include "trainer/records.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "ckpt/error.h"

namespace shardwright::trainer {
namespace {

/// A file of lines that several processes may append to: each line goes out in one write at the end of the
/// file, on a line of its own even if whoever wrote before was killed in the middle of one.
class LineFile {
 public:
  explicit LineFile(std::string path) : path_(std::move(path)) {
    fd_ = ::open(path_.c_str(), O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0644);
    if (fd_ < 0) throw_errno(errno, "cannot open", path_);
    try {
      // A FIFO would take lines until it is full, and then the run's time.
      struct stat info {};
      if (::fstat(fd_, &info) != 0 || !S_ISREG(info.st_mode))
        throw Error(ErrorCode::io, path_ + ": is not a regular file; one is needed, or none", path_);
      if (torn()) write_all("\n");
    } catch (...) {
      ::close(fd_);
      throw;
    }
  }
  ~LineFile() { ::close(fd_); }
  LineFile(const LineFile&) = delete;
  LineFile& operator=(const LineFile&) = delete;

  void append(const std::string& line) {
    const std::lock_guard lock(mutex_);
    write_all((torn() ? "\n" : "") + line + "\n");
  }

 private:
  /// True if the file ends in a line without its newline.
  bool torn() const {
    struct stat info {};
    if (::fstat(fd_, &info) != 0) throw_errno(errno, "cannot read", path_);
    if (info.st_size == 0) return false;
    char last = 0;
    if (::pread(fd_, &last, 1, info.st_size - 1) != 1) throw_errno(errno, "cannot read", path_);
    return last != '\n';
  }

  void write_all(const std::string& text) {
    std::size_t done = 0;
    while (done < text.size()) {
      const ssize_t n = ::write(fd_, text.data() + done, text.size() - done);
      if (n < 0) {
        if (errno == EINTR) continue;
        throw_errno(errno, "cannot write", path_);
      }
      done += static_cast<std::size_t>(n);
    }
  }

  std::string path_;
  int fd_ = -1;
  std::mutex mutex_;
};

/// A JSON string. Bytes that are not UTF-8 (paths may hold any) become U+FFFD rather than an error.
std::string quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string utc_now() {
  timeval now{};
  ::gettimeofday(&now, nullptr);
  tm parts{};
  ::gmtime_r(&now.tv_sec, &parts);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z", parts.tm_year + 1900, parts.tm_mon + 1,
                     parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec, now.tv_usec / 1000);
}

const char* outcome_name(ckpt::SaveResult result) {
  if (result == ckpt::SaveResult::committed) return "committed";
  return result == ckpt::SaveResult::failed ? "failed" : "skipped";
}

/// Calls `visit(record, generation)` for each whole line that names its generation.
template <class Visit>
void for_each_record(const std::string& path, Visit visit) {
  std::error_code unknown;
  if (!std::filesystem::is_regular_file(path, unknown)) return;  // opening a FIFO would wait
  std::ifstream lines(path);
  for (std::string line; std::getline(lines, line);) {
    const auto record = nlohmann::json::parse(line, nullptr, false);
    if (record.is_object() && record.contains("generation") && record["generation"].is_number_unsigned())
      visit(record, record["generation"].template get<std::uint64_t>());
  }
}

}  // namespace

std::optional<std::uint64_t> recorded_generation(const std::string& run_dir) {
  std::optional<std::uint64_t> highest;
  for (const char* name : {"/events.jsonl", "/metrics.jsonl"})
    for_each_record(run_dir + name, [&](const nlohmann::json&, std::uint64_t generation) {
      highest = std::max(highest.value_or(0), generation);
    });
  return highest;
}

std::int64_t recorded_step(const std::string& run_dir, std::uint64_t generation) {
  std::int64_t last = 0;
  for_each_record(run_dir + "/metrics.jsonl", [&](const nlohmann::json& record, std::uint64_t of) {
    const auto step = record.find("step");
    if (of == generation && record.value("type", nlohmann::json()) == "step" && step != record.end() &&
        step->is_number_integer())
      last = std::max(last, step->get<std::int64_t>());
  });
  return last;
}

std::string json_number(double value) {
  if (std::isnan(value)) return "\"NaN\"";
  if (std::isinf(value)) return value > 0 ? "\"Infinity\"" : "\"-Infinity\"";
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, value).ptr;
  return std::string(text, end);
}

struct Records::State {
  explicit State(const std::string& run_dir)
      : metrics(run_dir + "/metrics.jsonl"), events(run_dir + "/events.jsonl") {}
  LineFile metrics;
  LineFile events;
};

Records::Records(const std::string& run_dir) : state_(std::make_unique<State>(run_dir)) {}
Records::~Records() = default;

std::string memory_json(const kernels::MemoryBytes& bytes) {
  const auto of = [&](kernels::MemoryUse use) { return bytes[static_cast<std::size_t>(use)]; };
  return fmt::format(
      R"({{"param":{},"grad":{},"optimizer":{},"activation":{},"buffers":{},"scratch":{},"total":{}}})",
      of(kernels::MemoryUse::param), of(kernels::MemoryUse::grad), of(kernels::MemoryUse::optimizer),
      of(kernels::MemoryUse::activation), of(kernels::MemoryUse::buffers), of(kernels::MemoryUse::scratch),
      std::accumulate(bytes.begin(), bytes.end(), std::size_t{0}));
}

void Records::step(const StepRecord& r) {
  std::string line = fmt::format(
      R"({{"type":"step","step":{},"generation":{},"loss":{},"grad_norm":{},"lr":{},"samples":{},"tokens_per_s":{},)"
      R"("step_ms":{},"ckpt_stall_ms":{},"layout":{},"ranks":{},"loss_scale":{},"skipped_steps":{},"memory_bytes":{})",
      r.step, r.generation, json_number(r.loss), json_number(r.grad_norm), json_number(r.lr), r.samples,
      json_number(r.tokens_per_s), json_number(r.step_ms), json_number(r.ckpt_stall_ms), quoted(r.layout),
      r.ranks, json_number(r.loss_scale), r.skipped_steps, memory_json(r.memory));
  if (!r.sample_ids.empty()) line += fmt::format(R"(,"sample_ids":[{}])", fmt::join(r.sample_ids, ","));
  state_->metrics.append(line + "}");
}

void Records::skipped(const SkipRecord& r) {
  std::string line = fmt::format(
      R"({{"type":"skipped","step":{},"generation":{},"loss":{},"grad_norm":{},"samples":{},"loss_scale":{},"reason":{})",
      r.step, r.generation, json_number(r.loss), json_number(r.grad_norm), r.samples,
      json_number(r.loss_scale), quoted(r.reason));
  if (!r.sample_ids.empty()) line += fmt::format(R"(,"sample_ids":[{}])", fmt::join(r.sample_ids, ","));
  state_->metrics.append(line + "}");
}

void Records::eval(std::int64_t step, double loss, std::int64_t tokens) {
  state_->metrics.append(
      fmt::format(R"({{"type":"eval","step":{},"loss":{},"tokens":{}}})", step, json_number(loss), tokens));
}

void Records::checkpoint(const ckpt::SaveOutcome& o) {
  state_->metrics.append(fmt::format(
      R"({{"type":"checkpoint","step":{},"generation":{},"attempt":{},"path":{},"outcome":"{}","reason":{},)"
      R"("raw_bytes":{},"stored_bytes":{},"stall_ms":{},"total_s":{},"encode_s":{},"write_s":{},"fsync_s":{},)"
      R"("commit_s":{},"peak_host_bytes":{},"snapshot_ms":{},"before_write_ms":{},"queue_s":{},"verify_s":{},)"
      R"("chunk_wait_s":{},"parts_wait_s":{},"copied_bytes":{},"replicas_s":{}}})",
      o.step, o.generation, quoted(o.attempt), quoted(o.path), outcome_name(o.result), quoted(o.reason),
      o.raw_bytes, o.stored_bytes, json_number(o.stall_ms), json_number(o.total_s), json_number(o.encode_s),
      json_number(o.write_s), json_number(o.fsync_s), json_number(o.commit_s), o.peak_host_bytes,
      json_number(o.snapshot_ms), json_number(o.before_write_ms), json_number(o.queue_s),
      json_number(o.verify_s), json_number(o.chunk_wait_s), json_number(o.parts_wait_s), o.copied_bytes,
      json_number(o.replicas_s)));
}

void Records::event(std::uint64_t generation, const std::string& event, const std::string& fields_json) {
  // The members of the object go in as they are, so that the caller's numbers keep their digits.
  assert(fields_json.size() >= 2 && fields_json.front() == '{' && fields_json.back() == '}');
  const std::string members = fields_json.substr(1, fields_json.size() - 2);
  state_->events.append(fmt::format(R"({{"time":"{}","generation":{},"event":{}{}{}}})", utc_now(),
                                    generation, quoted(event), members.empty() ? "" : ",", members));
}

}  // namespace shardwright::trainer

#include "ckpt/trace.h"

#include <fmt/format.h>

#include <array>
#include <cassert>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <fstream>
#include <iterator>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "ckpt/error.h"

namespace shardwright::trace {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kWriteEvery{50};

std::int64_t steady_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

struct Event {
  const char* name = nullptr;
  const char* key = nullptr;
  std::int64_t value = 0;
  std::int64_t start_ns = 0;
  std::int64_t duration_ns = 0;
};

/// The row of one thread at a time: that thread puts, the session's thread takes.
class Ring {
 public:
  Ring(const char* name, int row) : name_(name), row_(row) {}

  void put(const Event& event) noexcept {
    const std::uint64_t at = put_.load(std::memory_order_relaxed);
    if (at - taken_.load(std::memory_order_acquire) == kWaitingSpans) {
      dropped_.fetch_add(1, std::memory_order_relaxed);
      return;
    }
    events_[at % kWaitingSpans] = event;
    put_.store(at + 1, std::memory_order_release);
  }

  template <class Visit>
  void take(Visit visit) {
    const std::uint64_t end = put_.load(std::memory_order_acquire);
    for (std::uint64_t at = taken_.load(std::memory_order_relaxed); at != end; ++at) {
      visit(events_[at % kWaitingSpans]);
      taken_.store(at + 1, std::memory_order_release);
    }
  }
  std::uint64_t take_dropped() { return dropped_.exchange(0, std::memory_order_relaxed); }

  const char* name() const { return name_; }
  int row() const { return row_; }

  bool in_use = true;  // guarded by Rings::mutex

 private:
  const char* const name_;
  const int row_;
  std::atomic<std::uint64_t> put_{0}, taken_{0}, dropped_{0};
  std::array<Event, kWaitingSpans> events_;
};

/// All rows of the process. They stay: a thread that ends leaves its row to the next of its name.
struct Rings {
  std::mutex mutex;
  std::vector<std::unique_ptr<Ring>> all;
  std::atomic<std::uint64_t> without_row{0};  // spans of threads beyond kThreads

  Ring* get(const char* name) {
    const std::lock_guard lock(mutex);
    for (const auto& ring : all) {
      if (ring->in_use || std::strcmp(ring->name(), name) != 0) continue;
      ring->in_use = true;
      return ring.get();
    }
    if (all.size() == kThreads) return nullptr;
    all.push_back(std::make_unique<Ring>(name, static_cast<int>(all.size()) + 1));
    return all.back().get();
  }

  std::vector<Ring*> list() {
    const std::lock_guard lock(mutex);
    std::vector<Ring*> rings;
    rings.reserve(all.size());
    for (const auto& ring : all) rings.push_back(ring.get());
    return rings;
  }
};
Rings& rings() {
  static Rings r;
  return r;
}

/// A thread's hold on its row.
struct Row {
  const char* name = "thread";
  Ring* ring = nullptr;
  ~Row() {
    if (ring == nullptr) return;
    const std::lock_guard lock(rings().mutex);
    ring->in_use = false;
  }
};
Row& own_row() {
  thread_local Row row;
  return row;
}

}  // namespace

namespace detail {
std::atomic<bool> recording{false};
}

void Span::begin(const char* name, const char* key, std::int64_t value) {
  name_ = name;
  key_ = key;
  value_ = value;
  // Now and not at the end: another thread of that name may leave its row meanwhile, with spans that overlap.
  Row& row = own_row();
  try {
    if (row.ring == nullptr) row.ring = rings().get(row.name);
  } catch (const std::exception&) {
    // No memory for a row is as too many threads.
  }
  start_ns_ = steady_ns();
}

void Span::end() noexcept {
  const Row& row = own_row();
  if (row.ring == nullptr) {
    rings().without_row.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  row.ring->put({name_, key_, value_, start_ns_, steady_ns() - start_ns_});
}

void name_thread(const char* name) { own_row().name = name; }

std::int64_t now_us() {
  return std::chrono::duration_cast<std::chrono::microseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

struct Session::State {
  explicit State(SessionOptions o) : options(std::move(o)) {
    errno = 0;
    file.open(options.part, std::ios::trunc);
    if (!file) throw_errno(errno == 0 ? EIO : errno, "cannot write", options.part);
    // An array without its end is what readers of the format take, so the file is whole after each write.
    text = fmt::format(
        "[\n{{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":{0},\"args\":{{\"name\":\"{1}\"}}}},\n"
        "{{\"name\":\"process_sort_index\",\"ph\":\"M\",\"pid\":{0},\"args\":{{\"sort_index\":{0}}}}},\n",
        options.process, options.process_name);
    // The two clocks are read together once: the system's may be set while we run.
    shift_ns = 1000 * (now_us() - options.zero_us) - steady_ns();
    for (Ring* ring : rings().list()) {
      ring->take([](const Event&) {});
      ring->take_dropped();
    }
    rings().without_row = 0;
    write();
    detail::recording = true;
    thread = std::jthread([this] { loop(); });
  }

  void loop() {
    std::unique_lock lock(mutex);
    while (!changed.wait_for(lock, kWriteEvery, [this] { return stopping; })) collect();
  }

  void collect() {
    for (Ring* ring : rings().list()) {
      ring->take([&](const Event& event) { add(*ring, event); });
      if (const std::uint64_t dropped = ring->take_dropped(); dropped > 0) {
        summary.dropped += dropped;
        add_row(*ring);
        fmt::format_to(std::back_inserter(text),
                       "{{\"name\":\"spans dropped\",\"ph\":\"i\",\"s\":\"t\",\"pid\":{},\"tid\":{},\"ts\":{:"
                       ".3f},\"args\":{{\"spans\":{}}}}},\n",
                       options.process, ring->row(), at_us(steady_ns()), dropped);
      }
      write();  // row by row, so that the text never holds more than one of them
    }
    summary.dropped += rings().without_row.exchange(0, std::memory_order_relaxed);
  }

  double at_us(std::int64_t ns) const { return 1e-3 * static_cast<double>(ns + shift_ns); }

  void add_row(const Ring& ring) {
    const auto row = static_cast<std::size_t>(ring.row());
    if (row >= known.size()) known.resize(row + 1);
    if (known[row]) return;
    known[row] = true;
    fmt::format_to(std::back_inserter(text),
                   "{{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":{},\"tid\":{},\"args\":{{\"name\":"
                   "\"{}\"}}}},\n",
                   options.process, ring.row(), ring.name());
  }

  void add(const Ring& ring, const Event& event) {
    add_row(ring);
    const auto out = std::back_inserter(text);
    fmt::format_to(out, R"({{"name":"{}","ph":"X","pid":{},"tid":{},"ts":{:.3f},"dur":{:.3f})", event.name,
                   options.process, ring.row(), at_us(event.start_ns),
                   1e-3 * static_cast<double>(event.duration_ns));
    if (event.key != nullptr) fmt::format_to(out, R"(,"args":{{"{}":{}}})", event.key, event.value);
    text += "},\n";
    ++summary.spans;
  }

  /// What cannot be written is not tried again: tracing must not hold up what is traced.
  void write() {
    if (!text.empty() && summary.error.empty()) {
      errno = 0;
      file.write(text.data(), std::ssize(text));
      file.flush();
      if (!file)
        summary.error =
            fmt::format("{}: cannot write ({})", options.part, std::strerror(errno == 0 ? EIO : errno));
    }
    text.clear();
  }

  const SessionOptions options;
  std::ofstream file;
  std::string text;  // to be written
  std::int64_t shift_ns = 0;
  std::vector<bool> known;  // rows whose names are written
  Summary summary;
  std::mutex mutex;  // guards what follows
  std::condition_variable changed;
  bool stopping = false;
  std::jthread thread;
};

Session::Session(const SessionOptions& options) {
  assert(!detail::recording);
  state_ = std::make_unique<State>(options);
}

Session::~Session() {
  if (state_) stop();
}

Summary Session::stop() {
  if (!state_) return {};
  detail::recording = false;
  {
    const std::lock_guard lock(state_->mutex);
    state_->stopping = true;
  }
  state_->changed.notify_all();
  state_->thread.join();
  state_->collect();
  const Summary summary = state_->summary;
  state_.reset();
  return summary;
}

void merge_parts(const std::vector<std::string>& parts, const std::string& path) {
  const std::string temporary = path + ".new";
  const auto refuse = [](const char* what, const std::string& file) {
    throw_errno(errno == 0 ? EIO : errno, what, file);
  };
  errno = 0;
  std::ofstream whole(temporary, std::ios::trunc);
  if (!whole) refuse("cannot write", temporary);
  whole << "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[";
  const char* between = "\n";
  for (const std::string& part : parts) {
    std::ifstream lines(part);
    if (!lines) refuse("cannot read", part);
    for (std::string line; std::getline(lines, line);) {
      if (!line.starts_with('{') || !line.ends_with("},"))
        continue;  // "[", and the last line of a killed one
      line.pop_back();
      whole << between << line;
      between = ",\n";
    }
  }
  whole << "\n]}\n";
  whole.close();
  if (!whole) refuse("cannot write", temporary);
  if (std::rename(temporary.c_str(), path.c_str()) != 0) refuse("cannot rename to", path);
  for (const std::string& part : parts) std::remove(part.c_str());
}

}  // namespace shardwright::trace

#include "ckpt/fault.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cassert>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <limits>
#include <memory>
#include <mutex>
#include <thread>

#include "ckpt/error.h"
#include "ckpt/nearest.h"

namespace shardwright::ckpt {
namespace {

constexpr const char* kVariable = "SHARDWRIGHT_FAULT";
constexpr const char* kForm =
    "<point>[:rank=R][:step=S][:nth=N][:gen=G]=kill|stop|exit|eio|enospc|delay(ms)|nan|flip";

// The points with something at hand that an action of their own spoils.
constexpr const char* kValuePoint = "step.loss";      // faulty_value()
constexpr const char* kMemoryPoint = "save.replica";  // faulty_memory()

enum class Action { kill, stop, exit, eio, enospc, delay, nan, flip };

struct Request {
  std::string point;
  std::optional<std::uint64_t> rank, step, nth;
  std::uint64_t generation = 0;
  Action action = Action::kill;
  std::uint64_t delay_ms = 0;
  std::atomic<std::uint64_t> visits{0};
};

// The request in force. `loaded` says whether the environment was looked at; `active` is what fault_point()
// loads. Requests are never freed: another thread may be inside one, and a process makes only a few.
struct Registry {
  std::mutex mutex;
  std::vector<std::unique_ptr<Request>> all;
  bool loaded = false;
};
Registry& registry() {
  static Registry r;
  return r;
}
const auto kUnread = reinterpret_cast<Request*>(1);
std::atomic<Request*> active{kUnread};

[[noreturn]] void refuse(const std::string& text, const std::string& wrong) {
  throw Error(ErrorCode::usage, fmt::format("{}='{}': {}", kVariable, text, wrong));
}

std::uint64_t parse_number(const std::string& text, std::string_view digits) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc{} || end != digits.data() + digits.size() || digits.empty())
    refuse(text, fmt::format("'{}' is not a number; {} is right", digits, kForm));
  return value;
}

std::unique_ptr<Request> parse(const std::string& text) {
  auto request = std::make_unique<Request>();
  const std::size_t equals = text.find_last_of('=');
  if (equals == std::string::npos) refuse(text, fmt::format("has no action; {} is right", kForm));
  std::string_view where = std::string_view(text).substr(0, equals);
  const std::string_view what = std::string_view(text).substr(equals + 1);

  const auto next = [&where] {
    const std::size_t colon = where.find(':');
    const std::string_view part = where.substr(0, colon);
    where = colon == std::string_view::npos ? std::string_view{} : where.substr(colon + 1);
    return part;
  };
  request->point = next();
  const std::vector<std::string>& names = fault_point_names();
  if (std::find(names.begin(), names.end(), request->point) == names.end()) {
    refuse(text, fmt::format("no fault point '{}'; the nearest is '{}'", request->point,
                             nearest(request->point, names)));
  }
  while (!where.empty()) {
    const std::string_view part = next();
    const std::size_t sign = part.find('=');
    const std::string_view key = part.substr(0, sign);
    const std::uint64_t value =
        parse_number(text, sign == std::string_view::npos ? std::string_view{} : part.substr(sign + 1));
    if (key == "rank")
      request->rank = value;
    else if (key == "step")
      request->step = value;
    else if (key == "nth")
      request->nth = value;
    else if (key == "gen")
      request->generation = value;
    else
      refuse(text, fmt::format("no condition '{}'; rank, step, nth and gen are known", key));
  }
  if (request->nth == 0u) refuse(text, "nth counts from 1; nth=1 is the first visit");

  if (what == "kill")
    request->action = Action::kill;
  else if (what == "stop")
    request->action = Action::stop;
  else if (what == "exit")
    request->action = Action::exit;
  else if (what == "eio")
    request->action = Action::eio;
  else if (what == "enospc")
    request->action = Action::enospc;
  else if (what.starts_with("delay(") && what.ends_with(")")) {
    request->action = Action::delay;
    request->delay_ms = parse_number(text, what.substr(6, what.size() - 7));
  } else if (what == "nan") {
    request->action = Action::nan;
    if (request->point != kValuePoint)
      refuse(text, fmt::format("no value to spoil at '{}'; {} has one", request->point, kValuePoint));
  } else if (what == "flip") {
    request->action = Action::flip;
    if (request->point != kMemoryPoint)
      refuse(text, fmt::format("no memory to spoil at '{}'; {} has some", request->point, kMemoryPoint));
  } else {
    refuse(text,
           fmt::format("no action '{}'; kill, stop, exit, eio, enospc, delay(ms), nan and flip are known",
                       what));
  }
  return request;
}

/// The generation within this call, as the supervisor tells its workers.
std::uint64_t call_generation() {
  const char* text = std::getenv("SHARDWRIGHT_CALL_GENERATION");
  return text == nullptr ? 0 : std::strtoull(text, nullptr, 10);
}

// Under the registry's lock.
void install(Registry& r, const std::string& text) {
  std::unique_ptr<Request> request = text.empty() ? nullptr : parse(text);
  const bool applies = request && request->generation == call_generation();
  active.store(applies ? request.get() : nullptr, std::memory_order_release);
  if (request) r.all.push_back(std::move(request));
  r.loaded = true;
}

Request* load_environment() {
  Registry& r = registry();
  const std::lock_guard lock(r.mutex);
  if (!r.loaded) {
    const char* text = std::getenv(kVariable);
    install(r, text == nullptr ? "" : text);
  }
  return active.load(std::memory_order_acquire);
}

void strike(const Request& request, std::string_view point) {
  const std::string where(point);
  switch (request.action) {
    case Action::kill:
      ::kill(::getpid(), SIGKILL);
      ::pause();
      break;
    case Action::stop:
      ::kill(::getpid(), SIGSTOP);
      break;
    case Action::exit:
      ::_exit(1);
    case Action::eio:
      throw_errno(EIO, "injected failure", where);
    case Action::enospc:
      throw_errno(ENOSPC, "injected failure", where);
    case Action::delay:
      std::this_thread::sleep_for(std::chrono::milliseconds(request.delay_ms));
      break;
    case Action::nan:
    case Action::flip:
      break;
  }
}

}  // namespace

const std::vector<std::string>& fault_point_names() {
  static const std::vector<std::string> names = {
      "load.plan",      "load.mid",     "step.begin",     "step.forward",   "step.backward", "step.loss",
      "step.optimizer", "save.replica", "save.begin",     "save.window",    "shard.open",    "shard.mid",
      "shard.close",    "shard.fsync",  "part.rename",    "manifest.write", "commit.write",  "commit.rename",
      "dir.rename",     "retire",       "offload.create", "offload.read",   "offload.write"};
  return names;
}

void check_fault_variable() {
  const char* text = std::getenv(kVariable);
  set_fault(text == nullptr ? "" : text);
}

void set_fault(const std::string& request) {
  Registry& r = registry();
  const std::lock_guard lock(r.mutex);
  install(r, request);
}

namespace {

/// The request that strikes at this visit; null where none does.
const Request* struck(std::string_view name, int rank, std::optional<std::uint64_t> step) {
  assert(std::find(fault_point_names().begin(), fault_point_names().end(), name) !=
         fault_point_names().end());
  Request* request = active.load(std::memory_order_acquire);
  if (request == nullptr) return nullptr;
  if (request == kUnread) request = load_environment();
  if (request == nullptr || request->point != name) return nullptr;
  if (request->rank && *request->rank != static_cast<std::uint64_t>(rank)) return nullptr;
  if (request->step && request->step != step) return nullptr;
  const std::uint64_t visit = request->visits.fetch_add(1) + 1;
  if (request->nth && *request->nth != visit) return nullptr;
  return request;
}

}  // namespace

void fault_point(std::string_view name, int rank, std::optional<std::uint64_t> step) {
  if (const Request* request = struck(name, rank, step)) strike(*request, name);
}

double faulty_value(std::string_view name, double value, int rank, std::uint64_t step) {
  const Request* request = struck(name, rank, step);
  if (request == nullptr) return value;
  strike(*request, name);
  return request->action == Action::nan ? std::numeric_limits<double>::quiet_NaN() : value;
}

void faulty_memory(std::string_view name, std::span<std::byte> memory, int rank, std::uint64_t step) {
  const Request* request = struck(name, rank, step);
  if (request == nullptr) return;
  strike(*request, name);
  if (request->action == Action::flip && !memory.empty()) memory.front() ^= std::byte{1};
}

}  // namespace shardwright::ckpt

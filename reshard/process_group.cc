#include "reshard/process_group.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <thread>
#include <utility>

#include "ckpt/record_fields.h"

namespace shardwright::reshard {
namespace {

using Clock = std::chrono::steady_clock;
using nlohmann::json;
using std::chrono::milliseconds;

constexpr milliseconds kLook{50};   // between two looks at the others
constexpr milliseconds kTell{500};  // between two signs of life

std::string random_name() {
  std::random_device device;
  return fmt::format("{:08x}{:08x}", device(), device());
}

Clock::duration seconds(double s) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(s));
}

std::string lock_name(int rank) { return fmt::format("process-{:05}.lock", rank); }

/// True if no process holds the lock, or none can be held.
bool is_free(ckpt::Env& env, const std::string& path) {
  if (!env.exists(path)) return true;
  try {
    env.lock(path);
    return true;
  } catch (const Error& e) {
    if (e.code() == ErrorCode::busy) return false;
    throw;
  }
}

/// Takes a lock that another process may just be looking at.
std::unique_ptr<ckpt::FileLock> take_lock(ckpt::Env& env, const std::string& directory, int rank) {
  const auto deadline = Clock::now() + std::chrono::seconds(2);
  for (;;) {
    try {
      env.create_dirs(directory);
      return env.lock(directory + "/" + lock_name(rank));
    } catch (const Error& e) {
      // Missing: an earlier group's leader just removed the directory.
      const bool may_change = e.code() == ErrorCode::busy || e.code() == ErrorCode::missing;
      if (!may_change || Clock::now() >= deadline) throw;
    }
    std::this_thread::sleep_for(milliseconds(20));
  }
}

json error_json(const Error& error) {
  return {{"code", static_cast<int>(error.code())}, {"message", error.what()}, {"path", error.path()}};
}

Error error_from(const json& object) {
  const auto code = ckpt::integer_field<int>(object, "code");
  if (code < 0 || code > static_cast<int>(ErrorCode::preempted))
    throw Error(ErrorCode::damaged, "no code of an error");
  return {static_cast<ErrorCode>(code), ckpt::text_field(object, "message"),
          ckpt::text_field(object, "path")};
}

}  // namespace

bool group_lives(ckpt::Env& env, const std::string& directory) {
  if (!env.is_dir(directory)) return false;
  return std::ranges::any_of(env.list(directory), [&](const std::string& name) {
    return name.ends_with(".lock") && !is_free(env, directory + "/" + name);
  });
}

struct ProcessGroup::State {
  struct Peer {
    bool delivered = false;
    ProcessWork work;
    std::uint64_t done = 0;
    Clock::time_point heard = Clock::now();
  };

  ckpt::Env& env;
  const std::string directory;
  const ProcessPlace place;
  const ProcessTimes times;
  const std::string nonce = random_name();
  std::unique_ptr<ckpt::FileLock> lock;
  bool has_locks = true;
  std::vector<std::string> nonces;  // of all processes, once they are known
  ckpt::SaveSignals signals;
  std::atomic<std::uint64_t> done{0};

  mutable std::mutex mutex;
  std::condition_variable changed;
  std::vector<Peer> peers;  // by rank
  std::optional<Error> failure;
  std::string phase;  // as the leader says it: "gathered", "begun", "ended", "failed"
  bool stopping = false;
  std::thread watcher;

  State(ckpt::Env& e, std::string d, ProcessPlace p, ProcessTimes t)
      : env(e), directory(std::move(d)), place(p), times(t), peers(static_cast<std::size_t>(p.count)) {
    if (place.count == 1) return;
    lock = take_lock(env, directory, place.rank);
    has_locks = !is_free(env, directory + "/" + lock_name(place.rank));
  }

  std::string file(int rank, const char* what) const {
    return fmt::format("{}/process-{:05}.{}", directory, rank, what);
  }
  std::string state_file() const { return directory + "/state"; }

  /// Whoever reads it finds it whole; nobody needs it after a crash, so it is not made durable.
  void put(const std::string& path, const json& what) {
    const std::string text = what.dump(-1, ' ', false, json::error_handler_t::replace);
    const std::string temporary = fmt::format("{}.{}", path, nonce);
    env.create(temporary)->write(0, std::as_bytes(std::span(text)));
    env.rename(temporary, path);
  }
  /// Nothing where there is none, or none of this group.
  std::optional<json> get(const std::string& path) const {
    try {
      return ckpt::parse_object(ckpt::read_file(env, path, 1u << 26));
    } catch (const Error& e) {
      if (e.code() == ErrorCode::missing || e.code() == ErrorCode::damaged) return std::nullopt;
      throw;
    }
  }

  bool is_dead(int rank) const { return has_locks && is_free(env, directory + "/" + lock_name(rank)); }

  void say(const std::string& now, const std::optional<Error>& error = {}) {
    json what = {{"nonces", nonces}, {"phase", now}};
    if (error) what["error"] = error_json(*error);
    put(state_file(), what);
  }

  /// Under the mutex.
  void set_failure(const Error& error) {
    if (!failure) failure = error;
    signals.cancel = true;
    changed.notify_all();
  }

  std::string who(int rank) const { return fmt::format("process {} of {}", rank, place.count); }

  /// Of the leader: what a follower says. False if it says no more than that it lives.
  bool hear_result(int rank) {
    const std::optional<json> said = get(file(rank, "result"));
    if (!said || ckpt::text_field(*said, "nonce") != nonces[static_cast<std::size_t>(rank)]) return false;
    const std::lock_guard guard(mutex);
    Peer& peer = peers[static_cast<std::size_t>(rank)];
    if (said->contains("error")) {
      const Error e = error_from(ckpt::field_of(*said, "error"));
      set_failure(Error(e.code(), fmt::format("{}: {}", who(rank), e.what()), e.path()));
    } else {
      peer.work = {ckpt::number_field(*said, "read_bytes"), ckpt::number_field(*said, "chunks_read"),
                   ckpt::number_field(*said, "chunks_passed_through"),
                   ckpt::number_field(*said, "chunks_recoded"), ckpt::number_field(*said, "peak_rss_bytes")};
      peer.done = ckpt::number_field(*said, "done");
      peer.delivered = true;
      changed.notify_all();
    }
    return true;
  }

  /// Of the others: what the leader says. True if that is the last.
  bool hear_state() {
    const std::optional<json> said = get(state_file());
    if (!said) return false;
    const json& names = ckpt::list_field(*said, "nonces");
    const auto own = static_cast<std::size_t>(place.rank);
    if (names.size() != peers.size() || names[own] != nonce) return false;
    const std::lock_guard guard(mutex);
    if (nonces.empty()) nonces = names.get<std::vector<std::string>>();
    phase = ckpt::text_field(*said, "phase");
    if (phase == "failed") set_failure(error_from(ckpt::field_of(*said, "error")));
    changed.notify_all();
    return phase == "failed" || phase == "ended";
  }

  /// A process that has not said its last word: does it live, and does its work go on?
  void check_alive(int rank) {
    const std::optional<json> said = get(file(rank, "progress"));
    const std::lock_guard guard(mutex);
    Peer& peer = peers[static_cast<std::size_t>(rank)];
    const std::uint64_t now =
        said && ckpt::text_field(*said, "nonce") == nonces[static_cast<std::size_t>(rank)]
            ? ckpt::number_field(*said, "done")
            : 0;
    if (now != peer.done) {
      peer.done = now;
      peer.heard = Clock::now();
    }
    if (Clock::now() - peer.heard > seconds(times.progress_s))
      set_failure(Error(ErrorCode::deadline,
                        fmt::format("{}: lives but has done nothing for {:.4g} s; end it, and run this again",
                                    who(rank), times.progress_s)));
  }

  void look(int rank) {
    const auto last_word = [&] { return place.rank == 0 ? hear_result(rank) : hear_state(); };
    if (last_word()) return;
    // It may have spoken just before it went.
    if (is_dead(rank) && !last_word()) {
      const std::lock_guard guard(mutex);
      set_failure(
          Error(ErrorCode::peer,
                fmt::format("{}: ended before its work was done; run this again, what is finished is kept",
                            who(rank))));
    }
    check_alive(rank);
  }

  /// What this process has done; of the leader, with all others' work, so that it lives as long as any does.
  std::uint64_t all_done() const {
    std::uint64_t sum = done;
    for (const Peer& peer : peers) sum += peer.done;
    return sum;
  }

  void watch() {
    Clock::time_point told{};
    std::unique_lock guard(mutex);
    while (!stopping) {
      const std::uint64_t so_far = place.rank == 0 ? all_done() : done.load();
      guard.unlock();
      try {
        if (Clock::now() - told > kTell) {
          put(file(place.rank, "progress"), {{"nonce", nonce}, {"done", so_far}});
          told = Clock::now();
        }
        for (int rank = 0; rank < place.count; ++rank) {
          const bool of_interest = place.rank == 0 ? rank != 0 : rank == 0;
          if (of_interest && !finished(rank)) look(rank);
        }
        guard.lock();
      } catch (const Error& e) {
        guard.lock();
        set_failure(e);
      }
      if (failure) return;
      changed.wait_for(guard, kLook, [this] { return stopping; });
    }
  }

  bool finished(int rank) const {
    const std::lock_guard guard(mutex);
    return place.rank == 0 ? peers[static_cast<std::size_t>(rank)].delivered : phase == "ended";
  }

  void start_watching() {
    for (Peer& peer : peers) peer.heard = Clock::now();
    watcher = std::thread([this] { watch(); });
  }

  void stop_watching() {
    {
      const std::lock_guard guard(mutex);
      stopping = true;
    }
    changed.notify_all();
    if (watcher.joinable()) watcher.join();
  }

  /// The watcher sees to it that this ends.
  template <class Ready>
  void await(Ready ready) {
    std::unique_lock guard(mutex);
    changed.wait(guard, [&] { return failure || ready(); });
    if (failure) throw Error(*failure);
  }
};

ProcessGroup::ProcessGroup(ckpt::Env& env, std::string directory, ProcessPlace place, ProcessTimes times)
    : state_(std::make_unique<State>(env, std::move(directory), place, times)) {}

ProcessGroup::~ProcessGroup() { state_->stop_watching(); }

bool ProcessGroup::leads() const { return state_->place.rank == 0; }
const ckpt::SaveSignals& ProcessGroup::signals() const { return state_->signals; }
void ProcessGroup::count(std::uint64_t bytes) { state_->done += bytes; }

std::uint64_t ProcessGroup::counted() const {
  const std::lock_guard guard(state_->mutex);
  return state_->all_done();
}

void ProcessGroup::gather() {
  State& s = *state_;
  if (s.place.count == 1) return;
  // What an earlier group left must not be taken for this one's; who is here already says so again.
  for (const std::string& name : s.env.list(s.directory))
    if (name == "state" || name.ends_with(".here") || name.ends_with(".result"))
      s.env.unlink(s.directory + "/" + name);
  s.nonces.assign(static_cast<std::size_t>(s.place.count), "");
  s.nonces[0] = s.nonce;
  const auto deadline = Clock::now() + seconds(s.times.start_s);
  for (;;) {
    std::string absent;
    for (int rank = 1; rank < s.place.count; ++rank) {
      const std::optional<json> said = s.get(s.file(rank, "here"));
      if (said && !s.is_dead(rank)) {
        s.nonces[static_cast<std::size_t>(rank)] = ckpt::text_field(*said, "nonce");
      } else {
        absent += fmt::format("{}{}", absent.empty() ? "" : ", ", rank);
      }
    }
    if (absent.empty()) break;
    if (Clock::now() >= deadline)
      throw Error(ErrorCode::deadline, fmt::format("process {} of {}: did not come within {:.4g} s", absent,
                                                   s.place.count, s.times.start_s));
    std::this_thread::sleep_for(milliseconds(20));
  }
  s.say("gathered");
  s.start_watching();
}

void ProcessGroup::begin() {
  if (state_->place.count > 1) state_->say("begun");
}

void ProcessGroup::follow() {
  State& s = *state_;
  const auto deadline = Clock::now() + seconds(s.times.start_s);
  for (;;) {
    if (!s.get(s.file(s.place.rank, "here"))) s.put(s.file(s.place.rank, "here"), {{"nonce", s.nonce}});
    s.hear_state();
    if (!s.phase.empty()) break;
    if (Clock::now() >= deadline)
      throw Error(ErrorCode::deadline, fmt::format("process 0 of {}: did not begin within {:.4g} s",
                                                   s.place.count, s.times.start_s));
    std::this_thread::sleep_for(milliseconds(20));
  }
  s.start_watching();
  s.await([&] { return s.phase == "begun" || s.phase == "ended"; });
}

void ProcessGroup::rethrow_failure() const {
  const std::lock_guard guard(state_->mutex);
  if (state_->failure) throw Error(*state_->failure);
}

void ProcessGroup::fail(const Error& error) noexcept {
  State& s = *state_;
  if (s.place.count == 1) return;
  try {
    if (leads())
      s.say("failed", error);
    else
      s.put(s.file(s.place.rank, "result"), {{"nonce", s.nonce}, {"error", error_json(error)}});
  } catch (const std::exception&) {
    // The others see that this process is gone.
  }
}

void ProcessGroup::deliver(const ProcessWork& work) {
  State& s = *state_;
  s.put(s.file(s.place.rank, "result"), {{"nonce", s.nonce},
                                         {"done", s.done.load()},
                                         {"read_bytes", work.read_bytes},
                                         {"chunks_read", work.chunks_read},
                                         {"chunks_passed_through", work.chunks_passed_through},
                                         {"chunks_recoded", work.chunks_recoded},
                                         {"peak_rss_bytes", work.peak_rss_bytes}});
}

void ProcessGroup::await_end() {
  state_->await([&] { return state_->phase == "ended"; });
}

std::vector<ProcessWork> ProcessGroup::collect() {
  State& s = *state_;
  std::vector<ProcessWork> work;
  if (s.place.count == 1) return work;
  s.await(
      [&] { return std::all_of(s.peers.begin() + 1, s.peers.end(), std::mem_fn(&State::Peer::delivered)); });
  for (auto peer = s.peers.begin() + 1; peer != s.peers.end(); ++peer) work.push_back(peer->work);
  return work;
}

void ProcessGroup::end() {
  if (state_->place.count > 1) state_->say("ended");
}

void ProcessGroup::leave(const std::function<void()>& last) {
  State& s = *state_;
  if (s.place.count == 1) return last();
  s.stop_watching();
  const auto deadline = Clock::now() + seconds(s.times.leave_s);
  const auto gone = [&] {
    for (int rank = 1; rank < s.place.count; ++rank)
      if (s.has_locks && !s.is_dead(rank)) return false;
    return s.has_locks || Clock::now() >= deadline;
  };
  while (!gone() && Clock::now() < deadline) std::this_thread::sleep_for(milliseconds(20));
  last();
  for (int attempt = 0;; ++attempt) {
    try {
      return ckpt::remove_checkpoint_dir(s.env, s.directory);
    } catch (const Error&) {
      // Whoever looks for this process's lock in this moment makes its file again.
      if (attempt == 10) throw;
    }
    std::this_thread::sleep_for(milliseconds(20));
  }
}

void ProcessGroup::withdraw() {
  State& s = *state_;
  s.stop_watching();
  s.lock.reset();
  const auto deadline = Clock::now() + seconds(s.times.leave_s);
  while (s.env.is_dir(s.directory) && Clock::now() < deadline) {
    if (s.is_dead(0)) return;
    std::this_thread::sleep_for(milliseconds(20));
  }
}

}  // namespace shardwright::reshard

#include "trainer/recovery.h"

#include <fmt/format.h>

#include <algorithm>

#include "trainer/launcher.h"

namespace shardwright::trainer {
namespace {

/// True if the same command meets the same error again.
bool is_final(ErrorCode code) {
  switch (code) {
    case ErrorCode::io:
    case ErrorCode::deadline:
    case ErrorCode::peer:
      return false;
    default:
      return true;
  }
}

Error error_of(const Heartbeat& failure) { return Error(failure.code, failure.message, failure.path); }

/// Index of the rank with the least positive order among those that satisfy `which`; -1 if there is none.
template <typename Order, typename Which>
int first(const std::vector<RankState>& ranks, Order order, Which which) {
  int best = -1;
  for (int i = 0; i < static_cast<int>(ranks.size()); ++i) {
    const RankState& rank = ranks[static_cast<std::size_t>(i)];
    if (order(rank) <= 0 || !which(rank)) continue;
    if (best < 0 || order(rank) < order(ranks[static_cast<std::size_t>(best)])) best = i;
  }
  return best;
}

int first_failure(const std::vector<RankState>& ranks, bool hang, bool peer) {
  return first(
      ranks, [](const RankState& r) { return r.failure_order; },
      [&](const RankState& r) {
        return (r.failure->cause == "hang") == hang && (r.failure->code == ErrorCode::peer) == peer;
      });
}

bool wordless(const RankState& rank) {
  return rank.ended() && !rank.failure && !rank.finished && !rank.silent;
}

std::optional<Verdict> judge_agreement(const std::vector<RankState>& ranks) {
  const auto finished = [&](int status) {
    return std::any_of(ranks.begin(), ranks.end(), [&](const RankState& r) { return r.finished == status; });
  };
  if (finished(0)) return Verdict{EndCause::done, -1, "", {}, {}};
  if (finished(exit_status(ErrorCode::preempted))) return Verdict{EndCause::preempted, -1, "", {}, {}};
  const auto other =
      std::find_if(ranks.begin(), ranks.end(), [](const RankState& r) { return r.finished.has_value(); });
  const int teller = first_failure(ranks, false, false);
  if (other == ranks.end()) return std::nullopt;
  // All ranks agreed on an error and left in order; one of them tells it.
  Verdict verdict{EndCause::error, teller, "", {}, {}};
  if (teller >= 0) {
    verdict.error = error_of(*ranks[static_cast<std::size_t>(teller)].failure);
    if (verdict.error->code() == ErrorCode::nonfinite) verdict.cause = EndCause::nonfinite;
  } else {
    verdict.error = Error(
        ErrorCode::peer, fmt::format("the ranks ended with status {}; their logs say why", *other->finished));
  }
  verdict.detail = verdict.error->what();
  return verdict;
}

Verdict judge_failure(const std::vector<RankState>& ranks, int rank) {
  const Heartbeat& failure = *ranks[static_cast<std::size_t>(rank)].failure;
  Verdict verdict{EndCause::exit, rank, failure.message, {rank}, {}};
  if (failure.cause == "nonfinite" || failure.code == ErrorCode::nonfinite)
    verdict.cause = EndCause::nonfinite;
  else if (is_final(failure.code))
    verdict.cause = EndCause::error;
  else if (failure.cause == "host")
    verdict.cause = EndCause::host;
  if (verdict.cause == EndCause::nonfinite || verdict.cause == EndCause::error) {
    verdict.error = error_of(failure);
    verdict.lost.clear();
  }
  return verdict;
}

/// All ranks come to their deadline at once, because they wait for one that does not go on: the one that is
/// behind. Where there is no single one, it is the one that was seen first.
Verdict judge_hang(const std::vector<RankState>& ranks, int seen_first, const std::string& phase,
                   double deadline_s) {
  const auto behind =
      std::min_element(ranks.begin(), ranks.end(),
                       [](const RankState& a, const RankState& b) { return a.progress < b.progress; });
  const auto as_far = std::count_if(ranks.begin(), ranks.end(),
                                    [&](const RankState& r) { return r.progress == behind->progress; });
  const int rank = as_far == 1 ? static_cast<int>(behind - ranks.begin()) : seen_first;
  return {EndCause::hang, rank, fmt::format("no progress in {} for {} s", phase, deadline_s), {}, {}};
}

Verdict judge_death(const Observed& seen, int rank) {
  Verdict verdict{EndCause::signal, rank, "killed or crashed", {}, {}};
  const auto& told = seen.first_death;
  if (told && told->rank >= 0 && told->rank < static_cast<int>(seen.ranks.size()) &&
      !seen.ranks[static_cast<std::size_t>(told->rank)].finished) {
    verdict.rank = told->rank;
    if (told->signal) verdict.detail = fmt::format("signal {}", *told->signal);
    if (told->status) {
      verdict.cause = EndCause::exit;
      verdict.detail = fmt::format("status {}", *told->status);
    }
  }
  verdict.lost = {verdict.rank};
  return verdict;
}

}  // namespace

const char* name(EndCause cause) {
  static constexpr const char* kNames[] = {"done", "preempted", "exit", "signal",
                                           "hang", "nonfinite", "host", "error"};
  return kNames[static_cast<int>(cause)];
}

Verdict judge(const Observed& seen) {
  const std::vector<RankState>& ranks = seen.ranks;
  if (auto agreed = judge_agreement(ranks)) return *agreed;
  if (const int own = first_failure(ranks, false, false); own >= 0) return judge_failure(ranks, own);
  const bool any_heard = std::any_of(ranks.begin(), ranks.end(), [](const RankState& r) { return r.heard; });

  std::vector<int> gone;
  for (int i = 0; i < static_cast<int>(ranks.size()); ++i)
    if (ranks[static_cast<std::size_t>(i)].silent || ranks[static_cast<std::size_t>(i)].stopped)
      gone.push_back(i);
  if (!gone.empty()) {
    const bool silent = ranks[static_cast<std::size_t>(gone.front())].silent;
    return {EndCause::hang,
            gone.front(),
            silent ? fmt::format("no heartbeat for {} s", seen.heartbeat_s)
                   : "stopped while others waited for it",
            gone,
            {}};
  }

  // mpirun itself was killed, and the ranks with it: none of them is at fault.
  if (seen.mpirun_status.value_or(0) > 128 && !seen.first_death && any_heard)
    return {
        EndCause::exit, -1, fmt::format("mpirun was ended by signal {}", *seen.mpirun_status - 128), {}, {}};

  const int hang = first_failure(ranks, true, false);
  const int dead = first(
      ranks, [](const RankState& r) { return r.end_order; }, wordless);
  // mpirun ends all ranks as soon as one is dead: one that came to its deadline had no dead peer, and deaths
  // beside it followed from its own.
  if (hang < 0 && dead >= 0) return judge_death(seen, dead);
  if (hang >= 0) {
    const Heartbeat& told = *ranks[static_cast<std::size_t>(hang)].failure;
    return judge_hang(ranks, hang, told.phase, told.deadline_s);
  }

  const auto stuck = std::find_if(ranks.begin(), ranks.end(), [](const RankState& r) { return r.stuck; });
  if (stuck != ranks.end())
    return judge_hang(ranks, static_cast<int>(stuck - ranks.begin()), stuck->phase, stuck->deadline_s);
  if (const int peer = first_failure(ranks, false, true); peer >= 0) return judge_failure(ranks, peer);

  Verdict verdict{EndCause::exit, -1, "", {}, {}};
  if (seen.first_death && any_heard) return judge_death(seen, seen.first_death->rank);
  if (seen.mpirun_status)
    verdict.detail = fmt::format("mpirun ended with status {}", *seen.mpirun_status);
  else
    verdict.detail = seen.never_came ? "not every rank came up" : "mpirun was lost";
  // Before the first heartbeat nothing has been tried that another try would do differently.
  if (!any_heard)
    verdict.error =
        Error(ErrorCode::peer,
              fmt::format("ranks: {} before any rank reported; {} says why", verdict.detail, seen.mpirun_log),
              seen.mpirun_log);
  return verdict;
}

Plan plan_recovery(const Config& config, const reshard::ModelSpec& model, const reshard::Layout& layout,
                   const Verdict& verdict, int slots, int restarts) {
  const Config::Elastic& elastic = config.elastic;
  const bool shrink = elastic.on_failure == "shrink";
  Plan plan;
  plan.slots = shrink ? slots - static_cast<int>(verdict.lost.size()) : slots;
  if (!elastic.enabled) {
    plan.reason = "[elastic] enabled is false";
  } else if (restarts >= elastic.max_restarts) {
    plan.reason = fmt::format("{} restarts are used up ([elastic] max_restarts)", restarts);
  } else if (plan.slots >= layout.ranks()) {
    plan.layout = layout;
  } else {
    plan.layout = reshard::shrink(layout, model, config.batch(), plan.slots, elastic.min_ranks);
    if (!plan.layout)
      plan.reason = fmt::format("no layout is possible with {} ranks ([elastic] min_ranks is {})", plan.slots,
                                elastic.min_ranks);
  }
  return plan;
}

}  // namespace shardwright::trainer

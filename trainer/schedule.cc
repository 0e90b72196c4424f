#include "trainer/schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "ckpt/error.h"

namespace shardwright::trainer {
namespace {

struct Pass {
  int chunk;
  std::int64_t micro;
};

[[noreturn]] void refuse(const std::string& message) {
  throw Error(ErrorCode::usage, "pipeline schedule: " + message);
}

void check(const PipelinePlace& place, std::int64_t micro_batches) {
  if (place.ranks < 1 || place.rank < 0 || place.rank >= place.ranks || place.chunks < 1) {
    refuse(fmt::format(
        "no rank {} with {} chunks in a pipeline of {}; a rank below the number of ranks, at least 1 "
        "chunk",
        place.rank, place.chunks, place.ranks));
  }
  if (place.chunks > 1 && place.ranks == 1)
    refuse(fmt::format("{} chunks on a single rank; 1 chunk, or more ranks", place.chunks));
  if (micro_batches < 1) refuse(fmt::format("{} micro-batches; at least 1", micro_batches));
}

/// All passes of a rank in the order of its forward passes: groups of `ranks` micro-batches (the last may be
/// smaller), each group through one chunk after the other. Backward passes take the chunks the other way
/// around.
std::vector<Pass> passes(const PipelinePlace& place, std::int64_t micro_batches, bool backward) {
  std::vector<Pass> order;
  const std::int64_t group = place.chunks > 1 ? place.ranks : micro_batches;
  for (std::int64_t first = 0; first < micro_batches; first += group) {
    for (int chunk = 0; chunk < place.chunks; ++chunk) {
      for (std::int64_t micro = first; micro < std::min(first + group, micro_batches); ++micro)
        order.push_back({backward ? place.chunks - 1 - chunk : chunk, micro});
    }
  }
  return order;
}

bool first_stage(const PipelinePlace& place, int chunk) { return place.rank == 0 && chunk == 0; }
bool last_stage(const PipelinePlace& place, int chunk) {
  return place.rank == place.ranks - 1 && chunk == place.chunks - 1;
}

void add_forward(std::vector<Instruction>& list, const PipelinePlace& place, const Pass& pass) {
  if (!first_stage(place, pass.chunk)) list.push_back({Action::receive_input, pass.chunk, pass.micro});
  list.push_back({Action::forward, pass.chunk, pass.micro});
  if (!last_stage(place, pass.chunk)) list.push_back({Action::send_output, pass.chunk, pass.micro});
}

void add_backward(std::vector<Instruction>& list, const PipelinePlace& place, const Pass& pass) {
  if (!last_stage(place, pass.chunk)) list.push_back({Action::receive_gradient, pass.chunk, pass.micro});
  list.push_back({Action::backward, pass.chunk, pass.micro});
  if (!first_stage(place, pass.chunk)) list.push_back({Action::send_gradient, pass.chunk, pass.micro});
}

/// Forward passes that a rank runs before its first backward pass, beside the one that 1F1B pairs with it.
std::int64_t warm_up(ScheduleKind kind, const PipelinePlace& place, std::int64_t all) {
  if (kind == ScheduleKind::gpipe) return all;
  const std::int64_t behind = place.ranks - place.rank - 1;  // stages of a chunk after this rank's
  if (place.chunks == 1) return std::min(all, behind);
  // The first backward pass comes after the first group's passes through all chunks but the last and the way
  // to the last rank; and the gradient takes as many passes back.
  return std::min(all, 2 * behind + std::int64_t{place.chunks - 1} * place.ranks);
}

}  // namespace

ScheduleKind parse_schedule_kind(std::string_view text) {
  if (text == "gpipe") return ScheduleKind::gpipe;
  if (text == "1f1b") return ScheduleKind::one_f_one_b;
  refuse(fmt::format("'{}' is not known; gpipe or 1f1b", text));
}

std::vector<Instruction> make_schedule(ScheduleKind kind, const PipelinePlace& place,
                                       std::int64_t micro_batches) {
  check(place, micro_batches);
  if (place.chunks > 1 && micro_batches % place.ranks != 0) {
    refuse(fmt::format("{} micro-batches through {} chunks of {} ranks; a multiple of the ranks, or 1 chunk",
                       micro_batches, place.chunks, place.ranks));
  }
  const std::vector<Pass> forward = passes(place, micro_batches, false);
  const std::vector<Pass> backward = passes(place, micro_batches, true);
  const auto ahead =
      static_cast<std::size_t>(warm_up(kind, place, static_cast<std::int64_t>(forward.size())));
  std::vector<Instruction> list;
  for (std::size_t i = 0; i < ahead; ++i) add_forward(list, place, forward[i]);
  for (std::size_t i = 0; i < backward.size(); ++i) {
    if (ahead + i < forward.size()) add_forward(list, place, forward[ahead + i]);
    add_backward(list, place, backward[i]);
  }
  return list;
}

std::vector<Instruction> make_forward_schedule(const PipelinePlace& place, std::int64_t micro_batches) {
  check(place, micro_batches);
  std::vector<Instruction> list;
  for (const Pass& pass : passes(place, micro_batches, false)) add_forward(list, place, pass);
  return list;
}

std::vector<Instruction> with_early_receives(std::vector<Instruction> schedule) {
  std::vector<Instruction> moved;
  std::ptrdiff_t last_pass = -1;  // where it stands in `moved`
  for (const Instruction& next : schedule) {
    const bool receive = next.action == Action::receive_input || next.action == Action::receive_gradient;
    // A gradient cannot come during its own forward pass, and before that it may have no buffer.
    const Instruction own_forward{Action::forward, next.chunk, next.micro};
    if (receive && last_pass >= 0 && moved[static_cast<std::size_t>(last_pass)] != own_forward) {
      moved.insert(moved.begin() + last_pass, next);
      ++last_pass;
      continue;
    }
    if (next.action == Action::forward || next.action == Action::backward) last_pass = std::ssize(moved);
    moved.push_back(next);
  }
  return moved;
}

std::int64_t buffers_needed(std::span<const Instruction> schedule, int chunk) {
  std::map<std::int64_t, std::size_t> last;  // the last instruction of each micro-batch
  for (std::size_t i = 0; i < schedule.size(); ++i) {
    if (schedule[i].chunk == chunk) last[schedule[i].micro] = i;
  }
  std::int64_t most = 0;
  std::set<std::int64_t> alive;
  for (std::size_t i = 0; i < schedule.size(); ++i) {
    if (schedule[i].chunk != chunk) continue;
    alive.insert(schedule[i].micro);
    most = std::max(most, static_cast<std::int64_t>(alive.size()));
    if (last[schedule[i].micro] == i) alive.erase(schedule[i].micro);
  }
  return most;
}

std::vector<std::int64_t> buffers_of_chunks(ScheduleKind kind, const PipelinePlace& place,
                                            std::int64_t micro_batches) {
  check(place, micro_batches);
  const std::int64_t all = micro_batches * place.chunks;
  const std::int64_t ahead = warm_up(kind, place, all);
  const std::int64_t group = place.chunks > 1 ? place.ranks : micro_batches;
  const std::int64_t round = group * place.chunks;
  // How many of the first `passes` are of the chunk that comes as the `turn`-th of a round.
  const auto passed = [&](std::int64_t count, std::int64_t turn) {
    return count / round * group + std::clamp<std::int64_t>(count % round - turn * group, 0, group);
  };
  std::vector<std::int64_t> most(static_cast<std::size_t>(place.chunks));
  for (std::int64_t chunk = 0; chunk < place.chunks; ++chunk) {
    // A chunk has the most alive after a forward pass, and while its group goes forward no fewer than before.
    // After the passes ahead each round is like the one before.
    const std::int64_t rounds = std::min(all / round, ahead / round + 3);
    for (std::int64_t r = 0; r < rounds; ++r) {
      const std::int64_t forwards = r * round + (chunk + 1) * group;
      const std::int64_t backwards = std::max<std::int64_t>(0, forwards - 1 - ahead);
      std::int64_t& peak = most[static_cast<std::size_t>(chunk)];
      peak = std::max(peak, passed(forwards, chunk) - passed(backwards, place.chunks - 1 - chunk));
    }
  }
  return most;
}

}  // namespace shardwright::trainer

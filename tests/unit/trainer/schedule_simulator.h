// Runs the lists of all ranks of a pipeline against each other, with unit costs and no buffering between
// ranks, and complains about whatever could go wrong in a real run. The semantics are those at the top of
// trainer/schedule.h.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "trainer/schedule.h"

namespace shardwright::trainer {

/// The lists of one pipeline, by rank, and how many slots each rank gives to each chunk.
struct Pipeline {
  int chunks = 1;
  std::int64_t micro_batches = 1;
  bool backward = true;
  std::vector<std::vector<Instruction>> lists;
  std::vector<std::vector<std::int64_t>> slots;

  int ranks() const { return static_cast<int>(lists.size()); }
  int stages() const { return chunks * ranks(); }
};

struct Outcome {
  std::vector<std::string> complaints;  // none: all is well
  std::int64_t time = 0;                // until the last rank is done, forward 1, backward 2, transfers 0
  std::vector<std::int64_t> alive;      // by rank, the most micro-batches alive at once over all chunks
};

class Simulator {
 public:
  explicit Simulator(const Pipeline& pipeline) : p_(pipeline), ranks_(pipeline.lists.size()) {}

  Outcome run() {
    bool moved = true;
    while (moved && out_.complaints.empty()) {
      moved = false;
      for (int rank = 0; rank < p_.ranks(); ++rank)
        while (out_.complaints.empty() && advance(rank)) moved = true;
    }
    if (out_.complaints.empty()) finish();
    for (const Rank& rank : ranks_) {
      out_.time = std::max(out_.time, rank.clock);
      out_.alive.push_back(rank.most_alive);
    }
    return out_;
  }

 private:
  static constexpr std::int64_t kForwardCost = 1, kBackwardCost = 2;

  struct Message {
    int stage;  // that receives
    std::int64_t micro;
    std::int64_t posted;
  };
  struct Channel {
    std::vector<Message> sends, receives;
    /// When transfer i is complete; -1 as long as one side has not started it.
    std::int64_t complete(std::size_t i) const {
      if (i >= sends.size() || i >= receives.size()) return -1;
      return std::max(sends[i].posted, receives[i].posted);
    }
  };
  /// From rank, to rank, gradient or input, receiving chunk.
  using ChannelKey = std::tuple<int, int, bool, int>;
  struct Transfer {
    ChannelKey key;
    std::size_t index;
  };
  struct Slot {
    std::int64_t micro = -1;
    bool free = true;
    std::vector<Transfer> sends;
  };
  using Use = std::pair<int, std::int64_t>;  // chunk, micro
  struct Rank {
    std::size_t next = 0;
    std::int64_t clock = 0;
    std::map<Use, Slot> slots;  // by chunk and slot number
    std::map<Use, Transfer> inputs, gradients;
    std::set<Use> forward, backward, output_sent, gradient_sent;
    std::int64_t alive = 0, most_alive = 0;
  };

  bool complain(int rank, const Instruction& at, const std::string& what) {
    static constexpr const char* kNames[] = {"receive_input",    "forward",  "send_output",
                                             "receive_gradient", "backward", "send_gradient"};
    out_.complaints.push_back(fmt::format("rank {}, {} of chunk {}, micro-batch {}: {}", rank,
                                          kNames[static_cast<int>(at.action)], at.chunk, at.micro, what));
    return false;
  }

  /// Runs the next instruction of a rank; false if it has to wait, has none or something is wrong.
  bool advance(int number) {
    Rank& rank = ranks_[static_cast<std::size_t>(number)];
    const std::vector<Instruction>& list = p_.lists[static_cast<std::size_t>(number)];
    if (rank.next == list.size()) return false;
    const Instruction& at = list[rank.next];
    if (at.chunk < 0 || at.chunk >= p_.chunks || at.micro < 0 || at.micro >= p_.micro_batches)
      return complain(number, at, "no such chunk or micro-batch");
    bool done = false;
    switch (at.action) {
      case Action::receive_input:
        done = receive_input(number, rank, at);
        break;
      case Action::forward:
        done = forward(number, rank, at);
        break;
      case Action::send_output:
        done = send_output(number, rank, at);
        break;
      case Action::receive_gradient:
        done = receive_gradient(number, rank, at);
        break;
      case Action::backward:
        done = backward(number, rank, at);
        break;
      case Action::send_gradient:
        done = send_gradient(number, rank, at);
        break;
    }
    if (done) ++rank.next;
    return done;
  }

  int stage(int rank, int chunk) const { return chunk * p_.ranks() + rank; }
  bool first(int rank, int chunk) const { return stage(rank, chunk) == 0; }
  bool last(int rank, int chunk) const { return stage(rank, chunk) == p_.stages() - 1; }

  /// The channel between a stage and the one `step` after it, as seen from the sending stage.
  ChannelKey channel(int from_stage, int step) const {
    const int to = from_stage + step;
    return {from_stage % p_.ranks(), to % p_.ranks(), step < 0, to / p_.ranks()};
  }

  /// Begins to use the slot of (chunk, micro): it has to be free, and all sends from it complete.
  bool claim(int number, Rank& rank, const Instruction& at) {
    const std::int64_t slots = p_.slots[static_cast<std::size_t>(number)][static_cast<std::size_t>(at.chunk)];
    Slot& slot = rank.slots[{at.chunk, at.micro % slots}];
    if (!slot.free)
      return complain(number, at, fmt::format("its slot still holds micro-batch {}", slot.micro));
    for (const Transfer& send : slot.sends) {
      const std::int64_t complete = channels_[send.key].complete(send.index);
      if (complete < 0) return false;
      rank.clock = std::max(rank.clock, complete);
    }
    slot = {.micro = at.micro, .free = false, .sends = {}};
    rank.most_alive = std::max(rank.most_alive, ++rank.alive);
    return true;
  }

  Slot& slot_of(int number, Rank& rank, const Instruction& at) {
    return rank.slots[{
        at.chunk, at.micro % p_.slots[static_cast<std::size_t>(number)][static_cast<std::size_t>(at.chunk)]}];
  }

  void release(int number, Rank& rank, const Instruction& at) {
    slot_of(number, rank, at).free = true;
    --rank.alive;
  }

  bool receive_input(int number, Rank& rank, const Instruction& at) {
    const Use use{at.chunk, at.micro};
    if (first(number, at.chunk)) return complain(number, at, "the first stage has no input to receive");
    if (rank.inputs.contains(use)) return complain(number, at, "received twice");
    if (rank.forward.contains(use)) return complain(number, at, "comes after its forward pass");
    if (!claim(number, rank, at)) return false;
    const ChannelKey key = channel(stage(number, at.chunk) - 1, 1);
    Channel& c = channels_[key];
    rank.inputs[use] = {key, c.receives.size()};
    c.receives.push_back({stage(number, at.chunk), at.micro, rank.clock});
    return true;
  }

  bool forward(int number, Rank& rank, const Instruction& at) {
    const Use use{at.chunk, at.micro};
    if (rank.forward.contains(use)) return complain(number, at, "runs twice");
    if (first(number, at.chunk)) {
      if (!claim(number, rank, at)) return false;
    } else {
      if (!rank.inputs.contains(use)) return complain(number, at, "its input was not asked for");
      if (!await(number, rank, at, rank.inputs[use])) return false;
    }
    rank.forward.insert(use);
    rank.clock += kForwardCost;
    if (!p_.backward && last(number, at.chunk)) release(number, rank, at);
    return true;
  }

  /// Waits for a message; it has to be the one for this stage and micro-batch.
  bool await(int number, Rank& rank, const Instruction& at, const Transfer& transfer) {
    const Channel& c = channels_[transfer.key];
    const std::int64_t complete = c.complete(transfer.index);
    if (complete < 0) return false;
    const Message& sent = c.sends[transfer.index];
    if (sent.micro != at.micro || sent.stage != stage(number, at.chunk))
      return complain(number, at, fmt::format("gets micro-batch {} for stage {}", sent.micro, sent.stage));
    rank.clock = std::max(rank.clock, complete);
    return true;
  }

  void send(int number, Rank& rank, const Instruction& at, int step) {
    const ChannelKey key = channel(stage(number, at.chunk), step);
    Channel& c = channels_[key];
    slot_of(number, rank, at).sends.push_back({key, c.sends.size()});
    c.sends.push_back({stage(number, at.chunk) + step, at.micro, rank.clock});
  }

  bool send_output(int number, Rank& rank, const Instruction& at) {
    const Use use{at.chunk, at.micro};
    if (last(number, at.chunk)) return complain(number, at, "the last stage has no output to send");
    if (!rank.forward.contains(use)) return complain(number, at, "comes before its forward pass");
    if (slot_of(number, rank, at).micro != at.micro) return complain(number, at, "its buffer is gone");
    if (!rank.output_sent.insert(use).second) return complain(number, at, "sent twice");
    send(number, rank, at, 1);
    if (!p_.backward) release(number, rank, at);
    return true;
  }

  bool receive_gradient(int number, Rank& rank, const Instruction& at) {
    const Use use{at.chunk, at.micro};
    if (last(number, at.chunk)) return complain(number, at, "the last stage has no gradient to receive");
    if (rank.gradients.contains(use)) return complain(number, at, "received twice");
    const Slot& slot = slot_of(number, rank, at);
    if (slot.free || slot.micro != at.micro) return complain(number, at, "has no buffer");
    const ChannelKey key = channel(stage(number, at.chunk) + 1, -1);
    Channel& c = channels_[key];
    rank.gradients[use] = {key, c.receives.size()};
    c.receives.push_back({stage(number, at.chunk), at.micro, rank.clock});
    return true;
  }

  bool backward(int number, Rank& rank, const Instruction& at) {
    const Use use{at.chunk, at.micro};
    if (rank.backward.contains(use)) return complain(number, at, "runs twice");
    if (!rank.forward.contains(use)) return complain(number, at, "comes before its forward pass");
    if (!last(number, at.chunk)) {
      if (!rank.gradients.contains(use)) return complain(number, at, "its gradient was not asked for");
      if (!await(number, rank, at, rank.gradients[use])) return false;
    }
    rank.backward.insert(use);
    rank.clock += kBackwardCost;
    if (first(number, at.chunk)) release(number, rank, at);
    return true;
  }

  bool send_gradient(int number, Rank& rank, const Instruction& at) {
    const Use use{at.chunk, at.micro};
    if (first(number, at.chunk)) return complain(number, at, "the first stage has no gradient to send");
    if (!rank.backward.contains(use)) return complain(number, at, "comes before its backward pass");
    if (!rank.gradient_sent.insert(use).second) return complain(number, at, "sent twice");
    send(number, rank, at, -1);
    release(number, rank, at);
    return true;
  }

  /// Nobody can move: all have to be done, each pass and transfer exactly once (more was refused on the way).
  void finish() {
    for (int number = 0; number < p_.ranks(); ++number) {
      const Rank& rank = ranks_[static_cast<std::size_t>(number)];
      const std::vector<Instruction>& list = p_.lists[static_cast<std::size_t>(number)];
      if (rank.next < list.size()) complain(number, list[rank.next], "waits for ever");
    }
    if (!out_.complaints.empty()) return;
    for (const auto& [key, c] : channels_) {
      if (c.sends.size() != c.receives.size()) {
        out_.complaints.push_back(fmt::format("rank {} to rank {}: {} sends, {} receives", std::get<0>(key),
                                              std::get<1>(key), c.sends.size(), c.receives.size()));
      }
    }
    for (int number = 0; number < p_.ranks(); ++number) {
      const Rank& rank = ranks_[static_cast<std::size_t>(number)];
      const auto all = static_cast<std::size_t>(p_.chunks * p_.micro_batches);
      const auto edge = static_cast<std::size_t>(p_.micro_batches);
      const std::size_t inputs = all - (number == 0 ? edge : 0);
      const std::size_t outputs = all - (number == p_.ranks() - 1 ? edge : 0);
      const std::size_t back = p_.backward ? 1 : 0;
      if (rank.forward.size() != all || rank.backward.size() != all * back || rank.inputs.size() != inputs ||
          rank.output_sent.size() != outputs || rank.gradients.size() != outputs * back ||
          rank.gradient_sent.size() != inputs * back || rank.alive != 0) {
        out_.complaints.push_back(fmt::format("rank {}: a pass or transfer is missing", number));
      }
    }
  }

  const Pipeline& p_;
  std::vector<Rank> ranks_;
  std::map<ChannelKey, Channel> channels_;
  Outcome out_;
};

}  // namespace shardwright::trainer

#include "trainer/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "ckpt/error.h"
#include "schedule_simulator.h"

namespace shardwright::trainer {
namespace {

using enum Action;

std::string text(const std::vector<Instruction>& list) {
  static constexpr const char* kShort[] = {"ri", "F", "so", "rg", "B", "sg"};
  std::string out;
  for (const Instruction& i : list) {
    if (!out.empty()) out += ' ';
    out += fmt::format("{}{}", kShort[static_cast<int>(i.action)], i.micro);
    if (i.chunk > 0) out += fmt::format(".{}", i.chunk);
  }
  return out;
}

struct Case {
  ScheduleKind kind;
  int ranks, chunks;
  std::int64_t micros;
  bool early;
  std::string name() const {
    return fmt::format("{} ranks {} chunks {} micro-batches {}{}",
                       kind == ScheduleKind::gpipe ? "gpipe" : "1f1b", ranks, chunks, micros,
                       early ? " early" : "");
  }
};

void give_slots(Pipeline& pipeline) {
  pipeline.slots.clear();
  for (const auto& list : pipeline.lists) {
    pipeline.slots.emplace_back();
    for (int chunk = 0; chunk < pipeline.chunks; ++chunk)
      pipeline.slots.back().push_back(buffers_needed(list, chunk));
  }
}

Pipeline pipeline(const Case& c) {
  Pipeline out{.chunks = c.chunks, .micro_batches = c.micros, .backward = true, .lists = {}, .slots = {}};
  for (int rank = 0; rank < c.ranks; ++rank) {
    auto list = make_schedule(c.kind, {c.ranks, rank, c.chunks}, c.micros);
    out.lists.push_back(c.early ? with_early_receives(std::move(list)) : std::move(list));
  }
  give_slots(out);
  return out;
}

Pipeline forward_pipeline(int ranks, int chunks, std::int64_t micros, bool early) {
  Pipeline out{.chunks = chunks, .micro_batches = micros, .backward = false, .lists = {}, .slots = {}};
  for (int rank = 0; rank < ranks; ++rank) {
    auto list = make_forward_schedule({ranks, rank, chunks}, micros);
    out.lists.push_back(early ? with_early_receives(std::move(list)) : std::move(list));
  }
  give_slots(out);
  return out;
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const ScheduleKind kind : {ScheduleKind::gpipe, ScheduleKind::one_f_one_b})
    for (int ranks = 1; ranks <= 8; ++ranks)
      for (int chunks = 1; chunks <= (ranks == 1 ? 1 : 4); ++chunks)
        for (std::int64_t micros = 1; micros <= 24; ++micros)
          for (const bool early : {false, true})
            if (chunks == 1 || micros % ranks == 0) cases.push_back({kind, ranks, chunks, micros, early});
  return cases;
}

TEST(Schedule, RunsWithoutDeadlockInTheTextbooksTimeAndBuffers) {
  for (const Case& c : all_cases()) {
    const Pipeline p = pipeline(c);
    const Outcome outcome = Simulator(p).run();
    ASSERT_TRUE(outcome.complaints.empty()) << c.name() << ": " << outcome.complaints.front();
    // (m + p - 1)(f + b) where one chunk is all of a rank's work; with v chunks each costs a v-th.
    const std::int64_t textbook = (c.micros * c.chunks + c.ranks - 1) * 3;
    if (c.early || c.chunks == 1 || c.kind == ScheduleKind::gpipe) {
      ASSERT_EQ(outcome.time, textbook) << c.name();
    } else {
      // The textbook's buffers are without bound on the way. Here a chunk may have to wait until the gradient
      // in its only free slot has left, which takes as long as the peer's present pass; a slot more, and it
      // does not.
      ASSERT_GE(outcome.time, textbook) << c.name();
      ASSERT_LE(outcome.time, textbook + c.micros - c.ranks) << c.name();
      Pipeline roomy = p;
      for (auto& slots : roomy.slots)
        for (std::int64_t& count : slots) ++count;
      ASSERT_EQ(Simulator(roomy).run().time, textbook) << c.name();
    }
    for (int rank = 0; rank < c.ranks; ++rank) {
      const std::int64_t all = c.micros * c.chunks;
      std::int64_t bound = all;
      if (c.kind == ScheduleKind::one_f_one_b) {
        const int ahead =
            c.chunks == 1 ? c.ranks - rank - 1 : (c.ranks - rank - 1) * 2 + (c.chunks - 1) * c.ranks;
        bound = std::min(all, std::int64_t{ahead} + 1);
      }
      const std::int64_t alive = outcome.alive[static_cast<std::size_t>(rank)];
      if (c.early) {
        EXPECT_GE(alive, bound) << c.name() << " rank " << rank;
        EXPECT_LE(alive, bound + 1) << c.name() << " rank " << rank;
      } else {
        EXPECT_EQ(alive, bound) << c.name() << " rank " << rank;
      }
    }
  }
}

TEST(Schedule, EarlyReceivesNeedAtMostOneBufferMoreAndKeepThePasses) {
  for (const Case& c : all_cases()) {
    if (c.early) continue;
    for (int rank = 0; rank < c.ranks; ++rank) {
      const auto plain = make_schedule(c.kind, {c.ranks, rank, c.chunks}, c.micros);
      const auto early = with_early_receives(plain);
      for (int chunk = 0; chunk < c.chunks; ++chunk) {
        EXPECT_GE(buffers_needed(early, chunk), buffers_needed(plain, chunk));
        EXPECT_LE(buffers_needed(early, chunk), buffers_needed(plain, chunk) + 1);
      }
      const auto no_receives = [](std::vector<Instruction> list) {
        std::erase_if(list, [](const Instruction& i) {
          return i.action == receive_input || i.action == receive_gradient;
        });
        return list;
      };
      EXPECT_EQ(no_receives(early), no_receives(plain));
      EXPECT_EQ(early.size(), plain.size());
    }
  }
}

TEST(Schedule, ForwardAloneRunsWithAnyNumberOfMicroBatches) {
  for (int ranks = 1; ranks <= 8; ++ranks) {
    for (int chunks = 1; chunks <= (ranks == 1 ? 1 : 4); ++chunks) {
      for (std::int64_t micros = 1; micros <= 24; ++micros) {
        for (const bool early : {false, true}) {
          const Pipeline p = forward_pipeline(ranks, chunks, micros, early);
          const Outcome outcome = Simulator(p).run();
          const std::string name = fmt::format("{} {} {} {}", ranks, chunks, micros, early);
          ASSERT_TRUE(outcome.complaints.empty()) << name << ": " << outcome.complaints.front();
          for (const auto& slots : p.slots)
            for (const std::int64_t count : slots) ASSERT_LE(count, early ? 2 : 1) << name;
          if (chunks == 1 || micros % ranks == 0) {
            ASSERT_EQ(outcome.time, micros * chunks + ranks - 1) << name;
          }
        }
      }
    }
  }
}

TEST(Schedule, ListsByHand) {
  const auto list = [](ScheduleKind kind, PipelinePlace place, std::int64_t micros) {
    return text(make_schedule(kind, place, micros));
  };
  using enum ScheduleKind;
  EXPECT_EQ(list(one_f_one_b, {}, 3), "F0 B0 F1 B1 F2 B2");
  EXPECT_EQ(list(gpipe, {}, 3), "F0 F1 F2 B0 B1 B2");
  EXPECT_EQ(list(one_f_one_b, {3, 0, 1}, 2), "F0 so0 F1 so1 rg0 B0 rg1 B1");
  EXPECT_EQ(list(one_f_one_b, {3, 1, 1}, 3),
            "ri0 F0 so0 ri1 F1 so1 rg0 B0 sg0 ri2 F2 so2 rg1 B1 sg1 rg2 B2 sg2");
  EXPECT_EQ(list(one_f_one_b, {3, 2, 1}, 2), "ri0 F0 B0 sg0 ri1 F1 B1 sg1");
  EXPECT_EQ(list(gpipe, {2, 0, 1}, 2), "F0 so0 F1 so1 rg0 B0 rg1 B1");
  EXPECT_EQ(list(one_f_one_b, {2, 1, 2}, 2),
            "ri0 F0 so0 ri1 F1 so1 ri0.1 F0.1 B0.1 sg0.1 ri1.1 F1.1 B1.1 sg1.1 rg0 B0 sg0 rg1 B1 sg1");
  EXPECT_EQ(text(make_forward_schedule({2, 0, 2}, 3)),
            "F0 so0 F1 so1 ri0.1 F0.1 so0.1 ri1.1 F1.1 so1.1 F2 so2 ri2.1 F2.1 so2.1");
  EXPECT_EQ(text(with_early_receives(make_schedule(one_f_one_b, {3, 1, 1}, 3))),
            "ri0 ri1 F0 so0 rg0 F1 so1 ri2 B0 sg0 rg1 F2 so2 rg2 B1 sg1 B2 sg2");
}

TEST(Schedule, RefusesWhatIsNone) {
  const auto code = [](const auto& call) {
    try {
      call();
    } catch (const Error& error) {
      return error.code() == ErrorCode::usage;
    }
    return false;
  };
  using enum ScheduleKind;
  EXPECT_TRUE(code([] { make_schedule(gpipe, {2, 2, 1}, 4); }));
  EXPECT_TRUE(code([] { make_schedule(gpipe, {2, -1, 1}, 4); }));
  EXPECT_TRUE(code([] { make_schedule(one_f_one_b, {1, 0, 2}, 4); }));
  EXPECT_TRUE(code([] { make_schedule(one_f_one_b, {3, 0, 2}, 4); }));
  EXPECT_TRUE(code([] { make_schedule(gpipe, {3, 0, 2}, 4); }));
  EXPECT_TRUE(code([] { make_schedule(one_f_one_b, {}, 0); }));
  EXPECT_TRUE(code([] { make_forward_schedule({3, 0, 0}, 4); }));
  EXPECT_TRUE(code([] { parse_schedule_kind("1F1B"); }));
  EXPECT_EQ(parse_schedule_kind("gpipe"), gpipe);
  EXPECT_EQ(parse_schedule_kind("1f1b"), one_f_one_b);
}

// What follows proves the simulator: a list with a mistake in it is refused.
class Mistake : public testing::TestWithParam<bool> {
 protected:
  std::vector<Pipeline> some() const {
    std::vector<Pipeline> out;
    for (const ScheduleKind kind : {ScheduleKind::gpipe, ScheduleKind::one_f_one_b}) {
      out.push_back(pipeline({kind, 2, 1, 3, GetParam()}));
      out.push_back(pipeline({kind, 3, 1, 5, GetParam()}));
      out.push_back(pipeline({kind, 2, 2, 4, GetParam()}));
      out.push_back(pipeline({kind, 3, 3, 3, GetParam()}));
    }
    out.push_back(forward_pipeline(3, 1, 4, GetParam()));
    out.push_back(forward_pipeline(2, 3, 5, GetParam()));
    return out;
  }
  template <typename Visit>
  void for_each_place(const Visit& visit) const {
    for (const Pipeline& p : some())
      for (std::size_t rank = 0; rank < p.lists.size(); ++rank)
        for (std::size_t i = 0; i < p.lists[rank].size(); ++i) visit(p, rank, i);
  }
  static bool refused(const Pipeline& p) { return !Simulator(p).run().complaints.empty(); }
};

TEST_P(Mistake, AnInstructionMissingOrTwice) {
  for_each_place([](const Pipeline& p, std::size_t rank, std::size_t i) {
    Pipeline changed = p;
    auto& list = changed.lists[rank];
    list.erase(list.begin() + static_cast<std::ptrdiff_t>(i));
    EXPECT_TRUE(refused(changed)) << text(list);
    list = p.lists[rank];
    list.insert(list.begin() + static_cast<std::ptrdiff_t>(i), list[i]);
    EXPECT_TRUE(refused(changed)) << text(list);
  });
}

TEST_P(Mistake, AnInstructionOfAnotherMicroBatchChunkOrKind) {
  for_each_place([](const Pipeline& p, std::size_t rank, std::size_t i) {
    Pipeline changed = p;
    Instruction& at = changed.lists[rank][i];
    const Instruction was = at;
    at.micro = (was.micro + 1) % p.micro_batches;
    EXPECT_TRUE(refused(changed));
    at = was;
    at.chunk = was.chunk + 1;
    EXPECT_TRUE(refused(changed));
    for (const Action action :
         {receive_input, forward, send_output, receive_gradient, backward, send_gradient}) {
      at = {action, was.chunk, was.micro};
      if (action != was.action) {
        EXPECT_TRUE(refused(changed));
      }
    }
  });
}

// Two neighbours of one micro-batch depend on each other, but for a send and the start of a receive.
TEST_P(Mistake, NeighboursExchanged) {
  int exchanged = 0;
  for_each_place([&](const Pipeline& p, std::size_t rank, std::size_t i) {
    Pipeline changed = p;
    auto& list = changed.lists[rank];
    if (i + 1 == list.size() || list[i].micro != list[i + 1].micro || list[i].chunk != list[i + 1].chunk)
      return;
    if (list[i].action == send_output && list[i + 1].action == receive_gradient) return;
    if (list[i].action == receive_gradient && list[i + 1].action == forward) return;
    std::swap(list[i], list[i + 1]);
    EXPECT_TRUE(refused(changed)) << text(list);
    ++exchanged;
  });
  EXPECT_GT(exchanged, 100);
}

// Messages are matched in order.
TEST_P(Mistake, TransfersOfTheSameKindExchanged) {
  int exchanged = 0;
  for_each_place([&](const Pipeline& p, std::size_t rank, std::size_t i) {
    Pipeline changed = p;
    auto& list = changed.lists[rank];
    if (list[i].action == forward || list[i].action == backward) return;
    const auto next = std::find_if(
        list.begin() + static_cast<std::ptrdiff_t>(i) + 1, list.end(),
        [&](const Instruction& n) { return n.action == list[i].action && n.chunk == list[i].chunk; });
    if (next == list.end()) return;
    std::swap(list[i], *next);
    EXPECT_TRUE(refused(changed)) << text(list);
    ++exchanged;
  });
  EXPECT_GT(exchanged, 100);
}

TEST_P(Mistake, ABufferTooFew) {
  for (const Pipeline& p : some()) {
    for (std::size_t rank = 0; rank < p.slots.size(); ++rank) {
      for (std::size_t chunk = 0; chunk < p.slots[rank].size(); ++chunk) {
        Pipeline changed = p;
        if (--changed.slots[rank][chunk] > 0) {
          EXPECT_TRUE(refused(changed));
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Simulator, Mistake, testing::Bool(),
                         [](const auto& made) { return made.param ? "Early" : "Plain"; });

TEST(Simulator, FindsADeadlock) {
  Pipeline p = pipeline({ScheduleKind::one_f_one_b, 2, 1, 2, false});
  ASSERT_EQ(text(p.lists[0]), "F0 so0 F1 so1 rg0 B0 rg1 B1");
  // The gradient of what was not sent yet.
  p.lists[0] = {{forward, 0, 0}, {receive_gradient, 0, 0}, {backward, 0, 0},         {send_output, 0, 0},
                {forward, 0, 1}, {send_output, 0, 1},      {receive_gradient, 0, 1}, {backward, 0, 1}};
  const Outcome outcome = Simulator(p).run();
  ASSERT_EQ(outcome.complaints.size(), 2u);
  EXPECT_EQ(outcome.complaints[0], "rank 0, backward of chunk 0, micro-batch 0: waits for ever");
  EXPECT_EQ(outcome.complaints[1], "rank 1, forward of chunk 0, micro-batch 0: waits for ever");
}

// Rank 0 cannot begin its third micro-batch before rank 1 has taken the second, which rank 1 would do only
// after what rank 0 does after its third.
TEST(Simulator, FindsADeadlockThroughSlots) {
  Pipeline p = forward_pipeline(2, 2, 3, false);
  p.lists[0] = {{forward, 0, 0},       {send_output, 0, 0},   {forward, 0, 1},       {send_output, 0, 1},
                {forward, 0, 2},       {send_output, 0, 2},   {receive_input, 1, 0}, {forward, 1, 0},
                {send_output, 1, 0},   {receive_input, 1, 1}, {forward, 1, 1},       {send_output, 1, 1},
                {receive_input, 1, 2}, {forward, 1, 2},       {send_output, 1, 2}};
  p.lists[1].clear();
  for (std::int64_t micro = 0; micro < 3; ++micro) {
    for (const Action action : {receive_input, forward, send_output})
      p.lists[1].push_back({action, 0, micro});
    for (const Action action : {receive_input, forward}) p.lists[1].push_back({action, 1, micro});
  }
  const Outcome outcome = Simulator(p).run();
  ASSERT_EQ(outcome.complaints.size(), 2u);
  EXPECT_EQ(outcome.complaints[0], "rank 0, forward of chunk 0, micro-batch 2: waits for ever");
  EXPECT_EQ(outcome.complaints[1], "rank 1, forward of chunk 1, micro-batch 0: waits for ever");
  p.slots[0][0] = 2;
  EXPECT_TRUE(Simulator(p).run().complaints.empty());
}

TEST(Simulator, SeesALongerBubble) {
  const Case c{ScheduleKind::one_f_one_b, 2, 1, 6, false};
  Pipeline p = pipeline(c);
  EXPECT_EQ(Simulator(p).run().time, 21);
  p.lists[0].clear();  // no forward pass ahead: each stage idle while the other works
  for (std::int64_t micro = 0; micro < 6; ++micro) {
    for (const Action action : {forward, send_output, receive_gradient, backward})
      p.lists[0].push_back({action, 0, micro});
  }
  const Outcome outcome = Simulator(p).run();
  EXPECT_TRUE(outcome.complaints.empty());
  EXPECT_EQ(outcome.time, 36);
}

TEST(Buffers, AreCountedWithoutTheList) {
  for (const ScheduleKind kind : {ScheduleKind::gpipe, ScheduleKind::one_f_one_b}) {
    for (int ranks = 1; ranks <= 6; ++ranks) {
      for (int chunks = 1; chunks <= (ranks > 1 ? 4 : 1); ++chunks) {
        for (std::int64_t micro = 1; micro <= 31; ++micro) {
          if (chunks > 1 && micro % ranks != 0) continue;
          for (int rank = 0; rank < ranks; ++rank) {
            const PipelinePlace place{ranks, rank, chunks};
            const std::vector<Instruction> list = make_schedule(kind, place, micro);
            const std::vector<std::int64_t> counts = buffers_of_chunks(kind, place, micro);
            ASSERT_EQ(std::ssize(counts), chunks);
            for (int chunk = 0; chunk < chunks; ++chunk)
              EXPECT_EQ(counts[static_cast<std::size_t>(chunk)], buffers_needed(list, chunk))
                  << "rank " << rank << " of " << ranks << ", chunk " << chunk << " of " << chunks << ", "
                  << micro << " micro-batches" << (kind == ScheduleKind::gpipe ? ", gpipe" : "");
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace shardwright::trainer

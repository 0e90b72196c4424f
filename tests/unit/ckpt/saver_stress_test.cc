// Many small saves of random sizes by two ranks, while the state changes, with aborts, deadlines and saves
// that are skipped; what was committed holds exactly the values of its step.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "ckpt/run_dir.h"
#include "ckpt/saver.h"
#include "tests/tools/sample_checkpoint.h"
#include "tests/tools/temp_dir.h"

namespace shardwright::ckpt {
namespace {

using Random = std::mt19937;

std::uint64_t below(Random& random, std::uint64_t n) { return random() % n; }

struct Tensor {
  std::string name;
  Dims shape;
  Dims chunk;  // at most a rank's rows
  std::uint64_t cut = 0;
  std::vector<float> values;  // all equal to the step that wrote them last

  Box box(int rank) const {
    Box b = Box::whole(shape);
    b.offset[0] = rank == 0 ? 0 : cut;
    b.shape[0] = rank == 0 ? cut : shape[0] - cut;
    return b;
  }
};

std::vector<Tensor> random_model(Random& random) {
  std::vector<Tensor> model(1 + below(random, 6));
  for (std::size_t i = 0; i < model.size(); ++i) {
    Tensor& t = model[i];
    t.name = "t" + std::to_string(i);
    t.shape = {2 + below(random, 90), 1 + below(random, 50)};
    t.cut = below(random, t.shape[0] + 1);  // a rank may have nothing
    const std::uint64_t rows = std::min(t.cut, t.shape[0] - t.cut);
    if (rows > 0) t.chunk = {1 + below(random, rows), 1 + below(random, t.shape[1])};
    t.values.assign(t.shape[0] * t.shape[1], 0);
  }
  return model;
}

std::vector<SaveItem> items_of(const std::vector<Tensor>& model, int rank) {
  std::vector<SaveItem> items;
  for (const Tensor& t : model) {
    const Box box = t.box(rank);
    SaveItem item{t.name, "param", DType::f32, t.shape, box, box.empty() ? Dims{} : t.chunk, nullptr};
    item.source = std::make_shared<HostSource>(t.values.data() + box.offset[0] * t.shape[1], box, 4);
    items.push_back(std::move(item));
  }
  return items;
}

/// The next step: a rank changes its boxes in a random order, each in pieces.
void change(std::vector<Tensor>& model, int rank, Saver& saver, float value, Random& random) {
  std::vector<std::size_t> order(model.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::ranges::shuffle(order, random);
  for (const std::size_t i : order) {
    Tensor& t = model[i];
    const Box box = t.box(rank);
    for (std::uint64_t row = box.offset[0]; row < box.end(0);) {
      Box part = box;
      part.offset[0] = row;
      part.shape[0] = std::min<std::uint64_t>(1 + below(random, 40), box.end(0) - row);
      saver.before_write(t.name, "param", part);
      std::fill_n(t.values.begin() + static_cast<std::ptrdiff_t>(row * t.shape[1]), part.elements(), value);
      row = part.end(0);
    }
  }
}

void expect_values(const std::string& path, const std::vector<Tensor>& model, std::uint64_t step) {
  std::vector<std::vector<float>> loaded;
  std::vector<LoadItem> items;
  for (const Tensor& t : model) loaded.emplace_back(t.values.size(), -1.0F);
  for (std::size_t i = 0; i < model.size(); ++i)
    items.push_back({model[i].name, "param", DType::f32, model[i].shape, Box::whole(model[i].shape),
                     reinterpret_cast<std::byte*>(loaded[i].data())});
  Checkpoint::open(posix_env(), path).load(items, {});
  for (std::size_t i = 0; i < model.size(); ++i)
    for (const float value : loaded[i])
      ASSERT_EQ(value, static_cast<float>(step)) << path << " " << model[i].name;
}

struct Counts {
  int committed = 0, failed = 0, skipped = 0, late = 0;
};

Counts stress(int saves, unsigned seed) {
  const TempDir dir;
  const std::string checkpoints = dir / "run/checkpoints";
  const Generation generation = begin_generation(posix_env(), dir / "run", checkpoints).generation;
  Random random(seed);
  Counts counts;
  std::uint64_t step = 0;
  while (counts.committed + counts.failed + counts.skipped < saves) {
    std::vector<Tensor> model = random_model(random);
    std::vector<std::unique_ptr<Saver>> savers;
    for (int rank = 0; rank < 2; ++rank) {
      SaverOptions o;
      o.checkpoints_dir = checkpoints;
      o.run_dir = dir / "run";
      o.run = generation.run;
      o.generation = generation.number;
      o.rank = rank;
      o.writers = 2;
      o.commit_deadline_s = 30;
      o.keep = 1;
      o.lazy = below(random, 4) != 0;
      o.shard.threads = static_cast<int>(1 + below(random, 3));
      o.shard.priority = below(random, 2) == 0 ? WorkerPriority::low : WorkerPriority::normal;
      o.shard.verify_writes = below(random, 2) == 0;
      o.shard.max_in_flight_bytes = 1u << below(random, 16);
      savers.push_back(std::make_unique<Saver>(posix_env(), o));
    }
    std::set<std::uint64_t> aborted;
    const auto change_all = [&] {
      ++step;
      for (std::size_t rank : {0u, 1u})
        change(model, static_cast<int>(rank), *savers[rank], static_cast<float>(step), random);
    };
    const auto collect = [&] {
      for (auto& saver : savers) {
        try {
          saver->wait(1e-4 * static_cast<double>(below(random, 100)));  // sometimes too short
        } catch (const Error& e) {
          EXPECT_EQ(e.code(), ErrorCode::deadline) << e.what();
          ++counts.late;
        }
        saver->wait(60);
      }
      savers[1]->take_outcomes();
      for (const SaveOutcome& o : savers[0]->take_outcomes()) {
        if (o.result == SaveResult::committed) {
          ++counts.committed;
          expect_values(o.path, model, o.step);
        } else if (o.result == SaveResult::failed) {
          ++counts.failed;
          EXPECT_TRUE(aborted.contains(o.step)) << o.reason;
          for (std::size_t rank : {1u, 0u}) savers[rank]->discard(o.attempt, o.step);
        } else {
          ++counts.skipped;
        }
      }
    };
    for (int n = 0; n < 40 && !::testing::Test::HasFailure(); ++n) {
      change_all();
      if (savers[0]->busy() || savers[1]->busy()) {
        if (below(random, 2) == 0) {
          for (auto& saver : savers) saver->skip(step, step, "still busy");
          continue;
        }
        collect();
      }
      for (std::size_t rank : {1u, 0u})
        savers[rank]->start({step, step, items_of(model, static_cast<int>(rank)), sample_description(step)});
      if (below(random, 8) == 0) {
        aborted.insert(step);
        for (auto& saver : savers) saver->cancel("given up");
      }
      // Some saves are left alone until they end; the others meet the next step at once.
      if (below(random, 3) == 0) collect();
    }
    collect();
    if (::testing::Test::HasFailure()) return counts;
  }
  return counts;
}

TEST(SaverStress, SavesBesideChangesAbortsAndDeadlines) {
  const Counts counts = stress(60, 17);
  EXPECT_GT(counts.committed, 20);
  EXPECT_GT(counts.failed, 1);
}

// Thousands of them: a test with the label `long` starts it.
TEST(SaverStress, DISABLED_Thousands) {
  Counts all;
  for (unsigned seed = 0; seed < 20; ++seed) {
    const Counts counts = stress(250, seed);
    all.committed += counts.committed;
    all.failed += counts.failed;
  }
  EXPECT_GT(all.committed, 1500);
  EXPECT_GT(all.failed, 100);
}

}  // namespace
}  // namespace shardwright::ckpt

#include "reshard/reshard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "ckpt/checkpoint.h"
#include "ckpt/error.h"
#include "reshard/target_plan.h"
#include "tests/tools/label_fill.h"
#include "tests/tools/temp_dir.h"

namespace shardwright::reshard {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Two layers, odd sizes, and an up projection large enough to be cut.
ModelSpec small_model() {
  return build_model({.layers = 2, .hidden = 60, .heads = 6, .ffn = 301, .vocab = 97, .seq_len = 7});
}

class ReshardTest : public ::testing::Test {
 protected:
  std::string labelled(const char* layout, const LabelChange& change = {}) {
    const std::string path = dir_ / (std::string("source-") + layout);
    write_labelled(env_, path, small_model(), parse_layout(layout), 7, change);
    return path;
  }
  ReshardOptions options(const std::string& source, const std::string& name, const Layout& layout) {
    ReshardOptions o;
    o.source = source;
    o.target = dir_ / name;
    o.layout = layout;
    return o;
  }
  std::string resharded(const std::string& source, const char* layout, const std::string& name) {
    const ReshardReport report = reshard(env_, options(source, name, parse_layout(layout)));
    EXPECT_TRUE(report.proof_ok);
    return dir_ / name;
  }
  // Every bit of every tensor, through the loader.
  std::vector<std::vector<float>> contents(const std::string& path) {
    const ckpt::Checkpoint c = ckpt::Checkpoint::open(env_, path);
    std::vector<std::vector<float>> values;
    std::vector<ckpt::LoadItem> items;
    for (const ckpt::StateEntry& s : c.manifest().states) {
      const ckpt::TensorEntry& t = c.manifest().tensors[s.tensor];
      values.emplace_back(ckpt::element_count(t.shape));
      items.push_back({t.name, s.kind, s.dtype, t.shape, ckpt::Box::whole(t.shape),
                       std::as_writable_bytes(std::span(values.back())).data()});
    }
    c.load(items, {});
    return values;
  }
  std::vector<ckpt::StateEntry> states(const std::string& path) {
    return ckpt::Checkpoint::open(env_, path).manifest().states;
  }
  std::vector<std::string> names() { return env_.list(dir_.path()); }
  Error refusal(const ReshardOptions& o) {
    try {
      reshard(env_, o);
    } catch (const Error& e) {
      return e;
    }
    ADD_FAILURE() << "was not refused";
    return {ErrorCode::usage, ""};
  }

  ckpt::Env& env_ = ckpt::posix_env();
  TempDir dir_;
};

TEST_F(ReshardTest, RoundTripIsTheIdentity) {
  const std::string a = labelled("t2d3z1");
  const std::string b = resharded(a, "t1d7z1", "b");
  const std::string c = resharded(b, "t3p2d2z0", "c");
  const std::string again = resharded(c, "t2d3z1", "a2");
  for (const std::string& path : {b, c, again}) {
    EXPECT_THAT(check_labels(env_, path), IsEmpty());
    const auto before = states(a);
    const auto after = states(path);
    ASSERT_EQ(after.size(), before.size());
    for (std::size_t i = 0; i < after.size(); ++i) EXPECT_EQ(after[i].fingerprint, before[i].fingerprint);
  }
  EXPECT_EQ(contents(again), contents(a));
  // The same boxes in the same files.
  const ckpt::Checkpoint one = ckpt::Checkpoint::open(env_, a);
  const ckpt::Checkpoint two = ckpt::Checkpoint::open(env_, again);
  ASSERT_EQ(one.manifest().boxes.size(), two.manifest().boxes.size());
  for (std::size_t i = 0; i < one.manifest().boxes.size(); ++i) {
    EXPECT_EQ(one.manifest().boxes[i].box, two.manifest().boxes[i].box);
    EXPECT_EQ(one.manifest().boxes[i].file, two.manifest().boxes[i].file);
    EXPECT_EQ(one.manifest().boxes[i].chunk, two.manifest().boxes[i].chunk);
  }
}

TEST_F(ReshardTest, ReportAndDescription) {
  const std::string a = labelled("t2d3z1");
  ReshardOptions o = options(a, "b", parse_layout("t1d5z1"));
  std::uint64_t last = 0;
  o.progress = [&](std::uint64_t done, std::uint64_t all) {
    EXPECT_GT(done, last);
    EXPECT_LE(done, all);
    last = done;
  };
  const ReshardReport report = reshard(env_, o);
  EXPECT_EQ(last, 3 * 4 * small_model().parameters());
  EXPECT_EQ(report.step, 7u);
  EXPECT_EQ(report.tensors, small_model().tensors.size());
  EXPECT_EQ(report.proof_tensors, 3 * report.tensors);
  EXPECT_EQ(report.read_bytes, report.needed_bytes) << "each stored chunk is read once";
  EXPECT_GE(report.copies, report.chunks_read);
  EXPECT_GT(report.peak_rss_bytes, 0u);
  ASSERT_EQ(report.warnings.size(), 1u);
  EXPECT_THAT(report.warnings[0], HasSubstr("dp 5"));

  const ckpt::Checkpoint from = ckpt::Checkpoint::open(env_, a);
  const ckpt::Checkpoint to = ckpt::Checkpoint::open(env_, report.target);
  EXPECT_EQ(to.commit().run, from.commit().run);
  EXPECT_EQ(to.commit().generation, from.commit().generation);
  EXPECT_THAT(to.commit().attempt, ::testing::MatchesRegex("r-[0-9a-f]{16}"));
  EXPECT_EQ(to.manifest().description.training, from.manifest().description.training);
  EXPECT_EQ(to.manifest().description.config, from.manifest().description.config);
  EXPECT_EQ(to.manifest().description.layout, to_json(parse_layout("t1d5z1"), small_model()));
  EXPECT_EQ(report.to_layout_json, to.manifest().description.layout);
}

TEST_F(ReshardTest, PlanOnlyAgreesAndWritesNothing) {
  const std::string a = labelled("t2d3z1");
  ReshardOptions o = options(a, "b", parse_layout("t3d2"));
  o.plan_only = true;
  // Shards are not needed for a plan.
  for (const std::string& name : env_.list(a)) {
    if (name.starts_with("rank-")) env_.rename(a + "/" + name, dir_ / ("away-" + name));
  }
  const ReshardReport plan = reshard(env_, o);
  EXPECT_FALSE(env_.exists(o.target));
  for (const std::string& name : names()) {
    if (name.starts_with("away-")) env_.rename(dir_ / name, a + "/" + name.substr(5));
  }
  o.plan_only = false;
  const ReshardReport done = reshard(env_, o);
  EXPECT_EQ(plan.copies, done.copies);
  EXPECT_EQ(plan.files_written, done.files_written);
  EXPECT_EQ(plan.chunks_recoded, done.chunks_recoded);
  EXPECT_EQ(plan.chunks_passed_through, done.chunks_passed_through);
  EXPECT_EQ(plan.chunks_read, done.chunks_read);
  EXPECT_GT(plan.needed_bytes, 0u);
}

TEST_F(ReshardTest, WeightsOnlyKeepsParam) {
  const std::string a = labelled("d3");
  ReshardOptions o = options(a, "b", parse_layout("t1"));
  o.conversion.weights_only = true;
  EXPECT_EQ(reshard(env_, o).proof_tensors, small_model().tensors.size());
  for (const ckpt::StateEntry& s : states(o.target)) EXPECT_EQ(s.kind, kParam);
  EXPECT_THAT(check_labels(env_, o.target), IsEmpty());
}

TEST_F(ReshardTest, LeastMemoryStillWorksWithSeveralJobs) {
  const std::string a = labelled("t3d2z1");
  ReshardOptions o = options(a, "b", parse_layout("t2d3z1"));
  o.max_memory_bytes = 64u << 20;
  o.jobs = 3;
  EXPECT_TRUE(reshard(env_, o).proof_ok);
  EXPECT_THAT(check_labels(env_, o.target), IsEmpty());
  o.target += "2";
  o.max_memory_bytes -= 1;
  EXPECT_THAT(refusal(o).what(), HasSubstr("at least 64MiB"));
}

TEST_F(ReshardTest, RefusalsLeaveNothing) {
  const std::string a = labelled("d2");
  const auto before = names();
  Error e = refusal(options(a, "b", parse_layout("t4")));
  EXPECT_EQ(e.code(), ErrorCode::usage);
  EXPECT_THAT(e.what(), HasSubstr("possible with 6 heads and 6 KV heads: 1, 2, 3, 6"));
  e = refusal(options(a, "source-d2", parse_layout("d3")));
  EXPECT_EQ(e.code(), ErrorCode::exists);
  e = refusal(options(a, "source-d2/inner", parse_layout("d3")));
  EXPECT_EQ(e.code(), ErrorCode::usage);
  e = refusal(options(dir_ / "nothing", "b", parse_layout("d3")));
  EXPECT_EQ(e.code(), ErrorCode::missing);
  EXPECT_EQ(names(), before);
}

TEST_F(ReshardTest, AHeldTargetIsBusy) {
  const std::string a = labelled("d2");
  ReshardOptions o = options(a, "b", parse_layout("d3"));
  {
    const auto held = env_.lock(o.target + ".lock");
    EXPECT_EQ(refusal(o).code(), ErrorCode::busy);
  }
  EXPECT_TRUE(reshard(env_, o).proof_ok) << "a leftover lock file alone is in nobody's way";
  EXPECT_FALSE(env_.exists(o.target + ".lock"));
}

TEST_F(ReshardTest, DamagedSourceIsRefusedAndNothingStays) {
  const std::string a = labelled("d2");
  const auto before = names();
  const std::string shard = a + "/rank-00001.h5";
  std::vector<char> bytes(std::filesystem::file_size(shard));
  std::ifstream(shard, std::ios::binary).read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  const ckpt::Checkpoint c = ckpt::Checkpoint::open(env_, a);
  const ckpt::ChunkRow row = c.shard(1).table().at(5);
  bytes[row.address + row.stored_bytes / 2] ^= 4;
  std::ofstream(shard, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  const Error e = refusal(options(a, "b", parse_layout("d3")));
  EXPECT_EQ(e.code(), ErrorCode::damaged);
  EXPECT_THAT(e.what(), HasSubstr("rank-00001.h5"));
  EXPECT_EQ(names(), before);
}

TEST_F(ReshardTest, KilledAnywhereLeavesNothingSelectableAndRunsAgain) {
  const std::string a = labelled("t2d2z1");
  for (const char* point : {"shard.open:rank=2", "shard.mid:rank=1", "part.rename:rank=3", "manifest.write",
                            "commit.write", "commit.rename", "dir.rename"}) {
    ReshardOptions o = options(a, std::string("to-") + point, parse_layout("d4"));
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      // A child of its own program image, so that the variable is read anew.
      ::setenv("SHARDWRIGHT_FAULT", (std::string(point) + "=kill").c_str(), 1);
      ::setenv("RESHARD_FROM", a.c_str(), 1);
      ::setenv("RESHARD_TO", o.target.c_str(), 1);
      ::execl("/proc/self/exe", "unit_reshard", "--gtest_filter=ReshardChild.DISABLED_Run",
              "--gtest_also_run_disabled_tests", nullptr);
      ::_exit(9);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << point << " " << status;
    EXPECT_FALSE(env_.exists(o.target)) << point;
    for (const std::string& name : names()) {
      if (name.find(".tmp-") == std::string::npos) continue;
      EXPECT_THROW(ckpt::Checkpoint::open(env_, dir_ / name), Error);
    }
    EXPECT_TRUE(reshard(env_, o).proof_ok) << point;
    EXPECT_THAT(check_labels(env_, o.target), IsEmpty()) << point;
    for (const std::string& name : names())
      EXPECT_EQ(name.find(".tmp-"), std::string::npos) << point << " " << name;
  }
}

// Not a test: what the one above starts and kills.
TEST(ReshardChild, DISABLED_Run) {
  if (::getenv("RESHARD_TO") == nullptr) return;
  ReshardOptions o;
  o.source = ::getenv("RESHARD_FROM");
  o.target = ::getenv("RESHARD_TO");
  o.layout = parse_layout("d4");
  reshard(ckpt::posix_env(), o);
}

// Reads `region` of an item from where another item's box lies: what a plan with two boxes swapped would do.
class Displaced : public ckpt::Source {
 public:
  Displaced(ckpt::SaveItem here, ckpt::SaveItem there) : here_(std::move(here)), there_(std::move(there)) {}
  void read(const ckpt::Box& region, std::byte* dst) const override {
    ckpt::Box other = region;
    for (std::size_t d = 0; d < region.offset.size(); ++d) {
      other.offset[d] = region.offset[d] - here_.box.offset[d] + there_.box.offset[d];
    }
    there_.source->read(other, dst);
  }

 private:
  ckpt::SaveItem here_, there_;
};

TEST_F(ReshardTest, LabelsSeeOneSwappedBoxOfThePlan) {
  const std::string a = labelled("t2d2z1");
  const Layout layout = parse_layout("t3");
  const auto source = std::make_shared<const ckpt::Checkpoint>(ckpt::Checkpoint::open(env_, a));
  const auto cache = std::make_shared<ckpt::ChunkCache>(source, 1u << 20);
  const TargetPlan plan = plan_target(source->manifest(), layout);
  const std::string q = "model.layers.1.self_attn.q_proj.weight";
  const auto is_q = [&](const ckpt::SaveItem& item) { return item.tensor == q && item.kind == kExpAvg; };
  const auto write = [&](const std::string& path, bool swapped) {
    std::vector<std::vector<ckpt::SaveItem>> items;
    for (int rank = 0; rank < 3; ++rank) items.push_back(target_items(plan, cache, rank));
    if (swapped) {  // q's rows of ranks 0 and 1
      ckpt::SaveItem& one = *std::find_if(items[0].begin(), items[0].end(), is_q);
      ckpt::SaveItem& two = *std::find_if(items[1].begin(), items[1].end(), is_q);
      ASSERT_EQ(one.box.shape, two.box.shape);
      const ckpt::SaveItem first = one;
      one.source = std::make_shared<Displaced>(one, two);
      two.source = std::make_shared<Displaced>(two, first);
    }
    write_checkpoint(env_, path, small_model(), layout, 7,
                     [&](int rank) { return items[static_cast<std::size_t>(rank)]; });
  };
  write(dir_ / "right", false);
  EXPECT_THAT(check_labels(env_, dir_ / "right"), IsEmpty());
  write(dir_ / "swapped", true);
  EXPECT_THAT(check_labels(env_, dir_ / "swapped"),
              ::testing::ElementsAre(HasSubstr(q + " exp_avg: element 0 is ")));
  // The proof, which compares fingerprints, sees it as well.
  bool differs = false;
  for (std::size_t i = 0; i < states(a).size(); ++i) {
    EXPECT_EQ(states(dir_ / "right")[i].fingerprint, states(a)[i].fingerprint);
    differs = differs || states(dir_ / "swapped")[i].fingerprint != states(a)[i].fingerprint;
  }
  EXPECT_TRUE(differs);
}

TEST_F(ReshardTest, OtherTensorsThanTheModelsAreAMismatch) {
  const std::string a = labelled("d2");
  ckpt::Manifest manifest = ckpt::Checkpoint::open(env_, a).manifest();
  EXPECT_EQ(model_of(manifest).config, small_model().config);
  ModelConfig other = small_model().config;
  other.ffn = 300;
  manifest.description.model = to_json(other);
  try {
    model_of(manifest);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::mismatch);
    EXPECT_THAT(e.what(), HasSubstr("has shape [60, 301] in the checkpoint, and [60, 300] in its model"));
  }
  other = small_model().config;
  other.layers = 3;
  manifest.description.model = to_json(other);
  EXPECT_THROW(model_of(manifest), Error);
}

}  // namespace
}  // namespace shardwright::reshard

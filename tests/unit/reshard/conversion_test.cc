#include "reshard/conversion.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "ckpt/checkpoint.h"
#include "ckpt/error.h"
#include "reshard/proof.h"
#include "reshard/reshard.h"
#include "tests/tools/label_fill.h"
#include "tests/tools/temp_dir.h"

namespace shardwright::reshard {
namespace {

using ckpt::DType;
using ::testing::HasSubstr;

class ConversionTest : public ::testing::Test {
 protected:
  /// A target with all kinds of conversion, and what it was planned from.
  struct Done {
    std::shared_ptr<const ckpt::Checkpoint> source;
    TargetPlan plan;
    ckpt::Manifest target;
  };
  Done converted_checkpoint(const char* name = "target") {
    const ModelSpec model =
        build_model({.layers = 2, .hidden = 60, .heads = 6, .ffn = 301, .vocab = 97, .seq_len = 7});
    const std::string from = dir_ / "source";
    if (!env_.exists(from)) write_labelled(env_, from, model, parse_layout("t2d3z1"), 7, {});
    ReshardOptions options;
    options.source = from;
    options.target = dir_ / name;
    options.layout = parse_layout("t3p2d1z0");
    options.conversion.vocab = 131;
    options.conversion.tie = Tie::untie;
    options.conversion.casts = {{kExpAvg, DType::bf16}, {kExpAvgSq, DType::f64}};
    reshard(env_, options);
    auto source = std::make_shared<const ckpt::Checkpoint>(ckpt::Checkpoint::open(env_, from));
    TargetPlan plan = plan_target(source->manifest(), options.layout, options.conversion);
    return {source, plan, ckpt::Checkpoint::open(env_, options.target).manifest()};
  }
  std::string refusal(const Done& done) {
    try {
      prove(done.source, done.plan, done.target, 2);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  }

  ckpt::Env& env_ = ckpt::posix_env();
  TempDir dir_;
};

TEST_F(ConversionTest, TheProofSeesEveryConvertedState) {
  const Done done = converted_checkpoint();
  EXPECT_EQ(refusal(done), "");
  for (std::size_t s = 0; s < done.target.states.size(); ++s) {
    Done changed = done;
    changed.target.states[s].fingerprint.g += 1;
    EXPECT_THAT(refusal(changed), HasSubstr(done.target.states[s].kind + ": the fingerprint differs"));
    changed = done;
    changed.target.states[s].dtype = DType::f16;
    EXPECT_THAT(refusal(changed), HasSubstr("has another type than it should"));
  }
  Done fewer = done;
  fewer.target.states.pop_back();
  EXPECT_THAT(refusal(fewer), HasSubstr("is missing in the target"));
}

TEST_F(ConversionTest, WhatIsExpectedDoesNotDependOnThreads) {
  const Done done = converted_checkpoint();
  for (const KeptState& kept : done.plan.states) {
    if (!kept.converted) continue;
    const ConvertedState::Expected one = kept.converted->expected(done.source, 1);
    const ConvertedState::Expected three = kept.converted->expected(done.source, 3);
    EXPECT_EQ(one.fingerprint, three.fingerprint);
    EXPECT_EQ(one.fingerprint.count, ckpt::element_count(done.plan.model.tensors[kept.tensor].shape));
    EXPECT_GT(one.read_bytes, 0u);
  }
}

TEST_F(ConversionTest, DocumentsTellOfTheModelThatItIsNow) {
  const ModelConfig from{.layers = 2, .hidden = 60, .heads = 6, .vocab = 97, .seq_len = 7};
  ModelConfig to = from;
  to.vocab = 131;
  to.tie_embeddings = false;
  ckpt::Description source;
  source.model = to_json(from);
  source.config = R"({"model":{"arch":"gpt2","vocab":97,"tie_embeddings":true},"train":{"seed":5}})";
  source.training = R"({"step":3})";
  const ckpt::Description target = converted(source, from, to);
  EXPECT_EQ(parse_model_json(target.model), to);
  EXPECT_EQ(nlohmann::json::parse(target.config),
            nlohmann::json::parse(
                R"({"model":{"arch":"gpt2","vocab":131,"tie_embeddings":false},"train":{"seed":5}})"));
  EXPECT_EQ(target.training, source.training);
  EXPECT_EQ(converted(source, from, from).config, source.config) << "to the byte";
  // Another program's configuration may be anything.
  for (const std::string& strange : {std::string("no JSON"), std::string("[1]"), std::string(100000, '[')}) {
    source.config = strange;
    EXPECT_EQ(converted(source, from, to).config, strange);
  }
}

}  // namespace
}  // namespace shardwright::reshard

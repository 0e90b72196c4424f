// Short texts from the command line, from directories and from a checkpoint's descriptions: layouts, sizes,
// names, digests, models. What is accepted keeps to its bounds and is read back as it is written.
#include <cmath>
#include <limits>
#include <string>

#include "ckpt/checkpoint_name.h"
#include "ckpt/commit.h"
#include "ckpt/digest.h"
#include "ckpt/error.h"
#include "ckpt/size_text.h"
#include "cli/size.h"
#include "reshard/layout.h"
#include "reshard/model_spec.h"
#include "tests/fuzz/input.h"

namespace {

using namespace shardwright;
using fuzz::require;

void check_degrees(const reshard::Layout& layout) {
  for (const int degree : {layout.tp, layout.pp, layout.dp, layout.vpp})
    require(degree >= 1 && degree <= reshard::kMaxRanks, "a degree is from 1 to the most ranks");
}

void layout(const std::string& text) {
  const reshard::Layout parsed = reshard::parse_layout(text);
  check_degrees(parsed);
  require(parsed.zero >= 0 && parsed.zero <= 3, "ZeRO has stages 0 to 3");
  const auto again =
      fuzz::must("a layout can be read", [&] { return reshard::parse_layout(parsed.string()); });
  require(again == parsed, "a layout is read as it was written");
}

void layout_json(const std::string& text) {
  const reshard::Layout parsed = reshard::parse_layout_json(text);
  check_degrees(parsed);
  require(parsed.ranks() >= 1 && parsed.ranks() <= reshard::kMaxRanks,
          "a layout has no more ranks than names");
  require(reshard::is_rank_order(parsed.order), "the order has each axis once");
  if (parsed.stages.empty()) return;
  const std::string written = reshard::to_json(parsed, {});
  const auto again = fuzz::must("a layout can be read", [&] { return reshard::parse_layout_json(written); });
  require(again == parsed, "a layout is read as it was written");
}

void model_json(const std::string& text) {
  const reshard::ModelConfig parsed = reshard::parse_model_json(text);
  const std::string written = reshard::to_json(parsed);
  const auto again = fuzz::must("a model can be read", [&] { return reshard::parse_model_json(written); });
  require(again == parsed, "a model is read as it was written");
  require(reshard::differing_fields(parsed, parsed).empty(), "a model does not differ from itself");
  if (parsed.layers > 64) return;  // its table grows with the layers
  try {
    const reshard::ModelSpec model = reshard::build_model(parsed);
    require(model.parameters() > 0 && !model.tensors.empty(), "a model has parameters");
    for (const reshard::TensorSpec& tensor : model.tensors)
      require(ckpt::checked_element_count(tensor.shape).value_or(0) > 0, "each tensor has a size");
  } catch (const Error& e) {
    require(e.code() == ErrorCode::usage, "a model that cannot be is a mistake of the user");
  }
}

void size(const std::string& text) {
  const auto bytes = cli::parse_size(text);
  if (!bytes) return;
  require(*bytes <= 9'000'000'000'000'000'000u, "a size fits");
  const auto again = cli::parse_size(ckpt::size_text(*bytes));
  const auto given = static_cast<double>(*bytes);
  require(again && std::abs(static_cast<double>(*again) - given) <= 0.06 * given,
          "a size can be read as shown");
}

void name(const std::string& text) {
  if (text.find('/') != std::string::npos) return;  // no directory lists such a name
  const auto parsed = ckpt::parse_checkpoint_name(text);
  const auto step = ckpt::parse_step_dir(text);
  require(step.has_value() == (parsed && parsed->state == ckpt::NameState::committed),
          "both readers of names agree on what a checkpoint is called");
  if (step) require(ckpt::step_dir_name(*step) == text && parsed->step == *step, "a name is its step's");
  if (parsed) {
    require(parsed->text == text && text.starts_with(ckpt::step_dir_name(parsed->step)),
            "a name begins with its step");
    require(ckpt::is_attempt(text) == (parsed->state == ckpt::NameState::attempt),
            "attempts are known by name");
  }
  if (!text.empty())
    require(ckpt::base_name("a/" + text + "//") == text, "slashes at the end change no name");
}

void digest(const std::string& text) {
  require(ckpt::to_hex(ckpt::parse_digest(text)) == text, "a digest is written in one way only");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t length) {
  static constexpr void (*kReaders[])(const std::string&) = {layout, layout_json, model_json,
                                                             size,   name,        digest};
  fuzz::Input input(data, length);
  const std::size_t reader = input.byte() % std::size(kReaders);
  try {
    kReaders[reader](input.rest_text());
  } catch (const Error& e) {
    require(e.code() == (kReaders[reader] == layout ? ErrorCode::usage : ErrorCode::damaged),
            "what is refused is called what it is");
  }
  return 0;
}

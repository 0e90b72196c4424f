// The step that the training state names, found without building a tree of a document that others wrote: it
// may have any size and depth.
#include <fmt/format.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "ckpt/commit.h"
#include "ckpt/error.h"

namespace shardwright::ckpt {
namespace {

using Json = nlohmann::json;

/// Remembers the last value of the top object's `step`, as text.
class StepFinder : public nlohmann::json_sax<Json> {
 public:
  std::optional<std::string> step;

  bool null() override { return value("null"); }
  bool boolean(bool v) override { return value(v ? "true" : "false"); }
  bool number_integer(number_integer_t v) override { return value(fmt::format("{}", v)); }
  bool number_unsigned(number_unsigned_t v) override { return value(fmt::format("{}", v)); }
  bool number_float(number_float_t, const string_t& text) override { return value(text); }
  bool string(string_t&) override { return value("a text"); }
  bool binary(binary_t&) override { return value("bytes"); }
  bool start_object(std::size_t) override {
    value("an object");
    if (depth_++ == 0) in_object_ = true;
    return true;
  }
  bool key(string_t& name) override {
    if (depth_ == 1 && in_object_) at_step_ = name == "step";
    return true;
  }
  bool end_object() override { return --depth_, true; }
  bool start_array(std::size_t) override {
    value("a list");
    ++depth_;
    return true;
  }
  bool end_array() override { return --depth_, true; }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception&) override {
    return false;
  }

 private:
  bool value(std::string text) {
    if (depth_ == 1 && in_object_ && at_step_) step = std::move(text);
    return true;
  }

  std::uint64_t depth_ = 0;
  bool in_object_ = false;
  bool at_step_ = false;
};

}  // namespace

void check_training_step(const std::string& path, const Commit& commit, const Manifest& manifest) {
  StepFinder found;
  const bool is_json = Json::sax_parse(manifest.description.training, &found);
  if (!is_json || !found.step || *found.step == std::to_string(commit.step)) return;
  throw Error(ErrorCode::damaged,
              fmt::format("{}/manifest.h5: its training state is of step {}; COMMIT says {}", path,
                          *found.step, commit.step),
              path + "/manifest.h5");
}

}  // namespace shardwright::ckpt

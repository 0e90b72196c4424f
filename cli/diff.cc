#include "ckpt/diff.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>
#include <thread>

#include "ckpt/scan.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/output.h"

namespace shardwright::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kListed = 20;  // differences that fit on a screen

/// Fields of the training state that differ: {field: [a, b]}; absent ones are null. Another program's may
/// have no fields, and then differs as a whole.
Json differing_fields(const Json& a, const Json& b) {
  Json differing = Json::object();
  if (a == b) return differing;
  const auto pair = [](const Json& x, const Json& y) { return Json::array({x, y}); };
  if (!a.is_object() || !b.is_object()) {
    differing["training"] = pair(a, b);
    return differing;
  }
  for (const auto& [field, value] : a.items()) {
    const Json other = b.value(field, Json());
    if (value != other) differing[field] = pair(value, other);
  }
  for (const auto& [field, value] : b.items())
    if (!a.contains(field)) differing[field] = pair(nullptr, value);
  return differing;
}

/// Values are numbers where JSON has them; shapes, types and non-finite values stay text.
Json value_json(const ckpt::Difference& difference, const std::string& text) {
  if (difference.what != "value") return text;
  const Json parsed = Json::parse(text, nullptr, false);
  return parsed.is_number() ? parsed : Json(text);
}

Json differences_json(const ckpt::DiffReport& report) {
  Json list = Json::array();
  for (const ckpt::Difference& d : report.differences) {
    Json index = Json::array();
    for (const std::uint64_t i : d.index) index.push_back(i);
    list.push_back({{"tensor", d.tensor},
                    {"kind", d.kind},
                    {"what", d.what},
                    {"index", index},
                    {"a", value_json(d, d.a)},
                    {"b", value_json(d, d.b)},
                    {"count", d.count},
                    {"max_abs", json_float(d.max_abs)},
                    {"max_rel", json_float(d.max_rel)}});
  }
  return list;
}

/// `most` differences are told one by one, the rest as a number.
std::string text_of(const ckpt::DiffReport& report, const Json& training, bool equal, std::size_t most) {
  std::string text;
  for (const ckpt::Difference& d :
       std::span(report.differences).first(std::min(most, report.differences.size()))) {
    text += fmt::format("{} {}: ", d.tensor, d.kind);
    if (d.what == "value")
      text += fmt::format(
          "{} element(s) differ, the first at {}: {} against {}; largest difference {}, relative {}\n",
          d.count, ckpt::to_string(d.index), d.a, d.b, d.max_abs, d.max_rel);
    else
      text += fmt::format("{} differs: {} against {}\n", d.what, d.a.empty() ? "absent" : d.a,
                          d.b.empty() ? "absent" : d.b);
  }
  if (report.differences.size() > most)
    text += fmt::format("... and {} more; --all lists them\n", report.differences.size() - most);
  for (const auto& [field, values] : training.items())
    text += fmt::format("training state {}: {} against {}\n", field, values[0].dump(), values[1].dump());
  return text + fmt::format("{}: {} states compared by {}, {} differ\n", equal ? "equal" : "different",
                            report.compared, report.content_read ? "content" : "fingerprints",
                            report.differences.size());
}

}  // namespace

int diff(const Arguments& arguments) {
  std::string a, b;
  std::optional<double> atol, rtol;
  bool state = false, all = false, json = false;
  Options flags("diff", "Compares two checkpoints by logical tensor, whatever layouts wrote them.",
                "shardwright diff runs/a runs/b --rtol 1e-6");
  flags.positional("A", a, "a checkpoint or a run");
  flags.positional("B", b, "a checkpoint or a run");
  flags.number("--atol", "X", 0, atol, "|a - b| up to X + rtol |b| counts as equal");
  flags.number("--rtol", "Y", 0, rtol, "see --atol");
  flags.flag("--state", state, "step, samples and the rest of the training state must be equal too");
  flags.flag("--all", all, fmt::format("list every difference, not only the first {}", kListed));
  flags.flag("--json", json, "print JSON, always with every difference");
  flags.footer(
      "What the manifests decide is decided from them: values are read only where fingerprints differ. "
      "`shardwright verify` tells whether the files still hold what their manifest says.");
  if (!flags.parse(arguments)) return 0;

  ckpt::Env& env = ckpt::posix_env();
  const auto from = ckpt::Checkpoint::open(env, ckpt::resolve_checkpoint(env, a));
  const auto to = ckpt::Checkpoint::open(env, ckpt::resolve_checkpoint(env, b));
  ckpt::DiffOptions options;
  options.atol = atol.value_or(0);
  options.rtol = rtol.value_or(0);
  options.threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  const ckpt::DiffReport report = ckpt::diff(from, to, options);
  const auto training_of = [](const ckpt::Checkpoint& checkpoint) {
    return json_document(checkpoint.manifest().description.training,
                         checkpoint.path() + "/manifest.h5: /training");
  };
  const Json training = differing_fields(training_of(from), training_of(to));
  const bool equal = report.equal() && (!state || training.empty());
  if (json)
    print_json({{"equal", equal},
                {"method", report.content_read ? "content" : "manifest"},
                {"compared", report.compared},
                {"differences", differences_json(report)},
                {"training_differs", training}});
  else
    print(text_of(report, training, equal, all ? report.differences.size() : kListed));
  return equal ? 0 : 1;
}

}  // namespace shardwright::cli

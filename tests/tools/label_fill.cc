// label_fill OUT_DIR --model k=v,... --layout t2d3z1 [--stages 2,1,1] [--rank-order pdt] [--step N] [--change
// tensor:kind:i,j]
//   writes a labelled checkpoint of that layout, on request with one element changed
// label_fill OUT_DIR --model k=v,... --layout t2d3z1 --noise yes [--step N]
//   the same with the entropy of trained weights instead of labels
// label_fill --check CKPT
//   status 1 and a line for each state in which a value is not where it belongs
#include "tests/tools/label_fill.h"

#include <cstdio>
#include <cstdlib>
#include <map>
#include <sstream>

#include "tests/tools/noise_source.h"

namespace shardwright {
namespace {

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, separator);) parts.push_back(part);
  return parts;
}

reshard::ModelSpec parse_model(const std::string& text) {
  reshard::ModelConfig c;
  const std::map<std::string, std::int64_t*> keys{
      {"layers", &c.layers}, {"hidden", &c.hidden}, {"heads", &c.heads},    {"kv_heads", &c.kv_heads},
      {"ffn", &c.ffn},       {"vocab", &c.vocab},   {"seq_len", &c.seq_len}};
  for (const std::string& pair : split(text, ',')) {
    const std::string key = pair.substr(0, pair.find('='));
    const std::string value = pair.substr(pair.find('=') + 1);
    if (key == "arch") {
      c.arch = value;
    } else if (key == "tie_embeddings") {
      c.tie_embeddings = value == "true";
    } else if (keys.contains(key)) {
      *keys.at(key) = std::stoll(value);
    } else {
      throw Error(ErrorCode::usage, "--model: unknown key '" + key + "'; keys of [model]");
    }
  }
  return build_model(c);
}

LabelChange parse_change(const std::string& text, const reshard::ModelSpec& model) {
  const std::vector<std::string> parts = split(text, ':');
  if (parts.size() != 3 || model.find(parts[0]) < 0) {
    throw Error(ErrorCode::usage, "--change: '" + text + "'; tensor:kind:i,j");
  }
  const ckpt::Dims& shape = model.tensors[static_cast<std::size_t>(model.find(parts[0]))].shape;
  const std::vector<std::string> at = split(parts[2], ',');
  LabelChange change{parts[0], parts[1], 0};
  for (std::size_t d = 0; d < shape.size(); ++d)
    change.index = change.index * shape[d] + std::stoull(at.at(d));
  return change;
}

int run(const std::vector<std::string>& arguments) {
  std::string target;
  std::map<std::string, std::string> options;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (!arguments[i].starts_with("--")) {
      target = arguments[i];
    } else {
      options[arguments[i]] = i + 1 < arguments.size() ? arguments[i + 1] : "";
      ++i;
    }
  }
  ckpt::Env& env = ckpt::posix_env();
  if (options.contains("--check")) {
    const std::vector<std::string> wrong = check_labels(env, options["--check"]);
    for (const std::string& line : wrong) std::fprintf(stderr, "%s\n", line.c_str());
    return wrong.empty() ? 0 : 1;
  }
  const reshard::ModelSpec model = parse_model(options["--model"]);
  reshard::Layout layout = reshard::parse_layout(options["--layout"]);
  for (const std::string& number : split(options["--stages"], ','))
    layout.stages.push_back(std::stoi(number));
  if (options.contains("--rank-order")) layout.order = options["--rank-order"];
  check_layout(layout, model);
  LabelChange change;
  if (options.contains("--change")) change = parse_change(options["--change"], model);
  const std::uint64_t step = options.contains("--step") ? std::stoull(options["--step"]) : 0;
  if (!options.contains("--noise")) {
    write_labelled(env, target, model, layout, step, change);
    return 0;
  }
  write_checkpoint(env, target, model, layout, step, [&](int rank) {
    std::vector<ckpt::SaveItem> items = label_items(model, layout, rank);
    for (ckpt::SaveItem& item : items)
      item.source = std::make_shared<NoiseSource>(item.tensor, item.kind, item.global_shape);
    return items;
  });
  return 0;
}

}  // namespace
}  // namespace shardwright

int main(int argc, char** argv) {
  try {
    return shardwright::run({argv + 1, argv + argc});
  } catch (const std::exception& e) {
    std::fprintf(stderr, "label_fill: %s\n", e.what());
    return 2;
  }
}

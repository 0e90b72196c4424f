#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "ckpt/checkpoint.h"
#include "ckpt/error.h"
#include "ckpt/scan.h"
#include "ckpt/size_text.h"
#include "cli/commands.h"
#include "cli/layout_flags.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/words.h"
#include "reshard/draw.h"
#include "reshard/layout.h"
#include "reshard/model_spec.h"

namespace shardwright::cli {
namespace {

using Json = nlohmann::ordered_json;

std::uint64_t raw_bytes(const ckpt::Manifest& manifest, const ckpt::StateEntry& state) {
  return ckpt::element_count(manifest.tensors[state.tensor].shape) * ckpt::size_of(state.dtype);
}

/// Stored chunk bytes of each state, from the shards' tables.
std::vector<std::uint64_t> stored_by_state(const ckpt::Checkpoint& checkpoint) {
  const ckpt::Manifest& manifest = checkpoint.manifest();
  std::vector<std::uint64_t> stored(manifest.states.size(), 0);
  for (const ckpt::BoxEntry& box : manifest.boxes) {
    if (box.chunks == 0) continue;
    const auto& table = checkpoint.shard(box.file).table();
    for (std::uint64_t i = 0; i < box.chunks; ++i)
      stored[box.state] += table[box.first_chunk + i].stored_bytes;
  }
  return stored;
}

Json dims(const ckpt::Dims& values) {
  Json list = Json::array();
  for (const std::uint64_t value : values) list.push_back(value);
  return list;
}

Json tensors_json(const ckpt::Checkpoint& checkpoint) {
  const ckpt::Manifest& manifest = checkpoint.manifest();
  const std::vector<std::uint64_t> stored = stored_by_state(checkpoint);
  Json tensors = Json::array();
  for (const ckpt::TensorEntry& tensor : manifest.tensors)
    tensors.push_back({{"name", tensor.name}, {"shape", dims(tensor.shape)}, {"kinds", Json::array()}});
  for (std::size_t i = 0; i < manifest.states.size(); ++i) {
    const ckpt::StateEntry& state = manifest.states[i];
    tensors[state.tensor]["kinds"].push_back({{"kind", state.kind},
                                              {"dtype", std::string(ckpt::name(state.dtype))},
                                              {"raw_bytes", raw_bytes(manifest, state)},
                                              {"stored_bytes", stored[i]},
                                              {"fingerprint", ckpt::to_hex(state.fingerprint)}});
  }
  return tensors;
}

Json files_json(const ckpt::Manifest& manifest) {
  Json files = Json::array();
  for (const ckpt::FileRecord& file : manifest.files)
    files.push_back({{"name", file.name}, {"stored_bytes", file.bytes}, {"boxes", Json::array()}});
  for (const ckpt::BoxEntry& box : manifest.boxes) {
    if (box.box.empty()) continue;
    const ckpt::StateEntry& state = manifest.states[box.state];
    files[box.file]["boxes"].push_back({{"tensor", manifest.tensors[state.tensor].name},
                                        {"kind", state.kind},
                                        {"offset", dims(box.box.offset)},
                                        {"shape", dims(box.box.shape)}});
  }
  return files;
}

/// Elements of all tensors.
std::uint64_t values_of(const ckpt::Manifest& manifest) {
  std::uint64_t values = 0;
  for (const ckpt::TensorEntry& tensor : manifest.tensors) values += ckpt::element_count(tensor.shape);
  return values;
}

/// `moment` is when the checkpoint was committed, in seconds since the epoch like `now`.
std::string text_of(const Json& report, const ckpt::Manifest& manifest, double moment, double now) {
  const auto text_at = [&](const char* field) { return report[field].get<std::string>(); };
  const auto number_at = [&](const char* field) { return report[field].get<std::uint64_t>(); };
  const Json& layout = report["layout"];
  std::string text = text_at("path") + "\n";
  const auto line = [&](const char* what, const std::string& value) {
    text += fmt::format("  {:<11} {}\n", what, value);
  };
  line("status", report.contains("reason")
                     ? text_at("status") + ": " + text_at("reason")
                     : text_at("status") + " (every file is there with its size; `verify` reads the bytes)");
  const Json& samples = report["samples"];
  const Json loss = report["training"].is_object() ? report["training"].value("loss", Json()) : Json();
  line("step", grouped_text(number_at("step")) +
                   (samples.is_number_unsigned()
                        ? fmt::format(", after {} samples", grouped_text(samples.get<std::uint64_t>()))
                        : "") +
                   (loss.is_number() ? fmt::format(", loss {:.4g}", loss.get<double>()) : ""));
  line("written", fmt::format("{} ({})", age_text(moment, now), text_at("time")));
  line("run", fmt::format("{}, generation {}, format version {}", text_at("run"), report["generation"].dump(),
                          report["version"].dump()));
  // Ranks and parameters are a transformer's; of another program's checkpoint it is known what was written.
  const bool known = known_layout(layout).has_value();
  line("layout",
       fmt::format("{}{}: {}", layout_text(layout), known ? " (" + text_field(layout, "string") + ")" : "",
                   number_of(number_at("ranks"), known ? "rank" : "writer")));
  line("model", model_text(report["model"]));
  if (const std::uint64_t count = number_at("parameters"); known)
    line("parameters",
         count < 10000 ? count_text(count) : fmt::format("{} ({})", count_text(count), grouped_text(count)));
  else
    line("tensors", fmt::format("{}, {} in all", number_of(manifest.tensors.size(), "tensor"),
                                number_of(values_of(manifest), "value")));
  line("state", fmt::format("{} of {}", ckpt::size_text(number_at("raw_bytes")),
                            fmt::join(report["kinds"].get<std::vector<std::string>>(), ", ")));
  line("stored", fmt::format("{} in {} shard{}{}", ckpt::size_text(number_at("stored_bytes")),
                             report["shards"].dump(), report["shards"] == 1 ? "" : "s",
                             number_at("raw_bytes") == 0
                                 ? ""
                                 : fmt::format(", {:.0f} % of the state",
                                               100 * static_cast<double>(number_at("stored_bytes")) /
                                                   static_cast<double>(number_at("raw_bytes")))));
  if (report.contains("drawn")) text += "  drawn       " + text_at("drawn") + "\n";
  if (report.contains("tensors")) {
    text += "\nTensors:\n";
    for (const Json& tensor : report["tensors"]) {
      text += fmt::format("  {} {}\n", tensor["name"].get<std::string>(), tensor["shape"].dump());
      for (const Json& kind : tensor["kinds"])
        text += fmt::format(
            "    {:<12} {:<5} {:>10} stored of {:>10}  {}\n", kind["kind"].get<std::string>(),
            kind["dtype"].get<std::string>(), ckpt::size_text(kind["stored_bytes"].get<std::uint64_t>()),
            ckpt::size_text(kind["raw_bytes"].get<std::uint64_t>()), kind["fingerprint"].get<std::string>());
    }
  }
  if (report.contains("files")) {
    text += "\nFiles:\n";
    for (const Json& file : report["files"]) {
      text += fmt::format("  {}  {}\n", file["name"].get<std::string>(),
                          ckpt::size_text(file["stored_bytes"].get<std::uint64_t>()));
      for (const Json& box : file["boxes"])
        text += fmt::format("    {:<12} {} offset {} shape {}\n", box["kind"].get<std::string>(),
                            box["tensor"].get<std::string>(), box["offset"].dump(), box["shape"].dump());
    }
  }
  return text;
}

/// Writes the picture through a temporary name; replaces a picture, and nothing that is no file.
void draw(ckpt::Env& env, const ckpt::Checkpoint& checkpoint, const std::string& file,
          const std::optional<reshard::Layout>& target, const std::vector<std::string>& tensors) {
  if (file.empty())
    throw Error(ErrorCode::usage, "--draw: the name is empty; give the file to write, as who.svg");
  const std::filesystem::path path(file);
  std::error_code unknown;
  if (std::filesystem::exists(path, unknown) && !std::filesystem::is_regular_file(path, unknown))
    throw Error(ErrorCode::usage, fmt::format("{}: is no file; give the name of the SVG file to write", file),
                file);
  if (!path.parent_path().empty() && !env.is_dir(path.parent_path().string()))
    throw Error(ErrorCode::missing,
                fmt::format("{}: its directory does not exist; a directory that does", file), file);
  const std::string title = fmt::format(
      "{}, step {}", std::filesystem::path(checkpoint.path()).filename().string(), checkpoint.commit().step);
  ckpt::replace_file(
      env, file, reshard::to_svg(reshard::draw_checkpoint(checkpoint.manifest(), title, target, tensors)));
}

}  // namespace

int inspect(const Arguments& arguments) {
  std::string path;
  bool tensors = false, ranks = false, json = false;
  std::optional<std::string> picture;
  std::vector<std::string> drawn;
  LayoutFlags layout_flags;
  Options flags("inspect", "Says what is in a checkpoint, from its manifest; no shard data is read.",
                "shardwright inspect runs/demo/checkpoints/step-0000000120 --tensors");
  flags.positional("CKPT", path, "a checkpoint, or a run (then its newest valid checkpoint)");
  flags.flag("--tensors", tensors, "list tensors with kinds, sizes and fingerprints");
  flags.flag("--ranks", ranks, "list files with the boxes in them");
  flags.text("--draw", "FILE.svg", picture, "draw who holds and who writes which part of some tensors");
  flags.texts("--tensor", "NAME", drawn, "draw this tensor (several: once for each)");
  layout_flags.declare(flags);
  flags.footer("With a layout, --draw shows on the right what a reshard to it would make.");
  flags.flag("--json", json, "print JSON");
  if (!flags.parse(arguments)) return 0;
  if (!picture && (!drawn.empty() || layout_flags.given()))
    throw Error(ErrorCode::usage,
                "inspect: a tensor or layout is given and no --draw FILE.svg; give both or none");

  ckpt::Env& env = ckpt::posix_env();
  const std::string directory = ckpt::resolve_checkpoint(env, path);
  const ckpt::Checkpoint checkpoint = ckpt::Checkpoint::open(env, directory);
  const ckpt::Manifest& manifest = checkpoint.manifest();
  const auto document = [&](const char* name, const std::string& text) {
    return json_document(text, fmt::format("{}/manifest.h5: {}", directory, name));
  };
  const Json training = document("/training", manifest.description.training);

  std::uint64_t parameters = 0, raw = 0, stored = 0;
  std::set<std::string> kinds;
  for (const ckpt::StateEntry& state : manifest.states) {
    kinds.insert(state.kind);
    raw += raw_bytes(manifest, state);
    if (state.kind == reshard::kParam)
      parameters += ckpt::element_count(manifest.tensors[state.tensor].shape);
  }
  for (const ckpt::FileRecord& file : manifest.files) stored += file.bytes;
  // Structure only, as `list` checks it: a shard may be gone or cut short while the manifest still tells what
  // was there.
  std::string reason;
  try {
    ckpt::check_structure(env, directory);
  } catch (const Error& error) {
    reason = error.what();
  }
  const Json layout = document("/layout", manifest.description.layout);
  const std::optional<reshard::Layout> known = known_layout(layout);
  const double moment = env.modified(directory + "/COMMIT");

  Json report = {{"path", directory},
                 {"status", reason.empty() ? "valid" : "damaged"},
                 {"step", checkpoint.commit().step},
                 {"samples", training.is_object() ? training.value("samples", Json()) : Json()},
                 {"run", checkpoint.commit().run},
                 {"generation", checkpoint.commit().generation},
                 {"version", checkpoint.commit().version},
                 {"layout", layout},
                 {"ranks", known ? static_cast<std::size_t>(known->ranks()) : manifest.files.size()},
                 {"model", document("/model", manifest.description.model)},
                 {"training", training},
                 {"parameters", parameters},
                 {"raw_bytes", raw},
                 {"stored_bytes", stored},
                 {"kinds", kinds},
                 {"time", utc(moment)},
                 {"shards", manifest.files.size()}};
  if (!reason.empty()) report["reason"] = reason;
  if (tensors) report["tensors"] = tensors_json(checkpoint);
  if (ranks) report["files"] = files_json(manifest);
  if (picture) {
    std::optional<reshard::Layout> target;
    if (layout_flags.given()) target = layout_flags.apply(manifest, directory);
    draw(env, checkpoint, *picture, target, drawn);
    report["drawn"] = *picture;
  }
  if (json)
    print_json(report);
  else
    print(text_of(report, manifest, moment, seconds_since_epoch()));
  return reason.empty() ? 0 : 1;
}

}  // namespace shardwright::cli

// A layout as flags say it: a string, or single degrees over a checkpoint's own.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ckpt/manifest.h"
#include "cli/options.h"
#include "reshard/layout.h"

namespace shardwright::cli {

/// Layers of each stage as a flag gives them, "5,6,6,5". Error(usage) names the flag.
std::vector<int> parse_stages(const std::string& flag, const std::string& text);

class LayoutFlags {
 public:
  /// Adds --layout, --tp, --pp, --dp, --zero, --vpp, --stages and --rank-order.
  void declare(Options& flags);
  /// True if any of them was given.
  bool given() const;
  /// What they say of the layout of the checkpoint at `path`; its own if none was given. Error(usage) for
  /// flags that contradict each other or are no layout; legality is not checked.
  reshard::Layout apply(const ckpt::Manifest& source, const std::string& path) const;

 private:
  bool single() const { return tp_ || pp_ || dp_ || zero_ || vpp_; }
  reshard::Layout degrees(const ckpt::Manifest& source, const std::string& path) const;

  std::optional<std::string> whole_, stages_, order_;
  std::optional<std::int64_t> tp_, pp_, dp_, zero_, vpp_;
};

}  // namespace shardwright::cli

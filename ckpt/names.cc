#include "ckpt/names.h"

#include <fmt/format.h>

#include <algorithm>

#include "ckpt/error.h"

namespace shardwright::ckpt {
namespace {

constexpr std::size_t kMaxNameBytes = 1024;

/// Well-formed UTF-8 by length and continuation bytes: names travel in JSON.
bool is_utf8(const std::string& text) {
  std::size_t continuation = 0;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (continuation > 0) {
      if ((byte & 0xc0) != 0x80) return false;
      --continuation;
    } else if (byte >= 0xc2 && byte <= 0xdf) {
      continuation = 1;
    } else if ((byte & 0xf0) == 0xe0) {
      continuation = 2;
    } else if (byte >= 0xf0 && byte <= 0xf4) {
      continuation = 3;
    } else if (byte >= 0x80) {
      return false;
    }
  }
  return continuation == 0;
}

}  // namespace

void check_names(const std::string& tensor, const std::string& kind) {
  const auto refuse = [&](const std::string& what) {
    throw Error(ErrorCode::usage, fmt::format("tensor '{}' kind '{}': {}", tensor, kind, what));
  };
  const auto check = [&](const std::string& text, const char* role) {
    if (text.empty() || text == "." || text == ".." || text.size() > kMaxNameBytes)
      refuse(fmt::format("'{}' is no {} name; a dotted path like model.norm.weight is right", text, role));
    const bool plain = std::all_of(text.begin(), text.end(), [](char c) {
      return c != '/' && c != '@' && static_cast<unsigned char>(c) >= 0x20 && c != 0x7f;
    });
    if (!plain || !is_utf8(text))
      refuse(fmt::format("its {} name has '/', '@', a control character or broken UTF-8; other text is right",
                         role));
  };
  check(tensor, "tensor");
  check(kind, "kind");
  if (kind == "chunks") refuse("the kind 'chunks' is the name of the chunk table; another is needed");
}

}  // namespace shardwright::ckpt

// The geometry and text of a drawing.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <set>

#include "reshard/draw.h"

namespace shardwright::reshard {
namespace {

// In units of the picture, which are pixels at its natural size.
constexpr double kEdge = 24;   // around the whole picture
constexpr double kTicks = 64;  // left of a tensor, for row numbers and the name of dimension 0
constexpr double kTensorWidth = 300;
constexpr double kVectorHeight = 40;
constexpr double kLeastHeight = 84;
constexpr double kMostHeight = 180;
constexpr double kList = 240;  // right of a tensor, for who holds what
constexpr double kColumn = kTicks + kTensorWidth + kList;
constexpr double kLine = 15;
constexpr double kHeader = 92;
constexpr std::size_t kListed = 12;  // held boxes named beside a tensor
constexpr int kLegendRanks = 32;

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        // XML has no way to write other control characters.
        out += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
    }
  }
  return out;
}

// Neighbouring ranks get hues far apart: steps of the golden angle.
std::string colour(int rank) {
  return fmt::format("hsl({:.0f},{}%,{}%)", (rank * 137.508) - 360 * static_cast<int>(rank * 137.508 / 360),
                     rank % 2 == 0 ? 62 : 48,
                     rank % 3 == 0   ? 74
                     : rank % 3 == 1 ? 66
                                     : 81);
}

std::string joined(const ckpt::Dims& dims) {
  return fmt::format("{}", fmt::join(dims.begin(), dims.end(), ","));
}

// "0, 2, 4, 6"; of many the first ones and the last.
std::string listed(const std::vector<int>& ranks) {
  constexpr std::size_t kShown = 6;
  if (ranks.size() == 1) return fmt::format("rank {}", ranks[0]);
  if (ranks.size() <= kShown) return fmt::format("ranks {}", fmt::join(ranks, ", "));
  return fmt::format("{} ranks: {}, {}, … {}", ranks.size(), ranks[0], ranks[1], ranks.back());
}

// "A" to "Z", then "A1".
std::string mark(std::size_t i) {
  const std::string letter(1, static_cast<char>('A' + i % 26));
  return i < 26 ? letter : fmt::format("{}{}", letter, i / 26);
}

struct Rect {
  double x = 0, y = 0, width = 0, height = 0;
};

// One tensor in one layout, at a place of the picture.
class Panel {
 public:
  Panel(const DrawnTensor& tensor, std::size_t column, double x, double y)
      : tensor_(tensor),
        side_(tensor.sides[column]),
        column_(column),
        frame_{x + kTicks, y, kTensorWidth, 0} {
    frame_.height = picture_height(tensor);
  }

  // Of the tensor's rectangle, the same in every column.
  static double picture_height(const DrawnTensor& tensor) {
    if (tensor.shape.size() < 2) return kVectorHeight;
    const double ratio = static_cast<double>(tensor.shape[0]) /
                         static_cast<double>(std::max<std::uint64_t>(tensor.shape[1], 1));
    return std::clamp(kTensorWidth * ratio, kLeastHeight, kMostHeight);
  }
  static double height(const DrawnTensor& tensor) {
    std::size_t lines = 0;
    for (const DrawnSide& side : tensor.sides)
      lines = std::max(lines, std::min(side.holds.size(), kListed + 1));
    return std::max(picture_height(tensor) + 24, static_cast<double>(lines) * kLine);
  }

  std::string svg() {
    for (const DrawnPart& part : side_.writes) writer(part);
    for (std::size_t i = 0; i < side_.holds.size(); ++i) held(i);
    if (side_.holds.empty()) outline(frame_, "#333", 1.2, "class=\"frame\"");
    axes();
    list();
    return out_;
  }

 private:
  // Dimension 0 runs down and dimension 1 across; a vector runs across. A scalar is one element.
  Rect place(const ckpt::Box& box) const {
    const auto along = [&](std::size_t d, double from, double extent, double& at, double& size) {
      if (d >= tensor_.shape.size()) {
        at = from;
        size = extent;
        return;
      }
      const auto all = static_cast<double>(std::max<std::uint64_t>(tensor_.shape[d], 1));
      at = from + extent * static_cast<double>(box.offset[d]) / all;
      size = extent * static_cast<double>(box.shape[d]) / all;
    };
    Rect r;
    const bool matrix = tensor_.shape.size() >= 2;
    along(matrix ? 1 : 0, frame_.x, frame_.width, r.x, r.width);
    along(matrix ? 0 : 1, frame_.y, frame_.height, r.y, r.height);
    return r;
  }

  void text(double x, double y, double size, const char* anchor, const std::string& what,
            const std::string& more = "") {
    out_ +=
        fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" font-size=\"{:.0f}\" text-anchor=\"{}\"{}{}>{}</text>\n",
                    x, y, size, anchor, more.empty() ? "" : " ", more, escaped(what));
  }

  void outline(const Rect& r, const char* stroke, double width, const std::string& more) {
    out_ += fmt::format(
        "<rect {} x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\" fill=\"none\" stroke=\"{}\" "
        "stroke-width=\"{}\"/>\n",
        more, r.x, r.y, r.width, r.height, stroke, width);
  }

  void writer(const DrawnPart& part) {
    const Rect r = place(part.box);
    const int rank = part.ranks.front();
    out_ += fmt::format(
        "<rect class=\"writes\" data-tensor=\"{}\" data-column=\"{}\" data-rank=\"{}\" data-offset=\"{}\" "
        "data-shape=\"{}\" x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\" fill=\"{}\" "
        "stroke=\"#fff\" stroke-width=\"0.8\"><title>rank {} writes {} of {}</title></rect>\n",
        escaped(tensor_.name), column_, rank, joined(part.box.offset), joined(part.box.shape), r.x, r.y,
        r.width, r.height, colour(rank), rank, ckpt::to_string(part.box), escaped(tensor_.name));
    // The longest label that fits, if any does.
    for (const std::string& label : {fmt::format("rank {}", rank), fmt::format("{}", rank)}) {
      const double size = std::min(12.0, r.height - 1);
      if (size < 7 || 0.6 * size * static_cast<double>(label.size()) > r.width - 3) continue;
      text(r.x + r.width / 2, r.y + r.height / 2 + 0.35 * size, size, "middle", label);
      break;
    }
  }

  void held(std::size_t i) {
    const DrawnPart& part = side_.holds[i];
    const Rect r = place(part.box);
    outline(r, "#222", 1.6,
            fmt::format("class=\"holds\" data-tensor=\"{}\" data-column=\"{}\" data-ranks=\"{}\"",
                        escaped(tensor_.name), column_, fmt::join(part.ranks, " ")));
    if (side_.holds.size() == 1) return;
    // Bands of rows are marked on the right, bands of columns below.
    const bool rows = r.width > frame_.width - 0.01;
    if ((rows ? r.height : r.width) < 11) return;
    if (rows) {
      text(frame_.x + frame_.width + 5, r.y + r.height / 2 + 4, 11, "start", mark(i), "font-weight=\"bold\"");
    } else {
      text(r.x + r.width / 2, frame_.y + frame_.height + 12, 11, "middle", mark(i), "font-weight=\"bold\"");
    }
  }

  // Extents of both dimensions, and where the held boxes begin along the one that is cut.
  void axes() {
    const std::size_t dims = tensor_.shape.size();
    const double bottom = frame_.y + frame_.height;
    const char* grey = "fill=\"#666\"";
    if (dims == 0) return text(frame_.x, frame_.y - 4, 10, "start", "one element", grey);
    const std::string across =
        fmt::format("dimension {}: {}", dims >= 2 ? 1 : 0, tensor_.shape[dims >= 2 ? 1 : 0]);
    text(frame_.x + frame_.width, frame_.y - 4, 10, "end", across + " →", grey);
    if (dims >= 2) {
      const double x = frame_.x - kTicks + 14;
      const double y = frame_.y + frame_.height / 2;
      text(x, y, 10, "middle", fmt::format("← dim. 0: {}", tensor_.shape[0]),
           fmt::format("{} transform=\"rotate(-90 {:.1f} {:.1f})\"", grey, x, y));
    }
    std::set<std::pair<double, std::uint64_t>> downs, overs;  // where on the picture, and which element
    for (const DrawnPart& part : side_.holds.empty() ? side_.writes : side_.holds) {
      const Rect r = place(part.box);
      if (dims >= 2) downs.insert({r.y, part.box.offset[0]});
      overs.insert({r.x, part.box.offset[dims >= 2 ? 1 : 0]});
    }
    double last = frame_.y - 100;
    for (const auto& [y, element] : downs) {
      if (y - last < 11) continue;
      text(frame_.x - 5, y + 8, 9, "end", fmt::format("{}", element), grey);
      last = y;
    }
    if (overs.size() < 2) return;
    last = frame_.x - 100;
    for (const auto& [x, element] : overs) {
      if (x - last < 34) continue;
      text(x, bottom + (dims >= 2 ? 22 : 11), 9, "start", fmt::format("{}", element), grey);
      last = x;
    }
  }

  void list() {
    const double x = frame_.x + frame_.width + 24;
    double y = frame_.y + 10;
    for (std::size_t i = 0; i < side_.holds.size(); ++i) {
      if (i == kListed && side_.holds.size() > kListed) {
        return text(x, y, 11, "start", fmt::format("… and {} more held parts", side_.holds.size() - kListed));
      }
      const std::string name = side_.holds.size() == 1 ? "all of it" : mark(i);
      text(x, y, 11, "start", fmt::format("{} held by {}", name, listed(side_.holds[i].ranks)));
      y += kLine;
    }
  }

  const DrawnTensor& tensor_;
  const DrawnSide& side_;
  std::size_t column_;
  Rect frame_;
  std::string out_;
};

int most_rank(const Drawing& drawing) {
  int most = 0;
  for (const DrawnTensor& t : drawing.tensors) {
    for (const DrawnSide& side : t.sides) {
      for (const auto* parts : {&side.holds, &side.writes}) {
        for (const DrawnPart& part : *parts) most = std::max(most, part.ranks.back());
      }
    }
  }
  return most;
}

std::string legend(double y, int most) {
  std::string out = fmt::format(
      "<text x=\"{:.0f}\" y=\"{:.0f}\" font-size=\"11\">Fill: the one rank that writes the part. Black "
      "outline: a "
      "part held whole by each of the ranks named beside it. Positions count elements of the whole tensor; a "
      "picture's sides are not to one scale.</text>\n",
      kEdge, y);
  const int shown = std::min(most + 1, kLegendRanks);
  for (int rank = 0; rank < shown; ++rank) {
    const double x = kEdge + 66 * (rank % 16);
    const double row = y + 14 + 20 * (rank / 16);
    out += fmt::format(
        "<rect class=\"legend\" x=\"{:.0f}\" y=\"{:.0f}\" width=\"14\" height=\"12\" fill=\"{}\"/><text "
        "x=\"{:.0f}\" "
        "y=\"{:.0f}\" font-size=\"11\">rank {}</text>\n",
        x, row, colour(rank), x + 18, row + 10, rank);
  }
  if (shown <= most) {
    out += fmt::format("<text x=\"{:.0f}\" y=\"{:.0f}\" font-size=\"11\">… to rank {}</text>\n", kEdge,
                       y + 28 + 20 * ((shown + 15) / 16), most);
  }
  return out;
}

}  // namespace

std::string to_svg(const Drawing& drawing) {
  std::string body;
  double y = kHeader;
  for (const DrawnTensor& tensor : drawing.tensors) {
    body += fmt::format(
        "<text x=\"{:.0f}\" y=\"{:.1f}\" font-size=\"13\" font-weight=\"bold\">{} <tspan "
        "font-weight=\"normal\" "
        "fill=\"#555\">{}</tspan></text>\n",
        kEdge, y, escaped(tensor.name), to_string(tensor.shape));
    y += 24;
    for (std::size_t column = 0; column < tensor.sides.size(); ++column) {
      body += Panel(tensor, column, kEdge + static_cast<double>(column) * kColumn, y).svg();
    }
    y += Panel::height(tensor) + 26;
  }
  const int most = most_rank(drawing);
  body += legend(y, most);
  const double height = y + 34 + 20 * ((std::min(most + 1, kLegendRanks) + 15) / 16) + kEdge;
  const double width =
      std::max(2 * kEdge + kColumn * static_cast<double>(drawing.columns.size()), 2 * kEdge + 1080);
  std::string head = fmt::format(
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<svg xmlns=\"http://www.w3.org/2000/svg\" "
      "width=\"{0:.0f}\" "
      "height=\"{1:.0f}\" viewBox=\"0 0 {0:.0f} {1:.0f}\" font-family=\"DejaVu Sans, Verdana, sans-serif\">\n"
      "<rect class=\"paper\" width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
      "<text x=\"{2:.0f}\" y=\"34\" font-size=\"16\" font-weight=\"bold\">{3}</text>\n",
      width, height, kEdge, escaped(drawing.title));
  for (std::size_t column = 0; column < drawing.columns.size(); ++column) {
    head += fmt::format("<text x=\"{:.0f}\" y=\"62\" font-size=\"14\" fill=\"#234\">{}</text>\n",
                        kEdge + static_cast<double>(column) * kColumn, escaped(drawing.columns[column]));
  }
  return head + body + "</svg>\n";
}

}  // namespace shardwright::reshard
